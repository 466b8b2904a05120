"""compile_keys.json: every optimizer, schedule, loss and metric of Keras 3 and of Keras 2 (`tf_keras`), with each argument changed in turn:
how both formats of files note it in a compilation, and what it computes once it is read of that.

    pip install --no-deps tf_keras==2.21.0; python tests/golden/keras/make_compile_keys.py
"""

import inspect
import json

from golden import arrays, keras, np, tf, write

import tf_keras

tf.config.run_functions_eagerly(True)
random = np.random.RandomState(8)
uniform = lambda *dims: random.uniform(0.1, 0.9, dims).astype("float32")
ONE_HOT = np.eye(3, dtype="float32")
SCORES = uniform(6, 3)
CLASSES = np.array([[0], [2], [1], [1], [2], [0]], "int32")
YES = random.randint(0, 2, (6, 3)).astype("float32")
NUMBERS = uniform(6, 3)
UNIT = (lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True))(random.normal(size=(6, 3))).astype("float32")
LAYERS = {"h/kernel": (4, 3), "h/bias": (3,), "embedding/embeddings": (5, 2)}
INITIAL = [uniform(*dims) - 0.5 for dims in LAYERS.values()]
GRADIENTS = [[uniform(*dims) - 0.5 for dims in LAYERS.values()] for _ in range(4)]

