"""Answers to the turns of lesson 4.3: other right ones, and mistakes that people make."""

import torch
import torch.distributed as dist
from torch import nn

from ddplab.hardware import device


def by_measure(P, n):
    gpu_0 = sum(4 * P for _ in range(n - 1)) * 2
    return [gpu_0, gpu_0 / n]


def with_gathered_rows(model, batches):
    rows = 0
    for x in batches:
        rows += model(x).shape[0]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, rows)
    return torch.tensor(sum(everyone))


def with_numbers(model, batches):
    rows = torch.tensor([sum(len(model(x)) for x in batches)], device=device())
    dist.all_reduce(rows)
    return int(rows)


def by_the_modules_number(model, batches):
    for x in batches:
        model(x)
    mine = torch.tensor(model.module.number, device=device())
    dist.all_reduce(mine)
    return mine


def never_called(model, batches):
    rows = torch.tensor(sum(len(x) for x in batches), device=device())
    dist.all_reduce(rows)
    return rows


def with_a_number(model, batches):
    dist.all_reduce(sum(len(model(x)) for x in batches))


def with_a_frozen_parameter(module):
    module.scale = nn.Parameter(torch.randn(3))
    module.mean = nn.Parameter(torch.randn(3), requires_grad=False)
    module.heads = nn.ParameterDict({"a": torch.randn(3), "b": torch.randn(3)})


def with_register(module):
    module.register_parameter("scale", nn.Parameter(torch.ones(3)))
    module.register_buffer("mean", torch.ones(3), persistent=False)
    module.heads = nn.ParameterList(nn.Parameter(torch.ones(3)) for _ in range(2))


def heads_of(held):
    def fill(module):
        with_register(module)
        del module.heads
        module.heads = held()

    return fill


def two_layers():
    return nn.ModuleList([nn.Linear(3, 1, bias=False), nn.Linear(3, 1, bias=False)])


def without_heads(module):
    module.scale, module.mean = nn.Parameter(torch.ones(3)), torch.ones(3)


ANSWERS = {
    "4.3.a": {
        "accepted": [by_measure, lambda P, n: torch.tensor([8 * P * (n - 1), 8 * P * (n - 1) // n])],
        "wrong": [(lambda P, n: 8 * P * (n - 1), ["returned an int: the check met TypeError"])],
    },
    "4.3.b": {
        "accepted": [with_gathered_rows, with_numbers, by_the_modules_number],
        "wrong": [(with_a_number, ["raised TypeError"]), (never_called, ["no batch has gone through the model"])],
    },
    "4.3.c": {
        "accepted": [with_a_frozen_parameter, with_register, heads_of(two_layers)],
        "wrong": [
            (without_heads, ["has no attribute 'heads'"]),
            (heads_of(lambda: {"a": torch.ones(3), "b": nn.Parameter(torch.ones(3))}), ["does not know the heads"]),
            (heads_of(lambda: torch.ones(2, 3)), ["does not know the heads"]),
            (heads_of(lambda: nn.ParameterList([torch.ones(2)] * 3)), ["not two times three"]),
            (heads_of(lambda: nn.ParameterList([torch.ones(3)])), ['"3 numbers" as heads']),
        ],
    },
}
