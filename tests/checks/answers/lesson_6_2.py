"""Answers to the turns of lesson 6.2: other right ones, and mistakes that people make."""

import datetime
import statistics
import time
from collections import Counter, defaultdict
from functools import partial

import torch
import torch.distributed as dist


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


def a_group_for_who_waits(prepare, seconds):
    group = None
    if dist.get_rank() == 0:
        prepare()
    else:
        group = dist.new_group(timeout=datetime.timedelta(seconds=seconds))
    dist.barrier(group)


def a_group_with_torchs_own_limit(prepare, seconds):
    group = dist.new_group()
    if dist.get_rank() == 0:
        prepare()
    dist.barrier(group)


def a_roll_call_of_another_group(prepare, seconds):
    group = dist.new_group(backend="gloo")
    if dist.get_rank() == 0:
        prepare()
    dist.monitored_barrier(group, timeout=datetime.timedelta(seconds=seconds))


def a_roll_call_with_torchs_own_limit(prepare, seconds):
    if dist.get_rank() == 0:
        prepare()
    dist.monitored_barrier()


def a_roll_call_of_a_second(prepare, seconds):
    if dist.get_rank() == 0:
        prepare()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))


def a_barrier_that_comes_first(prepare, seconds):
    group = dist.new_group(timeout=datetime.timedelta(seconds=seconds))
    dist.barrier(group=group)
    if dist.get_rank() == 0:
        prepare()


def a_roll_call_that_comes_first(prepare, seconds):
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=seconds))
    if dist.get_rank() == 0:
        prepare()


def a_barrier_before_and_after(prepare, seconds):
    dist.barrier()
    a_group_after_the_work(prepare, seconds)


def a_word_from_rank_0(prepare, seconds):
    dist.barrier()
    group, word = dist.new_group(timeout=datetime.timedelta(seconds=seconds)), torch.zeros(1)
    if dist.get_rank() == 0:
        prepare()
        dist.send(word, 1, group=group)
    else:
        dist.recv(word, 0, group=group)


def a_word_in_the_store(prepare, seconds):
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        prepare()
        store.set("prepared", "1")
    else:
        store.wait(["prepared"], datetime.timedelta(seconds=seconds))


def nobody_waits_for_the_work(prepare, seconds):
    group = dist.new_group(timeout=datetime.timedelta(seconds=seconds))
    if dist.get_rank() == 0:
        prepare()
    dist.barrier(group, async_op=True)


def of_two_ranks(rows):
    waited = [sum(row["waited"] for row in rows if row["rank"] == rank) for rank in (0, 1)]
    return waited.index(min(waited))


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


def without_the_first(rows):
    total = defaultdict(float)
    for row in rows:
        total[row["rank"]] += row["computed"] * (row["step"] > 0)
    return max(total, key=total.get)


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


def by_getting(store, size, waits=lambda store, key: store.get(key)):
    gone = list(range(size))
    for rank in range(size):
        try:
            waits(store, f"here/{rank}")
            gone.remove(rank)
        except Exception:
            pass
    return gone


def by_getting_in_a_moment(store, size):
    store.set_timeout(datetime.timedelta(milliseconds=5))
    return by_getting(store, size)


def by_getting_what_is_there(store, size):
    there = [rank for rank in range(size) if store.check([f"here/{rank}"]) and store.get(f"here/{rank}")]
    return [rank for rank in range(size) if rank not in there]


ANSWERS = {
    "6.2.a": {
        "accepted": [
            a_monitored_barrier,
            a_group_after_the_work,
            a_roll_call_of_another_group,
            a_barrier_before_and_after,
            a_word_from_rank_0,
            a_word_in_the_store,
        ],
        "wrong": [
            (a_group_that_nobody_uses, ["is over before rank 0 is done"]),
            (a_group_for_who_waits, ["Timed out waiting"]),
            (a_group_with_torchs_own_limit, ["many times `seconds`"]),
            (a_roll_call_with_torchs_own_limit, ["many times `seconds`"]),
            (a_barrier_that_comes_first, ["the barrier comes before `prepare()`"]),
            (a_roll_call_that_comes_first, ["the barrier comes before `prepare()`"]),
            (nobody_waits_for_the_work, ["rank 1 goes on before the data are there"]),
            (a_roll_call_of_a_second, ["less than `seconds`"]),
            (lambda prepare, seconds: time.sleep(seconds) if dist.get_rank() else prepare(), ["long after"]),
        ],
    },
    "6.2.b": {
        "accepted": [counts_the_steps, by_what_they_compute],
        "wrong": [
            (lambda rows: min(rows, key=lambda row: row["waited"]), ["the check met TypeError"]),
            (without_the_first, ["in most steps another"]),
            (of_two_ranks, ["was last in one step only"]),
        ],
    },
    "6.2.c": {
        "accepted": [as_a_set, by_waiting, by_getting_in_a_moment, by_getting_what_is_there],
        "wrong": [
            (
                lambda store, size: [rank for rank in range(size) if not store.check(f"here/{rank}")],
                ["raised TypeError"],
            ),
            (by_getting, ["right, after a long wait"]),
            (partial(by_getting, waits=lambda store, key: store.wait([key])), ["right, after a long wait"]),
            (lambda store, size: by_getting(store, size)[:1], ["1, after a long wait"]),
            (lambda store, size: size - store.num_keys(), ["the check met TypeError"]),
        ],
    },
}
