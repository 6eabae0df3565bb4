"""Checks of lesson 7.5, Planning."""

from collections.abc import Callable, Sequence
from functools import partial
from math import log, sqrt
from typing import Any

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import needs_function, number, same_seconds
from ddplab.checks.turns import turn
from ddplab.course.plan import Link, hierarchical, ring


@exercise("7.5.1", "Two levels")
def two_levels_timed(two_levels: Callable[..., Any]) -> None:
    """`two_levels(size, nodes, gpus, inside, across)`, where the last two are (alpha, bandwidth)."""
    needs_function("two_levels", two_levels)
    inside, across = (2e-6, 1e11), (1e-5, 1e9)
    within, between = Link("", *inside), Link("", *across)
    for nodes, gpus in ((4, 8), (1, 8), (8, 1)):
        size = 1e8
        wrong = {
            ring(size, gpus, within): ("nothing crosses the nodes", "Add a ring with one rank for each node."),
            ring(size, nodes, between): ("nothing happens inside the nodes", "Add a ring over the GPUs of a node."),
            ring(size, nodes * gpus, between): ("that is one ring through all", "A ring inside, and a ring across."),
            ring(size, gpus, within) + ring(size / gpus, nodes, between): (
                "across the nodes goes 1 part of the bytes only",
                "Each GPU sends its part, and all GPUs of a node share its connection: together that is all of it.",
            ),
            ring(size, gpus, within) + ring(size, nodes * gpus, between): (
                "the ring across has as many ranks as there are GPUs",
                "One rank for each node.",
            ),
            ring(size, gpus, between) + ring(size, nodes, within): ("the two connections are swapped", "inside first."),
            ring(size, gpus, within) + ring(size, nodes, Link("", across[0], across[1] / gpus)): (
                "across the nodes all the bytes go over the part of the connection that one GPU has",
                "Each GPU sends its part only: together that is all of it, over all of the connection.",
            ),
            2 * ring(size, gpus, within) + ring(size, nodes, between): (
                "the ring inside is there twice",
                "Its first half comes before the crossing and its second half after it: one ring in all.",
            ),
        }
        same_seconds(
            f"for {nodes} x {gpus} GPUs",
            number("two_levels", two_levels(size, nodes, gpus, inside, across)),
            hierarchical(size, nodes, gpus, within, between),
            wrong,
            "A ring over the GPUs of a node, and a ring over the nodes, both of all the bytes.",
        )


@exercise("7.5.2", "The fewest GPUs")
def fewest(fewest_gpus: Callable[..., Any]) -> None:
    """`fewest_gpus(step_seconds, batch, samples, days, counts)`: the smallest count that is done in time, or None."""
    needs_function("fewest_gpus", fewest_gpus)

    def linear(gpus: int) -> float:
        return 1.0

    def crowded(gpus: int) -> float:  # quickest on 8, then slower and slower
        return 1.0 if gpus <= 8 else gpus / 2

    day = 86400
    cases = (
        ("where all scales perfectly", linear, 10, 10 * day * 3.5, 1, (1, 2, 4, 8), 4),
        ("where the counts are not in order", linear, 10, 10 * day * 3, 1, (8, 4, 2, 1), 4),
        ("where it takes exactly the time there is", linear, 1, day * 16, 2, (2, 4, 8, 16), 8),
        ("where 64 GPUs are slower than 8", crowded, 2, 2 * day * 5, 1, (1, 8, 64), 8),
        ("where no number is enough", crowded, 2, 2 * day * 9, 1, (1, 8, 64), None),
    )
    for where, step_seconds, batch, samples, days, counts, right in cases:
        found = fewest_gpus(step_seconds, batch, samples, days, counts)
        if found == right and not isinstance(found, bool):
            continue
        taken = {n: samples / (n * batch / step_seconds(n)) / day for n in counts}
        if right is None:
            raise NotYet(f"{where}, you get {found!r} and not None", "None of the counts is done in time.")
        if found is None:
            hint = "In one step all GPUs together see gpus * batch samples. Exactly in time is in time."
            raise NotYet(f"{where}, you get None, and {right} GPUs need {taken[right]:g} days of {days}", hint)
        if found not in taken:
            raise NotYet(f"{where}, you get {found!r}, which is none of {counts}", "Return one of the counts.")
        if taken[found] > days:
            raise NotYet(
                f"{where}, you get {found}, which takes {taken[found]:g} days, and there is time for {days}",
                "In one step all GPUs together see gpus * batch samples. A day has 86,400 seconds.",
            )
        raise NotYet(f"{where}, you get {found}, and {right} GPUs are enough", "The smallest count, not the first.")


