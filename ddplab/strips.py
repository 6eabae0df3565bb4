"""Which sample goes where: a strip of numbered boxes for each rank, drawn from what a sampler or loader gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ddplab.plots import STYLE

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
    with plt.style.context([STYLE, {"hatch.linewidth": 0.5}]):
        figure, axis = plt.subplots(figsize=(0.42 * (width + 3), 0.42 * (depth + 2)))
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
    plt.close(figure)  # returned, so that a notebook shows it once
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
