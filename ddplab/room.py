"""The instructor's page: per exercise how many have passed, who is stuck, and the board of the pager's incidents.

    python -m ddplab room FOLDER                     # makes the folder where it is missing; prints once
    python -m ddplab room FOLDER --page room.html    # writes the page every two seconds, until ^C
    ddplab.room.watch_room(FOLDER)                   # the same below a cell, until ■: no file and no port

No server: the page is a file of the instructor's own (0600) that asks the browser to read it again. What learners wrote
(see `ddplab.sharing`) is not believed: a file counts for who owns it, up to 64 KiB, and its text is escaped.
"""

from __future__ import annotations

import html
import json
import os
import pwd
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ddplab.tables import html_table, text_table

LARGEST, MOST = 64 * 1024, 500  # bytes of a file; files
STUCK_TRIES, STUCK_MINUTES = 3, 10  # so many tries, or so long since the first, and not yet right
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="5">
<title>The room</title><style>:root {{color-scheme: light dark}} body {{font-family: system-ui; margin: 2em}}</style>
<main>{body}</main></html>"""


class Learner(NamedTuple):
    """One file of the room. `name` is chosen, `account` is the system's; rows as `ddplab.sharing` writes them."""

    name: str
    account: str
    exercises: dict[str, dict[str, Any]]
    incidents: dict[int, dict[str, Any]]

    @property
    def who(self) -> str:
        return self.name if self.name == self.account else f"{self.name} ({self.account})"


def make_room(folder: Path) -> None:
    """Make the room's folder: everybody may put files in, only its owner sees which are there, nobody takes another's.

    Raises OSError where it cannot, and ValueError where the folder is there and somebody else's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ValueError(
            f"{folder} belongs to another account: name one that is not there yet, or look as that account"
        )
    if stat.S_IMODE(folder.stat().st_mode) != 0o1733:
        if any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty and is no room: name a folder that is not there yet")
        folder.chmod(0o1733)


def read_room(folder: Path) -> tuple[list[Learner], list[str]]:
    """The learners of a room by name, and a line for each file that does not count, with the reason."""
    learners, ignored = [], []
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    for name in names[:MOST]:
        try:
            learners.append(_read(folder / name))
        except (OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
            ignored.append(f"{ascii(name)[:60]}: {ascii(str(error))[1:80]}")
    if len(names) > MOST:
        ignored.append(f"{len(names) - MOST} more files: a room shows {MOST}")
    return sorted(learners, key=lambda learner: learner[:2]), ignored


def _read(path: Path) -> Learner:
    """One learner's file. Raises OSError or an error of what is in it; opens nothing that could wait or lead away."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
            raise ValueError("no plain file of its own")
        if not path.name.startswith(f"{about.st_uid}-"):
            raise ValueError("named for another account")
        text = file.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise ValueError(f"over {LARGEST} bytes")
    told = json.loads(text)
    try:
        account = pwd.getpwuid(about.st_uid).pw_name
    except KeyError:
        account = str(about.st_uid)
    exercises = {
        id: {"state": str(row["state"]), "tries": int(row["tries"]), "since": float(row["since"])}
        for id, row in told["exercises"].items()
        if re.fullmatch(r"\d\.\d{1,2}\.(\d{1,2}|[a-z])", id, re.ASCII)
    }
    incidents = {
        int(seed): {
            "closed": row["closed"] is True,
            "left": int(row["left"]),
            "minutes": float(row["minutes"]),
            "opened": int(row["opened"]),
        }
        for seed, row in told["incidents"].items()
    }
    return Learner("".join(c for c in str(told["name"]) if c.isprintable())[:40], account, exercises, incidents)


def is_stuck(row: dict[str, Any], now: float) -> bool:
    """Whether somebody has tried often or for long, and is not there yet."""
    long = now - row["since"] >= 60 * STUCK_MINUTES
    return row["state"] == "not yet" and (row["tries"] >= STUCK_TRIES or long)


