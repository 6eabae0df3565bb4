"""A waiting room: five recorded jobs of three ranks, dealt by a seed. Rank 0 speaks; whom do you ask, and what is it?

Two jobs of a room are never alike. One rank may be slow, all may be, or each in its turn, or nobody: see `JOBS`. Their
steps are about equally long, and far longer than what a busy machine adds. In a room the ranks of a job are numbered
anew, so the same recordings make many rooms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import chain, product
from random import Random
from typing import Any, NamedTuple

from ddplab import screen
from ddplab.course.controls import widget
from ddplab.course.timeline import Row, lane, parts
from ddplab.tables import CSS, HTML, html_table

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
NAMES = [*(f"rank {rank}, {phase}" for rank in RANKS for phase in PHASES), *list(JOBS)[len(PHASES) :]]
HEADS = (*PHASES, "exposed")
ROOMY = (  # and yet narrow enough for a small laptop
    ".ddplab.room table {border-collapse: collapse} .ddplab.room tr {height: 24px; line-height: 1.5}"
    ".ddplab.room th, .ddplab.room td {padding: 0 8px 0 0}"
    ".ddplab .job0 {border-top: 1px solid var(--jp-border-color1)}"
    ".ddplab.room th[scope=rowgroup] {min-width: 19ch; vertical-align: top}"
)
ROOM = "waiting room; numbers are ms a step"
INVITES = "Ranks 1 and 2 have not spoken yet: in a live notebook you ask them, and name what is slow."
RIGHT, WRONG, ASKED = 2, -1, -1  # points for a name, and for a question
BOLD = Fraction(3, 4)  # how likely a name is that the bettor says
PLAY, MATCH = ("you", "the careful", "the bettor"), 3  # who plays, and how many rooms


class Job(NamedTuple):
    """What is to be said of it, and what each of its ranks has recorded, step for step."""

    name: str
    ranks: list[Steps]


def deal(recorded: Mapping[str, Sequence[Steps]], seed: Any) -> list[Job]:
    """Deal five of the jobs, their ranks numbered anew. seed: whatever it is, its words are what counts."""
    chance, jobs = Random(str(seed)), []
    for name in chance.sample(list(JOBS), DEALT):
        order = chance.sample(RANKS, len(RANKS))
        jobs.append(Job(name.replace("rank 1", f"rank {order.index(1)}"), [recorded[name][rank] for rank in order]))
    return jobs


class Lanes:
    """What each rank of a job did in all its steps, on one clock, and the milliseconds of a step."""

    def __init__(self, ranks: Sequence[Steps]):
        self.rows = [[*chain(*steps)] for steps in ranks]
        self.span = min(rows[0].start for rows in self.rows), max(row.end for rows in self.rows for row in rows)

    def cells(self, rank: int) -> list[str]:
        """The lane of a rank, and its numbers."""
        return [lane(self.rows[rank], *self.span), *_numbers(self.rows[rank])]

    def _repr_html_(self) -> str:
        whole = f"{len(STEPS)} steps, {self.span[1] - self.span[0]:.0f} ms; beside them, ms a step:"
        return html_table(["", whole, *HEADS], [[f"rank {rank}", *map(HTML, self.cells(rank))] for rank in RANKS])

    def __repr__(self) -> str:
        rows = [_line(f"rank {rank}", _numbers(its)) for rank, its in enumerate(self.rows)]
        return "\n".join([_line("ms a step", HEADS), *rows])


def _beside(points: Sequence[int]) -> str:
    return ", ".join(f"{who} {it}" for who, it in zip(PLAY, points, strict=True))


def _numbers(rows: Sequence[Row]) -> list[str]:
    took = parts(rows)
    return [f"{took[name] / len(STEPS):.0f}" for name in HEADS]


def _line(first: str, cells: Sequence[str]) -> str:
    return f"{first:17}" + "".join(f"{it:>10}" for it in cells)


class WaitingRoom:
    """Rooms of five jobs, one after another. In a live notebook a board, on which you ask and name."""

    def __init__(self, recorded: Mapping[str, Sequence[Steps]], seed: Any):
        """recorded: for each of `JOBS` what its ranks have recorded. seed: of the rooms; any value will do."""
        self.recorded, self.seed = recorded, seed
        self.made: list[tuple[int, int, int]] = []  # in each room, by each of `PLAY`
        self._open()

    def _open(self) -> None:
        self.jobs = deal(self.recorded, f"{self.seed}, room {len(self.made) + 1}" if self.made else self.seed)
        self.asked: list[set[int]] = [{0} for _ in self.jobs]
        self.said = ["" for _ in self.jobs]
        self.cells = cache(lambda job, rank: Lanes(self.jobs[job].ranks).cells(rank))  # each is drawn once

    def act(self, job: int | None, does: str = "") -> str:
        """Ask a rank, or name a job; without one, go on to the next room. Returns what is to be said of it."""
        left = self.said.count("")
        if job is None and left:
            return f"name all five first: {left} left"
        if job is None:
            self._open()
        elif self.said[job]:
            return ""  # its button was pressed twice
        elif does in [f"rank {rank}" for rank in RANKS]:
            self.asked[job].add(int(does[-1]))
        elif does not in NAMES:
            return f"choose in the list of job {job + 1} what to name"
        else:
            self.said[job] = does
            if all(self.said):
                names = [it.name for it in self.jobs]
                self.made.append((self._points()[0], plays(names), plays(names, BOLD)))
        return ""

    def _points(self) -> tuple[int, int, int, int]:
        asked = sum(map(len, self.asked)) - len(self.jobs)
        right = sum(job.name == it for job, it in zip(self.jobs, self.said, strict=True))
        wrong = sum(map(bool, self.said)) - right
        return RIGHT * right + WRONG * wrong + ASKED * asked, right, wrong, asked

    def score(self) -> str:
        """Return the points of this room, and at its end those of all rooms so far, beside those of two others."""
        points, right, wrong, asked = self._points()
        if not all(self.said):
            return f"room {len(self.made) + 1}, points: {points} ({right} right, {wrong} wrong, {asked} asked)"
        told, whole = (
            f"room {len(self.made)}: {_beside(self.made[-1])}",
            [sum(it) for it in zip(*self.made, strict=True)],
        )
        if len(self.made) > 1:
            told += f"; in all {_beside(whole)}"
        if len(self.made) >= MATCH:
            behind = [who for who, points in zip(PLAY, whole, strict=True) if points < whole[0]]
            told += f": you are ahead of {'both' if len(behind) == 2 else behind[0] if behind else 'neither'}"
        return told

    def board(self) -> str:
        """Return the board as HTML: three rows for each job, so that the page stays as high as it is."""
        head = "".join(f'<th scope="col">{it}</th>' for it in ("", "", "three steps", *HEADS))
        body = "".join(self._row(n, rank) for n in range(len(self.jobs)) for rank in RANKS)
        table = f'<table aria-label="{ROOM}"><tr>{head}</tr>{body}</table>'
        return f'<style>{CSS}{ROOMY}</style><div class="ddplab room">{table}</div>'

    def _row(self, n: int, rank: int) -> str:
        job, said = self.jobs[n], self.said[n]
        first = ""
        if rank == 0:
            told = f"✓ {said}" if said == job.name else f"✗ {said}<br>→ {job.name}"
            names = "".join(f"<option>{it}</option>" for it in ("it is …", *NAMES))
            asks = f'<select data-job="{n}" aria-label="job {n + 1} is">{names}</select>'
            asks += f'<br><button data-job="{n}" aria-label="name job {n + 1}">name</button>'
            first = f'<th scope="rowgroup" rowspan="3">job {n + 1}<br>{told if said else asks}</th>'
        if said or rank in self.asked[n]:
            cells = "".join(f"<td>{it}</td>" for it in self.cells(n, rank))
        else:
            button = f'<button data-job="{n}" data-rank="rank {rank}" aria-label="ask rank {rank} of job {n + 1}">'
            cells = f'<td colspan="{1 + len(HEADS)}">{button}ask</button></td>'
        return f'<tr class="job{rank}">{first}<th scope="row">rank {rank}</th>{cells}</tr>'

    def __str__(self) -> str:
        rows = [_line(f"job {n}    rank 0", _numbers([*chain(*it.ranks[0])])) for n, it in enumerate(self.jobs, 1)]
        return "\n".join([_line("ms a step", HEADS), *rows, INVITES])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
        bundle = self._widget()._repr_mimebundle_() if screen.live() else {}
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        rows = [[f"job {n}", "rank 0", *map(HTML, self.cells(n - 1, 0))] for n in range(1, len(self.jobs) + 1)]
        still = html_table(["", "", "three steps", *HEADS], rows, ROOM) + f"<p>{INVITES}</p>"
        return {**data, "text/plain": str(self), "text/html": still}, metadata  # what stays where nobody can play

    def _widget(self) -> Any:
        page = widget("waiting_room", asked=[0], shown=self._shown())

        def answer(change: Any) -> None:
            page.shown = self._shown(self.act(*change["new"][1:]))

        page.observe(answer, "asked")
        return page

    def _shown(self, why: str = "") -> dict[str, Any]:
        return {"board": self.board(), "score": self.score() + (f"; {why}" if why else "")}


# ------------------------------------------------------------------ those you play against


def heard(name: str, rank: int) -> str:
    """What this rank's numbers tell, of a job with this name: the phase that is long, or that it waits for another."""
    who, _, phase = name.partition(", ")
    return phase if who in ("all", f"rank {rank}") else "waits" if who.startswith("rank ") else name


