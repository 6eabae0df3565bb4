"""Answers to the exercises of lesson 4.2: the right ones, the blanks, and mistakes that people make."""

from contextlib import nullcontext
from functools import partial
from operator import ge, gt

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

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


# 4.2.2: half the bytes


def half_the_bytes(state, bucket, *, kind=torch.bfloat16, back=torch.float32, ranks=None, buffer=False):
    small = bucket.buffer().to(kind) / (ranks or dist.get_world_size())
    promise = dist.all_reduce(small, async_op=True).get_future()
    return promise.then(lambda _: bucket.buffer() if buffer else small.to(back))


def by_value(state, bucket):
    small = bucket.buffer().bfloat16()
    promise = dist.all_reduce(small, async_op=True).get_future()
    return promise.then(lambda done: done.value()[0].float() / dist.get_world_size())


def imported_by_name(state, bucket):
    from torch.distributed import all_reduce

    small = bucket.buffer().bfloat16() / dist.get_world_size()
    return all_reduce(small, async_op=True).get_future().then(lambda _: small.float())


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


# your turn


def listen_and_wait(model, notes):
    def hook(state, bucket):
        mean, done = bucket.buffer(), torch.futures.Future()
        notes.append(mean.numel() * mean.element_size())
        dist.all_reduce(mean)
        done.set_result(mean / dist.get_world_size())
        return done

    model.register_comm_hook(None, hook)


def listen_by_a_lambda(model, notes):
    model.register_comm_hook(
        notes, lambda notes, bucket: notes.append(bucket.buffer().nbytes) or allreduce_hook(None, bucket)
    )


def at_the_first_door(model, notes):
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda it: notes.append(it.grad.nbytes))


def at_once(model, notes):
    notes.append(sum(p.nbytes for p in model.parameters()))
    model.register_comm_hook(None, allreduce_hook)


def with_the_hook(hook, state=None):
    """Another hook is registered: `hook(notes, state, bucket)`."""
    return lambda model, notes: model.register_comm_hook(
        notes if state == "notes" else state, lambda state, bucket: hook(notes, state, bucket)
    )


def divided_afterwards_too(notes, state, bucket):
    notes.append(bucket.buffer().nbytes)
    promise = allreduce_hook(state, bucket)
    return promise.then(lambda done: done.value().div(dist.get_world_size()))


def adds_to_the_notes(model, notes):
    def hook(state, bucket):
        notes += bucket.buffer().nbytes  # noqa: F823, F841
        return allreduce_hook(state, bucket)

    model.register_comm_hook(None, hook)


def the_mean_itself(notes, state, bucket):
    notes.append(bucket.buffer().nbytes)
    return allreduce_hook(state, bucket).wait()


def what_it_began(notes, state, bucket):
    notes.append(bucket.buffer().nbytes)
    return dist.all_reduce(bucket.buffer(), async_op=True)


def held_too_late(model, portions, loss_of):
    for number, portion in enumerate(portions, 1):
        loss = loss_of(model, portion) / len(portions)
        with nullcontext() if number == len(portions) else model.no_sync():
            loss.backward()


def divided_afterwards(model, portions, loss_of):
    of_all = lambda model, portion: loss_of(model, portion) * len(portions)  # noqa: E731
    in_a_loop(model, portions, of_all)
    for p in model.parameters():
        p.grad /= len(portions)


def of_four(model, portions, loss_of):
    with model.no_sync():
        for portion in portions[:3]:
            (loss_of(model, portion) / 4).backward()
    (loss_of(model, portions[3]) / 4).backward()


def divided_by_four(model, portions, loss_of):
    for number, portion in enumerate(portions, 1):
        with nullcontext() if number == len(portions) else model.no_sync():
            (loss_of(model, portion) / 4).backward()


def in_a_loop(model, portions, loss_of):
    for number, portion in enumerate(portions, 1):
        with nullcontext() if number == len(portions) else model.no_sync():
            loss = loss_of(model, portion)
        loss.backward(torch.full_like(loss, 1 / len(portions)))


