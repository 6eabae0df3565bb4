"""How a run shows itself: a live panel in a notebook, whole lines in a script, one summary line under nbval.

The panel reads the same files that everything else reads (see `folder`), so showing a run costs its ranks nothing.
"""

from __future__ import annotations

import html
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator

from ddplab.folder import Folder, Tail
from ddplab.follow import View
from ddplab.plots import charts, stroke
from ddplab.run import Run
from ddplab.screen import in_kernel, live
from ddplab.tables import HTML, brief, html_table

REDRAW = 0.035  # seconds between redraws, at least; one that is due waits for the next look, every 0.02 s
DRAWN_POINTS = 300  # in all curves together, which keeps a redraw of 8 ranks under a millisecond
TAIL = 8192  # bytes read of each file at a redraw; run.metrics misses nothing, the panel may skip
PRINTED_LINES = 20  # of each rank under the cell; the rest is in run.output
KEPT_POINTS = 1024  # of each line, so that a run of many hours needs no more memory than one of a minute
# What stays looks as the widget did, and is as tall: JupyterLab gives HTML other margins.
STAYS = (
    ".ddplab-stays {font-size: 13px; line-height: 28px}"
    ".ddplab-stays table {margin: 0; font-size: 12px; border-collapse: separate; border-spacing: 2px}"
    ".ddplab-stays tr {background: none !important}"
    ".ddplab-stays :is(td, th) {padding: 1px 16px 1px 1px; text-align: left !important}"
    ".ddplab-stays :is(td, th) {font-size: 12px; line-height: 1.6}"
)
COLUMNS = 8  # logged values with a column of their own; the others are in run.metrics


def view_of(run: Run, folder: Folder, wait: bool, quiet: bool) -> View:
    """Choose how a run shows itself."""
    if quiet:
        return View()
    if live():
        return Panel(run, folder, wait)
    if not wait:
        return View()
    return AtTheEnd(run) if in_kernel() else AsItComes(run, folder)


class AtTheEnd(View):
    """One stable summary line and what the ranks printed, rank after rank: facts that nbval can compare."""

    def __init__(self, run: Run):
        self.run = run

    def interrupted(self, where: list[str]) -> None:
        print("\n".join(where))

    def close(self) -> None:
        print(self.run.summary())
        print_output(self.run)


def print_output(run: Run) -> None:
    """Print the last lines of each rank, sorted by rank."""
    for rank, text in run.output.items():
        lines = text.splitlines()
        if len(lines) > PRINTED_LINES:
            print(f"[rank {rank}] … {len(lines) - PRINTED_LINES} lines more in run.output[{rank}]")
        for line in lines[-PRINTED_LINES:]:
            print(f"[rank {rank}] {line}")


class AsItComes(AtTheEnd):
    """In a script: each rank's whole lines while they arrive."""

    def __init__(self, run: Run, folder: Folder):
        super().__init__(run)
        self.tails = [Tail(folder.of(rank, "output")) for rank in range(run.world_size)]
        self.said = ""

    def update(self) -> None:
        if self.run.waits != self.said:
            self.said = self.run.waits
            print(self.run.summary(), flush=True)
        for rank, tail in enumerate(self.tails):
            self._print(rank, tail.lines(over=self.run.state != "running"))

    def _print(self, rank: int, lines: list[bytes]) -> None:
        for line in b"\n".join(lines).decode(errors="replace").splitlines():
            print(f"[rank {rank}] {line}", flush=True)

    def close(self) -> None:
        print(self.run.summary(), flush=True)


