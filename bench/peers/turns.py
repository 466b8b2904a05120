"""Shared by the scripts of whole models: arguments, data, and steps in turns (see README.md).

Import before torch, tensorflow or jax, as timing.py, which sets the processors.
"""

import argparse
import json
import statistics
import sys
import time

from timing import THREADS  # noqa: E402,F401

import numpy as np

CLASSES, VOCABULARY, LENGTH = 10, 8000, 128
IMAGES = {"resnet50": (224, 224, 3), "mobilenet_v2": (224, 224, 3), "cnn": (28, 28, 1)}
RECURRENT = {f"{kind}_{units}": (100, units) for kind in ("lstm", "gru") for units in (128, 256, 512)}
MODELS = ["resnet50", "resnet50_bf16", "mobilenet_v2", "cnn", "transformer", "transformer_bf16", *RECURRENT]


def arguments():
    """MODEL BATCH and the work; the model without its element type, and whether that is bfloat16."""
    parser = argparse.ArgumentParser(description="Steps of a whole model, timed in turns.")
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("batch", type=int)
    parser.add_argument("--variant", default="", help="another way of the same framework to do the same work")
    works = ["train", "predict", "evaluate"]
    parser.add_argument("--work", default="train", choices=works, help="whole training steps, outputs, or the loss alone")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="PyTorch's; JAX takes a GPU where it has one")
    parser.add_argument("--host-batch", action="store_true", help="each step copies its batch to the device")
    asked = parser.parse_args()
    asked.bf16 = asked.model.endswith("_bf16")
    asked.model = asked.model.removesuffix("_bf16")
    return asked


def data(asked):
    """One batch: images (channels last) or sequences and their classes, or tokens and, for each, the one to be predicted."""
    rng = np.random.default_rng(0)
    if asked.model == "transformer":
        shape = (asked.batch, LENGTH)
        return rng.integers(0, VOCABULARY, shape).astype(np.int32), rng.integers(0, VOCABULARY, shape).astype(np.int32)
    dims = IMAGES.get(asked.model) or RECURRENT[asked.model]
    x = rng.standard_normal((asked.batch, *dims), dtype=np.float32)
    return x, rng.integers(0, CLASSES, asked.batch).astype(np.int32)


def serve(framework, version, variant, step):
    """Says that it is ready; then, for each line of input with a number, takes so many steps and says how long they took.

    `step` must block until its loss is known, or the outputs are on the host, and return the loss, or a number of them.
    """
    say(framework=framework, version=version, variant=variant)
    for line in sys.stdin:
        in_ms = []
        for _ in range(int(line)):
            begin = time.perf_counter()
            loss = step()
            in_ms.append(1e3 * (time.perf_counter() - begin))
        say(median_ms=round(statistics.median(in_ms), 4), n=len(in_ms), loss=round(loss, 4))


def say(**line):
    """Prints a line of JSON."""
    print(json.dumps(line), flush=True)
