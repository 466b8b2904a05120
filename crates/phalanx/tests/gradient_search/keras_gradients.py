"""What a step leaves by Keras in f64 of the models that the search for wrong gradients sends, a line of JSON each: the gradients of
variables that are trained, the new values of the others, unless it draws random numbers; and what the model predicts.
"""

import os
import tempfile
import zipfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from answers import answer, numbers  # noqa: E402

keras.config.set_floatx("float64")
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)

LOSSES = {
    "Squares": keras.losses.MeanSquaredError,
    "Differences": keras.losses.MeanAbsoluteError,
    "Huber": keras.losses.Huber,
    "Distributions": lambda **more: keras.losses.CategoricalCrossentropy(True, 0.1, **more),
    "Classes": lambda **more: keras.losses.SparseCategoricalCrossentropy(True, **more),
    "Answers": lambda **more: keras.losses.BinaryCrossentropy(True, **more),
}


def array(tensor):
    kind = np.float64 if tensor["dtype"] in ("f32", "f64") else np.int32
    return np.array([float(x) for x in tensor["values"]], np.float64).reshape(tensor["dims"]).astype(kind)


def refuse_wrong_sums(add):
    """With TensorFlow, Keras takes what has one dim that is not 1 for the bias of the last or the second axis, if that has the same size."""

    def careful(x1, x2):
        first, second = ([*x.shape] if hasattr(x, "shape") else [] for x in (x1, x2))
        wide = [at - len(second) for at, size in enumerate(second) if size != 1]
        if len(wide) == 1 and len(first) > 1 and second[wide[0]] in (first[1], first[-1]):
            taken = -1 if second[wide[0]] == first[-1] else 1 - len(first)
            if wide[0] != taken:
                raise ValueError("Keras adds along another axis")
        return add(x1, x2)

    return careful


keras.src.backend.numpy.add = refuse_wrong_sums(keras.src.backend.numpy.add)


def load(path):
    """The model with its values, in f64."""
    with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as folder:
        config = archive.read("config.json").decode().replace('"float32"', '"float64"')
        model = keras.models.model_from_json(config)
        archive.extract("model.weights.h5", folder)
        model.load_weights(os.path.join(folder, "model.weights.h5"))
    return model


def save(model, path):
    """Has Keras write the model as it writes its own, but for f32 in the place of f64."""
    with tempfile.TemporaryDirectory() as folder:
        wide = os.path.join(folder, "wide.keras")
        model.save(wide)
        with zipfile.ZipFile(wide) as given, zipfile.ZipFile(path, "w") as archive:
            for name in given.namelist():
                content = given.read(name)
                archive.writestr(name, content.replace(b'"float64"', b'"float32"') if name == "config.json" else content)


def refuse_wide_pools(model):
    """TensorFlow's gradient of a mean is wrong where the window is wider than its input: not the derivative of what it computes."""
    for layer in model._flatten_layers():
        if type(layer).__name__.startswith("AveragePooling") and layer.padding == "same":
            sizes = zip(layer.pool_size, layer.input.shape[1:])
            if any(window > size for window, size in sizes):
                raise ValueError("a pool is wider than its input")


def match(model, replaced):
    """The variable of the model for each array, which has the same values in the same order."""
    values = {}
    for variable in model.variables:
        values.setdefault(variable.numpy().astype(np.float32).tobytes(), []).append(variable)
    found = [values.get(np.array(each["before"], np.float32).tobytes(), []) for each in replaced]
    for each, variables in zip(replaced, found):
        if len(variables) != 1:
            raise ValueError(f"{len(variables)} variables like {each['before'][:4]}")
    return [variables[0] for variables in found]


def mean(losses, weight, mask):
    """The mean of the losses that count; 0 where none does."""
    weights = tf.ones_like(losses)
    for given in (weight, mask):
        if given is not None:
            given = tf.cast(given, tf.float64)
            while given.ndim < losses.ndim:
                given = given[..., None]
            weights *= given
    total = tf.reduce_sum(weights)
    return tf.reduce_sum(losses * weights) / tf.where(total > 0, total, 1.0)


def left(request):
    keras.utils.clear_session()
    model = load(request["archive"])
    save(model, request["again"])
    refuse_wide_pools(model)
    variables = match(model, request["replaced"])
    x = [array(tensor) for tensor in request["x"]]
    x = x if len(x) > 1 else x[0]
    prediction = numbers(tf.convert_to_tensor(model(x, training=False)).numpy())
    if not request["trains"]:
        return [prediction]
    weight = request["weight"] and array(request["weight"])
    loss = LOSSES[request["loss"]](reduction=None)
    trained = [variable.value for variable, each in zip(variables, request["replaced"]) if each["trained"]]
    with tf.GradientTape() as tape:
        output = model(x, training=True)
        mask = getattr(output, "_keras_mask", None)
        # Else Keras' losses take what went into a last softmax for what came out of it.
        output = tf.identity(output)
        value = mean(loss.call(array(request["y"]), output), weight, mask)
        value += sum(model.losses) if model.losses else 0.0
    gradients = iter(tape.gradient(value, trained, unconnected_gradients="zero"))
    arrays = [
        next(gradients) if each["trained"] else variable.value
        for variable, each in zip(variables, request["replaced"])
    ]
    return [numbers(tf.convert_to_tensor(values).numpy()) for values in arrays] + [prediction]


if __name__ == "__main__":
    answer(left)
