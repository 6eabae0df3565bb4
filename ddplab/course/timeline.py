"""Where the time of a step goes: torch's own profiler records it on every rank, and here it becomes rows and a picture.

    with record() as rows:  # on every rank; `rows` is filled when the block ends
        for x, y in batches:
            with phase("forward"):
                loss = ...
            with phase("backward"):
                loss.backward()

`lane` draws the rows of a rank, `parts` adds them up. A row is a phase, which you mark; or computation or
communication, which the profiler sees by itself. Communication during which the rank computes nothing is *exposed*: it
makes the step longer. The rest is *hidden*.
"""

from __future__ import annotations

import json
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from ddplab.plots import COLOURS, INK, ON_COLOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

MARK = "phase: "  # how a phase begins its name in the trace
BYTES = {"float": 4, "double": 8, "half": 2, "bfloat16": 2, "long": 8, "int": 4}  # of a number, by the trace's names
Span = tuple[float, float]


class Row(NamedTuple):
    """Something that took time on a rank."""

    kind: str  # "phase", "compute" or "communication"
    name: str  # "forward", "aten::mm", "gloo:all_reduce"
    start: float  # milliseconds, on the clock that all ranks of this machine share
    end: float
    where: str  # the thread that did it, or the GPU's stream
    bytes: int = 0  # of what the rank put into a message


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Mark a part of the step: "data", "forward", "backward", "optimiser", or a name of your own.

    On a GPU it waits at the end until the GPU has done what the phase asked for; otherwise the phase would only be the
    asking. That costs a little speed.
    """
    with record_function(MARK + name):
        yield
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()


@contextmanager
def record(trace: str | Path | None = None) -> Iterator[list[Row]]:
    """Record what this rank does in the block. Gives a list that holds the rows, in order, once the block has ended.

    All ranks must come here, since they begin together. Do a few steps before: the first ones are of another kind.

    trace: a file for the whole recording, in Chrome's format; https://ui.perfetto.dev opens it. One for each rank.
    """
    rows: list[Row] = []
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_initialized()
    with profile(activities=kinds, record_shapes=True) as profiler:
        if dist.is_initialized():
            dist.barrier()  # the profiler itself takes a while to start, and not on all ranks the same
        yield rows
        time.sleep(0.05)  # gloo's threads stop their watches a moment after the last message is back
    with tempfile.TemporaryDirectory() as folder:
        path = Path(trace or f"{folder}/trace.json")
        profiler.export_chrome_trace(str(path))
        rows += read(json.loads(path.read_text()))


def read(trace: dict[str, Any]) -> list[Row]:
    """The rows in a trace in Chrome's format: all phases, and the work between the first begin and the last end.

    On the CPU computation is what torch's operations do on the thread that has the phases. Where there are kernels of
    a GPU, they are the computation, and NCCL's among them the communication.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    base = trace.get("baseTimeNanoseconds", 0)
    on_gpu = any(event.get("cat") == "kernel" for event in events)
    threads = {event["tid"] for event in events if event["name"].startswith(MARK)}
    rows = [_row(event, base, on_gpu, threads) for event in events]
    rows = sorted((row for row in rows if row), key=lambda row: (row.start, -row.end))
    phases = [row for row in rows if row.kind == "phase"]
    if not phases:
        return []
    begin, end, inner = phases[0].start, max(row.end for row in phases), 0.0
    kept = []
    for row in rows:
        if row.kind == "compute":
            if row.end <= inner:
                continue  # a part of the operation before it
            inner = row.end
        if begin <= row.start < end:
            kept.append(_without_tail(row, phases))
    return kept


def _row(event: dict[str, Any], base: int, on_gpu: bool, threads: set[Any]) -> Row | None:
    """An event of the trace as a row; None for one that we have no use for."""
    name, category, arguments = event["name"], event.get("cat"), event.get("args", {})
    if name.startswith(MARK) and category == "user_annotation":
        kind, name = "phase", name.removeprefix(MARK)
    elif name.startswith("gloo:") or (category == "kernel" and name.startswith("nccl")):
        kind = "communication"
    elif category == ("kernel" if on_gpu else "cpu_op") and (on_gpu or event["tid"] in threads):
        kind = "compute"
    else:
        return None
    start = base / 1e6 + event["ts"] / 1e3
    where = f"stream {arguments['stream']}" if "stream" in arguments else f"thread {event['tid']}"
    return Row(
        kind, name, start, start + event["dur"] / 1e3, where, _bytes(arguments) if kind == "communication" else 0
    )


def _bytes(arguments: dict[str, Any]) -> int:
    """How much a rank put into a message. Gloo's events name tensors and their kinds, NCCL's a number of numbers."""
    if "In msg nelems" in arguments:
        return arguments["In msg nelems"] * BYTES.get(arguments["dtype"].lower(), 0)
    pairs = zip(arguments.get("Input type", []), arguments.get("Input Dims", []), strict=False)
    return sum(prod(size) * BYTES.get(kind.split("::")[-1].lower(), 0) for kind, size in pairs if size)


def _without_tail(row: Row, phases: list[Row]) -> Row:
    """Cut a message that seems to outlast its backward: DDP's `backward()` returns when all have arrived.

    Gloo's thread tells the rank first and stops its watch after that; where it has to share a core, that may be late.
    """
    ends = [p.end for p in phases if p.name == "backward" and p.start <= row.start < p.end]
    return row._replace(end=min([row.end, *ends])) if row.kind == "communication" else row


# ------------------------------------------------------------------ sums


