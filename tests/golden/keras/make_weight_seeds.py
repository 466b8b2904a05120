"""Seeds for the fuzz target `weights`: one small model in each format, into the folder that is given.

    python make_weight_seeds.py ../../../fuzz/seeds/weights
"""

import sys
import zipfile

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


def hostile(out):
    """Small files that ask for much work or memory: each is to be refused at once."""
    one = np.array([1], "<u4").tobytes()
    forms = {
        # What is deflated, said to be deflated twice.
        "filters": (b"\2\0\x08\0\1\0\1\0shuffle", b"\1\0\x08\0\1\0\1\0shuffle"),
        # Chunks of 64 MiB of an array of 8 bytes.
        "chunks": (4 * one + b"\4\0\0\0", np.array([4096, 4096, 1, 1], "<u4").tobytes() + b"\4\0\0\0"),
    }
    for name, change in {**forms, "repeats": None}.items():
        path = out / f"hostile_{name}.h5"
        with h5py.File(path, "w") as file:
            data = np.zeros((1, 1, 1, 2), "float32")
            file.create_dataset("layers/conv2d/vars/0", data=data, chunks=(1, 1, 1, 1), compression="gzip", shuffle=True)
        contents = bytearray(path.read_bytes())
        if change:
            old, new = change
            assert contents.count(old) == 1, name
            contents = contents.replace(old, new)
        else:
            # The second chunk, 60 times more.
            tree = contents.index(b"TREE\1\0\2\0")
            entry = 8 + 8 * 5 + 8
            second = contents[tree + 24 + entry : tree + 24 + 2 * entry]
            contents[tree + 6] = 62
            contents[tree + 24 + 2 * entry : tree + 24 + 62 * entry] = 60 * second
        path.write_bytes(contents)
    with zipfile.ZipFile(out / "hostile_archive.keras", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("model.weights.h5", bytes(24 << 20))


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
    hostile(out)
