"""Answers to the exercises of lesson 1.4: a correct one, a blank one, and the mistakes people make."""

import math
from statistics import mean

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

# 1.4.2: an honest loss


def honest_loss(model, loader):
    was_training, total, images = model.training, 0.0, 0
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            total += F.cross_entropy(model(x), y, reduction="sum").item()
            images += len(y)
    model.train(was_training)
    return total / images


@torch.no_grad()
def weighted(model, loader):
    mode = model.training
    model.eval()
    sizes = torch.tensor([len(y) for _, y in loader], dtype=torch.float64)
    losses = torch.tensor([F.cross_entropy(model(x), y).item() for x, y in loader], dtype=torch.float64)
    model.train(mode)
    return (losses * sizes).sum() / sizes.sum()


def _losses(model, loader):
    model.eval()
    with torch.no_grad():
        return [F.cross_entropy(model(x), y).item() for x, y in loader]


def sum_over_images(model, loader):
    return honest_loss(model, loader) * sum(len(y) for _, y in loader)


def with_dropout(model, loader):
    with torch.no_grad():
        return sum(F.cross_entropy(model(x), y, reduction="sum").item() for x, y in loader) / 72


def stays_in_eval(model, loader):
    model.eval()
    return honest_loss(model, loader)


def always_back_to_training(model, loader):
    loss = honest_loss(model, loader)
    model.train()
    return loss


def trains(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return honest_loss(model, loader)


def clears_gradients(model, loader):
    model.zero_grad()
    return honest_loss(model, loader)


def with_a_graph(model, loader):
    model.eval()
    loss = sum(F.cross_entropy(model(x), y, reduction="sum") for x, y in loader) / 72
    model.train()
    return loss


# 1.4.3: a test that unmasks memorising


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
    "1.4.1": {"correct": (math.log(100), 80, 84, 391, 98)},
    "1.4.2": {
        "correct": honest_loss,
        "accepted": [weighted],
        "wrong": [
            (lambda model, loader: _losses(model, loader)[-1], ["the last batch's loss alone"]),  # the last
            (lambda model, loader: mean(_losses(model, loader)), ["the mean of the batches' means"]),
            (lambda model, loader: sum(_losses(model, loader)), ["the sum of the batches' losses"]),  # added up
            (sum_over_images, ["the sum over all images"]),
            # by the size of the first batch
            (lambda net, data: sum_over_images(net, data) / len(data) / len(data[0][1]), ["three full batches"]),
            (with_dropout, ["dropout is at work"]),
            (stays_in_eval, ["came in training mode"]),
            (always_back_to_training, ["came in evaluation mode"]),
            (trains, ["the weights changed"]),
            (clears_gradients, ["the gradients changed"]),
            (with_a_graph, ["a graph for `backward()`"]),
            (lambda model, loader: print(honest_loss(model, loader)), ["gives nothing, not a number"]),
        ],
    },
    "1.4.3": {
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
