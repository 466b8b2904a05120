"""curve_mlp.json and curve_cnn.json: the loss of 50 training steps from given weights."""

from golden import FOLDER, array, json, keras, np, number, tf

STEPS, BATCH, ROWS, CLASSES = 50, 16, 64, 5
layers = keras.layers


def inputs(width):
    """ROWS x width values between -0.5 and 0.5, from integers alone (f64 division, then rounded to f32)."""
    i, j = np.meshgrid(np.arange(ROWS), np.arange(width), indexing="ij")
    return (((i * 7919 + j * 104729 + i * j * 613) % 1000) / 1000 - 0.5).astype(np.float32)


def labels():
    """ROWS classes."""
    i = np.arange(ROWS)
    return ((i * i + 3 * i + i // 7) % CLASSES).astype(np.int32)


def mlp():
    """20-16-relu-5."""
    return keras.Sequential([layers.Input((20,)), layers.Dense(16, activation="relu", name="dense"),
                             layers.Dense(CLASSES, name="dense_1")])


def cnn():
    """8x8x1, convolution, batch normalization, relu, pooling, dense."""
    return keras.Sequential([
        layers.Input((8, 8, 1)),
        layers.Conv2D(4, 3, padding="same", use_bias=False, name="conv2d"),
        layers.BatchNormalization(name="batch_normalization"),
        layers.ReLU(name="relu"),
        layers.MaxPooling2D(2, name="max_pooling2d"),
        layers.Flatten(name="flatten"),
        layers.Dense(CLASSES, name="dense"),
    ])


def initialize(model, seed):
    """Glorot-like kernels; everything else stays at Keras' zeros and ones."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        if weight.name == "kernel":
            fans = weight.shape[-1] + weight.shape[-2]
            weight.assign(rng.uniform(-1, 1, weight.shape).astype(np.float32) * np.sqrt(6 / fans))


def weights(model):
    """Every variable by its layer and name, moving statistics included."""
    return [{"name": w.path.split("/", 1)[1], "value": array(w.numpy())} for w in model.weights]


def train(model, optimizer, x, y):
    """The loss of each step, by a plain gradient tape."""
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    losses = []
    for step in range(STEPS):
        rows = (step * BATCH + np.arange(BATCH)) % ROWS
        with tf.GradientTape() as tape:
            loss = loss_of(y[rows], model(x[rows], training=True))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
        losses.append(number(loss.numpy()))
    return losses


def train_with_keras(model, optimizer, x, y):
    """The loss of each step, by Keras' own train_on_batch."""
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    losses = []
    for step in range(STEPS):
        rows = (step * BATCH + np.arange(BATCH)) % ROWS
        model.reset_metrics()
        losses.append(float(model.train_on_batch(x[rows], y[rows])))
    return losses


def curve(name, build, shape, make_optimizer, optimizer, seed, architecture):
    """Writes one curve's file."""
    x, y = inputs(int(np.prod(shape))).reshape((ROWS, *shape)), labels()
    model, other = build(), build()
    initialize(model, seed)
    initialize(other, seed)
    initial = weights(model)
    losses = train(model, make_optimizer(), x, y)
    difference = np.abs(np.array(train_with_keras(other, make_optimizer(), x, y)) / losses - 1).max()
    if difference > 1e-4:
        raise ValueError(f"{name}: train_on_batch differs by {difference}")
    record = {
        "keras": keras.__version__, "tensorflow": tf.__version__,
        "name": name, "architecture": architecture, **optimizer, "loss": "SparseCategoricalCrossentropy from logits",
        "steps": STEPS, "batch": BATCH, "rows": ROWS, "input_shape": list(shape),
        "input_formula": "x[i][j] = ((i*7919 + j*104729 + i*j*613) % 1000)/1000 - 0.5 in f64, rounded to f32; "
                         "i = row, j = row-major position in the row",
        "label_formula": "y[i] = (i*i + 3*i + i/7) % 5, integer division",
        "batch_formula": "step s takes rows (s*16 + 0..15) % 64",
        "first_row": array(x[0].reshape(-1)[:8]), "last_row": array(x[-1].reshape(-1)[:8]),
        "input_sum": float(x.astype(np.float64).sum()), "labels": [int(v) for v in y],
        "initial_weights": initial, "losses": losses, "final_weights": weights(model),
        "final_logits": array(model(x[:4], training=False).numpy()),
    }
    path = FOLDER / f"{name}.json"
    text = ",\n".join(f'"{k}":{json.dumps(v, separators=(",", ":"), allow_nan=False)}' for k, v in record.items())
    path.write_text("{" + text + "}\n")
    print(f"{path.name}: loss {losses[0]} to {losses[-1]}, {path.stat().st_size} bytes, train_on_batch within {difference:.1e}")


if __name__ == "__main__":
    curve(
        "curve_mlp", mlp, (20,), lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        {"optimizer": "SGD", "config": {"learning_rate": 0.1, "momentum": 0.9}}, 60,
        "Dense(16, relu) Dense(5)",
    )
    curve(
        "curve_cnn", cnn, (8, 8, 1), lambda: keras.optimizers.Adam(0.001),
        {"optimizer": "Adam", "config": {"learning_rate": 0.001}}, 61,
        "Conv2D(4, 3x3, same, no bias) BatchNormalization(momentum 0.99, epsilon 0.001) ReLU MaxPooling2D(2) Flatten Dense(5)",
    )
