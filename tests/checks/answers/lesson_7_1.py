"""Answers to the exercises of lesson 7.1: the right ones, the blanks, and mistakes that people make."""

import math
from functools import partial

import torch.nn.functional as F

# 7.1.2: the schedule


def rate(update, total, warm, peak):
    if update < warm:
        return peak * (update + 1) / warm
    return peak * half_cosine((update - warm) / (total - warm))


def half_cosine(progress):
    return (1 + math.cos(math.pi * min(1, progress))) / 2


def begins_at_zero(update, total, warm, peak):
    return peak * update / warm if update < warm else rate(update, total, warm, peak)


def divides_by_zero(update, total, warm, peak):
    return min(peak * (update + 1) / warm, rate(update, total, warm, peak))


AFTER_THE_WARM_UP = {
    "climbs back": lambda n, total, warm: (1 + math.cos(math.pi * (n - warm) / (total - warm))) / 2,
    "cosine from the start": lambda n, total, warm: half_cosine(n / total),
    "cosine too long": lambda n, total, warm: half_cosine((n - warm) / total),
    "a whole wave": lambda n, total, warm: (1 + math.cos(2 * math.pi * min(1, (n - warm) / (total - warm)))) / 2,
    "below zero": lambda n, total, warm: math.cos(math.pi * min(1, (n - warm) / (total - warm))),
    "a line": lambda n, total, warm: max(0, 1 - (n - warm) / (total - warm)),
}


def goes_on(update, total, warm, peak, how):
    return rate(update, total, warm, peak) if update < warm else peak * AFTER_THE_WARM_UP[how](update, total, warm)


# 7.1.3: the loop


def fit(model, loader, optimizer, scheduler, epochs, each=1, per_epoch=0, early=False, zero=True, update=True):
    """The loop, with one thing done otherwise at a time."""
    for _ in range(epochs):
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


def one_epoch(model, loader, optimizer, scheduler, epochs):
    fit(model, loader, optimizer, scheduler, 1)


ANSWERS = {
    "7.1.1": {"correct": (2940, 0.8, 147, 2793)},
    "7.1.2": {
        "correct": rate,
        "wrong": [
            (partial(goes_on, how="climbs back"), ["the run has ended", "climbs back"]),
            (begins_at_zero, ["update 0 has the rate 0", "the first update is wasted"]),
            (lambda update, total, warm, peak: rate(update, total, warm, 1.0), ["peak=0.4", "the peak is not in it"]),
            (partial(goes_on, how="cosine from the start"), ["the cosine began at update 0"]),
            (partial(goes_on, how="cosine too long"), ["the cosine is too long"]),
            (partial(goes_on, how="a whole wave"), ["down half-way"]),
            (partial(goes_on, how="below zero"), ["becomes negative"]),
            (divides_by_zero, ["ZeroDivisionError", "divides_by_zero"]),
            (partial(goes_on, how="a line"), ["after the warm-up"]),
            (lambda *given: print(rate(*given)), ["gives nothing"]),
        ],
    },
    "7.1.3": {
        "correct": fit,
        "wrong": [
            (partial(fit, each=0), ["every update had the first rate"]),
            (partial(fit, each=0, per_epoch=1), ["once an epoch"]),
            (partial(fit, each=0, early=True), ["the first rate of the schedule was skipped"]),
            (partial(fit, each=2), ["every other rate was skipped"]),
            (partial(fit, per_epoch=1), ["0, 1, 2, 3, 4, 6, 7"]),
            (partial(fit, zero=False), ["weights come out otherwise"]),
            (one_epoch, ["made 5 updates, not 15"]),
            (partial(fit, update=False), ["the optimiser never stepped"]),
        ],
    },
}
