"""How a run shows itself: a live panel in a notebook, whole lines in a script, one summary line under nbval.

The panel reads the same files that everything else reads (see `worker`), so showing a run costs its ranks nothing.
"""

from __future__ import annotations

import html
import importlib
import io
import json
import os
import sys
import threading
import time
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from ddplab.run import Run

REDRAW = 0.06  # seconds between redraws
DRAWN_POINTS = 300  # in all curves together, which keeps a redraw of 8 ranks under a millisecond
TAIL = 8192  # bytes read of each file at a redraw; run.metrics misses nothing, the panel may skip
PRINTED_LINES = 20  # of each rank under the cell; the rest is in run.output
COLUMNS = 8  # logged values with a column of their own; the others are in run.metrics
STYLE = (
    ".ddplab {font-family: var(--jp-code-font-family, monospace); font-size: 12px; line-height: 1.6}"
    ".ddplab th, .ddplab td {text-align: left; padding-right: 16px; white-space: nowrap}"
    ".ddplab td {min-width: 3.5em; font-variant-numeric: tabular-nums}"
    ".ddplab th[scope=row], .ddplab th[scope=col] {font-weight: normal; color: var(--jp-ui-font-color1)}"
    ".ddplab th[scope=col] {border-bottom: 1px solid var(--jp-border-color1)}"
)
COLOURS = ["#006BA4", "#FF800E", "#ABABAB", "#595959", "#5F9ED1", "#C85200", "#898989", "#A2C8EC"]
DASHES = ["", "6 3", "2 3", "8 3 2 3"]


def live() -> bool:
    """Return True in a notebook that a person looks at: widgets work, and nobody compares outputs."""
    return _in_kernel() and "PYTEST_CURRENT_TEST" not in os.environ and os.environ.get("DDPLAB_PANEL") != "off"


def _in_kernel() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)  # Colab's is a subclass


def show(words: Any, widget: Callable[[], Any]) -> None:
    """Display a widget where somebody can press it, and the words where nobody can."""
    if not live():
        print(words)
        return
    from IPython.display import display

    # Where the widget is gone (a saved file, a forge) the words stand in for it.
    display({**widget()._repr_mimebundle_(), "text/plain": str(words)}, raw=True)


def view_of(run: Run, wait: bool, quiet: bool) -> Quiet:
    """Choose how a run shows itself."""
    if quiet:
        return Quiet(run)
    if live():
        return Panel(run, wait)
    if not wait:
        return Quiet(run)
    return AtTheEnd(run) if _in_kernel() else AsItComes(run)


class Quiet:
    """Shows nothing; what the other views have in common."""

    def __init__(self, run: Run):
        self.run = run

    def update(self) -> None: ...
    def close(self) -> None: ...
    def interrupted(self, where: list[str]) -> None: ...


class AtTheEnd(Quiet):
    """One stable summary line and what the ranks printed, rank after rank: facts that nbval can compare."""

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

    def __init__(self, run: Run):
        super().__init__(run)
        self.offsets = [0] * run.world_size
        self.unfinished = [b""] * run.world_size  # of each rank, the line that has no end yet

    def update(self) -> None:
        for rank in range(self.run.world_size):
            try:
                with open(f"{self.run.directory}/{rank}.output", "rb") as file:
                    file.seek(self.offsets[rank])
                    new = file.read()
            except FileNotFoundError:
                continue
            whole = new[: new.rfind(b"\n") + 1]
            self.offsets[rank] += len(whole)
            self.unfinished[rank] = new[len(whole) :]
            self._print(rank, whole)

    def _print(self, rank: int, text: bytes) -> None:
        for line in text.decode(errors="replace").splitlines():
            print(f"[rank {rank}] {line}", flush=True)

    def close(self) -> None:
        for rank, text in enumerate(self.unfinished):
            self._print(rank, text)
        print(self.run.summary(), flush=True)


