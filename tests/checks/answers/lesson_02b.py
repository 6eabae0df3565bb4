"""Answers to the exercises of lesson 02b: a correct one, a blank one, and the mistakes people make."""

from math import ceil

import torch
import torch.nn.functional as F


def blank(*_):
    raise NotImplementedError("your code here")


# 02b.2: pieces of any size


def accumulate(net, images, labels, size):
    for a, b in zip(images.split(size), labels.split(size), strict=True):
        (F.cross_entropy(net(a), b) * len(b) / len(labels)).backward()


def summed_then_divided(net, images, labels, size):
    for start in range(0, len(labels), size):
        piece = slice(start, start + size)
        (F.cross_entropy(net(images[piece]), labels[piece], reduction="sum") / len(labels)).backward()


def never_divided(net, images, labels, size):
    for a, b in zip(images.split(size), labels.split(size), strict=True):
        F.cross_entropy(net(a), b).backward()


def by_the_number(net, images, labels, size):
    pieces = images.split(size)
    for a, b in zip(pieces, labels.split(size), strict=True):
        (F.cross_entropy(net(a), b) / len(pieces)).backward()


def by_the_size(net, images, labels, size):
    for a, b in zip(images.split(size), labels.split(size), strict=True):
        (F.cross_entropy(net(a), b) * size / len(labels)).backward()


def sums(net, images, labels, size):
    for a, b in zip(images.split(size), labels.split(size), strict=True):
        F.cross_entropy(net(a), b, reduction="sum").backward()


def all_at_once(net, images, labels, size):
    F.cross_entropy(net(images), labels).backward()


def drops_the_rest(net, images, labels, size):
    for start in range(0, len(labels) // size * size, size):
        piece = slice(start, start + size)
        (F.cross_entropy(net(images[piece]), labels[piece]) * size / len(labels)).backward()


def zeroes_between(net, images, labels, size):
    for a, b in zip(images.split(size), labels.split(size), strict=True):
        net.zero_grad()
        (F.cross_entropy(net(a), b) * len(b) / len(labels)).backward()


def zeroes_after(net, images, labels, size):
    accumulate(net, images, labels, size)
    net.zero_grad()


def steps(net, images, labels, size):
    accumulate(net, images, labels, size)
    torch.optim.SGD(net.parameters(), lr=0.1).step()


# 02b.3: the same batch on any number of GPUs


def plan(batch, ranks, fits):
    if batch % ranks or batch < ranks:
        raise ValueError
    share = batch // ranks
    pieces = min(n for n in range(1, share + 1) if share % n == 0 and share / n <= fits)
    return share // pieces, pieces


def rounded(batch, ranks, fits):
    pieces = ceil(batch / ranks / fits)
    return batch // ranks // pieces, pieces


def forgets_the_ranks(batch, ranks, fits):
    return plan(batch, 1, fits)


def turned_round(batch, ranks, fits):
    return plan(batch, ranks, fits)[::-1]


def fills_the_device(batch, ranks, fits):
    return fits, ceil(batch / ranks / fits)


def one_by_one(batch, ranks, fits):
    return 1, batch // ranks


def no_pieces(batch, ranks, fits):
    return batch // ranks, 1


def never_refuses(batch, ranks, fits):
    return plan(batch // ranks * ranks, ranks, fits) if batch >= ranks else (0, 1)


def with_floats(batch, ranks, fits):
    pieces = ceil(batch / ranks / fits)
    return batch / ranks / pieces, pieces


def pieces_alone(batch, ranks, fits):
    return plan(batch, ranks, fits)[1]


ANSWERS = {
    "02b.1": {"correct": (1.6, 512, 4, 80)},
    "02b.2": {
        "correct": accumulate,
        "accepted": [summed_then_divided],
        "blank": blank,
        "wrong": [
            (never_divided, ["pieces of 16", "4 times what it should be"]),
            (by_the_number, ["pieces of 24", "% off"]),
            (by_the_size, ["pieces of 24", "% off"]),
            (sums, ["pieces of 16", "64 times what it should be"]),
            (all_at_once, ["called with 64 images at once"]),
            (drops_the_rest, ["pieces of 24", "has seen 48 images"]),
            (zeroes_between, ["pieces of 16", "% off"]),
            (zeroes_after, ["there are no gradients"]),
            (steps, ["the weights changed"]),
            ("accumulate", ["not a function"]),
        ],
    },
    "02b.3": {
        "correct": plan,
        "blank": blank,
        "wrong": [
            (rounded, ["`plan(100, 2, 20)` is (16, 3)", "96 images an update, not 100"]),
            (forgets_the_ranks, ["the whole batch on each of 2 ranks"]),
            (turned_round, ["the wrong way round"]),
            (fills_the_device, ["120 images an update, not 96"]),
            (one_by_one, ["fewer pieces"]),
            (no_pieces, ["a piece of 48 does not fit"]),
            (never_refuses, ["3 ranks cannot share 100 images"]),
            (with_floats, ["not whole numbers"]),
            (pieces_alone, ["not a pair"]),
        ],
    },
}