def parts(rows: Sequence[Row]) -> dict[str, float]:
    """Milliseconds of each phase without what it waited, then "exposed" and "between" (outside of all phases).

    Together they are the time from the first phase's begin to the last one's end.
    """
    phases = [row for row in rows if row.kind == "phase"]
    whole = [(min(row.start for row in phases), max(row.end for row in phases))]
    waiting = exposed(rows)
    sums = {name: length(spans) for name, spans in _working(phases, waiting).items()}
    outside = _without(_without(whole, waiting), _merged(row[2:4] for row in phases))
    return {**sums, "exposed": length(waiting), "between": length(outside)}


def _working(rows: Sequence[Row], waiting: list[Span]) -> dict[str, list[Span]]:
    """When it was in each phase, and did not wait."""
    phases = [row for row in rows if row.kind == "phase"]
    spans = {
        name: _merged(row[2:4] for row in phases if row.name == name) for name in dict.fromkeys(r.name for r in phases)
    }
    return {name: _without(its, waiting) for name, its in spans.items()}


def exposed(rows: Sequence[Row]) -> list[Span]:
    """When something was on its way and the rank computed nothing: a list of (start, end)."""
    compute = _merged(row[2:4] for row in rows if row.kind == "compute")
    return _without(_merged(row[2:4] for row in rows if row.kind == "communication"), compute)


def hidden(rows: Sequence[Row]) -> list[Span]:
    """When something was on its way while the rank computed: a list of (start, end)."""
    return _without(_merged(row[2:4] for row in rows if row.kind == "communication"), exposed(rows))


def length(spans: Iterable[Span]) -> float:
    """How long several spans are together."""
    return sum(end - start for start, end in spans)


def _merged(spans: Iterable[Span]) -> list[Span]:
    """The same times, in order, and none twice."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _without(spans: list[Span], others: list[Span]) -> list[Span]:
    """What of `spans` lies in none of `others`. Both as `_merged` gives them."""
    for a, b in others:
        spans = [
            piece
            for start, end in spans
            for piece in ((start, min(end, a)), (max(start, b), end))
            if piece[0] < piece[1]
        ]
    return spans


# ------------------------------------------------------------------ the picture

BARS = {  # colour and hatch of a bar; a phase with a name of its own gets the last
    "data": (COLOURS[1], "..."),
    "forward": (COLOURS[0], ""),
    "backward": (COLOURS[2], "///"),
    "optimiser": (COLOURS[3], "xxx"),
    "": (COLOURS[4], "++"),
    "hidden communication": ("none", ""),
    "exposed communication": (INK, ""),
}


def lane(rows: Sequence[Row], begin: float, end: float) -> str:
    """Return what a rank did between two moments, as an image in HTML: what `parts` adds up, in the order of time.

    Above, its phases, each without what it waited, and grey where it waits; below, thin, what of messages is hidden.
    """
    waiting, drawn = exposed(rows), ""
    looks = {name: (spans, BARS.get(name, BARS[""])[0]) for name, spans in _working(rows, waiting).items()}
    for name, (spans, colour) in {**looks, "waits": (waiting, COLOURS[7])}.items():
        for start, stop in spans:
            left, wide = 100 * (start - begin) / (end - begin), 100 * (stop - start) / (end - begin)
            drawn += f'<rect x="{left:.2f}%" width="{wide:.2f}%" height="15" fill="{colour}"/>'
            if wide > 1.4 * len(name):  # there is room for it
                drawn += (
                    f'<text x="{left + wide / 2:.2f}%" y="11.5" text-anchor="middle" fill="{ON_COLOUR}">{name}</text>'
                )
    for start, stop in hidden(rows):
        left, wide = 100 * (start - begin) / (end - begin), 100 * (stop - start) / (end - begin)
        drawn += f'<rect x="{left:.2f}%" width="{wide:.2f}%" y="16.5" height="3" fill="none" stroke="{INK}"/>'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" height="20" style="font:11px sans-serif">{drawn}</svg>'
    took = ", ".join(f"{name} {ms:.0f} ms" for name, ms in parts(rows).items())
    source = b64encode(svg.encode()).decode()
    return f'<img alt="{took}" style="display:block;width:400px;height:20px" src="data:image/svg+xml;base64,{source}"/>'


def draw_on(axis: Axes, rows_per_rank: Sequence[Sequence[Row]], title: str) -> list[Patch]:
    """Draw what each rank did, from the axes' zero on: phases above, communication below, empty where hidden.

    rows_per_rank: what `record` gave on each rank, the `results` of a launch. Returns what a legend has to show.
    """
    from matplotlib.patches import Patch

    begin = min((row.start for rows in rows_per_rank for row in rows), default=0.0)
    used: dict[str, Patch] = {}
    for rank, rows in enumerate(rows_per_rank):
        bars = [(row.name, [row[2:4]], rank - 0.34) for row in rows if row.kind == "phase"]
        bars.append(("hidden communication", hidden(rows), rank + 0.06))
        bars.append(("exposed communication", exposed(rows), rank + 0.06))
        for name, spans, top in bars:
            colour, hatch = BARS.get(name, BARS[""])
            look = {"facecolor": colour, "hatch": hatch, "edgecolor": ON_COLOUR if hatch else INK, "linewidth": 0.5}
            axis.broken_barh([(start - begin, end - start) for start, end in spans], (top, 0.32), **look)
            used.setdefault(name, Patch(label=name, **look))
    ranks = range(len(rows_per_rank))
    axis.set(title=title, yticks=ranks, yticklabels=[f"rank {rank}" for rank in ranks])
    axis.set_ylim(len(ranks) - 0.5, -0.5)
    return list(used.values())
