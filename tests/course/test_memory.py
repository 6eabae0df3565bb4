"""Bytes counted on a rank: against arithmetic, and with everything shared out."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from ddplab import device, launch
from ddplab.course.memory import activations, held, watch_buckets, whole_weights
from ddplab.course.plan import memory


def step(net, optimizer):
    net(torch.ones(2, 8, device=device())).sum().backward()
    optimizer.step()
    return tuple(held(net, optimizer))


def test_adam_as_the_plan_says():
    net = nn.Linear(8, 4)
    planned = memory(8 * 4 + 4)
    assert step(net, torch.optim.Adam(net.parameters())) == (planned.weights, planned.gradients, planned.optimizer)


def test_sgd_keeps_nothing_and_frozen_weights_have_no_gradient():
    net = nn.Linear(8, 4)
    net.weight.requires_grad_(False)
    assert step(net, torch.optim.SGD(net.parameters(), lr=0.1)) == (4 * 36, 4 * 4, 0)


def test_shares_of_ranks():
    def shared(how):
        net = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)).to(device())
        if how == "fsdp":
            fully_shard(net, mesh=init_device_mesh(device().type, (dist.get_world_size(),)))
            return step(net, torch.optim.Adam(net.parameters()))
        return step(net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam))

    assert launch(shared, "zero", quiet=True).results == [(512, 512, 512)] * 2
    assert launch(shared, "fsdp", quiet=True).results == [(256, 256, 512)] * 2


def test_activations_grow_with_the_batch_and_leave_the_weights_out():
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    # the batch, which the first layer needs, and the output of the ReLU, which two need but which is there once
    for images in (1, 10):
        assert activations(net, lambda images=images: net(torch.ones(images, 8)).sum()) == 4 * images * (8 + 8)


@pytest.mark.parametrize(("view", "beside"), [(False, 4), (True, 0)])
def test_ddp_keeps_buckets_beside_the_gradients_unless_these_are_views(view, beside):
    def rank():
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 3), gradient_as_bucket_view=view)
        count, told = sum(p.numel() for p in net.parameters()), watch_buckets(net)
        for _ in range(3):
            net.zero_grad()
            net(torch.full((2, 5), dist.get_rank() + 1.0)).sum().backward()
        return told() / count, net.module.weight.grad[0, 0].item()

    assert launch(rank, device="cpu", quiet=True).results == [(beside, 2 * 1.5)] * 2


def test_a_network_that_is_not_in_ddp_has_no_buckets():
    assert watch_buckets(torch.nn.Linear(2, 2))() == 0


def test_the_whole_weights_are_one_vector_also_where_they_are_cut():
    def both():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        before = whole_weights(net)
        fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        return [torch.equal(before, whole_weights(net)), len(before), net[0].weight.to_local().numel()]

    assert launch(both, device="cpu", quiet=True).results == [[True, 11, 3]] * 2
