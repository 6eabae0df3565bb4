"""Who is in which collective: ranks of one group that have entered different ones wait for each other for ever.

Each rank writes down what it enters, in a file that the group shares, and looks at what others have entered at that
turn: whoever comes second finds it out. Nobody waits for anybody here.
"""

import fcntl
import itertools
import os
import traceback
import weakref
from uuid import uuid4

import torch.distributed as dist

from ddplab.diagnosis import location, source_of, waits_in
from ddplab.vgpu import meter

from .frames import script
from .report import OUTCOME

TURNS, BYTES = 64, 1024  # that the file remembers; of one rank's cell in it
# In these all ranks bring the same number of bytes. In others one rank may bring more.
_ALIKE = "allreduce allreduce_coalesced broadcast reduce allgather _allgather_base _reduce_scatter_base".split()


class Trail:
    """What the ranks of one group have entered: a line for each turn, in it a cell for each rank."""

    def __init__(self, store, rank: int, size: int):
        self.name = store.compare_set("trail", "", uuid4().hex).decode()  # that of who came first
        self.file = os.open(f"{meter.book.path}.{self.name}", os.O_RDWR | os.O_CREAT)
        weakref.finalize(self, os.close, self.file)
        self.rank, self.size, self.turns = rank, size, itertools.count(1)

    def enter(self, name: str, nbytes: int, root: int | None = None) -> None:
        """Note it. Raises DistBackendError where another rank has entered another collective at this turn."""
        turn, here = next(self.turns), script()
        frames = [(f.f_code.co_filename, 0, f.f_code.co_name) for f, _ in traceback.walk_stack(None)][::-1]
        what = f"{name.strip('_')} of {nbytes} bytes" if name in _ALIKE else name
        what += "" if root is None else f" with root {root}"
        place = (here.f_lineno, here.f_code.co_name, here.f_code.co_filename) if here else (0, "", "")
        cell = "\n".join(map(str, (turn, what, dist.get_rank(), waits_in(frames) or what, *place)))
        file, start = self.file, turn % TURNS * self.size * BYTES
        fcntl.flock(file, fcntl.LOCK_EX)
        os.pwrite(file, cell.encode()[:BYTES].ljust(BYTES), start + self.rank * BYTES)
        line = os.pread(file, self.size * BYTES, start)
        fcntl.flock(file, fcntl.LOCK_UN)
        if any(not other.startswith(f"{turn}\n{what}\n".encode()) for other in _cells(line, turn)):
            raise DifferentCollectives(dict(_where(other) for other in _cells(line, turn)))


class DifferentCollectives(dist.DistBackendError):
    """Ranks of one group are in different collectives."""

    def __init__(self, waits: dict[str, str]):
        self.waits = waits  # "rank 0" -> where
        told = "ranks of one group are in different collectives, which NCCL matches by their order alone. On GPUs"
        told += f" each {OUTCOME}:"
        super().__init__("\n  ".join([told, *(f"{rank} waits {where}" for rank, where in waits.items())]))


def _cells(line: bytes, turn: int) -> list[bytes]:  # of those who have come to that turn
    cells = [line[at : at + BYTES] for at in range(0, len(line), BYTES)]
    return [cell for cell in cells if cell.startswith(b"%d\n" % turn)]


def _where(cell: bytes) -> tuple[str, str]:
    _, what, rank, inside, line, function, file = cell.decode(errors="replace").rstrip(" ").split("\n", 6)
    frame = file, int(line), function
    inside += f" ({what})" * (what != inside)
    return f"rank {rank}", f"in {inside}" + f" at {location(frame, {})}: {source_of(frame)}" * bool(file)
