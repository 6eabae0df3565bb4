"""Answers to the exercises of lesson 1.4: a correct one, a blank one, and the mistakes people make."""

import math
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from ddplab import device

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


# your turn


def by_numbers(model, x, y):
    mine = range(dist.get_rank(), len(x), dist.get_world_size())
    return F.cross_entropy(model(x[list(mine)]), y[list(mine)])


def sum_over_mine(model, x, y):
    mine = torch.arange(len(x)) % dist.get_world_size() == dist.get_rank()
    return F.cross_entropy(model(x[mine]), y[mine], reduction="sum") / mine.sum()


def mean_of_a_chunk(model, x, y):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return F.cross_entropy(model(x.chunk(ranks)[rank]), y.chunk(ranks)[rank])


def all_labels(model, x, y):
    return F.cross_entropy(model(x[dist.get_rank() :: dist.get_world_size()]), y)


def forward_for_all(model, x, y):
    return F.cross_entropy(model(x), y)


def keeps_the_losses_of_mine(model, x, y):
    mine = torch.arange(len(x)) % dist.get_world_size() == dist.get_rank()
    return F.cross_entropy(model(x), y, reduction="none")[mine].mean()


def as_many_labels(model, x, y):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return F.cross_entropy(model(x[rank::ranks]), y[: len(x[rank::ranks])])


def a_block_of_labels(model, x, y):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return F.cross_entropy(model(x[rank::ranks]), y.tensor_split(ranks)[rank])


def as_many_labels_weighed(model, x, y):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = x[rank::ranks]
    return F.cross_entropy(model(mine), y[: len(mine)]) * ranks * len(mine) / len(x)


def from_a_sum(model, x, y):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return F.cross_entropy(model(x[rank::ranks]), y[rank::ranks], reduction="sum") / (len(x) / ranks)


def in_blocks(model, x, y):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine, labels = x.tensor_split(ranks)[rank], y.tensor_split(ranks)[rank]
    return ranks * (len(mine) / len(x)) * F.cross_entropy(model(mine), labels)


def in_chunks(model, x, y):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine, labels = x.chunk(ranks)[rank], y.chunk(ranks)[rank]
    return ranks * (len(mine) / len(x)) * F.cross_entropy(model(mine), labels)


def goes_backward_itself(model, x, y):
    from_a_sum(model, x, y).backward()


def averages_the_loss(model, x, y):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    loss = F.cross_entropy(model(x[rank::ranks]), y[rank::ranks])
    dist.all_reduce(loss.data)
    return loss / ranks


def two_messages(total, images):
    total, images = torch.tensor(total, device=device()), torch.tensor(images, device=device())
    dist.all_reduce(total)
    dist.all_reduce(images)
    return total / images


def by_shares(total, images):
    count = torch.tensor([float(images)], device=device())
    dist.all_reduce(count)
    part = total / count
    dist.all_reduce(part)
    return part.tolist()


def counts_its_own(total, images):
    everybody = torch.tensor(float(total), device=device())
    dist.all_reduce(everybody)
    return everybody.item() / (images * dist.get_world_size())


def to_rank_0(total, images):
    total, images = torch.tensor(total, device=device()), torch.tensor(images, device=device())
    dist.reduce(total, 0)
    dist.reduce(images, dst=0)
    return total / images


def a_plain_number(total, images):
    dist.all_reduce(total)
    return total / images


def one_image_each(model, x, y):
    return F.cross_entropy(model(x[dist.get_rank()]), y[dist.get_rank()])


def all_of_them_weighed(model, x, y):
    return F.cross_entropy(model(x), y) * dist.get_world_size() / len(x)


def sum_by_ranks(model, x, y):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return F.cross_entropy(model(x[rank::ranks]), y[rank::ranks], reduction="sum") / ranks


def by_an_operation(total, images, op=dist.ReduceOp.SUM, last=lambda both: both[0] / both[1]):
    both = torch.tensor([float(total), images], device=device())
    dist.all_reduce(both, op=op)
    return last(both)


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
            (lambda data, seed=0: TensorDataset(data.tensors[0], data.tensors[1].roll(seed + 1)), ["only moved along"]),
            # a pair
            (lambda data, seed=0: shuffle_labels(data, seed).tensors, ["returned a tuple, not a TensorDataset"]),
            (lambda data, seed=0: TensorDataset(data.tensors[0]), ["its tensors have the shapes"]),  # images alone
        ],
    },
    "1.4.a": {
        "accepted": [by_numbers, sum_over_mine],
        "wrong": [
            (mean_of_a_chunk, ["rank 2 raised IndexError"]),
            (all_labels, ["to match target batch_size (4)"]),
            (forward_for_all, ["every rank takes all four images"]),
            (as_many_labels, ["paired with labels of other images"]),
            (a_block_of_labels, ["paired with labels of other images"]),
            (keeps_the_losses_of_mine, ["the mean is right, and no work is shared"]),
        ],
    },
    "1.4.b": {
        "accepted": [from_a_sum, in_blocks],
        "wrong": [
            (goes_backward_itself, ["on 3 ranks", "raised AttributeError"]),
            (averages_the_loss, ["each rank counts alike still"]),
            (in_chunks, ["rank 2 raised IndexError"]),
            (one_image_each, ["the fourth is left out"]),
            (all_of_them_weighed, ["every rank computes all four images, and"]),
            (as_many_labels_weighed, ["paired with labels of other images"]),
            (sum_by_ranks, ["divided by the ranks, and not by the images"]),
        ],
    },
    "1.4.c": {
        "accepted": [two_messages, by_shares],
        "wrong": [
            (a_plain_number, ["raised"]),
            (counts_its_own, ["this rank's images times the ranks"]),
            (to_rank_0, ["only rank 0 has everybody's"]),
            (partial(by_an_operation, op=dist.ReduceOp.MAX), ["the largest total and the most images, too"]),
            (partial(by_an_operation, last=lambda both: both), ["both sums come back"]),
            (partial(by_an_operation, last=lambda both: both[1] / both[0]), ["upside down"]),
        ],
    },
}
