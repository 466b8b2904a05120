"""weights/: files of weights as Keras and h5py write them, small, and what models with them answer."""

import json
import shutil
import tempfile
import zipfile

from pathlib import Path

from golden import FOLDER, array, keras, np
from make_models import path_of, uniform, value

import h5py
import make_transformer

from keras.src.applications.convnext import LayerScale, StochasticDepth
from keras.src.applications.inception_resnet_v2 import CustomScaleLayer

layers = keras.layers
OUT = FOLDER / "weights"


def tiny():
    """One layer of each kind with variables, names of all sorts, one model in another."""
    inner = keras.Sequential([
        layers.Input((3, 3, 4)),
        layers.DepthwiseConv2D(2, depth_multiplier=2, name="dw"),
        layers.LayerNormalization(name="ln"),
    ], name="inner")
    return keras.Sequential([
        layers.Input((7, 7, 2)),
        layers.Conv2D(4, 3, strides=2, name="stem"),
        layers.BatchNormalization(name="bn"),
        layers.ReLU(name="relu"),
        inner,
        layers.Dropout(0.5, name="drop"),
        layers.Flatten(name="flatten"),
        layers.Dense(5, activation="relu", name="hidden"),
        layers.Dense(3, name="out"),
    ], name="tiny")


def recurrent():
    """Every recurrent layer, in one direction and in both."""
    sequences = {"return_sequences": True}
    return keras.Sequential([
        layers.Input((5, 4)),
        layers.Bidirectional(layers.LSTM(3, dropout=0.5, **sequences), name="both"),
        layers.GRU(4, name="after", **sequences),
        layers.GRU(3, reset_after=False, name="before", **sequences),
        layers.Bidirectional(layers.GRU(2, **sequences), merge_mode="sum", name="added"),
        layers.LSTM(3, name="memory", **sequences),
        layers.Bidirectional(layers.SimpleRNN(2), name="ends"),
        layers.Dense(2, name="out"),
    ], name="recurrent")


def functional_stacks():
    """Stacks that the functional interface built, one around two others, with automatic names that do not begin at 0."""
    for _ in range(2):
        layers.Dense(1)

    def stack(width, inner=()):
        x = given = keras.Input((6,))
        for layer in [layers.Dense(width, activation="tanh"), *inner, layers.Dense(6)]:
            x = layer(x)
        return keras.Model(given, x)

    base = stack(6, [stack(4), stack(4)])
    x = keras.Input((6,))
    return keras.Model(x, layers.Dense(2)(base(x)))


def branches():
    """Automatic names in another order than that of the layers: a head that is made before the body, a branch before a longer one."""
    head = layers.Dense(6, activation="tanh")
    x = layers.Input((5, 6))
    y = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(2, 4)(x, x)]))
    short = layers.Dense(6, activation="relu")(y)
    long = layers.Dense(6, activation="sigmoid")(layers.Dense(6, activation="relu")(y))
    return keras.Model(x, head(layers.Add()([short, long])))


def exported():
    """Layers whose variables lie in groups of every kind, a model in the model, automatic names."""
    inside = layers.Input((6, 4))
    long = layers.Dense(4, activation="tanh")(layers.Dense(4, activation="relu")(inside))
    inner = keras.Model(inside, layers.LayerNormalization()(layers.Add()([layers.Dense(4)(inside), long])))
    x = layers.Input((6, 4))
    y = layers.Bidirectional(layers.LSTM(2, return_sequences=True))(x)
    y = layers.Add()([y, layers.MultiHeadAttention(2, 2)(y, y)])
    scored = layers.Attention(use_scale=True, score_mode="concat")([y, y])
    y = layers.AdditiveAttention()([scored, y])
    y = inner(layers.Conv1D(4, 3, padding="same")(y))
    columns = layers.Bidirectional(layers.LSTM(1, return_sequences=True))
    image = layers.TimeDistributed(columns)(layers.Reshape((6, 4, 1))(y))
    image = layers.TimeDistributed(layers.Conv1D(2, 2))(image)
    image = layers.Conv2DTranspose(2, 2)(image)
    image = layers.Conv3D(2, (2, 1, 2))(layers.Reshape((7, 4, 2, 1))(image))
    image = layers.Reshape((6, 4, 2))(image)
    image = layers.DepthwiseConv2D(2)(layers.Conv2D(2, 2)(layers.SeparableConv2D(2, 2)(image)))
    image = layers.PReLU(shared_axes=[1, 2])(layers.Normalization()(layers.BatchNormalization()(image)))
    image = CustomScaleLayer(0.5)([image, StochasticDepth(0.5)(LayerScale(0.1, 2)(image))])
    image = layers.GlobalAveragePooling2D()(layers.GroupNormalization(2)(image))
    steps = layers.SimpleRNN(2)(layers.GRU(3, return_sequences=True)(layers.Dropout(0.5)(y)))
    return keras.Model(x, layers.Dense(1)(layers.Concatenate()([image, steps])))


