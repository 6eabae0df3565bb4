"""Answers to the exercises of lesson 6.1: the right ones, the blanks, and mistakes that people make."""

from functools import partial

import torch
import torch.distributed as dist

# 6.1.2: sums that cannot cross


def add_up(metrics, *, ranks=None):
    names = sorted(metrics)
    sums = torch.tensor([float(metrics[name]) for name in names])
    if ranks is None or dist.get_rank() in ranks:
        dist.all_reduce(sums)
    return dict(zip(names, sums.tolist(), strict=True))


def crossed(metrics):
    sums = {name: torch.tensor(float(value)) for name, value in metrics.items()}
    for number in sums.values():
        dist.all_reduce(number)
    return sums


def by_value(metrics, *, largest_first=False):
    names = sorted(metrics, key=metrics.get, reverse=largest_first)
    sums = torch.tensor([float(metrics[name]) for name in names])
    dist.all_reduce(sums)
    return dict(zip(names, sums.tolist(), strict=True))


def by_objects(metrics):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, metrics)
    return {name: sum(other[name] for other in every) for name in metrics}


def its_own(metrics):
    add_up(metrics)
    return metrics


def the_mean(metrics):
    return {name: value / dist.get_world_size() for name, value in add_up(metrics).items()}


def for_loss_only(metrics):
    return add_up({"loss": metrics["loss"]})


# 6.1.3: stop together


def run(batches, step, *, how=dist.ReduceOp.MIN):
    taken = 0
    while True:
        batch = next(batches, None)
        have = torch.tensor(0 if batch is None else 1)
        dist.all_reduce(have, op=how)
        if not have:
            return taken
        step(batch)
        taken += 1


def by_gathering(batches, step):
    taken, have = 0, [True] * dist.get_world_size()
    while True:
        batch = next(batches, None)
        dist.all_gather_object(have, batch is not None)
        if not all(have):
            return taken
        step(batch)
        taken += 1


def its_own_batches(batches, step):
    return sum(1 for batch in batches if step(batch) is None)


def until_the_last(batches, step):
    return run(batches, step, how=dist.ReduceOp.MAX)


def reads_all_first(batches, step):
    mine = list(batches)
    common = torch.tensor(len(mine))
    dist.all_reduce(common, op=dist.ReduceOp.MIN)
    for batch in mine[: int(common)]:
        step(batch)
    return int(common)


def asks_after_the_step(batches, step):
    taken, have = 0, torch.tensor(1)
    while have:
        batch = next(batches, None)
        have = torch.tensor(0 if batch is None else 1)
        step(batch)
        taken += 1
        dist.all_reduce(have, op=dist.ReduceOp.MIN)
    return taken


ANSWERS = {
    "6.1.1": {
        "correct": {1: "c", 2: "d", 3: "b", 4: "a"},
        "blank": {1: ..., 2: ..., 3: ..., 4: ...},
        "wrong": [
            ({1: "d", 2: "c", 3: "b", 4: "a"}, ["1 is not d", "skips a collective"]),
            ({1: "c", 2: "b", 3: "d", 4: "a"}, ["2 is not b", "slow rank"]),
            ({1: "c", 2: "d", 3: "e", 4: "a"}, ["3 is not a port in use"]),
            ({1: "c", 2: "d", 3: "b", 4: "c"}, ["4 is not c"]),
            ({1: "c", 2: "d", 3: "b", 4: "f"}, ["`causes[4]` is 'f'", "a to e"]),
            ({1: "c"}, ["one letter for each of 1, 2, 3 and 4"]),
        ],
    },
    "6.1.2": {
        "correct": add_up,
        "accepted": [by_objects],
        "wrong": [
            (crossed, ["on 2 ranks, rank 0, 'loss' is 80 instead of 68"]),
            (by_value, ["on 2 ranks, rank 0 gets sums in the order of the values"]),
            (partial(by_value, largest_first=True), ["gets sums in the order of the values"]),
            (its_own, ["rank 0 gets its own numbers back"]),
            (the_mean, ["the mean, not the sum"]),
            (partial(add_up, ranks=[0]), ["never finished", "rank 0 waits in all_reduce for rank 1"]),
            (lambda metrics: torch.tensor(list(add_up(metrics).values())), ["gets a Tensor, not a dictionary"]),
            (for_loss_only, ["gets the names loss"]),
            ("add_up", ["`add_up` is 'add_up', not a function"]),
        ],
    },
    "6.1.3": {
        "correct": run,
        "accepted": [by_gathering],
        "wrong": [
            (its_own_batches, ["never finished", "rank 0 waits in all_reduce for rank 1"]),
            (until_the_last, ["with 3 and 2 batches", "`step` was given None"]),
            (reads_all_first, ["with 1 and 900 batches", "rank 1 read 900 batches to take 1 steps"]),
            (lambda batches, step: run(batches, step) + 1, ["`run` returned 3 on rank 0 after 2 steps"]),
            (lambda batches, step: print(run(batches, step)), ["`run` gives nothing"]),
            (asks_after_the_step, ["`step` was given None"]),
        ],
    },
}
