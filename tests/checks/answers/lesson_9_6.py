"""Answers to the turn of lesson 9.6; its mistakes are rows in ddplab/checks/lesson_9_6.py."""

import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def parameter_by_parameter(net):
    for parameter in net[0].parameters():
        parameter.requires_grad = False
    return DDP(net)


def eager(net):
    net[0].weight.requires_grad_(False)
    net[0].bias.requires_grad_(False)
    return nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)


def all_frozen(net):
    return DDP(net.requires_grad_(False))


ANSWERS = {
    "9.6.a": {
        "accepted": [parameter_by_parameter, eager],
        "wrong": [(all_frozen, ["any parameter that requires a gradient"])],
    },
}
