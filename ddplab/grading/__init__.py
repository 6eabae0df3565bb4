"""`python -m ddplab grade`: play learners' notebooks, each confined and within its limits, and judge every exercise.

What a verdict rests on: the checks of this package and the notebooks of the course that it holds (`sheets`). Of a
learner's file only the answers are taken, as text. They run in a process of their own (`judging`) that begins in an
empty private folder, without this process's environment, and cannot write or look elsewhere (`confinement`).

What that leaves: an answer runs in the same process as the check that judges it, so code that is written to attack that
very check can get the better of it. Whom that would serve can be asked to explain the answer.
"""

import hashlib
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ddplab import checks
from ddplab.grading.judge import PACKAGE, Ended, Judge
from ddplab.grading.judging import DID_NOT_RUN, NOT_BELIEVED
from ddplab.grading.sheets import Sheet, Step, calls, course, reaches, read, sheet_of

STATES = {  # what a check says -> how a report says it
    checks.CORRECT: "correct",
    checks.NOT_YET: "not yet",
    checks.BLANK: "not started",
    checks.CANNOT_CHECK: "cannot check here",
}
OUT_OF_DATE, NO_NOTEBOOK = "out of date", "not a notebook"
CELL, NOTEBOOK = 120.0, 600.0  # seconds that a cell and a notebook may take


@dataclass
class Row:
    """One exercise in a report, or a file that has none."""

    notebook: str
    id: str
    title: str
    state: str
    message: str = ""
    hint: str = ""
    seconds: float = 0.0


@dataclass
class Report:
    """What was found: `rows`, and `notes` on notebooks, by name. `not_confined` says why, where notebooks were not."""

    rows: list[Row] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)
    not_confined: str = ""


