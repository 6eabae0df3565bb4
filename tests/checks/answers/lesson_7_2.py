"""Answers to the exercises of lesson 7.2: the right ones, the blanks, and mistakes that people make."""

import math

import numpy as np
import torch

# 7.2.1: the exponent


def exponent(batches, rates):
    x, y = torch.tensor(batches, dtype=torch.float64).log(), torch.tensor(rates, dtype=torch.float64).log()
    x, y = x - x.mean(), y - y.mean()
    return (x @ y / (x @ x)).item()


def in_single_precision(batches, rates):
    x, y = torch.tensor(batches).float().log(), torch.tensor(rates).log()
    return ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()


def the_whole_fit(batches, rates):
    return np.polyfit(np.log(batches), np.log(rates), 1)


def through_one(batches, rates):
    x, y = np.log(batches), np.log(rates)
    return (x * y).sum() / (x * x).sum()


def the_ends(batches, rates):
    return math.log(rates[-1] / rates[0]) / math.log(batches[-1] / batches[0])


# 7.2.2: the best rate


def best_rate(rates, losses):
    losses = [loss if math.isfinite(loss) else math.inf for loss in losses]
    place = losses.index(min(losses))
    return rates[place] if 0 < place < len(rates) - 1 and losses[place] < math.inf else None


def refuses_nan(rates, losses):
    return None if any(math.isnan(loss) for loss in losses) else best_rate(rates, losses)


def plain_min(rates, losses):
    place = losses.index(min(losses))
    return rates[place] if 0 < place < len(rates) - 1 and math.isfinite(losses[place]) else None


def only_those_that_ran(rates, losses):
    ran = {rate: loss for rate, loss in zip(rates, losses, strict=True) if math.isfinite(loss)}
    rate = min(ran, key=ran.get) if ran else rates[0]
    return None if rate in (rates[0], rates[-1]) else rate


def right_edge_only(rates, losses):
    place = int(np.nanargmin(losses))
    return rates[place] if place < len(rates) - 1 else None


def best_of_the_failed(rates, losses):
    return best_rate(rates, losses) if any(map(math.isfinite, losses)) else rates[1]


ANSWERS = {
    "7.2.1": {
        "correct": exponent,
        "accepted": [lambda batches, rates: np.polyfit(np.log2(batches), np.log2(rates), 1)[0], in_single_precision],
        "wrong": [
            (lambda batches, rates: np.polyfit(batches, rates, 1)[0], ["there are no logarithms in it"]),
            (lambda batches, rates: np.polyfit(np.log(batches), rates, 1)[0], ["only one of the two is a logarithm"]),
            (lambda batches, rates: np.polyfit(np.log(rates), np.log(batches), 1)[0], ["upside down"]),
            (the_ends, ["points that lie on no line", "only the first and the last point"]),
            (through_one, ["that line goes through (1, 1)"]),
            (lambda batches, rates: the_whole_fit(batches, rates)[1], ["a rate that grows as the batch", "slope"]),
            (the_whole_fit, ["not a number"]),
            (0.5, ["not a function"]),
        ],
    },
    "7.2.2": {
        "correct": best_rate,
        "accepted": [only_those_that_ran],
        "wrong": [
            (plain_min, ["[nan, 0.5, 0.3, 0.6, 0.9]", "one failed run hides the others"]),
            (lambda rates, losses: rates[np.nanargmin(losses)], ["at the right edge"]),
            (lambda rates, losses: rates[int(torch.tensor(losses).argmin())], ["a nan is lower than nothing"]),
            (refuses_nan, ["one failed run hides the others"]),
            (lambda rates, losses: min(losses), ["that is the loss"]),
            (lambda rates, losses: losses.index(min(losses)), ["its place in the list"]),
            (lambda rates, losses: rates[losses.index(max(losses))], ["the highest loss"]),
            (right_edge_only, ["at the left edge"]),
            (best_of_the_failed, ["all of these runs failed"]),
        ],
    },
}
