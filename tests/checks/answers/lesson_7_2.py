"""Answers to the exercises of lesson 7.2: the right ones, the blanks, and mistakes that people make."""

import math

import numpy as np
import torch
import torch.nn.functional as F

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


# your turn


def by_hand(optimizer, weights, rate):
    old = [weight.data.clone() for weight in weights]
    optimizer.step()
    with torch.no_grad():
        for weight, before in zip(weights, old, strict=True):
            weight.sub_((1 - rate) * (weight - before))


def with_the_rate_in_the_optimiser(optimizer, weights, rate):
    start, end = [weight.detach().clone() for weight in weights], []
    for run, own in enumerate(rate.flatten()):
        for weight, was in zip(weights, start, strict=True):
            weight.data.copy_(was)
        optimizer.state.clear()
        optimizer.param_groups[0]["lr"] = own.item()
        optimizer.step()
        end.append([weight.detach()[run].clone() for weight in weights])
    for weight, runs in zip(weights, zip(*end, strict=True), strict=True):
        weight.data = torch.stack(runs)


def without_a_copy(optimizer, weights, rate):
    old = [weight.detach() for weight in weights]
    optimizer.step()
    with torch.no_grad():
        for weight, before in zip(weights, old, strict=True):
            weight.copy_(torch.lerp(before, weight, rate))


def gives_the_name_only(optimizer, weights, rate):
    old = [weight.detach().clone() for weight in weights]
    optimizer.step()
    for weight, before in zip(weights, old, strict=True):
        weight = torch.lerp(before, weight, rate)


def in_place(optimizer, weights, rate):
    optimizer.step()
    for weight in weights:
        weight *= rate


def in_lists(rates, losses):
    losses = [loss.item() if loss.isfinite() else math.inf for loss in losses]
    place = losses.index(min(losses))
    return rates[place] if 0 < place < len(rates) - 1 else None


def only_those_that_ran(rates, losses):
    ran = {rate.item(): loss for rate, loss in zip(rates, losses, strict=True) if loss.isfinite()}
    rate = min(ran, key=ran.get) if ran else rates[0]
    return math.nan if rate in (rates[0], rates[-1]) else rate


def among_those_that_ran(rates, losses):
    rates, losses = rates[losses.isfinite()], losses[losses.isfinite()]
    place = losses.argmin().item() if len(losses) else 0
    return math.nan if place in (0, len(rates) - 1) or not len(rates) else rates[place]


def new_ones_in_the_list(optimizer, weights, rate):
    before = [weight.detach().clone() for weight in weights]
    optimizer.step()
    weights[:] = [torch.lerp(old, new.detach(), rate) for old, new in zip(before, weights, strict=True)]


def steps_for_each(optimizer, weights, rate):
    for weight in weights:
        before = weight.detach().clone()
        optimizer.step()
        weight.data = torch.lerp(before, weight.data, rate)


def a_rate_after_another(optimizer, weights, rate):
    for own in rate.flatten():
        for group in optimizer.param_groups:
            group["lr"] = own.item()
        optimizer.step()


def forgets_the_gradients(optimizer, weights, rate):
    optimizer.zero_grad()
    by_hand(optimizer, weights, rate)


def the_place_among_others(rates, losses):
    ran = losses[losses.isfinite()]
    if not len(ran):
        return math.nan
    place = ran.argmin().item()
    return rates[place] if 0 < place < len(rates) - 1 else math.nan


def by_pythons_min(rates, losses):
    losses = losses.tolist()
    place = losses.index(min(losses))
    return rates[place] if 0 < place < len(rates) - 1 else math.nan


def says_only_that_it_does_not_know(rates, losses):
    place = torch.where(losses.isfinite(), losses, math.inf).argmin()
    if place in (0, len(rates) - 1):
        return math.nan


def by_the_lowest_itself(rates, losses):
    return rates[torch.where(losses.isfinite(), losses, math.inf).min()]


def of_five_only(rates, losses):
    place = torch.where(losses.isfinite(), losses, math.inf).argmin().item()
    return math.nan if place in (0, 4) else rates[place].item()


def the_place_itself(rates, losses):
    place = losses.nan_to_num(math.inf).argmin()
    return None if place == 0 or place == len(rates) - 1 else place


