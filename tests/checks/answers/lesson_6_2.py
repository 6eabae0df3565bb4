"""Answers to the exercises of lesson 6.2: the right ones, the blanks, and mistakes that people make."""

import datetime
import re
import statistics
from collections import Counter, defaultdict

import torch
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


# your turn


def a_monitored_barrier(prepare, seconds):
    if dist.get_rank() == 0:
        prepare()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=seconds))


def a_group_after_the_work(prepare, seconds):
    if not dist.get_rank():
        prepare()
    group = dist.new_group([0, 1], timeout=datetime.timedelta(0, seconds))
    dist.all_reduce(torch.zeros(1), group=group)


def a_group_that_nobody_uses(prepare, seconds):
    dist.new_group(timeout=datetime.timedelta(seconds=seconds))
    if dist.get_rank() == 0:
        prepare()
    dist.barrier()


def counts_the_steps(rows):
    latest = {}
    for row in rows:
        if row["step"] not in latest or row["waited"] < latest[row["step"]]["waited"]:
            latest[row["step"]] = row
    return Counter(row["rank"] for row in latest.values()).most_common(1)[0][0]


def by_what_they_compute(rows):
    computed = defaultdict(list)
    for row in rows:
        computed[row["rank"]].append(row["computed"])
    return max(computed, key=lambda rank: statistics.median(computed[rank]))


def as_a_set(store, size):
    return set(range(size)) - {rank for rank in range(size) if store.check([f"here/{rank}"])}


def by_waiting(store, size):
    missing = []
    for rank in range(size):
        try:
            store.wait([f"here/{rank}"], datetime.timedelta(seconds=0.01))
        except dist.DistStoreError:
            missing.append(rank)
    return missing


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
    "6.2.a": {
        "accepted": [a_monitored_barrier, a_group_after_the_work],
        "wrong": [(a_group_that_nobody_uses, ["the limit of all other calls"])],
    },
    "6.2.b": {
        "accepted": [counts_the_steps, by_what_they_compute],
        "wrong": [(lambda rows: min(rows, key=lambda row: row["waited"]), ["raised TypeError"])],
    },
    "6.2.c": {
        "accepted": [as_a_set, by_waiting],
        "wrong": [
            (
                lambda store, size: [rank for rank in range(size) if not store.check(f"here/{rank}")],
                ["raised TypeError"],
            )
        ],
    },
}
