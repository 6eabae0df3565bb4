"""A run of the pager: a script on four ranks, until it ends, fails or stands still, and what it has left."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from math import isclose
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from ddplab.course import blackbox
from ddplab.course.faults import QUOTA, RANKS, SOUND
from ddplab.diagnosis import Frame, parse_stacks
from ddplab.launcher import launch

STILL = 40  # looks at a rank that has not moved, one each 25 ms: then it counts as standing still
INDENT = (
    "A patch brings its own indentation: begin it with as many spaces as the line that it replaces. "
    "Who takes out an `if` or a `for` patches the lines below it too. Python may notice it a line later."
)
COLON = "Look at that line and the one above it: is a bracket, a quote or a colon missing?"
LIMIT = 60.0  # seconds that a run may take, on a busy machine


class Outcome(NamedTuple):
    """What a run has left.

    state: "ended", "failed" or "stands still". terminal: what the ranks have printed, in that order. boxes: of each
    rank, what its black box knows; {} where it never wrote. saved: the files that the script has written.
    """

    state: str
    terminal: str
    boxes: list[dict[str, Any]]
    saved: list[str]

    @property
    def printed(self) -> list[str]:
        """The lines about epochs, less their seconds, which differ from run to run."""
        return re.findall(r"^epoch.*accuracy .*%", self.terminal, re.MULTILINE)

    @property
    def seconds(self) -> float:
        """How long the epochs took, by the script's own clock."""
        return sum(float(it) for it in re.findall(r"^epoch.* ([\d.]+) s$", self.terminal, re.MULTILINE))

    @property
    def peaks(self) -> list[int]:
        """The most bytes that each GPU held, of all ranks together."""
        peaks = [box.get("peak", [0] * RANKS) for box in self.boxes]
        return [sum(of) for of in zip(*peaks, strict=True)]


def patched(text: str, patches: Mapping[int, str]) -> str:
    """Return a script with other texts in some lines' places; "" leaves one empty: the others keep their numbers."""
    lines = [patches.get(n, line) for n, line in enumerate(text.splitlines(), 1)]
    return "\n".join(lines) + "\n"


def broken(text: str, patches: Mapping[int, str]) -> tuple[type[SyntaxError], str, str] | None:
    """Return what keeps a patched script from compiling: its kind, where it is, what to do. None where it compiles."""
    try:
        compile(patched(text, patches), "train.py", "exec")
    except SyntaxError as error:
        ours = [n for n, line in enumerate(text.splitlines(), 1) for _ in patches.get(n, line).split("\n")]
        n = ours[min(error.lineno or 1, len(ours)) - 1]  # a patch of several lines moves those below it
        what = f"line {n} of train.py: {error.msg}"
        if not isinstance(error, IndentationError):
            return SyntaxError, what, COLON
        return IndentationError, what + _misfit(text.splitlines(), patches), INDENT
    return None


def _misfit(lines: Sequence[str], patches: Mapping[int, str]) -> str:
    """Say of the first patch that does not fit its place what stood there: a block's head, or another indentation."""
    now = {n: patches.get(n, line) for n, line in enumerate(lines, 1)}
    for n, text in sorted(patches.items()):
        was, below = lines[n - 1], next((now[it] for it in range(n + 1, len(lines) + 1) if now[it].strip()), "")
        if was.endswith(":") and not text.rstrip().endswith(":") and _indented(below) > _indented(was):
            return f". Line {n} was `{was.strip()}`, and its body is still there"
        if text.strip() and was.strip() and "#" not in text and _indented(text) != _indented(was):
            has, had = _indented(text), _indented(was)
            return f". Line {n} begins with {had or 'no'} spaces, and its patch with {has or 'none'}"
    return ""


def _indented(text: str) -> int:
    line = text.strip("\n")
    return len(line) - len(line.lstrip())


