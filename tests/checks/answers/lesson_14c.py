"""Answers to the exercises of lesson 14c: the right ones, the blanks, and mistakes that people make."""

import torch
import torch.distributed as dist


def blank(*args):
    raise NotImplementedError("your code here")


# 14c.2: one fails, all know


def everybody(work):
    try:
        value = work()
    except Exception:
        value = None
    went_well = torch.tensor(0 if value is None else 1)
    dist.all_reduce(went_well, op=dist.ReduceOp.MIN)
    return value if went_well else None


def zero_is_a_failure(work):
    try:
        value = work()
    except Exception:
        value = None
    went_well = torch.tensor(1 if value else 0)
    dist.all_reduce(went_well, op=dist.ReduceOp.MIN)
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
    try:
        value = work()
    except Exception:
        value = None
    went_well = torch.tensor(0 if value is None else 1)
    dist.all_reduce(went_well, op=dist.ReduceOp.MAX)
    return value if went_well else None


ANSWERS = {
    "14c.1": {
        "correct": (2, -9, 16, 2),
        "blank": (..., ..., ..., ...),
        "wrong": [
            ((0, -9, 16, 2), ["`guilty_rank` is 0", "victim"]),
            ((2, 9, 16, 2), ["`exit_code` is 9", "number of the signal"]),
            ((2, 1, 16, 2), ["`exit_code` is 1", "a Python exception"]),
            ((2, -9, 2, 2), ["`gigabytes` is 2", "rank 0's own copy"]),
            ((2, -9, 16, 4), ["`layers` is 4", "the parameters"]),
        ],
    },
    "14c.2": {
        "correct": everybody,
        "blank": blank,
        "wrong": [
            (zero_is_a_failure, ["when the ranks return 0 and 7, rank 0 gets None"]),
            (each_for_itself, ["when rank 1 of 2 raises, rank 0 gets 5 instead of None"]),
            (tells_inside_try, ["never finished", "rank 0 waits in all_reduce for rank 1"]),
            (does_not_catch_it, ["raised ValueError: a bad row"]),
            (when_anybody_succeeds, ["when rank 1 of 2 raises, rank 0 gets 5 instead of None"]),
        ],
    },
}
