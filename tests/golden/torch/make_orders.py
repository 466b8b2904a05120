"""Weights of PyTorch around flattened images, and what the models with them answer.

    pip install torch==2.15.0 numpy safetensors==0.8.0
    python make_orders.py

`orders/NAME.safetensors`: the state of a model in which a flatten, or its inverse, lies between layers.
`orders.json`: by name the inputs and outputs, each with channels last.
"""

import json

import torch

from safetensors.torch import save_file
from torch import nn

from make_torch import FOLDER, fill, flat, uniform


class Joined(nn.Module):
    """Two flattened branches of images and a vector, one after the other."""

    def __init__(self):
        super().__init__()
        self.wide, self.deep = nn.Conv2d(2, 3, (1, 2)), nn.Conv2d(2, 4, 3)
        self.vector, self.hidden, self.out = nn.Linear(3, 5), nn.Linear(48 + 5 + 24, 6), nn.Linear(6, 2)

    def forward(self, image, vector):
        parts = [self.wide(image).flatten(1), self.vector(vector), self.deep(image).flatten(1)]
        return self.out(torch.relu(self.hidden(torch.cat(parts, 1))))


class Summed(nn.Module):
    """Flattened images and the outputs of a dense layer, added."""

    def __init__(self):
        super().__init__()
        self.conv, self.vector, self.norm = nn.Conv2d(2, 3, 2), nn.Linear(3, 36), nn.BatchNorm1d(36)
        self.out = nn.Linear(36, 2)

    def forward(self, image, vector):
        return self.out(self.norm(self.conv(image).flatten(1) + torch.tanh(self.vector(vector))))


class Nested(nn.Module):
    """Models in a model: one flattens, another reads; the sizes of all dims differ."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential()
        self.encoder.add_module("conv", nn.Conv2d(2, 3, 2))
        self.encoder.add_module("flat", nn.Flatten())
        self.head = nn.Sequential()
        self.head.add_module("norm", nn.LayerNorm(36, eps=1e-5))
        self.head.add_module("dense", nn.Linear(36, 2))

    def forward(self, image):
        return self.head(self.encoder(image))


class EachStep(nn.Module):
    """A layer for each step of a sequence."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, steps):
        return self.layer(steps.flatten(0, 1)).unflatten(0, steps.shape[:2])


class Frames(nn.Module):
    """A convolution, a flatten and a dense layer for each of 3 frames; then all of them, flattened twice."""

    def __init__(self):
        super().__init__()
        self.conv, self.dense = EachStep(nn.Conv2d(2, 3, 2)), EachStep(nn.Linear(18, 4))
        self.both, self.all = nn.Linear(12, 2), nn.Linear(54, 2)

    def forward(self, frames):
        images = self.conv(frames)
        each = torch.relu(self.dense(images.flatten(2)))
        return self.both(each.flatten(1)) + self.all(images.flatten(1))


class Squeezed(nn.Module):
    """Channels times a factor of each, flattened."""

    def __init__(self):
        super().__init__()
        self.conv, self.few, self.factors = nn.Conv2d(2, 4, 2), nn.Linear(4, 3), nn.Linear(3, 4)
        self.out = nn.Linear(48, 2)

    def forward(self, image):
        image = self.conv(image)
        factors = torch.sigmoid(self.factors(torch.relu(self.few(image.mean((2, 3))))))
        return self.out((image * factors[:, :, None, None]).flatten(1))


class Words(nn.Module):
    """A convolution of embeddings, flattened."""

    def __init__(self):
        super().__init__()
        self.table, self.conv, self.out = nn.Embedding(7, 3), nn.Conv1d(3, 4, 2), nn.Linear(20, 2)

    def forward(self, words):
        return self.out(self.conv(self.table(words).transpose(1, 2)).flatten(1))


class Conditioned(nn.Module):
    """A vector that is reshaped to images, and read by a dense layer as well."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.conv = nn.Linear(3, 24), nn.LayerNorm(24, eps=1e-5), nn.Conv2d(2, 3, 2)
        self.beside, self.behind = nn.Linear(24, 2), nn.Linear(18, 2)

    def forward(self, vector):
        vector = self.norm(self.first(vector))
        return self.beside(vector) + self.behind(self.conv(vector.unflatten(1, (2, 3, 4))).flatten(1))


MODELS = {
    "image": (nn.Sequential(nn.Flatten(), nn.Linear(40, 3)), [(2, 5, 4)]),
    "steps": (nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(12, 3)), [(2, 9)]),
    "images": (nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d((2, 1)), nn.Flatten(), nn.BatchNorm1d(30), nn.Dropout(),
        nn.LayerNorm(30), nn.Linear(30, 5), nn.ReLU(), nn.Linear(5, 2)), [(2, 5, 6)]),
    "volumes": (nn.Sequential(nn.Conv3d(2, 3, 2), nn.Flatten(), nn.Linear(72, 2)), [(2, 3, 4, 5)]),
    "generator": (nn.Sequential(
        nn.Linear(3, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Unflatten(1, (4, 2, 3)), nn.ConvTranspose2d(4, 2, 2), nn.Tanh()), [(3,)]),
    "painter": (nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 24), nn.Unflatten(1, (4, 2, 3)), nn.Sigmoid()), [(3,)]),
    "rectified": (nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.PReLU(3), nn.Flatten(), nn.PReLU(36), nn.Linear(36, 24), nn.Unflatten(1, (4, 2, 3)), nn.PReLU(4),
        nn.Conv2d(4, 3, 2), nn.PReLU()), [(2, 4, 5)]),
    "steps_generator": (nn.Sequential(nn.Linear(3, 12), nn.Unflatten(1, (3, 4)), nn.Conv1d(3, 2, 2)), [(3,)]),
    "autoencoder": (nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(18, 4), nn.Linear(4, 18), nn.Unflatten(1, (3, 2, 3)),
        nn.ConvTranspose2d(3, 2, 2)), [(2, 3, 4)]),
    "joined": (Joined(), [(2, 4, 5), (3,)]),
    "summed": (Summed(), [(2, 4, 5), (3,)]),
    "nested": (Nested(), [(2, 4, 5)]),
    "frames": (Frames(), [(3, 2, 3, 4)]),
    "squeezed": (Squeezed(), [(2, 4, 5)]),
    "words": (Words(), [(6,)]),
    "conditioned": (Conditioned(), [(3,)]),
}


def channels_last(x, name):
    """In our order: of frames, those of each."""
    if name == "frames" and x.dim() == 5:
        return x.permute(0, 1, 3, 4, 2)
    return x.movedim(1, -1) if x.dim() > 2 else x


if __name__ == "__main__":
    answers = {}
    for name, (model, shapes) in MODELS.items():
        fill(model)
        save_file(model.state_dict(), FOLDER / "orders" / f"{name}.safetensors")
        inputs = [torch.from_numpy(uniform(f"{name}{i}", 2 * torch.Size(shape).numel())).reshape(2, *shape).float()
                  for i, shape in enumerate(shapes)]
        if name == "words":
            inputs = [torch.tensor([[1, 5, 3, 6, 0, 2], [4, 4, 2, 1, 6, 3]])]
        output = model(*inputs)
        answers[name] = {
            "inputs": [flat(channels_last(x, name).contiguous()) for x in inputs],
            "output": flat(channels_last(output, name).contiguous()),
        }
    (FOLDER / "orders.json").write_text(json.dumps(answers) + "\n")
