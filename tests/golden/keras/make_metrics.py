"""metrics.json: the result after each of several updates."""

from golden import array, keras, np, write

WEIGHT = [0.5, 2.0, 0.0, 1.25]


def update(y_true, y_pred, weight=None):
    """One update's arguments (`y_true` None: Mean, which takes values only)."""
    return (
        None if y_true is None else np.asarray(y_true),
        np.asarray(y_pred, np.float32),
        None if weight is None else np.asarray(weight, np.float32),
    )


def three(make):
    """Three batches: plain, weighted, plain."""
    return [update(*make()), update(*make(), WEIGHT), update(*make())]


def softmax(x):
    """Softmax over the last dimension."""
    e = np.exp(x)
    return e / e.sum(-1, keepdims=True)


def binary(columns, logits=False):
    """Labels 0 or 1 (both in every column) and scores, [4, columns]; scores lean towards their labels."""
    rng = np.random.default_rng(40 + columns)

    def make():
        y = rng.integers(0, 2, (4, columns)).astype(np.float32)
        y[1], y[3] = 0, 1
        score = rng.standard_normal((4, columns)) + 1.5 * (y - 0.5)
        return y, score if logits else 1 / (1 + np.exp(-score))

    return make


def classes(count, one_hot, column=False, seed=50):
    """Class labels (integers, or one-hot rows) and probabilities, [4, count]."""
    rng = np.random.default_rng(seed)

    def make():
        y = rng.integers(0, count, 4)
        p = softmax(rng.standard_normal((4, count)) + 1.0 * np.eye(count)[y])
        if one_hot:
            return np.eye(count, dtype=np.float32)[y], p
        return y.astype(np.int32).reshape((4, 1) if column else (4,)), p

    return make


def sequences(one_hot):
    """Class labels [2, 3] and probabilities [2, 3, 4]."""
    rng = np.random.default_rng(51)
    y = rng.integers(0, 4, (2, 3))
    p = softmax(rng.standard_normal((2, 3, 4)) + np.eye(4)[y])
    y = np.eye(4, dtype=np.float32)[y] if one_hot else y.astype(np.int32)
    weight = [[0.5, 0.0, 1.5], [2.0, 1.0, 0.25]]
    return [update(y, p), update(y, p, weight)]


def regression():
    """Targets and predictions [4, 3]."""
    rng = np.random.default_rng(52)
    return lambda: (rng.standard_normal((4, 3)).astype(np.float32), rng.standard_normal((4, 3)))


