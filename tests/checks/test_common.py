"""What several checks ask of an answer: how long ranks are waited for."""

import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from ddplab.checks import common
from ddplab.checks.common import may_be_slow, on_ranks
from ddplab.run import RankTimeoutError


def slow_on_one() -> float:
    time.sleep(1.0 * dist.get_rank())
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def only_rank_0() -> bool:
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
    return True


def test_a_rank_that_is_slow_while_others_wait_for_it_gets_more_time(monkeypatch):
    monkeypatch.setattr(common, "PATIENCE", 0.4)
    assert on_ranks(slow_on_one, size=2) == [2.0, 2.0]
    with pytest.raises(RankTimeoutError):
        on_ranks(slow_on_one, size=2, patience=0.4)


def test_where_all_wait_or_have_returned_nobody_gets_more_time(monkeypatch):
    monkeypatch.setattr(common, "PATIENCE", 2.0)
    with pytest.raises(RankTimeoutError) as caught:
        on_ranks(only_rank_0, size=2, waiting="A collective needs all.")
    assert caught.value.hint == "A collective needs all."
    assert "finished anything for 2 s" in str(caught.value)


MEETING = "rank 0 waits in barrier\nrank 1 waits in barrier"
STUCK = "rank 0 waits in recv at it.py, line 4\nrank 1 waits in recv at it.py, line 4"


@pytest.mark.parametrize(
    "told, results, slow",
    [
        (MEETING, [None, None], True),
        (STUCK, [None, None], False),
        (STUCK.replace("recv", "backward"), [None, None], True),
        ("rank 0 waits in backward\nrank 1 waits in barrier", [None, None], False),
        ("rank 0 waits in barrier\nrank 1 has returned", [None, 1], False),
        ("rank 0 waits in barrier\nrank 1 is not in a collective: it is at it.py, line 4", [None, None], True),
        ("no rank is in a collective", [1, 2], True),
    ],
    ids=[
        "all are meeting",
        "all wait for each other",
        "all may compute",
        "they wait in several places",
        "one is done",
        "one is elsewhere",
        "all are done",
    ],
)
def test_who_may_be_slow(told, results, slow):
    assert may_be_slow(RankTimeoutError(told, SimpleNamespace(results=results), None)) is slow
