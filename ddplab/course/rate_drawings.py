"""Pictures of learning rates: schedules with their ends, and what a sweep over rates and batches found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ddplab.plots import COLOURS, DASHES, INK, MARKERS, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor


def schedules(rates: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the rate of every update of several runs: a line for each, thinner than the one before, its end marked.

    rates: what the run is → the rate of each of its updates, as a share of the peak.
    """
    from matplotlib.ticker import MaxNLocator

    longest = max(map(len, rates.values()))
    with drawing(8, 3.4) as figure:
        axis = figure.subplots()
        for n, (name, drawn) in enumerate(rates.items()):
            (line,) = axis.plot(drawn, linewidth=max(1.5, 4.5 - 1.5 * n))
            mark = {"marker": MARKERS[n % 8], "color": line.get_color(), "markeredgecolor": INK, "markersize": 9}
            axis.plot([len(drawn) - 1], [drawn[-1]], linestyle="", label=f"{name}: {len(drawn)} updates", **mark)
        axis.set(xlabel="update", ylabel="rate, as a share of the peak", ylim=(-0.05, 1.08))
        axis.set_xlim(-0.04 * longest, 1.04 * longest)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(rates), frameon=False)  # no curve lies under it
    return figure


def valleys(
    losses: Mapping[str, Mapping[int, Tensor]],
    rates: Mapping[str, Tensor],
    chosen: Mapping[str, Mapping[int, int]] | None = None,
) -> Figure:
    """Draw the loss against the rate: a panel for each optimiser, a line for each batch, a ring at its lowest point.

    Args:
        losses: optimiser → batch → the loss of each rate.
        rates: optimiser → its rates.
        chosen: optimiser → batch → a place in its rates, for a large mark on the line; a batch may be left out.
    """
    with drawing(9, 3.8) as figure:
        panels = figure.subplots(1, len(losses), squeeze=False)[0]
        for axis, (kind, by_batch) in zip(panels, losses.items(), strict=True):
            for n, (batch, loss) in enumerate(by_batch.items()):
                mark, lowest = MARKERS[n % 8], int(loss.argmin())
                look = {"markersize": 3, "linewidth": 1, "label": f"batch {batch}"}
                (line,) = axis.loglog(rates[kind], loss, mark + "-", **look)
                ring = {"marker": mark, "color": INK, "markersize": 9, "fillstyle": "none"}
                axis.plot([float(rates[kind][lowest])], [float(loss[lowest])], **ring)
                place = chosen[kind].get(batch) if chosen else None
                if place is not None:  # above the picture it sits on the upper edge
                    at = [float(rates[kind][place])], [min(float(loss[place]), 3)]
                    axis.plot(*at, mark, color=line.get_color(), markeredgecolor=INK, markersize=11, clip_on=False)
            axis.set(title=kind, xlabel="learning rate", ylabel="test loss", ylim=(0.06, 3))
        panels[-1].legend(fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))  # beside the curves, not over them
    return figure


def marks(
    tried: Mapping[tuple[str, ...], Mapping[float, float]],
    now: tuple[str, ...],
    at: float,
    axes: Mapping[str, Any] | None = None,
) -> Figure:
    """Draw the loss of each run that was tried: a line for each kind of run, the newest run large.

    tried: a kind, of one word or two → where on the x-axis → loss; the first word is a colour and a shape, the second
    a dash.  now, at: kind and place of the newest run.  axes: labels, limits and ticks, if the x-axis has no rates.
    """
    axes = axes or {"xlabel": "learning rate", "xlim": (0.003, 1.4), "ylim": (0.05, 3)}
    first, second = (list(dict.fromkeys(word for kind in tried for word in kind[n : n + 1])) for n in (0, 1))
    with drawing(8, 3.4) as figure:
        axis = figure.subplots()
        for (word, *other), runs in tried.items():
            n, dash = first.index(word), DASHES[second.index(*other) % 4 if other else 0]
            look = {"color": COLOURS[n % 8], "marker": MARKERS[n % 8], "linestyle": dash}
            points = zip(*sorted(runs.items()), strict=True)
            axis.loglog(*points, markersize=4, label=", ".join([word, *other]), **look)
            if (word, *other) == now:
                axis.plot(at, runs[at], **look | {"linestyle": ""}, markeredgecolor=INK, markersize=12)
        axis.set(**{"ylabel": "test loss"} | axes)
        if "xticks" in axes:
            axis.set_xticks(axes["xticks"], axes["xticks"], minor=False)
            axis.minorticks_off()
        axis.legend(fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    return figure
