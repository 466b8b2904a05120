"""PyTorch's first step on workers: torchrun --nproc-per-node 2 start_torch.py MODEL BATCH WORKERS (see README.md)."""

import json
import os
import time

import replicas
import scaling_torch
import torch
import torch.distributed as dist


def main():
    """One step of `DistributedDataParallel` over gloo, after which the first worker says when it was done."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    loss = float(scaling_torch.stepper(replicas.ASKED, rank)())
    if rank == 0:
        done = {"framework": "torch", "version": torch.__version__, "first_step_ms": 1e3 * time.time(), "loss": round(loss, 4)}
        print(json.dumps(done), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
