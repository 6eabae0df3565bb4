"""Pictures of what ranks hold: strips of samples, and blocks of numbers before and after an exchange."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ddplab.plots import COLOURS, INK, ON_COLOUR, drawing, rimmed
from ddplab.pointer import pointing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def strip(
    served: Mapping[str, Sequence[Sequence[int]]],
    size: int,
    names: Sequence[str] = (),
    nobody: bool = True,
    wrong: Collection[int] = (),
) -> Figure:
    """Draw who is served which samples: a row of boxes for each rank, a box for each sample, with its number.

    Args:
        served: title → one list of sample numbers for each rank. Several titles (epochs, say) stand side by side.
        size: how many samples there are.    nobody: whether those that nobody is served are named below.
        names: what to call the rows; "rank 0", "rank 1", … when left out.
        wrong: samples that a model reads wrong: they bear a ✗.

    Boxes are filled in the order of the columns, from top to bottom. One whose sample was there before is hatched.
    Returns the matplotlib figure.
    """
    from matplotlib import colormaps

    left, depth = 0.0, max(len(rows) for rows in served.values())
    colours = colormaps["cividis"].resampled(size)
    width = sum(max(map(len, rows)) + 0.8 for rows in served.values())
    long = 0.22 * max(0, max(map(len, names), default=0) - 8)
    with drawing(0.42 * (width + 3 + long), 0.42 * (depth + 2)) as figure:
        axis = figure.subplots()
        for title, rows in served.items():
            columns, seen = max(map(len, rows)), set()
            for column in range(columns):
                for row, samples in enumerate(rows):
                    if column < len(samples):
                        sample = int(samples[column])
                        label = f"{sample}✗" if sample in wrong else str(sample)
                        _box(axis, left + column, row, label, None if sample in seen else colours(sample))
                        seen.add(sample)
            missing = ", ".join(str(sample) for sample in range(size) if sample not in seen)
            axis.text(left + columns / 2, -0.4, title, ha="center", va="bottom", fontsize=10)
            if missing and nobody:
                axis.text(left + columns / 2, depth + 0.3, f"nobody: {missing}", ha="center", va="top", fontsize=9)
            left += columns + 0.8
        for row in range(depth):
            name = names[row] if names else f"rank {row}"
            axis.text(-0.3, row + 0.5, name, ha="right", va="center", fontsize=9)
        axis.set(xlim=(-0.1 - long, left - 0.7), ylim=(depth + 0.1, -0.1), aspect="equal")
        axis.axis("off")
    return figure


def _box(axis: Axes, left: float, row: int, label: str, colour: tuple[float, ...] | None) -> None:
    """Draw one labelled box; without a colour it is a repeat: empty and hatched, its label on white."""
    from matplotlib.patches import Rectangle

    face, hatch = colour or "none", None if colour else "////"
    patch = None if colour else {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    # the contrast is 4.5 at least (WCAG 2.2), whatever the colour
    number = "white" if colour and sum(colour[:3]) < 1.37 else ON_COLOUR
    axis.add_patch(Rectangle((left, row), 1, 1, facecolor=face, edgecolor=INK, linewidth=0.8, hatch=hatch))
    axis.text(left + 0.5, row + 0.5, label, ha="center", va="center", fontsize=9, color=number, bbox=patch)


@pointing
def exchanges(
    results: Mapping[str, Sequence[Sequence[Any]]], moments: Sequence[str] = ("before", "after"), size: float = 0.42
) -> Figure:
    """Draw what every rank held at several moments: a panel per run, a row per rank, a block of numbers per moment.

    A number that was not at that place a moment before is bold, in a thick frame.

    Args:
        results: title → the `results` of a launch: of each rank, what it held at each moment, as a number, a tensor, a
            list of those, or None for nothing.
        moments: what the moments are called, from left to right. size: inches per number.

    Returns the matplotlib figure. Raises ValueError when a rank has not one thing for each moment.
    """
    panels = {title: [[_flat(held) for held in rank] for rank in ranks] for title, ranks in results.items()}
    if any(len(rank) != len(moments) for ranks in panels.values() for rank in ranks):
        raise ValueError(f"each rank must have returned one thing for each of: {', '.join(moments)}")
    widths = {t: [max(1, *map(len, column)) for column in zip(*ranks, strict=True)] for t, ranks in panels.items()}
    across = max(sum(w) + 1.5 * len(w) for w in widths.values()) + 2.5
    heights = [len(ranks) + 1.6 for ranks in panels.values()]
    with drawing(size * across, size * sum(heights)) as figure:
        axes = figure.subplots(len(panels), height_ratios=heights, squeeze=False)
        for axis, (title, ranks), height in zip(axes[:, 0], panels.items(), heights, strict=True):
            axis.set(xlim=(-2.5, across - 2.5), ylim=(height - 1, -1), aspect="equal")
            axis.axis("off")
            axis.set_title(title, fontsize=10, loc="left", pad=0)
            _draw_states(axis, ranks, widths[title], moments)
    return figure


def _draw_states(axis: Axes, ranks: list[list[list[float]]], widths: list[int], moments: Sequence[str]) -> None:
    for row, states in enumerate(ranks):
        axis.text(-0.4, row + 0.5, f"rank {row}", ha="right", va="center", fontsize=9)
        left, earlier = 0.0, states[0]
        for held, width, moment in zip(states, widths, moments, strict=True):
            if row == 0:
                axis.text(left, -0.4, moment, fontsize=9, style="italic")
            if left:
                axis.text(left - 0.75, row + 0.5, "→", ha="center", va="center")
            if not held:
                axis.text(left, row + 0.5, "nothing", va="center", fontsize=8)
            for place, number in enumerate(held):
                new = earlier[place : place + 1] != [number]
                text = f"{number:g}"
                box(axis, left + place, row + 0.08, 1, 0.84, text, new, size=8 if len(text) < 4 else 6.5)
            left, earlier = left + width + 1.5, held


def box(axis: Axes, left: float, top: float, width: float, height: float, text: str, marked: bool, size: float) -> None:
    """Draw a box with text in it; a marked one is filled, its frame thick and its text bold. size: of the text."""
    from matplotlib.patches import Rectangle

    frame, words = {"facecolor": "none", "linewidth": 0.8}, {}
    if marked:
        frame, words = {"facecolor": COLOURS[1], "linewidth": 2.5}, {"weight": "bold", "color": ON_COLOUR}
    axis.add_patch(Rectangle((left, top), width, height, edgecolor=INK, zorder=1 + marked, **frame))
    middle = left + width / 2, top + height / 2
    axis.text(*middle, text, ha="center", va="center", fontsize=size, zorder=3, **words)


def _flat(held: Any) -> list[float]:
    """The numbers in what a rank held, in order."""
    if held is None:
        return []
    held = held.tolist() if hasattr(held, "tolist") else held
    return [number for part in held for number in _flat(part)] if isinstance(held, list | tuple) else [held]


@pointing
def lanes(told: Mapping[str, Sequence[Mapping[str, Any]]], waits: Sequence[str], seconds: float) -> Figure:
    """Draw who does what, and who waits where: a panel for each run, a lane for each rank, time from left to right.

    Args:
        told: title → the rows that the ranks logged (`run.metrics`), with a column `doing`: what a rank does from then
            on. "returned" and "died" end its lane, with a mark; whatever else comes last goes on to the right edge.
        waits: what of it are collectives, in which a rank waits for others. These stretches are hatched.
        seconds: how much to draw, from the first row of a run.

    Returns the matplotlib figure. Raises KeyError when no row says what a rank is doing.
    """
    if not any("doing" in row for rows in told.values() for row in rows):
        raise KeyError("nothing to draw: call log(doing=…) in each rank, before what it does next")
    ranks = {title: sorted({row["rank"] for row in rows if "doing" in row}) for title, rows in told.items()}
    heights = [len(lane) + 0.4 for lane in ranks.values()]
    with drawing(7.5, 0.45 * sum(heights) + 0.45 * len(told) + 0.3) as figure:
        axes = figure.subplots(len(told), height_ratios=heights, squeeze=False)[:, 0]
        for axis, (title, rows) in zip(axes, told.items(), strict=True):
            begin = min(row["time"] for row in rows if "doing" in row)
            for lane, rank in enumerate(ranks[title]):
                said = [(row["time"] - begin, row["doing"]) for row in rows if row["rank"] == rank and "doing" in row]
                _draw_lane(axis, lane, said, waits, seconds)
            axis.set(xlim=(0, seconds), ylim=(len(ranks[title]) - 0.4, -0.6), yticks=range(len(ranks[title])))
            axis.set_yticklabels([f"rank {rank}" for rank in ranks[title]])
            axis.set_title(title, fontsize=10, loc="left")
            axis.spines[["top", "right"]].set_visible(False)
        axes[-1].set_xlabel("seconds")
    return figure


def _draw_lane(axis: Axes, lane: int, said: list[tuple[float, str]], waits: Sequence[str], seconds: float) -> None:
    for (start, doing), (end, _) in zip(said, [*said[1:], (seconds, "")], strict=True):
        if doing in ("returned", "died"):
            mark = {"returned": "o", "died": "X"}[doing]
            axis.plot([start], [lane], mark, color=INK, markersize=9, clip_on=False, zorder=3)
            axis.text(start + 0.02 * seconds, lane, doing, va="center", fontsize=9)
            return
        end = min(end, seconds)
        colour, hatch = (COLOURS[1], "////") if doing in waits else (COLOURS[0], None)
        look = {"facecolor": colour, "edgecolor": ON_COLOUR, "hatch": hatch, "linewidth": 0.8}
        axis.barh(lane, end - start, left=start, height=0.7, **look)
        if end - start > 0.014 * seconds * len(doing):
            patch = {"facecolor": colour, "edgecolor": "none", "pad": 1}
            middle = (start + end) / 2
            axis.text(middle, lane, doing, ha="center", va="center", fontsize=9, color=ON_COLOUR, bbox=patch)


def calls(per_rank: Sequence[Sequence[tuple[str, str]]], first: int = 1) -> Figure:
    """Draw what each rank called: a row for each rank, a column for each number; calls of one column belong together.

    Args:
        per_rank: for each rank its collectives, in order: (where in the script, which collective).
        first: the number of the first column.

    A column in which the ranks are at different places is hatched, one with different collectives has a thick frame.
    Where a rank calls nothing more, the box is dashed.
    Returns the matplotlib figure.
    """
    from matplotlib.patches import Rectangle

    columns = max(len(row) for row in per_rank)
    with drawing(min(1.15 * columns + 0.9, 11), 0.62 * len(per_rank) + 0.4) as figure:
        axis = figure.subplots()
        for column in range(columns):
            here = [row[column] for row in per_rank if column < len(row)]
            apart = len({where for where, _ in here}) > 1
            broken = len({which for _, which in here}) > 1
            for lane, row in enumerate(per_rank):
                place, words = ((column, lane), 0.94, 0.88), {"fontsize": 8}
                if column >= len(row):
                    axis.add_patch(Rectangle(*place, facecolor="none", edgecolor=INK, linewidth=1, linestyle="--"))
                    axis.text(column + 0.47, lane + 0.44, "no call", ha="center", va="center", style="italic", **words)
                    continue
                where, which = row[column]
                if apart:
                    words |= {"color": ON_COLOUR, "bbox": {"facecolor": COLOURS[1], "edgecolor": "none", "pad": 0.8}}
                    axis.add_patch(
                        Rectangle(*place, facecolor=COLOURS[1], edgecolor=ON_COLOUR, linewidth=0, hatch="////")
                    )
                frame = Rectangle(*place, facecolor="none", edgecolor=INK, linewidth=2.5 if broken else 0.8)
                axis.add_patch(frame)
                axis.text(column + 0.47, lane + 0.44, f"{where}\n{which}".strip(), ha="center", va="center", **words)
            axis.text(column + 0.47, -0.1, str(column + first), ha="center", va="bottom", fontsize=8, style="italic")
        for lane in range(len(per_rank)):
            axis.text(-0.1, lane + 0.44, f"rank {lane}", ha="right", va="center", fontsize=9)
        axis.set(xlim=(-0.6, columns), ylim=(len(per_rank), -0.4))
        axis.axis("off")
    return figure


def bytes_held(
    table: Mapping[str, Mapping[str, float]],
    limit: float = 0,
    limit_name: str = "",
    up_to: float = 0,
    marks: Mapping[str, float] | None = None,
) -> Figure:
    """Draw what a rank holds, in bytes a parameter: a bar for each row, a stretch for each part, and a dashed limit.

    Args:
        table: name of the row → part → bytes a parameter, with the same parts in each row: of "weights", "gradients",
            "buckets" and "Adam".
        limit: where the dashed line stands, if there is one. limit_name: what it is.
        up_to: how far the axis reaches at least: the same in all pictures of a slider.
        marks: name of a row → where a ◆ stands in it: what was measured, where the bar is calculated.

    Every part has a colour and a hatching of its own, in each such picture the same. Returns the matplotlib figure.
    """
    hatches = {"weights": "", "gradients": "//", "buckets": "--", "Adam": ".."}
    colours = dict(zip(hatches, COLOURS, strict=False))
    with drawing(8, 0.42 * len(table) + 1.2) as figure:
        axis = figure.subplots()
        left = [0.0] * len(table)
        for part in next(iter(table.values())):
            look = {"color": colours[part], "hatch": hatches[part], "edgecolor": ON_COLOUR}
            widths = [row[part] for row in table.values()]
            axis.barh(list(table), widths, left=left, label=part, **look)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        if marks:
            look = {"linestyle": "", "marker": "D", "color": "white", "markeredgecolor": "black"}  # on any colour
            axis.plot(list(marks.values()), list(marks), **look, label="measured here")
        if limit:
            axis.axvline(limit, linestyle="--", label=limit_name, **rimmed(1.5))
        longest = max(up_to, *left, limit if limit < 2 * max(left) else 0)  # a line far away would leave no bar to see
        axis.set(xlabel="bytes a parameter", xlim=(0, 1.05 * longest), ylim=(len(table) - 0.4, -0.6))
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)  # beside it: nothing lies under
    return figure
