"""Answers to the exercises of lesson 4.6: the right ones, the blanks, and mistakes that people make."""

from itertools import count, cycle, islice

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from ddplab.hardware import device

# 4.6.2: a sampler that goes on where it was


class Rest(Sampler):
    def __init__(self, n, rank, ranks):
        self.n, self.rank, self.ranks = n, rank, ranks
        self.set_epoch(0)

    def set_epoch(self, epoch, done=0):
        self.epoch, self.done = epoch, done

    def seed_of(self):
        return self.epoch

    def order(self):
        return torch.randperm(self.n, generator=torch.Generator().manual_seed(self.seed_of())).tolist()

    def mine(self):
        return self.order()[self.done :][self.rank :: self.ranks]

    def __iter__(self):
        return iter(self.mine())

    def __len__(self):
        return len(self.mine())


class ByHand(Rest):
    def __iter__(self):
        random = torch.Generator()
        random.manual_seed(self.epoch + 1234)
        for place, sample in enumerate(torch.randperm(self.n, generator=random)):
            if place >= self.done and (place - self.done) % self.ranks == self.rank:
                yield sample

    def __len__(self):
        return len(range(self.done + self.rank, self.n, self.ranks))


def but(**methods):
    """The sampler, with these methods done otherwise."""
    return type("Rest", (Rest,), methods)


def global_order(self):
    return torch.randperm(self.n).tolist()


