"""Random losses and metrics with what Keras in f64 answers, a line of JSON each: `keras_losses.py SEED COUNT`.

Numbers of targets, predictions and weights are f32, so that both sides are given the same.
"""

import json
import math
import os
import sys

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

keras.config.set_floatx("float64")
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)

THRESHOLDS = [0.0, 0.125, 0.25, 0.5, 0.625, 0.75, 1.0]


def f32(values):
    """The nearest numbers of f32, none of them one that XLA may flush."""
    values = np.asarray(values, np.float32).astype(np.float64)
    return np.where(np.abs(values) < 1e-30, 0.0, values)


class Draw:
    """Random settings and numbers."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def one(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def chance(self, share):
        return self.rng.random() < share

    def dims(self, columns, ranks=(2, 2, 3, 4)):
        """The dims of predictions, without the batch."""
        return tuple(int(n) for n in self.rng.integers(1, 4, self.one(*ranks) - 2)) + (columns,)

    def logits(self, dims):
        x = self.rng.standard_normal(dims) * self.one(1.0, 3.0)
        match self.rng.integers(5):
            case 0:
                x = np.where(self.rng.random(dims) < 0.3, self.rng.choice([-100.0, 100.0, 0.0, 30.0], dims), x)
            case 1:
                x = self.rng.integers(-2, 3, dims).astype(float)
        return f32(x)

    def probabilities(self, dims):
        """Of a yes or no each; some at thresholds, some 0 and 1."""
        p = self.rng.random(dims)
        match self.rng.integers(4):
            case 0:
                p = self.rng.choice(THRESHOLDS, dims)
            case 1:
                p = np.where(self.rng.random(dims) < 0.3, self.rng.choice([0.0, 1.0, 0.5, 1e-8, 1e-6], dims), p)
        return f32(p)

    def distributions(self, dims):
        """Of classes; some with ties, some with none but one, some that do not add up to 1."""
        p = self.rng.random(dims) + 0.01
        match self.rng.integers(5):
            case 0:
                p = self.rng.choice([0.0, 0.25, 0.5, 1.0], dims) + 1e-3
            case 1:
                p = np.eye(dims[-1])[self.rng.integers(0, dims[-1], dims[:-1])]
            case 2:
                return f32(p)
        return f32(p / p.sum(-1, keepdims=True))

    def answers(self, dims):
        match self.rng.integers(6):
            case 0:
                return np.full(dims, float(self.one(0, 1)))
            case 1:
                return f32(self.rng.choice([0.0, 0.25, 0.5, 1.0], dims))
        return self.rng.integers(0, 2, dims).astype(float)

    def classes(self, dims):
        """Numbers of classes, one for each row."""
        if self.chance(0.15):
            return np.full(dims[:-1], self.rng.integers(dims[-1]))
        return self.rng.integers(0, dims[-1], dims[:-1])

    def rows(self, dims):
        """One-hot rows, or soft ones."""
        if self.chance(0.2):
            return self.rng.multinomial(16, np.full(dims[-1], 1 / dims[-1]), dims[:-1]) / 16
        return np.eye(dims[-1])[self.classes(dims)]

    def numbers(self, dims):
        x = self.rng.standard_normal(dims) * self.one(0.1, 1.0, 20.0)
        if self.chance(0.3):
            x = np.round(x)
        return f32(x)

    def weight(self, dims):
        weight = f32(self.rng.choice([0.0, 0.5, 1.0, 1.25, 3.0], dims))
        return np.zeros(dims) if self.chance(0.1) else weight


def vectors(draw, kind, dims, settings):
    """Targets and predictions of these dims that the loss is for."""
    if kind == "SparseCategoricalCrossentropy":
        scores = draw.logits if settings["from_logits"] else draw.distributions
        y_true = draw.classes(dims)
        return (y_true[..., None] if dims[-1] == 1 or draw.chance(0.3) else y_true), scores(dims)
    if kind == "CategoricalFocalCrossentropy" and settings["from_logits"]:
        return draw.rows(dims), np.clip(draw.logits(dims), -5, 5)  # Keras clips the probabilities of others.
    if kind in ("CategoricalCrossentropy", "CategoricalFocalCrossentropy"):
        return draw.rows(dims), (draw.logits if settings["from_logits"] else draw.distributions)(dims)
    if kind in ("BinaryCrossentropy", "BinaryFocalCrossentropy"):
        return draw.answers(dims), (draw.logits if settings["from_logits"] else draw.probabilities)(dims)
    if kind == "KLDivergence":
        return draw.rows(dims), draw.distributions(dims)
    if kind in ("Hinge", "SquaredHinge"):
        y_true = draw.rng.integers(0, 2, dims).astype(float)
        return (2 * y_true - 1 if draw.chance(0.5) else y_true), draw.numbers(dims)
    if kind == "CategoricalHinge":
        return draw.rows(dims), draw.numbers(dims)
    if kind == "Poisson":
        return draw.rng.poisson(2.0, dims).astype(float), f32(draw.rng.choice([0.0, 0.5, 1.0, 3.0, 40.0], dims))
    y_true, y_pred = draw.numbers(dims), draw.numbers(dims)
    match draw.rng.integers(6):
        case 0:
            y_pred = y_true.copy()
        case 1:
            y_true = np.zeros(dims)
    return y_true, y_pred


def loss_settings(draw, kind):
    smoothing = {"label_smoothing": draw.one(0.0, 0.0, 0.1, 0.5, 1.0)}
    focal = {"gamma": draw.one(0.0, 0.5, 1.0, 1.5, 2.0, 3.0), "alpha": draw.one(0.25, 0.0, 1.0, 0.7)}
    logits = {"from_logits": draw.chance(0.5)}
    return {
        "SparseCategoricalCrossentropy": logits,
        "CategoricalCrossentropy": {**logits, **smoothing},
        "BinaryCrossentropy": {**logits, **smoothing},
        "BinaryFocalCrossentropy": {**logits, **smoothing, **focal, "apply_class_balancing": draw.chance(0.5)},
        "CategoricalFocalCrossentropy": {**logits, **smoothing, **focal},
        "Huber": {"delta": draw.one(0.25, 0.5, 1.0, 2.5)},
    }.get(kind, {})


LOSSES = [
    "SparseCategoricalCrossentropy", "CategoricalCrossentropy", "BinaryCrossentropy", "MeanSquaredError", "MeanAbsoluteError",
    "Huber", "KLDivergence", "MeanAbsolutePercentageError", "MeanSquaredLogarithmicError", "LogCosh", "Poisson", "CosineSimilarity",
    "Hinge", "SquaredHinge", "CategoricalHinge", "BinaryFocalCrossentropy", "CategoricalFocalCrossentropy",
]  # fmt: skip


def typed(draw, y_true):
    """Targets in a type that holds them."""
    if np.all(y_true == np.round(y_true)) and draw.chance(0.5):
        return y_true.astype(np.int32)
    return y_true.astype(np.float64)


def weight_dims(draw, dims):
    """Dims of weights for values of these dims, as Keras takes them."""
    return draw.one(dims, dims[:1] + (1,) * (len(dims) - 1))


def loss(draw, kind):
    settings = loss_settings(draw, kind)
    dims = (int(draw.rng.integers(1, 5)), *draw.dims(draw.one(1, 2, 3, 5)))
    y_true, y_pred = vectors(draw, kind, dims, settings)
    y_true, of_values = typed(draw, y_true), dims[:-1]
    if dims[-1] == 1 and "Categorical" not in kind and draw.chance(0.5):
        y_true = y_true[..., 0]
        of_values = dims[:-2] if len(dims) > 2 else of_values
    weight = draw.weight(weight_dims(draw, of_values)) if draw.chance(0.6) else None
    reduction = draw.one("sum_over_batch_size", "sum", "none", "mean_with_sample_weight")
    function = getattr(keras.losses, kind)(**settings, reduction=reduction)

    def value_and_gradient(x):
        x = tf.convert_to_tensor(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = function(y_true, x, sample_weight=weight)
            total = tf.reduce_sum(value)
        return value.numpy(), tape.gradient(total, x).numpy()

    value, gradient = value_and_gradient(y_pred)
    # At a corner, any slope between the slopes of both sides is right.
    step = 1e-9 * draw.rng.standard_normal(dims)
    sides = [value_and_gradient(y_pred + sign * step)[1] for sign in (-1, 1)]
    at_corner = np.abs(sides[0] - sides[1]) > 1e-3 * np.maximum(*np.abs(sides))
    gradient = np.where(at_corner.any(-1, keepdims=True), np.nan, gradient)
    return {
        "loss": kind, "config": {**settings, "reduction": reduction},
        "y_true": array(y_true), "y_pred": array(y_pred), "sample_weight": None if weight is None else array(weight),
        "value": numbers(value), "gradient": numbers(gradient),
    }  # fmt: skip


def metric_settings(draw, kind, columns):
    thresholds = {"thresholds": draw.one(0.5, 0.25, [0.25, 0.5], [0.75, 0.0, 0.5], [1.0])}
    auc = {
        "curve": draw.one("ROC", "PR"), "summation_method": draw.one("interpolation", "minoring", "majoring"),
        "num_thresholds": draw.one(2, 3, 5, 9, 17, 200), "from_logits": draw.chance(0.3),
        **({"thresholds": draw.one([0.5], [0.25, 0.5, 0.75], [0.625, 0.125], [0.0, 0.5, 1.0])} if draw.chance(0.4) else {}),
    }  # fmt: skip
    return {
        "BinaryAccuracy": {"threshold": draw.one(*THRESHOLDS)},
        "TopKCategoricalAccuracy": {"k": draw.one(1, 2, 3, 5, 9)},
        "SparseTopKCategoricalAccuracy": {"k": draw.one(1, 2, 3, 5, 9)},
        "AUC": auc,
        "Precision": thresholds, "Recall": thresholds, "TruePositives": thresholds, "FalsePositives": thresholds,
        "TrueNegatives": thresholds, "FalseNegatives": thresholds,
        "F1Score": {"average": draw.one(None, "micro", "macro", "weighted"), "threshold": draw.one(None, 0.5, 0.25)},
        "MeanIoU": {"num_classes": columns, "ignore_class": draw.one(None, 0, 1, -1, 255)},
        "R2Score": {"class_aggregation": draw.one("uniform_average", "variance_weighted_average")},
    }.get(kind, loss_settings(draw, kind))  # fmt: skip


METRICS = [
    "Accuracy", "BinaryAccuracy", "CategoricalAccuracy", "SparseCategoricalAccuracy", "TopKCategoricalAccuracy",
    "SparseTopKCategoricalAccuracy", "AUC", "AUC", "AUC", "Precision", "Recall", "TruePositives", "FalsePositives", "TrueNegatives",
    "FalseNegatives", "F1Score", "F1Score", "MeanIoU", "MeanIoU", "RootMeanSquaredError", "R2Score", "Mean",
    "SparseCategoricalCrossentropy", "CategoricalCrossentropy", "BinaryCrossentropy", "MeanSquaredError", "MeanAbsoluteError",
    "KLDivergence", "MeanAbsolutePercentageError", "MeanSquaredLogarithmicError", "LogCoshError", "Poisson", "CosineSimilarity",
    "Hinge", "SquaredHinge", "CategoricalHinge",
]  # fmt: skip
YES_OR_NO = {"BinaryAccuracy", "AUC", "Precision", "Recall", "TruePositives", "FalsePositives", "TrueNegatives", "FalseNegatives"}


def update(draw, kind, dims, settings):
    """Targets, predictions and the dims of weights of a batch."""
    if kind in YES_OR_NO:
        scores = draw.logits if settings.get("from_logits") else draw.probabilities
        return draw.answers(dims), scores(dims), dims[:-1]
    if kind == "F1Score":
        y_true = draw.rows(dims) if draw.chance(0.5) else draw.answers(dims)
        return y_true, draw.probabilities(dims), dims[:-1]
    if kind.startswith("SparseTop") or kind == "SparseCategoricalAccuracy":
        y_true = draw.classes(dims)
        if draw.chance(0.2):
            y_true = draw.rng.integers(-1, dims[-1] + 1, dims[:-1])
        return (y_true[..., None] if draw.chance(0.3) else y_true), draw.logits(dims), dims[:-1]
    if kind in ("TopKCategoricalAccuracy", "CategoricalAccuracy"):
        return draw.rows(dims), draw.logits(dims), dims[:-1]
    if kind == "MeanIoU":
        y_true = draw.classes(dims)
        if draw.chance(0.4):
            y_true = draw.rng.choice([-1, 0, 1, 2, 255], dims[:-1])
        return y_true, draw.logits(dims), dims[:-1]
    y_true, y_pred = vectors(draw, kind, dims, settings)
    if kind == "Accuracy":
        y_true, y_pred = np.round(y_true), np.round(y_pred)
    return y_true, y_pred, dims[:-1]


def linked(draw, kind, settings):
    """The loss whose logits the metric takes as probabilities, if it is so."""
    thresholds = settings.get("thresholds") or settings.get("threshold") or 0.0
    inside = all(0 < t < 1 for t in (thresholds if isinstance(thresholds, list) else [thresholds]))
    takes = settings.get("from_logits") is False or kind == "KLDivergence" or inside and kind != "AUC"
    return draw.one("binary", "categorical", None) if takes else None


def metric(draw, kind):
    columns = draw.one(1, 1, 2, 3, 5)
    settings = metric_settings(draw, kind, columns)
    flat = kind in ("F1Score", "R2Score")
    more = draw.dims(columns, (2,) if flat else (2, 2, 3, 4))
    given = {"sparse_y_pred": False} if kind == "MeanIoU" else {}
    state = getattr(keras.metrics, kind)(**settings, **given)
    link = linked(draw, kind, settings)
    batch, updates = int(draw.rng.integers(1, 6)), []
    is_vector = columns == 1 and len(more) == 1 and (kind in YES_OR_NO or kind in ("Mean", "Accuracy")) and draw.chance(0.4)
    for i in range(int(draw.rng.integers(1, 4))):
        dims = (batch if i < 2 else int(draw.rng.integers(1, batch + 1)), *more)
        y_true, y_pred, of_weight = update(draw, kind, dims, settings)
        y_true = typed(draw, y_true)
        given_pred = y_pred
        if link:
            given_pred = draw.logits(dims)
            y_pred = (keras.ops.sigmoid if link == "binary" else keras.ops.softmax)(tf.convert_to_tensor(given_pred)).numpy()
        elif dims[-1] == 1 and kind in ("Accuracy", "RootMeanSquaredError", "MeanSquaredError", "MeanAbsoluteError") and len(dims) == 2 and draw.chance(0.3):
            y_true = y_true[..., 0]
        elif dims[-1] == 1 and kind in YES_OR_NO and draw.chance(0.3):
            y_true = y_true[..., 0]
            of_weight = dims[:-1]
        if is_vector and not link:
            y_true, y_pred = y_true.reshape(-1), y_pred.reshape(-1)
            given_pred = y_pred
        weight = draw.weight(of_weight if kind == "MeanIoU" else weight_dims(draw, of_weight)) if draw.chance(0.5) else None
        if kind == "MeanIoU" and weight is not None:
            weight = np.ceil(weight)
        arguments = (y_pred,) if kind == "Mean" else (y_true, y_pred)
        state.update_state(*(tf.convert_to_tensor(x, tf.float32 if 'TopK' in kind and x is y_pred else None) for x in arguments), sample_weight=weight)
        updates.append({
            "y_true": array(y_true), "y_pred": array(given_pred), "sample_weight": None if weight is None else array(weight),
            "result": numbers(keras.ops.convert_to_numpy(state.result())),
        })  # fmt: skip
    is_plain = kind in ("CategoricalAccuracy", "SparseCategoricalAccuracy") and columns > 1 or settings == {"threshold": 0.5} and columns == 1
    return {"metric": kind, "config": settings, "updates": updates, "link": link, "plain": bool(is_plain)}


def array(values):
    return {"shape": list(values.shape), "dtype": "i32" if values.dtype.kind == "i" else "f32", "data": values.reshape(-1).tolist()}


def numbers(values):
    return [x if math.isfinite(x) else None for x in np.asarray(values, np.float64).reshape(-1).tolist()]


def main():
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    kinds = [(loss, kind) for kind in LOSSES] + [(metric, kind) for kind in METRICS]
    for number in range(count):
        case, kind = kinds[number % len(kinds)]
        try:
            record = case(Draw([seed, number]), kind)
        except Exception as error:
            print(kind, type(error).__name__, str(error)[:300], file=sys.stderr)
            continue
        print(json.dumps({"name": f"{kind} {seed}/{number}", **record}))


if __name__ == "__main__":
    main()
