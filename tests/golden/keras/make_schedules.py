"""schedules.json: the learning rate at given steps, their boundaries among them."""

from golden import keras, np, number, write

STEPS = [0, 1, 2, 3, 5, 9, 10, 11, 15, 19, 20, 21, 29, 31, 45, 100]
RESTART_STEPS = [0, 1, 5, 9, 10, 11, 19, 21, 25, 29, 31, 40, 69, 71, 100]


def specs():
    """(name, schedule, constructor arguments, steps)."""
    for staircase in (False, True):
        shared = {"initial_learning_rate": 0.1, "decay_steps": 10, "decay_rate": 0.5, "staircase": staircase}
        suffix = "staircase" if staircase else "smooth"
        yield f"exponential_{suffix}", "ExponentialDecay", shared, STEPS
        yield f"inverse_time_{suffix}", "InverseTimeDecay", shared, STEPS
    piecewise = {"boundaries": [5, 10, 20], "values": [1.0, 0.5, 0.1, 0.02]}
    yield "piecewise", "PiecewiseConstantDecay", piecewise, STEPS
    yield "piecewise_one_boundary", "PiecewiseConstantDecay", {"boundaries": [10], "values": [1.0, 0.1]}, STEPS
    for power in (1.0, 2.0, 0.5):
        for cycle in (False, True):
            config = {
                "initial_learning_rate": 0.1, "decay_steps": 10, "end_learning_rate": 0.01, "power": power,
                "cycle": cycle,
            }
            suffix = "_cycle" if cycle else ""
            yield f"polynomial_power_{power}{suffix}", "PolynomialDecay", config, STEPS
    yield "polynomial_defaults", "PolynomialDecay", {"initial_learning_rate": 0.1, "decay_steps": 10}, STEPS
    cosine = {"initial_learning_rate": 0.1, "decay_steps": 20}
    yield "cosine", "CosineDecay", cosine, STEPS
    yield "cosine_alpha", "CosineDecay", {**cosine, "alpha": 0.1}, STEPS
    warm = {"initial_learning_rate": 0.0, "decay_steps": 20, "warmup_target": 0.2, "warmup_steps": 10}
    yield "cosine_warmup", "CosineDecay", warm, STEPS
    yield "cosine_warmup_alpha", "CosineDecay", {**warm, "initial_learning_rate": 0.05, "alpha": 0.1}, STEPS
    yield "cosine_steps_without_target", "CosineDecay", {**cosine, "warmup_steps": 10}, STEPS
    for t_mul, m_mul, alpha in [(2.0, 1.0, 0.0), (1.0, 1.0, 0.0), (1.0, 0.5, 0.1), (2.0, 0.8, 0.1), (1.5, 0.9, 0.0)]:
        config = {
            "initial_learning_rate": 0.1, "first_decay_steps": 10, "t_mul": t_mul, "m_mul": m_mul, "alpha": alpha,
        }
        steps = [24 if s == 25 and t_mul == 1.5 else s for s in RESTART_STEPS]
        yield f"restarts_t{t_mul}_m{m_mul}_a{alpha}", "CosineDecayRestarts", config, steps
    defaults = {"initial_learning_rate": 0.1, "first_decay_steps": 10}
    yield "restarts_defaults", "CosineDecayRestarts", defaults, RESTART_STEPS
    # Later restarts (30 = 10 + 20, ...): f32 rounding inside Keras decides on which side of the jump they fall.
    yield "restarts_at_the_jump", "CosineDecayRestarts", defaults, [30, 70, 150]


def record(name, schedule, config, steps):
    """One schedule's values at `steps`."""
    function = getattr(keras.optimizers.schedules, schedule)(**config)
    values = [number(keras.ops.convert_to_numpy(function(np.int64(s)))) for s in steps]
    return {"name": name, "schedule": schedule, "config": config, "steps": steps, "values": values}


if __name__ == "__main__":
    write("schedules", [record(*s) for s in specs()])
