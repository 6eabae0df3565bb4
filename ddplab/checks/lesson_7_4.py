"""Checks of lesson 7.4, What a step costs."""

from collections.abc import Callable
from typing import Any

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, needs_function, number, numbers, same_seconds
from ddplab.course.plan import Link, ring

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
        same_seconds(
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
