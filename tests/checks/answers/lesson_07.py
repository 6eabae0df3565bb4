"""Answers to the exercises of lesson 07: the right ones, the blanks, and mistakes that people make."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import gather, parallel_apply, replicate, scatter


def blank(*args):
    raise NotImplementedError("your code here")


# 07.2: a leaner GPU 0


class Around(nn.Module):
    """A module around `net`; the classes below differ in what their forward returns."""

    def __init__(self, net):
        super().__init__()
        self.net = net


class LossInside(Around):
    def forward(self, images, labels):
        return F.cross_entropy(self.net(images), labels, reduction="none")


class BlankLoss(Around):
    def forward(self, images, labels):
        raise NotImplementedError("your code here")


class Logits(Around):
    def forward(self, images, labels):
        return self.net(images)


class MeanInside(Around):
    def forward(self, images, labels):
        return F.cross_entropy(self.net(images), labels)


class MeanOfOne(Around):
    def forward(self, images, labels):
        return F.cross_entropy(self.net(images), labels)[None]


class SumInside(Around):
    def forward(self, images, labels):
        return F.cross_entropy(self.net(images), labels, reduction="sum")


class Number(Around):
    def forward(self, images, labels):
        return F.cross_entropy(self.net(images), labels).item()


class Detached(Around):
    def forward(self, images, labels):
        return F.cross_entropy(self.net(images), labels, reduction="none").detach()


class NotReturned(Around):
    def forward(self, images, labels):
        F.cross_entropy(self.net(images), labels, reduction="none")


class OtherLoss(Around):
    def forward(self, images, labels):
        return (self.net(images) - F.one_hot(labels, 10)).square().mean(1)


class Copied(Around):
    def __init__(self, net):
        super().__init__(copy.deepcopy(net))

    def forward(self, images, labels):
        return F.cross_entropy(self.net(images), labels, reduction="none")


def a_function(net):
    return lambda images, labels: F.cross_entropy(net(images), labels, reduction="none")


# 07.3: one replication is enough


@torch.no_grad()
def evaluate(net, batches, gpus):
    replicas = replicate(net, gpus)
    return [gather(parallel_apply(replicas, scatter(batch, gpus)), gpus[0]) for batch in batches]


@torch.no_grad()
def wrapped(net, batches, gpus):
    model = nn.DataParallel(net)
    return [model(batch) for batch in batches]


@torch.no_grad()
def replicates_in_the_loop(net, batches, gpus):
    outputs = []
    for batch in batches:
        replicas = replicate(net, gpus)
        outputs.append(gather(parallel_apply(replicas, scatter(batch, gpus)), gpus[0]))
    return outputs


@torch.no_grad()
def on_gpu_0(net, batches, gpus):
    return [net(batch) for batch in batches]


def with_gradients(net, batches, gpus):
    replicas = replicate(net, gpus)
    return [gather(parallel_apply(replicas, scatter(batch, gpus)), gpus[0]) for batch in batches]


@torch.no_grad()
def not_gathered(net, batches, gpus):
    replicas = replicate(net, gpus)
    return [parallel_apply(replicas, scatter(batch, gpus)) for batch in batches]


@torch.no_grad()
def first_piece_only(net, batches, gpus):
    replicas = replicate(net, gpus)
    return [parallel_apply(replicas, scatter(batch, gpus))[0] for batch in batches]


@torch.no_grad()
def gathers_elsewhere(net, batches, gpus):
    replicas = replicate(net, gpus)
    return [gather(parallel_apply(replicas, scatter(batch, gpus)), gpus[1]) for batch in batches]


@torch.no_grad()
def last_batch_only(net, batches, gpus):
    replicas = replicate(net, gpus)
    for batch in batches:
        outputs = [gather(parallel_apply(replicas, scatter(batch, gpus)), gpus[0])]
    return outputs


@torch.no_grad()
def backwards(net, batches, gpus):
    replicas = replicate(net, gpus)
    return [gather(parallel_apply(replicas, scatter(batch, gpus))[::-1], gpus[0]) for batch in batches]


@torch.no_grad()
def one_tensor(net, batches, gpus):
    return torch.cat(evaluate(net, batches, gpus))


def returns_nothing(net, batches, gpus):
    evaluate(net, batches, gpus)


@torch.no_grad()
def not_scattered(net, batches, gpus):
    replicas = replicate(net, gpus)
    return [gather(parallel_apply(replicas, [batch] * len(gpus)), gpus[0]) for batch in batches]


# 07.4: the ring


def laps(pieces, gpus, *, first=None, rounds=None, sign=-1, move=True):
    """The ring with one thing done otherwise at a time."""
    n = len(gpus)
    for r in range(2 * (n - 1) if rounds is None else rounds(n)):
        for i in range(n):
            neighbour, c = (i + 1) % n, (i + sign * r) % n
            arrived = pieces[i][c].to(gpus[neighbour]) if move else pieces[i][c]
            adds = r < (n - 1 if first is None else first(n))
            pieces[neighbour][c] = pieces[neighbour][c] + arrived if adds else arrived


def ring(pieces, gpus):
    laps(pieces, gpus)


def first_lap_only(pieces, gpus):
    laps(pieces, gpus, rounds=lambda n: n - 1)


def adds_in_both_laps(pieces, gpus):
    laps(pieces, gpus, first=lambda n: 2 * n)


def adds_one_round_longer(pieces, gpus):
    laps(pieces, gpus, first=lambda n: n)


def one_round_short(pieces, gpus):
    laps(pieces, gpus, rounds=lambda n: 2 * (n - 1) - 1)


def never_moves(pieces, gpus):
    laps(pieces, gpus, move=False)


def keeps_what_arrived(pieces, gpus):
    n = len(gpus)
    for r in range(2 * (n - 1)):
        for i in range(n):
            pieces[(i + 1) % n][(i - r) % n] = pieces[i][(i - r) % n]


def through_gpu_0(pieces, gpus):
    n = len(gpus)
    for c in range(n):
        total = sum(pieces[i][c].to(gpus[0]) for i in range(n))
        for i in range(n):
            pieces[i][c] = total.to(gpus[i])


def through_the_cpu(pieces, gpus):
    n = len(gpus)
    for c in range(n):
        total = sum(pieces[i][c].cpu() for i in range(n))
        for i in range(n):
            pieces[i][c] = total.to(gpus[i])


def whole_gradients_round(pieces, gpus):
    n = len(gpus)
    for i in range(n - 1):  # the sum so far goes on
        for c in range(n):
            pieces[i + 1][c] = pieces[i + 1][c] + pieces[i][c].to(gpus[i + 1])
    for i in range(n - 1):  # and the sum goes round
        for c in range(n):
            pieces[i][c] = pieces[i - 1][c].to(gpus[i])


def does_nothing(pieces, gpus):
    n = len(gpus)
    for r in range(2 * (n - 1)):
        for i in range(n):
            arrived = pieces[i][(i - r) % n].to(gpus[(i + 1) % n])
            arrived = arrived + pieces[(i + 1) % n][(i - r) % n]


def the_other_way(pieces, gpus):
    laps(pieces, gpus, sign=1)


def one_too_far(pieces, gpus):
    for r in range(2 * (len(gpus) - 1)):
        for i in range(len(gpus)):
            pieces[i + 1][i - r] = pieces[i + 1][i - r] + pieces[i][i - r].to(gpus[i + 1])


ANSWERS = {
    "07.1": {
        "correct": (300, 600, 3000, 150),
        "wrong": [
            ((400, 800, 3000, 150), ["`forward` is 400", "has the model already"]),
            ((300_000_000, 600, 3000, 150), ["`forward` is 300,000,000", "those are bytes"]),
        ],
    },
    "07.2": {
        "correct": LossInside,
        "blank": BlankLoss,
        "wrong": [
            (Logits, ["ten numbers an image", "bytes"]),
            (MeanInside, ["one loss"]),
            (MeanOfOne, ["one loss"]),
            (SumInside, ["one loss"]),
            (Number, ["not a tensor of losses"]),
            (Detached, ["do not know their gradient"]),
            (NotReturned, ["not a tensor of losses"]),
            (OtherLoss, ["the gradient is not that of one device"]),
            (Copied, ["`net` got no gradients"]),
            (a_function, ["not a module"]),
            (LossInside(nn.Linear(1, 1)), ["a module already"]),
            ("LossInside", ["`LossInside` is 'LossInside', not a function"]),
        ],
    },
    "07.3": {
        "correct": evaluate,
        "blank": blank,
        "wrong": [
            (wrapped, ["on 2 GPUs", "5 times, for 5 batches"]),
            (replicates_in_the_loop, ["5 times, for 5 batches"]),
            (on_gpu_0, ["GPU 0 did all the work"]),
            (with_gradients, ["carry a graph"]),
            (not_gathered, ["an output is a list"]),
            (first_piece_only, ["shape (3, 10), not (6, 10)"]),
            (gathers_elsewhere, ["an output lies on vgpu:1"]),
            (last_batch_only, ["5 batches gave 1 outputs"]),
            (backwards, ["not those of one device"]),
            (one_tensor, ["returns a tensor", "not a list"]),
            (returns_nothing, ["returns nothing"]),
            (not_scattered, ["raised RuntimeError"]),
        ],
    },
    "07.4": {
        "correct": ring,
        "blank": blank,
        "wrong": [
            (first_lap_only, ["on 2 GPUs", "the second is missing"]),
            (adds_in_both_laps, ["counted more than once"]),
            (adds_one_round_longer, ["counted more than once"]),
            (one_round_short, ["on 2 GPUs", "the second is missing"]),
            (never_moves, ["raised RuntimeError", "same device"]),
            (keeps_what_arrived, ["ends with a piece that lies on"]),
            (through_gpu_0, ["on 3 GPUs", "not to the next one on the ring"]),
            (through_the_cpu, ["through the CPU"]),
            (whole_gradients_round, ["sends", "bytes, and"]),
            (the_other_way, ["on 3 GPUs", "of 9 pieces hold the sum"]),
            (does_nothing, ["nothing has changed"]),
            (one_too_far, ["raised IndexError"]),
            ([], ["not a function"]),
        ],
    },
}
