"""Checks of lesson 3.2, Messages and waiting."""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import needs_function, on_ranks
from ddplab.checks.turns import turn, waiting
from ddplab.course.messages import Message, noted_messages
from ddplab.hardware import device

BEGINS = "Rank 0 sends before it receives; all others receive before they send."


@exercise("3.2.1", "Once around")
def once_around(go_around: Callable[..., Any]) -> None:
    """The ball goes from rank 0 over all ranks back to rank 0, and every rank adds its own number."""
    needs_function("go_around", go_around)
    for size in (2, 4):
        ranks = on_ranks(_ball_in_rank, go_around, size=size, hints=HINTS, waiting=BEGINS)
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


def _only_send_and_recv(where: str, messages: list[list[Message]]) -> None:
    for noted in messages:
        if used := [message.name for message in noted if message.name not in ("send", "recv")]:
            raise NotYet(f"{where}, you called `dist.{used[0]}`", "`send` and `recv` are all that you may use.")


HINTS = {
    "Invalid destination rank": "A rank cannot send to itself.",
    "Invalid source rank": "A rank cannot receive from itself.",
    "Pair is not connected": "Does a rank name itself? `send` names who gets it, `recv` whose it was.",
    "there is no rank": "They are numbered from 0 to N - 1. Compare with, or count modulo, `dist.get_world_size()`.",
    "Boolean value of Tensor": "First the tensor, then the rank: `send(x, to)`, `recv(x, sender)`.",
    "Expected parameter `tensor`": "`send` and `recv` are given a tensor; `recv` fills it.",
}
WAITS = {
    "SIGABRT": "The place must be as large as what comes: `torch.empty_like(x)`.",  # so gloo ends a process
    "waits in barrier": "A barrier is for all ranks, and this needs none.",
    "waits in send": "Is there a `recv` for each `send`, on the rank that it names?",
    "waits in recv": "Is there a `send` for each `recv`, on the rank that it names?",
}

# ------------------------------------------------------------------ your turn


def _digits(rank: int, size: int, late: int | None = None, count: int = 2) -> Any:
    if rank == late:
        time.sleep(0.2)  # what is begun and not waited for has not gone by then
    noted = noted_messages()  # a send to a rank that there is not raises, and does not crash
    torch.use_deterministic_algorithms(True)  # so that `torch.empty` is full of NaN, and what is read too early shows
    x = torch.tensor([1.0, 2.0][:count], device=device()) * 10**rank  # ones are rank 0's, tens rank 1's
    x.noted = noted
    return x


def _with_what_came(_: Any, x: Any, giver: int, taker: int) -> list[Any]:
    """Its part, what a rank holds, and of a taker that holds its own still, whether something has come."""
    own, rank = x.tolist() == [10.0 ** dist.get_rank(), 2 * 10.0 ** dist.get_rank()], dist.get_rank()
    part = {giver: "gives", taker: "takes"}.get(rank, "takes part" if x.noted else "no part")
    return [part, x, *["a message came"] * (own and rank == taker and any(it.name == "recv" for it in x.noted))]


def _with_what_went(returned: Any, x: Any) -> list[Any]:
    """What a rank holds, and of one that holds its own number still, which other one it has sent."""
    own, held = 10.0 ** dist.get_rank(), x if returned is None else returned
    sent = [it.first for it in x.noted if it.name == "send" and it.first != own]
    still = isinstance(held, torch.Tensor) and held.tolist() == [own]
    return [held, *[f"{it:g} is sent" for it in sent[:1] if still]]


def _hand(x: Any, giver: int, taker: int, send: bool = True, recv: str = "taker") -> None:
    rank = dist.get_rank()
    if rank == giver and send:
        dist.send(x, taker)
    elif rank != giver and (recv == "all" or (rank == taker and recv == "taker")):
        dist.recv(x, giver)


def _all_take_part(x: Any, giver: int, taker: int) -> None:
    came = x.clone()
    dist.broadcast(came, src=giver)
    if dist.get_rank() == taker:
        x.copy_(came)


