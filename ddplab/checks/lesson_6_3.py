"""Checks of lesson 6.3, When a rank dies."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, needs_function, numbers, on_cpu

VICTIM = ("that one lost a connection, it is a victim", "Whose message does not say `by peer`?")


# Whose traceback, which exit code, how many GB on GPU 0, how many layers without a gradient.
numbers(
    "6.3.1",
    "Read the wreckage",
    Number("guilty_rank", 2, "Whose message does not say `by peer`?").with_mistakes(
        (0, *VICTIM),
        (1, *VICTIM),
        (3, *VICTIM),
    ),
    Number("exit_code", -9, "It is in the text below the cell that sends the signal.").with_mistakes(
        (9, "that is the number of the signal", "Look at the sign in the lesson."),
        (-6, "that is SIGABRT, by which a library ends its own process", "Linux sends SIGKILL."),
        (1, "that is what a Python exception leaves", "A killed process raises none."),
    ),
    Number(
        "gigabytes", 16, "One copy for each rank that loads, all on the device that the file remembers."
    ).with_mistakes(
        (2, "that is rank 0's own copy", "Where do the other seven ranks put theirs?"),
        (14, "those are the copies of the others", "Rank 0 loads one too."),
        (0, "nothing would be left to load", "The file remembers the device it was saved from."),
    ),
    Number("layers", 2, "Parameters 0 and 1 are the first layer's.").with_mistakes(
        (4, "those are the parameters", "A layer has two: its weight and its bias."),
    ),
)


# ------------------------------------------------------------------ 6.3.2

WORKS = ([3, 4], [0, 7], [5, ValueError("a bad row")], [KeyError("label"), 1, 2], [OSError("disk"), OSError("disk")])


def _work_together(everybody: Callable[..., Any], works: list[Any]) -> Any:
    mine = works[dist.get_rank()]

    def work() -> Any:
        if isinstance(mine, Exception):
            raise mine
        return mine

    return everybody(work)


@exercise("6.3.2", "One fails, all know")
def one_fails_all_know(everybody: Callable[..., Any]) -> None:
    """`everybody(work)` on ranks where nobody, somebody or everybody raises."""
    needs_function("everybody", everybody)
    for works in WORKS:
        raised = [rank for rank, mine in enumerate(works) if isinstance(mine, Exception)]
        where = f"when rank {raised[0]} of {len(works)} raises" if len(raised) == 1 else "when all ranks raise"
        where = where if raised else f"when the ranks return {works[0]} and {works[1]}"
        got = on_cpu(_work_together, everybody, works, size=len(works))
        right = [None] * len(works) if raised else works
        for rank, (answer, wanted) in enumerate(zip(got, right, strict=True)):
            if answer == wanted and (answer is None) == (wanted is None):
                continue
            if not raised and answer is None:
                hint = "0 is a number too: ask `is None`." if works[rank] == 0 or 0 in works else "Is there a `return`?"
                raise NotYet(f"{where}, rank {rank} gets None", hint)
            if raised:
                hint = "Each rank has to learn how it went on the others, with a collective that all of them call."
                raise NotYet(f"{where}, rank {rank} gets {answer!r} instead of None", hint)
            raise NotYet(f"{where}, rank {rank} gets {answer!r}", "Each rank gets its own number.")
