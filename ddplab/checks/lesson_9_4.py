"""Checks of lesson 9.4, Parameters do not move."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel

from ddplab.checks.common import gpus_for
from ddplab.checks.turns import turn

ROWS = 6


class _Diary(nn.Module):
    """A module whose `forward` notes its rows, by the learner's function."""

    def __init__(self, my_note: Callable[..., Any]) -> None:
        super().__init__()
        self.my_note, self.number, self.pages, self.seen = my_note, 0, [], {}
        self.register_buffer("buffer", torch.zeros(()))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.my_note(self, rows)
        return rows


def _known(my_note: Callable[..., Any], gpus: int) -> list[str]:
    """Return of how many rows one's own module knows after a forward pass on so many GPUs."""
    with gpus_for(gpus, virtual=True) as those:
        diary = _Diary(my_note).to(those[0])
        DataParallel(diary)(torch.ones(ROWS, 1, device=those[0]))
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
         "`=` and `+=` give a replica's name to a new value, and the replica is dropped. What do all replicas share?"),
        (lambda self, rows: self.buffer.add_(len(rows)), "the rows of one replica are kept, the others' are lost",
         "In place, only the first GPU writes into your own buffer; under one key, the last one overwrites the rest."),
        (lambda self, rows: self.pages.append(1), "it counts the replicas, and not their rows", "`len(rows)`"),
        (lambda self, rows: None, "your module knows of no row", "`self.pages` is a list. Who else holds it?"),
        (_counted_twice, "every row is noted twice", "One of the four places is enough."),
    ],
    hints={"only one element": "Note how many rows there are, `len(rows)`, and not the rows themselves."},
    otherwise="A list that all replicas share, or a dictionary with a key for each GPU.",
)  # fmt: skip
