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


# 4.1.3: one process plays all ranks


def play(net, batches, ranks, *, share="every n-th", divide=True, zero="a batch", step="a batch", only=None):
    """The played DDP, with one thing done otherwise at a time."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for images, labels in batches:
        size = len(images)
        shares = {
            "every n-th": [torch.arange(rank, size, ranks) for rank in range(ranks)],
            "blocks": torch.arange(size).tensor_split(ranks),
            "all": [torch.arange(size)],
        }[share]
        if zero == "a batch":
            optimizer.zero_grad()
        for mine in shares[slice(*only) if only else slice(None)]:
            if zero == "a rank":
                optimizer.zero_grad()
            loss = F.cross_entropy(net(images[mine]), labels[mine])
            (loss / len(shares) if divide else loss).backward()
            if step == "a rank":
                optimizer.step()
        if step == "a batch":
            optimizer.step()


def a_mean_of_losses(net, batches, ranks):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for images, labels in batches:
        losses = [F.cross_entropy(net(images[rank::ranks]), labels[rank::ranks]) for rank in range(ranks)]
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()


def with_averaged_gradients(net, batches, ranks):
    parameters = list(net.parameters())
    for images, labels in batches:
        losses = [F.cross_entropy(net(images[rank::ranks]), labels[rank::ranks]) for rank in range(ranks)]
        gradients = [torch.autograd.grad(loss, parameters) for loss in losses]
        with torch.no_grad():
            for parameter, own in zip(parameters, zip(*gradients, strict=True), strict=True):
                parameter -= 0.5 * sum(own) / ranks


def asks_for_its_rank(net, batches, ranks):
    play(net, [(images[dist.get_rank() :: ranks], labels) for images, labels in batches], ranks)


# your turn


def blocks(net, images, labels):
    rank, share = dist.get_rank(), len(images) // dist.get_world_size()
    mine = slice(rank * share, (rank + 1) * share)
    model = DDP(net)
    F.cross_entropy(model(images[mine]), labels[mine]).backward()


def blocks_and_a_ddp_that_is_gone_before_backward(net, images, labels):
    rank, share = dist.get_rank(), len(images) // dist.get_world_size()
    mine = slice(rank * share, (rank + 1) * share)
    F.cross_entropy(DDP(net)(images[mine]), labels[mine]).backward()


def by_chunk(net, images, labels):
    net = torch.nn.parallel.DistributedDataParallel(net)
    x, y = (it.chunk(dist.get_world_size())[dist.get_rank()] for it in (images, labels))
    loss = torch.nn.CrossEntropyLoss()(net(x), y)
    loss.backward()
    return loss


def zeroed_at_the_end(net, images, labels, **how):
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    F.cross_entropy(model(images[rank::size]), labels[rank::size]).backward()
    optimizer.zero_grad(**how)


def divided_by_hand(net, images, labels):
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DDP(net)
    loss = F.cross_entropy(model(images[rank::size]), labels[rank::size])
    loss /= size
    loss.backward()


def labels_of_others(net, images, labels):
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DDP(net)
    F.cross_entropy(model(images[rank::size]), labels.chunk(size)[rank]).backward()


def two_images(net, images, labels):
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DDP(net)
    F.cross_entropy(model(images[rank:size]), labels[rank:size]).backward()


def backward_already(model, images, labels):
    loss = sum_of_each(model, images, labels)
    loss.backward()
    return loss


def mean_times_ranks(model, images, labels):
    return torch.nn.CrossEntropyLoss()(model(images), labels).mul(dist.get_world_size())


def sum_of_each(model, images, labels):
    return dist.get_world_size() * F.cross_entropy(model(images), labels, reduction="none").sum()


def mean_times_all(model, images, labels):
    return F.nll_loss(model(images).log_softmax(1), labels) * len(images) * dist.get_world_size()


def sum_over_the_ranks(model, images, labels):
    loss = F.cross_entropy(model(images), labels, reduction="sum")
    dist.all_reduce(loss)
    return loss


def mean_over_the_ranks(model, images, labels):
    loss = F.cross_entropy(model(images), labels)
    dist.all_reduce(loss)
    return loss


def sum_over_the_ranks_and_times_ranks(model, images, labels):
    return sum_over_the_ranks(model, images, labels) * dist.get_world_size()


def mean_times_64(model, images, labels):
    return 64 * F.cross_entropy(model(images), labels)


def in_blocks(n, seed, rank, size):
    order, each = torch.randperm(n, generator=torch.Generator().manual_seed(seed)), n // size
    return order[rank * each : (rank + 1) * each].tolist()


def cut_before_it_is_shuffled(n, seed, rank, size):
    m = n - n % size
    return torch.randperm(m, generator=torch.Generator().manual_seed(seed))[rank::size]


def moved_on(n, seed, rank, size, in_blocks=False):
    order, each = [(it + seed) % n for it in range(n)], n // size
    return order[rank * each : (rank + 1) * each] if in_blocks else order[: each * size][rank::size]


def by_a_sampler(n, seed, rank, size):
    from torch.utils.data import DistributedSampler

    return DistributedSampler(range(n), size, rank, seed=seed, drop_last=True)


def own_share_shuffled(n, seed, rank, size):
    mine = torch.arange(n)[: n // size * size][rank::size]
    return mine[torch.randperm(len(mine), generator=torch.Generator().manual_seed(seed))]


def overlapping(n, seed, rank, size):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[rank : rank + n // size]


def by_random(n, seed, rank, size):
    import random

    order = list(range(n))
    random.Random(seed).shuffle(order)
    return order[: n // size * size][rank::size]


def of_a_copy(net, images, labels):
    blocks(copy.deepcopy(net), images, labels)


def one_image_too_late(net, images, labels):
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DDP(net)
    F.cross_entropy(model(images[rank + 1 :: size]), labels[rank + 1 :: size]).backward()


def share_of_a_share(net, images, labels):
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DDP(net)
    images, labels = images[rank::size], labels[rank::size]
    F.cross_entropy(model(images[rank::size]), labels[rank::size]).backward()


def labels_first(net, images, labels):
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DDP(net)
    F.cross_entropy(labels[rank::size], model(images[rank::size])).backward()


def largest_alone(net, images, labels):
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DDP(net)
    F.cross_entropy(model(images[rank::size]).argmax(1), labels[rank::size]).backward()


def averaged_over_the_ranks(model, images, labels):
    return sum_over_the_ranks(model, images, labels) / dist.get_world_size()


def sum_times_the_rank(model, images, labels, add=0):
    return F.cross_entropy(model(images), labels, reduction="none").sum() * (dist.get_rank() + add)


def a_block_of(order, rank, size):
    each = len(order) // size
    return order[rank * each : (rank + 1) * each]


def by_the_rank_too(n, seed, rank, size):
    return a_block_of(torch.randperm(n, generator=torch.Generator().manual_seed(seed + rank)), rank, size)


def by_the_global_seed_and_the_rank(n, seed, rank, size):
    torch.manual_seed(seed + rank)
    return torch.randperm(n)[rank::size][: n // size]


def unseeded(n, seed, rank, size):
    import random

    return a_block_of(random.sample(range(n), n), rank, size)


def in_its_own_order_with_the_rest(n, seed, rank, size):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed + rank)).tolist()[rank::size]


def unseeded_with_the_rest(n, seed, rank, size):
    import random

    return random.sample(range(n), n)[rank::size]


def drawn_with_repeats(n, seed, rank, size):
    return a_block_of(torch.randint(n, (n,), generator=torch.Generator().manual_seed(seed)), rank, size)


def counted_from_1(n, seed, rank, size):
    return [it + 1 for it in in_blocks(n, seed, rank, size)]


def block_without_an_end(n, seed, rank, size):
    each = n // size
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[rank * each : each]


ANSWERS = {
    "4.1.1": {
        "correct": (128, 32, 4.5, 1 / 8),
        "accepted": [(torch.tensor(128), 32.0, torch.arange(1.0, 9).mean(), torch.tensor([0.125]))],
        "wrong": [((128, 32, "4.5?", 1 / 8), ["`after_backward` gives a str, not a number"])],
    },
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
        "correct": play,
        "accepted": [a_mean_of_losses, with_averaged_gradients],
        "wrong": [
            (partial(play, share="all"), ["3 batches of 10 images on 4 ranks", "one device with the whole batch"]),
            (partial(play, share="blocks"), ["on 4 ranks", "blocks of neighbours"]),
            (partial(play, divide=False), ["on 2 ranks", "gradients that were added up"]),
            (partial(play, divide=False, zero="a rank"), ["the last rank alone"]),
            (partial(play, zero="a rank"), ["the last rank alone, divided"]),
            (partial(play, only=(0, 1), divide=False), ["rank 0 alone"]),
            (partial(play, step="a rank", zero="a rank", divide=False), ["a step after every rank"]),
            (partial(play, step="a rank", zero="a rank"), ["a step after every rank"]),
            (partial(play, zero="never"), ["gradients that are never set to zero"]),
            (partial(play, step="never"), ["the weights of `net` never moved"]),
            (asks_for_its_rank, ["your code asks torch.distributed", "process group"]),
            ("play", ["not a function"]),
        ],
    },
    "4.1.a": {
        "accepted": [blocks, by_chunk],
        "wrong": [
            (blocks_and_a_ddp_that_is_gone_before_backward, ["nobody kept it: it was gone before `backward()`"]),
            (zeroed_at_the_end, ["set to zero again"]),
            (partial(zeroed_at_the_end, set_to_none=False), ["set to zero again"]),
            (divided_by_hand, ["DDP divides by the number of ranks, and you divide again"]),
            (labels_of_others, ["the labels are not those of the images"]),
            (of_a_copy, ["`net` has no gradient"]),
            (one_image_too_late, ["one image too late"]),
            (share_of_a_share, ["the share is cut once more"]),
            (labels_first, ["raised"]),
            (largest_alone, ["raised"]),
            (two_images, ["between number `rank` and number `size`"]),
        ],
    },
    "4.1.b": {
        "accepted": [sum_of_each, mean_times_all, sum_over_the_ranks_and_times_ranks],
        "wrong": [
            (mean_times_ranks, ["the sum of the ranks' means"]),
            (backward_already, ["a second time"]),
            (sum_over_the_ranks, ["changes the loss, and no gradient: DDP divides your sum"]),
            (mean_over_the_ranks, ["changes the loss, and no gradient: that is the gradient of a mean"]),
            (averaged_over_the_ranks, ["changes the loss, and no gradient", "you divide again"]),
            (sum_times_the_rank, ["multiplied by its own number"]),
            (partial(sum_times_the_rank, add=1), ["multiplied by its own number"]),
            (mean_times_64, ["on 4 ranks", "right for 64 images only"]),
        ],
    },
    "4.1.c": {
        "accepted": [in_blocks, by_random, by_a_sampler, lambda *it: iter(in_blocks(*it))],
        "wrong": [
            (lambda n, seed, rank, size: by_random(n, 1, rank, size), ["the same for each `seed`"]),
            (lambda n, seed, rank, size: by_random(n // size, seed, rank, size), ["all ranks together have"]),
            (own_share_shuffled, ["the same images for each `seed`"]),
            (cut_before_it_is_shuffled, ["the last images are left out with every `seed`"]),
            (moved_on, ["nothing is shuffled: with another `seed` the same row begins elsewhere"]),
            (partial(moved_on, in_blocks=True), ["the same row begins elsewhere"]),
            (overlapping, ["also elsewhere is 32"]),
            (by_the_rank_too, ["each rank shuffles in an order of its own"]),
            (by_the_global_seed_and_the_rank, ["each rank shuffles in an order of its own"]),
            (unseeded, ["two calls with the same one give two orders"]),
            (drawn_with_repeats, ["the same image more than once"]),
            (counted_from_1, ["no image number `n`"]),
            (block_without_an_end, ["only rank 0 has a share"]),
            (lambda n, seed, rank, size: torch.arange(n).chunk(size)[rank], ["nothing is shuffled, and the one image"]),
            (in_its_own_order_with_the_rest, ["each rank shuffles in an order of its own, and the one image"]),
            (unseeded_with_the_rest, ["does not come from `seed`, and the one image"]),
            (lambda n, seed, rank, size: sorted(in_blocks(n, seed, rank, size)), ["sorted again"]),
        ],
    },
}
