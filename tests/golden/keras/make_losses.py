"""losses.json: loss values and the gradient of their sum with respect to y_pred."""

from golden import array, keras, np, tf, write

REDUCTIONS = ["sum_over_batch_size", "sum", "none"]


def softmax(x):
    """Softmax over the last dimension."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return without_denormals(e / e.sum(-1, keepdims=True))


def sigmoid(x):
    """The logistic function."""
    return without_denormals(1 / (1 + np.exp(-np.asarray(x, np.float64))))


def without_denormals(p):
    """Zero for what f32 could only hold as a denormal, which XLA may flush."""
    return np.where(p < 1e-30, 0, p)


class Case:
    """One (y_true, y_pred) pair and the sample weights that fit it."""

    def __init__(self, name, y_true, y_pred, weights):
        self.name = name
        self.y_true = np.asarray(y_true)
        self.y_pred = np.asarray(y_pred, np.float32)
        self.weights = [None if w is None else np.asarray(w, np.float32) for w in weights]


WEIGHTS_2 = [None, [0.5, 2.0, 0.0, 1.25]]
# Keras does not stretch a weight of shape [2] over losses of shape [2, 3]: it must be given as [2, 1].
WEIGHTS_3 = [None, [[0.5], [2.0]], [[0.5, 0.0, 1.5], [2.0, 1.0, 0.25]]]


def class_cases(from_logits):
    """Integer classes: predictions [4, 3] and [2, 3, 4], and extreme ones."""
    rng = np.random.default_rng(30)
    shape = (lambda x: x) if from_logits else softmax
    yield Case("rank2", [0, 2, 1, 1], shape(rng.standard_normal((4, 3)) * 2), WEIGHTS_2)
    yield Case("rank3", [[0, 3, 1], [2, 2, 0]], shape(rng.standard_normal((2, 3, 4)) * 2), WEIGHTS_3)
    extreme = [[100.0, -100.0, 0.0], [-100.0, 100.0, 0.5], [0.0, 100.0, 99.0], [-100.0, -100.0, -100.0]]
    yield Case("extreme", [0, 2, 1, 1], shape(np.array(extreme)), [None])
    if not from_logits:
        unnormalised = [[0.2, 0.4, 0.9], [2.0, 0.5, 0.5], [0.0, 1.0, 0.0], [0.1, 0.1, 0.1]]
        yield Case("unnormalised", [0, 2, 1, 1], unnormalised, [None])


def one_hot(case):
    """The case with its classes as one-hot rows."""
    rows = np.eye(case.y_pred.shape[-1], dtype=np.float32)[case.y_true]
    return Case(case.name, rows, case.y_pred, case.weights)


def soft(case):
    """The case with its classes as soft rows that sum to one."""
    rng = np.random.default_rng(31)
    return Case("soft", softmax(rng.standard_normal(case.y_pred.shape)).astype(np.float32), case.y_pred, case.weights)


def binary_cases(from_logits):
    """Predictions [4, 2], [4, 1] and [2, 3, 2] of independent yes or no."""
    rng = np.random.default_rng(32)
    shape = (lambda x: x) if from_logits else sigmoid

    def labels(*dims):
        return rng.integers(0, 2, dims).astype(np.float32)

    yield Case("rank2", labels(4, 2), shape(rng.standard_normal((4, 2)) * 2), WEIGHTS_2)
    yield Case("one_column", labels(4, 1), shape(rng.standard_normal((4, 1)) * 2), WEIGHTS_2)
    yield Case("rank3", labels(2, 3, 2), shape(rng.standard_normal((2, 3, 2)) * 2), WEIGHTS_3)
    extreme = [[100.0, -100.0], [-100.0, 100.0], [0.0, 30.0], [-30.0, 1.0]]
    yield Case("extreme", [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 1.0]], shape(extreme), [None])


def regression_cases():
    """Targets and predictions of any sign."""
    rng = np.random.default_rng(33)
    yield Case("rank2", rng.standard_normal((4, 3)).astype(np.float32), rng.standard_normal((4, 3)), WEIGHTS_2)
    yield Case("one_column", rng.standard_normal((4, 1)).astype(np.float32), rng.standard_normal((4, 1)), WEIGHTS_2)
    yield Case("rank3", rng.standard_normal((2, 3, 4)).astype(np.float32), rng.standard_normal((2, 3, 4)) * 2, WEIGHTS_3)


def away_from(values, limit):
    """Numbers of the same signs, none nearer to 0 than the limit."""
    return np.where(values < 0, -1, 1) * np.maximum(np.abs(values), limit)


def percentage_cases():
    """Targets that are not near 0: what is divided by them would have no digit in common."""
    for case in regression_cases():
        yield Case(case.name, away_from(case.y_true, 0.25).astype(np.float32), case.y_pred, case.weights)


def count_cases():
    """Counts, and rates above 0."""
    rng = np.random.default_rng(35)
    for name, dims, weights in (("rank2", (4, 3), WEIGHTS_2), ("one_column", (4, 1), WEIGHTS_2), ("rank3", (2, 3, 4), WEIGHTS_3)):
        yield Case(name, rng.poisson(2.0, dims).astype(np.float32), rng.uniform(0.2, 4.0, dims), weights)


def error_cases():
    """Errors near 0 and far from it."""
    yield from regression_cases()
    far = [[100.0, -100.0, 0.0], [1e-3, -1e-3, 50.0]]
    yield Case("extreme", np.zeros((2, 3), np.float32), far, [None])


def vector_cases():
    """Vectors, one of them 0."""
    yield from regression_cases()
    yield Case("zeros", [[0.0, 0.0], [1.0, 2.0]], [[1.0, 2.0], [0.5, -1.0]], [None])


def hinge_cases():
    """Answers 0 and 1, and -1 and 1."""
    for case in binary_cases(from_logits=True):
        if case.name != "extreme":
            yield case
            yield Case(f"{case.name}_signs", 2 * case.y_true - 1, case.y_pred, case.weights)


def divergence_cases():
    """Distributions, and rows with zeros."""
    rng = np.random.default_rng(34)

    def rows(*dims):
        return softmax(rng.standard_normal(dims)).astype(np.float32)

    yield Case("rank2", rows(4, 3), rows(4, 3), WEIGHTS_2)
    yield Case("rank3", rows(2, 3, 4), rows(2, 3, 4), WEIGHTS_3)
    zeros = np.array([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]], np.float32)
    yield Case("zeros", zeros, [[0.2, 0.8, 0.0], [0.0, 0.4, 0.6]], [None])


def specs():
    """(loss, constructor arguments, case)."""
    for from_logits in (True, False):
        cases = list(class_cases(from_logits))
        for case in cases:
            yield "SparseCategoricalCrossentropy", {"from_logits": from_logits}, case
        for smoothing in (0.0, 0.1):
            config = {"from_logits": from_logits, "label_smoothing": smoothing}
            for case in [*(one_hot(c) for c in cases), soft(cases[0])]:
                yield "CategoricalCrossentropy", config, case
            for case in binary_cases(from_logits):
                yield "BinaryCrossentropy", config, case
    for case in regression_cases():
        yield "MeanSquaredError", {}, case
        yield "MeanAbsoluteError", {}, case
        yield "Huber", {}, case
        yield "Huber", {"delta": 0.5}, case
    for case in divergence_cases():
        yield "KLDivergence", {}, case
    for case in percentage_cases():
        yield "MeanAbsolutePercentageError", {}, case
    for case in count_cases():
        yield "MeanSquaredLogarithmicError", {}, case
        yield "Poisson", {}, case
    for case in error_cases():
        yield "LogCosh", {}, case
    for case in vector_cases():
        yield "CosineSimilarity", {}, case
    for case in hinge_cases():
        yield "Hinge", {}, case
        yield "SquaredHinge", {}, case
    for case in class_cases(from_logits=True):
        # The extreme ones lie on the corner, where any slope of both sides is right.
        if case.name != "extreme":
            yield "CategoricalHinge", {}, one_hot(case)
    yield from focal_specs()
    yield from overlap_specs()
    for case in label_cases():
        yield "CTC", {}, case
    for from_logits in (True, False):
        for case in left_out_cases(from_logits):
            yield "SparseCategoricalCrossentropy", {"from_logits": from_logits, "ignore_class": case.left_out}, case
    for case in class_cases(False):
        for q in (0.5, 0.2):
            # Where a probability is 0 Keras' derivative is infinite.
            if case.name != "extreme":
                yield "CategoricalGeneralizedCrossEntropy", {"q": q}, case
    for case in circle_cases():
        for config in ({}, {"gamma": 2.0, "margin": 0.25}, {"gamma": 2.0, "remove_diagonal": False}):
            yield "Circle", config, case


def circle_cases():
    """Vectors of length 1 of several classes. Of an example that is alone in its class Keras' derivative is none; what weighs nothing is not compared here."""
    rng = np.random.default_rng(37)
    weights = [None, [0.5, 2.0, 1.0, 1.25, 3.0, 0.75, 0.25]]
    for name, labels in (("vectors", [0, 2, 0, 2, 2, 0, 2]), ("columns", [[3], [3], [-1], [-1], [-1], [3], [3]])):
        x = rng.standard_normal((7, 3))
        yield Case(name, labels, x / np.linalg.norm(x, axis=-1, keepdims=True), weights)


