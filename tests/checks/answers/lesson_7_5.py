"""Answers to the exercises of lesson 7.5: the right ones, the blanks, and mistakes that people make."""

from functools import partial
from operator import le, lt

import numpy as np
import torch

from ddplab.course import plan


def ring_seconds(size, ranks, alpha, bandwidth):
    return 2 * (ranks - 1) * alpha + 2 * (ranks - 1) / ranks * size / bandwidth


# 7.5.1: two levels


def only_inside(size, nodes, gpus, inside, across):
    return ring_seconds(size, gpus, *inside)


def only_across(size, nodes, gpus, inside, across):
    return ring_seconds(size, nodes, *across)


def two_levels(*given):
    return only_inside(*given) + only_across(*given)


def one_ring(size, nodes, gpus, inside, across):
    return ring_seconds(size, nodes * gpus, *across)


def a_part_across(size, nodes, gpus, inside, across):
    return ring_seconds(size, gpus, *inside) + ring_seconds(size / gpus, nodes, *across)


def swapped(size, nodes, gpus, inside, across):
    return two_levels(size, nodes, gpus, across, inside)


# 7.5.2: the fewest GPUs


def fewest_gpus(
    step_seconds, batch, samples, days, counts, *, order=sorted, gpus_share=True, one_step=False, enough=le, day=86400
):
    for gpus in order(counts):
        steps = samples / (batch * (gpus if gpus_share else 1))
        if enough(steps * step_seconds(1 if one_step else gpus), days * day):
            return gpus
    return None


def the_quickest(step_seconds, batch, samples, days, counts):
    return min(counts, key=lambda gpus: step_seconds(gpus) / gpus)


def the_last_resort(step_seconds, batch, samples, days, counts):
    return fewest_gpus(step_seconds, batch, samples, days, counts) or max(counts)


# your turn


def by_halving(messages, ranks):
    """Looks for it: as much has to hide as three buckets."""
    low, high = 0.0, 100.0
    for _ in range(60):
        half = (low + high) / 2
        room = 3 / 4 * 2 / 3 * (half + plan.late(ranks) * half)
        low, high = (half, high) if room < 3 * messages / 4 else (low, half)
    return high


def by_algebra(messages, ranks):
    return torch.tensor(3 * messages / (2 + 2 * plan.late(ranks)))


def without_waiting(messages, ranks):
    return messages * 1.5


def late_beside_the_two_thirds(messages, ranks):
    return messages / (2 / 3 + plan.late(ranks))


def four_buckets(messages, ranks):
    return 4 * messages * 3 / 2 / (1 + plan.late(ranks))


def waiting_in_seconds(messages, ranks):
    return 1.5 * messages - plan.late(ranks)


def waiting_added(messages, ranks):
    return 1.5 * messages * (1 + plan.late(ranks))


def by_memory(card, activations, optimizer):
    return (card - activations) / plan.memory(1, optimizer).total


def with_bytes_of_one(card, activations, optimizer):
    return (card - activations) / (4 + 4 + {"sgd": 0, "momentum": 1, "adam": 2}[optimizer])


def by_numbers(card, activations, optimizer):
    numbers = 2 + ["sgd", "momentum", "adam"].index(optimizer)
    return torch.tensor(card - activations) / 4 / numbers


def by_all_of_memory(card, activations, optimizer):
    return (card - activations) / plan.memory(1, optimizer)


def with_the_name(card, activations, optimizer):
    return (card - activations) / (8 + optimizer)


def forgets_momentum(card, activations, optimizer):
    if optimizer == "sgd":
        return (card - activations) / 8
    if optimizer == "adam":
        return (card - activations) / 16


def by_two_loops(truths, within):
    most = 0
    for percent in range(50, 151):
        near = 0
        for truth in truths:
            near += (1 - within) * truth < percent / 100 < (1 + within) * truth
        most = max(most, near)
    return most


def all_at_once(truths, within):
    says = torch.arange(50, 151)[:, None] / 100
    off = (says.double() / torch.tensor(truths, dtype=torch.float64) - 1).abs()
    return (off < within).sum(dim=1).max()


def by_the_difference(truths, within):
    return max(sum(abs(n / 100 - it) < within for it in truths) for n in range(50, 151))


def the_number(truths, within):
    near = {n / 100: sum(abs(n / 100 / it - 1) < within for it in truths) for n in range(50, 151)}
    return near, max(near, key=near.get)


def by_the_guess(truths, within):
    says = [n / 100 for n in range(50, 151)]
    return max(sum(abs(n - truth) / n < within for truth in truths) for n in says)


def without_the_end(truths, within):
    return max(int((np.abs(n / np.array(truths) - 1) < within).sum()) for n in np.arange(0.5, 1.5, 0.01))


ANSWERS = {
    "7.5.1": {
        "correct": two_levels,
        "wrong": [
            (only_inside, ["for 4 x 8 GPUs", "nothing crosses the nodes"]),
            (only_across, ["for 4 x 8 GPUs", "nothing happens inside"]),
            (one_ring, ["for 4 x 8 GPUs", "one ring through all"]),
            (a_part_across, ["for 4 x 8 GPUs", "part of the bytes"]),
            (
                lambda *given: two_levels(*given) + only_inside(*given),
                ["for 4 x 8 GPUs", "the ring inside is there twice"],
            ),
            (swapped, ["for 4 x 8 GPUs", "swapped"]),
        ],
    },
    "7.5.2": {
        "correct": fewest_gpus,
        "wrong": [
            (partial(fewest_gpus, order=list), ["not in order", "you get 8, and 4 GPUs are enough"]),
            (partial(fewest_gpus, gpus_share=False), ["scales perfectly", "you get None"]),
            (partial(fewest_gpus, one_step=True), ["no number is enough", "you get 64 and not None"]),
            (partial(fewest_gpus, enough=lt), ["exactly the time", "you get 16, and 8 GPUs are enough"]),
            (partial(fewest_gpus, day=86400 * 24), ["you get 1, which takes 3.5 days"]),
            (the_quickest, ["you get 8, and 4 GPUs are enough"]),
            (the_last_resort, ["no number is enough", "not None"]),
        ],
    },
    "7.5.a": {
        "accepted": [by_halving, by_algebra],
        "wrong": [
            (without_waiting, ["the compute and the waiting together"]),
            (late_beside_the_two_thirds, ["added to the two thirds"]),
            (four_buckets, ["every number is 4 times what is wanted"]),
            (waiting_in_seconds, ["`plan.late` is taken for seconds"]),
            (waiting_added, ["the waiting is added, and not taken off"]),
        ],
    },
    "7.5.b": {
        "accepted": [by_memory, by_numbers],
        "wrong": [
            (lambda *given: int(by_numbers(*given)), ["only whole billions"]),
            (with_bytes_of_one, ["one byte for you"]),
            (by_all_of_memory, ["'Memory'"]),
            (with_the_name, ["'str'"]),
            (forgets_momentum, ["billions is None"]),
        ],
    },
    "7.5.c": {
        "accepted": [by_two_loops, all_at_once],
        "wrong": [
            (lambda *given: the_number(*given)[1], ["that is the number"]),
            (by_the_difference, ["the difference itself is compared"]),
            (by_the_guess, ["divided by what is said, not by the truth"]),
            (without_the_end, ["1.50 is not tried"]),
        ],
    },
}
