"""PyTorch on whole models: python models_torch.py MODEL BATCH [--variant compiled] [--work predict] (see README.md).

Images are in the channels-last format; bfloat16 is autocast. Convolutional models are torchvision's with Keras' places of
strides, so that the work is the same. What is compiled for prediction is frozen: parameters are constants, normalisations go into
the convolutions.
"""

import os

import turns

ASKED = turns.arguments()
if ASKED.work != "train":
    os.environ["TORCHINDUCTOR_FREEZING"] = "1"

import torch
import torchvision

from torch import nn

torch.set_num_threads(turns.THREADS)
torch.manual_seed(0)


class Transformer(nn.Module):
    """An encoder of 4 layers, normalised before each part, and a projection to the vocabulary."""

    def __init__(self, width=256, heads=4, inner=1024, layers=4):
        super().__init__()
        self.tokens = nn.Embedding(turns.VOCABULARY, width)
        self.places = nn.Parameter(torch.randn(turns.LENGTH, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, inner, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, turns.VOCABULARY)

    def forward(self, x):
        """Logits `[batch, length, vocabulary]`."""
        return self.head(self.norm(self.layers(self.tokens(x) + self.places)))


class Recurrent(nn.Module):
    """A recurrent layer over a sequence, then classes of its last state."""

    def __init__(self, kind, units):
        super().__init__()
        self.layer = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](units, units, batch_first=True)
        self.head = nn.Linear(units, turns.CLASSES)

    def forward(self, x):
        """Logits `[batch, classes]`."""
        return self.head(self.layer(x)[0][:, -1])


def resnet50():
    """ResNet-50 of the article: the stride is in the first convolution of a block, not the second."""
    network = torchvision.models.resnet50(num_classes=turns.CLASSES)
    for stage in (network.layer2, network.layer3, network.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = stage[0].conv2.stride, stage[0].conv1.stride
    return network


def build(model):
    """The network."""
    if model == "resnet50":
        return resnet50()
    if model == "mobilenet_v2":
        return torchvision.models.mobilenet_v2(num_classes=turns.CLASSES, dropout=0.0)
    if model == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, turns.CLASSES),
        )
    if model in turns.RECURRENT:
        kind, units = model.split("_")
        return Recurrent(kind, int(units))
    return Transformer()


def trainer(asked, network, called, x, y):
    """Forward, backward and update; the loss."""
    loss_of = nn.CrossEntropyLoss()
    parameters = network.parameters()
    if asked.model == "transformer":
        optimizer = torch.optim.Adam(parameters, 1e-3)
    else:
        optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9)

    def step():
        optimizer.zero_grad()
        with torch.autocast(asked.device, dtype=torch.bfloat16, enabled=asked.bf16):
            scores = called(x.to(asked.device))
            loss = loss_of(scores.view(-1, scores.shape[-1]), y.to(asked.device))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def forward(asked, called, x, y):
    """The outputs, or the loss of them, without what a gradient needs."""
    loss_of = nn.CrossEntropyLoss()

    @torch.inference_mode()
    def step():
        with torch.autocast(asked.device, dtype=torch.bfloat16, enabled=asked.bf16):
            scores = called(x.to(asked.device))
            if asked.work == "predict":
                return scores.cpu().numpy().flat[0].item()
            return loss_of(scores.view(-1, scores.shape[-1]), y.to(asked.device)).item()

    return step


def main():
    """Serves steps."""
    x, y = turns.data(ASKED)
    x, y = torch.from_numpy(x), torch.from_numpy(y).long().flatten()
    if ASKED.device == "cuda":
        # TF32, as XLA has it.
        torch.set_float32_matmul_precision("high")
    if not ASKED.host_batch:
        x, y = x.to(ASKED.device), y.to(ASKED.device)
    network = build(ASKED.model).train(ASKED.work == "train").to(ASKED.device)
    if x.ndim == 4:
        # A view that moves the channels is what the format is: nothing is copied.
        x, network = x.permute(0, 3, 1, 2), network.to(memory_format=torch.channels_last)
    elif ASKED.model == "transformer":
        x = x.long()
    called = torch.compile(network) if ASKED.variant == "compiled" else network
    if ASKED.work == "train":
        step = trainer(ASKED, network, called, x, y)
    else:
        step = forward(ASKED, called, x, y)
    turns.serve("torch", torch.__version__, ASKED.variant, step)


if __name__ == "__main__":
    main()
