"""Shared by the generators: a deterministic TensorFlow set-up, and the JSON files' arrays and header.

Import this before tensorflow or keras: the environment below must be set first.
"""

import json
import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
# oneDNN reorders sums; plain Eigen kernels keep the numbers the same on every x86 processor we tried.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.experimental.enable_op_determinism()
keras.utils.set_random_seed(0)

FOLDER = Path(__file__).resolve().parent
DTYPES = {"float32": "f32", "int32": "i32", "int64": "i32", "bool": "bool"}


def number(value):
    """A number as JSON: an f32 by its shortest decimal that reads back as the same f32."""
    value = np.asarray(value)
    if value.dtype.kind in "iub":
        return int(value)
    if not np.isfinite(value):
        raise ValueError(f"golden numbers must be finite, got {value}")
    return float(str(np.float32(value)))


def array(value):
    """An array as JSON: shape, dtype and row-major data (a bool is 0 or 1)."""
    value = np.asarray(value)
    if value.dtype == np.float64:
        value = value.astype(np.float32)
    return {
        "shape": list(value.shape),
        "dtype": DTYPES[value.dtype.name],
        "data": [number(v) for v in value.reshape(-1)],
    }


def arrays(values):
    """Several arrays as JSON."""
    return [array(v) for v in values]


def write(name, records):
    """Writes `name`.json: a header and one record a line."""
    names = [r["name"] for r in records]
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        raise ValueError(f"{name}: records with the same name: {sorted(twice)}")
    lines = ",\n".join(json.dumps(r, separators=(",", ":"), allow_nan=False) for r in records)
    header = f'"keras":"{keras.__version__}","tensorflow":"{tf.__version__}"'
    path = FOLDER / f"{name}.json"
    path.write_text(f'{{{header},"records":[\n{lines}\n]}}\n')
    print(f"{path.name}: {len(records)} records, {path.stat().st_size} bytes")
