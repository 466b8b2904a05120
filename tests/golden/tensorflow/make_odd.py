"""Makes odd.safetensors: JPEG files that encoders hardly write, with their pixels by TensorFlow.

    python make_odd.py  with TensorFlow 2.21.0

A file is the tensor `file/NAME`, its pixels are `NAME`. They are put together from files of images.safetensors and of TensorFlow.
"""

import json
import pathlib
import struct

import numpy as np
import tensorflow as tf

HERE = pathlib.Path(__file__).parent


def golden(name):
    with open(HERE / "images.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        begin, end = header[f"file/{name}"]["data_offsets"]
        file.seek(begin, 1)
        return file.read(end - begin)


def segments(data):
    """Marker and bytes of each segment, entropy-coded data with their scan."""
    at = 2
    while data[at + 1] != 0xD9:
        marker, length = data[at + 1], struct.unpack(">H", data[at + 2 : at + 4])[0]
        end = at + 2 + length
        while marker == 0xDA and not (data[end] == 0xFF and data[end + 1] not in (0, *range(0xD0, 0xD8))):
            end += 1
        yield marker, data[at:end]
        at = end


def whole(parts):
    return b"\xff\xd8" + b"".join(parts) + b"\xff\xd9"


def transform(name, value):
    """The transform that Adobe's segment names; without a segment for None."""
    parts = []
    for marker, part in segments(golden(name)):
        if marker == 0xEE:
            part = b"" if value is None else part[:15] + bytes([value])
        parts.append(part)
    return whole(parts)


def table(slot, factor):
    return b"\xff\xdb\x00\x43" + bytes([slot]) + bytes(min(255, 1 + factor + k // 4) for k in range(64))


def other_table_between(name):
    """Tables that differ after the first scan: those of the first scan hold."""
    parts, scans = [], 0
    for marker, part in segments(golden(name)):
        scans += marker == 0xDA
        parts.append(part)
        if marker == 0xDA and scans == 1:
            parts += [table(0, 40), table(1, 90)]
    return whole(parts)


def scan_a_component(count):
    """A scan for each of `count` components of three, each with another table in the same slot."""
    y, x = np.mgrid[0:27, 0:38]
    parts = []
    for c, quality in enumerate([90, 60, 30][:count]):
        gray = np.clip(128 + 60 * np.sin(x / (3 + c) + y / (5 - c)), 0, 255).astype(np.uint8)[..., None]
        found = dict(segments(tf.io.encode_jpeg(gray, format="grayscale", quality=quality).numpy()))
        huffman = [part for marker, part in segments(tf.io.encode_jpeg(gray, format="grayscale").numpy()) if marker == 0xC4]
        if c == 0:
            head = found[0xC0]
            three = b"".join(bytes([i, 0x11, 0]) for i in (1, 2, 3))
            parts += [b"\xff\xc0" + struct.pack(">H", 17) + head[4:9] + b"\x03" + three, *huffman]
        scan = bytearray(found[0xDA])
        scan[5] = c + 1
        parts += [found[0xDB], bytes(scan)]
    return whole(parts)


files = {
    "adobe_none.jpg": transform("cmyk0.jpg", None),
    "adobe1.jpg": transform("cmyk0.jpg", 1),
    "adobe2.jpg": transform("cmyk0.jpg", 2),
    "adobe0_rgb.jpg": transform("rgb0.jpg", 0),
    "adobe1_rgb.jpg": transform("rgb0.jpg", 1),
    "table_between.jpg": other_table_between("420_progressive_q75.jpg"),
    "table_each.jpg": scan_a_component(3),
    "component_missing.jpg": scan_a_component(2),
}
tensors = {}
for name, data in files.items():
    tensors[f"file/{name}"] = np.frombuffer(data, np.uint8)
    tensors[name] = tf.io.decode_jpeg(data, channels=3).numpy()

header, offset = {}, 0
for name, array in tensors.items():
    header[name] = {"dtype": "U8", "shape": array.shape, "data_offsets": [offset, offset + array.nbytes]}
    offset += array.nbytes
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(HERE / "odd.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    for array in tensors.values():
        file.write(np.ascontiguousarray(array).tobytes())
