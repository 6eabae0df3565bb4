"""What `plots` draws is legible on a light page and on a dark one, and no wider than a page."""

import re
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_rgb

from ddplab.course.claims import VERDICTS
from ddplab.metrics import Metrics
from ddplab.plots import COLOURS, DASHES, INK, ON_COLOUR, SHAPES, charts, curves, shades

PAGES = {"light": "#ffffff", "dark": "#111111"}  # behind an output, in JupyterLab's themes


def contrast(one, another) -> float:
    """WCAG 2's contrast ratio of two colours."""
    darker, lighter = sorted(map(luminance, (one, another)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour) -> float:
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in to_rgb(colour)]
    return sum(v * weight for v, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


@pytest.mark.parametrize("page", PAGES)
def test_ink_and_colours_stand_out_on_either_page_and_black_on_the_colours(page):
    assert contrast(INK, PAGES[page]) >= 4.2
    assert min(contrast(colour, PAGES[page]) for colour in COLOURS) >= 3
    assert min(contrast(ON_COLOUR, colour) for colour in [INK, *COLOURS]) >= 4.5
    assert len(set(COLOURS)) == 8


def test_an_image_goes_from_nothing_to_ink():
    lowest, highest = shades()([0.0, 1.0])
    assert lowest[3] == 0 and highest[3] == 1 and tuple(highest[:3]) == pytest.approx(to_rgb(INK), abs=0.01)


def test_curves_stand_two_beside_each_other_without_a_background():
    rows = [{"rank": 0, "step": step, "time": 0.0, **dict.fromkeys("abc", 1.0)} for step in (1, 2)]
    figure = curves(Metrics(rows))
    assert figure.get_size_inches()[0] == 12 and not plt.get_fignums()
    figure.draw_without_rendering()
    lefts, tops = zip(
        *[(round(axis.get_position().x0, 1), axis.get_position().y1) for axis in figure.axes], strict=True
    )
    assert lefts[0] == lefts[2] < lefts[1] and tops[2] < tops[0]
    assert [axis.get_title()[0] for axis in figure.axes] == list("abc")
    for axis in figure.axes:
        assert axis.get_facecolor()[3] == figure.get_facecolor()[3] == 0
        assert {line.get_color() for line in axis.lines} == {COLOURS[0]}


def test_four_charts_fit_a_page_and_say_what_they_show():
    points = [(n, 1 / n) for n in range(1, 400)]
    page = charts([(name, {0: points, 1: points}) for name in "abcd"], "curves of a & b", each=100)
    widths = [int(width) for width in re.findall(r'<svg xmlns="[^"]+" width="(\d+)"', page)]
    assert len(widths) == 4 and 2 * max(widths) <= int(re.search(r"max-width:(\d+)px", page)[1]) < 700
    assert 'role="img" aria-label="curves of a &amp; b"' in page
    lines = re.findall(r'points="(.*?)"', page)
    assert len(lines) == 8 and all(len(line.split()) <= 101 for line in lines)
    xs = [float(point.split(",")[0]) for point in lines[0].split()]
    assert all(a <= b for a, b in pairwise(xs)) and 50 <= xs[0] and xs[-1] == 280


def test_the_legend_has_every_rank_and_verdict():
    legend = (Path(__file__).parent.parent / "LEGEND.md").read_text()
    dashes = dict(zip(DASHES, ("solid", "dashed", "dotted", "dash and dot"), strict=True))
    for rank, shape in enumerate(SHAPES):
        assert f"| {rank} | {shape} | {dashes[DASHES[rank % 4]]} |" in legend
    assert all(f"| {sign} |" in legend for sign, _ in VERDICTS.values())


def test_the_legend_has_every_sign_that_is_drawn():
    folder = Path(__file__).parent.parent
    files = [path for path in (folder / "ddplab" / "course").iterdir() if path.suffix in (".js", ".py")]
    drawn = "".join(path.read_text() for path in files)
    signs = {it for it in drawn if "\u2190" <= it <= "\u21ff" or "\u2500" <= it <= "\u27bf" or it in "⌂⏎"}
    told = (folder / "LEGEND.md").read_text()
    assert {"✓", "→", "▤", "✎"} <= signs and [it for it in sorted(signs) if it not in told] == []
