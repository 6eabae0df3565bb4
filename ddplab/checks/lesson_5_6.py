"""Checks of lesson 5.6, a script to keep."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from ddplab.checks.turns import turn

CASES = {
    "nothing, on 4 ranks": lambda: ([], 4),
    "--batch 1024 --epochs 3, on 8": lambda: (["--batch", "1024", "--epochs", "3"], 8),
    "--batch 100, on 8": lambda: (["--batch", "100"], 8),
}


class _ReadHere(Exception):
    """Raised by the notebook's own command line."""


class _Own(list):
    """The notebook's own command line: what follows its first word is not to be read, as `parse_args()` would."""

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            raise _ReadHere
        return super().__getitem__(place)


def _understood(asked: Callable[..., Any], words: list[str], size: int) -> list[Any]:
    """Epochs, and samples of one rank in a step; or that the answer refuses, which it may do with any error."""
    try:
        with mock.patch.object(sys, "argv", _Own(sys.argv)):
            held = asked(list(words), size)
    except _ReadHere:
        return ["this notebook's line"]
    except SystemExit:
        return ["refused"]
    except Exception:
        if words == ["--batch", "100"]:
            return ["refused"]
        raise
    if isinstance(held, str) or not hasattr(held, "__iter__"):
        kinds = {type(None): "nothing", str: "text", int: "one number", argparse.Namespace: "all that was read"}
        return ["an error came back" if isinstance(held, Exception) else kinds.get(type(held), repr(held))]
    return [repr(it) if isinstance(it, str | float) else it for it in held]


def _asked(
    words: list[str], size: int, divide: Any = None, whole: bool = True, kind: Any = int, epochs: int = 10
) -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=kind, default=epochs)
    parser.add_argument("--batch", type=kind, default=64)
    asked = parser.parse_args(words)
    if whole and asked.batch % size:
        raise ValueError(f"--batch {asked.batch} cannot be shared out among {size} ranks")
    return asked.epochs, divide(asked.batch, size) if divide else asked.batch // size


def _typed(words: list[str], size: int, epochs: Callable[[str], Any], whole: bool) -> Any:
    return epochs(words[3]) if len(words) > 2 else 10, _asked(words, size, whole=whole)[1]


def _refusing(words: list[str], size: int, error: type[Exception], all_: bool = False) -> Any:
    if all_ or "100" not in words:
        raise error
    return _asked(words, size, whole=False)


