"""Answers to the exercises of lesson 13: the right ones, the blanks, and mistakes that people make."""

import math

import torch.nn.functional as F


def blank(*args):
    raise NotImplementedError("your code here")


# 13.2: the schedule


def rate(update, total, warm, peak):
    if update < warm:
        return peak * (update + 1) / warm
    progress = min(1, (update - warm) / (total - warm))
    return peak * (1 + math.cos(math.pi * progress)) / 2


def climbs_back(update, total, warm, peak):
    if update < warm:
        return peak * (update + 1) / warm
    return peak * (1 + math.cos(math.pi * (update - warm) / (total - warm))) / 2


def begins_at_zero(update, total, warm, peak):
    return peak * update / warm if update < warm else rate(update, total, warm, peak)


def without_peak(update, total, warm, peak):
    return rate(update, total, warm, 1.0)


def cosine_from_the_start(update, total, warm, peak):
    if update < warm:
        return peak * (update + 1) / warm
    return peak * (1 + math.cos(math.pi * min(1, update / total))) / 2


def cosine_too_long(update, total, warm, peak):
    if update < warm:
        return peak * (update + 1) / warm
    return peak * (1 + math.cos(math.pi * min(1, (update - warm) / total))) / 2


def whole_wave(update, total, warm, peak):
    if update < warm:
        return peak * (update + 1) / warm
    return peak * (1 + math.cos(2 * math.pi * min(1, (update - warm) / (total - warm)))) / 2


def below_zero(update, total, warm, peak):
    if update < warm:
        return peak * (update + 1) / warm
    return peak * math.cos(math.pi * min(1, (update - warm) / (total - warm)))


def divides_by_zero(update, total, warm, peak):
    return min(peak * (update + 1) / warm, rate(update, total, warm, peak))


def a_line_down(update, total, warm, peak):
    if update < warm:
        return peak * (update + 1) / warm
    return peak * max(0, 1 - (update - warm) / (total - warm))


def prints_it(update, total, warm, peak):
    print(rate(update, total, warm, peak))


# 13.3: the loop


def fit(model, loader, optimizer, scheduler, epochs, each=1, per_epoch=0, early=False, zero=True):
    """The loop, with one thing done otherwise at a time."""
    for _ in range(epochs):
        for x, y in loader:
            if zero:
                optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if early:
                scheduler.step()
            optimizer.step()
            for _ in range(each):
                scheduler.step()
        for _ in range(per_epoch):
            scheduler.step()


def never(*args):
    fit(*args, each=0)


def once_an_epoch(*args):
    fit(*args, each=0, per_epoch=1)


def before_the_update(*args):
    fit(*args, each=0, early=True)


def twice(*args):
    fit(*args, each=2)


def both(*args):
    fit(*args, per_epoch=1)


def never_zeroed(*args):
    fit(*args, zero=False)


def one_epoch(model, loader, optimizer, scheduler, epochs):
    fit(model, loader, optimizer, scheduler, 1)


def no_updates(model, loader, optimizer, scheduler, epochs):
    for x, y in loader * epochs:
        F.cross_entropy(model(x), y).backward()
        scheduler.step()


ANSWERS = {
    "13.1": {
        "correct": (2940, 0.8, 147, 2793),
        "blank": (..., ..., ..., ...),
        "wrong": [
            ((23460, 0.8, 147, 2793), ["`updates` is 23460", "one rank"]),
            ((2910, 0.8, 147, 2793), ["`updates` is 2910", "short batch"]),
            ((98, 0.8, 147, 2793), ["`updates` is 98", "one epoch"]),
            ((2930, 0.8, 147, 2793), ["rounded once"]),
            ((2940, 0.1, 147, 2793), ["`lr` is 0.1", "the old rate"]),
            ((2940, 0.1 * 8**0.5, 147, 2793), ["square-root rule"]),
            ((2940, 0.8, 1173, 2793), ["`warm` is 1173", "one rank alone"]),
            ((2940, 0.8, 0.05, 2793), ["`warm` is 0.05", "the share"]),
            ((2940, 0.8, 147, 2940), ["`t_max` is 2940", "too late"]),
            ((2940, 0.8, 147, 30), ["`t_max` is 30", "epochs"]),
        ],
    },
    "13.2": {
        "correct": rate,
        "blank": blank,
        "wrong": [
            (climbs_back, ["the run has ended", "climbs back"]),
            (begins_at_zero, ["update 0 has the rate 0", "the first update is wasted"]),
            (without_peak, ["peak=0.4", "the peak is not in it"]),
            (cosine_from_the_start, ["the cosine began at update 0"]),
            (cosine_too_long, ["the cosine is too long"]),
            (whole_wave, ["down half-way"]),
            (below_zero, ["becomes negative"]),
            (divides_by_zero, ["ZeroDivisionError", "divides_by_zero"]),
            (a_line_down, ["after the warm-up"]),
            (prints_it, ["gives nothing"]),
        ],
    },
    "13.3": {
        "correct": fit,
        "blank": blank,
        "wrong": [
            (never, ["every update had the first rate"]),
            (once_an_epoch, ["once an epoch"]),
            (before_the_update, ["the first rate of the schedule was skipped"]),
            (twice, ["every other rate was skipped"]),
            (both, ["0, 1, 2, 3, 4, 6, 7"]),
            (never_zeroed, ["weights come out otherwise"]),
            (one_epoch, ["made 5 updates, not 15"]),
            (no_updates, ["the optimiser never stepped"]),
        ],
    },
}
