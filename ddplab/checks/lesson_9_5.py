"""Checks of lesson 9.5, A guide: the script that the learner patches is run, and its lights are read."""

import functools
from collections.abc import Callable
from typing import Any

from ddplab.checks import NotFilledIn, NotYet, exercise
from ddplab.checks.common import needs_function
from ddplab.course.guide import Board, lines_of, patched, review, the_guide
from ddplab.run import RankError

TRIES: list[str] = []  # what the learner's tries came to, in this notebook
RED: list[list[str]] = []  # the lights that were red in the newest of them
SHOWN = 6  # how many of the newest

HINTS = {
    "processes": "torchrun has started a process for each rank already. Need the script start more?",
    "samples": "Each rank makes its images itself, with random numbers of its own. What would make them the same?",
    "order": "As the guide has it this light is green. Who shares out the samples, and who tells it the epoch?",
    "loss": "`total` is what this rank has seen. What adds up what all have, and who has to call it?",
    "rate": "How many updates does *this* run make? And who tells the scheduler that one is over?",
    "plain": "As the guide has it this light is green. Whose names are in the file?",
    "half": "While it is written, half a file has the name of the whole one.",
    "restart": "Which epoch does the file name, and with which does a restart go on?",
    "end": "What changes with every update, and is not in the file, or is not loaded from it?",
}
MISSING = {  # where one of these is found, and not what the hint above is about
    "0": "No rank trains. Does the script call `train`, and with its rank?",
    "no file": "At `path` lies nothing. Who gives the file that name?",
    "none": "A restart fails. Does the file hold all that the script looks for, and do all ranks go the same way?",
}


@functools.cache
def _as_given() -> Board:
    board = review(the_guide)
    board.tries = [f"as the guide has it: {board.score}"]
    return board


def _tried(said: str) -> list[str]:
    if not TRIES or TRIES[-1] != said:
        TRIES.append(said)
    return [f"try {n}: {it}" for n, it in enumerate(TRIES, 1)][-SHOWN:]


@exercise("9.5.a", "The guide, reviewed", blank=lambda: _as_given())
def reviewed(guide: Callable[..., Any]) -> Board:
    """Content when all lights are green, however the script is written. Each try is noted below the lights."""
    needs_function("guide", guide)
    if patched(guide) == 0:
        raise NotFilledIn
    try:
        board = review(guide)
    except RankError as error:
        _tried(f"{error.type_name or 'it waits for ever'}, with {lines_of(patched(guide))} patched")
        raise
    board.before, board.tries = (RED or [_as_given().red])[-1], _tried(board.score)
    RED[:] = [board.red]
    if red := board.red:
        first = board[red[0]]
        hint = MISSING.get(first.found.partition(":")[0], HINTS[red[0]])
        raise NotYet(f"{len(red)} of {len(board.lights)} are red; {first.name}: {first}", hint, board)
    return board
