"""PyTorch and safetensors: python checkpoints_torch.py FOLDER SAVES (see README.md)."""

import saving

import safetensors
import torch
from safetensors.torch import load_file, save_file

STATE = {name: torch.from_numpy(value) for name, value in saving.variables().items()}


def copied(found):
    """Into the variables, as a model's are restored."""
    for name, value in STATE.items():
        value.copy_(found[name])


def main():
    """Both ways."""
    saving.report("torch", torch.__version__, "torch.save", lambda path: torch.save(STATE, path), lambda path: copied(torch.load(path)))
    version = safetensors.__version__
    saving.report("safetensors", version, "", lambda path: save_file(STATE, path), lambda path: copied(load_file(path)))


if __name__ == "__main__":
    main()
