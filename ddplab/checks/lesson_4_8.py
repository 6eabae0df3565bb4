"""Checks of lesson 4.8, Twelve puzzles to DDP: the first six, from send and recv to a ring."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ddplab.checks.turns import turn, waiting
from ddplab.course.films import frames
from ddplab.course.messages import filmed
from ddplab.hardware import device

NO_HELP = "called one of torch's collectives, and they are what is to be built"
ONLY = "Use messages between two ranks: `dist.send` and `dist.recv`, from puzzle d on also `pass_on`."
IN_RANGE = "Ranks go from 0 to `size - 1`"
TENSOR_FIRST = "First the tensor, then the rank: `recv` writes into the tensor that it is given."
HINTS = {
    "there is no rank": f"{IN_RANGE}; `% size` leads from the last back to the first.",
    "Expected parameter `tensor`": TENSOR_FIRST,
    "value of Tensor with more": TENSOR_FIRST,
    "list index out of range": "Chunks are numbered from 0 to `size - 1`: count modulo the number of ranks, `% size`.",
    "should not be the same as the rank": "No rank sends to itself, or receives from itself.",
    " itself": "Which number makes a rank its own neighbour? The others are 1, 2, … further on, modulo `size`.",
    "not defined": "If a cell above defines it, run that one first; if none does, it is yours to define.",
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


def _swap(
    x: Any,
    other: int,
    first: Callable[[int, int], bool] = lambda rank, other: rank < other,
    lost_by: int | None = None,
) -> None:
    place = torch.empty_like(x)
    if first(dist.get_rank(), other):
        dist.send(x, other)
        dist.recv(place, other)
    else:
        dist.recv(place, other)
        dist.send(x, other)
    if dist.get_rank() % 2 != lost_by:
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


def _one_way(x: Any, other: int) -> None:
    dist.send(x, other) if dist.get_rank() < other else dist.recv(x, other)


def _swap_by_chance(x: Any, other: int) -> None:
    coming = dist.irecv(x, other)
    dist.send(x, other)
    coming.wait()


def _swapped(_: Any, x: Any, other: int) -> list[Any]:
    """What is held; where that is not right, whether nothing has come. Never right: `x` received before it is sent."""
    calls, names = _calls(x), [it.name for it in x.messages if it.watched]  # before the check calls one
    early: list[Any] = [None] * dist.get_world_size()
    received_first = "recv" in names and "send" in names[names.index("recv") :]
    dist.all_gather_object(early, received_first or any(it.early for it in x.messages))
    if all(early):
        return [calls, *["by chance"] * len(x)]
    if early[dist.get_rank()]:
        return [calls, x, "received into x before it was sent"]
    right = x.equal(_counted(x, range(other, other + 1)))
    came = any(it.name == "recv" for it in x.messages) or calls != "none"
    return [calls, x, *["nothing has come"] * (not right and not came)]


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
    look=_swapped,
    heads=("other calls", "x[0]", "x[1]"),
    hints=HINTS,
    mistakes=[
        (_swap_without_place, "both hold what one of the two had",
         "Receive into a new tensor, because `x` is still to be sent. Then copy it into `x`, on both ranks."),
        (_swap_by_chance, "what comes is written into the `x` that is being sent: whether it comes out right is chance",
         "Receive into a new tensor. When it has come, and `x` has gone, copy it into `x`."),
        (_one_way, "one of the two sends, and nothing comes back", "Each sends once, and receives once."),
        (_swap_and_add, "what came was added to what was there", "It takes its place."),
        (_swap_lost, "what came was not put into `x`", "`x.copy_(…)` writes into the tensor that is there."),
        (partial(_swap, lost_by=1), "who sends first gets what it is to get, and the other one does not",
         "What came has to be copied into `x` on both ranks."),
        (_swap_collectively, NO_HELP, ONLY),
        (waiting(partial(_swap, first=lambda rank, other: True), "rank 0", "waits in send"),
         "both send first, and nobody receives",
         "One has to receive first. Which one? Both must agree, without asking."),
        (waiting(partial(_swap, first=lambda rank, other: False), "rank 0", "waits in recv"),
         "both receive first, and nobody sends",
         "One has to send first. Which one? Both must agree, without asking."),
    ],
    otherwise="One of the two sends first, the other receives first. Both know which without asking; so do 2 and 3.",
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


def _from_the_left(x: Any) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(x, rank - 1)
    for other in range(1, size if rank == 0 else 0):
        dist.send(x, other)


def _from_0_again_and_again(x: Any) -> None:
    for other in range(1, dist.get_world_size()):
        dist.recv(x, 0) if dist.get_rank() else dist.send(x, other)


def _all_to_all_others(x: Any) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for other in range(size):
        if other != rank:
            dist.send(x, other)
    if rank:
        dist.recv(x, 0)


def _told(_: Any, x: Any) -> list[Any]:
    """What is held, and of rank 0 whether it has sent nothing."""
    silent = dist.get_rank() == 0 and not any(it.name == "send" for it in x.messages)
    return [_calls(x), x, *["nothing sent"] * silent * (_calls(x) == "none")]


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
    look=_told,
    heads=("other calls", "x[0]", "x[1]"),
    hints={**HINTS, "there is no rank": f"{IN_RANGE}: `range(1, size)` has all but rank 0."},
    mistakes=[
        (_only_to_1, "rank 2 has heard nothing", "Rank 0 sends to every other rank."),
        (waiting(_from_the_left, "rank 2", "waits in recv from rank 1"),
         "rank 2 waits for rank 1, and it is rank 0 that sends to it", "`dist.recv(x, 0)`"),
        (waiting(partial(_broadcast, to=lambda size: ()), "rank 1", "waits in recv"),
         "rank 0 sends to nobody, and the others wait for it", "`dist.send(x, other)`, for each other rank."),
        (waiting(_from_0_again_and_again, "rank 1", "waits in recv"),
         "rank 0 has sent and has ended, and each of the others waits for something more",
         "Rank 0 sends to each of them once, and each receives once: the loop is rank 0's."),
        (waiting(_all_to_all_others, "rank 1", "waits in send"), "all send first, and nobody receives",
         "Rank 0 sends; the others receive, and that is all they do."),
        (waiting(lambda x: dist.get_rank() or _broadcast(x), "rank 0", "waits in send"),
         "rank 0 sends, and nobody receives", "A send waits for its `dist.recv(x, 0)`, on each of the others."),
        (partial(_broadcast, add=True), "what came was added to what was there", "It takes its place."),
        (_last_to_all, "all have the last rank's numbers", "Rank 0 is the one that sends."),
        (lambda x: dist.broadcast(x, src=0), NO_HELP, ONLY),
        (waiting(partial(_broadcast, to=lambda size: range(1, size - 1))),
         "the last rank waits for ever, for rank 0 sends it nothing",
         "It sends to each of the others: `range(1, size)` has them all, up to `size - 1`."),
        (lambda x: _broadcast(x.clone()), "`x` is on every rank what it was", "`x.copy_(…)` writes into `x`."),
    ],
    otherwise="Rank 0 sends once to each other rank; each of these receives once, from rank 0, and into `x`.",
)  # fmt: skip


# ------------------------------------------------------------------ c: a tree


def _tree(x: Any, part: int = 1) -> None:
    rank, size, have = dist.get_rank(), dist.get_world_size(), 1
    while have < size // part:  # ranks 0 to have - 1 have it
        if rank < have:
            dist.send(x, rank + have)
        elif rank < 2 * have:
            dist.recv(x, rank - have)
        have *= 2


def _tree_too_early(x: Any) -> None:
    rank, size, have = dist.get_rank(), dist.get_world_size(), 1
    while have < size:
        dist.send(x, rank + have) if rank < have else dist.recv(x, rank - have)
        have *= 2


def _tree_otherwise(x: Any, to: Callable[[int, int], int], sender: Callable[[int, int], int]) -> None:
    rank, size, have = dist.get_rank(), dist.get_world_size(), 1
    while have < size:
        if rank < have:
            dist.send(x, to(rank, have))
        elif rank < 2 * have:
            dist.recv(x, sender(rank, have))
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


def _two_children(x: Any) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(x, (rank - 1) // 2)
    for child in range(2 * rank + 1, min(2 * rank + 3, size)):
        dist.send(x, child)


def _busiest_and_depth(_: Any, x: Any) -> list[Any]:
    """How often a rank sent, where that is more often than it may, in how many rounds, and what is held."""
    told: list[Any] = [None] * dist.get_world_size()
    calls = _calls(x)
    dist.all_gather_object(told, list(x.messages))
    most = max(sum(it.name == "send" for it in messages) for messages in told)
    may = len(told).bit_length() - 1  # as often as there are rounds
    return [calls, f"at most {may}" if most <= may else most, len(frames(told, told)) - 1, x]


turn(
    "4.8.c",
    "A tree",
    _tree,
    lambda rank, size: (_x(1),),
    ranks=(4, 8),
    look=_busiest_and_depth,
    heads=("other calls", "sends of a rank", "rounds", "x"),
    hints={**HINTS, "there is no rank": f"{IN_RANGE}. Let 1 rank have it, then 2, 4, …, and stop when `size` have it."},
    otherwise="In each round every rank that has it (1, 2, 4, …) tells one that has not; no other rank does anything.",
    mistakes=[
        (_broadcast, "rank 0 sends to each rank in turn: as many rounds as there are other ranks",
         "A rank that has it can pass it on. In each round twice as many have it."),
        (_chain, "a chain: nobody sends twice, and it takes as many rounds as there are other ranks",
         "Rank 0 need not rest when it has sent once."),
        (_tree_once, "only one round was made", "Go on until all have it."),
        *((waiting(it), "rank 0 sends to rank 2, and that waits for rank 1: too early, or for the wrong one",
           "When n ranks have it, only ranks n to 2n - 1 receive, each from `rank - n`.")
          for it in (_tree_too_early,
                     partial(_tree_otherwise, to=lambda rank, have: rank + have, sender=lambda rank, have: rank // 2))),
        (waiting(partial(_tree_otherwise, to=lambda rank, have: rank + 1, sender=lambda rank, have: rank - 1)),
         "rank 0 sends to rank 1, which receives nothing more",
         "In each round to another one: to `rank + n`, when n ranks have it."),
        (partial(_tree, part=2), "the last round is missing: half of the ranks have it", "Go on until `size` have it."),
        (_two_children, "each tells two at most, and then rests", "Every rank that has it tells one in every round."),
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


def _sent(x: Any) -> float:
    """How much this rank has sent, in tensors as large as `x`."""
    return sum(it.size for it in x.messages if it.name == "send") / x.nbytes


WHOLE = "right, but as much is sent as if whole tensors went to every other rank"
IN_THE_LIST, ELSEWHERE = "a new tensor in the list", "another chunk has changed"


def _in_the_list(x: Any, chunks: list[Any]) -> list[str]:
    """Whether a tensor stands in the list that is no part of `x`; it is said where the result is not right."""
    ours = x.untyped_storage().data_ptr()
    new = any(isinstance(it, torch.Tensor) and it.untyped_storage().data_ptr() != ours for it in chunks)
    return [IN_THE_LIST] * new


def _counted(x: Any, ranks: range) -> Any:
    """The sum of what these ranks have at the start."""
    return sum(torch.arange(1.0, len(x) + 1, device=x.device) * 10**rank for rank in ranks)


def _mine(_: Any, x: Any, chunks: list[Any]) -> list[Any]:
    """What is sent and collected; where that is not right, whether it went elsewhere."""
    rank, size = dist.get_rank(), dist.get_world_size()
    held, start = [_calls(x), _sent(x), x[rank]], _counted(x, range(rank, rank + 1))
    aside = [ELSEWHERE] * (x[rank].equal(start[rank]) and not x.equal(start))
    return [*held, *(_in_the_list(x, chunks) or aside) * (not x[rank].equal(_counted(x, range(size))[rank]))]


def _reduce_scatter(
    x: Any, chunks: list[Any], give: str = "to", add: bool = True, ways: int = 0, take: str = "rank", new: bool = False
) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for away in range(1, ways or size):
        to, sender = (rank + away) % size, (rank - away) % size
        number = {"to": to, "sender": sender, "rank": rank}
        part, place = pass_on(chunks[number[give]], to, sender), number[take]
        if new:
            chunks[place] = chunks[place] + part
        else:
            chunks[place].copy_(chunks[place] + part if add else part)


def _mean_scatter(x: Any, chunks: list[Any]) -> None:
    _reduce_scatter(x, chunks)
    chunks[dist.get_rank()].div_(dist.get_world_size())


def _only_the_others(x: Any, chunks: list[Any]) -> None:
    mine = chunks[dist.get_rank()]
    own = mine.clone()
    _reduce_scatter(x, chunks)
    mine.sub_(own)


def _whole_tensors(x: Any, chunks: list[Any]) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = x.clone()
    for away in range(1, size):
        x.add_(pass_on(mine, (rank + away) % size, (rank - away) % size))


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
    heads=("other calls", "tensors sent", "its own chunk"),
    hints=HINTS,
    mistakes=[
        (partial(_reduce_scatter, give="rank"), "every rank sends its own chunk away, and adds chunks of other numbers",
         "Rank 2 collects chunk 2. So which chunk does rank 0 send there?"),
        (partial(_reduce_scatter, give="sender"), "what goes to a rank is not that rank's chunk",
         "`pass_on(chunks[…], to, sender)`: rank `to` collects chunk `to`."),
        (partial(_reduce_scatter, add=False), "what comes replaces what is there", "Add it up."),
        (partial(_reduce_scatter, ways=2), "each rank has heard one other rank only", "All others have a part of it."),
        (_mean_scatter, "that is the mean", "The sum is asked for."),
        (_whole_tensors, WHOLE, "One chunk in each `pass_on`: rank r wants chunk r, and no other."),
        (_only_the_others, "the rank's own part is missing", "Chunk r of rank r counts too."),
        (partial(_reduce_scatter, new=True), "a new tensor stands in the list, and the chunk in `x` is as it was",
         "`chunks[i] = …` gives the list another tensor. Add in place: `chunks[i] += …`."),
        (partial(_reduce_scatter, take="sender"), "another chunk has changed, and each rank's own chunk is as it was",
         "Rank r collects chunk r: what comes belongs to `chunks[rank]`."),
        (_reduce_scatter_lost, "each rank's own chunk is as it was",
         "What comes belongs to `chunks[rank]`; add in place: `chunks[i] += …`."),
        (lambda x, chunks: dist.all_reduce(x), NO_HELP, ONLY),
    ],
    otherwise="One chunk in each `pass_on`: rank r hears every other rank once, and each of them gives it chunk r.",
)  # fmt: skip


def _one_finished(rank: int, size: int) -> tuple[Any, list[Any]]:
    x = torch.zeros(size, device=device())
    x[rank] = 111.0 * (rank + 1)
    x = filmed(x)
    return x, list(x.chunk(size))


def _held_and_part(_: Any, x: Any, chunks: list[Any]) -> list[Any]:
    """What is sent and held; where `x` is as it was, what became of what came, or of what went out."""
    rank, sent = dist.get_rank(), [it for it in x.messages if it.name == "send"]
    start = x.new_zeros(len(x))
    start[rank] = 111.0 * (rank + 1)
    held = [_calls(x), _sent(x), x]
    if not x.equal(start):
        return held
    if _in_the_list(x, chunks):
        return [*held, *_in_the_list(x, chunks)]
    if any(it.before[rank] != start[rank] for it in x.messages):
        return [*held, "its own chunk was written over"]
    return [*held, *["it sent zeros"] * (bool(sent) and not any(it.first for it in sent))]


def _all_gather(
    x: Any, chunks: list[Any], ways: int = 0, to_place: str = "sender", give: str = "rank", new: bool = False
) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for away in range(1, ways or size):
        to, sender = (rank + away) % size, (rank - away) % size
        number = {"to": to, "sender": sender, "rank": rank}
        came, place = pass_on(chunks[number[give]], to, sender), number[to_place]
        if new:
            chunks[place] = came
        else:
            chunks[place].copy_(came)


def _all_gather_into(x: Any, chunks: list[Any], number: Callable[[int, int], int], add: bool = False) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for away in range(1, size):
        came = pass_on(chunks[rank], (rank + away) % size, (rank - away) % size)
        place = chunks[number(rank, away)]
        place.add_(came) if add else place.copy_(came)


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
    look=_held_and_part,
    heads=("other calls", "tensors sent", "chunk 0", "chunk 1", "chunk 2"),
    hints=HINTS,
    mistakes=[
        (partial(_all_gather, to_place="to"), "what comes from one rank lies in another's place",
         "Chunk s comes from rank s, or has been handed on from there."),
        (partial(_all_gather, ways=2), "each rank has heard one other rank only", "There are more."),
        (_all_gather_the_first, "every rank sends its chunk 0", "On rank 2 chunk 2 is the finished one."),
        (partial(_all_gather, new=True), "a new tensor stands in the list, and `x` is as it was",
         "`chunks[i] = …` gives the list another tensor. Write into the one that is there: `chunks[i].copy_(…)`."),
        (partial(_all_gather, give="to"), "every rank sends zeros, and not its finished chunk",
         "What goes out, to each of the others, is the finished one: chunk r of rank r."),
        (partial(_all_gather, to_place="rank"), "what comes is written over the rank's own chunk",
         "What comes from rank s belongs into chunk s."),
        (partial(_all_gather_into, number=lambda rank, away: rank, add=True),
         "what comes is added to the rank's own chunk, and the others stay zeros",
         "Chunk s is what comes from rank s."),
        (partial(_all_gather_into, number=lambda rank, away: away),
         "what comes first is chunk 1, what comes next chunk 2, from whomever it comes",
         "Chunk s is what comes from rank s."),
        (partial(_all_gather_into, number=lambda rank, away: away - 1),
         "what comes first is chunk 0, what comes next chunk 1, from whomever it comes",
         "Chunk s is what comes from rank s."),
        (_whole_tensors, WHOLE, "One chunk in each `pass_on`: the one that is finished here."),
        (lambda x, chunks: _all_gather(x, [it.clone() for it in chunks]), "the chunks are as they were",
         "What goes out is the finished chunk; what comes is written into the sender's: `chunks[…].copy_(…)`."),
        (lambda x, chunks: dist.all_reduce(x), NO_HELP, ONLY),
    ],
    otherwise="Chunk s is finished on rank s: it alone goes out from there, and into chunk s it belongs everywhere.",
)  # fmt: skip


def _ring(
    x: Any,
    chunks: list[Any],
    *,
    goes: Callable[[int, int], int] = lambda rank, step: rank - step,
    comes: Callable[[int, int], int] = lambda rank, step: rank - step - 1,
    later: int = 1,
    steps: int = -1,
    steps_then: int | None = None,
    goes_then: Callable[[int, int], int] | None = None,
    comes_then: Callable[[int, int], int] | None = None,
    add_again: bool = False,
    half: bool = False,
    way: int = 1,
    three: bool = False,
    lost: bool = False,
    new: str = "",
) -> None:
    """The chunk that goes and the one that comes, in each step of the first half; `later` is added in the second.

    steps, goes, comes: of the first half; of the second too, where `steps_then`, `goes_then`, `comes_then` are None.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + way) % size, (rank - way) % size
    size = 3 if three else size
    for step in range(size + steps):
        place, came = comes(rank, step) % size, pass_on(chunks[goes(rank, step) % size], right, left)
        if new:
            chunks[place] = chunks[place] + came
        else:
            chunks[place] += came
    chunks = [chunk.clone() for chunk in chunks] if lost else chunks
    for step in range(0 if half else size + (steps if steps_then is None else steps_then)):
        arrived = pass_on(chunks[((goes_then or goes)(rank, step) + later) % size], right, left)
        place = ((comes_then or comes)(rank, step) + later) % size
        if new == "twice":
            chunks[place] = arrived
        else:
            chunks[place].add_(arrived) if add_again else chunks[place].copy_(arrived)


