"""Answers to the exercises of lesson 4.2: the right ones, the blanks, and mistakes that people make."""

from contextlib import nullcontext
from functools import partial
from operator import ge, gt

import torch
import torch.distributed as dist
import torch.nn.functional as F

# 4.2.1: pack the buckets


def pack(sizes, cap, full=ge):
    buckets = [[]]
    for size in sizes:
        if full(sum(buckets[-1]), cap):
            buckets.append([])
        buckets[-1].append(size)
    return buckets


def never_over_the_cap(sizes, cap):
    buckets = [[]]
    for size in sizes:
        if buckets[-1] and sum(buckets[-1]) + size > cap:
            buckets.append([])
        buckets[-1].append(size)
    return buckets


def leaves_an_empty_one(sizes, cap):
    buckets = [[]]
    for size in sizes:
        buckets[-1].append(size)
        if sum(buckets[-1]) >= cap:
            buckets.append([])
    return buckets


def forgets_the_last(sizes, cap):
    return leaves_an_empty_one(sizes, cap)[:-1]


def cuts_gradients(sizes, cap):
    total = sum(sizes)
    return [[min(cap, total - start)] for start in range(0, total, cap)]


# 4.2.2: one update of many portions

HELD = {
    "all but the last": lambda number, last: number < last,
    "none": lambda number, last: False,
    "all": lambda number, last: True,
    "all but the first and the last": lambda number, last: 0 < number < last,
}


def accumulate(model, portions, *, held="all but the last", forward=True, backward=True, divide=None, zero=False):
    """The loop, with one thing done otherwise at a time; forward and backward: what `no_sync` goes around."""
    last = len(portions) - 1
    for number, (images, labels) in enumerate(portions):
        if zero:
            model.zero_grad()
        hold = HELD[held](number, last)
        with model.no_sync() if hold and forward else nullcontext():
            loss = F.cross_entropy(model(images), labels) / (divide or len(portions))
        with model.no_sync() if hold and backward else nullcontext():
            loss.backward()


def last_not_divided(model, portions):
    *first, last = portions
    with model.no_sync():
        for images, labels in first:
            (F.cross_entropy(model(images), labels) / len(portions)).backward()
    F.cross_entropy(model(last[0]), last[1]).backward()


def the_network_inside(model, portions):
    for images, labels in portions:
        (F.cross_entropy(model.module(images), labels) / len(portions)).backward()


def no_backward(model, portions):
    for images, labels in portions:
        F.cross_entropy(model(images), labels)


# 4.2.3: half the bytes


def half_the_bytes(state, bucket, *, kind=torch.bfloat16, back=torch.float32, ranks=None, buffer=False):
    small = bucket.buffer().to(kind) / (ranks or dist.get_world_size())
    promise = dist.all_reduce(small, async_op=True).get_future()
    return promise.then(lambda _: bucket.buffer() if buffer else small.to(back))


def by_value(state, bucket):
    small = bucket.buffer().bfloat16()
    promise = dist.all_reduce(small, async_op=True).get_future()
    return promise.then(lambda done: done.value()[0].float() / dist.get_world_size())


def no_promise(state, bucket):
    small = bucket.buffer().bfloat16() / dist.get_world_size()
    dist.all_reduce(small)
    return small.float()


def not_async(state, bucket):
    return dist.all_reduce(bucket.buffer().bfloat16()).get_future()


def sends_nothing(state, bucket):
    promise = torch.futures.Future()
    promise.set_result(bucket.buffer().bfloat16().float())
    return promise


# 4.2.4: the culprits, by name


def culprits(net, loss, *, backward=True, guilty=lambda p: p.requires_grad and p.grad is None):
    if backward:
        loss.backward()
    return [name for name, p in net.named_parameters() if guilty(p)]


def without_backward(net, loss):
    named = {name: p for name, p in net.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name for name, gradient in zip(named, gradients, strict=True) if gradient is None}


def frozen_too(net, loss):
    return culprits(net, loss, guilty=lambda p: p.grad is None)