# your turn


def _returned(returned: Any, *_: Any) -> Any:
    return returned


def _enough(
    messages: float, ranks: int, part: float = 2 / 3, off: Callable = lambda compute, late: compute / (1 + late)
) -> float:
    return off(messages / part, 0.02 * sqrt(2 * log(ranks)))


turn(
    "7.5.a",
    "Fast enough",
    _enough,
    {
        "0.2 s of messages, 64 ranks": lambda: (0.2, 64),
        "0.02 s, 64 ranks": lambda: (0.02, 64),
        "0.02 s, 2 ranks": lambda: (0.02, 2),
        "3 s, 512 ranks": lambda: (3, 512),
    },
    look=_returned,
    heads=("seconds",),
    mistakes=[
        (partial(_enough, off=lambda compute, late: compute), "that is the compute and the waiting together",
         "Together they are `compute * (1 + plan.late(ranks))`: solve for `compute`."),
        (partial(_enough, off=lambda compute, late: compute * (1 + late)), "the waiting is added, and not taken off",
         "A late rank makes the backward pass longer: less compute is enough."),
        (partial(_enough, off=lambda compute, late: compute * (1 - late)), "the waiting is a part of what is left",
         "It is a part of the compute: compute and waiting are `compute * (1 + plan.late(ranks))`."),
        (partial(_enough, off=lambda compute, late: compute - late), "`plan.late` is taken for seconds",
         "It is a part of the compute."),
        (partial(_enough, part=1), "that is the backward pass alone", "It is two thirds of compute and waiting."),
        (partial(_enough, part=1, off=lambda compute, late: compute), "that is the backward pass",
         "It is two thirds of compute and waiting; `compute` is asked for."),
        (partial(_enough, part=3 / 2), "two thirds are taken of the backward pass",
         "It is two thirds of the whole: divide by them."),
        (partial(_enough, part=1 / 2), "the backward pass is half of the step", "It is two thirds."),
        (lambda messages, ranks: messages / (2 / 3 + 0.02 * sqrt(2 * log(ranks))),
         "`plan.late` is added to the two thirds, not to one whole",
         "The latest takes `compute * (1 + plan.late(ranks))`; two thirds of that are its backward pass."),
        (partial(_enough, part=1 / 3), "the backward pass is a third of the step", "It is two thirds."),
        (lambda messages, ranks: 1000 * _enough(messages, ranks), "those are milliseconds", "Seconds are asked for."),
    ],
    otherwise="`messages` last for two thirds of the latest GPU's time: from that to its time, then to one alone.",
)  # fmt: skip

KEPT = {"sgd": 0, "momentum": 4, "adam": 8}


def _largest(card: float, activations: float, optimizer: str, each: Callable = lambda kept: 8 + kept) -> float:
    return (card - activations) / each(KEPT[optimizer])


