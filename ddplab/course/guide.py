"""A guide's script under review: real ranks run it as it stands, and a board of lights says what came of it."""

from __future__ import annotations

import ast
import contextlib
import difflib
import inspect
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ddplab.launcher import launch
from ddplab.pointer import pointing
from ddplab.run import RankError, RankTimeoutError
from ddplab.tables import marked
from ddplab.worker import log

RANKS, EPOCHS, SHORT = 2, 6, 3  # of a run, and of one that ends earlier
KILLED_IN = 4  # the epoch at whose end rank 0 is killed while it writes
LOW = 0.15  # a last rate, of the highest, that counts as come down: a straight line ends so in a dozen updates
SILENCE = 10.0  # seconds without progress after which ranks wait for ever
HEADS = ("light", "found", "wanted", "")
Script = Callable[[str, int], Any]


def the_guide(path: str, epochs: int) -> None:
    """The script of lesson 9.5, as the guide has it; in the lesson it is called `guide`."""

    def train(rank):
        dist.init_process_group("gloo", rank=rank, world_size=2)
        data = TensorDataset(torch.randn(400, 20), torch.randint(0, 10, (400,)))
        sampler = DistributedSampler(data)
        loader = DataLoader(data, batch_size=50, sampler=sampler)
        model = DDP(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10)))
        optimizer = torch.optim.Adam(model.parameters(), lr=2 * 0.01)
        scheduler = rise_and_fall(optimizer, up=100, down=1000)  # noqa: F841
        first = 0
        if os.path.exists(path):
            file = torch.load(path)
            model.module.load_state_dict(file["model"])
            optimizer.load_state_dict(file["optimizer"])
            first = file["epoch"]
        for epoch in range(first, epochs):
            sampler.set_epoch(epoch)
            total = 0.0
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            if rank == 0:
                log(epoch=epoch, loss=total / len(loader))
                file = dict(epoch=epoch, model=model.module.state_dict(), optimizer=optimizer.state_dict())
                torch.save(file, path)

    mp.spawn(train, nprocs=2)


def rise_and_fall(optimizer: torch.optim.Optimizer, up: int, down: int) -> SequentialLR:
    """Return a schedule: a warm-up from a tenth of the rate over `up` updates, then a cosine to nothing over `down`."""
    rise = LinearLR(optimizer, start_factor=0.1, total_iters=up)
    fall = CosineAnnealingLR(optimizer, T_max=down)
    return SequentialLR(optimizer, [rise, fall], milestones=[up])


@dataclass(frozen=True)
class Light:
    """One light of the board. `claims`: the numbers of the guide's claims that it is about."""

    name: str
    found: str
    wanted: str
    green: bool
    claims: str

    def __str__(self) -> str:
        return f"{self.found}, wanted {self.wanted}"


