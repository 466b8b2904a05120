"""TensorFlow (Keras) on replicas: python scaling_tf.py MODEL BATCH REPLICAS (see README.md).

Two replicas are `tf.distribute.MirroredStrategy` on two logical devices of the CPU; one is the default strategy.
"""

import replicas

import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(replicas.ASKED.replicas)
tf.config.threading.set_inter_op_parallelism_threads(replicas.ASKED.replicas)
tf.keras.utils.set_random_seed(0)
layers = tf.keras.layers


def build(model):
    """The network."""
    if model == "resnet50":
        body = tf.keras.applications.ResNet50(weights=None, include_top=False, input_shape=(224, 224, 3), pooling="avg")
        return tf.keras.Sequential([body, layers.Dense(replicas.CLASSES)])
    if model == "cnn":
        return tf.keras.Sequential([
            layers.Input((28, 28, 1)), layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"), layers.MaxPooling2D(2), layers.Flatten(),
            layers.Dense(128, activation="relu"), layers.Dense(replicas.CLASSES),
        ])
    return tf.keras.Sequential([
        layers.Input((784,)), layers.Dense(128, activation="relu"), layers.Dense(replicas.CLASSES),
    ])


def chosen(count):
    """The strategy: as many logical devices of the CPU as replicas."""
    if count == 1:
        return tf.distribute.get_strategy()
    processor = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * count)
    return tf.distribute.MirroredStrategy([f"/cpu:{index}" for index in range(count)])


def main():
    """Serves steps."""
    asked = replicas.ASKED
    strategy = chosen(asked.replicas)
    with strategy.scope():
        network = build(asked.model)
        optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(network.trainable_variables)
        loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    parts = [tuple(map(tf.convert_to_tensor, replicas.data(asked, rank))) for rank in range(asked.replicas)]
    count = asked.replicas * asked.batch

    def on_replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(loss_of(y, network(x, training=True))) / count
        optimizer.apply_gradients(zip(tape.gradient(loss, network.trainable_variables), network.trainable_variables))
        return loss

    @tf.function
    def step(x, y):
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(on_replica, args=(x, y)), axis=None)

    def given(index):
        """Both replicas' arrays, each on its device already."""
        if asked.replicas == 1:
            return parts[0][index]
        return strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group][index]
        )

    x, y = given(0), given(1)
    replicas.serve("tf", tf.__version__, "", lambda: step(x, y))


if __name__ == "__main__":
    main()
