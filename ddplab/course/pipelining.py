"""Stages of a pipeline that one can see at work: they sleep beside their computing, so that four fit on two cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from torch import Tensor, nn

from ddplab.course.timeline import Row, draw_on, length, phase
from ddplab.plots import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {"exposed communication": "waits for a message", "hidden communication": "message beside work"}


def sleepy(part: nn.Module, seconds: float = 0.004) -> nn.Module:
    """Let a part of a network sleep as well: so many seconds for each sample forward, and twice as many backward.

    Where `record` is on, both are phases of its rows. Changes `part`, and returns it.
    """
    part.register_forward_pre_hook(_asleep("forward", seconds))
    part.register_full_backward_pre_hook(_asleep("backward", 2 * seconds))
    return part


def _asleep(name: str, each: float) -> Callable[[nn.Module, Sequence[Tensor]], None]:
    def sleep(_: nn.Module, given: Sequence[Tensor]) -> None:
        if not given[0].is_meta:  # torch asks once, without numbers, what shapes come out
            with phase(name):
                time.sleep(each * len(given[0]))

    return sleep


def lanes(runs: Mapping[str, Sequence[Sequence[Row]]]) -> Figure:
    """Draw what each stage did, one run beneath another with the same ms, as `draw` of ddplab.course.timeline.

    runs: title → what `record` gave on each rank. While a stage sleeps it counts as computing. The title goes on with
        the share of the time in which a stage was idle.

    Returns the matplotlib figure.
    """
    with drawing(9, 0.7 + sum(0.35 + 0.6 * len(ranks) for ranks in runs.values()), layout="constrained") as figure:
        axes = figure.subplots(len(runs), sharex=True, squeeze=False)[:, 0]
        for axis, (title, ranks) in zip(axes, runs.items(), strict=True):
            working = [[row for row in rows if row.kind == "phase"] for rows in ranks]
            busy = [[row._replace(kind="compute") for row in rows] for rows in working]
            share = f"{title}: a stage stands idle for {idle_share(working):.0%} of the time"
            legend = draw_on(axis, [[*rows, *more] for rows, more in zip(ranks, busy, strict=True)], share)
        for patch in legend:  # a stage waits in a message mostly for another stage
            patch.set_label(LABELS.get(patch.get_label(), patch.get_label()))
        axes[0].legend(handles=legend, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
        axes[-1].set_xlabel("ms")
    return figure


def idle_share(phases_per_rank: Sequence[Sequence[Row]]) -> float:
    """Return the share of the time in which no phase ran, between 0 and 1: the mean over all ranks.

    The time is that from the first phase's begin, on any rank, to the last one's end.
    """
    spans = [(row.start, row.end) for rows in phases_per_rank for row in rows]
    begins, ends = zip(*spans, strict=True)
    return 1 - length(spans) / (len(phases_per_rank) * (max(ends) - min(begins)))


def ranking(runs: Mapping[tuple[str, int], Sequence[Sequence[Row]]]) -> str:
    """Return a line for each run, the one with the least idle time first: on paper, here, and what waits on rank 0.

    *ms between* is how long the last stage does nothing between two micro-batches, the median: on paper it is 0.

    runs: the timetable's name and the number of micro-batches → what `record` gave on each rank.
    """
    lines = []
    for (kind, portions), ranks in runs.items():
        working = [[row for row in rows if row.kind == "phase"] for rows in ranks]
        on_paper = (len(ranks) - 1) / (portions + len(ranks) - 1)
        told = f"{kind:8}{portions:13}{on_paper:10.0%}"
        lines.append((idle_share(working), told, ms_between(working[-1]), most_on_the_way(working[0])))
    head = f"{'':8}micro-batches  on paper  idle here  ms between  most on the way"
    return "\n".join([head, *(f"{told}{idle:11.0%}{ms:12.1f}{most:17}" for idle, told, ms, most in sorted(lines))])


def ms_between(phases: Sequence[Row]) -> float:
    """Return the median time between a phase's end and the next one's begin, in ms."""
    rows = sorted(phases, key=lambda row: row.start)
    return median(after.start - row.end for row, after in pairwise(rows))


def most_on_the_way(phases: Sequence[Row]) -> int:
    """Return how many micro-batches at most a stage had sent on and not yet got back, in the order of its phases."""
    counts = [0]
    for row in sorted(phases, key=lambda row: row.start):
        counts.append(counts[-1] + (1 if row.name == "forward" else -1))
    return max(counts)