def averages():
    """Mean, the accuracies, top-k, squared and absolute error."""
    values = [update(None, [1.0, 2.5, -3.0]), update(None, [4.0, 1.0, 2.0, 8.0], WEIGHT), update(None, 7.0)]
    yield "mean", "Mean", {}, values
    rows = [update(None, [[1.0, 2.0], [3.0, 4.0]], [1.0, 3.0]), update(None, [[5.0, 6.0]], [[0.5, 0.25]])]
    yield "mean_rows", "Mean", {}, rows
    yield "mean_zero_weight", "Mean", {}, [update(None, [1.0, 2.0], [0.0, 0.0])]
    rng = np.random.default_rng(53)
    labels = lambda: (rng.integers(0, 3, (4, 1)).astype(np.float32), rng.integers(0, 3, (4, 1)))  # noqa: E731
    yield "accuracy", "Accuracy", {}, three(labels)
    yield "binary_accuracy", "BinaryAccuracy", {}, three(binary(1))
    yield "binary_accuracy_columns", "BinaryAccuracy", {}, three(binary(3))
    yield "binary_accuracy_threshold", "BinaryAccuracy", {"threshold": 0.7}, three(binary(3))
    edge = [update([[1.0], [0.0], [1.0], [0.0]], [[0.5], [0.5], [0.75], [0.25]])]
    yield "binary_accuracy_at_threshold", "BinaryAccuracy", {}, edge
    yield "categorical_accuracy", "CategoricalAccuracy", {}, three(classes(3, True))
    yield "categorical_accuracy_rank3", "CategoricalAccuracy", {}, sequences(True)
    yield "sparse_categorical_accuracy", "SparseCategoricalAccuracy", {}, three(classes(3, False))
    yield "sparse_categorical_accuracy_column", "SparseCategoricalAccuracy", {}, three(classes(3, False, True))
    yield "sparse_categorical_accuracy_rank3", "SparseCategoricalAccuracy", {}, sequences(False)
    tie = np.array([0, 1, 2, 1], np.int32), [[0.4, 0.4, 0.2], [0.4, 0.4, 0.2], [0.2, 0.4, 0.4], [0.2, 0.4, 0.4]]
    yield "sparse_categorical_accuracy_ties", "SparseCategoricalAccuracy", {}, [update(*tie)]
    for k in (1, 2, 3):
        yield f"top_{k}", "TopKCategoricalAccuracy", {"k": k}, three(classes(6, True, seed=54))
        yield f"sparse_top_{k}", "SparseTopKCategoricalAccuracy", {"k": k}, three(classes(6, False, seed=54))
    yield "top_defaults", "TopKCategoricalAccuracy", {}, three(classes(12, True, seed=55))
    yield "sparse_top_defaults", "SparseTopKCategoricalAccuracy", {}, three(classes(12, False, seed=55))
    yield "sparse_top_rank3", "SparseTopKCategoricalAccuracy", {"k": 2}, sequences(False)
    yield "sparse_top_1_ties", "SparseTopKCategoricalAccuracy", {"k": 1}, [update(*tie)]
    yield "mean_squared_error", "MeanSquaredError", {}, three(regression())
    yield "mean_absolute_error", "MeanAbsoluteError", {}, three(regression())
    yield "root_mean_squared_error", "RootMeanSquaredError", {}, three(columns(regression(), 1))
    yield "cosine_similarity", "CosineSimilarity", {}, three(regression())
    yield "r2_score", "R2Score", {}, three(regression())
    yield "r2_score_column", "R2Score", {}, three(columns(regression(), 1))
    yield "r2_score_by_variance", "R2Score", {"class_aggregation": "variance_weighted_average"}, three(regression())


def whole(updates):
    """The updates with weights that are whole numbers: `MeanIoU` truncates others."""
    return [(y_true, y_pred, None if weight is None else np.ceil(weight)) for y_true, y_pred, weight in updates]


def columns(make, count):
    """The first columns of targets and predictions."""
    return lambda: tuple(values[:, :count] for values in make())


