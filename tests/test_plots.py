"""Static figures: what they show, read back from the figure."""

import pytest
import torch
from matplotlib.patches import Rectangle

from ddplab.course.drawings import exchanges


def words(axis):
    return [text.get_text() for text in axis.texts]


def bold(axis):
    return [text.get_text() for text in axis.texts if text.get_weight() == "bold"]


def test_exchanges_shows_every_rank_before_and_after_and_marks_what_is_new():
    results = [[torch.tensor([1.0, 2.0]), torch.tensor([1.0, 22.0])], [torch.tensor([10.0, 20.0]), None]]
    (axis,) = exchanges({"reduce": results}).axes
    assert axis.get_title("left") == "reduce"
    assert [word for word in words(axis) if word != "→"] == [
        *("rank 0", "before", "1", "2", "after", "1", "22"),
        *("rank 1", "10", "20", "nothing"),
    ]
    assert bold(axis) == ["22"]
    framed = [patch.get_linewidth() for patch in axis.patches if isinstance(patch, Rectangle)]
    assert len(framed) == 6 and framed.count(2) == 1


def test_exchanges_takes_lists_of_tensors_longer_states_and_several_runs():
    gathered = [[5, [torch.tensor([5]), torch.tensor([6])]], [6, None]]
    first, second = exchanges({"gather": gathered, "nothing": [[1, 1], [2, 2]]}, ["start", "end"]).axes
    assert bold(first) == ["6"] and bold(second) == []
    assert first.get_xlim() == second.get_xlim()  # numbers of the same size in both panels


def test_exchanges_refuses_a_rank_that_left_out_a_moment():
    with pytest.raises(ValueError, match="one thing for each of: before, after"):
        exchanges({"broken": [[1, 2], [1]]})
