"""Answers to the exercises of lesson 09: the right ones, the blanks, and mistakes that people make."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

# 09.2: the loop, converted


def loop(net, batches, *, wrap=DDP, share=None, lr=0.5, reduction="mean", zero=True, divide=False):
    """The converted loop with one thing done otherwise at a time."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = wrap(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    mine = (share or (lambda rank, size: slice(rank, None, size)))(rank, size)
    for images, labels in batches:
        loss = F.cross_entropy(model(images[mine]), labels[mine], reduction=reduction)
        if divide:
            loss = loss / size
        if zero:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train(net, batches):
    loop(net, batches)


def in_blocks(net, batches):
    loop(net, batches, share=lambda rank, size: slice(64 // size * rank, 64 // size * (rank + 1)))


def blank(*args):
    raise NotImplementedError("your code here")


def without_ddp(net, batches):
    loop(net, batches, wrap=lambda net: net)


def calls_the_net_inside(net, batches):
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for images, labels in batches:
        loss = F.cross_entropy(net(images[rank::size]), labels[rank::size])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def wraps_in_the_loop(net, batches):
    rank, size = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for images, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(DDP(net)(images[rank::size]), labels[rank::size]).backward()
        optimizer.step()


def all_the_images(net, batches):
    loop(net, batches, share=lambda rank, size: slice(None))


def the_same_half(net, batches):
    loop(net, batches, share=lambda rank, size: slice(0, 64 // size))


def two_ranks_only(net, batches):
    loop(net, batches, share=lambda rank, size: slice(rank % 2, None, 2))


def larger_rate(net, batches):
    loop(net, batches, lr=0.5 * dist.get_world_size())


def divided_again(net, batches):
    loop(net, batches, divide=True)


def summed(net, batches):
    loop(net, batches, reduction="sum")


def never_zeroed(net, batches):
    loop(net, batches, zero=False)


def trains_a_copy(net, batches):
    loop(copy.deepcopy(net), batches)


def never_steps(net, batches):
    model = DDP(net)
    for images, labels in batches:
        F.cross_entropy(model(images), labels).backward()


def never_calls(net, batches):
    DDP(net)


def with_device_ids(net, batches):
    loop(net, batches, wrap=lambda net: DDP(net, device_ids=[dist.get_rank()]))


def whole_labels(net, batches):
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DDP(net)
    for images, labels in batches:
        F.cross_entropy(model(images[rank::size]), labels).backward()


def initialises_again(net, batches):
    dist.init_process_group("gloo")
    loop(net, batches)


# 09.3: gradients averaged by hand


def average_gradients(net):
    for p in net.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def added_up(net):
    for p in net.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)


def halved(net):
    for p in net.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= 2


def divided_twice(net):
    for p in net.parameters():
        if p.grad is not None:
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


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


def a_new_tensor(net):
    for p in net.parameters():
        if p.grad is not None:
            total = p.grad.clone()
            dist.all_reduce(total)
            total /= dist.get_world_size()


def frozen_too(net):
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def not_rank_1(net):
    if dist.get_rank() != 1:
        average_gradients(net)


# 09.4: an uneven split, mended


def my_loss(logits, labels, batch_size):
    return F.cross_entropy(logits, labels, reduction="sum") * dist.get_world_size() / batch_size


def by_the_share(logits, labels, batch_size):
    return F.cross_entropy(logits, labels) * len(labels) / batch_size * dist.get_world_size()


def still_a_mean(logits, labels, batch_size):
    return F.cross_entropy(logits, labels)


def a_sum(logits, labels, batch_size):
    return F.cross_entropy(logits, labels, reduction="sum")


def over_the_batch(logits, labels, batch_size):
    return F.cross_entropy(logits, labels, reduction="sum") / batch_size


def for_two_ranks(logits, labels, batch_size):
    return F.cross_entropy(logits, labels, reduction="sum") * 2 / batch_size


def the_wrong_way_round(logits, labels, batch_size):
    return F.cross_entropy(logits, labels) * batch_size / len(labels) / dist.get_world_size()


def one_loss_an_image(logits, labels, batch_size):
    return F.cross_entropy(logits, labels, reduction="none")


def a_float(logits, labels, batch_size):
    return my_loss(logits, labels, batch_size).item()


def returns_nothing(logits, labels, batch_size):
    my_loss(logits, labels, batch_size)


ANSWERS = {
    "09.1": {
        "correct": (128, 32, 4.5, 1 / 8),
        "blank": (..., ..., ..., ...),
        "wrong": [
            ((16, 32, 4.5, 1 / 8), ["`effective_batch` is 16", "one rank"]),
            ((2, 32, 4.5, 1 / 8), ["`effective_batch` is 2", "shared out"]),
            ((100, 32, 4.5, 1 / 8), ["`effective_batch` is 100", "not it"]),
            ((128, 256, 4.5, 1 / 8), ["`steps_per_epoch` is 256", "one rank alone"]),
            ((128, 32, 36, 1 / 8), ["`after_backward` is 36", "the sum"]),
            ((128, 32, 4.5, 8), ["`summed_loss` is 8", "wrong way round"]),
            ((128, 32, 4.5, 0.5), ["`summed_loss` is 0.5", "two ranks"]),
            ((128, 32, "4.5", 1 / 8), ["`after_backward` is '4.5'", "not a number"]),
        ],
    },
    "09.2": {
        "correct": train,
        "accepted": [in_blocks],
        "blank": blank,
        "wrong": [
            (without_ddp, ["on 2 ranks", "different weights", "nobody averages"]),
            (calls_the_net_inside, ["wrapped `net` in DDP", "calls `net` itself"]),
            (wraps_in_the_loop, ["you make 3 DDP models"]),
            (all_the_images, ["every rank worked on all 64 images"]),
            (the_same_half, ["32 of 64 images are nobody's", "work on the same ones"]),
            (two_ranks_only, ["on 4 ranks", "the ranks take 32, 32, 32, 32 of 64"]),
            (larger_rate, ["on 2 ranks", "a learning rate 2 times as large"]),
            (divided_again, ["on 2 ranks", "2 times smaller"]),
            (summed, ["the sum over a rank's images"]),
            (never_zeroed, ["gradients that are never set to zero"]),
            (trains_a_copy, ["the weights of `net` never moved"]),
            (never_steps, ["the weights of `net` never moved"]),
            (never_calls, ["nobody called the network"]),
            (with_device_ids, ["raised ValueError", "device_ids"]),
            (whole_labels, ["raised ValueError", "batch_size"]),
            (initialises_again, ["raised ValueError", "twice"]),
            ("train", ["`train` is 'train', not a function"]),
        ],
    },
    "09.3": {
        "correct": average_gradients,
        "blank": blank,
        "wrong": [
            (added_up, ["on 2 ranks", "every gradient is 2 times the mean"]),
            (halved, ["on 3 ranks", "every gradient is 1.5 times the mean"]),
            (divided_twice, ["on 2 ranks", "every gradient is 0.5 times the mean"]),
            (only_rank_0, ["rank 0 has the mean and rank 1 has not"]),
            (the_weights, ["the weights changed"]),
            (a_new_tensor, ["every rank still has its own gradients"]),
            (frozen_too, ["raised TypeError", "tensor"]),
            (not_rank_1, ["never finished", "waits in all_reduce for rank 1"]),
        ],
    },
    "09.4": {
        "correct": my_loss,
        "accepted": [by_the_share],
        "blank": blank,
        "wrong": [
            (still_a_mean, ["with 48 and 16 images", "% off"]),
            (a_sum, ["with 32 and 32 images", "32 times"]),
            (over_the_batch, ["with 32 and 32 images", "0.5 times"]),
            (for_two_ranks, ["with 40, 16 and 8 images", "0.6667 times"]),
            (the_wrong_way_round, ["with 48 and 16 images", "% off"]),
            (one_loss_an_image, ["raised TypeError", "shape (32,)"]),
            (a_float, ["raised TypeError", "not a tensor with one number"]),
            (returns_nothing, ["raised TypeError", "returned None"]),
        ],
    },
}
