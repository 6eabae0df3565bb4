"""How what ranks log is drawn: curves as a static figure, and as SVG that a live panel redraws ten times a second.

Colour is never the only sign: every rank's line has a dash, a width and, where there is room, a marker of its own.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from ddplab.metrics import Metrics
from ddplab.tables import brief

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^vPX*"
SHAPES = "●■◆▲▼✚✖★"  # the same shapes, in text
DASHES = ["-", "--", ":", "-."]
STYLE = "tableau-colorblind10"
COLOURS = ["#006BA4", "#FF800E", "#ABABAB", "#595959", "#5F9ED1", "#C85200", "#898989", "#A2C8EC"]  # that style's
SVG_DASHES = ["", "6 3", "2 3", "8 3 2 3"]


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
    names = names or tuple(metrics.numeric_columns())
    if not names:
        raise ValueError("nothing to draw: no number was logged; call log(loss=…) inside the function you launch")
    figure = new_figure(width * len(names), width * 0.6)
    with plt.style.context(STYLE):
        axes = figure.subplots(1, len(names), squeeze=False)
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
    return figure


def new_figure(width: float, height: float, **options: Any) -> Figure:
    """Return an empty figure, sizes in inches, which a notebook shows where it is returned. Call it outside of styles.

    A process's first figure switches on that a notebook shows figures at all, and a style that ends would undo that.
    """
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(width, height), **options)
    plt.close(figure)
    return figure


def stroke(rank: int) -> str:
    """Return how a rank's line is drawn in SVG: later ranks thinner, so that lines on top of each other all show."""
    width = 2.6 - 0.4 * (rank % 4)
    return (
        f'fill="none" stroke="{COLOURS[rank % 8]}" stroke-width="{width:.1f}" stroke-dasharray="{SVG_DASHES[rank % 4]}"'
    )


def chart(name: str, ranks: dict[int, list], each: int, left: int, unit: str = "step", box: tuple = ()) -> str:
    """Return one chart as SVG, without its frame, for the curves of several ranks: rank → (x, y) points.

    each: at most so many points of a rank. left: pixels from the left edge. box: x from, x to, y from and y to, for
    charts that share their axes.
    """
    thinned = {rank: points[:: len(points) // each + 1] + points[-1:] for rank, points in ranks.items()}
    xs = [x for points in thinned.values() for x, _ in points]
    ys = [y for points in thinned.values() for _, y in points]
    x0, x1, y0, y1 = box or (min(xs), max(xs), min(ys), max(ys))
    sx, sy = 230 / ((x1 - x0) or 1), 120 / ((y1 - y0) or 1)
    lines = "".join(
        f'<polyline {stroke(rank)} points="'
        + " ".join(f"{left + 50 + (x - x0) * sx:.0f},{145 - (y - y0) * sy:.1f}" for x, y in points)
        + '"/>'
        for rank, points in thinned.items()
    )
    ink = 'fill="var(--jp-content-font-color1, #333)"'
    return (
        f'<text x="{left + 50}" y="14" font-weight="bold" {ink}>{html.escape(name)}</text>'
        f'<text x="{left + 45}" y="30" text-anchor="end" {ink}>{brief(y1)}</text>'
        f'<text x="{left + 45}" y="147" text-anchor="end" {ink}>{brief(y0)}</text>'
        f'<text x="{left + 50}" y="165" {ink}>{x0}</text>'
        f'<text x="{left + 280}" y="165" text-anchor="end" {ink}>{unit} {x1}</text>'
        f'<path d="M{left + 50} 22V148H{left + 282}" fill="none" stroke="var(--jp-border-color1, #999)"/>{lines}'
    )
