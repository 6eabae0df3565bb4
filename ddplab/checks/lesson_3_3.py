"""Checks of lesson 3.3, All-reduce and DDP by hand."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import TWICE, flat, needs_function, off, on_ranks
from ddplab.checks.turns import turn
from ddplab.course.data import digits
from ddplab.course.messages import Message, noted_messages
from ddplab.course.models import MLP
from ddplab.hardware import device


@exercise("3.3.1", "Piece r to rank r")
def first_half(reduce_scatter: Callable[..., Any]) -> None:
    """After `reduce_scatter(chunks)` chunk r on rank r must be the sum, in N - 1 steps around the ring."""
    needs_function("reduce_scatter", reduce_scatter)
    for size in (2, 3):
        _first_half_on(size, reduce_scatter)


def _first_half_on(size: int, reduce_scatter: Callable[..., Any]) -> None:
    ranks = on_ranks(_first_half_in_rank, reduce_scatter, size=size, hints=HINTS, timeout=6)
    where, total = f"on {size} ranks", _sums(size)
    done = [[chunk for chunk in range(size) if held[chunk] == total[chunk]] for held, _, _ in ranks]
    _only_to_the_right(where, [messages for _, _, messages in ranks])
    steps = _steps(ranks[0][2])
    if not steps:
        raise NotYet(f"{where}, nothing was passed on", "`pass_right(chunk, place)` returns what came from the left.")
    if all(len(finished) == size for finished in done) and steps > size - 1:
        hint = f"That is an all-reduce. Stop after {size - 1}, when each rank has one finished chunk."
        raise NotYet(f"{where}, every rank has the whole sum, after {steps} steps", hint)
    if all(rank in finished for rank, finished in enumerate(done)):
        if steps > size - 1:
            raise NotYet(f"{where}, chunk r is right, but it took {steps} steps", f"{size - 1} are enough.")
        return
    if all(finished == [(rank + 1) % size] for rank, finished in enumerate(done)):
        raise NotYet(
            f"{where}, rank 0 ends with chunk 1 finished, rank {size - 1} with chunk 0: the ring of the lesson",
            "Each chunk has to start one rank further on. Which chunk does rank r send first, then?",
        )
    if steps < size - 1:
        raise NotYet(f"{where}, there was {steps} step, and {size - 1} are needed", "One for each *other* rank.")
    if all(listed[rank] == total[rank] for rank, (_, listed, _) in enumerate(ranks)):
        raise NotYet(f"{where}, chunk r is right in the list, but the tensor is as it was", IN_PLACE)
    start = [[(chunk + 1) * 10.0**rank for chunk in range(size)] for rank in range(size)]
    if all(ranks[rank][0] == start[rank] for rank in range(size)):
        raise NotYet(f"{where}, the chunks are as they were", IN_PLACE)
    rank = next(rank for rank, finished in enumerate(done) if rank not in finished)
    raise NotYet(
        f"{where}, chunk {rank} on rank {rank} is {ranks[rank][0][rank]:g}, and the sum is {total[rank]:g}",
        "What arrives is the chunk that the left neighbour sent. Add it to your own chunk of the same number.",
    )


def _first_half_in_rank(reduce_scatter: Callable[..., Any]) -> tuple[list[float], list[float], list[Message]]:
    messages = noted_messages()
    x = torch.arange(1.0, dist.get_world_size() + 1, device=device()) * 10 ** dist.get_rank()
    return _run(reduce_scatter, x, messages)


@exercise("3.3.2", "Once more around")
def second_half(all_gather: Callable[..., Any]) -> None:
    """Chunk r on rank r is finished; after `all_gather(chunks)` all are, everywhere, in N - 1 steps."""
    needs_function("all_gather", all_gather)
    for size in (2, 4):
        _second_half_on(size, all_gather)


def _second_half_on(size: int, all_gather: Callable[..., Any]) -> None:
    ranks = on_ranks(_second_half_in_rank, all_gather, size=size, hints=HINTS, timeout=6)
    where, total = f"on {size} ranks", _sums(size)
    _only_to_the_right(where, [messages for _, _, messages in ranks])
    steps = _steps(ranks[0][2])
    if not steps:
        raise NotYet(f"{where}, nothing was passed on", "`pass_right(chunk, place)` returns what came from the left.")
    if all(held == total for held, _, _ in ranks):
        if steps > size - 1:
            raise NotYet(f"{where}, all chunks are right, but it took {steps} steps", f"{size - 1} are enough.")
        return
    if all(listed == total for _, listed, _ in ranks):
        hint = "Write into the chunk that is there: `chunks[i].copy_(…)`."
        raise NotYet(f"{where}, all chunks are right in the list, but the tensor is as it was", hint)
    if steps < size - 1:
        raise NotYet(f"{where}, there was {steps} step, and {size - 1} are needed", "One for each *other* rank.")
    if all(held[rank] != total[rank] for rank, (held, _, _) in enumerate(ranks)):
        hint = "At first rank r sends its chunk r. So which one comes from the left?"
        raise NotYet(f"{where}, no rank has its own finished chunk any more", hint)
    rank, chunk = next((r, c) for r in range(size) for c in range(size) if ranks[r][0][c] != total[c])
    got = ranks[rank][0][chunk]
    what = f"{where}, chunk {chunk} on rank {rank} is {got:g}, and it should be {total[chunk]:g}"
    if got == total[chunk] + UNFINISHED:
        raise NotYet(f"{what}: it was added", "In this half what arrives *replaces* what is there.")
    if got == UNFINISHED:
        hint = "After the first step, send on what has just come."
        raise NotYet(f"{what}: no finished chunk has come there", hint)
    raise NotYet(what, "What arrives is the chunk that the left neighbour sent, and goes into the same number.")


UNFINISHED = 0.5  # what stands in a chunk until the finished one comes


def _second_half_in_rank(all_gather: Callable[..., Any]) -> tuple[list[float], list[float], list[Message]]:
    messages, size, rank = noted_messages(), dist.get_world_size(), dist.get_rank()
    x = torch.full((size,), UNFINISHED, device=device())
    x[rank] = _sums(size)[rank]
    return _run(all_gather, x, messages)


def _run(half: Callable[..., Any], x: Any, messages: list[Message]) -> tuple[list[float], list[float], list[Message]]:
    """What the tensor holds after a half of the ring, what the list of its chunks holds, and what was sent."""
    chunks = list(x.chunk(len(x)))
    half(chunks)
    return x.tolist(), [float(chunk) for chunk in chunks], messages


def _sums(size: int) -> list[float]:
    """Chunk c is c + 1 on rank 0, ten times that on rank 1, and so on."""
    return [float((chunk + 1) * sum(10**rank for rank in range(size))) for chunk in range(size)]


def _steps(messages: list[Message]) -> int:
    return sum(message.name == "send" for message in messages)


def _only_to_the_right(where: str, messages: list[list[Message]]) -> None:
    for rank, noted in enumerate(messages):
        if used := [message.name for message in noted if message.name not in ("send", "recv")]:
            raise NotYet(f"{where}, you called `dist.{used[0]}`", "`pass_right` is all that you need.")
        right = (rank + 1) % len(messages)
        if strange := [message.other for message in noted if message.name == "send" and message.other != right]:
            hint = "On a ring a rank sends to its right neighbour only: use `pass_right`."
            raise NotYet(f"{where}, rank {rank} sends to rank {strange[0]}", hint)


@exercise("3.3.3", "One message")
def one_message(average_in_one: Callable[..., Any]) -> None:
    """`average_in_one(net)` must leave the mean gradient on every rank, by a single all_reduce."""
    needs_function("average_in_one", average_in_one)
    _one_message_on(2, average_in_one, frozen=False)
    _one_message_on(3, average_in_one, frozen=True)


def _one_message_on(size: int, average_in_one: Callable[..., Any], frozen: bool) -> None:
    hints = {**TWICE, "": FROZEN} if frozen else ONE_HINTS  # without a frozen parameter it ran
    ranks = on_ranks(_one_message_in_rank, average_in_one, frozen, size=size, hints=hints, timeout=6)
    where, mean = f"on {size} ranks" + ", the first parameter frozen" * frozen, sum(r["before"] for r in ranks) / size
    if any(rank["frozen has one"] for rank in ranks):
        raise NotYet(f"{where}, the frozen parameter has got a gradient", "Leave alone what has none.")
    calls = ranks[0]["calls"]
    if others := [name for name in calls if name != "all_reduce"]:
        raise NotYet(f"{where}, you called `dist.{others[0]}`", "One `dist.all_reduce` is enough.")
    if all(off(rank["after"], mean) < 1e-5 for rank in ranks):
        if len(calls) != 1:
            hint = "Put all gradients into one long vector, and all-reduce that."
            raise NotYet(f"{where}, the mean is right, and it took {len(calls)} messages", hint)
        return
    if not calls:
        raise NotYet(f"{where}, no `all_reduce` was called", "`dist.all_reduce(vector)` adds up in place.")
    if all(off(rank["after"], rank["before"]) < 1e-5 for rank in ranks):
        hint = "The vector is a copy. Cut it up again, and copy each piece back: `p.grad.copy_(…)`."
        raise NotYet(f"{where}, every rank still has its own gradients", hint)
    for factor in (size, 1 / size, size / 2, 2 / size):
        if all(off(rank["after"], factor * mean) < 1e-5 for rank in ranks):
            hint = "`all_reduce` adds up; divide once, by `dist.get_world_size()`."
            raise NotYet(f"{where}, every gradient is {factor:.3g} times the mean", hint)
    hint = "Do the pieces go back in the order in which they came, each with as many numbers as its gradient?"
    raise NotYet(f"{where}, not every gradient is the mean over the ranks", FROZEN if frozen else hint)


def _one_message_in_rank(average_in_one: Callable[..., Any], frozen: bool) -> dict[str, Any]:
    torch.manual_seed(dist.get_rank())
    net = MLP(hidden=4).to(device())
    first = next(net.parameters())
    first.requires_grad_(not frozen)
    net(torch.randn(8, 1, 8, 8).to(device())).square().mean().backward()

    def look() -> Any:
        return flat(p.grad for p in net.parameters() if p.grad is not None)

    before, messages = look(), noted_messages()
    average_in_one(net)
    calls, has_one = [message.name for message in messages], frozen and first.grad is not None
    return {"before": before, "after": before if has_one else look(), "calls": calls, "frozen has one": has_one}


IN_PLACE = "Add in place: `chunks[i] += …` changes the tensor itself."
FROZEN = "Here one parameter is frozen, and its `.grad` is None: count and cut only those that have a gradient."
ONE_HINTS = {
    **TWICE,
    "'NoneType' object": "`dist.all_reduce` returns nothing: it changes the tensor that you give it.",
    "invalid for input of size": "Cut the vector into pieces of `p.numel()` numbers, and give each its shape back.",
    "must match the size of tensor": "Cut the vector into pieces of `p.numel()` numbers, and give each its shape back.",
}
HINTS = {
    **TWICE,
    "list index out of range": "Chunks are numbered from 0 to N - 1: count modulo the number of ranks, `% size`.",
    "there is no rank": "They are numbered from 0 to N - 1. Use `pass_right`, which counts modulo.",
}

# ------------------------------------------------------------------ your turn


def _noting(rank: int, size: int) -> tuple[Any]:
    x = torch.tensor([1.0, 2.0], device=device()) * 10**rank  # ones are rank 0's, tens rank 1's
    x.noted = noted_messages()
    return (x,)


def _sum_and_way(_: Any, x: Any) -> list[Any]:
    names = {message.name for message in x.noted}
    return [x, "nothing sent" if not names else "yes" if names <= {"send", "recv"} else "no"]


def _plain(x: Any, back: str = "at the end", into: str = "part", over: int = 1, own: bool = True) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.send(x, 0)
        if back != "never":
            dist.recv(x, 0)
        return
    x *= own
    for other in range(1, size):
        part = torch.empty_like(x)
        dist.recv(x if into == "x" else part, other)
        x += part if into == "part" else 0
        if back == "at once":
            dist.send(x, other)
    x /= over
    for other in range(1, size if back == "at the end" else 0):
        dist.send(x, other)


def _nobody_takes_it(x: Any) -> None:
    _plain(x, back="never" if dist.get_rank() else "at the end")


def _hands_out_first(x: Any) -> None:
    for other in range(1, dist.get_world_size() if dist.get_rank() == 0 else 0):
        dist.send(x, other)
    _plain(x, back="never")


turn(
    "3.3.a",
    "All-reduce, the plain way",
    _plain,
    _noting,
    ranks=(3, 2),
    look=_sum_and_way,
    heads=("x", "", "by send and recv"),
    device="cpu",
    mistakes=[
        (lambda x: x, "nothing has moved", "Rank 0 does one thing, all others do another: `if rank > 0:`."),
        (partial(_plain, back="never"), "only rank 0 has the sum", "It sends it back, and the others receive it."),
        (partial(_plain, back="at once"), "rank 1 gets a sum before rank 2's part is in it",
         "First collect from all, and then hand out: two loops."),
        (partial(_plain, into="x"), "what comes overwrites what rank 0 held",
         "Receive into a tensor of its own, `torch.empty_like(x)`, and add that."),
        (partial(_plain, own=False), "rank 0's own numbers are missing", "It adds what comes to its own `x`."),
        (partial(_plain, over=3), "it is the mean, and the sum is asked for", "An all-reduce adds up, no more."),
        (lambda x: dist.all_reduce(x), "torch's `all_reduce` does it", "Here you build it: `send` and `dist.recv`."),
        (_nobody_takes_it, "rank 0 sends the sum, and nobody receives it", "All but rank 0 send, and then receive."),
        (_hands_out_first, "both send first, and nobody receives", "Who receives first? Rank 0."),
    ],
    hints=HINTS,
)  # fmt: skip


class _Net(torch.nn.Module):
    """A weight, a bias and a frozen parameter, with gradients that tell whose they are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias, self.frozen = (torch.nn.Parameter(torch.ones(n, device=device())) for n in (2, 1, 1))
        self.frozen.requires_grad_(False)
        self.weight.grad = torch.tensor([1.0, 2.0], device=device()) * 10 ** dist.get_rank()
        self.bias.grad = torch.tensor([4.0], device=device()) * 10 ** dist.get_rank()


