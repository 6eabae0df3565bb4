"""Pictures of DDP, read back: curves, differences, bars of buckets, masks, albums, roads, what ranks hold."""

import matplotlib
import pytest
import torch

from ddplab.course.ddp_drawings import (
    agreement,
    album,
    beside,
    buckets_in_time,
    differences,
    held_beside,
    masks,
    star_and_ring,
    step_lanes,
    without,
)
from ddplab.plots import COLOURS, DASHES

matplotlib.use("Agg")


def test_beside_draws_the_mean_of_the_ranks_over_one_device_and_below_how_far_each_rank_strays():
    axis, below = beside([2.0, 1.0], [[1.0, 0.0], [3.0, 2.0]]).axes
    one, mean = axis.lines
    assert one.get_ydata().tolist() == mean.get_ydata().tolist() == [2, 1]
    assert one.get_linewidth() > 3 * mean.get_linewidth()
    assert [line.get_ydata().tolist() for line in below.lines] == [[-1, -1], [1, 1]]
    looks = [(line.get_color(), line.get_linestyle()) for line in below.lines]
    assert looks == list(zip(COLOURS, DASHES, strict=False))[:2]
    assert one.get_color() not in COLOURS and mean.get_color() not in COLOURS
    labels = [text.get_text() for it in (axis, below) for text in it.get_legend().get_texts()]
    assert labels == ["one device", "2 ranks, the mean", "rank 0 minus one device", "rank 1 minus one device"]
    assert all(tick == int(tick) for tick in below.get_xticks()), "a step is whole"


def test_differences_are_drawn_on_a_logarithmic_axis_with_named_lines():
    (axis,) = differences({"float32": [1e-8, 2e-8], "float64": [1e-17, 2e-17]}, {"epsilon": 1e-7}).axes
    first, second, line = axis.lines
    assert axis.get_yscale() == "log" and first.get_ydata().tolist() == [1e-8, 2e-8]
    assert first.get_marker() != second.get_marker()
    assert set(line.get_ydata()) == {1e-7} and [text.get_text() for text in axis.texts] == ["epsilon"]


def test_a_bar_is_a_bucket_from_where_it_leaves_to_where_it_is_back_hatched_until_it_has_left_every_rank():
    early = [("begins", 0, 10.0), ("ready", 1, 10.010), ("leaves", 0, 10.011), ("back", 0, 10.031)]
    late = [("begins", 0, 10.0), ("ready", 1, 10.020), ("leaves", 0, 10.021), ("back", 0, 10.031)]
    (axis,) = buckets_in_time({"second backward": [early, late]}).axes
    spans = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axis.patches]
    assert spans == [(pytest.approx(a), pytest.approx(b)) for a, b in ((11, 21), (21, 31), (21, 21), (21, 31))]
    assert [bool(bar.get_hatch()) for bar in axis.patches] == [True, False] * 2
    assert axis.patches[1].get_facecolor() != axis.patches[3].get_facecolor(), "the colours are the ranks' (LEGEND.md)"
    assert [line.get_xdata()[0] for line in axis.lines] == [pytest.approx(10), pytest.approx(20)]
    assert [text.get_text() for text in axis.texts] == ["layer 1", " bucket 0"] * 2
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["rank 0", "rank 1"]


def test_masks_are_grey_where_an_entry_was_dropped_with_a_line_between_ranks():
    tables = [torch.tensor([[0.0, 2.0]]), torch.tensor([[2.0, 0.0]])]
    one, other = masks({"alike": tables[:1] * 2, "apart": tables}).axes
    assert other.images[0].get_array().tolist() == [[True, False], [False, True]]
    assert one.get_title() == "alike" and len(other.lines) == 1
    assert [tick.get_text() for tick in other.get_yticklabels()] == ["rank 0", "rank 1"]


def test_what_is_missing_is_marked_in_a_row_of_numbered_boxes():
    (axis,) = without({"served": [1], "known": [1, 2]}, 3).axes
    assert [text.get_text() for text in axis.texts] == ["served", "0", "1", "2", "known", "0", "1", "2"]
    assert [box.get_linewidth() > 1 for box in axis.patches] == [False, True, False, False, True, True]
    assert [text.get_weight() for text in axis.texts[1:4]] == ["normal", "bold", "normal"]


def test_an_album_shows_images_as_bright_as_they_are_and_crosses_those_that_are_read_wrong():
    images = torch.arange(8.0).view(4, 1, 1, 2) / 8
    (axis,) = album({"dark": (images, [True, False, True, True])}, across=2).axes
    rows = axis.images[0].get_array().tolist()
    assert rows[1::3] == [[0, 1 / 8, 2 / 8, 3 / 8], [4 / 8, 5 / 8, 6 / 8, 7 / 8]] and not any(rows[0] + rows[2])
    assert axis.images[0].get_clim() == (0, 1) and axis.get_title() == "dark"
    (cross,) = axis.lines
    assert (cross.get_marker(), *cross.get_xydata().tolist()) == ("X", [2.5, 1])


