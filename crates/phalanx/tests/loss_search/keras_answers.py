"""Random losses and metrics with what Keras in f64 answers, a line of JSON each: `keras_answers.py SEED FIRST COUNT`.

All numbers given are f32, many of them on an edge: equal scores, probabilities of 0 and 1 or at a threshold, large logits, one class
alone, weights of 0. A number of the answer that cannot be compared is null.
"""

import json
import math
import os
import re
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
LOSSES = """
    SparseCategoricalCrossentropy CategoricalCrossentropy BinaryCrossentropy MeanSquaredError MeanAbsoluteError Huber KLDivergence
    MeanAbsolutePercentageError MeanSquaredLogarithmicError LogCosh Poisson CosineSimilarity Hinge SquaredHinge CategoricalHinge
    BinaryFocalCrossentropy CategoricalFocalCrossentropy Dice Tversky
""".split()
REGIONS = ["Dice", "Tversky"]
COUNTS = ["TruePositives", "FalsePositives", "TrueNegatives", "FalseNegatives"]
POINTS = {
    "PrecisionAtRecall": "recall",
    "RecallAtPrecision": "precision",
    "SensitivityAtSpecificity": "specificity",
    "SpecificityAtSensitivity": "sensitivity",
}
YES_OR_NO = ["BinaryAccuracy", "AUC", "Precision", "Recall", *COUNTS, *POINTS]
F_SCORES = ["F1Score", "FBetaScore"]
# Of scores of classes.
OVERLAPS = ["MeanIoU", "IoU"]
CORRELATIONS = ["PearsonCorrelation", "ConcordanceCorrelation"]
METRICS = [
    *YES_OR_NO,
    *"CategoricalAccuracy SparseCategoricalAccuracy TopKCategoricalAccuracy SparseTopKCategoricalAccuracy Accuracy".split(),
    *"AUC AUC F1Score F1Score FBetaScore MeanIoU IoU BinaryIoU RootMeanSquaredError R2Score Mean Sum LogCoshError".split(),
    *CORRELATIONS,
    *(loss for loss in LOSSES if loss not in ("Huber", "LogCosh", *REGIONS) and "Focal" not in loss),
]
# Where the name is not the class's with underscores.
NAMES = {"AUC": "auc", "Accuracy": "equality", "KLDivergence": "kl_divergence", "LogCoshError": "log_cosh", "MeanIoU": "mean_io_u"}
NAMES |= {"IoU": "mean_io_u", "BinaryIoU": "binary_io_u", "FBetaScore": "fbeta_score"}
# Those that take targets without a last dim of 1; others of Keras then compare each example with every other.
SQUEEZED = ["Accuracy", "MeanAbsoluteError", "MeanSquaredError", "RootMeanSquaredError", *YES_OR_NO]


def f32(values):
    """The nearest numbers of f32, without -0, of which Keras thinks that it is below 0."""
    return np.asarray(values, np.float32).astype(np.float64) + 0.0


