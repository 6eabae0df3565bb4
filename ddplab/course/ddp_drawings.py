"""Pictures of DDP: equal curves, differences, buckets on their way, masks, albums, roads, what ranks hold."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ddplab.plots import COLOURS, DASHES, INK, MARKERS, ON_COLOUR, drawing, rimmed, shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

Spans = Sequence[tuple[float, float]]  # (begin, length) each


def beside(
    one: Sequence[float],
    ranks: Sequence[Sequence[float]],
    what: str = "loss of each step",
    names: tuple[str, str] = ("one device", "{} ranks, the mean"),
) -> Figure:
    """Draw one device's curve, broad, under the mean of the ranks' curves, thin; below, how far each strays.

    one: a number a step. ranks: for each rank as many; of a single one only the thin curve is drawn. names: of the
    broad curve and the thin one. Returns the matplotlib figure.
    """
    mean = [sum(step) / len(ranks) for step in zip(*ranks, strict=True)]
    with drawing(8, 4.2) as figure:
        axis, *below = figure.subplots(1 + (len(ranks) > 1), sharex=True, squeeze=False)[:, 0]
        axis.plot(one, linewidth=8, color=INK, label=names[0])  # the colours are the ranks' (LEGEND.md)
        axis.plot(mean, **rimmed(1), label=names[1].format(len(ranks)))
        for rank, values in enumerate(ranks if below else []):
            strays = [value - its for value, its in zip(values, one, strict=True)]
            look = {"linestyle": DASHES[rank % 4], "color": COLOURS[rank % 8]}
            below[0].plot(strays, label=f"rank {rank} minus one device", **look)
        axis.set_title(what)
        for it in (axis, *below):
            it.margins(y=0.2)
            it.legend(loc="upper right", ncols=2, fontsize=9)
        it.set(xlabel="step")
        it.xaxis.get_major_locator().set_params(integer=True)
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
        room = 1e8 if len(gaps) > 2 else 1e5  # for the legend
        top = max(1, *(room * max(values) for values in gaps.values()))
        axis.set(xlabel="step", ylabel="difference, as a share", ylim=(1e-19, top))
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(loc="upper right", ncols=1 + (len(gaps) > 2))
    return figure


def buckets_in_time(panels: Mapping[str, Sequence[Sequence[tuple[str, int, float]]]]) -> Figure:
    """Draw when layers are ready and buckets on their way, in a panel for each backward and a lane for each rank.

    panels: title → for each rank its events, (what, number, seconds on one clock): ("ready", a layer, …),
        ("leaves", a bucket, …), ("back", a bucket, …), and ("begins", 0, …) for where the rank's backward begins. The
        panel's zero is the first event of all.

    A triangle is a layer, a bar is a bucket from where it leaves to where it is back, hatched until it has left every
    rank. Returns the matplotlib figure.
    """
    with drawing(8, 2.4 * len(panels), layout="constrained") as figure:
        axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axis, (title, ranks) in zip(axes, panels.items(), strict=True):
            begin = min(seconds for events in ranks for _, _, seconds in events)
            lanes = [{(what, number): 1000 * (seconds - begin) for what, number, seconds in it} for it in ranks]
            left = {number: max(at["leaves", number] for at in lanes) for what, number in lanes[0] if what == "leaves"}
            for rank, at in enumerate(lanes):
                _draw_lane(axis, rank, at, left)
            names = [f"rank {rank}" for rank in range(len(ranks))]
            axis.set(title=title, yticks=range(len(ranks)), yticklabels=names, ylim=(len(ranks) - 0.4, -0.6))
            axis.margins(x=0.1)
        axes[-1].set_xlabel("ms")
    return figure


def _draw_lane(axis: Axes, rank: int, at: Mapping[tuple[str, int], float], left: Mapping[int, float]) -> None:
    for (what, number), ms in at.items():
        if what == "ready":
            axis.plot(ms, rank - 0.25, "v", color=INK)
            axis.annotate(f"layer {number}", (ms, rank - 0.33), ha="center", fontsize=8)
        elif what == "leaves":
            low = rank - 0.1 + 0.15 * (number % 4)
            axis.barh(low, left[number] - ms, 0.14, ms, facecolor="none", edgecolor=INK, hatch="////")
            look = {"color": COLOURS[rank % 8], "edgecolor": ON_COLOUR}
            bar = axis.barh(low, at["back", number] - left[number], 0.14, left[number], **look)
            axis.bar_label(bar, [f" bucket {number}"], fontsize=8)


def masks(panels: Mapping[str, Sequence[Any]], what: str = "entry") -> Figure:
    """Draw the dropout masks of ranks: a panel for each title, the ranks below one another with a line between them.

    panels: title → for each rank a table (tensor or lists) of rows. An entry of 0 was dropped, and is drawn grey.
    what: the name of the horizontal axis. Returns the matplotlib figure.
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
            axis.xaxis.get_major_locator().set_params(integer=True)
            names = [f"rank {n}" for n in range(len(tables))]
            axis.set(title=title, xlabel=what, yticks=ticks, yticklabels=names)
    return figure


