"""compiled/*.keras, *.h5, *.json and compiled.json: models that were compiled, and how Keras trains them on: what three steps on one batch report, and the last weights.

    python tests/golden/keras/make_compiled.py
"""

from golden import FOLDER, array, keras, np, write

from keras import layers, losses, metrics, optimizers

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


def record(model, targets):
    """Saves a model, and trains it."""
    files = [f"{model.name}.{ending}" for ending in ("keras", "h5")]
    for file in files:
        model.save(TO / file)
    (TO / f"{model.name}.json").write_text(model.to_json())
    x = random.normal(size=(6, 4)).astype("float32")
    y = targets[0] if len(targets) == 1 else targets
    logs = []
    for _ in range(3):
        model.reset_metrics()
        logs.append({name: float(value) for name, value in model.train_on_batch(x, y, return_dict=True).items()})
    weights = [array(w.numpy()) for w in model.trainable_variables]
    return {"name": model.name, "files": files, "x": array(x), "targets": [array(t) for t in targets], "logs": logs, "weights": weights}


if __name__ == "__main__":
    TO.mkdir(exist_ok=True)
    write("compiled", [record(model, targets) for model, targets in models()])
