"""Checks of lesson 4.8, Twelve puzzles to DDP: the first six, from send and recv to a ring."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ddplab.checks.turns import turn
from ddplab.course.films import frames
from ddplab.course.messages import filmed
from ddplab.hardware import device

NO_HELP = "called one of torch's collectives, and they are what is to be built"
ONLY = "Only `dist.send`, `dist.recv` and `pass_on`."
HINTS = {
    "there is no rank": "Ranks go from 0 to `size - 1`; `% size` leads from the last back to the first.",
    "list index out of range": "Chunks are numbered from 0 to `size - 1`: count modulo the number of ranks, `% size`.",
    "should not be the same as the rank": "No rank sends to itself, or receives from itself.",
    "pair.cc": "Does a rank send to itself, or wait for itself?",  # gloo's words where there is no such connection
    "not defined": "The cells above define what you may use: run them first.",
}


def _x(numbers: int = 2) -> torch.Tensor:
    """Ones on rank 0, tens on rank 1, hundreds on rank 2, …: 1 and 2, or 10 and 20, …"""
    return filmed(torch.arange(1.0, numbers + 1, device=device()) * 10 ** dist.get_rank())


def _calls(x: Any) -> str:
    """Which collectives were called, in place of sends and receives."""
    return ", ".join(dict.fromkeys(it.name for it in x.messages if it.name not in ("send", "recv"))) or "none"


def _held_and_calls(_: Any, x: Any, *__: Any) -> list[Any]:
    return [_calls(x), x]


# ------------------------------------------------------------------ a: swap


def _swap(x: Any, other: int, first: Callable[[int, int], bool] = lambda rank, other: rank < other) -> None:
    place = torch.empty_like(x)
    if first(dist.get_rank(), other):
        dist.send(x, other)
        dist.recv(place, other)
    else:
        dist.recv(place, other)
        dist.send(x, other)
    x.copy_(place)


def _swap_without_place(x: Any, other: int) -> None:
    if dist.get_rank() < other:
        dist.send(x, other)
        dist.recv(x, other)
    else:
        dist.recv(x, other)  # over what was to be sent
        dist.send(x, other)


def _swap_and_add(x: Any, other: int) -> None:
    place = x.clone()
    _swap(place, other)
    x.add_(place)


def _swap_lost(x: Any, other: int) -> None:
    place = x.clone()
    _swap(place, other)


def _swap_collectively(x: Any, other: int) -> None:
    held = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(held, x)
    x.copy_(held[other])


turn(
    "4.8.a",
    "Swap",
    _swap,
    lambda rank, size: (_x(), rank ^ 1),
    ranks=(2, 4),
    look=_held_and_calls,
    heads=("other calls", "x", ""),
    hints=HINTS,
    mistakes=[
        (_swap_without_place, "both hold what one of the two had",
         "Both send; and who receives first keeps what it has still to send: receive into a new tensor."),
        (_swap_and_add, "what came was added to what was there", "It takes its place."),
        (_swap_lost, "what came was not put into `x`", "`x.copy_(…)` writes into the tensor that is there."),
        (_swap_collectively, NO_HELP, ONLY),
        (partial(_swap, first=lambda rank, other: False), "both receive first, and nobody sends",
         "One has to send first. Which one? Both must agree, without asking."),
    ],
    otherwise="Of the two, one sends first and the other receives first. They know which without asking: also 2 and 3.",
)  # fmt: skip


# ------------------------------------------------------------------ b: broadcast by hand


def _broadcast(x: Any, to: Callable[[int], Any] = lambda size: range(1, size), add: bool = False) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        for other in to(size):
            dist.send(x, other)
    else:
        place = x.clone()
        dist.recv(place, 0)
        x.copy_(x + place if add else place)


def _last_to_all(x: Any) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == size - 1:
        for other in range(size - 1):
            dist.send(x, other)
    else:
        dist.recv(x, size - 1)


def _only_to_1(x: Any) -> None:
    if dist.get_rank() == 0:
        dist.send(x, 1)
    elif dist.get_rank() == 1:
        dist.recv(x, 0)


turn(
    "4.8.b",
    "Broadcast by hand",
    _broadcast,
    lambda rank, size: (_x(),),
    ranks=(3, 2),
    look=_held_and_calls,
    heads=("other calls", "x", ""),
    hints=HINTS,
    mistakes=[
        (_only_to_1, "rank 2 has heard nothing", "Rank 0 sends to every other rank."),
        (partial(_broadcast, add=True), "what came was added to what was there", "It takes its place."),
        (_last_to_all, "all have the last rank's numbers", "Rank 0 is the one that sends."),
        (lambda x: dist.broadcast(x, src=0), NO_HELP, ONLY),
        (partial(_broadcast, to=lambda size: range(1, size - 1)), "the last rank waits for ever",
         "`range(1, size)` ends at `size - 1`."),
        (lambda x: _broadcast(x.clone()), "`x` is on every rank what it was", "`x.copy_(…)` writes into `x`."),
    ],
    otherwise="Rank 0 only sends, once to each other rank; each of these only receives, from rank 0, and into `x`.",
)  # fmt: skip


# ------------------------------------------------------------------ c: a tree


def _tree(x: Any) -> None:
    rank, size, have = dist.get_rank(), dist.get_world_size(), 1
    while have < size:  # ranks 0 to have - 1 have it
        if rank < have:
            dist.send(x, rank + have)
        elif rank < 2 * have:
            dist.recv(x, rank - have)
        have *= 2


def _chain(x: Any) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(x, rank - 1)
    if rank < size - 1:
        dist.send(x, rank + 1)


def _tree_once(x: Any) -> None:
    rank, half = dist.get_rank(), dist.get_world_size() // 2
    dist.send(x, rank + half) if rank < half else dist.recv(x, rank - half)


def _busiest_and_depth(_: Any, x: Any) -> list[Any]:
    """The most that any rank sent, in how many rounds, and what is held."""
    told: list[Any] = [None] * dist.get_world_size()
    calls = _calls(x)
    dist.all_gather_object(told, list(x.messages))
    most = max(sum(it.name == "send" for it in messages) for messages in told)
    return [calls, most, len(frames(told, told)) - 1, x]


turn(
    "4.8.c",
    "A tree",
    _tree,
    lambda rank, size: (_x(1),),
    ranks=(4, 8),
    look=_busiest_and_depth,
    heads=("other calls", "most sends", "rounds", "x"),
    hints=HINTS,
    otherwise="In each round everybody who has it tells one who has not: 1, 2, 4, 8.",
    mistakes=[
        (_broadcast, "rank 0 sends to each rank in turn: as many rounds as there are other ranks",
         "Who has it can pass it on. In each round twice as many have it."),
        (_chain, "a chain: nobody sends twice, and it takes as many rounds as there are other ranks",
         "Rank 0 need not rest when it has sent once."),
        (_tree_once, "only one round was made", "Go on until all have it."),
        (_last_to_all, "all have the last rank's number", "Rank 0 is the one that knows it."),
        (lambda x: dist.broadcast(x, src=0), NO_HELP, ONLY),
    ],
)  # fmt: skip


# ------------------------------------------------------------------ d, e, f: in chunks


def pass_on(chunk: Any, to: int, sender: int) -> Any:
    """Send a chunk to one rank and return what another sends, both at once; as in the notebook."""
    arrived = torch.empty_like(chunk)
    both = [dist.P2POp(dist.isend, chunk, to), dist.P2POp(dist.irecv, arrived, sender)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return arrived


def _chunks(rank: int, size: int) -> tuple[Any, list[Any]]:
    x = _x(size)
    return x, list(x.chunk(size))


def _mine(_: Any, x: Any, chunks: list[Any]) -> list[Any]:
    return [_calls(x), x[dist.get_rank()]]


def _reduce_scatter(x: Any, chunks: list[Any], give: str = "theirs", add: bool = True, ways: int = 0) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for away in range(1, ways or size):
        to, sender = (rank + away) % size, (rank - away) % size
        part = pass_on(chunks[to if give == "theirs" else rank], to, sender)
        chunks[rank].copy_(chunks[rank] + part if add else part)


def _mean_scatter(x: Any, chunks: list[Any]) -> None:
    _reduce_scatter(x, chunks)
    chunks[dist.get_rank()].div_(dist.get_world_size())


def _reduce_scatter_lost(x: Any, chunks: list[Any]) -> None:
    copies = [chunk.clone() for chunk in chunks]
    _reduce_scatter(x, copies)


turn(
    "4.8.d",
    "Reduce-scatter",
    _reduce_scatter,
    _chunks,
    ranks=(3, 4),
    look=_mine,
    heads=("other calls", "its own chunk"),
    hints=HINTS,
    mistakes=[
        (partial(_reduce_scatter, give="mine"), "every rank sends its own chunk away, and adds chunks of other numbers",
         "Rank 2 collects chunk 2. So which chunk does rank 0 send there?"),
        (partial(_reduce_scatter, add=False), "what comes replaces what is there", "Add it up."),
        (partial(_reduce_scatter, ways=2), "each rank has heard one other rank only", "All others have a part of it."),
        (_mean_scatter, "that is the mean", "The sum is asked for."),
        (_reduce_scatter_lost, "each rank's own chunk is as it was",
         "What comes belongs to `chunks[rank]`; add in place: `chunks[i] += …`."),
        (lambda x, chunks: dist.all_reduce(x), NO_HELP, ONLY),
    ],
    otherwise="Rank r has to hear every other rank once, and each of them gives it chunk r.",
)  # fmt: skip


def _one_finished(rank: int, size: int) -> tuple[Any, list[Any]]:
    x = torch.zeros(size, device=device())
    x[rank] = 111.0 * (rank + 1)
    x = filmed(x)
    return x, list(x.chunk(size))


def _all_gather(x: Any, chunks: list[Any], ways: int = 0, to_place: str = "sender") -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for away in range(1, ways or size):
        to, sender = (rank + away) % size, (rank - away) % size
        place = sender if to_place == "sender" else to
        chunks[place].copy_(pass_on(chunks[rank], to, sender))


def _all_gather_the_first(x: Any, chunks: list[Any]) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for away in range(1, size):
        to, sender = (rank + away) % size, (rank - away) % size
        chunks[sender].copy_(pass_on(chunks[0], to, sender))


turn(
    "4.8.e",
    "All-gather",
    _all_gather,
    _one_finished,
    ranks=(3, 4),
    look=_held_and_calls,
    heads=("other calls", "x", "", "", ""),
    hints=HINTS,
    mistakes=[
        (partial(_all_gather, to_place="to"), "what comes from one rank lies in another's place",
         "Chunk s comes from rank s, or has been handed on from there."),
        (partial(_all_gather, ways=2), "each rank has heard one other rank only", "There are more."),
        (_all_gather_the_first, "every rank sends its chunk 0", "On rank 2 chunk 2 is the finished one."),
        (lambda x, chunks: _all_gather(x, [it.clone() for it in chunks]), "the chunks are as they were",
         "What goes out is finished; what comes is written into the tensor that is there: `chunks[i].copy_(…)`."),
        (lambda x, chunks: dist.all_reduce(x), NO_HELP, ONLY),
    ],
    otherwise="Chunk s is finished on rank s: from there it goes out, and into chunk s it belongs, on every rank.",
)  # fmt: skip


def _ring(
    x: Any, chunks: list[Any], shift: int = 0, steps: int = -1, add_again: bool = False, half: bool = False
) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size + steps):
        chunks[(rank - step - 1) % size].add_(pass_on(chunks[(rank - step + shift) % size], right, left))
    for step in range(0 if half else size + steps):
        arrived = pass_on(chunks[(rank + 1 - step) % size], right, left)
        place = chunks[(rank - step) % size]
        place.add_(arrived) if add_again else place.copy_(arrived)


def _everything_around(x: Any, chunks: list[Any]) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    going = x.clone()
    for _ in range(size - 1):
        going = pass_on(going, (rank + 1) % size, (rank - 1) % size)
        x.add_(going)


def _held_and_sent(_: Any, x: Any, chunks: list[Any]) -> list[Any]:
    """What is held, how much was sent, as a part of the tensor, and whether it went to the right only."""
    sends = [it for it in x.messages if it.name == "send"]
    right = (dist.get_rank() + 1) % dist.get_world_size()
    astray = [it.other for it in sends if it.other != right]
    sent = sum(it.size for it in sends) / x.nbytes
    return [_calls(x), "the right" if not astray else f"rank {astray[0]}", len(sends), sent, x]


turn(
    "4.8.f",
    "The ring",
    _ring,
    _chunks,
    ranks=(3, 4),
    look=_held_and_sent,
    heads=("other calls", "sends to", "messages", "tensors sent", "x", "", "", ""),
    hints=HINTS,
    otherwise="Take three ranks on paper: which chunk does rank 0 send in the first step, and which comes to it?",
    mistakes=[
        (partial(_ring, half=True), "each chunk's sum is finished on one rank only", "Hand the finished ones around."),
        (partial(_ring, shift=1), "in the first half rank r sends a chunk that it has not just added to",
         "At first chunk r; then the one to which it has just added."),
        (partial(_ring, add_again=True), "in the second half finished chunks are added", "There it takes the place."),
        (partial(_ring, steps=0), "one step too many in each half", "A chunk has to pass every other rank."),
        (_everything_around, "whole tensors go around: right, and each rank sends more than two of them",
         "Send one chunk in each step."),
        (lambda x, chunks: dist.all_reduce(x), NO_HELP, ONLY),
    ],
)  # fmt: skip
