"""Pictures of processes: who comes when, and what a message between two costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddplab.plots import COLOURS, INK, ON_COLOUR, drawing, rimmed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def arrivals(visits: Sequence[tuple[float, float]]) -> Figure:
    """Draw how long each rank stayed in a call: a hatched bar a rank, and a dashed line where the last one came.

    visits: of each rank, when it came and when it got away, in seconds of one clock. Returns the matplotlib figure.
    """
    first, last = min(came for came, _ in visits), max(came for came, _ in visits)
    with drawing(7, 0.4 * len(visits) + 0.8) as figure:
        axis = figure.subplots()
        for rank, (came, left) in enumerate(visits):
            axis.barh(rank, left - came, left=came - first, color=COLOURS[rank % 8], edgecolor=ON_COLOUR, hatch="//")
        axis.axvline(last - first, linestyle="--", **rimmed(1.5))
        axis.set_yticks(range(len(visits)), [f"rank {rank}" for rank in range(len(visits))])
        axis.invert_yaxis()
        axis.set_xlabel("seconds")
    return figure


def message_costs(sizes: Sequence[int], seconds: Sequence[float], place: int) -> Figure:
    """Draw what one message takes, both axes logarithmic, and mark one of them large. Returns the figure.

    sizes: bytes of each message. place: which of them is marked.
    """
    with drawing(6, 3) as figure:
        axis = figure.subplots()
        axis.loglog(sizes, seconds, "o-")
        axis.loglog(sizes[place], seconds[place], "o", markersize=14, color=COLOURS[1], markeredgecolor=INK)
        axis.set(xlabel="bytes in the message", ylabel="seconds on its way")
        axis.grid(alpha=0.3)
    return figure
