"""Checks of lesson 3.2, Messages and waiting."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import TWICE, needs_function, on_ranks
from ddplab.course.messages import Message, noted_messages
from ddplab.hardware import device

TIMEOUT = 4  # seconds until ranks that wait for each other are stopped


@exercise("3.2.1", "Once around")
def once_around(go_around: Callable[..., Any]) -> None:
    """The ball goes from rank 0 over all ranks back to rank 0, and every rank adds its own number."""
    needs_function("go_around", go_around)
    for size in (2, 4):
        ranks = on_ranks(_ball_in_rank, go_around, size=size, hints=HINTS, timeout=TIMEOUT)
        where, messages = f"on {size} ranks", [noted for _, noted in ranks]
        _only_send_and_recv(where, messages)
        if not any(messages):
            raise NotYet(f"{where}, nobody sent anything", "`dist.send(ball, to)` and `dist.recv(ball, sender)`.")
        for rank in range(size):
            _passes_on(where, rank, size, [it for it in messages[rank] if it.name == "send"])
        got, right = ranks[0][0], _ball_after(size - 1)
        if got is None:
            raise NotYet(f"{where}, rank 0 returns nothing", "`return ball`, after it has come back.")
        if got != right:
            hint = "Return the tensor that `recv` has filled last."
            raise NotYet(f"{where}, {right:g} came back to rank 0, and rank 0 returns {got:g}", hint)


def _passes_on(where: str, rank: int, size: int, sent: list[Message]) -> None:
    """Raise NotYet unless this rank has sent the right ball, once, to the next rank."""
    following, came, right = (rank + 1) % size, _ball_after(rank - 1), _ball_after(rank)
    if not sent:
        raise NotYet(f"{where}, rank {rank} sends nothing", f"It hands the ball on to rank {following}.")
    first = sent[0]
    if first.other != following:
        hint = "From each rank to the next, and from the last to rank 0."
        raise NotYet(f"{where}, rank {rank} sends to rank {first.other}, and the next is rank {following}", hint)
    if len(sent) > 1:
        raise NotYet(f"{where}, rank {rank} sends {len(sent)} messages", "One a rank is enough: the ball goes once.")
    if first.first == right:
        return
    what = f"{where}, rank {rank} sends {first.first:g} and not {right:g}"
    if rank == 0:
        raise NotYet(f"{what}: it begins", "Rank 0 sends the ball as it is, before it receives.")
    if first.first == came:
        raise NotYet(f"{what}: that is the ball as it came", "Add the rank's own number, then send.")
    if first.first in (0, rank):
        raise NotYet(f"{what}: that is its own ball, and not the one that came", "Receive, add, send.")
    if first.first == came + 1:
        raise NotYet(f"{what}: it has added 1", "Its own number: `dist.get_rank()`.")
    raise NotYet(what, "One after the other: receive from the left, add, send to the right.")


def _ball_after(rank: int) -> float:
    """What the ball says when this rank has added its number, and all before it."""
    return 100.0 + sum(range(rank + 1))


def _ball_in_rank(go_around: Callable[..., Any]) -> tuple[float | None, list[Message]]:
    messages = noted_messages()
    ball = go_around(torch.full((1,), 0.0 if dist.get_rank() else 100.0, device=device()))
    return None if ball is None else float(ball), messages


@exercise("3.2.2", "A broadcast in a few rounds")
def tree(tree_broadcast: Callable[..., Any]) -> None:
    """`tree_broadcast(x)` must bring rank 0's x to all ranks in ceil(log2 N) rounds of send and recv."""
    needs_function("tree_broadcast", tree_broadcast)
    for size in (2, 4, 5):
        ranks = on_ranks(_tree_in_rank, tree_broadcast, size=size, hints=HINTS, timeout=TIMEOUT)
        where = f"on {size} ranks"
        messages = [noted for _, noted in ranks]
        _only_send_and_recv(where, messages)
        for rank, (got, _) in enumerate(ranks):
            if got != [7.0, 8.0]:
                hint = "It must receive into `x`, once, from a rank that has it already."
                raise NotYet(f"{where}, rank {rank} ends with {got} and not with rank 0's [7.0, 8.0]", hint)
        sent = sum(message.name == "send" for noted in messages for message in noted)
        if sent > size - 1:
            raise NotYet(f"{where}, there were {sent} messages", f"{size - 1} are enough: each rank receives once.")
        rounds, wanted = _rounds(messages), math.ceil(math.log2(size))
        if rounds > wanted:
            kind = "rank 0 sends them all" if len(ranks[0][1]) == size - 1 else "only one rank sends at a time"
            hint = "After one round two ranks have it. In the next both can send, to two more. And then?"
            raise NotYet(f"{where}, it takes {rounds} rounds, because {kind}; {wanted} are enough", hint)


def _tree_in_rank(tree_broadcast: Callable[..., Any]) -> tuple[list[float], list[Message]]:
    messages = noted_messages()
    x = torch.tensor([7.0, 8.0], device=device()) if dist.get_rank() == 0 else torch.zeros(2, device=device())
    tree_broadcast(x)
    return x.tolist(), messages


def _rounds(messages: list[list[Message]]) -> int:
    """How many rounds these sends and receives take, when a rank does one of them a round."""
    queues, clock = [list(rank) for rank in messages], [0] * len(messages)
    moved = True
    while moved:
        moved = False
        for rank, queue in enumerate(queues):
            if not queue or queue[0].name != "send":
                continue
            other = queue[0].other
            if queues[other] and (queues[other][0].name, queues[other][0].other) == ("recv", rank):
                clock[rank] = clock[other] = max(clock[rank], clock[other]) + 1
                queue.pop(0), queues[other].pop(0)
                moved = True
    return max(clock)


def _only_send_and_recv(where: str, messages: list[list[Message]]) -> None:
    for noted in messages:
        if used := [message.name for message in noted if message.name not in ("send", "recv")]:
            raise NotYet(f"{where}, you called `dist.{used[0]}`", "`send` and `recv` are all that you may use.")


HINTS = {
    **TWICE,
    "Invalid destination rank": "A rank cannot send to itself.",
    "Invalid source rank": "A rank cannot receive from itself.",
    "there is no rank": "They are numbered from 0 to N - 1. Compare with, or count modulo, `dist.get_world_size()`.",
}
