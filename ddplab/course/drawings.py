"""Pictures of what ranks hold: strips of samples, and blocks of numbers before and after an exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ddplab.plots import STYLE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def strip(served: Mapping[str, Sequence[Sequence[int]]], size: int, names: Sequence[str] = ()) -> Figure:
    """Draw who is served which samples: a row of boxes for each rank, a box for each sample, with its number.

    Args:
        served: title → one list of sample numbers for each rank. Several titles (epochs, say) stand side by side.
        size: how many samples there are. Those that nobody is served are named below.
        names: what to call the rows; "rank 0", "rank 1", … when left out.

    Boxes are filled in the order of the columns, from top to bottom. One whose sample was there before is hatched.
    Returns the matplotlib figure.
    """
    import matplotlib.pyplot as plt

    left, depth = 0.0, max(len(rows) for rows in served.values())
    colours = plt.get_cmap("cividis", size)
    width = sum(max(map(len, rows)) + 0.8 for rows in served.values())
    figure = new_figure(0.42 * (width + 3), 0.42 * (depth + 2))
    with plt.style.context([STYLE, {"hatch.linewidth": 0.5}]):
        axis = figure.subplots()
        for title, rows in served.items():
            columns, seen = max(map(len, rows)), set()
            for column in range(columns):
                for row, samples in enumerate(rows):
                    if column < len(samples):
                        sample = int(samples[column])
                        _box(axis, left + column, row, sample, None if sample in seen else colours(sample))
                        seen.add(sample)
            missing = ", ".join(str(sample) for sample in range(size) if sample not in seen)
            axis.text(left + columns / 2, -0.4, title, ha="center", va="bottom", fontsize=10)
            if missing:
                axis.text(left + columns / 2, depth + 0.3, f"nobody: {missing}", ha="center", va="top", fontsize=9)
            left += columns + 0.8
        for row in range(depth):
            name = names[row] if names else f"rank {row}"
            axis.text(-0.3, row + 0.5, name, ha="right", va="center", fontsize=9)
        axis.set(xlim=(-0.1, left - 0.7), ylim=(depth + 0.1, -0.1), aspect="equal")
        axis.axis("off")
    return figure


def _box(axis: Axes, left: float, row: int, sample: int, colour: tuple[float, ...] | None) -> None:
    """Draw one numbered box; without a colour it is a repeat: white and hatched, its number on a white patch."""
    from matplotlib.patches import Rectangle

    face, hatch = colour or (1.0, 1.0, 1.0, 1.0), None if colour else "////"
    patch = None if colour else {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    ink = (
        "white" if sum(face[:3]) < 1.37 else "black"
    )  # so the contrast is 4.5 at least (WCAG 2.2), whatever the colour
    axis.add_patch(Rectangle((left, row), 1, 1, facecolor=face, edgecolor="black", linewidth=0.8, hatch=hatch))
    axis.text(left + 0.5, row + 0.5, sample, ha="center", va="center", fontsize=9, color=ink, bbox=patch)


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
    figure = new_figure(size * across, size * sum(heights))
    axes = figure.subplots(len(panels), height_ratios=heights, squeeze=False)
    for axis, (title, ranks), height in zip(axes[:, 0], panels.items(), heights, strict=True):
        axis.set(xlim=(-2.5, across - 2.5), ylim=(height - 1, -1), aspect="equal")
        axis.axis("off")
        axis.set_title(title, fontsize=10, loc="left", pad=0)
        _draw_states(axis, ranks, widths[title], moments)
    figure.tight_layout(pad=0.3)
    return figure


def _draw_states(axis: Axes, ranks: list[list[list[float]]], widths: list[int], moments: Sequence[str]) -> None:
    from matplotlib.patches import Rectangle

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
                look = {"linewidth": 2, "facecolor": "#ffd9a8", "zorder": 2} if new else {"facecolor": "white"}
                axis.add_patch(Rectangle((left + place, row + 0.08), 1, 0.84, edgecolor="black", **look))
                axis.text(left + place + 0.5, row + 0.5, f"{number:g}", ha="center", va="center", fontsize=8,
                          weight="bold" if new else "normal", zorder=3)  # fmt: skip
            left, earlier = left + width + 1.5, held


def _flat(held: Any) -> list[float]:
    """The numbers in what a rank held, in order."""
    if held is None:
        return []
    held = held.tolist() if hasattr(held, "tolist") else held
    return [number for part in held for number in _flat(part)] if isinstance(held, list | tuple) else [held]