class Draw:
    """Random settings and numbers."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def one(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def chance(self, share):
        return self.rng.random() < share

    def some(self, share, rare, often):
        """Some of the numbers, or none, replaced by rare ones."""
        is_rare = self.rng.random(often.shape) < self.one(0.0, 0.0, share)
        return f32(np.where(is_rare, self.rng.choice(rare, often.shape), often))

    def dims(self, columns, flat=False):
        """Dims of predictions, of rank 2 to 4."""
        between = 0 if flat else self.one(0, 0, 1, 2)
        return (int(self.rng.integers(1, 6)), *(int(n) for n in self.rng.integers(1, 4, between)), columns)

    def numbers(self, dims):
        x = self.rng.standard_normal(dims) * self.one(0.1, 1.0, 20.0)
        return f32(np.round(x) if self.chance(0.3) else x)

    def logits(self, dims):
        x = self.rng.standard_normal(dims) * self.one(1.0, 3.0)
        return self.some(0.3, [-100.0, 100.0, 0.0, 30.0], np.round(x) if self.chance(0.2) else x)

    def probabilities(self, dims):
        p = self.rng.choice(THRESHOLDS, dims) if self.chance(0.25) else self.rng.random(dims)
        return self.some(0.3, [0.0, 1.0, 0.5, 1e-8, 1e-6], p)

    def distributions(self, dims):
        """Of classes; some do not add up to 1."""
        p = self.one(self.rng.random(dims) + 0.01, self.rng.choice([0.001, 0.25, 0.5, 1.0], dims), self.one_hot(dims))
        return f32(p if self.chance(0.2) else p / p.sum(-1, keepdims=True))

    def answers(self, dims):
        """Yes or no, or between."""
        values = self.one([0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0], [1.0], [0.0, 0.25, 0.5, 1.0])
        return self.rng.choice(values, dims)

    def classes(self, dims):
        """Numbers of classes, one for each row."""
        if self.chance(0.15):
            return np.full(dims[:-1], self.rng.integers(dims[-1]))
        return self.rng.integers(0, dims[-1], dims[:-1])

    def one_hot(self, dims):
        return np.eye(dims[-1])[self.classes(dims)]

    def rows(self, dims):
        """One-hot rows, or soft ones that add up to 1 exactly: TensorFlow takes it for given in gradients."""
        if self.chance(0.2):
            return self.rng.multinomial(16, np.full(dims[-1], 1 / dims[-1]), dims[:-1]) / 16
        return self.one_hot(dims)

    def column(self, labels, columns):
        """Labels, which Keras also takes with a last dim of 1, and must so where predictions have one."""
        return labels[..., None] if columns == 1 or self.chance(0.3) else labels

    def typed(self, values):
        """In a type that holds them."""
        is_whole = np.all(values == np.round(values)) and self.chance(0.5)
        return values.astype(np.int32 if is_whole else np.float64)

    def weight(self, dims):
        """Weights of values of these dims, as many as Keras takes; or none."""
        dims = self.one(dims, dims[:1] + (1,) * (len(dims) - 1))
        return self.one(None, None, self.rng.choice([0.0, 0.5, 1.0, 1.25, 3.0], dims), np.ones(dims), np.zeros(dims))


def loss_settings(draw, kind):
    logits = {"from_logits": draw.chance(0.5)}
    smoothing = {**logits, "label_smoothing": draw.one(0.0, 0.0, 0.1, 0.5, 1.0)}
    focal = {**smoothing, "gamma": draw.one(0.0, 0.5, 1.0, 1.5, 2.0, 3.0), "alpha": draw.one(0.25, 0.0, 1.0, 0.7)}
    settings = {
        "SparseCategoricalCrossentropy": logits,
        "CategoricalCrossentropy": smoothing,
        "BinaryCrossentropy": smoothing,
        "BinaryFocalCrossentropy": {**focal, "apply_class_balancing": draw.chance(0.5)},
        "CategoricalFocalCrossentropy": focal,
        "Huber": {"delta": draw.one(0.25, 0.5, 1.0, 2.5)},
        "Tversky": {"alpha": draw.one(0.0, 0.5, 0.3, 2.0), "beta": draw.one(0.0, 0.5, 0.7)},
    }
    return settings.get(kind, {})


def axis_settings(draw, kind, rank):
    """The dims that a loss of regions sums over, which Keras must be given."""
    axes = [axis for axis in range(1, rank) if draw.chance(0.6)] or list(range(1, rank))
    return {"axis": axes} if kind in REGIONS else {}


def metric_settings(draw, kind, columns):
    if kind == "AUC":
        thresholds = draw.one(None, None, [0.5], [0.25, 0.5, 0.75], [0.625, 0.125], [0.0, 0.5, 1.0])
        weights = draw.one(None, None, draw.rng.choice([0.0, 0.5, 1.0, 2.0], columns).tolist())
        return {
            "multi_label": draw.chance(0.3),
            **({"label_weights": weights} if weights else {}),
            "curve": draw.one("ROC", "PR", "PRGAIN"),
            "summation_method": draw.one("interpolation", "minoring", "majoring"),
            "num_thresholds": draw.one(2, 3, 5, 9, 17, 200),
            "from_logits": draw.chance(0.3),
            **({"thresholds": thresholds} if thresholds else {}),
        }
    if kind in POINTS:
        bound = {POINTS[kind]: draw.one(0.0, 0.25, 0.5, 0.625, 0.75, 1.0)}
        class_id = draw.one(None, int(draw.rng.integers(columns)) if columns > 1 else None)
        return {**bound, "num_thresholds": draw.one(1, 2, 3, 5, 9, 200), "class_id": class_id}
    if kind in ("Precision", "Recall") and columns > 1 and draw.chance(0.5):
        return {
            "thresholds": draw.one(None, 0.5, 0.25, [0.25, 0.5]),
            "top_k": draw.one(None, int(draw.rng.integers(1, columns + 1))),
            "class_id": draw.one(None, int(draw.rng.integers(columns))),
        }
    if kind in ("Precision", "Recall", *COUNTS):
        return {"thresholds": draw.one(0.5, 0.25, [0.25, 0.5], [0.75, 0.0, 0.5], [1.0])}
    settings = {
        "BinaryAccuracy": {"threshold": draw.one(*THRESHOLDS)},
        "TopKCategoricalAccuracy": {"k": draw.one(1, 2, 3, 5, 9)},
        "SparseTopKCategoricalAccuracy": {"k": draw.one(1, 2, 3, 5, 9)},
        "F1Score": {"average": draw.one(None, "micro", "macro", "weighted"), "threshold": draw.one(None, 0.5, 0.25)},
        "FBetaScore": {"beta": draw.one(0.5, 1.0, 2.0), "average": draw.one(None, "micro", "macro", "weighted"), "threshold": draw.one(None, 0.5, 0.25)},
        "IoU": {"num_classes": columns, "target_class_ids": draw.rng.permutation(columns)[: draw.rng.integers(1, columns + 1)].tolist()},
        "BinaryIoU": {"threshold": draw.one(0.25, 0.5, 0.0), "target_class_ids": draw.one([0, 1], [0], [1])},
        "MeanIoU": {"num_classes": columns, "ignore_class": draw.one(None, 0, 1, -1, 255)},
        "R2Score": {"class_aggregation": draw.one("uniform_average", "variance_weighted_average")},
    }
    return settings.get(kind, loss_settings(draw, kind))


def scores(draw, kind, dims, settings):
    """Predictions that the loss or the metric is for."""
    if settings.get("from_logits") or kind in OVERLAPS or kind.endswith("CategoricalAccuracy"):
        logits = draw.logits(dims)
        # Of others Keras clips the probabilities.
        return np.clip(logits, -5, 5) if kind == "CategoricalFocalCrossentropy" else logits
    if kind in (*YES_OR_NO, *REGIONS, "BinaryCrossentropy", "BinaryFocalCrossentropy", "BinaryIoU", *F_SCORES):
        return draw.probabilities(dims)
    if "Crossentropy" in kind or kind == "KLDivergence":
        return draw.distributions(dims)
    if kind == "Poisson":
        return f32(draw.rng.choice([0.0, 0.5, 1.0, 3.0, 40.0], dims))
    return draw.numbers(dims)


def targets(draw, kind, y_pred):
    """Targets of such predictions."""
    dims = y_pred.shape
    if kind in OVERLAPS and draw.chance(0.4):
        return draw.rng.choice([-1, 0, 1, 2, 255], dims[:-1])
    if kind.startswith("Sparse") or kind in OVERLAPS:
        is_outside = kind.endswith("Accuracy") and draw.chance(0.2)
        labels = draw.rng.integers(-1, dims[-1] + 1, dims[:-1]) if is_outside else draw.classes(dims)
        return labels if kind in OVERLAPS else draw.column(labels, dims[-1])
    if "Categorical" in kind or kind == "KLDivergence" or kind in F_SCORES and draw.chance(0.5):
        return draw.rows(dims)
    if kind in (*YES_OR_NO, *REGIONS, "BinaryCrossentropy", "BinaryFocalCrossentropy", "BinaryIoU", *F_SCORES):
        return draw.answers(dims)
    if kind in ("Hinge", "SquaredHinge"):
        return draw.rng.choice(draw.one([0.0, 1.0], [-1.0, 1.0]), dims)
    if kind == "Poisson":
        return draw.rng.poisson(2.0, dims).astype(float)
    numbers = draw.numbers(dims)
    return draw.one(numbers, numbers, numbers, np.round(y_pred), y_pred, np.zeros(dims))


def loss(draw, kind):
    """A loss, and its gradient with respect to the predictions."""
    settings = loss_settings(draw, kind)
    y_pred = scores(draw, kind, draw.dims(draw.one(1, 2, 3, 5)), settings)
    settings.update(axis_settings(draw, kind, y_pred.ndim))
    y_true, dims = draw.typed(targets(draw, kind, y_pred)), y_pred.shape[:-1]
    if "axis" in settings:
        dims = tuple(size for dim, size in enumerate(y_pred.shape) if dim not in settings["axis"])
    elif y_pred.shape[-1] == 1 and "Categorical" not in kind and draw.chance(0.5):
        y_true = y_true[..., 0]
        dims = dims[:-1] or dims
    weight = draw.weight(dims)
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
    # At a corner any slope between those of its sides is right.
    step = 1e-9 * draw.rng.standard_normal(y_pred.shape)
    sides = [value_and_gradient(y_pred + sign * step)[1] for sign in (-1, 1)]
    differs = np.abs(sides[0] - sides[1]) > 1e-3 * np.maximum(*np.abs(sides))
    gradient = np.where(differs.any(-1, keepdims=True), np.nan, gradient)
    given = {"y_true": array(y_true), "y_pred": array(y_pred), "sample_weight": array(weight)}
    return {"config": settings, "reduction": reduction, **given, "value": numbers(value), "gradient": numbers(gradient)}


def link(draw, kind, settings):
    """The layer that makes probabilities of logits for the metric, or none."""
    thresholds = np.ravel(settings.get("thresholds") or settings.get("threshold") or 0.0)
    is_inside = kind != "AUC" and np.all((thresholds > 0) & (thresholds < 1))
    is_possible = is_inside or settings.get("from_logits") is False or kind == "KLDivergence"
    return draw.one("sigmoid", "softmax", None) if is_possible else None


def metric(draw, kind):
    """A metric after each of some batches, the last of which may be smaller."""
    # Of one column Keras finds the largest, too: always the first class.
    columns = draw.one(2, 3, 5) if kind in (*OVERLAPS, *CORRELATIONS) else draw.one(1, 1, 2, 3, 5)
    settings = metric_settings(draw, kind, columns)
    state = getattr(keras.metrics, kind)(**settings, **({"sparse_y_pred": False} if kind in OVERLAPS else {}))
    labels = settings.get("multi_label") or settings.get("label_weights")
    dims, layer = draw.dims(columns, flat=labels or kind in (*F_SCORES, "R2Score")), link(draw, kind, settings)
    is_squeezed = not labels and columns == 1 and kind in SQUEEZED and (len(dims) == 2 or kind in YES_OR_NO) and draw.chance(0.3)
    updates = []
    for number in range(int(draw.rng.integers(1, 4))):
        batch = dims[0] if number < 2 else int(draw.rng.integers(1, dims[0] + 1))
        given = draw.logits((batch, *dims[1:])) if layer else scores(draw, kind, (batch, *dims[1:]), settings)
        y_pred = getattr(keras.ops, layer)(tf.convert_to_tensor(given)).numpy() if layer else given
        y_true = draw.typed(targets(draw, kind, f32(y_pred)))
        y_true = y_true[..., 0] if is_squeezed else y_true
        weight = draw.weight(y_pred.shape[:-1])
        if kind in (*OVERLAPS, "BinaryIoU") and weight is not None:
            # Keras truncates others.
            weight = np.ceil(np.broadcast_to(weight, y_pred.shape[:-1]))
        if kind == "BinaryIoU" and weight is not None:
            weight = np.broadcast_to(weight[..., None], y_pred.shape)
        # TensorFlow finds the largest of f32 alone.
        y_pred = tf.convert_to_tensor(y_pred, tf.float32 if "TopK" in kind else tf.float64)
        arguments = [y_pred] if kind in ("Mean", "Sum") else [tf.convert_to_tensor(y_true), y_pred]
        state.update_state(*arguments, sample_weight=weight)
        inputs = {"y_true": array(y_true), "y_pred": array(given), "sample_weight": array(weight)}
        updates.append({**inputs, "result": numbers(state.result())})
    is_plain = columns > 1 and kind.removeprefix("Sparse") == "CategoricalAccuracy"
    is_plain = layer != "softmax" and (is_plain or columns == 1 and settings == {"threshold": 0.5})
    return {"config": settings, "link": layer, "is_accuracy": is_plain, "updates": updates}


def array(values):
    if values is None:
        return None
    dtype = "i32" if values.dtype.kind == "i" else "f64"
    return {"dims": values.shape, "dtype": dtype, "values": values.reshape(-1).tolist()}


def numbers(values):
    values = keras.ops.convert_to_numpy(values).reshape(-1).tolist()
    return [x if math.isfinite(x) else None for x in values]


def main():
    seed, first, count = (int(word) for word in sys.argv[1:])
    cases = [(loss, kind) for kind in LOSSES] + [(metric, kind) for kind in METRICS]
    for number in range(first, first + count):
        case, kind = cases[number % len(cases)]
        name = NAMES.get(kind) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=K)(?=C)", "_", kind).lower()
        print(json.dumps({"case": case.__name__, "kind": name, "number": number, **case(Draw([seed, number]), kind)}))


if __name__ == "__main__":
    main()
