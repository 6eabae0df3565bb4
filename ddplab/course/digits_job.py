"""The job that the lesson on checkpoints stops and resumes: what it is made of, its batches, one step, an accident."""

import os
import signal
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from ddplab.course.data import digits
from ddplab.hardware import device


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))


def make() -> dict[str, Any]:
    """On every rank: all that changes while the job runs."""
    if device().type == "cuda":
        torch.cuda.set_device(device())  # torch.cuda's random state is that of the current GPU
    torch.manual_seed(0)
    net = network().to(device())
    torch.manual_seed(dist.get_rank())  # dropout: each rank leaves out units of its own
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=48)  # two ranks: 4 epochs of 12
    return {"model": DDP(net), "optimizer": optimizer, "scheduler": scheduler}


def batches(epoch: int) -> DataLoader:
    """This rank's share of an epoch, in the order that belongs to the epoch."""
    sampler = DistributedSampler(digits())
    sampler.set_epoch(epoch)
    # A loader draws a number whenever it begins. From a generator of its own, it leaves dropout's numbers alone.
    return DataLoader(digits(), batch_size=64, sampler=sampler, generator=torch.Generator())


def step(job: dict[str, Any], x: Tensor, y: Tensor) -> float:
    """Train on one batch; return its loss."""
    loss = nn.functional.cross_entropy(job["model"](x.to(device())), y.to(device()))
    job["optimizer"].zero_grad()
    loss.backward()
    job["optimizer"].step()
    job["scheduler"].step()
    return loss.item()


def train(job: dict[str, Any], epochs: Iterable[int], losses: list[float] | None = None) -> Tensor:
    """Train whole epochs; return the weights as one long vector. losses: a list that gets the loss of each step."""
    for epoch in epochs:
        for x, y in batches(epoch):
            loss = step(job, x, y)
            if losses is not None:
                losses.append(loss)
    return torch.cat([p.detach().flatten() for p in job["model"].parameters()])


def accident(epoch: int, batch: int) -> None:
    """Rank 1 kills itself in the middle of epoch 2, on the first attempt."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1" and (epoch, batch) == (2, 8):
        os.kill(os.getpid(), signal.SIGKILL)
