"""Answers to the exercises of lesson 2.5: the right ones, the blanks, and mistakes that people make."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import gather, parallel_apply, replicate, scatter

# 2.5.1: one replication is enough


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


# your turn


def by_cause(parameters, n, rows, width):
    model, given_away = 4 * parameters * (n - 1), 4 * width * (rows - rows // n)
    return {"replicate": model, "reduce": model, "scatter": 2 * given_away, "gather": given_away}


def in_float(parameters, n, rows, width):
    each = [parameters, parameters, 2 * width * rows / n, width * rows / n]
    return [4.0 * (n - 1) * it for it in each]


def loss_not_called(net, x, labels):
    return nn.CrossEntropyLoss(net(x), labels, reduction="none")


def means_by_numpy(x):
    held = x.cpu().numpy()
    return torch.from_numpy(held.sum(1) / (held != 0).sum(1)).to(x.device)


ANSWERS = {
    "2.5.1": {
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
    "2.5.a": {
        "accepted": [in_float, lambda *given: iter(by_cause(*given).values())],
        "wrong": [
            (by_cause, ["a dictionary comes back"]),
            (lambda parameters, n, rows, width: None, ["raised TypeError"]),
            (lambda parameters, n, rows, width: rows // (n - 1), ["raised ZeroDivisionError"]),
            (
                lambda parameters, n, rows, width: (
                    (4 * n * parameters,) * 2 + (8 * width * rows // n, 4 * width * rows // n)
                ),
                ["GPU 0 gets a copy too, and only one GPU's share of the rows is counted"],
            ),
            (
                lambda p, n, rows, wide: [4 * p * (n - 1)] * 2 + [it * (n > 1) * rows // n * wide for it in (8, 4)],
                ["only one GPU's share of the rows is counted"],
            ),
            (
                lambda p, n, rows, wide: [4 * p * (n > 1)] * 2 + [it * (rows - rows // n) * wide for it in (8, 4)],
                ["the model goes to one other GPU, however many there are"],
            ),
            (
                lambda p, n, rows, wide: (
                    [4 * p * (n - 1)] * 2 + [8 * (rows - rows // n) * wide, 4 * (n > 1) * rows // n * wide]
                ),
                ["of the outputs only one GPU's share comes"],
            ),
        ],
    },
    "2.5.b": {
        "accepted": [
            lambda net, x, labels: F.cross_entropy(net(x), labels, reduction="none")[:, None],
            lambda net, x, labels: F.cross_entropy(net(x), labels).expand(
                len(x)
            ),  # of uneven parts the right mean, too
            lambda net, x, labels: -net(x).log_softmax(1)[torch.arange(len(x)), labels],
            lambda net, x, labels: F.nll_loss(F.log_softmax(net(x), dim=1), labels, reduction="none"),
        ],
        "wrong": [
            (lambda net, x, labels: F.cross_entropy(x, labels, reduction="none"), ["Target ", "out of bounds"]),
            (lambda net, x, labels: F.cross_entropy(net(x), labels, reduction=None), ["valid value for reduction"]),
            (lambda net, x, labels: F.cross_entropy(net(x), labels) / 2, ["bytes gathered is 4"]),  # not the sum
            (lambda net, x, labels: F.cross_entropy(net(x), labels).item(), ["returned a float"]),
            (lambda net, x, labels: F.cross_entropy(net(x), labels, reduction="none").cpu(), ["for CPU tensors"]),
            (loss_not_called, ["Boolean value of Tensor", "in loss_not_called"]),
            (lambda net, x, labels: nn.CrossEntropyLoss(reduction="none"), ["returned a CrossEntropyLoss"]),
            (lambda net, x, labels: F.cross_entropy(labels, net(x)), ["not implemented for 'Long'"]),
            (
                lambda net, x, labels: F.cross_entropy(torch.softmax(net(x), dim=-1), labels, reduction="none"),
                ["the softmax is taken twice"],
            ),
            (lambda net, x, labels: -net(x)[torch.arange(len(x)), labels], ["the score of the label"]),
            (lambda net, x, labels: -net(x).softmax(1)[torch.arange(len(x)), labels], ["the logarithm is missing"]),
            (
                lambda net, x, labels: F.cross_entropy(net(x), labels, reduction="none", label_smoothing=0.1),
                ["not the cross-entropy of its scores"],
            ),
        ],
    },
    "2.5.c": {
        "accepted": [
            lambda x: x.sum(dim=1) / x.count_nonzero(dim=1),
            lambda x: torch.where(x == 0, float("nan"), x).nanmean(1),
            lambda x: x.mean(1) * x.shape[1] / x.ne(0).float().sum(1),
            lambda x: torch.masked.mean(x, dim=1, mask=x != 0),
            lambda x: x.double().sum(1) / (x != 0).sum(1),
            lambda x: x.sum(1, keepdim=True) / (x != 0).sum(1, keepdim=True),
        ],
        "wrong": [
            (lambda x: x[x != 0].view(len(x), -1).mean(1), ["Not every row has as many zeros"]),
            (lambda x: x[:, 0:2].mean(1), ["only the first two numbers"]),
            (lambda x: x.sum(1) / (x != 0).sum(1)[0], ["by the count of the first row"]),
            (lambda x: x.sum(1, keepdim=True) / x.ne(0).sum(1), ["a square"]),
            (lambda x: x.sum(1) / x.ne(0).sum(1, keepdim=True), ["a square"]),
            (lambda x: (x != 0).mean(1), ["could not infer output dtype"]),
            (lambda x: x.sum(1) / (x != 0), ["raised RuntimeError"]),
            (means_by_numpy, ["the rows leave for the CPU"]),
            (lambda x: x.sum(1) / x.shape[1], ["the zeros are counted"]),
            (lambda x: x.sum(1) // (x != 0).sum(1), ["the means are rounded"]),
        ],
    },
}