def album(panels: Mapping[str, tuple[Tensor, Sequence[bool]]], across: int = 24) -> Figure:
    """Draw images, (n, 1, height, width) from 0 to 1, `across` in a row: title → they, and which are read right."""
    tall = 3.7 if max(len(images) for images, _ in panels.values()) > 3 * across else 1.7
    with drawing(9, tall, layout="constrained") as figure:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (title, (images, known)) in zip(axes, panels.items(), strict=True):
            high, wide = images.shape[2] + 2, images.shape[3]
            rows = images.new_zeros(len(images), high, wide)  # a dark line above each and one below
            rows[:, 1:-1] = images[:, 0]
            rows = rows.view(-1, across, high, wide).transpose(1, 2).reshape(-1, across * wide)
            axis.imshow(rows.tolist(), cmap="gray", vmin=0, vmax=1, interpolation="none")
            wrong = [divmod(place, across) for place, it in enumerate(known) if not it]
            for row, column in wrong:
                place = wide * (column + 0.5) - 0.5, high * (row + 0.5) - 0.5
                axis.plot(*place, "X", color=COLOURS[1], markeredgecolor=ON_COLOUR, markersize=8)
            axis.set(title=title, xticks=[], yticks=[])
    return figure


def agreement(panels: Mapping[str, Sequence[bool]], across: int = 64, what: str = "agree") -> Figure:
    """Draw which of many numbers agree, a small square each, `across` in a row: filled where they do, else empty.

    what: the word for it, beneath each panel.
    """
    from textwrap import fill

    with drawing(9, 3, layout="constrained") as figure:
        for axis, (title, agree) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            told = [float(it) for it in agree]
            rows = [told[start : start + across] for start in range(0, len(told), across)]
            rows[-1] += [0.0] * (across - len(rows[-1]))
            axis.imshow(rows, cmap=shades(), interpolation="none", vmin=0, vmax=1)
            if short := len(told) % across:  # a frame that leaves out what the last row lacks
                right, low, end = across - 0.5, len(rows) - 0.5, short - 0.5
                corners = (-0.5, right, right, end, end, -0.5, -0.5), (-0.5, -0.5, low - 1, low - 1, low, low, -0.5)
                axis.plot(*corners, color=INK, linewidth=0.8, clip_on=False)
                axis.spines[:].set_visible(False)
            axis.set_title(fill(title, 18), fontsize=9)
            anchor = "N" if len({*map(len, panels.values())}) > 1 else "C"  # unlike panels begin at one height
            axis.set(xticks=[], yticks=[], anchor=anchor, xlabel=f"{sum(told):.0f} of {len(told)}\n{what}")
    return figure


def star_and_ring(
    through_0: float, out_of_rank: float, n: int, lanes: Mapping[str, tuple[float, float, Spans]] | None = None
) -> Figure:
    """Draw the roads of both: on the left all through GPU 0, on the right around a ring. Broader is more bytes.

    through_0: bytes that leave or enter GPU 0 in a step of `DataParallel`. out_of_rank: what a DDP rank sends.
    n: GPUs, two at least. A disc's area is what leaves and enters it; the star's roads set the scale for both.
    lanes: name → when computing begins, for how long, and the messages, (begin, length) each, in ms. They are drawn
        below the roads to one scale: computing above, messages below it, filled where nothing is computed.
    """
    from math import cos, pi, sin

    from matplotlib.ticker import EngFormatter

    nice = EngFormatter("B", places=1)
    places = [(sin(2 * pi * gpu / n), cos(2 * pi * gpu / n)) for gpu in range(n)]
    star = [(0, gpu) for gpu in range(1, n)]
    ring = sorted({tuple(sorted((gpu, (gpu + 1) % n))) for gpu in range(n)})  # two ranks share one road
    each = through_0 / len(star), n * out_of_rank / len(ring)
    titles = (f"DataParallel: {nice(through_0)} through GPU 0", f"DDP: {nice(2 * out_of_rank)} through each rank")
    with drawing(8, 5.4 if lanes else 4.2) as figure:
        shape = {"height_ratios": [2.7, 1]} if lanes else {}
        axes = figure.subplot_mosaic([["star", "ring"], ["time", "time"]] if lanes else [["star", "ring"]], **shape)
        for axis, roads, size, title in zip((axes["star"], axes["ring"]), (star, ring), each, titles, strict=True):
            for start, end in roads:
                xs, ys = zip(places[start], places[end], strict=True)
                axis.plot(xs, ys, color=COLOURS[1], linewidth=5 * size / each[0], solid_capstyle="butt", zorder=1)
            for gpu, (x, y) in enumerate(places):
                through = size * sum(gpu in road for road in roads)
                look = {"facecolor": COLOURS[0], "edgecolor": INK, "zorder": 2}
                axis.scatter(x, y, s=150 * through / each[0], **look)
                axis.text(x, y, str(gpu), ha="center", va="center", fontsize=9, color=ON_COLOUR, zorder=3)
            axis.set(title=title, xlim=(-1.5, 1.5), ylim=(-1.2, 1.4), aspect="equal")
            axis.axis("off")
        if lanes:
            _draw_steps(axes["time"], lanes)
    return figure