def _added(x: Any, giver: int, taker: int) -> None:
    own = x.clone()
    _hand(x, giver, taker)
    if dist.get_rank() == taker:
        x += own


turn(
    "3.2.a",
    "From hand to hand",
    _hand,
    lambda rank, size: (_digits(rank, size, late=0), size - 1, 0),
    ranks=(3, 2),
    look=_with_what_came,
    heads=("part", "x", ""),
    device="cpu",
    mistakes=[
        (lambda x, *_: x, "the taker's `x` is as it was",
         "`send` on the giver, `recv` on the taker, and into `x` itself. (`irecv` has filled it after `wait()`.)"),
        (lambda x, giver, taker: _hand(x.clone(), giver, taker),
         "a message comes to the taker, and is not in its `x`",
         "`recv` is given `x` itself; `x.copy_(…)` writes into it, too. (`irecv` has filled it after `wait()`.)"),
        (lambda x, giver, taker: _hand(x, taker, giver), "the taker gives, and the giver takes",
         "`send(x, to)` names who gets it, `recv(x, sender)` whose it was. Who they are, `giver` and `taker` say."),
        (lambda x, *_: _hand(x, 0, 1), "rank 0 gives, and rank 1 takes", "Who they are, `giver` and `taker` say."),
        (lambda x, giver, taker: dist.broadcast(x, src=giver), "all have got it", "Two take part: `send` and `recv`."),
        (waiting(partial(_hand, recv="nobody"), "rank 2", "waits in send"), "the giver sends what nobody receives",
         "Each `send` needs a `recv` of its own, on the other rank."),
        (waiting(partial(_hand, send=False), "rank 0", "waits in recv"),
         "the taker waits for a message that does not come",
         "Each `recv` needs a `send` of its own, on the other rank. What `isend` began has gone after its `wait()`."),
        (_all_take_part, "the numbers are right, but rank 1 takes part", "Two take part: `send` and `recv`."),
        (dist.all_reduce, "everybody holds the sum of all", "Two take part: `send` and `recv`."),
        (lambda x, giver, taker: dist.reduce(x, taker), "the taker holds a sum",
         "`reduce` adds up what all have. Two take part: `send` and `recv`."),
        (waiting(partial(_hand, recv="all"), "rank 1", "waits in recv"),
         "a rank that has no part in it waits for a message, for ever",
         "Not everybody who is not the giver is the taker."),
        (lambda x, giver, taker: _hand(x, giver, taker) or x.mul_(dist.get_rank() != giver),
         "the giver has lost it", "What is sent is sent as a copy. The giver keeps what it had."),
        (_added, "what comes is added to what the taker held", "`recv(x, giver)` puts it in the place of that."),
    ],
    hints=HINTS | WAITS,
    otherwise="The giver calls `send`, the taker `recv`, once each; the others do nothing.",
)  # fmt: skip


def _pass_along(x: Any, own: str = "the sum", came: str = "is added", end: int = 0, into: Any = None) -> None:
    rank, last = dist.get_rank(), (end or dist.get_world_size()) - 1
    if own == "before" and rank < last:
        dist.send(x, rank + 1)
    part = torch.zeros_like(x, dtype=into)
    if 0 < rank <= last:
        dist.recv(part, rank - 1)
        held = {"is added": x + part, "replaces": part, "is the rank": x + rank - 1, "is multiplied": x * part}
        x.copy_(held[came])
    if own != "before" and rank < last:
        dist.send({"the sum": x, "the part": part if rank else x, "both": x + part}[own], rank + 1)


def _backwards(x: Any) -> None:
    rank, part = dist.get_rank(), x.clone()
    if rank < dist.get_world_size() - 1:
        dist.recv(part, rank + 1)
        x += part
    if rank > 0:
        dist.send(x, rank - 1)


def _only_the_first_sends(x: Any) -> None:
    rank, part = dist.get_rank(), x.clone()
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(part, rank - 1)
        x += part


def _all_receive_first(x: Any) -> None:
    rank, size, part = dist.get_rank(), dist.get_world_size(), x.clone()
    dist.recv(part, (rank - 1) % size)
    dist.send(x + part, (rank + 1) % size)


