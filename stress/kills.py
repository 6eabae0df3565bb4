"""Processes killed at random moments: is nothing left, is no logged row lost, does the next launch work?

    python stress/kills.py                        # 200 rounds
    python stress/kills.py --rounds 20 --seed 7 forkserver agent

Each round starts a run whose ranks log row after row, and note outside of the run's folder each row that `log()` has
returned from. At a random moment a rank, all ranks, a process that waits to become a rank, the forkserver, an agent of
torchrun or a whole kernel is killed (SIGKILL; a rank now and then by SIGTERM or SIGSEGV). Then: the run has ended and
says how; every row that was noted is in `run.metrics`; no process and no folder is left; a launch works. Exit status 0
when that held in every round.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")  # a name server that does not answer
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import psutil
import torch  # before ddplab: its forkserver is then no fork of this program, and leftovers.py tells it by its command
from kernel import Kernel
from leftovers import ranks_alive, run_folders, spares_alive, until

import ddplab
from ddplab import RankError, RankTimeoutError, Run, launch, log, torchrun

ROWS = 150
VICTIMS = {"rank": 50, "ranks": 20, "spare": 20, "forkserver": 20, "agent": 15, "rank of torchrun": 10, "kernel": 15}
SCRIPT = """
import os, sys, time
from ddplab import log
notes = os.open(os.path.join(sys.argv[1], os.environ["RANK"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for row in range({rows}):
    log(row=row)
    os.write(notes, b"x")
    time.sleep(0.005)
"""


def logs_and_notes(folder: str) -> None:
    """In a rank: log, and note outside of the run, a byte a row, that log() has returned."""
    notes = os.open(os.path.join(folder, os.environ["RANK"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for row in range(ROWS):
        log(row=row)
        os.write(notes, b"x")
        time.sleep(0.005)


def victims(kind: str) -> list[psutil.Process]:
    """The processes that this kind of round kills, as far as they are there now."""
    if kind == "forkserver":
        return [psutil.Process(forkserver._forkserver._forkserver_pid)]
    if kind == "spare":
        return spares_alive()[:1]
    agents = [process for process in ranks_alive() if any("ddplab.script import agent" in w for w in process.cmdline())]
    if kind == "agent":
        return agents
    ranks = [process for process in ranks_alive() if process not in agents]
    random.shuffle(ranks)
    return ranks if kind == "ranks" else ranks[:1]


def kill_after(seconds: float, kind: str, number: signal.Signals, killed: list[int]) -> None:
    time.sleep(seconds)
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself
        for process in victims(kind):
            process.send_signal(number)
            killed.append(process.pid)


def lost(run: Run, notes: Path) -> list[str]:
    """Return which rows log() has returned from and run.metrics has not."""
    missing = []
    for rank in range(run.world_size):
        noted = (notes / str(rank)).stat().st_size if (notes / str(rank)).exists() else 0
        rows = [row["row"] for row in run.metrics if row["rank"] == rank]
        if rows[:noted] != list(range(noted)):
            missing.append(f"rank {rank} has logged {noted} rows, and these are there: {rows}")
    return missing


def left() -> list[str]:
    """Return what is still there five seconds later."""
    until(lambda: not ranks_alive())
    until(lambda: not run_folders())
    return [f"process {process.pid}: {process.cmdline()}" for process in ranks_alive()] + run_folders()


def round_of(kind: str, rng: random.Random) -> tuple[str, list[str]]:
    """Play one round. Returns how the run ended, and what is wrong ([] where nothing is)."""
    under_torchrun = kind in ("agent", "rank of torchrun")
    number = rng.choice([signal.SIGKILL] * 3 + [signal.SIGTERM, signal.SIGSEGV])
    number = number if kind in ("rank", "ranks") else signal.SIGKILL
    moment = rng.uniform(0, 12 if under_torchrun else 0.8)
    killed: list[int] = []
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        notes = Path(name)
        script = notes / "job.py"
        script.write_text(SCRIPT.format(rows=2000 if under_torchrun else ROWS))
        if kind == "spare":
            until(lambda: bool(spares_alive()))
        killer = threading.Thread(target=kill_after, args=(moment, kind, number, killed))
        killer.start()
        try:
            if under_torchrun:
                run = torchrun(str(script), name, nproc_per_node=2, quiet=True, timeout=120)
            else:
                run = launch(logs_and_notes, name, quiet=True, timeout=120)
            end = run.state
        except RankTimeoutError as error:
            return "hung", [str(error)]
        except RankError as error:
            run, end = error.run, str(error).splitlines()[0]
        killer.join()
        wrong = lost(run, notes)
    wrong += left()
    try:
        if (results := launch(lambda: 7, quiet=True, timeout=120).results) != [7, 7]:
            wrong.append(f"the next launch returned {results}")
    except Exception as error:
        wrong.append(f"the next launch: {type(error).__name__}: {error}")
    return (end if killed else f"{end} (nobody was there to kill)"), wrong


def kernel_round(rng: random.Random) -> tuple[str, list[str]]:
    """Kill a whole kernel at a random moment of its run."""
    folder = tempfile.mkdtemp(prefix="k-")
    how = rng.choice(["launch", "torchrun"])
    ours = str(Path(ddplab.__file__).parent / "jupyter")
    with mock.patch.dict(os.environ, rng.choice([{}, {"JUPYTER_PATH": ours}])):
        kernel = Kernel(TMPDIR=folder)
    try:
        kernel.run("from ddplab import launch, log")
        body = "import time\nfor row in range(10**6):\n    log(row=row)\n    time.sleep(0.01)\n"
        if how == "launch":
            kernel.run("def endless():\n    " + body.replace("\n", "\n    "))
            kernel.begin("launch(endless)")
        else:
            kernel.begin("%%torchrun --nproc-per-node 2\nfrom ddplab import log\n" + body)
        time.sleep(rng.uniform(0, 3 if how == "launch" else 12))
        family = psutil.Process(kernel.pid).children(recursive=True)
        os.kill(kernel.pid, signal.SIGKILL)
        until(lambda: not any(alive(process) for process in family), 15)
        wrong = [f"process {process.pid}: {process.cmdline()}" for process in family if alive(process)]
        mine = ("ddplab", "pymp", "pytorch-errorfile")
        until(lambda: not [name for name in os.listdir(folder) if name.startswith(mine)])
        return how, wrong + [name for name in os.listdir(folder) if name.startswith(mine)]
    finally:
        kernel.close()
        shutil.rmtree(folder, ignore_errors=True)


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("victims", nargs="*", default=list(VICTIMS), help="who is killed; all kinds by default")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    rng, bad, ends = random.Random(asked.seed), 0, Counter()
    tempfile.tempdir = tempfile.mkdtemp(prefix="kills-")  # what other programs do in /tmp is none of ours
    os.environ["TMPDIR"] = tempfile.tempdir
    launch(torch.get_num_threads, quiet=True)  # the forkserver has imported torch
    for number in range(1, asked.rounds + 1):
        kind = rng.choices(asked.victims, [VICTIMS[kind] for kind in asked.victims])[0]
        end, wrong = kernel_round(rng) if kind == "kernel" else round_of(kind, rng)
        ends[kind, end] += 1
        bad += bool(wrong)
        for what in wrong:
            print(f"round {number}, {kind}, {end}: {what}", flush=True)
    for (kind, end), count in sorted(ends.items()):
        print(f"{count:>4}  {kind:<17} {end[:90]}")
    print(f"{asked.rounds - bad} of {asked.rounds} rounds: nothing left, no row lost, the next launch works")
    shutil.rmtree(tempfile.tempdir, ignore_errors=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
