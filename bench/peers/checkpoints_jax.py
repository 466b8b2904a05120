"""Orbax: python checkpoints_jax.py FOLDER SAVES (see README.md)."""

import os

import saving

import jax
import orbax.checkpoint as ocp

STATE = {name: jax.numpy.asarray(value) for name, value in saving.variables().items()}
ABSTRACT = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), STATE)
CHECKPOINTER = ocp.StandardCheckpointer()


def save(path):
    """It writes behind the program."""
    CHECKPOINTER.save(os.path.abspath(path), STATE)
    CHECKPOINTER.wait_until_finished()


def main():
    """Writes and reads."""
    restore = lambda path: jax.block_until_ready(CHECKPOINTER.restore(os.path.abspath(path), ABSTRACT))  # noqa: E731
    saving.report("orbax", ocp.__version__, "", save, restore)


if __name__ == "__main__":
    main()
