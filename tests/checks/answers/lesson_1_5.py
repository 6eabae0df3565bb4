"""Answers to the exercises of lesson 1.5: a correct one, a blank one, and the mistakes people make."""

import random
from functools import partial
from math import ceil
from operator import floordiv, truediv

import torch

# 1.5.1: the same batch on any number of GPUs


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


# your turn


def by_lengths(gradients, whole):
    lengths = torch.linalg.vector_norm(gradients - whole, dim=1)
    return float((lengths**2).mean() ** 0.5 / whole.norm())


def in_a_loop(gradients, whole):
    squares = [((row - whole) ** 2).sum().item() for row in gradients]
    return (sum(squares) / len(squares)) ** 0.5 / sum(number.item() ** 2 for number in whole) ** 0.5


def by_random(n, batch):
    return sorted(random.sample(range(n), batch))


def by_weights(n, batch):
    return torch.ones(n).multinomial(batch, replacement=False)


def seeds_inside(n, batch):
    torch.manual_seed(42)
    return torch.randperm(n)[:batch]


ANSWERS = {
    "1.5.1": {
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
    "1.5.a": {
        "accepted": [by_lengths, in_a_loop],
        "wrong": [
            (lambda gradients, whole: by_lengths(gradients, whole) / whole.norm(), ["the squared length of `whole`"]),
            (lambda gradients, whole: (gradients - whole).norm(dim=1).amax() / whole.norm(), ["the longest error"]),
            (
                lambda gradients, whole: (gradients - whole).pow(2).sum() ** 0.5 / len(gradients) / whole.norm(),
                ["the root of the sum is divided"],
            ),
            (lambda gradients, whole: (gradients - whole).mean().square().sqrt() / whole.norm(), ["the errors cancel"]),
        ],
    },
    "1.5.b": {
        "accepted": [
            lambda wanted, batch, error: round(batch * error**2 / wanted**2),
            lambda wanted, batch, error: batch / (wanted / error) / (wanted / error),
        ],
        "wrong": [
            (lambda wanted, batch, error: batch * error / wanted / wanted, ["`wanted` is squared, and `error` is not"]),
            (lambda wanted, batch, error: batch * (error / wanted) ^ 2, ["raised TypeError", "for ^"]),
            (lambda wanted, batch, error: f"{batch * (error / wanted) ** 2:g}", ["a text comes back"]),
        ],
    },
    "1.5.c": {
        "accepted": [by_random, by_weights],
        "wrong": [
            (lambda n, batch: print(torch.randperm(n)[:batch]), ["raised TypeError"]),
            (lambda n, batch: torch.randperm(n).split(batch), ["returned a tuple of 100: the check met ValueError"]),
            (lambda n, batch: torch.randint(n, (batch,)).unique(), ["what came twice is dropped"]),
            (lambda n, batch: torch.tensor([*range(n)])[torch.randperm(n) < batch // 2], ["images is 5"]),
            (lambda n, batch: torch.randperm(n)[:batch].sum(), ["one number comes back"]),
            (lambda n, batch: torch.rand(n).topk(batch).values, ["those are fractions"]),
            (lambda n, batch: torch.randperm(n).chunk(batch)[0], ["n / batch come"]),
            (lambda n, batch: torch.randperm(n)[batch:], ["are left out"]),
            (lambda n, batch: random.shuffle([*range(n)])[:batch], ["'NoneType' object is not subscriptable"]),
            (seeds_inside, ["the seed is set inside"]),
        ],
    },
}
