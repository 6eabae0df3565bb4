"""Checks of lesson 3.2, Messages and waiting."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import TWICE, needs_function, note_calls, on_ranks
from ddplab.hardware import device

TIMEOUT = 4  # seconds until ranks that wait for each other are stopped


@exercise("3.2.1", "Once around")
def once_around(go_around: Callable[..., Any]) -> None:
    """The ball goes from rank 0 over all ranks back to rank 0, and every rank adds its own number."""
    needs_function("go_around", go_around)
    for size in (2, 4):
        ranks = on_ranks(_ball_in_rank, go_around, size=size, hints=HINTS, timeout=TIMEOUT)
        where, (got, _) = f"on {size} ranks", ranks[0]
        _only_send_and_recv(where, ranks)
        right, messages = 100.0 + sum(range(size)), [len(events) for _, events in ranks]
        if got is None:
            raise NotYet(f"{where}, rank 0 returns nothing", "`return ball`, after it has come back.")
        if not any(messages):
            raise NotYet(f"{where}, nobody sent anything", "`dist.send(ball, to)` and `dist.recv(ball, sender)`.")
        flights = sum(way == "send" for _, events in ranks for way, _ in events)
        if got == 100:
            raise NotYet(f"{where}, the ball comes back as it left", "Each rank adds its own number, in place.")
        if got == 100 + size - 1 != right:
            raise NotYet(f"{where}, every rank has added 1", "Its own number: `dist.get_rank()`.")
        if got != right:
            raise NotYet(
                f"{where}, the ball that began at 100 comes back as {got:g}, not {right:g}, after {flights} flights",
                "One after the other: receive from the left, add, send to the right.",
            )
        if flights != size:
            hint = f"{size} are enough: one a rank."
            raise NotYet(f"{where}, the sum is right, but there were {flights} messages", hint)
        if any(("recv", rank - 1) not in ranks[rank][1] for rank in range(1, size)):
            raise NotYet(f"{where}, the ball did not go from each rank to the next", "From r to r + 1.")


def _ball_in_rank(go_around: Callable[..., Any]) -> tuple[float | None, list[tuple[str, int]]]:
    events = _listen()
    ball = go_around(torch.full((1,), 100.0, device=device()))
    return None if ball is None else float(ball), events


@exercise("3.2.2", "A broadcast in a few rounds")
def tree(tree_broadcast: Callable[..., Any]) -> None:
    """`tree_broadcast(x)` must bring rank 0's x to all ranks in ceil(log2 N) rounds of send and recv."""
    needs_function("tree_broadcast", tree_broadcast)
    for size in (2, 4, 5):
        ranks = on_ranks(_tree_in_rank, tree_broadcast, size=size, hints=HINTS, timeout=TIMEOUT)
        where = f"on {size} ranks"
        _only_send_and_recv(where, ranks)
        for rank, (got, _) in enumerate(ranks):
            if got != [7.0, 8.0]:
                hint = "It must receive into `x`, once, from a rank that has it already."
                raise NotYet(f"{where}, rank {rank} ends with {got} and not with rank 0's [7.0, 8.0]", hint)
        sent = sum(way == "send" for _, events in ranks for way, _ in events)
        if sent > size - 1:
            raise NotYet(f"{where}, there were {sent} messages", f"{size - 1} are enough: each rank receives once.")
        rounds, wanted = _rounds([events for _, events in ranks]), math.ceil(math.log2(size))
        if rounds > wanted:
            kind = "rank 0 sends them all" if len(ranks[0][1]) == size - 1 else "only one rank sends at a time"
            hint = "After one round two ranks have it. In the next both can send, to two more. And then?"
            raise NotYet(f"{where}, it takes {rounds} rounds, because {kind}; {wanted} are enough", hint)


def _tree_in_rank(tree_broadcast: Callable[..., Any]) -> tuple[list[float], list[tuple[str, int]]]:
    events = _listen()
    x = torch.tensor([7.0, 8.0], device=device()) if dist.get_rank() == 0 else torch.zeros(2, device=device())
    tree_broadcast(x)
    return x.tolist(), events


def _rounds(events: list[list[tuple[str, int]]]) -> int:
    """How many rounds these sends and receives take, when a rank does one of them a round."""
    queues, clock = [list(rank) for rank in events], [0] * len(events)
    moved = True
    while moved:
        moved = False
        for rank, queue in enumerate(queues):
            if not queue or queue[0][0] != "send":
                continue
            other = queue[0][1]
            if queues[other] and queues[other][0] == ("recv", rank):
                clock[rank] = clock[other] = max(clock[rank], clock[other]) + 1
                queue.pop(0), queues[other].pop(0)
                moved = True
    return max(clock)


def _listen() -> list[tuple[str, int]]:
    """From now on, note in this rank each message, and each collective as (its name, -1)."""
    events: list[tuple[str, int]] = []

    def note(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        way = {"isend": "send", "irecv": "recv"}.get(name, name)

        def noted(tensor: Any, other: Any = None, *args: Any, **kwargs: Any) -> Any:
            other = kwargs.pop("dst", kwargs.pop("src", other))
            if not 0 <= other < dist.get_world_size():
                raise ValueError(f"there is no rank {other}")  # gloo would crash the process
            result = call(tensor, other, *args, **kwargs)
            events.append((way, other))
            return result

        return noted

    for name in ("send", "recv", "isend", "irecv"):
        setattr(dist, name, note(name, getattr(dist, name)))
    collectives = ("broadcast", "all_reduce", "reduce", "gather", "all_gather", "scatter")
    note_calls(collectives, lambda name: events.append((name, -1)))
    return events


def _only_send_and_recv(where: str, ranks: list[tuple[Any, list[tuple[str, int]]]]) -> None:
    for _, events in ranks:
        if used := [way for way, _ in events if way not in ("send", "recv")]:
            raise NotYet(f"{where}, you called `dist.{used[0]}`", "`send` and `recv` are all that you may use.")


HINTS = {
    **TWICE,
    "Invalid destination rank": "A rank cannot send to itself.",
    "Invalid source rank": "A rank cannot receive from itself.",
    "there is no rank": "They are numbered from 0 to N - 1. Compare with, or count modulo, `dist.get_world_size()`.",
}
