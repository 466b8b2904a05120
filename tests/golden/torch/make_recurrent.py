"""Weights of PyTorch's recurrent modules, and what the models with them answer.

    pip install torch==2.15.0 numpy safetensors==0.8.0
    python make_recurrent.py

`recurrent/NAME.safetensors`: the state of a model. `recurrent.json`: by name its input `[2, 5, 3]` and its output.
"""

import json

import torch

from safetensors.torch import save_file
from torch import nn

from make_torch import FOLDER, fill, flat, uniform


class Stack(nn.Module):
    """A recurrent module and a dense layer for each step, or for the last states of the module's last layer."""

    def __init__(self, module, outputs, every_step=False):
        super().__init__()
        self.rnn, self.out, self.every_step = module, nn.Linear(outputs, 2), every_step

    def forward(self, x):
        steps, last = self.rnn(x)
        if self.every_step:
            return self.out(steps)
        last = last[0] if isinstance(last, tuple) else last
        directions = 2 if self.rnn.bidirectional else 1
        return self.out(torch.cat(list(last[-directions:]), 1))


class Cells(nn.Module):
    """Cells, called for one step after the other."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LSTMCell(3, 4), nn.GRUCell(4, 5)

    def forward(self, x):
        inner, h = None, None
        for step in x.unbind(1):
            inner = self.first(step, inner)
            h = self.second(inner[0], h)
        return h


MODELS = {
    "lstm": Stack(nn.LSTM(3, 4, 2, batch_first=True), 4),
    "lstm_both_ways": Stack(nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), 8),
    "gru": Stack(nn.GRU(3, 4, 3, batch_first=True), 4, every_step=True),
    "gru_both_ways": Stack(nn.GRU(3, 4, batch_first=True, bidirectional=True), 8, every_step=True),
    "rnn": Stack(nn.RNN(3, 4, 2, batch_first=True), 4),
    "without_biases": Stack(nn.GRU(3, 4, batch_first=True, bias=False), 4),
    "projected": Stack(nn.LSTM(3, 4, batch_first=True, proj_size=2), 2),
    "cells": Cells(),
}

if __name__ == "__main__":
    answers = {}
    for name, model in MODELS.items():
        fill(model)
        save_file(model.state_dict(), FOLDER / "recurrent" / f"{name}.safetensors")
        x = torch.from_numpy(uniform(name, 30)).reshape(2, 5, 3).float()
        answers[name] = {"input": flat(x), "output": flat(model(x))}
    # A module's own state, whose names are of no module.
    save_file(MODELS["lstm_both_ways"].rnn.state_dict(), FOLDER / "recurrent" / "alone.safetensors")
    (FOLDER / "recurrent.json").write_text(json.dumps(answers) + "\n")
