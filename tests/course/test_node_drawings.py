"""The pictures of the part on torchrun, read back."""

import matplotlib
import pytest

from ddplab.course.node_drawings import distances, fall_back, gpus_asked_for

matplotlib.use("Agg")


def test_each_rank_stands_over_the_gpu_that_it_asks_for():
    axis = gpus_asked_for([0, 1, 0, 1], [0, 0, 1, 1]).axes[0]
    by_rank, by_local_rank = axis.lines
    assert list(by_rank.get_ydata()) == [0, 1, 2, 3] and list(by_local_rank.get_ydata()) == [0, 1, 0, 1]
    assert by_rank.get_marker() != by_local_rank.get_marker()
    assert [label.get_text() for label in axis.get_xticklabels()][3] == "RANK 3\nnode 1"
    low, high = axis.patches[0].get_extents().transformed(axis.transData.inverted()).intervaly
    assert low < 0 and 1 < high < 2, "the band holds cuda:0 and cuda:1 alone"


def test_the_fall_is_in_the_picture():
    places = [*range(32), *range(30, 48)]
    [line] = fall_back(places).axes[0].lines
    assert {29, 31, 30, 35} <= set(line.get_ydata()) and len(line.get_ydata()) < 20
    with pytest.raises(ValueError, match="never falls back"):
        fall_back(range(10))


def test_the_first_bar_is_on_top_and_each_has_its_number():
    axis = distances({"all": 0.0, "without model": 0.5}).axes[0]
    assert [text.get_text() for text in axis.texts] == ["0.0%", "50.0%"]
    assert axis.get_ylim()[0] > axis.get_ylim()[1]
