"""Pictures of learning rates: schedules with their ends, and what a sweep over rates and batches found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ddplab.plots import COLOURS, INK, MARKERS, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor


def schedules(rates: Mapping[str, Sequence[float]], up_to: int = 0) -> Figure:
    """Draw the rate of every update of several runs: a line for each, thinner than the one before, its end marked.

    rates: what the run is → the rate of each of its updates, as a share of the peak. up_to: the update that the axis
    reaches at least, so that a longer run looks longer.
    """
    from matplotlib.ticker import MaxNLocator

    longest = max(up_to, *map(len, rates.values()))
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
        panels[-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))  # beside the curves, not over them
    return figure


def best_rates(best: Mapping[str, Tensor], batches: Sequence[int], powers: Mapping[str, float]) -> Figure:
    """Draw the best rate against the batch: a cross for each order, their mean, and a rule as a dashed line.

    Args:
        best: optimiser → the best rates, (batches, orders).
        batches: the batch sizes.
        powers: optimiser → the exponent of the rule, a line that starts at the first batch's mean.
    """
    from matplotlib.ticker import LogLocator

    with drawing(9, 3.4) as figure:
        panels = figure.subplots(1, len(best), squeeze=False)[0]
        for axis, (kind, found) in zip(panels, best.items(), strict=True):
            middle, power = found.log().mean(dim=1).exp(), powers[kind]
            rule = [float(middle[0]) * (batch / batches[0]) ** power for batch in batches]
            axis.loglog(batches, rule, "--", color=INK, label=f"exponent {power:g}")
            axis.loglog(batches, found, "x", color=COLOURS[1])
            axis.loglog(batches, middle, "o-", color=COLOURS[0], label="best rate, mean of the orders")
            axis.set(title=kind, xlabel="batch", ylabel="best rate", xticks=batches, xticklabels=batches)
            axis.minorticks_off()
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.legend(fontsize=8)
    return figure
