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


ANSWERS = {
    "2.5.1": {
        "correct": (300, 600, 3000),
        "wrong": [
            ((400, 800, 3000), ["`forward` is 400", "has the model already"]),
            ((300_000_000, 600, 3000), ["`forward` is 300,000,000", "those are bytes"]),
        ],
    },
    "2.5.2": {
        "correct": LossInside,
        "accepted": [with_loss(lambda scores, labels: F.cross_entropy(scores, labels, reduction="none")[:, None])],
        "blank": Blank,
        "wrong": [
            (with_loss(lambda scores, labels: scores), ["ten numbers an image", "bytes"]),
            (with_loss(F.cross_entropy), ["one loss"]),
            (
                with_loss(lambda scores, labels: F.cross_entropy(scores, labels, reduction="none").double()),
                ["gathers 8 bytes an image"],
            ),
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
        "accepted": [torch.inference_mode()(evaluate.__wrapped__)],
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
}