# Other values of arguments; a tuple has what is given beside.
VALUES = {
    "optimizer": {
        "learning_rate": [0.02], "lr": [0.02], "weight_decay": [0.1, None], "clipnorm": [0.3], "clipvalue": [0.1], "global_clipnorm": [0.3],
        "use_ema": [True], "ema_momentum": [0.7, (0.7, {"use_ema": True})], "ema_overwrite_frequency": [2, (2, {"use_ema": True})],
        "loss_scale_factor": [8.0], "gradient_accumulation_steps": [2], "name": ["mine"], "jit_compile": [False], "rho": [0.7],
        "epsilon": [0.01], "momentum": [0.7], "nesterov": [(True, {"momentum": 0.7}), False], "centered": [True], "amsgrad": [True], "beta_1": [0.6],
        "beta_2": [0.7], "initial_accumulator_value": [0.3], "learning_rate_power": [-0.3], "l1_regularization_strength": [0.1],
        "l2_regularization_strength": [0.1], "l2_shrinkage_regularization_strength": [0.1], "beta": [0.2], "beta_2_decay": [-0.5],
        "epsilon_1": [0.01], "epsilon_2": [0.4], "clip_threshold": [0.3], "relative_step": [(False, {"learning_rate": 0.9})], "adam_beta_1": [0.6],
        "adam_beta_2": [0.7], "exclude_layers": [["h"], ["h.k"]], "exclude_embeddings": [False], "muon_a": [3.0], "muon_b": [-4.78],
        "muon_c": [2.1], "adam_lr_ratio": [0.5], "ns_steps": [3], "rms_rate": [0.5, None], "adam_weight_decay": [0.2, None],
        "warmup_steps": [2], "adaptive_epsilon": [True], "decay": [0.5], 
    },
    "schedule": {
        "initial_learning_rate": [0.4], "decay_steps": [3, 2.5, 3.0], "first_decay_steps": [3, 3.0], "decay_rate": [0.7], "staircase": [True],
        "name": ["mine"], "boundaries": [[1, 4]], "values": [[0.3, 0.2, 0.1]], "end_learning_rate": [0.02], "power": [2.0], "cycle": [True],
        "alpha": [0.1], "warmup_target": [(0.4, {"warmup_steps": 2})], "warmup_steps": [2, (2.0, {"warmup_target": 0.4})], "t_mul": [1.0, 1.5], "m_mul": [0.7],
    },
    "loss": {
        "reduction": ["sum", "none", "mean_with_sample_weight"], "name": ["mine"], "dtype": ["float64"], "from_logits": [True],
        "label_smoothing": [0.2], "axis": [0, -2], "alpha": [0.4], "beta": [0.3], "gamma": [1.3], "apply_class_balancing": [True],
        "ignore_class": [1, 0], "delta": [0.3], "margin": [0.2], "remove_diagonal": [False], "q": [0.3],
    },
    "metric": {
        "name": ["mine"], "dtype": ["float64"], "threshold": [0.4], "thresholds": [0.4, [0.3, 0.6]], "top_k": [2], "class_id": [1], "k": [2],
        "num_thresholds": [5], "curve": ["PR", "PRGAIN"], "summation_method": ["minoring", "majoring"],
        "multi_label": [(True, {"num_labels": 3})], "num_labels": [(3, {"multi_label": True})],
        "label_weights": [([1.0, 0.5, 2.0], {"multi_label": True, "num_labels": 3})], "num_classes": [], "target_class_ids": [[1]],
        "ignore_class": [1, 0], "sparse_y_true": [True, False], "sparse_y_pred": [True, False], "axis": [0], "average": ["micro", "macro", "weighted"],
        "beta": [0.5], "class_aggregation": [None, "variance_weighted_average"], "num_regressors": [1], "from_logits": [True],
        "label_smoothing": [0.2], "from_sorted_ids": [True], "specificity": [0.3], "sensitivity": [0.3], "precision": [0.6], "recall": [0.3],
        "normalizer": [[0.5, 0.5, 0.5]], "fn": ["mean_squared_error"], "shape": [(3,)],
    },
}
# What is given unless it is changed.
REQUIRED = {
    "ExponentialDecay": {"initial_learning_rate": 0.2, "decay_steps": 2, "decay_rate": 0.5},
    "InverseTimeDecay": {"initial_learning_rate": 0.2, "decay_steps": 2, "decay_rate": 0.5},
    "PiecewiseConstantDecay": {"boundaries": [2, 5], "values": [0.2, 0.1, 0.05]},
    "PolynomialDecay": {"initial_learning_rate": 0.2, "decay_steps": 4},
    "CosineDecay": {"initial_learning_rate": 0.2, "decay_steps": 4},
    "CosineDecayRestarts": {"initial_learning_rate": 0.2, "first_decay_steps": 3},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.5},
    "IoU": {"num_classes": 3, "target_class_ids": [0, 2], "sparse_y_pred": False},
    "MeanIoU": {"num_classes": 3, "sparse_y_pred": False},
    "OneHotIoU": {"num_classes": 3, "target_class_ids": [0, 2]},
    "OneHotMeanIoU": {"num_classes": 3},
}
# Which are of other kinds of programs; `make_compiled.py` has the first.
LEFT_OUT = ["LossScaleOptimizer", "Optimizer", "Loss", "Metric", "LearningRateSchedule", "OptimizerMap", "MeanTensor"]


def classes(module, base):
    """The public classes of a module by name."""
    found = inspect.getmembers(module, lambda value: inspect.isclass(value) and issubclass(value, base))
    return {name: value for name, value in found if name not in LEFT_OUT}


def families(k):
    """The classes of each family, and what their names begin with."""
    yield "optimizer", "", classes(k.optimizers, k.optimizers.Optimizer)
    if k is tf_keras:
        yield "optimizer", "legacy.", classes(k.optimizers.legacy, k.optimizers.legacy.Optimizer)
    yield "schedule", "", classes(k.optimizers.schedules, k.optimizers.schedules.LearningRateSchedule)
    yield "loss", "", classes(k.losses, k.losses.Loss)
    yield "metric", "", classes(k.metrics, k.metrics.Metric)


def required(k, family, name):
    """What a class needs."""
    if name == "MultiOptimizer":
        return {"optimizer_map": k.optimizers.OptimizerMap(k.optimizers.SGD(0.05), {})}
    if name == "MeanMetricWrapper":
        return {"fn": k.losses.mean_absolute_error}
    if name == "MeanRelativeError":
        return {"normalizer": [1.0, 1.0, 1.0]}
    return {"learning_rate": 0.05} if family == "optimizer" else REQUIRED.get(name, {})


