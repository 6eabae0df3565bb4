"""Pictures of training on one device: images, losses, where a step's time and memory go, runs side by side, noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from ddplab.plots import COLOURS, DASHES, INK, MARKERS, ON_COLOUR, drawing, shades

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from ddplab.metrics import Metrics

HATCHES = ("", "///", "...", "xxx", "---")
NUMBERS_KEPT = {"SGD": 0, "SGD with momentum": 1, "Adam": 2}  # for each parameter, from one update to the next


def images(pictures: Tensor, labels: Sequence[str] | Tensor) -> Figure:
    """Draw images, (n, 1, height, width), in a row, each with its label, a digit or a few words, above."""
    with drawing(0.8 * len(pictures), 1.1) as figure:
        axes = figure.subplots(1, len(pictures), squeeze=False)[0]
        for axis, picture, label in zip(axes, pictures, labels, strict=True):
            axis.imshow(picture[0].tolist(), cmap=shades())
            axis.set_title(label if isinstance(label, str) else int(label), fontsize=10)
            axis.set(xticks=[], yticks=[])
    return figure


def which_curve(curves: Mapping[str, Sequence[float]]) -> Figure:
    """Draw curves to choose from, beside each other and without numbers, each with its name above."""
    with drawing(9, 1.7) as figure:
        for axis, (name, heights) in zip(figure.subplots(1, len(curves), sharey=True), curves.items(), strict=True):
            axis.plot(heights, linewidth=1)
            axis.set(title=name, xticks=[], yticks=[], xlabel="batches", ylim=(0, 2.6))
        figure.axes[0].set_ylabel("loss")
    return figure


def each_batch(losses: Sequence[float], epoch: int, top: float = 3) -> Figure:
    """Draw the loss of each batch of a training, with a ring at the last of every epoch.

    epoch: how many batches are one. top: the upper edge; what is above it, or is no number, is drawn there.
    """
    heights = [min(loss, top) if isfinite(loss) else top for loss in losses]
    with drawing(7, 2.6) as figure:
        axis = figure.subplots()
        axis.plot(range(1, len(heights) + 1), heights, linewidth=1)
        last = range(epoch, len(heights) + 1, epoch)
        axis.plot(last, [heights[n - 1] for n in last], "o", markersize=11, fillstyle="none", color=INK, clip_on=False)
        axis.set(xlabel="batch", ylabel="its loss", ylim=(0, top))
    return figure


def beside_the_usual(
    losses: Sequence[float], usual: Sequence[float], name: str, its_name: str, across: str = "step", first: int = 0
) -> Figure:
    """Draw the losses of a training, solid, and of the usual way, dashed. across: whose they are, from `first` on."""
    with drawing(7, 2.4) as figure:
        axis = figure.subplots()
        steps = range(first, first + len(losses))
        axis.plot(steps, usual, linestyle="--", color=COLOURS[1], linewidth=4, label=its_name)
        axis.plot(steps, losses, color=COLOURS[0], label=name)
        axis.set(xlabel=across, ylabel="loss", ylim=(0, 1.1 * max(*losses, *usual)))
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure


def memory_bars(held: Mapping[str, Mapping[str, float]], room: float | None = None) -> Figure:
    """Draw what fills a device's memory as stacked bars.

    Args:
        held: a bar's name → what it is made of, from the bottom up: name → bytes. Every bar has the same names; "?" is
            an empty box.
        room: the bytes that a device has, a dashed line; the axis then counts GB, and goes to three times that, and
            above each bar stands what it comes to.
    """
    unit, bytes_in_it = ("GB", 1e9) if room else ("kilobytes", 1000)
    with drawing(1.5 * len(held) + 3, 3.4) as figure:
        axis = figure.subplots()
        bottoms = [0.0] * len(held)
        for name, hatch in zip(next(iter(held.values())), HATCHES, strict=False):
            heights = [parts[name] / bytes_in_it for parts in held.values()]
            unknown = {"fill": False, "edgecolor": INK, "linewidth": 1.2, "linestyle": ":"}
            look = unknown if name == "?" else {"hatch": hatch, "edgecolor": ON_COLOUR, "linewidth": 0.6}
            axis.bar(list(held), heights, 0.6, bottoms, label=name, **look)
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
        axis.set(ylabel=unit, xlim=(-0.5, len(held) - 0.5))
        handles, names = axis.get_legend_handles_labels()  # beside the bars, and in their order
        axis.legend(handles[::-1], names[::-1], loc="upper left", bbox_to_anchor=(1, 1))
        if room:
            axis.axhline(room / bytes_in_it, color=INK, linestyle="--")
            axis.text(len(held) - 0.45, room / bytes_in_it, f"{room / bytes_in_it:g} GB", va="center")
            for place, height in enumerate(height * bytes_in_it for height in bottoms):
                above = room if 0.78 * room < height < room else height  # no number lies across the dashed line
                words, look = f"{height / bytes_in_it:.0f} GB", {"ha": "center", "va": "bottom"}
                axis.annotate(words, (place, above / bytes_in_it), (0, 3), textcoords="offset points", **look)
            axis.set_ylim(0, 3 * room / bytes_in_it)
    return figure


def how_full(billions: float, known: Any = (), kept: Mapping[str, float] = NUMBERS_KEPT) -> tuple[str, Figure]:
    """Draw what fills a device of 80 GB in training so many billion float32 parameters: a bar for each optimiser.

    The batch's activations are made up: 60 GB for 7 billion. known: the parts that are shown; the others are one, "?",
    and without any all are. kept: optimiser → numbers that it keeps for each parameter. Returns the GB in words, and
    the figure.
    """
    gb = 4e9 * billions
    held = {
        name: {"parameters": gb, "gradients": gb, "state": numbers * gb, "activations": 60e9 / 7 * billions}
        for name, numbers in kept.items()
    }
    told = ", ".join(f"{name} {sum(parts.values()) / 1e9:.1f}" for name, parts in held.items())
    for parts in held.values() if known else ():
        parts["?"] = sum(parts.pop(name) for name in [*parts] if name not in known)
    return f"{billions} billion parameters, GB on one device: {told}", memory_bars(held, room=80e9)


def beside(runs: Mapping[str, Metrics], column: str, top: float, what: str = "seed", across: str = "epoch") -> Figure:
    """Draw one logged column of several runs side by side: a chart for each run, a line for each rank.

    Args:
        runs: title → the metrics of a run.    column: what was logged, drawn against the step.
        top: the upper edge, where it is cut off.    what: what a rank stands for.    across: what a step is called.
    """
    with drawing(3.0 * len(runs), 2.8) as figure:
        axes = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
        for axis, (title, metrics) in zip(axes, runs.items(), strict=True):
            for rank in sorted({row["rank"] for row in metrics if column in row}):
                rows = [row for row in metrics if row["rank"] == rank and column in row]
                heights = [min(row[column], top) if isfinite(row[column]) else top for row in rows]
                look = {"linestyle": DASHES[rank % 4], "marker": MARKERS[rank % 8], "markersize": 4}
                axis.plot([row["step"] for row in rows], heights, **look, label=f"{what} {rank}")
            axis.set(xlabel=across, title=title, ylim=(0, top))
            axis.locator_params(axis="x", integer=True)
        axes[0].set_ylabel(column)
        axes[-1].legend(fontsize=9)
    return figure


def distances(far: Mapping[str, Mapping[str, float]], rounding: float) -> Figure:
    """Draw how far apart two ways end: a row for each key, a mark for each name, a broken line at `rounding`."""
    with drawing(8, 0.4 * len(far) + 1.3) as figure:
        axis = figure.subplots()
        for number, name in enumerate(next(iter(far.values()))):
            look = {"marker": MARKERS[number], "markersize": 9, "linestyle": "", "alpha": 0.8}
            axis.semilogx([of[name] for of in far.values()], [row + 0.2 * number for row in range(len(far))], **look)
        axis.axvline(rounding, color=INK, linestyle="--")
        axis.set(xlim=(1e-18, 1), ylim=(len(far) - 0.3, -0.4), xlabel="apart, as a share of the weights' length")
        axis.set_yticks([row + 0.2 for row in range(len(far))], list(far))
        axis.legend(list(next(iter(far.values()))), loc="lower left", bbox_to_anchor=(0, 1), fontsize=9, ncols=3)
    return figure


def clouds(
    swarms: Mapping[str, tuple[Tensor, Tensor]], reach: float, error: Callable[..., float] | None = None
) -> Figure:
    """Draw gradients as dots beside the one that they estimate, the arrow: how far each goes along it, and to the side.

    Args:
        swarms: title → gradients, (how many, numbers in each), and the gradient that they estimate.
        reach: how far up the chart goes, in lengths of the arrow; what lies beyond is left out.
        error: (gradients, gradient) → the radius of a dashed arc around the tip. There is none without.

    A dot is as far from the tip as its gradient is off.
    """
    from matplotlib.patches import Circle

    with drawing(min(4.5 * len(swarms), 11), 3.3 if len(swarms) < 3 else 2.8) as figure:
        axes = figure.subplots(1, len(swarms), squeeze=False)[0]
        for axis, (title, (gradients, whole)) in zip(axes, swarms.items(), strict=True):
            along = gradients @ whole / whole.norm() ** 2
            off = (gradients - along[:, None] * whole).norm(dim=1) / whole.norm()
            axis.plot(along, off, "o", markersize=3)
            if error:
                radius = float(error(gradients, whole))
                axis.add_patch(Circle((1, 0), radius, fill=False, edgecolor=INK, linestyle="--"))
            axis.axvline(0, color=INK, linewidth=0.5)
            axis.annotate("", (1, 0), (0, 0), arrowprops={"arrowstyle": "-|>", "lw": 2, "color": INK}, zorder=3)
            axis.set(xlim=(-reach * 0.6, reach), ylim=(-0.04 * reach, reach), aspect="equal", title=title)
            axis.set(xlabel="along the whole gradient", ylabel="off to the side")
    return figure


def epochs_and_updates(metrics: Metrics, names: Sequence[Any]) -> Figure:
    """Draw the logged `loss` of each rank twice: against `epoch`, and against `updates`. names: what the ranks are."""
    with drawing(9, 3.4) as figure:
        axes = figure.subplots(1, 2, sharey=True)
        for axis, across in zip(axes, ("epoch", "updates"), strict=True):
            for rank, name in enumerate(names):
                look = {"linestyle": DASHES[rank % 4], "marker": MARKERS[rank % 8], "markersize": 4}
                axis.loglog(metrics.column(across, rank), metrics.column("loss", rank), **look, label=str(name))
            axis.set(xlabel=across)
        axes[0].set(ylabel="loss, all training images")
        axes[0].legend(fontsize=9)
    return figure


def layer_bars(held: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw what each layer holds as a bar, the first layer on top, a stretch for each part, in kilobytes.

    held: layer → part → bytes. Every layer has the same parts.
    """
    with drawing(9, 0.32 * len(held) + 1) as figure:
        axis = figure.subplots()
        left = [0.0] * len(held)
        for part, hatch in zip(next(iter(held.values())), HATCHES, strict=False):
            widths = [row[part] / 1000 for row in held.values()]
            axis.barh(list(held), widths, left=left, hatch=hatch, edgecolor=ON_COLOUR, linewidth=0.6, label=part)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axis.set(xlabel="kilobytes", ylim=(len(held) - 0.4, -0.6))
        axis.legend(fontsize=9)
    return figure