def _gradients(_: Any, net: Any) -> list[Any]:
    return [*["none" if p.grad is None else p.grad for p in (net.weight, net.bias, net.frozen)]]


def _average(
    net: Any, before: int = 1, after: int = 0, which: slice = slice(None), frozen: bool = False, reduce: Any = None
) -> None:
    for p in list(net.parameters())[which]:
        if frozen and p.grad is None:
            p.grad = torch.zeros_like(p)
        if p.grad is not None:
            p.grad /= before
            (reduce or dist.all_reduce)(p.grad)
            p.grad /= after or dist.get_world_size()


turn(
    "3.3.b",
    "Everybody's mean gradient",
    _average,
    lambda rank, size: (_Net(),),
    ranks=(3, 2),
    look=_gradients,
    heads=("weight.grad", "", "bias.grad", "frozen"),
    mistakes=[
        (lambda net: net, "the gradients are as they were", "Change `p.grad` itself, in place, and not a copy of it."),
        (partial(_average, after=1), "the gradients are added up", "What makes a mean of a sum?"),
        (partial(_average, reduce=id), "each rank divides its own gradients, and nobody adds up",
         "They have to meet: `dist.all_reduce`."),
        (lambda net: _average(net, before=dist.get_world_size()), "it divides twice", "Once, before or after the sum."),
        (partial(_average, which=slice(1)), "only the first parameter is averaged", "A loop over all parameters."),
        (partial(_average, after=3), "it divides by 3", "How many ranks are there? `dist.get_world_size()`."),
        (partial(_average, after=2), "it divides by 2", "How many ranks are there? `dist.get_world_size()`."),
        (partial(_average, frozen=True), "the frozen parameter has a gradient now", "Pass over those that have none."),
        (partial(_average, reduce=partial(dist.reduce, dst=0)), "only rank 0 has the mean", "`all_reduce`, for all."),
        (lambda net: dist.get_rank() or _average(net), "only rank 0 adds up, and waits for the others",
         "A collective is a call that all ranks make."),
    ],
    hints={**TWICE, "'NoneType'": "The frozen parameter's `.grad` is None. Pass over it: `if p.grad is not None:`.",
           "Expected parameter `tensor`": "The frozen parameter's `.grad` is None. Pass over it."},
)  # fmt: skip


