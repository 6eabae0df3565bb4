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


def first_batch_alone(model, batches):
    model(batches[0])
    return never_called(model, batches)


def what_comes_out(model, batches):
    total = sum(model(x).sum() for x in batches).detach()
    dist.all_reduce(total)
    return total


def number_of_batches(model, batches):
    for x in batches:
        model(x)
    return never_called(model, [x[:1] for x in batches])


def rows_of_rank_0(model, batches):
    rows = torch.tensor(sum(len(model(x)) for x in batches), device=device())
    dist.broadcast(rows, src=0)
    return rows


def what_all_reduce_returns(model, batches):
    rows = sum(len(model(x)) for x in batches)
    return dist.all_reduce(torch.tensor(rows, device=device()))


def the_buffer_of_ddp(model, batches):
    for x in batches:
        model(x)
    dist.all_reduce(model.total)
    return model.total


def all_at_once(model, batches):
    return len(model(batches))


def a_tensor_with_a_gradient(module):
    with_register(module)
    del module.scale
    module.scale = torch.ones(3).requires_grad_()


def buffers_only(module):
    for name, shape in {"scale": (3,), "mean": (3,), "heads": (2, 3)}.items():
        module.register_buffer(name, torch.zeros(shape))


def without_a_name(module):
    module.register_buffer(torch.zeros(3))


def without_parameter(module):
    module.register_parameter("scale", torch.zeros(3))


def of_a_number(module):
    module.scale = nn.Parameter(3)


ANSWERS = {
    "4.3.a": {
        "accepted": [with_a_frozen_parameter, with_register, heads_of(two_layers)],
        "wrong": [
            (without_heads, ["has no attribute 'heads'"]),
            (heads_of(lambda: {"a": torch.ones(3), "b": nn.Parameter(torch.ones(3))}), ["does not know the heads"]),
            (heads_of(lambda: torch.ones(2, 3)), ["does not know the heads"]),
            (heads_of(lambda: nn.ParameterList([torch.ones(2)] * 3)), ["not two times three"]),
            (heads_of(lambda: nn.ParameterList([torch.ones(3)])), ["three numbers are one head"]),
            (heads_of(lambda: nn.Parameter(torch.ones(3))), ["three numbers are one head"]),
            (heads_of(lambda: [torch.ones(3, requires_grad=True)] * 2), ["both heads are one and the same"]),
            (heads_of(lambda: torch.ones(2, 3, requires_grad=True)), ["heads", "is no `Parameter`"]),
            (a_tensor_with_a_gradient, ["the scale requires a gradient and is no `Parameter`"]),
            (heads_of(lambda: nn.ModuleList([nn.Linear(3, 1), nn.Linear(3, 1)])), ["layers with a bias"]),
            (
                heads_of(lambda: nn.ParameterList([torch.ones(3)] * 2).requires_grad_(False)),
                ["nobody trains the heads"],
            ),
            (buffers_only, ["nobody trains the scale, nor the heads"]),
            (without_a_name, ["raised TypeError"]),
            (without_parameter, ["raised TypeError"]),
            (of_a_number, ["raised AttributeError"]),
        ],
    },
    "4.3.b": {
        "accepted": [with_gathered_rows, with_numbers, by_the_modules_number],
        "wrong": [
            (with_a_number, ["raised"]),
            (never_called, ["no batch has gone through the model"]),
            (first_batch_alone, ["not all batches have gone through the model"]),
            (what_comes_out, ["what the model returns is added up"]),
            (number_of_batches, ["batches are counted, not rows"]),
            (rows_of_rank_0, ["rank 0's rows"]),
            (all_at_once, ["raised TypeError"]),
            (what_all_reduce_returns, ["nothing came back"]),
            (the_buffer_of_ddp, ["no attribute 'total'"]),
        ],
    },
    "4.3.c": {
        "accepted": [by_measure, lambda P, n: torch.tensor([8 * P * (n - 1), 8 * P * (n - 1) // n])],
        "wrong": [
            (lambda P, n: 8 * P * (n - 1), ["returned an int: the check met TypeError"]),
            (lambda P, n: (8 * P * (n - 1), 2 * P * (n - 1) / n), ["a rank's are numbers"]),
            (lambda P, n: (3 * P, 5 * P), ["should be"]),
            (lambda P, n: (2 * 4 * P, 2 * 4 * P * (n - 1) / n), ["right for two GPUs"]),
            (lambda P, n: (8 * P * (n - 1), 8 * P * n - 1 / n), ["`*` and `/` go before `-`"]),
        ],
    },
}