def zeros_too(net, loss):
    return culprits(net, loss, guilty=lambda p: p.requires_grad and (p.grad is None or not p.grad.any()))


def only_zeros(net, loss):
    return culprits(net, loss, guilty=lambda p: p.grad is not None and not p.grad.any())


def the_parameters(net, loss):
    return [net.get_parameter(name) for name in culprits(net, loss)]


def only_weights(net, loss):
    return [name for name in culprits(net, loss) if "weight" in name]


ANSWERS = {
    "4.2.1": {
        "correct": pack,
        "wrong": [
            (never_over_the_cap, ["pack([3, 4, 1, 5, 2], 5) gives [[3], [4, 1]", "before it is full"]),
            (partial(pack, full=gt), ["DDP makes of it [[65536], [65536]", "full already"]),
            (forgets_the_last, ["loses 1 of 5 gradients"]),
            (leaves_an_empty_one, ["empty bucket"]),
            (lambda sizes, cap: pack(sizes[::-1], cap), ["turns the order round"]),
            (cuts_gradients, ["loses 2 of 5 gradients"]),
            (lambda sizes, cap: sizes, ["gives [3, 4, 1, 5, 2]"]),
            (lambda sizes, cap: [[size] for size in sizes], ["before it is full"]),
            (lambda sizes, cap: None, ["gives None"]),
            ([[3, 3], [3]], ["not a function"]),
        ],
    },
    "4.2.2": {
        "correct": accumulate,
        "accepted": [partial(accumulate, backward=False)],
        "wrong": [
            (partial(accumulate, forward=False), ["with 4 portions, each bucket left 4 times"]),
            (partial(accumulate, held="none"), ["each bucket left 4 times"]),
            (partial(accumulate, held="all but the first and the last"), ["each bucket left 2 times"]),
            (partial(accumulate, held="all"), ["no bucket ever left"]),
            (partial(accumulate, divide=1), ["4 times that of all images"]),
            (partial(accumulate, divide=8), ["0.5 times that of all images"]),
            (last_not_divided, ["% off that of all images"]),
            (partial(accumulate, zero=True), ["that of the last portion alone"]),
            (lambda model, portions: accumulate(model, portions[-1:]), ["8 images of a rank's 32"]),
            (the_network_inside, ["the network inside DDP"]),
            (no_backward, ["no gradients"]),
        ],
    },
    "4.2.3": {
        "correct": half_the_bytes,
        "accepted": [by_value],
        "wrong": [
            (partial(half_the_bytes, kind=torch.float32), ["you sent torch.float32, 4 bytes a number"]),
            (partial(half_the_bytes, kind=torch.float16), ["you sent torch.float16"]),
            (partial(half_the_bytes, ranks=1), ["on 2 ranks", "2 times the mean"]),
            (partial(half_the_bytes, ranks=2), ["on 3 ranks", "1.5 times the mean"]),
            (partial(half_the_bytes, buffer=True), ["every rank still has its own gradients"]),
            (partial(half_the_bytes, back=torch.bfloat16), ["the promise is of torch.bfloat16"]),
            (no_promise, ["returned Tensor, not a Future"]),
            (not_async, ["has no attribute 'get_future'"]),
            (lambda state, bucket: None, ["returned NoneType, not a Future"]),
            (sends_nothing, ["nothing was all-reduced"]),
        ],
    },
    "4.2.4": {
        "correct": culprits,
        "accepted": [without_backward],
        "wrong": [
            (frozen_too, ["with a frozen layer", "innocent"]),
            (zeros_too, ["with a gradient of zeros", "innocent"]),
            (only_zeros, ["'dogs.bias' gets away"]),
            (partial(culprits, backward=False), ["innocent"]),
            (the_parameters, ["`culprits` gives list"]),
            (only_weights, ["'dogs.bias' gets away"]),
            (lambda net, loss: print(culprits(net, loss)), ["gives None"]),
        ],
    },
}
