"""Does a tiny DDP job end well every time, and cost the same after ten minutes? Launches, then torchrun scripts.

    python stress/endurance.py                            # ten minutes, 300 launches, 100 scripts, 40 for comparison
    python stress/endurance.py --minutes 0 --launches 0 --scripts 300
    python stress/endurance.py --minutes 1 --launches 0 --scripts 0 --textbook 0 --plant memory    # must fail

Gloo finishes its last piece of work on a thread of its own. A job that is over in milliseconds can destroy its
group at that very moment, and then it hangs or aborts. `launch` and `ddplab.cleanup()` must never do so. The
textbook's last line, `dist.destroy_process_group()`, is run beside them.

For ten minutes launches that end well, that fail and that are stopped follow each other. Memory, open files and
processes of the notebook's side and of its forkserver, and what lies on the disk, are to be the same in the last fifth
of the time as in the second, when everything has been used once. `--plant` lets each launch leak something, which must
be noticed.

Exit status 0 when every launch and every cleanup() ended well and nothing has grown.
"""

import argparse
import atexit
import gc
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

# A name server that does not answer would otherwise add seconds to a job, here and there.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # what torchrun sets too, with a long message

PATIENCE = 180  # seconds after which a script counts as hanging; a good one takes about five, on a busy machine thirty
ENDINGS = {"cleanup()": "ddplab.cleanup()", "destroy_process_group()": "dist.destroy_process_group()"}

IN_A_FUNCTION = """\
import faulthandler
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import ddplab

def main():
    faulthandler.dump_traceback_later({stacks_after})  # says where it hangs, should it hang
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    print("trained", flush=True)
    {ending}

main()
"""


def at_top_level(script: str) -> str:
    """The same script without main(): there the model lives until Python itself ends."""
    lines = [line for line in script.splitlines() if line not in ("def main():", "main()")]
    return "\n".join(line.removeprefix("    ") if line != lines[-1] else line.strip() for line in lines)


def tiny_job() -> float:
    """Five training steps in DDP; the imports are here, as they would be in a cell."""
    import torch
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).sum()
        loss.backward()
        optimizer.step()
    return loss.item()


def launches(n: int) -> tuple[Counter, list[float]]:
    """Launch the tiny job n times in a row. Returns how many ended how, and the seconds each took."""
    from ddplab import RankError, launch

    ends, seconds = Counter(), []
    for number in range(n):
        start = time.perf_counter()
        try:
            run = launch(tiny_job, nproc_per_node=2, timeout=PATIENCE, quiet=True)
            end = "ended well" if len(set(run.results)) == 1 else f"results differ: {run.results}"
        except RankError as error:
            end = type(error).__name__
            print(f"launch {number}: {error}", flush=True)
        ends[end] += 1
        seconds.append(time.perf_counter() - start)
    return ends, seconds


def fails() -> None:
    raise ValueError("on purpose")


def waits() -> None:
    time.sleep(600)


def footprint() -> dict[str, float]:
    """What this program takes now: MiB of memory, open files, processes, and what lies on the disk."""
    me = psutil.Process()
    family = [me, *(child for child in me.children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE)]
    servers = [me, *(child for child in me.children() if os.getsid(child.pid) == os.getsid(0))]
    folders = [tempfile.gettempdir(), *(["/dev/shm"] if os.path.isdir("/dev/shm") else [])]
    return {
        "memory (MiB)": sum(process.memory_full_info().uss for process in servers) / 2**20,
        "open files": sum(process.num_fds() for process in servers),
        "processes": len(family),
        "on the disk": sum(len(files) + len(below) for folder in folders for _, below, files in os.walk(folder)),
    }


GROWTH = {"memory (MiB)": 3.0, "open files": 2, "processes": 1, "on the disk": 2}  # what may be there by chance
LEAKS: list[object] = []
PLANTS: dict[str, Callable[[], object]] = {
    "memory": lambda: LEAKS.append(os.urandom(2**20)),
    "files": lambda: LEAKS.append(open(os.devnull)),
    "processes": lambda: LEAKS.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)),
    "disk": lambda: tempfile.mkstemp(prefix="ddplab-"),
}


