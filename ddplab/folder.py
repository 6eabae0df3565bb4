"""The run folder: the plain files through which ranks and whoever watches them talk. Nobody else names these files.

Each rank r leaves there, from the moment it begins, so that nothing is lost when it dies:

    r.pid      its process id and main thread      r.metrics  one JSON row per log()
    r.output   what it printed                     r.stacks   where it was, when somebody asked (SIGUSR1)
    r.result   what fn returned                    r.error    the exception that ended it
    r.calls    its latest collectives, when it raised or somebody opened r.ask, a pipe

Beside them lies `fn`, the function that `launch` sends. Under torchrun it is the script, torchrun's own logs, and for
each agent n what it said, `agentN.log`, and the exit codes of its ranks, `n.failures`. The folder is made with
`tempfile.mkdtemp`, so only its owner may enter it (mode 0700): what is unpickled here, we have written ourselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from ddplab.shortage import cannot_write

KEPT_OUTPUT = 1_000_000  # bytes of a rank's output held in memory; the whole is on disk while the run lives


class Folder:
    """The folder of one run, seen from the notebook or from a rank.

    Attributes: `path`; `world_size`, how many ranks write here; `script_names`, script path → what to call it.
    """

    def __init__(self, path: str, world_size: int):
        self.path, self.world_size = path, world_size
        self.script_names: dict[str, str] = {}

    @classmethod
    def new(cls, world_size: int = 0) -> Folder:
        """Make a folder that only this user may enter. Its name says whose it is, should the notebook be killed."""
        return cls(tempfile.mkdtemp(prefix=_family()), world_size)

    @classmethod
    def of_this_rank(cls) -> Folder | None:
        """Return the folder of the run that this process is a rank of, or None where it is no rank."""
        path = os.environ.get("DDPLAB_RUN_DIR")
        return cls(path, int(os.environ.get("WORLD_SIZE", 1))) if path else None

    def remove(self) -> None:
        """Delete it and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # where no file may be opened any more, not even to see what is in it
            Path(self.file("fn")).unlink(missing_ok=True)
            os.rmdir(self.path)

    def exists(self) -> bool:
        return os.path.isdir(self.path)

    def file(self, name: str) -> str:
        """Return the path of a file of the run itself: `fn`, a script, an agent's log."""
        return os.path.join(self.path, name)

    def of(self, rank: int, kind: str) -> str:
        """Return the path of one of a rank's files."""
        return f"{self.path}/{rank}.{kind}"

    # -------------------------------------------------------------- what a rank writes

    def append_to(self, rank: int, kind: str) -> int:
        """Open a rank's "metrics" or "output" for adding to; return the file descriptor."""
        return os.open(self.of(rank, kind), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, rank: int, kind: str, value: Any) -> None:
        """Write a rank's "pid", "error" or "calls", or an agent's "failures", as JSON."""
        write(self.of(rank, kind), json.dumps(value))

    def forget_attempt(self, rank: int) -> None:
        """Delete how a rank's attempt before a restart ended."""
        for kind in ("result", "error"):
            Path(self.of(rank, kind)).unlink(missing_ok=True)

    def pipe(self, rank: int) -> str:
        """Return the pipe that is opened to ask a rank for its latest collectives; make it where it is missing."""
        pipe = self.of(rank, "ask")
        if not os.path.exists(pipe):  # it is there after a restart by torchrun
            os.mkfifo(pipe)
        return pipe

    # -------------------------------------------------------------- what is read of a rank

    def has(self, rank: int, kind: str) -> bool:
        return os.path.exists(self.of(rank, kind))

    def read(self, rank: int, kind: str) -> Any:
        """Return what a rank left in its "pid", "error" or "calls", or an agent in its "failures"; or None."""
        try:
            return json.loads(Path(self.of(rank, kind)).read_text())
        except FileNotFoundError:
            return None

    def stacks(self, rank: int) -> str:
        """Return where the threads of a rank were when it was last asked, in faulthandler's words; "" if never."""
        try:
            return Path(self.of(rank, "stacks")).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def ask_for_calls(self, rank: int) -> None:
        """Have a rank write down its latest collectives. Raises OSError when it is gone."""
        os.close(os.open(self.of(rank, "ask"), os.O_WRONLY | os.O_NONBLOCK))

    def output(self, rank: int, limit: int = KEPT_OUTPUT) -> str:
        """Return the last `limit` bytes of what a rank printed; text that was cut says so."""
        try:
            with open(self.of(rank, "output"), "rb") as file:
                left_out = max(0, os.fstat(file.fileno()).st_size - limit)
                file.seek(left_out)
                text = file.read(limit).decode(errors="replace")
        except FileNotFoundError:
            return ""
        # of a progress bar that redraws itself with \r, keep what a terminal would show
        text = re.sub(r"[^\n]*\r(?=[^\n])", "", text.replace("\r\n", "\n"))
        return f"[{left_out} bytes of earlier output were not kept]\n{text}" if left_out else text

    def has_begun(self) -> bool:
        """Tell whether any rank is there yet."""
        return any(self.has(rank, "pid") for rank in range(self.world_size))

    def progress(self) -> list[int]:
        """Return numbers that change when any rank logs, prints, starts, fails or finishes."""
        sizes = []
        for rank in range(self.world_size):
            for kind in ("metrics", "output"):
                try:
                    sizes.append(os.stat(self.of(rank, kind)).st_size)
                except FileNotFoundError:
                    sizes.append(-1)
            sizes += [self.has(rank, "result"), self.has(rank, "error"), self.has(rank, "pid")]
        return sizes


