"""TensorFlow: python checkpoints_tf.py FOLDER SAVES (see README.md)."""

import saving

import tensorflow as tf

VARIABLES = {name: tf.Variable(value) for name, value in saving.variables().items()}
CHECKPOINT = tf.train.Checkpoint(**VARIABLES)


def main():
    """Writes and reads."""
    saving.report(
        "tf", tf.__version__, "Checkpoint", CHECKPOINT.write, lambda path: CHECKPOINT.read(path).assert_consumed()
    )


if __name__ == "__main__":
    main()
