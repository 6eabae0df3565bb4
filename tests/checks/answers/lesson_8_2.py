"""Answers to the exercises of lesson 8.2: correct, blank, and wrong as learners are wrong."""

from fractions import Fraction
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F

RIGHT = ("accumulate", "ddp", "zero", "fsdp", "tensor")


def said(**other):
    return tuple(other.get(name, right) for name, right in zip("abcde", RIGHT, strict=True))


# 8.2.2: a pipeline of any length


def stage(
    part, x, loss, width,
    up=lambda it: it.grad, on=lambda out, gradient, loss: out.backward(gradient), wanted=True, below=None,
):  # fmt: skip
    """The stage of any rank, with one thing done otherwise at a time."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank > 0:
        x = torch.zeros(len(x), width, device=x.device)
        dist.recv(x, rank - 1)
        x.requires_grad_(wanted)
    out = part(x)
    if rank < last:
        dist.send(out.detach(), below or rank + 1)
        gradient = torch.zeros_like(out)
        dist.recv(gradient, below or rank + 1)
        on(out, gradient, loss)
    else:
        loss(out).backward()
    if rank > 0:
        dist.send(up(x), rank - 1)


def with_autograd(part, x, loss, width):
    rank, size = dist.get_rank(), dist.get_world_size()
    taken = x
    if rank:
        taken = x.new_empty(len(x), width)
        dist.recv(taken, src=rank - 1)
    taken = taken.clone().requires_grad_()
    out = part(taken)
    come = None
    if rank + 1 < size:
        dist.send(out.detach(), dst=rank + 1)
        come = torch.empty_like(out)
        dist.recv(come, src=rank + 1)
    else:
        out = loss(out)
    gradients = torch.autograd.grad(out, [taken, *part.parameters()], come)
    for parameter, gradient in zip(part.parameters(), gradients[1:], strict=True):
        parameter.grad = gradient
    if rank:
        dist.send(gradients[0], dst=rank - 1)


def hands_the_same_on(part, x, loss, width):
    came = []
    stage(
        part, x, loss, width, up=lambda it: came[0] if came else it.grad,
        on=lambda out, gradient, loss: came.append(gradient) or out.backward(gradient),
    )  # fmt: skip


def for_two_ranks(part, x, loss, width):
    if dist.get_rank() < 2:
        stage(part, x, loss, width, below=1) if dist.get_rank() == 0 else as_the_last(part, x, loss, width)


def as_the_last(part, x, loss, width):
    x = torch.zeros(len(x), width, device=x.device)
    dist.recv(x, 0)
    loss(part(x.requires_grad_())).backward()
    dist.send(x.grad, 0)


# your turn


def by_slices(x, first, second):
    rank, size = dist.get_rank(), dist.get_world_size()
    here = slice(rank * len(first.weight) // size, (rank + 1) * len(first.weight) // size)
    between = F.linear(x, first.weight[here], first.bias[here]).clamp(min=0)
    part = F.linear(between, second.weight[:, here])
    dist.all_reduce(part)
    part += second.bias
    return part


def every_nth(x, first, second):
    rank, size = dist.get_rank(), dist.get_world_size()
    between = (x @ first.weight[rank::size].T + first.bias[rank::size]).relu()
    parts = [torch.empty(len(x), len(second.weight), device=x.device) for _ in range(size)]
    dist.all_gather(parts, between @ second.weight[:, rank::size].T)
    return sum(parts) + second.bias


def the_other_way_round(x, first, second, cut=torch.tensor_split):
    rank, size = dist.get_rank(), dist.get_world_size()
    hidden = cut(x, size, dim=1)[rank] @ cut(first.weight, size, dim=1)[rank].T
    dist.all_reduce(hidden)
    places = cut(torch.arange(second.out_features, device=x.device), size)[rank]
    out = torch.zeros(len(x), second.out_features, device=x.device)
    out[:, places] = F.relu(hidden + first.bias) @ second.weight[places].T
    dist.all_reduce(out)
    return out + second.bias


def in_chunks_the_other_way(x, first, second):
    return the_other_way_round(x, first, second, cut=torch.chunk)


def rows_of_both(x, first, second):
    rank, size = dist.get_rank(), dist.get_world_size()
    between = (x @ first.weight.chunk(size)[rank].T + first.bias.chunk(size)[rank]).relu()
    return between @ second.weight.chunk(size)[rank].T


def a_product(part, x, loss, middle):
    if dist.get_rank() == 0:
        out = part(x)
        dist.send(out.detach(), 1)
        dist.recv(middle, 1)
        (out * middle).sum().backward()
    else:
        dist.recv(middle, 0)
        middle.requires_grad = True
        loss(part(middle)).backward()
        dist.send(middle.grad, 0)


def a_new_leaf(part, x, loss, middle):
    if dist.get_rank() == 0:
        out = part(x)
        dist.send(out.detach(), 1)
        gradient = torch.empty_like(out)
        dist.recv(gradient, 1)
        torch.autograd.backward([out], [gradient])
    else:
        dist.recv(middle, 0)
        leaf = middle.clone().requires_grad_()
        loss(part(leaf)).backward()
        dist.send(leaf.grad, 0)


def by_counting(stages, portions):
    columns = portions + stages - 1
    return 1 - torch.tensor(portions) / columns


def looked_up(stages, portions):
    return {(4, 1): 0.75, (2, 1): 0.5, (2, 4): 0.2, (4, 12): 0.2, (1, 8): 0}[stages, portions]


def by_drawing(stages, portions):
    rows = ["." * stage + "x" * portions + "." * (stages - 1 - stage) for stage in range(stages)]
    return "".join(rows).count(".") / len("".join(rows))


def sent_too_early(part, x, loss, middle):
    if dist.get_rank() == 0:
        return a_product(part, x, loss, middle)
    dist.recv(middle, 0)
    dist.send(middle.requires_grad_().grad, 0)
    return loss(part(middle)).backward()


def from_its_own_output(part, x, loss, middle):
    if dist.get_rank() == 0:
        return a_product(part, x, loss, middle)
    dist.recv(middle, 0)
    out = part(middle)
    out.retain_grad()
    loss(out).backward()
    return dist.send(out.grad, 0)


def sent_back(part, x, loss, middle):
    if dist.get_rank() == 0:
        return a_product(part, x, loss, middle)
    dist.recv(middle, 0)
    loss(part(middle.requires_grad_())).backward()
    return dist.send(middle.detach(), 0)


def sent_its_output(part, x, loss, middle):
    if dist.get_rank() == 0:
        return a_product(part, x, loss, middle)
    dist.recv(middle, 0)
    loss(out := part(middle)).backward()
    return dist.send(out.detach(), 0)


def never_received(part, x, loss, middle):
    if dist.get_rank():
        return a_product(part, x, loss, middle)
    dist.send((out := part(x)).detach(), 1)
    dist.recv(torch.zeros_like(middle), 1)
    return out.backward(middle)


def in_fractions(stages, portions):
    return Fraction(stages - 1, portions + stages - 1)


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
        "correct": stage,
        "accepted": [with_autograd],
        "wrong": [
            (partial(stage, on=lambda out, gradient, loss: None), ["on 2 ranks, stage 0 has no gradients"]),
            (
                partial(stage, on=lambda out, gradient, loss: out.sum().backward()),
                ["stage 0", "a sum of its own output"],
            ),
            (partial(stage, on=lambda out, gradient, loss: loss(out).backward()), ["stage 0", "a loss of its own"]),
            (partial(stage, up=lambda it: it.detach()), ["stage 0", "the output that came back"]),
            (partial(stage, up=lambda it: torch.zeros_like(it)), ["stage 0 has gradients of zero"]),
            (partial(stage, up=lambda it: 2 * it.grad), ["stage 0 has 2 times the gradients"]),
            (hands_the_same_on, ["on 3 ranks", "stage 0", "handed on"]),
            (partial(stage, wanted=False), ["rank 1", "TypeError"]),
            (for_two_ranks, ["on 3 ranks", "other gradients"]),
            (lambda *it: None, ["on 2 ranks, stage 0 has no gradients"]),
            ("stage", ["not a function"]),
        ],
    },
    "8.2.a": {
        "accepted": [by_slices, every_nth],
        "wrong": [
            (rows_of_both, ["raised RuntimeError"]),
            (the_other_way_round, ["on 3 ranks", "the other way round: the first into columns, the second into rows"]),
            (in_chunks_the_other_way, ["on 3 ranks", "rank 2 raised IndexError"]),
        ],
    },
    "8.2.b": {
        "accepted": [a_product, a_new_leaf],
        "wrong": [
            (sent_too_early, ["no gradient at the cut"]),
            (from_its_own_output, ["rank 1 sends its own output, or the gradient there"]),
            (sent_back, ["rank 1 sends back `middle`, and not its gradient"]),
            (sent_its_output, ["rank 1 sends its own output"]),
            (never_received, ["the gradients of rank 0 are 0"]),
        ],
    },
    "8.2.c": {
        "accepted": [by_counting, by_drawing, in_fractions],
        "wrong": [
            (lambda stages, portions: (stages - 1) // (stages - 1 + portions), ["as of a share that is rounded down"]),
            (lambda stages, portions: stages - 1 + (stages - 1) / portions, ["`/` comes before"]),
            (looked_up, ["raised KeyError"]),
        ],
    },
}
