"""saved/*.keras, saved/*.h5 and saved.json: whole models as Keras saves them, and what they answer; saved/*.weights.h5: the weights alone.
own_masks.json: architectures with layers that are called with other masks than their values have.
mixed_masks.json: architectures with models that are called with masks and without.
starts.json: what `to_json` gives of models, some of which begin as none does here.

    python tests/golden/keras/make_saved.py
"""

import json

from golden import FOLDER, array, arrays, keras, np, write

from keras import layers, ops
from keras.src.applications.convnext import LayerScale
from keras.src.applications.inception_resnet_v2 import CustomScaleLayer
from keras.src.backend import get_keras_mask

TO = FOLDER / "saved"
random = np.random.RandomState(7)
# Models of words that are padding or the seventh, and of steps that are padding where they are 0.5.
PADDED = ("masked", "operated", "stated", "blocks", "branches", "gated", "grouped", "cells", "wired", "stacked", "summed", "lost", "normed", "taken", "restored", "ended", "frames", "same", "tied")
PADDED_STEPS = ("masked", "operated", "wired")


def vision():
    """Convolutions, normalizations, pools, activations as layers and as operations, operators, penalties."""
    x = keras.Input((8, 8, 3), name="pixels", dtype="uint8")
    scaled = layers.Rescaling([0.01, 0.02, 0.03], offset=-0.5)(x)
    start = keras.initializers.VarianceScaling(2.0, mode="fan_out", distribution="truncated_normal")
    y = layers.Conv2D(6, 3, padding="same", kernel_initializer=start, kernel_regularizer="l2", name="stem.conv")(scaled)
    y = layers.BatchNormalization(axis=3, momentum=0.9)(y)
    y = layers.ReLU(6.0)(y)
    z = layers.DepthwiseConv2D(3, padding="same", depthwise_regularizer=keras.regularizers.L1L2(0.1, 0.2))(y)
    z = layers.LeakyReLU(negative_slope=0.1)(z)
    y = y + z * 0.5 - 0.25
    y = ops.silu(1.0 - y)
    z = layers.SeparableConv2D(4, 2, activation=layers.ELU(0.5))(layers.ZeroPadding2D(((1, 0), (0, 1)))(y))
    y = ops.concatenate([y, z], axis=-1)
    y = layers.MaxPooling2D(2)(y)
    y = layers.Conv2DTranspose(4, 3, strides=2, activation="swish")(y)
    y = layers.AveragePooling2D(3, strides=2, padding="same")(y)
    y = layers.UpSampling2D((1, 2), interpolation="bilinear")(y)
    y = layers.GroupNormalization(2)(y)
    y = layers.UnitNormalization()(y / 3.0)
    y = layers.Dropout(0.5)(layers.GlobalAveragePooling2D()(y))
    y = layers.Dense(4, trainable=False, activation=keras.activations.gelu)(y)
    return keras.Model(x, layers.Softmax()(layers.Dense(3, kernel_initializer="he_normal")(y)), name="vision")


def text():
    """Words of any length with padding, both directions, attention that looks back."""
    x = keras.Input((None,), dtype="int32", name="words")
    y = layers.Embedding(12, 4, mask_zero=True)(x)
    y = layers.Bidirectional(layers.GRU(3, return_sequences=True), merge_mode="sum")(y)
    y = layers.LayerNormalization(epsilon=1e-5)(y)
    y = layers.MultiHeadAttention(2, 2, value_dim=3)(y, y, use_causal_mask=True)
    y = layers.Bidirectional(layers.LSTM(2, unit_forget_bias=False))(y)
    return keras.Model(x, layers.Dense(2, activation="tanh")(y), name="text")


def steps():
    """A stack whose input its first layer tells."""
    return keras.Sequential(
        [
            layers.Conv1D(4, 3, padding="causal", dilation_rate=2, activation="relu"),
            layers.TimeDistributed(layers.Dense(3, use_bias=False)),
            layers.MaxPooling1D(2),
            layers.SimpleRNN(4, return_sequences=True),
            layers.GRU(3, return_sequences=True, reset_after=False),
            layers.LSTM(3, return_sequences=True, go_backwards=True),
            layers.Permute((2, 1)),
            layers.Reshape((-1,)),
            layers.RepeatVector(2),
            layers.Masking(),
            layers.Flatten(),
            layers.Activation("softplus"),
        ],
        name="steps",
    )


def shared():
    """Models in a model, called twice, with their outputs in another order; first states; arguments by name."""
    inner_input = keras.Input((5, 4), name="x")
    hidden = layers.Dense(4, name="hidden")(inner_input)
    inner = keras.Model(inner_input, [layers.Dense(4, activation="relu")(hidden), hidden], name="inner")
    tower = keras.Sequential([keras.Input((5, 4)), layers.Dense(4), layers.LayerNormalization()], name="tower")
    tower.trainable = False
    a, b = keras.Input((5, 4), name="a"), keras.Input((5, 4), name="b")
    mask = keras.Input((5, 5), name="mask", dtype="int32")
    of_a, of_b = inner(a), inner(b, training=False)
    both = layers.Add()([of_a[0], tower(of_b[1]), tower(of_b[0])])
    attended = layers.MultiHeadAttention(2, 2, output_shape=3)(query=both, value=a, key=b, attention_mask=mask)
    state = layers.GlobalMaxPooling1D()(attended)
    state = layers.Dense(4)(state)
    memory = layers.LSTM(4)(a, initial_state=[state, state])
    most = ops.maximum(memory, layers.GlobalAveragePooling1D()(b))
    cosine = layers.Dot(1, normalize=True)([memory, most])
    last = inner(layers.Subtract()([a, b]))
    return keras.Model([b, a, mask], {"of_b": of_b[0], "again": last[1], "cosine": cosine, "of_a": of_a[1]}, name="shared")


