"""Pictures of processes: who comes when, what a message between two costs, and what a child has of its parent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ddplab.course.drawings import box
from ddplab.plots import COLOURS, ON_COLOUR, drawing, rimmed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def arrivals(visits: Sequence[tuple[float, float]]) -> Figure:
    """Draw how long each rank stayed in a call: a hatched bar a rank, and a dashed line where the last one came.

    visits: of each rank, when it came and when it got away, in seconds of one clock. Returns the matplotlib figure.
    """
    first, last = min(came for came, _ in visits), max(came for came, _ in visits)
    with drawing(7, 0.4 * len(visits) + 0.8) as figure:
        axis = figure.subplots()
        for rank, (came, left) in enumerate(visits):
            axis.barh(rank, left - came, left=came - first, color=COLOURS[0], edgecolor=ON_COLOUR, hatch="//")
        axis.axvline(last - first, linestyle="--", **rimmed(1.5))
        axis.set_yticks(range(len(visits)), [f"rank {rank}" for rank in range(len(visits))])
        axis.invert_yaxis()
        axis.set_xlabel("seconds")
    return figure


def message_costs(sizes: Sequence[int], seconds: Sequence[float]) -> Figure:
    """Draw what one message takes, both axes logarithmic. sizes: bytes of each message. Returns the figure."""
    with drawing(6, 3) as figure:
        axis = figure.subplots()
        axis.loglog(sizes, seconds, "o-")
        axis.set(xlabel="bytes in the message", ylabel="seconds on its way")
        axis.grid(alpha=0.3)
    return figure


def inherited(parent: Mapping[str, str], children: Mapping[str, Mapping[str, str]]) -> Figure:
    """Draw what a parent process holds, and beside it what a child of each kind found of that.

    parent: what it is → how it is in the parent. children: the way a child was started → the same things, and perhaps
    more, in it.

    What is as it is in the parent is bold, in a thick frame. Returns the matplotlib figure.
    """
    rows = max(len(parent), *map(len, children.values()))
    with drawing(1.9 * (len(children) + 1), 0.42 * (rows + 1)) as figure:
        axis = figure.subplots()
        axis.set(xlim=(0, 3 * (len(children) + 1)), ylim=(rows, -0.9))
        axis.axis("off")
        _draw_process(axis, 0, "the parent", parent, {})
        for place, (way, holds) in enumerate(children.items(), 1):
            _draw_process(axis, 3 * place, f"child by {way}", holds, parent)
    return figure


def _draw_process(axis: Axes, left: float, title: str, holds: Mapping[str, str], parent: Mapping[str, str]) -> None:
    axis.text(left + 1.4, -0.2, title, ha="center", fontsize=10, style="italic")
    for row, (what, how) in enumerate(holds.items()):
        same = parent.get(what) == how
        box(axis, left + 0.05, row + 0.06, 2.7, 0.88, f"{what}: {how}", same, size=9)
