"""Darts thrown at a square by real ranks: one sees them fall on each rank, and then pooled by an all_reduce."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ddplab.course.controls import widget
from ddplab.plots import COLOURS, INK, SHAPES, drawing
from ddplab.pointer import pointing
from ddplab.run import Run
from ddplab.screen import show
from ddplab.tables import brief
from ddplab.worker import log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Darts = list[list[tuple[float, float]]]  # of each rank, where its darts have landed: x and y, from 0 to 1


def logging_darts(throw: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function for `launch` that does what `throw` does, and logs where each dart lands (see `fall`).

    A dart is a row of two random numbers, however and wherever `throw` has torch draw them.
    """
    return partial(_throw, throw)


def _throw(throw: Callable[[], Any]) -> Any:
    with _Logging():
        return throw()


class _Logging(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__.startswith("rand.") and out.dim() == 2 and out.shape[1] == 2:
            log(darts=" ".join(f"{number:.4f}" for number in out.flatten().tolist()))
        return out


def landed(run: Run) -> Darts:
    """Return where the darts of each rank have landed, in their order, from what the ranks have logged."""
    darts: Darts = [[] for _ in range(run.world_size)]
    for row in run.metrics:
        numbers = list(map(float, row.get("darts", "").split()))
        darts[row["rank"]] += zip(numbers[::2], numbers[1::2], strict=True)
    return darts


@pointing
def fall(run: Run) -> None:
    """Show how the darts of a run fell, with buttons to play it and a slider; elsewhere how they lie in the end.

    run: of a function from `logging_darts` that returns on each rank the hits of all ranks. Each dart is a mark of its
    rank, pale where it is outside of the quarter circle. Raises ValueError where no dart was logged.
    """
    darts = landed(run)
    if not any(darts):
        raise ValueError("no dart was logged: launch(logging_darts(…)), with a function that throws some")
    flat = [[round(1000 * number) for dart in rank for number in dart] for rank in darts]
    hits = [[int(within(*dart)) for dart in rank] for rank in darts]
    looks, returned = list(zip(SHAPES, COLOURS, strict=True)), list(map(brief, run.results))
    make = partial(widget, "darts", darts=flat, hits=hits, returned=returned, looks=looks)
    show(words(darts), make, lambda: draw(darts))


def within(x: float, y: float) -> bool:
    """Tell whether a dart is in the quarter circle."""
    return x * x + y * y < 1


def words(darts: Darts) -> str:
    """Return what became of the darts: a line for each rank, and one for all."""
    named = {f"rank {rank}": thrown for rank, thrown in enumerate(darts)} | {"together": _all(darts)}
    return "\n".join(f"{name:8}  {_count(thrown)}" for name, thrown in named.items())


def _all(darts: Darts) -> list[tuple[float, float]]:
    return [dart for rank in darts for dart in rank]


def _count(thrown: list[tuple[float, float]]) -> str:
    hits = sum(within(*dart) for dart in thrown)
    return f"{hits:,} of {len(thrown):,} within: π ≈ {4 * hits / max(1, len(thrown)):.3f}"


def draw(darts: Darts) -> Figure:
    """Draw where the darts lie: a square for each rank, and one for all. Returns the matplotlib figure."""
    with drawing(2.2 * (len(darts) + 1), 2.6) as figure:
        axes = figure.subplots(1, len(darts) + 1)
        circle = torch.linspace(0, torch.pi / 2, 60)
        for axis in axes:
            axis.plot(circle.cos(), circle.sin(), color=INK, linewidth=1)
            axis.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[], aspect="equal")
        for rank, thrown in enumerate(darts):
            for axis in (axes[rank], axes[-1]):
                for inside, alpha in ((True, 0.9), (False, 0.3)):
                    points = [dart for dart in thrown if within(*dart) is inside]
                    look = {"marker": f"${SHAPES[rank % 8]}$", "color": COLOURS[rank % 8], "alpha": alpha}
                    axis.scatter(*zip(*points, strict=True), s=5, linewidths=0, **look) if points else None
            axes[rank].set_title(f"rank {rank}\n{_count(thrown)}", fontsize=9)
        axes[-1].set_title(f"together\n{_count(_all(darts))}", fontsize=9)
    return figure
