"""A training script with blanks, or with a line taken out: does an error say so, and where do its weights end?"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from torch import Tensor

from ddplab.launcher import launch
from ddplab.pointer import pointing
from ddplab.run import RankError, RankTimeoutError
from ddplab.tables import html_table, text_table

HEADS = ["taken out", "an error?", "the last epoch says", "its weights", "stopped half-way, and gone on"]
NOTHING = "nothing"
Weights = Tensor | str  # or why there are none
BLANKS = {  # what the learner is going to write in train.py: turn → whole lines, or what stands in one
    "a": (
        "if asked.batch % size:",
        'raise ValueError(f"--batch {asked.batch} cannot be shared out among {size} ranks")',
        "asked.batch // size",
    ),
    "b": ("(asked.seed * 1000 + epoch) * 10000 + rank",),
    "c": (
        "found = [None] * dist.get_world_size()",
        "dist.all_gather_object(found, next_epoch)",
        "if len(set(found)) > 1:",
        'raise RuntimeError(f"the ranks would go on with epochs {found}: do all nodes share the disk of {path!r}?")',
    ),
}


@dataclass(repr=False)
class Blank:
    """A script with blanks, in a box of its own that scrolls."""

    name: str
    text: str

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from IPython.display import Code

        look = "max-height: 28em; overflow: auto; border: 1px solid currentColor; padding: 0 8px"
        code = Code(data=self.text, language="python")._repr_html_()
        return f'<div role="region" aria-label="{self.name}" tabindex="0" style="{look}">{code}</div>'


@pointing
def left_blank(script: str, turns: Mapping[str, Sequence[str]] = BLANKS) -> Blank:
    """Return a script in which `...` stands for what the learner is going to write, and the turn beside it.

    turns: name → words of one line each. Where they are the whole line it goes, and neighbours are one blank.
    Raises ValueError for words that are in no line or in several.
    """
    path = Path(script)
    lines = path.read_text().splitlines()
    for turn, them in turns.items():
        mark = f"...  # your turn {turn}"
        for words in them:
            found = [number for number, line in enumerate(lines) if words in line]
            if len(found) != 1:
                raise ValueError(f"{words!r} stands in {len(found)} lines; one is wanted")
            line = lines[found[0]]
            whole = line.strip() == words
            new = line.replace(words, mark if whole else "...") + ("" if whole else f"  # your turn {turn}")
            after_blank = whole and lines[found[0] - 1].strip() == mark
            lines[found[0] : found[0] + 1] = [] if after_blank else [new]
    return Blank(path.name, "\n".join(lines) + "\n")


@pointing
def filled(script: str, folder: str, **functions: Callable[..., Any]) -> str:
    """Write a script such as lesson 5.6's with `asked`, `seed` and `agreed` in its blanks; return where it lies."""
    pickled, path = Path(folder, "functions"), Path(folder, "filled.py")
    pickled.write_bytes(cloudpickle.dumps(functions))
    words = '["--epochs", str(asked.epochs), "--batch", str(asked.batch)]'
    text = Path(script).read_text()
    for change in (
        ("import argparse", f"import argparse\nimport pickle\n\nyours = pickle.load(open({str(pickled)!r}, 'rb'))"),
        BLANKS["a"][1],
        (BLANKS["a"][2], f'yours["asked"]({words}, size)[1]'),
        (BLANKS["b"][0], 'yours["seed"](asked.seed, epoch, rank)'),
        BLANKS["c"][3],
        ("return next_epoch", 'return yours["agreed"](next_epoch)'),
    ):
        text = _changed(text, change)
    path.write_text(text)
    return str(path)


