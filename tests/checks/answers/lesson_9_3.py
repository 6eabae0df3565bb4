"""Answers to the turn of lesson 9.3; most of its mistakes are rows in ddplab/checks/lesson_9_3.py."""

import torch
from torch import nn


def moved_afterwards(ones, gpu):
    return nn.Parameter(ones).to(gpu)


def a_plain_tensor(ones, gpu):
    return ones.to(gpu).requires_grad_()


def in_a_tuple(ones, gpu):
    weight = nn.Parameter(ones.to(gpu))
    return (weight,)


def in_a_dict(ones, gpu):
    return {0: nn.Parameter(ones.to(gpu))}


def in_a_list_of_lists(ones, gpu):
    return [[nn.Parameter(ones.to(gpu))]]


def of_zeros(ones, gpu):
    return [nn.Parameter(torch.zeros(3).to(gpu))]


def at_random(ones, gpu):
    return [torch.randn_like(ones, device=gpu, requires_grad=True)]


def doubled(ones, gpu):
    return 2 * nn.Parameter(ones.to(gpu))


def an_empty_list(ones, gpu):
    return []


def computed(ones, gpu):
    return 1 * nn.Parameter(ones.to(gpu))


def in_a_parameter_list(ones, gpu):
    return nn.ParameterList([nn.Parameter(ones.to(gpu))])


def in_a_parameter_dict(ones, gpu):
    return nn.ParameterDict({"scale": ones.to(gpu)})


def in_a_set(ones, gpu):
    return {nn.Parameter(ones.to(gpu))}


def of_another_shape(ones, gpu):
    return [nn.Parameter(torch.ones(5, device=gpu))]


def a_list_on_the_cpu(ones, gpu):
    return [nn.Parameter(ones)]


def a_buffer_that_asks_for_a_gradient(ones, gpu):
    return nn.Buffer(ones.to(gpu).requires_grad_())


def returns_nothing(ones, gpu):
    nn.Parameter(ones).to(gpu)


ANSWERS = {
    "9.3.a": {
        "accepted": [moved_afterwards, a_plain_tensor, in_a_tuple, in_a_dict, in_a_list_of_lists, computed],
        "wrong": [
            (in_a_parameter_list, ["what is registered, parameter or buffer, reaches every GPU"]),
            (in_a_parameter_dict, ["what is registered, parameter or buffer, reaches every GPU"]),
            (in_a_set, ["has no tensor to multiply by"]),
            (of_another_shape, ["must match the size"]),
            (a_list_on_the_cpu, ["one GPU stops as well"]),
            (a_buffer_that_asks_for_a_gradient, ["parameter or buffer, reaches every GPU"]),
            (returns_nothing, ["1 GPU"]),
            (of_zeros, ["not those of `ones`"]),
            (at_random, ["not those of `ones`"]),
            (doubled, ["not those of `ones`"]),
            (an_empty_list, ["IndexError"]),
        ],
    },
}
