"""Checks of lesson 3.3, All-reduce and DDP by hand."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import TWICE, flat, needs_function, note_calls, off, on_ranks
from ddplab.course.models import MLP
from ddplab.hardware import device


@exercise("3.3.1", "Piece r to rank r")
def ring(reduce_scatter: Callable[..., Any]) -> None:
    """After `reduce_scatter(chunks)` chunk r on rank r must be the sum, in N - 1 steps around the ring."""
    needs_function("reduce_scatter", reduce_scatter)
    for size in (2, 3):
        _ring_on(size, reduce_scatter)


def _ring_on(size: int, reduce_scatter: Callable[..., Any]) -> None:
    ranks = on_ranks(_ring_in_rank, reduce_scatter, size=size, hints=HINTS, timeout=6)
    where, total = f"on {size} ranks", [(chunk + 1) * sum(10**rank for rank in range(size)) for chunk in range(size)]
    done = [[chunk for chunk in range(size) if held[chunk] == total[chunk]] for held, _, _ in ranks]
    steps = ranks[0][1]
    if used := ranks[0][2]:
        raise NotYet(f"{where}, you called `dist.{used[0]}`", "`pass_right` is all that you need.")
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
    start = [[(chunk + 1) * 10.0**rank for chunk in range(size)] for rank in range(size)]
    if all(ranks[rank][0] == start[rank] for rank in range(size)):
        hint = "Add in place: `chunks[i] += …` changes the tensor itself."
        raise NotYet(f"{where}, the chunks are as they were", hint)
    rank = next(rank for rank, finished in enumerate(done) if rank not in finished)
    raise NotYet(
        f"{where}, chunk {rank} on rank {rank} is {ranks[rank][0][rank]:g}, and the sum is {total[rank]:g}",
        "What arrives is the chunk that the left neighbour sent. Add it to your own chunk of the same number.",
    )


def _ring_in_rank(reduce_scatter: Callable[..., Any]) -> tuple[list[float], int, list[str]]:
    used: list[str] = []
    steps: list[str] = []
    note_calls(["batch_isend_irecv"], steps.append)
    note_calls(["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"], used.append)
    x = torch.arange(1.0, dist.get_world_size() + 1, device=device()) * 10 ** dist.get_rank()
    reduce_scatter(list(x.chunk(len(x))))
    return x.tolist(), len(steps), used


@exercise("3.3.2", "One bucket")
def bucket(average_in_one: Callable[..., Any]) -> None:
    """`average_in_one(net)` must leave the mean gradient on every rank, by a single all_reduce."""
    needs_function("average_in_one", average_in_one)
    for size in (2, 3):
        ranks = on_ranks(_bucket_in_rank, average_in_one, size=size, hints=HINTS, timeout=6)
        where, mean = f"on {size} ranks", sum(rank["before"] for rank in ranks) / size
        calls = ranks[0]["calls"]
        if all(off(rank["after"], mean) < 1e-9 for rank in ranks):
            if calls != 1:
                hint = "Put all gradients into one long vector, `torch.cat`, and all-reduce that."
                raise NotYet(f"{where}, the mean is right, and it took {calls} messages", hint)
            continue
        if not calls:
            raise NotYet(f"{where}, no `all_reduce` was called", "`dist.all_reduce(vector)` adds up in place.")
        if all(off(rank["after"], rank["before"]) < 1e-9 for rank in ranks):
            hint = "The vector is a copy. Cut it up again, and copy each piece back: `p.grad.copy_(…)`."
            raise NotYet(f"{where}, every rank still has its own gradients", hint)
        for factor in (size, 1 / size, size / 2, 2 / size):
            if all(off(rank["after"], factor * mean) < 1e-9 for rank in ranks):
                hint = "`all_reduce` adds up; divide once, by `dist.get_world_size()`."
                raise NotYet(f"{where}, every gradient is {factor:.3g} times the mean", hint)
        hint = "Do the pieces go back in the order in which they came, each with as many numbers as its parameter?"
        raise NotYet(f"{where}, not every gradient is the mean over the ranks", hint)


def _bucket_in_rank(average_in_one: Callable[..., Any]) -> dict[str, Any]:
    torch.manual_seed(dist.get_rank())
    net = MLP(hidden=4).double().to(device())
    next(net.parameters()).requires_grad_(False)  # a frozen layer has no gradient
    net(torch.randn(8, 1, 8, 8, dtype=torch.float64).to(device())).square().mean().backward()

    def look() -> Any:
        return flat(p.grad for p in net.parameters() if p.grad is not None)

    before, calls = look(), []
    note_calls(["all_reduce"], calls.append)
    average_in_one(net)
    return {"before": before, "after": look(), "calls": len(calls)}


FROZEN = "A frozen layer has no gradient: leave out parameters whose `.grad` is None."
HINTS = {
    **TWICE,
    "'NoneType' object": FROZEN,
    "Expected parameter `tensor`": FROZEN,
    "expected Tensor as element": FROZEN,
    "must match the size of tensor": "Cut the vector into pieces of `p.numel()` numbers, and give each its shape back.",
    "list index out of range": "Chunks are numbered from 0 to N - 1: count modulo the number of ranks, `% size`.",
}