turn(
    "5.6.a",
    "What the command line asks for",
    _asked,
    CASES,
    call=_understood,
    heads=("epochs", "samples of a rank"),
    mistakes=[
        (partial(_asked, divide=lambda batch, size: batch), "each rank takes the whole batch", "It is shared out."),
        (partial(_asked, whole=False), "8 ranks take 12 each, so the batch is one of 96, and nobody hears of it",
         "An error is better than another batch than was asked for."),
        (partial(_asked, whole=False, divide=lambda batch, size: batch / size), "a rank cannot take half a sample",
         "Raise an error where there is a rest: `%`."),
        (partial(_asked, divide=lambda batch, size: batch / size), "16.0 is no whole number, and a loader wants one",
         "`//` divides whole numbers."),
        (partial(_asked, kind=str), "what is typed is text, until somebody makes numbers of it",
         "`add_argument` has an argument `type`."),
        *((partial(_typed, epochs=become, whole=whole), *told) for whole in (True, False) for become, *told in (
            (str, "the epochs that are typed are text, until somebody makes a number of them", "`type=int`"),
            (float, "3 epochs that are typed become 3.0, and `range` wants a whole number", "`type=int`"),
            (lambda typed: 10, "there are 10 epochs, whatever is typed", "Return what the parser has read."))),
        (lambda words, size: None if "100" in words else _asked(words, size),
         "where it cannot be shared out, nothing comes back, and nobody hears of it", "`raise ValueError(…)`"),
        (lambda words, size: "no" if "100" in words else _asked(words, size),
         "where it cannot be shared out, text comes back, and nobody has to read it", "`raise ValueError(…)`"),
        (lambda words, size: ValueError() if "100" in words else _asked(words, size),
         "the error is returned, and not raised", "`raise ValueError(…)`"),
        (partial(_asked, whole=False, divide=lambda batch, size: -(-batch // size)),
         "8 ranks take 13 each, so the batch is one of 104, and nobody hears of it",
         "An error is better than another batch than was asked for."),
        (lambda words, size: argparse.Namespace(epochs=_asked(words, size)[0]), "all that was read comes back",
         "Two numbers of it: the epochs, and the samples of one rank."),
        (lambda words, size: _asked(words, size)[1], "one number comes back",
         "Two are asked for: the epochs, and the samples of one rank."),
        (lambda words, size: _asked(words, size)[::-1], "the two numbers are exchanged", "The epochs first."),
        (partial(_asked, divide=lambda batch, size: 16 if batch == 64 else batch),
         "1024 that are typed are 1024 on each rank", "`--batch` is the whole batch, typed or not: divide it."),
        (partial(_asked, epochs=None), "without a word on it there are no epochs", "`default=`"),
        (lambda words, size: sys.exit() if not words else _asked(words, size), "a line that says nothing is refused",
         "Each option has a number for it: `default=`."),
        (lambda words, size: sys.exit(), "every line is refused",
         "Does each option begin with two dashes: `\"--batch\"`?"),
        *((partial(_refusing, error=it), "what can be shared out is refused, and what cannot is not",
           "An error where `%` leaves a rest: where it is not 0.")
          for it in (ValueError, RuntimeError, AssertionError)),
        *((partial(_refusing, error=it, all_=True), "every line is refused",
           "Which condition raises it? `batch % size` is the rest.")
          for it in (ValueError, RuntimeError, AssertionError)),
        (partial(_asked, epochs=1), "without a word on it there are 10 epochs", "`default=`"),
        (lambda words, size: _asked(sys.argv[1:], size), "that reads the command line of this notebook",
         "The words are given: `parser.parse_args(words)`."),
    ],
    hints={"'NoneType' and 'int'": "`add_argument` has an argument `default`, for what is not typed.",
           "is not in list": "What is not typed has a default.",
           "unsupported operand": "`add_argument` has an argument `type`.",
           "not all arguments converted": "`add_argument` has an argument `type`.",
           "no attribute 'split'": "`words` is a list of them already.",
           "object is not subscriptable": "What was read has its numbers as attributes: `asked.batch`.",
           "'NoneType'": "Return two numbers."},
    otherwise="The epochs first, then the samples of one rank; and an error where `%` leaves a rest.",
)  # fmt: skip


HASH = hash


def _of_another_process(held: Any) -> int:
    """What `hash` says there: of text it says something else in each process."""
    return HASH((held, "there") if "'" in repr(held) else held)


def _drawn(seed: Callable[[int, int, int], int]) -> list[Any]:
    """Whether torch takes the seeds, and who draws alike: two ranks, two epochs, a rank and another's other epoch."""
    first = seed(0, 7, 1)
    if isinstance(first, float | str):
        return [f"a {type(first).__name__}"]
    with mock.patch("builtins.hash", _of_another_process):
        if seed(0, 7, 1) != first and seed(0, 7, 1) == seed(0, 7, 1):
            return ["not in another process"]
    numbers, others = ([[int(seed(run, epoch, rank)) for rank in range(64)] for epoch in range(200)] for run in (0, 1))
    for number in (numbers[0][0], numbers[-1][-1], int(seed(9, 999, 63))):
        torch.manual_seed(number)
    if seed(0, 7, 1) != seed(0, 7, 1):
        return ["no"]
    ranks = any(len(set(row)) < 64 for row in numbers)
    epochs = any(len(set(column)) < 200 for column in zip(*numbers, strict=True))
    drawn, next_run = set().union(*numbers), set().union(*others)
    runs = "yes" if numbers == others else "in part" if drawn & next_run else "no"
    across = "yes" if len(drawn) < 200 * 64 else "no"
    if across == "yes" and not (ranks or epochs):
        few = {"with many ranks": [row[:2] for row in numbers], "with many epochs": numbers[:2]}
        across = next((it for it, rows in few.items() if len(set().union(*rows)) == sum(map(len, rows))), across)
    return ["yes", *("yes" if it else "no" for it in (ranks, epochs)), across, runs]


ROOM = "1 and 11 must not become what 11 and 1 become. Leave room for each."

turn(
    "5.6.b",
    "The same numbers again",
    lambda run, epoch, rank: (run * 1000 + epoch) * 10000 + rank,
    {"200 epochs, 64 ranks": lambda: ()},
    call=_drawn,
    heads=("begun again", "two ranks", "two epochs", "across", "two runs"),
    mistakes=[
        (lambda run, epoch, rank: run * 1000 + rank, "there are epochs that drop the same units",
         "The epoch plays a part too."),
        (lambda run, epoch, rank: run * 1000 + epoch, "there are ranks that draw the same",
         "The rank plays a part too."),
        (lambda run, epoch, rank: run * 1000 + epoch + rank,
         "one rank draws in one epoch what another draws in another",
         ROOM),
        *((lambda run, epoch, rank, room=room: run * room + epoch * 10 + rank,
           "a rank of a high number draws in one epoch what another draws in another",
           "There are up to 64 ranks, and too little room for them: how much further on does the next epoch begin?")
          for room in (10**5, 1000)),
        *((lambda run, epoch, rank, room=room: run * room + rank * 10 + epoch,
           "a rank draws in a late epoch what another draws in another epoch",
           "There are 200 epochs, and too little room for them: how much further on does the next rank begin?")
          for room in (10**5, 500)),
        (lambda run, epoch, rank: run + epoch + rank, "one rank draws in one epoch what another draws in another",
         ROOM),
        (lambda run, epoch, rank: run + epoch * 64 + rank, "one run draws on one rank what the next draws on another",
         "Leave room for each: for the run too."),
        (lambda run, epoch, rank: epoch * 10000 + rank, "the run's own number plays no part",
         "In another run other units have to be dropped: `run` is in the seed, too."),
        (lambda run, epoch, rank: int(torch.randint(2**40, ())), "an epoch that is begun again draws other numbers",
         "The seed has to follow from the three numbers."),
        (lambda run, epoch, rank: hash(f"{run} {epoch} {rank}"),
         "Python's `hash` of text differs from process to process, and a restart is a new process",
         "Of whole numbers it stays what it is: a tuple of them, say."),
        (lambda run, epoch, rank: run + epoch / 1e3 + rank / 1e6, "that is a `float`, and a seed is a whole number",
         "`*` gives each of the three its room. `/` makes a fraction, and `1e6` a float."),
        (lambda run, epoch, rank: f"{run}{epoch:05}{rank:05}", "that is text, and a seed is a whole number",
         "`int(…)` makes one of it."),
        (lambda run, epoch, rank: run * epoch * rank, "there are ranks that draw alike, epochs too, and runs in part",
         "What comes out for run 0, epoch 0 or rank 0? And is there room for 200 epochs, and for 64 ranks?"),
        (lambda run, epoch, rank: run * epoch + rank, "there are epochs that draw alike, and runs in part",
         "What comes out for run 0? A product with 0 is 0."),
        (lambda run, epoch, rank: 0, "there are ranks that draw alike, and epochs, and both runs do",
         "The seed has to differ with each of the three numbers."),
        (lambda run, epoch, rank: rank, "two epochs draw alike, and so do both runs", "Epoch and run play a part too."),
        (lambda run, epoch, rank: epoch, "two ranks draw alike, and so do both runs", "Rank and run play a part too."),
        (lambda run, epoch, rank: epoch + rank,
         "one rank draws in one epoch what another draws in another, and both runs draw alike",
         "Leave room for each of the three: for the run too."),
        (lambda run, epoch, rank: run, "there are ranks that draw alike, and epochs",
         "Epoch and rank play a part too."),
    ],
    hints={"'NoneType'": "Return a whole number.", "out of range": "Torch takes seeds below 2 to the 64.",
           "Overflow": "Torch takes seeds below 2 to the 64.",
           "Generator": "Return the number alone: who asks for it seeds with it.",
           "not 'tuple'": "Make one number of the three.", "not 'list'": "Make one number of the three."},
    otherwise="One whole number, with room in it for each of the three.",
)  # fmt: skip


def _tried(agreed: Callable[[int], int], found: int) -> str:
    try:
        epoch = agreed(found)
        if epoch is None or isinstance(epoch, Exception):
            return "nothing came back" if epoch is None else "an error came back"
        return f"epoch {epoch}"
    except (RuntimeError, ValueError, AssertionError, OSError):
        return "refused"
    except Exception as error:
        if type(error) is Exception:
            return "refused"
        raise


def _thrice(agreed: Callable[[int], int], rank: int) -> list[str]:
    """The third time is two: also where the one in the middle is an epoch further, and ends are alike."""
    three, none, differ, middle = (
        _tried(agreed, found) for found in (3, 3 if rank < 2 else 0, 2 + rank, 3 + (rank == 1))
    )
    return [three, none, differ if differ != "refused" or middle == differ else f"refused, but 3, 4 and 3: {middle}"]


def _all(found: int) -> list[int]:
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, found)
    return everyone


def _agreed(found: int, who: Any = None, choose: Any = None) -> int:
    everyone = _all(found)
    if choose:
        return choose(everyone)
    if len(set(everyone)) > 1 and (who is None or who(everyone, found)):
        raise RuntimeError(f"the ranks would go on with epochs {everyone}: do all nodes share one disk?")
    return found


def _refuse() -> None:
    raise RuntimeError("not the same")


ANY = "Every rank has to learn whether any of the numbers differ, and then all refuse."

turn(
    "5.6.c",
    "Do all of us go on at the same place?",
    _agreed,
    lambda rank, size: (rank,),
    ranks=(3,),
    call=_thrice,
    heads=("all found epoch 3", "rank 2 found none", "2, 3 and 4"),
    mistakes=[
        (lambda found: found, "each rank goes on where it likes, and the ranks wait for each other for ever",
         "Ask the others: `dist.all_gather_object`. And raise an error where one has found something else."),
        (partial(_agreed, choose=max), "rank 2 goes on at epoch 3 with the weights of a beginning",
         "Nobody can mend that here: raise an error."),
        (partial(_agreed, choose=min), "all go on at the smallest epoch, which may be the "
         "beginning, and nobody hears of it", "Somebody wants to know that the disks are not shared: raise an error."),
        (partial(_agreed, who=lambda *_: dist.get_rank() == 0), "one rank refuses, and the others go on without it",
         "By `all_gather_object` all ranks have the same list: each can raise by itself."),
        (partial(_agreed, who=lambda everyone, found: found != everyone[0]),
         "only the rank that differs refuses, and the others go on without it",
         ANY),
        (partial(_agreed, who=lambda everyone, found: found != max(everyone)),
         "who has found most goes on, and the others refuse", ANY),
        (partial(_agreed, who=lambda everyone, found: found != min(everyone)),
         "who has found least goes on, and the others refuse", ANY),
        (partial(_agreed, who=lambda everyone, found: 3 * found != sum(everyone)),
         "of 2, 3 and 4 the mean is 3, and rank 1 goes on", "Others can differ, and have your number as their mean."),
        (partial(_agreed, who=lambda everyone, found: sum(everyone) // 3 != found),
         "who has found the mean, cut down to a whole epoch, goes on",
         "Others can differ, and have your number for that."),
        (partial(_agreed, who=lambda everyone, found: found != everyone[dist.get_rank() - 1]),
         "rank 2 found none, and rank 1 goes on as if nothing were amiss",
         f"Does it look at a neighbour alone? {ANY}"),
        (partial(_agreed, who=lambda everyone, found: everyone[0] != everyone[-1]),
         "3, 4 and 3 differ, and nobody refuses", "One epoch is a difference too, and so is one in the middle."),
        (partial(_agreed, who=lambda everyone, found: 0 in everyone), "2, 3 and 4 differ, and nobody refuses",
         "Not to have found any is one difference of many."),
        (partial(_agreed, choose=lambda everyone: everyone[0]), "all go on where rank 0 does, and nobody hears of it",
         "Somebody wants to know that the disks are not shared: raise an error."),
        (lambda found: _all(found) and _refuse(), "all refuse, even where all have found epoch 3",
         "What is compared with what? Three times 3 add up to 9, say, and in a set no two tensors are alike."),
        (lambda found: None if len(set(_all(found))) == 1 else _refuse(), "where all agree, nothing comes back",
         "Return the epoch that all found."),
        (lambda found: found if len(set(_all(found))) == 1 else None,
         "where they differ, nothing comes back, and nobody hears of it", "`raise RuntimeError(…)`"),
        (lambda found: _all(found), "that is a list, and not an epoch",
         "Return `found`, if all found the same."),
        (lambda found: found if len(set(_all(found))) == 1 else RuntimeError(), "the error is returned, and not raised",
         "`raise RuntimeError(…)`"),
    ],
    hints={"'NoneType'": "Return the epoch.",
           "Expected parameter `tensor`": "`dist.all_gather_object` takes a number. This one wants a tensor: import "
           "`torch`, and `device` from `ddplab`, for `torch.tensor(found, device=device())`."},
    otherwise="All ask all, outside of any `if`; any difference is an error on every rank; else return the epoch.",
)  # fmt: skip
