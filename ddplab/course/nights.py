"""A night on two played servers: a job trains, accidents come, and in the morning its weights are compared.

    night("tonight.py", accidents=["kill a rank"])                     the script as it is
    night("tonight.py", resume, picked, accidents=["kill a rank"])     with functions of yours in place of its own
    night("tonight.py", accidents=["kill a rank"], press=True)         live, it waits at its step for its button
    night("tonight.py", resume, picked)                                live, with a button for each accident

The agents, ranks, store, deaths and restarts are real. Played are the borders between the servers; a cut cable (all
processes of server1 are stopped by SIGSTOP, so that nobody hears of them, and killed at the end); and a full disk (a
limit on the size of the files that rank 0 may write).
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import runpy
import shutil
import signal
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any

import psutil
import torch

from ddplab.course.holding import Board
from ddplab.course.morning import broken, compare
from ddplab.course.played_servers import Server, environment, free_port, servers
from ddplab.launcher import launch
from ddplab.pointer import pointing
from ddplab.screen import live

KILL, FILL, PREEMPT, CUT, ADD = ACCIDENTS = (
    "kill a rank", "fill the disk", "preempt the job", "cut the cable", "add a node",
)  # fmt: skip
WHEN = (9, 15, 21, 27, 33)  # the steps at which they come, the first first; saved is after steps 5, 11, 17, …
SILENCE = 120.0  # seconds after which a night in which nothing happens is over
PRESSED = 600.0  # seconds after which an accident with a button comes without
PATIENCE = 12.0  # seconds after which a rank that may wait for longer counts as waiting for a server that is gone

EARLIER: list[tuple[Night, threading.Thread]] = []  # the night before, where the cell has not waited for it


@pointing
def night(
    script: str, *mended: Callable[..., Any], accidents: Sequence[str] | None = None, press: bool = False
) -> Board | None:
    """Play a night, and compare its morning with that of a calm one.

    script: path of a script that takes a folder, calls `night_job` where tonight.py does, and trains 36 steps.
    mended: functions that take the place of those of the same names in it, unless nothing but `...` stands in them.
    accidents: of ACCIDENTS, one every six steps; when left out, they come from buttons, and nothing is played where
    nobody can press one.
    press: in a live notebook, each of these accidents waits at its step until its button is pressed, or until another
        night is asked for.
    Raises ValueError for an accident that cannot come, and for a function that the script does not have.
    """
    if blank := [it for it in mended if unwritten(it)]:
        print("Not written yet, so the script's own plays:", ", ".join(it.__name__ for it in blank))
    text = patched(Path(script).read_text(), *(it for it in mended if it not in blank))
    if accidents is None and not live():
        print(f"In JupyterLab: a board with the buttons {', '.join(ACCIDENTS)}.")
        return None
    tonight = Night(text, accidents, press and live())
    for earlier, played in EARLIER:  # one whose button nobody has pressed plays on without
        earlier.hurry.set()
        played.join(0 if earlier.live else None)
    EARLIER.clear()
    calm(text)
    board = tonight.board
    board.appear()
    if tonight.buttons:
        played = threading.Thread(target=tonight.play, daemon=True)
        EARLIER.append((tonight, played))
        played.start()
        return None
    tonight.play()
    return None if live() else board


@pointing
def patched(text: str, *mended: Callable[..., Any]) -> str:
    """Return a script in which functions stand in place of those with their names; ValueError when there is none."""
    for function in mended:
        lines, name = text.splitlines(), function.__name__
        found = [it for it in ast.parse(text).body if isinstance(it, ast.FunctionDef) and it.name == name]
        if not found:
            raise ValueError(f"the script has no function {name!r}: give yours the name of the one that it replaces")
        source = textwrap.dedent(inspect.getsource(function)).strip()
        lines[found[0].lineno - 1 : found[0].end_lineno] = source.splitlines()
        text = "\n".join(lines) + "\n"
    return text


@pointing
def keep(script: str, *mended: Callable[..., Any]) -> str:
    """Save a script beside itself as …_mended.py, with these functions in it, and return what has changed."""
    path = Path(script)
    new = path.with_stem(f"{path.stem}_mended")
    new.write_text(patched(path.read_text(), *(it for it in mended if not unwritten(it))))
    pages = (it.read_text().splitlines() for it in (path, new))
    return "\n".join([f"saved: {new}", *[*unified_diff(*pages, n=0, lineterm="")][2:]])


def unwritten(function: Callable[..., Any]) -> bool:
    """Whether nothing but `...`, or a docstring too, stands in a function."""
    (defined,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    return all(isinstance(it, ast.Expr) and isinstance(it.value, ast.Constant) for it in defined.body)


class Night:
    """One night: its two servers, its folder that both reach, and what happens."""

    def __init__(self, text: str, accidents: Sequence[str] | None, press: bool = False):
        self.live, names = accidents is None, list(accidents or [])
        self.buttons = list(ACCIDENTS) if self.live else list(dict.fromkeys(names)) if press else []
        self.under_way = False
        self.hurry = threading.Event()  # nobody waits for a button any more
        self.cable = [name for name in names if name in (CUT, ADD)]
        if any(name not in ACCIDENTS for name in names) or len(names) > len(WHEN):
            raise ValueError(f"at most {len(WHEN)} accidents of {', '.join(ACCIDENTS)}; got {names}")
        if any(a == b for a, b in zip(self.cable, self.cable[1:], strict=False)):
            raise ValueError("a cable is cut once before a node is added, and a node added once before it is cut")
        self.text, self.plan = text, list(zip(names, WHEN, strict=False))
        self.folder = tempfile.TemporaryDirectory(prefix="ddplab-night-")
        self.shared = Path(self.folder.name)  # plays a disk that both servers reach
        self.notes = prepared(self.shared, text, self.plan, 0.7 if self.live else 0)
        self.server1, self.server2 = servers()
        self.port, self.told, self.lost = free_port(), [], ""
        self.board = Board([self.server1, self.server2], self.diary, self.buttons)

    # What is known

    def diary(self) -> list[dict[str, Any]]:
        """What all ranks have noted, and what this night has done to them, in the order of time."""
        return sorted([*self.told, *diary_in(self.notes)], key=lambda line: line["time"])

    def look_at_the_disk(self, settled: float = 1.0) -> None:
        """Note a checkpoint that a rank broke off and did not live to tell of: untouched for `settled` seconds."""
        path = self.shared / "last.pt"
        if not path.exists() or time.time() - (touched := path.stat().st_mtime) < settled:
            return
        if touched > max((line["time"] for line in self.diary() if "saved" in line), default=0) and broken(path):
            self.told.append({"time": touched, "rank": 0, "saved": None})

    def tell(self, said: str) -> None:
        self.told.append({"time": time.time(), "night": said})

    @property
    def here(self) -> list[Server]:
        return [server for server in (self.server1, self.server2) if server.busy]

    # What happens

    def play(self) -> None:
        """Play the night to its end, and compare. Nothing of it is left running, whatever happens."""
        try:
            nobody = self.cable[:1] == [ADD]
            self.start(*([self.server2] if nobody else [self.server1, self.server2]))
            for number, (name, step) in enumerate(self.plan):
                if self.until(lambda step=step: self.all_hold(step)):
                    self.wait_for_a_press()
                    self.come(name, number, step)
            while self.here and not self.lost:
                self.pressed()
                self.until(self.board.pressed, 1)
                if time.time() - max(frame["time"] for frame in self.board.frames) > SILENCE:
                    self.lost = f"for {SILENCE:g} seconds nothing has happened"
        finally:
            for server in (self.server1, self.server2):
                server.switch_off()
            self.look_at_the_disk(0)
            screens = [it.screen for it in (self.server1, self.server2) if it.diary]
            self.board.end(compare(self.diary(), *calm(self.text), self.lost, self.shared, "".join(screens)))
            self.folder.cleanup()
            for server in (self.server1, self.server2):
                shutil.rmtree(server.disk)

    def start(self, *these: Server) -> None:
        """Type the same line on these servers. One node is enough where nodes come and go."""
        nodes = "1:2" if self.cable or self.live else "2"
        restarts = 3 if self.live or len(self.plan) > 1 else 1
        for server in these:
            server.type(
                f"torchrun --nnodes {nodes} --max-restarts {restarts} --rdzv-backend c10d --rdzv-id tonight"
                f" --rdzv-endpoint {self.server2}:{self.port} --monitor-interval 0.1"
                " --rdzv-conf last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"
                f" '{self.shared}/tonight.py' '{self.shared}'",
                TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
                STOPPED=str(self.notes / "stopped"),
            )

    def until(self, true: Callable[[], bool], seconds: float = SILENCE) -> bool:
        """Wait until it is so, and keep the board going; False when the job has ended or the seconds are over."""
        deadline = time.monotonic() + seconds
        while not true():
            if not self.here or time.monotonic() > deadline:
                return False
            self.look_at_the_disk()
            self.board.update()
            if self.live:
                self.board.dim([name for name in ACCIDENTS if self.cannot(name)])
            time.sleep(0.1)
        return True

    def ranks(self) -> dict[int, dict[str, Any]]:
        """The last line of each rank that lives: pid → line."""
        return {line["pid"]: line for line in self.diary() if "pid" in line and psutil.pid_exists(line["pid"])}

    def all_hold(self, step: int) -> bool:
        last = self.ranks()
        return 0 < len(last) == len(self.here) and all(
            line.get("holds") == step and line["size"] == len(last) for line in last.values()
        )

    def wait_for_a_press(self) -> None:
        """Where an accident of the plan has a button, and nobody is in a hurry, let somebody press it."""
        if self.buttons:
            self.until(lambda: self.board.pressed() or self.hurry.is_set(), PRESSED)
            self.board.take()

    def cannot(self, name: str) -> str:
        """Why an accident from a button cannot come now; "" where it can."""
        if self.under_way:
            return "another accident is under way"
        if name == CUT and len(self.here) < 2:
            return "only one server is there"
        if name == ADD and len(self.here) == 2:
            return "both servers are there"
        return "" if self.ranks() else "the ranks are still starting"

    def pressed(self) -> None:
        if (name := self.board.take()) is not None and self.live:
            if why := self.cannot(name):
                self.tell(f"{name}, which cannot come now: {why}")
            else:
                self.under_way = True  # whoever presses now is answered afterwards
                self.come(name, None, None)
                self.under_way = False

    def come(self, name: str, number: int | None, step: int | None) -> None:
        """Let an accident happen; those who wait for it go on."""
        done = (lambda: None) if number is None else (self.notes / f"done{number}").touch
        self.tell(name if step is None else f"{name}, at step {step}")
        before = self.ranks()
        if name == KILL:
            os.kill(max(before, key=lambda pid: before[pid]["rank"]), signal.SIGKILL)
            done()
        elif name == FILL:
            (self.notes / "full").touch()
            done()
        elif name == PREEMPT:
            these = self.here
            for server in these:
                server.end()
            done()
            self.start(*these)
        elif name == CUT:
            stopped = self.server1.processes
            (self.notes / "stopped").write_text(" ".join(map(str, stopped)))
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            done()
            on_server2 = set(self.server2.processes)
            waits = next(line["waits"] for line in reversed(self.diary()) if "waits" in line)
            if self.until(lambda: on_server2 - set(self.server2.processes), PATIENCE if waits > PATIENCE else SILENCE):
                self.until(lambda: set(self.server2.processes) - on_server2)
                self.server1.switch_off()
                (self.notes / "stopped").unlink()
            elif self.here:
                may = f"{waits / 60:g} minutes" if waits >= 60 else f"{waits:g} seconds"
                self.lost = f"server2's rank waits for server1, of which nothing comes; its group lets it wait {may}"
        elif name == ADD:
            self.start(next(server for server in (self.server1, self.server2) if not server.busy))
            self.until(lambda: len([line for line in self.ranks().values() if line["size"] == 2]) == 2)
            done()


Calm = tuple[list[dict[str, Any]], dict[str, torch.Tensor]]
CALM: dict[str, Calm] = {}  # script → what its calm night left


def calm(text: str) -> Calm:
    """Return the diary and the weights of a night of this script without an accident: two ranks, no agents."""
    if text not in CALM:
        with tempfile.TemporaryDirectory(prefix="ddplab-calm-") as folder:
            notes = prepared(Path(folder), text, [], 0)
            launch(_calm, folder, nproc_per_node=2, device="cpu", init=False, quiet=True)
            CALM[text] = diary_in(notes), torch.load(notes / "weights0")
    return CALM[text]


def prepared(folder: Path, text: str, plan: list[tuple[str, int]], pace: float) -> Path:
    """Put into the folder of a night what its script looks for, and return where its ranks leave their notes."""
    notes = folder / "night"
    notes.mkdir()
    (notes / "plan").write_text(json.dumps({"accidents": plan, "pace": pace}))
    (folder / "tonight.py").write_text(text)
    return notes


def diary_in(notes: Path) -> list[dict[str, Any]]:
    """Return what all ranks have noted, in the order of time; a line that is being written comes later."""
    lines = [line for page in notes.glob("diary-*") for line in page.read_text().splitlines(keepends=True)]
    return sorted((json.loads(line) for line in lines if line.endswith("\n")), key=lambda line: line["time"])


def _calm(folder: str) -> None:
    torch.set_num_threads(1)  # as under torchrun
    os.environ.update({name: value for name, value in environment().items() if name == "CUDA_VISIBLE_DEVICES"})
    sys.argv = [f"{folder}/tonight.py", folder]
    runpy.run_path(sys.argv[0], run_name="__main__")
