"""The small training of lesson 8.1: what each rank holds of it, in bytes a parameter, however it is shared out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from ddplab.course.data import digits
from ddplab.course.drawings import bytes_held
from ddplab.course.memory import activations, held, watch_buckets, whole_weights
from ddplab.hardware import device
from ddplab.launcher import launch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Share = Callable[[nn.Sequential], tuple[nn.Module, Optimizer]]  # a network → it, ready for training; its optimiser
Parts = dict[str, float]  # "weights", "gradients", "buckets", "Adam" → bytes a parameter
Ranks = tuple[tuple[Parts, Tensor], ...]  # of each rank, what it holds after a step, and the weights in the end
CARD = 80  # GB
COUNT = 4 * (64 * 64 + 64) + 64 * 10 + 10  # parameters of the network


def make() -> nn.Sequential:
    """Return the network, five layers, the same each time."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10))


def train(share: Share, dtype: torch.dtype, steps: int) -> tuple[Parts, Tensor]:
    """Train on this rank what `share` makes of the network; return what the rank holds, and then all weights."""
    net, optimizer = share(make().to(device(), dtype))
    beside = watch_buckets(net)
    x, y = digits().tensors
    for step in range(steps):
        mine = slice(64 * step + dist.get_rank(), 64 * step + 64, dist.get_world_size())
        optimizer.zero_grad()
        F.cross_entropy(net(x[mine].to(device(), dtype)), y[mine].to(device())).backward()
        optimizer.step()
    has = held(net, optimizer)
    parts = {"weights": has.weights, "gradients": has.gradients, "buckets": beside(), "Adam": has.state}
    return {part: size / COUNT for part, size in parts.items() if size}, whole_weights(net)


def on_ranks(ranks: int, *shares: Share, steps: int = 0) -> list[Ranks]:
    """Train on so many ranks, with each `share` anew, and return for each share a pair from each rank.

    The pair is what the rank holds after one step in float32, and the weights after `steps` steps in float64.
    """
    return list(zip(*launch(_each, shares, steps, nproc_per_node=ranks, quiet=True).results, strict=True))


def _each(shares: Sequence[Share], steps: int) -> list[tuple[Parts, Tensor]]:
    return [(train(share, torch.float32, 1)[0], train(share, torch.float64, steps)[1]) for share in shares]


def each_holds(share: Share, billions: int = 7) -> Callable[[int], tuple[str, Figure]]:
    """Return a function for `move`: it trains on so many ranks, and draws what the last one holds, and one alone."""
    ((alone, _),) = on_ranks(1, share)[0]

    def drawn(ranks: int) -> tuple[str, Figure]:
        parts = on_ranks(ranks, share)[0][-1][0]
        words = ", ".join(f"{part} {size:g}" for part, size in parts.items())
        words += f"\n{billions} billion parameters, {ranks} GPU{'s' * (ranks > 1)}: "
        words += f"each holds {billions * sum(parts.values()):g} GB"
        rows = {"alone": alone, f"each of {ranks}": parts}
        return words, bytes_held(rows, limit=CARD / billions, limit_name=f"{CARD} GB for {billions} billion", up_to=20)

    return drawn


def on_cards(**tools: Ranks) -> Callable[[str, int], tuple[str, Figure]]:
    """Return a function for `move` that draws what each rank of a tool holds, and says whether the card has room.

    tools: name → what `on_ranks` returned for it.
    """

    def drawn(tool: str, billions: int) -> tuple[str, Figure]:
        rows = {f"{tool}, rank {rank}": parts for rank, (parts, _) in enumerate(tools[tool])}
        most = billions * max(sum(parts.values()) for parts in rows.values())
        place = "below the line" if most < CARD else "on the line" if most == CARD else "too much"
        words = (
            f"{billions} billion, {len(rows)} cards of {CARD} GB, {tool}: the fuller rank holds {most:.0f} GB: {place}"
        )
        return words, bytes_held(rows, limit=CARD / billions, limit_name=f"{CARD} GB for {billions} billion", up_to=20)

    return drawn


def left(images: int, again: bool = False) -> int:
    """Return the bytes that a forward pass of so many images leaves for `backward()`; again: under `checkpoint`."""
    net, (x, y) = make(), digits().tensors
    call = partial(checkpoint, net, use_reentrant=False) if again else net
    return activations(net, lambda: F.cross_entropy(call(x[:images]), y[:images]))


def weigh(images: int) -> str:
    """Say what 16 bytes a parameter are, and what so many images leave for `backward()`: a ■ for each 10,000 bytes."""
    sizes = {"16 bytes a parameter": 16 * COUNT, "activations": left(images), "under checkpoint": left(images, True)}
    told = [f"{name:<21}{size:>8,} {'■' * round(size / 10_000)}" for name, size in sizes.items()]
    return "\n".join([f"images: {images}", *told])