def volumes():
    x = keras.Input((4, 4, 4, 2))
    y = layers.Conv3D(3, 2, activation="relu")(x)
    y = layers.AveragePooling3D(2, strides=1)(y)
    return keras.Model(x, layers.GlobalMaxPooling3D()(y), name="volumes")


def dropouts():
    """Layers without variables between layers with some, which have them in equal shapes."""
    return keras.Sequential(
        [
            keras.Input((3, 3, 3, 2)),
            layers.SpatialDropout3D(0.5),
            layers.Conv3D(2, 1),
            layers.Reshape((9, 3, 2)),
            layers.SpatialDropout2D(0.2),
            layers.Conv2D(2, 1),
            layers.Dropout(0.5),
            layers.SpatialDropout2D(0.3),
            layers.Conv2D(2, 1),
            layers.Reshape((27, 2)),
            layers.Dropout(0.5, noise_shape=(None, 1, 2)),
            layers.Conv1D(2, 1),
            layers.SpatialDropout1D(0.1),
            layers.Conv1D(2, 1),
            layers.GaussianDropout(0.1),
            layers.Flatten(),
            layers.Dense(3),
            layers.Dropout(0.1),
            layers.Dense(3),
        ],
        name="dropouts",
    )


def penalties():
    """Rectifiers with settings, as layers, in layers and as a function; penalties on outputs, and of each kernel of two."""
    x = keras.Input((6, 6, 3))
    both = {"depthwise_regularizer": keras.regularizers.L1(0.1), "pointwise_regularizer": keras.regularizers.L1L2(0.2, 0.3)}
    y = layers.SeparableConv2D(4, 2, **both)(x)
    y = layers.ReLU(max_value=1.5, negative_slope=0.1, threshold=0.2)(y)
    y = layers.SeparableConv2D(4, 2, pointwise_regularizer="l2")(y)
    y = layers.ActivityRegularization(0.1, 0.2)(y)
    y = layers.Conv2D(4, 2, activation=layers.ReLU(max_value=1.0))(y)
    y = layers.Activation("tanh", activity_regularizer="l2")(y)
    y = keras.activations.relu(y, threshold=0.1)
    y = layers.Reshape((9, 4))(y)
    y = layers.SeparableConv1D(4, 2, depthwise_regularizer="l1")(y)
    return keras.Model(x, layers.GlobalAveragePooling1D()(y), name="penalties")


def masked():
    """Concatenations of values with padding: along the features and the steps, and with one that has none."""
    words, steps = keras.Input((5,), dtype="int32", name="words"), keras.Input((5, 3), name="steps")
    table, padded = layers.Embedding(12, 3, mask_zero=True)(words), layers.Masking(0.5)(steps)
    beside, behind = layers.Concatenate()([table, padded]), layers.Concatenate(axis=1)([table, padded])
    with_all = layers.Concatenate()([table, steps])
    parts = [layers.LSTM(2)(beside), layers.GRU(2)(behind), layers.SimpleRNN(2)(with_all)]
    return keras.Model([words, steps], layers.Concatenate()(parts), name="masked")


def uneven():
    """Branches alike but for masks: the operations that find these put the layers before them deeper."""
    a, b = keras.Input((5, 4), name="a"), keras.Input((5, 4), name="b")
    words = keras.Input((5,), dtype="int32", name="words")

    def dropped(x, times):
        for _ in range(times):
            x = layers.Dropout(0.1)(x)
        return x

    table = layers.Dense(4)(layers.Embedding(12, 4, mask_zero=True)(words))
    joined = layers.LSTM(3)(layers.Concatenate()([table, layers.Dense(4)(a)]))
    sums = layers.Add()([layers.Masking()(layers.Dense(4)(a)), layers.Masking()(layers.Dense(4)(b))])
    masked = layers.LSTM(3)(layers.Masking()(layers.Dense(4)(a)))
    attended = layers.GRU(3)(layers.Attention()([table, table]))
    parts = [layers.LSTM(3)(dropped(layers.Dense(4)(b), times)) for times in (1, 2, 3)]
    parts.append(layers.GRU(3)(dropped(layers.Dense(4)(b), 1)))
    return keras.Model([words, a, b], layers.Concatenate()(parts + [masked, layers.LSTM(3)(sums), joined, attended]), name="uneven")


def unnoted():
    """As `uneven`, but of a call with more than a value Keras does not note the mask, and nothing is deeper."""
    a, b = keras.Input((5, 4), name="a"), keras.Input((5, 4), name="b")
    masked = layers.LSTM(3)(layers.Masking()(layers.Dense(4)(a)), training=False)
    plain = layers.LSTM(3)(layers.Dropout(0.1)(layers.Dense(4)(b)))
    return keras.Model([a, b], layers.Concatenate()([plain, masked]), name="unnoted")