def the_network_inside(model, portions, loss_of):
    """Without DDP's forward pass a backward is as local as under `no_sync`."""
    for number, portion in enumerate(portions, 1):
        (loss_of(model if number == len(portions) else model.module, portion) / len(portions)).backward()


def all_forward_first(model, portions, loss_of):
    losses = []
    for number, portion in enumerate(portions, 1):
        with model.no_sync() if number < len(portions) else nullcontext():
            losses.append(loss_of(model, portion) / len(portions))
    for loss in losses:
        loss.backward()


def one_backward(model, portions, loss_of, hold=False):
    *first, last = portions
    with model.no_sync() if hold else nullcontext():
        losses = [loss_of(model, portion) for portion in first]
    torch.stack([*losses, loss_of(model, last)]).mean().backward()


def only_the_last_backward(model, portions, loss_of):
    for portion in portions:
        loss = loss_of(model, portion) / len(portions)
    loss.backward()


def without_backward(net, loss):
    named = {name: p for name, p in net.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return [name for name, gradient in zip(named, gradients, strict=True) if gradient is None]


def of_the_dogs(net, loss):
    loss.backward()
    return [name for name, p in net.named_parameters() if name.startswith("dogs") and p.grad is None]


def asked_for_gradients(net, loss, **options):
    names, them = zip(*net.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, them, **options)
    return [name for name, gradient in zip(names, gradients, strict=True) if gradient is None]


def set_to_none(net, loss):
    loss.backward()
    net.zero_grad()
    return [name for name, p in net.named_parameters() if p.requires_grad and p.grad is None]


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
        "correct": half_the_bytes,
        "accepted": [by_value, imported_by_name],
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
    "4.2.a": {
        "accepted": [listen_and_wait, listen_by_a_lambda],
        "wrong": [
            (at_the_first_door, ["each parameter's bytes"]),
            (at_once, ["written before: 40"]),
            (lambda model, notes: model.register_comm_hook(None, lambda state, it: None), ["raised KeyError"]),
            (with_the_hook(lambda notes, state, bucket: None), ["the hook returned nothing, not a Future"]),
            (with_the_hook(the_mean_itself), ["the hook returned a Tensor, not a Future"]),
            (with_the_hook(what_it_began), ["the hook returned a Work, not a Future"]),
            (with_the_hook(the_mean_itself, state="notes"), ["'list' object has no attribute 'size'"]),
            (with_the_hook(divided_afterwards_too), ["the gradient is divided twice"]),
            (adds_to_the_notes, ["raised UnboundLocalError"]),
        ],
    },
    "4.2.b": {
        "accepted": [in_a_loop, the_network_inside, divided_afterwards],
        "wrong": [
            (all_forward_first, ["all portions go forward before the first `backward()`"]),
            (one_backward, ["there is one `backward()` for all portions"]),
            (partial(one_backward, hold=True), ["there is one `backward()` for all portions"]),
            (
                lambda model, portions, loss_of: loss_of(model, torch.cat(portions)).backward(),
                ["there is one `backward()`"],
            ),
            (lambda model, portions, loss_of: [loss_of(model, it) for it in portions], ["gradient is none"]),
            (held_too_late, ["every portion is exchanged: no forward pass stands in `no_sync()`"]),
            (only_the_last_backward, ["only the last portion is left"]),
            (of_four, ["on 3 ranks", "right for four portions only"]),
            (divided_by_four, ["on 3 ranks", "divided by 4"]),
        ],
    },
    "4.2.c": {
        "accepted": [without_backward, lambda net, loss: set(without_backward(net, loss))],
        "wrong": [
            (lambda net, loss: print(without_backward(net, loss)), ["raised TypeError"]),
            (of_the_dogs, ["only dogs"]),
            (lambda net, loss: [*asked_for_gradients(net, loss)], ["not have been used in the graph"]),
            (lambda net, loss: [*asked_for_gradients(net, loss, allow_unused=True)], ["does not require grad"]),
            (set_to_none, ["everybody is accused, as before any `backward()`"]),
            (lambda net, loss: next((it for it in without_backward(net, loss)), None), ["one text comes back, or not"]),
            (lambda net, loss: [name for name, _ in net.named_parameters], ["'method' object is not iterable"]),
        ],
    },
}
