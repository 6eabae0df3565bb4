"""A pipeline's stages at work: how long they sleep, and what share of the time they do not."""

import matplotlib
import pytest
import torch
from torch import nn

from ddplab.course.pipelining import idle_share, lanes, most_on_the_way, ms_between, ranking, sleepy
from ddplab.course.timeline import Row, length, record

matplotlib.use("Agg")

TWO = [
    [
        Row("phase", "forward", 0, 10, ""),
        Row("communication", "gloo:send", 5, 30, ""),
        Row("phase", "backward", 30, 40, ""),
    ],
    [Row("phase", "forward", 10, 15, ""), Row("phase", "backward", 15, 30, "")],
]


def test_the_idle_share_is_what_no_phase_takes_on_the_mean_of_ranks():
    assert idle_share([[row for row in rows if row.kind == "phase"] for rows in TWO]) == 1 - 40 / 80


def test_runs_are_ranked_by_the_time_in_which_their_stages_do_nothing():
    longer = [[row._replace(end=row.end + 40 * (row.name == "backward")) for row in rows] for rows in TWO]
    head, first, second = ranking({("GPipe", 1): TWO, ("1F1B", 8): longer}).splitlines()
    assert first.split() == ["1F1B", "8", "11%", "25%", "0.0", "1"]
    assert second.split() == ["GPipe", "1", "50%", "50%", "0.0", "1"]
    assert all(len(line) == len(head) for line in (first, second))


def test_what_is_on_the_way_has_gone_forward_and_not_come_back():
    names = ["forward", "forward", "backward", "forward", "forward", "backward", "backward", "backward"]
    assert most_on_the_way([Row("phase", name, n, n + 1, "") for n, name in enumerate(names)]) == 3


def test_the_time_between_two_phases_is_its_median():
    phases = [Row("phase", "forward", start, start + 5, "") for start in (27, 0, 7, 13)]
    assert ms_between(phases) == 2


def test_a_message_is_waited_for_only_while_no_phase_runs():
    (axis,) = lanes({"2": TWO}).axes
    assert axis.get_title() == "2: a stage stands idle for 50% of the time"
    names = [text.get_text() for text in axis.get_legend().get_texts()]
    colours = dict(zip(names, [patch.get_facecolor() for patch in axis.get_legend().get_patches()], strict=True))
    waited = [list(colours["waits for a message"])]
    bars = [bar for bars in axis.collections if bars.get_facecolor().tolist() == waited for bar in bars.get_paths()]
    assert [bar.get_extents().intervalx.tolist() for bar in bars] == [[10, 30]]


def test_runs_lie_beneath_each_other_with_the_same_milliseconds():
    later = [[row._replace(start=row.start + 100, end=row.end + 100) for row in rows] for rows in TWO]
    longer = [[row._replace(end=2 * row.end) for row in rows] for rows in TWO]
    first, second, third = lanes({"2": TWO, "later": later, "longer": longer}).axes
    ends = [max(bar.get_datalim(axis.transData).x1 for bar in axis.collections) for axis in (first, second, third)]
    assert ends == [40, 40, 80] and first.get_xlim() == second.get_xlim() == third.get_xlim()
    assert first.get_legend() and not third.get_legend() and [a.get_xlabel() for a in (first, third)] == ["", "ms"]


@pytest.mark.parametrize("samples", [1, 3])
def test_a_sleepy_part_sleeps_for_each_sample_twice_as_long_backward_and_computes_the_same(samples):
    torch.manual_seed(0)
    part, x = nn.Linear(4, 2), torch.randn(samples, 4)
    part(x).sum().backward()
    wanted, part.weight.grad = part.weight.grad, None
    with record() as rows:
        sleepy(part, seconds=0.01)(x).sum().backward()
    assert torch.equal(part.weight.grad, wanted)
    forward, backward = (row for row in rows if row.kind == "phase")
    assert (forward.name, backward.name) == ("forward", "backward")
    assert forward.end - forward.start >= 10 * samples and backward.end - backward.start >= 20 * samples
    assert length([forward[2:4], backward[2:4]]) >= 30 * samples


def test_asked_for_shapes_only_it_does_not_sleep():
    with record() as rows:
        assert sleepy(nn.Linear(4, 2).to("meta"), seconds=60)(torch.empty(3, 4, device="meta")).shape == (3, 2)
    assert rows == []
