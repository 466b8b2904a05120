"""arrays.npz, plain.npz and *.npy: arrays as NumPy saves them, of every type that is read and of some that are not.

    python tests/golden/numpy/make_numpy.py
"""

from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent
TYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"]

counted = np.arange(24).reshape(2, 3, 4)
np.savez_compressed(FOLDER / "arrays.npz", **{name: (counted % 2 if name == "b1" else counted).astype(name) for name in TYPES})
np.savez(FOLDER / "plain.npz", x=counted.astype("f4") / 8, y=np.array([3, -1]))
np.save(FOLDER / "fortran.npy", np.asfortranarray(counted.astype("i4")))
np.save(FOLDER / "big.npy", (counted - 7).astype(">i2"))
np.save(FOLDER / "scalar.npy", np.float64(2.5))
np.save(FOLDER / "empty.npy", np.zeros((0, 3), "f4"))
np.save(FOLDER / "texts.npy", np.array(["a", "bc"]))
np.save(FOLDER / "fields.npy", np.zeros(2, [("a", "f4"), ("b", "i4")]))
