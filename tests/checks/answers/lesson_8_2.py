"""Answers to the exercises of lesson 8.2: correct, blank, and wrong as learners are wrong."""

import torch
import torch.distributed as dist

RIGHT = ("accumulate", "ddp", "zero", "fsdp", "tensor")


def said(**other):
    return tuple(other.get(name, right) for name, right in zip("abcde", RIGHT, strict=True))


def part(tensor, dim=1):
    return tensor.chunk(dist.get_world_size(), dim=dim)[dist.get_rank()]


def summed(out):
    dist.all_reduce(out)
    return out


def columns_apart(x, weight, bias):
    return summed(part(x) @ part(weight).T) + bias


def bias_on_each(x, weight, bias):
    return summed(never_meet(x, weight, bias))


def never_meet(x, weight, bias):
    return part(x) @ part(weight).T + bias


def averaged(x, weight, bias):
    return no_bias(x, weight, bias) / dist.get_world_size() + bias


def averaged_all(x, weight, bias):
    return columns_apart(x, weight, bias) / dist.get_world_size()


def no_bias(x, weight, bias):
    return columns_apart(x, weight, bias) - bias


def for_two_ranks(x, weight, bias):
    mine = slice(6 * dist.get_rank(), 6 * dist.get_rank() + 6)
    return summed(x[:, mine] @ weight[:, mine].T) + bias


def by_rows(x, weight, bias):
    size, rows = dist.get_world_size(), -(-len(weight) // dist.get_world_size())
    padded = weight.new_zeros(size * rows, weight.shape[1])
    padded[: len(weight)] = weight
    mine = x @ padded.chunk(size)[dist.get_rank()].T
    parts = [mine.new_empty(mine.shape) for _ in range(size)]
    dist.all_gather(parts, mine)
    return torch.cat(parts, dim=1)[:, : len(weight)] + bias


def only_rank_0(x, weight, bias):
    out = part(x) @ part(weight).T
    dist.reduce(out, 0)
    return out + bias


ANSWERS = {
    "8.2.1": {
        "correct": RIGHT,
        "wrong": [
            (said(a="fsdp"), ["`a` is not 'fsdp'", "several GPUs"]),
            (said(b="fsdp"), ["`b` is not 'fsdp'", "more than is needed"]),
            (said(c="ddp"), ["`c` is not 'ddp'", "every rank needs the room"]),
            (said(c="accumulate"), ["`c` is not 'accumulate'", "activations smaller"]),
            (said(c="fsdp"), ["`c` is not 'fsdp'", "more than is needed"]),
            (said(d="zero"), ["`d` is not 'zero'", "whole on every rank"]),
            (said(d="tensor"), ["`d` is not 'tensor'", "no single layer"]),
            (said(e="fsdp"), ["`e` is not 'fsdp'", "fit whole"]),
            (said(e="pipelines"), ["`e` is 'pipelines'"]),
            (said(a=1), ["`a` is 1"]),
        ],
    },
    "8.2.2": {
        "correct": columns_apart,
        "wrong": [
            (bias_on_each, ["on 2 ranks", "the bias 2 times over"]),
            (never_meet, ["the ranks return different numbers"]),
            (averaged, ["the mean of the parts"]),
            (averaged_all, ["the mean of the parts"]),
            (no_bias, ["returns no bias"]),
            (lambda x, weight, bias: summed(x @ part(weight, dim=0).T), ["the shape (5, 2), not (5, 4)"]),
            (lambda x, weight, bias: summed(x @ part(weight).T) + bias, ["shapes cannot be multiplied"]),
            (lambda x, weight, bias: x @ weight.T + bias, ["multiplies all inputs", "its weight is whole"]),
            (lambda x, weight, bias: summed(x @ weight.T) + bias, ["2 times the product"]),
            (by_rows, ["on 2 ranks, a rank multiplies all inputs", "cut by rows"]),
            (for_two_ranks, ["on 3 ranks"]),
            (only_rank_0, ["rank 1", "different numbers"]),
            (lambda x, weight, bias: None, ["got no tensor back"]),
            ("columns_apart", ["not a function"]),
        ],
    },
}
