"""Makes resized.safetensors: what tf.image.resize makes of the files in images.safetensors and of some larger ones.

    python make_resized.py  with TensorFlow 2.21.0

Each file is decoded and resized to a smaller and to a larger size, with and without smoothing. A tensor
`NAME/HEIGHTxWIDTH/KIND` has at most 60 pixels of a result, STRIDE apart in the order of rows, times 256 as U16; the tensor
`.../mean` has the mean of all its values. The new files are tensors `file/NAME`.
"""

import json
import pathlib
import struct

import numpy as np
import tensorflow as tf

HERE = pathlib.Path(__file__).parent
DOWN = [(9, 13), (16, 11), (7, 24), (5, 5), (20, 3)]
UP = [(97, 61), (64, 128), (41, 150), (111, 67)]
LARGE = {"large0.jpg": (300, 400), "large1.jpg": (241, 319), "large2.jpg": (400, 211)}


def files():
    with open(HERE / "images.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        start = file.tell()
        for name, tensor in sorted(header.items()):
            if name.startswith("file/"):
                begin, end = tensor["data_offsets"]
                file.seek(start + begin)
                yield name.removeprefix("file/"), file.read(end - begin)


def large(seed, height, width):
    """A JPEG file of waves and edges."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    rng = np.random.default_rng(seed)
    waves = [np.sin(x / rng.uniform(5, 40) + y / rng.uniform(5, 40)) for _ in range(3)]
    image = np.stack(waves, -1) * 70 + 128
    image[(x * 3 + y * 5) % 97 < 20] += 50
    return tf.io.encode_jpeg(np.clip(image, 0, 255).astype(np.uint8), quality=70).numpy()


def decode(name, data):
    if name.endswith(".jpg"):
        return tf.io.decode_jpeg(data, channels=3)
    return tf.io.decode_png(data, channels=3) if name.endswith(".png") else tf.io.decode_webp(data, channels=3)[0]


tensors = {}
made = [(name, large(seed, *size)) for seed, (name, size) in enumerate(LARGE.items())]
for name, data in made:
    tensors[f"file/{name}"] = np.frombuffer(data, np.uint8)
for n, (name, data) in enumerate([*files(), *made]):
    image = decode(name, data)
    for height, width in [DOWN[n % len(DOWN)], UP[n % len(UP)]]:
        for antialias in [False, True]:
            pixels = tf.image.resize(image, (height, width), antialias=antialias).numpy()
            key = f"{name}/{height}x{width}/{'antialias' if antialias else 'plain'}"
            stride = -(-height * width // 60)
            some = pixels.reshape(-1, 3)[::stride]
            tensors[key] = np.round(some * 256).astype(np.uint16)
            tensors[f"{key}/mean"] = np.array([pixels.astype(np.float64).mean()], np.float32)

header, offset = {}, 0
for name, array in tensors.items():
    kind = {"uint8": "U8", "uint16": "U16", "float32": "F32"}[str(array.dtype)]
    header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [offset, offset + array.nbytes]}
    offset += array.nbytes
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(HERE / "resized.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    for array in tensors.values():
        file.write(np.ascontiguousarray(array).tobytes())
