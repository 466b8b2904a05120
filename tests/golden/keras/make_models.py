"""models.json: structure, outputs and gradients of Keras' applications with weights that a formula gives; preprocessing.

Keras computes in f64 here, so that what differs is our rounding alone. `python make_models.py 224` compares nothing and
writes nothing: it prints the outputs for images of 224 by 224 and 1000 classes, for a comparison by hand.
"""

import sys

from golden import array, keras, np, number, tf, write

BATCH, CLASSES = 8, 10
LAST = ("_3_bn", "project_BN")


def uniform(name, count):
    """`count` numbers in [-1, 1): a 32-bit mix of a counter and of the FNV-1a hash of a name; exact in f32."""
    seed = 0x811C9DC5
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x01000193) & 0xFFFFFFFF
    h = (np.arange(count, dtype=np.uint64) * 0x9E3779B9 + seed) & 0xFFFFFFFF
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = ((h ^ (h >> np.uint64(shift))) * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    h = h ^ (h >> np.uint64(16))
    return (h >> np.uint64(8)).astype(np.float64) / 2**23 - 1


def value(path, shape):
    """The value of a variable, `layer/variable`, rounded to f32."""
    layer, kind = path.split("/")
    u = uniform(path, int(np.prod(shape)))
    if kind == "kernel":
        # Keeps the variance through relu, by what one output sums up.
        depthwise = "depthwise" in layer
        fan_in = np.prod(shape[:2]) if depthwise else np.prod(shape[:-1])
        u = u * np.sqrt(6 / fan_in)
    elif kind == "gamma":
        # The last normalization of a residual branch is small, or sums would grow from block to block.
        u = (1 + 0.2 * u) * (0.2 if layer.endswith(LAST) else 0.5)
    elif kind == "beta" and not layer.endswith("project_BN"):
        # Three deviations from the kink of relu, on one side or the other: where values of f32 and f64 lie on different
        # sides of it, gradients differ for no fault of anybody's, by percents in the first layers.
        side = np.where((u < -0.75) & (not layer.endswith(LAST)), -1.5, 0.6 if layer.endswith(LAST) else 1.5)
        u = side + 0.1 * u
    elif kind == "moving_variance":
        u = 1 + 0.5 * u
    else:
        u = 0.1 * u
    return u.astype(np.float32).reshape(shape)


def path_of(variable):
    """`layer/variable`, whatever comes before."""
    return "/".join(variable.path.split("/")[-2:])


def images(size):
    """BATCH images."""
    return uniform("images", BATCH * size * size * 3).astype(np.float32).reshape(BATCH, size, size, 3)


def variables(model):
    """The variables in the order of the layers, and sets them."""
    found = []
    for variable in (w for layer in model.layers for w in layer.weights):
        path = path_of(variable)
        variable.assign(value(path, tuple(variable.shape)))
        found.append((path, variable))
    return found


def gradients(model, x, labels):
    """Loss, and by variable the gradient's norm and its products with two vectors."""
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(x, training=True))
    trainable = model.trainable_variables
    found = {}
    for variable, gradient in zip(trainable, tape.gradient(loss, [v.value for v in trainable])):
        path, g = path_of(variable), gradient.numpy().reshape(-1)
        seen = [np.linalg.norm(g)] + [g @ uniform(f"{path}/{i}", g.size) for i in range(2)]
        found[path] = [float(f"{v:.9g}") for v in seen]
    return float(loss.numpy()), found


def record(name, model, full, size):
    """One model: `full` is that of 1000 classes, of which only the counts are kept."""
    x, labels = images(size), np.arange(BATCH) * 3 % CLASSES
    ours = variables(model)
    outputs = model(x, training=False).numpy()
    loss, grads = gradients(model, x, labels)
    count = lambda weights: int(sum(np.prod(w.shape) for w in weights))
    return {
        "name": name,
        "parameters": count(full.weights), "trainable": count(full.trainable_weights),
        "layers": [layer.name for layer in model.layers[1:]],
        "variables": [[path, list(v.shape)] for path, v in ours],
        "size": size, "labels": [int(v) for v in labels],
        "outputs": {"shape": list(outputs.shape), "dtype": "f32", "data": [number(v) for v in outputs.reshape(-1)]},
        "loss": loss, "gradients": grads,
        "global_norm": float(np.sqrt(sum(v[0] ** 2 for v in grads.values()))),
    }


def preprocessed(mode):
    """Images of bytes by a formula, and what Keras makes of them."""
    x = (np.arange(2 * 2 * 3 * 3) * 37 % 256).reshape(2, 2, 3, 3)
    y = keras.applications.imagenet_utils.preprocess_input(x.astype(np.float64), data_format="channels_last", mode=mode)
    return {"name": f"preprocess_{mode}", "input": array(x), "output": array(y)}


def build(make, **settings):
    """A model of random weights that gives logits."""
    keras.backend.clear_session()
    return make(weights=None, classifier_activation=None, **settings)


# Images are large enough for no normalization to be over fewer than 32 values: with fewer, gradients are as good as
# the rounding of the last layers, in Keras too.
MODELS = {
    "resnet50": (keras.applications.ResNet50, 64),
    "mobilenet_v2": (keras.applications.MobileNetV2, 96),
}


if __name__ == "__main__":
    keras.config.set_floatx("float64")
    if sys.argv[1:] == ["224"]:
        for name, (make, _) in MODELS.items():
            model = build(make)
            variables(model)
            print(name, model(images(224), training=False).numpy()[:2, :4])
    else:
        write("models", [
            record(name, build(make, input_shape=(size, size, 3), classes=CLASSES), build(make), size)
            for name, (make, size) in MODELS.items()
        ] + [preprocessed(mode) for mode in ("caffe", "tf", "torch")])
