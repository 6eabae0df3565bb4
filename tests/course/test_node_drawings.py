"""The pictures of the part on torchrun, read back."""

import re
from pathlib import Path

import matplotlib
import nbformat

from ddplab.course.node_drawings import (
    breaking,
    fall_back,
    gpus_asked_for,
)

matplotlib.use("Agg")


def test_each_rank_stands_over_the_gpu_that_it_asks_for():
    axis = gpus_asked_for([0, 1, 0, 1], [0, 0, 1, 1]).axes[0]
    by_rank, by_local_rank = axis.lines
    assert list(by_rank.get_ydata()) == [0, 1, 2, 3] and list(by_local_rank.get_ydata()) == [0, 1, 0, 1]
    assert by_rank.get_marker() != by_local_rank.get_marker()
    assert [label.get_text() for label in axis.get_xticklabels()][3] == "RANK 3\nnode 1"
    low, high = axis.patches[0].get_extents().transformed(axis.transData.inverted()).intervaly
    assert low < 0 and 1 < high < 2, "the band holds cuda:0 and cuda:1 alone"


def test_ranks_are_told_what_four_real_ones_on_two_nodes_were_told():
    """Lesson 5.1 has stored that."""
    seen = []
    breaking(lambda env, gpus: seen.append(env) or f"cuda:{env['LOCAL_RANK']}")(2, 2, 2)
    lesson = nbformat.read(Path(__file__).parents[2] / "lessons/5_torchrun/5.1_torchrun.ipynb", as_version=4)
    said = next(cell.outputs[0].text for cell in lesson.cells if 'torchrun("who.py", nnodes=2' in cell.source)
    for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        assert re.findall(rf" {name}=(\d)", said) == [env[name] for env in seen]


def test_those_whom_a_device_of_their_own_leaves_without_are_counted():
    draw = breaking(lambda env, gpus: f"cuda:{env['LOCAL_RANK']}")
    for nodes, ranks, gpus, by_rank, by_mine in [(1, 4, 4, "none", "none"), (3, 2, 2, 4, "none"), (2, 3, 2, 4, 2)]:
        words, figure = draw(nodes, ranks, gpus)
        size = nodes * ranks
        assert words == f"{by_rank} of {size} ask in vain by RANK; {by_mine} of {size} ask in vain by my_device"
        assert list(figure.axes[0].lines[1].get_ydata()) == [*range(ranks)] * nodes
        assert len(figure.axes[0].lines) == 2, "nobody shares"


def test_those_who_share_a_gpu_or_ask_for_none_are_counted_too():
    words, figure = breaking(lambda env, gpus: "cuda:0")(2, 2, 2)
    assert words.endswith("none of 4 ask in vain by my_device; 4 of 4 share a GPU by my_device")
    assert [list(line.get_xdata()) for line in figure.axes[0].lines[2:]] == [[0, 1], [2, 3]]
    assert breaking(lambda env, gpus: None)(1, 2, 2)[0].endswith("by my_device; 2 of 2 ask for none by my_device")


def test_a_job_falls_back_to_its_last_checkpoint_and_time_goes_on():
    attempts = [range(32), range(30, 48)]
    words, figure = fall_back(attempts, 48, save_every=6, save_takes=2)
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    again = [int(y) for y in lines["trained again"].get_ydata() if y == y]
    assert again == [30, 31, 32] and list(lines["killed"].get_ydata()) == [32]
    assert list(lines["killed"].get_xdata()) == [32 + 5 * 2] and max(lines["saved"].get_xdata()) == 50 + 8 * 2
    assert list(lines["falls back"].get_ydata())[:2] == [32, 30]
    assert words == "finished after 1 restart: trained 50 steps, 2 of them again; saved 48 of 48"


def test_a_job_that_never_lives_to_a_checkpoint_has_saved_nothing():
    words, figure = fall_back([range(8)] * 3, 48, save_every=12)
    assert words == "failed after 2 restarts: trained 24 steps, 16 of them again; saved 0 of 48"
    [deaths] = [line for line in figure.axes[0].lines if line.get_label() == "killed"]
    assert list(deaths.get_ydata()) == [8, 8, 8] and list(deaths.get_xdata()) == [8, 16, 24]
