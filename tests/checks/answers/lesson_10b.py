"""Answers to the exercises of lesson 10b: the right ones, the blanks, and mistakes that people make."""

from itertools import islice

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, get_worker_info

from ddplab.hardware import device


def blank(*args):
    raise NotImplementedError("your code here")


# 10b.1: a fair stream


def my_part(stream, rank, ranks):
    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info else (0, 1)
    return islice(stream, rank * workers + worker, None, ranks * workers)


def with_a_yield(stream, rank, ranks):
    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info else (0, 1)
    for number, sample in enumerate(stream):
        if number % (ranks * workers) == worker * ranks + rank:
            yield sample


def nobody_shares(stream, rank, ranks):
    return stream


def by_worker(stream, rank, ranks):
    info = get_worker_info()
    return islice(stream, info.id, None, info.num_workers)


def by_worker_or_none(stream, rank, ranks):
    info = get_worker_info()
    return islice(stream, info.id, None, info.num_workers) if info else stream


def by_rank(stream, rank, ranks):
    return islice(stream, rank, None, ranks)


def without_workers_none(stream, rank, ranks):
    info = get_worker_info()
    return islice(stream, rank * info.num_workers + info.id, None, ranks * info.num_workers)


def added_up(stream, rank, ranks):
    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info else (0, 1)
    return islice(stream, rank + worker, None, ranks * workers)


def steps_too_far(stream, rank, ranks):
    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info else (0, 1)
    return islice(stream, rank * workers + worker, None, ranks * workers + 1)


def sliced(stream, rank, ranks):
    return stream[rank::ranks]


def measured(stream, rank, ranks):
    return islice(stream, rank * len(stream) // ranks, (rank + 1) * len(stream) // ranks)


def returns_nothing(stream, rank, ranks):
    my_part(stream, rank, ranks)


def all_on_rank_0(stream, rank, ranks):
    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info else (0, 1)
    return islice(stream, worker, None, workers) if rank == 0 else []


# 10b.2: noise that never repeats


def make_loader(dataset, seed):
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    return DataLoader(dataset, batch_size=2, num_workers=2, generator=generator)


def plain(dataset, seed):
    return DataLoader(dataset, num_workers=2)


def one_seed(dataset, seed):
    return DataLoader(dataset, num_workers=2, generator=torch.Generator().manual_seed(seed))


def by_number(dataset, seed):
    return DataLoader(dataset, num_workers=2, worker_init_fn=lambda w: np.random.seed(100 * dist.get_rank() + w))


def worker_init_same(dataset, seed):
    return DataLoader(dataset, num_workers=2, worker_init_fn=lambda worker: np.random.seed(seed + dist.get_rank()))


def chance(dataset, seed):
    generator = torch.Generator()
    generator.seed()
    return DataLoader(dataset, num_workers=2, generator=generator)


def rank_alone(dataset, seed):
    return DataLoader(dataset, num_workers=2, generator=torch.Generator().manual_seed(dist.get_rank()))


def no_workers(dataset, seed):
    return DataLoader(dataset, generator=torch.Generator().manual_seed(seed + dist.get_rank()))


def loader_not_returned(dataset, seed):
    make_loader(dataset, seed)


# 10b.3: stop together


def together(batches):
    batches = iter(batches)
    while True:
        batch = next(batches, None)
        everybody = torch.tensor(int(batch is not None)).to(device())
        dist.all_reduce(everybody, op=dist.ReduceOp.MIN)
        if not everybody:
            return
        yield batch


def everything(batches):
    yield from batches


def leaves_unsaid(batches):
    for batch in batches:
        everybody = torch.ones((), device=device())
        dist.all_reduce(everybody, op=dist.ReduceOp.MIN)
        yield batch


def as_rank_0_says(batches):
    batches = iter(batches)
    while True:
        batch = next(batches, None)
        more = torch.tensor(int(batch is not None)).to(device())
        dist.broadcast(more, 0)
        if not more:
            return
        yield batch


def any_rank(batches):
    batches = iter(batches)
    while True:
        batch = next(batches, None)
        anybody = torch.tensor(int(batch is not None)).to(device())
        dist.all_reduce(anybody, op=dist.ReduceOp.MAX)
        if not anybody:
            return
        yield batch


def by_length(batches):
    fewest = torch.tensor(len(batches)).to(device())
    dist.all_reduce(fewest, op=dist.ReduceOp.MIN)
    yield from islice(batches, fewest.item())


def skips_the_first(batches):
    batches = iter(batches)
    next(batches, None)
    yield from together(batches)


def never_catches(batches):
    batches = iter(batches)
    while True:
        yield next(batches)


def yields_nothing(batches):
    list(together(batches))


ANSWERS = {
    "10b.1": {
        "correct": my_part,
        "accepted": [with_a_yield],
        "blank": blank,
        "wrong": [
            (nobody_shares, ["with no workers each", "both ranks serve sample 0"]),
            (by_worker, ["raised AttributeError", "NoneType"]),
            (by_worker_or_none, ["with no workers each", "both ranks serve sample 0"]),
            (by_rank, ["with 2 workers each", "one rank serves sample 0 more than once"]),
            (without_workers_none, ["raised AttributeError", "NoneType"]),
            (added_up, ["with 2 workers each", "both ranks serve sample 1", "nobody serves 3"]),
            (steps_too_far, ["with no workers each", "nobody serves sample 2"]),
            (sliced, ["raised TypeError", "not subscriptable"]),
            (measured, ["raised TypeError", "has no len()"]),
            (returns_nothing, ["nobody is served anything"]),
            (all_on_rank_0, ["the ranks get 12 and 0 of 12"]),
        ],
    },
    "10b.2": {
        "correct": make_loader,
        "blank": blank,
        "wrong": [
            (plain, ["rank 0 and rank 1 draw the same numbers"]),
            (one_seed, ["rank 0 and rank 1 draw the same numbers"]),
            (by_number, ["epoch 1 repeats the numbers of epoch 0"]),
            (worker_init_same, ["both workers of rank 0 draw the same"]),
            (chance, ["a second run with the same seed draws other numbers"]),
            (rank_alone, ["seed 1 gives the same numbers as seed 0"]),
            (no_workers, ["has 0 workers"]),
            (loader_not_returned, ["raised TypeError", "NoneType"]),
        ],
    },
    "10b.3": {
        "correct": together,
        "blank": blank,
        "wrong": [
            (everything, ["never finished", "rank 0"]),
            (leaves_unsaid, ["never finished"]),
            (any_rank, ["with 3 and 2 batches", "rank 0 makes 3 steps and not 2"]),
            (as_rank_0_says, ["with 3 and 2 batches", "rank 0 makes 3 steps and not 2"]),
            (by_length, ["raised TypeError", "has no len()"]),
            (skips_the_first, ["with 3 and 2 batches", "rank 0 makes 1 step and not 2"]),
            (never_catches, ["StopIteration"]),
            (yields_nothing, ["raised TypeError", "not iterable"]),
        ],
    },
}
