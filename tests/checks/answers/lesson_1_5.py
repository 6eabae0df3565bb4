"""Answers to the exercises of lesson 1.5: a correct one, a blank one, and the mistakes people make."""

from functools import partial
from math import ceil
from operator import floordiv, truediv

import torch
import torch.nn.functional as F

# 1.5.2: pieces of any size

SHARES = {
    "its images": lambda n, size, pieces, whole: n / whole,
    "a full piece": lambda n, size, pieces, whole: size / whole,
    "one piece of all": lambda n, size, pieces, whole: 1 / pieces,
    "one image": lambda n, size, pieces, whole: 1 / whole,
    "all": lambda n, size, pieces, whole: 1,
}


def accumulate(net, images, labels, size, *, share="its images", reduction="mean", rest=True, zero=False):
    """The loop, with one thing done otherwise at a time."""
    pieces = list(zip(images.split(size), labels.split(size), strict=True))
    for a, b in pieces if rest else pieces[: len(labels) // size]:
        if zero:
            net.zero_grad()
        part = SHARES[share](len(b), size, len(pieces), len(labels))
        (F.cross_entropy(net(a), b, reduction=reduction) * part).backward()


def zeroes_after(net, images, labels, size):
    accumulate(net, images, labels, size)
    net.zero_grad()


def steps(net, images, labels, size):
    accumulate(net, images, labels, size)
    torch.optim.SGD(net.parameters(), lr=0.1).step()


# 1.5.3: the same batch on any number of GPUs


def plan(batch, ranks, fits):
    if batch % ranks or batch < ranks:
        raise ValueError
    share = batch // ranks
    pieces = min(n for n in range(1, share + 1) if share % n == 0 and share / n <= fits)
    return share // pieces, pieces


def rounded(batch, ranks, fits, divide=floordiv):
    pieces = ceil(batch / ranks / fits)
    return divide(divide(batch, ranks), pieces), pieces


def never_refuses(batch, ranks, fits):
    return plan(batch // ranks * ranks, ranks, fits) if batch >= ranks else (0, 1)


ANSWERS = {
    "1.5.1": {"correct": (1.6, 512, 4, 80)},
    "1.5.2": {
        "correct": accumulate,
        "accepted": [partial(accumulate, share="one image", reduction="sum")],
        "wrong": [
            (partial(accumulate, share="all"), ["pieces of 16", "4 times what it should be"]),
            (partial(accumulate, share="one piece of all"), ["pieces of 24", "% off"]),
            (partial(accumulate, share="a full piece"), ["pieces of 24", "% off"]),
            (partial(accumulate, share="all", reduction="sum"), ["pieces of 16", "64 times what it should be"]),
            # all at once
            (lambda net, images, labels, size: accumulate(net, images, labels, 64), ["called with 64 images at once"]),
            (partial(accumulate, rest=False), ["pieces of 24", "has seen 48 images"]),
            (partial(accumulate, zero=True), ["pieces of 16", "% off"]),
            (zeroes_after, ["there are no gradients"]),
            (steps, ["the weights changed"]),
            ("accumulate", ["not a function"]),
        ],
    },
    "1.5.3": {
        "correct": plan,
        "wrong": [
            (rounded, ["`plan(100, 2, 20)` is (16, 3)", "96 images an update, not 100"]),
            # forgets the ranks
            (lambda batch, ranks, fits: plan(batch, 1, fits), ["the whole batch on each of 2 ranks"]),
            (lambda batch, ranks, fits: plan(batch, ranks, fits)[::-1], ["the wrong way round"]),  # turned round
            # fills the device
            (lambda batch, ranks, fits: (fits, ceil(batch / ranks / fits)), ["120 images an update, not 96"]),
            (lambda batch, ranks, fits: (1, batch // ranks), ["fewer pieces"]),  # one by one
            (lambda batch, ranks, fits: (batch // ranks, 1), ["a piece of 48 does not fit"]),  # no pieces
            (never_refuses, ["3 ranks cannot share 100 images"]),
            (partial(rounded, divide=truediv), ["not whole numbers"]),
            (lambda batch, ranks, fits: plan(batch, ranks, fits)[1], ["not a pair"]),  # pieces alone
        ],
    },
}