def play(text: str, detail: bool = False, env: Mapping[int, dict[str, str]] = MappingProxyType({})) -> Outcome:
    """Run a script on four ranks until it ends, fails or stands still. env: what a rank's environment has besides."""
    folder = tempfile.mkdtemp(prefix="ddplab-pager-")
    try:
        Path(folder, "train.py").write_text(text)
        with _debug_level("DETAIL" if detail else "OFF"):
            run = launch(
                blackbox.run, folder, QUOTA, RANKS, dict(env),
                nproc_per_node=RANKS, device="cpu", init=False, timeout=None, wait=False, quiet=True,
            )  # fmt: skip
        deadline, state = time.monotonic() + LIMIT, "ended"
        try:
            while run.state == "running":
                time.sleep(0.05)
                boxes = _boxes(folder)
                over = all(box.get("ended") for box in boxes)  # then launch sees it in a moment
                still = all(box.get("still", 0) > STILL or box.get("ended") for box in boxes)
                if (still and not over) or time.monotonic() > deadline:
                    time.sleep(2 * blackbox.WRITE)  # ended, perhaps, a moment ago
                    state = "stands still" if run.state == "running" else state
                    break
        finally:
            run.stop()
        if run.state == "failed":
            state = "failed"
        return Outcome(
            state, _read(folder, "terminal"), _boxes(folder), sorted(p.name for p in Path(folder).glob("*.pt"))
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def last_night() -> Outcome:
    """The sound script's outcome; it is run once for all incidents."""
    return play(SOUND)


@contextmanager
def _debug_level(level: str) -> Iterator[None]:
    before = os.environ.get("TORCH_DISTRIBUTED_DEBUG")
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = level
    try:
        yield
    finally:
        os.environ.pop("TORCH_DISTRIBUTED_DEBUG")
        if before is not None:
            os.environ["TORCH_DISTRIBUTED_DEBUG"] = before


def _boxes(folder: str) -> list[dict[str, Any]]:
    boxes = []
    for rank in range(RANKS):
        box = json.loads(_read(folder, f"box{rank}") or "{}")
        crash = _read(folder, f"crash{rank}")  # C++ has ended it, if a stack is there, whole: this is where it was
        if box and (stack := _own(parse_stacks(crash, box["thread"])[::-1])):
            box |= {"ended": "aborted", "stack": stack}
            box["at"] = Path(folder, f"crash{rank}").stat().st_mtime
        boxes.append(box)
    return boxes


def _own(stack: list[Frame]) -> list[Frame]:
    """Leave out of a stack, innermost first, what runs the script; all of one that has not come as far as that."""
    ends = (n for n, (file, _, name) in enumerate(stack, 1) if file == "train.py" and name == "<module>")
    return [frame for frame in stack[: next(ends, 0)] if not frame[0].startswith(blackbox.OURS)]


def _read(folder: str, name: str) -> str:
    try:
        return Path(folder, name).read_text(errors="replace").replace(f"{folder}/", "")
    except FileNotFoundError:
        return ""


def differences(outcome: Outcome, another_order: bool = False, more: bool = False) -> list[str]:
    """Say what keeps a run from being as good as the sound script's; nothing where it is.

    another_order: the fault was in the order of the rows. Any that shuffles anew each epoch and deals out all rows is
    as good, and whatever it leads to, if it is the same on all ranks. more: the fault was a layer that no loss reaches.
    It may stay where it is never moved, as torch's own advice has it; what is trained has to end as last night's.
    """
    sound = last_night()
    other = another_order and outcome.state == "ended" and _well_dealt(outcome, sound)
    if outcome.state != "ended":
        return [f"it {ends(outcome)}"]
    found, same_weights = [], partial(_same_weights, more=more)
    for name, same in (("trained on other rows", _same_rows), ("ended with other weights", same_weights)):
        if other:
            break
        ranks = [n for n, boxes in enumerate(zip(outcome.boxes, sound.boxes, strict=True)) if not same(*boxes)]
        who = "all ranks" if len(ranks) == RANKS else f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        found += [f"{who} {name} than last night"] if ranks else []
    if outcome.printed != sound.printed and not other:
        found.append(f"it reports {(outcome.printed or ['nothing'])[-1]}; last night: {sound.printed[-1]}")
    if any(a > 1.3 * b for a, b in zip(outcome.peaks, sound.peaks, strict=True)):
        found.append("a GPU holds more than last night")
    if any(box["slept"] > 0 for box in outcome.boxes):
        found.append("it is slower than last night")
    if outcome.saved != sound.saved:
        found.append(f"last night it left {', '.join(sound.saved)}")
    return found


def by_epoch(box: dict[str, Any]) -> dict[str, list[int]]:
    return {epoch: [row for batch in batches for row in batch] for epoch, batches in box.get("rows", {}).items()}


def _well_dealt(now: Outcome, before: Outcome) -> bool:
    """Tell whether each epoch has all rows, as many a rank as before, in an order of its own, and the ranks one model.

    Also, whether what is left of the training is about as far, and as good: it was no more than another order.
    """
    mine, theirs = ([by_epoch(box) for box in it.boxes] for it in (now, before))
    for epoch in theirs[0]:
        dealt, asked = ([it.get(epoch, []) for it in ranks] for ranks in (mine, theirs))
        if [*map(len, dealt)] != [*map(len, asked)] or set().union(*dealt) != set().union(*asked):
            return False
    ends = [box["weights"][-1][0] for box in now.boxes if box.get("weights")]
    return (
        all(len({*map(tuple, rank.values())}) == len(rank) == len(theirs[0]) for rank in mine)
        and len(ends) == RANKS
        and all(isclose(end, ends[0], rel_tol=1e-3) for end in ends)
        and isclose(ends[0], before.boxes[0]["weights"][-1][0], rel_tol=0.05)
        and len(now.printed) == len(before.printed)
        and abs(_accuracy(now) - _accuracy(before)) < 15
    )


def _accuracy(outcome: Outcome) -> float:
    return float(outcome.printed[-1].rsplit(" ", 1)[1].rstrip("%"))


def _same_rows(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return by_epoch(a) == by_epoch(b)


def _same_weights(a: dict[str, Any], b: dict[str, Any], more: bool = False) -> bool:
    # a moment's third number is the rank's own gradient: who averages weights in place of gradients has other ones
    # more: there may be weights besides, which have a norm and never move
    mine, theirs = ([it for moment in box["weights"] for it in moment[int(more) : 2]] for box in (a, b))
    return len(mine) == len(theirs) and all(
        isclose(x, y, rel_tol=1e-3, abs_tol=1e-4) for x, y in zip(mine, theirs, strict=True)
    )


def ends(outcome: Outcome) -> str:
    return {"ended": "runs to its end", "failed": "fails", "stands still": "stands still"}[outcome.state]


# frames of a traceback, one below the other, that are not the script's
LIBRARIES = re.compile(r'(?m)(?:^(\[rank\d+\]: |)  File "[^"\n]*/(?:\w+-packages|ddplab)/.*\n(?:\1    .*\n)*)+')


def screen(outcome: Outcome) -> str:
    """What the ranks have printed, less the frames of libraries, and torchrun's last words, as torch words them."""
    text = LIBRARIES.sub(r"\1  …\n", outcome.terminal).rstrip() or "(nothing)"
    ends = {n: box for n, box in enumerate(outcome.boxes) if box.get("ended") in ("raised", "aborted")}
    if outcome.state != "failed" or not ends:
        return text
    codes = {"raised": 1, "aborted": -6}
    by_time = sorted(ends.items(), key=lambda it: it[1]["at"])
    died = {n: ProcessFailure(n, box["pid"], codes[box["ended"]], "<N/A>") for n, box in by_time}
    return f"{text}\n{ChildFailedError('train.py', died)}".rstrip()


def monitor(before: Outcome, now: Outcome) -> str:
    """What a monitor of the cluster shows of both nights: the GPUs' memory, and the epochs' seconds if a rank slept."""
    lines = ["--- the monitor ---", f"    {'':30}{'last night':>12}{'tonight':>12}"]
    if now.state == "ended" and any(box["slept"] > 0 for box in now.boxes):  # other differences are the machine's
        lines.append(f"    {'seconds in epochs':30}{before.seconds:>12.1f}{now.seconds:>12.1f}")
    for gpu, (a, b) in enumerate(zip(before.peaks, now.peaks, strict=True)):
        lines.append(f"    {f'bytes on vgpu:{gpu}, at most':30}{a:>12,}{b:>12,}")
    return "\n".join([*lines, f"    (The disk takes no file of more than {QUOTA:,} bytes.)"])