def arguments(of, is_legacy):
    """The arguments of a class; an optimizer has more in `kwargs`."""
    names = [name for name, at in inspect.signature(of.__init__).parameters.items() if name != "self" and at.kind != at.VAR_KEYWORD and at.kind != at.VAR_POSITIONAL]
    return [*names, "decay", "lr", "clipnorm", "clipvalue", "global_clipnorm"] if is_legacy else names


def variants(k, family, prefix, name, of):
    """Arguments of a class, each changed in turn, by a name."""
    given = required(k, family, name)
    yield "", given
    for argument in arguments(of, prefix == "legacy."):
        if argument in ("optimizer_map", "fn"):
            continue
        for place, value in enumerate(VALUES[family][argument]):
            value, beside = value if isinstance(value, tuple) and isinstance(value[-1], dict) else (value, {})
            changed = {**given, **beside, argument: value}
            if argument == "lr":
                del changed["learning_rate"]
            yield f".{argument}" + (f".{place + 1}" if place else ""), changed


def noted(k, family, made):
    """What is noted in an archive, and in an HDF5 file where that says more or less."""
    x = k.Input((4,), name="x")
    model = k.Model(x, k.layers.Dense(3, name="y")(x))
    parts = {"optimizer": "sgd", "loss": "mse", **({"metrics": [made]} if family == "metric" else {family: made})}
    if family == "schedule":
        parts = {"optimizer": k.optimizers.SGD(made), "loss": "mse"}
    model.compile(**parts)
    if k is keras:
        from keras.src.legacy.saving import json_utils, saving_utils
    else:
        from tf_keras.src.saving.legacy import saving_utils
        from tf_keras.src.saving.legacy.saved_model import json_utils
    archived = model.get_compile_config()
    in_h5 = saving_utils.model_metadata(model, True)["training_config"]
    if family in ("optimizer", "schedule"):
        found = [archived["optimizer"], in_h5["optimizer_config"]]
    else:
        found = [config["metrics"] if family == "metric" else config["loss"] for config in (archived, in_h5)]
    archived, in_h5 = json.loads(json.dumps(found, default=json_utils.get_json_type))
    return [archived] if in_h5 == bare(archived) else [archived, in_h5]


def bare(value):
    """What is noted without the modules of classes, as HDF5 files have it."""
    if isinstance(value, dict):
        return {key: bare(part) for key, part in value.items() if key not in ("module", "registered_name")}
    return [bare(part) for part in value] if isinstance(value, list) else value


def read(k, family, form):
    """What Keras makes of what is noted in an archive."""
    if family == "schedule":
        return k.optimizers.schedules.deserialize(form["config"]["learning_rate"])
    if family == "metric":
        [form] = form
    modules = {"optimizer": k.optimizers, "loss": k.losses, "metric": k.metrics}
    if isinstance(form, str):
        made = modules[family].get(form)
    else:
        made = keras.saving.deserialize_keras_object(form) if k is keras else modules[family].deserialize(form)
    if isinstance(made, str):
        # Of which Keras 2 does not find the class.
        made = getattr(k.optimizers, form["class_name"]).from_config(form["config"])
    is_function = family == "metric" and not hasattr(made, "update_state")
    return k.metrics.MeanMetricWrapper(made) if is_function else made


def steps(k, optimizer):
    """The variables after all gradients."""
    variables = []
    for path, value in zip(LAYERS, INITIAL):
        scope, name = path.split("/")
        if k is keras:
            with keras.name_scope(scope):
                variables.append(keras.Variable(value, name=name))
        else:
            variables.append(tf.Variable(value, name=path))
    # The gradients of the loss that it scales itself.
    factor = getattr(optimizer, "loss_scale_factor", None) or 1.0
    for gradients in GRADIENTS:
        optimizer.apply_gradients(list(zip([tf.constant(g * factor) for g in gradients], variables)))
    return {"after": arrays([v.numpy() for v in variables])}


