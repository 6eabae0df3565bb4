"""A picture of processes: who comes when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddplab.plots import COLOURS, ON_COLOUR, drawing, rimmed

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