def operated():
    """Operations, whose results have no mask, on values that have one; masks that are given and are those of the values anyway."""
    words, steps = keras.Input((None,), dtype="int32", name="words"), keras.Input((None, 3), name="steps")
    embedding = layers.Embedding(12, 3, mask_zero=True)
    table = embedding(words)
    gate, padded = layers.Dense(3)(table), layers.Masking(0.5)(steps)
    doubled = table * 2.0 + table
    gated, most = table * gate, ops.maximum(gate, padded)
    rectified, beside = ops.relu(table), ops.concatenate([table, padded], axis=-1)
    parts = [layers.GlobalAveragePooling1D()(value) for value in (doubled, gated, most, rectified)]
    parts.append(layers.LSTM(2)(beside))
    parts.append(layers.GRU(2)(layers.Add()([doubled, gate])))
    parts.append(layers.GRU(2)(layers.Dropout(0.1)(gate), mask=embedding.compute_mask(words)))
    either = ops.logical_or(ops.any(steps != 0.5, axis=-1), words != 0)
    parts.append(layers.GRU(2)(layers.Maximum()([gate, padded]), mask=either))
    return keras.Model([words, steps], [doubled, gated, most, layers.Concatenate()(parts)], name="operated")


def stated():
    """Recurrent layers with first states, which Keras calls without the mask of the steps unless it is given."""
    words = keras.Input((5,), dtype="int32", name="words")
    embedding = layers.Embedding(12, 3, mask_zero=True)
    table = embedding(words)
    state = layers.Dense(2)(layers.GlobalMaxPooling1D()(table))
    parts = [layers.LSTM(2)(table, initial_state=[state, state]), layers.GRU(2)(table, initial_state=state)]
    parts.append(layers.GRU(2)(table, initial_state=state, mask=embedding.compute_mask(words)))
    return keras.Model(words, layers.Concatenate()(parts), name="stated")


def handed():
    """States that recurrent layers give: first states of others, parts of values, outputs."""
    words, others = keras.Input((6,), dtype="int32", name="words"), keras.Input((4,), dtype="int32", name="others")
    table = layers.Embedding(12, 3, mask_zero=True)(words)
    _, h, c = layers.LSTM(4, return_state=True)(table)
    decoder = layers.LSTM(4, return_sequences=True, return_state=True)
    y, h, c = decoder(layers.Embedding(12, 3)(others), initial_state=[h, c])
    both, forward, backward = layers.Bidirectional(layers.GRU(2, return_sequences=True, return_state=True))(table)
    last, state = layers.SimpleRNN(2, return_state=True)(both)
    states = layers.Concatenate()([forward, backward, c, last, state])
    return keras.Model([words, others], [layers.Dense(3)(y), layers.Dense(2)(states), h], name="handed")


def led():
    """First states of layers in both directions, with a padding mask and without."""
    words, others = keras.Input((6,), dtype="int32", name="words"), keras.Input((4,), dtype="int32", name="others")
    table = layers.Embedding(12, 3, mask_zero=True)(words)
    _, *states = layers.Bidirectional(layers.LSTM(3, return_state=True))(table)
    padded, plain = layers.Embedding(12, 3, mask_zero=True)(others), layers.Embedding(12, 2)(others)
    last = layers.Bidirectional(layers.LSTM(3))(padded, initial_state=states)
    steps = layers.Bidirectional(layers.LSTM(3, return_sequences=True), merge_mode="sum")(plain, initial_state=states)
    ends = layers.Bidirectional(layers.GRU(3), merge_mode="ave")(steps, initial_state=states[::2])
    return keras.Model([words, others], [layers.Dense(2)(last), layers.Dense(3)(steps), ends], name="led")


def frames():
    """Recurrent layers of convolutions, with masks, states that go from one to another, in both directions."""
    words, film = keras.Input((4,), dtype="int32", name="words"), keras.Input((3, 6, 4, 2), name="film")
    table = layers.Embedding(12, 24, mask_zero=True)(words)
    pictures = layers.TimeDistributed(layers.Reshape((4, 3, 2)))(table)
    y, h, c = layers.ConvLSTM2D(2, 2, padding="same", return_sequences=True, return_state=True, kernel_regularizer="l2", dropout=0.2)(pictures)
    gone_on = layers.ConvLSTM2D(2, (3, 2), strides=(2, 1), padding="same", recurrent_dropout=0.3)(film)
    from_states = layers.ConvLSTM2D(2, 1, go_backwards=True, recurrent_activation="hard_sigmoid")(y, initial_state=[h, c])
    both = layers.Bidirectional(layers.ConvLSTM2D(2, 3, use_bias=False))(film)
    rows = layers.ConvLSTM1D(2, 3, dilation_rate=2, unit_forget_bias=False)(layers.Reshape((3, 8, 6))(film))
    volumes = layers.ConvLSTM3D(2, (2, 1, 2))(layers.Reshape((3, 2, 3, 4, 2))(film))
    flat = [layers.Flatten()(x) for x in (gone_on, from_states, both, rows, volumes)]
    return keras.Model([words, film], [y, layers.Dense(3)(layers.Concatenate()(flat))], name="frames")


def spectral():
    """Layers whose kernels are divided by their largest singular values; of the first nothing is trained."""
    x = keras.Input((8, 6, 3), name="x")
    first = layers.SpectralNormalization(layers.Conv2D(4, 3, kernel_regularizer="l2"))
    first.trainable = False
    y = layers.LeakyReLU()(first(x))
    y = layers.SpectralNormalization(layers.Conv2DTranspose(2, 2, strides=2), power_iterations=3)(y)
    y = layers.SpectralNormalization(layers.DepthwiseConv2D(3, use_bias=False))(y)
    y = layers.SpectralNormalization(layers.EinsumDense("abcd,de->abce", (None, None, 3)))(y)
    return keras.Model(x, layers.SpectralNormalization(layers.Dense(2))(layers.GlobalAveragePooling2D()(y)), name="spectral")


