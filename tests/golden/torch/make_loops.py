"""loops.json: a training loop of PyTorch in the form of `tests/golden/keras/loops.json`.

    pip install torch==2.15.0 numpy
    python make_loops.py

Gradients of two batches are accumulated and clipped together, the rate moves with every batch, targets are smoothed, weighted by class and
sometimes ignored. Moving variances are Keras', of the batch's variance as it is: PyTorch's are of the unbiased one.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

STEPS, ROWS = 6, 5
rng = np.random.default_rng(5)


def array(value):
    value = np.asarray(value)
    dtype = "i32" if value.dtype.kind == "i" else "f32"
    numbers = [int(v) if dtype == "i32" else float(str(np.float32(v))) for v in value.reshape(-1)]
    return {"shape": list(value.shape), "dtype": dtype, "data": numbers}


def tensor(*shape):
    return torch.tensor(rng.standard_normal(shape).astype(np.float32))


def weights(model, moving):
    first, norm, _, last = model
    values = [first.weight.T, norm.weight, norm.bias, *moving, last.weight.T, last.bias]
    return [array(value.detach().numpy()) for value in values]


def loop():
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(tensor(*parameter.shape) * 0.6)
    moving = [torch.zeros(6), torch.ones(6)]
    x, of_classes = tensor(ROWS, 4), torch.tensor([0.5, 2.0, 1.0])
    labels = torch.tensor([0, 2, -100, 1, 2])
    # PyTorch adds it after the bias correction, Keras before.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, eps=1e-12, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=10, cycle_momentum=False)
    initial, losses = weights(model, moving), []
    for step in range(STEPS):
        with torch.no_grad():
            made = model[0](x)
            moving = [0.9 * old + 0.1 * new for old, new in zip(moving, (made.mean(0), made.var(0, unbiased=False)))]
        loss = F.cross_entropy(model(x), labels, weight=of_classes, ignore_index=-100, label_smoothing=0.1)
        (loss / 2).backward()
        if step % 2 == 1:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()
        losses.append([float(str(np.float32(loss.item())))])
    inputs = [array(value.numpy()) for value in (x, labels.to(torch.int32))]
    final = weights(model, moving)
    return {"name": "accumulated", "inputs": inputs, "initial": {"model": initial}, "losses": losses, "final": {"model": final}}


if __name__ == "__main__":
    text = json.dumps({"torch": torch.__version__, "records": [loop()]}, separators=(",", ":"))
    Path(__file__).with_name("loops.json").write_text(text + "\n")
