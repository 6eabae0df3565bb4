"""What the script of the night needs beside its own lines: a network, a diary of its steps, and the accidents' hour."""

import hashlib
import json
import os
import resource
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

ROOM = 9000  # bytes that a file may have on a full disk, less than half a checkpoint


def network() -> nn.Module:
    """Return the network of the night, with the same weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def clock(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """On every rank, before a step: tell the diary how things stand, and let the accident come that is planned here.

    Accidents come from outside. So that they strike at the step that the plan names, all ranks wait here until it has
    happened; and a full disk is played by a limit on the size of files that rank 0 writes from now on.
    """
    note(step=step, weights=digest(net.state_dict()), momentum=digest(optimizer.state_dict()["state"]), waits=waits())
    folder = _folder()
    plan = json.loads((folder / "plan").read_text())
    time.sleep(plan["pace"])
    for number, (_, when) in enumerate(plan["accidents"]):
        if when == step and not (folder / f"done{number}").exists():
            note(holds=step)
            while not (folder / f"done{number}").exists():
                time.sleep(0.02)
    if os.environ["RANK"] == "0" and (folder / "full").exists():
        (folder / "full").unlink()  # whoever comes after this process finds room again
        resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def trained(step: int, images: Iterable[int], net: nn.Module) -> None:
    """On every rank, after a step: tell the diary which images it was, and what they made of the weights."""
    note(trained=step, images=[int(number) for number in images], after=digest(net.state_dict()))


def saved(path: str) -> None:
    """On rank 0, after a save: tell the diary which step the file holds now; -1 where there is none, None if broken."""
    try:
        note(saved=torch.load(path)["done"] if os.path.exists(path) else -1)
    except (OSError, RuntimeError, EOFError):
        note(saved=None)


def over(net: nn.Module) -> None:
    """On every rank, at the end: leave the weights for the comparison with the calm night, also on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, 2 * resource.getrlimit(resource.RLIMIT_FSIZE)[1:])
    note(over=True)
    torch.save(net.state_dict(), _folder() / f"weights{os.environ['RANK']}")


def waits() -> float:
    """Return after how many seconds a collective of the group gives up waiting for another rank."""
    return dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def note(**line: Any) -> None:
    """Write a line into this process's diary: who, when, and what."""
    env = os.environ
    who = {"time": time.time(), "pid": os.getpid(), "rank": int(env["RANK"]), "size": int(env["WORLD_SIZE"])}
    who["server"] = env.get("SERVER", "calm")
    pages = [_folder() / f"diary-{os.getpid()}-{page}" for page in range(100)]
    page = next(page for page in pages if not page.exists() or page.stat().st_size < ROOM // 2)  # also on a full disk
    with open(page, "a") as diary:
        diary.write(json.dumps(who | line) + "\n")


def digest(state: Any) -> str:
    """Return a few letters that are the same for states of the same bits, and for no others."""
    made = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, Tensor):
            made.update(part.detach().contiguous().numpy().tobytes())
        elif isinstance(part, dict | list | tuple):
            for key in part if isinstance(part, dict) else range(len(part)):
                made.update(str(key).encode())
                add(part[key])
        else:
            made.update(str(part).encode())

    add(state)
    return made.hexdigest()[:12]


def _folder() -> Path:
    return Path(sys.argv[1]) / "night"
