"""Answers to the exercises of lesson 6.1: the right ones, the blanks, and mistakes that people make."""

from functools import partial

import torch
import torch.distributed as dist

# 6.1.2: sums of what not every rank has


def add_up(metrics):
    everybodys, sums = [None] * dist.get_world_size(), {}
    dist.all_gather_object(everybodys, metrics)
    for theirs in everybodys:
        sums |= {name: sums.get(name, 0) + value for name, value in theirs.items()}
    return sums


def names_first(metrics, *, ranks=None, all_names=True, in_order=sorted):
    everybodys = [None] * dist.get_world_size()
    dist.all_gather_object(everybodys, list(metrics))
    names = in_order({name for theirs in everybodys for name in theirs}) if all_names else everybodys[0]
    sums = torch.tensor([float(metrics.get(name, 0)) for name in names])
    if ranks is None or dist.get_rank() in ranks:
        dist.all_reduce(sums)
    return dict(zip(names, sums.tolist(), strict=True))


def own_names(metrics):
    everybodys = [None] * dist.get_world_size()
    dist.all_gather_object(everybodys, metrics)
    return {name: sum(theirs.get(name, 0) for theirs in everybodys) for name in metrics}


def asks_everybody_for_its_own_names(metrics):
    everybodys = [None] * dist.get_world_size()
    dist.all_gather_object(everybodys, metrics)
    return {name: sum(theirs[name] for theirs in everybodys) for name in metrics}


def each_in_its_order(metrics):
    return names_first(metrics, in_order=lambda names: sorted(names, reverse=dist.get_rank() % 2 == 1))


def its_own(metrics):
    add_up(metrics)
    return metrics


def the_mean(metrics):
    return {name: value / dist.get_world_size() for name, value in add_up(metrics).items()}


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


# your turn


def line_by_line(stacks):
    missing = set(stacks)
    for rank, stack in stacks.items():
        if any("distributed_c10d" in line for line in stack.splitlines()):
            missing.discard(rank)
    return missing


def of_the_top_frame(stacks):
    return tuple(rank for rank, stack in stacks.items() if "(torch/distributed/" not in stack.splitlines()[3])


def told_as_an_object(loss, target):
    dist.all_reduce(loss, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
    loss /= dist.get_world_size()
    told = [loss.item() <= target if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(told, src=0)
    return loss.item(), told[0]


def the_target_first(loss, target):
    target = torch.tensor([target or 0.0])
    dist.broadcast(target, 0)
    losses = [torch.empty_like(loss) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, loss)
    mean = sum(losses) / len(losses)
    return mean, (mean <= target).item()


def two_calls_in_a_fixed_order(sums):
    for name in ("images", "loss"):
        dist.all_reduce(sums[name])
    return (sums["loss"] / sums["images"]).item()


def sorted_names(sums):
    both = torch.stack([sums[name] for name in sorted(sums)])
    dist.all_reduce(both)
    images, loss = both
    return loss / images


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
        "accepted": [names_first],
        "wrong": [
            (partial(names_first, all_names=False), ["gets the names"]),
            (own_names, ["on 2 ranks, rank 1 gets the names that it had itself"]),
            (asks_everybody_for_its_own_names, ["raised KeyError"]),
            (each_in_its_order, ["instead of"]),
            (its_own, ["rank 0 gets its own numbers back"]),
            (the_mean, ["the mean, not the sum"]),
            (partial(names_first, ranks=[0]), ["never finished", "rank 0 waits in all_reduce for rank 1"]),
            (lambda metrics: torch.tensor(list(add_up(metrics).values())), ["gets a Tensor, not a dictionary"]),
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
    "6.1.a": {
        "accepted": [line_by_line, of_the_top_frame],
        "wrong": [(lambda stacks: max(stacks), ["raised TypeError"])],
    },
    "6.1.b": {"accepted": [told_as_an_object, the_target_first]},
    "6.1.c": {"accepted": [two_calls_in_a_fixed_order, sorted_names]},
}
