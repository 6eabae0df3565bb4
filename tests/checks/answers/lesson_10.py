"""Answers to the exercises of lesson 10: the right ones, the blanks, and mistakes that people make."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from ddplab.hardware import device


def blank(*args):
    raise NotImplementedError("your code here")


# 10.2: a sampler of your own


def order_of(n, epoch):
    return torch.randperm(n, generator=torch.Generator().manual_seed(epoch)).tolist()


def deal(n, rank, ranks, epoch):
    order = order_of(n, epoch)
    while len(order) % ranks:
        order += order[: -len(order) % ranks]
    return order[rank::ranks]


def deal_by_index(n, rank, ranks, epoch):
    order = order_of(n, epoch)
    return [order[place % n] for place in range(rank, -(-n // ranks) * ranks, ranks)]


def without_padding(n, rank, ranks, epoch):
    return order_of(n, epoch)[rank::ranks]


def padded_once(n, rank, ranks, epoch):
    order = order_of(n, epoch)
    return (order + order[: -n % ranks])[rank::ranks]


def dropped(n, rank, ranks, epoch):
    return order_of(n, epoch)[rank : n // ranks * ranks : ranks]


def in_blocks(n, rank, ranks, epoch):
    share = -(-n // ranks)
    return (order_of(n, epoch) * ranks)[rank * share : (rank + 1) * share]


def not_shuffled(n, rank, ranks, epoch):
    return (list(range(n)) * ranks)[rank : -(-n // ranks) * ranks : ranks]


def always_epoch_0(n, rank, ranks, epoch):
    return deal(n, rank, ranks, 0)


def seeded_by_rank(n, rank, ranks, epoch):
    return deal(n, rank, ranks, epoch + rank)


def padded_with_zeros(n, rank, ranks, epoch):
    order = order_of(n, epoch)
    return (order + [order[-1]] * (-n % ranks))[rank::ranks]


def seeded_otherwise(n, rank, ranks, epoch):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(epoch + 42)).tolist()
    return (order * ranks)[rank : -(-n // ranks) * ranks : ranks]


def everybody_all(n, rank, ranks, epoch):
    return order_of(n, epoch)[: -(-n // ranks)]


def torchs_own(n, rank, ranks, epoch):
    sampler = DistributedSampler(range(n), num_replicas=ranks, rank=rank)
    sampler.set_epoch(epoch)
    return list(sampler)


def returns_nothing(n, rank, ranks, epoch):
    deal(n, rank, ranks, epoch)


# 10.3: one accuracy


def evaluate(net, images, labels):
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    right = (net(images[mine]).argmax(1) == labels[mine]).sum()
    counts = torch.stack([right, torch.tensor(len(labels[mine])).to(device())])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def with_a_loader(net, images, labels):
    mine = Subset(TensorDataset(images, labels), range(dist.get_rank(), len(labels), dist.get_world_size()))
    right = torch.zeros((), device=device())
    for x, y in DataLoader(mine, batch_size=2):
        right += (net(x).argmax(1) == y).sum()
    dist.all_reduce(right)
    return right / len(labels)


def local(net, images, labels):
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    return (net(images[mine]).argmax(1) == labels[mine]).float().mean().item()


def mean_of_means(net, images, labels):
    accuracy = torch.tensor(local(net, images, labels)).nan_to_num().to(device())
    dist.all_reduce(accuracy)
    return accuracy.item() / dist.get_world_size()


def mean_with_nan(net, images, labels):
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    here = (net(images[mine]).argmax(1) == labels[mine]).float()
    total = torch.tensor([here.mean() * len(here), len(here)]).to(device())
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def only_rank_0(net, images, labels):
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    counts = torch.tensor([(net(images[mine]).argmax(1) == labels[mine]).sum(), len(labels[mine])]).to(device())
    dist.reduce(counts, 0)
    return (counts[0] / counts[1]).item() if dist.get_rank() == 0 else 0.0


def everything_everywhere(net, images, labels):
    return (net(images).argmax(1) == labels).float().mean().item()


def padded(net, images, labels):
    mine = list(DistributedSampler(images, shuffle=False))
    counts = torch.tensor([(net(images[mine]).argmax(1) == labels[mine]).sum(), len(mine)]).to(device())
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def whole_shares_only(net, images, labels):
    share = len(labels) // dist.get_world_size()
    mine = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)
    counts = torch.tensor([(net(images[mine]).argmax(1) == labels[mine]).sum(), share]).to(device())
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def forgets_the_return(net, images, labels):
    evaluate(net, images, labels)


ANSWERS = {
    "10.1": {
        "correct": (104, 5, 4, 81 / 104),
        "blank": (..., ..., ..., ...),
        "wrong": [
            ((101, 5, 4, 0.779), ["`served` is 101", "how many samples there are"]),
            ((13, 5, 4, 0.779), ["`served` is 13", "one rank's share"]),
            ((104, 3, 4, 0.779), ["`left_out` is 3", "served twice"]),
            ((104, 5, 26, 0.779), ["`steps` is 26", "one rank alone"]),
            ((104, 5, 3, 0.779), ["`steps` is 3", "not full"]),
            ((104, 5, 4, 0.802), ["`lowest` is 0.802", "true accuracy"]),
            ((104, 5, 4, 84 / 104), ["`lowest` is 0.8", "the highest"]),
            ((104, 5, 4, "low"), ["`lowest` gives a str"]),
        ],
    },
    "10.2": {
        "correct": deal,
        "accepted": [deal_by_index],
        "blank": blank,
        "wrong": [
            (without_padding, ["with 10 samples on 4 ranks", "3, 3, 2, 2"]),
            (padded_once, ["with 3 samples on 8 ranks", "1, 1, 1, 1, 1, 1, 0, 0"]),
            (dropped, ["with 10 samples on 4 ranks", "2 samples and not 3"]),
            (in_blocks, ["with 12 samples on 4 ranks", "a block of the order"]),
            (not_shuffled, ["nothing is shuffled"]),
            (always_epoch_0, ["epoch 3", "the order is that of epoch 0"]),
            (seeded_by_rank, ["do not deal from the same order"]),
            (padded_with_zeros, ["with 10 samples on 4 ranks", "the padding is"]),
            (seeded_otherwise, ["the order is not the sampler's"]),
            (everybody_all, ["every rank gets the same"]),
            (torchs_own, ["torch's sampler"]),
            (returns_nothing, ["rank 0 gets nothing"]),
            ([0, 4, 8], ["`deal` is [0, 4, 8], not a function"]),
        ],
    },
    "10.3": {
        "correct": evaluate,
        "accepted": [with_a_loader],
        "blank": blank,
        "wrong": [
            (local, ["with 10 images on 3 ranks", "its own images", "0.750, 0.667, 1.000"]),
            (mean_of_means, ["with 10 images on 3 ranks", "the mean of the ranks' accuracies"]),
            (mean_with_nan, ["with 2 images on 3 ranks", "nan"]),
            (only_rank_0, ["the ranks say 0.800, 0.000, 0.000"]),
            (everything_everywhere, ["every rank reads all the images"]),
            (padded, ["the network reads 12: some of them twice"]),
            (whole_shares_only, ["only 9 are read"]),
            (forgets_the_return, ["gives nothing, not a number"]),
        ],
    },
}