def plays(names: Sequence[str], sure: Fraction | int = 1) -> int:
    """Return the points of who names what is at least so likely, and else asks what divides the doubts best."""
    possible = [[it for it in NAMES if heard(it, 0) == heard(name, 0)] for name in names]
    rooms = {room: _chance(room) for room in product(*possible) if len({_kind(it) for it in room}) == len(room)}
    points, left = 0, set(range(len(names)))

    def those(holds: Callable[[Sequence[str]], bool]) -> dict[tuple[str, ...], int]:
        return {room: chance for room, chance in rooms.items() if holds(room)}

    while left:
        likely = {(n, room[n]): 0 for n in left for room in rooms}
        for n, name in likely:
            likely[n, name] = sum(those(lambda room: room[n] == name).values())  # noqa: B023
        (place, name), chance = max(likely.items(), key=lambda it: it[1])
        if Fraction(chance, sum(rooms.values())) >= sure:
            left.discard(place)
            points += RIGHT if name == names[place] else WRONG
            rooms = those(lambda room: room[place] == names[place])  # noqa: B023
        else:
            place, rank = min(product(left, RANKS[1:]), key=lambda question: _doubts([*rooms], *question))
            rooms = those(lambda room: heard(room[place], rank) == heard(names[place], rank))  # noqa: B023
            points += ASKED
    return points


def _kind(name: str) -> str:
    return name.replace("rank 0", "rank 1").replace("rank 2", "rank 1")


def _chance(room: Sequence[str]) -> int:
    """How often it is dealt, beside others: a single slow rank is each of the three as often."""
    return 3 ** sum(not name.startswith("rank ") for name in room)


def _doubts(rooms: Sequence[Sequence[str]], place: int, rank: int) -> int:
    """How many rooms are left after a question, on the average and times the number of rooms."""
    answers = [heard(room[place], rank) for room in rooms]
    return sum(answers.count(it) for it in answers)