def new_ones_one_by_one(optimizer, weights, rate):
    before = [weight.detach().clone() for weight in weights]
    optimizer.step()
    with torch.no_grad():
        for n, old in enumerate(before):
            weights[n] = torch.lerp(old, weights[n], rate)


def keeps_the_way_nowhere(optimizer, weights, rate):
    old = [weight.detach().clone() for weight in weights]
    optimizer.step()
    for weight, before in zip(weights, old, strict=True):
        torch.lerp(before, weight, rate)


def by_einsum(x, y, weight, bias):
    scores = torch.einsum("oif,orfc->orci", x, weight) + bias.transpose(-1, -2)
    labels = y[:, None].expand(-1, weight.shape[1], -1)
    orders, rates, classes, images = scores.shape
    each = F.cross_entropy(scores.reshape(-1, classes, images), labels.reshape(-1, images), reduction="none")
    return each.mean(dim=-1).view(orders, rates)


def picked_by_hand(x, y, weight, bias):
    logarithms = (x[:, None] @ weight + bias).log_softmax(dim=-1)
    right = y[:, None, :, None].expand(-1, weight.shape[1], -1, -1)
    return -logarithms.gather(-1, right).squeeze(-1).mean(dim=-1)


def one_axis_of_runs(x, y, weight, bias):
    rates = weight.shape[1]
    scores = torch.baddbmm(bias.flatten(0, 1), x.repeat_interleave(rates, 0), weight.flatten(0, 1))
    each = F.cross_entropy(scores.transpose(1, 2), y.repeat_interleave(rates, 0), reduction="none")
    return each.mean(dim=1).reshape(-1, rates)


def labels_repeated(x, y, weight, bias):
    scores = x.unsqueeze(1) @ weight + bias
    orders, rates, images, classes = scores.shape
    labels = y.unsqueeze(1).repeat(1, rates, 1).reshape(-1)
    return F.cross_entropy(scores.view(-1, classes), labels, reduction="none").view(orders, rates, images).mean(2)


def by_vmap(x, y, weight, bias):
    def of_one_run(x, y, weight, bias):
        return F.cross_entropy(x @ weight + bias, y)

    return torch.vmap(torch.vmap(of_one_run, in_dims=(None, None, 0, 0)))(x, y, weight, bias)


def over_all(x, y, weight, bias):
    scores = x.unsqueeze(1) @ weight + bias
    return F.cross_entropy(scores.flatten(0, 2), y.unsqueeze(1).expand(scores.shape[:-1]).flatten())


def labels_missing(x, y, weight, bias):
    scores = x.unsqueeze(1) @ weight + bias
    return F.cross_entropy(scores.flatten(0, 2), y.flatten(), reduction="none").view(scores.shape[:-1]).mean(-1)


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
    "7.2.a": {
        "accepted": [by_einsum, picked_by_hand, one_axis_of_runs, labels_repeated, by_vmap],
        "wrong": [
            (lambda x, y, weight, bias: x @ weight + bias, ["raised RuntimeError"]),
            (over_all, ["one number, the mean of all runs"]),
            (labels_missing, ["raised"]),
        ],
    },
    "7.2.b": {
        "accepted": [by_hand, with_the_rate_in_the_optimiser],
        "wrong": [
            (in_place, ["SGD raised RuntimeError"]),
            (new_ones_in_the_list, ["the list has other tensors now"]),
            (new_ones_one_by_one, ["the list has other tensors now"]),
            (keeps_the_way_nowhere, ["the whole step"]),
            (without_a_copy, ["where the step has taken them already"]),
            (gives_the_name_only, ["the whole step"]),
            (steps_for_each, ["one whole step too far"]),
            (a_rate_after_another, ["every run makes the step of each rate"]),
            (forgets_the_gradients, ["the step moves nothing, as it does without gradients"]),
        ],
    },
    "7.2.c": {
        "accepted": [in_lists, only_those_that_ran],
        "wrong": [
            (among_those_that_ran, ["where a run has failed, you know no best", "taken for an edge"]),
            (the_place_itself, ["that is its place in the list"]),
            (the_place_among_others, ["where the first run has failed, you know no best"]),
            (by_pythons_min, ["where the first run has failed, you know no best"]),
            (says_only_that_it_does_not_know, ["you never know the best"]),
            (by_the_lowest_itself, ["raised IndexError"]),
            (of_five_only, ["the fifth of seven rates is taken for an edge"]),
        ],
    },
}
