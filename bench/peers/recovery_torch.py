"""PyTorch on workers of which one is killed: torchrun --nproc-per-node 2 --max-restarts 3 recovery_torch.py MODEL BATCH WORKERS FOLDER (see README.md)."""

import os
import sys
import time

FOLDER = sys.argv.pop()

import replicas  # noqa: E402
import scaling_torch  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

# Steps between checkpoints.
EVERY = 50


def main():
    """Steps of `DistributedDataParallel` over gloo from the last checkpoint on, without an end."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step, network, optimizer = scaling_torch.parts(replicas.ASKED, rank)
    checkpoint = os.path.join(FOLDER, "checkpoint")
    number = 0
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        number = saved["number"]
    with open(os.path.join(FOLDER, str(rank)), "a") as steps:
        while True:
            float(step())
            number += 1
            steps.write(f"{os.getpid()} {number} {time.time()}\n")
            steps.flush()
            if rank == 0 and number % EVERY == 0:
                state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "number": number}
                torch.save(state, checkpoint + ".new")
                os.replace(checkpoint + ".new", checkpoint)


if __name__ == "__main__":
    main()
