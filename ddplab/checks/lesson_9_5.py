"""Checks of lesson 9.5, A guide: the script that the learner patches is run, and its lights are read."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from ddplab.checks import NotFilledIn, NotYet, exercise
from ddplab.checks.common import needs_function
from ddplab.course.guide import Board, ended_by, lines_of, patched, review, the_guide
from ddplab.run import RankError

TRIES: list[str] = []  # what the learner's tries came to, in this notebook
NEWEST: list[Board] = []  # the newest of them that ran
SHOWN = 6  # how many of the newest

HINTS = {
    "processes": "torchrun has started a process for each rank already. Need the script start more?",
    "samples": "Each rank makes its images itself, with random numbers of its own. What would make them the same?",
    "order": "As the guide has it this light is green. Who shares out the samples, and who tells it the epoch?",
    "loss": "`total` is what this rank has seen. What adds up what all have, and who has to call it?",
    "rate": "How many updates does this run make? And who tells the scheduler, after each, that it is over?",
    "plain": "As the guide has it this light is green. Whose names are in the file?",
    "half": "While it is written, half a file has the name of the whole one.",
    "restart": "Which epoch does the file name, and with which does a restart go on?",
    "end": "What changes with every update, and is not in the file, or is not loaded from it?",
}
MISSING = {  # where one of these is found, and not what the hint above is about
    "0": "No rank trains. Does the script call `train`, and with its rank?",
    "none through DDP": "The ranks train, but not through DDP. Who is called with `x`?",
    "no file": "At `path` lies nothing. Who gives the file that name?",
    "nothing to read": "For a moment no file has the name `path`, where the light looks, and a file with that name may "
    "be half written later. A rename can take the old one's place by itself.",
    "rank 0 saves none": "The light kills rank 0 as it writes. Who writes in your script?",
    "none": "A restart fails. Does the file hold all that the script looks for, and do all ranks go the same way?",
}
LATE = "It comes down, but too late. How many updates does this run make? The last is a step before the schedule's end."
ASLEEP = "An update at a rate of 0 changes nothing. Let the rate come down step by step, until the last update."


@functools.cache
def _as_given() -> Board:
    board = review(the_guide)
    board.tries = f"Green as the guide has it: {board.score.partition(' ')[0]} of {len(board.lights)}"
    return board


def _tried(said: str) -> str:
    if not TRIES or TRIES[-1] != said:
        TRIES.append(said)
    return f"Green in your tries: {'… ' * (len(TRIES) > SHOWN)}{' · '.join(TRIES[-SHOWN:])}"


@exercise("9.5.a", "The guide, reviewed", blank=lambda: _as_given())
def reviewed(guide: Callable[..., Any]) -> Board:
    """Content when all lights are green, however the script is written. Each try is noted below the lights."""
    needs_function("guide", guide)
    if patched(guide) == 0:
        raise NotFilledIn
    try:
        board = review(guide)
    except RankError as error:
        tries = _tried(f"{ended_by(error)} ({lines_of(patched(guide))})")
        of = "your last try that did" if NEWEST else "the guide as it was"
        stale = f"This try has not come to its end, so it has no lights. Here are those of {of}:"
        error.picture = dataclasses.replace((NEWEST or [_as_given()])[-1], before=None, tries=tries, stale=stale)
        raise
    board.before, board.tries = (NEWEST or [_as_given()])[-1].red, _tried(board.score)
    NEWEST[:] = [board]
    if red := board.red:
        first = board[red[0]]
        hint = MISSING.get(first.found.partition(":")[0], HINTS[red[0]])
        if red[0] == "rate" and "again" not in first.found and "100%" not in first.found:
            hint = ASLEEP if "of 0" in first.found else LATE
        lights = f"{len(red)} of {len(board.lights)} lights {'is' if len(red) == 1 else 'are'} red"
        raise NotYet(f"{lights}; {first.name}: {first}", hint, board)
    return board
