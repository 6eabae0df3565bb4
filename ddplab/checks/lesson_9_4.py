"""Checks of lesson 9.4, Parameters do not move."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel

from ddplab.checks.common import gpus_for
from ddplab.checks.turns import turn

ROWS = 6


class _Pages(list):
    """A list; whoever has read it waits for the other replicas to do so, as happens to threads once in a while."""

    meeting: threading.Barrier

    def __iter__(self) -> Iterator[Any]:
        return _after_all(iter([*super().__iter__()]), self.meeting)

    def __getitem__(self, place: Any) -> Any:
        return _after_all(super().__getitem__(place), self.meeting)

    def __len__(self) -> int:
        return _after_all(super().__len__(), self.meeting)

    def __add__(self, more: Any) -> Any:
        return _after_all(super().__add__(more), self.meeting)


class _Seen(dict):
    """A dictionary that is read as those pages are."""

    meeting: threading.Barrier

    def __len__(self) -> int:
        return _after_all(super().__len__(), self.meeting)

    def get(self, *key: Any) -> Any:
        return _after_all(super().get(*key), self.meeting)

    def __getitem__(self, key: Any) -> Any:
        return _after_all(super().__getitem__(key), self.meeting)

    def __contains__(self, key: Any) -> bool:
        return _after_all(super().__contains__(key), self.meeting)


def _after_all(read: Any, meeting: threading.Barrier) -> Any:
    """Return what was read, when every replica has read; who holds a lock is waited for in vain, and goes on."""
    with suppress(threading.BrokenBarrierError):
        meeting.wait(0.3)
    return read


class _Diary(nn.Module):
    """A module whose `forward` notes its rows, by the learner's function."""

    def __init__(self, my_note: Callable[..., Any], meeting: threading.Barrier) -> None:
        super().__init__()
        self.my_note, self.number, self.pages, self.seen = my_note, 0, _Pages(), _Seen()
        self.pages.meeting = self.seen.meeting = meeting
        self.register_buffer("buffer", torch.zeros(()))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.my_note(self, rows)
        return rows


def _known(my_note: Callable[..., Any], gpus: int) -> list[str]:
    """Return of how many rows one's own module knows after a forward pass on so many GPUs."""
    with gpus_for(gpus, virtual=True) as those:
        meeting = threading.Barrier(gpus)
        diary = _Diary(my_note, meeting).to(those[0])
        DataParallel(diary)(torch.ones(ROWS, 1, device=those[0]))
        meeting.abort()  # nobody waits for what is read now
        noted = [diary.number, diary.buffer, *diary.pages, *diary.seen.values()]
        return [f"{sum(int(it) for it in noted)} of {ROWS}"]


def _my_note(self: Any, rows: torch.Tensor) -> None:
    self.pages.append(len(rows))


def _counted_twice(self: Any, rows: torch.Tensor) -> None:
    self.pages.append(len(rows))
    self.seen[rows.device] = len(rows)


turn(
    "9.4.a",
    "Kept by your own module",
    _my_note,
    {"1 GPU": lambda: (1,), "2 GPUs": lambda: (2,), "3 GPUs": lambda: (3,)},
    call=_known,
    heads=("rows it knows of",),
    mistakes=[
        (lambda self, rows: setattr(self, "number", self.number + len(rows)), "each replica notes it for itself",
         "A name that is bound anew, by `=`, or by `+=` on a number, is its own, and is dropped. What do all share?"),
        (lambda self, rows: self.buffer.add_(len(rows)), "the rows of one replica are kept, the others' are lost",
         "Only the first GPU has your own buffer. Under one key the last one overwrites the rest: all may read first."),
        (lambda self, rows: self.pages.append(1), "it counts the replicas, and not their rows", "`len(rows)`"),
        (lambda self, rows: None, "your module knows of no row", "`self.pages` is a list. Who else holds it?"),
        (_counted_twice, "every row is noted twice", "One of the four places is enough."),
    ],
    hints={"only one element": "Note how many rows there are, `len(rows)`, and not the rows themselves."},
    otherwise="A list that all replicas share, or a dictionary with a key for each GPU.",
)  # fmt: skip
