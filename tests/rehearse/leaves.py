"""Its ranks are started by the script itself; rank 1 has a batch less, and leaves: rank 0 waits in all_reduce."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, world_size, file):
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{file}", rank=rank, world_size=world_size)
    loss = torch.ones(2, device="cuda")
    for _ in range(3 - rank):
        dist.all_reduce(loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (2, os.environ["MEETING"]), nprocs=2)
