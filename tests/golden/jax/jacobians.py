"""jacobians.txt: two matrices, and what JAX has for derivatives of functions of them, a line each, in f64.

    pip install jax && python tests/golden/jax/jacobians.py
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)
random = np.random.RandomState(5)
x, w = random.normal(size=(2, 3)), random.normal(size=(3, 2))


def softmax(x, w):
    return jax.nn.softmax(x @ w, axis=-1)


def loss(w):
    return jnp.sum(jnp.sin(x @ w) * (x @ w))


whole, of_w = jax.jacrev(softmax, argnums=(0, 1))(x, w)
of_rows = jax.vmap(jax.jacrev(softmax), in_axes=(0, None))(x, w)
lines = [x, w, whole, of_w, of_rows, jax.hessian(loss)(w)]
text = "".join(" ".join(repr(float(v)) for v in np.asarray(line).reshape(-1)) + "\n" for line in lines)
(Path(__file__).resolve().parent / "jacobians.txt").write_text(text)
