"""Checks of lesson 9.5, A guide."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from ddplab.checks.turns import turn


def _rates(warm_up: int, t_max: int, updates: int) -> list[float]:
    """Return the rate of each update, as a part of the peak, by the guide's schedule with these two numbers."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    parts = [LinearLR(optimizer, start_factor=0.1, total_iters=warm_up), CosineAnnealingLR(optimizer, T_max=t_max)]
    scheduler, drawn = SequentialLR(optimizer, parts, milestones=[warm_up]), []
    for _ in range(updates):
        drawn.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return drawn


def _course(my_numbers: Callable[..., Any], updates: int) -> list[str]:
    """Return whether the rates reach the peak, how far down the last one is, and whether they go up and down once."""
    warm_up, t_max = my_numbers(updates)
    if not (isinstance(warm_up, int) and isinstance(t_max, int)):
        raise TypeError(f"the two numbers are {warm_up!r} and {t_max!r}, and updates are whole")
    if min(warm_up, t_max) < 1:
        return [f"{warm_up} up", f"{t_max} down", "no schedule"]
    rates = _rates(warm_up, t_max, updates)
    up = ["the peak" if max(rates) > 0.98 else f"{max(rates):.0%} of it"]
    last = ["next to zero" if rates[-1] < 0.02 else f"{rates[-1]:.0%} of the peak"]
    ways = [later > rate for rate, later in pairwise(rates)]
    turns = sum(way != after for way, after in pairwise(ways))
    return up + last + ["once" if turns <= 1 else "more than once"]


def _my_numbers(updates: int) -> tuple[int, int]:
    return updates // 10, updates - updates // 10


turn(
    "9.5.a",
    "A schedule for any run",
    _my_numbers,
    {f"{updates:,} updates": lambda updates=updates: (updates,) for updates in (200, 1570, 60)},
    call=_course,
    heads=("highest rate", "last rate", "up and down"),
    mistakes=[
        (lambda updates: (100, 1000), "these are the guide's two numbers, and they suit one length of run",
         "The argument is how many updates this run has. Share them out: some up, all others down."),
        (lambda updates: (20, 180), "these two numbers suit a run of 200 updates, and no other",
         "The argument is how many updates this run has. Share them out: some up, all others down."),
        (lambda updates: (updates // 10, updates), "the cosine begins after the warm-up, and has not come down yet",
         "What the warm-up takes is not left for the cosine."),
        (lambda updates: (updates, updates), "the whole run is warm-up", "Leave most of the updates for the way down."),
        (lambda updates: (updates - updates // 10, updates // 10), "the two have changed places",
         "The first number is the warm-up: the short one."),
        (lambda updates: (0, updates), "a warm-up of no update", "Give it a few: a tenth of the run, say."),
        (lambda updates: (updates - 1, 1), "nearly the whole run is warm-up",
         "Leave most of the updates for the way down."),
        (lambda updates: (100, updates - 100), "a run of 60 updates is over before its warm-up",
         "A part of the updates, not a fixed number of them."),
    ],
    hints={"updates are whole": "`//` divides without a remainder.",
           "unpack": "Return two numbers: `warm_up, T_max`."},
    otherwise="Together the two are as many as the updates, and most of those are for the way down.",
)  # fmt: skip
