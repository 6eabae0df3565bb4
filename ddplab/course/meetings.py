"""Two played servers meet, by real agents of torchrun: what the meeting made of each, and what a death does to it."""

from __future__ import annotations

import inspect
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ddplab.course.holding import Board
from ddplab.course.played_agent import noted_torchrun
from ddplab.course.played_servers import Server, free_port, servers
from ddplab.launcher import launch
from ddplab.plots import COLOURS, INK, SHAPES, drawing
from ddplab.pointer import pointing
from ddplab.run import RankError
from ddplab.screen import live

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD_START = 1.0  # seconds, for a first one that has nobody yet to sign in with
PRESSED = 600.0  # seconds after which a plug is pulled without anybody
WAITING: list[Board] = []  # the last one whose plug somebody may pull
TALKS = """
import os, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
who = f"rank {dist.get_rank()} of {dist.get_world_size()}"
for call in range(9999 if dist.get_world_size() > 1 else 3):  # whoever is alone soon comes to the end
    dist.all_reduce(torch.ones(1))
    if call == 0:
        print(who, "has summed", flush=True)
    time.sleep(0.1)
"""


def knock(server: Server, asleep: Server) -> None:
    """Let a server ask for a meeting at one that is asleep, with three seconds of patience; print what it is told."""
    server.type(f"torchrun {_c10d(asleep)} --rdzv-conf read_timeout=3 job.py")
    server.wait()
    print(*(line for line in server.says("Error: ") if line.startswith("torch.")), sep="\n")


def _c10d(store: Server) -> str:
    return f"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint {store}:{free_port()} --rdzv-id 7"


@pointing
def plugs() -> Board | None:
    """Let two servers meet by c10d, and show who holds the store, the agents and the ranks; then pull a plug.

    Server2 holds the store, and is told to be 0; whoever is left may begin anew, alone. In a live notebook a button
    says whose plug it is; elsewhere it is server1's. Every process of that server is gone at once, without a word.
    """
    for server in [server for earlier in WAITING for server in earlier.servers]:
        server.switch_off()
    both = servers()
    board = Board(both, buttons=[f"pull {it.name}'s plug" for it in both] if live() else [])
    board.appear()
    if live():  # the next cells need not wait for whoever thinks
        WAITING[:] = [board]
        threading.Thread(target=_pull, args=(board,), daemon=True).start()
        return None
    _pull(board)
    return board


def _pull(board: Board) -> None:
    both = board.servers

    def until(true: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not true() and all(it.busy for it in both) and time.monotonic() < deadline:
            board.update()
            time.sleep(0.05)

    options = f"--nnodes 1:2 --max-restarts 1 --monitor-interval 0.1 {_c10d(both[1]).partition('2 ')[2]}"
    conf = "--rdzv-conf last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
    try:
        for number, server in enumerate(reversed(both)):
            (server.disk / "job.py").write_text(TALKS)
            line = f"torchrun {options} {conf} --node-rank {number} job.py"
            server.type(line, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        until(lambda: all(it.says("of 2 has summed") for it in both), 100)
        if board.buttons:
            until(board.pressed, PRESSED)
        dead, left = reversed(both) if "server2" in (board.take() or "") else both
        gone = time.time()
        dead.switch_off()
        deadline = time.monotonic() + 60
        while left.busy and time.monotonic() < deadline:
            board.update()
            time.sleep(0.05)
        board.end(_what_became_of(dead, left, gone))
    finally:
        for server in both:
            server.switch_off()


def _what_became_of(dead: Server, left: Server, gone: float) -> str:
    """Say what whoever is left has noticed and printed, and how its job has ended."""
    said = [f"{dead.name}'s plug is pulled: its agent and its rank are gone, without a word."]
    errors = [line.strip() for line in left.says("Error: ")]
    for who, words in (("rank", "RuntimeError: "), ("agent", "RendezvousConnectionError: ")):
        those = [re.sub(r"^\[\S*\] ", "", line.partition(words)[2]) for line in errors if words in line]
        said += [f"The {who} of {left.name} prints: {words}{those[-1].partition('. ')[0]}"] if those else []
    noticed = [line["time"] - gone for line in left.diary if "FAILED" in line["said"]]
    said += [f"{left.name}'s agent finds its rank dead after {noticed[0]:.1f} s."] if noticed else []
    alone = [line.partition(" has")[0] for line in left.says("of 1 has summed")]
    said += [f"✓ {left.name} has come to the end alone, as {alone[-1]}." if alone else f"✗ {left.name} has ended too."]
    return "\n".join(said)


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
