"""PyTorch on replicas: python scaling_torch.py MODEL BATCH REPLICAS (see README.md).

Two replicas are two processes of `DistributedDataParallel` over gloo, each with one thread. The first serves the turns; how many
steps to take goes to the others by a broadcast of its own, outside of what is timed.
"""

import replicas

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from torch import nn


def build(model):
    """The network."""
    if model == "resnet50":
        # Others need not wait for it.
        import torchvision

        network = torchvision.models.resnet50(num_classes=replicas.CLASSES)
        # As the article and Keras have it: the stride is in the first convolution of a block, not the second.
        for stage in (network.layer2, network.layer3, network.layer4):
            stage[0].conv1.stride, stage[0].conv2.stride = stage[0].conv2.stride, stage[0].conv1.stride
        return network
    if model == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, replicas.CLASSES),
        )
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, replicas.CLASSES))


def stepper(asked, rank):
    """The whole training step of one replica, which gives its loss."""
    return parts(asked, rank)[0]


def parts(asked, rank):
    """The whole training step of one replica, its network and its optimizer."""
    torch.manual_seed(0)
    x, y = replicas.data(asked, rank)
    x, y = torch.from_numpy(x), torch.from_numpy(y).long()
    network = build(asked.model).train()
    if x.ndim == 4:
        # A view that moves the channels is what the format is: nothing is copied.
        x, network = x.permute(0, 3, 1, 2), network.to(memory_format=torch.channels_last)
    called = nn.parallel.DistributedDataParallel(network) if asked.replicas > 1 else network
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad()
        loss = loss_of(called(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, network, optimizer


def replica(rank, asked, port):
    """One process."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, [replicas.PROCESSORS[rank]])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=asked.replicas)
    step = stepper(asked, rank)
    if rank == 0:
        serve_all(step)
        return
    steps = torch.zeros(1, dtype=torch.long)
    while True:
        dist.broadcast(steps, 0)
        if steps.item() == 0:
            break
        for _ in range(steps.item()):
            step()


def serve_all(step):
    """Serves turns, and tells the other processes of each how many steps it has."""
    one = torch.ones(1, dtype=torch.long)
    replicas.serve("torch", torch.__version__, "", step, lambda count: dist.broadcast(one * count, 0))
    dist.broadcast(one * 0, 0)


def main():
    """Serves steps."""
    asked = replicas.ASKED
    if asked.replicas == 1:
        torch.set_num_threads(1)
        replicas.serve("torch", torch.__version__, "", stepper(asked, 0))
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context("fork")
    others = [context.Process(target=replica, args=(rank, asked, port), daemon=True) for rank in range(1, asked.replicas)]
    for other in others:
        other.start()
    replica(0, asked, port)
    for other in others:
        other.join(30)


if __name__ == "__main__":
    main()
