"""Checks of lesson 7.3, Measuring scaling."""

import random
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import expect, needs_function, number
from ddplab.checks.turns import kind_of, turn
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
    ([(0, 3)], [], "What starts at 0 and ends at 3 takes 3 milliseconds."),
    ([(0, 4)], [(2.5, 3)], "A time need not be a whole number."),
    ([(5, 10)], [(0, 3)], "Work hides a message only while that message is on its way."),
    ([(0, 4), (2, 6)], [], "Two messages at the same time are one wait."),
    ([(0, 2), (4, 6)], [], "Between two messages nothing is on its way."),
    ([(0, 10)], [(1, 4), (3, 6)], "Two pieces of work at the same time hide no more than one."),
    ([(0, 10)], [(1, 8), (2, 3)], "A short piece of work may lie inside a longer one, and end before it."),
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


@exercise("7.3.3", "How many are worth it?")
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


# your turn


def _returned(returned: Any, *_: Any) -> Any:
    """What came back; of more than one number only what kind of thing it is, for the lesson goes on with a number."""
    return kind_of(returned) if isinstance(returned, list | tuple) or getattr(returned, "ndim", 0) else returned


class _Device:
    """A device whose clock is simulated: a call of `step` only asks, in 1 ms, and `wait` takes what was asked for."""

    def __init__(self, *costs: int) -> None:
        self.costs, self.now, self.asked, self.calls = costs, 0, 0, 0

    def step(self) -> None:
        self.now, self.asked = self.now + 1, self.asked + self.costs[min(self.calls, len(self.costs) - 1)]
        self.calls += 1

    def wait(self) -> None:
        self.now, self.asked = self.now + self.asked, 0

    def clock(self) -> int:
        return self.now

    def given(self, steps: int) -> tuple:
        return self.step, self.wait, self.clock, steps


def _quickest(step: Callable, wait: Callable, clock: Callable, steps: int, first: int = 3, leave: int = 3,
              of: Callable = min, waits: bool = True) -> float:  # fmt: skip
    """first: steps more than `steps`. leave: so many times do not count. of: what becomes of the others."""
    times = []
    for _ in range(first + steps):
        start = clock()
        step()
        if waits:
            wait()
        times.append(clock() - start)
    return of(times[leave:])


def _waits_first(step: Callable, wait: Callable, clock: Callable, steps: int) -> float:
    return _quickest(wait, step, clock, steps)


def _reading(step: Callable, wait: Callable, clock: Callable, steps: int) -> float:
    _quickest(step, wait, clock, 1)
    readings = [clock()]
    for _ in range(steps - 1):
        step(), wait()
    return readings[0]