def _family() -> str:
    """Return how the names of this notebook's run folders begin; `processes` sets the variable."""
    own = os.path.basename(os.environ.get("DDPLAB_SOCKET_DIR", "")).removeprefix("pymp-")
    return f"ddplab-{own}-" if own else "ddplab-"


def remove_family() -> None:
    """Delete the run folders of a notebook that is gone, those included that no rank has seen."""
    if _family() != "ddplab-":
        for name in os.listdir(tempfile.gettempdir()):
            if name.startswith(_family()):
                shutil.rmtree(os.path.join(tempfile.gettempdir(), name), ignore_errors=True)


class Tail:
    """Reads a file that grows: each time the whole lines that are new since the last time."""

    def __init__(self, path: str):
        self.path, self.offset = path, 0

    def lines(self, at_most: int | None = None, over: bool = False) -> list[bytes]:
        """Return the new lines, without their ends.

        at_most: of more bytes than these only the newest are read. over: nobody writes any more, so that a last line
        without an end counts too.
        """
        try:
            with open(self.path, "rb") as file:
                behind = os.fstat(file.fileno()).st_size - self.offset
                skip = max(0, behind - at_most) if at_most else 0
                file.seek(self.offset + skip)
                new = file.read(at_most or -1)
        except FileNotFoundError:
            return []
        start, end = new.find(b"\n") + 1 if skip else 0, len(new) if over else new.rfind(b"\n") + 1
        self.offset += skip + end
        return new[start:end].splitlines()


# ------------------------------------------------------------------ written whole, or not at all


def write(path: str, text: str) -> None:
    """Write a small file so that a reader never sees half of it."""
    half = Path(f"{path}~{threading.get_ident()}")  # two threads may write the same
    half.write_text(text)
    os.replace(half, path)


def save(value: Any, path: str) -> None:
    """Write any Python value, functions defined in a cell included, so that a reader never sees half of it.

    Raises OSError where the folder takes no more; torch itself then says "unexpected pos" or "iostream error".
    """
    try:
        torch.save(value, path + "~", pickle_module=cloudpickle, pickle_protocol=cloudpickle.DEFAULT_PROTOCOL)
        os.replace(path + "~", path)
    except Exception:
        full = cannot_write(os.path.dirname(path))  # while what there is of the file still takes its room
        Path(path + "~").unlink(missing_ok=True)
        if full is None:
            raise
        raise full from None


def load(path: str, gpu_tensors_to: torch.device) -> Any:
    """Read what `save` wrote. Tensors that were on a GPU arrive on `gpu_tensors_to`, the others on the CPU."""

    def move(storage: torch.UntypedStorage, where: str) -> torch.UntypedStorage:
        return storage if where == "cpu" or gpu_tensors_to.type == "cpu" else storage.to(device=gpu_tensors_to)

    return torch.load(path, weights_only=False, map_location=move)
