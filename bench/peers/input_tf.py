"""Reading data with tf.data: `input_tf.py WORK FOLDER SECONDS`, see README.md; `input_tf.py make FOLDER` writes the images."""

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import reading  # noqa: E402 (sets the processors)
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

AUTO = tf.data.AUTOTUNE
SIZE, MEAN, STD = 224, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def make(folder, count=512):
    """JPEG images of 400x300 with smooth shapes and some noise, in two classes."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:300, 0:400]
    for i in range(count):
        waves = [np.sin(x / rng.uniform(8, 60) + y / rng.uniform(8, 60) + rng.uniform(0, 6)) for _ in range(3)]
        image = np.stack(waves, -1) * 90 + 128 + rng.normal(0, 10, (300, 400, 3))
        path = pathlib.Path(folder) / "images" / f"class{i % 2}" / f"{i:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = tf.constant(np.clip(image, 0, 255).astype(np.uint8))
        path.write_bytes(tf.io.encode_jpeg(image, quality=90).numpy())


def normalised(image):
    image = tf.image.random_flip_left_right(image)
    return (tf.cast(image, tf.float32) / 255.0 - MEAN) / STD


def cropped_after(path):
    return normalised(tf.image.random_crop(tf.io.decode_jpeg(tf.io.read_file(path), channels=3), [SIZE, SIZE, 3]))


def cropped_while(path):
    data = tf.io.read_file(path)
    shape = tf.io.extract_jpeg_shape(data)
    top = tf.random.uniform([], 0, shape[0] - SIZE + 1, tf.int32)
    left = tf.random.uniform([], 0, shape[1] - SIZE + 1, tf.int32)
    return normalised(tf.image.decode_and_crop_jpeg(data, [top, left, SIZE, SIZE], channels=3))


def ways(work, folder):
    if work == "images":
        files = tf.data.Dataset.from_tensor_slices(sorted(map(str, pathlib.Path(folder, "images").glob("*/*.jpg"))))
        for name, parse in ("decode, then crop", cropped_after), ("decode_and_crop_jpeg", cropped_while):
            yield name, files.map(parse, num_parallel_calls=AUTO).batch(32).prefetch(AUTO)
        return
    batch = {"records_1k": 256, "records_100k": 32}[work]
    files = sorted(map(str, pathlib.Path(folder).glob(f"{work}-*.tfrecord")))
    yield "in order", tf.data.TFRecordDataset(files).batch(batch).prefetch(AUTO)
    yield "num_parallel_reads=2", tf.data.TFRecordDataset(files, num_parallel_reads=2).batch(batch).prefetch(AUTO)
    yield "interleave of batches", tf.data.Dataset.from_tensor_slices(files).interleave(
        lambda file: tf.data.TFRecordDataset(file).batch(batch), cycle_length=2, num_parallel_calls=AUTO).prefetch(AUTO)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2])
    else:
        for name, dataset in ways(sys.argv[1], sys.argv[2]):
            reading.report("tf.data", tf.__version__, name, dataset, len)