turn(
    "7.3.c",
    "A stopwatch for a step",
    _quickest,
    {
        "5 steps, now and then busy": lambda: _Device(99, 49, 49, 9, 29, 11, 19, 14).given(5),
        "4 steps, the first does nothing": lambda: _Device(1, 99, 59, 29, 24, 24, 19).given(4),
    },
    look=lambda returned, step, *_: ["a list" if isinstance(returned, list) else returned, step.__self__.calls],
    heads=("quickest", "calls"),
    mistakes=[
        (partial(_quickest, waits=False), "only the asking was timed",
         "`wait()` between `step()` and the second look at the clock."),
        (partial(_quickest, first=0, leave=0), "the first steps count, and no others were made for them",
         "3 steps that do not count, and `steps` more."),
        (partial(_quickest, leave=0), "the first steps count too", "Leave out 3 times."),
        (partial(_quickest, first=0), "there are 3 steps too few", "3 steps that do not count, and `steps` more."),
        (partial(_quickest, of=max), "that is the slowest of them", "What disturbs a step can only add: the quickest."),
        (partial(_quickest, of=lambda times: sum(times) / len(times)), "that is the mean",
         "What disturbs a step can only add: the quickest."),
        (partial(_quickest, of=sum), "that is all of them together", "The quickest one."),
        (partial(_quickest, leave=4), "the first step that counts is not in it, or pays for those before",
         "Leave out 3, and `wait()` for them before you first look at the clock."),
        (_waits_first, "what a step asked for is waited for in the next one",
         "`wait()` between `step()` and the second look at the clock."),
        (partial(_quickest, of=list), "those are all the times", "The quickest of them."),
        (partial(_quickest, of=lambda times: sorted(times)[len(times) // 2]), "that is the median",
         "What disturbs a step can only add: the quickest."),
        (partial(_quickest, leave=0, of=lambda times: sorted(times)[3]), "the three quickest are left out",
         "Leave out the first three, while the times are still in their order."),
        (partial(_quickest, of=lambda times: times[0]), "that is the first of those that count",
         "A look at the clock before each of them, and the quickest of all."),
        (partial(_quickest, of=lambda times: -max(times)), "the two looks at the clock are the wrong way round",
         "The later time, less the earlier one."),
        (partial(_quickest, first=2), "there is a step too few", "3 steps that do not count, and `steps` more."),
        (partial(_quickest, first=4), "there is a step too many", "3 steps that do not count, and `steps` more."),
        (_reading, "that is a time by the clock, not how long a step took", "Take away the time before it."),
        (partial(_quickest, of=lambda times: times[-1]), "that is the last one", "The quickest of all."),
    ],
    hints={"'method' and 'method'": "`clock` is the function, `clock()` the time."},
    otherwise="For each step: look at the clock, `step()`, `wait()`, look again. `min` of all but the first 3.",
)  # fmt: skip


turn(
    "7.3.b",
    "What Amdahl leaves",
    lambda share, ranks: 1 / (share + (1 - share) / ranks),
    {
        f"{share:.0%} not divided, {ranks:,} ranks": partial(tuple, (share, ranks))
        for share, ranks in ((0.0, 8), (1.0, 8), (0.5, 4), (0.2, 8), (0.25, 2), (0.1, 8), (0.1, 1024))
    },
    look=_returned,
    heads=("speed-up",),
    mistakes=[
        (lambda share, ranks: share + (1 - share) / ranks, "that is what is left of the time",
         "The speed-up is the old time divided by the new one."),
        (lambda share, ranks: 1 / (share / ranks + 1 - share), "the wrong part is divided",
         "`share` stays; the rest is divided."),
        (lambda share, ranks: share + (1 - share) * ranks,
         "a mean of two speed-ups, 1 and `ranks`, which is right for a job that grows with the ranks",
         "Here the work stays. What adds up is times: which time is left?"),
        (lambda share, ranks: (1 - share) * ranks, "the part that stays is not in it", "It takes its time as before."),
        (lambda share, ranks: ranks, "the part that stays is not in it, and all is divided",
         "`share` of the time stays; the rest is divided."),
        (lambda share, ranks: ranks / (1 + share * ranks), "the part that stays is counted twice",
         "What is divided is only the rest, 1 - share."),
        (lambda share, ranks: 1 / (share + 1 - share / ranks), "only `share` is divided, and the rest stays",
         "The rest is `1 - share`: in parentheses it is divided as a whole."),
        (lambda share, ranks: 1 / (share + (1 - share) * ranks), "the rest is multiplied by the ranks",
         "They share it: each has less to do."),
        (lambda share, ranks: 1 / share if share else ranks, "that is the limit, which only very many ranks come near",
         "On `ranks` of them the rest takes its time as well."),
        (lambda share, ranks: min(ranks, 1 / share) if share else ranks,
         "the smaller of two limits, `ranks` and 1 / `share`", "Both parts take their time: it is less than either."),
        (lambda share, ranks: 1 / (share * ranks + 1 - share), "that is the efficiency", "How many times as fast?"),
        (lambda share, ranks: 1 / (share + (1 - share) / 8), "right on 8 ranks only",
         "`ranks` says how many there are."),
    ],
    hints={"division by zero": "`share` may be 0. What is left of the time is a sum: put it into parentheses."},
    otherwise="Take 1 for the time on one rank. Which time is left?",
)  # fmt: skip


def _parts(data: float, forward: float, backward: float, optimiser: float, exposed: float, between: float) -> dict:
    return dict(data=data, forward=forward, backward=backward, optimiser=optimiser, exposed=exposed, between=between)


SUSPECTS = {  # what is slow, and the parts of each rank
    "slow to read": [_parts(5, 12, 22, 2, 54, 1), _parts(56, 13, 21, 2, 3, 1)],
    "slow in forward": [_parts(3, 80, 20, 1, 1, 1), _parts(3, 9, 20, 2, 71, 1), _parts(4, 9, 19, 1, 72, 1)],
    "slow in the optimiser": [_parts(4, 10, 20, 2, 63, 1), _parts(3, 9, 20, 64, 2, 2)],
    "busy between the phases":
     [_parts(3, 10, 20, 1, 65, 1), _parts(3, 10, 21, 2, 60, 4), _parts(3, 9, 20, 1, 4, 63)],
    "a little slow everywhere":
     [_parts(10, 10, 20, 1, 59, 0), _parts(20, 40, 30, 9, 1, 0), _parts(3, 3, 36, 1, 57, 0)],
    "a short step": [_parts(0.4, 1, 1, 0.4, 6, 0), _parts(0.4, 1, 1, 0.4, 6, 0), _parts(5, 1, 1, 0.8, 1, 0)],
    "all busy between the phases":
     [_parts(1, 2, 2, 1, 14, 80), _parts(1, 3, 5, 1, 10, 80), _parts(2, 4, 11, 1, 2, 80)],
    "all slow to read": [_parts(80, 3, 4, 1, 12, 0), _parts(80, 2, 4, 1, 13, 0), _parts(80, 3, 5, 1, 11, 0)],
    "slow in turn": [_parts(30, 2, 4, 1, 63, 0), _parts(31, 1, 5, 1, 62, 0), _parts(29, 2, 4, 1, 64, 0)],
    "nobody": [_parts(2, 2, 5, 1, 11, 0), _parts(2, 3, 5, 1, 10, 0), _parts(2, 2, 2, 1, 14, 0)],
    "nobody, in a long step":
     [_parts(20, 300, 500, 40, 140, 0), _parts(20, 330, 550, 40, 60, 0), _parts(20, 320, 520, 40, 100, 0)],
}  # fmt: skip


def _most(ranks: list[dict[str, float]], *names: str, pick: Callable = max) -> int:
    return pick(range(len(ranks)), key=lambda rank: sum(ranks[rank][name] for name in names))


def _gap(ranks: list[dict[str, float]]) -> float:
    waits = [parts["exposed"] for parts in ranks]
    return max(waits) - min(waits)


def _apart(ranks: list[dict[str, float]]) -> bool:
    return _gap(ranks) > sum(ranks[0].values()) / 2


def _if_apart(names: Callable[[list], Any], apart: Callable[[list], bool] = _apart) -> Callable[[list], Any]:
    return lambda ranks: names(ranks) if apart(ranks) else None


def _waits_less(limit: Callable[[list[float], float], float]) -> Callable[[list], Any]:
    """Name who waits least where the longest wait and the shortest are more than `limit(waits, a whole)` apart."""
    waits = lambda ranks: [parts["exposed"] for parts in ranks]  # noqa: E731
    apart = lambda ranks: max(waits(ranks)) - min(waits(ranks)) > limit(waits(ranks), sum(ranks[0].values()))  # noqa: E731
    return _if_apart(_least, apart)


def _least(ranks: list[dict[str, float]]) -> int:
    return _most(ranks, "exposed", pick=min)


ANYWHERE = "A rank may be late in any phase. Which entry shows it, whatever the phase?"
TOO_FEW = [  # of the entries: who has most of these is not who is slow
    (("data",), "you name the one with the longest `data`", ANYWHERE),
    (("backward",), "you name the one with the longest `backward`", ANYWHERE),
    (("between",), "you name the one with the longest `between`", ANYWHERE),
    (("optimiser",), "you name the one with the longest `optimiser`", ANYWHERE),
    (("data", "forward", "backward", "optimiser"), "the time between the phases is not looked at",
     "A rank may be late there too. Which entry shows it, whatever the phase?"),
    (("data", "forward", "backward", "between"), "the optimiser is not looked at",
     "A rank may be late there too. Which entry shows it, whatever the phase?"),
    (("data", "forward", "backward"), "neither the optimiser nor the time between the phases is looked at",
     "A rank may be late there too. Which entry shows it, whatever the phase?"),
    (("forward", "backward"), "only forward and backward are looked at", ANYWHERE),
    (("data", "forward", "backward", "optimiser", "exposed", "between"), "you name the one with the longest step",
     "In the long run all take equally long; what differs is what they fill it with."),
]  # fmt: skip
NAMED_WRONG: list[tuple[Callable[[list], Any], str, str]] = [
    (lambda ranks: _most(ranks, "exposed"), "you name the one that waits most",
     "Waiting for whom? Who is late finds all the others there."),
    *[(partial(lambda ranks, names: _most(ranks, *names), names=names), what, hint) for names, what, hint in TOO_FEW],
    (lambda ranks: max(range(len(ranks)), key=lambda rank: max(ranks[rank].values())),
     "you name the one with the longest entry of all", "Waiting is an entry too, and no work."),
    (lambda ranks: (_least(ranks), ranks[_least(ranks)]), "its number comes with its times", "Its number alone."),
    (lambda ranks: _most(ranks[:2], "exposed", pick=min), "only ranks 0 and 1 are compared",
     "There may be more: `range(len(ranks))`."),
    (lambda ranks: ranks[_least(ranks)]["exposed"], "that is how long it waits", "Which rank is it?"),
    (lambda ranks: ranks[_least(ranks)], "those are its times", "Which rank is it?"),
    (lambda ranks: _least(ranks) + 1, "counted from one", "The first rank is rank 0."),
    (lambda ranks: [_least(ranks)], "that is a list, with the number in it", "The number alone."),
]  # fmt: skip
SOMEBODY = "; and somebody is named where nobody is slow"

turn(
    "7.3.a",
    "Who is slow?",
    _if_apart(_least),
    {where: partial(deepcopy, (ranks,)) for where, ranks in SUSPECTS.items()},  # an answer may `pop` from its own
    look=_returned,
    heads=("slow rank",),
    mistakes=[
        (_least, "somebody is named where nobody is slow",
         "Somebody always waits least. How far are the longest wait and the shortest apart?"),
        *[(_if_apart(wrong), what, hint) for wrong, what, hint in NAMED_WRONG],
        *[(wrong, what + SOMEBODY, hint) for wrong, what, hint in NAMED_WRONG],
        *[(_waits_less(lambda waits, whole, ms=ms: ms), "they must be so many milliseconds apart, in any job",
           "Much in a short step, and little in a long one: which part of the whole is it?") for ms in (3, 10, 30)],
        (_waits_less(lambda waits, whole: max(waits) / 2), "that is half of the longest wait",
         "The whole is all of a rank's entries."),
        *[(_waits_less(lambda waits, whole, part=part: part * whole), "your limit is too low: noise is named",
           "A fifth of the whole may still be noise.") for part in (0.1, 0.15)],
        *[(_waits_less(lambda waits, whole, part=part: part * whole), "your limit is too high: a slow rank is missed",
           "Half of the whole is no noise.") for part in (0.55, 0.57, 0.6, 0.65)],
        (_if_apart(_least, lambda ranks: _gap(ranks) > (sum(ranks[0].values()) - ranks[0]["between"]) / 2),
         "somebody is named where all are busy between the phases",
         "How far apart are the waits there, beside a rank's whole, the sum of all six entries?"),
        (lambda ranks: _least(ranks) if _apart(ranks) else 0,
         "where nobody is slow you say 0, or `False`, which counts as 0: the first rank", "`None` is no rank."),
        (lambda ranks: _least(ranks) if _apart(ranks) else -1, "where nobody is slow you say -1, which is not `None`",
         "In Python `waits[-1]` is the last rank's."),
        (lambda ranks: None, "nobody is ever named", "Is there a `return`? And half of the whole is no noise."),
        (_if_apart(_least, lambda ranks: not _apart(ranks)), "`None` and the number are the wrong way round",
         "Far apart: somebody is slow."),
        (_if_apart(_least, lambda ranks: max(parts["exposed"] for parts in ranks) > sum(ranks[0].values()) / 2),
         "somebody is named wherever a wait is long", "Where all wait as long, nobody is slow: how far apart?"),
        (_if_apart(_least, lambda ranks: min(parts["exposed"] for parts in ranks) < sum(ranks[0].values()) / 2),
         "somebody is named wherever a wait is short", "Where nobody waits, nobody is slow: how far apart are they?"),
    ],
    otherwise="The smallest value of one entry, where it is far enough from the largest.",
)  # fmt: skip
