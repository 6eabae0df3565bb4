"""Checks of lesson 7.5, Planning."""

from collections.abc import Callable
from typing import Any

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import needs_function, number, same_seconds
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
