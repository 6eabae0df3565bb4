"""The tickets of runs that wait for devices or have them: files in a folder that all share, each locked by its owner.

`lease` says what they are for, and what is promised.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import stat
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from filelock import lock_descriptor

USUAL = "/tmp/ddplab.leases"  # not TMPDIR, which may be a learner's own
PATIENCE = 5.0  # seconds the queue's lock is waited for; who holds it honestly needs a few milliseconds
NAME = re.compile(r"(\d{20})\.[0-9a-f]{12}")  # when it came, on a clock that all share and nobody sets; and chance

descriptors: set[int] = set()  # what a fork of this process must not keep open: it would hold the lock too


class Ticket(NamedTuple):
    """A run that waits or has devices, as its file says; `owner` is the file's."""

    name: str
    owner: str
    kind: str  # "GPU" or "core"
    count: int
    allowed: list[str]
    limit: int  # what its learner may have of this kind, 0: everything
    taken: list[str]
    since: float  # time.time() when it took them, or came to wait
    pid: int


def lease_folder(path: str) -> str:
    """Return the folder; make it where it is missing, for everybody, each to remove their own files only."""
    path = path or USUAL
    if not os.path.lexists(path):
        made = tempfile.mkdtemp(dir=os.path.dirname(path) or ".")
        os.chmod(made, 0o1777)
        try:
            os.rename(made, path)  # whole at once: nobody finds one they may not enter
        except OSError:
            os.rmdir(made)
    there = os.lstat(path) if path == USUAL else os.stat(path)
    if not stat.S_ISDIR(there.st_mode):
        raise NotADirectoryError(f"{path} is no folder")
    if there.st_mode & 0o022 and not there.st_mode & stat.S_ISVTX:
        raise PermissionError(f"in {path} everybody may remove everybody's files; `chmod 1777 {path}` mends it")
    return path


@contextlib.contextmanager
def alone(folder: str) -> Iterator[None]:
    """Hold the queue's lock. Where somebody keeps it, go on without: at worst two runs then share a device."""
    path, flags = os.path.join(folder, "queue"), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        lock = os.open(path, flags)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):  # somebody else has just made it
            lock = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o444)
            os.fchmod(lock, 0o444)  # to lock a file one only has to read it
            os.close(lock)
        lock = os.open(path, flags)
    descriptors.add(lock)
    try:
        deadline = time.monotonic() + PATIENCE
        while not lock_descriptor(lock, blocking=False):
            if time.monotonic() > deadline:
                warnings.warn(f"somebody has kept {path} locked for {PATIENCE:g} s; going on without it", stacklevel=2)
                break
            time.sleep(0.002)
        yield
    finally:
        descriptors.discard(lock)
        os.close(lock)


def read_tickets(folder: str) -> list[Ticket]:
    """Return the tickets that count, in their order; remove those whose holders are gone."""
    found, longest = [], 1e9 * setting("DDPLAB_LEASES_HOLD", 86400)
    for name in sorted(filter(NAME.fullmatch, os.listdir(folder))):
        age = time.monotonic_ns() - int(name[:20])
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            # A dead run's ticket that somebody else locks gets too old; only its owner could give it another name.
            if age >= 0 and (ticket := _open(os.path.join(folder, name))) and (age < longest or not ticket.taken):
                found.append(ticket)
    return found


def _open(path: str) -> Ticket | None:
    """Return a ticket, or None where nobody holds it. Raises where it is no ticket."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            return None
        if lock_descriptor(file, blocking=False):
            os.unlink(path)  # where it is not ours to remove, it lies there and counts for nothing
            return None
        said: dict[str, Any] = json.loads(os.read(file, 65536))
    finally:
        os.close(file)
    owner = owner_name(about.st_uid, str(said.pop("learner")))
    said |= {
        "name": os.path.basename(path),
        "owner": owner,
        "count": max(1, int(said["count"])),
        "limit": int(said["limit"]),
    }
    said |= {"since": float(said["since"]), "pid": int(said["pid"]), "kind": "GPU" if said["kind"] == "GPU" else "core"}
    said |= {key: [str(name) for name in said[key]] for key in ("allowed", "taken")}
    return Ticket(**said)


def turns(tickets: list[Ticket]) -> dict[str, list[str]]:
    """Return whose turn it is: name of a ticket → the devices it may take now. All who look come to the same answer.

    Those who came first get theirs first: free ones, or else all that they could use are kept for them. Who would have
    more than their share is passed over, and keeps nothing back.
    """
    busy = {device for it in tickets for device in it.taken}
    has: Counter[tuple[str, str]] = Counter()
    may: dict[str, list[str]] = {}
    for it in tickets:
        has[it.owner, it.kind] += len(it.taken)
    for it in tickets:
        if it.taken or (it.limit and has[it.owner, it.kind] + it.count > it.limit):
            continue
        free = [device for device in it.allowed if device not in busy]
        if len(free) >= it.count:
            may[it.name] = free[: it.count]
            has[it.owner, it.kind] += it.count
        busy.update(may.get(it.name, it.allowed))
    return may


def owner_name(uid: int, learner: str) -> str:
    """Return who a file belongs to; in containers, where all have one uid, the hub's name for them too."""
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = f"user {uid}"
    learner = re.sub(r"[^\w.@-]", "", learner)[:32]
    return f"{learner} ({user})" if learner and learner != user else user


def setting(name: str, usual: float) -> float:
    """Return the number that an environment variable holds. Raises ValueError where it holds none."""
    try:
        value = float(os.environ.get(name) or usual)
    except ValueError:
        value = -1
    if not value >= 0:
        raise ValueError(f"{name}={os.environ[name]!r} is not a number of at least 0")
    return value


def _leave_to_parent() -> None:
    """In a fork of this process: close what is locked. That ends no lock, as long as the parent has it open."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    descriptors.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
