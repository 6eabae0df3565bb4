"""Films of blocks: what every rank held at the start and after each round of messages, taken from a real run.

Ones are rank 0's, tens rank 1's, hundreds rank 2's: so a number says who has been added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from ddplab.course.controls import widget
from ddplab.course.messages import filmed
from ddplab.launcher import launch
from ddplab.plots import COLOURS, SHAPES
from ddplab.screen import live, show
from ddplab.tables import HTML, brief, html_table


class Told(Protocol):
    """A send, a receive or a collective, as a rank has noted it."""

    name: str  # as in torch.distributed
    other: int | None  # the other rank, of a send or recv
    size: int  # bytes that it carries
    before: tuple[float, ...]  # what the rank's tensor held when it was called


class Frame(NamedTuple):
    """What each rank held after a round, and what was sent in it: by whom, to whom, how many bytes."""

    held: list[tuple[float, ...]]
    sent: list[tuple[int, int, int]]


def shoot(exchange: Callable[[torch.Tensor], Any], ranks: int, numbers: int = 1) -> list[Frame]:
    """Run `exchange(x)` on that many ranks, and return the film of their messages.

    x: the rank's own tensor, float64[numbers]: 1, 2, … on rank 0, 10, 20, … on rank 1, and so on. It is the default
    type there, and holds all digits of eight ranks. Raises what `launch` raises.
    """

    def recorded() -> tuple[Any, tuple[float, ...]]:
        torch.set_default_dtype(torch.float64)  # a learner may receive into `torch.zeros(len(x))`
        x = filmed(torch.arange(1.0, numbers + 1) * 10 ** dist.get_rank())
        exchange(x)
        return x.messages, tuple(x.tolist())

    return frames(*zip(*launch(recorded, nproc_per_node=ranks, device="cpu", quiet=True).results, strict=True))


def frames(told: Sequence[Sequence[Told]], ends: Sequence[tuple[float, ...]]) -> list[Frame]:
    """Return the film of what all ranks have noted: the start, then a frame for each round of messages.

    told: of each rank, its messages in order. ends: what each rank's tensor held at the end. A message belongs to the
    earliest round in which it can have been: after what its rank did before, and a receive not before its send. What
    was sent to a rank that was still busy is told in the round in which it is received.
    """
    rounds = [[0] * len(messages) for messages in told]
    sends = {(rank, n): _its_send(told, rank, n) for rank, messages in enumerate(told) for n in range(len(messages))}
    for _ in range(sum(map(len, told)) + 1):  # as many passes as the longest chain of messages can need
        for rank, messages in enumerate(told):
            for n, message in enumerate(messages):
                last = rounds[rank][n - 1] if n else 0
                both_at_once = n and message.name == "recv" and messages[n - 1].name == "send"
                it = sends[rank, n]
                rounds[rank][n] = max(last if both_at_once else last + 1, rounds[it[0]][it[1]] if it else 0)
    arrives = {it: rounds[rank][n] for (rank, n), it in sends.items() if it}
    film = []
    for moment in range(max([0, *(number for numbers in rounds for number in numbers)]) + 1):
        held, sent = [], []
        for rank, messages in enumerate(told):
            done = sum(number <= moment for number in rounds[rank])
            held.append(messages[done].before if done < len(messages) else ends[rank])
            now = [it for n, it in enumerate(messages) if arrives.get((rank, n), rounds[rank][n]) == moment]
            sent += [(rank, message.other, message.size) for message in now if message.name == "send"]
        film.append(Frame(held, sent))
    return film


def _its_send(told: Sequence[Sequence[Told]], rank: int, n: int) -> tuple[int, int] | None:
    """Return whose send a receive waits for, and its place there: the k-th from a rank meets that rank's k-th to us."""
    message = told[rank][n]
    if message.name != "recv" or message.other not in range(len(told)):
        return None
    before = sum(it.name == "recv" and it.other == message.other for it in told[rank][:n])
    sends = [place for place, it in enumerate(told[message.other]) if it.name == "send" and it.other == rank]
    return (message.other, sends[before]) if before < len(sends) else None


def name_of(rank: int) -> HTML:
    """Return a rank's name with its sign before it, the same everywhere."""
    return HTML(f'<span style="color:{COLOURS[rank % 8]}">{SHAPES[rank % 8]}</span> rank {rank}')


def strip(film: Sequence[Frame]) -> str:
    """Return a film as HTML, its frames one after the other; what a round has changed is framed and bold."""
    boxes = ""
    for moment, (held, sent) in enumerate(film):
        rows = []
        for rank, numbers in enumerate(held):
            earlier = film[moment - 1].held[rank] if moment else numbers
            changed = [earlier[place : place + 1] != (it,) for place, it in enumerate(numbers)]
            rows.append([name_of(rank), *map(_block, numbers, changed)])
        said = "start" if moment == 0 else f"{moment}: " + (", ".join(f"{a}→{b}" for a, b, _ in sent) or "together")
        table = html_table(["", *[""] * max(map(len, held))], rows, said, row_heads=True)
        boxes += f'<div style="margin:4px 20px 4px 0"><b>{said}</b>{table}</div>'
    return f'<div style="display:flex;flex-wrap:wrap;align-items:flex-start">{boxes}</div>'


def _block(number: Any, changed: bool) -> str:
    look = "border:2px solid currentColor;padding:0 3px"
    return HTML(f'<b style="{look}">{brief(number)}</b>') if changed else brief(number)


@dataclass(repr=False)
class Strip:
    """A film where nobody can play it: a line of text for each frame, or all frames beside each other."""

    film: Sequence[Frame]

    def __str__(self) -> str:
        frames = [[" ".join(map(brief, numbers)) for numbers in frame.held] for frame in self.film]
        return "\n".join(" | ".join(ranks) for ranks in frames)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return strip(self.film)


def play(films: Mapping[str, Sequence[Frame]], first: str) -> None:
    """Show films, one to choose, with a button each for playing and stepping, and a slider; first the one named so.

    films: name → frames. Where nobody can press a button, `first` is shown as a strip.
    """
    from IPython.display import display

    if live():
        show(Strip(films[first]), lambda: _player({first: films[first], **films}))
    else:
        display(Strip(films[first]))


def _player(films: Mapping[str, Sequence[Frame]]) -> Any:
    frames = {name: [frame._asdict() for frame in film] for name, film in films.items()}
    return widget("film", films=frames, looks=list(zip(SHAPES, COLOURS, strict=True)))
