"""Pictures of `nn.DataParallel`, read back: bytes beside the arrows, arrows clear of boxes, padding hatched."""

import matplotlib
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from torch import nn

from ddplab.course.dataparallel_drawings import (
    crossing,
    kept_and_lost,
    one_forward,
    sentence_grid,
    traffic,
)
from ddplab.course.models import MLP
from ddplab.vgpu import virtual_gpus
from ddplab.vgpu.meter import Meter

matplotlib.use("Agg")

CROSSED = {"scatter": 1024, "replicate": 19240, "gather": 160}


def test_each_crossing_has_its_bytes_beside_it():
    axis = one_forward(CROSSED).axes[0]
    texts = [text.get_text() for text in axis.texts]
    assert [text for text in texts if "bytes" in text] == ["1,024 bytes", "19,240 bytes", "160 bytes"]
    assert texts.count("4 images") == texts.count("replica") == 2 and "8 images" in texts
    assert [label.get_text() for label in axis.get_xticklabels()] == [
        "scatter", "replicate", "parallel_apply", "gather",
    ]  # fmt: skip


@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_what_crosses_is_what_the_meter_counts(gpus):
    with virtual_gpus(gpus) as them:
        model = nn.DataParallel(MLP(8).to(them[0]), device_ids=them)
        batch = torch.zeros(10, 64, device=them[0])
        them.meter.reset()
        model(batch)
        assert sum(crossing(MLP(8), 10, gpus)[1].values()) == them.meter.bytes()


def test_what_lesson_2_1_says_to_find():
    def outweigh(hidden, gpus):
        every = ((images, crossing(MLP(hidden), images, gpus)[1]) for images in range(8, 257, 8))
        return next((images for images, they in every if they["scatter"] > they["replicate"]), None)

    found = {hidden: [outweigh(hidden, gpus) for gpus in (2, 3, 4)] for hidden in (8, 64, 512)}
    assert found == {8: [24, 32, 40], 64: [152, 232, None], 512: [None] * 3}
    assert crossing(MLP(), 8, 2) == ([4, 4], CROSSED)
    assert crossing(MLP(), 1, 3) == ([1, 0, 0], {"scatter": 0, "replicate": 0, "gather": 0})
    assert crossing(MLP(), 5, 4)[0] == [2, 2, 1, 0] and crossing(MLP(), 6, 4)[0] == [2, 2, 2, 0]
    assert [images for images in [*range(5, 17), *range(24, 257, 8)] if 0 in crossing(MLP(), images, 4)[0]] == [5, 6, 9]
    assert crossing(MLP(), 8, 3) == ([3, 3, 2], {"scatter": 5 * 256, "replicate": 38480, "gather": 200})


def test_a_row_for_each_gpu():
    axis = one_forward(CROSSED, [2, 2, 1]).axes[0]
    texts = [text.get_text() for text in axis.texts]
    assert texts.count("2 images") == 2 and "1 image" in texts and "5 images" in texts and texts.count("replica") == 3
    assert [label.get_text() for label in axis.get_yticklabels()] == ["gpus[2]", "gpus[1]", "gpus[0]"]


def test_a_gpu_without_a_part_is_idle():
    axis = one_forward(crossing(MLP(), 1, 2)[1], crossing(MLP(), 1, 2)[0]).axes[0]
    texts = [text.get_text() for text in axis.texts]
    assert texts.count("idle") == texts.count("replica") == 1 and texts.count("1 image") == 2
    assert "0 bytes" not in texts and texts.count("") == 4  # as many arrows, and none crosses


def test_no_arrowhead_is_behind_a_box():
    figure = one_forward(CROSSED)
    FigureCanvasAgg(figure).draw()
    texts = figure.axes[0].texts
    frames = [text.get_bbox_patch().get_window_extent() for text in texts if text.get_bbox_patch()]
    arrows = [text.arrow_patch for text in texts if getattr(text, "arrow_patch", None)]
    assert len(frames) == 8 and len(arrows) == 9
    for arrow in arrows:
        line, head = arrow._get_path_in_displaycoord()[0]
        for x, y in [*line.vertices, *head.vertices[:3]]:
            assert not any(frame.x0 < x < frame.x1 and frame.y0 < y < frame.y1 for frame in frames)


def test_padding_is_hatched_and_words_stand_in_their_boxes():
    axis = sentence_grid([["a", "b", "c"], ["d", "e"], ["f"], []]).axes[0]
    assert [bool(patch.get_hatch()) for patch in axis.patches] == [False] * 3 + [False] * 2 + [True, False] + [True] * 5
    assert [text.get_text() for text in axis.texts] == list("abcdef")
    (cut,) = axis.lines
    assert list(cut.get_ydata()) == [2, 2]


def test_dashed_lines_end_each_gpus_result():
    axis = sentence_grid([["a", "b"], ["c", "d"], ["e"], ["f"]], ends=[2, 1]).axes[0]
    first, second = axis.lines[1:]
    assert list(first.get_xdata()) == [2, 2] and list(second.get_xdata()) == [1, 1]
    assert max(first.get_ydata()) < 2 < min(second.get_ydata()) and second.get_linestyle() == "--"


def test_a_word_is_as_large_as_what_it_counts():
    axis = sentence_grid([["a", "b"], ["c"]], says=[0.5, 2]).axes[0]
    assert {text.get_text(): text.get_fontsize() for text in axis.texts} == {"a": 4.75, "b": 4.75, "c": 19}


def test_a_ring_is_around_the_word_that_it_counts():
    axis = sentence_grid([["a", "b"], ["c"]], rings=[2, 1]).axes[0]
    assert [tuple(patch.center) for patch in axis.patches if hasattr(patch, "center")] == [(1.5, 0.5), (0.5, 1.5)]


def test_bytes_on_a_link_are_stacked_by_cause_and_every_device_has_its_peak():
    meter = Meter()
    for cause, source, target, nbytes in (("scatter", 0, 1, 8), ("replicate", 0, 1, 100), ("gather", 1, 0, 4)):
        meter.count(cause, source, target, nbytes)
    for nbytes in (7, -5):
        meter.hold(1, nbytes)
    links, held = traffic(meter).axes
    bars = {(bar.get_y() + bar.get_height() / 2, bar.get_x(), bar.get_width()) for bar in links.patches}
    assert {(0, 0, 100), (0, 100, 8), (1, 0, 4)} <= {tuple(map(round, bar)) for bar in bars}
    assert len({bar.get_hatch() for bar in links.patches}) == 3
    assert [bar.get_width() for bar in held.patches] == [7]


def test_a_row_that_is_lost_is_an_empty_box():
    assert kept_and_lost({"a += n": [3, 0], "b": [3, 2]}, 3, ["1 GPU", "2 GPUs"]).splitlines() == [
        "       1 GPU     2 GPUs",
        "a += n  3 ■■■     0 □□□",
        "b       3 ■■■     2 ■■□",
    ]
