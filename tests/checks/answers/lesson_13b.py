"""Answers to the exercises of lesson 13b: the right ones, the blanks, and mistakes that people make."""

import math

import numpy as np
import torch


def blank(*args):
    raise NotImplementedError("your code here")


# 13b.1: the exponent


def exponent(batches, rates):
    x, y = torch.tensor(batches, dtype=torch.float64).log(), torch.tensor(rates, dtype=torch.float64).log()
    x, y = x - x.mean(), y - y.mean()
    return (x @ y / (x @ x)).item()


def with_polyfit(batches, rates):
    return np.polyfit(np.log2(batches), np.log2(rates), 1)[0]


def in_single_precision(batches, rates):
    x, y = torch.tensor(batches).float().log(), torch.tensor(rates).log()
    return ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()


def without_logarithms(batches, rates):
    return np.polyfit(batches, rates, 1)[0]


def one_logarithm(batches, rates):
    return np.polyfit(np.log(batches), rates, 1)[0]


def upside_down(batches, rates):
    return np.polyfit(np.log(rates), np.log(batches), 1)[0]


def the_ends(batches, rates):
    return math.log(rates[-1] / rates[0]) / math.log(batches[-1] / batches[0])


def through_one(batches, rates):
    x, y = np.log(batches), np.log(rates)
    return (x * y).sum() / (x * x).sum()


def the_intercept(batches, rates):
    return np.polyfit(np.log(batches), np.log(rates), 1)[1]


def the_whole_fit(batches, rates):
    return np.polyfit(np.log(batches), np.log(rates), 1)


# 13b.2: the best rate


def best_rate(rates, losses):
    losses = [loss if math.isfinite(loss) else math.inf for loss in losses]
    place = losses.index(min(losses))
    return rates[place] if 0 < place < len(rates) - 1 and losses[place] < math.inf else None


def never_refuses(rates, losses):
    return rates[np.nanargmin(losses)]


def argmin_of_nan(rates, losses):
    return rates[int(torch.tensor(losses).argmin())]


def refuses_nan(rates, losses):
    return None if any(math.isnan(loss) for loss in losses) else best_rate(rates, losses)


def the_loss(rates, losses):
    return min(losses)


def the_place(rates, losses):
    return losses.index(min(losses))


def the_worst(rates, losses):
    return rates[losses.index(max(losses))]


def right_edge_only(rates, losses):
    place = int(np.nanargmin(losses))
    return rates[place] if place < len(rates) - 1 else None


def best_of_the_failed(rates, losses):
    losses = [loss if math.isfinite(loss) else 1e9 for loss in losses]
    inner = losses.index(min(losses))
    return rates[1] if min(losses) == 1e9 else rates[inner] if 0 < inner < len(rates) - 1 else None


ANSWERS = {
    "13b.1": {
        "correct": exponent,
        "accepted": [with_polyfit, in_single_precision],
        "blank": blank,
        "wrong": [
            (without_logarithms, ["there are no logarithms in it"]),
            (one_logarithm, ["only one of the two is a logarithm"]),
            (upside_down, ["upside down"]),
            (the_ends, ["points that lie on no line", "only the first and the last point"]),
            (through_one, ["that line goes through (1, 1)"]),
            (the_intercept, ["a rate that grows as the batch", "slope"]),
            (the_whole_fit, ["not a number"]),
            (0.5, ["not a function"]),
        ],
    },
    "13b.2": {
        "correct": best_rate,
        "blank": blank,
        "wrong": [
            (never_refuses, ["at the right edge"]),
            (argmin_of_nan, ["a nan is lower than nothing"]),
            (refuses_nan, ["one failed run hides the others"]),
            (the_loss, ["that is the loss"]),
            (the_place, ["its place in the list"]),
            (the_worst, ["the highest loss"]),
            (right_edge_only, ["at the left edge"]),
            (best_of_the_failed, ["all of these runs failed"]),
        ],
    },
}
