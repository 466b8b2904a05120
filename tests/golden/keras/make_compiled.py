"""compiled/*.keras, *.h5, *.json and compiled.json: models that were compiled, and how Keras trains them on: what three steps on one batch report, and the last weights.

    python tests/golden/keras/make_compiled.py
"""

from golden import FOLDER, array, keras, np, write

from keras import constraints, layers, losses, metrics, optimizers

TO = FOLDER / "compiled"
random = np.random.RandomState(11)


def stack(name, units=3, activation=None):
    x = keras.Input((4,), name="x")
    y = layers.Dense(5, activation="tanh", kernel_regularizer="l2")(x)
    return keras.Model(x, layers.Dense(units, activation=activation, name="y")(y), name=name)


def two(name):
    """Two outputs, the names of which are not in the order of the outputs."""
    x = keras.Input((4,), name="x")
    y = layers.Dense(5, activation="tanh")(x)
    return keras.Model(x, [layers.Dense(2, name="z")(y), layers.Dense(3, activation="softmax", name="a")(y)], name=name)


def constrained(name):
    """Every layer that keeps variables to something, of several dims."""
    x = keras.Input((4,), name="x")
    y = layers.Dense(6, "tanh", kernel_constraint=constraints.MaxNorm(0.7), bias_constraint="non_neg")(x)
    y = layers.Reshape((6, 1))(y)
    y = layers.Conv1D(3, 2, kernel_constraint=constraints.MaxNorm(0.5, axis=[0, 1]), bias_constraint=constraints.MaxNorm(0.01))(y)
    between = constraints.MinMaxNorm(0.2, 0.8, rate=0.5, axis=[0, 2])
    y = layers.SeparableConv1D(4, 2, depthwise_constraint=between, pointwise_constraint=constraints.UnitNorm(axis=1))(y)
    y = layers.PReLU(shared_axes=[1], alpha_constraint=constraints.NonNeg())(y)
    y = layers.DepthwiseConv1D(2, depthwise_constraint=constraints.MaxNorm(0.6))(y)
    y = layers.MultiHeadAttention(2, 2, kernel_constraint=constraints.MaxNorm(0.6, axis=0), bias_constraint="NonNeg")(y, y)
    y = layers.LayerNormalization(gamma_constraint=constraints.MaxNorm(1.9), beta_constraint=constraints.NonNeg())(y)
    kept = constraints.UnitNorm(), constraints.MaxNorm(0.8, axis=1), constraints.MaxNorm(0.9)
    y = layers.LSTM(3, kernel_constraint=kept[0], recurrent_constraint=kept[1], bias_constraint=kept[2])(y)
    return keras.Model(x, layers.Dense(3, "softmax", kernel_constraint=constraints.NonNeg(), name="y")(y), name=name)


def attended(name):
    """Steps of which some are padding, whose mask an attention takes off, so that the loss counts all."""
    x = keras.Input((4,), name="x")
    steps = layers.Masking()(layers.Reshape((4, 1))(layers.ReLU()(x)))
    h = layers.Dense(4)(steps)
    h = layers.LayerNormalization()(layers.Add()([h, layers.MultiHeadAttention(2, 3)(h, h)]))
    return keras.Model(x, layers.Dense(1, name="y")(h), name=name)


def spectral(name):
    """Kernels that are divided by their largest singular values as they train, one of them twice a step, and one that is not trained."""
    x = keras.Input((4,), name="x")
    y = layers.SpectralNormalization(layers.Conv2D(3, 2, padding="same", activation="tanh", kernel_regularizer="l2"))(layers.Reshape((2, 2, 1))(x))
    y = layers.SpectralNormalization(layers.DepthwiseConv2D(2, padding="same"))(y)
    frozen = layers.SpectralNormalization(layers.EinsumDense("abcd,de->abce", (2, 2, 2)))
    frozen.trainable = False
    again = layers.SpectralNormalization(layers.Dense(8, activation="tanh"), power_iterations=2)
    y = again(again(layers.Flatten()(frozen(y))))
    return keras.Model(x, layers.Dense(3, "softmax", name="y")(y), name=name)