class Trail(list):
    """The (step, value) points of a line: at most KEPT_POINTS, taken evenly from all, and always the newest."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.stride = 0, 1  # of so many points that came, each so-many-th is kept

    def add(self, point: tuple[float, float]) -> None:
        if (self.seen - 1) % self.stride:  # the newest until now is none of those that are kept
            self.pop()
        self.append(point)
        self.seen += 1
        if len(self) > KEPT_POINTS:
            del self[1::2]
            self.stride *= 2


class Panel(View):
    """The live view: a line per rank and the curves of what they log. At the end the same stays where it was.

    It appears once a run has lasted a fifth of a second; a quicker one shows at once how it ended. While the run goes
    on, it is a widget; what stays is HTML, which a saved notebook keeps, and as tall, so that the page stands still.
    """

    def __init__(self, run: Run, folder: Folder, wait: bool):
        self.run, self.folder, self.blocks = run, folder, wait
        self.display = None
        self.table = ""  # as it was drawn last
        self.appears = time.monotonic() + 0.2
        self.redrawn = 0.0
        self.rows: dict[int, dict] = {}  # rank → its newest row
        self.rates: dict[int, float] = {}
        self.points: dict[str, dict[int, Trail]] = defaultdict(lambda: defaultdict(Trail))
        self.tails = [Tail(folder.of(rank, "metrics")) for rank in range(run.world_size)]
        if not wait:
            self._appear()

    def update(self) -> None:
        now, over = time.monotonic(), self.run.state != "running"
        if not over and (now < self.appears or now - self.redrawn < REDRAW):
            return
        self.redrawn = now
        if self.display is None and not over:
            self._appear()
        self.read()
        self.table = self.draw_table()
        if not over:
            self.drawing.value = self.draw_title() + self.table + self.draw_curves()

    def _appear(self) -> None:
        import ipywidgets
        from IPython.display import display

        self.drawing = ipywidgets.HTML()
        parts = [self.drawing]
        if not self.blocks:  # while a cell runs, the kernel hears no buttons: there the notebook's own ■ stops it
            stop = ipywidgets.Button(description="Stop", icon="stop", tooltip="End every rank of this run")
            stop.on_click(lambda _: threading.Thread(target=self.run.stop).start())
            parts.append(stop)
        # Where the widget is gone (a file saved half-way) the text stands in for it.
        bundle = {**ipywidgets.VBox(parts)._repr_mimebundle_(), "text/plain": self.run.summary()}
        self.display = display(bundle, raw=True, display_id=True)

    # -------------------------------------------------------------- what is drawn

    def read(self) -> None:
        """Take in the rows logged since the last redraw (of very many, the newest)."""
        for rank in range(self.run.world_size):
            previous = self.rows.get(rank)
            for row in self._new_rows(rank):
                self.rows[rank] = row
                self._add(rank, row)
            newest = self.rows.get(rank)
            if previous and newest is not previous and newest["time"] > previous["time"]:
                self.rates[rank] = (newest["step"] - previous["step"]) / (newest["time"] - previous["time"])

    def _add(self, rank: int, row: dict) -> None:
        for name, value in row.items():
            if type(value) in (int, float) and name not in ("rank", "step", "time") and value - value == 0:
                self.points[name][rank].add((row["step"], value))

    def _new_rows(self, rank: int) -> Iterator[dict]:
        lines = self.tails[rank].lines(at_most=TAIL)
        for line in lines[: -1 : len(lines) * self.run.world_size // 40 + 1] + lines[-1:]:  # no more than is drawn
            yield json.loads(line)

    def _state_of(self, rank: int) -> str:
        """Return "starting", "running", "finished" or "failed", or how the run was ended."""
        if self.folder.has(rank, "result"):
            return "finished"
        if self.folder.has(rank, "error"):
            return "failed"
        if self.run.waits:
            return "waiting"
        return ("running" if self.folder.has(rank, "pid") else "starting") if self.run.state == "running" else "stopped"

    def draw_table(self) -> str:
        """Return the table: per rank its kind of line, state, step, rate, newest values, and what it printed last."""
        ranks = range(self.run.world_size)
        columns = dict.fromkeys(name for row in self.rows.values() for name in row if name not in ("step", "time"))
        columns = list(columns)[:COLUMNS]
        printed = [self.folder.output(rank, 400).rstrip().rsplit("\n", 1)[-1][-60:] for rank in ranks]
        heads = ["", "state", "step", "steps/s", *columns, *(["last printed"] if any(printed) else [])]
        rows = []
        for rank in ranks:
            row = self.rows.get(rank, {})
            name = HTML(f'<svg width="28" height="8"><path d="M0 4H28" {stroke(rank)}/></svg> rank {rank}')
            rate = f"{self.rates[rank]:.0f}" if rank in self.rates else ""
            values = [brief(row.get(column, ""))[:24] for column in columns]
            rows.append([name, self._state_of(rank), row.get("step", ""), rate, *values])
            rows[-1] += [printed[rank]] * any(printed)
        return html_table(heads, rows, row_heads=True)

    def draw_title(self) -> str:
        """Return the line above the table: how the run stands, and for how long."""
        so_far = "for" if self.run.state == "running" else "after"
        title = f"{self.run.summary()} {so_far} {time.monotonic() - self.run._start:.1f} s"
        return f'<div class="ddplab">{html.escape(title)}</div>'

    def draw_curves(self, stays: bool = False) -> str:
        """Return the curves of what is logged: SVG in the notebook theme's colours, or pictures that can stay."""
        columns = {name: ranks for name, ranks in self.points.items() if max(map(len, ranks.values())) > 1}
        if not columns:
            return ""
        each = max(12, DRAWN_POINTS // sum(map(len, columns.values())))
        what = f"curves of {', '.join(columns)} against the step, one line per rank"
        line = '<div style="font-size:12px">Each logged value against the step, one line per rank.</div>'
        return charts(list(columns.items())[:4], what, each, stays) + line

    # -------------------------------------------------------------- what stays

    def interrupted(self, where: list[str]) -> None:
        print("\n".join(where))

    def close(self) -> None:
        from IPython.display import display

        words = self.words()
        self.points.clear()
        for row in self.run.metrics:  # all of them: while it ran, the newest were enough
            self._add(row["rank"], row)
        curves = self.draw_curves(stays=True)
        if self.display is not None or curves:
            alone = "" if self.blocks else self._under_the_button()
            stays = f'<div class="ddplab-stays" style="margin:2px">{self.draw_title()}{self.table}{curves}{alone}</div>'
            bundle = {"text/html": f"<style>{STAYS}</style>{stays}", "text/plain": "\n".join(words)}
            (self.display.update if self.display else display)(bundle, raw=True)
        elif self.blocks:
            print(self.run.summary())
        if self.blocks:  # a thread's prints would land in whichever cell runs
            print_output(self.run)

    def _under_the_button(self) -> str:
        """Return what stands where Stop stood: of a run that nobody waits for, how it failed."""
        error = self.run.error
        words = f"{type(error).__name__}: {error}" if error else ""
        return f'<pre style="min-height:32px">{html.escape(words)}</pre>'

    def words(self) -> list[str]:
        """Return what the panel shows as lines of text, for where HTML is not shown."""
        metrics, error = self.run.metrics, self.run.error
        lines = [f"rank {rank}: {_last(metrics, rank)}" for rank in range(self.run.world_size) if metrics]
        failed = [f"{type(error).__name__}: {error}"] if error and not self.blocks else []
        return [self.run.summary(), *lines, *failed]


def _last(metrics: list[dict], rank: int) -> str:
    row = next((row for row in reversed(metrics) if row["rank"] == rank), None)
    if row is None:
        return "logged nothing"
    values = ", ".join(f"{k} {brief(v)}" for k, v in row.items() if k not in ("rank", "step", "time"))
    return f"step {row['step']}, {values}"