def _left_ring(x: Any, chunks: list[Any]) -> None:
    _ring(x, chunks, goes=lambda rank, step: rank + step, comes=lambda rank, step: rank + step + 1, later=-1, way=-1)


def _everybody_to_everybody(x: Any, chunks: list[Any]) -> None:
    _reduce_scatter(x, chunks)
    _all_gather(x, chunks)


def _everything_around(x: Any, chunks: list[Any]) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    going = x.clone()
    for _ in range(size - 1):
        going = pass_on(going, (rank + 1) % size, (rank - 1) % size)
        x.add_(going)


def _held_and_sent(_: Any, x: Any, chunks: list[Any]) -> list[Any]:
    """To whom this rank sent, how often and how much, in tensors, and what is held."""
    rank, size = dist.get_rank(), dist.get_world_size()
    others = [it.other for it in x.messages if it.name == "send"]
    sides = {(rank + 1) % size: "the right", (rank - 1) % size: "the left"}
    receivers = " and ".join(dict.fromkeys(sides.get(other, f"rank {other}") for other in others)) or "nobody"
    right = x.equal(_counted(x, range(size)))
    return [_calls(x), receivers, len(others), _sent(x), x, *_in_the_list(x, chunks) * (not right)]


NEW = "`chunks[i] = …` gives the list another tensor. `chunks[i] += …` and `chunks[i].copy_(…)` keep it."
PASSES = "A chunk has to pass every other rank: `size - 1` steps in each half."
ADDED = "At first chunk r; then the one to which it has just added."
ONE_LESS = "The left one does not send the chunk that you send: its number is one less."
FINISHED = "The first half adds up. The second begins with the chunk to which rank r has added last."

