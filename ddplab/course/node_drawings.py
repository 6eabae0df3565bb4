"""Pictures for the part on torchrun: which GPU a rank asks for, where a curve falls back, what was forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ddplab.plots import INK, drawing
from ddplab.pointer import pointing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def gpus_asked_for(local: Sequence[int], node: Sequence[int]) -> Figure:
    """Draw the GPU that each rank of a job asks for: by its RANK (a cross), and by its LOCAL_RANK (a ring).

    local, node: LOCAL_RANK and GROUP_RANK of rank 0, 1, 2, … A grey band marks the GPUs that a node has. Returns the
    matplotlib figure.
    """
    ranks = list(range(len(local)))
    with drawing(max(6, 0.7 * len(ranks)), max(3, 0.25 * len(ranks))) as figure:
        axis = figure.subplots()
        axis.axhspan(-0.4, max(local) + 0.4, color=INK, alpha=0.2, label="GPUs that a node has")
        axis.plot(ranks, ranks, "X:", markersize=10, label="cuda:{RANK}")
        axis.plot(ranks, local, "o", markersize=16, fillstyle="none", label="cuda:{LOCAL_RANK}")
        axis.set_xticks(ranks, [f"RANK {rank}\nnode {node[rank]}" for rank in ranks])
        axis.set_yticks(ranks, [f"cuda:{rank}" for rank in ranks])
        axis.legend()
    return figure


@pointing
def fall_back(places: Sequence[int], around: int = 6) -> Figure:
    """Draw the place in the training at each step that a rank took, over all attempts, near where it falls back.

    Returns the matplotlib figure. Raises ValueError when the curve never falls back.
    """
    falls = [n for n in range(1, len(places)) if places[n] <= places[n - 1]]
    if not falls:
        raise ValueError("the curve never falls back")
    first, last = max(0, falls[0] - around), min(len(places), falls[-1] + around)
    with drawing(6, 3) as figure:
        axis = figure.subplots()
        axis.plot(range(first, last), places[first:last], "o-", markersize=4)
        axis.set(xlabel="steps of the rank, in both attempts", ylabel="place in the training")
    return figure


def distances(forgot: Mapping[str, float]) -> Figure:
    """Draw a bar for each thing that was forgotten: how far the weights then end from those of the calm run."""
    with drawing(7, 3) as figure:
        axis = figure.subplots()
        axis.bar_label(axis.barh(list(forgot), list(forgot.values())), fmt="{:.1%}", padding=3)
        axis.set(xlabel="how far the final weights are from the calm run's", xlim=(0, 1.2 * max(forgot.values())))
        axis.invert_yaxis()
    return figure
