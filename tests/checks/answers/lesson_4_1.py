"""Answers to the exercises of lesson 4.1: the right ones, the blanks, and mistakes that people make."""

import copy
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

# 4.1.2: the loop, converted

WRAPS = {"DDP": DDP, "no DDP": lambda net: net, "device_ids": lambda net: DDP(net, device_ids=[dist.get_rank()])}
SHARES = {
    "every n-th": lambda rank, size: slice(rank, None, size),
    "a block": lambda rank, size: slice(64 // size * rank, 64 // size * (rank + 1)),
    "all": lambda rank, size: slice(None),
    "the same half": lambda rank, size: slice(0, 64 // size),
    "every other": lambda rank, size: slice(rank % 2, None, 2),
}


def train(
    net, batches, *, wrap="DDP", call_net=False, share="every n-th", whole_labels=False, reduction="mean",
    larger_rate=False, divide=False, zero=True, step=True,
):  # fmt: skip
    """The converted loop, with one thing done otherwise at a time."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = WRAPS[wrap](net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5 * (size if larger_rate else 1))
    mine = SHARES[share](rank, size)
    for images, labels in batches:
        logits = (net if call_net else model)(images[mine])
        loss = F.cross_entropy(logits, labels if whole_labels else labels[mine], reduction=reduction)
        if zero:
            optimizer.zero_grad()
        (loss / size if divide else loss).backward()
        if step:
            optimizer.step()


def wraps_in_the_loop(net, batches):
    rank, size = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for images, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(DDP(net)(images[rank::size]), labels[rank::size]).backward()
        optimizer.step()


def trains_a_copy(net, batches):
    train(copy.deepcopy(net), batches)


def never_calls(net, batches):
    DDP(net)


def initialises_again(net, batches):
    dist.init_process_group("gloo")
    train(net, batches)


# 4.1.3: gradients averaged by hand


def average_gradients(net, *, divisor=None, times=1, frozen_too=False, a_new_tensor=False):
    for p in net.parameters():
        if p.grad is not None or frozen_too:
            gradient = p.grad.clone() if a_new_tensor else p.grad
            dist.all_reduce(gradient)
            gradient /= (divisor or dist.get_world_size()) ** times


def only_rank_0(net):
    for p in net.parameters():
        if p.grad is not None:
            dist.reduce(p.grad, dst=0)
            if dist.get_rank() == 0:
                p.grad /= dist.get_world_size()


def the_weights(net):
    for p in net.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


def not_rank_1(net):
    if dist.get_rank() != 1:
        average_gradients(net)


# 4.1.4: an uneven split, mended


def my_loss(logits, labels, batch_size, *, ranks=None):
    return F.cross_entropy(logits, labels, reduction="sum") * (ranks or dist.get_world_size()) / batch_size


def by_the_share(logits, labels, batch_size):
    return F.cross_entropy(logits, labels) * len(labels) / batch_size * dist.get_world_size()


def the_wrong_way_round(logits, labels, batch_size):
    return F.cross_entropy(logits, labels) * batch_size / len(labels) / dist.get_world_size()


def plain_loss(logits, labels, batch_size, **options):
    return F.cross_entropy(logits, labels, **options)


ANSWERS = {
    "4.1.1": {"correct": (128, 32, 4.5, 1 / 8)},
    "4.1.2": {
        "correct": train,
        "accepted": [partial(train, share="a block")],
        "wrong": [
            (partial(train, wrap="no DDP"), ["on 2 ranks", "different weights", "nobody averages"]),
            (partial(train, call_net=True), ["wrapped `net` in DDP", "calls `net` itself"]),
            (wraps_in_the_loop, ["you make 3 DDP models"]),
            (partial(train, share="all"), ["every rank worked on all 64 images"]),
            (partial(train, share="the same half"), ["32 of 64 images are nobody's", "work on the same ones"]),
            (partial(train, share="every other"), ["on 4 ranks", "the ranks take 32, 32, 32, 32 of 64"]),
            (partial(train, larger_rate=True), ["on 2 ranks", "a learning rate 2 times as large"]),
            (partial(train, divide=True), ["on 2 ranks", "2 times smaller"]),
            (partial(train, reduction="sum"), ["the sum over a rank's images"]),
            (partial(train, zero=False), ["gradients that are never set to zero"]),
            (trains_a_copy, ["the weights of `net` never moved"]),
            (partial(train, step=False), ["the weights of `net` never moved"]),
            (never_calls, ["nobody called the network"]),
            (partial(train, wrap="device_ids"), ["raised ValueError", "device_ids"]),
            (partial(train, whole_labels=True), ["raised ValueError", "batch_size"]),
            (initialises_again, ["raised ValueError", "twice"]),
            ("train", ["`train` is 'train', not a function"]),
        ],
    },
    "4.1.3": {
        "correct": average_gradients,
        "wrong": [
            (partial(average_gradients, times=0), ["on 2 ranks", "every gradient is 2 times the mean"]),
            (partial(average_gradients, divisor=2), ["on 3 ranks", "every gradient is 1.5 times the mean"]),
            (partial(average_gradients, times=2), ["on 2 ranks", "every gradient is 0.5 times the mean"]),
            (only_rank_0, ["rank 0 has the mean and rank 1 has not"]),
            (the_weights, ["the weights changed"]),
            (partial(average_gradients, a_new_tensor=True), ["every rank still has its own gradients"]),
            (partial(average_gradients, frozen_too=True), ["raised TypeError", "tensor"]),
            (not_rank_1, ["never finished", "waits in all_reduce for rank 1"]),
        ],
    },
    "4.1.4": {
        "correct": my_loss,
        "accepted": [by_the_share],
        "wrong": [
            (plain_loss, ["with 48 and 16 images", "% off"]),
            (partial(plain_loss, reduction="sum"), ["with 32 and 32 images", "32 times"]),
            (partial(my_loss, ranks=1), ["with 32 and 32 images", "0.5 times"]),
            (partial(my_loss, ranks=2), ["with 40, 16 and 8 images", "0.6667 times"]),
            (the_wrong_way_round, ["with 48 and 16 images", "% off"]),
            (partial(plain_loss, reduction="none"), ["raised TypeError", "shape (32,)"]),
            (lambda *given: my_loss(*given).item(), ["raised TypeError", "not a tensor with one number"]),
            (lambda *given: None, ["raised TypeError", "returned None"]),
        ],
    },
}
