"""A training script with a line taken out: does an error say so, where do its weights end, and does it go on well?"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ddplab.launcher import launch
from ddplab.pointer import pointing
from ddplab.run import RankError, RankTimeoutError
from ddplab.tables import html_table, text_table

HEADS = ["taken out", "an error?", "the last epoch says", "its weights", "stopped half-way, and gone on"]
NOTHING = "nothing"


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
    rows, reference = [], None
    for name, source in sources.items():
        with tempfile.TemporaryDirectory(prefix="ddplab-taken-out-") as folder:
            error, said, ends = _run(source, f"{folder}/run.pt", epochs)
            if error:
                rows.append([name, error, said, "", ""])
                continue
            reference = ends if name == NOTHING else reference
            half = Path(folder, "half.pt")
            if half.exists():
                shutil.copy(half, f"{folder}/again.pt")
            error, _, again = _run(source, f"{folder}/again.pt", epochs)
            begins = Path(folder, "began").read_text()
            gone_on = error or f"begins at {begins}: {_beside(again, ends)}"
            its = "to compare with" if name == NOTHING else _beside(ends, reference)
            rows.append([name, "none", said, its, gone_on])
    return TakenOut(rows)


def _name(change: str | tuple[str, str]) -> str:
    return change if isinstance(change, str) else " → ".join(change)


def _changed(text: str, change: str | tuple[str, str]) -> str:
    """The script's text, with the one line in which the words stand taken out, or the words themselves exchanged."""
    words, new = (change, None) if isinstance(change, str) else change
    lines = text.splitlines()
    found = [number for number, line in enumerate(lines) if words in line]
    if len(found) != 1:
        raise ValueError(f"{words!r} stands in {len(found)} lines; one is wanted")
    line = lines[found[0]]
    indent = line[: len(line) - len(line.lstrip())]
    lines[found[0]] = f"{indent}pass  # taken out" if new is None else line.replace(words, new)
    source = "\n".join(lines) + "\n"
    try:
        compile(source, "train.py", "exec")
    except SyntaxError as error:
        raise ValueError(f"without {words!r} what is left is no Python: {error.msg}, line {error.lineno}") from None
    return source


def _run(source: str, path: str, epochs: int) -> tuple[str, str, Tensor | None]:
    """One run: its error if there was one, what it said of its last epoch, and the weights in its checkpoint."""
    try:
        run = launch(_play, source, path, epochs, device="cpu", init=False, quiet=True, timeout=30)
    except RankTimeoutError:
        return "it hangs", "", None
    except RankError as error:
        first = str(error).splitlines()[0]
        return first.partition(" raised ")[2][:70] or first[:70], "", None
    said = [line for line in run.output[0].splitlines() if line.startswith("epoch ")]
    last = said[-1].partition("  ")[2] if said else "nothing"
    if not os.path.exists(path):
        return "", last, None
    weights = torch.load(path)["model"].values()
    return "", last, torch.cat([weight.flatten() for weight in weights])


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


def _beside(weights: Tensor | None, others: Tensor | None) -> str:
    if weights is None or others is None:
        return "nothing is saved"
    if torch.equal(weights, others):
        return "the same bits"
    off = ((weights - others).norm() / others.norm()).item()
    return f"{off:.1%} off" if off >= 0.0005 else "other last digits"
