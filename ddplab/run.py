"""Run: what comes back from a launch. Its errors are worded in `diagnosis`."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import torch

from ddplab.worker import load

KEPT_OUTPUT = 1_000_000  # bytes of a rank's output held in memory; the whole is on disk while the run lives


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
        self.run, self.rank, self.type_name, self.reason, self.traceback = (
            run,
            rank,
            type_name,
            reason,
            traceback,
        )

    def _render_traceback_(self) -> list[str]:  # IPython's hook: the message is the traceback
        return [f"{type(self).__name__}: {self}"]


class RankTimeoutError(RankError, TimeoutError):
    """No rank made progress for `timeout` seconds. The message says where each of them was."""


def say_briefly(interrupt: KeyboardInterrupt) -> KeyboardInterrupt:
    """Spare who pressed ■ a traceback through our files (`_render_traceback_` is IPython's hook)."""
    interrupt._render_traceback_ = lambda: ["KeyboardInterrupt: every rank has been ended"]
    return interrupt


class Metrics(list):
    """The rows that ranks logged, as dicts: `rank`, `step`, `time` (seconds since the launch) and the logged columns.

    It is a list, so `pandas.DataFrame(run.metrics)` works.
    """

    def column(self, name: str, rank: int | None = None) -> list[Any]:
        """Return the logged values of one column, in order; of one rank, or rank after rank.

        Raises KeyError, naming the columns there are, when nothing of that name was logged.
        """
        found = [row[name] for row in self if name in row and rank in (None, row["rank"])]
        if not found:
            raise KeyError(f"nothing called {name!r} was logged{'' if rank is None else f' by rank {rank}'}; "
                           f"there is: {', '.join(self.columns()) or 'nothing at all'}")  # fmt: skip
        return found

    def columns(self) -> list[str]:
        """Return the names of the logged columns, in the order in which they first appeared."""
        return [
            name for name in dict.fromkeys(name for row in self for name in row) if name not in ("rank", "step", "time")
        ]

    def _repr_html_(self) -> str:
        names = ["rank", "step", "time", *self.columns()]
        shown = self if len(self) <= 20 else [*self[:10], *self[-10:]]
        rows = ["".join(f"<td>{_short(row.get(name, ''))}</td>" for name in names) for row in shown]
        more = f"<p>{len(self)} rows, the first and last ten shown</p>" if len(self) > 20 else ""
        head = "".join(f"<th>{name}</th>" for name in names)
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>{more}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("<", "&lt;")


class Run:
    """What came back from `launch`, `%%torchrun` or `torchrun`.

    Attributes:
        results: list, one value per rank: what fn returned there, None where it did not (always None for scripts).
        metrics: `Metrics`, one dict per `log(...)` call of any rank.
        output: dict, rank → what it printed (at most the last million characters, and then says so).
        state: "running", "finished", "failed", "timed out", "stopped" or "interrupted".
        error: the `RankError` of a run that failed, or None.
        nproc_per_node, nnodes, world_size: int. device ("cpu" or "cuda") and backend ("gloo", "nccl" or None).
    """

    def __init__(self, directory: str, world_size: int, device: str, backend: str | None, start: float):
        self.directory, self.world_size, self.device, self.backend = directory, world_size, device, backend
        self.nproc_per_node, self.nnodes = world_size, 1
        self.state = "running"
        self.error: RankError | None = None
        self.results: list[Any] = [None] * world_size
        self.metrics_so_far = Metrics()
        self.stop_asked = threading.Event()
        self.start = start
        self.cell_names: dict[str, str] = {}  # script path → what to call it in a message
        self._kept_output: dict[int, str] = {}
        self._offsets = [0] * world_size
        self._reading = threading.Lock()
        self.ended = threading.Event()

    def __repr__(self) -> str:
        return f"Run({self.summary()}, results={_clip(repr(self.results), 200)})"

    def summary(self) -> str:
        """Return one stable line: how many ranks, where, and how the run stands."""
        ranks = f"{self.world_size} rank{'s' * (self.world_size != 1)}"
        nodes = f" of {self.nnodes} agents" if self.nnodes > 1 else ""
        return f"{ranks}{nodes} on {self.device} ({self.backend or 'torchrun'}): {self.state}"

    @property
    def metrics(self) -> Metrics:
        """The rows logged so far; complete once the run has ended."""
        with self._reading:
            for rank in range(self.world_size if os.path.isdir(self.directory) else 0):
                self._read_rows(rank)
        return self.metrics_so_far

    def _read_rows(self, rank: int) -> None:
        try:
            with open(f"{self.directory}/{rank}.metrics", "rb") as file:
                file.seek(self._offsets[rank])
                whole = file.read()
        except FileNotFoundError:
            return
        whole = whole[: whole.rfind(b"\n") + 1]
        self._offsets[rank] += len(whole)
        for line in whole.splitlines():
            row = json.loads(line)
            self.metrics_so_far.append({"rank": rank, **row, "time": round(row["time"] - self.start, 6)})

    @property
    def output(self) -> dict[int, str]:
        """What each rank printed so far."""
        return self._kept_output or {rank: self._read_output(rank) for rank in range(self.world_size)}

    def _read_output(self, rank: int, limit: int = KEPT_OUTPUT) -> str:
        try:
            with open(f"{self.directory}/{rank}.output", "rb") as file:
                left_out = max(0, os.fstat(file.fileno()).st_size - limit)
                file.seek(left_out)
                text = file.read(limit).decode(errors="replace")
        except FileNotFoundError:
            return ""
        # of a progress bar that redraws itself with \r, keep what a terminal would show
        text = re.sub(r"[^\n]*\r(?=[^\n])", "", text.replace("\r\n", "\n"))
        return f"[{left_out} bytes of earlier output were not kept]\n{text}" if left_out else text

    def wait(self) -> Run:
        """Wait until a run started with `wait=False` has ended. Returns the run; raises its RankError if it failed."""
        try:
            self.ended.wait()
        except KeyboardInterrupt as interrupt:
            self.stop()
            say_briefly(interrupt)
            raise
        if self.error is not None:
            raise self.error
        return self

    def stop(self) -> None:
        """End every rank now. What came back before is kept; the state becomes "stopped"."""
        self.stop_asked.set()
        self.ended.wait(10)

    def plot(self, *names: str) -> Any:
        """Draw logged columns against the step, a line per rank (see `ddplab.plots.curves`)."""
        from ddplab.plots import curves

        return curves(self.metrics, *names)

    # -------------------------------------------------------------- for the modules that follow a run

    def read(self, rank: int, kind: str) -> dict[str, Any] | None:
        """Return what a rank left in its "pid" or "error" file, or None."""
        try:
            return json.loads(Path(f"{self.directory}/{rank}.{kind}").read_text())
        except FileNotFoundError:
            return None

    def has(self, rank: int, kind: str) -> bool:
        return os.path.exists(f"{self.directory}/{rank}.{kind}")

    def has_begun(self) -> bool:
        return any(self.has(rank, "pid") for rank in range(self.world_size))

    def rank_state(self, rank: int) -> str:
        """Return "starting", "running", "finished" or "failed", or how the run was ended."""
        if self.has(rank, "result"):
            return "finished"
        if self.has(rank, "error"):
            return "failed"
        return ("running" if self.has(rank, "pid") else "starting") if self.state == "running" else "stopped"

    def progress(self) -> list[int]:
        """Return numbers that change when any rank logs, prints, starts, fails or finishes."""
        sizes = []
        for rank in range(self.world_size):
            for kind in ("metrics", "output"):
                try:
                    sizes.append(os.stat(f"{self.directory}/{rank}.{kind}").st_size)
                except FileNotFoundError:
                    sizes.append(-1)
            sizes += [self.has(rank, "result"), self.has(rank, "error"), self.has(rank, "pid")]
        return sizes

    def _open_result(self, rank: int) -> None:
        try:
            self.results[rank] = load(f"{self.directory}/{rank}.result", torch.device("cpu"))
        except Exception as error:  # it could be packed there, and cannot be unpacked here: a DDP model needs its group
            hint = "Of a model wrapped in DDP return model.module, or its state_dict()."
            message = f"what rank {rank} returned cannot be opened in the notebook: {type(error).__name__}: {error}"
            self.error = self.error or RankError(
                f"{message}\nhint: {hint}", self, rank, type(error).__name__, str(error)
            )
            self.state = "failed"

    def close(self) -> None:
        """Bring everything home from the run's folder and delete it."""
        try:
            self.metrics  # noqa: B018  (reads the last rows)
            self._kept_output = self.output
            for rank in range(self.world_size):
                if self.has(rank, "result") and self.backend:  # a script returns nothing
                    self._open_result(rank)
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