def confusion():
    """AUC, precision, recall and F1."""
    for curve in ("ROC", "PR"):
        yield f"auc_{curve}", "AUC", {"curve": curve}, three(binary(1))
        yield f"auc_{curve}_columns", "AUC", {"curve": curve}, three(binary(3))
        yield f"auc_{curve}_logits", "AUC", {"curve": curve, "from_logits": True}, three(binary(1, logits=True))
        yield f"auc_{curve}_coarse", "AUC", {"curve": curve, "num_thresholds": 5}, three(binary(3))
        for method in ("minoring", "majoring"):
            config = {"curve": curve, "summation_method": method, "num_thresholds": 5}
            yield f"auc_{curve}_{method}", "AUC", config, three(binary(3))
        exact = [update([0.0, 1.0, 0.0, 1.0, 1.0], [0.0, 0.5, 0.5, 1.0, 0.25])]
        yield f"auc_{curve}_at_thresholds", "AUC", {"curve": curve, "num_thresholds": 5}, exact
        yield f"auc_{curve}_one_class", "AUC", {"curve": curve}, [update([1.0, 1.0], [0.3, 0.6])]
        soft = [update([0.25, 0.0, 1.0, 0.0, 0.5], [0.6, 0.3, 0.9, 0.7, 0.2])]
        yield f"auc_{curve}_soft_targets", "AUC", {"curve": curve}, soft
    yield "auc_defaults", "AUC", {}, three(binary(1))
    edge = [update([[1.0], [0.0], [1.0], [0.0]], [[0.5], [0.5], [0.75], [0.25]])]
    none = [update([0.0, 0.0], [0.1, 0.2])]
    for name in ("Precision", "Recall"):
        short = name.lower()
        yield f"{short}_defaults", name, {}, three(binary(1))
        yield f"{short}_0.5", name, {"thresholds": 0.5}, three(binary(3))
        yield f"{short}_0.7", name, {"thresholds": 0.7}, three(binary(3))
        yield f"{short}_both", name, {"thresholds": [0.5, 0.7]}, three(binary(3))
        yield f"{short}_at_threshold", name, {}, edge
        yield f"{short}_nothing_positive", name, {}, none
    for name in ("TruePositives", "FalsePositives", "TrueNegatives", "FalseNegatives"):
        yield f"{name}_defaults", name, {}, three(binary(1))
        yield f"{name}_0.7", name, {"thresholds": 0.7}, three(binary(3))
        yield f"{name}_both", name, {"thresholds": [0.5, 0.7]}, three(binary(3))
    # Scores and numbers of classes: what `MeanIoU` here takes.
    for ignored in (None, 1):
        config = {"num_classes": 4, "sparse_y_pred": False, "ignore_class": ignored}
        yield f"mean_io_u_{ignored}".lower(), "MeanIoU", config, whole(three(classes(4, False, seed=57)))
        yield f"mean_io_u_{ignored}_rank3".lower(), "MeanIoU", config, whole(sequences(False))
    config = {"num_classes": 4, "sparse_y_true": False, "sparse_y_pred": False}
    yield "mean_io_u_one_hot", "MeanIoU", config, whole(three(classes(4, True, seed=57)))
    for average in (None, "micro", "macro", "weighted"):
        for threshold in (None, 0.5):
            config = {"average": average, "threshold": threshold}
            make = classes(3, True, seed=56) if threshold is None else binary(3)
            yield f"f1_{average}_{threshold}".lower(), "F1Score", config, three(make)


def classes_and_labels():
    """Classes alone, the largest scores, and an area for each label."""
    for name in ("Precision", "Recall"):
        short = name.lower()
        for top_k in (1, 2, 5):
            yield f"{short}_top_{top_k}", name, {"top_k": top_k}, three(classes(6, True, seed=58))
        yield f"{short}_top_2_above", name, {"top_k": 2, "thresholds": [0.2, 0.4]}, three(binary(3))
        yield f"{short}_class", name, {"class_id": 1}, three(binary(3))
        yield f"{short}_class_top", name, {"class_id": 2, "top_k": 2, "thresholds": 0.3}, three(binary(3))
        # Of equal scores the first are the largest.
        equal = [update([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], [[0.5, 0.5, 0.5], [0.1, 0.3, 0.3]])]
        yield f"{short}_top_equal", name, {"top_k": 2}, equal
    weights = {"multi_label": True, "label_weights": [0.5, 2.0, 0.0]}
    for curve in ("ROC", "PR"):
        for config in ({"multi_label": True}, weights, {"multi_label": True, "num_labels": 3}):
            name = f"auc_{curve}_{'_'.join(config)}".lower()
            yield name, "AUC", {"curve": curve, "num_thresholds": 17, **config}, three(binary(3))
    thresholds = {"multi_label": True, "thresholds": [0.2, 0.5, 0.6], "summation_method": "minoring"}
    yield "auc_multi_label_thresholds", "AUC", thresholds, three(binary(3))
    yield "auc_label_weights", "AUC", {"label_weights": [0.5, 2.0, 0.0], "num_thresholds": 9}, plain(binary(3))
    for method in ("interpolation", "minoring", "majoring"):
        config = {"curve": "PRGAIN", "summation_method": method, "num_thresholds": 9}
        yield f"auc_gain_{method}", "AUC", config, three(binary(3))


