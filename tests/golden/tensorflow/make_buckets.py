"""What tf.data's bucket_by_sequence_length makes of sequences of these lengths: buckets.json.

    python make_buckets.py
"""

import json
import pathlib

import tensorflow as tf

LENGTHS = [3, 1, 4, 2, 7, 5, 6, 1, 2, 2, 4, 3, 7, 1, 1, 5, 4, 4, 3, 4, 2, 7, 8, 1]
CASES = [
    ([3, 5], [4, 3, 2], False, False),
    ([3, 5], [4, 3, 2], True, False),
    ([3, 5, 10], [4, 3, 2, 1], False, True),
    ([4], [5, 5], False, False),
    ([2, 4, 6, 9], [2, 2, 2, 2, 2], True, True),
]


def sequences():
    for i, length in enumerate(LENGTHS):
        yield [100 * i + k for k in range(length)]


def batches(boundaries, sizes, drop, to_boundary):
    data = tf.data.Dataset.from_generator(sequences, output_signature=tf.TensorSpec([None], tf.int32))
    made = data.bucket_by_sequence_length(
        lambda x: tf.shape(x)[0],
        boundaries,
        sizes,
        padding_values=-1,
        pad_to_bucket_boundary=to_boundary,
        drop_remainder=drop,
    )
    return [batch.numpy().tolist() for batch in made]


rows = [
    {
        "lengths": LENGTHS,
        "boundaries": boundaries,
        "batch_sizes": sizes,
        "drop_remainder": drop,
        "pad_to_boundary": to_boundary,
        "batches": batches(boundaries, sizes, drop, to_boundary),
    }
    for boundaries, sizes, drop, to_boundary in CASES
]
lines = ",\n".join("  " + json.dumps(row) for row in rows)
pathlib.Path(__file__).with_name("buckets.json").write_text(f"[\n{lines}\n]\n")
