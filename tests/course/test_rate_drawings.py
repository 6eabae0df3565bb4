"""Pictures of learning rates, read back: ends, lowest points, and the line of a rule."""

import matplotlib
import pytest
import torch

from ddplab.course.rate_drawings import marks, schedules, valleys

matplotlib.use("Agg")


def labels(axis):
    return [text.get_text() for text in axis.get_legend().get_texts()]


def test_a_schedule_has_a_line_and_a_mark_of_its_own_at_its_end():
    axis = schedules({"1 rank": [0.1, 1.0, 0.5], "2 ranks": [0.1, 1.0]}).axes[0]
    long, end, short, other_end = axis.get_lines()
    assert list(long.get_ydata()) == [0.1, 1.0, 0.5] and (end.get_xdata()[0], end.get_ydata()[0]) == (2, 0.5)
    assert (other_end.get_xdata()[0], other_end.get_ydata()[0]) == (1, 1.0)
    assert end.get_marker() != other_end.get_marker() and long.get_linewidth() > short.get_linewidth()
    assert labels(axis) == ["1 rank: 3 updates", "2 ranks: 2 updates"]


def test_the_axis_reaches_the_longest_run_and_updates_are_whole_numbers():
    assert schedules({"run": [0.5] * 99, "short": [0.5] * 7}).axes[0].get_xlim()[1] > 99
    ticks = schedules({"run": [0.5] * 3}).axes[0].get_xticks()
    assert all(tick == round(tick) for tick in ticks)


def test_each_valley_has_a_ring_at_its_lowest_point():
    rates = torch.tensor([0.1, 0.2, 0.4])
    losses = {4: torch.tensor([0.3, 0.2, 0.5]), 16: torch.tensor([0.9, 0.4, 0.3])}
    _, right = valleys({"SGD": losses, "Adam": losses}, {"SGD": rates, "Adam": rates / 10}).axes
    rings = [line for line in right.get_lines() if len(line.get_xdata()) == 1]
    assert [float(ring.get_xdata()[0]) for ring in rings] == pytest.approx([0.02, 0.04])
    assert len({ring.get_marker() for ring in rings}) == 2 and labels(right) == ["batch 4", "batch 16"]


def test_a_chosen_rate_has_a_mark_on_its_valley_and_on_the_upper_edge_where_the_loss_is_higher():
    rates, losses = torch.tensor([0.1, 0.2, 0.4]), {4: torch.tensor([0.3, 0.2, 9.0]), 16: torch.tensor([0.9, 0.4, 0.3])}
    axis = valleys({"SGD": losses}, {"SGD": rates}, chosen={"SGD": {4: 2}}).axes[0]
    valley, _, mark, *others = axis.get_lines()
    assert (float(mark.get_xdata()[0]), mark.get_ydata()[0]) == (pytest.approx(0.4), 3)
    assert mark.get_color() == valley.get_color() and len(others) == 2  # batch 16 has its valley and its ring


def test_each_run_leaves_a_mark_in_the_order_of_the_rates_and_the_newest_is_large():
    kinds = four, _, _ = ("batch 4", "order 1"), ("batch 64", "order 1"), ("batch 4", "order 2")
    axis = marks(dict(zip(kinds, [{0.5: 0.3, 0.1: 0.2}, {0.1: 0.9}, {0.2: 0.4}], strict=True)), four, 0.5).axes[0]
    first, newest, other_batch, other_order = axis.get_lines()
    assert (list(first.get_xdata()), list(first.get_ydata())) == ([0.1, 0.5], [0.2, 0.3])
    assert (newest.get_xdata()[0], newest.get_ydata()[0]) == (0.5, 0.3) and newest.get_marker() == first.get_marker()
    assert newest.get_markersize() > first.get_markersize()
    assert other_batch.get_marker() != first.get_marker() and other_order.get_linestyle() != first.get_linestyle()
    assert labels(axis) == ["batch 4, order 1", "batch 64, order 1", "batch 4, order 2"]


def test_a_run_may_lie_over_something_else_than_its_rate():
    axes = {"xlabel": "ranks", "xticks": [1, 2], "xlim": (0.9, 2.1), "ylim": (0.1, 1)}
    axis = marks({("keep",): {1: 0.5}, ("grow",): {1: 0.5, 2: 0.6}}, ("grow",), 2, axes).axes[0]
    keep, grow, newest = axis.get_lines()
    assert axis.get_xlabel() == "ranks" and [tick.get_text() for tick in axis.get_xticklabels()] == ["1", "2"]
    assert keep.get_marker() != grow.get_marker() == newest.get_marker() and labels(axis) == ["keep", "grow"]
