"""The small training of lesson 8.1: what each rank holds of it, in bytes a parameter, however it is shared out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from ddplab.course.data import digits
from ddplab.course.drawings import bytes_held
from ddplab.course.memory import held, watch_buckets, whole_weights
from ddplab.hardware import device
from ddplab.launcher import launch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Share = Callable[[nn.Sequential], tuple[nn.Module, Optimizer]]  # a network → it, ready for training; its optimiser
Parts = dict[str, float]  # "weights", "gradients", "buckets", "Adam" → bytes a parameter
Ranks = tuple[tuple[Parts, Tensor], ...]  # of each rank, what it holds after a step, and the weights in the end
CARD = 80  # GB
# What one call sends to the other of two ranks, as a part of the weights: 5 layers, a weight and a bias each
OF_THE_WEIGHTS = {"allreduce": 1, "broadcast": 1 / 20, "allgather": 1 / 10, "reduce_scatter": 1 / 10}
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


def planned(
    bytes_each: Callable[[str, int], float], measured: Mapping[int, Sequence[Ranks]]
) -> Callable[..., tuple[str, Figure]]:
    """Return a function for `move`: it draws what a rank holds with DDP, ZeRO and FSDP2, as `bytes_each` has it.

    bytes_each: "ddp", "zero" or "fsdp", and how many ranks → bytes a parameter.
    measured: how many ranks → what `on_ranks` returned for the three. The fullest rank's is marked.
    """
    parts = {"weights": 4, "gradients": 4, "Adam": 8}
    tools = {"DDP": ("ddp", []), "ZeRO": ("zero", ["Adam"]), "FSDP2": ("fsdp", list(parts))}  # and what it shares out

    def drawn(billions: float, ranks: int, card_GB: int) -> tuple[str, Figure]:
        rows, words = {}, []
        for name, (tool, shared) in tools.items():
            total = bytes_each(tool, ranks)
            words.append(f"{name} {billions * total:,.0f} GB")
            whole = sum(size for part, size in parts.items() if part not in shared)
            mine = (total - whole) / (16 - whole) if shared else 1  # of what is shared
            rows[name] = {part: size * mine if part in shared else size for part, size in parts.items()}
        most = [max(sum(held.values()) for held, _ in it) for it in measured.get(ranks, [])]
        line = {"limit": card_GB / billions, "limit_name": f"{card_GB} GB for {billions} billion"}
        return ", ".join(words), bytes_held(rows, **line, up_to=20, marks=dict(zip(rows, most, strict=False)))

    return drawn


def sent(shares: Mapping[str, Share], weights_GB: float) -> dict[str, float]:
    """Return the GB that each of two ranks sends in a step, if the weights are so many, and print what was called.

    shares: tool → what makes the network ready. The collectives of one step are counted, on two ranks on the CPU.
    """
    sends = {}
    for tool, counts in launch(_counted, shares, device="cpu", quiet=True).results[0].items():
        sends[tool] = weights_GB * sum(n * OF_THE_WEIGHTS[call] for call, n in counts.items())
        calls = ", ".join(f"{n} × {call}" for call, n in counts.items())
        print(f"{tool:<12} sends {sends[tool]:g} GB {'■' * round(sends[tool] / 2):22} {calls}")
    return sends


def _counted(shares: Mapping[str, Share]) -> dict[str, dict[str, int]]:
    from torch.distributed.tensor.debug import CommDebugMode  # warns where there is no triton: only who counts hears it

    counts = {}
    for tool, share in shares.items():
        net, optimizer = share(make().to(device()))
        with CommDebugMode() as counter:
            net(torch.ones(8, 64, device=device())).sum().backward()
            optimizer.step()
        called = counter.get_comm_counts().items()
        counts[tool] = {str(call).split(".")[-1].strip("_").removesuffix("_base"): n for call, n in called}
    return counts
