"""The pager: four ranks train, one fault hides in there, and whoever has the pager finds it from probes.

    page = incident(7)         # runs it, and shows what torchrun would show
    page.stack(2)              # a probe; each costs GPU-minutes, of which there are BUDGET
    page.script()              # open once a probe has been asked
    page.accuse(2, 33)         # this rank, this line; rank None where all ranks do it
    page.patch(33, "")         # the text to put there; "" leaves the line out
    page.run()                 # once more, with the patch

The ranks are `launch`'s: real processes, which find what torchrun would have set, on virtual GPUs (CPU memory with a
label). What a probe says has been recorded in the run (see `blackbox`). The GPU-minutes are played.

    closed_nights()            # a board of all nights, which of them you have closed; it follows
"""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ddplab.course import probes
from ddplab.course.faults import FAULTS, RANKS, build
from ddplab.course.incident_runs import broken, differences, ends, last_night, monitor, patched, play, screen
from ddplab.course.pager import page_of
from ddplab.pointer import pointing
from ddplab.screen import counting, in_kernel, show
from ddplab.sharing import share_incident

BUDGET = 120  # GPU-minutes
WIDE = 60  # characters of a line of prose
PRICES = {"stack": 4, "flight": 8, "memory": 4, "rows": 4, "weights": 4, "detail": 20, "run": 12, "hint": 20}
PRICES |= {"wrong": 20}  # an accusation
PROBES = ("stack", "flight", "memory", "rows", "weights", "detail")
SHUT = "Ask one probe first, of any rank: then the script opens."
STATES = {
    "ended": "The job has run to its end, and still somebody has paged you.\nCompare it with last night.",
    "failed": "The job has failed.",
    "stands still": "The job stands still. Nothing more is printed, and torch's own\nlimit is half an hour.",
}
HOW = """\
Ask a rank: stack, flight, memory, rows, weights.
Ask all: detail, hint. Then accuse(rank, line), None for all
ranks; patch(line, text); run(). After one probe: script()."""


CLOSED: dict[int, int | None] = {}  # seed → GPU-minutes that were left, None where only its check was content
BOARDS: list[Any] = []  # what shows the board in this notebook


class Said(str):
    """A text that a notebook shows as it is, without quotes."""

    __repr__ = str.__str__


