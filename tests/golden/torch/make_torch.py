"""Weights as PyTorch writes them (safetensors), and what the models with them answer.

    pip install torch==2.15.0 torchvision==0.29.2 safetensors==0.8.0
    python make_torch.py

`stack.safetensors` and `stack.json`: an nn.Sequential with one layer of each kind, its input and output (NCHW).
`volumes.safetensors` and `volumes.json`: the same with convolutions and pools of volumes (NCDHW).
`transformer.safetensors` and `transformer.json`: an nn.TransformerEncoder between embeddings and logits, and its answers with Keras'
epsilon and with PyTorch's.
`names.json`: names and shapes of the state of torchvision's models; the tests make values by a formula.
`outputs.json`: what torchvision's models answer with values by that formula (`value` below), in inference, in f64.
"""

import json

from pathlib import Path

import numpy as np
import torch

from safetensors.torch import save_file
from torch import nn

FOLDER = Path(__file__).resolve().parent


def uniform(name, count):
    """`count` numbers in [-1, 1): a 32-bit mix of a counter and of the FNV-1a hash of a name; exact in f32."""
    seed = 0x811C9DC5
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x01000193) & 0xFFFFFFFF
    h = (np.arange(count, dtype=np.uint64) * 0x9E3779B9 + seed) & 0xFFFFFFFF
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = ((h ^ (h >> np.uint64(shift))) * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    h = h ^ (h >> np.uint64(16))
    return (h >> np.uint64(8)).astype(np.float64) / 2**23 - 1


def value(name, shape):
    """The value of a tensor, rounded to f32."""
    u = uniform(name, int(np.prod(shape)))
    if len(shape) > 1:
        u = u * np.sqrt(6 / np.prod(shape[1:]))
    elif name.endswith("running_var"):
        u = 1 + 0.5 * u
    elif name.endswith("weight"):
        u = 0.7 + 0.2 * u
    else:
        u = 0.1 * u
    return torch.from_numpy(u.astype(np.float32).reshape(shape))


def fill(model):
    """Sets every tensor but counters."""
    state = {k: value(k, tuple(v.shape)) if v.dim() else v for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    return model.eval()


def flat(x):
    return [float(str(np.float32(v))) for v in x.detach().numpy().reshape(-1)]


def stack():
    """As tests/vision has it; the flattening of 1 by 1 images is the same in both layouts."""
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 12, 3, groups=6, bias=False), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 3))


def volumes():
    """Kernels whose sides, inputs and outputs all differ."""
    return nn.Sequential(
        nn.Conv3d(2, 6, (1, 2, 3)), nn.BatchNorm3d(6), nn.ReLU(), nn.MaxPool3d((1, 2, 1)),
        nn.Conv3d(6, 4, (2, 1, 2), stride=(2, 1, 1), groups=2, bias=False), nn.AvgPool3d(2, stride=1),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 3))


class Transformer(nn.Module):
    """As tests/weights.rs has it: normalised before each half."""

    def __init__(self, epsilon):
        super().__init__()
        self.embedding, self.position = nn.Embedding(11, 8), nn.Embedding(5, 8)
        layer = nn.TransformerEncoderLayer(
            8, 2, 12, dropout=0, activation="gelu", layer_norm_eps=epsilon, batch_first=True, norm_first=True)
        norm = nn.LayerNorm(8, eps=epsilon)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=norm, enable_nested_tensor=False)
        self.logits = nn.Linear(8, 11)

    def forward(self, tokens):
        return self.logits(self.encoder(self.embedding(tokens) + self.position.weight))


if __name__ == "__main__":
    model = fill(Transformer(1e-3))
    save_file(model.state_dict(), FOLDER / "transformer.safetensors")
    tokens = torch.tensor([[1, 7, 3, 10, 0], [4, 4, 9, 2, 8]])
    answer = {"input": tokens.flatten().tolist(), "output": flat(model(tokens))}
    answer["output_of_default_epsilon"] = flat(fill(Transformer(1e-5))(tokens))
    (FOLDER / "transformer.json").write_text(json.dumps(answer) + "\n")
    model = fill(stack())
    save_file(model.state_dict(), FOLDER / "stack.safetensors")
    x = torch.from_numpy(uniform("stack", 2 * 2 * 8 * 8).reshape(2, 2, 8, 8).astype(np.float32))
    answer = {"input": flat(x), "output": flat(model(x))}
    (FOLDER / "stack.json").write_text(json.dumps(answer) + "\n")
    model = fill(volumes())
    save_file(model.state_dict(), FOLDER / "volumes.safetensors")
    x = torch.from_numpy(uniform("volumes", 2 * 2 * 5 * 6 * 7).reshape(2, 2, 5, 6, 7).astype(np.float32))
    answer = {"input": flat(x), "output": flat(model(x))}
    (FOLDER / "volumes.json").write_text(json.dumps(answer) + "\n")
    # Not above: make_orders.py imports this file, and needs no torchvision.
    import torchvision

    names, outputs = {}, {}
    for name in ("resnet50", "mobilenet_v2"):
        model = fill(getattr(torchvision.models, name)())
        names[name] = {k: list(v.shape) for k, v in model.state_dict().items()}
        x = torch.from_numpy(uniform("image", 3 * 64 * 64).reshape(1, 3, 64, 64))
        outputs[name] = flat(model.double()(x))[:20]
    (FOLDER / "names.json").write_text(json.dumps(names, separators=(",", ":")) + "\n")
    (FOLDER / "outputs.json").write_text(json.dumps(outputs, separators=(",", ":")) + "\n")
