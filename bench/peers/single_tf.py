"""TensorFlow (Keras) on one device: python single_tf.py mlp|cnn|fit_mlp BATCH BUDGET (see timing.py)."""

import timing

import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(timing.THREADS)
tf.config.threading.set_inter_op_parallelism_threads(timing.THREADS)
tf.keras.utils.set_random_seed(0)
layers = tf.keras.layers


def build(model):
    """The network."""
    if model == "cnn":
        return tf.keras.Sequential([
            layers.Input((28, 28, 1)), layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"), layers.MaxPooling2D(2), layers.Flatten(),
            layers.Dense(128, activation="relu"), layers.Dense(10),
        ])
    return tf.keras.Sequential([layers.Input((784,)), layers.Dense(128, activation="relu"), layers.Dense(10)])


def stepper(network, optimizer, loss_of):
    """The whole training step as one graph."""
    optimizer.build(network.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, network(x, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, network.trainable_variables), network.trainable_variables))
        return loss

    return step


def main():
    """Times what was asked."""
    asked = timing.arguments()
    x, y = timing.data(asked.model, asked.batch)
    network = build(asked.model)
    optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if asked.model == "fit_mlp":
        network.compile(optimizer, loss_of)
        seconds = timing.epoch_times(lambda: network.fit(x, y, batch_size=asked.batch, verbose=0), asked.budget)
    else:
        step = stepper(network, optimizer, loss_of)
        x, y = tf.convert_to_tensor(x), tf.convert_to_tensor(y)
        seconds = timing.step_times(asked.model, lambda: step(x, y).numpy(), asked.budget)
    timing.emit(f"tf_{asked.model}", "tf", tf.__version__, asked, seconds)


if __name__ == "__main__":
    main()
