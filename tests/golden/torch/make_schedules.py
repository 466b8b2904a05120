"""schedules.json: rates of PyTorch's `OneCycleLR` at every step, in f64, and in `others` of its other schedules, with our settings.

    pip install torch==2.15.0
    python make_schedules.py
"""

import json
import warnings

from pathlib import Path

import torch

CASES = {
    "defaults": {"max_lr": 0.1, "total_steps": 20},
    "linear": {"max_lr": 0.1, "total_steps": 20, "anneal_strategy": "linear"},
    "three_phases": {"max_lr": 0.5, "total_steps": 25, "pct_start": 0.25, "three_phase": True},
    "three_linear_phases": {"max_lr": 0.5, "total_steps": 25, "pct_start": 0.3, "three_phase": True, "anneal_strategy": "linear"},
    "factors": {"max_lr": 2.0, "total_steps": 15, "div_factor": 4.0, "final_div_factor": 10.0},
    "no_rise": {"max_lr": 0.1, "total_steps": 8, "pct_start": 0.0},
    "half_a_step": {"max_lr": 0.1, "total_steps": 10, "pct_start": 0.05, "three_phase": True},
    "rise_alone": {"max_lr": 0.1, "total_steps": 8, "pct_start": 1.0},
    "no_third_phase": {"max_lr": 0.1, "total_steps": 12, "pct_start": 0.7, "three_phase": True},
    "two_steps": {"max_lr": 0.1, "total_steps": 2, "pct_start": 0.25},
}


def warmed(optimizer):
    """A rise and then a cosine."""
    parts = [schedules.LinearLR(optimizer, 0.1, total_iters=4), schedules.CosineAnnealingLR(optimizer, 8)]
    return schedules.SequentialLR(optimizer, parts, [4])


schedules = torch.optim.lr_scheduler
# Of a rate of 0.5, until steps at which both are defined alike: the cosine of PyTorch rises again afterwards.
OTHERS = {
    "StepLR": (lambda of: schedules.StepLR(of, 3, 0.1), 12, "exponential_decay", {"decay_steps": 3, "decay_rate": 0.1, "staircase": True}),
    "MultiStepLR": (lambda of: schedules.MultiStepLR(of, [2, 5], 0.1), 9, "piecewise_constant_decay",
                    {"boundaries": [1, 4], "values": [0.5, 0.05, 0.005]}),
    "ExponentialLR": (lambda of: schedules.ExponentialLR(of, 0.9), 9, "exponential_decay", {"decay_steps": 1, "decay_rate": 0.9}),
    "CosineAnnealingLR": (lambda of: schedules.CosineAnnealingLR(of, 8, 0.05), 9, "cosine_decay", {"decay_steps": 8, "alpha": 0.1}),
    "CosineAnnealingWarmRestarts": (lambda of: schedules.CosineAnnealingWarmRestarts(of, 3, 2, 0.05), 25, "cosine_decay_restarts",
                                    {"first_decay_steps": 3, "t_mul": 2.0, "alpha": 0.1}),
    "SequentialLR": (warmed, 13, "cosine_decay", {"initial_learning_rate": 0.05, "warmup_target": 0.5, "warmup_steps": 4, "decay_steps": 8}),
    "PolynomialLR": (lambda of: schedules.PolynomialLR(of, 6, 2.0), 9, "polynomial_decay",
                     {"decay_steps": 6, "end_learning_rate": 0.0, "power": 2.0}),
}


def values(schedule, steps):
    """The rate at each step."""
    rates = [schedule.get_last_lr()[0]]
    for _ in range(steps - 1):
        schedule.step()
        rates.append(schedule.get_last_lr()[0])
    return rates


def optimizer(rate):
    return torch.optim.SGD([torch.zeros(1)], lr=rate)


def record(name, config):
    schedule = schedules.OneCycleLR(optimizer(1.0), cycle_momentum=False, **config)
    return {"name": name, "config": config, "values": values(schedule, config["total_steps"])}


def other(name, case):
    schedule, steps, kind, config = case
    if kind != "piecewise_constant_decay":
        config = {"initial_learning_rate": 0.5, **config}
    return {"name": name, "schedule": kind, "config": config, "values": values(schedule(optimizer(0.5)), steps)}


if __name__ == "__main__":
    # That no step of the optimizer was made.
    warnings.simplefilter("ignore")
    lines = ",\n".join(json.dumps(record(*case)) for case in CASES.items())
    others = ",\n".join(json.dumps(other(*case)) for case in OTHERS.items())
    path = Path(__file__).resolve().parent / "schedules.json"
    path.write_text(f'{{"torch": "{torch.__version__}", "records": [\n{lines}\n], "others": [\n{others}\n]}}\n')
