"""Models of many kinds, written by Keras: python breadth_models.py FOLDER [NAME]... (see README.md)."""

import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
from keras import layers as L  # noqa: E402

MODELS = {}


def model(batch, loss, optimizer, *inputs):
    """A model of the bench: what trains it, and what its inputs are."""

    def keep(build):
        MODELS[build.__name__] = build, {"batch": batch, "loss": loss, "optimizer": optimizer, "inputs": inputs}
        return build

    return keep


def numbers(*dims):
    """Of the normal distribution."""
    return {"dims": dims}


def tokens(length, below, padded=False):
    """From 1; with zeros behind the end of each row."""
    return {"dims": [length], "below": below, "padded": padded}


def words(length):
    """An input of tokens."""
    return L.Input((length,), dtype="int32")


@model(8, "classes", "adam", numbers(128, 128, 3))
def unet():
    """U-Net with three halvings, 128x128."""
    x = i = L.Input((128, 128, 3))
    skips = []
    for c in (16, 32, 64):
        for _ in range(2):
            x = L.Conv2D(c, 3, padding="same", activation="relu")(x)
        skips.append(x)
        x = L.MaxPooling2D(2)(x)
    for _ in range(2):
        x = L.Conv2D(128, 3, padding="same", activation="relu")(x)
    for c, s in zip((64, 32, 16), skips[::-1]):
        x = L.Conv2DTranspose(c, 2, strides=2, padding="same")(x)
        x = L.Concatenate()([x, s])
        for _ in range(2):
            x = L.Conv2D(c, 3, padding="same", activation="relu")(x)
    return keras.Model(i, L.Conv2D(4, 1)(x))


@model(16, "classes", "adamw", numbers(64, 64, 3))
def convnext():
    """ConvNeXt of two stages, 64x64."""
    i = L.Input((64, 64, 3))
    x = L.LayerNormalization(epsilon=1e-6)(L.Conv2D(64, 4, strides=4)(i))
    for stage, c in enumerate((64, 128)):
        if stage:
            x = L.Conv2D(c, 2, strides=2)(L.LayerNormalization(epsilon=1e-6)(x))
        for _ in range(3):
            y = L.DepthwiseConv2D(7, padding="same")(x)
            y = L.LayerNormalization(epsilon=1e-6)(y)
            y = L.Dense(4 * c, activation="gelu")(y)
            x = L.Add()([x, L.Dense(c)(y)])
    x = L.LayerNormalization(epsilon=1e-6)(L.GlobalAveragePooling2D()(x))
    return keras.Model(i, L.Dense(10)(x))