def signals():
    """Frequencies of signals, numbers of windows that do not depend on sizes, columns that are crossed."""
    wave = keras.Input((90,), name="wave")
    pitches = layers.MelSpectrogram(fft_length=32, sequence_stride=8, sampling_rate=4000, num_mel_bins=5, min_freq=30.0, window=None, top_db=1e4, mag_exp=1.5)(wave)
    pitches = layers.AdaptiveAveragePooling1D(3)(pitches)
    sound = keras.Input((50, 2), name="sound")
    frames = layers.STFTSpectrogram(frame_length=8, frame_step=3, fft_length=12, window=None, scaling=None, padding="same", expand_dims=True)(sound)
    frames = layers.AdaptiveMaxPooling2D((3, 4))(frames)
    parts = layers.STFTSpectrogram("imag", 16, window="hamming", scaling="spectrum", periodic=True)(sound)
    parts = layers.AdaptiveMaxPooling1D(2)(parts)
    volumes = layers.AdaptiveAveragePooling3D(2)(layers.Reshape((3, 2, 2, 2))(frames))
    ids = [keras.Input((1,), name=name, dtype="int32") for name in ("first", "second")]
    crossed = layers.HashedCrossing(9, output_mode="one_hot")(ids)
    flat = [layers.Flatten()(x) for x in (pitches, frames, parts, volumes)]
    return keras.Model([wave, sound, *ids], layers.Dense(3)(layers.Concatenate()([*flat, crossed])), name="signals")


def tied():
    """Tables that go both ways, with padding; cells by themselves and in stacks; activations, penalties, starts and sizes of this version."""
    words, others = keras.Input((6,), dtype="int32", name="words"), keras.Input((5,), dtype="int32", name="others")
    table = layers.ReversibleEmbedding(12, 4, mask_zero=True, logit_soft_cap=3.0)
    apart = layers.ReversibleEmbedding(12, 3, tie_weights=False, embeddings_regularizer="l2")
    x = table(words)
    both = layers.StackedRNNCells
    y = layers.RNN(both([layers.LSTMCell(3), layers.GRUCell(4, reset_after=False), layers.SimpleRNNCell(4)]), return_sequences=True)(x)
    scores = table(y, reverse=True)
    last = layers.RNN(layers.GRUCell(3, recurrent_activation="hard_sigmoid"))(x)
    ends = layers.Bidirectional(layers.RNN(layers.LSTMCell(2)))(apart(others))
    back = layers.RNN(both([layers.LSTMCell(3, dropout=0.2)]), go_backwards=True, return_sequences=True)(apart(others))
    start = keras.initializers.Identity(0.5)
    parts = [
        layers.Dense(3, name, kernel_regularizer=keras.regularizers.OrthogonalRegularizer(0.1, "columns"), kernel_initializer=start)(layers.Concatenate()([last, ends]))
        for name in ("celu", "hard_shrink", "hard_tanh", "log_sigmoid", "soft_shrink", "sparse_plus", "sparse_sigmoid", "squareplus", "tanh_shrink")
    ]
    image = layers.Conv2DTranspose(2, 3, strides=2, padding="same", output_padding=1)(layers.Reshape((5, 3, 1))(back))
    row = layers.Conv1DTranspose(2, 2, strides=3, output_padding=2)(back)
    flat = layers.Concatenate()([*parts, layers.Flatten()(image), layers.Flatten()(row)])
    return keras.Model([words, others], [scores, apart(back, reverse=True), layers.Dense(2)(flat)], name="tied")


def changed():
    """Images that are changed at random in training, and by no layer here in prediction; Keras cannot save some of them as HDF5."""
    return keras.Sequential([
        keras.Input((8, 6, 3), name="x"),
        layers.RandomShear([0.1, 0.2], 0.0, fill_mode="constant", fill_value=2.0),
        layers.RandomPerspective(0.5, scale=0.3, interpolation="nearest"),
        layers.RandomGaussianBlur(0.5, (3, 5), (0.2, 0.7)),
        layers.RandomErasing((0.2, 0.5), scale=0.3, fill_value=(1.0, 2.0, 3.0)),
        layers.RandomErasing(),
        layers.RandomPosterization(5),
        layers.Solarization((0.1, 0.2), 0.5, value_range=(0, 1)),
        layers.RandomColorJitter((0, 1), 0.1, 0.2, 0.3, 0.4),
        layers.RandAugment(num_ops=3, factor=0.3),
        layers.AdaptiveMaxPooling2D(2),
        layers.Flatten(),
        layers.Dense(2),
    ], name="changed")


def bent():
    """Images that are bent and mixed in training, and whose contrast is changed always."""
    return keras.Sequential([
        keras.Input((8, 6, 3), name="x"),
        layers.AugMix(num_chains=2, factor=0.2, all_ops=False),
        layers.RandomElasticTransform((0.2, 0.5), scale=0.3, fill_mode="wrap"),
        layers.ContrastLimitedAdaptiveHistogramEqualization((-2, 2), clip_limit=2.0, tile_grid_size=(2, 3)),
        layers.Flatten(name="flat"),
        layers.Dense(2, name="last"),
    ], name="bent")


def backbone():
    """A model for images of any size in a model that gives it two sizes."""
    inner_input = keras.Input((None, None, 3), name="image")
    y = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(layers.ZeroPadding2D()(inner_input))
    inner = keras.Model(inner_input, layers.BatchNormalization()(y), name="features")
    x = keras.Input((8, 6, 3), name="x")
    parts = [layers.GlobalAveragePooling2D()(inner(image)) for image in (x, layers.AveragePooling2D(2)(x))]
    return keras.Model(x, layers.Dense(2)(layers.Concatenate()(parts)), name="backbone")