@dataclass
class Board:
    """What a review has found: the lights by their short names, and how many lines are patched.

    before: the red lights of another board, which came first. tries: what is told below the lights. stale: where the
    lights are those of an earlier try, the sentence that says so; they are then grey.
    """

    lights: dict[str, Light]
    patched: int | None  # None where the source cannot be read
    before: Sequence[str] | None = field(default=None, compare=False)
    tries: str = field(default="", compare=False)
    stale: str = field(default="", compare=False)

    @property
    def score(self) -> str:
        """How many lights are green, and how many lines that took."""
        return f"{len(self.lights) - len(self.red)} ({lines_of(self.patched)})"

    def __getitem__(self, name: str) -> Light:
        return self.lights[name]

    @property
    def red(self) -> list[str]:
        """The short names of the red lights, in the board's order."""
        return [name for name, light in self.lights.items() if not light.green]

    def __str__(self) -> str:
        lines = [["", *HEADS], *self._rows()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return "\n".join(f"  {line}" for line in filter(None, [self.stale, *rows, self.tries]))

    def _repr_html_(self) -> str:
        tiles = ""  # three in a row of a page as wide as a small laptop's, so that the script above stays in sight
        for sign, name, found, wanted, turned in self._rows():
            ink = "inherit" if self.stale else "#2e7d32" if sign == "✓" else "#d84343"
            told = marked(found + f"; wanted: {wanted}" * (sign == "✗")) + f" <b>{turned}</b>" * bool(turned)
            tiles += f'<div role="listitem"><b style="color:{ink}">{sign}</b> {marked(name)}<br>'
            tiles += f'<small style="margin-left:1.2em">{told}</small></div>'
        grey = ";opacity:0.5" * bool(self.stale)
        look = f"display:grid;grid-template-columns:repeat(3,auto);justify-content:start;gap:2px 16px{grey}"
        lights = f'<div role="list" aria-label="the lights" style="{look}">{tiles}</div>'
        return f'<div style="font-size:13px;line-height:1.4"><b>{self.stale}</b>{lights}<div>{self.tries}</div></div>'

    def _rows(self) -> list[list[str]]:
        return [
            ["✓" if it.green else "✗", it.name, it.found, it.wanted, self._turned(name)]
            for name, it in self.lights.items()
        ]

    def _turned(self, name: str) -> str:
        green = self.lights[name].green
        if self.before is None or (name not in self.before) == green:
            return ""
        return "turned green" if green else "turned red"


@pointing
def review(script: Script) -> Board:
    """Run a script as two ranks that torchrun might have started, in peace, killed, and restarted; judge what it did.

    script: takes a path for its checkpoint and the number of epochs. Raises RankError where it does not run in peace.
    """
    with tempfile.TemporaryDirectory(prefix="ddplab-guide-") as name:
        calm, short = (_run(script, Path(name) / f"calm{epochs}", epochs) for epochs in (EPOCHS, SHORT))
        killed, again = Path(name) / "killed", Path(name) / "again"
        with contextlib.suppress(RankError):  # it is to die
            _run(script, killed, EPOCHS, kill_at=KILLED_IN * len(calm[0]["rates"]) // EPOCHS)
        notes = json.loads((killed / "notes").read_text()) if (killed / "notes").exists() else {}
        again.mkdir()
        if (killed / "before").exists():
            shutil.copy(killed / "before", again / "last.pt")
        fate, resumed = "", None
        try:
            resumed = _run(script, again, EPOCHS)
        except RankError as error:
            fate = f"none: {ended_by(error)}"
        lights = [
            _processes(calm),
            *_samples(calm),
            _loss(calm),
            _rate(calm, short),
            _plain(calm, Path(name) / f"calm{EPOCHS}" / "last.pt"),
            _half(killed / "last.pt", notes),
            *_restart(calm[0], resumed and resumed[0], notes, fate),
        ]
    names = ("processes", "samples", "order", "loss", "rate", "plain", "half", "restart", "end")
    return Board(dict(zip(names, lights, strict=True)), patched(script))


def reviewed(script: Script, before: Board) -> Board:
    """As `review`, for a page that goes on in any case: a line says what is red still.

    before: is returned of a script that does not run.
    """
    try:
        board = review(script)
        why = [board[name].name for name in board.red]
    except RankError as error:
        board, why = before, [f"your guide does not run, {ended_by(error)}"]
    if why:
        print("Red still:", *why, sep="\n- ")
        print("You may patch on, or run the folded cell below your turn; then run this one again.")
    return board


def patched(script: Script) -> int | None:
    """Return how many lines of a script differ from the guide's, as Python itself writes them: a statement on each."""
    try:
        pages = [_lines(it) for it in (the_guide, script)]
    except (OSError, TypeError, SyntaxError, AttributeError):
        return None
    changes = difflib.SequenceMatcher(None, *pages, autojunk=False).get_opcodes()
    return sum(max(a1 - a0, b1 - b0) for tag, a0, a1, b0, b1 in changes if tag != "equal")


def ended_by(error: RankError) -> str:
    """Return what ended a run, in a word or a few."""
    waits = isinstance(error, RankTimeoutError)
    return error.type_name or ("it waits for ever" if waits else "a rank was killed")


def lines_of(number: int | None) -> str:
    """Return a number of lines in words, where None is one that nobody knows."""
    return "some lines" if number is None else f"{number} line{'s' * (number != 1)}"


def _lines(script: Script) -> list[str]:
    (defined,) = ast.parse(textwrap.dedent(inspect.getsource(script))).body
    body = [it for it in defined.body if not (isinstance(it, ast.Expr) and isinstance(it.value, ast.Constant))]
    return [line for statement in body for line in ast.unparse(statement).splitlines() if line]


# In the ranks


def _run(script: Script, folder: Path, epochs: int, kill_at: int | None = None) -> list[dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    options = {"nproc_per_node": RANKS, "device": "cpu", "init": False, "quiet": True, "timeout": SILENCE}
    run = launch(_watched, script, str(folder), epochs, kill_at, **options)
    for rank, did in enumerate(run.results):
        rows = [row["loss"] for row in run.metrics if row["rank"] == rank and "loss" in row]
        did["logged"] = [it for it in rows if isinstance(it, int | float)]
    return run.results


def _watched(script: Script, folder: str, epochs: int, kill_at: int | None) -> dict[str, Any]:
    """Run the script on this rank, and return what it did. kill_at: updates after which rank 0 dies as it saves."""
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    torch.manual_seed(1000 + rank)  # each process has random numbers of its own, and the same in every try
    did: dict[str, Any] = {"processes": 1, "samples": [], "losses": [], "rates": [], "names": {}}
    with _watching(did, rank, folder, kill_at):
        script(f"{folder}/last.pt", epochs)
    did.pop("model", None)
    weights = [it.detach().flatten() for it in did.pop("parameters", [])]
    did["weights"] = torch.cat(weights) if weights else torch.zeros(0)
    return did


@contextlib.contextmanager
def _watching(did: dict[str, Any], rank: int, folder: str, kill_at: int | None) -> Iterator[None]:
    """Note what the script does below its own lines: however it is written."""
    save, backward, cross_entropy = torch.save, torch.Tensor.backward, F.cross_entropy
    end = _End(folder, did["rates"], kill_at) if rank == 0 and kill_at is not None else None

    def spawn(train: Callable[..., Any], args: tuple = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
        did["processes"] = nprocs  # counted, and not followed
        train(rank % nprocs, *args)

    def forward(model: nn.Module, inputs: tuple) -> None:
        if isinstance(model, DDP) and model.training and torch.is_grad_enabled():
            did["samples"] += map(tuple, inputs[0].flatten(1)[:, :3].tolist())
            did["names"] = {name: tuple(it.shape) for name, it in model.module.state_dict().items()}

    def losing(outputs: torch.Tensor, labels: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
        last, own = did["samples"][-len(labels) :], labels.tolist()
        if torch.is_grad_enabled() and len(last) == len(own):  # a sample is its image and its label
            did["samples"][-len(own) :] = [(*image[:3], label) for image, label in zip(last, own, strict=True)]
        return cross_entropy(outputs, labels, *args, **named)

    def update(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if end is not None and end.begun:
            end.come()
        did["rates"].append(float(optimizer.param_groups[0]["lr"]))
        did["parameters"] = [it for group in optimizer.param_groups for it in group["params"]]

    def backwards(loss: torch.Tensor, *args: Any, **named: Any) -> None:
        did["losses"].append(float(loss.detach()))
        backward(loss, *args, **named)

    def saving(what: Any, where: Any, *args: Any, **named: Any) -> None:
        if end is not None and end.near():
            end.begin()
            if end.names(getattr(where, "name", where)):
                end.come(half_of=(save, what))
        save(what, where, *args, **named)
        if rank == 0 and not (end is not None and end.begun):
            Path(folder, "notes").write_text(json.dumps({"saved at": len(did["rates"])}))

    hooks = [register_module_forward_pre_hook(forward), register_optimizer_step_pre_hook(update)]
    with (
        mock.patch.object(mp, "spawn", spawn),
        mock.patch.object(mp, "start_processes", spawn),
        mock.patch.object(torch, "save", saving),
        mock.patch.object(F, "cross_entropy", losing),
        mock.patch.object(torch.Tensor, "backward", backwards),
    ):
        yield
        if end is not None and end.begun:
            end.come()
    for hook in hooks:
        hook.remove()


class _End:
    """The end of rank 0: in the first moment of its checkpoint number KILLED_IN in which the file is not whole.

    Where no such moment comes, it ends before its next update. near: whether that checkpoint's time has come.
    begun: whether its writing has.
    """

    def __init__(self, folder: str, rates: list[float], kill_at: int):
        self.folder, self.last = folder, os.path.join(os.path.realpath(folder), "last.pt")
        self.begun = self.ending = False
        self.near = lambda: len(rates) >= kill_at
        sys.addaudithook(self._hears)  # which stays: a rank's process is used once

    def names(self, where: Any) -> bool:
        """Return whether that is a name of the checkpoint."""
        return isinstance(where, str | bytes | os.PathLike) and os.path.realpath(os.fsdecode(where)) == self.last

    def begin(self) -> None:
        """Keep the checkpoint before, and note that it was time."""
        if self.begun:
            return
        self.begun = True
        if os.path.exists(self.last):
            shutil.copy(self.last, os.path.join(self.folder, "before"))
        notes = Path(self.folder, "notes")
        told = json.loads(notes.read_text()) if notes.exists() else {"saved at": 0}
        notes.write_text(json.dumps(told | {"killed": True}))

    def come(self, half_of: tuple[Callable[..., Any], Any] | None = None) -> None:
        """Be killed. half_of: how to save, and what: half of it is written first."""
        if half_of is not None:
            self.ending = True
            save, what = half_of
            save(what, buffer := io.BytesIO())
            Path(self.last).write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    def _hears(self, event: str, said: tuple) -> None:
        """Python tells of each file about to be opened, removed or renamed: do it to the checkpoint, and end."""
        if event not in ("open", "os.remove", "os.rename", "os.truncate") or self.ending or not self.near():
            return
        if not self.names(said[0]) or not (said[2] & os.O_TRUNC if event == "open" else os.path.exists(self.last)):
            return
        self.ending = True
        self.begin()
        if event == "os.rename":
            os.rename(said[0], said[1])
        elif event == "os.remove":
            os.remove(self.last)
        else:
            Path(self.last).write_bytes(b"")
        self.come()


# The lights


def _processes(calm: list[dict[str, Any]]) -> Light:
    there = sum(did["processes"] for did in calm)
    return Light("processes asked for", f"{there}", f"{RANKS}", there == RANKS, "62")


def _samples(calm: list[dict[str, Any]]) -> tuple[Light, Light]:
    each = len(calm[0]["samples"]) // EPOCHS
    first, second = ([did["samples"][n * each :][:each] for did in calm] for n in (0, 1))
    in_one, seen = ({it for part in parts for it in part} for parts in (first, [did["samples"] for did in calm]))
    served = sum(map(len, first))
    once, anew = 0 < served == len(in_one), set(first[0]) != set(second[0])
    seen_by_ddp = "none through DDP" if calm[0]["rates"] and not seen else f"{len(seen)}"
    if len(seen) > 400 and not set(calm[0]["samples"]) & set(calm[1]["samples"]):
        seen_by_ddp += ", none shared"
    found = "yes" if once and anew else "the same shares" if once else f"{served} served, {len(in_one)} different"
    return (
        Light("different samples (one set has 400)", seen_by_ddp, "400", len(seen) == 400, "61"),
        Light("each sample once an epoch, dealt anew", found, "yes", found == "yes", "61"),
    )


def _loss(calm: list[dict[str, Any]]) -> Light:
    own = [torch.tensor(did["losses"]).view(EPOCHS, -1).mean(1) if _whole(did["losses"]) else None for did in calm]
    logged = torch.tensor(calm[0]["logged"], dtype=torch.float32)
    found = f"{len(logged)} numbers in {EPOCHS} epochs"
    if len(logged) == EPOCHS and all(it is not None for it in own):
        alike = lambda loss: torch.allclose(logged, loss, rtol=1e-4)  # noqa: E731
        mean = sum(own) / RANKS
        means = {"of both ranks": mean, "of rank 0's share": own[0], "the sum of both": mean * RANKS}
        found = next((what for what, loss in means.items() if alike(loss)), "of neither")
    return Light("the mean loss that rank 0 logs", found, "of both ranks", found == "of both ranks", "64")


def _whole(numbers: Sequence[float]) -> bool:
    return bool(numbers) and len(numbers) % EPOCHS == 0


def _rate(*runs: list[dict[str, Any]]) -> Light:
    updates, rates = [len(run[0]["rates"]) for run in runs], [run[0]["rates"] or [0.0] for run in runs]
    last = [of[-1] / max(max(of), 1e-12) for of in rates]
    turns = [sum((b > a) != (c > b) for (a, b), (_, c) in pairwise(pairwise(of)) if a != b != c) for of in rates]
    idle = [sum(rate <= 1e-9 * max(of) for rate in of) for of in rates]  # one may begin at 0, and one end there
    good = min(updates) > 0 and max(last) <= LOW and max(turns) <= 1 and max(idle) <= 2
    found = ", ".join(f"{part:.0%}" for part in last)
    if max(turns) > 1 and max(last) <= LOW:
        found += ", up and down again"
    elif max(idle) > 2 and min(updates) > 0:
        found += f", {max(idle)} updates at a rate of 0"
    return Light("last rate / highest, 6 and 3 epochs", found, f"{LOW:.0%} at most", good, "72")


def _plain(calm: list[dict[str, Any]], path: Path) -> Light:
    try:
        file = torch.load(path)
    except Exception as error:
        found = "no file" if isinstance(error, FileNotFoundError) else f"no: {type(error).__name__}"
    else:
        parts = [file, *file.values()] if isinstance(file, dict) else [file]
        fits = any(calm[0]["names"] and _shapes(part) == calm[0]["names"] for part in parts)
        found = "yes" if fits else "no: other names"
    return Light("a network without DDP loads the file", found, "yes", found == "yes", "66")


def _shapes(part: Any) -> dict[Any, tuple]:
    named = part.items() if isinstance(part, dict) else ()
    return {name: tuple(getattr(it, "shape", ())) for name, it in named}


def _half(path: Path, notes: dict[str, Any]) -> Light:
    found = "nothing to read: it is gone"
    if "killed" not in notes:
        found = "rank 0 saves none"
    elif path.exists():
        try:
            torch.load(path)
            found = "reads"
        except Exception:
            found = "cannot be read"
    return Light("rank 0 killed as it writes: the file", found, "reads", found == "reads", "67")


def _restart(
    calm: dict[str, Any], resumed: dict[str, Any] | None, notes: dict[str, Any], fate: str
) -> tuple[Light, Light]:
    wanted, killed = len(calm["rates"]) - notes.get("saved at", 0), "killed" in notes
    found, end = fate, "none"
    if not killed:
        found = "no restart"
    elif resumed is not None:
        found = f"{len(resumed['rates'])}"
        a, b = calm["weights"], resumed["weights"]
        end = "as if not killed" if a.shape == b.shape and len(a) and torch.allclose(a, b, atol=1e-6) else "other ones"
    return (
        Light("updates after a restart", found, f"{wanted}", found == f"{wanted}", "68"),
        Light("weights after the restarted run", end, "as if not killed", end == "as if not killed", "68"),
    )
