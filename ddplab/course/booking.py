"""Book a cluster for one job, against a rival: what the plan says, and simulated days on which it is a bit off.

The job, the price list and the fine are made up. The arithmetic is `ddplab.course.plan`'s, and the machines are of its
table. On a simulated day each of four numbers that the plan takes for granted is up to a quarter less or more, each
value as likely as any other: how fast a GPU computes, the bandwidth and the alpha of all connections, and how much
ranks wait for the latest. A day is the same for everybody.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import product
from random import Random
from typing import TYPE_CHECKING

from ddplab.course.plan import MACHINES, WAITING, Plan, plan_training, step, transformer_seconds
from ddplab.plots import COLOURS, INK, MARKERS, drawing
from ddplab.pointer import pointing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARAMETERS, TOKENS, SEQUENCE = 1.3e9, 20e9, 1024  # of the job: a transformer, what it reads, and a sample's length
ACTIVATIONS = 1e9  # bytes a sample
MOST = 512  # samples in a step of all GPUs together
HOURS = 24.0  # until it must be ready
FINE = 40.0  # dollars for each hour that it is late
PRICES = {  # dollars for a GPU and an hour
    "8 A100, PCIe, 10 Gb Ethernet": 2.0,
    "8 A100, PCIe, 100 Gb Ethernet": 2.5,
    "8 A100, NVLink, 4x100 Gb EFA": 4.0,
}
OFFERED = {
    "machine": tuple(PRICES),
    "gpus": (8, 16, 32, 64, 128),
    "batch": (1, 2, 4, 8, 16, 32, 64),
}
DAYS = 200
OFF = 0.25  # by which part a number may be off, on a simulated day


@dataclass(frozen=True)
class Booking:
    """What somebody has booked: machine, GPUs and samples on each of them. The optimiser is Adam, in bf16."""

    machine: str
    gpus: int
    batch: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value, offered = getattr(self, field.name), OFFERED[field.name]
            if value not in offered:
                raise ValueError(f"{field.name} is {value!r}; it must be one of {', '.join(map(repr, offered))}")

    @property
    def plan(self) -> Plan:
        """What the plan says of it."""
        machine = MACHINES[self.machine]
        compute = transformer_seconds(PARAMETERS, SEQUENCE * self.batch, machine)
        held = ACTIVATIONS * self.batch
        return plan_training(PARAMETERS, self.batch, self.gpus, machine, compute, "adam", "bf16", held)

    @property
    def refused(self) -> str | None:
        """Why it cannot be booked: too much for a step or a card, or the plan does not know; None where it can be."""
        found = self.plan
        if self.gpus * self.batch > MOST:
            return f"{self.gpus * self.batch:,} samples a step; {MOST} are the most"
        if not found.fits:
            return f"{found.memory.total / 1e9:.0f} GB on a card of {found.machine.memory / 1e9:.0f}"
        return f"the plan cannot say, {found.unknown}" if found.unknown else None

    def on_paper(self) -> tuple[float, float]:
        """Hours and dollars, by the plan."""
        return self._comes_to(self.plan.step.seconds)

    def played(self, days: int = DAYS) -> list[tuple[float, float]]:
        """Hours and dollars of each simulated day."""
        return [self._comes_to(self._a_day(Random(day))) for day in range(days)]

    def _a_day(self, dice: Random) -> float:
        speed, bandwidth, alpha, waiting = (dice.uniform(1 - OFF, 1 + OFF) for _ in range(4))
        found, machine = self.plan, MACHINES[self.machine].scaled(alpha, bandwidth)
        compute = found.step.compute / speed
        return step(compute, found.memory.gradients, self.gpus, machine, waiting=waiting * WAITING).seconds

    def _comes_to(self, seconds: float) -> tuple[float, float]:
        hours = TOKENS / SEQUENCE / (self.gpus * self.batch) * seconds / 3600
        return hours, hours * self.gpus * PRICES[self.machine] + FINE * max(0.0, hours - HOURS)

    def __str__(self) -> str:
        return f"{self.gpus} GPUs, {self.machine.split(', ', 1)[1]}, {self.batch} samples each"


def playable() -> list[Booking]:
    """Return every booking of the lists that is not refused."""
    return [it for it in (Booking(*chosen) for chosen in product(*OFFERED.values())) if not it.refused]


@pointing
def cheapest() -> Booking:
    """Return the booking that costs least of those that are in time, on paper."""
    return min((it for it in playable() if it.on_paper()[0] <= HOURS), key=lambda it: it.on_paper()[1])


def mean_bill(booking: Booking) -> float:
    """Return the dollars that a booking costs on a simulated day, on average."""
    return sum(dollars for _, dollars in booking.played()) / DAYS


@pointing
def bills(**bookings: Booking) -> tuple[str, Figure]:
    """Return what each booking comes to, on paper and on the simulated days, in words and drawn: hours and dollars.

    Of two that can be booked, the last line names the winner, whose bill is lower on average.
    """
    words, means = [], {}
    with drawing(8, 3.8) as figure:
        axis = figure.subplots()
        for n, (name, it) in enumerate(bookings.items()):
            words.append(f"{name}: {it}")
            if it.refused:
                words.append(f"{'':{len(name)}}  refused: {it.refused}")
                continue
            (hours, dollars), days = it.on_paper(), it.played()
            late = sum(of > HOURS for of, _ in days)
            words.append(f"{'':{len(name)}}  on paper {hours:.1f} hours, {dollars:,.0f} $")
            means[name] = sum(bill for _, bill in days) / DAYS
            told = f"late on {late} of {DAYS} simulated days; on average a bill is {means[name]:,.0f} $"
            words.append(f"{'':{len(name)}}  {told}")
            axis.plot(*zip(*days, strict=True), MARKERS[n], color=COLOURS[n], markersize=4, alpha=0.4)
            axis.plot(hours, dollars, MARKERS[n], color=COLOURS[n], markersize=12, markeredgecolor=INK, label=name)
        axis.axvline(HOURS, color=INK, linestyle="--", linewidth=1)
        axis.set(xlabel="hours until it is ready", ylabel="the bill, dollars", xlim=(0, None))
        if axis.get_legend_handles_labels()[0]:
            axis.legend(loc="lower right")
    if len(means) == 2:
        less, more = sorted(means, key=means.get)
        words.append(f"The winner, on average: {less}, by {means[more] - means[less]:,.0f} $")
    return "\n".join(words), figure
