"""What lesson 2.3 says of modules that it does not show: which of them run on two GPUs, and which survive a move."""

import pytest
import torch
from torch import nn

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


class MovedAtOnce(OneTensor):
    def keep(self, tensor):
        self.scale = nn.Parameter(tensor).to(tensor.device)


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


def test_moving_a_parameter_at_once_does_no_harm_on_the_cpu():
    with virtual_gpus(2) as gpus:
        assert runs_on_two(MovedAtOnce("cpu").to(gpus[0]))
