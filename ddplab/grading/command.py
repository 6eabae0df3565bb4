"""`python -m ddplab grade`: grade, print, write the reports, and say by the exit status what the policy makes of it."""

import argparse
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ddplab.grading import CELL, NOTEBOOK, Report, grade, notebooks_in, plain
from ddplab.grading.judge import PACKAGE
from ddplab.grading.reports import POLICIES, counted, junit, markdown, status, text
from ddplab.grading.sheets import calls, course


def main(arguments: list[str]) -> int:
    """Grade what the arguments name. Returns the exit status: 0 or 1 by the policy, 2 where there are no notebooks."""
    parser = argparse.ArgumentParser(prog="python -m ddplab grade", description="grade exercise notebooks")
    parser.add_argument("paths", nargs="*", type=Path, default=[Path("exercises")], help="notebooks or folders")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the report as JUnit XML")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report as a table in Markdown")
    what = "what fails: what is not correct (complete), what was started and is not correct (started), or only what "
    parser.add_argument("--policy", choices=POLICIES, default="complete", help=what + "could not be graded (report)")
    parser.add_argument(
        "--cell-seconds", type=float, default=CELL, help="what a cell or a check may take (%(default)s)"
    )
    parser.add_argument(
        "--notebook-seconds", type=float, default=NOTEBOOK, help="what a notebook may take (%(default)s)"
    )
    asked = parser.parse_args(arguments)
    found = [str(path) for path, _ in notebooks_in(asked.paths)]
    missing = [str(path) for path in asked.paths if not path.exists()]
    if missing or not found:
        what = f"there is no {missing[0]}" if missing else f"no notebooks found in: {', '.join(map(str, asked.paths))}"
        print(what, file=sys.stderr)
        return 2
    for path in filter(None, (asked.junit, asked.markdown)):
        try:
            path.touch()  # before all is graded in vain
        except OSError as error:
            print(f"{path} cannot be written: {error.strerror}", file=sys.stderr)
            return 2
    reports: list[Report] = []
    for path, report in zip(found, grade(asked.paths, asked.cell_seconds, asked.notebook_seconds), strict=True):
        print(f"{plain(path)}\n{text(report)}\n", flush=True)
        reports.append(report)
    rows = [row for report in reports for row in report.rows]
    about = _about(reports, asked.paths)
    print(f"{counted(rows)}\n{about}")
    if asked.junit:
        asked.junit.write_bytes(junit(reports, asked.policy))
    if asked.markdown:
        asked.markdown.write_text(markdown(reports, about), encoding="utf-8")
    return status(rows, asked.policy)


def _about(reports: list[Report], paths: list[Path]) -> str:
    """Say with which checks, and how well confined, so that a reader knows what the report is worth."""
    try:
        number = version("ddplab")
    except PackageNotFoundError:
        number = "of no known version"
    known = {id for cells in course().values() for cell in cells for id, _ in calls(cell.source)}
    there = known & {row.id for report in reports for row in report.rows}
    words = [f"{len(there)} of the course's {len(known)} exercises. Checks: ddplab {number} in {PACKAGE}."]
    if any(path.resolve().is_relative_to(PACKAGE.parent) for path in paths):
        words.append("They lie beside the exercises: whoever could write these could write the checks.")
    for reason in sorted({report.not_confined for report in reports if report.not_confined}):
        bad = f"NOT CONFINED, a notebook could read and write what you can: {reason}."
        words.append(f"Confined, {reason}." if reason.startswith("but for") else bad)
    return " ".join(words)
