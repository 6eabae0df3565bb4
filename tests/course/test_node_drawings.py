"""The pictures of the part on torchrun, read back."""

from types import SimpleNamespace

import matplotlib

from ddplab.course.node_drawings import calls, distances, fall_back, gpus_asked_for, takes

matplotlib.use("Agg")


def test_each_rank_stands_over_the_gpu_that_it_asks_for():
    axis = gpus_asked_for([0, 1, 0, 1], [0, 0, 1, 1]).axes[0]
    by_rank, by_local_rank = axis.lines
    assert list(by_rank.get_ydata()) == [0, 1, 2, 3] and list(by_local_rank.get_ydata()) == [0, 1, 0, 1]
    assert by_rank.get_marker() != by_local_rank.get_marker()
    assert [label.get_text() for label in axis.get_xticklabels()][3] == "RANK 3\nnode 1"
    low, high = axis.patches[0].get_extents().transformed(axis.transData.inverted()).intervaly
    assert low < 0 and 1 < high < 2, "the band holds cuda:0 and cuda:1 alone"


def test_a_job_falls_back_to_its_last_checkpoint_and_time_goes_on():
    attempts = [range(32), range(30, 48)]
    words, figure = fall_back(attempts, 48, save_every=6, save_takes=2)
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    again = [int(y) for y in lines["trained again"].get_ydata() if y == y]
    assert again == [30, 31, 32] and list(lines["killed"].get_ydata()) == [32]
    assert list(lines["killed"].get_xdata()) == [32 + 5 * 2] and max(lines["saved"].get_xdata()) == 50 + 8 * 2
    assert list(lines["falls back"].get_ydata())[:3] == [30, 30, 32]
    assert words == "finished after 1 restart, in the time of 66 steps: 50 trained, 48 of 48 saved"
    assert takes(attempts, 6, 2) == 66


def test_a_job_that_never_lives_to_a_checkpoint_has_saved_nothing():
    words, figure = fall_back([range(8)] * 3, 48, save_every=12)
    assert words == "failed after 2 restarts, in the time of 24 steps: 24 trained, 0 of 48 saved"
    [deaths] = [line for line in figure.axes[0].lines if line.get_label() == "killed"]
    assert list(deaths.get_ydata()) == [8, 8, 8] and list(deaths.get_xdata()) == [8, 16, 24]


def test_an_arrow_goes_to_whom_the_early_rank_calls():
    refused, answered = "rank 1 finds 40123 0\nConnectionRefusedError: Connection refused\n", "rank 1 finds nothing\n"
    results = [(0, 0, "failed"), (0, 1, "finished")] * 2
    run = SimpleNamespace(results=results, output=[refused, answered] * 2)
    for switch, end, said in [(0, (1.9, 0), "Connection refused"), (1, (6.5, 0), "it answers")]:
        axes = calls(run, switch).axes
        ends = [[it.xy for it in axis.texts if hasattr(it, "xy") and not it.get_text()] for axis in axes]
        assert ends == [[end]] * 2 and [axis.texts[-1].get_text() for axis in axes] == [said] * 2
    assert calls(run, 0).axes[0].get_title() == "rank 0 late: failed"


def test_the_first_bar_is_on_top_and_each_has_its_number():
    axis = distances({"all": 0.0, "without model": 0.5}).axes[0]
    assert [text.get_text() for text in axis.texts] == ["0.0%", "50.0%"]
    assert axis.get_ylim()[0] > axis.get_ylim()[1]
