"""PyTorch on one device: python single_torch.py mlp|cnn|fit_mlp BATCH BUDGET (see timing.py)."""

import timing

import numpy as np
import torch

from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(timing.THREADS)
torch.manual_seed(0)


def build(model):
    """The network."""
    if model == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
        )
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


class Trainer:
    """A network, its optimizer and the step."""

    def __init__(self, model):
        self.network = build(model)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01, momentum=0.9)
        self.loss = nn.CrossEntropyLoss()

    def step(self, x, y):
        """One whole training step; its loss, detached."""
        self.optimizer.zero_grad()
        loss = self.loss(self.network(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def by_slices(trainer, x, y, batch):
    """An epoch over a random permutation, by indexing tensors."""
    order = torch.randperm(len(x))
    total = sum(trainer.step(x[rows], y[rows]) for rows in order.split(batch))
    return total.item()


def by_loader(trainer, loader):
    """An epoch over the usual DataLoader."""
    return sum(trainer.step(x, y) for x, y in loader).item()


def main():
    """Times what was asked."""
    asked = timing.arguments()
    x, y = timing.data(asked.model, asked.batch)
    x, y = torch.from_numpy(np.moveaxis(x, -1, 1) if x.ndim == 4 else x).contiguous(), torch.from_numpy(y).long()
    trainer = Trainer(asked.model)
    if asked.model == "fit_mlp":
        loader = DataLoader(TensorDataset(x, y), batch_size=asked.batch, shuffle=True)
        epochs = {
            "torch_fit_mlp_slices": lambda: by_slices(trainer, x, y, asked.batch),
            "torch_fit_mlp_loader": lambda: by_loader(trainer, loader),
        }
        for name, epoch in epochs.items():
            timing.emit(name, "torch", torch.__version__, asked, timing.epoch_times(epoch, asked.budget))
    else:
        seconds = timing.step_times(asked.model, lambda: trainer.step(x, y).item(), asked.budget)
        timing.emit(f"torch_{asked.model}", "torch", torch.__version__, asked, seconds)


if __name__ == "__main__":
    main()