@dataclass(repr=False)
class TakenOut:
    """What became of a script, row by row: first with nothing taken out, then with each change."""

    rows: list[list[str]]

    def __str__(self) -> str:
        return text_table(HEADS, self.rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(HEADS, self.rows, "the script with something taken out", row_heads=True)


@pointing
def taken_out(script: str, *changes: str | tuple[str, str], epochs: int = 4) -> TakenOut:
    """Play a script such as lesson 5.6's on two CPU ranks, each time with one change, in peace and gone on half-way.

    changes: words of the one line that is taken out; or a pair, what stands in it and what is put in its place.
    "Gone on" begins with the checkpoint that the run in peace had saved half-way, and is compared with that run's end.
    Raises ValueError for words that are in no line or in several, or where what is left is no Python.
    """
    whole = Path(script).read_text()
    sources = {NOTHING: whole} | {_name(change): _changed(whole, change) for change in changes}
    rows, reference = [], ""
    for name, source in sources.items():
        row, ends = _played(name, source, epochs, reference)
        reference = ends if name == NOTHING else reference
        rows.append(row)
    return TakenOut(rows)


def _played(name: str, source: str, epochs: int, reference: Weights) -> tuple[list[str], Weights]:
    """The table's row of one change, and the weights that it ends with."""
    with tempfile.TemporaryDirectory(prefix="ddplab-taken-out-") as folder:
        error, said, ends = _run(source, f"{folder}/run.pt", epochs)
        if error:
            return [name, error, said, "", ""], ends
        half = Path(folder, "half.pt")
        if half.exists():
            shutil.copy(half, f"{folder}/again.pt")
        error, _, again = _run(source, f"{folder}/again.pt", epochs)
        begins = Path(folder, "began").read_text()
        its = "to compare with" if name == NOTHING else _beside(ends, reference)
        return [name, "none", said, its, error or f"begins at {begins}: {_beside(again, ends)}"], ends


def _with(text: str, number: int, line: str | None) -> str:
    """The text with another line in that place, or with one that does nothing."""
    lines = text.splitlines()
    old = lines[number - 1]
    lines[number - 1] = f"{old[: len(old) - len(old.lstrip())]}pass  # taken out" if line is None else line
    return "\n".join(lines) + "\n"


def _name(change: str | tuple[str, str]) -> str:
    return change if isinstance(change, str) else " → ".join(change)


def _changed(text: str, change: str | tuple[str, str]) -> str:
    """The script's text, with the one line in which the words stand taken out, or the words themselves exchanged."""
    words, new = (change, None) if isinstance(change, str) else change
    found = [(number, line) for number, line in enumerate(text.splitlines(), 1) if words in line]
    if len(found) != 1:
        raise ValueError(f"{words!r} stands in {len(found)} lines; one is wanted")
    number, line = found[0]
    source = _with(text, number, None if new is None else line.replace(words, new))
    try:
        compile(source, "train.py", "exec")
    except SyntaxError as error:
        raise ValueError(f"without {words!r} what is left is no Python: {error.msg}, line {error.lineno}") from None
    return source


def _run(source: str, path: str, epochs: int) -> tuple[str, str, Weights]:
    """One run: its error if there was one, what it said of its last epoch, and the weights in its checkpoint."""
    try:
        run = launch(_play, source, path, epochs, device="cpu", init=False, quiet=True, timeout=30)
    except RankTimeoutError:
        return "it hangs", "", ""
    except RankError as error:
        first = str(error).splitlines()[0]
        return first.partition(" raised ")[2][:70] or first[:70], "", ""
    said = [line for line in run.output[0].splitlines() if line.startswith("epoch ")]
    last = said[-1].partition("  ")[2] if said else "nothing"
    if not os.path.exists(path):
        return "", last, "nothing is saved"
    try:
        return "", last, torch.cat([weight.flatten() for weight in torch.load(path)["model"].values()])
    except KeyError:
        return "", last, "no model is saved"
    except Exception:  # an empty file, say: whoever reads it next has the error
        return "", last, "what is saved cannot be read"


def _play(source: str, path: str, epochs: int) -> None:
    """In a rank: run the script, and keep what it has saved half-way, and where it says that it begins."""
    torch.cuda.is_available = lambda: False  # in this process: the script takes a GPU where there is one
    torch.set_num_threads(1)
    sys.argv = ["train.py", "--epochs", str(epochs), "--checkpoint", path]
    folder, replace, saved = Path(path).parent, os.replace, []

    def replace_and_keep(old: str, new: str) -> None:
        replace(old, new)
        saved.append(new)
        if len(saved) == epochs // 2 and not (folder / "half.pt").exists():
            shutil.copy(new, folder / "half.pt")

    os.replace = replace_and_keep
    began = torch.load(path)["next_epoch"] if os.path.exists(path) else 0
    if os.environ["RANK"] == "0":
        (folder / "began").write_text(str(began))
    exec(compile(source, "train.py", "exec"), {"__name__": "__main__"})


def _beside(weights: Weights, others: Weights) -> str:
    if isinstance(weights, str) or isinstance(others, str):
        return weights if isinstance(weights, str) else str(others)
    if torch.equal(weights, others):
        return "the same bits"
    off = ((weights - others).norm() / others.norm()).item()
    return f"{off:.1%} off" if off >= 0.0005 else "other last digits"
