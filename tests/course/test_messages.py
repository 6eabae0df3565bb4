"""What rank 0 is told where rank 1 does something else. What is noted of messages is tested with the films."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from ddplab import RankError, launch
from ddplab.course.messages import two_calls, watched
from ddplab.course.played_servers import free_port


@pytest.mark.parametrize(
    ("rank_1", "alone", "lazily", "told"),
    [
        ("calls both", True, False, ["went through", "went through, the sum is 2"]),
        ("never begins", False, True, ["went through", "wait timeout"]),
        ("skips all_reduce", False, False, ["went through", "Timed out"]),
        ("never begins", True, False, ["1/2 clients joined"]),
    ],
)
def test_rank_0_is_told_what_became_of_its_calls(rank_1, alone, lazily, told):
    try:
        run = launch(two_calls, rank_1, str(free_port()) if alone else "", lazily, init=False, device="cpu", quiet=True)
    except RankError as error:
        run = error.run
    says = [row["says"] for row in run.metrics if row["rank"] == 0]
    assert len(says) == len(told) and all(words in said for words, said in zip(told, says, strict=True))


def test_what_each_rank_held_before_and_after():
    def to_rank_1(x, times):
        dist.reduce(x.mul_(times), dst=1)
        return x if dist.get_rank() else None

    held = watched(to_rank_1, 2, ranks=2, device="cpu")
    assert held == [([1, 2], None), ([10, 20], [22, 44])]


@pytest.mark.parametrize(("op", "ranks"), [(dist.ReduceOp.SUM, 3), (dist.ReduceOp.MAX, 4)])
def test_a_reduce_scatter_and_an_all_gather_leave_what_an_all_reduce_leaves(op, ranks):
    """Lesson 3.1 shows an all_reduce that was made so."""

    def in_two_steps(x):
        mine = x.new_empty(1)
        dist.reduce_scatter(mine, list(x.chunk(ranks)), op=op)
        dist.all_gather(list(x.chunk(ranks)), mine)
        return x

    def at_once(x):
        dist.all_reduce(x, op=op)
        return x

    assert watched(in_two_steps, ranks=ranks, device="cpu") == watched(at_once, ranks=ranks, device="cpu")


def test_a_sum_that_only_begins_is_whole_after_its_wait_and_after_a_barrier_of_gloo():
    """As lesson 3.2 says; it shows a run of each when a learner asks for it."""

    def begun(x):
        whole = []
        for cure in 10 * ["wait", "barrier"]:
            ones = torch.ones(1)
            time.sleep(0.004 * torch.rand(1).item())  # every rank at its own pace
            work = dist.all_reduce(ones, async_op=True)
            work.wait() if cure == "wait" else dist.barrier()
            whole.append(ones.item() == dist.get_world_size())
            work.wait()
        return torch.tensor(whole)

    assert [whole for _, whole in watched(begun, device="cpu")] == 3 * [20 * [True]]


def test_in_float16_a_small_mean_is_lost_on_four_ranks_that_divide_first_and_a_large_one_where_they_add_up_first():
    """As lesson 3.3 says; it shows each run when a learner asks for it."""

    def means(x):
        found = []
        for gradient, before, after in ((1e-7, 4, 1), (1e-7, 1, 4), (4e4, 4, 1), (4e4, 1, 4)):
            mine = torch.tensor([gradient], dtype=torch.float16) / before
            dist.all_reduce(mine)
            found.append((mine / after).item())
        return torch.tensor(found)

    _, (small, added, large, too_large) = watched(means, ranks=4, device="cpu")[0]
    assert small == 0 and added == pytest.approx(1e-7, rel=0.2) and large == 4e4 and too_large == float("inf")


def test_each_rank_leaves_one_entry_in_the_store_where_gloos_ranks_meet():
    """As lesson 3.1 says."""

    def meet(port):
        store = dist.TCPStore("127.0.0.1", port)
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    before = store.num_keys()
    launch(meet, store.port, nproc_per_node=3, init=False, device="cpu", quiet=True)
    assert store.num_keys() - before == 3
