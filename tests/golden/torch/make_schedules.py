"""schedules.json: rates of PyTorch's schedules at every step, in f64.

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


def record(name, config):
    """The rate at each step of the cycle."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, cycle_momentum=False, **config)
    values = [schedule.get_last_lr()[0]]
    for _ in range(config["total_steps"] - 1):
        schedule.step()
        values.append(schedule.get_last_lr()[0])
    return {"name": name, "config": config, "values": values}


if __name__ == "__main__":
    # That no step of the optimizer was made.
    warnings.simplefilter("ignore")
    lines = ",\n".join(json.dumps(record(*case)) for case in CASES.items())
    path = Path(__file__).resolve().parent / "schedules.json"
    path.write_text(f'{{"torch": "{torch.__version__}", "records": [\n{lines}\n]}}\n')
