"""Checks of lesson 9.6, Folklore, measured."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ddplab.checks.turns import turn


def _half_frozen(net: nn.Module, freeze: Callable[[nn.Module], Any] = lambda net: net[0].requires_grad_(False)) -> Any:
    freeze(net)
    return DistributedDataParallel(net)


def _after(net: nn.Module) -> nn.Module:
    model = DistributedDataParallel(net)
    net[0].requires_grad_(False)
    return model


def _tried(answer: Callable[..., Any], net: nn.Module) -> list[Any]:
    """Return whether it is in DDP, the bytes that a step hands over, if any, and which parameters stood still."""
    before = [p.detach().clone() for p in net.parameters()]
    model, sent = answer(net), []

    def hook(_, bucket):  # torch reads what a hook is annotated with
        sent.append(bucket.buffer().nbytes)
        return allreduce_hook(None, bucket)

    if wrapped := isinstance(model, DistributedDataParallel):
        model.register_comm_hook(None, hook)
    model(torch.full((2, 4), 1.0 + dist.get_rank())).square().sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    still = [name for (name, p), old in zip(net.named_parameters(), before, strict=True) if torch.equal(p, old)]
    count = sum(sent) if sent or not wrapped else "see below"  # the lesson asks for it there
    return ["yes" if wrapped else "no", count, ", ".join(still) or "none"]


turn(
    "9.6.a",
    "Frozen, and wrapped",
    _half_frozen,
    lambda rank, size: (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)),),
    ranks=(2,),
    device="cpu",
    call=_tried,
    heads=("in DDP", "bytes sent", "did not move"),
    mistakes=[
        (partial(_half_frozen, freeze=lambda net: setattr(net[0], "requires_grad", False)), "nothing is frozen",
         "`requires_grad_(False)`, with the underscore, reaches a layer's parameters. Without it, nothing happens."),
        (_after, "the first layer was frozen only after the wrap",
         "Freeze first, then wrap. What this order does, you see below."),
        (lambda net: net[0].requires_grad_(False) and net, "it is frozen, and nobody wrapped it", "Return `DDP(net)`."),
        (partial(_half_frozen, freeze=lambda net: net[0].weight.requires_grad_(False)),
         "the first layer's bias is not frozen", "`net[0].requires_grad_(False)` freezes the layer whole."),
        (partial(_half_frozen, freeze=lambda net: net[1].requires_grad_(False)),
         "the last layer is frozen, not the first", "The first is `net[0]`."),
    ],
    hints={"any parameter that requires a gradient": "All is frozen. Only `net[0]` is to be."},
    otherwise="Freeze `net[0]`, then return `DDP(net)`.",
)  # fmt: skip