def step_lanes(lanes: Mapping[str, tuple[float, float, Spans]], places: int = 0) -> Figure:
    """Draw steps to one scale, each with computing above and messages below it, filled where nothing is computed.

    lanes: name → when computing begins, for how long, and the messages, (begin, length) each, in ms. places: for how
    many lanes there is room, where more are to come. Returns the matplotlib figure.
    """
    places = max(places, len(lanes))
    with drawing(8, 0.8 + 0.6 * places) as figure:
        axis = figure.subplots()
        _draw_steps(axis, lanes)
        axis.set_ylim(places - 0.5, -0.5)
    return figure


def _draw_steps(axis: Axes, lanes: Mapping[str, tuple[float, float, Spans]]) -> None:
    longest = 0.0
    for row, (begin, length, messages) in enumerate(lanes.values()):
        axis.broken_barh([(begin, length)], (row - 0.36, 0.36), facecolor=COLOURS[0], edgecolor=INK)
        for start, takes in messages:
            hidden = max(0.0, min(start + takes, begin + length) - max(start, begin))
            for left, width, face in ((start, hidden, "none"), (start + hidden, takes - hidden, COLOURS[1])):
                if width > 0:  # messages come before computing, beneath it, or end after it
                    axis.broken_barh([(left, width)], (row, 0.36), facecolor=face, edgecolor=COLOURS[1])
        end = max(begin + length, *(start + takes for start, takes in messages))
        axis.text(end, row, f" {end:.1f} ms", va="center", fontsize=9)
        longest = max(longest, end)
    axis.set(yticks=range(len(lanes)), yticklabels=list(lanes), ylim=(len(lanes) - 0.5, -0.5), xlim=(0, 1.14 * longest))
    axis.set_xlabel("ms of a step: computing above, messages below it")


def held_beside(rows: Mapping[str, Sequence[Any]]) -> Figure:
    """Draw what each rank holds: a row of boxes for each name, a box for each rank; marked where the ranks differ."""
    from ddplab.course.drawings import box

    with drawing(6.4, 0.42 * len(rows) + 0.5) as figure:
        axis = figure.subplots()
        for row, (name, held) in enumerate(rows.items()):
            apart = any(it != held[0] for it in held)
            axis.text(-0.3, row + 0.5, name, ha="right", va="center", fontsize=9)
            for rank, it in enumerate(held):
                box(axis, 2.6 * rank, row + 0.08, 2, 0.84, str(it), apart, size=9)
                if rank:
                    axis.text(2.6 * rank - 0.3, row + 0.5, "≠" if apart else "=", ha="center", va="center")
        for rank in range(len(held)):
            axis.text(2.6 * rank + 1, -0.1, f"rank {rank}", ha="center", va="bottom", fontsize=9)
        axis.set(xlim=(-4, 2.6 * len(held)), ylim=(len(rows) + 0.1, -0.7))
        axis.axis("off")
    return figure


def without(rows: Mapping[str, Collection[int]], size: int) -> Figure:
    """Draw `size` numbered boxes in a row for each title, title → the numbers that are missing: those are marked."""
    from ddplab.course.drawings import box

    with drawing(9.5, 0.42 * len(rows) + 0.2) as figure:
        axis = figure.subplots()
        for row, (title, missing) in enumerate(rows.items()):
            axis.text(-0.4, row + 0.5, title, ha="right", va="center", fontsize=9)
            for number in range(size):
                box(axis, number, row + 0.08, 1, 0.84, str(number), number in missing, size=8)
        axis.set(xlim=(-4, max(size, 20) + 0.2), ylim=(len(rows) + 0.1, -0.1))
        axis.axis("off")
    return figure