turn(
    "3.2.b",
    "Along the chain",
    _pass_along,
    lambda rank, size: (_digits(rank, size, count=1),),
    ranks=(3, 2),
    look=_with_what_went,
    heads=("x",),
    device="cpu",
    mistakes=[
        (lambda x: x, "every `x` is as it was",
         "Receive (and after `irecv` wait), add that to `x` itself, `x += …` (`x = …` is a new tensor), send it on."),
        (lambda x: _pass_along(x.clone()), "the sum is handed on, and `x` itself is as it was",
         "It is in another tensor: `x = x + …` makes a new one, and `x += …` adds to `x` itself."),
        (lambda x: _pass_along(x.clone(), own="the part"), "what comes is handed on as it is, and `x` is as it was",
         "Add it to `x`, `x += …`, and then hand `x` on."),
        (partial(_pass_along, came="replaces"), "what comes overwrites the rank's own number",
         "Receive into a tensor of its own, `torch.empty_like(x)`, and add that."),
        (partial(_pass_along, own="before"), "each hands its own number on, before it has added what came",
         "Who has a left neighbour receives first."),
        (partial(_pass_along, own="the part"), "rank 2 gets rank 0's number, and not the sum of two",
         "Each receives from `rank - 1`, which hands on what it holds after it has added."),
        (partial(_pass_along, end=2), "the chain ends at rank 1", "All but the last send; all but rank 0 receive."),
        (_backwards, "it runs backwards, from the last to rank 0", "The right neighbour of rank r is rank r + 1."),
        (dist.all_reduce, "every rank has the whole sum", "A rank adds only those that come before it in the chain."),
        (waiting(_all_receive_first, "rank 0", "waits in recv"),
         "all receive first, and nobody has sent", "Who has no left neighbour begins."),
        (waiting(_only_the_first_sends, "rank 2", "waits in recv"),
         "rank 1 adds what comes, and does not hand it on",
         "Who stands in the middle does both: two `if`, and no `else`."),
        (lambda x: _pass_along(x, came="replaces") or x.mul_(2 ** dist.get_rank()),
         "what comes overwrites the rank's own number, and is then added to itself",
         "Receive into a tensor of its own, `torch.empty_like(x)`, and add that."),
        (partial(_pass_along, came="is the rank"), "the number of the left neighbour is added",
         "`recv` returns whose the message was. What it held is in the tensor that was given to it."),
        (partial(_pass_along, came="is multiplied"), "what comes is multiplied", "The sum is wanted: `+=`."),
        (partial(_pass_along, own="both"), "rank 2 gets rank 0's number twice",
         "After `x += …` the sum is in `x`: that alone is handed on."),
        (partial(_pass_along, into=torch.int64), "what was sent as a float is read as a whole number",
         "The place must be of one kind with what comes: `torch.empty_like(x)`."),
        (lambda x: _pass_along(x.mul_(math.nan)), "rank 0 adds a place into which nothing has come",
         "`torch.empty` holds whatever lay there. Add only what was received."),
        (lambda x: x.mul_(math.nan if dist.get_rank() else 1), "what comes is added before it has come",
         "`irecv` only begins. It is there after `wait()`."),
    ],
    hints=HINTS | WAITS,
    otherwise="All but rank 0 receive from rank - 1 and add it to `x`; then all but the last send `x` to rank + 1.",
)  # fmt: skip


@dataclass
class _Gate:
    """What rank 1 waits for: rank 0's call. It notes whether a message had been begun by then."""

    group: Any
    noted: list[Message]
    begun: str = "never called"

    def __call__(self) -> None:
        if self.begun == "never called":
            self.begun = "yes" if self.noted else "no"
            dist.barrier(self.group)

    def watch(self) -> None:
        """From now on, note in this rank whether it waits before the call; then call, or it would wait for ever."""
        wait = dist.Work.wait

        def watched(work: Any, *args: Any) -> Any:
            if self.begun == "never called":
                self()
                self.begun = "`send` waits" if sys._getframe(1).f_code.co_name == "send" else "it waits"
            return wait(work, *args)

        dist.Work.wait = watched


