"""What the course asks and what a learner wrote: the answers are taken from the learner, all else from the course.

`exercises.json`, made by `tools/make_exercises.py`, holds the code cells of the exercise notebooks as the course has
them, none of their solutions. A learner's notebook gives its answer cells, found by their ids, and the cells that were
added to it, each where it stands. Its checks, imports and other given cells are not read, nor are its outputs.
"""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import nbformat

from ddplab.checks import BLANK_CODE

LARGEST = 20_000_000  # bytes of a notebook that is read: a learner's outputs, which nobody looks at, can be large

# With these one gets at the judge in one's own process. No exercise asks for any.
REACHES = re.compile(
    r"\b(gc|ctypes|inspect|importlib|sys\.modules|_getframe|settrace|setprofile|__globals__|__closure__|__code__|"
    r"__builtins__|builtins|__import__|__eq__|__ne__|_current_frames|setattr|ddplab\.checks|ddplab\.grading)\b|(?<![.\w])(exec|eval)\("
)


class Cell(NamedTuple):
    """A code cell of the course: its id, its source, and whether it is the learner's to fill in."""

    id: str
    source: str
    yours: bool


@dataclass
class Step:
    """Something to run: a cell, or, where `call` says so, a check. `n` counts the learner's code cells, from 1.

    exercises: the ids that it is the answer to, or that are checked. blank: the answer cell as the course has it.
    """

    source: str = ""
    n: int | None = None
    exercises: tuple[str, ...] = ()
    call: str = ""
    blank: str = ""


@dataclass
class Sheet:
    """A learner's notebook, as it will be graded. Nothing is known of a notebook whose `name` is empty."""

    name: str = ""
    steps: list[Step] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # exercises of which it has neither the answer nor the check
    changed: int = 0  # of the course's own cells, those that it has not, or not as they are


@cache
def course() -> dict[str, list[Cell]]:
    """The code cells of each exercise notebook of this course, by its name: "1_one_device/1.1_start_here.ipynb"."""
    text = Path(__file__).with_name("exercises.json").read_text(encoding="utf-8")
    return {name: [Cell(*cell) for cell in cells] for name, cells in json.loads(text).items()}


def packed(folder: Path) -> str:
    """The text of `exercises.json` for a folder with the exercise notebooks of the course."""
    found = {}
    for path in sorted(folder.rglob("*.ipynb")):
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        name = path.relative_to(folder).as_posix()
        found[name] = [[cell.id, cell.source, BLANK_CODE in cell.source] for cell in cells]
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def calls(source: str) -> Iterator[tuple[str, str]]:
    """The exercises that a cell of the course checks: each id, and the line that does."""
    if source.startswith("%%"):
        return
    for line in ast.parse(source).body:
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Call) and ast.unparse(line.value.func) == "check":
            yield ast.literal_eval(line.value.args[0]), ast.unparse(line)


def read(path: Path) -> list[nbformat.NotebookNode]:
    """Return the cells of a notebook. Raises ValueError where the file holds none."""
    try:
        if not path.is_file():
            raise ValueError("it is no file")
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it has more than {LARGEST:,} bytes; clear its outputs")
        try:
            json.loads(path.read_text(encoding="utf-8"))  # nbformat would not say which line is at fault
        except (OSError, ValueError) as error:
            raise ValueError(f"it cannot be read as JSON: {error}") from None
        try:
            notebook = nbformat.read(path, as_version=4)
            nbformat.validate(notebook, relax_add_props=True)
        except Exception as error:  # nbformat raises whatever it stumbles over
            what = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise ValueError(f"it is JSON, but nbformat finds no notebook in it: {what}") from None
    except RecursionError:
        raise ValueError("it is nested without end") from None
    return notebook.cells


def sheet_of(cells: list[nbformat.NotebookNode]) -> Sheet:
    """What to run for a learner's notebook: the course's cells in the course's order, the learner's answers in them."""
    name = _which(cells)
    if not name:
        return Sheet()
    theirs = [cell for cell in cells if cell.cell_type == "code"]
    ours, place = course()[name], {}  # place: of our cell -> of theirs
    for n, cell in enumerate(theirs):
        known = [k for k, it in enumerate(ours) if it.id == cell.get("id") and k not in place]
        if known and (ours[known[0]].yours or _same(ours[known[0]].source, cell.source)):
            place[known[0]] = n
    for n, cell in enumerate(theirs):  # an id can get lost, by way of another editor: then what it says decides
        same = [k for k, it in enumerate(ours) if k not in place and _same(it.source, cell.source)]
        if same and n not in place.values():
            place[same[0]] = n
    ids = {cell.get("id"): n for n, cell in enumerate(theirs)}
    edited = {ids[it.id]: k for k, it in enumerate(ours) if k not in place and not it.yours and it.id in ids}
    edited = {n: k for n, k in edited.items() if n not in place.values()}
    added: dict[int, list[int]] = {}  # after which of our cells -> the places of theirs; -1 is before them all
    last = -1
    for n in range(len(theirs)):
        last = next((k for k, other in place.items() if other == n), edited.get(n, last))
        if n not in place.values() and n not in edited:
            added.setdefault(last, []).append(n)
    sheet = Sheet(name, changed=sum(k not in place for k, it in enumerate(ours) if not it.yours))
    answers = _answers(ours)
    sheet.steps += [Step(theirs[n].source, n + 1) for n in added.get(-1, [])]
    for k, it in enumerate(ours):
        exercises = tuple(id for id, answer in answers.items() if answer == k)
        checked = list(calls(it.source))
        if it.yours and k in place:
            sheet.steps.append(Step(theirs[place[k]].source, place[k] + 1, exercises))
        elif not it.yours and not checked:
            sheet.steps.append(Step(it.source))
        sheet.steps += [Step(theirs[n].source, n + 1, exercises) for n in added.get(k, [])]
        for id, call in checked:
            answer = answers.get(id)
            if answer is not None and answer not in place and k not in place and k not in edited.values():
                sheet.missing.append(id)
                continue
            blank = "" if answer is None or ours[answer].source.startswith("%%") else ours[answer].source
            sheet.steps.append(Step(exercises=(id,), call=call, blank=blank))
    return sheet


def reaches(sheet: Sheet) -> list[str]:
    """A sentence for each of the learner's cells that uses what no exercise asks for, and what gets at the judge."""
    found = []
    for step in [step for step in sheet.steps if step.n]:
        names = sorted({one or other for one, other in REACHES.findall(step.source)})
        if names:
            found.append(f"code cell {step.n} uses {', '.join(names)}, for which no exercise asks: look at it")
    return found


def _which(cells: list[nbformat.NotebookNode]) -> str:
    """The name of the course's notebook that holds most of the exercises that these cells speak of; "" for none."""
    spoken = set(re.findall(r"\b\d\.\d+\.\d+\b", "\n".join(cell.source for cell in cells)))
    found = {name: len(spoken & {id for it in ours for id, _ in calls(it.source)}) for name, ours in course().items()}
    best = max(found, key=found.__getitem__)
    return best if found[best] else ""


def _same(one: str, other: str) -> bool:
    return [line.rstrip() for line in one.strip().splitlines()] == [
        line.rstrip() for line in other.strip().splitlines()
    ]


def _answers(ours: list[Cell]) -> dict[str, int]:
    """Of each exercise the cell that is its answer: the nearest at or above its check."""
    found, last = {}, None
    for k, it in enumerate(ours):
        last = k if it.yours else last
        found |= {id: last for id, _ in calls(it.source) if last is not None}
    return found
