"""Answers to the exercises of lesson 3.3: the right ones, the blanks, and mistakes that people make."""

from functools import partial

import torch
import torch.distributed as dist
from torch.distributed import all_reduce

from ddplab.hardware import device

# your turn


def pass_right(chunk, place):
    rank, size, arrived = dist.get_rank(), dist.get_world_size(), torch.empty_like(place)
    both = [dist.P2POp(dist.isend, chunk, (rank + 1) % size), dist.P2POp(dist.irecv, arrived, (rank - 1) % size)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return arrived


def from_behind(chunks, step):
    goes = dist.get_rank() - step  # Python counts from behind below 0
    chunks[goes - 1] += pass_right(chunks[goes], chunks[goes - 1])


def counted_up(chunks, step):
    rank, size = dist.get_rank(), len(chunks)
    goes, comes = (rank + (size - 1) * step) % size, (rank + (size - 1) * (step + 1)) % size
    chunks[comes].add_(pass_right(chunks[goes], chunks[comes]))


def numbered(chunks, step, goes, comes):
    rank, size = dist.get_rank(), dist.get_world_size()
    goes, comes = goes(rank, step) % size, comes(rank, step) % size
    chunks[comes] += pass_right(chunks[goes], chunks[comes])


def beyond_the_last(chunks, step):
    goes = dist.get_rank() + step
    chunks[goes + 1] += pass_right(chunks[goes], chunks[goes + 1])


def by_their_numbers(chunks, step):
    chunks[dist.get_rank() - step - 1] += pass_right(dist.get_rank() - step, dist.get_rank() - step - 1)


def what_comes_alone(chunks, step):
    rank = dist.get_rank()
    chunks[rank - step - 1] = pass_right(chunks[rank - step], chunks[rank - step - 1])


def one_argument(chunks, step):
    rank = dist.get_rank()
    chunks[rank - step - 1] += pass_right(chunks[rank - step])


def average_divided_first(net):
    for p in net.parameters():
        if p.requires_grad:
            p.grad = p.grad / dist.get_world_size()
            all_reduce(p.grad)


def mean_by_hand(p, all_reduce):
    p.grad = p.grad / dist.get_world_size()
    all_reduce(p.grad)


def mean_of_a_copy(p, all_reduce):
    total = p.grad.clone()
    all_reduce(total)
    p.grad.copy_(total / dist.get_world_size())


def mean_in_a_bucket(p, all_reduce, dtype=None):
    bucket = torch.zeros(p.shape, dtype=dtype)
    bucket += p.grad.cpu()
    bucket = bucket.to(device())
    all_reduce(bucket)
    p.grad.copy_(bucket / dist.get_world_size())


def divides_what_comes_back(p, all_reduce):
    p.grad = all_reduce(p.grad) / dist.get_world_size()


def mean_in_a_new_tensor(p, all_reduce):
    mean = p.grad / dist.get_world_size()
    all_reduce(mean)


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


def sums_weights(p, all_reduce):
    p.grad /= dist.get_world_size()
    all_reduce(p.data)


def weights_of_rank_0(p, all_reduce):
    dist.broadcast(p.grad, src=0)


def mean_of_weights(p, all_reduce):
    all_reduce(p.data)
    p.data /= dist.get_world_size()


def mean_into_the_weights(p, all_reduce):
    all_reduce(p.grad)
    p.data = p.grad / dist.get_world_size()


def mean_over(p, all_reduce, over):
    all_reduce(p.grad)
    p.grad /= over(p)


def by_torchs_own(p, all_reduce):
    dist.all_reduce(p.grad)
    p.grad /= dist.get_world_size()


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
        "accepted": [from_behind, counted_up],
        "wrong": [
            (
                partial(numbered, goes=lambda rank, step: rank, comes=lambda rank, step: rank - 1),
                ["on 3 ranks", "rank r sends its chunk r in every step"],
            ),
            (
                partial(numbered, goes=lambda rank, step: rank - step, comes=lambda rank, step: rank - step),
                ["added to the chunk that has just gone out"],
            ),
            (
                partial(numbered, goes=lambda rank, step: rank + step, comes=lambda rank, step: rank + step - 1),
                ["a chunk that it has not just added to"],
            ),
            (beyond_the_last, ["on 3 ranks", "list index out of range"]),
            (by_their_numbers, ["raised"]),
            (what_comes_alone, ["a new tensor stands in the list"]),
            (one_argument, ["missing 1 required positional argument"]),
        ],
    },
    "3.3.b": {
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
            (step_of_the_biases, ["on 2 ranks", "number 1 of change of weights is 0"]),
            (partial(step_averaging, divides_below_the_loop), ["only the last parameter's gradient is divided"]),
            (partial(step_averaging, averages_below_the_loop), ["only the last parameter's gradient is averaged"]),
        ],
    },
    "3.3.c": {
        "accepted": [mean_by_hand, mean_of_a_copy, mean_in_a_bucket],
        "wrong": [
            (divides_what_comes_back, ["on 3 ranks", "raised"]),
            (partial(mean_in_a_bucket, dtype=torch.float32), ["to the digits of float32"]),
            (partial(mean_in_a_bucket, dtype=torch.float16), ["to the digits of float16"]),
            (mean_in_a_new_tensor, ["the mean is in a new tensor, and `p.grad` is as it was"]),
            (sums_weights, ["the weights have changed", "gradients are only divided"]),
            (weights_of_rank_0, ["all hold rank 0's gradients"]),
            (mean_of_weights, ["the weights have changed, and the gradients are as they were"]),
            (mean_into_the_weights, ["their mean is put into the weights"]),
            (partial(mean_over, over=lambda p: dist.get_rank()), ["each rank divides by its own number"]),
            (partial(mean_over, over=lambda p: p.numel()), ["by how many numbers there are"]),
            (by_torchs_own, ["right, but not by the `all_reduce` that is given"]),
        ],
    },
}
