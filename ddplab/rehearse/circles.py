"""Ranks that wait for each other in a circle: one in a send that nobody receives, another in a barrier, for ever.

Each rank counts what it has begun. While it stands, it says for which counts of which others it does, in a file that
all share. A thread of each looks on, once a second, and tells where nothing has moved for as long as one is patient.
"""

import json
import os
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import contextmanager

from ddplab.diagnosis import learners, location, source_of, waits_in
from ddplab.vgpu import meter

PATIENCE = 10  # seconds
BYTES = 4096  # of one rank's cell in the file
Need = tuple[int, str, int]  # a rank, what it has to begin, and how often

current: "Circles | None" = None  # of the newest job that this process is in


class Circles:
    """What one rank of a job knows of itself and the others."""

    def __init__(self, name: str, rank: int, size: int):
        global current
        current = self
        self.file = os.open(f"{meter.book.path}.{name}.circles", os.O_RDWR | os.O_CREAT)
        self.rank, self.size = rank, size
        self.begun: Counter = Counter()  # what -> how often
        self.needs: list[Need] = []  # of the collective that was entered last, or of the message that is waited for
        if size > 1 and "DDPLAB_RUN_DIR" not in os.environ:  # launch has a patience of its own
            threading.Thread(target=self._look_on, daemon=True).start()

    @contextmanager
    def waiting(self, needs: list[Need]):
        """In here this rank waits for these."""
        outer, self.needs = self.needs, needs
        try:
            yield
        finally:
            self.needs = outer

    def _look_on(self) -> None:
        before, since, moment = {}, time.monotonic(), None
        while current is self:
            time.sleep(1)
            frame = sys._current_frames()[threading.main_thread().ident]
            here = id(frame), frame.f_lasti, self.begun.total()
            frames = [(f.f_code.co_filename, n, f.f_code.co_name) for f, n in traceback.walk_stack(frame)][::-1]
            inside, own = waits_in(frames), learners(frames)
            stands = f"in {inside} at {location(own[-1], {})}: {source_of(own[-1])}" if inside and own else ""
            mine = {"at": stands if here == moment else "", "needs": self.needs, "begun": self.begun}
            moment, frame = here, None
            text = json.dumps(mine).encode()
            os.pwrite(self.file, (text if len(text) < BYTES else b"").ljust(BYTES), self.rank * BYTES)
            whole = os.pread(self.file, self.size * BYTES, 0).ljust(self.size * BYTES)
            texts = [whole[at : at + BYTES].strip(b"\0 ") for at in range(0, len(whole), BYTES)]
            cells = [json.loads(text or "{}") for text in texts]
            now = {rank: texts[rank] for rank in circle(cells)}
            if now != before:
                before, since = now, time.monotonic()
            elif self.rank in now and time.monotonic() - since > PATIENCE:
                meter.book.stuck({f"rank {rank}": cells[rank]["at"] for rank in now})


def circle(cells: list[dict]) -> set[int]:
    """The ranks that can never go on: each stands, and needs of another of them what that one has not begun."""
    waits = {
        rank: {other for other, what, often in cell["needs"] if cells[other].get("begun", {}).get(what, 0) < often}
        for rank, cell in enumerate(cells)
        if cell.get("at")
    }
    while free := [rank for rank, others in waits.items() if not others & waits.keys()]:
        for rank in free:
            del waits[rank]
    return {*waits}
