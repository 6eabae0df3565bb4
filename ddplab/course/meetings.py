"""Two played servers meet, by real agents of torchrun: who was typed first, and what the meeting made of each."""

from __future__ import annotations

import inspect
import os
import re
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ddplab.course.played_agent import noted_torchrun
from ddplab.course.played_servers import Server, free_port
from ddplab.launcher import launch
from ddplab.plots import COLOURS, INK, SHAPES, drawing
from ddplab.pointer import pointing
from ddplab.run import RankError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD_START = 1.0  # seconds, for a first one that has nobody yet to sign in with


def knock(server: Server, asleep: Server) -> None:
    """Let a server ask for a meeting at one that is asleep, with three seconds of patience; print what it is told."""
    server.type(f"torchrun {_c10d(asleep)} --rdzv-conf read_timeout=3 job.py")
    server.wait()
    print(*(line for line in server.says("Error: ") if line.startswith("torch.")), sep="\n")


def first_meeting(server1: Server, server2: Server) -> tuple[str, Figure | None]:
    """Let both meet by c10d, as `play_meeting` does: server2 holds the store, comes first, and is told to be 0."""
    options = _c10d(server2)
    lines = {server1: f"torchrun {options} --node-rank 1 job.py", server2: f"torchrun {options} --node-rank 0 job.py"}
    return play_meeting(lines, server2, server2)


def _c10d(store: Server) -> str:
    return f"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint {store}:{free_port()} --rdzv-id 7"


class Met(NamedTuple):
    """What became of a server: whether it holds the store, its number as told and as given, what its rank prints."""

    name: str
    store: bool
    told: str
    number: int
    prints: str


@pointing
def play_meeting(lines: Mapping[Server, str], first: Server, store: Server) -> tuple[str, Figure | None]:
    """Type each server's line, `first`'s before the other's; say and draw what came of it when both have ended.

    The second follows when the first one's agent has signed in, or else after a second. store: whose agent holds it.
    The script prints "… node rank N", and more behind a comma. The agents run in processes that have torch imported
    already: what takes long on a real terminal is that. Where an agent fails, the other is ended, and the words
    are the failed one's last error, without a picture.
    """
    terminals = sorted(lines, key=lambda server: server is not first)
    typed = [(str(server.disk), *server.typed(lines[server])) for server in terminals]
    try:
        launch(_terminal, typed, nproc_per_node=len(typed), init=False, device="cpu", timeout=150, quiet=True)
    except RankError as error:
        error.__traceback__ = None  # its frames hold the servers, and so their folders
        failed = next((server for server in terminals if server.says("Error: ")), None)
        if failed is None:
            raise
        said = failed.says("Error: ")[-1].strip()
        taken = "\nBoth agents were to hold the store, and these two servers share one machine's ports."
        return f"no meeting: {failed.name}'s agent says {said}{taken * ('already in use' in said)}", None
    met = []
    for server in lines:
        [said] = server.says("node rank ")
        number, prints = re.search(r"node rank (\d+), (.*)", said).groups()
        told = re.search(r"--node-rank (\d+)", lines[server])
        met.append(Met(server.name, server is store, told[1] if told else "nothing", int(number), prints))
    numbers = ", ".join(f"node rank {it.number} is {it.name}'s" for it in sorted(met, key=lambda it: it.number))
    ignored = [line for server in lines for line in server.says("It will be ignored")]
    remark = "".join(f"\ntorchrun remarks: {line.partition('] ')[2]}" for line in ignored[:1])
    return f"{numbers}{remark}", met_at(met, first.name)


def _terminal(typed: list[tuple[str, list[str], dict[str, str]]]) -> None:
    """In a rank: be the agent of one server, the first one's in rank 0. Raises where the agent fails."""
    place = int(os.environ["RANK"])
    disk, words, env = typed[place]
    until = time.monotonic() + HEAD_START
    first = Path(typed[0][0], "says")
    while place and time.monotonic() < until and "Rendezvous'ing" not in first.read_text().splitlines()[-1]:
        time.sleep(0.02)
    with open(f"{disk}/screen", "w") as shown:
        os.dup2(shown.fileno(), 1)
        os.dup2(shown.fileno(), 2)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(disk)
    # Torch notes each step of a meeting under its caller's name, and asks for it so that source files are read. They
    # need not be: it is most of what a meeting costs.
    inspect.stack = partial(inspect.stack, 0)
    try:
        noted_torchrun(words[1:])
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"the agent has ended with status {end.code}") from end
    except Exception:
        traceback.print_exc()
        raise


def met_at(met: Sequence[Met], first: str) -> Figure:
    """Draw a box for each server after the meeting: its number, its rank, who came first and who holds the store."""
    with drawing(8, 1.9) as figure:
        axis = figure.subplots()
        axis.set(xlim=(-0.02, len(met)), ylim=(-0.05, 1.05))
        axis.set_axis_off()
        for place, it in enumerate(met):
            axis.plot([place, place, place + 0.95, place + 0.95, place], [0, 1, 1, 0, 0], color=INK)
            signs = ["came first"] * (it.name == first) + ["⌂ store"] * it.store
            given = f"agent: told {it.told}, given node rank {it.number} of {len(met)}"
            axis.text(place + 0.03, 0.8, it.name, weight="bold", color=INK)
            axis.text(place + 0.91, 0.8, "   ".join(signs), ha="right", color=INK)
            axis.text(place + 0.03, 0.47, given, color=INK)
            axis.text(place + 0.03, 0.14, SHAPES[it.number], color=COLOURS[it.number])
            axis.text(place + 0.1, 0.14, f"rank {it.number}: {it.prints}", color=INK)
    return figure


def what_is_left(*servers: Server) -> None:
    """Print whom each screen's report of a death names first, and what the `logs` of all disks say."""
    for server in servers:
        report = server.screen[server.screen.index("Root Cause") :].splitlines()
        kept = [line for line in report if line.startswith(("Root", "  rank ", "  error_file"))]
        error = [line.strip() for line in report if "Error: " in line][-1:]
        print(f"{server.name}'s screen:", *kept, *[f"  {line[:120]}" for line in error], sep="\n")
    for server in servers:
        for path in sorted((server.disk / "logs").rglob("stdout.log")):
            beside = [f"; beside it: {other.name}" for other in path.parent.glob("*.json")]
            print(f"{server.name} …/attempt_0/{path.parent.name} says: {path.read_text().strip()}", *beside, sep="")
