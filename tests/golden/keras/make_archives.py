"""archives.json: what Keras answers with the archives that a test writes for it.

    PHALANX_KERAS_ARCHIVES=/tmp/archives cargo test -p phalanx --test weights archives
    python tests/golden/keras/make_archives.py /tmp/archives
"""

import json
import sys
import zipfile

from pathlib import Path

from golden import arrays, keras, np, write

TYPES = {"f32": np.float32, "i32": np.int32, "u8": np.uint8}


def inputs(path):
    """The arrays that the model is called with."""
    found = json.loads(path.with_suffix(".json").read_text())
    return [np.array(x["data"], TYPES[x["dtype"]]).reshape(x["shape"]) for x in found]


def record(path):
    """The architecture as Keras read it, how many variables it trains, and its answers."""
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))
    model = keras.models.load_model(path)
    called = inputs(path)
    outputs = model(called[0] if len(called) == 1 else called, training=False)
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    # What Keras would write is read again, so that nothing in it is only tolerated.
    again = keras.models.model_from_json(model.to_json())
    assert [w.shape for w in again.weights] == [w.shape for w in model.weights], path
    trained = len(model.trainable_variables)
    return {"name": path.stem, "config": config, "trained": trained, "outputs": arrays([x.numpy() for x in outputs])}


if __name__ == "__main__":
    order = ["images", "channels", "pictures", "volumes", "words", "steps", "attended", "nested", "graph", "padded", "handed", "led", "categories", "grouped", "einsums", "frames", "spectral", "signals", "unshared", "still", "tied"]
    write("archives", [record(Path(sys.argv[1]) / f"{name}.keras") for name in order])
