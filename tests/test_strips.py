"""The strips of lesson 10: every sample in its place, repeats hatched, what nobody is served named."""

import matplotlib
import pytest

matplotlib.use("Agg")

from matplotlib.colors import to_rgb
from torch.utils.data import DistributedSampler

from ddplab.course.drawings import strip


def drawn(figure):
    axis = figure.axes[0]
    hatched = [bool(patch.get_hatch()) for patch in axis.patches]
    return hatched, [text.get_text() for text in axis.texts]


def test_padding_is_hatched_and_all_else_is_not():
    ranks = [list(DistributedSampler(range(10), num_replicas=4, rank=rank, shuffle=False)) for rank in range(4)]
    hatched, texts = drawn(strip({"an epoch": ranks}, 10))
    assert hatched == [False] * 10 + [True] * 2
    assert texts[:12] == [str(sample % 10) for sample in range(12)] and texts[12:] == [
        "an epoch", "rank 0", "rank 1", "rank 2", "rank 3",
    ]  # fmt: skip


def test_a_repeat_counts_within_its_title_and_what_nobody_has_is_named():
    hatched, texts = drawn(strip({"one": [[0, 1], [1]], "two": [[1], []]}, 3, names=["first", "second"]))
    assert hatched == [False, False, True, False]  # the second row's 1 comes before the first row's, a column later
    assert "nobody: 2" in texts and "nobody: 0, 2" in texts and texts[-2:] == ["first", "second"]


def test_each_box_is_in_its_place_and_each_number_in_its_box():
    axis = strip({"one": [[0, 1], [2, 3]], "two": [[4], [5]]}, 6).axes[0]
    boxes = [patch.get_xy() for patch in axis.patches]
    assert boxes[:4] == [(0, 0), (0, 1), (1, 0), (1, 1)]  # column by column, and the ranks from the top
    assert boxes[4][0] > 2 and boxes[5] == (boxes[4][0], 1)  # the second strip stands beside the first
    numbers = [text for text in axis.texts if text.get_text().isdigit()]
    assert [text.get_text() for text in numbers] == ["0", "2", "1", "3", "4", "5"]
    assert [text.get_position() for text in numbers] == [(x + 0.5, y + 0.5) for x, y in boxes]
    assert axis.get_ylim()[0] > axis.get_ylim()[1] and axis.get_xlim()[1] > boxes[4][0] + 1


@pytest.mark.parametrize("size", [1, 3, 10, 20, 48])
def test_every_number_can_be_read(size):
    axis = strip({"all": [list(range(size))]}, size).axes[0]
    for patch, text in zip(axis.patches, axis.texts, strict=False):
        shades = sorted(map(luminance, (to_rgb(patch.get_facecolor()), to_rgb(text.get_color()))))
        assert (shades[1] + 0.05) / (shades[0] + 0.05) >= 4.5, text.get_text()


def luminance(rgb):  # WCAG 2.2's relative luminance
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in rgb)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
