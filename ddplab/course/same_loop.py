"""The training loop of the lesson beyond DDP, by three names. A script, on the CPU:

torchrun --nproc-per-node 2 same_loop.py torch            # or accelerate, or lightning_fabric
"""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.course.data import digits
from ddplab.course.models import MLP
from ddplab.worker import cleanup


def with_torch(net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
    dist.init_process_group("gloo")
    return DDP(net), optimizer, torch.Tensor.backward


def with_accelerate(net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    return *accelerator.prepare(net, optimizer), accelerator.backward


def with_lightning_fabric(net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp")
    fabric.launch()
    return *fabric.setup(net, optimizer), fabric.backward


TOOLS = {"torch": with_torch, "accelerate": with_accelerate, "lightning_fabric": with_lightning_fabric}


def train(tool: str) -> None:
    torch.manual_seed(0)
    net = MLP()
    net, optimizer, backward = TOOLS[tool](net, torch.optim.Adam(net.parameters(), lr=0.01))
    x, y = digits().tensors
    for step in range(20):
        mine = slice(64 * step + dist.get_rank(), 64 * step + 64, dist.get_world_size())
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x[mine]), y[mine])
        backward(loss)
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"{tool}: {type(net).__name__}, last loss {loss.item():.5f}")
    cleanup()


if __name__ == "__main__":
    train(sys.argv[1])
