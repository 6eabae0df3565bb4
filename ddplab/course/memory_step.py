"""One training step, moment by moment: the bytes that are there after each of torch's operations, and the peak.

The network is deep and even: layers of a convolution and a ReLU, all of them with images of the same size.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from ddplab.course.data import digits
from ddplab.course.training_drawings import step_curve
from ddplab.hardware import device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHANNELS = 16
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Moment(NamedTuple):
    """What is there after an operation, in bytes. batch: the images, activations, and the gradients of activations."""

    phase: str  # "forward", "backward" or "update"
    parameters: int
    gradients: int
    state: int
    batch: int

    @property
    def together(self) -> int:
        return sum(self[1:])


@functools.cache  # what a slider comes back to, and a cell asks again, is measured once
def a_step(numbers: str = "float32", block: int = 0, layers: int = 64, images: int = 64) -> Sequence[Moment]:
    """Take one step with Adam, which has taken one before, and return what is there after each operation.

    numbers: a name in `PRECISIONS`, for all numbers. block: with checkpointing, the layers in a block, of which only
    the input is kept; 0 is without.
    """
    torch.manual_seed(0)
    dtype = PRECISIONS[numbers]
    sizes = [1] + [CHANNELS] * layers
    convolutions = [nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU()) for a, b in pairwise(sizes)]
    net = nn.Sequential(*convolutions, nn.Sequential(nn.Flatten(), nn.Linear(64 * CHANNELS, 10))).to(device(), dtype)
    pictures, labels = (tensor[:images].to(device()) for tensor in digits().tensors)
    x = pictures.to(dtype, copy=True)  # memory of its own, without the other images
    optimizer = torch.optim.Adam(net.parameters())

    def forward() -> Tensor:
        now = x
        for first in range(0, layers, block or layers):
            part = net[first : min(first + (block or layers), layers)]
            now = checkpoint(part, now, use_reentrant=False) if block else part(now)
        return F.cross_entropy(net[-1](now), labels)

    def step(phase: Callable[[str], None] = lambda _: None) -> None:
        phase("forward")
        loss = forward()
        phase("backward")
        loss.backward()
        del loss
        phase("update")
        optimizer.step()

    step()
    optimizer.zero_grad()
    fixed = [sum(t.nbytes for t in net.parameters()), 0]
    fixed[1] = sum(t.nbytes for of in optimizer.state.values() for t in of.values() if t.dim())
    counters = [t for of in optimizer.state.values() for t in of.values()]
    watch = _Watch([*net.parameters(), *counters, labels], [x])
    with watch:
        step(watch.begin)
    gradients = {watch.number(p.grad) for p in net.parameters()}
    return [
        Moment(phase, fixed[0], own := sum(alive.get(it, 0) for it in gradients), fixed[1], sum(alive.values()) - own)
        for phase, alive in watch.seen
    ]


def peak(moments: Sequence[Moment]) -> Moment:
    """Return the moment at which most is there."""
    return max(moments, key=lambda it: it.together)


def over_a_step(numbers: str = "float32", block: int = 0, layers: int = 64) -> tuple[str, Figure]:
    """Return the peak of a step, in words, and a picture of the whole step; for `move`."""
    moments = a_step(numbers, block, layers)
    high = peak(moments)
    parts = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in zip(high._fields[1:], high[1:], strict=True))
    return f"peak {high.together / 1e6:.1f} megabytes, in {high.phase}: {parts}", step_curve(moments)


class _Watch(TorchDispatchMode):
    """Notes after each operation which memory is alive, of what has been made since, and of what is told at first.

    A piece of memory has a number, which is not given twice; where it lies, another may lie later.
    """

    def __init__(self, without: Sequence[Tensor], at_first: Sequence[Tensor]):
        super().__init__()
        self.phase, self.seen = "", []
        self.alive: dict[int, int] = {}  # number → bytes
        self._next = count()
        self._numbers: dict[int, int] = {_place(it): -1 for it in without}  # where it lies → its number
        for tensor in at_first:
            self.number(tensor)

    def begin(self, phase: str) -> None:
        self.phase = phase

    def number(self, tensor: Tensor) -> int:
        """Return the number of a tensor's memory, and give it one where it has none."""
        memory, place = tensor.untyped_storage(), _place(tensor)
        if place not in self._numbers:
            number = self._numbers[place] = next(self._next)
            self.alive[number] = memory.nbytes()
            weakref.finalize(memory, self._forget, place, number)
        return self._numbers[place]

    def _forget(self, place: int, number: int) -> None:
        del self._numbers[place], self.alive[number]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for it in tree_leaves(result):
            if isinstance(it, Tensor):
                self.number(it)
        self.seen.append((self.phase, dict(self.alive)))
        return result


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
