"""Makes png16.json: PNG files of 16 and 8 bits and, as TensorFlow reads them in 16, their dims and numbers.

    python make_png16.py  with TensorFlow 2.21.0
"""

import json
import pathlib

import numpy as np
import tensorflow as tf


def main():
    rng = np.random.default_rng(16)
    files = {
        "gray": rng.integers(0, 1 << 16, (5, 4, 1)).astype(np.uint16),
        "rgb": rng.integers(0, 1 << 16, (3, 4, 3)).astype(np.uint16),
        "bytes": rng.integers(0, 1 << 8, (4, 3, 1)).astype(np.uint8),
    }
    found = {}
    for name, image in files.items():
        png = tf.io.encode_png(image).numpy()
        read = tf.io.decode_png(png, channels=image.shape[-1], dtype=tf.uint16).numpy()
        found[name] = {"png": list(png), "dims": list(read.shape), "values": read.ravel().tolist()}
    path = pathlib.Path(__file__).parent / "png16.json"
    path.write_text(json.dumps(found, separators=(",", ":")) + "\n")


main()
