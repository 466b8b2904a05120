"""TensorFlow (Keras) on models of many kinds: python breadth_tf.py FILE.keras train|predict [--variant xla] (see README.md)."""

import breadth

import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(breadth.THREADS)
tf.config.threading.set_inter_op_parallelism_threads(breadth.THREADS)
keras = tf.keras


def trainer(asked, network):
    """Forward, backward and update as one graph; the loss."""
    optimizers = {"adam": lambda: keras.optimizers.Adam(1e-3), "adamw": lambda: keras.optimizers.AdamW(1e-3)}
    optimizer = optimizers.get(asked.optimizer, lambda: keras.optimizers.SGD(0.01, momentum=0.9))()
    optimizer.build(network.trainable_variables)
    losses = {
        "classes": lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "binary": lambda: keras.losses.BinaryCrossentropy(from_logits=True),
        "squares": keras.losses.MeanSquaredError,
    }
    loss_of = losses[asked.loss]()

    @tf.function(jit_compile=asked.variant == "xla")
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, network(x, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, network.trainable_variables), network.trainable_variables))
        return loss

    return step


def forward(asked, network):
    """The outputs as one graph."""

    @tf.function(jit_compile=asked.variant == "xla")
    def step(x, _y):
        return network(x, training=False)

    return step


def main():
    """Serves steps."""
    asked = breadth.arguments()
    network = keras.models.load_model(asked.file, compile=False)
    x = [tf.constant(array) for array in breadth.inputs(asked)]
    x, y = x if len(x) > 1 else x[0], tf.constant(breadth.target(asked))
    step = (trainer if asked.work == "train" else forward)(asked, network)
    breadth.serve("tf", tf.__version__, asked.variant, lambda: float(step(x, y).numpy().flat[0]))


if __name__ == "__main__":
    main()
