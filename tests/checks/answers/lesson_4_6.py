"""Answers to the exercises of lesson 4.6: the right ones, the blanks, and mistakes that people make."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from ddplab.hardware import device

# 4.6.2: one accuracy


def right(net, images, labels, mine):
    return (net(images[mine]).argmax(1) == labels[mine]).float()


def my_share():
    return slice(dist.get_rank(), None, dist.get_world_size())


def counted(here, *, total=torch.sum, meet=dist.all_reduce):
    counts = torch.tensor([total(here), len(here)]).to(device())
    meet(counts)
    return (counts[0] / counts[1]).item()


def evaluate(net, images, labels):
    return counted(right(net, images, labels, my_share()))


def with_a_loader(net, images, labels):
    mine = Subset(TensorDataset(images, labels), range(dist.get_rank(), len(labels), dist.get_world_size()))
    found = torch.zeros((), device=device())
    for x, y in DataLoader(mine, batch_size=2):
        found += (net(x).argmax(1) == y).sum()
    dist.all_reduce(found)
    return found / len(labels)


def local(net, images, labels):
    return right(net, images, labels, my_share()).mean().item()


def mean_of_means(net, images, labels):
    accuracy = torch.tensor(local(net, images, labels)).nan_to_num().to(device())
    dist.all_reduce(accuracy)
    return accuracy.item() / dist.get_world_size()


def mean_with_nan(net, images, labels):
    return counted(right(net, images, labels, my_share()), total=lambda here: here.mean() * len(here))


def only_rank_0(net, images, labels):
    value = counted(right(net, images, labels, my_share()), meet=lambda counts: dist.reduce(counts, 0))
    return value if dist.get_rank() == 0 else 0.0


def everything_everywhere(net, images, labels):
    return right(net, images, labels, slice(None)).mean().item()


def padded(net, images, labels):
    return counted(right(net, images, labels, list(DistributedSampler(images, shuffle=False))))


def whole_shares_only(net, images, labels):
    share = len(labels) // dist.get_world_size()
    return counted(right(net, images, labels, slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)))


def in_pieces(net, images, labels):
    """Right also where there are fewer pieces than ranks."""
    numbers = torch.arange(len(labels)).chunk(dist.get_world_size())
    mine = numbers[dist.get_rank()] if dist.get_rank() < len(numbers) else numbers[0][:0]
    return counted(right(net, images, labels, mine))


def in_too_few_pieces(net, images, labels):
    mine = torch.arange(len(labels)).chunk(dist.get_world_size())[dist.get_rank()]
    return counted(right(net, images, labels, mine))


def one_by_one(net, images, labels):
    mine = [images[i] for i in range(dist.get_rank(), len(labels) + 1, dist.get_world_size())]
    return counted(right(net, torch.stack(mine), labels, slice(0, len(mine))))


def rank_0_alone(net, images, labels):
    return counted(right(net, images, labels, slice(None) if dist.get_rank() == 0 else slice(0)))


# your turn


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
        "correct": evaluate,
        "accepted": [with_a_loader, in_pieces],
        "wrong": [
            (local, ["with 10 images on 3 ranks", "its own images", "0.750, 0.667, 1.000"]),
            (mean_of_means, ["with 10 images on 3 ranks", "the mean of the ranks' accuracies"]),
            (mean_with_nan, ["with 2 images on 3 ranks", "nan"]),
            (only_rank_0, ["the ranks say 0.800, 0.000, 0.000"]),
            (everything_everywhere, ["every rank reads all the images"]),
            (padded, ["the network reads 12: some of them twice"]),
            (whole_shares_only, ["only 9 are read"]),
            (rank_0_alone, ["with 10 images on 3 ranks", "the ranks read 10, 0, 0 of them"]),
            (in_too_few_pieces, ["on rank 2, raised IndexError", "tuple index out of range"]),
            (one_by_one, ["raised IndexError", "is out of bounds"]),
            (lambda *given: print(evaluate(*given)), ["gives nothing, not a number"]),
        ],
    },
    "4.6.a": {
        "accepted": [round_and_round, by_torch],
        "wrong": [(lambda order, rank, ranks: order[rank], ["and 4 is wanted"])],
    },
    "4.6.b": {
        "accepted": [a_sampler_for_each_epoch, by_hand],
        "wrong": [(shuffles_twice, ["raised ValueError"])],
    },
    "4.6.c": {
        "accepted": [in_blocks, one_after_the_other],
        "wrong": [(lambda n, is_right: dist.barrier(), ["raised TypeError"])],
    },
}