class Incident:
    """One incident: what was seen, what it has cost so far, and how it stands.

    Probes tell of the run that the page shows, whatever has been patched since. Attributes: `seed`; `left`, GPU-minutes
    of BUDGET; `log`, each call with what it said; `named` and `mended`, whether the culprit has been named and the job
    been mended; `closed`, both.
    """

    def __init__(self, seed: int):
        self.seed, self.left, self.log = seed, BUDGET, []
        self.named = self.mended = False
        self._built = build(seed)
        self._lines = dict(enumerate(self._built.text.splitlines(), 1))
        self._patches: dict[int, str] = {}
        self._begun, self._took = time.monotonic(), 0.0
        self._asked: Counter[str] = Counter()  # what each kind was asked for, once for the same question
        self.outcome = play(self._built.text, env=self._built.env)
        share_incident(seed, self.left, 0.0, False, opened=True)

    @property
    def closed(self) -> bool:
        return self.named and self.mended

    def __str__(self) -> str:
        return self.page()

    __repr__ = __str__

    def _ipython_display_(self) -> None:
        show(self, lambda: page_of(self, PRICES, BUDGET, SHUT))

    # ---------------------------------------------------------- what costs nothing

    def page(self) -> Said:
        """What the one who pages you knows: what torchrun shows tonight, and the same job last night."""
        return Said(
            f"Incident {self.seed}: train.py on {RANKS} ranks, each with a virtual GPU.\n{STATES[self.outcome.state]}\n"
            f"--- the terminal, tonight ---\n{screen(self.outcome)}\n--- last night, before an edit of train.py ---\n"
            f"{last_night().terminal.rstrip()}\n{monitor(last_night(), self.outcome)}\n"
            f"--- yours: {self.left} of {BUDGET} GPU-minutes, which are played ---\n{HOW}"
        )

    def script(self) -> Said:
        """The script with its line numbers; lines that you have patched are marked. Shut until a probe is asked."""
        return Said("\n".join(f"{mark}{n:3}  {text}" for n, mark, text in self.lines()) or SHUT)

    def lines(self) -> list[tuple[int, str, str]]:
        """The script: of each line its number, its mark ("✎" where it is patched), and its text; shut, no lines."""
        if not any(call.startswith(PROBES) for call, _ in self.log):
            return []
        now = self._lines | self._patches
        return [(n, "✎" if n in self._patches else " ", now[n]) for n in self._lines]

    def share(self) -> Said:
        """A text to share: which incident, what it took, and nothing that spoils it."""
        took = round(self._took or time.monotonic() - self._begun)
        kinds = ", ".join(f"{name} {self._asked[name]}" for name in PRICES if name in self._asked and name != "wrong")
        many = self._asked["wrong"]
        wrong = f", {many} wrong accusation{'s' * (many > 1)}" if many else ""
        end = f"closed with {self.left} of {BUDGET} GPU-minutes left" if self.closed else "still open"
        return Said(
            f"ddplab pager, incident {self.seed}: {end}, {took // 60} min {took % 60} s\n{kinds or 'no probes'}{wrong}"
        )

    # ---------------------------------------------------------- probes

    def stack(self, rank: int) -> Said:
        """Where a rank stands, or stood at its end, and where it was found most often."""
        return self._probe(probes.stack, rank)

    def flight(self, rank: int) -> Said:
        """The latest collectives that a rank has called, as torch's flight recorder has them."""
        return self._probe(probes.flight, rank)

    def memory(self, rank: int) -> Said:
        """How many bytes a rank holds on each virtual GPU, before each epoch and at the end."""
        return self._probe(probes.memory, rank)

    def rows(self, rank: int) -> Said:
        """Which rows a rank has trained on, epoch for epoch."""
        return self._probe(probes.rows, rank)

    def weights(self, rank: int) -> Said:
        """The norm of a rank's weights before each epoch, how far they moved, and the norm of the latest gradient."""
        return self._probe(probes.weights, rank)

    def detail(self) -> Said:
        """Another run of the job as it was, with TORCH_DISTRIBUTED_DEBUG=DETAIL: how it ends, and what it prints."""
        outcome = play(self._built.text, detail=True, env=self._built.env)
        return self._say("detail()", "detail", [f"with DETAIL the job {ends(outcome)}:", screen(outcome)])

    def hint(self) -> Said:
        """A hint, for a price."""
        return self._say("hint()", "hint", textwrap.wrap(self._built.fault.hint, WIDE))

    # ---------------------------------------------------------- naming and mending

    @pointing
    def accuse(self, rank: int | None, line: int) -> Said:
        """Name the culprit: the rank, or None where all go one way, and the line, by its number in `script()`.

        Raises ValueError, at no price, for a rank or a line that is not there.
        """
        self._known(rank, [line], none=True)
        is_rank, is_line = self._built.is_culprit(rank), line in self._built.lines
        self.named = self.named or (is_rank and is_line)
        wrong = not (is_rank and is_line)
        verdict = {
            (True, True): "Right, the rank and the line."
            + "\nNow mend it: patch(line, text), then run()." * (not self.mended),
            (False, True): "The line is right, the rank is not.",
            (True, False): "The rank is right, the line is not.",
            (False, False): "Neither the rank nor the line is right.",
        }[is_rank, is_line]
        return self._say(f"accuse({rank}, {line})", "wrong" if wrong else "", [verdict, *self._end()])

    @pointing
    def patch(self, line: int | Mapping[int, str], text: str = "") -> Said:
        """Put a text in a line's place, or several: `patch({33: "", 34: "…"})`. "" leaves the line out.

        The text brings its own indentation: the spaces that the line begins with. The others keep their
        numbers. Raises ValueError for a line that is not there.
        """
        patches = dict(line) if isinstance(line, Mapping) else {line: text}
        self._known(None, [*patches], none=True)
        for n, new in patches.items():
            self._patches[n] = new.rstrip("\n")
            if self._patches[n] == self._lines[n]:
                del self._patches[n]
        call = "patch({" + ", ".join(f"{n}: {new!r}" for n, new in patches.items()) + "})"
        return self._say(call, "", ["patched", *self._broken()])

    def run(self) -> Said:
        """Run the script as it is patched, and say how far it is from last night's.

        A script that does not compile is not run, and costs nothing.
        """
        if why := self._broken():
            return self._say("run()", "", [*why, "So it was not run."])
        over, outcome = self.closed, play(patched(self._built.text, self._patches), env=self._built.env)
        probe = self._built.fault.probe
        off = differences(outcome, another_order=probe == "rows", more=probe == "detail")
        self.mended = not off
        as_then = "" if outcome.printed == last_night().printed else "it should, its rows in another order than "
        well = [f"the job ends as {as_then}last night:", *outcome.printed]
        said = [f"the job {ends(outcome)}:", screen(outcome)] if off else well
        return self._say("run()", "run", [*said, *(f"not mended: {it}" for it in off), *self._end()], over)

    # ---------------------------------------------------------- what they share

    def _broken(self) -> list[str]:
        """Say why the patched script does not compile; nothing where it does."""
        if found := broken(self._built.text, self._patches):
            kind, where, do = found
            said = f"It does not compile: {kind.__name__}, {where}."
            return [*textwrap.wrap(said, WIDE), *textwrap.wrap(do, WIDE)]
        return []

    @pointing
    def _probe(self, ask: Callable[..., list[str]], rank: int) -> Said:
        self._known(rank)
        return self._say(f"{ask.__name__}({rank})", ask.__name__, ask(rank, self.outcome, self._lines))

    def _known(self, rank: int | None, lines: list[int] = (), none: bool = False) -> None:
        if rank not in range(RANKS) and not (none and rank is None):
            raise ValueError(f"there are the ranks 0 to {RANKS - 1}, and no rank {rank!r}")
        if unknown := [n for n in lines if n not in [*self._lines]]:
            raise ValueError(f"train.py has the lines 1 to {len(self._lines)}, and no line {unknown[0]!r}")

    def _end(self) -> list[str]:
        if self.closed:
            self._took = self._took or time.monotonic() - self._begun
            return textwrap.wrap(f"Closed. It was {self._built.fault.name}: {self._built.fault.what}", WIDE)
        return ["Mended. Who was it? accuse(rank, line) closes the incident."] if self.mended else []

    def _say(self, call: str, kind: str, lines: list[str], over: bool | None = None) -> Said:
        """Note what a call has said, and take its price, unless it was paid already or the incident over before."""
        again = kind != "run" and any(call == before for before, _ in self.log)
        if kind and not again:
            self._asked[kind] += 1
        paid = kind and not again and not (self.closed if over is None else over)
        if paid:
            self.left = max(0, self.left - PRICES[kind])
        if self.closed:
            note_closed(self.seed, self.left)
        text = "\n".join(lines) if len(lines) > 1 else (lines or ["nothing yet"])[0]
        self.log.append((call, text))
        share_incident(self.seed, self.left, (self._took or time.monotonic() - self._begun) / 60, self.closed)
        return Said(f"{text}\n[{f'-{PRICES[kind]}, ' if paid else ''}{self.left} of {BUDGET} GPU-minutes left]")