def left_out_cases(from_logits):
    """Classes some of which are left out: one of the model's, and others."""
    for case, left_out in zip(class_cases(from_logits), (1, 3, -1)):
        if case.name == "extreme":
            case.y_true = np.array([0, -1, 1, -1])
        case.left_out = left_out
        yield case


def focal_specs():
    """The focal losses, without logits whose probabilities Keras clips."""
    for from_logits in (True, False):
        for config in ({}, {"gamma": 1.5, "label_smoothing": 0.1}, {"apply_class_balancing": True, "alpha": 0.3, "gamma": 0.0}):
            for case in binary_cases(from_logits):
                if case.name != "extreme":
                    yield "BinaryFocalCrossentropy", {"from_logits": from_logits, **config}, case
        for config in ({}, {"gamma": 1.5, "alpha": 0.6, "label_smoothing": 0.1}):
            for case in class_cases(from_logits):
                if case.name != "extreme":
                    yield "CategoricalFocalCrossentropy", {"from_logits": from_logits, **config}, one_hot(case)
    wrong = Case("wrong", [[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.25, 0.0]], [None])
    for gamma in (1.0, 1.5, 2.0, 3.0):
        yield "BinaryFocalCrossentropy", {"gamma": gamma}, wrong


def region_cases():
    """Regions of images and of sequences, with the dims that Keras is to sum over: all but the batch, and fewer."""
    rng = np.random.default_rng(36)

    def regions(*dims):
        return rng.integers(0, 2, dims).astype(np.float32), sigmoid(rng.standard_normal(dims) * 2)

    yield Case("image", *regions(4, 3, 2, 2), WEIGHTS_2), [1, 2, 3]
    yield Case("channels", *regions(2, 3, 2, 3), WEIGHTS_3), [1, 2]
    yield Case("steps", *regions(2, 3, 4), WEIGHTS_3), [2]
    yield Case("row", *regions(4, 3), WEIGHTS_2), [1]
    y_true, y_pred = regions(4, 3, 2)
    yield Case("without_channel", y_true, y_pred[..., None], WEIGHTS_2), [1, 2]
    empty = np.zeros((3, 2, 2), np.float32)
    y_pred = empty.copy()
    y_pred[1], empty[2] = 0.5, 1.0
    yield Case("empty", empty, y_pred, [None]), [1, 2]
    soft = rng.uniform(0, 1, (2, 2, 3))
    yield Case("soft", soft.astype(np.float32), rng.uniform(0, 1, (2, 2, 3)), [None]), [1, 2]


