"""TensorFlow (Keras) on whole models: python models_tf.py MODEL BATCH [--variant xla] [--work predict] (see README.md)."""

import turns

import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(turns.THREADS)
tf.config.threading.set_inter_op_parallelism_threads(turns.THREADS)
tf.keras.utils.set_random_seed(0)
layers = tf.keras.layers


class Places(layers.Layer):
    """Adds a learned vector for each place."""

    def build(self, shape):
        """Makes the table."""
        self.table = self.add_weight(shape=shape[1:], initializer="random_normal")

    def call(self, x):
        """The sum."""
        return x + self.table


def transformer(width=256, heads=4, inner=1024, count=4):
    """An encoder of 4 layers, normalised before each part, and a projection to the vocabulary."""
    tokens = layers.Input((turns.LENGTH,), dtype="int32")
    x = Places()(layers.Embedding(turns.VOCABULARY, width)(tokens))
    for _ in range(count):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(heads, width // heads)(normal, normal)
        normal = layers.LayerNormalization()(x)
        x = x + layers.Dense(width)(layers.Dense(inner, activation="gelu")(normal))
    return tf.keras.Model(tokens, layers.Dense(turns.VOCABULARY, dtype="float32")(layers.LayerNormalization()(x)))


def build(model):
    """The network."""
    applications = {"resnet50": tf.keras.applications.ResNet50, "mobilenet_v2": tf.keras.applications.MobileNetV2}
    if model in applications:
        body = applications[model](weights=None, include_top=False, input_shape=(224, 224, 3), pooling="avg")
        return tf.keras.Sequential([body, layers.Dense(turns.CLASSES, dtype="float32")])
    if model == "cnn":
        return tf.keras.Sequential([
            layers.Input((28, 28, 1)), layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"), layers.MaxPooling2D(2), layers.Flatten(),
            layers.Dense(128, activation="relu"), layers.Dense(turns.CLASSES),
        ])
    if model in turns.RECURRENT:
        (kind, units), dims = model.split("_"), turns.RECURRENT[model]
        layer = {"lstm": layers.LSTM, "gru": layers.GRU}[kind](int(units))
        return tf.keras.Sequential([layers.Input(dims), layer, layers.Dense(turns.CLASSES)])
    return transformer()


def trainer(asked, network, loss_of):
    """Forward, backward and update as one graph; the loss."""
    if asked.model == "transformer":
        optimizer = tf.keras.optimizers.Adam(1e-3)
    else:
        optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(network.trainable_variables)

    @tf.function(jit_compile=asked.variant == "xla")
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, network(x, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, network.trainable_variables), network.trainable_variables))
        return loss

    return step


def forward(asked, network, loss_of):
    """The outputs, or the loss of them, as one graph."""

    @tf.function(jit_compile=asked.variant == "xla")
    def step(x, y):
        scores = network(x, training=False)
        return scores if asked.work == "predict" else loss_of(y, scores)

    return step


def main():
    """Serves steps."""
    asked = turns.arguments()
    if asked.bf16:
        tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    network = build(asked.model)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    x, y = (tf.convert_to_tensor(array) for array in turns.data(asked))
    step = (trainer if asked.work == "train" else forward)(asked, network, loss_of)
    turns.serve("tf", tf.__version__, asked.variant, lambda: float(step(x, y).numpy().flat[0]))


if __name__ == "__main__":
    main()