def anywhere():
    """Stacks in a stack, all for images of any size."""
    inner = keras.Sequential([keras.Input((None, None, 3)), layers.Conv2D(3, 2, strides=2), layers.ReLU()], name="inner")
    middle = keras.Sequential([keras.Input((None, None, 3)), inner, layers.Conv2D(4, 2)], name="middle")
    model = [keras.Input((None, None, 3)), layers.Rescaling(0.5), middle, layers.UpSampling2D(2), layers.GlobalMaxPooling2D()]
    return keras.Sequential(model + [layers.Dense(2)], name="anywhere")


def blocks():
    """Blocks of attention on values with padding, of which the first takes the masks off when the model runs."""
    words = keras.Input((6,), dtype="int32", name="words")
    x = layers.Embedding(12, 4, mask_zero=True)(words)
    for _ in range(3):
        x = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(2, 3)(x, x)]))
    return keras.Model(words, layers.Dense(2)(layers.GlobalAveragePooling1D()(x)), name="blocks")


def grouped():
    """Heads that share heads of keys and values: on values with a mask, behind an attention that takes it off, with all arguments."""
    words, steps = keras.Input((6,), dtype="int32", name="words"), keras.Input((5, 4), name="steps")
    mask = keras.Input((5, 6), name="mask", dtype="int32")
    grouped = layers.GroupQueryAttention
    x, other = (layers.Embedding(12, 4, mask_zero=True)(words) for _ in range(2))
    y = layers.LayerNormalization()(layers.Add()([x, grouped(3, 4, 2)(x, x, use_causal_mask=True)]))
    z = layers.Add()([other, layers.MultiHeadAttention(2, 3)(other, other)])
    z = layers.Add()([z, grouped(2, 2, 1, use_bias=False)(z, z)])
    seen = grouped(2, 6, 3)(steps, value=y, key=x, attention_mask=mask)
    pooled = [layers.GlobalAveragePooling1D()(value) for value in (y, z)]
    return keras.Model([words, steps, mask], [layers.Dense(2)(seen), layers.Concatenate()(pooled)], name="grouped")


def einsums():
    """Dense layers by equations, two of them alike in a row but for their bias."""
    x = keras.Input((5, 4), name="steps")
    y = layers.EinsumDense("abc,cde->abde", (5, 2, 4), bias_axes="de", activation="tanh", kernel_regularizer="l2")(x)
    for bias in ("e", None):
        y = layers.EinsumDense("abcd,cde->abce", (5, 2, 4), bias_axes=bias, kernel_constraint="max_norm")(y)
    y = layers.EinsumDense("...cd,cde->...e", 4, bias_axes="e", kernel_initializer="he_normal", trainable=False)(y)
    return keras.Model(x, layers.EinsumDense("ab...,bc->ac...", 2, bias_axes="c")(y), name="einsums")


def branches():
    """Attentions beside each other on one value with a mask, which Keras runs in an order of its own."""
    words = keras.Input((6,), dtype="int32", name="words")
    x = layers.Embedding(12, 4, mask_zero=True)(words)
    attention = lambda name: layers.MultiHeadAttention(2, 3, name=name)
    one, two = attention("one")(x, x), attention("two")(x, x)
    both = layers.Add()([layers.Dense(4)(one), layers.Dense(4)(two)])
    y = layers.Dense(4)(layers.Embedding(12, 4, mask_zero=True)(words))
    long, short = layers.Dense(4)(layers.Dense(4)(attention("long")(y, y))), attention("short")(y, y)
    outputs = layers.Concatenate()([both, layers.Add()([short, long])])
    return keras.Model(words, outputs, name="branches")


def forgetful():
    """Recurrent layers whose gates do not see all of the state in training."""
    x = keras.Input((6, 3), name="steps")
    y = layers.LSTM(3, return_sequences=True, recurrent_dropout=0.2, dropout=0.1)(x)
    y = layers.Bidirectional(layers.GRU(2, return_sequences=True, recurrent_dropout=0.3))(y)
    y = layers.GRU(3, return_sequences=True, reset_after=False, recurrent_dropout=0.4)(y)
    return keras.Model(x, layers.SimpleRNN(2, recurrent_dropout=0.5)(y), name="forgetful")


def gated():
    """Branches alike but for an operation, which takes no mask."""
    words = keras.Input((6,), dtype="int32", name="words")
    table = layers.Embedding(12, 4, mask_zero=True)(words)
    y = layers.Multiply()([layers.Activation("tanh")(layers.Dense(4)(table)), ops.sigmoid(layers.Dense(4)(table))])
    return keras.Model(words, layers.Dense(2)(layers.GlobalAveragePooling1D()(y)), name="gated")


def thawed():
    """Models that are not trainable, with layers that were made trainable again: these are trained."""
    x = keras.Input((3,))
    chain = keras.Sequential([keras.Input((3,)), layers.Dense(3), layers.BatchNormalization()], name="chain")
    i = keras.Input((3,))
    graph = keras.Model(i, layers.Add()([i, layers.Dense(3)(layers.Dense(3)(i))]), name="graph")
    for inner in (chain, graph):
        inner.trainable = False
        inner.layers[-1].trainable = True
    graph.layers[2].trainable = True
    return keras.Model(x, layers.Dense(1)(graph(chain(x))), name="thawed")


