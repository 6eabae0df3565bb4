"""Darts: what a film of them is made of comes from the ranks, and it reads without a browser."""

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from ddplab import launch
from ddplab.course.darts import draw, fall, landed, logging_darts, words


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