def sustained(minutes: float, plant: str | None) -> list[str]:
    """Launch for so long; print and return what has grown between the second fifth of the time and the last."""
    from ddplab import RankError, launch

    seen: list[list[dict[str, float]]] = [[], [], [], [], []]
    start, number, wrong = time.monotonic(), 0, []
    while (passed := (time.monotonic() - start) / (60 * minutes)) < 1:
        number += 1
        launch(tiny_job, nproc_per_node=2, timeout=PATIENCE, quiet=True)
        try:
            launch(fails, nproc_per_node=2, timeout=PATIENCE, quiet=True)
            wrong.append("a rank that raises made no error")
        except RankError:
            pass
        launch(waits, nproc_per_node=2, timeout=PATIENCE, quiet=True, wait=False).stop()
        if plant:
            PLANTS[plant]()
        gc.collect()
        launch(tiny_job, nproc_per_node=2, timeout=PATIENCE, quiet=True)
        time.sleep(0.6)  # the processes that wait are forked
        seen[int(5 * passed)].append(footprint())
    print(f"sustained: {4 * number} launches in {minutes:g} minutes", flush=True)
    for what, allowed in GROWTH.items():
        before, after = (statistics.median(it[what] for it in seen[fifth]) for fifth in (1, 4))
        print(f"    {what:<14}{before:8.1f} then {after:8.1f}", flush=True)
        if after - before > allowed:
            wrong.append(f"{what} grew from {before:.1f} to {after:.1f}")
    for what in wrong:
        print(f"    {what}", flush=True)
    for leak in LEAKS:
        if isinstance(leak, subprocess.Popen):
            leak.kill()
    return wrong


def script_run(path: Path) -> tuple[str, str]:
    """Run one script under torchrun. Returns how it ended and what it said."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(path)]
    agent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said, _ = agent.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        agent.send_signal(signal.SIGTERM)  # torchrun ends its ranks, with force after 30 s
        said, _ = agent.communicate()
        return "hung", said
    return ("ended well" if agent.returncode == 0 else f"exit status {agent.returncode}"), said


def scripts(n: int, ending: str, folder: Path) -> Counter:
    """Run n scripts that end in `ending`, every second one without a main(). Returns how many ended how."""
    script = IN_A_FUNCTION.format(ending=ENDINGS[ending], stacks_after=PATIENCE / 2)
    shapes = {"main()": folder / "main.py", "top level": folder / "top_level.py"}
    shapes["main()"].write_text(script)
    shapes["top level"].write_text(at_top_level(script))
    ends = Counter()
    for number in range(n):
        shape = list(shapes)[number % 2]
        end, said = script_run(shapes[shape])
        ends[end if end == "ended well" else f"{end} ({shape})"] += 1
        if end != "ended well" and ends[f"{end} ({shape})"] == 1:  # the first of its kind in full
            print(f"\nscript {number}, {ending}, {shape}: {end}\n{said}", flush=True)
    return ends


def show(what: str, ends: Counter) -> None:
    others = ", ".join(f"{count} {end}" for end, count in ends.items() if end != "ended well")
    print(
        f"{what:<42}{ends['ended well']:>4} of {ends.total()} ended well" + (f": {others}" if others else ""),
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="of launches after which nothing may have grown")
    parser.add_argument("--plant", choices=PLANTS, help="let each launch leak this, which must be noticed")
    parser.add_argument("--launches", type=int, default=300)
    parser.add_argument("--scripts", type=int, default=100, help="torchrun scripts that end with cleanup()")
    parser.add_argument(
        "--textbook", type=int, default=40, help="torchrun scripts that end with destroy_process_group()"
    )
    asked = parser.parse_args()
    bad = 0
    tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="e-")  # what others do in /tmp is none of ours
    atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)  # before multiprocessing's own: runs after it
    if asked.minutes:
        bad += len(sustained(asked.minutes, asked.plant))
    if asked.launches:
        ends, seconds = launches(asked.launches)
        show("launch", ends)
        print(f"    median {statistics.median(seconds):.3f} s, longest {max(seconds):.3f} s", flush=True)
        bad += ends.total() - ends["ended well"]
    with tempfile.TemporaryDirectory() as folder:
        if asked.scripts:
            ends = scripts(asked.scripts, "cleanup()", Path(folder))
            show("torchrun, cleanup()", ends)
            bad += ends.total() - ends["ended well"]
        if asked.textbook:
            show("torchrun, destroy_process_group()", scripts(asked.textbook, "destroy_process_group()", Path(folder)))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
