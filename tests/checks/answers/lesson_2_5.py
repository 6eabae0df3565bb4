"""Answers to the exercises of lesson 2.5: the right ones, the blanks, and mistakes that people make."""

import copy
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import gather, parallel_apply, replicate, scatter

# 2.5.2: a leaner GPU 0


class LossInside(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, images, labels):
        return self.loss(self.net(images), labels)

    def loss(self, scores, labels):
        return F.cross_entropy(scores, labels, reduction="none")


class Blank(LossInside):
    def forward(self, images, labels):
        raise NotImplementedError("your code here")


class Copied(LossInside):
    def __init__(self, net):
        super().__init__(copy.deepcopy(net))


def with_loss(loss):
    """The class with another loss, a function of the scores and the labels."""
    return type("OtherLoss", (LossInside,), {"loss": lambda self, scores, labels: loss(scores, labels)})


def a_function(net):
    return lambda images, labels: F.cross_entropy(net(images), labels, reduction="none")


# 2.5.3: one replication is enough


def all_on_gpu_0(parts, gpus):
    return gather(parts, gpus[0])


@torch.no_grad()
def evaluate(net, batches, gpus, *, finish=all_on_gpu_0, cut=scatter, once=True):
    """The loop, with one thing done otherwise at a time."""
    replicas = replicate(net, gpus) if once else None
    return [finish(parallel_apply(replicas or replicate(net, gpus), cut(batch, gpus)), gpus) for batch in batches]


@torch.no_grad()
def wrapped(net, batches, gpus):
    model = nn.DataParallel(net)
    return [model(batch) for batch in batches]


# 2.5.4: the ring


def ring(pieces, gpus, *, adding=lambda n: n - 1, rounds=lambda n: 2 * (n - 1), sign=-1, move=True):
    """The ring, with one thing done otherwise at a time; adding: in how many of the rounds a piece is added."""
    n = len(gpus)
    for r in range(rounds(n)):
        for i in range(n):
            neighbour, c = (i + 1) % n, (i + sign * r) % n
            arrived = pieces[i][c].to(gpus[neighbour]) if move else pieces[i][c]
            pieces[neighbour][c] = pieces[neighbour][c] + arrived if r < adding(n) else arrived


def keeps_what_arrived(pieces, gpus):
    n = len(gpus)
    for r in range(2 * (n - 1)):
        for i in range(n):
            pieces[(i + 1) % n][(i - r) % n] = pieces[i][(i - r) % n]


def all_in_one_place(pieces, gpus, place=None):
    n = len(gpus)
    for c in range(n):
        total = sum(pieces[i][c].to(place or gpus[0]) for i in range(n))
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


def one_too_far(pieces, gpus):
    for r in range(2 * (len(gpus) - 1)):
        for i in range(len(gpus)):
            pieces[i + 1][i - r] = pieces[i + 1][i - r] + pieces[i][i - r].to(gpus[i + 1])


ANSWERS = {
    "2.5.1": {
        "correct": (300, 600, 3000, 150),
        "wrong": [
            ((400, 800, 3000, 150), ["`forward` is 400", "has the model already"]),
            ((300_000_000, 600, 3000, 150), ["`forward` is 300,000,000", "those are bytes"]),
        ],
    },
    "2.5.2": {
        "correct": LossInside,
        "blank": Blank,
        "wrong": [
            (with_loss(lambda scores, labels: scores), ["ten numbers an image", "bytes"]),
            (with_loss(F.cross_entropy), ["one loss"]),
            (with_loss(lambda scores, labels: F.cross_entropy(scores, labels)[None]), ["one loss"]),
            (with_loss(partial(F.cross_entropy, reduction="sum")), ["one loss"]),
            (with_loss(lambda scores, labels: F.cross_entropy(scores, labels).item()), ["not a tensor of losses"]),
            (
                with_loss(lambda scores, labels: F.cross_entropy(scores.detach(), labels, reduction="none")),
                ["do not know their gradient"],
            ),
            (with_loss(lambda scores, labels: None), ["not a tensor of losses"]),
            (
                with_loss(lambda scores, labels: (scores - F.one_hot(labels, 10)).square().mean(1)),
                ["the gradient is not that of one device"],
            ),
            (Copied, ["`net` got no gradients"]),
            (a_function, ["not a module"]),
            (LossInside(nn.Linear(1, 1)), ["a module already"]),
            ("LossInside", ["`LossInside` is 'LossInside', not a function"]),
        ],
    },
    "2.5.3": {
        "correct": evaluate,
        "wrong": [
            (wrapped, ["on 2 GPUs", "5 times, for 5 batches"]),
            (partial(evaluate, once=False), ["5 times, for 5 batches"]),
            (lambda net, batches, gpus: [net(batch) for batch in batches], ["GPU 0 did all the work"]),
            (evaluate.__wrapped__, ["carry a graph"]),  # without no_grad
            (partial(evaluate, finish=lambda parts, gpus: parts), ["an output is a list"]),
            (partial(evaluate, finish=lambda parts, gpus: parts[0]), ["shape (3, 10), not (6, 10)"]),
            (partial(evaluate, finish=lambda parts, gpus: gather(parts, gpus[1])), ["an output lies on vgpu:1"]),
            (lambda *given: evaluate(*given)[-1:], ["5 batches gave 1 outputs"]),
            # backwards
            (partial(evaluate, finish=lambda parts, gpus: gather(parts[::-1], gpus[0])), ["not those of one device"]),
            (lambda *given: torch.cat(evaluate(*given)), ["returns a tensor", "not a list"]),
            (lambda *given: print(evaluate(*given)), ["returns nothing"]),
            (partial(evaluate, cut=lambda batch, gpus: [batch] * len(gpus)), ["raised RuntimeError"]),
        ],
    },
    "2.5.4": {
        "correct": ring,
        "wrong": [
            (partial(ring, rounds=lambda n: n - 1), ["on 2 GPUs", "the second is missing"]),
            (partial(ring, adding=lambda n: 2 * n), ["counted more than once"]),
            (partial(ring, adding=lambda n: n), ["counted more than once"]),
            (partial(ring, rounds=lambda n: 2 * n - 3), ["on 2 GPUs", "the second is missing"]),
            (partial(ring, move=False), ["raised RuntimeError", "same device"]),
            (keeps_what_arrived, ["ends with a piece that lies on"]),
            (all_in_one_place, ["on 3 GPUs", "not to the next one on the ring"]),
            (partial(all_in_one_place, place="cpu"), ["through the CPU"]),
            (whole_gradients_round, ["sends", "bytes, and"]),
            (partial(ring, sign=1), ["on 3 GPUs", "of 9 pieces hold the sum"]),
            (does_nothing, ["nothing has changed"]),
            (one_too_far, ["raised IndexError"]),
            ([], ["not a function"]),
        ],
    },
}
