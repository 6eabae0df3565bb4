"""Every failure of lesson 14 gets the right diagnosis. `benchmarks/failures.py` holds them and runs each 20 times."""

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from leftovers import ranks_alive

from ddplab import RankError, launch
from ddplab.diagnosis import mismatch, waits_in

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from failures import FAILURES, diagnosis


@pytest.mark.parametrize("name", FAILURES)
def test_each_failure_gets_the_right_diagnosis(name):
    said = diagnosis(FAILURES[name], timeout=2)
    assert all(words in said for words in FAILURES[name].words), said
    assert not ranks_alive()


def calls(*named, shapes=((1,),), group="0"):
    return [{"group": group, "number": n, "name": name, "shapes": shapes, "frames": []} for n, name in enumerate(named)]


class Ranks:
    """As much of a Run as `mismatch` reads: what each rank wrote down of its collectives."""

    def __init__(self, *per_rank):
        self.per_rank, self.world_size = per_rank, len(per_rank)

    def read(self, rank, kind):
        return self.per_rank[rank]


def test_the_first_collective_that_differs_is_found():
    same, other = calls("barrier", "all_reduce", "gather"), calls("barrier", "all_reduce", "barrier")
    assert mismatch(Ranks(same, same)) is None
    found = mismatch(Ranks(same, same, other))
    assert {rank: call["name"] for rank, call in found.items()} == {0: "gather", 1: "gather", 2: "barrier"}
    assert mismatch(Ranks(same, same[:1])) is None  # that one is behind: it may still come
    assert mismatch(Ranks(same, None)) is None  # that one could not say


def test_shapes_are_compared_where_they_must_agree():
    two, three = [[2]], [[3]]
    assert mismatch(Ranks(calls("broadcast", shapes=two), calls("broadcast", shapes=three)))
    assert mismatch(Ranks(calls("scatter", shapes=[]), calls("scatter", shapes=two))) is None  # only the source gives


def test_groups_are_counted_each_for_itself():
    mine, yours = calls("all_reduce", group="1"), calls("barrier", group="2")
    assert mismatch(Ranks(mine, yours)) is None


def test_a_crash_names_the_line():
    def crash():
        if dist.get_rank() == 1:
            os.abort()
        dist.barrier()

    with pytest.raises(RankError) as caught:
        launch(crash, quiet=True, device="cpu")
    text = str(caught.value)
    assert "rank 1 was killed by SIGABRT" in text and "--> os.abort()" in text
    assert "rank 0 was stopped in barrier at test_diagnosis.py, line " in text


def test_the_debug_level_of_the_moment_reaches_the_ranks(monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")  # after the forkserver has imported torch

    def train():
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))  # crashes in torch 2.13 when it says "gloo"
        return str(dist.get_debug_level())

    assert launch(train, quiet=True, device="cpu").results == ["DebugLevel.DETAIL"] * 2


def test_the_construction_of_ddp_is_told_from_its_forward_pass():
    ddp = "/x/torch/nn/parallel/distributed.py"
    assert waits_in([("/c.py", 1, "f"), (ddp, 1, "__init__"), (ddp, 2, "_helper")]) == "the construction of DDP"
    assert waits_in([("/c.py", 1, "f"), (ddp, 1, "forward"), (ddp, 2, "_sync")]) == "the forward pass of DDP"


def test_a_message_and_a_barrier_that_wait_for_each_other():
    """Messages between two ranks are not on the flight recorder's list of collectives: the stacks tell."""

    def cross():
        if dist.get_rank() == 0:
            dist.recv(torch.zeros(1), src=1)
        dist.barrier()

    with pytest.raises(RankError, match="wait in different collectives, each for the others") as raised:
        launch(cross, timeout=2, quiet=True, device="cpu")
    assert "rank 0 waits in recv" in str(raised.value) and "rank 1 waits in barrier" in str(raised.value)