def partly():
    """Models in a model of layers alike, of which the first is not trained: `.h5` files have it last."""
    x = keras.Input((3,))
    i = keras.Input((3,))
    graph = keras.Model(i, layers.Add()([i, layers.Dense(3)(layers.Dense(3)(i))]), name="graph")
    chain = keras.Sequential([keras.Input((3,)), layers.Dense(3), layers.Dense(3)], name="chain")
    graph.layers[1].trainable = False
    chain.layers[0].trainable = False
    return keras.Model(x, layers.Dense(1)(chain(graph(x))), name="partly")


def still():
    """A functional model that is not trainable, of whose layers one is: nothing is trained."""
    x = keras.Input((3,))
    model = keras.Model(x, layers.Dense(1)(layers.Dense(3)(x)), name="still")
    model.trainable = False
    model.layers[-1].trainable = True
    return model


def categories():
    """Bins, some of them found in data, vectors of categories, and numbers of values."""
    amounts, ids = keras.Input((3,), name="amounts"), keras.Input((4,), dtype="int32", name="ids")
    adapted = layers.Discretization(num_bins=4)
    adapted.adapt(np.linspace(-2, 2, 50).astype("float32"))
    bins = layers.Flatten()(layers.Embedding(4, 2)(adapted(amounts)))
    sides = layers.Discretization([-0.5, 0.5], output_mode="count")(amounts)
    there = layers.CategoryEncoding(12, output_mode="multi_hot")(ids)
    known = layers.IntegerLookup(vocabulary=[-1, 5, 11, 2, 7], mask_token=0)
    users = layers.Flatten()(layers.Embedding(7, 2)(known(ids)))
    kinds = layers.IntegerLookup(vocabulary=[1, 3], num_oov_indices=2, mask_token=0, output_mode="count")(ids)
    hashes = layers.Flatten()(layers.Embedding(5, 2)(layers.Hashing(5, mask_value=3)(ids)))
    joined = layers.Concatenate()([bins, sides, there, users, kinds, hashes])
    return keras.Model([amounts, ids], layers.Dense(2)(joined), name="categories")


def attending(dim=4, steps=6):
    """A model of attention, which takes the mask off what it is given."""
    i = keras.Input((steps, dim))
    return keras.Model(i, layers.LayerNormalization()(layers.Add()([i, layers.MultiHeadAttention(2, 3)(i, i)])))


def doubling(dim=4):
    """A model of operations, whose results have no mask."""
    i = keras.Input((None, dim))
    return keras.Model(i, i + layers.Dense(dim)(i))


def cells():
    """Blocks of attention that are models, of which the first is called with a mask."""
    words = keras.Input((6,), dtype="int32", name="words")
    x = layers.Embedding(12, 4, mask_zero=True)(words)
    for _ in range(3):
        x = attending()(x)
    return keras.Model(words, layers.Dense(2)(layers.GlobalAveragePooling1D()(x)), name="cells")


def wired():
    """Operations and first states in a model that is called with masks, and other layers, which keep them."""
    i, j = keras.Input((None, 3), name="i"), keras.Input((None, 3), name="j")
    gate, state = layers.Dense(3)(i), layers.Dense(2)(layers.GlobalMaxPooling1D()(j))
    kept, summed = layers.Dense(3)(j), layers.Add()([i, i + gate])
    values = [i * 2.0 + i, ops.maximum(gate, j), kept, layers.GRU(2)(i, initial_state=state), layers.LSTM(2)(summed), layers.LSTM(2)(kept)]
    inner = keras.Model([i, j], values, name="inner")
    words, steps = keras.Input((6,), dtype="int32", name="words"), keras.Input((6, 3), name="steps")
    table, padded = layers.Embedding(12, 3, mask_zero=True)(words), layers.Masking(0.5)(steps)
    doubled, most, kept, *last = inner([table, padded])
    parts = [layers.GlobalAveragePooling1D()(value) for value in (doubled, most, kept)]
    return keras.Model([words, steps], [doubled, most, kept, layers.Concatenate()(parts + last)], name="wired")


def stacked():
    """Models in a stack: one keeps the mask, one takes it off, and what follows looks at padding."""
    tower = keras.Sequential([keras.Input((6, 4)), layers.Dense(4), layers.Dropout(0.1)])
    stack = [keras.Input((6,), dtype="int32", name="words"), layers.Embedding(12, 4, mask_zero=True), tower, attending(), attending(), layers.GRU(3, return_sequences=True)]
    return keras.Sequential(stack + [layers.Dense(2)], name="stacked")


def summed():
    """A model of operations in a stack."""
    table = layers.Embedding(12, 4, mask_zero=True)
    return keras.Sequential([keras.Input((None,), dtype="int32", name="words"), table, doubling(), layers.GlobalAveragePooling1D()], name="summed")


def lost():
    """Layers whose results have no mask."""
    words = keras.Input((6,), dtype="int32", name="words")
    x = layers.Embedding(12, 4, mask_zero=True)(words)
    normal, scaled = layers.RMSNormalization()(x), LayerScale(0.5, 4)(x)
    parts = [layers.GlobalAveragePooling1D()(normal), layers.LSTM(2)(scaled), layers.GRU(2)(CustomScaleLayer(0.3)([x, layers.Dense(4)(x)]))]
    parts.append(layers.GlobalAveragePooling1D()(layers.Add()([x, layers.MultiHeadAttention(2, 3)(normal, normal)])))
    parts.append(layers.GlobalAveragePooling1D()(layers.LayerNormalization()(layers.Dropout(0.1)(x))))
    return keras.Model(words, [normal, scaled, layers.Concatenate()(parts)], name="lost")


