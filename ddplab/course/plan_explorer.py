"""The planner as a widget: choose a model, a batch, GPUs and a machine, and see speed, memory and days.

Beneath the table is the step of a row, as a timeline and as a formula. All the arithmetic is in `ddplab.course.plan`.
Where nobody can press a key, the same table is printed, and the formula.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from ddplab.course.controls import choices, widget
from ddplab.course.plan import MACHINES, PRECISION, STATE, Plan, plan_training, transformer_seconds
from ddplab.course.plan_formula import Line, formula, in_time
from ddplab.course.step_explorer import PHASE_COLOURS
from ddplab.pointer import pointing
from ddplab.screen import show
from ddplab.tables import html_table, text_table

SIZES = {"124 M": 124e6, "350 M": 350e6, "1.3 B": 1.3e9, "2.7 B": 2.7e9, "7 B": 7e9, "13 B": 13e9}
CHOICES = {  # field → what its list offers
    "model": tuple(SIZES),
    "batch": (1, 2, 4, 8, 16, 32, 64),
    "gpus": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    "machine": tuple(name for name, machine in MACHINES.items() if machine.flops),
    "optimizer": tuple(STATE),
    "precision": tuple(PRECISION),
    "activations": (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
    "tokens": (1.0, 10.0, 100.0, 1000.0),
}
LABELS = {"gpus": "GPUs", "optimizer": "optimiser", "activations": "GB a sample", "tokens": "10⁹ tokens"}
SHOWN = (1, 8, 64, 512)  # beside the number that was chosen
SEQUENCE = 1024  # tokens of a sample
HEADS = ("GPUs", "samples/s", "efficiency", "", "step ms", "exposed ms", "GB, no buckets", "fits", "days")


@dataclass
class Planner:
    """What was chosen. A live notebook shows lists and a table, everything else prints the table."""

    model: str = "1.3 B"
    batch: int = 8
    gpus: int = 64
    machine: str = CHOICES["machine"][0]
    optimizer: str = "adam"
    precision: str = "bf16"
    activations: float = 1.0  # GB a sample
    tokens: float = 100.0  # billions to train on

    def plan(self, gpus: int | None = None) -> Plan:
        """Plan what was chosen, with `gpus` GPUs if given."""
        parameters, machine = SIZES[self.model], MACHINES[self.machine]
        compute = transformer_seconds(parameters, SEQUENCE * self.batch, machine)
        held = 1e9 * self.activations * self.batch
        return plan_training(
            parameters, self.batch, gpus or self.gpus, machine, compute, self.optimizer, self.precision, held
        )

    def rows(self) -> list[list[str]]:
        """One row for each number of GPUs, the chosen one marked."""
        return [self._row(n) for n in sorted({*SHOWN, self.gpus})]

    def _row(self, gpus: int) -> list[str]:
        found = self.plan(gpus)
        speed = [
            f"{found.throughput:,.1f}",
            f"{found.efficiency:.0%}",
            f"{'█' * round(10 * found.efficiency):<10}",
            f"{found.step.seconds * 1e3:,.0f}",
            f"{found.step.exposed * 1e3:,.0f}",
        ]
        days = f"{found.days(1e9 * self.tokens / SEQUENCE):,.1f}"
        if found.unknown:
            speed, days = ["?", "do not know", "", "?", "?"], "?"
        arrow = "→ " if gpus == self.gpus else ""
        held = [f"{found.memory.total / 1e9:,.1f}", self._fits()]
        return [f"{arrow}{gpus}", *speed, *held, days]

    def formula(self, gpus: int | None = None) -> list[Line]:
        """The step's formula with the numbers of a row filled in, the chosen one if none is given."""
        return formula(self.plan(gpus), SIZES[self.model], 1e9 * self.tokens, SEQUENCE)

    def _fits(self) -> str:
        """Whether it fits: with DDP each GPU holds as much, however many there are."""
        found = self.plan()
        beside = found.memory.total + found.memory.gradients
        return "no" if not found.fits else "yes" if beside <= found.machine.memory else "barely"

    def doubts(self) -> list[str]:
        """Why there is no speed in a row, once for all rows that have none; and what fits barely."""
        doubts = sorted({f"do not know: {why}" for n in {*SHOWN, self.gpus} if (why := self.plan(n).unknown)})
        if self._fits() == "barely":
            doubts.append("fits barely: no room for DDP's buckets, which are as large as the gradients")
        return doubts

    def __str__(self) -> str:
        lines = [self._title(), text_table(HEADS, self.rows()), *self.doubts()]
        if self.plan().unknown is None:
            its = self.plan().step
            computes, exposed = (round(30 * part / its.seconds) for part in (its.seconds - its.exposed, its.exposed))
            lines += ["", f"→ {_gpus(self.gpus)}, {1e3 * its.seconds:,.0f} ms: {'█' * computes}{'░' * exposed}"]
        return "\n".join(lines)

    __repr__ = __str__

    def _title(self) -> str:
        return (
            f"{self.model} parameters, {self.batch} x {SEQUENCE} tokens a GPU, {self.optimizer}, {self.precision}, "
            f"{self.activations:g} GB of activations a sample, on {self.machine}; {self.tokens:g} billion tokens"
        )

    def _ipython_display_(self) -> None:
        show(self, self._widget)

    def _widget(self) -> Any:
        """Eight lists to choose from (Tab reaches them, the arrow keys choose), the table, and the step of a row."""
        import ipywidgets

        page = ipywidgets.HTML(self._page())
        steps = widget("plan", shown=self._steps(), looks=PHASE_COLOURS)

        def choose(values: dict[str, Any]) -> None:
            for field in CHOICES:
                setattr(self, field, values[LABELS.get(field, field)])
            page.value = self._page()
            steps.shown = self._steps()

        offered = {LABELS.get(field, field): options for field, options in CHOICES.items()}
        chosen = {LABELS.get(field, field): getattr(self, field) for field in CHOICES}
        return ipywidgets.VBox([choices(offered, chosen, choose), page, steps])

    def _chosen(self) -> int:
        return sorted({*SHOWN, self.gpus}).index(self.gpus)

    def _steps(self) -> dict[str, Any]:
        """What `plan.js` draws: of each row its name, why it is not known or None, its parts in time, its formula."""
        plans = [self.plan(n) for n in sorted({*SHOWN, self.gpus})]
        rows = [[_gpus(it.gpus), it.unknown, in_time(it), list(map(list, self.formula(it.gpus)))] for it in plans]
        return {"chosen": self._chosen(), "rows": rows}

    def _page(self) -> str:
        rows, chosen = self.rows(), self._chosen()
        table = html_table(HEADS, rows, bold=chosen)
        return (  # as high with a fifth row and a doubt as without: the page does not jump
            '<div style="min-height: 260px">'
            f'<div role="status" style="min-height: 3em">{html.escape(self._title())}.</div>{table}'
            f"<div>{html.escape('; '.join(self.doubts()))}</div>"
            "<div>The arrow marks your choice. Computing runs at bf16's speed, whatever the precision.</div></div>"
        )


def _gpus(number: int) -> str:
    return f"{number} GPU{'s' * (number > 1)}"


@pointing
def planner(**chosen: Any) -> Planner:
    """Plan the training of a transformer on N GPUs, and play with it.

    chosen: where to begin: model ("124 M" to "13 B"), batch (samples a GPU), gpus, machine (a name in
        `ddplab.course.plan.MACHINES`), optimizer, precision, activations (GB a sample), tokens (billions).

    Computing is taken to run at 40 % of the GPU's bf16 peak; precision changes what is held and sent. Where the plan
    does not know, a row says so, and a line beneath says why.

    In a live notebook each of these is a list to choose from; elsewhere the result is a table. Raises ValueError for a
    choice that no list has, TypeError for a name that none has.
    """
    found = Planner(**chosen)
    for field, options in CHOICES.items():
        if getattr(found, field) not in options:
            raise ValueError(f"{field} is {getattr(found, field)!r}; it must be one of {', '.join(map(repr, options))}")
    return found
