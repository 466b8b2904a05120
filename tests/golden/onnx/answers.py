"""Checks every `NAME.onnx` in a folder and prints as JSON what onnxruntime answers the calls in `NAME.json`: `python answers.py FOLDER`.

    pip install onnx==1.23.2 onnxruntime==1.32.0

Exits with 3 where a package is missing, or older than `docs/serving.md` asks for. A call is the list of its inputs, an array
`{"dtype": .., "shape": .., "data": ..}`; numbers of answers that are not finite are null.
"""

import json
import math
import sys
from pathlib import Path

try:
    import numpy
    import onnx
    import onnxruntime
except ImportError:
    sys.exit(3)


def is_before(package, *oldest):
    return tuple(int(part) for part in package.__version__.split(".")[:2]) < oldest


# Opset 18, and `zip(.., strict=True)` below.
if is_before(onnx, 1, 13) or is_before(onnxruntime, 1, 14) or sys.version_info < (3, 10):
    sys.exit(3)

TYPES = {"f32": "float32", "i32": "int32", "u8": "uint8", "bool": "bool"}


def numbers(array):
    return [x if math.isfinite(x) else None for x in array.astype("float64").ravel().tolist()]


def answered(path):
    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs, outputs = session.get_inputs(), session.get_outputs()

    def answer(call):
        arrays = (numpy.array(one["data"], TYPES[one["dtype"]]).reshape(one["shape"]) for one in call)
        results = session.run(None, {input.name: array for input, array in zip(inputs, arrays, strict=True)})
        return [{"shape": result.shape, "data": numbers(result)} for result in results]

    about = {
        "inputs": [[input.name, input.shape] for input in inputs],
        "outputs": [[output.name, output.shape] for output in outputs],
    }
    try:
        return about | {"answers": [answer(call) for call in json.loads(path.with_suffix(".json").read_text())]}
    except Exception as error:
        raise RuntimeError(f"{path.name}: {error}") from error


if __name__ == "__main__":
    print(json.dumps({path.stem: answered(path) for path in sorted(Path(sys.argv[1]).glob("*.onnx"))}))
