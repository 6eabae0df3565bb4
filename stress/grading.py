"""Grade every exercise of the course twice, as it comes and with our answers: each is not started, each is correct.

python stress/grading.py
"""

import resource
import sys
import time
from pathlib import Path

from ddplab.grading import Row, grade
from ddplab.grading.reports import counted

ROOT = Path(__file__).resolve().parent.parent


def graded(folder: str) -> tuple[list[Row], list[str]]:
    """The exercises in a folder of the course, and the notes on its notebooks; says how long it took."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    reports = list(grade([ROOT / folder]))
    rows = [row for report in reports for row in report.rows]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    print(f"{folder}: {counted(rows)} in {time.monotonic() - began:.0f} s, {cpu:.0f} s of CPU", flush=True)
    return rows, [note for report in reports for notes in report.notes.values() for note in notes]


def main() -> int:
    wrong = []
    for folder, wanted in (("exercises", {"not started"}), ("solutions", {"correct", "cannot check here"})):
        rows, notes = graded(folder)
        wrong += [f"{folder}: {row}" for row in rows if row.state not in wanted]
        wrong += [f"{folder}: {note}" for note in notes if folder == "solutions"]
    print("\n".join(wrong) or "each exercise is in the state that it should be in")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
