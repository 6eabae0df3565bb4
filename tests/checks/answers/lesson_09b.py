"""Answers to the exercises of lesson 09b: the right ones, the blanks, and mistakes that people make."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F


def blank(*args):
    raise NotImplementedError("your code here")


# 09b.1: pack the buckets


def pack(sizes, cap):
    buckets = [[]]
    for size in sizes:
        if sum(buckets[-1]) >= cap:
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


def more_than_the_cap(sizes, cap):
    buckets = [[]]
    for size in sizes:
        if sum(buckets[-1]) > cap:
            buckets.append([])
        buckets[-1].append(size)
    return buckets


def forgets_the_last(sizes, cap):
    buckets, bucket = [], []
    for size in sizes:
        bucket.append(size)
        if sum(bucket) >= cap:
            buckets.append(bucket)
            bucket = []
    return buckets


def leaves_an_empty_one(sizes, cap):
    buckets = [[]]
    for size in sizes:
        buckets[-1].append(size)
        if sum(buckets[-1]) >= cap:
            buckets.append([])
    return buckets


def backwards(sizes, cap):
    return pack(sizes[::-1], cap)


def cuts_gradients(sizes, cap):
    total = sum(sizes)
    return [[min(cap, total - start)] for start in range(0, total, cap)]


def flat_list(sizes, cap):
    return sizes


def one_each(sizes, cap):
    return [[size] for size in sizes]


# 09b.2: one update of many portions


def loop(model, portions, *, hold=lambda number, last: number < last, backward_too=True, around=True, divide=None):
    """The loop with one thing done otherwise at a time."""
    last = len(portions) - 1
    for number, (images, labels) in enumerate(portions):
        held = hold(number, last)
        with model.no_sync() if held and around else nullcontext():
            loss = F.cross_entropy(model(images), labels) / (divide or len(portions))
        with model.no_sync() if held and backward_too else nullcontext():
            loss.backward()


def accumulate(model, portions):
    loop(model, portions)


def forward_only(model, portions):
    loop(model, portions, backward_too=False)  # odd to read, and right


def backward_only(model, portions):
    loop(model, portions, around=False)


def never_held_back(model, portions):
    loop(model, portions, hold=lambda number, last: False)


def all_held_back(model, portions):
    loop(model, portions, hold=lambda number, last: True)


def first_exchanges_too(model, portions):
    loop(model, portions, hold=lambda number, last: 0 < number < last)


def not_divided(model, portions):
    loop(model, portions, divide=1)


def divided_by_ranks_too(model, portions):
    loop(model, portions, divide=2 * len(portions))


def last_not_divided(model, portions):
    *first, last = portions
    with model.no_sync():
        for images, labels in first:
            (F.cross_entropy(model(images), labels) / len(portions)).backward()
    F.cross_entropy(model(last[0]), last[1]).backward()


def zeroed_in_between(model, portions):
    last = len(portions) - 1
    for number, (images, labels) in enumerate(portions):
        model.zero_grad()
        with model.no_sync() if number < last else nullcontext():
            (F.cross_entropy(model(images), labels) / len(portions)).backward()


def only_the_last(model, portions):
    images, labels = portions[-1]
    F.cross_entropy(model(images), labels).backward()


def the_network_inside(model, portions):
    for images, labels in portions:
        (F.cross_entropy(model.module(images), labels) / len(portions)).backward()


def no_backward(model, portions):
    for images, labels in portions:
        F.cross_entropy(model(images), labels)


# 09b.3: half the bytes


def half_the_bytes(state, bucket):
    small = bucket.buffer().to(torch.bfloat16) / dist.get_world_size()
    return dist.all_reduce(small, async_op=True).get_future().then(lambda _: small.float())


def by_value(state, bucket):
    small = bucket.buffer().bfloat16()
    promise = dist.all_reduce(small, async_op=True).get_future()
    return promise.then(lambda done: done.value()[0].float() / dist.get_world_size())


def full_size(state, bucket):
    whole = bucket.buffer() / dist.get_world_size()
    return dist.all_reduce(whole, async_op=True).get_future().then(lambda _: whole)


def in_float16(state, bucket):
    small = bucket.buffer().half() / dist.get_world_size()
    return dist.all_reduce(small, async_op=True).get_future().then(lambda _: small.float())


def never_divided(state, bucket):
    small = bucket.buffer().bfloat16()
    return dist.all_reduce(small, async_op=True).get_future().then(lambda _: small.float())


def divided_by_two(state, bucket):
    small = bucket.buffer().bfloat16() / 2
    return dist.all_reduce(small, async_op=True).get_future().then(lambda _: small.float())


def its_own_buffer(state, bucket):
    small = bucket.buffer().bfloat16()
    return dist.all_reduce(small, async_op=True).get_future().then(lambda _: bucket.buffer())


def left_in_bfloat16(state, bucket):
    small = bucket.buffer().bfloat16() / dist.get_world_size()
    return dist.all_reduce(small, async_op=True).get_future().then(lambda _: small)


def no_promise(state, bucket):
    small = bucket.buffer().bfloat16() / dist.get_world_size()
    dist.all_reduce(small)
    return small.float()


def not_async(state, bucket):
    small = bucket.buffer().bfloat16() / dist.get_world_size()
    return dist.all_reduce(small).get_future()


def returns_nothing(state, bucket):
    half_the_bytes(state, bucket)


def sends_nothing(state, bucket):
    promise = torch.futures.Future()
    promise.set_result(bucket.buffer().bfloat16().float())
    return promise


# 09b.4: the culprits, by name


def culprits(net, loss):
    loss.backward()
    return [name for name, p in net.named_parameters() if p.requires_grad and p.grad is None]


def without_backward(net, loss):
    named = {name: p for name, p in net.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name for name, gradient in zip(named, gradients, strict=True) if gradient is None}


def frozen_too(net, loss):
    loss.backward()
    return [name for name, p in net.named_parameters() if p.grad is None]


def zeros_too(net, loss):
    loss.backward()
    wanting = [(name, p) for name, p in net.named_parameters() if p.requires_grad]
    return [name for name, p in wanting if p.grad is None or not p.grad.any()]


def only_zeros(net, loss):
    loss.backward()
    return [name for name, p in net.named_parameters() if p.grad is not None and not p.grad.any()]


def forgot_backward(net, loss):
    return [name for name, p in net.named_parameters() if p.requires_grad and p.grad is None]


def the_parameters(net, loss):
    loss.backward()
    return [p for p in net.parameters() if p.requires_grad and p.grad is None]


def only_weights(net, loss):
    return [name for name in culprits(net, loss) if "weight" in name]


def prints_only(net, loss):
    print(culprits(net, loss))


ANSWERS = {
    "09b.1": {
        "correct": pack,
        "blank": blank,
        "wrong": [
            (never_over_the_cap, ["pack([3, 4, 1, 5, 2], 5) gives [[3], [4, 1]", "before it is full"]),
            (more_than_the_cap, ["DDP makes of it [[65536], [65536]", "full already"]),
            (forgets_the_last, ["loses 1 of 5 gradients"]),
            (leaves_an_empty_one, ["empty bucket"]),
            (backwards, ["turns the order round"]),
            (cuts_gradients, ["loses 2 of 5 gradients"]),
            (flat_list, ["gives [3, 4, 1, 5, 2]"]),
            (one_each, ["before it is full"]),
            (lambda sizes, cap: None, ["gives None"]),
            ([[3, 3], [3]], ["not a function"]),
        ],
    },
    "09b.2": {
        "correct": accumulate,
        "accepted": [forward_only],
        "blank": blank,
        "wrong": [
            (backward_only, ["with 4 portions, each bucket left 4 times"]),
            (never_held_back, ["each bucket left 4 times"]),
            (first_exchanges_too, ["each bucket left 2 times"]),
            (all_held_back, ["no bucket ever left"]),
            (not_divided, ["4 times that of all images"]),
            (divided_by_ranks_too, ["0.5 times that of all images"]),
            (last_not_divided, ["% off that of all images"]),
            (zeroed_in_between, ["that of the last portion alone"]),
            (only_the_last, ["8 images of a rank's 32"]),
            (the_network_inside, ["the network inside DDP"]),
            (no_backward, ["no gradients"]),
        ],
    },
    "09b.3": {
        "correct": half_the_bytes,
        "accepted": [by_value],
        "blank": blank,
        "wrong": [
            (full_size, ["you sent torch.float32, 4 bytes a number"]),
            (in_float16, ["you sent torch.float16"]),
            (never_divided, ["on 2 ranks", "2 times the mean"]),
            (divided_by_two, ["on 3 ranks", "1.5 times the mean"]),
            (its_own_buffer, ["every rank still has its own gradients"]),
            (left_in_bfloat16, ["the promise is of torch.bfloat16"]),
            (no_promise, ["returned Tensor, not a Future"]),
            (not_async, ["has no attribute 'get_future'"]),
            (returns_nothing, ["returned NoneType, not a Future"]),
            (sends_nothing, ["nothing was all-reduced"]),
        ],
    },
    "09b.4": {
        "correct": culprits,
        "accepted": [without_backward],
        "blank": blank,
        "wrong": [
            (frozen_too, ["with a frozen layer", "innocent"]),
            (zeros_too, ["with a gradient of zeros", "innocent"]),
            (only_zeros, ["'dogs.bias' gets away"]),
            (forgot_backward, ["innocent"]),
            (the_parameters, ["`culprits` gives list"]),
            (only_weights, ["'dogs.bias' gets away"]),
            (prints_only, ["gives None"]),
        ],
    },
}
