"""Static figures, read back: strips of samples, repeats hatched; blocks of numbers before and after an exchange."""

import matplotlib
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle
from torch.utils.data import DistributedSampler

from ddplab.course.drawings import bytes_held, calls, exchanges, lanes, strip

matplotlib.use("Agg")


# ------------------------------------------------------------------ strips


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
    assert not any("nobody" in text for text in drawn(strip({"one": [[0]]}, 3, nobody=False))[1])


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


# ------------------------------------------------------------------ exchanges


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
    assert len(framed) == 6 and framed.count(2.5) == 1


def test_exchanges_takes_lists_of_tensors_longer_states_and_several_runs():
    gathered = [[5, [torch.tensor([5]), torch.tensor([6])]], [6, None]]
    first, second = exchanges({"gather": gathered, "nothing": [[1, 1], [2, 2]]}, ["start", "end"]).axes
    assert bold(first) == ["6"] and bold(second) == []
    assert first.get_xlim() == second.get_xlim()  # numbers of the same size in both panels


def test_exchanges_refuses_a_rank_that_left_out_a_moment():
    with pytest.raises(ValueError, match="one thing for each of: before, after"):
        exchanges({"broken": [[1, 2], [1]]})


# ------------------------------------------------------------------ lanes, calls, bytes


ROWS = [
    {"rank": 0, "step": 0, "time": 5.0, "doing": "forward"},
    {"rank": 0, "step": 1, "time": 5.5, "doing": "backward"},
    {"rank": 1, "step": 0, "time": 5.1, "doing": "forward"},
    {"rank": 1, "step": 1, "time": 6.0, "doing": "died"},
    {"rank": 1, "step": 2, "time": 6.0, "loss": 1.0},
]


def test_a_lane_shows_what_a_rank_does_and_a_wait_is_hatched_to_the_right_edge():
    axis = lanes({"a run": ROWS}, waits=["backward"], seconds=3).axes[0]
    bars = [(round(bar.get_x(), 3), round(bar.get_width(), 3), bool(bar.get_hatch())) for bar in axis.patches]
    assert bars == [(0.0, 0.5, False), (0.5, 2.5, True), (0.1, 0.9, False)]
    assert [text.get_text() for text in axis.texts][-1] == "died"
    assert [label.get_text() for label in axis.get_yticklabels()] == ["rank 0", "rank 1"]


def test_lanes_without_what_a_rank_is_doing_say_what_to_log():
    with pytest.raises(KeyError, match="doing"):
        lanes({"a run": [{"rank": 0, "time": 1.0, "loss": 2.0}]}, waits=[], seconds=1)


def test_calls_from_different_places_are_hatched_and_different_ones_have_a_thick_frame():
    rows = [[("forward", "broadcast"), ("evaluate", "broadcast"), ("forward", "broadcast")],
            [("forward", "broadcast"), ("forward", "broadcast"), ("backward", "all_reduce")]]  # fmt: skip
    axis = calls(rows, first=10).axes[0]
    hatched = [box.get_x() for box in axis.patches if box.get_hatch()]
    thick = [box.get_x() for box in axis.patches if box.get_linewidth() > 1]
    assert len(axis.patches) == 6 + 4 and hatched == [1, 1, 2, 2] and thick == [2, 2]
    assert [text.get_text() for text in axis.texts if text.get_text().isdigit()] == ["10", "11", "12"]


def test_a_call_that_a_rank_does_not_make_is_a_dashed_box():
    axis = calls([[("line 1", "broadcast"), ("line 2", "barrier")], [("line 1", "broadcast")]]).axes[0]
    [dashed] = [box for box in axis.patches if box.get_linestyle() == "--"]
    assert dashed.get_xy() == (1, 1) and "no call" in [text.get_text() for text in axis.texts]


def test_bytes_held_are_stacked_up_to_their_sum():
    table = {"one": {"weights": 4.0, "Adam": 8.0}, "two": {"weights": 2.0, "Adam": 4.0}}
    axis = bytes_held(table, limit=11, limit_name="the card").axes[0]
    assert [(bar.get_x(), bar.get_width()) for bar in axis.patches] == [(0, 4), (0, 2), (4, 8), (2, 4)]
    assert {text.get_text() for text in axis.get_legend().get_texts()} == {"weights", "Adam", "the card"}
    whole = {"all": dict.fromkeys(("weights", "gradients", "buckets", "Adam"), 4.0)}
    bars = bytes_held(whole, limit=20, limit_name="the card").axes[0]
    for part, same in ((0, 0), (2, 3)):  # a part looks the same in each picture, whatever parts there are
        assert axis.patches[part].get_facecolor() == bars.patches[same].get_facecolor()
    assert bars.get_xlim()[1] > 20  # the line is on the picture


def test_bytes_held_without_a_limit_and_on_an_axis_that_stays():
    axes = [bytes_held({"one": {"weights": size}}, up_to=20).axes[0] for size in (4.0, 8.0)]
    assert axes[0].get_xlim() == axes[1].get_xlim() == (0, 21)
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["weights"]


def test_a_mark_in_the_row_of_a_bar_is_what_was_measured():
    axis = bytes_held({"ZeRO": {"Adam": 4.0}, "FSDP2": {"Adam": 2.0}}, marks={"ZeRO": 4.1}).axes[0]
    (marks,) = axis.lines
    assert marks.get_marker() == "D" and marks.get_linestyle() == "None"
    assert list(marks.get_xdata()) == [4.1] and list(marks.get_ydata(orig=False)) == [0]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["measured here", "Adam"]
