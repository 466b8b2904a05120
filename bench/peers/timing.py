"""Shared by the peers: arguments, two processors, synthetic data, timing, one JSON line a result.

Import before torch, tensorflow or jax: their thread pools take the size of the processor set they start with.
"""

import argparse
import json
import os
import resource
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

THREADS = 2
# The first THREADS processors that this process may use.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])

import numpy as np  # noqa: E402

ROWS, CLASSES = 60_000, 10
SHAPES = {"mlp": (784,), "cnn": (28, 28, 1), "fit_mlp": (784,)}
WARM_UP = {"mlp": 30, "cnn": 3}


def arguments():
    """MODEL BATCH BUDGET, the budget in steps (epochs for fit_mlp) as `300`, or in seconds as `10s`."""
    parser = argparse.ArgumentParser(description="Times whole training steps, or epochs, of one framework.")
    parser.add_argument("model", choices=sorted(SHAPES))
    parser.add_argument("batch", type=int)
    parser.add_argument("budget", help="steps (epochs for fit_mlp) such as 300, or seconds such as 10s")
    return parser.parse_args()


def data(model, batch):
    """Inputs (channels last) and class labels: one batch, or ROWS rows for fit_mlp."""
    rng = np.random.default_rng(0)
    rows = ROWS if model == "fit_mlp" else batch
    x = rng.standard_normal((rows, *SHAPES[model]), dtype=np.float32)
    return x, rng.integers(0, CLASSES, rows).astype(np.int32)


def times(once, budget):
    """Seconds of each call of `once`, until the budget is spent (at least three calls)."""
    seconds = float(budget[:-1]) if budget.endswith("s") else None
    calls = None if seconds is not None else max(3, int(budget))
    out, start = [], time.perf_counter()
    while len(out) < 3 or (len(out) < calls if calls else time.perf_counter() - start < seconds):
        begin = time.perf_counter()
        once()
        out.append(time.perf_counter() - begin)
    return out


def step_times(model, step, budget):
    """Seconds of each step after the warm-up. `step` must block until its loss is known."""
    for _ in range(WARM_UP[model]):
        step()
    return times(step, budget)


def epoch_times(epoch, budget):
    """Seconds of each epoch after the first."""
    epoch()
    return times(epoch, budget)


def emit(name, framework, version, asked, seconds):
    """Prints one result."""
    in_ms = [1e3 * s for s in seconds]
    line = {
        "name": name, "median_ms": statistics.median(in_ms), "min_ms": min(in_ms), "max_ms": max(in_ms),
        "n": len(in_ms), "unit": "epoch" if asked.model == "fit_mlp" else "step", "framework": framework,
        "version": version, "model": asked.model, "batch": asked.batch, "threads": THREADS,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()}), flush=True)