class Panel(Quiet):
    """The live view: a line per rank and the curves of what they log, then a picture and text that stay.

    It appears once a run has lasted a fifth of a second; a quicker one shows its picture and text at once.
    """

    def __init__(self, run: Run, wait: bool):
        super().__init__(run)
        self.blocks = wait
        self.display = None
        self.appears = time.monotonic() + 0.2
        self.redrawn = 0.0
        self.rows: dict[int, dict] = {}  # rank → its newest row
        self.rates: dict[int, float] = {}
        self.points: dict[str, dict[int, list]] = defaultdict(lambda: defaultdict(list))
        self.offsets = [0] * run.world_size
        if not wait:
            self._appear()

    def update(self) -> None:
        now = time.monotonic()
        if now < self.appears or now - self.redrawn < REDRAW:
            return
        self.redrawn = now
        if self.display is None:
            self._appear()
        self.read()
        self.drawing.value = self.draw_table() + self.draw_curves()

    def _appear(self) -> None:
        import ipywidgets
        from IPython.display import display

        self.drawing = ipywidgets.HTML()
        parts = [self.drawing]
        if not self.blocks:  # while a cell runs, the kernel hears no buttons: there the notebook's own ■ stops it
            stop = ipywidgets.Button(description="Stop", icon="stop", tooltip="End every rank of this run")
            stop.on_click(lambda _: self.run.stop_asked.set())
            parts.append(stop)
        # Where the widget is gone (a file saved half-way) the text stands in for it.
        bundle = {**ipywidgets.VBox(parts)._repr_mimebundle_(), "text/plain": self.run.summary()}
        self.display = display(bundle, raw=True, display_id=True)
        # The picture at the end needs matplotlib: half a second to import, while the ranks work.
        threading.Thread(target=importlib.import_module, args=["matplotlib.pyplot"], daemon=True).start()

    # -------------------------------------------------------------- what is drawn

    def read(self) -> None:
        """Take in the rows logged since the last redraw (of very many, the newest)."""
        for rank in range(self.run.world_size):
            previous = self.rows.get(rank)
            for row in self._new_rows(rank):
                self.rows[rank] = row
                for name, value in row.items():
                    if type(value) in (int, float) and name not in ("step", "time") and value - value == 0:
                        self.points[name][rank].append((row["step"], value))
            newest = self.rows.get(rank)
            if previous and newest is not previous and newest["time"] > previous["time"]:
                self.rates[rank] = (newest["step"] - previous["step"]) / (newest["time"] - previous["time"])

    def _new_rows(self, rank: int) -> Iterator[dict]:
        try:
            with open(f"{self.run.directory}/{rank}.metrics", "rb") as file:
                behind = os.fstat(file.fileno()).st_size - self.offsets[rank]
                skip = max(0, behind - TAIL)
                file.seek(self.offsets[rank] + skip)
                new = file.read(TAIL)
        except FileNotFoundError:
            return
        start, end = new.find(b"\n") + 1 if skip else 0, new.rfind(b"\n") + 1
        self.offsets[rank] += skip + max(end, 0)
        lines = new[start:end].splitlines()
        for line in lines[: -1 : len(lines) * self.run.world_size // 40 + 1] + lines[-1:]:  # no more than is drawn
            yield json.loads(line)

    def draw_table(self) -> str:
        """Return the table: per rank its kind of line, state, step, rate, newest values, and what it printed last."""
        ranks = range(self.run.world_size)
        columns = dict.fromkeys(name for row in self.rows.values() for name in row if name not in ("step", "time"))
        columns = list(columns)[:COLUMNS]
        printed = [self.run._read_output(rank, 400).rstrip().rsplit("\n", 1)[-1][-60:] for rank in ranks]
        heads = ["state", "step", "steps/s", *columns, *(["last printed"] if any(printed) else [])]
        rows = []
        for rank in ranks:
            row = self.rows.get(rank, {})
            rate = f"{self.rates[rank]:.0f}" if rank in self.rates else ""
            values = [_short(row.get(name, ""))[:24] for name in columns]
            cells = [self.run.rank_state(rank), row.get("step", ""), rate, *values, *([printed[rank]] * any(printed))]
            cells = "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells)
            line = f'<svg width="28" height="8"><path d="M0 4H28" {_stroke(rank)}/></svg>'
            rows.append(f'<tr><th scope="row">{line} rank {rank}</th>{cells}</tr>')
        head = "".join(f'<th scope="col">{html.escape(head)}</th>' for head in heads)
        return (
            f"<style>{STYLE}</style>"
            f'<div class="ddplab">{html.escape(self.run.summary())} for {time.time() - self.run.start:.1f} s'
            f"<table><tr><td></td>{head}</tr>{''.join(rows)}</table></div>"
        )

    def draw_curves(self) -> str:
        """Return the curves of what is logged as SVG in the notebook theme's colours."""
        columns = {name: ranks for name, ranks in self.points.items() if max(map(len, ranks.values())) > 1}
        if not columns:
            return ""
        each = max(12, DRAWN_POINTS // sum(map(len, columns.values())))
        charts = "".join(chart(name, columns[name], each, i * 300) for i, name in enumerate(list(columns)[:4]))
        width = 300 * min(4, len(columns))
        names = ", ".join(columns)
        return (
            f'<svg role="img" aria-label="curves of {html.escape(names)} against the step, one line per rank" '
            f'width="{width}" height="170" style="font:11px sans-serif">{charts}</svg>'
            '<div style="font-size:12px">Each logged value against the step, one line per rank.</div>'
        )

    # -------------------------------------------------------------- what stays

    def interrupted(self, where: list[str]) -> None:
        print("\n".join(where))

    def close(self) -> None:
        bundle = static_picture(self.run, alone=not self.blocks)
        if self.display is not None:
            self.display.update(bundle, raw=True)
        elif "image/png" in bundle:
            from IPython.display import display

            display(bundle, raw=True)
        if self.blocks:  # a thread's prints would land in whichever cell runs
            if self.display is None or "image/png" in bundle:  # else the summary stands there already
                print(self.run.summary())
            print_output(self.run)


def static_picture(run: Run, alone: bool = False) -> dict[str, str]:
    """Return what a saved notebook keeps of a panel: a picture of the curves, if any, and the same in words.

    alone: nothing is printed beside it, so it says itself how the run ended, and of a failure shows the words.
    """
    from ddplab.plots import curves, numeric_columns

    metrics = run.metrics
    words = [run.summary(), *(f"rank {rank}: {_last(metrics, rank)}" for rank in range(run.world_size) if metrics)]
    if alone and run.error:
        return {"text/plain": "\n".join([*words, f"{type(run.error).__name__}: {run.error}"])}
    bundle = {"text/plain": "\n".join(words)}
    names = [name for name in numeric_columns(metrics) if len(metrics.column(name)) > run.world_size][:4]
    if names:
        figure, buffer = curves(metrics, *names, width=4.0), io.BytesIO()
        if alone:
            figure.suptitle(run.summary(), y=1.04, fontsize=10)
        figure.savefig(buffer, dpi=100, format="png", bbox_inches="tight")
        bundle["image/png"] = b64encode(buffer.getvalue()).decode()
    return bundle


def _last(metrics: list[dict], rank: int) -> str:
    row = next((row for row in reversed(metrics) if row["rank"] == rank), None)
    if row is None:
        return "logged nothing"
    values = ", ".join(f"{k} {_short(v)}" for k, v in row.items() if k not in ("rank", "step", "time"))
    return f"step {row['step']}, {values}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _stroke(rank: int) -> str:
    """Return how a rank's line is drawn: later ranks thinner, so that lines on top of each other all show."""
    width = 2.6 - 0.4 * (rank % 4)
    return f'fill="none" stroke="{COLOURS[rank % 8]}" stroke-width="{width:.1f}" stroke-dasharray="{DASHES[rank % 4]}"'


def chart(name: str, ranks: dict[int, list], each: int, left: int, unit: str = "step", box: tuple = ()) -> str:
    """Return one chart. `box` (x from, x to, y from, y to) is for charts that share their axes."""
    thinned = {rank: points[:: len(points) // each + 1] + points[-1:] for rank, points in ranks.items()}
    xs = [x for points in thinned.values() for x, _ in points]
    ys = [y for points in thinned.values() for _, y in points]
    x0, x1, y0, y1 = box or (min(xs), max(xs), min(ys), max(ys))
    sx, sy = 230 / ((x1 - x0) or 1), 120 / ((y1 - y0) or 1)
    lines = "".join(
        f'<polyline {_stroke(rank)} points="'
        + " ".join(f"{left + 50 + (x - x0) * sx:.0f},{145 - (y - y0) * sy:.1f}" for x, y in points)
        + '"/>'
        for rank, points in thinned.items()
    )
    ink = 'fill="var(--jp-content-font-color1, #333)"'
    return (
        f'<text x="{left + 50}" y="14" font-weight="bold" {ink}>{html.escape(name)}</text>'
        f'<text x="{left + 45}" y="30" text-anchor="end" {ink}>{_short(y1)}</text>'
        f'<text x="{left + 45}" y="147" text-anchor="end" {ink}>{_short(y0)}</text>'
        f'<text x="{left + 50}" y="165" {ink}>{x0}</text>'
        f'<text x="{left + 280}" y="165" text-anchor="end" {ink}>{unit} {x1}</text>'
        f'<path d="M{left + 50} 22V148H{left + 282}" fill="none" stroke="var(--jp-border-color1, #999)"/>{lines}'
    )
