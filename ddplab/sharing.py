"""What a learner shows the room: nothing, until they say so with `python -m ddplab join NAME`.

The instructor names a folder in DDPLAB_ROOM. A learner who has joined has there one small file, which is theirs by the
system's word: per exercise how it stands, how many tries, since when; per pager incident how it stands. No answer, no
message and no code. The folder is a letter box (mode 1733: put in, not look in), and the file's name is not to be
guessed, so learners read nobody's. `python -m ddplab leave` takes the file away. `ddplab.room` reads what is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

LONGEST = 40  # characters of a name


def room_folder() -> Path | None:
    """The folder that the instructor named in DDPLAB_ROOM; None where there is none."""
    return Path(os.environ["DDPLAB_ROOM"]) if os.environ.get("DDPLAB_ROOM") else None


def consent_file() -> Path:
    """Where the learner's yes is kept: in their home, not in the room."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "ddplab", "room.json")


def join_room(name: str) -> Path:
    """Say yes: from now on every check and incident of this learner is shown to the room.

    Returns the file in the room. Raises ValueError without a room or a name, OSError where it cannot be written.
    """
    folder, name = room_folder(), " ".join(name.split())[:LONGEST]
    if folder is None:
        raise ValueError("no room here: the instructor names its folder in DDPLAB_ROOM, before notebooks start")
    if not folder.is_dir():
        raise ValueError(f"the room's folder {folder} is not there (any more): ask the instructor")
    if not name:
        raise ValueError("the room needs a name to show, such as `python -m ddplab join ana`")
    leave_room()
    mine = folder / f"{os.getuid()}-{uuid4().hex}.json"
    _write(mine, {"name": name, "exercises": {}, "incidents": {}}, 0o644)
    consent_file().parent.mkdir(parents=True, exist_ok=True)
    _write(consent_file(), {"file": str(mine)}, 0o600)
    return mine


def leave_room() -> bool:
    """Take the learner's file out of the room, and share nothing more. Returns whether they had joined."""
    mine = _mine()
    consent_file().unlink(missing_ok=True)
    if mine is not None:
        with contextlib.suppress(OSError):
            mine.unlink(missing_ok=True)
    return mine is not None


def share_verdict(id: str, state: str) -> None:
    """Note how an exercise stands, where the learner has joined. What was correct once stays so. It never raises."""

    def note(told: dict[str, Any]) -> None:
        now = round(time.time())
        row = told["exercises"].setdefault(id, {"state": "", "tries": 0, "since": now})
        if row["state"] != "correct":
            row |= {"state": state, "tries": row["tries"] + (state != "not filled in yet"), "at": now}

    _share(note)


def share_incident(seed: int, left: int, minutes: float, closed: bool, opened: bool = False) -> None:
    """Note how a pager incident stands: GPU-minutes left, minutes used. Its first end stays. It never raises."""

    def note(told: dict[str, Any]) -> None:
        row = told["incidents"].setdefault(str(seed), {"opened": 0, "closed": False})
        if not row["closed"]:
            row |= {"left": left, "minutes": round(minutes, 1), "closed": closed, "opened": row["opened"] + opened}

    _share(note)


def _share(note: Callable[[dict[str, Any]], None]) -> None:
    """Change the learner's file; two notebooks of theirs take turns. A lesson never fails because of the room."""
    if room_folder() is None:
        return
    try:
        with open(consent_file()) as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            mine = Path(json.load(turn)["file"])
            if mine.parent != room_folder():
                return  # a yes to another room is none to this one
            told = json.loads(mine.read_text())
            note(told)
            _write(mine, told, 0o644)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # not joined, taken away, a full disk


def _mine() -> Path | None:
    try:
        return Path(json.loads(consent_file().read_text())["file"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, told: dict[str, Any], mode: int) -> None:
    """Write a file so that a reader sees the old one or the new one, and nothing between."""
    half = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            json.dump(told, file)
            os.fchmod(file.fileno(), mode)
        os.replace(half, path)
    except OSError:
        half.unlink(missing_ok=True)
        raise
