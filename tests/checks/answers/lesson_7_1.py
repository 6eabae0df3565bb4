"""Answers to the exercises of lesson 7.1: the right ones, the blanks, and mistakes that people make."""

import math
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

# 7.1.1: the loop


def fit(
    model, loader, optimizer, epochs, share,
    each=1, per_epoch=0, early=False, zero=True, update=True, total=15, anew=False,
):  # fmt: skip
    """The loop, with one thing done otherwise at a time."""
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: share(update, total))
    for _ in range(epochs):
        if anew:
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: share(update, total), last_epoch=-1)
        for x, y in loader:
            if zero:
                optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if early:
                scheduler.step()
            if update:
                optimizer.step()
            for _ in range(each):
                scheduler.step()
        for _ in range(per_epoch):
            scheduler.step()


def by_hand(model, loader, optimizer, epochs, share):
    total, peak = epochs * len(loader), optimizer.param_groups[0]["lr"]
    for update, (x, y) in enumerate(loader * epochs):
        optimizer.param_groups[0]["lr"] = peak * share(update, total)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def share_upon_share(model, loader, optimizer, epochs, share):
    for update, (x, y) in enumerate(loader * epochs):
        optimizer.param_groups[0]["lr"] *= share(update, epochs * len(loader))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def one_epoch(model, loader, optimizer, epochs, share):
    fit(model, loader, optimizer, 1, share)


def no_schedule(model, loader, optimizer, epochs, share):
    fit(model, loader, optimizer, epochs, lambda update, total: 1.0)


# your turn


def two_returns(size, lr, ranks, keep):
    return (int(size / ranks), lr) if keep else [size, lr * ranks]


def by_factor(size, lr, ranks, keep):
    factor = 1 if keep else ranks
    return size * factor // ranks, torch.tensor(lr) * factor


def by_true_division(size, lr, ranks, keep):
    return (size / ranks, lr) if keep else (size, lr * ranks)


def as_many_as_ranks(size, lr, ranks, keep):
    return (ranks, lr) if keep else (size, lr * ranks)


def as_a_tensor(size, lr, ranks, keep):
    return torch.tensor(by_true_division(size, lr, ranks, keep))


def by_images_of_a_rank(images, epochs, size, ranks):
    return epochs * math.ceil(images // ranks / size)


def without_else(update, total, warm):
    if update < warm:
        rate = (update + 1) / warm
    rate = 0.5 * (1 + math.cos(math.pi * (update - warm) / (total - warm)))
    return rate


def by_whole_numbers(images, epochs, size, ranks):
    return epochs * -(-images // (size * ranks))


def by_the_sampler(images, epochs, size, ranks):
    mine = math.ceil(images / ranks)
    return sum(len(range(0, mine, size)) for _ in range(epochs))


def with_numpy(update, total, warm):
    if update < warm:
        return np.linspace(1 / warm, 1, warm)[update]
    return np.cos(np.pi / 2 * (update - warm) / (total - warm)) ** 2


def one_update_more(update, total, warm):
    if update <= warm:
        return (update + 1) / (warm or 1)
    return (1 + math.cos(math.pi * (update - warm) / (total - warm))) / 2


def by_a_tensor(update, total, warm):
    fall = (1 + torch.cos(torch.tensor(math.pi * (update - warm) / (total - warm)))) / 2
    return fall if update >= warm else torch.tensor((1 + update) / warm)


ANSWERS = {
    "7.1.1": {
        "correct": fit,
        "accepted": [by_hand],
        "wrong": [
            (partial(fit, each=0), ["every update had the first rate"]),
            (partial(fit, each=0, per_epoch=1), ["once an epoch"]),
            (partial(fit, each=0, early=True), ["the first rate of the schedule was skipped"]),
            (partial(fit, each=2), ["every other rate was skipped"]),
            (partial(fit, per_epoch=1), ["0, 1, 2, 3, 4, 6, 7"]),
            (partial(fit, zero=False), ["weights come out otherwise"]),
            (partial(fit, total=3), ["of a run of 3 updates, and it has 15"]),
            (partial(fit, anew=True), ["begins anew in every epoch"]),
            (no_schedule, ["nobody asked `share`"]),
            (share_upon_share, ["multiplied onto the rate before"]),
            (one_epoch, ["made 5 updates, not 15"]),
            (partial(fit, update=False), ["the optimiser never stepped"]),
        ],
    },
    "7.1.a": {
        "accepted": [two_returns, by_factor],
        "wrong": [
            (by_true_division, ["the images are a float, and a loader takes an int"]),
            (as_a_tensor, ["images of a rank is tensor(8.), and should be 8"]),
            (as_many_as_ranks, ["4 ranks, keep: images of a rank is 4, and should be 8"]),
        ],
    },
    "7.1.b": {
        "accepted": [by_whole_numbers, by_the_sampler],
        "wrong": [(by_images_of_a_rank, ["one image of 81 belongs to no rank"])],
    },
    "7.1.c": {
        "accepted": [with_numpy, by_a_tensor],
        "wrong": [
            (lambda *it: 0.3, ["update 0 of 100, 10 warm: share of the peak is 0.3"]),
            (without_else, ["before update `warm` the cosine counts, too"]),
            (one_update_more, ["the warm-up goes on at update `warm`"]),
        ],
    },
}
