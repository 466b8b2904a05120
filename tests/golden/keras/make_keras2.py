"""keras2/*.h5, keras2/*.keras and keras2.json: whole models as Keras 2 (`tf_keras`) saves them, and what they answer;
keras2_compiled.json: what Keras 2 compiled some with, trained.

    pip install --no-deps tf_keras==2.21.0; python tests/golden/keras/make_keras2.py
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

from golden import FOLDER, array, arrays, np, tf, write

import tf_keras as keras
from tf_keras import layers

TO = FOLDER / "keras2"
random = np.random.RandomState(5)


def convolutions():
    """Convolutions of each channel and back, of which Keras 2 notes groups; a layer whose name has two parts."""
    x = keras.Input((8, 8, 3), name="x")
    y = layers.Conv2D(6, 3, padding="same", kernel_regularizer="l2")(x)
    y = layers.BatchNormalization(name="stem/norm")(y)
    y = layers.ReLU(6.0)(y)
    y = layers.DepthwiseConv2D(3)(y)
    y = layers.SeparableConv2D(4, 2, strides=2)(y)
    y = layers.Conv2DTranspose(3, 3, strides=2, padding="same")(y)
    return keras.Model(x, layers.Dense(2)(layers.GlobalAveragePooling2D()(layers.Dropout(0.3)(y))), name="convolutions")


def blocks():
    """Attentions on values with padding, whose masks Keras 2 leaves on them."""
    words = keras.Input((6,), dtype="int32", name="words")
    x = layers.Embedding(12, 4, mask_zero=True)(words)
    for _ in range(2):
        x = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(2, 3)(x, x)]))
    return keras.Model(words, layers.Dense(2)(layers.GlobalAveragePooling1D()(x)), name="blocks")


def operated():
    """Operators and functions of TensorFlow, which are layers in Keras 2."""
    x = keras.Input((4, 4, 3), name="x")
    y = layers.Conv2D(3, 2, padding="same")(1.0 - x * 2.0 - 0.5) * x + x
    y = tf.nn.gelu(tf.nn.leaky_relu(tf.nn.relu6(y + 3.0) * (1 / 6.0)))
    y = tf.nn.silu(-tf.concat([y, x], axis=-1))
    y = layers.Dense(2)(layers.GlobalAveragePooling2D()(y)) / 3.0
    return keras.Model(x, tf.nn.softmax(y), name="operated")


def nested():
    """Models in a model that are called twice, of layers with an input and without."""
    i = keras.Input((5,), name="i")
    outer = keras.Model(i, layers.Dense(3)(layers.Concatenate()([i, layers.Dense(4, activation="tanh")(i)])), name="outer")
    base = keras.Sequential([keras.Input((3,)), layers.Dense(4), layers.BatchNormalization()], name="base")
    base.trainable = False
    lazy = keras.Sequential([layers.Dense(3), layers.Dense(4)], name="lazy")
    a, b = keras.Input((5,), name="a"), keras.Input((5,), name="b")
    y, z = base(outer(a)), base(outer(b))
    return keras.Model([a, b], [layers.Add()([lazy(y), lazy(z)]), base(outer(layers.Dense(5)(y)))], name="nested")


def recurrent():
    """Words of any length, both directions, states."""
    x = keras.Input((None,), dtype="int32", name="words")
    y = layers.Embedding(12, 4, mask_zero=True)(x)
    y, *states = layers.Bidirectional(layers.LSTM(3, return_sequences=True, return_state=True, recurrent_dropout=0.1))(y)
    y = layers.GRU(3, return_sequences=True, reset_after=False)(y)
    return keras.Model(x, layers.Concatenate()([layers.SimpleRNN(2)(y), states[0], states[3]]), name="recurrent")


def uneven():
    """Branches alike but for a mask, which Keras 2 does not count among the layers as Keras 3 does."""
    x = keras.Input((5, 4), name="x")
    masked = layers.LSTM(3)(layers.Masking()(layers.Dense(4)(x)))
    plain = layers.LSTM(3)(layers.Activation("tanh")(layers.Dense(4)(x)))
    return keras.Model(x, layers.Add()([plain, masked]), name="uneven")


def thawed():
    """A model that is not trainable, of whose layers one was made trainable again: it is trained once the model is read."""
    inner = keras.Sequential([keras.Input((3,)), layers.Dense(3), layers.Dense(2)], name="inner")
    inner.trainable = False
    inner.layers[-1].trainable = True
    x = keras.Input((3,))
    return keras.Model(x, layers.Dense(1)(inner(x)), name="thawed")


def inside():
    """Operations and attention in models that are called with masks, which attention leaves on its values."""
    i, j = keras.Input((6, 4), name="i"), keras.Input((6, 4), name="j")
    sums = keras.Model(i, i * 2.0 + layers.Dense(4)(i), name="sums")
    attending = keras.Model(j, layers.LayerNormalization()(layers.Add()([j, layers.MultiHeadAttention(2, 3)(j, j)])), name="attending")
    words = keras.Input((6,), dtype="int32", name="words")
    x = layers.Embedding(12, 4, mask_zero=True)(words)
    y = attending(x)
    parts = [layers.GlobalAveragePooling1D()(sums(x)), layers.GlobalAveragePooling1D()(y), layers.LSTM(3)(y)]
    return keras.Model(words, [y, layers.Concatenate()(parts)], name="inside")


def started():
    """Recurrent layers with first states, which leave padded steps out all the same."""
    words = keras.Input((5,), dtype="int32", name="words")
    table = layers.Embedding(12, 3, mask_zero=True)(words)
    state = layers.Dense(2)(layers.GlobalMaxPooling1D()(table))
    parts = [layers.LSTM(2)(table, initial_state=[state, state]), layers.GRU(2)(table, initial_state=state)]
    parts.append(layers.Bidirectional(layers.SimpleRNN(2))(table, initial_state=[state, state]))
    return keras.Model(words, layers.Concatenate()(parts), name="started")


def frames():
    """Recurrent layers of convolutions, whose gates are not `hard_sigmoid`, as they are by default."""
    film = keras.Input((3, 6, 4, 2), name="film")
    y, h, c = layers.ConvLSTM2D(2, 3, padding="same", recurrent_activation="sigmoid", return_sequences=True, return_state=True)(film)
    y = layers.ConvLSTM2D(2, 1, recurrent_activation="sigmoid")(y, initial_state=[c, h])
    both = layers.Bidirectional(layers.ConvLSTM1D(2, 3, strides=2, recurrent_activation="sigmoid"))(layers.Reshape((3, 8, 6))(film))
    volumes = layers.ConvLSTM3D(2, (2, 1, 2), recurrent_activation="sigmoid")(layers.Reshape((3, 2, 3, 4, 2))(film))
    return keras.Model(film, layers.Dense(2)(layers.Concatenate()([layers.Flatten()(x) for x in (y, both, volumes)])), name="frames")


def gates():
    """Gates as they are by default in recurrent layers of convolutions, and its `hard_sigmoid` elsewhere."""
    film = keras.Input((3, 6, 4, 2), name="film")
    y = layers.GRU(2, recurrent_activation="hard_sigmoid")(layers.Reshape((9, 16))(film))
    y = layers.Concatenate()([layers.Flatten()(layers.ConvLSTM2D(2, 3)(film)), y])
    return keras.Model(film, layers.Activation("hard_sigmoid")(layers.Dense(3)(y)), name="gates")


def heedless():
    """Limits of the kernel that Keras 2 notes of separable convolutions, and does nothing with."""
    x = keras.Input((6, 6, 2), name="x")
    y = layers.SeparableConv2D(3, 2, kernel_regularizer="l1", pointwise_regularizer="l2")(x)
    y = layers.SeparableConv1D(2, 2, kernel_regularizer="l1", kernel_constraint="non_neg")(layers.Reshape((25, 3))(y))
    return keras.Model(x, layers.GlobalAveragePooling1D()(y), name="heedless")


def batch(model):
    """Two examples for each input."""

    def values(x):
        dims = [2] + [6 if size is None else size for size in x.shape[1:]]
        if x.dtype == "int32":
            return random.randint(0, 2, dims).astype("int32") * 7
        return random.normal(size=dims).astype("float32")

    return [values(x) for x in model.inputs]


def record(model):
    """Saves a model and notes what it answers."""
    model.set_weights([random.normal(size=w.shape, scale=0.5) ** (2 if "variance" in w.name else 1) for w in model.weights])
    inputs = batch(model)
    files = [f"{model.name}.{ending}" for ending in ("h5", "keras")]
    for file in files:
        model.save(TO / file)
    outputs = tf.nest.flatten(model(inputs[0] if len(inputs) == 1 else inputs, training=False))
    masks = [getattr(x, "_keras_mask", None) for x in outputs]
    return {
        "name": model.name,
        "files": files,
        "inputs": arrays(inputs),
        "outputs": arrays(x.numpy() for x in outputs),
        "masks": [None if mask is None else array(mask.numpy()) for mask in masks],
        "frozen": len(keras.models.load_model(TO / files[0]).non_trainable_weights),
        "penalty": float(sum(model.losses, 0.0)),
    }


def compiled():
    """Models with what they were compiled with."""
    stack = lambda name: keras.Sequential([keras.Input((4,)), layers.Dense(5, activation="tanh"), layers.Dense(3, activation="softmax")], name=name)
    plain = stack("plain")
    plain.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.9)
    scheduled = stack("scheduled")
    scheduled.compile(
        keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(),
        metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")],
    )
    base_of = keras.Input((4,), name="base_of")
    base = layers.Dropout(0.5)(layers.BatchNormalization()(layers.Dense(6, activation="tanh")(base_of)))
    base = keras.Model(base_of, base, name="base")
    x = keras.Input((4,), name="x")
    tuned = keras.Model(x, layers.Dense(3, activation="softmax")(base(x, training=False)), name="tuned")
    tuned.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy")
    slower = stack("slower")
    slower.compile(keras.optimizers.legacy.Adam(0.1, decay=0.5), "sparse_categorical_crossentropy")
    return [plain, scheduled, tuned, slower]


def trained(model, fresh):
    """Saves a model, and trains another like it: a model that is saved before it is trained takes `accuracy` for another from then on."""
    # How a chain within another model is paired with an archive is by its classes.
    files = [f"{model.name}.{ending}" for ending in ("h5", "keras")[: 1 if model.name in ("tuned", "slower") else 2]]
    for file in files:
        model.save(TO / file)
    fresh.set_weights(model.get_weights())
    x, y = random.normal(size=(6, 4)).astype("float32"), random.randint(0, 3, 6).astype("int32")
    logs = [{name: float(value) for name, value in fresh.train_on_batch(x, y, return_dict=True).items()} for _ in range(3)]
    weights = [array(w.numpy()) for w in fresh.trainable_variables]
    fixed = [array(w.numpy()) for w in fresh.non_trainable_variables]
    return {"name": model.name, "files": files, "x": array(x), "targets": [array(y)], "logs": logs, "weights": weights, **({"fixed": fixed} if fixed else {})}


if __name__ == "__main__":
    TO.mkdir(exist_ok=True)
    found = [record(make()) for make in (convolutions, blocks, operated, nested, recurrent, uneven, thawed, inside, started, frames)]
    write("keras2_compiled", [trained(*both) for both in zip(compiled(), compiled())])
    write("keras2", [*found, record(gates()), record(heedless())])