def step_curve(moments: Sequence[Any], top: float = 21) -> Figure:
    """Draw what is there after each operation of a step, a stretch for each part, and a large mark at the peak.

    moments: each a phase, and what is there: parameters, gradients, state, batch, in bytes (`memory_step.Moment`).
    top: the upper edge, in megabytes. A phase is as wide as any other, however many operations it has.
    """
    phases = [it.phase for it in moments]
    many = {phase: phases.count(phase) for phase in phases}
    begins = {phase: phases.index(phase) for phase in many}
    order = [*many]
    places = [order.index(it) + (at - begins[it]) / many[it] for at, it in enumerate(phases)]
    with drawing(9, 3.4) as figure:
        axis = figure.subplots()
        bottom = [0.0] * len(moments)
        for number, name in ((0, "parameters"), (2, "state"), (1, "gradients"), (3, "batch")):  # what stays lies below
            above = [low + getattr(it, name) / 1e6 for low, it in zip(bottom, moments, strict=True)]
            look = {"hatch": HATCHES[number], "facecolor": COLOURS[number], "edgecolor": ON_COLOUR, "linewidth": 0}
            told = "batch: images, activations,\nand their gradients" if name == "batch" else name
            axis.fill_between(places, bottom, above, **look, label=told)
            bottom = above
        high = max(range(len(bottom)), key=bottom.__getitem__)
        axis.plot(places[high], bottom[high], "o", color=COLOURS[3], markersize=12, markeredgecolor=INK)
        axis.annotate("peak", (places[high], bottom[high]), (10, 2), textcoords="offset points")
        for place in range(len(order)):
            axis.axvline(place, color=INK, linewidth=0.8)
        axis.set(ylabel="megabytes", xlim=(0, places[-1]), ylim=(0, top))
        axis.set_xticks([place + 0.5 for place in range(len(order))], order)
        axis.tick_params(axis="x", length=0)
        handles, names = axis.get_legend_handles_labels()
        axis.legend(handles[::-1], names[::-1], loc="upper left", bbox_to_anchor=(1, 1))
    return figure