@model(16, "classes", "adam", numbers(96, 96, 3))
def mbconv():
    """EfficientNet's blocks, 96x96."""
    i = L.Input((96, 96, 3))

    def bn(x, act=True):
        x = L.BatchNormalization()(x)
        return L.Activation("swish")(x) if act else x

    x = bn(L.Conv2D(16, 3, strides=2, padding="same", use_bias=False)(i))
    c = 16
    for o, k, s in ((24, 3, 2), (24, 3, 1), (40, 5, 2), (40, 5, 1), (80, 3, 2), (80, 3, 1)):
        y = bn(L.Conv2D(6 * c, 1, use_bias=False)(x))
        y = bn(L.DepthwiseConv2D(k, strides=s, padding="same", use_bias=False)(y))
        q = L.GlobalAveragePooling2D(keepdims=True)(y)
        q = L.Conv2D(max(c // 4, 1), 1, activation="swish")(q)
        q = L.Conv2D(6 * c, 1, activation="sigmoid")(q)
        y = L.Multiply()([y, q])
        y = bn(L.Conv2D(o, 1, use_bias=False)(y), False)
        x = L.Add()([x, y]) if s == 1 and c == o else y
        c = o
    x = L.GlobalAveragePooling2D()(bn(L.Conv2D(256, 1, use_bias=False)(x)))
    return keras.Model(i, L.Dense(10)(x))


@model(32, "classes", "adamw", numbers(64, 64, 3))
def vit():
    """Vision transformer, 4 layers, d 192, 64x64."""
    i = L.Input((64, 64, 3))
    x = L.Reshape((64, 192))(L.Conv2D(192, 8, strides=8)(i))
    for _ in range(4):
        y = L.LayerNormalization(epsilon=1e-6)(x)
        x = L.Add()([x, L.MultiHeadAttention(3, 64)(y, y)])
        y = L.LayerNormalization(epsilon=1e-6)(x)
        x = L.Add()([x, L.Dense(192)(L.Dense(768, activation="gelu")(y))])
    x = L.GlobalAveragePooling1D()(L.LayerNormalization(epsilon=1e-6)(x))
    return keras.Model(i, L.Dense(10)(x))


@model(8, "classes", "adam", tokens(128, 8000))
def gpt():
    """Causal transformer, 4 layers, d 256, 128 tokens."""
    i = words(128)
    x = L.Embedding(8000, 256)(i)
    for _ in range(4):
        y = L.LayerNormalization(epsilon=1e-5)(x)
        x = L.Add()([x, L.MultiHeadAttention(4, 64)(y, y, use_causal_mask=True)])
        y = L.LayerNormalization(epsilon=1e-5)(x)
        x = L.Add()([x, L.Dense(256)(L.Dense(1024, activation="gelu")(y))])
    return keras.Model(i, L.Dense(8000)(L.LayerNormalization(epsilon=1e-5)(x)))


@model(64, "binary", "adam", tokens(100, 10000, padded=True))
def bigru():
    """Masked bidirectional GRU 64, 100 tokens."""
    i = words(100)
    x = L.Embedding(10000, 64, mask_zero=True)(i)
    x = L.Bidirectional(L.GRU(64))(x)
    return keras.Model(i, L.Dense(1)(x))


@model(32, "classes", "adam", numbers(4000, 1))
def audio():
    """Conv1D over 4000 samples."""
    x = i = L.Input((4000, 1))
    for c in (16, 32, 64):
        x = L.Conv1D(c, 9, padding="same", use_bias=False)(x)
        x = L.MaxPooling1D(4)(L.Activation("relu")(L.BatchNormalization()(x)))
    return keras.Model(i, L.Dense(10)(L.GlobalAveragePooling1D()(x)))


@model(512, "binary", "adam", tokens(256, 20000))
def textavg():
    """Mean of 256 embeddings, vocabulary 20,000."""
    i = words(256)
    x = L.GlobalAveragePooling1D()(L.Embedding(20000, 64)(i))
    return keras.Model(i, L.Dense(1)(L.Dense(16, activation="relu")(x)))


@model(1024, "binary", "adam", numbers(64))
def tabular():
    """Dense layers of 512 with normalisation and dropout."""
    x = i = L.Input((64,))
    for _ in range(3):
        x = L.Dense(512)(x)
        x = L.Dropout(0.3)(L.Activation("relu")(L.BatchNormalization()(x)))
    return keras.Model(i, L.Dense(1)(x))


@model(256, "squares", "adam", numbers(784))
def autoencoder():
    """Dense autoencoder of 784 numbers."""
    x = i = L.Input((784,))
    for u in (512, 128, 32, 128, 512):
        x = L.Dense(u, activation="relu")(x)
    return keras.Model(i, L.Dense(784)(x))


@model(8, "squares", "adam", numbers(10, 32, 32, 1))
def convlstm():
    """ConvLSTM2D 16, 10 frames of 32x32."""
    i = L.Input((10, 32, 32, 1))
    x = L.ConvLSTM2D(16, 3, padding="same")(i)
    return keras.Model(i, L.Conv2D(1, 3, padding="same")(x))


@model(64, "classes", "adam", numbers(32, 32, 3))
def gncnn():
    """CNN with group normalisation, 32x32."""
    x = i = L.Input((32, 32, 3))
    for c, s in ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2)):
        x = L.Conv2D(c, 3, strides=s, padding="same", use_bias=False)(x)
        x = L.Activation("relu")(L.GroupNormalization(8, epsilon=1e-5)(x))
    return keras.Model(i, L.Dense(10)(L.GlobalAveragePooling2D()(x)))


