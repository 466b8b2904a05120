"""Makes images.safetensors: image files, their pixels by TensorFlow, and what functions of tf.image make of pixels.

Two steps, as the encoder of most files is Pillow:

    python make_images.py encode   with Pillow 13.0.0: writes the files to the folder images
    python make_images.py decode   with TensorFlow 2.21.0: writes images.safetensors

The files whose names begin with extra_ are of samplings that Pillow does not write; the Rust crate jpeg-encoder 0.7.1 made them.
"""

import io
import json
import pathlib
import struct
import sys

import numpy as np

HERE = pathlib.Path(__file__).parent
FILES = HERE / "images"


def picture(seed, height, width):
    """Waves, edges and noise: what every part of a decoder shows in."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    out = np.zeros((height, width, 3), np.float32)
    for c in range(3):
        for k in range(4):
            fx, fy, phase = rng.normal(0, 0.15 * (k + 1)), rng.normal(0, 0.15 * (k + 1)), rng.uniform(0, 6.3)
            out[..., c] += 45 / (k + 1) * np.sin(fx * x + fy * y + phase)
    left, top = rng.integers(0, width), rng.integers(0, height)
    out[top:, left:] += rng.uniform(-80, 80, 3)
    return np.clip(out + 128 + rng.normal(0, 10, out.shape), 0, 255).astype(np.uint8)


def encode():
    from PIL import Image

    FILES.mkdir(exist_ok=True)

    def save(name, image, **options):
        data = io.BytesIO()
        image.save(data, {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}[name.split(".")[1]], **options)
        (FILES / name).write_bytes(data.getvalue())

    sizes = [(32, 32), (17, 23), (48, 33), (31, 64), (40, 40), (24, 57), (8, 8), (16, 15)]
    n = 0
    for subsampling, word in [(0, "444"), (1, "422"), (2, "420")]:
        for progressive in [False, True]:
            for quality in [35, 75, 95]:
                height, width = sizes[n % len(sizes)]
                name = f"{word}_{'progressive' if progressive else 'sequential'}_q{quality}.jpg"
                save(name, Image.fromarray(picture(n, height, width)), quality=quality, subsampling=subsampling, progressive=progressive)
                n += 1
    for k, (height, width) in enumerate([(1, 1), (2, 3), (5, 4), (9, 1), (1, 40), (3, 90), (90, 5), (33, 6)]):
        save(f"420_size{k}.jpg", Image.fromarray(picture(100 + k, height, width)), quality=80, subsampling=2)
    for k, (height, width) in enumerate([(19, 30), (40, 21)]):
        image = Image.fromarray(picture(200 + k, height, width))
        save(f"gray{k}.jpg", image.convert("L"), quality=80, progressive=k == 1)
        save(f"optimised{k}.jpg", image, quality=90, optimize=True)
        save(f"restart{k}.jpg", image, quality=85, restart_marker_blocks=1 + 2 * k, subsampling=2)
        save(f"restart_progressive{k}.jpg", image, quality=85, restart_marker_rows=1, progressive=True)
        save(f"rgb{k}.jpg", image, quality=85, keep_rgb=True)
        save(f"cmyk{k}.jpg", image.convert("CMYK"), quality=85)
        save(f"best{k}.jpg", image, quality=100, subsampling=2 * k)
        save(f"rgb{k}.png", image)
        save(f"rgba{k}.png", image.convert("RGBA"))
        save(f"palette{k}.png", image.quantize(17 - 14 * k))
        save(f"gray{k}.png", image.convert("L"))
        save(f"lossless{k}.webp", image, lossless=True)
        save(f"lossy{k}.webp", image, quality=70)
    turned = Image.Exif()
    turned[0x0112] = 6
    save("orientation6.jpg", Image.fromarray(picture(300, 20, 36)), quality=80, exif=turned)
    save("gray_alpha.png", Image.fromarray(picture(301, 12, 9)).convert("LA"))
    save("bits16.png", Image.fromarray(picture(302, 9, 14)[..., 0].astype(np.uint16) * 257 + 100))
    save("bilevel.png", Image.fromarray(picture(303, 9, 13)).convert("1"))


def decode():
    import tensorflow as tf

    tensors = {}
    for path in sorted(FILES.glob("[!.]*")):
        data = path.read_bytes()
        tensors[f"file/{path.name}"] = np.frombuffer(data, np.uint8)
        if path.suffix == ".jpg":
            tensors[f"fast/{path.name}"] = tf.io.decode_jpeg(data, channels=3).numpy()
            tensors[f"accurate/{path.name}"] = tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE").numpy()
            if "cmyk" not in path.name:
                tensors[f"gray/{path.name}"] = tf.io.decode_jpeg(data, channels=1).numpy()
        elif path.suffix == ".png":
            tensors[f"fast/{path.name}"] = tf.io.decode_png(data, channels=3).numpy()
        else:
            tensors[f"fast/{path.name}"] = tf.io.decode_webp(data, channels=3).numpy()[0]
    image = picture(400, 13, 19)
    tensors["image"] = image
    for height, width in [(13, 19), (26, 38), (7, 10), (5, 40), (30, 6), (1, 1), (13, 3)]:
        for antialias in [False, True]:
            name = f"resize/{height}x{width}/{'antialias' if antialias else 'plain'}"
            tensors[name] = tf.image.resize(image, (height, width), antialias=antialias).numpy()
    unit = tf.constant(image[:8, :11].astype(np.float32) / 255)
    tensors["unit"] = unit.numpy()
    tensors["brightness/0.2"] = tf.image.adjust_brightness(unit, 0.2).numpy()
    for factor in [0.4, 1.7]:
        tensors[f"contrast/{factor}"] = tf.image.adjust_contrast(unit, factor).numpy()
        tensors[f"saturation/{factor}"] = tf.image.adjust_saturation(unit, factor).numpy()
    for delta in [-0.3, 0.08]:
        tensors[f"hue/{delta}"] = tf.image.adjust_hue(unit, delta).numpy()
    height, width = unit.shape[:2]
    for angle in [0.4, -1.2]:
        # As keras.layers.RandomRotation.
        cos, sin = np.cos(angle), np.sin(angle)
        x = ((width - 1) - (cos * (width - 1) - sin * (height - 1))) / 2
        y = ((height - 1) - (sin * (width - 1) + cos * (height - 1))) / 2
        for fill in ["CONSTANT", "NEAREST", "REFLECT"]:
            rotated = tf.raw_ops.ImageProjectiveTransformV3(
                images=unit[None],
                transforms=np.array([[cos, -sin, x, sin, cos, y, 0, 0]], np.float32),
                output_shape=(height, width),
                fill_value=0.0,
                interpolation="BILINEAR",
                fill_mode=fill,
            )
            tensors[f"rotation/{angle}/{fill.lower()}"] = rotated[0].numpy()
    write(tensors)


def write(tensors):
    """As safetensors, so that no package is needed."""
    header, offset = {}, 0
    for name, array in tensors.items():
        kind = {"uint8": "U8", "float32": "F32"}[str(array.dtype)]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(HERE / "images.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


{"encode": encode, "decode": decode}[sys.argv[1]]()
