"""Answers to the exercises of lesson 4.6: the right ones, the blanks, and mistakes that people make."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from ddplab.hardware import device

# 4.6.2: a sampler of your own


def order_of(n, seed):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()


def dealt(order, rank, ranks):
    return (order * ranks)[rank : -(-len(order) // ranks) * ranks : ranks]


def deal(n, rank, ranks, epoch):
    order = order_of(n, epoch)
    while len(order) % ranks:
        order += order[: -len(order) % ranks]
    return order[rank::ranks]


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


def padded_with_the_last(n, rank, ranks, epoch):
    order = order_of(n, epoch)
    return (order + [order[-1]] * (-n % ranks))[rank::ranks]


def everybody_all(n, rank, ranks, epoch):
    return order_of(n, epoch)[: -(-n // ranks)]


def torchs_own(n, rank, ranks, epoch):
    sampler = DistributedSampler(range(n), num_replicas=ranks, rank=rank)
    sampler.set_epoch(epoch)
    return list(sampler)


# 4.6.3: one accuracy


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


ANSWERS = {
    "4.6.1": {"correct": (104, 5, 4, 81 / 104), "accepted": [(104, 5, 4, 0.779)]},
    "4.6.2": {
        "correct": deal,
        "accepted": [lambda n, rank, ranks, epoch: dealt(order_of(n, epoch), rank, ranks)],
        "wrong": [
            (without_padding, ["with 10 samples on 4 ranks", "3, 3, 2, 2"]),
            (padded_once, ["with 3 samples on 8 ranks", "1, 1, 1, 1, 1, 1, 0, 0"]),
            (dropped, ["with 10 samples on 4 ranks", "2 samples and not 3"]),
            (in_blocks, ["with 12 samples on 4 ranks", "a block of the order"]),
            (lambda n, rank, ranks, epoch: dealt(list(range(n)), rank, ranks), ["nothing is shuffled"]),
            (lambda n, rank, ranks, epoch: deal(n, rank, ranks, 0), ["epoch 3", "the order is that of epoch 0"]),
            (lambda n, rank, ranks, epoch: deal(n, rank, ranks, epoch + rank), ["do not deal from the same order"]),
            (padded_with_the_last, ["with 10 samples on 4 ranks", "the padding is"]),
            (lambda n, rank, ranks, epoch: deal(n, rank, ranks, epoch + 42), ["the order is not the sampler's"]),
            (everybody_all, ["every rank gets the same"]),
            (torchs_own, ["torch's sampler"]),
            (lambda n, rank, ranks, epoch: None, ["rank 0 gets nothing"]),
            ([0, 4, 8], ["`deal` is [0, 4, 8], not a function"]),
        ],
    },
    "4.6.3": {
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
}
