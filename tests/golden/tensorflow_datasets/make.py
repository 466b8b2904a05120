"""Writes the folders `signs/1.0.0` and `plain/1.0.0` by TensorFlow Datasets, and what it reads of them into `expected.json`.

python make.py, with tensorflow_datasets 4.9.10.
"""

import json
import pathlib
import shutil
import tempfile

import numpy as np
import tensorflow_datasets as tfds

HERE = pathlib.Path(__file__).parent


def photo(rng, rows, columns):
    """A smooth picture, which JPEG keeps."""
    y, x = np.mgrid[0:rows, 0:columns]
    base = np.stack([40 + 9 * x, 200 - 7 * y, 90 + 3 * (x + y)], axis=-1)
    return np.clip(base + rng.integers(0, 9), 0, 255).astype(np.uint8)


class Signs(tfds.core.GeneratorBasedBuilder):
    """Made-up signs."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({
            "image": tfds.features.Image(shape=(6, 5, 1)),
            "photo": tfds.features.Image(encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(names=["stop", "go left", "Straße"]),
            "size": tfds.features.Tensor(shape=(2, 3), dtype=np.float32),
            "bytes": tfds.features.Tensor(shape=(4,), dtype=np.uint8),
            "weight": tfds.features.Scalar(dtype=np.float64),
            "number": tfds.features.Scalar(dtype=np.int64),
            "is_new": tfds.features.Scalar(dtype=np.bool_),
            "words": tfds.features.Sequence(np.int32),
            "note": tfds.features.Text(),
            "place": tfds.features.FeaturesDict({"kind": tfds.features.ClassLabel(num_classes=4)}),
        })
        return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=("image", "label"))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(7, 1), "test": self._generate_examples(3, 2)}

    def _generate_examples(self, count, seed):
        rng = np.random.default_rng(seed)
        for i in range(count):
            yield i, {
                "image": rng.integers(0, 256, (6, 5, 1)).astype(np.uint8),
                "photo": photo(rng, 9 + i, 8),
                "label": int(rng.integers(3)),
                "size": rng.standard_normal((2, 3)).astype(np.float32),
                "bytes": rng.integers(0, 256, 4).astype(np.uint8),
                "weight": float(rng.random()),
                "number": int(rng.integers(-(2**60), 2**60)),
                "is_new": bool(i % 2),
                "words": rng.integers(0, 9, i).astype(np.int32).tolist(),
                "note": f"note {i}",
                "place": {"kind": i % 4},
            }


class Plain(tfds.core.GeneratorBasedBuilder):
    """Numbers, one file, without keys for supervised training."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({
            "x": tfds.features.Tensor(shape=(2,), dtype=np.float32),
            "y": tfds.features.Scalar(dtype=np.float32),
        })
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i in range(5):
            yield i, {"x": [i, i + 0.5], "y": 2.0 * i}


def flat(example, prefix=""):
    for name, value in example.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}/")
        elif not isinstance(value, bytes):
            value = np.asarray(value)
            yield prefix + name, {"dims": list(value.shape), "values": value.astype(object).ravel().tolist()}


def main():
    expected = {}
    with tempfile.TemporaryDirectory() as folder:
        for make, shards in ((Signs, 2), (Plain, None)):
            builder = make(data_dir=folder)
            config = tfds.download.DownloadConfig(num_shards=shards)
            builder.download_and_prepare(download_config=config)
            to = HERE / builder.name
            shutil.rmtree(to, ignore_errors=True)
            shutil.copytree(pathlib.Path(folder) / builder.name, to)
            read = tfds.ReadConfig(interleave_cycle_length=1)
            for split in builder.info.splits:
                data = tfds.as_numpy(builder.as_dataset(split=split, read_config=read))
                expected[f"{builder.name}/{split}"] = [dict(flat(example)) for example in data]
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1, default=lambda value: value.item()) + "\n")


main()
