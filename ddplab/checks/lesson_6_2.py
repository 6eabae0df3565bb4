"""Checks of lesson 6.2, When a rank is late."""

import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, needs_function, numbers, on_cpu

# Three lines from logs, a number for each.
numbers(
    "6.2.1",
    "What torch says",
    Number("missing_rank", 5, "The key of a rank ends in its number.").with_mistakes(
        (0, "that is a part of every key", "The key of a rank ends in its number."),
        (300000, "that is how long it waited, in milliseconds", "The key of a rank ends in its number."),
    ),
    Number("started_ranks", 16, "Eight on each of two nodes.").with_mistakes(
        (8, "that is what the script believes", "Eight on each of two nodes."),
        (2, "that is the number of nodes", "Eight on each of two nodes."),
    ),
    Number("minutes", 30, "Lesson 6.2 has it, under `Waiting to begin`.").with_mistakes(
        (1, "that is the default of `launch`", "Lesson 6.2 has torch's own, under `Waiting to begin`."),
        (10, "that is NCCL's default", "This job is on gloo."),
        (1800, "those are the seconds", "Divide by 60."),
    ),
)


# ------------------------------------------------------------------ 6.2.2

LIMIT = 0.5  # seconds that a roll call may take


def _call_the_roll(missing: Callable[..., Any], late: list[int]) -> Any:
    if dist.get_rank() in late:
        time.sleep(3 * LIMIT)
        return None
    start = time.monotonic()
    try:
        answer = missing(LIMIT)
    except Exception:
        if dist.get_rank() == 0:
            raise
        return None  # torch raises there, and the exercise allows it
    return answer, time.monotonic() - start


@exercise("6.2.2", "A roll call")
def a_roll_call(missing: Callable[..., Any]) -> None:
    """`missing(seconds)` on three ranks, of which none, one or two are late."""
    needs_function("missing", missing)
    for late in ([], [2], [1, 2]):
        who = {0: "when nobody is late", 1: "when rank 2 is late", 2: "when ranks 1 and 2 are late"}[len(late)]
        answer, seconds = on_cpu(_call_the_roll, missing, late, size=3)[0]
        if answer is None:
            raise NotYet(f"{who}, `missing` returns nothing", "`[]` when all are there.")
        if not isinstance(answer, list | tuple | set) or not all(type(rank) is int for rank in answer):
            raise NotYet(f"{who}, `missing` returns {answer!r}, not a list of numbers", "Such as [1, 2].")
        if sorted(answer) != late:
            few = len(late) == 2 and len(answer) == 1
            hint = "Print torch's message: it names all of them. Which of its numbers end up in the list?"
            if few:
                hint = "Does torch's message name both? It does with `wait_all_ranks=True`. Do both get into the list?"
            raise NotYet(f"{who}, `missing` returns {list(answer)}", hint)
        if list(answer) != late:
            raise NotYet(f"{who}, `missing` returns {answer}, which is not sorted")
        if seconds > 3 * LIMIT:
            hint = "Hand `seconds` on: `timeout=datetime.timedelta(seconds=seconds)`."
            raise NotYet(f"{who}, `missing({LIMIT})` took {seconds:.1f} seconds", hint)