@pointing
def incident(seed: int) -> Incident:
    """Run the incident with this number; what comes back shows itself, and has the probes.

    The same seed is the same incident on every machine; the seeds 1 to 19 have every fault once. Raises TypeError or
    ValueError for what is no number of an incident.
    """
    if type(seed) is not int:
        raise TypeError(f"an incident has a number, such as incident(7), not {seed!r}")
    if seed < 1:
        raise ValueError(f"incidents are counted from 1, not {seed}")
    with counting("Four ranks run last night's train.py and tonight's, which may take half a minute:"):
        last_night()  # once for all incidents; the page shows it too
        return Incident(seed)


class Board:
    """The nights that have every fault once: ☐ waits, ✓ is closed, with the GPU-minutes that were left."""

    def __str__(self) -> str:
        boxes = [f"{sign} {seed:2} {left:4}" for seed, sign, left in self._boxes()]
        rows = ["  ".join(boxes[n : n + 7]).rstrip() for n in range(0, len(boxes), 7)]
        return "\n".join([*rows, self._count()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        look = "padding:2px 6px;width:6em;white-space:nowrap"
        boxes = "".join(f'<div style="{look}">{sign} {seed} {left}</div>' for seed, sign, left in self._boxes())
        return (
            f'<div style="display:flex;flex-wrap:wrap;gap:4px;max-width:55em">{boxes}</div><div>{self._count()}</div>'
        )

    def _boxes(self) -> list[tuple[int, str, str]]:
        lefts = {seed: "" if left is None else f"({left})" for seed, left in CLOSED.items()}
        return [(seed, "✓" if seed in CLOSED else "☐", lefts.get(seed, "")) for seed in range(1, len(FAULTS) + 1)]

    def _count(self) -> str:
        return f"closed: {sum(sign == '✓' for _, sign, _ in self._boxes())} of {len(FAULTS)}"


def closed_nights() -> None:
    """Show the board of the nights that this kernel has seen closed. In a notebook it changes with every one."""
    if not in_kernel():
        print(Board())
        return
    from IPython.display import display

    BOARDS.append(display(Board(), display_id=True))


def note_closed(seed: int, left: int | None = None) -> None:
    """Note on the board that a night is closed: on its page, with so many GPU-minutes left, or by its check."""
    if CLOSED.get(seed) is None:
        CLOSED[seed] = left
        for shown in BOARDS:
            shown.update(Board())
