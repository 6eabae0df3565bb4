"""Answers to the exercises of lesson 3.3: the right ones, the blanks, and mistakes that people make."""

from functools import partial

import torch
import torch.distributed as dist
from torch.distributed import all_reduce

# 3.3.1: piece r to rank r


def pass_right(chunk, place):
    rank, size = dist.get_rank(), dist.get_world_size()
    arrived = torch.empty_like(place)
    send = dist.P2POp(dist.isend, chunk, (rank + 1) % size)
    recv = dist.P2POp(dist.irecv, arrived, (rank - 1) % size)
    for work in dist.batch_isend_irecv([send, recv]):
        work.wait()
    return arrived


def reduce_scatter(chunks, first=-1, steps=-1, lost=False):
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(size + steps):
        goes, comes = (rank + first - step) % size, (rank + first - step - 1) % size
        arrived = pass_right(chunks[goes], chunks[comes])
        if lost:
            chunks[comes] = chunks[comes] + arrived
        else:
            chunks[comes] += arrived


def the_whole(chunks):
    reduce_scatter(chunks)
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(size - 1):
        goes, comes = (rank - step) % size, (rank - step - 1) % size
        chunks[comes].copy_(pass_right(chunks[goes], chunks[comes]))


def always_the_same(chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(size - 1):
        chunks[rank] += pass_right(chunks[rank], chunks[rank])


def without_modulo(chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(size - 1):
        chunks[rank + step] += pass_right(chunks[rank + step + 1], chunks[rank + step])


def by_all_reduce(chunks):
    for chunk in chunks:
        dist.all_reduce(chunk)


def to_the_left(chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    arrived = torch.empty_like(chunks[0])
    for step in range(size - 1):
        send = dist.P2POp(dist.isend, chunks[(rank + 1 + step) % size], (rank - 1) % size)
        recv = dist.P2POp(dist.irecv, arrived, (rank + 1) % size)
        for work in dist.batch_isend_irecv([send, recv]):
            work.wait()
        chunks[(rank + 2 + step) % size] += arrived


# 3.3.2: once more around


def all_gather(chunks, first=0, steps=-1, how="copy"):
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(size + steps):
        goes, comes = (rank + first - step) % size, (rank + first - step - 1) % size
        arrived = pass_right(chunks[goes], chunks[comes])
        if how == "copy":
            chunks[comes].copy_(arrived)
        elif how == "add":
            chunks[comes] += arrived
        else:
            chunks[comes] = arrived


def always_its_own(chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(size - 1):
        chunks[(rank - step - 1) % size].copy_(pass_right(chunks[rank], chunks[rank]))


def by_name(chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    which = rank
    for _ in range(size - 1):
        arrived = pass_right(chunks[which], chunks[which])
        which = (which - 1) % size
        chunks[which][:] = arrived


def by_broadcast(chunks):
    for rank, chunk in enumerate(chunks):
        dist.broadcast(chunk, src=rank)


# 3.3.3: one message


def average_in_one(net, divide=None):
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    vector = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(vector)
    vector /= divide or dist.get_world_size()
    for grad, piece in zip(grads, vector.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(piece.view_as(grad))


def one_by_one(net, send=True):
    for p in net.parameters():
        if p.grad is not None:
            if send:
                dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def never_back(net):
    vector = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
    dist.all_reduce(vector)
    vector /= dist.get_world_size()


def frozen_too(net):
    vector = torch.cat([p.grad.flatten() for p in net.parameters()])
    dist.all_reduce(vector)


def in_reverse(net):
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    vector = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(vector)
    vector /= dist.get_world_size()
    start = 0
    for grad in reversed(grads):
        grad.copy_(vector[start : start + grad.numel()].view_as(grad))
        start += grad.numel()


def own_vector(net):
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    vector, start = torch.zeros(sum(grad.numel() for grad in grads), device=grads[0].device), 0
    for grad in grads:
        vector[start : start + grad.numel()] = grad.flatten()
        start += grad.numel()
    all_reduce(vector)  # imported by name
    start = 0
    for p in net.parameters():
        if p.grad is not None:
            p.grad = vector[start : start + p.numel()].view(p.shape) / dist.get_world_size()
            start += p.numel()


def cut_by_all_parameters(net):
    vector = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
    dist.all_reduce(vector)
    vector /= dist.get_world_size()
    pieces = vector.split([p.numel() for p in net.parameters()])
    for p, piece in zip(net.parameters(), pieces, strict=True):
        p.grad.copy_(piece.view_as(p))


def thaws(net):
    for p in net.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    average_in_one(net)


# your turn


def plain_with_if(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        parts = [torch.empty_like(x) for _ in range(1, size)]
        for work in [dist.irecv(part, src=other) for other, part in enumerate(parts, 1)]:
            work.wait()
        x += sum(parts)
        for other in range(1, size):
            dist.send(x, dst=other)
    else:
        torch.distributed.send(x, 0)
        torch.distributed.recv(x, 0)


def there_and_back(x):
    rank, last, came = dist.get_rank(), dist.get_world_size() - 1, torch.empty_like(x)
    if rank > 0:
        dist.recv(came, rank - 1)
        x += came
    if rank < last:
        dist.send(x, rank + 1)
        dist.recv(x, rank + 1)
    if rank > 0:
        dist.send(x, rank - 1)


def two_others(x):
    rank = dist.get_rank()
    if rank == 0:
        for other in (1, 2):
            dist.recv(part := torch.empty_like(x), other)
            x += part
        for other in (1, 2):
            dist.send(x, other)
    else:
        dist.send(x, 0)
        dist.recv(x, 0)


def average_divided_first(net):
    for p in net.parameters():
        if p.requires_grad:
            p.grad = p.grad / dist.get_world_size()
            all_reduce(p.grad)


def average_as_one(net):
    with_one = [p for p in net.parameters() if p.grad is not None]
    vector = torch.cat([p.grad.flatten() for p in with_one])
    dist.all_reduce(vector)
    for p, piece in zip(with_one, vector.split([p.numel() for p in with_one]), strict=True):
        p.grad.copy_(piece.view_as(p) / dist.get_world_size())


def forgets_the_frozen(net):
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def step_by_sgd(net, images, labels, lr=0.5):
    rank, each = dist.get_rank(), len(images) // dist.get_world_size()
    optimizer = torch.optim.SGD(net.parameters(), lr)
    optimizer.zero_grad()
    mine = slice(rank * each, rank * each + each)
    torch.nn.CrossEntropyLoss()(net(images[mine]), labels[mine]).backward()
    average_divided_first(net)
    optimizer.step()


def step_by_autograd(net, images, labels, lr=0.5):
    rank, size, parameters = dist.get_rank(), dist.get_world_size(), list(net.parameters())
    loss = torch.nn.functional.cross_entropy(net(images[rank::size]), labels[rank::size]) / size
    for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        dist.all_reduce(gradient)
        p.data -= lr * gradient


def step_with_gradients_on(net, images, labels):
    step_by_sgd(net, images, labels, lr=0.0)
    for p in net.parameters():
        p -= 0.5 * p.grad


ANSWERS = {
    "3.3.1": {
        "correct": reduce_scatter,
        "wrong": [
            (
                partial(reduce_scatter, first=0),
                ["on 2 ranks", "rank 0 ends with chunk 1 finished", "the ring of the lesson"],
            ),
            (partial(reduce_scatter, steps=0), ["on 2 ranks"]),
            (partial(reduce_scatter, steps=-2), ["nothing was passed on"]),
            (partial(reduce_scatter, lost=True), ["right in the list, but the tensor is as it was"]),
            (partial(reduce_scatter, first=0, lost=True), ["the chunks are as they were"]),
            (to_the_left, ["on 3 ranks", "rank 0 sends to rank 2"]),
            (the_whole, ["every rank has the whole sum, after 2 steps"]),
            (always_the_same, ["on 2 ranks", "the sum is"]),
            (without_modulo, ["raised IndexError", "out of range"]),
            (by_all_reduce, ["you called `dist.all_reduce`"]),
        ],
    },
    "3.3.2": {
        "correct": all_gather,
        "accepted": [by_name],
        "wrong": [
            (partial(all_gather, how="add"), ["on 2 ranks", "it was added"]),
            (partial(all_gather, how="assign"), ["right in the list, but the tensor is as it was"]),
            (partial(all_gather, first=1), ["no rank has its own finished chunk any more"]),
            (partial(all_gather, steps=0), ["on 2 ranks", "it took 2 steps"]),
            (partial(all_gather, steps=-2), ["on 2 ranks", "nothing was passed on"]),
            (always_its_own, ["on 4 ranks", "chunk 1 on rank 0"]),
            (by_broadcast, ["you called `dist.broadcast`"]),
        ],
    },
    "3.3.3": {
        "correct": average_in_one,
        "accepted": [own_vector],
        "wrong": [
            (one_by_one, ["on 2 ranks", "4 messages"]),
            (partial(average_in_one, divide=1), ["every gradient is 2 times the mean"]),
            (partial(average_in_one, divide=2), ["on 3 ranks", "every gradient is 1.5 times the mean"]),
            (never_back, ["every rank still has its own gradients"]),
            (frozen_too, ["every rank still has its own gradients"]),
            (cut_by_all_parameters, ["your code, on rank", "raised RuntimeError"]),
            (thaws, ["the frozen parameter has got a gradient"]),
            (in_reverse, ["not every gradient is the mean"]),
            (partial(one_by_one, send=False), ["no `all_reduce` was called"]),
        ],
    },
    "3.3.a": {
        "accepted": [plain_with_if, there_and_back],
        "wrong": [(two_others, ["on 2 ranks", "there is no rank 2"])],
    },
    "3.3.b": {
        "accepted": [average_divided_first, average_as_one],
        "wrong": [(forgets_the_frozen, ["on 3 ranks", "raised"])],
    },
    "3.3.c": {
        "accepted": [step_by_sgd, step_by_autograd],
        "wrong": [(step_with_gradients_on, ["on 2 ranks", "raised RuntimeError"])],
    },
}
