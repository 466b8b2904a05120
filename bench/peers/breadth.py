"""Shared by the scripts of models of many kinds: arguments, inputs and targets (see README.md)."""

import argparse
import json
import pathlib

from turns import THREADS, serve  # noqa: F401

import numpy as np


def arguments():
    """FILE.keras and the work, and the case that is kept beside the file."""
    parser = argparse.ArgumentParser(description="Steps of a model that breadth_models.py wrote, timed in turns.")
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("work", choices=["train", "predict"], help="whole training steps, or outputs")
    parser.add_argument("--variant", default="", help="another way of the same framework to do the same work")
    asked = parser.parse_args()
    asked.model = asked.file.stem
    vars(asked).update(json.loads(asked.file.with_suffix(".json").read_text()))
    return asked


def inputs(asked):
    """One batch of each input."""
    rng = np.random.default_rng(0)
    return [drawn(rng, asked.batch, **spec) for spec in asked.inputs]


def drawn(rng, batch, dims, below=None, padded=False):
    """Numbers (channels last), or tokens; with padding, zeros behind the length of each row, half of the steps at least."""
    if below is None:
        return rng.standard_normal((batch, *dims), dtype=np.float32)
    found = rng.integers(1, below, (batch, *dims)).astype(np.int32)
    if padded:
        steps, half = dims[0], dims[0] // 2
        lengths = half + np.arange(batch) * 7 % (steps - half + 1)
        found[np.arange(steps)[None] >= lengths[:, None]] = 0
    return found


def target(asked):
    """What the outputs are compared with."""
    rng = np.random.default_rng(1)
    dims = [asked.batch, *asked.output]
    if asked.loss == "classes":
        return rng.integers(0, dims[-1], dims[:-1]).astype(np.int32)
    if asked.loss == "binary":
        return rng.integers(0, 2, dims).astype(np.float32)
    return rng.standard_normal(dims, dtype=np.float32)
