"""How what ranks log is drawn: curves as a static figure, and as SVG that a live panel redraws ten times a second.

Colour is never the only sign: every rank's line has a dash, a width and, where there is room, a marker of its own. A
picture has no background, and is drawn in colours that are legible on a light page as on a dark one.
"""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ddplab.metrics import Metrics
from ddplab.pointer import pointing
from ddplab.tables import brief

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

MARKERS = "osD^vPX*"
SHAPES = "●■◆▲▼✚✖★"  # the same shapes, in text
DASHES = ["-", "--", ":", "-."]
INK = "#797979"  # of text and axes: 4.3 to 1 on a white page and on JupyterLab's dark one
ON_COLOUR = "black"  # of text and hatches on a filled shape: at least 5 to 1 on each of these
COLOURS = ["#3B8BD0", "#D9701A", "#1F9A80", "#9A70D6", "#958A1E", "#D65C9E", "#A87A52", "#8A8A8A"]  # 3 to 1 on a page
SVG_DASHES = ["", "6 3", "2 3", "8 3 2 3"]


@pointing
def curves(metrics: Metrics, *names: str, width: float = 6.0, level: float | None = None) -> Figure:
    """Draw logged columns against the step, one panel per column and one line per rank.

    Args:
        metrics: the rows of a run. names: which columns; all numeric ones when none is named. width: inches per panel.
        level: a broken line at this height, what the curves should come to.

    Returns the matplotlib figure. Raises KeyError for a column that was not logged, ValueError when there is nothing
    to draw.
    """
    for name in names:
        metrics.column(name)  # says what there is instead
    names = names or tuple(metrics.numeric_columns())
    if not names:
        raise ValueError("nothing to draw: no number was logged; call log(loss=…) inside the function you launch")
    with tiles(len(names), width, width * 0.6) as axes:
        for axis, name in zip(axes, names, strict=True):
            for rank in sorted({row["rank"] for row in metrics if name in row}):
                points = [(row["step"], row[name]) for row in metrics if row["rank"] == rank and name in row]
                axis.plot(
                    *zip(*points, strict=True),
                    color=COLOURS[rank % 8],
                    linestyle=DASHES[rank % 4],
                    marker=MARKERS[rank % 8] if len(points) <= 40 else None,
                    markersize=4,
                    linewidth=2.4 - 0.4 * (rank % 4),
                    label=f"rank {rank}",
                )
            if level is not None:
                axis.axhline(level, color=INK, linestyle="--", linewidth=1)
            axis.set_xlabel("step")
            axis.set_title(f"{name} at each step, one line per rank", fontsize=10)
            axis.legend(fontsize=9)
    return axes[0].figure


@contextmanager
def drawing(width: float, height: float, layout: str = "tight") -> Iterator[Figure]:
    """Give an empty figure, sizes in inches, to draw on in this style. A notebook shows it where it is returned."""
    import matplotlib.pyplot as plt

    # Outside of the style: a process's first figure switches on that a notebook shows figures at all, and a style that
    # ends would undo that.
    figure = plt.figure(figsize=(width, height), facecolor="none", layout=layout)
    plt.close(figure)
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "legend.edgecolor")
    palette = {"axes.prop_cycle": f"cycler(color={COLOURS})", "axes.facecolor": "none", "hatch.linewidth": 0.5}
    with plt.style.context({**palette, **dict.fromkeys(inked, INK)}):
        yield figure
        for axis in figure.axes:
            axis.tick_params(which="both", colors=INK)  # also of ticks that are made when it is shown


@contextmanager
def tiles(count: int, width: float, height: float) -> Iterator[list[Axes]]:
    """Give so many axes of a new figure to draw on, two beside each other; sizes are those of one, in inches."""
    rows, columns = (count + 1) // 2, min(count, 2)
    with drawing(width * columns, height * rows) as figure:
        yield [figure.add_subplot(rows, columns, place) for place in range(1, count + 1)]


def shades() -> Colormap:
    """Return the colours of a grey image: from nothing, for its lowest number, to ink."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("shades", [f"{INK}00", INK])


def rimmed(width: float) -> dict[str, Any]:
    """Return how a line is drawn that crosses coloured shapes: with a dark rim it is seen on them and on any page."""
    from matplotlib.patheffects import withStroke

    return {"linewidth": width, "color": "white", "path_effects": [withStroke(linewidth=width + 2, foreground="black")]}


def stroke(rank: int) -> str:
    """Return how a rank's line is drawn in SVG: later ranks thinner, so that lines on top of each other all show."""
    width = 2.6 - 0.4 * (rank % 4)
    return (
        f'fill="none" stroke="{COLOURS[rank % 8]}" stroke-width="{width:.1f}" stroke-dasharray="{SVG_DASHES[rank % 4]}"'
    )


def charts(drawn: Sequence[tuple[str, dict[int, list]]], what: str, each: int, stays: bool = False) -> str:
    """Return charts as SVG, two beside each other where the page is wide enough, in the notebook theme's colours.

    Args:
        drawn: each chart's name and curves: rank → (x, y) points, of which at most `each` are drawn.
        what: says it all to who cannot see it.
        stays: each chart is an image, in INK: a notebook that is not trusted shows images, but no SVG.
    """
    svgs = [_chart(name, ranks, each) for name, ranks in drawn]
    if stays:
        svgs = [f'<img alt="" src="data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"/>' for svg in svgs]
    return f'<div role="img" aria-label="{html.escape(what)}" style="max-width:620px">{"".join(svgs)}</div>'


def _chart(name: str, ranks: dict[int, list], each: int) -> str:
    thinned = {rank: points[:: len(points) // each + 1] + points[-1:] for rank, points in ranks.items()}
    xs = [x for points in thinned.values() for x, _ in points]
    ys = [y for points in thinned.values() for _, y in points]
    x0, x1, y0, y1 = min(xs), max(xs), min(ys), max(ys)
    sx, sy = 230 / ((x1 - x0) or 1), 120 / ((y1 - y0) or 1)
    lines = "".join(
        f'<polyline {stroke(rank)} points="'
        + " ".join(f"{50 + (x - x0) * sx:.0f},{145 - (y - y0) * sy:.1f}" for x, y in points)
        + '"/>'
        for rank, points in thinned.items()
    )
    ink = f'fill="var(--jp-content-font-color1, {INK})"'
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="300" height="170" style="font:11px sans-serif">'
        f'<text x="50" y="14" font-weight="bold" {ink}>{html.escape(name)}</text>'
        f'<text x="45" y="30" text-anchor="end" {ink}>{brief(y1)}</text>'
        f'<text x="45" y="147" text-anchor="end" {ink}>{brief(y0)}</text>'
        f'<text x="50" y="165" {ink}>{x0}</text>'
        f'<text x="280" y="165" text-anchor="end" {ink}>step {x1}</text>'
        f'<path d="M50 22V148H282" fill="none" stroke="var(--jp-border-color1, {INK})"/>{lines}</svg>'
    )
