"""Pictures of training, read back: heights, names, and signs that do without colour."""

import matplotlib
import pytest
import torch

from ddplab.course.data import digits
from ddplab.course.memory_step import Moment
from ddplab.course.training_drawings import (
    beside,
    beside_the_usual,
    clouds,
    distances,
    each_batch,
    epochs_and_updates,
    how_full,
    images,
    layer_bars,
    memory_bars,
    step_curve,
    which_curve,
)
from ddplab.metrics import Metrics

matplotlib.use("Agg")


def labels(axis):
    return [text.get_text() for text in axis.get_legend().get_texts()]


def test_each_image_has_its_label():
    pictures, digit = digits()[:3]
    figure = images(pictures, digit)
    assert [axis.get_title() for axis in figure.axes] == [str(int(label)) for label in digit]
    assert all(axis.get_images() for axis in figure.axes)


def test_an_image_may_have_words_instead():
    assert [axis.get_title() for axis in images(digits()[:2][0], ["3 ✓", "5 ✗"]).axes] == ["3 ✓", "5 ✗"]


def test_curves_to_choose_from_have_names_and_no_numbers():
    figure = which_curve({"down": [2, 1], "up": [1, 2]})
    assert [axis.get_title() for axis in figure.axes] == ["down", "up"]
    assert [axis.get_lines()[0].get_ydata().tolist() for axis in figure.axes] == [[2, 1], [1, 2]]
    assert not any(axis.get_xticks().size + axis.get_yticks().size for axis in figure.axes)


def test_each_batchs_loss_is_drawn_and_the_last_of_each_epoch_has_a_ring():
    figure = each_batch([2.0, 1.0, 50.0, float("nan"), 0.5], epoch=2)
    line, rings = figure.axes[0].get_lines()
    assert line.get_xydata().tolist() == [[1, 2], [2, 1], [3, 3], [4, 3], [5, 0.5]]
    assert rings.get_xydata().tolist() == [[2, 1], [4, 3]] and rings.get_fillstyle() == "none"


def test_one_loss_is_solid_and_the_usual_one_beside_it_dashed():
    (axis,) = beside_the_usual([2.0, 2.0], [2.0, 1.0], "lost", "usual").axes
    usual, lost = axis.get_lines()
    assert (list(usual.get_ydata()), list(lost.get_ydata())) == ([2, 1], [2, 2])
    assert (usual.get_linestyle(), lost.get_linestyle()) == ("--", "-") and labels(axis) == ["usual", "lost"]
    assert axis.get_ylim()[0] == 0


def test_memory_is_stacked_and_hatched():
    axis = memory_bars({"a": {"weights": 1000, "rest": 2000}, "b": {"weights": 1000, "rest": 4000}}).axes[0]
    assert [(bar.get_y(), bar.get_height()) for bar in axis.patches] == [(0, 1), (0, 1), (1, 2), (1, 4)]
    assert axis.patches[0].get_hatch() != axis.patches[2].get_hatch() and labels(axis) == ["rest", "weights"]


def test_what_fills_a_device():
    words, figure = how_full(7)
    assert words == "7 billion parameters, GB on one device: SGD 116.0, SGD with momentum 144.0, Adam 172.0"
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["SGD", "SGD with momentum", "Adam"]
    assert [label.get_text() for label in figure.axes[0].texts] == ["80 GB", "116 GB", "144 GB", "172 GB"]
    *named, sgd, _, adam = how_full(7, known=["parameters"])[1].axes[0].patches
    assert [(part.get_height(), part.get_fill()) for part in named] == [(28, True)] * 3
    assert (sgd.get_height(), adam.get_height()) == (pytest.approx(88), pytest.approx(144)) and not adam.get_fill()
    _, *numbers = how_full(4.3)[1].axes[0].texts
    assert [round(number.xy[1], 1) for number in numbers] == [80, 88.5, 105.7], "that of 71 GB is not across the line"


@pytest.mark.parametrize(("billions", "fit"), [(1, "sma"), (3, "sma"), (4, "s--"), (5, "---"), (7, "---")])
def test_what_lesson_1_3_finds_on_a_card_of_80_gb(billions, fit):
    gb = how_full(billions)[0].partition(": ")[2].split(", ")
    assert "".join(name if float(it.split()[-1]) < 80 else "-" for name, it in zip("sma", gb, strict=True)) == fit


