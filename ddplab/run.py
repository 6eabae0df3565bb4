"""Run: what comes back from a launch. Its errors are worded in `diagnosis`."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from typing import Any

import torch

from ddplab.folder import Folder, Tail, load
from ddplab.metrics import Metrics
from ddplab.plots import curves
from ddplab.pointer import POINTER


class RankError(RuntimeError):
    """A rank raised an exception or died. The message names the rank that failed first and the line of your code.

    Attributes: `run` (results, metrics and output so far), `rank` (int, or None when no rank began), `type_name` and
    `reason` (the rank's own exception: its class name and message), `traceback` (its whole traceback, as text).
    In a notebook `import sys; sys.last_value` is the error a cell has raised.
    """

    def __init__(
        self,
        message: str,
        run: Run,
        rank: int | None,
        type_name: str = "",
        reason: str = "",
        traceback: str = "",
    ):
        super().__init__(message)
        self.add_note(POINTER)
        self.run, self.rank = run, rank
        self.type_name, self.reason, self.traceback = type_name, reason, traceback

    def _render_traceback_(self) -> list[str]:  # IPython's hook: the message is the traceback
        return [f"{type(self).__name__}: {self}", "", POINTER]


class RankTimeoutError(RankError, TimeoutError):
    """No rank made progress for `timeout` seconds. The message says where each of them was.

    Or the run waited too long for GPUs that others had (`rank` is None then). The message says who.
    """


def say_briefly(interrupt: KeyboardInterrupt) -> KeyboardInterrupt:
    """Spare who pressed ■ a traceback through our files (`_render_traceback_` is IPython's hook)."""
    interrupt._render_traceback_ = lambda: ["KeyboardInterrupt: every rank has been ended"]
    return interrupt


class Run:
    """What came back from `launch`, `%%torchrun` or `torchrun`.

    Attributes:
        results: list, one value per rank: what fn returned there, None where it did not (always None for scripts).
        metrics: `Metrics`, one dict per `log(...)` call of any rank.
        output: dict, rank → what it printed (at most the last million characters, and then says so).
        state: "running", "finished", "failed", "timed out", "stopped" or "interrupted".
        error: the `RankError` of a run that failed, or None.
        waits: str, while it waits for GPUs that other runs have: how many, its place in the queue, who has them.
        rehearsal: str, of a run on virtual GPUs the report: who held what, copies to the CPU in each step, and so on.
        nproc_per_node, nnodes, world_size: int. device ("cpu", "cuda" or "virtual"), backend ("gloo", "nccl" or None).

    What has an underscore is for the module that follows the run.
    """

    def __init__(
        self, folder: Folder, device: str, backend: str | None, start: float, nproc_per_node: int, nnodes: int = 1
    ):
        self.world_size, self.device, self.backend = folder.world_size, device, backend
        self.nproc_per_node, self.nnodes = nproc_per_node, nnodes
        self.state = "running"
        self.error: RankError | None = None
        self.rehearsal = self.waits = ""
        self.results: list[Any] = [None] * self.world_size
        self._start = start
        self._folder = folder
        self._rows = Metrics()
        self._tails = [Tail(folder.of(rank, "metrics")) for rank in range(self.world_size)]
        self._reading = threading.Lock()
        self._kept_output: dict[int, str] = {}
        self._stop_asked, self._ended = threading.Event(), threading.Event()

    def __repr__(self) -> str:
        results = repr(self.results)
        return f"Run({self.summary()}, results={results if len(results) <= 200 else results[:199] + '…'})"

    def summary(self) -> str:
        """Return one stable line: how many ranks, where, and how the run stands."""
        ranks = f"{self.world_size} rank{'s' * (self.world_size != 1)}"
        nodes = f" of {self.nnodes} agents" if self.nnodes > 1 else ""
        rehearsed = self.device == "virtual" or (self.device == "cuda" and "DDPLAB_REHEARSAL" in os.environ)
        where = "rehearsed on virtual GPUs" if rehearsed else f"on {self.device}"
        return f"{ranks}{nodes} {where} ({self.backend or 'torchrun'}): {self.waits or self.state}"

    @property
    def metrics(self) -> Metrics:
        """The rows logged so far; complete once the run has ended."""
        with self._reading:
            for rank, tail in enumerate(self._tails):
                for line in tail.lines():
                    with contextlib.suppress(ValueError):  # half a row, from a disk that was full
                        row = json.loads(line)
                        self._rows.append({"rank": rank, **row, "time": round(row["time"] - self._start, 6)})
        return self._rows

    @property
    def output(self) -> dict[int, str]:
        """What each rank printed so far."""
        return self._kept_output or {rank: self._folder.output(rank) for rank in range(self.world_size)}

    def wait(self) -> Run:
        """Wait until a run started with `wait=False` has ended. Returns the run; raises its RankError if it failed."""
        try:
            self._ended.wait()
        except KeyboardInterrupt as interrupt:
            self.stop()
            say_briefly(interrupt)
            raise
        if self.error is not None:
            raise self.error
        return self

    def stop(self) -> None:
        """End every rank now. What came back before is kept; the state becomes "stopped"."""
        self._stop_asked.set()
        self._ended.wait(10)

    def plot(self, *names: str, level: float | None = None) -> Any:
        """Draw logged columns against the step, a line per rank, and one at `level` (see `ddplab.plots.curves`)."""
        return curves(self.metrics, *names, level=level)

    # -------------------------------------------------------------- the way home

    def _bring_home(self) -> None:
        """Take everything over from the run's folder and delete it."""
        try:
            self.metrics  # noqa: B018  (reads the last rows)
            self._kept_output = self.output
            for rank in range(self.world_size):
                if self._folder.has(rank, "result") and self.backend:  # a script returns nothing
                    self._open_result(rank)
        finally:
            self._folder.remove()

    def _open_result(self, rank: int) -> None:
        try:
            self.results[rank] = load(self._folder.of(rank, "result"), torch.device("cpu"))
        except Exception as error:  # it could be packed there, and cannot be unpacked here: a DDP model needs its group
            hint = "Of a model wrapped in DDP return model.module, or its state_dict()."
            message = f"what rank {rank} returned cannot be opened in the notebook: {type(error).__name__}: {error}"
            self.error = self.error or RankError(
                f"{message}\nhint: {hint}", self, rank, type(error).__name__, str(error)
            )
            self.state = "failed"
