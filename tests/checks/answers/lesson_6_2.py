"""Answers to the exercises of lesson 6.2: the right ones, the blanks, and mistakes that people make."""

import datetime
import re

import torch.distributed as dist

# 6.2.2: a roll call


def called(seconds, all_ranks=True):
    """What torch says of a roll call; nothing where all have come."""
    try:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=seconds), wait_all_ranks=all_ranks)
    except RuntimeError as error:
        return str(error)


def missing(seconds):
    said = called(seconds)
    return sorted(map(int, re.search(r"Ranks ([\d, ]+) failed", said)[1].split(","))) if said else []


def the_first_only(seconds):
    said = called(seconds, all_ranks=False)
    return [int(re.search(r"Rank (\d+) failed", said)[1])] if said else []


def reads_one(seconds):
    said = called(seconds)
    return [int(re.search(r"Ranks (\d+)", said)[1])] if said else []


def rank_0_too(seconds):
    said = called(seconds)
    return sorted(map(int, re.findall(r"\d+", said.split("failed")[0]))) if said else []


def does_not_catch(seconds):
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=seconds), wait_all_ranks=True)
    return []


def a_plain_barrier(seconds):
    dist.barrier()
    return []


ANSWERS = {
    "6.2.1": {"correct": (5, 16, 30)},
    "6.2.2": {
        "correct": missing,
        "wrong": [
            (the_first_only, ["when ranks 1 and 2 are late, `missing` returns [1]"]),
            (reads_one, ["when ranks 1 and 2 are late, `missing` returns [1]"]),
            (rank_0_too, ["when rank 2 is late, `missing` returns [0, 2]"]),
            (does_not_catch, ["raised RuntimeError", "failed to pass monitoredBarrier"]),
            (a_plain_barrier, ["never finished", "wait in barrier for rank 2"]),
            (lambda seconds: called(seconds) or [], ["not a list of numbers"]),
            (lambda seconds: missing(seconds) or None, ["when nobody is late, `missing` returns nothing"]),
        ],
    },
}
