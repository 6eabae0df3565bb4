"""Unseeded ranks draw different random numbers, as they do under torchrun: lessons measure what that costs."""

import random

import numpy
import torch

from ddplab import launch


def test_unseeded_ranks_and_launches_differ():
    def draw():
        import numpy

        return torch.rand(()).item(), float(numpy.random.rand()), random.random(), torch.rand(()).item()

    drawn = [value for _ in range(2) for result in launch(draw, quiet=True).results for value in result]
    assert len(set(drawn)) == len(drawn), drawn


def test_a_seed_makes_ranks_equal():
    def draw():
        torch.manual_seed(7)
        return torch.rand(3).tolist()

    torch.manual_seed(7)
    assert launch(draw, quiet=True).results == [torch.rand(3).tolist()] * 2


def test_the_callers_own_random_state_is_left_alone():
    torch.manual_seed(0), numpy.random.seed(0)
    expected = torch.rand(3).tolist(), numpy.random.rand()
    torch.manual_seed(0), numpy.random.seed(0)
    launch(lambda: None, quiet=True)
    assert (torch.rand(3).tolist(), numpy.random.rand()) == expected
