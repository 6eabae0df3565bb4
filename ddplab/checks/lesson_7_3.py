"""Checks of lesson 7.3, Measuring scaling."""

import operator
import random
from collections.abc import Callable
from typing import Any

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import expect, kind, needs_function, number
from ddplab.course.timeline import Row, exposed, hidden, length

Spans = list[tuple[float, float]]


@exercise("7.3.1", "Amdahl, backwards")
def amdahl_backwards(share: Callable[..., Any]) -> None:
    """`share(alone, together, ranks)` must undo Amdahl's law, on 2 ranks and on more."""
    needs_function("share", share)
    for alone, together, ranks, wanted in ((80, 50, 2, 0.25), (100, 30, 8, 0.2), (60, 15, 4, 0.0), (7, 7, 4, 1.0)):
        speedup = alone / together
        known = {
            speedup: ("that is the speed-up", "Which share of the step explains it?"),
            speedup / ranks: ("that is the efficiency", "Solve Amdahl's formula for the share."),
            1 - speedup / ranks: ("1 less the efficiency is another thing", "Solve Amdahl's formula for the share."),
            together / alone: ("that is what is left of the time", "1 / ranks of it would be there in any case."),
            together / alone - 1 / ranks: (
                "nearly: that share is taken of too much",
                "With a share of 1 nothing becomes faster. Put in 7, 7 and 4: does 1 come out?",
            ),
            2 * (together / alone - 0.5): ("that formula holds for 2 ranks", "`ranks` must be in it."),
            (speedup - 1 / ranks) / (1 - 1 / ranks): (
                "you have the two times the wrong way round",
                "`alone` is the longer one.",
            ),
            1 - wanted: ("that is the share that *is* divided", "The other one is asked for."),
        }
        call = f"share({alone}, {together}, {ranks})"
        expect(call, share(alone, together, ranks), wanted, known, "1 / speed-up = share + (1 - share) / ranks.", 1e-6)


CASES: list[tuple[Spans, Spans, str]] = [  # what goes wrong where a case is the first to fail
    ([(0, 10)], [(2, 5)], "Of the message's time, take away what the rank computed."),
    ([(5, 10)], [(0, 3)], "Work hides a message only while that message is on its way."),
    ([(0, 4), (2, 6)], [], "Two messages at the same time are one wait."),
    ([(0, 2), (4, 6)], [], "Between two messages nothing is on its way."),
    ([(0, 10)], [(1, 4), (3, 6)], "Two pieces of work at the same time hide no more than one."),
    ([(0, 2), (4, 6)], [(1, 5)], "One piece of work may cover the end of a message and the begin of the next."),
    ([(5, 10)], [(0, 20)], "A message that is hidden altogether counts as 0."),
    ([(8, 9), (0, 3)], [(3, 4), (2, 8.5)], "The lists are in no particular order."),
    ([], [(0, 1)], "No message, no wait."),
]


@exercise("7.3.2", "What is exposed?")
def what_is_exposed(exposed_time: Callable[..., Any]) -> None:
    """`exposed_time(messages, work)` must agree with the timeline's own arithmetic, by hand and at random."""
    needs_function("exposed_time", exposed_time)
    for messages, work, hint in CASES:
        _compare_exposed(exposed_time, messages, work, hint)
    draw = random.Random(0)
    for _ in range(50):
        messages, work = ([_span(draw) for _ in range(draw.randint(1, 3))] for _ in range(2))
        _compare_exposed(exposed_time, messages, work, "Draw the two lists, one above the other.")


def _span(draw: random.Random) -> tuple[float, float]:
    start = draw.randint(0, 15)
    return start, start + draw.randint(1, 6)


def _compare_exposed(exposed_time: Callable[..., Any], messages: Spans, work: Spans, hint: str) -> None:
    rows = [Row(kind, "", *span, "") for kind, all in (("communication", messages), ("compute", work)) for span in all]
    wanted, call = length(exposed(rows)), f"exposed_time({messages}, {work})"
    answer = number(call, exposed_time(list(messages), list(work)))
    if abs(answer - wanted) < 1e-6:
        return
    if answer < 0:
        raise NotYet(f"`{call}` is {answer:g}, and no time is negative", hint)
    if abs(answer - length(hidden(rows))) < 1e-6 and answer:
        raise NotYet(f"`{call}` is {answer:g}: that is what is hidden", "Exposed is the rest of the messages' time.")
    raise NotYet(f"`{call}` is {answer:g}, and it should be {wanted:g}", hint)