def models():
    """A model with what it is compiled with, and its targets."""
    classes, numbers = random.randint(0, 3, (6, 1)).astype("int32"), random.normal(size=(6, 2)).astype("float32")
    plain = stack("plain", activation="softmax")
    plain.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    yield plain, [classes]
    decay = optimizers.schedules.CosineDecay(0.5, 4, alpha=0.1)
    scheduled = stack("scheduled")
    scheduled.compile(
        optimizers.SGD(decay, momentum=0.9, nesterov=True, clipnorm=0.5),
        losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[metrics.SparseTopKCategoricalAccuracy(k=2, name="among_two"), "acc"],
        weighted_metrics=["sparse_categorical_accuracy"],
        steps_per_execution=2,
    )
    yield scheduled, [classes]
    several = two("several")
    several.compile(
        optimizers.RMSprop(0.01, weight_decay=0.1, momentum=0.5),
        {"a": "sparse_categorical_crossentropy", "z": losses.Huber()},
        metrics={"z": ["mae", metrics.MeanSquaredError()], "a": "accuracy"},
        loss_weights={"z": 2.0, "a": 0.5},
    )
    yield several, [numbers, classes]
    listed = two("listed")
    both = [losses.mean_squared_error, "sparse_categorical_crossentropy"]
    listed.compile(optimizers.AdamW(0.01), both, metrics=[["mse"], []], loss_weights=[0.5, 1.0])
    yield listed, [numbers, classes]
    kept = constrained("constrained")
    kept.compile(optimizers.SGD(0.3, momentum=0.9), "sparse_categorical_crossentropy")
    yield kept, [classes]
    answers = random.randint(0, 2, (6, 3)).astype("float32")
    measured = stack("measured", activation="sigmoid")
    measures = [
        metrics.Precision(top_k=1),
        metrics.Recall(thresholds=[0.3, 0.6], class_id=1),
        metrics.AUC(multi_label=True, num_labels=3, curve="PR"),
        metrics.PrecisionAtRecall(0.5, num_thresholds=50),
        metrics.SpecificityAtSensitivity(0.4),
        metrics.FBetaScore(average="macro", beta=2.0, threshold=0.5),
        metrics.BinaryIoU(target_class_ids=[1], threshold=0.4),
        metrics.OneHotIoU(num_classes=3, target_class_ids=[0, 2]),
        metrics.OneHotMeanIoU(num_classes=3),
        metrics.MeanIoU(num_classes=3, sparse_y_true=False, sparse_y_pred=False, name="regions"),
        metrics.ConcordanceCorrelation(),
    ]
    measured.compile("adam", "binary_crossentropy", metrics=measures)
    yield measured, [answers]
    looking = attended("attended")
    looking.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["mse"])
    yield looking, [random.normal(size=(6, 4, 1)).astype("float32")]


    normalized = spectral("spectral")
    normalized.compile(optimizers.SGD(0.3, momentum=0.9), "sparse_categorical_crossentropy")
    yield normalized, [classes]
    partly = two("partly")
    partly.compile(optimizers.SGD(0.1, loss_scale_factor=8.0), [None, "sparse_categorical_crossentropy"], metrics=[["mae"], None])
    yield partly, [numbers, classes]
    scaled = stack("scaled")
    adam = optimizers.LossScaleOptimizer(optimizers.Adam(0.05), initial_scale=64.0, dynamic_growth_steps=2)
    scaled.compile(adam, losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["sparse_categorical_accuracy"])
    yield scaled, [classes]


def record(model, targets):
    """Saves a model, and trains it."""
    files = [f"{model.name}.{ending}" for ending in ("keras", "h5")]
    for file in files:
        model.save(TO / file)
    # Before it is saved, a description lacks the optimizer.
    loaded = keras.saving.load_model(TO / files[0])
    (TO / f"{model.name}.json").write_text(loaded.to_json())
    x = random.normal(size=(6, 4)).astype("float32")
    y = targets[0] if len(targets) == 1 else targets
    logs = []
    for _ in range(3):
        model.reset_metrics()
        logs.append({name: float(np.mean(value)) for name, value in model.train_on_batch(x, y, return_dict=True).items()})
    weights = [array(w.numpy()) for w in model.trainable_variables]
    fixed = [array(w.numpy()) for w in model.non_trainable_variables]
    named = {"name": model.name, "files": files, "x": array(x), "targets": [array(t) for t in targets], "logs": logs, "weights": weights}
    return {**named, **({"fixed": fixed} if fixed else {})}


if __name__ == "__main__":
    TO.mkdir(exist_ok=True)
    write("compiled", [record(model, targets) for model, targets in models()])