def overlap_specs():
    """Losses of regions."""
    for case, axis in region_cases():
        yield "Dice", {"axis": axis}, case
        yield "Tversky", {"axis": axis}, case
        yield "Tversky", {"axis": axis, "alpha": 0.3, "beta": 1.2}, case


def label_cases():
    """Labels that fit into the steps: Keras' answer to others is none."""
    rng = np.random.default_rng(37)
    labels = [[1, 2, 3], [2, 2, 0], [3, 0, 0], [0, 0, 0]]
    yield Case("labels", labels, rng.standard_normal((4, 5, 4)) * 2, WEIGHTS_2)
    yield Case("floats", np.array(labels, np.float32), rng.standard_normal((4, 6, 4)), [None])
    yield Case("tight", [[1, 1, 2], [2, 1, 2]], rng.standard_normal((2, 4, 3)), [None])
    yield Case("one_step", [[1], [0]], rng.standard_normal((2, 1, 2)), [None])
    yield Case("long", rng.integers(1, 6, (3, 8)), rng.standard_normal((3, 40, 6)) * 3, [None])
    large = rng.standard_normal((2, 4, 3))
    large[0, 1, 2], large[1, 2, 0] = -1e4, 100.0
    yield Case("large", [[1, 2], [2, 0]], large, [None])


def record(loss, config, case, weight_index, reduction):
    """What Keras answers for one loss, case, weight and reduction."""
    function = getattr(keras.losses, loss)(**config, reduction=reduction)
    weight = case.weights[weight_index]
    y_pred = tf.convert_to_tensor(case.y_pred)
    with tf.GradientTape() as tape:
        tape.watch(y_pred)
        value = function(case.y_true, y_pred, sample_weight=weight)
        total = tf.reduce_sum(value)
    arguments = "".join(f"_{k}={v}" for k, v in config.items()).replace(" ", "")
    weights = "" if weight is None else f"_weight{list(weight.shape)}".replace(" ", "")
    return {
        "name": f"{loss}{arguments}_{case.name}_{reduction}{weights}",
        "loss": loss,
        "config": {**config, "reduction": reduction},
        "y_true": array(case.y_true),
        "y_pred": array(case.y_pred),
        "sample_weight": None if weight is None else array(weight),
        "value": array(value.numpy()),
        "gradient": array(tape.gradient(total, y_pred).numpy()),
    }


def records():
    """Every combination."""
    for loss, config, case in specs():
        for index, weight in enumerate(case.weights):
            extra = [] if weight is None else ["mean_with_sample_weight"]
            for reduction in REDUCTIONS + extra:
                yield record(loss, config, case, index, reduction)


if __name__ == "__main__":
    write("losses", list(records()))