def half():
    """Variables of bfloat16, as Keras' policy of that name has them."""
    return keras.Sequential([layers.Input((3,)), layers.Dense(2, dtype="bfloat16", name="out")])


def fill(model, name):
    """Random values of a size at which layers differ."""
    for i, variable in enumerate(model.trainable_variables):
        shape = tuple(variable.shape)
        variable.assign(0.5 * uniform(f"{name}{i}", int(np.prod(shape))).reshape(shape).astype(np.float32))


def fill_all(model, name):
    """Random values for all variables; variances are positive."""
    for i, variable in enumerate(v for v in model.weights if "seed" not in v.path):
        shape = tuple(variable.shape)
        u = 0.5 * uniform(f"{name}{i}", int(np.prod(shape))).reshape(shape)
        variable.assign((np.abs(u) + 0.5 if "variance" in variable.path else u).astype(np.float32))


def answer(model, name, *shape):
    """What a model answers to random numbers."""
    x = uniform(name, int(np.prod(shape))).reshape(shape).astype(np.float32)
    answer = {"input": array(x), "output": array(model(x, training=False).numpy())}
    (OUT / f"{name}.json").write_text(json.dumps(answer, separators=(",", ":")) + "\n")


def initialize(model):
    """Values by the formula of make_models.py."""
    for variable in model.weights:
        if "seed" not in variable.path:
            path = path_of(variable)
            variable.assign(value(path, tuple(variable.shape)))


def repacked(source, target):
    """The same archive, deflated and without what is not weights."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        info = zipfile.ZipInfo("model.weights.h5")
        info.compress_type = zipfile.ZIP_DEFLATED
        new.writestr(info, old.read("model.weights.h5"))


def mobilenet():
    """MobileNetV2 with the fewest filters, with its head for two classes."""
    return keras.applications.MobileNetV2(
        input_shape=(32, 32, 3), alpha=0.01, classes=2, weights=None, classifier_activation=None)


def forms():
    """Arrays in the forms that the format has; each is arange(24) as its element type."""
    x = np.arange(24).reshape(2, 3, 4)
    for name, libver in (("forms", "earliest"), ("forms_latest", "latest")):
        with h5py.File(OUT / f"{name}.h5", "w", libver=libver) as file:
            for dtype in ("float16", "float32", "float64", "int32", "int64", "uint8"):
                file[f"plain/{dtype}"] = x.astype(dtype)
            file["scalar"] = np.float32(3)
            if libver == "earliest":
                chunked = {"chunks": (2, 2, 3), "data": x.astype("float32")}
                file.create_dataset("chunked", **chunked)
                file.create_dataset("deflated", compression="gzip", shuffle=True, fletcher32=True, **chunked)
                for i in range(40):
                    file[f"many/{i}"] = np.float32(i)
                file.create_dataset("big_endian", data=x.astype(">f4"))
            file.attrs["fixed"] = np.bytes_("fixed text")
            file.attrs["variable"] = "variable text"
            file.attrs["list"] = ["one", "two", "three"]


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    model = tiny()
    initialize(model)
    model.compile("adam", "mse")
    answer(model, "tiny", 2, 7, 7, 2)
    model.save_weights(OUT / "tiny.weights.h5")
    model.save(OUT / "tiny.keras")
    model.save(OUT / "tiny.h5")
    model = mobilenet()
    initialize(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "m.keras")
        repacked(Path(folder) / "m.keras", OUT / "mobilenet_v2.keras")
    model = recurrent()
    fill(model, "recurrent")
    answer(model, "recurrent", 2, 5, 4)
    model.save_weights(OUT / "recurrent.weights.h5")
    model.save(OUT / "recurrent.h5")
    keras.utils.clear_session()
    model = branches()
    fill(model, "branches")
    answer(model, "branches", 2, 5, 6)
    model.save_weights(OUT / "branches.weights.h5")
    model.save(OUT / "branches.h5")
    keras.utils.clear_session()
    model = functional_stacks()
    fill(model, "functional_stacks")
    answer(model, "functional_stacks", 3, 6)
    model.save_weights(OUT / "functional_stacks.weights.h5")
    keras.utils.clear_session()
    model = exported()
    fill_all(model, "exported")
    answer(model, "exported", 2, 6, 4)
    model.save_weights(OUT / "exported.weights.h5")
    model = half()
    model.set_weights([np.arange(1, 7).reshape(3, 2) / 4, np.array([-1, 2])])
    model.save_weights(OUT / "bfloat16.weights.h5")
    # The model of the record `encoder_plain` in transformer.json, with its weights.
    model = make_transformer.encoder("learned", False, False, "tokens", 2)
    make_transformer.fill(model)
    model.save_weights(OUT / "transformer.weights.h5")
    forms()
    for file in sorted(OUT.iterdir()):
        print(file.name, file.stat().st_size)
