"""`python -m ddplab`: `check`, a learner's own CI; `doctor`, this machine; `rehearse`, a script without GPUs; `why`."""

import sys

from ddplab.errors import command as errors

if __name__ == "__main__" and sys.argv[1:2] == ["why"]:  # before anything imports torch
    sys.exit(errors.main(sys.argv[2:]))

import argparse
import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ddplab import checks
from ddplab.checkup import doctor
from ddplab.notebooks import first_line, read, run
from ddplab.rehearse import command as rehearsal

STATES = {  # what a check prints -> how a report over many exercises says it
    checks.CORRECT: "correct",
    checks.NOT_YET: "not yet",
    checks.BLANK: "not started",
    checks.CANNOT_CHECK: "cannot check here",
    checks.UNKNOWN: "no such exercise",
}
FINE = {"correct", "cannot check here"}
TIMEOUT = 300  # seconds a cell may take


@dataclass
class Line:
    """One exercise in the report."""

    id: str
    title: str
    state: str
    message: str = ""
    hint: str = ""

    def __str__(self) -> str:
        name = f"{self.id} {self.title}".strip()
        first = f"  {name}: {self.state}" + (f": {self.message}" if self.message else "")
        return f"{first}\n      hint: {self.hint}" if self.hint else first


def notebooks_in(paths: list[Path]) -> list[Path]:
    """The notebooks that the paths name: files, or folders with notebooks somewhere in them."""
    found = []
    for path in paths:
        found += sorted(path.rglob("*.ipynb")) if path.is_dir() else [path]
    return found


def exercises_in(sources: list[str]) -> dict[str, int]:
    """The ids of the exercises that code cells check, in order, each with the number of its cell."""
    found: dict[str, int] = {}
    for n, source in enumerate(sources):
        for id in re.findall(r"""^[^#\n]*\bcheck\(\s*["']([^"']+)["']""", source, re.MULTILINE):
            found.setdefault(id, n)
    return found


def report_on(path: Path, timeout: int) -> tuple[list[Line], list[str]]:
    """One line an exercise, in order, and a sentence for each other cell that did not end well."""
    try:
        notebook = read(path)
    except ValueError as error:
        return [Line(path.name, "", "not a notebook", str(error))], []
    sources = [cell.source for cell in notebook.cells]
    ids = exercises_in(sources)
    if not ids:
        return [], []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.jsonl")
        failed = run(notebook, path.parent, timeout, DDPLAB_REPORT=str(report), DDPLAB_PANEL="off")
        written = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    verdicts = {verdict["id"]: verdict for verdict in map(json.loads, written)}
    sentences = {n: f"code cell {n + 1} (`{first_line(sources[n])}`) {what}" for n, what in failed.items()}
    lines, told = [], set()
    for id, cell in ids.items():
        known = checks.find(id)
        title = known.title if known else ""
        if id in verdicts:
            verdict = verdicts[id]
            lines.append(Line(id, title, STATES[verdict["state"]], verdict["message"], verdict["hint"]))
            continue
        before = [n for n in sentences if n <= cell][-2:]  # the cell that died, and the check that missed it
        told.update(before)
        why = "; ".join(sentences[n] for n in before) or "nothing called its check"
        lines.append(Line(id, title, "did not run", why))
    return lines, [sentence for n, sentence in sentences.items() if n not in told]


def check(paths: list[Path], timeout: int = TIMEOUT) -> int:
    """Print the report; a cell may take `timeout` seconds.

    Returns the exit status: 0 when nothing is left to do, 2 without notebooks, or 1.
    """
    found = notebooks_in(paths)
    missing = [str(path) for path in found if not path.exists()]
    if missing or not found:
        print(f"no notebooks found in: {', '.join(missing or map(str, paths))}", file=sys.stderr)
        return 2
    everything: list[Line] = []
    for notebook in found:
        print(notebook, flush=True)
        lines, others = report_on(notebook, timeout)
        for line in lines or ["  no exercises"]:
            print(line)
        for sentence in others:
            print(f"  note: {sentence}")
        everything += lines
    states = [*STATES.values(), "did not run", "not a notebook"]
    counts = {state: sum(line.state == state for line in everything) for state in states}
    print(", ".join(f"{n} {state}" for state, n in counts.items() if n) or "no exercises")
    return 0 if everything and all(line.state in FINE for line in everything) else 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ddplab", description="the companion of the course")
    commands = parser.add_subparsers(required=True, metavar="command", dest="command")
    checking = commands.add_parser("check", help="run exercise notebooks as you filled them in, report each exercise")
    checking.add_argument("paths", nargs="*", type=Path, default=[Path("exercises")], help="notebooks or folders")
    commands.add_parser("doctor", help="what this machine has, what will go wrong on it, and what to do")
    commands.add_parser("rehearse", help="run a CUDA and DDP script on virtual GPUs", add_help=False)
    commands.add_parser("why", help="what an error or a log means, and how to mend it", add_help=False)
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["rehearse"]:  # what follows is the script's, and torchrun's
        return rehearsal.main(given[1:])
    if given[:1] == ["why"]:
        return errors.main(given[1:])
    asked = parser.parse_args(given)
    return check(asked.paths) if asked.command == "check" else see_the_doctor()


def see_the_doctor() -> int:
    """Print what the doctor finds. Returns the exit status: 1 where there is a problem, else 0."""
    findings = doctor()
    print(findings)
    return int(any(line.state == "problem" for line in findings))


if __name__ == "__main__":
    sys.exit(main())