def _late(rank: int, size: int) -> tuple[Any, _Gate]:
    gate = _Gate(dist.new_group(backend="gloo"), noted_messages())
    if rank == 1:
        dist.barrier(gate.group)
        time.sleep(0.2)  # what rank 0 does right after its call comes first
    else:
        gate.watch()
    return torch.tensor([1.0, 2.0]) if rank == 0 else torch.full((2,), -1.0), gate


def _gone(_: Any, x: Any, call: _Gate) -> list[Any]:
    told = call.begun
    if dist.get_rank() == 0 and told == "never called":
        call()
    return [x, *[told] * (dist.get_rank() == 0)]


def _send_and_clear(x: Any, call: Any, wait: str = "after", begin: bool = True, clear: bool = True) -> None:
    if dist.get_rank() == 1:
        dist.recv(x, 0)
        return
    if not begin:
        call()
    work = dist.isend(x, 1)
    if wait == "before":
        work.wait()
    if begin and wait != "no call":
        call()
    if wait == "after":
        work.wait()
    if clear:
        x.zero_()
    if wait == "too late":
        work.wait()


def _send_first(x: Any, call: Any) -> None:
    if dist.get_rank() == 1:
        dist.recv(x, 0)
    else:
        dist.send(x, 1)
        call()


def _nothing_sent(x: Any, call: Any) -> None:
    if dist.get_rank() == 1:
        dist.recv(x, 0)
    else:
        call()
        x.zero_()


GONE = "When is it gone? When `wait()` of what `isend` returns has returned."

turn(
    "3.2.c",
    "Not before it has gone",
    _send_and_clear,
    _late,
    ranks=(2,),
    look=_gone,
    heads=("x", "", "begun before the call"),
    device="cpu",
    mistakes=[
        (partial(_send_and_clear, wait="too late"), "rank 1 gets zeros: `x` is cleared before it has gone", GONE),
        (waiting(partial(_send_and_clear, wait="never")),
         "nobody waits until the message has gone, and it never arrives", GONE),
        (partial(_send_and_clear, clear=False), "`x` is not cleared", "`x.zero_()`, at the end."),
        (partial(_send_and_clear, begin=False), "the message begins after the call", "`isend` comes first."),
        (waiting(partial(_send_and_clear, wait="no call")),
         "rank 1 is not called, and `x` is cleared before it has gone", "`call_rank_1()`, then wait, then clear."),
        (waiting(_nothing_sent), "nothing is sent", "`dist.isend(x, 1)`"),
        (_send_first, "`send` waits for rank 1, which has not been called",
         "Which verb begins to send, and does not wait?"),
        (lambda x, call: _send_first(x, call) or x.mul_(dist.get_rank()),
         "`send` waits for rank 1, which has not been called", "Which verb begins to send, and does not wait?"),
        (partial(_send_and_clear, wait="before"), "it waits for rank 1, and has not called it",
         "Between `isend` and `wait` there is time for something else: `call_rank_1()`, with its parentheses."),
    ],
    hints={
        **HINTS,
        **WAITS,
        "waits in recv": "Is the message begun, with `isend(x, 1)`, and has rank 0 waited until it is gone?",
        "sends to itself": "`isend(x, 1)` names who gets it.",
        "takes 1 positional argument": "`call_rank_1()` takes nothing.",
        "'torch.distributed' has no attribute 'wait'": "`wait()` is a method of what `isend` returns.",
        "'P2POp' object has no": "It is an order not yet given. `batch_isend_irecv([…])` gives it, `isend` at once.",
        "'list' object has no": "`batch_isend_irecv` returns a list: `wait()` for each that is in it.",
        "has no attribute 'wait'": "`send` has waited already. Which verb begins to send, and returns what can wait?",
        "has no attribute 'zero'": "`x.zero_()`: the underscore stands for in place.",
    },
    otherwise="Rank 0, in this order: begin to send, call rank 1, wait for the message, clear `x`. Rank 1 receives.",
)  # fmt: skip
