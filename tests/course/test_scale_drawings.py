"""Pictures of scaling, read back: the ideal, the machine's limit, what was measured, and what is planned."""

import matplotlib
import torch

from ddplab.course.scale_drawings import (
    efficiencies,
    exposed_times,
    matrices,
    messages_in_backward,
    near_or_not,
    off_by,
    strong_and_weak,
)

matplotlib.use("Agg")


def test_what_was_measured_stands_beside_the_ideal_and_the_limit_of_two_cores():
    strong, weak = strong_and_weak([1, 2, 4], [1, 1.8, 1.9], [1, 0.9, 0.4], places=2).axes
    assert [list(line.get_ydata()) for line in strong.lines] == [[1, 2, 4], [1, 2, 2], [1, 1.8, 1.9]]
    assert [list(line.get_ydata()) for line in weak.lines] == [[1, 1, 1], [1, 1, 0.5], [1, 0.9, 0.4]]
    assert len({(line.get_linestyle(), line.get_marker()) for line in strong.lines}) == 3


def test_a_guess_is_a_line_of_its_own_beside_the_speed_up():
    strong, weak = strong_and_weak([1, 2, 4], [1, 1.8, 1.9], [1, 0.9, 0.4], places=2, guess=[1, 1.5, 3]).axes
    assert list(strong.lines[3].get_ydata()) == [1, 1.5, 3] and len(weak.lines) == 3
    assert len({(line.get_linestyle(), line.get_marker()) for line in strong.lines}) == 4


def test_a_guess_of_weak_scaling_alone_is_drawn_there_and_named():
    strong, weak = strong_and_weak([1, 2, 4], [1, 1.8, 1.9], [1, 0.9, 0.4], 2, [1, ..., ...], [1, 1, 0.9]).axes
    assert len(strong.lines) == 3 and list(weak.lines[3].get_ydata()) == [1, 1, 0.9]
    assert strong.get_legend().get_texts()[3].get_text() == "your guess"


def test_each_guess_is_told_how_far_off_it_is_whatever_else_stands_there():
    assert off_by([1, 1.8, 1.9], [1, 1.5, 4]) == ["", "  you said 1.5: off by 0.3", "  you said 4: off by 2.1"]
    for guess in (..., None, 3, "12", [], [1], [1, ..., ...], [1, "2", None], [1, float("nan"), float("inf")]):
        assert off_by([1, 1.8, 1.9], guess) == ["", "", ""]
        assert len(strong_and_weak([1, 2, 4], [1, 1.8, 1.9], [1, 1, 1], 2, guess).axes[0].lines) == 3
    assert off_by([1, 1.8, 1.9], [1, 2]) == ["", "  you said 2: off by 0.2", ""]
    assert off_by([1, 1.8], [1, 2, 3, 4]) == ["", "  you said 2: off by 0.2"]


def test_a_guess_of_too_few_or_too_many_or_far_off_leaves_the_picture_as_it_is():
    for guess, drawn in (([1, 2], [1, 2]), ([1, 2, 3, 4], [1, 2, 3]), ([1, ..., 3], [1, 3]), ([1, 50, 3], [1, 50, 3])):
        strong, _ = strong_and_weak([1, 2, 4], [1, 1.8, 1.9], [1, 0.9, 0.4], places=2, guess=guess).axes
        assert list(strong.lines[3].get_ydata()) == drawn and 4 < strong.get_ylim()[1] <= 6
    strong, _ = strong_and_weak([1, 2, 4], [1, 1.8, 1.9], [1, 0.9, 0.4], places=2, guess=[1, ..., ...]).axes
    assert len(strong.lines) == 3, "who has guessed nothing is shown no guess"


def test_each_plan_has_a_line_of_its_own():
    (axis,) = efficiencies({"slow": [1, 0.5], "fast": [1, 0.9]}, [1, 16], "planned").axes
    slow, fast, perfect = axis.lines
    assert list(slow.get_ydata()) == [1, 0.5] and list(fast.get_xdata()) == [1, 16] and set(perfect.get_ydata()) == {1}
    assert slow.get_marker() != fast.get_marker() and slow.get_linestyle() != fast.get_linestyle()


def test_a_plan_is_filled_where_it_is_near_and_who_says_one_number_has_a_dash_for_each_row():
    (axis,) = near_or_not({"node": [(0.9, 0.95), (0.8, 0.96)], "cards": [(0.9, 0.9)]}, 0.9, 0.1).axes
    truth, near, off, cards, _, you = axis.lines
    assert list(near.get_xdata()) == [0.9] and list(off.get_xdata()) == [0.8] and list(off.get_ydata()) == [0.96]
    assert (near.get_fillstyle(), off.get_fillstyle(), cards.get_fillstyle()) == ("full", "none", "full")
    assert near.get_marker() == off.get_marker() != cards.get_marker() and truth.get_linestyle() == ":"
    assert set(you.get_ydata()) == {0.9} and list(you.get_xdata()) == [0.9, 0.8, 0.9]
    texts = [text.get_text() for text in axis.get_legend().get_texts()]
    assert texts == ["within 10%", "said as measured", "planned, node", "planned, cards", "you: 90%"]


def test_what_is_planned_is_a_line_and_what_was_measured_are_marks():
    (axis,) = exposed_times([0, 1, 2], {"planned": [2, 2, 1]}, {"measured": [2.1, 2.2, 1]}).axes
    line, marks = axis.lines
    assert list(line.get_ydata()) == [2, 2, 1] and line.get_marker() == "None"
    assert list(marks.get_ydata()) == [2.1, 2.2, 1] and marks.get_linestyle() == "None"
    assert axis.get_ylim()[0] == axis.get_xlim()[0] == 0


def test_a_message_leaves_where_its_last_gradient_is_and_only_in_the_last_portion():
    (axis,) = messages_in_backward([1, 1, 2], [2, 2], portions=2).axes
    layers, messages = ([tuple(path.get_extents().intervalx) for path in bars.get_paths()] for bars in axis.collections)
    assert layers == [(0, 0.25), (0.25, 0.5), (0.5, 1), (1, 1.25), (1.25, 1.5), (1.5, 2)]
    assert messages == [(1, 1.5), (1.5, 2)] and list(axis.lines[0].get_xdata()) == [1.5, 2]


def test_matrices_have_a_panel_each_and_one_scale():
    whole, half = matrices({"whole": 4 * torch.eye(3), "half": 2 * torch.eye(3)}).axes
    assert [axis.get_title() for axis in (whole, half)] == ["whole", "half"]
    assert whole.images[0].get_clim() == half.images[0].get_clim() and half.images[0].get_array().max() == 2
