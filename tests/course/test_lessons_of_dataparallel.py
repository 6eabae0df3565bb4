"""What lesson 2.3 says of modules that it does not show: which of them run on two GPUs, and which survive a move."""

import pytest
import torch
from torch import nn

from ddplab.course.belongings import is_fooled
from ddplab.vgpu import virtual_gpus


class OneTensor(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.keep(torch.randn(3, device=device))

    def forward(self, x):
        return x * self.scale


class Buffer(OneTensor):
    def keep(self, tensor):
        self.register_buffer("scale", tensor)


class TransientBuffer(OneTensor):
    def keep(self, tensor):
        self.register_buffer("scale", tensor, persistent=False)


class InParameterList(OneTensor):
    def keep(self, tensor):
        self.scales = nn.ParameterList([tensor])

    def forward(self, x):
        return x * self.scales[0]


class AsksInput(nn.Module):
    def __init__(self, device):
        super().__init__()

    def forward(self, x):
        return x + torch.arange(x.shape[1], device=x.device)


class OnTheCurrentGPU(AsksInput):
    def forward(self, x):
        return x + torch.ones(3, device="vgpu")


class MovedAtOnce(OneTensor):
    def keep(self, tensor):
        self.scale = nn.Parameter(tensor).to(tensor.device)


class Cached(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.cache = {}

    def forward(self, x):
        if x.shape[1] not in self.cache:
            self.cache[x.shape[1]] = torch.arange(x.shape[1], device=x.device)
        return x + self.cache[x.shape[1]]


def runs_on_two(module):
    try:
        nn.DataParallel(module, [0, 1])(torch.ones(4, 3))
    except RuntimeError:
        return False
    return True


def moves(module, x):
    module(x)
    try:
        module.to("cpu")(x.cpu())
    except RuntimeError:
        return False
    return True


def both_ways(kind):
    with virtual_gpus(2) as gpus:
        return moves(kind(gpus[0]), torch.ones(4, 3, device=gpus[0])), runs_on_two(kind(gpus[0]))


@pytest.mark.parametrize("kind", [Buffer, TransientBuffer, InParameterList, AsksInput])
def test_what_is_registered_or_asks_the_input_moves_and_runs_on_two(kind):
    assert both_ways(kind) == (True, True)


def test_a_gpu_without_a_number_is_each_replicas_own():
    assert both_ways(OnTheCurrentGPU) == (False, True)


def test_moving_a_parameter_at_once_does_no_harm_on_the_cpu():
    with virtual_gpus(2) as gpus:
        assert runs_on_two(MovedAtOnce("cpu").to(gpus[0]))


@pytest.mark.parametrize("_", range(10))
def test_a_cache_that_a_full_batch_fills_fails_in_one_of_two_forwards(_):
    with virtual_gpus(2) as gpus:
        module = Cached(gpus[0])
        assert [runs_on_two(module) for _ in range(2)] != [True, True]


def test_who_fools_the_detector_is_told_so():
    assert is_fooled(AsksInput, lambda _: (True, True)) == "AsksInput moves, and runs on two GPUs: not fooled yet"
    said = is_fooled(AsksInput, lambda _: (False, True))
    assert said == "AsksInput does not move, and runs on two GPUs: the detector is fooled ≠"
    assert is_fooled(AsksInput, lambda _: 1 / 0) == "AsksInput does not run on one GPU: division by zero"

    def moves(*_):
        return {}["cpu"]

    said = is_fooled(AsksInput, moves)
    assert said.startswith("AsksInput runs on one GPU, and raises KeyError on its journey ('cpu')")
