"""Answers to the exercises of lesson 6.3: the right ones, the blanks, and mistakes that people make."""

from functools import partial

import torch
import torch.distributed as dist

# 6.3.2: one fails, all know


def everybody(work, *, worked=lambda value: value is not None, how=dist.ReduceOp.MIN):
    value = each_for_itself(work)
    went_well = torch.tensor(int(worked(value)))
    dist.all_reduce(went_well, op=how)
    return value if went_well else None


def each_for_itself(work):
    try:
        return work()
    except Exception:
        return None


def tells_inside_try(work):
    try:
        value = work()
        went_well = torch.tensor(1)
        dist.all_reduce(went_well, op=dist.ReduceOp.MIN)
        return value
    except Exception:
        return None


def does_not_catch_it(work):
    value = work()
    dist.barrier()
    return value


def when_anybody_succeeds(work):
    return everybody(work, how=dist.ReduceOp.MAX)


ANSWERS = {
    "6.3.1": {"correct": (2, -9, 16, 2)},
    "6.3.2": {
        "correct": everybody,
        "wrong": [
            (partial(everybody, worked=bool), ["when the ranks return 0 and 7, rank 0 gets None"]),
            (each_for_itself, ["when rank 1 of 2 raises, rank 0 gets 5 instead of None"]),
            (tells_inside_try, ["never finished", "rank 0 waits in all_reduce for rank 1"]),
            (does_not_catch_it, ["raised ValueError: a bad row"]),
            (when_anybody_succeeds, ["when rank 1 of 2 raises, rank 0 gets 5 instead of None"]),
        ],
    },
}
