"""`python -m ddplab check [paths]`: a learner's own CI. `python -m ddplab doctor`: what this machine has."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from ddplab import checks
from ddplab.checkup import doctor

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
    """The notebooks that the paths name: files, or folders with notebooks in them."""
    found = []
    for path in paths:
        found += sorted(path.glob("*.ipynb")) if path.is_dir() else [path]
    return found


def code_cells(notebook: Path) -> list[str]:
    """The sources of a notebook's code cells, those that nbval counts."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def exercises_in(sources: list[str]) -> dict[str, int]:
    """The ids of the exercises that code cells check, in order, each with the number of its cell."""
    found: dict[str, int] = {}
    for n, source in enumerate(sources):
        for id in re.findall(r"""^[^#\n]*\bcheck\(\s*["']([^"']+)["']""", source, re.MULTILINE):
            found.setdefault(id, n)
    return found


def run(notebook: Path) -> tuple[dict[str, dict], dict[int, str], str]:
    """Run a notebook as it stands under nbval.

    Returns the verdicts by id, what happened to the cells that did not end well by their number, and the last
    line that pytest printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        report, results = Path(folder, "report.jsonl"), Path(folder, "results.xml")
        command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env", "--color=no", "-q"]
        command += [
            "-p",
            "no:cacheprovider",
            f"--nbval-cell-timeout={TIMEOUT}",
            f"--junitxml={results}",
            str(notebook),
        ]
        environment = {**os.environ, "DDPLAB_REPORT": str(report)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
        verdicts = {verdict["id"]: verdict for verdict in map(json.loads, lines)}
        printed = (done.stderr + done.stdout).strip().splitlines() or ["pytest said nothing"]
        return verdicts, failures(results), printed[-1]


def failures(results: Path) -> dict[int, str]:
    """From pytest's result file, the cells that did not end well: {4: "raised NameError: …"}."""
    found: dict[int, str] = {}
    cases = ElementTree.parse(results).iter("testcase") if results.exists() else []
    for case in cases:
        number = re.fullmatch(r"Cell (\d+)", case.get("name", ""))
        failure = next((child for child in case if child.tag in ("failure", "error")), None)
        if failure is None or number is None:
            continue
        text = re.sub(r"(?:\x1b|#x1B)\[[\d;]*m", "", failure.text or "")
        errors = re.findall(r"^([A-Za-z_][\w.]*(?:: .*)?)$", text.partition("Traceback:")[2], re.MULTILINE)
        if "Timeout of" in text:
            found[int(number[1])] = f"did not end within {TIMEOUT} s, or ended the kernel"
        elif "Kernel dead" in text:
            found[int(number[1])] = "found the kernel dead"
        else:
            found[int(number[1])] = f"raised {errors[-1]}" if errors else "failed"
    return found


def report_on(notebook: Path) -> tuple[list[Line], list[str]]:
    """One line an exercise, in order, and a sentence for each other cell that did not end well."""
    sources = code_cells(notebook)
    ids = exercises_in(sources)
    if not ids:
        return [], []
    verdicts, failed, printed = run(notebook)
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
        lines.append(Line(id, title, "did not run", "; ".join(sentences[n] for n in before) or printed))
    return lines, [sentence for n, sentence in sentences.items() if n not in told]


def first_line(source: str) -> str:
    return next((line.strip() for line in source.splitlines() if line.strip()), "")


def check(paths: list[Path]) -> int:
    """Print the report. Returns the exit status: 0 when nothing is left to do, 2 without notebooks, or 1."""
    found = notebooks_in(paths)
    missing = [str(path) for path in found if not path.exists()]
    if missing or not found:
        print(f"no notebooks found in: {', '.join(missing or map(str, paths))}", file=sys.stderr)
        return 2
    everything: list[Line] = []
    for notebook in found:
        print(notebook, flush=True)
        lines, others = report_on(notebook)
        for line in lines or ["  no exercises"]:
            print(line)
        for sentence in others:
            print(f"  note: {sentence}")
        everything += lines
    counts = {state: sum(line.state == state for line in everything) for state in dict.fromkeys(STATES.values())}
    counts["did not run"] = sum(line.state == "did not run" for line in everything)
    print(", ".join(f"{n} {state}" for state, n in counts.items() if n) or "no exercises")
    return 0 if everything and all(line.state in FINE for line in everything) else 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ddplab", description="the companion of the course")
    commands = parser.add_subparsers(required=True, metavar="command", dest="command")
    checking = commands.add_parser("check", help="run exercise notebooks as you filled them in, report each exercise")
    checking.add_argument("paths", nargs="*", type=Path, default=[Path("exercises")], help="notebooks or folders")
    commands.add_parser("doctor", help="what this machine has, what will go wrong on it, and what to do")
    asked = parser.parse_args(arguments)
    return check(asked.paths) if asked.command == "check" else see_the_doctor()


def see_the_doctor() -> int:
    """Print what the doctor finds. Returns the exit status: 1 where there is a problem, else 0."""
    findings = doctor()
    print(findings)
    return int(any(line.state == "problem" for line in findings))


if __name__ == "__main__":
    sys.exit(main())
