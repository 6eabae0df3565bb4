"""Which process runs which lines of a file: the file is played with each of its processes traced, and drawn."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddplab.plots import COLOURS, INK, drawing
from ddplab.pointer import pointing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SECONDS = 60  # a script that takes longer is ended
COLUMN = 0.72  # inches that a process takes in the picture
# Python runs a module of this name when it starts. A fork goes on tracing, with a number of its own.
TRACING = """
import os, sys

notes, name = os.environ["DDPLAB_TRACED"], os.sep + "job.py"

def note(*what):
    with open(notes, "a") as file:
        print(os.getpid(), *what, file=file)

def trace(frame, event, argument):
    if not frame.f_code.co_filename.endswith(name):
        return None
    if event == "line":
        note(frame.f_lineno)
    return trace

if "multiprocessing.forkserver" in " ".join(sys.orig_argv):
    note("helper")
sys.settrace(trace)
"""


@dataclass
class Played:
    """What became of a file: what its processes printed, their first error, and the lines that each of them ran.

    lines: a name and the numbers of the lines, from 1, for each process that ran any: the parent comes first.
    """

    printed: str
    error: str
    said: str
    lines: list[tuple[str, set[int]]]

    @property
    def readers(self) -> int:
        """How many processes have read the file: run its first line that is more than a comment."""
        first = min(min(lines) for _, lines in self.lines)
        return sum(first in lines for _, lines in self.lines)


@pointing
def traced(script: str, *arguments: str) -> Played:
    """Run a text as a file, in a Python of its own, and note which process runs which line.

    Raises RuntimeError when it does not end within a minute; no process of it is left then. And when it runs no
    line at all, since Python itself did not start, with what was said of it.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(TRACING)
        (folder / "job.py").write_text(script)
        path = os.pathsep.join([name, *filter(None, [os.environ.get("PYTHONPATH")])])
        parent = subprocess.Popen(
            [sys.executable, folder / "job.py", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path, "DDPLAB_TRACED": str(folder / "notes")},
            start_new_session=True,
        )
        try:
            printed, said = parent.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the script did not end within {SECONDS} seconds") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)
            parent.wait()
        notes = (folder / "notes").read_text().splitlines() if (folder / "notes").exists() else []
    if not any(line.startswith(f"{parent.pid} ") for line in notes):
        raise RuntimeError(f"the script ran no line, and ended with {parent.returncode}:\n{said}")
    error = next(iter(re.findall(r"^(?:\w+\.)*(\w+Error)\b", said, re.MULTILINE)), "")
    return Played(printed.strip(), error, said, _by_process(parent.pid, [line.split() for line in notes]))


def _by_process(parent: int, notes: list[list[str]]) -> list[tuple[str, set[int]]]:
    lines: dict[int, set[int]] = {parent: set()}
    helpers = {int(pid) for pid, what in notes if what == "helper"}
    for pid, what in notes:
        if what != "helper":
            lines.setdefault(int(pid), set()).add(int(what))
    names = {pid: "parent" if pid == parent else "helper" if pid in helpers else "child" for pid in lines}
    return [(names[pid], lines[pid]) for pid in lines]


def by_process(script: str, played: Mapping[str, Played]) -> Figure:
    """Draw a file, and beside it a column for each process, with a box at each line that this process ran.

    played: a title → what became of the file that time. Beneath its columns stands what was printed, or the error.
    Returns the matplotlib figure.
    """
    from matplotlib.patches import Rectangle

    text = script.strip("\n").splitlines()
    skipped = len(script) - len(script.lstrip("\n"))
    left, code = 0.0, 0.075 * max(map(len, text)) + 0.1
    columns = sum(len(run.lines) for run in played.values())
    width = code + COLUMN * (columns + 0.4 * len(played))
    with drawing(width, 0.24 * (len(text) + 4)) as figure:
        axis = figure.subplots()
        axis.set(xlim=(-code / COLUMN, (width - code) / COLUMN), ylim=(len(text) + 1.4, -2.2))
        axis.axis("off")
        for row, line in enumerate(text):
            axis.text(-code / COLUMN, row + 0.5, line, family="monospace", fontsize=8.5, va="center")
        for title, run in played.items():
            left += 0.4
            middle = left + len(run.lines) / 2
            axis.text(middle, -1.6, title, ha="center", va="center", fontsize=10, style="italic")
            for place, (name, lines) in enumerate(run.lines):
                axis.text(left + place + 0.5, -0.6, name, ha="center", va="center", fontsize=9)
                axis.plot([left + place + 0.5] * 2, [0, len(text)], color=INK, linewidth=0.5, alpha=0.5)
                for number in lines:
                    corner = (left + place + 0.2, number - 1 - skipped + 0.1)
                    look = {"facecolor": COLOURS[1], "edgecolor": INK, "linewidth": 0.8, "zorder": 2}
                    axis.add_patch(Rectangle(corner, 0.6, 0.8, **look))
            axis.text(middle, len(text) + 0.9, _outcome(run), ha="center", va="center", fontsize=9, weight="bold")
            left += len(run.lines)
    return figure


def _outcome(run: Played) -> str:
    return run.error or (f"prints: {' / '.join(run.printed.splitlines())}" if run.printed else "prints nothing")
