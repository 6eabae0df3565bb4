"""Answers to the exercises of lesson 14b: the right ones, the blanks, and mistakes that people make."""

import datetime
import re

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


ANSWERS = {
    "14b.1": {
        "correct": (5, 16, 30),
        "blank": (..., ..., ...),
        "wrong": [
            ((0, 16, 30), ["`missing_rank` is 0", "part of every key"]),
            ((5, 8, 30), ["`started_ranks` is 8", "what the script believes"]),
            ((5, 16, 10), ["`minutes` is 10", "NCCL's default"]),
            ((5, 16, "half an hour"), ["`minutes` gives a str, not a number"]),
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
}