turn(
    "4.8.f",
    "The ring",
    _ring,
    _chunks,
    ranks=(3, 4),
    look=_held_and_sent,
    heads=("other calls", "receiver", "messages", "tensors sent", "chunk 0", "chunk 1", "chunk 2"),
    hints=HINTS,
    otherwise="Take three ranks on paper. In each step, one `pass_on`: which chunk does rank 0 send, and which comes? "
    "The second half begins with the chunk whose sum is finished on this rank; then goes what has just come.",
    mistakes=[
        (partial(_ring, later=0),
         "in the end chunk r is what rank r had at the start: that went around, and no finished one", FINISHED),
        (partial(_ring, half=True), "each chunk's sum is finished on one rank only", "Hand the finished ones around."),
        (partial(_ring, goes=lambda rank, step: rank - step + 1),
         "in the first half rank r sends a chunk that it has not just added to", ADDED),
        (partial(_ring, goes=lambda rank, step: rank + step, comes=lambda rank, step: rank + step - 1),
         "in the second step rank r sends a chunk that it has not just added to", ADDED),
        (partial(_ring, goes=lambda rank, step: rank, comes=lambda rank, step: rank - 1, later=0),
         "rank r sends chunk r in every step", ADDED),
        (partial(_ring, goes=lambda rank, step: rank, comes=lambda rank, step: rank - 1),
         "rank r sends one and the same chunk in every step of a half", ADDED),
        (partial(_ring, goes=lambda rank, step: rank), "rank r sends one and the same chunk in every step of a half",
         ADDED),
        (partial(_ring, goes_then=lambda rank, step: rank),
         "in the second half rank r sends one and the same chunk in every step", "Then the one that has just come."),
        (partial(_ring, goes=lambda rank, step: rank + step, comes=lambda rank, step: rank + step + 1,
                 goes_then=lambda rank, step: rank - step, comes_then=lambda rank, step: rank - step - 1),
         "in the first half one and the same chunk goes in every step, or what comes is added to another one than came",
         "The left one's chunk is one less than the right one's; and in each step both are one less than before."),
        (partial(_ring, goes_then=lambda rank, step: rank + step, comes_then=lambda rank, step: rank + step - 1),
         "in the second half rank r sends a chunk that is not finished", "Then the one that has just come."),
        (partial(_ring, goes=lambda rank, step: rank + step, comes=lambda rank, step: rank + step + 1, later=-1),
         "what comes from the left is added to the chunk that the right one sends", ONE_LESS),
        (partial(_ring, comes=lambda rank, step: rank - step),
         "what comes is added to the chunk that has just gone out", ONE_LESS),
        (partial(_ring, comes=lambda rank, step: rank - step, comes_then=lambda rank, step: rank - step - 1),
         "what comes is added to the chunk that has just gone out", ONE_LESS),
        (partial(_ring, comes_then=lambda rank, step: rank - step),
         "in the second half what comes is written over the chunk that has just gone out", ONE_LESS),
        (partial(_ring, add_again=True), "in the second half finished chunks are added", "There it takes the place."),
        (partial(_ring, steps=0), "one step too many in each half", PASSES),
        (partial(_ring, steps=0, steps_then=-1), "one step too many in one of the halves", PASSES),
        (partial(_ring, steps_then=0), "one step too many in one of the halves", PASSES),
        (partial(_ring, steps_then=-2), "one step too few in the second half", PASSES),
        (partial(_ring, steps=-2, steps_then=-1), "one step too few in the first half", PASSES),
        (partial(_ring, new="twice"), "new tensors stand in the list, and `x` is as it was", NEW),
        (partial(_ring, new="once"), "the sums of the first half stand in the list, and not in `x`", NEW),
        (lambda x, chunks: _ring(x, [it.clone() for it in chunks]), "`x` is as it was",
         "Write into the chunks that are there: `chunks[…] += …`, `chunks[…].copy_(…)`."),
        (partial(_ring, lost=True), "what comes in the second half does not reach `x`",
         "`chunks[…].copy_(…)` writes into the chunk that is there."),
        (_everybody_to_everybody, "everybody still sends to everybody", "`pass_on(…, right, left)` in every step."),
        (_left_ring, "that ring goes to the left", "`pass_on(…, right, left)`: to the right, and from the left."),
        (partial(_ring, three=True), "right on three ranks only", "`size` counts them."),
        (_everything_around, "whole tensors go around: right, and each rank sends as many as there are others",
         "Send one chunk in each step."),
        (partial(_ring, later=2), "the second half begins with a chunk that is not finished", FINISHED),
        (partial(_ring, steps=-2), "one step too few in each half", PASSES),
        (lambda x, chunks: (_ring(x, chunks), x.div_(len(chunks))), "that is the mean", "The sum is asked for."),
        (lambda x, chunks: dist.all_reduce(x), NO_HELP, ONLY),
    ],
)  # fmt: skip
