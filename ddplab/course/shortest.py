"""The shortest program: scripts whose lines a learner strikes out. Lights tell what each has been for.

A line with a name is a switch. What stays of the third program is run by two real processes, which torch knows as
launched by torchrun; what stays of the first two, by torch's own DataParallel on virtual GPUs.
"""

from __future__ import annotations

import copy
import os
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ddplab import screen
from ddplab.course.controls import widget
from ddplab.course.data import digits
from ddplab.course.models import MLP
from ddplab.launcher import launch
from ddplab.pointer import pointing
from ddplab.run import RankError
from ddplab.vgpu import virtual_gpus

DIGITS, EPOCHS = 33, 6
NUMBERS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PROGRAM = (  # the name of a line's switch, and the line
    ("numbers", "export RANK=… WORLD_SIZE=2 MASTER_ADDR=… MASTER_PORT=…"),
    ("seed", "torch.manual_seed(0)"),
    ("group", 'dist.init_process_group("gloo")'),
    ("", "net = model = MLP()"),
    ("", "sampler, drop = None, False"),
    ("DDP", "model = DDP(net)"),
    ("", "optimizer = SGD({source}.parameters(), lr=0.5)"),
    ("drop_last", "drop = True"),
    ("sampler", "sampler = DistributedSampler(data, drop_last=drop)"),
    ("", f"for epoch in range({EPOCHS}):"),
    ("set_epoch", "    sampler.set_epoch(epoch)"),
    ("", "    for images, labels in DataLoader(data, 8, sampler=sampler):"),
    ("", "        optimizer.zero_grad()"),
    ("", "        cross_entropy(model(images), labels).backward()"),
    ("", "        optimizer.step()"),
    ("destroy", "dist.destroy_process_group()"),
)
PASTED = (  # the text's first two programs, the second after the first
    ("", "model = MLP()"),
    ("model.to", "model = model.to(gpu)"),
    ("wrap", "model = DataParallel(model)"),
    ("", "sampler = None"),
    ("sampler", "sampler = DistributedSampler(data, num_replicas=gpus, rank=0)"),
    ("", "optimizer = SGD(model.parameters(), lr=0.5)"),
    ("", f"for epoch in range({EPOCHS}):"),
    ("", "    for images, labels in DataLoader(data, 32, sampler=sampler):"),
    ("images.to", "        images = images.to(gpu)"),
    ("labels.to", "        labels = labels.to(gpu)"),
    ("", "        optimizer.zero_grad()"),
    ("", "        loss = cross_entropy(model(images), labels)"),
    ("", "        loss.backward()"),
    ("", "        optimizer.step()"),
)
NAMES = tuple(name for name, _ in PROGRAM if name)
SOURCES = {"model": "model", "net": "net", "a copy of net": "deepcopy(net)"}
LIGHTS = (
    "both ranks end without an error",
    "their weights have moved",
    "both have the same weights",
    "every digit was served",
    "they share the work",
)
DEALT = ("it ends without an error", "its loss falls", "every digit was served", "every GPU computes")
MEASURED = {  # what a fifth light could tell, and when it is on
    "the loss falls on both ranks": lambda it: all(sum(mine[-2:]) < sum(mine[:2]) for mine in it.losses),
    "both ranks are in one group": lambda it: it.met,
    "no digit is served twice in an epoch": lambda it: not it.twice,
    "no rank computes more than half of the digits": lambda it: it.shares,
}
JUDGED = (  # a program, what is struck out of it, and whether a good light is on
    ("the whole program", (), True),
    ("without drop_last", ("drop_last",), True),
    ("only seed", tuple(name for name in NAMES if name != "seed"), False),
    ("only numbers, group, DDP", tuple(name for name in NAMES if name not in {"numbers", "group", "DDP"}), False),
)
SHOWN = 6  # tries, of the newest


