"""Answers to the exercises of lesson 6.3: the right ones, the blanks, and mistakes that people make."""

import torch
import torch.distributed as dist

# 6.3.2: a bad batch, skipped by all


def train(read, step, steps, *, how=dist.ReduceOp.SUM, own=False):
    skipped = []
    for n in range(steps):
        batch = read_or_none(read, n)
        failed = torch.tensor(int(batch is None))
        dist.all_reduce(failed, op=how)
        if not failed:
            step(batch)
        elif batch is None or not own:
            skipped.append(n)
    return skipped


def read_or_none(read, n):
    try:
        return read(n)
    except ValueError:
        return None


def reads_all_first(read, step, steps):
    batches = [read_or_none(read, n) for n in range(steps)]
    bad = torch.tensor([batch is None for batch in batches]).int()
    dist.all_reduce(bad)
    for n in range(steps):
        if not bad[n]:
            step(batches[n])
    return [n for n in range(steps) if bad[n]]


def skips_for_itself(read, step, steps):
    skipped = []
    for n in range(steps):
        try:
            step(read(n))
        except ValueError:
            skipped.append(n)
    return skipped


def stops_at_the_first(read, step, steps):
    for n in range(steps):
        batch = read_or_none(read, n)
        failed = torch.tensor(int(batch is None))
        dist.all_reduce(failed)
        if failed:
            return [n]
        step(batch)
    return []


def does_not_catch_it(read, step, steps):
    for n in range(steps):
        step(read(n))
    return []


# your turn


def in_a_loop(deaths):
    cause = None
    for death in deaths:
        victim = "Connection" in death["said"] or death["exit"] == -15
        if not victim and (cause is None or death["at"] < cause["at"]):
            cause = death
    return cause["rank"]


def sorted_by_time(deaths):
    return next(it["rank"] for it in sorted(deaths, key=lambda it: it["at"]) if told_own(it))


def told_own(death):
    return "peer" not in death["said"] and death["exit"] not in (0, -15)


def by_gathering(work):
    numbers = [None] * dist.get_world_size()
    try:
        mine = work()
    except Exception:
        mine = None
    dist.all_gather_object(numbers, mine)
    return None if None in numbers else numbers[dist.get_rank()]


def by_the_least(work):
    value, good = 0, torch.ones(1)
    try:
        value = work()
    except ValueError:
        good.zero_()
    dist.all_reduce(good, op=dist.ReduceOp.MIN)
    if good.item() == 1:
        return value


def over_the_cpu(model, file):
    model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))


def with_a_map(model, file):
    weights = torch.load(file, map_location={"vgpu:0": "cpu"})
    for name, it in model.named_parameters():
        it.data.copy_(weights[name])


def moved_afterwards(model, file):
    mine = next(model.parameters()).device
    model.load_state_dict({name: it.to(mine) for name, it in torch.load(file).items()})


def in_loops(model, x):
    model.zero_grad()
    names = []
    torch.mean(model(x)).backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                names.append(name)
    return names


def by_autograd(model, x):
    named = {name: it for name, it in model.named_parameters() if it.requires_grad}
    found = torch.autograd.grad(model(x).sum(), list(named.values()), allow_unused=True)
    return tuple(name for name, it in zip(named, found, strict=True) if it is None)


ANSWERS = {
    "6.3.1": {"correct": (2, -9, 16, 2)},
    "6.3.2": {
        "correct": train,
        "accepted": [reads_all_first],
        "wrong": [
            (skips_for_itself, ["never finished", "waits in all_reduce"]),
            (does_not_catch_it, ["raised ValueError: batch 2 has a bad row"]),
            (stops_at_the_first, ["rank 0 trains on [0, 1] instead of [0, 1, 3]"]),
            (lambda *it: train(*it, own=True), ["rank 0 returns [] instead of [2]"]),
            (lambda *it: print(train(*it)), ["`train` returns nothing on rank 0"]),
            (lambda *it: train(*it, how=dist.ReduceOp.MIN), ["raised", "rank 1"]),
        ],
    },
    "6.3.a": {"accepted": [in_a_loop, sorted_by_time], "wrong": [(lambda deaths: deaths[0], ["raised TypeError"])]},
    "6.3.b": {"accepted": [by_gathering, by_the_least]},
    "6.3.c": {
        "accepted": [over_the_cpu, with_a_map],
        "wrong": [(moved_afterwards, ["rank 1's copy goes through GPU 0"])],
    },
    "6.3.d": {"accepted": [in_loops, by_autograd]},
}
