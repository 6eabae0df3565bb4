"""What rank 0 is told where rank 1 does something else. What is noted of messages is tested with the films."""

import pytest
import torch.distributed as dist

from ddplab import RankError, launch
from ddplab.course.messages import two_calls, watched
from ddplab.course.played_servers import free_port


@pytest.mark.parametrize(
    ("rank_1", "alone", "backend", "told"),
    [
        ("calls both", True, "gloo", ["went through", "went through, the sum is 2"]),
        ("never begins", False, "fake", ["went through", "went through, the sum is 1"]),
        ("skips all_reduce", False, "gloo", ["went through", "Timed out"]),
        ("never begins", True, "gloo", ["1/2 clients joined"]),
    ],
)
def test_rank_0_is_told_what_became_of_its_calls(rank_1, alone, backend, told):
    try:
        run = launch(
            two_calls, rank_1, str(free_port()) if alone else "", backend, init=False, device="cpu", quiet=True
        )
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