@dataclass
class Played:
    """What became of a program: `error`, or else what its two ranks found."""

    error: str = ""
    moved: bool = False
    apart: float = 0.0  # the largest difference between the two ranks' weights
    served: list[list[int]] = field(default_factory=list)  # of each rank: the digits that it computed, in turn
    shared: int = 0  # how many of the parameters of `model` are, as objects, those of `net`
    held: tuple[int, ...] = ()  # of each rank: the bytes of its weights
    losses: list[list[float]] = field(default_factory=list)  # of each rank: those of its steps
    met: bool = False  # both ranks are in one group, when the training begins

    @property
    def times(self) -> Counter[int]:
        """Digit → how often it was served."""
        return Counter(digit for mine in self.served for digit in mine)

    @property
    def shares(self) -> bool:
        """No rank computes more than half of the digits, rounded up."""
        return max(map(len, self.served)) <= -(-DIGITS // 2) * EPOCHS

    @property
    def epochs(self) -> list[list[list[int]]]:
        """Of each epoch, and in it of each rank: the digits that it computed."""
        each = len(self.served[0]) // EPOCHS
        return [[mine[n * each : (n + 1) * each] for mine in self.served] for n in range(EPOCHS)]

    @property
    def twice(self) -> int:
        """How many digits an epoch serves more than once."""
        return sum(count > 1 for count in Counter(digit for mine in self.epochs[0] for digit in mine).values())

    @property
    def lights(self) -> tuple[bool, ...]:
        """On or off, in the order of `LIGHTS`; after an error all are off."""
        if self.error:
            return (False,) * len(LIGHTS)
        return True, self.moved, self.apart < 1e-5, len(self.times) == DIGITS, self.shares

    def facts(self) -> tuple[str, ...]:
        """A few words for each light."""
        if self.error:
            return self.error, *[""] * (len(LIGHTS) - 1)
        epochs, twice = self.epochs, self.twice
        frozen = all(epoch == epochs[0] for epoch in epochs)
        return (
            "",
            "" if self.moved else "they are as they were at first",
            f"{max(self.held):,} bytes on each rank" if self.apart < 1e-5 else f"they differ by up to {self.apart:.2f}",
            f"{len(self.times)} of {DIGITS} in {EPOCHS} epochs"
            + (f"; in each, {twice} served twice" if twice else "")
            + ("; the order never changes" if frozen else ""),
            f"of {DIGITS} digits, each rank computes {len(epochs[0][0])} an epoch",
        )


@dataclass
class Dealt:
    """What became of a program in one process: `error`, or else what it found."""

    error: str = ""
    losses: list[float] = field(default_factory=list)  # of each step
    served: list[int] = field(default_factory=list)  # the digits that were computed, in turn
    rows: list[int] = field(default_factory=list)  # in the last step, on the CPU and on each GPU

    @property
    def lights(self) -> tuple[bool, ...]:
        """On or off, in the order of `DEALT`; after an error all are off."""
        if self.error:
            return (False,) * len(DEALT)
        return True, self.losses[-1] < self.losses[0], len({*self.served}) == 32, all(self.rows[1:])

    def facts(self) -> tuple[str, ...]:
        """A few words for each light."""
        if self.error:
            return self.error, *[""] * (len(DEALT) - 1)
        on_cpu, *on_gpus = self.rows
        rows = f"rows of each in a step: {' '.join(map(str, on_gpus))}" + (f"; of the CPU: {on_cpu}" if on_cpu else "")
        losses = f"from {self.losses[0]:.2f} to {self.losses[-1]:.2f}"
        return "", losses, f"{len({*self.served})} of 32 in {EPOCHS} epochs", rows


@pointing
def third_program(*out: str, parameters_of: str = "model") -> Played:
    """Run the program without the lines of these names, on two CPU ranks. Raises ValueError for a name of no line."""
    THIRD.without(out)
    try:
        ranks = launch(_rank, out, parameters_of, nproc_per_node=2, device="cpu", init=False, quiet=True).results
    except RankError as error:
        return Played(f"{error.type_name}: {error.reason}" if error.type_name else str(error).splitlines()[0])
    apart = max((mine - its).abs().max().item() for mine, its in zip(*(rank["weights"] for rank in ranks), strict=True))
    moved = all(rank["moved"] for rank in ranks)
    held = tuple(sum(weight.nbytes for weight in rank["weights"]) for rank in ranks)
    served, losses = ([rank[it] for rank in ranks] for it in ("served", "losses"))
    return Played("", moved, apart, served, ranks[0]["shared"], held, losses, all(rank["met"] for rank in ranks))


@pointing
def first_two_programs(*out: str, gpus: int = 8) -> Dealt:
    """Run them without the lines of these names, on virtual GPUs. Raises ValueError for a name of no line."""
    code, data, losses, rows = FIRST_TWO.without(out), _Noting(32), [], Counter()

    def count(module: Any, inputs: Any) -> None:
        rows[str(inputs[0].device)] += len(inputs[0])

    def net() -> MLP:
        it = MLP()
        it.register_forward_pre_hook(count)  # its replicas have it too
        return it

    def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(scores, labels)
        losses.append(loss.item())
        return loss

    with virtual_gpus(gpus) as machine, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            exec(code, _names(data) | {"MLP": net, "cross_entropy": cross_entropy, "gpu": machine[0], "gpus": gpus})
        except Exception as error:
            return Dealt(f"{type(error).__name__}: {error}".split(" (when checking")[0])
        each = [rows[name] // len(losses) for name in ("cpu", *map(str, machine))]
    return Dealt("", losses, data.served, each)


@dataclass(frozen=True)
class Script:
    """A program whose lines are switches, and its lights. `play`: runs what is left of it."""

    lines: tuple[tuple[str, str], ...]
    lights: tuple[str, ...]
    par: dict[int, int]  # lights → how many lines the shortest program has that keeps them on; a test tries all
    play: Callable[..., Played | Dealt]
    sources: dict[str, str] = field(default_factory=lambda: {"model": "model"})

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the switches."""
        return tuple(name for name, _ in self.lines if name)

    @pointing
    def without(self, out: Collection[str]) -> str:
        """What is left. Raises ValueError for a name of no line."""
        if wrong := [name for name in out if name not in self.names]:
            raise ValueError(f"{wrong[0]!r} is no line's name; they are {', '.join(self.names)}")
        return "\n".join(line for name, line in self.lines if name not in out)


THIRD = Script(PROGRAM, LIGHTS, {4: 1, 5: 4}, third_program, SOURCES)
FIRST_TWO = Script(PASTED, DEALT, {4: 3}, first_two_programs)


@cache
def _judged() -> list[Played]:
    return [third_program(*out) for _, out, _ in JUDGED]


def caught(light: str) -> str:
    """Tell of four programs whether a light of this name would be on, a line for each, and how often that is good."""
    lines, right = [f"{'':26}a good light is   this one is"], 0
    for (name, _, good), it in zip(JUDGED, _judged(), strict=True):
        on = MEASURED[light](it)
        right += on == good
        lines.append(f"{name:26}{'on' if good else 'off':18}{'on' if on else 'off':5}{'✓' if on == good else '✗'}")
    return "\n".join([f"{light}: right about {right} of {len(JUDGED)} programs", *lines])


def hunt(lights: int = 4, out: Sequence[str] = (), script: Script = THIRD) -> None:
    """Show a program, so many lights, and the tries until now; in a live notebook its lines are the switches.

    out: the names of the lines that are struck out at first, in the order of the program.
    """
    told = _memory(lights, script)
    words = told(out)
    screen.show("\n".join([*_listing(out, script), "", words]), lambda: _board(told, out, words, lights, script))


def _memory(lights: int, script: Script = THIRD) -> Callable[..., str]:
    """What tells of a program its lights, and the shortest and the newest of all that it was asked for."""
    tried: dict[tuple[str, ...], tuple[int, Played | Dealt]] = {}

    def told(out: Sequence[str], parameters_of: str = "model") -> str:
        key = (*out, parameters_of)
        own = {} if parameters_of == "model" else {"parameters_of": parameters_of}
        tried[key] = tried.pop(key, None) or (len(tried) + 1, script.play(*out, **own))
        return "\n".join([*_lit(tried[key][1], lights, script), "", *_tries(tried, lights, script)])

    return told


def _board(told: Callable[..., str], out: Sequence[str], words: str, lights: int, script: Script = THIRD) -> Any:
    """The lines as switches, and below them what is told, in a place that is high enough for all of it: program.js."""
    sources, rows = [*script.sources.values()], lights + 4 + SHOWN
    page = widget("program", lines=script.lines, sources=sources, asked=[0, [*out], 0], shown=[words, 0], rows=rows)

    def answer(change: Any) -> None:
        asked, out, source = change["new"]
        try:
            page.shown = [told(out, [*script.sources][source]), asked]
        except (Exception, KeyboardInterrupt) as error:  # a message from the page has no cell to raise in
            page.shown = [f"{type(error).__name__}: {error}", asked]

    page.observe(answer, "asked")
    return page


def _listing(out: Sequence[str], script: Script) -> list[str]:
    lines = []
    for name, line in script.lines:
        code = line.lstrip()
        struck = "# " if name in out else ""
        lines.append(f"{name:>9}  {line[: len(line) - len(code)]}{struck}{code.format(source='model')}")
    return lines


def _signs(played: Played | Dealt, lights: int) -> str:
    """A sign for each light. What has ended with an error has nothing more to tell."""
    return ("✗" + "?" * lights if played.error else "".join("✓" if on else "✗" for on in played.lights))[:lights]


def _lit(played: Played | Dealt, lights: int, script: Script = THIRD) -> list[str]:
    wide, lines = max(map(len, script.lights)) + 4, []
    for sign, light, fact in zip(_signs(played, lights), script.lights, played.facts(), strict=False):
        lines += textwrap.wrap(f"{sign} {light:{wide - 2}}{fact}", 110, subsequent_indent=" " * wide)
    return lines + [""] * (lights + 1 - len(lines))  # an error may take two


def _tries(tried: dict[tuple[str, ...], tuple[int, Played | Dealt]], lights: int, script: Script) -> list[str]:
    """The shortest yet, and the newest tries, a line for each with its number."""
    of = len(script.names)
    rows, best = [], (of + 1, 0)
    for (*out, parameters_of), (number, played) in tried.items():
        left = [name for name in script.names if name not in out]
        best = min(best, (len(left), number)) if all(played.lights[:lights]) else best
        what = f"without {', '.join(out)}" if len(out) <= len(left) else f"only {', '.join(left) or 'the loop'}"
        own = "" if parameters_of == "model" else f"; SGD has those of {parameters_of}"
        rows.append(f"{number:3}  {_signs(played, lights)}  {len(left)} of {of} lines: {what if out else 'all'}{own}")
    further = ", and none is shorter ✓" if best[0] == script.par[lights] else "; there is a shorter one"
    shortest = f"The shortest with all {lights} lights on has {best[0]} of {of} lines (try {best[1]}){further}"
    told = shortest if best[1] else f"None yet with all {lights} lights on"
    return [told, *rows[-SHOWN:-1], f"{rows[-1]}   now"]


def _names(data: _Noting) -> dict[str, Any]:
    return {"torch": torch, "dist": dist, "DDP": DistributedDataParallel, "DataParallel": DataParallel,
            "SGD": torch.optim.SGD, "DistributedSampler": DistributedSampler, "DataLoader": DataLoader,
            "cross_entropy": F.cross_entropy, "deepcopy": copy.deepcopy, "data": data}  # fmt: skip


# In a rank


class _Noting(Dataset):
    """The first digits, as a data set that notes which were asked for."""

    def __init__(self, count: int) -> None:
        self.images, self.labels = (tensor[:count] for tensor in digits().tensors)
        self.served: list[int] = []

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, n: int) -> tuple[Tensor, Tensor]:
        self.served.append(n)
        return self.images[n], self.labels[n]


class _Remembering(MLP):
    """Remembers its weights as they were at its first forward, and whether there was a group of two."""

    began: list[Tensor] | None = None
    met = False

    def forward(self, x: Tensor) -> Tensor:
        if self.began is None:
            self.met = dist.is_initialized() and dist.get_world_size() == 2
            self.began = [weight.detach().clone() for weight in self.parameters()]
        return super().forward(x)


def _rank(out: tuple[str, ...], parameters_of: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    if "numbers" in out:
        for name in NUMBERS:
            os.environ.pop(name, None)
    data = _Noting(DIGITS)
    losses: list[float] = []

    def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(scores, labels)
        losses.append(loss.item())
        return loss

    names = _names(data) | {"MLP": _Remembering, "cross_entropy": cross_entropy}
    exec(THIRD.without({"numbers", *out}).format(source=SOURCES[parameters_of]), names)
    net, model = names["net"], names["model"]
    weights = [weight.detach().clone() for weight in net.parameters()]
    moved = any(not torch.equal(now, then) for now, then in zip(weights, net.began, strict=True))
    same = sum(mine is its for mine, its in zip(model.parameters(), net.parameters(), strict=True))
    found = {"weights": weights, "moved": moved, "served": data.served, "shared": same}
    return found | {"losses": losses, "met": net.met}
