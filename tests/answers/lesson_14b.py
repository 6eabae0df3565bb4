"""Answers to the exercises of lesson 14b: the right ones, the blanks, and mistakes that people make."""

import datetime
import re

import torch
import torch.distributed as dist


def blank(*args):
    raise NotImplementedError("your code here")


# 14b.2: a roll call


def missing(seconds):
    try:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=seconds), wait_all_ranks=True)
    except RuntimeError as error:
        named = re.search(r"Ranks ([\d, ]+) failed", str(error))[1]
        return sorted(int(number) for number in named.split(","))
    return []


def the_first_only(seconds):
    try:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=seconds))
    except RuntimeError as error:
        return [int(re.search(r"Rank (\d+) failed", str(error))[1])]
    return []


def rank_0_too(seconds):
    try:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=seconds), wait_all_ranks=True)
    except RuntimeError as error:
        return sorted(int(number) for number in re.findall(r"\d+", str(error).split("failed")[0]))
    return []


def does_not_catch(seconds):
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=seconds), wait_all_ranks=True)
    return []


def a_plain_barrier(seconds):
    dist.barrier()
    return []


def the_message(seconds):
    try:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=seconds), wait_all_ranks=True)
    except RuntimeError as error:
        return str(error)
    return []


def nothing_when_all_come(seconds):
    return missing(seconds) or None


# 14b.3: one fails, all know


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
    "14b.1": {
        "correct": (5, 16, 30, 2),
        "blank": (..., ..., ..., ...),
        "wrong": [
            ((0, 16, 30, 2), ["`missing_rank` is 0", "part of every key"]),
            ((5, 8, 30, 2), ["`started_ranks` is 8", "what the script believes"]),
            ((5, 16, 10, 2), ["`minutes` is 10", "NCCL's default"]),
            ((5, 16, 30, 0), ["`guilty_rank` is 0", "victim"]),
            ((5, 16, "half an hour", 2), ["`minutes` gives a str, not a number"]),
        ],
    },
    "14b.2": {
        "correct": missing,
        "blank": blank,
        "wrong": [
            (the_first_only, ["when ranks 1 and 2 are late, `missing` returns [1]"]),
            (rank_0_too, ["when rank 2 is late, `missing` returns [0, 2]"]),
            (does_not_catch, ["raised RuntimeError", "failed to pass monitoredBarrier"]),
            (a_plain_barrier, ["never finished", "wait in barrier for rank 2"]),
            (the_message, ["not a list of numbers"]),
            (nothing_when_all_come, ["when nobody is late, `missing` returns nothing"]),
        ],
    },
    "14b.3": {
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
