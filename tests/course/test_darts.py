"""Darts: what a film of them is made of comes from the ranks, and it reads without a browser."""

from math import pi

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from ddplab import launch
from ddplab.course.darts import draw, estimates, fall, landed, logging_darts, words


def throw(seed=0):
    hand = torch.Generator().manual_seed(seed + dist.get_rank())
    torch.rand(3, generator=hand), torch.rand(2, 3, generator=hand)  # no darts
    return (torch.rand(20, 2, generator=hand).norm(dim=1) < 1).sum().item()


def test_each_dart_of_a_rank_is_where_it_fell_and_the_count_is_the_ranks_own(capsys):
    cloudpickle.register_pickle_by_value(__import__(__name__))
    run = launch(logging_darts(throw), device="cpu", quiet=True)
    darts = landed(run)
    assert [len(rank) for rank in darts] == [20, 20] and darts[0] != darts[1]
    said = words(darts).splitlines()
    assert [line.split(":")[0] for line in said[:2]] == [f"rank {n}    {run.results[n]} of 20 within" for n in (0, 1)]
    assert said[2].startswith(f"together  {sum(run.results)} of 40 within: π ≈ {sum(run.results) / 10:.3f}")
    assert len(draw(darts).axes) == 3
    fall(run)
    assert capsys.readouterr().out == words(darts) + "\n"


def test_a_run_without_darts_says_how_to_log_them():
    with pytest.raises(ValueError, match="logging_darts"):
        fall(launch(dist.get_rank, device="cpu", quiet=True))


def test_with_more_ranks_the_worst_is_worse_and_their_mean_is_better_as_lesson_1_1_says():
    def look_for_pi(seed):
        thrown = torch.rand(200, 2, generator=torch.Generator().manual_seed(seed))
        return 4 * (thrown.norm(dim=1) < 1).double().mean().item()

    throws = [[look_for_pi(1000 * throw + rank) for rank in range(8)] for throw in range(1, 6)]
    off = lambda found: abs(sum(found) / len(found) - pi)  # noqa: E731
    assert all(off(found) < off(found[:2]) for found in throws)
    assert estimates(throws[0][:1])[0] == "1 rank: the worst is off by 0.022, the mean by 0.022"
    assert estimates(throws[0][:2])[0] == "2 ranks: the worst is off by 0.218, the mean by 0.098"
    found = throws[-1]
    said, figure = estimates(found)
    assert said == "8 ranks: the worst is off by 0.158, the mean by 0.002"
    _, *ranks, mean = figure.axes[0].get_lines()
    assert [mark.get_xdata()[1] for mark in ranks] == found and len({mark.get_marker() for mark in ranks}) == 8
    assert mean.get_xdata()[0] == pytest.approx(sum(found) / 8) and mean.get_fillstyle() == "none"
    left, right = figure.axes[0].get_xlim()
    assert all(left < estimate < right for found in throws for estimate in found)