def test_memory_in_a_device_with_so_much_room():
    axis = memory_bars({"a": {"weights": 1e9, "rest": 2e9}}, room=10e9).axes[0]
    assert [bar.get_height() for bar in axis.patches] == [1, 2] and axis.get_ylabel() == "GB"
    assert set(axis.get_lines()[0].get_ydata()) == {10} and axis.texts[0].get_text() == "10 GB"


def test_a_dot_is_as_far_from_the_tip_as_its_gradient_is_off():
    whole, gradients = torch.tensor([2.0, 0.0]), torch.tensor([[2.0, 4.0], [-2.0, 0.0]])
    (axis,) = clouds({"two": (gradients, whole)}, reach=3).axes
    assert axis.get_lines()[0].get_xydata().tolist() == [[1, 2], [-1, 0]] and axis.get_title() == "two"
    assert not axis.patches
    (axis,) = clouds({"two": (gradients, whole)}, 3, lambda them, it: (them - it).norm() / it.norm()).axes
    assert axis.patches[0].center == (1, 0) and axis.patches[0].radius == pytest.approx(8**0.5)


def test_layers_from_the_top_down_their_parts_from_left_to_right():
    axis = layer_bars({"first": {"weights": 1000, "rest": 2000}, "second": {"weights": 3000, "rest": 0}}).axes[0]
    assert [(bar.get_x(), bar.get_width()) for bar in axis.patches] == [(0, 1), (0, 3), (1, 2), (3, 0)]
    assert axis.patches[0].get_hatch() != axis.patches[2].get_hatch() and axis.get_ylim()[0] > axis.get_ylim()[1]


def test_a_step_is_drawn_with_what_stays_below_and_its_phases_of_one_width():
    moments = [Moment("forward", 10**6, 0, 2 * 10**6, n * 10**6) for n in range(4)]
    moments += [Moment("backward", 10**6, 10**6, 2 * 10**6, 4 * 10**6), Moment("update", 10**6, 10**6, 2 * 10**6, 0)]
    axis = step_curve(moments).axes[0]
    assert labels(axis) == ["batch: images, activations,\nand their gradients", "gradients", "state", "parameters"]
    assert [it.get_xydata().tolist() for it in axis.get_lines()] == [[[1, 8]], *[[[n, 0], [n, 1]] for n in range(3)]]
    tops = [max(y for _, y in it.get_paths()[0].vertices) for it in axis.collections]
    assert tops == [1, 3, 4, 8] and len({it.get_hatch() for it in axis.collections}) == 4


def test_runs_side_by_side_keep_to_the_chart():
    rows = [{"rank": rank, "step": step, "loss": [1.0, float("nan")][rank]} for rank in (0, 1) for step in (1, 2)]
    figure = beside({"one": Metrics(rows), "two": Metrics(rows[:2])}, "loss", top=2.5)
    first, second = figure.axes
    assert [list(line.get_ydata()) for line in first.get_lines()] == [[1, 1], [2.5, 2.5]]
    assert len({line.get_linestyle() for line in first.get_lines()}) == 2
    assert (first.get_title(), second.get_title()) == ("one", "two") and labels(second) == ["seed 0"]


def test_ways_that_end_apart_have_a_row_each_and_the_rounding_is_left_of_a_line():
    (axis,) = distances({"cut": {"one": 1e-17, "two": 0.01}, "whole": {"one": 1e-16, "two": 1e-16}}, 1e-12).axes
    one, two, line = axis.get_lines()
    assert list(one.get_xdata()) == [1e-17, 1e-16] and one.get_marker() != two.get_marker()
    assert set(line.get_xdata()) == {1e-12} and line.get_linestyle() == "--" and axis.get_xscale() == "log"
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["cut", "whole"] and labels(axis) == ["one", "two"]


def test_one_run_against_epochs_and_updates():
    rows = [{"rank": r, "step": e, "epoch": e, "updates": 10 * e, "loss": 1 / e} for r in (0, 1) for e in (1, 2)]
    left, right = epochs_and_updates(Metrics(rows), ["small", "large"]).axes
    assert list(left.get_lines()[0].get_xdata()) == [1, 2] and list(right.get_lines()[0].get_xdata()) == [10, 20]
    assert labels(left) == ["small", "large"]
