"""Scales under the messages."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import launch
from ddplab.course.scales import power_sgd, weigh


def weighed_sum():
    sent, own = weigh(), torch.ones(3, dtype=torch.float16)
    dist.all_reduce(own)
    dist.all_reduce(torch.ones(2), async_op=True).wait()
    return sent, own.tolist()


def test_each_all_reduce_is_weighed_and_does_what_it_did():
    assert launch(weighed_sum, device="cpu", quiet=True).results == [([6, 8], [2, 2, 2])] * 2


def squeezed_gradients():
    torch.manual_seed(0)
    sent, model = weigh(), DDP(torch.nn.Linear(32, 32, bias=False))
    model.register_comm_hook(PowerSGDState(None, 1, start_powerSGD_iter=2), power_sgd)
    torch.cuda.is_available = lambda: True  # a machine with GPUs, whose ranks are on the CPU
    for _ in range(3):
        sent.clear()
        model.zero_grad()
        model(torch.ones(2, 32))[:, 0].sum().backward()  # one column times one row
    return sent, model.module.weight.grad[0].tolist()


def test_power_sgd_waits_for_no_gpu_where_the_ranks_are_on_the_cpu():
    (sent, row), _ = launch(squeezed_gradients, device="cpu", quiet=True).results
    assert sum(sent) == 4 * (32 + 32) and all(abs(it - 2) < 1e-4 for it in row)
