"""optimizers.json: two variables, six given gradients, the variables after every step."""

from golden import array, arrays, keras, np, number, write

NAMES = ["kernel", "bias"]
SHAPES = [[3, 2], [2]]
# The size of each step's gradients: small ones show where epsilon is added, large ones are clipped.
SCALES = [1.0, 0.001, 3.0, 0.3, 0.0001, 1.0]


def problem():
    """The initial variables and the six steps' gradients."""
    rng = np.random.default_rng(20)
    initial = [rng.uniform(-1, 1, s).astype(np.float32) for s in SHAPES]
    gradients = [[(rng.standard_normal(s) * k).astype(np.float32) for s in SHAPES] for k in SCALES]
    gradients[3][0][0, 0] = 0.0
    return initial, gradients


def build(spec):
    """The Keras optimizer of a record's `optimizer` and `config`."""
    config = dict(spec["config"])
    schedule = config.get("learning_rate")
    if isinstance(schedule, dict):
        config["learning_rate"] = getattr(keras.optimizers.schedules, schedule["schedule"])(**schedule["config"])
    return getattr(keras.optimizers, spec["optimizer"])(**config)


def run(spec):
    """Runs a record's six steps and returns the record with what Keras answered."""
    initial, gradients = problem()
    if spec.pop("zero_bias", False):
        initial[1][:] = 0
    variables = [keras.Variable(v, name=n) for v, n in zip(initial, NAMES)]
    for variable in variables:
        if constraint := spec.get("constraints", {}).get(variable.name):
            [(name, config)] = constraint.items()
            variable.constraint = getattr(keras.constraints, name.title().replace("_", ""))(**config)
    optimizer = build(spec)
    if spec.get("exclude_from_weight_decay"):
        optimizer.exclude_from_weight_decay(var_names=spec["exclude_from_weight_decay"])
    optimizer.build(variables)
    steps = []
    for gradient in gradients:
        learning_rate = number(optimizer.learning_rate)
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradient])
        step = {
            "gradients": arrays(gradient),
            "learning_rate": learning_rate,
            "variables": arrays(v.numpy() for v in variables),
            "iterations": number(keras.ops.convert_to_numpy(optimizer.iterations)),
        }
        if optimizer.use_ema:
            step["ema"] = arrays(v.numpy() for v in optimizer._model_variables_moving_average)
        steps.append(step)
    return {
        **spec,
        "variables": [{"name": n, "initial": array(v)} for n, v in zip(NAMES, initial)],
        "steps": steps,
    }


def spec(name, optimizer, exclude=None, zero_bias=False, constraints=None, **config):
    """One record's name, optimizer and constructor arguments."""
    out = {"name": name, "optimizer": optimizer, "config": config}
    if constraints:
        out["constraints"] = constraints
    if exclude:
        out["exclude_from_weight_decay"] = exclude
    if zero_bias:
        out["zero_bias"] = True
    return out


