"""A waiting room: five recorded jobs of three ranks, dealt by a seed. Rank 0 speaks; whom do you ask, and what is it?

Two jobs are never alike. One rank may be slow, all may be, or each in its turn, or nobody: see `JOBS`. Their steps are
about equally long, and far longer than what a busy machine adds. In a room the ranks of a job are numbered anew, so
the same recordings make many rooms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, product
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from ddplab.course.timeline import Row, draw, parts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SECONDS = 0.15  # of a step: in the phase that is slow, or in all phases alike where nobody is
RANKS, STEPS, DEALT = range(3), range(3), 5
PHASES = ("data", "forward", "backward")
Late = list[list[dict[str, float]]]  # for each step, of each rank: phase → seconds
Steps = Sequence[Sequence[Row]]
IN_TURN, NOBODY = "in turn, data", "nobody"


def _late(slow: Callable[[int, int], bool], phase: str) -> Late:
    return [[{phase: SECONDS} if slow(step, rank) else {} for rank in RANKS] for step in STEPS]


JOBS: dict[str, Late] = {  # what is to be said of a job, as it is recorded → how late its ranks are
    **{f"rank 1, {phase}": _late(lambda step, rank: rank == 1, phase) for phase in PHASES},
    **{f"all, {phase}": _late(lambda step, rank: True, phase) for phase in PHASES},
    IN_TURN: _late(lambda step, rank: step == rank, "data"),
    NOBODY: [[dict.fromkeys(PHASES, SECONDS / len(PHASES)) for _ in RANKS] for _ in STEPS],
}
ASKS = [f"ask rank {rank}" for rank in RANKS[1:]]
NAMES = [*(f"rank {rank}, {phase}" for rank in RANKS for phase in PHASES), *list(JOBS)[len(PHASES) :]]
OFFERED = {f"job_{n + 1}": ["…", *ASKS, *NAMES] for n in range(DEALT)}
RIGHT, WRONG, ASKED = 3, -1, -1  # points for a name, and for a question

_first: dict[str, int] = {}  # seed → the points of the first time that its room was emptied


class Job(NamedTuple):
    """What is to be said of it, and what each of its ranks has recorded, step for step."""

    name: str
    ranks: list[Steps]

    @property
    def slow(self) -> int | None:
        """The rank for which the others wait; None where there is none that they always wait for."""
        return int(self.name[5]) if self.name.startswith("rank ") else None


def deal(recorded: Mapping[str, Sequence[Steps]], seed: Any) -> list[Job]:
    """Deal five of the jobs, their ranks numbered anew. seed: whatever it is, its words are what counts."""
    chance, jobs = Random(str(seed)), []
    for name in chance.sample(list(JOBS), DEALT):
        order = chance.sample(RANKS, len(RANKS))
        jobs.append(Job(name.replace("rank 1", f"rank {order.index(1)}"), [recorded[name][rank] for rank in order]))
    return jobs


def lanes_of(ranks: Sequence[Steps], title: str = "") -> Figure:
    """Draw what each rank of a job did, in all its steps."""
    return draw([[*chain(*steps)] for steps in ranks], title)


def ask_or_name(jobs: Sequence[Job], seed: Any) -> Callable[..., tuple[str, Figure]]:
    """Return a function for `move`: what has changed in a job's list is done, a question or a name; and once only."""
    last = dict.fromkeys(OFFERED, "…")
    asked: list[set[int]] = [{0} for _ in jobs]
    said: list[str] = ["" for _ in jobs]
    lanes = [lanes_of([[] for _ in RANKS], "name a job: here you will see what its ranks did")]  # or of the last named
    lanes[0].axes[0].set(xticks=[])
    pressed = [-1]  # how often the button was

    def play(**chosen: str) -> tuple[str, Figure]:
        before = sum(map(len, asked)), [*said]
        for n, (job, (place, does)) in enumerate(zip(jobs, chosen.items(), strict=True)):
            if does not in ("…", last[place]) and not said[n]:
                if does in ASKS:
                    asked[n].add(int(does[-1]))
                else:
                    said[n], lanes[0] = does, lanes_of(job.ranks, f"job {n + 1}: {job.name}")
        last.update(chosen)
        pressed[0] += 1
        idle = pressed[0] > 0 and before == (sum(map(len, asked)), said)
        lines = [f"{'ms a step':17}" + "".join(f"{it:>10}" for it in (*PHASES, "exposed"))]
        for n, job in enumerate(jobs):
            lines += _card(n + 1, job, asked[n], said[n])
        return "\n".join([*lines, *_score(jobs, asked, said, seed, idle)]), lanes[0]

    return play


def _card(number: int, job: Job, asked: set[int], said: str) -> list[str]:
    """A line for each rank, asked or not, so that the page stays as high as it is."""
    right = said == job.name
    told = [f"{'✓' if right else '✗'} {said}" if said else "", "" if right or not said else f"it was {job.name}", ""]
    lines = []
    for rank, verdict in zip(RANKS, told, strict=True):
        took = parts([*chain(*job.ranks[rank])])
        numbers = [f"{took[it] / len(STEPS):.0f}" if rank in asked or said else "?" for it in (*PHASES, "exposed")]
        row = f"{f'job {number}' if rank == 0 else '':8} {f'rank {rank}':8}" + "".join(f"{it:>10}" for it in numbers)
        lines.append(f"{row}   {verdict}".rstrip())
    return lines


def _score(
    jobs: Sequence[Job], asked: Sequence[set[int]], said: Sequence[str], seed: Any, idle: bool
) -> tuple[str, str]:
    questions = sum(map(len, asked)) - len(jobs)
    right = sum(job.name == it for job, it in zip(jobs, said, strict=True))
    wrong = sum(map(bool, said)) - right
    points = RIGHT * right + WRONG * wrong + ASKED * questions
    told = f"points: {points} ({right} right, {wrong} wrong, {questions} asked)"
    if all(said):
        _first.setdefault(str(seed), points)
        told += f"; who asks until sure makes {careful([job.name for job in jobs])} here"
    elif idle:
        told += "; nothing new: choose in the list of a job with a ?"
    rooms = ", ".join(f"{room}: {it}" for room, it in _first.items())
    return told, f"your rooms, by seed, the first time: {rooms or 'none yet'}"


# ------------------------------------------------------------------ who asks until sure


def heard(name: str, rank: int) -> str:
    """What this rank's numbers tell, of a job with this name: the phase that is long, or that it waits for another."""
    who, _, phase = name.partition(", ")
    return phase if who in ("all", f"rank {rank}") else "waits" if who.startswith("rank ") else name


def careful(names: Sequence[str]) -> int:
    """Return the points of a player who asks while there is any doubt, and each time what divides the doubts best."""
    possible = [[it for it in NAMES if heard(it, 0) == heard(name, 0)] for name in names]
    rooms = [room for room in product(*possible) if len({_kind(it) for it in room}) == len(room)]
    points = RIGHT * len(names)
    while len(rooms) > 1:
        place, rank = min(product(range(len(names)), RANKS[1:]), key=lambda question: _left(rooms, *question))
        rooms = [room for room in rooms if heard(room[place], rank) == heard(names[place], rank)]
        points += ASKED
    return points


def _kind(name: str) -> str:
    return name.replace("rank 0", "rank 1").replace("rank 2", "rank 1")


def _left(rooms: Sequence[Sequence[str]], place: int, rank: int) -> int:
    """How many rooms are left after a question, on the average and times the number of rooms."""
    answers = [heard(room[place], rank) for room in rooms]
    return sum(answers.count(it) for it in answers)
