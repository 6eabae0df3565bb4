"""Leases: runs on one machine take their GPUs in turn, and, where an instructor wishes it, their cores.

Each run has a ticket: a small file in a folder that all share, which its owner holds locked (flock). The kernel ends
that lock when its holders are gone, whoever they are and however they died: the notebook, and beside it what it has
started, launch's ranks or torchrun's agents. So the GPU of a killed notebook is free when its ranks have ended too. A
ticket that nobody holds counts for nothing. All devices of a run are taken at once, in the order of the tickets: who
waits for many is not overtaken by those who want one.

| variable | what it says | where it is not set |
|---|---|---|
| `DDPLAB_LEASES` | the folder of the tickets, on a local disk; containers share it. CPU ranks then take cores in turn \
too. `off`: nothing is leased. | `/tmp/ddplab.leases`; CPU ranks do not wait |
| `DDPLAB_LEASES_GPUS` | the GPUs that runs may use: numbers as in `nvidia-smi`, such as `0,2` | all |
| `DDPLAB_LEASES_PER_LEARNER` | how many GPUs one learner's runs have together, at most | all |
| `DDPLAB_LEASES_WAIT` | how many seconds a run waits, at most | 3600 |
| `DDPLAB_LEASES_HOLD` | after how many seconds a ticket keeps nobody off any more; a run then shares | 86400 |

Promised, each with its test: no two runs that share a folder have the same device at once; nobody is overtaken, but for
a learner who has their share, and for one who could take their turn and for half a minute does not (a stopped process);
nothing is leaked by a death. Other people's files hold nothing up for ever: a queue that is kept locked is waited for
five seconds, what is no ticket is ignored, whose a ticket is says the system and not the file, a dead run's ticket
that somebody else keeps locked gets too old, and its owner, the folder's or root may break any ticket. Not promised:
that anybody needs a lease to use a GPU, or keeps these settings in a kernel of their own. And who made the folder may
remove what is in it, so on a server root makes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import warnings
from uuid import uuid4

import torch
from filelock import lock_descriptor, unlock_descriptor

from ddplab.hardware import core_numbers, gpu_names
from ddplab.tables import text_table
from ddplab.tickets import USUAL, Ticket, alone, descriptors, lease_folder, owner_name, read_tickets, setting, turns

LOOK = 0.1  # seconds between two looks at the queue
SKIPPED = 30.0  # seconds after which who could take their turn, and does not, is passed over
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


class Lease:
    """A run's place in the queue and then, until `end`, its devices.

    Attributes: `devices`, their names, empty while it waits; `descriptor`, the open file whose lock is the lease: a
    process that is given it holds the lease too.
    """

    def __init__(self, folder: str, kind: str, allowed: list[str], count: int, limit: int = 0):
        self.folder, self.devices, self.began, self.looked, self.ended = folder, [], time.monotonic(), 0.0, False
        self.could: dict[str, float] = {}  # ticket before this one → since when it could take its turn
        with alone(folder):
            name = f"{time.monotonic_ns():020d}.{uuid4().hex[:12]}"
            self.mine = Ticket(name, "", kind, count, allowed, limit, [], time.time(), os.getpid())
            self.path = os.path.join(folder, name)
            half = os.path.join(folder, f".{name}")  # it gets its name when it is locked
            self.descriptor = os.open(half, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            descriptors.add(self.descriptor)
            try:
                os.fchmod(self.descriptor, 0o644)  # everybody may read it, whatever the umask
                lock_descriptor(self.descriptor)
                self._write()
                os.rename(half, self.path)
                self._take()
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(half)
                self.end()
                raise

    def ready(self) -> bool:
        """Look whether it is this run's turn, and take the devices if so. Cheap when called often."""
        if not self.devices and time.monotonic() - self.looked > LOOK:
            self.looked = time.monotonic()
            if self._my_turn():
                with alone(self.folder):
                    self._take()
        return bool(self.devices)

    def _my_turn(self) -> list[str]:
        there, now = read_tickets(self.folder), time.monotonic()
        self.could = {name: self.could.get(name, now) for name in turns(there) if name != self.mine.name}
        late = {name for name, since in self.could.items() if now - since > SKIPPED}
        return turns([it for it in there if it.name not in late]).get(self.mine.name, [])

    def _take(self) -> None:
        self.devices = self._my_turn()
        if self.devices:
            self.mine = self.mine._replace(taken=self.devices, since=time.time())
            self._write()

    def _write(self) -> None:
        text = json.dumps({**self.mine._asdict(), "learner": os.environ.get("JUPYTERHUB_USER", "")}).encode()
        os.pwrite(self.descriptor, text, 0)
        os.ftruncate(self.descriptor, len(text))

    def words(self) -> str:
        """Return the line for who waits: for what, at which place, and who has it."""
        there = read_tickets(self.folder)
        ahead = sum(not it.taken and it.kind == self.mine.kind and it.name < self.mine.name for it in there)
        place = PLACES[ahead] if ahead < len(PLACES) else f"{ahead + 1}th"
        holders = [it for it in there if set(it.taken) & set(self.mine.allowed)]
        who = [self._has(it) for it in holders[:2]] + [f"{len(holders) - 2} runs more"] * (len(holders) > 2)
        line = f"waits for {_many(self.mine.count, self.mine.kind)}: {place} in the queue"
        return f"{line} ({'; '.join(who)})" if who else line

    def _has(self, it: Ticket) -> str:
        since = f"has {_many(len(it.taken), it.kind)} since {_clock(it.since)}"
        if it.owner != owner_name(os.getuid(), os.environ.get("JUPYTERHUB_USER", "")):
            return f"{it.owner}'s run {since}"
        if it.pid != os.getpid():
            return f"another notebook or program of yours, process {it.pid}, {since}"
        return f"a run of this notebook {since}; its Stop button or run.stop() ends it"

    def given_up(self) -> str:
        """Return why this run waits no longer: its time is up, or its ticket was taken away; else ""."""
        longest = setting("DDPLAB_LEASES_WAIT", 3600)
        if not os.path.exists(self.path):
            return f"this run's ticket {self.mine.name} was taken from the queue in {self.folder}; launch to wait anew"
        if time.monotonic() - self.began < longest:
            return ""
        return (
            f"after {longest:g} s this run still {self.words()}\n"
            "hint: launch again later or ask for fewer ranks. `python -m ddplab leases` lists who has what; "
            "a run of your own that you need no more you can stop. DDPLAB_LEASES_WAIT sets how long a run waits."
        )

    def environment(self) -> dict[str, str]:
        """Return the variables that give ranks what this run has. Nothing where it has every GPU in torch's order."""
        if self.mine.kind == "core":
            return {"DDPLAB_CORES": str(len(self.devices))}
        return {} if self.devices == gpu_names() else {"CUDA_VISIBLE_DEVICES": ",".join(self.devices)}

    def end(self) -> None:
        """Give everything back, or leave the queue; also for those who hold the same descriptor."""
        if not self.ended:
            self.ended = True
            descriptors.discard(self.descriptor)
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            with contextlib.suppress(OSError):
                unlock_descriptor(self.descriptor)
            os.close(self.descriptor)