@model(32, "classes", "sgd", numbers(32, 32, 3))
def densenet():
    """DenseNet of two blocks, 32x32."""
    i = L.Input((32, 32, 3))
    x = L.Conv2D(24, 3, padding="same", use_bias=False)(i)
    for b in range(2):
        for _ in range(6):
            y = L.Activation("relu")(L.BatchNormalization()(x))
            x = L.Concatenate()([x, L.Conv2D(12, 3, padding="same", use_bias=False)(y)])
        if b == 0:
            x = L.Activation("relu")(L.BatchNormalization()(x))
            x = L.AveragePooling2D(2)(L.Conv2D(48, 1, use_bias=False)(x))
    x = L.Activation("relu")(L.BatchNormalization()(x))
    return keras.Model(i, L.Dense(10)(L.GlobalAveragePooling2D()(x)))


@model(8, "classes", "adam", numbers(16, 32, 32, 1))
def conv3d():
    """Conv3D on 16x32x32."""
    x = i = L.Input((16, 32, 32, 1))
    for c in (16, 32, 64):
        x = L.Conv3D(c, 3, padding="same", activation="relu")(x)
        x = L.MaxPooling3D(2)(x)
    return keras.Model(i, L.Dense(10)(L.GlobalAveragePooling3D()(x)))


@model(32, "classes", "adam", tokens(100, 5000, padded=True))
def lstmseq():
    """Masked LSTM 128, all of 100 steps."""
    i = words(100)
    x = L.LSTM(128, return_sequences=True)(L.Embedding(5000, 64, mask_zero=True)(i))
    return keras.Model(i, L.Dense(20)(x))


@model(64, "classes", "adam", numbers(100, 32))
def simplernn():
    """SimpleRNN 128, 100 steps."""
    i = L.Input((100, 32))
    return keras.Model(i, L.Dense(10)(L.SimpleRNN(128)(i)))


@model(1024, "binary", "adam", tokens(1, 10000), tokens(1, 5000))
def recommender():
    """Two embeddings and dense layers."""
    u, v = words(1), words(1)
    a, b = L.Flatten()(L.Embedding(10000, 32)(u)), L.Flatten()(L.Embedding(5000, 32)(v))
    x = L.Concatenate()([a, b])
    for n in (64, 32):
        x = L.Dense(n, activation="relu")(x)
    return keras.Model([u, v], L.Dense(1)(x))


@model(64, "squares", "adam", numbers(64))
def dcgan():
    """Generator with Conv2DTranspose, 32x32."""
    i = L.Input((64,))
    x = L.Reshape((4, 4, 128))(L.Dense(2048, use_bias=False)(i))
    for c in (64, 32):
        x = L.Activation("relu")(L.BatchNormalization()(x))
        x = L.Conv2DTranspose(c, 4, strides=2, padding="same", use_bias=False)(x)
    x = L.Activation("relu")(L.BatchNormalization()(x))
    return keras.Model(i, L.Conv2DTranspose(3, 4, strides=2, padding="same", activation="tanh")(x))


@model(256, "classes", "sgd", numbers(28, 28, 1))
def lenet():
    """LeNet-5, 28x28."""
    i = L.Input((28, 28, 1))
    x = L.AveragePooling2D(2)(L.Conv2D(6, 5, padding="same", activation="tanh")(i))
    x = L.AveragePooling2D(2)(L.Conv2D(16, 5, activation="tanh")(x))
    x = L.Dense(84, activation="tanh")(L.Dense(120, activation="tanh")(L.Flatten()(x)))
    return keras.Model(i, L.Dense(10)(x))


