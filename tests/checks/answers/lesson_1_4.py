"""Answers to the exercises of lesson 1.4: a correct one, a blank one, and the mistakes people make."""

import math

import torch
from torch.utils.data import TensorDataset

# 1.4.2: a test that unmasks memorising


def shuffle_labels(data, seed=0):
    images, labels = data.tensors
    return TensorDataset(images, labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))])


def by_global_seed(data, seed=0):
    torch.manual_seed(seed)
    return TensorDataset(data.tensors[0], data.tensors[1][torch.randperm(len(data))])


def new_labels(data, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return TensorDataset(data.tensors[0], torch.randint(10, (len(data),), generator=draw))


def pairs(data, seed=0):
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    return TensorDataset(*data[order])


def renamed(data, seed=0):
    names = torch.randperm(10, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(data.tensors[0], names[data.tensors[1]])


def in_place(data, seed=0):
    data.tensors[1].copy_(shuffle_labels(data, seed).tensors[1])
    return data


def no_seed(data, seed=0):
    return TensorDataset(data.tensors[0], data.tensors[1][torch.randperm(len(data))])


ANSWERS = {
    "1.4.1": {
        "correct": (math.log(100), 80, 84, 391, 98),
        "accepted": [(4.61, 80, 84, 391, 98), (torch.tensor(100.0).log(), 80, torch.tensor(84), 391, 98)],
    },
    "1.4.2": {
        "correct": shuffle_labels,
        "accepted": [by_global_seed],
        "wrong": [
            (new_labels, ["the classes have other sizes"]),
            (pairs, ["the images moved too"]),
            (renamed, ["still a rule"]),
            # shifted
            (lambda data, seed=0: TensorDataset(data.tensors[0], (data.tensors[1] + 1) % 10), ["still a rule"]),
            (in_place, ["`data` itself was changed"]),
            (no_seed, ["the same seed gave two different orders"]),
            (lambda data, seed=0: shuffle_labels(data), ["seed 1 gives the same order"]),  # always seed 0
            # sorted labels
            (lambda data, seed=0: TensorDataset(data.tensors[0], data.tensors[1].sort().values), ["not drawn by lot"]),
            (lambda data, seed=0: TensorDataset(*data.tensors), ["still has its own label"]),  # unchanged
            # a pair
            (lambda data, seed=0: shuffle_labels(data, seed).tensors, ["returned a tuple, not a TensorDataset"]),
            (lambda data, seed=0: TensorDataset(data.tensors[0]), ["its tensors have the shapes"]),  # images alone
        ],
    },
}