def plain(make):
    """Two batches without weights: Keras has label weights of `[1, labels]` beside those of `[batch, 1]`."""
    return [update(*make()), update(*make())]


def points():
    """The best of one share at a bound of another."""
    for name, bound in (
        ("PrecisionAtRecall", "recall"),
        ("RecallAtPrecision", "precision"),
        ("SensitivityAtSpecificity", "specificity"),
        ("SpecificityAtSensitivity", "sensitivity"),
    ):
        for value in (0.0, 0.4, 0.75, 1.0):
            yield f"{name}_{value}", name, {bound: value}, three(binary(3))
        yield f"{name}_coarse", name, {bound: 0.5, "num_thresholds": 5}, three(binary(3))
        yield f"{name}_one", name, {bound: 0.25, "num_thresholds": 1}, three(binary(3))
        yield f"{name}_two", name, {bound: 0.0, "num_thresholds": 2}, three(binary(1))
        yield f"{name}_class", name, {bound: 0.5, "class_id": 1}, three(binary(3))
        exact = [update([0.0, 1.0, 0.0, 1.0, 1.0], [0.0, 0.5, 0.5, 1.0, 0.25])]
        yield f"{name}_at_thresholds", name, {bound: 0.6, "num_thresholds": 5}, exact


def others():
    """F scores with a beta, regions, correlations and sums."""
    for beta in (0.5, 2.0):
        for average in (None, "micro", "weighted"):
            config = {"average": average, "beta": beta, "threshold": 0.5}
            yield f"fbeta_{average}_{beta}".lower(), "FBetaScore", config, three(binary(3))
    yield "fbeta_defaults", "FBetaScore", {}, three(classes(3, True, seed=56))
    config = {"num_classes": 4, "target_class_ids": [0, 2], "sparse_y_pred": False}
    yield "io_u", "IoU", config, whole(three(classes(4, False, seed=57)))
    yield "one_hot_io_u", "OneHotIoU", {"num_classes": 4, "target_class_ids": [3]}, whole(three(classes(4, True, seed=57)))
    yield "one_hot_mean_io_u", "OneHotMeanIoU", {"num_classes": 4, "ignore_class": 2}, whole(three(classes(4, True, seed=57)))
    for config in ({}, {"target_class_ids": [0], "threshold": 0.3}, {"target_class_ids": [1]}):
        name = "_".join(["binary_io_u", *map(str, config.values())]).replace(" ", "")
        yield name, "BinaryIoU", config, whole(three(binary(1)))
    yield "binary_io_u_columns", "BinaryIoU", {"threshold": 0.25}, plain(binary(3))
    for name in ("PearsonCorrelation", "ConcordanceCorrelation"):
        yield f"{name}_rows", name, {}, three(regression())
    rank3 = np.random.default_rng(59).standard_normal((2, 2, 3, 4))
    yield "PearsonCorrelation_rank3", "PearsonCorrelation", {}, [update(*rank3)]
    yield "sum", "Sum", {}, [update(None, [1.0, 2.5, -3.0]), update(None, [4.0, 1.0, 2.0, 8.0], WEIGHT), update(None, 7.0)]
    yield "sum_rows", "Sum", {}, [update(None, [[1.0, 2.0], [3.0, 4.0]], [1.0, 3.0])]


def record(name, metric, config, updates):
    """What Keras answers after each update."""
    state = getattr(keras.metrics, metric)(**config)
    steps = []
    for y_true, y_pred, weight in updates:
        given = (y_pred,) if y_true is None else (y_true, y_pred)
        state.update_state(*given, sample_weight=weight)
        steps.append({
            "y_true": None if y_true is None else array(y_true),
            "y_pred": array(y_pred),
            "sample_weight": None if weight is None else array(weight),
            "result": array(keras.ops.convert_to_numpy(state.result())),
        })
    return {"name": name, "metric": metric, "config": config, "updates": steps}


if __name__ == "__main__":
    write("metrics", [record(*s) for s in [*averages(), *confusion(), *classes_and_labels(), *points(), *others()]])