def _net_and_batch(*_: int) -> tuple[Any, Any, Any]:
    """A small network alike on all ranks, which writes down how many rows it is given, and has an old gradient."""
    net = MLP(hidden=8).to(device())
    torch.nn.init.zeros_(net.layers[-1].bias)
    for p in net.parameters():
        p.grad = torch.full_like(p, 0.1)
    net.rows = []
    net.register_forward_pre_hook(lambda _, inputs: net.rows.append(len(inputs[0])))
    images, labels = (tensor[:64].to(device()) for tensor in digits().tensors)
    return net, images, labels


def _rows_and_bias(_: Any, net: Any, *__: Any) -> list[Any]:
    return [sum(net.rows), *[round(it, 3) for it in net.layers[-1].bias.tolist()[:3]]]


def _one_step(
    net: Any,
    images: Any,
    labels: Any,
    share: str = "own",
    zero: bool = True,
    average: Any = _average,
    lr: float = 0.5,
) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = {"own": slice(rank, None, size), "first": slice(0, None, size), "all": slice(None)}[share]
    if zero:
        net.zero_grad()
    F.cross_entropy(net(images[mine]), labels[mine]).backward()
    average(net)
    with torch.no_grad():
        for p in net.parameters():
            p -= lr * p.grad


turn(
    "3.3.c",
    "A training step by hand",
    _one_step,
    _net_and_batch,
    ranks=(2, 4),
    look=_rows_and_bias,
    heads=("rows", "weights", "", ""),
    mistakes=[
        (partial(_one_step, average=id), "each rank goes by its own gradient, and the ranks drift apart",
         "Between `backward()` and the step they have to meet: `average_gradients`."),
        (partial(_one_step, share="all"), "every rank computes all 64 images: the step is right, and nothing is won",
         "Rank r takes every `size`-th image, from image r on."),
        (partial(_one_step, share="first"), "all ranks take the same images", "The share depends on the `rank`."),
        (partial(_one_step, zero=False), "the gradients of the step before are in it", "`net.zero_grad()`"),
        (partial(_one_step, average=partial(_average, after=1)), "the gradients are added up, and not averaged",
         "A mean loss has a mean gradient: divide by the number of ranks."),
        (lambda *it: _one_step(*it, average=lambda net: _average(net, before=dist.get_world_size())),
         "it divides twice by the number of ranks", "`average_gradients` has divided already."),
        (partial(_one_step, lr=-0.5), "the step goes uphill", "Against the gradient: `-=`."),
        (partial(_one_step, lr=0), "the weights have not moved", "`p -= lr * p.grad`, under `torch.no_grad()`."),
    ],
    hints={**TWICE, "a leaf Variable that requires grad": "Change weights under `with torch.no_grad():`."},
)  # fmt: skip
