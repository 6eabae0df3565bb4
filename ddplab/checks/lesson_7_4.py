"""Checks of lesson 7.4, What a step costs."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import kind, needs_function, number
from ddplab.checks.turns import turn
from ddplab.course.plan import Link, ring

SIZES = (2**12, 2**18, 2**23)


@exercise("7.4.1", "Two numbers from timings")
def two_numbers(two_numbers: Callable[..., Any]) -> None:
    """`two_numbers(timings)`: the alpha and the bandwidth that timings (ranks, bytes, seconds) come from."""
    needs_function("two_numbers", two_numbers)
    for alpha, bandwidth, worlds in ((1e-5, 1e9, (2,)), (2e-4, 5e9, (4,)), (5e-5, 2e9, (2, 4, 8))):
        link = Link("", alpha, bandwidth)
        timings = [(ranks, size, ring(size, ranks, link)) for ranks in worlds for size in SIZES]
        got = two_numbers(list(timings))
        try:
            first, second = (number("two_numbers", it) for it in got)
        except (TypeError, ValueError):
            hint = "Two numbers: alpha, bandwidth. Is there a `return`?"
            raise NotYet(f"`two_numbers` gives {kind(got)}, not two numbers", hint) from None
        _judge_two(first, second, alpha, bandwidth, timings, f"on {' and '.join(map(str, worlds))} ranks")


def _judge_two(first: float, second: float, alpha: float, bandwidth: float, timings: list, where: str) -> None:
    def near(value: float, wanted: float, within: float = 1e-3) -> bool:
        return abs(value - wanted) <= within * wanted

    if near(first, alpha) and near(second, bandwidth):
        return
    ranks, _, shortest = timings[0]
    if near(first, bandwidth) and near(second, alpha):
        raise NotYet(f"{where}, the two numbers are swapped", "alpha first.")
    if near(second, 1 / bandwidth):
        raise NotYet(f"{where}, the second number is the seconds of a byte", "The bandwidth is the bytes of a second.")
    if near(first, 2 * (ranks - 1) * alpha, 0.01):
        raise NotYet(f"{where}, your alpha is that of all turns together", "A ring takes 2(N - 1) turns.")
    if near(first, shortest) or near(first, shortest / 2 / (ranks - 1)):
        hint = "Its bytes take time too. Two rows make two equations."
        raise NotYet(f"{where}, your alpha is the time of the smallest message", hint)
    if near(first, alpha) and near(second, bandwidth / (2 * (ranks - 1) / ranks), 0.01):
        hint = "Each rank sends 2(N - 1)/N of them."
        raise NotYet(f"{where}, the bytes of your bandwidth are those of the vector", hint)
    raise NotYet(
        f"{where}, you get {first:.4g} s and {second:.4g} bytes a second; it is {alpha:g} and {bandwidth:g}",
        "Put your two numbers into the equation of a row: do its seconds come out? (And is A in `float64`?)",
    )


# your turn


def _returned(returned: Any, *_: Any) -> Any:
    return returned


def _ring(size: float, ranks: int, turns: Callable = lambda n: 2 * (n - 1), sent: Callable | None = None) -> tuple:
    return turns(ranks), (sent or (lambda s, n: 2 * (n - 1) * s / n))(size, ranks)


turn(
    "7.4.a",
    "Any ring",
    _ring,
    {
        f"{size:,} bytes, {ranks} rank{'s' * (ranks > 1)}": partial(tuple, (size, ranks))
        for size, ranks in ((1000, 2), (1000, 4), (640, 64), (800, 8), (500, 1))
    },
    look=_returned,
    heads=("turns", "bytes sent"),
    mistakes=[
        (partial(_ring, turns=lambda n: n - 1, sent=lambda s, n: (n - 1) * s / n), "that is the first half of the ring",
         "The pieces are added up on their way round; then the sums go round as well."),
        (partial(_ring, turns=lambda n: n - 1), "the turns are those of the first half",
         "The pieces are added up on their way round; then the sums go round as well."),
        (partial(_ring, turns=lambda n: 2 * n, sent=lambda s, n: 2 * s), "a turn too many in each half",
         "A piece that has gone round N ranks passes N - 1 connections."),
        (partial(_ring, sent=lambda s, n: 2 * s), "twice the vector is the limit, for very many ranks",
         "How large is the piece of one turn, and how many turns are there?"),
        (partial(_ring, sent=lambda s, n: 2 * (n - 1) // n * s),
         "the bytes are once the vector, which is what `//` makes of 2(N - 1)/N",
         "`/` keeps the fraction: on 4 ranks it is one and a half times the vector."),
        (partial(_ring, sent=lambda s, n: 2 * s * (n > 1)), "twice the vector is the limit, for very many ranks",
         "There are as many pieces as ranks. How many of them does a rank send?"),
        (partial(_ring, sent=lambda s, n: (n - 1) * s / n), "the bytes are those of the first half of the ring",
         "A piece goes in each turn, in the second half as well."),
        (partial(_ring, turns=lambda n: 2 * n - 1, sent=lambda s, n: (2 * n - 1) * s / n),
         "there is a turn too many", "Each of the two halves has N - 1 turns."),
        (partial(_ring, turns=lambda n: n - 1, sent=lambda s, n: (n - 1) * s),
         "each rank sends its whole vector, N - 1 times",
         "In a ring one piece goes in each turn; the sums go round as well, and that takes as many turns again."),
        (partial(_ring, sent=lambda s, n: 2 * (n - 1) * s),
         "that is what all ranks send together, or the whole vector in every turn",
         "How much does one of them send? A turn sends one piece, and there are as many pieces as ranks."),
        (lambda size, ranks: _ring(size, ranks)[::-1], "the two numbers are swapped",
         "First the turns, then the bytes."),
        (partial(_ring, sent=lambda s, n: s / n), "that is one turn", "And how many turns are there?"),
        (partial(_ring, sent=lambda s, n: 2 * s / n), "that is one turn in each half", "And how many turns has each?"),
        *[(lambda size, ranks, of=of: _ring(size, ranks)[of], f"only the {what} come back", "Both: `return …, …`.")
          for of, what in enumerate(("turns", "bytes"))],
        (partial(_ring, sent=lambda s, n: s), "that is the vector itself",
         "How large is the piece of one turn, and how many turns are there?"),
        (lambda size, ranks: _ring(size, 4), "right on 4 ranks only", "`ranks` says how many there are."),
    ],
    hints={"division by zero": "With one rank there are no turns, and nothing is sent: divide by `ranks` alone."},
    otherwise="Two halves of N - 1 turns, and one of N pieces in each turn.",
)  # fmt: skip


def _bend(ranks: int, alpha: float, bandwidth: float, pieces: Callable = lambda n: n) -> float:
    return pieces(ranks) * alpha * bandwidth


turn(
    "7.4.b",
    "Where alpha and the bytes cost the same",
    _bend,
    {
        "4 ranks, alpha 1, 100 bytes/s": lambda: (4, 1.0, 100.0),
        "10 ranks, alpha 0.2, 50 bytes/s": lambda: (10, 0.2, 50.0),
        "3 ranks, alpha 0.5, 10 bytes/s": lambda: (3, 0.5, 10.0),
        "2 ranks, no alpha, 10 bytes/s": lambda: (2, 0.0, 10.0),
    },
    look=_returned,
    heads=("bytes",),
    mistakes=[
        (partial(_bend, pieces=lambda n: 1), "the ranks are not in it, as if each turn sent the whole vector",
         "In a turn goes a piece, one of `ranks`: it is the *piece* that takes as long as alpha."),
        (partial(_bend, pieces=lambda n: 2 * (n - 1)), "the alphas of all turns, and the bytes of one whole vector",
         "Both parts have the turns: in each goes a piece, one of `ranks`."),
        (partial(_bend, pieces=lambda n: n - 1), "one rank too few", "The vector is cut into `ranks` pieces."),
        (partial(_bend, pieces=lambda n: 2 * (n - 1) * n), "the alphas of all turns, beside the bytes of one piece",
         "The bytes go in as many turns: both parts have them."),
        (partial(_bend, pieces=lambda n: n / 2), "half of it", "The turns stand in both parts, and go out."),
        (partial(_bend, pieces=lambda n: 2 * n), "twice as much", "The turns stand in both parts, and go out."),
        (partial(_bend, pieces=lambda n: 1 / n), "the size of a piece is divided by the ranks once more",
         "The whole vector has `ranks` such pieces."),
        (partial(_bend, pieces=lambda n: 2 * (n - 1) / n), "twice (N - 1)/N, which is how many vectors a rank sends",
         "The turns stand in both parts, and go out."),
        (lambda ranks, alpha, bandwidth: ranks * alpha / bandwidth, "alpha is divided by the bandwidth",
         "So many bytes pass in a second: in a time of alpha, alpha times that."),
        (lambda ranks, alpha, bandwidth: ranks * bandwidth / (alpha or 1), "the bandwidth is divided by alpha",
         "So many bytes pass in a second: in a time of alpha, alpha times that."),
        (lambda ranks, alpha, bandwidth: ranks * alpha, "the bandwidth is not in it",
         "Bytes are asked for, not a time."),
    ],
    hints={"division by zero": "alpha may be 0: then it is equal from 0 bytes on."},
    otherwise="Set the two parts of the formula equal, and solve for the bytes.",
)  # fmt: skip


def _step(compute: float, buckets: Sequence[float], room: float,
          exposed: Callable = lambda b, r: max(sum(b) - r, b[-1])) -> float:  # fmt: skip
    return compute + exposed(buckets, room)


def _whole(buckets: Sequence[float], room: float, last: int = 0) -> float:
    """What is exposed where a bucket is hidden whole or not at all. last: so many of the last are exposed anyway."""
    exposed = 0.0
    for place, seconds in enumerate(buckets):
        if seconds <= room and place < len(buckets) - last:
            room -= seconds
        else:
            exposed += seconds
    return exposed


turn(
    "7.4.c",
    "What hiding leaves",
    _step,
    {
        "compute 100, buckets 10 10 10, room 60": lambda: (100, [10, 10, 10], 60),
        "compute 100, buckets 40 40 40, room 60": lambda: (100, [40, 40, 40], 60),
        "compute 100, buckets 30 30 5, room 60": lambda: (100, [30, 30, 5], 60),
        "compute 100, buckets 40 30, room 0": lambda: (100, [40, 30], 0),
        "compute 100, buckets 2 2 8, room 60": lambda: (100, [2, 2, 8], 60),
    },
    look=_returned,
    heads=("step",),
    mistakes=[
        (partial(_step, exposed=lambda b, r: sum(b)), "nothing is hidden", "While the backward pass computes, `room`."),
        (partial(_step, exposed=lambda b, r: max(sum(b) - r, 0)), "the last bucket is hidden too",
         "It is ready only when nothing is left to compute."),
        (partial(_step, exposed=lambda b, r: sum(b) - r), "messages that are quick make the compute shorter",
         "No time that is exposed is negative; and the last bucket is exposed in any case."),
        (partial(_step, exposed=lambda b, r: b[-1]),
         "in each row nothing but the last bucket is exposed, however long the others take",
         "No more hides than `room`: what the others leave over is exposed, and the last bucket as well."),
        (partial(_step, exposed=lambda b, r: sum(max(it - r, 0) for it in b[:-1]) + b[-1]),
         "two buckets of 40 are hidden in a room of 60", "They travel one after the other, and share the room."),
        (partial(_step, exposed=lambda b, r: max(sum(b) - r, 0) + b[-1]), "the last bucket is there twice",
         "It is one of `buckets`, too."),
        (partial(_step, exposed=lambda b, r: max(sum(b) - r, b[0])), "you leave the first bucket over",
         "Which one is ready when nothing is left to compute?"),
        (partial(_step, exposed=lambda b, r: max(sum(b[1:]) - r, 0) + b[-1]),
         "the first bucket is left out, and the last one is there twice",
         "The last bucket by itself, and what the others, `buckets[:-1]`, leave over."),
        (partial(_step, exposed=lambda b, r: max(r - sum(b), b[-1])), "what is left of the room is exposed",
         "What does not fit into the room, instead: the other way round."),
        (partial(_step, exposed=lambda b, r: max(sum(b) - r, 0) + max(b)),
         "the longest bucket, and what does not fit: one bucket is there twice", "It is one of `buckets`, too."),
        (partial(_step, exposed=lambda b, r: max(sum(b) - r, max(b))), "you leave the longest bucket over",
         "Which one is ready when nothing is left to compute?"),
        (partial(_step, exposed=lambda b, r: min(sum(b) - r, b[-1])), "the smaller of the two",
         "What does not fit into `room`, and *at least* the last bucket."),
        (partial(_step, exposed=lambda b, r: 0), "no message costs anything", "Add what is exposed."),
        (partial(_step, exposed=lambda b, r: max(sum(b[:-1]) - r, 0)), "the last bucket is left out",
         "It is always exposed: add it."),
        *[(partial(_step, exposed=exposed), "either the last bucket is exposed, or what the others leave over",
           "Where both are, both count.")
          for exposed in (lambda b, r: sum(b[:-1]) - r if sum(b[:-1]) > r else b[-1],
                          lambda b, r: max(sum(b[:-1]) - r, b[-1]))],
        (partial(_step, exposed=lambda b, r: min(sum(b), r)), "what is hidden is added", "What is exposed, instead."),
        (partial(_step, exposed=lambda b, r: abs(sum(b) - r)), "room to spare makes the step longer",
         "Where all fits into `room`, only the last bucket is exposed."),
        (partial(_step, exposed=lambda b, r: sum(max(it - r, 0) for it in b)),
         "each bucket is hidden in a room of its own, the last one too",
         "They share the room; and the last one is ready only when nothing is left to compute."),
        *[(partial(_step, exposed=partial(_whole, last=last)), "a bucket of which a part does not fit is exposed whole",
           "What does not fit into `room` is exposed, and at least the last bucket: seconds, not buckets.")
          for last in (0, 1)],
        (lambda compute, buckets, room: max(compute, sum(buckets)), "all of the step can hide messages",
         "The first gradients are there only when the backward pass has begun: `room`."),
        (lambda compute, buckets, room: _step(0, buckets, room), "that is what is exposed", "The compute comes first."),
    ],
    otherwise="What does not fit into `room` is exposed, and at least the last bucket.",
)  # fmt: skip
