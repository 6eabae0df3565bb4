"""The shortest program: a script for two ranks, whose lines a learner strikes out. Lights tell what each has been for.

A line with a name is a switch. What stays is run by two real processes, which torch knows as launched by torchrun.
"""

from __future__ import annotations

import copy
import os
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ddplab import screen
from ddplab.course.controls import widget
from ddplab.course.data import digits
from ddplab.course.models import MLP
from ddplab.launcher import launch
from ddplab.pointer import pointing
from ddplab.run import RankError

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
NAMES = tuple(name for name, _ in PROGRAM if name)
SOURCES = {"model": "model", "net": "net", "a copy of net": "deepcopy(net)"}
LIGHTS = (
    "both ranks end without an error",
    "their weights have moved",
    "both have the same weights",
    "every digit was served",
    "they share the work",
)
PAR = {4: 1, 5: 4}  # lights → how many of the lines the shortest program has that keeps them on; a test tries all
SHOWN = 6  # tries, of the newest


@dataclass
class Played:
    """What became of a program: `error`, or else what its two ranks found."""

    error: str = ""
    moved: bool = False
    apart: float = 0.0  # the largest difference between the two ranks' weights
    served: list[list[int]] = field(default_factory=list)  # of each rank: the digits that it computed, in turn
    shared: int = 0  # how many of the parameters of `model` are, as objects, those of `net`

    @property
    def times(self) -> Counter[int]:
        """Digit → how often it was served."""
        return Counter(digit for mine in self.served for digit in mine)

    @property
    def lights(self) -> tuple[bool, ...]:
        """On or off, in the order of `LIGHTS`; after an error all are off."""
        if self.error:
            return (False,) * len(LIGHTS)
        half = -(-DIGITS // 2) * EPOCHS
        return True, self.moved, self.apart < 1e-5, len(self.times) == DIGITS, max(map(len, self.served)) <= half

    def facts(self) -> tuple[str, ...]:
        """A few words for each light."""
        if self.error:
            return self.error, *[""] * (len(LIGHTS) - 1)
        each = len(self.served[0]) // EPOCHS
        epochs = [[mine[n * each : (n + 1) * each] for mine in self.served] for n in range(EPOCHS)]
        twice = sum(count > 1 for count in Counter(digit for mine in epochs[0] for digit in mine).values())
        frozen = all(epoch == epochs[0] for epoch in epochs)
        return (
            "",
            "" if self.moved else "they are as they were at first",
            "" if self.apart < 1e-5 else f"they differ by up to {self.apart:.2f}",
            f"{len(self.times)} of {DIGITS} in {EPOCHS} epochs"
            + (f"; in each, {twice} served twice" if twice else "")
            + ("; the order never changes" if frozen else ""),
            f"of {DIGITS} digits, each rank computes {each} an epoch",
        )


@pointing
def third_program(*out: str, parameters_of: str = "model") -> Played:
    """Run the program without the lines of these names, on two CPU ranks. Raises ValueError for a name of no line."""
    if wrong := [name for name in out if name not in NAMES]:
        raise ValueError(f"{wrong[0]!r} is no line's name; they are {', '.join(NAMES)}")
    try:
        ranks = launch(_rank, out, parameters_of, nproc_per_node=2, device="cpu", init=False, quiet=True).results
    except RankError as error:
        return Played(f"{error.type_name}: {error.reason}" if error.type_name else str(error).splitlines()[0])
    apart = max((mine - its).abs().max().item() for mine, its in zip(*(rank["weights"] for rank in ranks), strict=True))
    moved = all(rank["moved"] for rank in ranks)
    return Played("", moved, apart, [rank["served"] for rank in ranks], ranks[0]["shared"])


def hunt(lights: int = 4, out: Sequence[str] = ()) -> None:
    """Show the program, so many lights, and the tries until now; in a live notebook its lines are the switches.

    out: the names of the lines that are struck out at first, in the order of the program.
    """
    told = _memory(lights)
    words = told(out)
    screen.show("\n".join([*_listing(out), "", words]), lambda: _board(told, out, words, lights))


def _memory(lights: int) -> Callable[..., str]:
    """What tells of a program its lights, and the shortest and the newest of all that it was asked for."""
    tried: dict[tuple[str, ...], tuple[int, Played]] = {}

    def told(out: Sequence[str], parameters_of: str = "model") -> str:
        key = (*out, parameters_of)
        tried[key] = tried.pop(key, None) or (len(tried) + 1, third_program(*out, parameters_of=parameters_of))
        return "\n".join([*_lit(tried[key][1], lights), "", *_tries(tried, lights)])

    return told


def _board(told: Callable[..., str], out: Sequence[str], words: str, lights: int) -> Any:
    """The lines as switches, and below them what is told, in a place that is high enough for all of it: program.js."""
    sources, rows = [*SOURCES.values()], lights + 4 + SHOWN
    page = widget("program", lines=PROGRAM, sources=sources, asked=[0, [*out], 0], shown=[words, 0], rows=rows)

    def answer(change: Any) -> None:
        asked, out, source = change["new"]
        try:
            page.shown = [told(out, [*SOURCES][source]), asked]
        except (Exception, KeyboardInterrupt) as error:  # a message from the page has no cell to raise in
            page.shown = [f"{type(error).__name__}: {error}", asked]

    page.observe(answer, "asked")
    return page


def _listing(out: Sequence[str]) -> list[str]:
    lines = []
    for name, line in PROGRAM:
        code = line.lstrip()
        struck = "# " if name in out else ""
        lines.append(f"{name:>9}  {line[: len(line) - len(code)]}{struck}{code.format(source='model')}")
    return lines


def _signs(played: Played, lights: int) -> str:
    """A sign for each light. What has ended with an error has nothing more to tell."""
    return ("✗" + "?" * len(LIGHTS) if played.error else "".join("✓" if on else "✗" for on in played.lights))[:lights]


def _lit(played: Played, lights: int) -> list[str]:
    wide, lines = max(map(len, LIGHTS)) + 4, []
    for sign, light, fact in zip(_signs(played, lights), LIGHTS, played.facts(), strict=False):
        lines += textwrap.wrap(f"{sign} {light:{wide - 2}}{fact}", 110, subsequent_indent=" " * wide)
    return lines + [""] * (lights + 1 - len(lines))  # an error may take two


def _tries(tried: dict[tuple[str, ...], tuple[int, Played]], lights: int) -> list[str]:
    """The shortest yet, and the newest tries, a line for each with its number."""
    rows, best = [], (len(NAMES) + 1, 0)
    for (*out, parameters_of), (number, played) in tried.items():
        left = [name for name in NAMES if name not in out]
        best = min(best, (len(left), number)) if all(played.lights[:lights]) else best
        what = f"without {', '.join(out)}" if len(out) <= len(left) else f"only {', '.join(left) or 'the loop'}"
        own = "" if parameters_of == "model" else f"; SGD has those of {parameters_of}"
        rows.append(f"{number:3}  {_signs(played, lights)}  {len(left)} of 8 lines: {what if out else 'all'}{own}")
    further = ", and none is shorter ✓" if best[0] == PAR[lights] else "; there is a shorter one"
    shortest = f"The shortest with all {lights} lights on has {best[0]} of 8 lines (try {best[1]}){further}"
    told = shortest if best[1] else f"None yet with all {lights} lights on"
    return [told, *rows[-SHOWN:-1], f"{rows[-1]}   now"]


# In a rank


class _Noting(Dataset):
    """The first digits, as a data set that notes which were asked for."""

    def __init__(self) -> None:
        self.images, self.labels = (tensor[:DIGITS] for tensor in digits().tensors)
        self.served: list[int] = []

    def __len__(self) -> int:
        return DIGITS

    def __getitem__(self, n: int) -> tuple[Tensor, Tensor]:
        self.served.append(n)
        return self.images[n], self.labels[n]


class _Remembering(MLP):
    """Remembers its weights as they were at its first forward."""

    began: list[Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.began is None:
            self.began = [weight.detach().clone() for weight in self.parameters()]
        return super().forward(x)


def _rank(out: tuple[str, ...], parameters_of: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    if "numbers" in out:
        for name in NUMBERS:
            os.environ.pop(name, None)
    data = _Noting()
    names: dict[str, Any] = {"torch": torch, "dist": dist, "MLP": _Remembering, "DDP": DistributedDataParallel,
                             "SGD": torch.optim.SGD, "DistributedSampler": DistributedSampler, "DataLoader": DataLoader,
                             "cross_entropy": F.cross_entropy, "deepcopy": copy.deepcopy, "data": data}  # fmt: skip
    lines = [line for name, line in PROGRAM if name not in (*out, "numbers")]
    exec("\n".join(lines).format(source=SOURCES[parameters_of]), names)
    net, model = names["net"], names["model"]
    weights = [weight.detach().clone() for weight in net.parameters()]
    moved = any(not torch.equal(now, then) for now, then in zip(weights, net.began, strict=True))
    same = sum(mine is its for mine, its in zip(model.parameters(), net.parameters(), strict=True))
    return {"weights": weights, "moved": moved, "served": data.served, "shared": same}