def in_equal_blocks(self):
    left = self.order()[self.done :]
    each = -(-len(left) // self.ranks)
    return left[self.rank * each : (self.rank + 1) * each]


def in_fair_blocks(self):
    left = self.order()[self.done :]
    return left[self.rank * len(left) // self.ranks : (self.rank + 1) * len(left) // self.ranks]


def padded(self):
    left = self.order()[self.done :]
    return (left + left[: -len(left) % self.ranks])[self.rank :: self.ranks]


def dropped(self):
    left = self.order()[self.done :]
    return left[: len(left) // self.ranks * self.ranks][self.rank :: self.ranks]


def keeps_done(self, epoch, done=0):
    self.epoch, self.done = epoch, done or getattr(self, "done", 0)


def shuffled_anew(self):
    left = torch.randperm(self.n - self.done, generator=torch.Generator().manual_seed(self.epoch)) + self.done
    return left[self.rank :: self.ranks].tolist()


def uses_up(self):
    self.left = getattr(self, "left", None) or iter(self.mine())
    return self.left


def unwritten(self, *_):
    raise NotImplementedError("your code here")


# your turn


def in_a_cycle(order, rank, ranks):
    return islice(cycle(order), rank, -(-len(order) // ranks) * ranks, ranks)


def in_a_short_cycle(order, rank, ranks):
    return islice(order, rank, None, ranks)


def round_and_round(order, rank, ranks):
    mine, at = [], rank
    while at < -(-len(order) // ranks) * ranks:
        mine.append(order[at % len(order)])
        at += ranks
    return tuple(mine)


def by_torch(order, rank, ranks):
    return [order[i] for i in DistributedSampler(order, ranks, rank, shuffle=False)]


def a_sampler_for_each_epoch(data, epochs, step):
    for epoch in range(1, epochs + 1):
        sampler = DistributedSampler(data, seed=epoch)
        for x in DataLoader(data, sampler=sampler, batch_size=2):
            step(x)


def by_hand(data, epochs, step):
    for epoch in range(epochs):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
        for x in order[dist.get_rank() :: dist.get_world_size()].split(2):
            step(x)


def shuffles_twice(data, epochs, step):
    DataLoader(data, sampler=DistributedSampler(data), shuffle=True)


def begins_where_rank_0_does(data, epochs, step):
    sampler = DistributedSampler(data, num_replicas=dist.get_world_size(), rank=0)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x in DataLoader(data, batch_size=2, sampler=sampler):
            step(x)


def takes_batches_apart(data, epochs, step):
    sampler = DistributedSampler(data)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for _, x in DataLoader(data, batch_size=2, sampler=sampler):
            step(x)


def forgets_the_sampler(data, epochs, step):
    sampler = DistributedSampler(data)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x in DataLoader(data, batch_size=2):
            step(x)


def one_sample_a_step(data, epochs, step):
    a_sampler_for_each_epoch(data, epochs, lambda batch: [step(x) for x in batch])


def with_the_end_of_it(order, rank, ranks):
    return (order + order[-(-len(order) % ranks) :])[rank::ranks]


def with_zeros(order, rank, ranks):
    while len(order) % ranks:
        order = [*order, 0]
    return order[rank::ranks]


def by_append(order, rank, ranks):
    padded = order.append(order[: -len(order) % ranks])
    return padded[rank::ranks]


def of_accuracies(n, is_right):
    mine = range(dist.get_rank(), n, dist.get_world_size())
    accuracy = torch.tensor(sum(is_right(i) for i in mine) / len(mine), device=device())
    dist.all_reduce(accuracy)
    return n * accuracy / dist.get_world_size(), n


def in_blocks(n, is_right):
    mine = torch.arange(n).chunk(dist.get_world_size())[dist.get_rank()]
    counts = torch.tensor([sum(is_right(i) for i in mine), len(mine)], device=device())
    dist.all_reduce(counts)
    return counts


def one_after_the_other(n, is_right):
    hits = torch.tensor(0.0, device=device())
    for i in range(n):
        if i % dist.get_world_size() == dist.get_rank():
            hits += is_right(i)
    dist.all_reduce(hits)
    return hits, n


ANSWERS = {
    "4.6.1": {"correct": (104, 5, 4, 81 / 104), "accepted": [(104, 5, 4, 0.779)]},
    "4.6.2": {
        "correct": Rest,
        "accepted": [ByHand],
        "blank": but(__init__=unwritten, set_epoch=unwritten, __iter__=unwritten, __len__=unwritten),
        "also blank": [but(__iter__=unwritten, __len__=unwritten)],
        "wrong": [
            (but(seed_of=lambda self: self.epoch + self.rank), ["in epoch 0", "served twice"]),
            (but(seed_of=lambda self: 0), ["epoch 1 has the order of epoch 0"]),
            (but(seed_of=lambda self: self.epoch + torch.initial_seed()), ["another after `torch.manual_seed(1)`"]),
            (but(order=global_order), ["iterating twice gives two orders"]),
            (but(seed_of=lambda self: self.epoch + 100 * self.ranks), ["then 3 go on", "served once more"]),
            (but(mine=lambda self: self.order()[self.rank :: self.ranks]), ["and begin anew"]),
            (but(mine=lambda self: self.order()[self.rank :: self.ranks][self.done :]), ["served to nobody"]),
            (but(set_epoch=keeps_done), ["`set_epoch(1)` serves 6 samples of 10"]),
            (but(mine=shuffled_anew), ["done=8", "served once more"]),
            (but(__iter__=uses_up), ["iterating a second time gives nothing"]),
            (but(mine=in_equal_blocks), ["the ranks get 3, 3, 3 and 1"]),
            (but(mine=in_fair_blocks), ["done=8", "served once more"]),
            (but(mine=padded), ["10 samples on 4 ranks", "served twice"]),
            (but(mine=dropped), ["10 samples on 4 ranks", "served to nobody"]),
            (but(__len__=lambda self: self.n // self.ranks), ["`len` says"]),
            (Rest(10, 0, 2), ["is a sampler, not the class"]),
        ],
    },
    "4.6.a": {
        "accepted": [round_and_round, by_torch, in_a_cycle],
        "wrong": [
            (lambda order, rank, ranks: order[rank], ["and should be 4"]),
            (in_a_short_cycle, ["nothing is padded"]),
            (lambda order, rank, ranks: count(rank, ranks), ["rank 0 of 4"]),
            (by_append, ["raised TypeError"]),
            (with_the_end_of_it, ["where nothing is missing with all of it"]),
            (with_zeros, ["padded with zeros"]),
            (lambda order, rank, ranks: (order + order[0])[rank::ranks], ["can only concatenate list"]),
        ],
    },
    "4.6.b": {
        "accepted": [a_sampler_for_each_epoch, by_hand],
        "wrong": [
            (shuffles_twice, ["raised ValueError"]),
            (begins_where_rank_0_does, ["all ranks read rank 0's share"]),
            (takes_batches_apart, ["of each batch one sample is used"]),
            (one_sample_a_step, ["each step gets one sample of a batch"]),
            (forgets_the_sampler, ["every rank reads all samples"]),
        ],
    },
    "4.6.c": {
        "accepted": [in_blocks, one_after_the_other],
        "wrong": [
            (lambda n, is_right: dist.barrier(), ["raised TypeError"]),
            (lambda n, is_right: (in_blocks(n, is_right)[0], n * dist.get_world_size()), ["`n` is added up on every"]),
            (lambda n, is_right: in_blocks(n, is_right) / dist.get_world_size(), ["the sums are divided by the ranks"]),
            (of_accuracies, ["the mean of the ranks' accuracies"]),
        ],
    },
}