@model(16, "classes", "adam", numbers(64, 64, 3))
def xception():
    """Xception's blocks, 64x64."""
    i = L.Input((64, 64, 3))
    x = L.Conv2D(32, 3, strides=2, padding="same", use_bias=False)(i)
    x = L.Activation("relu")(L.BatchNormalization()(x))
    for c in (64, 128):
        r = L.BatchNormalization()(L.Conv2D(c, 1, strides=2, padding="same", use_bias=False)(x))
        for _ in range(2):
            x = L.SeparableConv2D(c, 3, padding="same", use_bias=False)(L.Activation("relu")(x))
            x = L.BatchNormalization()(x)
        x = L.Add()([L.MaxPooling2D(3, strides=2, padding="same")(x), r])
    return keras.Model(i, L.Dense(10)(L.GlobalAveragePooling2D()(x)))


@model(16, "squares", "adam", numbers(64, 64, 3))
def upsample():
    """Bilinear upsampling, 64x64."""
    x = i = L.Input((64, 64, 3))
    for c in (16, 32):
        x = L.Conv2D(c, 3, strides=2, padding="same", activation="relu")(x)
    for c in (32, 16):
        x = L.Conv2D(c, 3, padding="same", activation="relu")(L.UpSampling2D(2, interpolation="bilinear")(x))
    return keras.Model(i, L.Conv2D(3, 3, padding="same", activation="sigmoid")(x))


@model(8, "classes", "adam", numbers(2000, 16))
def wavenet():
    """WaveNet of 6 layers, 2000 steps."""
    i = L.Input((2000, 16))
    x = L.Conv1D(32, 1)(i)
    skips = []
    for d in (1, 2, 4, 8, 16, 32):
        f = L.Conv1D(32, 2, dilation_rate=d, padding="causal", activation="tanh")(x)
        g = L.Conv1D(32, 2, dilation_rate=d, padding="causal", activation="sigmoid")(x)
        y = L.Conv1D(32, 1)(L.Multiply()([f, g]))
        skips.append(y)
        x = L.Add()([x, y])
    return keras.Model(i, L.Dense(64)(L.Activation("relu")(L.Add()(skips))))


@model(64, "classes", "adam", numbers(200, 8))
def bilstm():
    """Two bidirectional LSTM 64, 200 steps."""
    x = i = L.Input((200, 8))
    x = L.Bidirectional(L.LSTM(64, return_sequences=True))(x)
    x = L.Bidirectional(L.LSTM(64))(x)
    return keras.Model(i, L.Dense(10)(x))


@model(128, "classes", "adam", numbers(64, 64, 3))
def dropcnn():
    """CNN with dropout, 64x64."""
    x = i = L.Input((64, 64, 3))
    for c in (16, 32, 64):
        x = L.Dropout(0.2)(L.MaxPooling2D(2)(L.Conv2D(c, 3, activation="relu")(x)))
    x = L.Dropout(0.5)(L.Dense(128, activation="relu")(L.Flatten()(x)))
    return keras.Model(i, L.Dense(10)(x))


def write(folder, name):
    """Writes a model and what trains it, and says where."""
    build, case = MODELS[name]
    keras.utils.set_random_seed(0)
    network = build()
    file = folder / f"{name}.keras"
    network.save(file)
    case = {**case, "output": network.output_shape[1:]}
    file.with_suffix(".json").write_text(json.dumps(case))
    print(json.dumps({"file": str(file), "shown": f"{name}: {build.__doc__.rstrip('.')}, batch {case['batch']}"}))


def main():
    """Writes those named, or all."""
    folder, names = pathlib.Path(sys.argv[1]), sys.argv[2:] or list(MODELS)
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        sys.exit(f"found no model {unknown[0]!r}, expected {', '.join(MODELS)}")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        write(folder, name)


if __name__ == "__main__":
    main()
