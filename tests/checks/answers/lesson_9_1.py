"""Answers to the turn of lesson 9.1; its mistakes are rows in ddplab/checks/lesson_9_1.py."""

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler, TensorDataset

from ddplab.course.data import random_images
from ddplab.hardware import device


def by_a_generator(rank, ranks):
    same = torch.Generator().manual_seed(7)
    images = TensorDataset(torch.randn(1000, 1, 28, 28, generator=same), torch.randint(10, (1000,), generator=same))
    return images, DistributedSampler(images, num_replicas=ranks, rank=rank)


def every_other(rank, ranks):
    torch.manual_seed(3)
    images = TensorDataset(torch.randn(1000, 1, 28, 28), torch.randint(10, (1000,)))
    return images, range(rank, 1000, ranks)


def dealt_in_order(rank, ranks):
    images = random_images(1000, seed=0)
    return images, DistributedSampler(images, num_replicas=ranks, rank=rank, shuffle=False)


def as_in_the_text(rank, ranks, seed=None):
    if seed is not None:
        torch.manual_seed(seed(rank))
    images = TensorDataset(torch.randn(1000, 1, 28, 28), torch.randint(10, (1000,)))
    return images, DistributedSampler(images, ranks, rank)


def labels_of_its_own(rank, ranks):
    same = torch.Generator().manual_seed(7)
    images = TensorDataset(torch.randn(1000, 1, 28, 28, generator=same), torch.randint(10, (1000,)))
    return images, DistributedSampler(images, ranks, rank)


def broadcast_from_rank_0(rank, ranks):
    images, labels = torch.randn(1000, 1, 28, 28).to(device()), torch.randint(10, (1000,)).to(device())
    dist.broadcast(images, 0)
    dist.broadcast(labels, 0)
    images = TensorDataset(images, labels)
    return images, DistributedSampler(images, ranks, rank)


def pixels_alone_broadcast(rank, ranks):
    images, labels = torch.randn(1000, 1, 28, 28).to(device()), torch.randint(10, (1000,))
    dist.broadcast(images, 0)
    images = TensorDataset(images.cpu(), labels)
    return images, DistributedSampler(images, ranks, rank)


def by_its_group(rank, ranks):
    torch.manual_seed(4)
    images = TensorDataset(torch.randn(1000, 1, 28, 28), torch.randint(10, (1000,)))
    return images, DistributedSampler(images)


ANSWERS = {
    "9.1.a": {
        "accepted": [by_a_generator, every_other, broadcast_from_rank_0, by_its_group, dealt_in_order],
        "wrong": [
            (as_in_the_text, ["images of its own"]),
            (lambda rank, ranks: as_in_the_text(rank, ranks, seed=lambda rank: rank), ["images of its own"]),
            (labels_of_its_own, ["their labels are not"]),
            (pixels_alone_broadcast, ["their labels are not"]),
            (lambda rank, ranks: as_in_the_text(rank, ranks)[0], ["to unpack"]),
            (lambda rank, ranks: (as_in_the_text(rank, ranks)[0], None), ["NoneType"]),
        ],
    },
}
