"""TensorFlow on a large table of embeddings: python embeddings_tf.py sgd|adagrad|adam ROWS [--variant v1] (see README.md).

The gradient of the table is IndexedSlices. Keras' optimizers, or those of TensorFlow 1 with `v1`, whose SGD and Adagrad have kernels
for them. Neither has an Adam that leaves rows alone.
"""

import itertools

import embeddings

import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(embeddings.THREADS)
tf.config.threading.set_inter_op_parallelism_threads(embeddings.THREADS)
tf.keras.utils.set_random_seed(0)
layers = tf.keras.layers


def optimizer_of(asked):
    """Keras' or TensorFlow 1's."""
    if asked.variant == "v1":
        train = tf.compat.v1.train
        kinds = {"sgd": train.GradientDescentOptimizer, "adagrad": train.AdagradOptimizer, "adam": train.AdamOptimizer}
    else:
        keras = tf.keras.optimizers
        kinds = {"sgd": keras.SGD, "adagrad": keras.Adagrad, "adam": keras.Adam}
    return kinds[asked.optimizer](asked.rate)


def main():
    """Takes steps when told to."""
    asked = embeddings.arguments()
    network = tf.keras.Sequential([
        layers.Input((embeddings.BAG,), dtype="int32"), layers.Embedding(asked.rows, embeddings.WIDTH),
        layers.GlobalAveragePooling1D(), layers.Dense(1),
    ])
    optimizer = optimizer_of(asked)
    variables = network.trainable_variables
    if asked.variant != "v1":
        optimizer.build(variables)
    # Keras' own types of variables are not known to TensorFlow 1.
    values = [variable.value for variable in variables]
    loss_of = tf.keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def graph(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, network(x, training=True))
        if asked.variant == "v1":
            optimizer.apply_gradients(zip(tape.gradient(loss, values), values))
        else:
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    rest = itertools.cycle([(tf.convert_to_tensor(x), tf.convert_to_tensor(y)) for x, y in embeddings.batches(asked.rows)])
    embeddings.serve("tf", tf.__version__, asked.variant, lambda: float(graph(*next(rest)).numpy()))


if __name__ == "__main__":
    main()
