"""Static figures. Colour is never the only sign: every line has its own dash and marker too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
