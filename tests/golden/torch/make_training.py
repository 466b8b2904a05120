"""Trainings of PyTorch, step by step: losses, and the state after the last update.

    pip install torch==2.15.0 safetensors==0.8.0
    python make_training.py

`training/start.safetensors`: what both begin with. `training/NAME.safetensors`: the state at the end of a training, and
`training/losses.json` the loss of each batch. `clipped` accumulates two batches for an update of SGD with momentum and clips the norm of all gradients;
`weighted` is AdamW with class weights, whose mean is over the weights. Statistics of the batch norm are as PyTorch keeps them, the variance
with the factor n / (n - 1).
"""

import json

import torch

from make_torch import FOLDER, fill
from safetensors.torch import save_file
from torch import nn

ROWS, BATCHES = 8, 6


def model():
    return fill(nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10))).train()


def batch(step):
    numbers = torch.arange(step * ROWS * 64, (step + 1) * ROWS * 64)
    labels = torch.arange(step * ROWS, (step + 1) * ROWS) * 7 % 10
    return (numbers * 7919 % 1000 / 1000 - 0.5).reshape(ROWS, 1, 8, 8), labels


def clipped():
    net, losses = model(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(BATCHES):
        x, y = batch(step)
        loss = nn.functional.cross_entropy(net(x), y)
        (loss / 2).backward()
        losses.append(loss.item())
        if step % 2 == 1:
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    return net, losses


def weighted():
    net, losses = model(), []
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0] + 8 * [1.0]))
    for step in range(BATCHES):
        x, y = batch(step)
        loss = criterion(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return net, losses


if __name__ == "__main__":
    folder = FOLDER / "training"
    folder.mkdir(exist_ok=True)
    save_file(model().state_dict(), folder / "start.safetensors")
    losses = {}
    for train in (clipped, weighted):
        net, losses[train.__name__] = train()
        save_file(net.state_dict(), folder / f"{train.__name__}.safetensors")
    (folder / "losses.json").write_text(json.dumps(losses) + "\n")
