"""What tf.io.parse_single_example makes of the examples of examples.tfrecord: features.json.

    python make_features.py
"""

import json
import pathlib

import tensorflow as tf

FOLDER = pathlib.Path(__file__).parent
SPECS = {
    "label": tf.io.FixedLenFeature([], tf.int64),
    "ids": tf.io.RaggedFeature(tf.int64),
    "floats": tf.io.RaggedFeature(tf.float32),
    "pair": tf.io.FixedLenFeature([2, 1], tf.float32, default_value=[[-1.5], [-1.5]]),
    "none": tf.io.RaggedFeature(tf.int64),
}


def tensors(record):
    parsed = tf.io.parse_single_example(record, SPECS)
    made = [parsed[name].numpy() for name in SPECS]
    return [{"dims": list(array.shape), "values": array.reshape(-1).tolist()} for array in made]


records = tf.data.TFRecordDataset(str(FOLDER / "examples.tfrecord"))
lines = ",\n".join("  " + json.dumps(tensors(record)) for record in records)
(FOLDER / "features.json").write_text(f"[\n{lines}\n]\n")
