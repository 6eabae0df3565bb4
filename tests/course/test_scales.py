"""Scales under the messages."""

import torch
import torch.distributed as dist

from ddplab import launch
from ddplab.course.scales import weigh


def weighed_sum():
    sent, own = weigh(), torch.ones(3, dtype=torch.float16)
    dist.all_reduce(own)
    dist.all_reduce(torch.ones(2), async_op=True).wait()
    return sent, own.tolist()


def test_each_all_reduce_is_weighed_and_does_what_it_did():
    assert launch(weighed_sum, device="cpu", quiet=True).results == [([6, 8], [2, 2, 2])] * 2
