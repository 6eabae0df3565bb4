"""Grade every exercise of the course twice, as it comes and with our answers: each is not started, each is correct.
And kill a grader in the middle of a notebook: nothing is left of it.

python stress/grading.py
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import psutil

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


def left_by_a_killed_grader() -> list[str]:
    """What is left of a grader that was killed while a notebook ran, a minute later at most."""
    with tempfile.TemporaryDirectory() as folder:
        book = nbformat.read(ROOT / "exercises/1_one_device/1.3_where_the_memory_goes.ipynb", as_version=4)
        mark = f"time.sleep(10000 + {os.getpid()})"
        apart = f"subprocess.Popen([sys.executable, '-c', 'import time; {mark}'], start_new_session=True).wait()"
        book.cells[3].source = f"import subprocess, sys\n{apart}"
        nbformat.write(book, f"{folder}/a.ipynb")
        os.mkdir(f"{folder}/tmp")

        def left() -> list[str]:
            running = [it.info["cmdline"] for it in psutil.process_iter(["cmdline"])]
            return [*os.listdir(f"{folder}/tmp"), *(line[-1] for line in running if line and line[-1].endswith(mark))]

        command = [sys.executable, "-m", "ddplab", "grade", f"{folder}/a.ipynb"]
        grader = subprocess.Popen(command, env={**os.environ, "TMPDIR": f"{folder}/tmp"}, stdout=subprocess.DEVNULL)
        while not left() or not left()[-1].endswith(mark):
            time.sleep(0.5)
        grader.kill()
        grader.wait()
        deadline = time.monotonic() + 60
        while left() and time.monotonic() < deadline:
            time.sleep(0.5)
        return left()


def main() -> int:
    wrong = [f"left by a killed grader: {it}" for it in left_by_a_killed_grader()]
    for folder, wanted in (("exercises", {"not started"}), ("solutions", {"correct", "cannot check here"})):
        rows, notes = graded(folder)
        wrong += [f"{folder}: {row}" for row in rows if row.state not in wanted]
        wrong += [f"{folder}: {note}" for note in notes if folder == "solutions"]
    print("\n".join(wrong) or "each exercise is in the state that it should be in")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
