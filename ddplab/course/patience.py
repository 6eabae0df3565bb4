"""One call, and one rank that does not come to it in time: four reasons, played, and what the other rank is told."""

from __future__ import annotations

import datetime
import os
import time
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ddplab.course.drawings import lanes
from ddplab.launcher import launch
from ddplab.run import RankError
from ddplab.worker import log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAUSES = ["reads a slow disk", "has skipped the call", "has died", "waits for a message first"]
WAITS = ["all_reduce", CAUSES[3]]

_heard: dict[str, str] = {}  # cause → what rank 0 was told when it was played last


def played(rank_1: str, limit: int) -> tuple[str, Figure]:
    """Play a cause, for `move`: all four, ticked where they were played and with what was heard, and the picture."""
    says, drawn = told(rank_1, limit)
    _heard[rank_1] = f"in {limit} s: {says}"
    return "\n".join(f"✓ {it}, {_heard[it]}" if it in _heard else f"☐ {it}" for it in CAUSES), drawn


@cache
def told(rank_1: str, limit: int) -> tuple[str, Figure]:
    """Play a cause, with so many seconds on torch's own clock: rank 0's error, or "goes on"; and a lane for each rank.

    What was played once comes back at once; `told.cache_clear()` forgets it.
    """
    try:
        run, says = launch(_clocked, rank_1, limit, init=False, device="cpu", quiet=True), "goes on"
    except RankError as error:
        run, says = error.run, error.reason.rpartition("] ")[2].partition(". ")[0]
    return says, lanes({f"rank 1 {rank_1}": run.metrics}, WAITS, seconds=limit + 0.5)


def _clocked(rank_1: str, limit: int) -> None:
    rank, dies = int(os.environ["RANK"]), rank_1 == "has died"
    if rank == 1 and dies and os.fork():  # a child of this process joins the group, and dies
        os.wait()
        return time.sleep(limit)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=limit))
    if rank == 1:
        log(doing="works")
        time.sleep(0.3)  # rank 0 is in its all-reduce by then
        log(doing="died" if dies else rank_1)
        if dies:
            os._exit(1)
        with suppress(RuntimeError):
            if rank_1 == "waits for a message first":
                dist.recv(torch.ones(1), src=0)
        if rank_1 != "reads a slow disk":
            return time.sleep(30)
        time.sleep(1.2)
    log(doing="all_reduce")
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError:
        log(doing="died")
        raise
    log(doing="goes on")
