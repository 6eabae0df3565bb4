"""Pictures of DDP: equal curves, differences down at rounding, buckets on their way, and dropout masks of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ddplab.plots import COLOURS, DASHES, INK, MARKERS, ON_COLOUR, drawing, rimmed, shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HATCHES = ("///", "...", "xxx", "---")


def beside(
    one: Sequence[float],
    ranks: Sequence[Sequence[float]],
    what: str = "loss of each step",
    names: tuple[str, str] = ("one device", "{} ranks, the mean"),
) -> Figure:
    """Draw one device's curve, broad, under the mean of the ranks' curves, thin; and each rank's own.

    one: a number a step. ranks: for each rank as many; of a single one only the thin curve is drawn. names: of the
    broad curve and the thin one. Returns the matplotlib figure.
    """
    mean = [sum(step) / len(ranks) for step in zip(*ranks, strict=True)]
    with drawing(8, 4.2) as figure:
        axis = figure.subplots()
        axis.plot(one, linewidth=8, color=INK, label=names[0])  # the colours are the ranks' (LEGEND.md)
        axis.plot(mean, **rimmed(1), label=names[1].format(len(ranks)))
        for rank, values in enumerate(ranks if len(ranks) > 1 else []):
            look = {"linestyle": DASHES[rank % 4], "linewidth": 1.4, "color": COLOURS[rank % 8]}
            axis.plot(values, label=f"rank {rank} alone", **look)
        axis.set(xlabel="step", title=what)
        axis.legend()
    return figure


def differences(gaps: Mapping[str, Sequence[float]], lines: Mapping[str, float]) -> Figure:
    """Draw how far apart two things are at each step, on a logarithmic axis, with a named line at some heights.

    gaps: name → a difference a step. lines: name → where it is drawn. Returns the matplotlib figure.
    """
    with drawing(8, 3.2) as figure:
        axis = figure.subplots()
        for number, (name, values) in enumerate(gaps.items()):
            axis.semilogy(values, marker=MARKERS[number], markersize=4, label=name)
        for name, height in lines.items():
            axis.axhline(height, color=INK, linewidth=0.8)
            axis.annotate(name, (0, height), (0, -4), textcoords="offset points", va="top", fontsize=8)
        axis.set(xlabel="step", ylabel="difference, as a share", ylim=(1e-19, 1))
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(loc="upper right")
    return figure


def buckets_in_time(panels: Mapping[str, Sequence[Sequence[tuple[str, int, float]]]]) -> Figure:
    """Draw when layers are ready and buckets on their way, in a panel for each backward and a lane for each rank.

    panels: title → for each rank its events, (what, number, seconds on one clock): ("ready", a layer, …),
        ("leaves", a bucket, …), ("back", a bucket, …), and ("begins", 0, …) for where the rank's backward begins. The
        panel's zero is the first event of all.

    A triangle is a layer, a bar is a bucket from where it leaves to where it is back. Returns the matplotlib figure.
    """
    with drawing(8, 2.4 * len(panels), layout="constrained") as figure:
        axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axis, (title, ranks) in zip(axes, panels.items(), strict=True):
            begin = min(seconds for events in ranks for _, _, seconds in events)
            for rank, events in enumerate(ranks):
                at = {(what, number): 1000 * (seconds - begin) for what, number, seconds in events}
                _draw_lane(axis, rank, at)
            names = [f"rank {rank}" for rank in range(len(ranks))]
            axis.set(title=title, yticks=range(len(ranks)), yticklabels=names, ylim=(len(ranks) - 0.4, -0.6))
            axis.margins(x=0.1)
        axes[-1].set_xlabel("ms")
    return figure


def _draw_lane(axis: Axes, rank: int, at: Mapping[tuple[str, int], float]) -> None:
    for (what, number), ms in at.items():
        if what == "ready":
            axis.plot(ms, rank - 0.25, "v", color=INK)
            axis.annotate(f"layer {number}", (ms, rank - 0.33), ha="center", fontsize=8)
        elif what == "leaves":
            low = rank - 0.1 + 0.15 * (number % 4)
            look = {"hatch": HATCHES[number % 4], "color": COLOURS[number % 8], "edgecolor": ON_COLOUR}
            bar = axis.barh(low, at["back", number] - ms, 0.14, ms, **look)
            axis.bar_label(bar, [f" bucket {number}"], fontsize=7)


def masks(panels: Mapping[str, Sequence[Any]]) -> Figure:
    """Draw the dropout masks of ranks: a panel for each title, the ranks below one another with a line between them.

    panels: title → for each rank a table (tensor or lists) of rows. An entry of 0 was dropped, and is drawn grey.
    Returns the matplotlib figure.
    """
    with drawing(8, 3.4, layout="constrained") as figure:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (title, ranks) in zip(axes, panels.items(), strict=True):
            tables = [table.tolist() if hasattr(table, "tolist") else table for table in ranks]
            dropped = [[entry == 0 for entry in row] for table in tables for row in table]
            axis.imshow(dropped, cmap=shades(), aspect="auto", interpolation="none", vmin=0, vmax=1)
            ticks, top = [], 0
            for table in tables:
                ticks.append(top + len(table) / 2 - 0.5)
                top += len(table)
                if top < len(dropped):
                    axis.axhline(top - 0.5, linewidth=4, color=COLOURS[1])
            axis.set(title=title, xlabel="entry", yticks=ticks, yticklabels=[f"rank {n}" for n in range(len(tables))])
    return figure
