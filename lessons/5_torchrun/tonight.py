"""A training job, as one writes it on a calm day. torchrun … tonight.py FOLDER, a folder that all servers share."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import cleanup
from ddplab.course import data, night_job

IMAGES, LABELS = (tensor[:768] for tensor in data.digits().tensors)
STEPS = 36  # three epochs of 12 steps, 64 images a step


def resume(path, net, optimizer):
    """Put back what is saved at `path`, if anything is; return the step to go on with."""
    if not os.path.exists(path):
        return 0
    saved = torch.load(path)
    net.load_state_dict(saved["net"])
    return saved["done"]


def shuffled():
    order = torch.Generator().manual_seed(0)
    while True:
        yield from torch.randperm(len(IMAGES), generator=order).split(64)


stream = shuffled()


def picked(step, n):
    """The numbers of the 64 images of a step, of n; every rank picks the same."""
    return next(stream)


def save(state, path):
    """Rank 0 calls it; the others wait until it is back."""
    torch.save(state, path)


def meet(patience):
    """Make the process group."""
    dist.init_process_group("gloo")


def learn(model, images, labels, rank, size):
    """Leave the gradient of the whole batch in the parameters of every rank."""
    cross_entropy(model(images[rank::size]), labels[rank::size]).backward()


def main(path):
    meet(timedelta(seconds=3))
    rank, size = dist.get_rank(), dist.get_world_size()
    net = night_job.network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    start = resume(path, net, optimizer)
    model = DDP(net)
    for step in range(start, STEPS):
        night_job.clock(step, net, optimizer)  # here the accidents come
        numbers = picked(step, len(IMAGES))
        optimizer.zero_grad()
        learn(model, IMAGES[numbers], LABELS[numbers], rank, size)
        optimizer.step()
        night_job.trained(step, numbers, net)
        if step % 6 == 5:
            if rank == 0:
                save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "done": step}, path)
                night_job.saved(path)
            dist.barrier()
    night_job.over(net)
    cleanup()


if __name__ == "__main__":
    main(f"{sys.argv[1]}/last.pt")