def normed():
    """A stack with layers whose results have no mask, and layers behind them."""
    stack = [layers.Embedding(12, 4, mask_zero=True), layers.RMSNormalization(), layers.LSTM(3, return_sequences=True), layers.RMSNormalization()]
    return keras.Sequential([keras.Input((6,), dtype="int32", name="words")] + stack, name="normed")


def ended():
    """A stack whose output has no mask any more."""
    stack = [layers.Embedding(12, 4, mask_zero=True), layers.LSTM(3, return_sequences=True), layers.RMSNormalization(), layers.Dense(2)]
    return keras.Sequential([keras.Input((6,), dtype="int32", name="words")] + stack, name="ended")


def taken():
    """Values whose masks an attention took off, and what other layers and outputs do with them."""
    words, others = keras.Input((6,), dtype="int32", name="words"), keras.Input((6,), dtype="int32", name="others")
    x, y = layers.Embedding(12, 4, mask_zero=True)(words), layers.Embedding(12, 4, mask_zero=True)(others)
    a = layers.MultiHeadAttention(2, 3)(x, x)
    merged = [merge()([x, a]) for merge in (layers.Multiply, layers.Maximum, layers.Minimum, layers.Average)]
    merged.append(layers.Multiply()([x, a, layers.Dense(4)(y)]))
    h = layers.Add(name="sum")([x, a])
    scored, crossed = layers.Attention()([h, h]), layers.MultiHeadAttention(2, 3)(h, y)
    steps = layers.LSTM(3, return_sequences=True)(h)
    labels = layers.Dense(1, activation="sigmoid", name="labels")(h)
    whole = layers.Dense(1, name="whole")(layers.GlobalAveragePooling1D()(h))
    beside = layers.Concatenate()([x, a])
    return keras.Model([words, others], [h, labels, whole, scored, crossed, steps, beside] + merged, name="taken")


def same():
    """Values that layers give back as they are when Keras predicts: an attention takes the mask off both."""
    words, others = keras.Input((6,), dtype="int32", name="words"), keras.Input((6,), dtype="int32", name="others")
    x, y, z = (layers.Embedding(12, 4, mask_zero=True)(ids) for ids in (words, others, words))
    a = layers.MultiHeadAttention(2, 3)(layers.Identity()(x), layers.Dropout(0.5)(y))
    h = layers.Add()([x, a])
    i = keras.Input((6, 4))
    passed = keras.Model(i, layers.Activation("linear")(layers.SpatialDropout1D(0.2)(i)))(z)
    b = layers.MultiHeadAttention(2, 3)(passed, passed)
    outputs = [h, layers.MultiHeadAttention(2, 3)(h, y), layers.Multiply()([y, layers.Dense(4)(a)]), layers.Multiply()([z, b])]
    return keras.Model([words, others], outputs + [layers.GlobalAveragePooling1D()(layers.Add()([z, b]))], name="same")


def restored():
    """Models that give a value its mask back, and that take it off where others take it, too; one that is called with a mask and without."""
    words, others = keras.Input((6,), dtype="int32", name="words"), keras.Input((6,), dtype="int32", name="others")
    x, y = layers.Embedding(12, 4, mask_zero=True)(words), layers.Embedding(12, 4, mask_zero=True)(others)
    i = keras.Input((6, 4))
    plain = keras.Model(i, layers.Dense(4)(layers.LSTM(4, return_sequences=True)(i)))
    deep = lambda value: layers.Dense(2)(layers.Dense(3)(layers.Dense(3)(value)))
    outputs = [deep(layers.MultiHeadAttention(2, 3)(x, x)), layers.Multiply()([x, plain(x)])]
    outputs += [deep(attending()(y)), layers.Multiply()([y, layers.Dense(4)(y)]), plain(layers.Embedding(12, 4)(words))]
    return keras.Model([words, others], outputs, name="restored")


def mixed_masks():
    """A model that is called with a mask and without, and would be another one here for each."""
    words = keras.Input((6,), dtype="int32", name="words")
    masked, bare = layers.Embedding(12, 4, mask_zero=True)(words), layers.Embedding(12, 4)(words)
    operations = doubling()
    return {"operations": ([words], [operations(masked), operations(bare)])}


@keras.saving.register_keras_serializable("own")
class Halves(keras.initializers.Initializer):
    """An initializer of a program."""

    def __call__(self, shape, dtype=None):
        return keras.ops.full(shape, 0.5, dtype)

    def get_config(self):
        return {}


def starts():
    """Models by the setting by which a variable begins as none does here, and some of which all begin as here."""
    images, steps = (8, 8, 3), (5, 3)
    points = lambda start: layers.SeparableConv2D(4, 2, depthwise_initializer="he_normal", pointwise_initializer=start)
    gates = lambda **settings: layers.LSTM(2, bias_initializer="ones", **settings)
    return {
        "pointwise_initializer": keras.Sequential([keras.Input(images), points("zeros")]),
        "bias_initializer": keras.Sequential([keras.Input(steps), layers.Bidirectional(gates())]),
        "kernel_initializer": keras.Sequential([keras.Input(steps), layers.Dense(2, kernel_initializer=Halves())]),
        "images": keras.Sequential([keras.Input(images), points("he_normal")]),
        "steps": keras.Sequential([keras.Input(steps), gates(unit_forget_bias=False, return_sequences=True), layers.LSTM(2), layers.Dense(2, bias_initializer="zeros")]),
    }


