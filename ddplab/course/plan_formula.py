"""A planned step with its numbers filled in: what is divided by what, in which units, and how it lies in time.

Each line is a sum that can be redone by hand; a test does so. The symbols are the usual ones, ⌈…⌉ rounds up.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from ddplab.course import plan
from ddplab.course.plan import BACKWARD, BUCKET, WAITING, Link, Plan

UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "GB": 1e9, "MB": 1e6, "GB/s": 1e9, "%": 0.01}


class Line(NamedTuple):
    """A line of the formula: what it is, the sum, and what comes out."""

    name: str
    sum: str
    result: str

    def __str__(self) -> str:
        return f"{self.name:18} = {self.sum} = {self.result}"


def amount(value: float, unit: str) -> str:
    """A number in its unit, to four digits: `amount(0.02953, "ms")` is "29.53 ms"."""
    return f"{_number(value / UNITS[unit])} {unit}"


def _number(value: float) -> str:
    digits = 3 - sum(value >= ten for ten in (10, 100, 1000))
    return f"{value:,.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:,.0f}"


def formula(found: Plan, parameters: float, tokens: float, each: float, utilisation: float = 0.4) -> list[Line]:
    """Return the lines of a planned step of a transformer, from its compute to its days.

    parameters: of the model. tokens: to train on. each: tokens of a sample. utilisation: the part of the peak that is
    reached. The machine must know its peak, and hide messages.
    """
    step, gpus, size = found.step, found.gpus, found.memory.gradients
    count = ceil(size / BUCKET)
    one, bucket = amount(step.communication / count, "ms"), amount(size / count, "MB")
    compute, late, total = amount(step.compute, "ms"), amount(step.waiting, "ms"), amount(step.seconds, "ms")
    sent, backward = amount(step.communication, "ms"), BACKWARD * (step.compute + step.waiting)
    whole, room = amount(backward, "ms"), amount(backward * (count - 1) / count, "ms")
    exposed, speed = amount(step.exposed, "ms"), f"{found.throughput:,.1f} samples/s"
    work = f"6 operations × {parameters / 1e9:g}e9 parameters × {found.batch:g} samples × {each:g} tokens"
    peak = f"({100 * utilisation:g} % × {found.machine.flops / 1e12:g}e12 operations/s)"
    return [
        Line("compute", f"{work} ÷ {peak}", compute),
        Line("the latest is late", f"{100 * WAITING:g} % × √(2 × ln {gpus}) × {compute}", late),
        Line("gradients", f"{parameters / 1e9:g}e9 parameters × {size / parameters:g} bytes", amount(size, "GB")),
        Line("buckets", f"⌈{amount(size, 'GB')} ÷ {amount(BUCKET, 'MB')}⌉", f"{count}, each {bucket}"),
        *_all_reduce(found, size / count, bucket, one),
        Line("all messages", f"{count} × {one}", sent),
        Line("backward", f"2 ÷ 3 × ({compute} + {late})", whole),
        Line("room, from bucket 0", f"{count - 1} ÷ {count} × {whole}", room),
        Line("exposed", f"max({sent} − {room}, {one})", exposed),
        Line("a step", f"{compute} + {late} + {exposed}", total),
        Line("speed", f"{gpus} GPU{'s' * (gpus > 1)} × {found.batch:g} samples ÷ {total}", speed),
        Line("efficiency", f"{compute} ÷ {total}", f"{100 * found.efficiency:.1f} %"),
        Line("days", f"{tokens / 1e9:g}e9 ÷ {each:g} samples ÷ {speed} ÷ 86,400", _number(found.days(tokens / each))),
    ]


def _all_reduce(found: Plan, size: float, bucket: str, one: str) -> list[Line]:
    """The sum for one bucket: one ring through all GPUs or two levels, as `Machine.all_reduce` chooses."""
    gpus, machine = found.gpus, found.machine
    within, across, inside = machine.within, machine.across, machine.gpus
    if gpus <= inside or across is None:
        return [Line("one bucket", _ring(gpus, within, bucket), one)]
    slowest = Link("", max(within.alpha, across.alpha), min(within.bandwidth, across.bandwidth))
    nodes = gpus // inside
    if plan.ring(size, gpus, slowest) <= plan.hierarchical(size, nodes, inside, within, across):
        return [Line("one bucket", _ring(gpus, slowest, bucket), one)]
    first, then = amount(plan.ring(size, inside, within), "ms"), amount(plan.ring(size, nodes, across), "ms")
    return [
        Line("inside each node", _ring(inside, within, bucket), first),
        Line(f"across {nodes} nodes", _ring(nodes, across, bucket), then),
        Line("one bucket", f"{first} + {then}", one),
    ]


def _ring(ranks: int, link: Link, bucket: str) -> str:
    messages = f"2 × {ranks - 1} messages × {amount(link.alpha, 'µs')}"
    return f"{messages} + 2 × {ranks - 1} ÷ {ranks} × {bucket} ÷ {amount(link.bandwidth, 'GB/s')}"


def in_time(found: Plan) -> dict[str, float]:
    """How the step lies in time, in milliseconds: forward, backward, waiting and exposed, and the hidden messages."""
    step = found.step
    forward = (1 - BACKWARD) * step.compute
    parts = {"forward": forward, "backward": step.compute - forward, "waiting": step.waiting, "exposed": step.exposed}
    return {name: 1e3 * part for name, part in {**parts, "hidden": step.communication - step.exposed}.items()}
