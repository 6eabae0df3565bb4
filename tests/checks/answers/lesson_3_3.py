"""Answers to the exercises of lesson 3.3: the right ones, the blanks, and mistakes that people make."""

import torch
import torch.distributed as dist
from torch.distributed import all_reduce

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


def step_with_gradients_on(net, images, labels, lr=0.5):
    step_by_sgd(net, images, labels, lr=0.0)
    for p in net.parameters():
        p -= lr * p.grad


def step_with_the_first_labels(net, images, labels, lr=0.5):
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.cat([images[rank::size]] * size)
    step_by_sgd(net, mine, labels[: len(labels) // size].repeat(size), lr)


ANSWERS = {
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
        "wrong": [
            (step_with_gradients_on, ["on 2 ranks", "raised RuntimeError"]),
            (step_with_the_first_labels, ["as weights"]),
        ],
    },
}
