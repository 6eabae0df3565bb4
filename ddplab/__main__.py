"""`python -m ddplab check [paths]`: a learner's own CI, every exercise by name."""

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

STATES = {  # what a check prints -> how a report over many exercises says it
    checks.CORRECT: "correct",
    checks.NOT_YET: "not yet",
    checks.BLANK: "not started",
    checks.CANNOT_CHECK: "cannot check here",
    checks.UNKNOWN: "no such exercise",
}
FINE = {"correct", "cannot check here"}


@dataclass
class Line:
    """One exercise in the report."""

    id: str
    title: str
    state: str
    message: str = ""
    hint: str = ""

    def __str__(self) -> str:
        first = f"  {self.id} {self.title}: {self.state}" + (f": {self.message}" if self.message else "")
        return f"{first}\n      hint: {self.hint}" if self.hint else first


def notebooks_in(paths: list[Path]) -> list[Path]:
    """The notebooks that the paths name: files, or folders with notebooks in them."""
    found = []
    for path in paths:
        found += sorted(path.glob("*.ipynb")) if path.is_dir() else [path]
    return found


def exercises_in(notebook: Path) -> list[str]:
    """The ids of the exercises that a notebook's code cells check, in order."""
    cells = [
        cell
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    source = "\n".join("".join(cell["source"]) for cell in cells)
    ids = re.findall(r"""^[^#\n]*\bcheck\(\s*["']([^"']+)["']""", source, re.MULTILINE)
    return list(dict.fromkeys(ids))


def run(notebook: Path) -> tuple[dict[str, dict], list[str], str]:
    """Run a notebook as it stands under nbval.

    Returns the verdicts by id, one sentence for each cell that raised, and pytest's own output.
    """
    with tempfile.TemporaryDirectory() as folder:
        report, results = Path(folder, "report.jsonl"), Path(folder, "results.xml")
        command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env", "--color=no", "-q"]
        command += [
            "-p",
            "no:cacheprovider",
            "--nbval-cell-timeout=300",
            f"--junitxml={results}",
            str(notebook),
        ]
        done = subprocess.run(
            command, env={**os.environ, "DDPLAB_REPORT": str(report)}, capture_output=True, text=True
        )
        lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
        verdicts = {verdict["id"]: verdict for verdict in map(json.loads, lines)}
        return verdicts, failures(results), done.stdout + done.stderr


def failures(results: Path) -> list[str]:
    """The cells that did not run to their end, from pytest's result file: "cell 4 raised NameError: …"."""
    if not results.exists():
        return []
    found = []
    for case in ElementTree.parse(results).iter("testcase"):
        failure = case.find("failure") if case.find("failure") is not None else case.find("error")
        if failure is None:
            continue
        text = re.sub(r"\x1b\[[\d;]*m|#x1B\[[\d;]*m", "", failure.text or "")
        errors = re.findall(
            r"^([A-Za-z_.]*(?:Error|Exception|Interrupt|Exit|Warning)\b.*)$", text, re.MULTILINE
        )
        timeout = "Timeout of" in text
        what = "ran into the time limit" if timeout else f"raised {errors[-1]}" if errors else "did not run"
        found.append(f"{case.get('name', 'a cell').replace('Cell', 'cell')} {what}")
    return found


def report_on(notebook: Path) -> tuple[list[Line], list[str]]:
    """One line an exercise, in the notebook's order, and the cells that raised."""
    ids = exercises_in(notebook)
    if not ids:
        return [], []
    verdicts, raised, output = run(notebook)
    lines = []
    for id in ids:
        known = checks.find(id)
        title = known.title if known else ""
        if id in verdicts:
            verdict = verdicts[id]
            lines.append(Line(id, title, STATES[verdict["state"]], verdict["message"], verdict["hint"]))
        else:
            why = raised[0] if raised else "nothing in the notebook reached its check"
            if not raised and not verdicts:
                why = (output.strip().splitlines() or ["pytest said nothing"])[-1]
            lines.append(Line(id, title, "did not run", why))
    return lines, raised


def check(paths: list[Path]) -> int:
    """Print the report. Returns the exit status: 0 when every exercise is correct or cannot be checked here."""
    found = notebooks_in(paths)
    missing = [str(path) for path in [*paths, *found] if not path.exists()]
    if missing or not found:
        print(f"no notebooks found in: {', '.join(missing or map(str, paths))}", file=sys.stderr)
        return 2
    everything: list[Line] = []
    for notebook in found:
        print(notebook, flush=True)
        lines, raised = report_on(notebook)
        for line in lines or ["  no exercises"]:
            print(line)
        for cell in raised:
            print(f"  note: {cell}")
        everything += lines
    counts = {
        state: sum(line.state == state for line in everything) for state in dict.fromkeys(STATES.values())
    }
    counts["did not run"] = sum(line.state == "did not run" for line in everything)
    print(", ".join(f"{n} {state}" for state, n in counts.items() if n) or "no exercises")
    return 0 if everything and all(line.state in FINE for line in everything) else 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ddplab", description="the companion of the course")
    commands = parser.add_subparsers(required=True, metavar="command")
    checking = commands.add_parser(
        "check", help="run exercise notebooks as you filled them in, report each exercise"
    )
    checking.add_argument(
        "paths", nargs="*", type=Path, default=[Path("exercises")], help="notebooks or folders"
    )
    return check(parser.parse_args(arguments).paths)


if __name__ == "__main__":
    sys.exit(main())
