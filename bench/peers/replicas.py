"""Shared by the scripts of replicas: arguments, processors, data, and turns of steps (see README.md).

Import before torch or tensorflow: their thread pools take the size of the processor set they start with.
"""

import argparse
import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

CLASSES = 10
SHAPES = {"mlp": (784,), "cnn": (28, 28, 1), "resnet50": (224, 224, 3)}


def arguments():
    """MODEL BATCH REPLICAS; the batch is each replica's."""
    parser = argparse.ArgumentParser(description="Training steps on replicas with a processor each, timed in turns.")
    parser.add_argument("model", choices=sorted(SHAPES))
    parser.add_argument("batch", type=int)
    parser.add_argument("replicas", type=int)
    return parser.parse_args()


ASKED = arguments()
# The first processors that this process may use, one for each replica.
PROCESSORS = sorted(os.sched_getaffinity(0))[:ASKED.replicas]
os.sched_setaffinity(0, PROCESSORS)

import numpy as np  # noqa: E402


def data(asked, rank):
    """The batch of one replica: inputs (channels last) and their classes."""
    rng = np.random.default_rng(rank)
    x = rng.standard_normal((asked.batch, *SHAPES[asked.model]), dtype=np.float32)
    return x, rng.integers(0, CLASSES, asked.batch).astype(np.int32)


def serve(framework, version, variant, step, before=lambda count: None):
    """Says that it is ready; then, for each line of input with a number, takes so many steps and says how long they took.

    `step` begins a step and gives its loss, which is asked for by `float` after the last step of a turn only: the time is
    that of the whole turn, divided by its steps. `before` hears of each turn.
    """
    say(framework=framework, version=version, variant=variant)
    for line in sys.stdin:
        count = int(line)
        before(count)
        begin = time.perf_counter()
        for _ in range(count):
            loss = step()
        loss = float(loss)
        in_ms = 1e3 * (time.perf_counter() - begin) / count
        say(median_ms=round(in_ms, 4), n=count, loss=round(loss, 4))


def say(**line):
    """Prints a line of JSON."""
    print(json.dumps(line), flush=True)
