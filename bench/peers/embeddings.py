"""Shared by the scripts of large tables of embeddings: arguments and batches (see README.md)."""

import argparse

import numpy as np

from turns import THREADS, serve  # noqa: F401

WIDTH, EXAMPLES, BAG, BATCHES = 64, 256, 16, 64
RATES = {"sgd": 0.01, "adagrad": 0.01, "adam": 0.001}


def arguments():
    """OPTIMIZER ROWS, and the rate."""
    parser = argparse.ArgumentParser(description="Steps of a table of embeddings, timed in turns.")
    parser.add_argument("optimizer", choices=sorted(RATES))
    parser.add_argument("rows", type=int)
    parser.add_argument("--variant", default="", help="another way of the same framework to do the same work")
    asked = parser.parse_args()
    asked.rate = RATES[asked.optimizer]
    return asked


def batches(rows):
    """Batches that take turns: ids `[EXAMPLES, BAG]` and labels `[EXAMPLES, 1]`."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, rows, (BATCHES, EXAMPLES, BAG)).astype(np.int32)
    labels = rng.integers(0, 2, (BATCHES, EXAMPLES, 1)).astype(np.float32)
    return list(zip(ids, labels))
