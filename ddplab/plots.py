"""Static figures. Colour is never the only sign: every line has its own dash and marker too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ddplab.run import Metrics

MARKERS = "osD^vPX*"
DASHES = ["-", "--", ":", "-."]
STYLE = "tableau-colorblind10"


def curves(metrics: Metrics, *names: str, width: float = 6.0) -> Figure:
    """Draw logged columns against the step, one panel per column and one line per rank.

    Args:
        metrics: the rows of a run. names: which columns; all numeric ones when none is named. width: inches per panel.

    Returns the matplotlib figure. Raises KeyError for a column that was not logged, ValueError when there is nothing
    to draw.
    """
    import matplotlib.pyplot as plt

    for name in names:
        metrics.column(name)  # says what there is instead
    names = names or tuple(numeric_columns(metrics))
    if not names:
        raise ValueError("nothing to draw: no number was logged; call log(loss=…) inside the function you launch")
    with plt.style.context(STYLE):
        figure, axes = plt.subplots(1, len(names), figsize=(width * len(names), width * 0.6), squeeze=False)
        for axis, name in zip(axes[0], names, strict=True):
            for rank in sorted({row["rank"] for row in metrics if name in row}):
                points = [(row["step"], row[name]) for row in metrics if row["rank"] == rank and name in row]
                axis.plot(
                    *zip(*points, strict=True),
                    linestyle=DASHES[rank % 4],
                    marker=MARKERS[rank % 8] if len(points) <= 40 else None,
                    markersize=4,
                    linewidth=2.4 - 0.4 * (rank % 4),
                    label=f"rank {rank}",
                )
            axis.set_xlabel("step")
            axis.set_title(f"{name} at each step, one line per rank", fontsize=10)
            axis.legend(fontsize=8)
    figure.tight_layout()
    plt.close(figure)  # returned, so that a notebook shows it once
    return figure


def numeric_columns(metrics: Metrics) -> list[str]:
    """Return the names of the columns that hold numbers (booleans and text are not drawn)."""
    return [
        name
        for name in metrics.columns()
        if any(isinstance(row.get(name), int | float) and not isinstance(row.get(name), bool) for row in metrics)
    ]


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
    import matplotlib.pyplot as plt

    panels = {title: [[_flat(held) for held in rank] for rank in ranks] for title, ranks in results.items()}
    if any(len(rank) != len(moments) for ranks in panels.values() for rank in ranks):
        raise ValueError(f"each rank must have returned one thing for each of: {', '.join(moments)}")
    widths = {t: [max(1, *map(len, column)) for column in zip(*ranks, strict=True)] for t, ranks in panels.items()}
    across = max(sum(w) + 1.5 * len(w) for w in widths.values()) + 2.5
    heights = [len(ranks) + 1.6 for ranks in panels.values()]
    figure, axes = plt.subplots(len(panels), figsize=(size * across, size * sum(heights)), height_ratios=heights,
                                squeeze=False)  # fmt: skip
    for axis, (title, ranks), height in zip(axes[:, 0], panels.items(), heights, strict=True):
        axis.set(xlim=(-2.5, across - 2.5), ylim=(height - 1, -1), aspect="equal")
        axis.axis("off")
        axis.set_title(title, fontsize=10, loc="left", pad=0)
        _draw_states(axis, ranks, widths[title], moments)
    figure.tight_layout(pad=0.3)
    plt.close(figure)  # returned, so that a notebook shows it once
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