def plain():
    """Every optimizer with its defaults, and with the arguments that change its formula."""
    defaults = ["SGD", "RMSprop", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl", "Lion", "Lamb"]
    yield from (spec(f"{o.lower()}_defaults", o) for o in defaults)
    yield spec("sgd_plain", "SGD", learning_rate=0.1)
    yield spec("sgd_momentum", "SGD", learning_rate=0.1, momentum=0.9)
    yield spec("sgd_nesterov", "SGD", learning_rate=0.1, momentum=0.9, nesterov=True)
    yield spec("rmsprop_plain", "RMSprop", learning_rate=0.05, rho=0.8)
    yield spec("rmsprop_momentum", "RMSprop", learning_rate=0.05, rho=0.8, momentum=0.7)
    yield spec("rmsprop_centered", "RMSprop", learning_rate=0.05, rho=0.8, centered=True)
    yield spec("rmsprop_centered_momentum", "RMSprop", learning_rate=0.05, rho=0.8, momentum=0.7, centered=True)
    yield spec("rmsprop_epsilon", "RMSprop", learning_rate=0.05, epsilon=0.01)
    yield spec("adam_plain", "Adam", learning_rate=0.1, beta_1=0.8, beta_2=0.9)
    yield spec("adam_epsilon", "Adam", learning_rate=0.1, epsilon=0.01)
    yield spec("adam_amsgrad", "Adam", learning_rate=0.1, beta_1=0.8, beta_2=0.9, amsgrad=True)
    yield spec("adamw_decay", "AdamW", learning_rate=0.1, weight_decay=0.2)
    yield spec("adamw_amsgrad", "AdamW", learning_rate=0.1, weight_decay=0.2, beta_2=0.9, amsgrad=True)
    yield spec("adagrad_plain", "Adagrad", learning_rate=0.1)
    yield spec("adagrad_start_epsilon", "Adagrad", learning_rate=0.1, initial_accumulator_value=0.0, epsilon=0.01)
    yield spec("adadelta_plain", "Adadelta", learning_rate=1.0, rho=0.9, epsilon=0.001)
    yield spec("adamax_plain", "Adamax", learning_rate=0.1, beta_1=0.8, beta_2=0.9)
    yield spec("nadam_plain", "Nadam", learning_rate=0.1, beta_1=0.8, beta_2=0.9)
    yield spec("ftrl_plain", "Ftrl", learning_rate=0.1)
    yield spec("ftrl_power", "Ftrl", learning_rate=0.1, learning_rate_power=-0.7, initial_accumulator_value=0.3)
    yield spec("ftrl_l1", "Ftrl", learning_rate=0.1, l1_regularization_strength=0.5)
    yield spec("ftrl_l2", "Ftrl", learning_rate=0.1, l2_regularization_strength=0.5)
    yield spec("ftrl_l2_shrinkage", "Ftrl", learning_rate=0.1, l2_shrinkage_regularization_strength=0.3)
    yield spec("ftrl_beta", "Ftrl", learning_rate=0.1, beta=0.7)
    yield spec(
        "ftrl_all", "Ftrl", learning_rate=0.1, l1_regularization_strength=0.2, l2_regularization_strength=0.1,
        l2_shrinkage_regularization_strength=0.05, beta=0.4,
    )
    yield spec("lion_plain", "Lion", learning_rate=0.05, beta_1=0.8, beta_2=0.9)
    yield spec("lamb_plain", "Lamb", learning_rate=0.1, beta_1=0.8, beta_2=0.9)
    yield spec("lamb_zero_bias", "Lamb", learning_rate=0.1, zero_bias=True)


def wrapped():
    """The arguments every Keras optimizer shares, on SGD and Adam (and AdamW, Lion, Lamb for decay)."""
    schedule = {
        "schedule": "ExponentialDecay",
        "config": {"initial_learning_rate": 0.1, "decay_steps": 2, "decay_rate": 0.5},
    }
    bases = [
        ("sgd", "SGD", {"learning_rate": 0.1, "momentum": 0.9}),
        ("adam", "Adam", {"learning_rate": 0.1}),
    ]
    for short, optimizer, base in bases:
        yield spec(f"{short}_clipvalue", optimizer, **base, clipvalue=0.5)
        yield spec(f"{short}_clipnorm", optimizer, **base, clipnorm=0.8)
        yield spec(f"{short}_global_clipnorm", optimizer, **base, global_clipnorm=1.5)
        yield spec(f"{short}_weight_decay", optimizer, **base, weight_decay=0.2)
        yield spec(f"{short}_weight_decay_exclude", optimizer, exclude=["bias"], **base, weight_decay=0.2)
        yield spec(f"{short}_accumulate", optimizer, **base, gradient_accumulation_steps=2)
        yield spec(
            f"{short}_accumulate_clip_decay", optimizer, **base, gradient_accumulation_steps=2, clipnorm=0.5,
            weight_decay=0.2,
        )
        yield spec(f"{short}_ema", optimizer, **base, use_ema=True, ema_momentum=0.9)
        yield spec(
            f"{short}_ema_overwrite", optimizer, **base, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2
        )
        yield spec(
            f"{short}_accumulate_ema", optimizer, **base, gradient_accumulation_steps=2, use_ema=True,
            ema_momentum=0.9,
        )
        scheduled = {**base, "learning_rate": schedule}
        yield spec(f"{short}_schedule", optimizer, **scheduled)
        yield spec(f"{short}_schedule_decay", optimizer, **scheduled, weight_decay=0.2)
        yield spec(f"{short}_accumulate_schedule", optimizer, **scheduled, gradient_accumulation_steps=2)
    yield spec("adamw_exclude", "AdamW", exclude=["bias"], learning_rate=0.1, weight_decay=0.2)
    yield spec("lion_weight_decay", "Lion", learning_rate=0.05, weight_decay=0.2)
    yield spec("lamb_weight_decay", "Lamb", learning_rate=0.1, weight_decay=0.2)


def constrained():
    """Every constraint; the steps of which begin with variables that are not as they are kept to."""
    longest = {"kernel": {"max_norm": {"max_value": 0.8, "axis": 0}}, "bias": {"non_neg": {}}}
    yield spec("sgd_max_norm", "SGD", constraints=longest, learning_rate=0.3)
    unit = {"kernel": {"unit_norm": {"axis": [0, 1]}}, "bias": {"unit_norm": {"axis": -1}}}
    yield spec("adam_unit_norm", "Adam", constraints=unit, learning_rate=0.1, weight_decay=0.2)
    between = {"kernel": {"min_max_norm": {"min_value": 0.9, "max_value": 1.1, "rate": 0.5, "axis": 1}}}
    yield spec("sgd_min_max_norm", "SGD", constraints=between, learning_rate=0.3, momentum=0.9)
    strict = {"kernel": {"min_max_norm": {}}, "bias": {"max_norm": {}}}
    yield spec("lamb_min_max_norm", "Lamb", constraints=strict, learning_rate=0.1, clipnorm=0.5)


def factored():
    """Adafactor, of a variable with two dims and of one with one."""
    yield spec("adafactor_defaults", "Adafactor")
    yield spec("adafactor_plain", "Adafactor", learning_rate=0.3, beta_2_decay=-0.6, clip_threshold=0.5, epsilon_2=0.9)
    yield spec("adafactor_epsilon", "Adafactor", learning_rate=0.1, epsilon_1=0.01, weight_decay=0.2, relative_step=False)
    yield spec("adafactor_zero_bias", "Adafactor", learning_rate=0.1, zero_bias=True, gradient_accumulation_steps=2)


def orthogonal():
    """Muon, of a matrix, and of a variable that Adam updates."""
    yield spec("muon_defaults", "Muon")
    yield spec("muon_plain", "Muon", learning_rate=0.1, nesterov=False, ns_steps=3, rms_rate=None, weight_decay=0.0)
    yield spec("muon_adam", "Muon", learning_rate=0.1, adam_weight_decay=0.3, adam_lr_ratio=0.5, weight_decay=0.2, clipnorm=0.5)
    yield spec("muon_excluded", "Muon", learning_rate=0.1, exclude_layers=["kernel"], adam_beta_1=0.8, adam_beta_2=0.9, epsilon=0.01)
    yield spec("muon_ema", "Muon", learning_rate=0.1, momentum=0.5, adam_weight_decay=None, use_ema=True, ema_momentum=0.9)


if __name__ == "__main__":
    write("optimizers", [run(s) for s in [*plain(), *wrapped(), *constrained(), *factored(), *orthogonal()]])