def notebooks_in(paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """The notebooks that the paths name, files or folders, each with what is wrong with its place: "" mostly."""
    for path in paths:
        for found in sorted(path.rglob("*.ipynb")) if path.is_dir() else [path]:
            if any(part.startswith(".") for part in found.relative_to(path).parts):
                continue  # JupyterLab's checkpoints
            outside = path.is_dir() and not found.resolve().is_relative_to(path.resolve())
            yield found, "it is a link to a file elsewhere" if outside else ""


def grade(paths: Iterable[Path], cell_seconds: float = CELL, notebook_seconds: float = NOTEBOOK) -> Iterator[Report]:
    """Grade notebooks one after the other; yield a report on each. Nothing is written beside them."""
    judge = Judge()
    try:
        for path, wrong in notebooks_in(paths):
            name = plain(str(path))
            try:
                if wrong:
                    raise ValueError(wrong)
                sheet = sheet_of(cells := read(path))
            except ValueError as error:
                yield Report([Row(name, plain(path.name), "", NO_NOTEBOOK, plain(str(error)))])
                continue
            if sheet.name:
                yield _play(judge, name, sheet, cell_seconds, notebook_seconds)
            elif any(re.search(r"\bcheck\(\s*[\"']", cell.source) for cell in cells):
                what = "its checks are not of this version of the course; take the course's own notebook"
                yield Report([Row(name, plain(path.name), "", OUT_OF_DATE, what)])
            elif ours := next((ours for it, ours in course().items() if Path(it).name == path.name), None):
                ids = [id for cell in ours for id, _ in calls(cell.source)]
                what = "it is not in this notebook; take the course's own"
                yield Report([Row(name, id, _title(id), OUT_OF_DATE, what) for id in ids])
            else:
                yield Report(notes={name: ["no exercises"]})
    finally:
        judge.close()


@dataclass
class Played:
    """What became of a sheet: a row for each exercise that was judged, and the steps, by place, that went wrong."""

    found: dict[str, Row] = field(default_factory=dict)
    trouble: dict[int, str] = field(default_factory=dict)  # what became of them
    lost: dict[int, str] = field(default_factory=dict)  # of those that are not run again: the state of their exercise
    not_confined: str = ""

    def lost_for(self, check: Step, steps: list[Step]) -> list[str]:
        """The states that lost answers to a check's exercise leave it in; none where its answers ran."""
        return [it for n, it in self.lost.items() if not steps[n].call and check.exercises[0] in steps[n].exercises]

    def open(self, steps: list[Step]) -> list[Step]:
        """The checks that are still to be asked."""
        return [it for it in steps if it.call and it.exercises[0] not in self.found and not self.lost_for(it, steps)]


def _play(judge: Judge, name: str, sheet: Sheet, cell_seconds: float, notebook_seconds: float) -> Report:
    """Run a notebook and report on it."""
    before = _digest()
    played = _run(judge, name, sheet.steps, cell_seconds, notebook_seconds)
    rows, told = played.found, set()
    for step in [step for step in sheet.steps if step.call]:
        id, gone = step.exercises[0], played.lost_for(step, sheet.steps)
        mine = [n for n in sorted(played.trouble) if id in sheet.steps[n].exercises and not sheet.steps[n].call]
        if gone or (mine and rows[id].state == DID_NOT_RUN):
            told.update(mine)
            what = "; ".join(_sentence(sheet.steps[n], played.trouble[n]) for n in mine)
            rows[id] = Row(name, id, _title(id), NOT_BELIEVED if NOT_BELIEVED in gone else DID_NOT_RUN, what)
    for id in sheet.missing:
        rows[id] = Row(name, id, _title(id), OUT_OF_DATE, "it is not in this notebook; take the course's own")
    untold = [n for n in sorted(played.trouble) if n not in told and sheet.steps[n].n]
    notes = [_sentence(sheet.steps[n], played.trouble[n]) for n in untold]
    notes += reaches(sheet)
    if sheet.changed:
        what = "an edit, or another version of the course"
        notes.append(f"{sheet.changed} of the course's own cells differ here ({what}); the course's were run")
    if _digest() != before:
        notes.append("THE CHECKS WERE CHANGED while this notebook ran: install the package again, and grade again")
        for row in rows.values():
            row.state = NOT_BELIEVED
    in_order = sorted(rows, key=lambda id: [int(part) for part in id.split(".")])
    return Report([rows[id] for id in in_order], {name: notes} if notes else {}, played.not_confined)


def _run(judge: Judge, name: str, steps: list[Step], cell_seconds: float, notebook_seconds: float) -> Played:
    """Run a notebook's steps. Where one ends the process, a new process goes on without it."""
    played, deadline = Played(), time.monotonic() + notebook_seconds
    while played.open(steps):
        place, nothing = None, ""
        try:
            played.not_confined = judge.begin()
            for place, step in enumerate(steps):
                if place not in played.lost and (not step.call or step in played.open(steps)):
                    _ask(judge, name, place, step, played, cell_seconds, deadline)
        except Ended as ended:
            if place is None:
                nothing = "there was no process to run it in"
            elif steps[place].call:
                answer = {"state": ended.state, "message": f"its check {ended}"}
                played.found[steps[place].exercises[0]] = _row(name, steps[place], answer)
            else:
                played.trouble[place], played.lost[place] = str(ended), ended.state
        judge.end()
        if time.monotonic() > deadline:
            nothing = f"the notebook did not end within {notebook_seconds:.0f} s"
        if nothing:
            for step in played.open(steps):
                played.found[step.exercises[0]] = _row(name, step, {"state": DID_NOT_RUN, "message": nothing})
    return played


def _ask(judge: Judge, name: str, place: int, step: Step, played: Played, cell_seconds: float, deadline: float) -> None:
    """Have one step run, and note what came of it. Raises Ended."""
    began = time.monotonic()
    # a check ends by itself in time; what hangs in it so that it cannot is ended here
    seconds = cell_seconds + checks.LIMIT if step.call else cell_seconds
    answer = judge.ask(step, max(0.0, min(seconds, deadline - began)))
    if step.call:
        played.found[step.exercises[0]] = _row(name, step, answer, time.monotonic() - began)
    elif answer["error"]:
        played.trouble[place] = f"raised {plain(answer['error'])}"
        if answer.get("unread"):  # what the cell defines is not there, or is another exercise's
            played.lost[place] = DID_NOT_RUN


def _row(name: str, step: Step, answer: dict, seconds: float = 0.0) -> Row:
    state = STATES.get(answer["state"], answer["state"])
    words = [plain(str(answer.get(which, ""))) for which in ("message", "hint")]
    return Row(name, step.exercises[0], _title(step.exercises[0]), state, *words, seconds)


def _sentence(step: Step, what: str) -> str:
    """What became of a learner's cell; of one of the course, nothing: it stumbles where an answer is not there."""
    first = next((line.strip() for line in step.source.splitlines() if line.strip()), "")
    return f"code cell {step.n} (`{plain(first)[:60]}`) {what}" if step.n else ""


def _title(id: str) -> str:
    known = checks.find(id)
    return known.title if known else ""


def plain(text: str) -> str:
    """A learner's words on one line, without what a terminal or a parser would obey, and no longer than is read."""
    text = re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", text)
    text = "".join(sign if sign.isprintable() else " " for sign in text)
    return text if len(text) <= 400 else text[:399] + "…"


def _digest() -> str:
    """Of everything that the checks are made of. Confined code cannot write it; where none is, a change is noticed."""
    files = sorted(path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".json") and path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