def _parts(data: float, forward: float, backward: float, exposed: float, between: float) -> dict[str, float]:
    return dict(data=data, forward=forward, backward=backward, exposed=exposed, between=between)


SUSPECTS = [  # where the slow rank is slow, the parts, and its number
    ("slow to read", [_parts(3, 10, 20, 62, 1), _parts(60, 11, 19, 5, 1)], 1),
    ("slow in forward", [_parts(3, 80, 20, 2, 1), _parts(3, 9, 20, 73, 1), _parts(4, 9, 19, 73, 1)], 0),
    ("busy between the phases", [_parts(3, 10, 30, 56, 1), _parts(3, 10, 21, 65, 1), _parts(3, 9, 20, 7, 61)], 2),
    ("a little slow everywhere", [_parts(40, 10, 20, 30, 0), _parts(20, 30, 45, 5, 0), _parts(3, 9, 60, 28, 0)], 1),
]


@exercise("7.3.3", "Who is slow?")
def who_is_slow(slow_rank: Callable[..., Any]) -> None:
    """`slow_rank(ranks)` must find the rank that waits least, wherever its time goes."""
    needs_function("slow_rank", slow_rank)
    for where, ranks, wanted in SUSPECTS:
        answer = slow_rank([dict(parts) for parts in ranks])
        case = f"with a rank that is {where},"
        try:
            rank = operator.index(answer)  # a whole number of Python's, NumPy's or torch's
        except TypeError:
            rank = None
        if isinstance(answer, bool) or rank is None:
            hint = "0 is the first rank. Is there a `return`?"
            raise NotYet(f"`slow_rank` gives {kind(answer)}, not the number of a rank", hint)
        answer = rank
        if answer == wanted:
            continue
        if not 0 <= answer < len(ranks):
            raise NotYet(f"`slow_rank` gives {answer}, and there are {len(ranks)} ranks", "The first one is rank 0.")
        if ranks[answer]["exposed"] == max(parts["exposed"] for parts in ranks):
            hint = "Waiting for whom? Who is late finds all others there."
            raise NotYet(f"{case} you name the one that waits most", hint)
        longest = [
            name for name in ("data", "forward", "backward") if ranks[answer][name] == max(p[name] for p in ranks)
        ]
        seen = f": its {longest[-1]} is the longest" if longest else ""
        hint = "A long phase alone is no proof. Which entry tells on everybody?"
        raise NotYet(f"{case} you name rank {answer}{seen}, but others wait longer for rank {wanted}", hint)


@exercise("7.3.4", "How many are worth it?")
def how_many(most: Callable[..., Any]) -> None:
    """`most(compute, message, efficiency)` must be the largest number of ranks that is efficient enough."""
    needs_function("most", most)
    for compute, message, efficiency, wanted in (
        (80, 10, 0.5, 8), (80, 10, 0.65, 4), (90, 1, 0.29, 220), (10, 20, 0.5, 1), (16, 16, 0.5, 1), (64, 16, 0.5, 4),
    ):  # fmt: skip
        answer, call = most(compute, message, efficiency), f"most({compute}, {message}, {efficiency})"
        exact = compute * (1 / efficiency - 1) / message
        known = {
            exact: ("not a whole number of ranks", "Of a part of a rank you cannot rent any."),
            wanted + 1: ("one too many", "With that number, is it still efficient enough?"),
            wanted - 1: ("one too few", "Exactly `efficiency` is efficient enough."),
            0.0: ("nobody works", "One rank by itself sends nothing: its efficiency is 1, whatever a message takes."),
            compute / message / efficiency: (
                "that many ranks are not efficient enough",
                "The efficiency is compute / (ranks * the time of a step).",
            ),
        }
        hint = "Try 2 ranks, 3, 4, … as long as they are efficient enough. What is the time of a step on each?"
        expect(call, answer, wanted, known, hint, 1e-6)