def test_numbers_that_agree_are_filled_and_counted_beneath():
    first, second = agreement({"before it": [True, False, True], "after": [False] * 3}, across=2).axes
    assert first.images[0].get_array().tolist() == [[1, 0], [1, 0]] and not second.images[0].get_array().any()
    assert (first.get_title(), first.get_xlabel()) == ("before it", "2 of 3\nagree")
    known, _ = agreement({"rank 0": [True, False], "rank 1": [True] * 2}, across=1, what="are known").axes
    assert known.get_xlabel() == "1 of 2\nare known"
    (frame,) = first.lines
    assert frame.get_xydata()[2:5].tolist() == [[1.5, 0.5], [0.5, 0.5], [0.5, 1.5]], "a short last row is no difference"
    assert not agreement({"full": [True] * 4}, across=2).axes[0].lines
    (alone,) = agreement({"both": [True]}).axes
    assert (alone.get_xlabel(), alone.get_anchor()) == ("1 of 1\nagree", "C")
    unlike = agreement({"few": [True] * 2, "many": [True] * 4}, across=2).axes
    assert [axis.get_anchor() for axis in unlike] == ["N", "N"], "they begin at one height"


def test_a_star_has_one_road_fewer_than_gpus_and_a_ring_one_for_each_and_two_gpus_have_as_much_to_do_in_both():
    star, ring = star_and_ring(24.0, 6.0, 4).axes
    assert (len(star.lines), len(ring.lines)) == (3, 4) and "24.0 B" in star.get_title()
    assert "12.0 B through each rank" in ring.get_title()  # in and out, as of GPU 0
    assert [text.get_text() for text in ring.texts] == ["0", "1", "2", "3"]
    discs = [disc.get_sizes()[0] for disc in star.collections]
    assert (
        discs[0] == max(discs) and len(set(discs[1:])) == 1 and len({d.get_sizes()[0] for d in ring.collections}) == 1
    )
    both = star_and_ring(8.0, 4.0, 2).axes
    assert both[0].lines[0].get_linewidth() == both[1].lines[0].get_linewidth() and len(both[1].lines) == 1


def test_below_the_roads_messages_are_filled_where_nothing_is_computed_and_both_steps_have_one_scale():
    lanes = {"DataParallel": (5.0, 10.0, [(0.0, 5.0), (15.0, 5.0)]), "DDP": (0.0, 10.0, [(5.0, 2.0), (8.0, 4.0)])}
    axis = star_and_ring(24.0, 6.0, 4, lanes).axes[2]
    bars = [bar for them in axis.collections for bar in them.get_paths()]
    spans = [(bar.vertices[:, 0].min(), bar.vertices[:, 0].max()) for bar in bars]
    assert spans == [(5, 15), (0, 5), (15, 20), (0, 10), (5, 7), (8, 10), (10, 12)]
    filled = [bool(them.get_facecolor().size and them.get_facecolor()[0][3]) for them in axis.collections]
    assert filled == [True, True, True, True, False, False, True]
    assert [text.get_text() for text in axis.texts] == [" 20.0 ms", " 12.0 ms"]


def test_steps_by_themselves_are_drawn_in_the_same_way_and_more_of_them_need_more_room():
    lanes = {"slow": (0.0, 10.0, [(5.0, 4.0), (9.0, 4.0)]), "fast": (0.0, 10.0, [(5.0, 1.0), (10.0, 1.0)])}
    figure = step_lanes(lanes)
    (axis,) = figure.axes
    assert [text.get_text() for text in axis.texts] == [" 13.0 ms", " 11.0 ms"]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["slow", "fast"]
    assert figure.get_size_inches()[1] > step_lanes({"slow": lanes["slow"]}).get_size_inches()[1]
    roomy, full = (step_lanes({name: lanes["slow"] for name in names}, places=3) for names in ("a", "abc"))
    assert [*roomy.get_size_inches()] == [*full.get_size_inches()]


def test_what_each_rank_holds_stands_beside_the_others_with_a_sign_between():
    (axis,) = held_beside({"body": [9.9, 19.8], "dogs": [None, None]}).axes
    said = [text.get_text() for text in axis.texts]
    assert said == ["body", "9.9", "19.8", "≠", "dogs", "None", "None", "=", "rank 0", "rank 1"]
    assert [box.get_linewidth() for box in axis.patches] == [2.5, 2.5, 0.8, 0.8]