turn(
    "7.5.b",
    "The largest model on a card",
    _largest,
    {
        f"{card} GB, {used} of activations, {optimizer}": partial(tuple, (card, used, optimizer))
        for card, used, optimizer in (
            (80, 0, "adam"), (80, 16, "adam"), (24, 8, "adam"), (24, 0, "sgd"), (80, 14, "momentum")
        )
    },
    look=_returned,
    heads=("billions",),
    mistakes=[
        (lambda card, activations, optimizer: _largest(card, 0, optimizer), "the activations are not in it",
         "They take a part of the card, and are in GB as it is."),
        (lambda card, activations, optimizer: _largest(card, -activations, optimizer), "the activations are added",
         "They take a part of the card."),
        (lambda card, activations, optimizer: _largest(card, 0, optimizer) - activations,
         "the activations, in GB, are taken off the billions", "Take them off the card, before you divide."),
        (partial(_largest, each=lambda kept: 4 + kept), "the gradients are not in it",
         "A weight, its gradient, and what the optimiser keeps."),
        (partial(_largest, each=lambda kept: 4), "only the weights are counted",
         "A weight, its gradient, and what the optimiser keeps."),
        (partial(_largest, each=lambda kept: 8), "what the optimiser keeps is not in it",
         "One number for momentum, two for Adam, of 4 bytes each."),
        (partial(_largest, each=lambda kept: 16), "Adam's 16 bytes, whatever the optimiser", "Look at `optimizer`."),
        (partial(_largest, each=lambda kept: 8 + min(kept, 4)), "Adam has one number for you", "It keeps two."),
        (partial(_largest, each=lambda kept: 12 + kept), "buckets are counted as well",
         "Here the gradients lie in them."),
        (partial(_largest, each=lambda kept: 8 + kept / 4), "a number that the optimiser keeps has one byte for you",
         "It is a float32 as well: 4 bytes."),
        (partial(_largest, each=lambda kept: (8 + kept) / 2), "that is half precision", "float32: 4 bytes a number."),
        (partial(_largest, each=lambda kept: 2 + kept / 4), "that is how many numbers fit", "4 bytes for each."),
        (partial(_largest, each=lambda kept: 1 + kept / 4), "that is how many numbers fit, and gradients are not in it",
         "A weight, its gradient, and what the optimiser keeps; 4 bytes for each."),
        (partial(_largest, each=lambda kept: 8 + 2 * kept), "what the optimiser keeps has 8 bytes a number for you",
         "Every number has 4 bytes. `momentum` keeps one of them, `adam` two."),
        (lambda card, activations, optimizer: card - _largest(activations, 0, optimizer),
         "only the activations are divided", "First take them off the card: in brackets."),
        (lambda *it: 1000 * _largest(*it), "those are millions", "In billions."),
        (lambda *it: 1.073741824 * _largest(*it), "those are GiB", "Here a GB is a billion bytes."),
        (lambda *it: _largest(*it) // 1, "only whole billions are left", "Half a billion counts: `/` keeps it."),
        (lambda *it: -(-_largest(*it) // 1), "that is more than fits: whole billions, rounded up",
         "Half a billion counts: leave the number as it is."),
        (partial(_largest, each=lambda kept: 8 + (kept if kept > 4 else 0)), "what momentum keeps is not in it",
         "One number for each parameter, of 4 bytes."),
        (partial(_largest, each=lambda kept: 8 + (kept if kept < 8 else 0)), "what Adam keeps is not in it",
         'Two numbers for each parameter, of 4 bytes. It is called "adam" here.'),
        (partial(_largest, each=lambda kept: 16 if kept else 8), "momentum keeps two numbers for you", "It keeps one."),
        (partial(_largest, each=lambda kept: max(8 + kept, 12)), "sgd keeps a number for you", "It keeps nothing."),
        (lambda *it: _largest(*it) / 1e9, "the billions are divided by a billion",
         "GB, divided by the bytes of a parameter, are billions already."),
        (partial(_largest, each=lambda kept: 1 / (8 + kept)), "the bytes of a parameter are multiplied with",
         "How often do they fit into what is left?"),
        (lambda *it: 1e9 * _largest(*it), "that is the number of parameters itself", "In billions."),
    ],
    hints={"'Memory'": "`plan.memory(…)` counts several parts. All of them together are its `total`.",
           "division by zero": "What keeps nothing needs its 8 bytes all the same: a weight and its gradient.",
           "KeyError": 'The optimisers are called "sgd", "momentum" and "adam".'},
    otherwise="What the activations leave of the card, divided by the bytes of a parameter.",
)  # fmt: skip


NUMBERS = [n / 100 for n in range(50, 151)]


def _near(
    truths: Sequence[float], within: float, numbers: Sequence[float] = NUMBERS, end: Callable = max,
    off: Callable = lambda says, truth: abs(says / truth - 1),
) -> Any:  # fmt: skip
    return end([sum(off(says, truth) < within for truth in truths) for says in numbers])


turn(
    "7.5.c",
    "The best that one number can do",
    _near,
    {
        "0.92 1.0 1.1 1.3, within 0.1": lambda: ([0.92, 1.0, 1.1, 1.3], 0.1),
        "the same, within 0.05": lambda: ([0.92, 1.0, 1.1, 1.3], 0.05),
        "0.6 0.74 1.3, within 0.1": lambda: ([0.6, 0.74, 1.3], 0.1),
        "0.61 0.93 0.94 0.95, within 0.001": lambda: ([0.61, 0.93, 0.94, 0.95], 0.001),
        "0.7 0.775 1.2 1.21 1.3, within 0.055": lambda: ([0.7, 0.775, 1.2, 1.21, 1.3], 0.055),
        "1.0 1.5 1.545, within 0.032": lambda: ([1.0, 1.5, 1.545], 0.032),  # 1.50 is near two
        "0.46 0.46 0.9, within 0.085": lambda: ([0.46, 0.46, 0.9], 0.085),  # 0.50 is near none
    },
    look=_returned,
    heads=("rows",),
    mistakes=[
        (lambda truths, within: _near(truths, within, numbers=[sum(truths) / len(truths)]),
         "the mean is said, and no other",
         "Try every number from 0.50 to 1.50, and keep the most rows that one of them is near."),
        (lambda truths, within: _near(truths, within, numbers=[sorted(truths)[len(truths) // 2]]),
         "the one in the middle is said, and no other", "Try every number from 0.50 to 1.50."),
        (lambda truths, within: _near(truths, within, numbers=[1.0]), "1 is said of every row, and no other number",
         "Try every number from 0.50 to 1.50."),
        (lambda truths, within: _near(truths, within, numbers=truths), "only numbers that were measured are said",
         "The best may lie between two of them: try every number from 0.50 to 1.50."),
        (partial(_near, end=min), "the worst number counts", "The most rows: `max`."),
        (partial(_near, end=sum), "the rows of all numbers are added up", "The most that *one* number is near."),
        (partial(_near, off=lambda says, truth: abs(says - truth)), "the difference itself is compared with `within`",
         "As a part of the truth: 0.06 of 0.60 is a tenth."),
        (partial(_near, off=lambda says, truth: says / truth - 1),
         "every row counts, as if all that is too small, or all that is far, were near",
         "Too large or too small by less than `within`: `abs(…) < within`."),
        (partial(_near, end=lambda rows: NUMBERS[rows.index(max(rows))]),
         "that is the number, not how many rows it is near", "Return how many rows that number is near."),
        (partial(_near, end=lambda rows: max(rows) / 4), "a part of the rows", "How many."),
        (partial(_near, off=lambda says, truth: abs(1 - truth / says)), "divided by what is said, not by the truth",
         "`within` is a part of the truth."),
        (partial(_near, numbers=NUMBERS[:-1]), "1.50 is not tried", "`range` and `arange` leave out their end."),
        (partial(_near, numbers=[n / 100 for n in range(50, 101)]), "only numbers up to 1 are tried",
         "Some machines are more than N times as fast: up to 1.50."),
    ],
    hints={"division by zero": "The truth is never 0: divide what you say by it.",
           "'float' object cannot be interpreted": "`range` takes whole numbers: 50 to 150, each divided by 100."},
    otherwise="For each number from 0.50 to 1.50: how many rows is it near? The most of these.",
)  # fmt: skip
