"""Nights under a played Slurm: a first batch script beside the lesson's, and five bad mornings to be caused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ddplab.course.played_servers import play_night

MORNINGS = range(1, 6)
SCRIPTS = ["a first one", "the lesson's"]
LATER = [  # what the first one lacks: lines of the lesson's script, or words in one
    "#SBATCH --open-mode=append",
    "#SBATCH --requeue",
    "#SBATCH --signal=B:USR1@120",
    "set -eu",
    "trap 'scontrol requeue \"$SLURM_JOB_ID\"' USR1",
    "--kill-on-bad-exit=1",
    '--cpus-per-task="$SLURM_CPUS_PER_TASK"',
    " &",
    'wait "$!" || { status=$?; sleep 90; exit "$status"; }',
]


def two_scripts(path: str) -> Callable[[str, str], str]:
    """Return a function that plays a night with the lesson's script, which lies at `path`, or with a first one."""

    def play(script: str, night: str) -> str:
        return play_night(path, night, LATER if script == SCRIPTS[0] else "")

    return play


def what_can_go(path: str) -> list[str]:
    """Return what may be taken out of the script, one at a time: "nothing", a word or two, or a whole line."""
    words = ["--kill-on-bad-exit=1", '--cpus-per-task="$SLURM_CPUS_PER_TASK"', " &", "sleep 90;"]
    return ["nothing", *words, *Path(path).read_text().splitlines()[1:]]


def hunting(path: str) -> Callable[[str, str], str]:
    """Return `play_night` of the script at `path`; it also says which of the five mornings have been caused so far."""
    caused: set[int] = set()

    def play(night: str, without: str) -> str:
        told = play_night(path, night, without)
        caused.update(mornings(told))
        signs = "  ".join(f"{'✓' if number in caused else '☐'} {number}" for number in MORNINGS)
        return f"{told}\n\nmornings caused so far:  {signs}"

    return play


def mornings(told: str) -> set[int]:
    """Return the numbers of the bad mornings, as lesson 5.3 counts them, in which a played night has ended."""
    state = re.search(r"^state  (\w+)", told, re.MULTILINE)[1]
    epochs = re.findall(r"^epochs (\d+) to (\d+)$", told, re.MULTILINE)
    holds = {
        1: bool(epochs) and epochs[0][0] == "41",
        2: "and the other waits" in told,
        3: state in ("TIMEOUT", "FAILED") and epochs[-1:] == [("0", "60")],
        4: "with 1 CPU and" in told,
        5: state == "FAILED" and "a more important job" in told,
    }
    return {number for number, it in holds.items() if it}
