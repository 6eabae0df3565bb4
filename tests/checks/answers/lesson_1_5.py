"""Answers to the exercises of lesson 1.5: a correct one, a blank one, and the mistakes people make."""

from functools import partial
from math import ceil
from operator import floordiv, truediv

import torch

# 1.5.2: the same batch on any number of GPUs


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
    "1.5.1": {
        "correct": (1.6, 512, 4, 80),
        "accepted": [
            (torch.tensor(0.8) * torch.tensor(4.0).sqrt(), torch.tensor(32) * (torch.tensor(0.8) / 0.2) ** 2, 4, 80)
        ],
    },
    "1.5.2": {
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
