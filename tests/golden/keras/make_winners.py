"""winners.json: gradients of networks in which a normalization comes before a maximum, one step of training.

Keras computes in f64, so that what differs is our rounding alone. No two elements of a window are nearly equal.
"""

from golden import array, keras, np, tf, write
from make_models import path_of, uniform, value

layers = keras.layers


def cnn():
    """The smallest network of its kind: images of digits."""
    return keras.Sequential([
        keras.Input((28, 28, 1)),
        layers.Conv2D(8, 3, name="conv"),
        layers.BatchNormalization(name="norm"),
        layers.ReLU(),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dense(2, name="dense"),
    ])


def stem():
    """The first layers of ResNet-50, narrower."""
    return keras.Sequential([
        keras.Input((32, 32, 3)),
        layers.ZeroPadding2D(3),
        layers.Conv2D(16, 7, strides=2, name="conv"),
        layers.BatchNormalization(name="norm", epsilon=1.001e-5),
        layers.ReLU(),
        layers.ZeroPadding2D(1),
        layers.MaxPooling2D(3, strides=2),
        layers.Flatten(),
        layers.Dense(2, name="dense"),
    ])


def tokens(steps, dim):
    """A global maximum over the steps of a sequence."""
    return keras.Sequential([
        keras.Input((steps,), dtype="int32"),
        layers.Embedding(11, dim, name="embedding"),
        layers.BatchNormalization(name="norm"),
        layers.ReLU(),
        layers.GlobalMaxPooling1D(),
        layers.Dense(2, name="dense"),
    ])


def weight(path, shape):
    """By the formula of `make_models.py`, with betas on both sides of the kink of ReLU."""
    if path.endswith(("beta", "embeddings")):
        return uniform(path, int(np.prod(shape))).astype(np.float32).reshape(shape)
    return value(path, shape)


def record(name, model, x):
    """One network: the loss is the mean square of the difference from numbers of a formula, `name/targets`."""
    for variable in model.weights:
        variable.assign(weight(path_of(variable), tuple(variable.shape)))
    targets = uniform(f"{name}/targets", x.shape[0] * model.output_shape[-1])
    targets = targets.astype(np.float32).reshape(x.shape[0], -1)
    with tf.GradientTape() as tape:
        loss = keras.losses.MeanSquaredError()(targets, model(x, training=True))
    trained = model.trainable_variables
    slopes = tape.gradient(loss, [variable.value for variable in trained])
    dense = [tf.convert_to_tensor(slope).numpy() for slope in slopes]
    return {
        "name": name, "input": list(x.shape),
        "loss": float(loss.numpy()),
        "gradients": {path_of(v): array(g) for v, g in zip(trained, dense)},
    }


def images(name, *dims):
    """Images by the formula, `name/x`, as f32."""
    return uniform(name, int(np.prod(dims))).astype(np.float32).reshape(dims)


def indices(name, *dims):
    """Tokens below 11 by the formula, `name/x`."""
    return ((uniform(f"{name}/x", int(np.prod(dims))) + 1) * 5.5).astype(np.int32).reshape(dims)


if __name__ == "__main__":
    keras.config.set_floatx("float64")
    write("winners", [
        record("cnn", cnn(), images("cnn/x", 32, 28, 28, 1)),
        record("stem", stem(), images("stem/x", 4, 32, 32, 3)),
    ] + [
        record(f"tokens_{steps}_{dim}", tokens(steps, dim), indices(f"tokens_{steps}_{dim}", 3, steps))
        for steps, dim in ((3, 8), (4, 6), (7, 16))
    ])
