"""PyTorch on a large table of embeddings: python embeddings_torch.py sgd|adagrad|adam ROWS (see README.md).

Gradients of the table are sparse. SparseAdam takes no others, so the dense layer has Adam.
"""

import itertools

import embeddings

import torch

from torch import nn

torch.set_num_threads(embeddings.THREADS)
torch.manual_seed(0)


def main():
    """Takes steps when told to."""
    asked = embeddings.arguments()
    # PyTorch's own first values are normal, which takes ten times as long to draw.
    values = torch.empty(asked.rows, embeddings.WIDTH).uniform_(-0.05, 0.05)
    table = nn.EmbeddingBag.from_pretrained(values, freeze=False, mode="mean", sparse=True)
    head = nn.Linear(embeddings.WIDTH, 1)
    kinds = {
        "sgd": (torch.optim.SGD, torch.optim.SGD), "adagrad": (torch.optim.Adagrad, torch.optim.Adagrad),
        "adam": (torch.optim.SparseAdam, torch.optim.Adam),
    }
    parts = zip(kinds[asked.optimizer], (table, head))
    optimizers = [kind(list(part.parameters()), lr=asked.rate) for kind, part in parts]
    loss_of = nn.BCEWithLogitsLoss()
    batches = [(torch.from_numpy(x).long(), torch.from_numpy(y)) for x, y in embeddings.batches(asked.rows)]
    rest = itertools.cycle(batches)

    def step():
        x, y = next(rest)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = loss_of(head(table(x)), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss.item()

    embeddings.serve("torch", torch.__version__, "", step)


if __name__ == "__main__":
    main()
