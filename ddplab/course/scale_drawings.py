"""Pictures of scaling: what was measured, beside the ideal and the machine's limit or a model, and what is planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from ddplab.plots import COLOURS, DASHES, INK, MARKERS, drawing

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure


def strong_and_weak(
    ranks: Sequence[int],
    strong: Sequence[float],
    weak: Sequence[float],
    places: int,
    guess: Any = (),
    weak_guess: Any = (),
) -> Figure:
    """Draw the speed-up of strong scaling and the efficiency of weak scaling, each beside the ideal and the limit.

    ranks: how many there were. strong, weak: what was measured with each. places: how many ranks can work at once.
    guess, weak_guess: what somebody guessed of the two, if anybody did; what is no number is left out, and what is far
        above all others is not seen, for they would be flat.

    Returns the matplotlib figure.
    """
    panels = {
        "strong scaling: speed-up": (strong, list(ranks), guess),
        "weak scaling: efficiency": (weak, [1 for _ in ranks], weak_guess),
    }
    with drawing(9, 3.4) as figure:
        axes = figure.subplots(1, 2)
        for axis, (title, (measured, ideal, said)) in zip(axes, panels.items(), strict=True):
            limit = [best * min(n, places) / n for best, n in zip(ideal, ranks, strict=True)]
            axis.plot(ranks, ideal, ":", color=INK, label="ideal")
            axis.plot(ranks, limit, "--", color=COLOURS[1], label="limit of the machine")
            axis.plot(ranks, measured, "o-", color=COLOURS[0], markersize=9, label="measured")
            guessed = {n: it for n, it in zip(ranks, _numbers(said, len(ranks)), strict=True) if it is not None}
            if len(guessed) > 1:  # one is given
                axis.plot(list(guessed), list(guessed.values()), "D-.", color=COLOURS[3], label="your guess")
            axis.set(title=title, xlabel="ranks", xticks=ranks, ylim=(0, None))
            axis.set_ylim(0, min(axis.get_ylim()[1], 1.5 * max(*ideal, *measured)))
        lines = max((axis.lines for axis in axes), key=len)  # a guess may be of one alone
        axes[0].legend(handles=[*lines], fontsize=9, loc="upper left")
    return figure


def off_by(measured: Sequence[float], guess: Any) -> list[str]:
    """Say of each measurement how far somebody's guess is off; nothing of the first, which is given, or of no number.

    guess: a list, or whatever else somebody has written; it may be too short or too long.
    """
    pairs = zip(measured, _numbers(guess, len(measured)), strict=True)
    told = ["" if it is None else f"  you said {it:g}: off by {abs(it - true):.1f}" for true, it in pairs]
    return ["", *told[1:]]


def _numbers(guess: Any, many: int) -> list[float | None]:
    given = [*guess, *[None] * many] if isinstance(guess, list | tuple) else [None] * many
    return [it if isinstance(it, int | float) and isfinite(it) else None for it in given[:many]]


def exposed_times(
    backwards: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    marks: Mapping[str, Sequence[float]],
) -> Figure:
    """Draw how much of the messages is exposed, against how long the backward pass computes, in milliseconds.

    lines: name → what is planned for each of `backwards`. marks: the same, as measured. Returns the figure.
    """
    with drawing(8, 3.6) as figure:
        axis = figure.subplots()
        for n, (name, found) in enumerate(lines.items()):
            axis.plot(backwards, found, DASHES[n], color=COLOURS[n], label=name)
        for n, (name, found) in enumerate(marks.items()):
            look = {"color": COLOURS[n], "markersize": 9, "fillstyle": "none", "clip_on": False}
            axis.plot(backwards, found, MARKERS[n], label=name, **look)
        axis.set(xlabel="ms that the backward pass computes", ylabel="exposed ms")
        axis.set(xlim=(0, None), ylim=(0, None))
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, fontsize=9, columnspacing=1, frameon=False)
    return figure


def efficiencies(planned: Mapping[str, Sequence[float]], gpus: Sequence[int], title: str) -> Figure:
    """Draw the efficiency against the number of GPUs, a line for each name in `planned`. Returns the figure."""
    with drawing(8, 3.6) as figure:
        axis = figure.subplots()
        for n, (name, found) in enumerate(planned.items()):
            axis.semilogx(gpus, found, base=2, marker=MARKERS[n], linestyle=DASHES[n], label=name)
        axis.axhline(1, color=INK, linewidth=0.7)
        axis.set(xlabel="GPUs", ylabel="efficiency", ylim=(0, 1.05), title=title, xticks=gpus, xticklabels=gpus)
        axis.minorticks_off()
        axis.legend()
    return figure


def near_or_not(rows: Mapping[str, Sequence[tuple[float, float]]], says: float, near: float) -> Figure:
    """Draw what was said of rows against what was measured: a mark for each plan, filled where it is near the truth.

    rows: group → (measured, planned) of each row; what lies further right than the axis stands at its end.  says: the
    one number that somebody says of all rows, a stroke for each.  near: how far off is near, as a part of what was
    measured; so wide is the band. Returns the figure.
    """
    ends = [0.7, 1.05]
    with drawing(8, 3.8) as figure:
        axis = figure.subplots()
        edges = [[(1 + off) * it for it in ends] for off in (-near, near)]
        axis.fill_between(ends, *edges, facecolor=f"{INK}50", edgecolor=INK, linewidth=0.8, label=f"within {near:.0%}")
        axis.plot(ends, ends, ":", color=INK, label="said as measured", linewidth=3)
        for n, (name, points) in enumerate(rows.items()):
            for fill, label in (("full", f"planned, {name}"), ("none", None)):
                them = [(min(x, ends[1]), y) for x, y in points if (abs(y / x - 1) < near) == (fill == "full")]
                look = {"color": COLOURS[n], "marker": MARKERS[n], "fillstyle": fill, "linestyle": "", "label": label}
                axis.plot([x for x, _ in them], [y for _, y in them], **look, clip_on=False)
        measured = [min(x, ends[1]) for points in rows.values() for x, _ in points]
        look = {"color": COLOURS[3], "marker": "|", "linestyle": "", "markersize": 12, "label": f"you: {says:.0%}"}
        axis.plot(measured, [says for _ in measured], **look, clip_on=False)
        axis.set(xlabel="measured efficiency", ylabel="said", xlim=ends, ylim=(0.68, 1.02))
        axis.legend(fontsize=9, loc="upper left", bbox_to_anchor=(1.02, 1))
    return figure


def messages_in_backward(layers: Sequence[int], sent: Sequence[int], portions: int) -> Figure:
    """Draw which gradients travel in which message, along the backward passes of an update: no seconds, but bytes.

    layers: bytes of each layer's gradients, the last layer first, as backward has them. sent: bytes of each message,
    the first that leaves first; only the last of the portions sends. Returns the matplotlib figure.
    """
    whole = sum(layers)
    with drawing(9, 2) as figure:
        axis = figure.subplots()
        ends = [sum(sent[: n + 1]) / whole + portions - 1 for n in range(len(sent))]
        bars = [(end - size / whole, size / whole) for end, size in zip(ends, sent, strict=True)]
        ready = [(n + sum(layers[:i]) / whole, it / whole) for n in range(portions) for i, it in enumerate(layers)]
        axis.broken_barh(ready, (-0.3, 0.6), facecolor=COLOURS[0], edgecolor="white", linewidth=2)
        axis.broken_barh(bars, (0.7, 0.6), facecolor="none", edgecolor=COLOURS[1], hatch="////")
        axis.plot(ends, [1 for _ in ends], ">", color=INK, markersize=9, clip_on=False)
        axis.set(yticks=[0, 1], yticklabels=["gradients", "messages"], ylim=(1.5, -0.5), xlim=(0, portions))
        axis.set(xticks=range(portions + 1), xlabel="backward passes of an update")
    return figure


def matrices(named: Mapping[str, torch.Tensor]) -> Figure:
    """Draw matrices side by side, a pixel for each number, all in the shades of the first one's range.

    named: title → tensor of two dimensions, on the CPU. Returns the figure.
    """
    reach = next(iter(named.values())).abs().quantile(0.98).item()
    with drawing(2.3 * len(named), 2.6) as figure:
        for axis, (title, matrix) in zip(figure.subplots(1, len(named)), named.items(), strict=True):
            axis.imshow(matrix, cmap="coolwarm", vmin=-reach, vmax=reach, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            axis.set_title(title, fontsize=9)
    return figure