def ask(device: str, count: int) -> Lease | None:
    """Queue for what a run on "cuda", "cpu" or "virtual" needs; None where nothing is leased.

    A folder that cannot be used is warned of, and the run goes on without a lease. Raises ValueError for settings
    that make no sense.
    """
    place, real = os.environ.get("DDPLAB_LEASES", ""), "DDPLAB_REHEARSAL" not in os.environ
    if place == "off" or (not place and (device != "cuda" or not real)):
        return None
    kind = "GPU" if device == "cuda" else "core"
    allowed = allowed_gpus() if kind == "GPU" else [f"core {number}" for number in core_numbers()]
    limit = int(setting("DDPLAB_LEASES_PER_LEARNER", 0)) if kind == "GPU" else 0
    try:
        return Lease(lease_folder(place), kind, allowed, min(count, len(allowed), limit or count), limit)
    except OSError as error:
        warnings.warn(f"this run goes on without a lease, it may share its {kind}s with others: {error}", stacklevel=4)
        return None


def allowed_gpus() -> list[str]:
    """Return the GPUs that runs may use, as CUDA_VISIBLE_DEVICES names them."""
    names, asked = gpu_names(), os.environ.get("DDPLAB_LEASES_GPUS")
    if asked is None or os.environ.get("DDPLAB_LEASES") == "off":
        return names
    wanted = [word.strip() for word in asked.split(",") if word.strip()]
    numbers = [names[int(word)] if word.isdigit() and int(word) < len(names) else word for word in wanted]
    if unknown := [word for word in numbers if word not in names]:
        raise ValueError(
            f"DDPLAB_LEASES_GPUS={asked!r} names {unknown[0]!r}, which is none of this machine's {len(names)} GPUs"
        )
    return [name for name in names if name in numbers]


def gpus_for_a_run(wanted: int = 0) -> int:
    """Return how many GPUs one run may have: those of the machine, less what the settings keep back.

    Warns where it is for the settings that a run which wants so many does not get them.
    """
    here, there = len(allowed_gpus()), torch.cuda.device_count()
    limit = int(setting("DDPLAB_LEASES_PER_LEARNER", 0)) if os.environ.get("DDPLAB_LEASES") != "off" else 0
    number = min(here, limit or here)
    if number < wanted <= there:
        why = f"of the {there} GPUs here the settings (DDPLAB_LEASES_…) give a run {number}"
        warnings.warn(f"{why}: {wanted} ranks do not get one each", stacklevel=4)
    return number


def _many(count: int, kind: str) -> str:
    return f"{count} {kind}{'s' * (count != 1)}"


def _clock(when: float) -> str:
    return time.strftime("%H:%M", time.localtime(when))


# ------------------------------------------------------------------ for the instructor


def main(arguments: list[str]) -> int:
    """`python -m ddplab leases`: print who has what and who waits; `leases break TICKET` takes one away.

    Returns the exit status: 2 for what it does not know, 1 where a ticket could not be taken away, else 0.
    """
    folder = os.environ.get("DDPLAB_LEASES") or USUAL
    if arguments[:1] == ["break"] and len(arguments) == 2:
        try:
            os.unlink(os.path.join(folder, os.path.basename(arguments[1])))
        except OSError as error:
            print(f"not taken away: {error}; its owner, the folder's owner and root may do it", file=sys.stderr)
            return 1
        print("taken away: others may use its devices now; a run that has them goes on, one that waits ends")
        return 0
    if arguments:
        print("python -m ddplab leases [break TICKET]", file=sys.stderr)
        return 2
    there = read_tickets(folder) if os.path.isdir(folder) else []
    heads = ["ticket", "whose", "process", "has", "waits for", "since"]
    rows = []
    for it in sorted(there, key=lambda it: (not it.taken, it.name)):
        wants = "" if it.taken else _many(it.count, it.kind)
        rows.append([it.name, it.owner, str(it.pid), ", ".join(it.taken), wants, _clock(it.since)])
    print(text_table(heads, rows) if rows else f"nobody has or waits for anything in {folder}")
    return 0
