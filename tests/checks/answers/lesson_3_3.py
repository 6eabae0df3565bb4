"""Answers to the exercises of lesson 3.3: the right ones, the blanks, and mistakes that people make."""

from functools import partial

import torch
import torch.distributed as dist
from torch.distributed import all_reduce

# your turn

book = []


def send(x, to):
    dist.send(x, to)
    book.append(x.nbytes)


def plain_with_if(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        parts = [torch.empty_like(x) for _ in range(1, size)]
        for work in [dist.irecv(part, src=other) for other, part in enumerate(parts, 1)]:
            work.wait()
        x += sum(parts)
        for other in range(1, size):
            send(x, to=other)
    else:
        send(x, 0)
        torch.distributed.recv(x, 0)


def from_whoever_comes(x):
    if dist.get_rank():
        send(x, 0)
        dist.recv(x, src=0)
        return x
    place = torch.empty_like(x)
    for _ in range(dist.get_world_size() - 1):
        dist.recv(place)  # from any rank
        x.add_(place)
    for other in reversed(range(1, dist.get_world_size())):
        send(x, other)
    return x


def received_over_the_sum(x):
    if dist.get_rank():
        send(x, 0)
        return dist.recv(x, src=0)
    part = x
    for other in range(1, dist.get_world_size()):
        dist.recv(part, src=other)
        x += part
    for other in range(1, dist.get_world_size()):
        send(x, other)


def own_twice(x):
    if dist.get_rank():
        send(x, 0)
        return dist.recv(x, src=0)
    total = x.clone()
    for other in range(1, dist.get_world_size()):
        part = torch.empty_like(x)
        dist.recv(part, src=other)
        total += part
    x += total
    for other in range(1, dist.get_world_size()):
        send(x, other)


def all_to_all(x):
    own, place = x.clone(), torch.empty_like(x)
    for giver in range(dist.get_world_size()):
        for taker in range(dist.get_world_size()):
            if giver != taker and dist.get_rank() == giver:
                send(own, taker)
            if giver != taker and dist.get_rank() == taker:
                dist.recv(place, giver)
                x += place


def without_the_book(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.send(x, 0)
        dist.recv(x, 0)
        return
    part = torch.empty_like(x)
    for other in range(1, size):
        dist.recv(part, other)
        x += part
    for other in range(1, size):
        dist.send(x, other)


def by_what_recv_returns(x):
    if dist.get_rank():
        send(x, 0)
        dist.recv(x, 0)
    for other in range(1, 1 if dist.get_rank() else dist.get_world_size()):
        x += dist.recv(other)


def two_others(x):
    rank = dist.get_rank()
    if rank == 0:
        for other in (1, 2):
            dist.recv(part := torch.empty_like(x), other)
            x += part
        for other in (1, 2):
            send(x, other)
    else:
        send(x, 0)
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


def step_with(net, images, labels, lr, mine, named, average=average_divided_first):
    net.zero_grad()
    torch.nn.functional.cross_entropy(net(images[mine]), labels[named]).backward()
    average(net)
    with torch.no_grad():
        for p in net.parameters():
            p -= lr * p.grad


def step_with_labels_in_pieces(net, images, labels, lr=0.5):
    rank, size = dist.get_rank(), dist.get_world_size()
    each = len(images) // size
    step_with(net, images, labels, lr, slice(rank, None, size), slice(rank * each, rank * each + each))


def step_with_images_in_pieces(net, images, labels, lr=0.5):
    rank, size = dist.get_rank(), dist.get_world_size()
    each = len(images) // size
    step_with(net, images, labels, lr, slice(rank * each, rank * each + each), slice(rank, None, size))


def step_with_the_first_images(net, images, labels, lr=0.5):
    rank, size = dist.get_rank(), dist.get_world_size()
    step_with(net, images, labels, lr, slice(len(images) // size), slice(rank, None, size))


def step_with_a_block_of_size(net, images, labels, lr=0.5):
    rank, size = dist.get_rank(), dist.get_world_size()
    step_with(net, images, labels, lr, slice(rank * size, (rank + 1) * size), slice(rank * size, (rank + 1) * size))


def step_from_its_number_on(net, images, labels, lr=0.5):
    rank, each = dist.get_rank(), len(images) // dist.get_world_size()
    step_with(net, images, labels, lr, slice(rank, rank + each), slice(rank, rank + each))


def step_with_another_ranks_labels(net, images, labels, lr=0.5):
    rank, size = dist.get_rank(), dist.get_world_size()
    step_with(net, images, labels, lr, slice(rank, None, size), slice((rank + 1) % size, None, size))


def step_of_the_last_parameter(net, images, labels, lr=0.5):
    step_by_sgd(net, images, labels, lr=0.0)
    with torch.no_grad():
        for p in net.parameters():
            gradient = p.grad
        p -= lr * gradient


def step_of_the_biases(net, images, labels, lr=0.5):
    step_by_sgd(net, images, labels, lr=0.0)
    with torch.no_grad():
        for p in net.parameters():
            p -= lr * p.grad * (p.dim() == 1)


def divides_below_the_loop(net):
    for p in net.parameters():
        dist.all_reduce(p.grad)
    p.grad /= dist.get_world_size()


def averages_below_the_loop(net):
    *_, p = net.parameters()
    dist.all_reduce(p.grad)
    p.grad /= dist.get_world_size()


def step_averaging(average, net, images, labels, lr=0.5):
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    step_with(net, images, labels, lr, mine, mine, average)


def plain_with(x, collect=plain_with_if, others=plain_with_if):
    """The plain way, with another way to collect on rank 0, or another one on the others."""
    (others if dist.get_rank() else collect)(x)
    if collect is not plain_with_if and dist.get_rank() == 0:
        for other in range(1, dist.get_world_size()):
            send(x, other)


def one_list_of_one_tensor(x):
    part, parts = torch.empty_like(x), []
    for other in range(1, dist.get_world_size()):
        dist.recv(part, other)
        parts.append(part)
    x += sum(parts)


def from_all_ranks(x):
    for other in range(dist.get_world_size()):
        part = torch.empty_like(x)
        dist.recv(part, other)
        x += part


def into_too_little(x):
    for other in range(1, dist.get_world_size()):
        part = torch.zeros(1)
        dist.recv(part, other)
        x += part


def received_under_another_name(x):
    send(x, 0)
    came = torch.empty_like(x)
    dist.recv(came, 0)
    x = came


def average_of_weights(net):
    for p in net.parameters():
        if p.grad is not None:
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.data)


def weights_of_rank_0(net):
    for weight in net.state_dict().values():
        dist.broadcast(weight, src=0)


def mean_of_weights(net):
    for p in net.parameters():
        if p.grad is not None:
            dist.all_reduce(p.data)
            p.data /= dist.get_world_size()


def mean_into_the_weights(net):
    for p in net.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.data = p.grad / dist.get_world_size()


def average_over(net, over):
    for p in net.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= over(p)


def step_with_the_loss_of_all(net, images, labels, lr):
    rank, size = dist.get_rank(), dist.get_world_size()
    net.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(images[rank::size]), labels[rank::size])
    dist.all_reduce(loss.data)
    (loss / size).backward()
    torch.optim.SGD(net.parameters(), lr=lr).step()


def step_by(net, images, labels, lr, mine=None, optimizer=torch.optim.SGD):
    rank, size = dist.get_rank(), dist.get_world_size()
    own = mine(rank, size) if mine else slice(rank, None, size)
    net.zero_grad()
    torch.nn.functional.cross_entropy(net(images[own]), labels[own]).backward()
    average_divided_first(net)
    optimizer(net.parameters(), lr=lr).step()


ANSWERS = {
    "3.3.a": {
        "accepted": [plain_with_if, from_whoever_comes],
        "wrong": [
            (two_others, ["on 2 ranks", "there is no rank 2"]),
            (all_to_all, ["another way"]),
            (received_over_the_sum, ["overwrites what rank 0 held, and is then added to itself"]),
            (own_twice, ["rank 0's own numbers are added twice"]),
            (without_the_book, ["the book knows of no message"]),
            (by_what_recv_returns, ["raised TypeError"]),
            (partial(plain_with, collect=one_list_of_one_tensor), ["as often as there are others"]),
            (partial(plain_with, collect=from_all_ranks), ["receives from itself"]),
            (partial(plain_with, collect=into_too_little), ["SIGABRT"]),
            (partial(plain_with, others=received_under_another_name), ["only rank 0's `x` holds it"]),
        ],
    },
    "3.3.b": {
        "accepted": [average_divided_first, average_as_one],
        "wrong": [
            (forgets_the_frozen, ["on 3 ranks", "raised"]),
            (average_of_weights, ["the weights have changed", "gradients are only divided"]),
            (weights_of_rank_0, ["all have rank 0's weights now"]),
            (mean_of_weights, ["the weights have changed, and the gradients are as they were"]),
            (mean_into_the_weights, ["their mean is put into the weights"]),
            (partial(average_over, over=lambda p: dist.get_rank()), ["each rank divides by its own number"]),
            (partial(average_over, over=lambda p: p.numel()), ["by how many numbers it has"]),
        ],
    },
    "3.3.c": {
        "accepted": [step_by_sgd, step_by_autograd],
        "wrong": [
            (step_with_gradients_on, ["on 2 ranks", "raised RuntimeError"]),
            (step_with_the_first_labels, ["the labels are not those of the images"]),
            (step_with_a_block_of_size, ["on 2 ranks", "it takes as many images as there are ranks"]),
            (step_from_its_number_on, ["on 2 ranks", "each rank begins one image further on"]),
            (step_with_labels_in_pieces, ["the labels are not those of the images"]),
            (step_with_images_in_pieces, ["the labels are not those of the images"]),
            (step_with_the_first_images, ["on 2 ranks", "the labels are not those of the images"]),
            (step_with_another_ranks_labels, ["the labels are not those of the images"]),
            (step_with_the_loss_of_all, ["its own gradient, divided by the ranks"]),
            (partial(step_by, optimizer=torch.optim.Adam), ["as with Adam"]),
            (partial(step_by, mine=lambda rank, size: slice(rank, None, 2)), ["right on two ranks only"]),
            (partial(step_by, mine=lambda rank, size: slice(32 * rank, 32 * rank + 32)), ["right on two ranks only"]),
            (partial(step_by, mine=lambda rank, size: slice(rank + 1, None, size)), ["one image too late"]),
            (step_of_the_last_parameter, ["only the last parameter moves"]),
            (step_of_the_biases, ["on 2 ranks", "as number 1 of change of weights"]),
            (partial(step_averaging, divides_below_the_loop), ["only the last parameter's gradient is divided"]),
            (partial(step_averaging, averages_below_the_loop), ["only the last parameter's gradient is averaged"]),
        ],
    },
}