def data(name, changed):
    """Targets and predictions that a loss or a metric is for."""
    if name == "BinaryIoU" or name in ("AUC", "Precision", "Recall") or "At" in name or name.startswith(("Binary", "True", "False", "F1", "FBeta", "Dice", "Tversky")):
        return YES, SCORES
    if name.startswith("Sparse"):
        return CLASSES, SCORES if changed.get("from_logits") else SCORES / SCORES.sum(-1, keepdims=True)
    if name in ("IoU", "MeanIoU") and changed.get("sparse_y_true", True):
        return CLASSES[:, 0], SCORES
    if name == "CategoricalGeneralizedCrossEntropy":
        return CLASSES[:, 0], SCORES
    if name == "Circle":
        return CLASSES[:, 0], UNIT
    if "Categorical" in name or "OneHot" in name or name in ("IoU", "MeanIoU"):
        return ONE_HOT[CLASSES[:, 0]], SCORES
    if name == "Accuracy":
        return YES, np.round(SCORES)
    return NUMBERS, SCORES


# Targets with predictions that records are of, by their place.
PAIRS = []


def place(pair):
    """Its place in the list."""
    pair = arrays(pair)
    if pair not in PAIRS:
        PAIRS.append(pair)
    return PAIRS.index(pair)


def answers(k, family, name, form, changed):
    """What it computes as Keras reads it, where that can be computed here."""
    made = read(k, family, form)
    if family == "optimizer":
        return steps(k, made)
    if family == "schedule":
        return {"values": [float(np.float32(made(step))) for step in range(9)]}
    y_true, y_pred = data(name, changed)
    if family == "metric":
        made.update_state(y_true, y_pred)
    value = made.result() if family == "metric" else made(y_true, y_pred)
    return {"pair": place((y_true, y_pred)), "value": float(np.mean(np.array(value)))}


def names(k):
    """Short names and functions of losses and metrics."""
    for family, module in (("loss", k.losses), ("metric", k.metrics)):
        if k is keras:
            known = __import__(f"keras.src.{module.__name__.split('.')[-1]}", fromlist=["x"]).ALL_OBJECTS_DICT
        else:
            known = {name: value for name, value in vars(module).items() if inspect.isfunction(value)}
        for name, value in sorted(known.items()):
            of = value.__name__
            if name in ("serialize", "deserialize", "get", "metric", "Metric", "mean_metric_wrapper", "accuracy", "Accuracy", *LEFT_OUT) or name in REQUIRED or "io_u" in name or "_at_" in name:
                continue
            pascal = "".join(part[0].upper() + part[1:] for part in of.split("_"))
            yield family, f"text.{name}", name, pascal
            if inspect.isfunction(value) and name == of:
                yield family, f"{name}()", value, pascal


def records(versions=((3, keras), (2, tf_keras))):
    """A record for each variant; one without numbers is of what there is not here."""
    for version, k in versions:
        made = []
        for family, prefix, found in families(k):
            for name, of in found.items():
                for suffix, changed in variants(k, family, prefix, name, of):
                    made.append((family, f"{prefix}{name}{suffix}", lambda of=of, changed=changed: of(**changed), name, changed))
        made += [(family, what, lambda value=value: value, name, {}) for family, what, value, name in names(k)]
        for family, what, make, name, changed in made:
            what = f"{version}.{family}.{what}"
            try:
                form = noted(k, family, make())
            except (ValueError, TypeError) as error:
                print(f"{what}: Keras refuses it: {str(error)[:150]!r}")
                continue
            try:
                found = answers(k, family, name, form[0], changed)
            except Exception as error:
                print(f"{what}: no numbers: {type(error).__name__}: {str(error)[:150]!r}")
                found = {}
            yield {"name": what, "family": family, "noted": form, **found}
    yield {"name": "given", "layers": list(LAYERS), "initial": arrays(INITIAL), "gradients": [arrays(g) for g in GRADIENTS], "pairs": PAIRS}


if __name__ == "__main__":
    write("compile_keys", list(records()))
