"""Checks of lesson 7.4, Planning."""

from collections.abc import Callable, Mapping
from typing import Any

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, needs_function, number, numbers
from ddplab.course.plan import Link, hierarchical, ring

# Eight ranks, 100 MB, alpha 10 microseconds, 10 GB/s; 100 ms of compute, nothing hidden.
numbers(
    "7.4.1",
    "One all-reduce on paper",
    Number("turns", 14, "2(N - 1), for N = 8.").with_mistakes(
        (7, "that is half of them", "In 7 turns the pieces are added up. Then they go round once more."),
        (16, "two too many", "A piece that has gone round 8 ranks passes 7 connections."),
        (8, "that is the number of ranks", "2(N - 1), for N = 8."),
    ),
    Number("megabytes", 175, "14 turns, an eighth of 100 MB in each.").with_mistakes(
        (100, "that is the vector itself", "14 turns, an eighth of the vector in each."),
        (12.5, "that is what one turn sends", "And how many turns are there?"),
        (1400, "that would be the whole vector in each turn", "Each turn sends a piece, an eighth of it."),
        (87.5, "that is half", "Adding up and handing round: 7 turns each."),
        (200, "nearly: that is the limit for very many ranks", "2(N - 1)/N, for N = 8."),
    ),
    Number(
        "milliseconds",
        17.64,
        "alpha for each turn, and 175 MB at 10 GB/s, that is 10 MB in a millisecond.",
        within=1e-4,
    ).with_mistakes(
        (17.5, "the bytes alone", "14 messages cost alpha each: 10 microseconds are 0.01 ms."),
        (10.14, "with the bytes of the vector", "Each rank sends the megabytes that you have just calculated."),
        (17.51, "with a single alpha", "Each of the 14 turns costs one."),
        (31.5, "alpha is a hundred times too large", "10 microseconds are 0.01 ms."),
        (0.01764, "that is in seconds", "1 s is 1,000 ms."),
    ),
    Number("efficiency", 100 / 117.64, "The compute, divided by compute and communication.", within=5e-3).with_mistakes(
        (0.1764, "that is the communication, as a part of the compute", "Compute, as a part of the whole step."),
        (17.64 / 117.64, "that is the part that is lost", "The part that remains."),
        (1.1764, "the wrong way round", "Below 1: the step takes longer than its compute."),
        (85, "that is in percent", "As a part of 1."),
    ),
)


@exercise("7.4.2", "A ring, timed")
def ring_timed(ring_seconds: Callable[..., Any]) -> None:
    """`ring_seconds(size, ranks, alpha, bandwidth)`: turns and bytes."""
    needs_function("ring_seconds", ring_seconds)
    alone = number("ring_seconds", ring_seconds(1e6, 1, 1e-3, 1e9))
    if abs(alone) > 1e-12:
        raise NotYet(f"for 1 rank you get {alone:g} s", "One rank sends nothing to anybody: N - 1 is 0.")
    for ranks in (2, 5, 64):
        _same(
            f"for {ranks} ranks",
            number("ring_seconds", ring_seconds(1e6, ranks, 1e-3, 1e9)),
            ring(1e6, ranks, Link("", 1e-3, 1e9)),
            {
                1e-3 + 2 * (ranks - 1) / ranks * 1e-3: ("alpha is there once", "Each of the 2(N - 1) turns costs it."),
                2 * (ranks - 1) * 1e-3 + 1e-3: (
                    "the bytes are those of the vector",
                    "Each rank sends 2(N - 1)/N of it.",
                ),
                2 * (ranks - 1) / ranks * 1e-3: ("the bytes alone", "Add alpha for every turn."),
                2 * (ranks - 1) * 2e-3: (
                    "every turn sends the whole vector",
                    "A turn sends one piece, and there are as many pieces as ranks.",
                ),
                (ranks - 1) * 1e-3 + (ranks - 1) / ranks * 1e-3: ("half of the turns", "Adding up, and handing round."),
            },
            "alpha for each of 2(N - 1) turns, and 2(N - 1)/N of the bytes over the bandwidth.",
        )


@exercise("7.4.3", "Two levels")
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
        _same(
            f"for {nodes} x {gpus} GPUs",
            number("two_levels", two_levels(size, nodes, gpus, inside, across)),
            hierarchical(size, nodes, gpus, within, between),
            wrong,
            "A ring over the GPUs of a node, and a ring over the nodes, both of all the bytes.",
        )


@exercise("7.4.4", "The fewest GPUs")
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


def _same(where: str, value: float, right: float, known: Mapping[float, tuple[str, str]], otherwise: str) -> None:
    """Raise NotYet unless the seconds are right; name the mistake where it is a known one."""
    if abs(value - right) <= 1e-9 + 1e-6 * right:
        return
    for wrong, (what, hint) in known.items():
        if abs(value - wrong) <= 1e-6 * wrong:
            raise NotYet(f"{where} you get {value:.6g} s: {what}", hint)
    raise NotYet(f"{where} you get {value:.6g} s, and it is {right:.6g} s", otherwise)
