"""Writes sequences.tfrecord and sequences.json with TensorFlow: what the reader of tf.train.SequenceExample is tested on.

    python make_sequences.py

sequences.json has the tensors that tf.io.parse_single_sequence_example makes of each example.
"""

import json
import pathlib

import tensorflow as tf

PATH = pathlib.Path(__file__).with_name("sequences.tfrecord")


def floats(values):
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def ints(values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def texts(values):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def example(i):
    """Example i: steps with values of a fixed number, of any number and of none; the first has neither context nor steps."""
    context = {"label": ints([i % 3]), "weights": floats([0.5 * i, -1]), "name": texts([f"number {i}".encode()])}
    lists = {
        "frames": [floats([k / 7, k * i]) for k in range(i)],
        "tokens": [ints([(n + k * i) * 1000003 for n in range(k % 3)]) for k in range(i)],
        "wörds": [texts([f"wörd{k}".encode()] * k) for k in range(i % 4)],
    }
    lists = {name: tf.train.FeatureList(feature=steps) for name, steps in lists.items()}
    whole = tf.train.SequenceExample(feature_lists=tf.train.FeatureLists(feature_list=lists))
    if i > 0:
        whole.context.CopyFrom(tf.train.Features(feature=context))
    return whole


def parsed(record):
    features = {
        "frames": tf.io.FixedLenSequenceFeature([2], tf.float32),
        "tokens": tf.io.VarLenFeature(tf.int64),
        "none": tf.io.FixedLenSequenceFeature([3], tf.int64, allow_missing=True),
    }
    _, read = tf.io.parse_single_sequence_example(record, sequence_features=features)
    tensors = [read["frames"], read["tokens"].values, read["none"]]
    return [{"dims": list(t.shape), "values": [float(v) for v in t.numpy().ravel()]} for t in tensors]


records = [example(i).SerializeToString(deterministic=True) for i in range(8)]
with tf.io.TFRecordWriter(str(PATH)) as writer:
    for record in records:
        writer.write(record)
rows = ",\n".join(json.dumps(parsed(record)) for record in records)
PATH.with_suffix(".json").write_text(f"[\n{rows}\n]\n")