def exercise_rows(learners: list[Learner], now: float) -> Iterator[list[str]]:
    """Per exercise that somebody has met: its id, passed, tried, and who is stuck, with tries and minutes."""
    ids = {id for learner in learners for id in learner.exercises}
    for id in sorted(ids, key=lambda id: [(not part.isdigit(), part.rjust(3)) for part in id.split(".")]):
        rows = [(learner, learner.exercises[id]) for learner in learners if id in learner.exercises]
        tried = [row for _, row in rows if row["tries"] > 0]
        passed = sum(row["state"] == "correct" for row in tried)
        names = [
            f"{learner.who}: {row['tries']} tries, {max(0, now - row['since']) / 60:.0f} min"
            for learner, row in rows
            if is_stuck(row, now)
        ]
        yield [id, f"{passed} of {len(learners)}", str(len(tried)), "; ".join(names) or "nobody"]


def _place(it: tuple[int, Learner, dict[str, Any]]) -> tuple[float, ...]:
    seed, _, row = it
    return seed, not row["closed"], -row["left"], row["minutes"]


def board_rows(learners: list[Learner]) -> Iterator[list[str]]:
    """Per incident and learner, the closed ones first and of these the one with most GPU-minutes left."""
    rows = [(seed, learner, row) for learner in learners for seed, row in learner.incidents.items()]
    for seed, learner, row in sorted(rows, key=_place):
        state = "✓ closed" if row["closed"] else "… open"
        yield [str(seed), learner.who, state, str(row["left"]), f"{row['minutes']:.1f}", str(row["opened"])]


EXERCISES = ["exercise", "passed", "tried", "who is stuck"]
BOARD = ["incident", "who", "how it stands", "GPU-minutes left", "minutes", "opened"]


def page(folder: Path, now: float | None = None) -> str:
    """The room as HTML: a heading and a table each for exercises and incidents, and what was ignored."""
    now = time.time() if now is None else now
    learners, ignored = read_room(folder)
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    parts = [
        f"<h1>The room</h1><p>{len(learners)} have joined; read at {clock}. Stuck: not yet right after {STUCK_TRIES} "
        f"tries or {STUCK_MINUTES} minutes.</p>",
        "<h2>Exercises and turns</h2>",
        html_table(EXERCISES, exercise_rows(learners, now), "Exercises and turns", row_heads=True),
        "<h2>Pager incidents</h2><p>Most GPU-minutes left first. Opened twice: they knew it.</p>",
        html_table(BOARD, board_rows(learners), "Pager incidents", row_heads=True),
    ]
    if ignored:
        parts.append(f"<h2>Not counted</h2><ul>{''.join(f'<li>{html.escape(line)}</li>' for line in ignored)}</ul>")
    return "".join(parts)


def text(folder: Path, now: float | None = None) -> str:
    """The same as lines of text."""
    learners, ignored = read_room(folder)
    rows = exercise_rows(learners, time.time() if now is None else now)
    tables = [text_table(EXERCISES, rows), text_table(BOARD, board_rows(learners))]
    return "\n\n".join([f"{len(learners)} have joined", *tables, *(f"not counted: {line}" for line in ignored)])


def watch_room(folder: str | Path, every: float = 2.0) -> None:
    """Show the room below the cell and renew it, until ■. Folder: the one named in DDPLAB_ROOM."""
    from IPython.display import HTML, display

    make_room(Path(folder))  # or say why this is none
    place = display(HTML(page(Path(folder))), display_id=True)
    try:
        while True:
            time.sleep(every)
            place.update(HTML(page(Path(folder))))
    except KeyboardInterrupt:
        pass


def serve(folder: Path, file: Path | None, every: float = 2.0) -> int:
    """Make the room, and write its page to `file` every so often, until ^C; without a file, print it once.

    Returns the exit status.
    """
    try:
        make_room(folder)
        if file is None:
            print(text(folder))
            return 0
        print(f"DDPLAB_ROOM={folder.resolve()} for the learners; your page: {file.resolve().as_uri()}  (^C ends it)")
        while True:
            half = file.with_name(f".{file.name}.{os.getpid()}")
            with open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as out:
                out.write(PAGE.format(body=page(folder)))
            os.replace(half, file)
            time.sleep(every)
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except (OSError, ValueError) as error:
        print(error)
        return 1