def own_masks():
    """Layers with masks of their own: behind a layer that drops the mask, of another number, turned around, of one of two values."""
    words, others = keras.Input((5,), dtype="int32", name="words"), keras.Input((5,), dtype="int32", name="others")
    first, second = layers.Embedding(12, 3, mask_zero=True), layers.Embedding(12, 3, mask_zero=True)
    table = first(words)
    mask = first.compute_mask(words)
    dropped = layers.Reshape((5, 3))(table)
    both = layers.Add()([table, second(others)])
    return {
        "dropped": ([words], layers.GlobalAveragePooling1D()(dropped, mask=mask)),
        "operation": ([words], layers.GRU(2)(table * 2.0, mask=mask)),
        "number": ([words], layers.LSTM(2)(table, mask=words != 5)),
        "inverse": ([words], layers.LSTM(2)(table, mask=ops.logical_not(mask))),
        "one": ([words, others], layers.LSTM(2)(both, mask=mask)),
    }


def batch(model):
    """Two examples for each input, in the order of the model's inputs."""

    def values(x):
        dims = [2] + [6 if size is None else size for size in x.shape[1:]]
        match x.dtype:
            case "uint8":
                return random.randint(0, 256, dims).astype("uint8")
            case "int32" if x.name == "mask":
                return (random.uniform(size=dims) < 0.7).astype("int32")
            case "int32" if model.name in PADDED:
                return random.randint(0, 2, dims).astype("int32") * 7
            case "int32":
                return random.randint(0, 12, dims).astype("int32")
            case _ if x.name == "steps" and model.name in PADDED_STEPS:
                return np.where(random.uniform(size=dims[:2] + [1]) < 0.5, random.normal(size=dims), 0.5).astype("float32")
            case _:
                return random.normal(size=dims).astype("float32")

    return [values(x) for x in model.inputs]


def record(model, endings):
    """Saves a model and notes what it answers."""
    model.set_weights([random.normal(size=w.shape, scale=0.5) ** (2 if "variance" in w.path else 1) for w in model.weights])
    inputs = batch(model)
    for ending in endings:
        model.save(TO / f"{model.name}.{ending}")
    if model.name in ("dropouts", "uneven", "gated"):
        model.save_weights(TO / f"{model.name}.weights.h5")
    outputs = model(inputs[0] if len(inputs) == 1 else inputs, training=False)
    # Of several outputs with names, in the order of the names.
    outputs = keras.tree.flatten(outputs)
    masks = [get_keras_mask(x) for x in outputs]
    frozen = keras.models.load_model(TO / f"{model.name}.{endings[0]}").non_trainable_weights
    return {
        "name": model.name,
        "files": [f"{model.name}.{ending}" for ending in endings],
        "inputs": arrays(x.astype("int32") if x.dtype == "uint8" else x for x in inputs),
        "outputs": arrays(x.numpy() for x in outputs),
        "masks": [None if mask is None else array(mask.numpy()) for mask in masks],
        "frozen": len(frozen),
        "penalty": float(sum(model.losses, 0.0)),
    }


if __name__ == "__main__":
    TO.mkdir(exist_ok=True)
    stack = steps()
    stack.build((None, 6, 3))
    compiled = vision()
    compiled.compile("adam", "categorical_crossentropy", ["accuracy"])
    models = [(compiled, ["keras", "h5"]), (text(), ["keras"]), (stack, ["keras", "h5"]), (shared(), ["keras", "h5"]), (volumes(), ["keras"]), (dropouts(), ["keras", "h5"]),
              (penalties(), ["keras", "h5"]), (masked(), ["keras", "h5"]), (uneven(), ["keras", "h5"]), (unnoted(), ["keras", "h5"]), (operated(), ["keras", "h5"]), (stated(), ["keras", "h5"]),
              (backbone(), ["keras", "h5"]), (anywhere(), ["keras", "h5"]), (blocks(), ["keras", "h5"]), (handed(), ["keras", "h5"]), (led(), ["keras", "h5"]), (branches(), ["keras", "h5"]),
              (forgetful(), ["keras", "h5"]), (gated(), ["keras", "h5"]), (thawed(), ["keras"]), (still(), ["keras"]), (partly(), ["keras", "h5"]), (grouped(), ["keras", "h5"]),
              (einsums(), ["keras", "h5"]), (categories(), ["keras", "h5"])]
    names = {"sum": "mse", "labels": "binary_crossentropy", "whole": "mse"}
    compiled = taken()
    compiled.compile("adam", names)
    models += [(make(), ["keras", "h5"]) for make in (cells, wired, stacked, summed, lost, normed)] + [(compiled, ["keras", "h5"]), (restored(), ["keras", "h5"]), (ended(), ["keras", "h5"]), (frames(), ["keras", "h5"]), (same(), ["keras", "h5"]), (spectral(), ["keras", "h5"]), (signals(), ["keras", "h5"]), (changed(), ["keras"]), (tied(), ["keras"]), (bent(), ["keras"])]
    write("saved", [record(model, endings) for model, endings in models])
    for file, made in (("own_masks", own_masks()), ("mixed_masks", mixed_masks())):
        models = {name: keras.Model(inputs, output) for name, (inputs, output) in made.items()}
        write(file, [{"name": name, "config": keras.saving.serialize_keras_object(model)} for name, model in models.items()])
    write("starts", [{"name": name, "config": json.loads(model.to_json())} for name, model in starts().items()])
