"""Seeds for the fuzz target `weights`: one small model in each format, into the folder that is given.

    python make_weight_seeds.py ../../../fuzz/seeds/weights
"""

import sys

from pathlib import Path

from golden import keras, np

import h5py

layers = keras.layers


def chunked(source, target):
    """The same file, its arrays chunked and filtered, in the latest format where that is asked for."""
    with h5py.File(source) as old, h5py.File(target, "w") as new:
        def copy(name, item):
            if isinstance(item, h5py.Dataset):
                more = {"compression": "gzip", "shuffle": True, "fletcher32": True} if item.ndim else {}
                item = new.create_dataset(name, data=np.array(item), **more)
            else:
                group = new.require_group(name)
                group.attrs.update(item.attrs)
        old.visititems(copy)


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    model = keras.Sequential([
        layers.Input((2, 2, 1)), layers.Conv2D(2, 1, name="conv"), layers.BatchNormalization(name="bn"),
        layers.Flatten(), layers.Dense(2, name="out")], name="seed")
    model.save_weights(out / "seed.weights.h5")
    model.save(out / "seed.keras")
    model.save(out / "seed.h5")
    chunked(out / "seed.weights.h5", out / "chunked.h5")
    with h5py.File(out / "seed.weights.h5") as old, h5py.File(out / "latest.h5", "w", libver="latest") as new:
        for name in old:
            old.copy(name, new)
