"""Writes examples.tfrecord with TensorFlow: what the reader of TFRecord files and tf.train.Example is tested on.

    python make_tfrecord.py            writes examples.tfrecord beside this file
    python make_tfrecord.py read PATH  reads a file of ours with TensorFlow and compares it with what is written here
"""

import pathlib
import sys

import numpy as np
import tensorflow as tf

PATH = pathlib.Path(__file__).with_name("examples.tfrecord")


def features(i):
    """Example i: every kind of list, empty, with one value and with many; negative, large and non-ASCII values."""
    return {
        "label": [i - 2],
        "ids": [((-1) ** k) * 3 ** (k * i % 40) for k in range(i)],
        "floats": np.arange(i, dtype=np.float32) / 7,
        "image": [bytes((i * k) % 256 for k in range(i * 50))],
        "words": [f"wörd{k}".encode() for k in range(i % 3)],
        "clé": [b"\x00\xff"],
    }


def example(i):
    named = features(i)
    kinds = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if name in ("image", "words", "clé")
        else tf.train.Feature(float_list=tf.train.FloatList(value=values))
        if name == "floats"
        else tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        for name, values in named.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=kinds))


COUNT = 12


def write():
    with tf.io.TFRecordWriter(str(PATH)) as writer:
        for i in range(COUNT):
            writer.write(example(i).SerializeToString(deterministic=True))


def read(path):
    records = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
    assert len(records) == COUNT, len(records)
    for i, record in enumerate(records):
        assert tf.train.Example.FromString(record) == example(i), i
        assert record == example(i).SerializeToString(deterministic=True), i
    print(f"{path}: {COUNT} examples are what TensorFlow {tf.__version__} writes")


if __name__ == "__main__":
    read(sys.argv[2]) if sys.argv[1:2] == ["read"] else write()
