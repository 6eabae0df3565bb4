"""The morning after a night: are the weights those of a calm night, from which step on not, and what had been lost."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Line = dict[str, Any]
EPOCH, STEPS = 12, 36


@dataclass
class Morning:
    """What a night came to. different: how many weights are not the calm night's, of `of`; None where there are none.

    words: what happened, a sentence each. held: what the disk holds instead, where the last weights were not saved.
    """

    different: int | None
    of: int
    words: list[str] = field(default_factory=list)
    held: str = ""

    def __str__(self) -> str:
        if self.different is None:
            head = "✗ In the morning there are no weights."
        elif self.held:
            head = f"✗ The last weights are gone: their save failed, and the disk holds {self.held}."
        elif self.different:
            head = f"✗ {self.different:,} of {self.of:,} weights differ from the calm night's."
        else:
            head = f"✓ All {self.of:,} weights are those of the calm night, bit for bit."
        return "\n".join([head, *(f"  {word}" for word in self.words)])


def compare(
    diary: list[Line], calm: list[Line], weights: dict[str, Tensor], lost: str, shared: Path, screens: str = ""
) -> Morning:
    """Compare a night with the calm one.

    diary: what the night's ranks have noted, by time. calm, weights: what those of the calm night have noted, and where
    they ended. lost: why the night came to no end, if it did not. shared: the folder of the night. screens: what the
    servers showed; it names the error of a night in which no restart is left, or of a save that broke the checkpoint.
    """
    mine, quiet = ([line for line in lines if line.get("rank") == 0] for lines in (diary, calm))
    words = _begun_again(mine)
    of = sum(part.numel() for part in weights.values())
    left = shared / "night" / "weights0"
    different, held = None, ""
    saves = [line["saved"] for line in mine if "saved" in line]
    if left.exists():
        ended = torch.load(left)
        different = sum(int((ended[name] != part).sum()) for name, part in weights.items())
        if saves and saves[-1] != STEPS - 1:
            held = {None: "half a checkpoint", -1: "no checkpoint"}.get(saves[-1], f"step {saves[-1]}")
            words += ["They were those of the calm night, bit for bit."] * (not different)
    else:
        last = max((line["trained"] for line in mine if "trained" in line), default=-1)
        words.append(f"After step {last} nothing was trained any more.")
        if lost:
            words.append(f"Why: {lost}.")
        elif (saves and saves[-1] is None) or broken(shared / "last.pt"):
            broke = last_error(screens, "save")
            words.append("Why: the checkpoint is broken, half of it was written; no attempt could begin with it.")
            words += [f"Rank 0 had died of {broke}"] * bool(broke)
        else:
            died = last_error(screens)
            words.append("Why: torchrun had no restart left." + f" The last rank died of {died}" * bool(died))
    if different is None or different:
        words += _where(mine, quiet)
    return Morning(different, of, words, held)


def last_error(screens: str, function: str = "") -> str:
    """Return the last error on the servers' screens that is a rank's own, and not the loss of another: what, and where.

    "" where there is none. Where is the innermost function of the night's script, and its line's text.
    function: when given, only errors in that one count.
    """
    errors = []
    for part in re.split(r"^.*Traceback \(most recent call last\):\n", screens, flags=re.MULTILINE)[1:]:
        lines = [re.sub(r"^\[rank\d+\]: ?", "", line) for line in part.splitlines()]
        what = next((line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)), "")
        places = [n for n, line in enumerate(lines) if re.match(r'  File ".*tonight.py", line', line)]
        if what and places and not re.search("Connection|Timed out|timed out", what):
            name = lines[places[-1]].rpartition(" in ")[2]
            if name == (function or name):
                errors.append(f"{what}, in {name}: {lines[places[-1] + 1].strip()}")
    return errors[-1] if errors else ""


def broken(path: Path) -> bool:
    """Whether a file lies at this path that is no whole checkpoint."""
    try:
        torch.load(path)
    except (OSError, RuntimeError, EOFError):
        return path.exists()
    return False


def _begun_again(mine: list[Line]) -> list[str]:
    """Tell where rank 0 began anew, and which steps were trained a second time."""
    words, done, pid, lost = [], -1, None, []
    for line in mine:
        if "step" in line and line["pid"] != pid:
            if pid is not None and line["step"] <= done:
                start = line["step"]
                again = f"step {start} was" if start == done else f"steps {start} to {done} were"
                words.append(f"{again[0].upper()}{again[1:]} trained again: that work was lost.")
                lost.append(done - start + 1)
            elif pid is not None and line["step"] > done + 1:
                words.append(f"Steps {done + 1} to {line['step'] - 1} were never trained.")
            pid = line["pid"]
        if "trained" in line:
            done = line["trained"]
    return [*words, f"Steps lost in all: {sum(lost)}."] if len(lost) > 1 else words


def _where(mine: list[Line], quiet: list[Line]) -> list[str]:
    """Tell the first step after which the weights are not the calm night's, and why; and whose images were unjust."""
    began, ended = ({line[key]: line for line in mine if key in line} for key in ("step", "trained"))
    calm_began, calm_ended = ({line[key]: line for line in quiet if key in line} for key in ("step", "trained"))
    words = []
    off = next((n for n in sorted(ended) if ended[n]["after"] != calm_ended[n]["after"]), None)
    if off is not None:
        reasons = []
        if began[off]["weights"] != calm_began[off]["weights"]:
            reasons.append("it began with other weights")
        if began[off]["momentum"] != calm_began[off]["momentum"]:
            reasons.append("the optimizer had lost its state" if off else "the optimizer had another state")
        if ended[off]["images"] != calm_ended[off]["images"]:
            reasons.append("it was trained on other images")
        if not reasons:
            size = ended[off]["size"]
            ranks = f"{size} rank{'s' * (size > 1)} instead of {calm_ended[off]['size']}"
            reasons.append(f"the same weights and images, but {ranks}: the gradient differs in its last digits")
        words.append(f"From step {off} on they differ: {', and '.join(reasons)}.")
    for epoch in range(STEPS // EPOCH):
        steps = [n for n in range(epoch * EPOCH, (epoch + 1) * EPOCH) if n in ended]
        counts = Counter(number for n in steps for number in ended[n]["images"])
        never, twice = 768 - len(counts), sum(count > 1 for count in counts.values())
        if len(steps) == EPOCH and never:
            words.append(f"In epoch {epoch}, {never} of 768 images were never seen, and {twice} more than once.")
            break
    return words
