"""What the pager's probes say of a rank, in lines of text, out of what the black boxes of a run have recorded."""

from __future__ import annotations

import re

from ddplab.course.faults import RANKS
from ddplab.course.incident_runs import Outcome, by_epoch, last_night

SHOWN = 8  # the latest calls, the first rows
LIBRARIES = r"^.*/(?=((torch|python3\.\d+)/|train\.py$))"  # what stands before the part of a path that is shown
HOW = {"": "stands", "returned": "was last", "raised": "raised", "aborted": "was ended from C++"}


def stack(rank: int, outcome: Outcome, script: dict[int, str]) -> list[str]:
    """Where it stands, or stood at its end, and where it was found most often."""
    box = outcome.boxes[rank]
    looks = box.get("looks", [])
    lines = [f"rank {rank} {HOW[box.get('ended', '')]} here, innermost first:"]
    for file, line, name in box.get("stack", []):
        own = f"  {_text(script, line)}" if file.endswith("train.py") else ""
        lines.append(f"    {name} ({re.sub(LIBRARIES, '', file)}:{line}){own}")
    lines.append(f"of {sum(many for _, many in looks)} looks, one each 25 ms, it was found")
    return lines + [f"    {many:4} at line {n}: {_text(script, n)}" for n, many in looks[:4]]


def flight(rank: int, outcome: Outcome, script: dict[int, str]) -> list[str]:
    """Its latest collectives: the number, the call, the shapes, and the line of the script.

    Of a single number also its value, and what it was last night where that was another.
    """
    calls = outcome.boxes[rank].get("calls", [])
    if not calls:
        return [f"rank {rank} has called no collective yet"]
    before = {(n, name): value for n, name, *_, value in last_night().boxes[rank]["calls"] if value is not None}
    lines = [f"rank {rank} has called {len(calls)} collectives, the latest:"]
    for number, name, shapes, n, value in calls[-SHOWN:]:
        brought = " ".join(str(tuple(shape)) for shape in shapes) + (f" = {value:g}" if value is not None else "")
        if value is not None and before.get((number, name), value) != value:
            brought += f", last night {before[number, name]:g}"
        lines.append(f"    {number:3}  {name:10} {brought:9} line {n}: {_text(script, n)}")
    return lines


def memory(rank: int, outcome: Outcome, script: dict[int, str]) -> list[str]:
    """The bytes that it holds on each virtual GPU, before each epoch and at the end, and the most it ever held."""
    box = outcome.boxes[rank]
    held = [
        *zip(_moments(rank, outcome, "memory"), box.get("memory", []), strict=True),
        ("at most", box.get("peak", [])),
    ]
    heads = f"rank {rank}, bytes on    " + "".join(f"{f'vgpu:{n}':>10}" for n in range(RANKS))
    return [heads, *(f"    {name:16}" + "".join(f"{it:>10,}" for it in row) for name, row in held)]


def rows(rank: int, outcome: Outcome, script: dict[int, str]) -> list[str]:
    """The rows that it has fetched to train on, epoch for epoch: how many, the first and the last."""
    of = [by_epoch(box) for box in outcome.boxes]
    lines = [f"rank {rank} has fetched"]
    for epoch, mine in of[rank].items():
        others = {row for other in range(RANKS) if other != rank for row in of[other].get(epoch, [])}
        shared = sum(row in others for row in mine)
        first, last = (" ".join(map(str, some)) for some in (mine[:SHOWN], mine[-SHOWN:]))
        lines.append(f"    epoch {epoch}: {len(mine)} rows, {shared} of them on other ranks too; the first: {first}")
        lines.append(f"             the last: {last}")
    return lines


def weights(rank: int, outcome: Outcome, script: dict[int, str]) -> list[str]:
    """The norm of its weights, how far they have moved since, and the norm of the latest gradient; and last night's."""
    now, then = (run.boxes[rank].get("weights", []) for run in (outcome, last_night()))
    heads = "      norm  moved by  gradient"
    lines = [f"rank {rank}, net.parameters()", f"    {'':16}{heads}  last night{heads}"]
    for name, a, b in zip(_moments(rank, outcome, "weights"), now, then, strict=False):
        mine, before = ("".join(f"{it:>10.4f}" for it in numbers) for numbers in (a, b))
        lines.append(f"    {name:16}{mine}{'':12}{before}")
    return lines


def _moments(rank: int, outcome: Outcome, kind: str) -> list[str]:
    box = outcome.boxes[rank]
    names = [f"before epoch {n}" for n in range(len(box.get(kind, [])))]
    return [*names[:-1], "at the end"] if box.get("ended") in ("returned", "raised") else names


def _text(script: dict[int, str], line: int) -> str:
    return script.get(line, "").strip()
