"""Shared by the scripts that save and restore 100 MB of variables: two processors, data, turns. Import before the framework."""

import glob
import json
import os
import shutil
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])

import numpy as np  # noqa: E402

VARIABLES, WIDTH = 160, 395


def variables():
    """Names and values."""
    base = np.random.default_rng(0).standard_normal((WIDTH, WIDTH), dtype=np.float32)
    return {f"layer{index}": base + np.float32(index) for index in range(VARIABLES)}


def report(framework, version, variant, save, restore):
    """Saves to a path and restores from it in turns, the first of each not counted; prints two lines.

    `save` must have written everything when it returns. It is on disk when each of its files is; that counts.
    """
    folder, turns = sys.argv[1], int(sys.argv[2])
    saved, restored = [], []
    for turn in range(turns + 1):
        path = os.path.join(folder, f"{framework}-{variant}-{turn}")
        begin = time.perf_counter()
        save(path)
        flush(path)
        middle = time.perf_counter()
        restore(path)
        saved.append(middle - begin)
        restored.append(time.perf_counter() - middle)
        remove(path)
    for work, seconds in (("save", saved[1:]), ("restore", restored[1:])):
        line = {"framework": framework, "version": version, "variant": variant, "work": work}
        print(json.dumps({**line, "median_ms": round(1e3 * statistics.median(seconds), 2), "n": len(seconds)}), flush=True)


def files(path):
    """What a save has written: the file, or all in the folder, or all whose names begin so."""
    found = glob.glob(f"{path}*") + glob.glob(f"{path}*/**", recursive=True)
    return [one for one in found if os.path.isfile(one)]


def flush(path):
    for name in files(path):
        handle = os.open(name, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def remove(path):
    shutil.rmtree(path, ignore_errors=True)
    for name in files(path):
        os.remove(name)
