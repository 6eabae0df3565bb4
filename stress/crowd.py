"""Twenty people on one machine: does every run end right, is nobody starved, what does a start cost?

    python stress/crowd.py                         # twenty kernels, three launches each, and what a start costs
    python stress/crowd.py --kernels 4 --launches 2

Twenty real kernels start together, each trains a small model in its own process and then launches the same on two
ranks, again and again. Every result must be right, and nobody may take more than three times as long as they all do on
average. Before that, one after the other: the CPU seconds and memory of one learner's kernel, forkserver, waiting
processes and two ranks, for the kernel that `make lab` starts and for IPython's own, in one run. Memory is what each
would give back by ending (USS), and that with its share of what several use (PSS). Exit status 0 when every run was
right and nobody starved.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")  # a name server that does not answer
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `make lab` sets it
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import psutil
from kernel import Kernel
from leftovers import until

PATIENCE = 900  # seconds for a cell, on a machine that twenty share
STARVED = 3  # times the mean
OURS = subprocess.check_output(
    [sys.executable, "-c", "import importlib.util as u; print(u.find_spec('ddplab').submodule_search_locations[0])"],
    text=True,
    env={**os.environ, "PYTEST_CURRENT_TEST": "the import is all that is wanted"},
).strip()
BEGIN = """
import json, os, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from ddplab import launch, log
def train(wrap=lambda net: net):
    torch.manual_seed(0)
    net = wrap(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(20):
        optimizer.zero_grad()
        loss = net(torch.ones(4, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
    return round(loss.item(), 6)
def on_ranks():
    loss = train(DDP)
    log(loss=loss)
    return loss
alone = train()
"""
LAUNCH = """
start = time.perf_counter()
run = launch(on_ranks, quiet=True, device="cpu", timeout=600)
right = run.results == [alone, alone] and run.metrics.column("loss") == [alone, alone]
print(json.dumps([right, time.perf_counter() - start]))
"""
HOLD = "def hold():\n    on_ranks()\n    log(up=1)\n    time.sleep(600)\nheld = launch(hold, wait=False, device='cpu')"


def begin(folder: Path, jupyter_path: str | None) -> Kernel:
    env = {"JUPYTER_PATH": jupyter_path} if jupyter_path else {}
    folder.mkdir()
    with mock.patch.dict(os.environ, env):
        return Kernel(TMPDIR=str(folder))


def learner(folder: Path, launches: int, together: threading.Barrier, told: list[dict]) -> None:
    """One of the crowd: a kernel, a model trained in it, and launches. Tells what came of it."""
    mine = {"right": 0, "seconds": [], "error": "no word"}
    told.append(mine)
    together.wait()
    start = time.perf_counter()
    kernel = None
    try:
        kernel = begin(folder, f"{OURS}/jupyter")
        if (outcome := kernel.run(BEGIN, PATIENCE)).error:
            raise RuntimeError(outcome.message)
        for _ in range(launches):
            outcome = kernel.run(LAUNCH, PATIENCE)
            if outcome.error:
                raise RuntimeError(outcome.message)
            right, seconds = json.loads(outcome.text)
            mine["right"] += right
            mine["seconds"].append(seconds)
        mine["error"] = None
    except Exception as error:
        mine["error"] = f"{type(error).__name__}: {error}"
    mine["whole"] = time.perf_counter() - start
    if kernel is not None:
        kernel.close()


def crowd(kernels: int, launches: int, folder: Path) -> list[str]:
    """Let so many learners start together. Returns what is wrong."""
    told: list[dict] = []
    together = threading.Barrier(kernels)
    people = [
        threading.Thread(target=learner, args=(folder / f"k{number}", launches, together, told))
        for number in range(kernels)
    ]
    for person in people:
        person.start()
    for person in people:
        person.join()
    wrong = [f"a kernel ended with {it['error']}" for it in told if it["error"]]
    wrong += [f"only {it['right']} of {launches} runs were right" for it in told if it["right"] != launches]
    whole = [it["whole"] for it in told]
    mean, longest = statistics.mean(whole), max(whole)
    firsts = [it["seconds"][0] for it in told if it["seconds"]]
    later = [seconds for it in told for seconds in it["seconds"][1:]]
    print(f"{kernels} kernels at once, {launches} launches each, on {os.cpu_count()} cores", flush=True)
    print(f"    from the start of all to the last launch: mean {mean:.0f} s, longest {longest:.0f} s")
    for what, seconds in {"first launch": firsts, "later ones": later}.items():
        if seconds:
            print(f"    {what}: median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s")
    if longest > STARVED * mean:
        wrong.append(f"one took {longest / mean:.1f} times as long as the mean")
    return wrong


def cost(folder: Path, jupyter_path: str | None) -> tuple[float, float, float]:
    """Return what a learner costs: CPU seconds until the first launch has ended, and MiB (USS, PSS) with two ranks."""
    kernel = begin(folder, jupyter_path)
    try:
        assert not kernel.run(BEGIN, PATIENCE).error
        assert not kernel.run(LAUNCH, PATIENCE).error
        time.sleep(1)  # the processes that wait are forked
        family = [psutil.Process(kernel.pid), *psutil.Process(kernel.pid).children(recursive=True)]
        cpu = sum(sum(process.cpu_times()[:4]) for process in family)
        assert not kernel.run(HOLD, PATIENCE).error
        assert until(lambda: "2" in kernel.run("print(len(held.metrics.column('up')) if held.metrics else 0)").text, 60)
        family = [psutil.Process(kernel.pid), *psutil.Process(kernel.pid).children(recursive=True)]
        memory = [process.memory_full_info() for process in family]
        return cpu, sum(it.uss for it in memory) / 2**20, sum(it.pss for it in memory) / 2**20
    finally:
        kernel.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=20)
    parser.add_argument("--launches", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="c-", ignore_cleanup_errors=True) as name:
        os.environ.setdefault("DDPLAB_LEASES", f"{name}/leases")  # cores are taken in turn, where ddplab knows leases
        theirs, ours = cost(Path(name) / "a", None), cost(Path(name) / "b", f"{OURS}/jupyter")
        print("one learner, until the first launch has ended, and then with two ranks that wait")
        for what, (cpu, uss, pss) in {"IPython's kernel": theirs, "ours": ours}.items():
            print(f"    {what:<17}{cpu:5.1f} s of CPU, {uss:5.0f} MiB of its own, {pss:5.0f} MiB with its share")
        print(f"    ratio            {ours[0] / theirs[0]:5.2f}         {ours[1] / theirs[1]:5.2f}"
              f"                 {ours[2] / theirs[2]:5.2f}", flush=True)  # fmt: skip
        wrong = crowd(asked.kernels, asked.launches, Path(name))
    for what in wrong:
        print(what)
    print("every run was right, nobody starved" if not wrong else f"{len(wrong)} things are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
