"""How long until a function has run on two ranks and its results are back? ddplab beside its peers, in one run.

    make bench                          # installs the peers, then runs this
    python benchmarks/launch.py --calls 21

Two works (see works.py): (a) one all_reduce; (b) wrap a small model in DDP, five training steps. Each launcher has a
process of its own that has imported torch, like a notebook's kernel, and one call behind it. The launchers take
turns, call by call, so that a busy moment of the machine meets all of them. The figure is a median of seconds from
the call until the results are in the caller. Exit status 0 when all required ratios hold.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import queue
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# Alike for all launchers. A name server that does not answer would be measured otherwise, five seconds at a time; and
# two ranks with a thread for each core get in each other's way.
SETTINGS = {"RES_OPTIONS": "timeout:1 attempts:1", "OMP_NUM_THREADS": "1"}
WORKS = {"all_reduce": "(a) one all_reduce", "ddp": "(b) DDP, five steps"}
PATIENCE = 120  # seconds after which a call counts as hanging
ATTEMPTS = 3  # failed calls after which a launcher is given up

Call = Callable[[str], list[float]]  # the name of a work -> what each rank returned

# ------------------------------------------------------------------ the launchers: each yields a call


def ddplab() -> Iterator[Call]:
    import cloudpickle
    import works

    from ddplab import launch

    cloudpickle.register_pickle_by_value(works)  # as if the works were defined in a cell
    yield lambda work: launch(works.WORKS[work], nproc_per_node=works.RANKS, quiet=True).results


def bare_fork() -> Iterator[Call]:
    yield lambda work: processes(work, "fork")


def bare_fork_dynamo() -> Iterator[Call]:
    importlib.import_module("torch._dynamo")  # what the first DDP(...) of a process imports; here the ranks inherit it
    yield lambda work: processes(work, "fork")


def mp_spawn() -> Iterator[Call]:
    yield lambda work: processes(work, "spawn")


def processes(work: str, start_method: str) -> list[float]:
    import torch.multiprocessing as mp
    import works

    results = mp.get_context(start_method).SimpleQueue()
    mp.start_processes(works.as_rank, (work, free_port(), results), works.RANKS, join=True, start_method=start_method)
    return list(dict(sorted(results.get() for _ in range(works.RANKS))).values())


def notebook_launcher() -> Iterator[Call]:
    import works
    from accelerate import notebook_launcher

    def call(work: str) -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            # results are thrown away, so the ranks write them down; the port would be 29500 each time
            notebook_launcher(works.leave_result, (work, folder), works.RANKS, use_port=str(free_port()))
            return results_in(folder)

    yield call


def torchrunx() -> Iterator[Call]:
    import cloudpickle
    import torchrunx
    import works

    cloudpickle.register_pickle_by_value(works)
    launcher = torchrunx.Launcher(workers_per_host=works.RANKS, backend="gloo", extra_env_vars=SETTINGS)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHRUNX_LOG_DIR"] = folder  # else each call leaves a log in the working directory
        yield lambda work: launcher.run(works.WORKS[work]).results[launcher_host(launcher)]


def launcher_host(launcher) -> str:
    return launcher.hostnames[0] if isinstance(launcher.hostnames, list) else "localhost"


def ipyparallel() -> Iterator[Call]:
    import ipyparallel as ipp
    import works

    with ipp.Cluster(n=works.RANKS, log_level=40) as client:
        engines = client[:]

        def one(rank: int, work: str, port: int, folder: str) -> float:
            import queue
            import sys

            if folder not in sys.path:
                sys.path.insert(0, folder)
            import works

            result = queue.SimpleQueue()
            works.as_rank(rank, work, port, result)
            return result.get()[1]

        def call(work: str) -> list[float]:
            n, port, folder = works.RANKS, free_port(), str(Path(__file__).parent)
            return engines.map_sync(one, range(n), [work] * n, [port] * n, [folder] * n)

        yield call


def torchrun() -> Iterator[Call]:
    import works

    def call(work: str) -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={works.RANKS}"]
            subprocess.run([*command, works.__file__, work, folder], check=True)
            return results_in(folder)

    yield call


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def results_in(folder: str) -> list[float]:
    return [float(file.read_text()) for file in sorted(Path(folder).iterdir())]


LAUNCHERS = {  # name in the table -> (how to call it, the package it comes from)
    "ddplab launch": (ddplab, "ddplab"),
    "ddplab launch, first call": (ddplab, "ddplab"),
    "start_processes, fork": (bare_fork, "torch"),
    "  and torch._dynamo imported before": (bare_fork_dynamo, "torch"),
    "accelerate notebook_launcher": (notebook_launcher, "accelerate"),
    "mp.spawn": (mp_spawn, "torch"),
    "torchrun": (torchrun, "torch"),
    "torchrunx": (torchrunx, "torchrunx"),
    "ipyparallel, engines running": (ipyparallel, "ipyparallel"),
}
FIRST = "ddplab launch, first call"  # 4 s after import, in a new process each time
REQUIRED = [  # work, peer, most that ours may take of the peer's time
    ("all_reduce", "torchrun", 1 / 20),
    ("all_reduce", "mp.spawn", 1 / 10),
    ("all_reduce", "torchrunx", 1 / 10),
    ("all_reduce", "start_processes, fork", 2),
    ("ddp", "torchrun", 1 / 30),
    ("ddp", "accelerate notebook_launcher", 1 / 8),
    ("all_reduce", "ipyparallel, engines running", 0.9),
    ("ddp", "ipyparallel, engines running", 0.9),
]

# ------------------------------------------------------------------ a launcher's own process


def serve(name: str) -> None:
    """Be the process of one launcher: for each work named on stdin, make the call and answer with its seconds."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what launchers and ranks print is no answer
    import torch.distributed  # noqa: F401  (a warm kernel)

    if name == FIRST:
        import ddplab  # noqa: F401

        time.sleep(4)
    with contextlib.contextmanager(LAUNCHERS[name][0])() as call:
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            start = time.perf_counter()
            results = call(line.strip())
            seconds = time.perf_counter() - start
            if len(results) != 2 or results[0] != results[1]:
                raise RuntimeError(f"the ranks returned {results}")
            print(json.dumps(seconds), file=answers, flush=True)


class Launcher:
    """The caller's side of a launcher's process: starts it, asks it, replaces it when a call fails."""

    def __init__(self, name: str):
        self.name, self.process, self.failures = name, None, []
        self.seconds = {work: [] for work in WORKS}

    def start(self) -> None:
        self.errors = tempfile.TemporaryFile()  # lives as long as the process
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,
            env={**os.environ, **SETTINGS},
        )
        self.answers: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._listen, args=(self.process, self.answers), daemon=True).start()
        self._answer()  # ready
        if self.name != FIRST:
            for work in WORKS:
                self._ask(work)

    @staticmethod
    def _listen(process: subprocess.Popen, answers: queue.SimpleQueue) -> None:
        for line in process.stdout:
            answers.put(line.strip())
        answers.put(None)

    def _answer(self) -> str:
        try:
            answer = self.answers.get(timeout=PATIENCE)
        except queue.Empty:
            raise RuntimeError(f"no answer within {PATIENCE} s") from None
        if answer is None:
            self.errors.seek(0)
            said = self.errors.read().decode(errors="replace").strip().splitlines() or ["died silently"]
            raise RuntimeError(next((line for line in reversed(said) if "Error" in line), said[-1]).strip())
        return answer

    def _ask(self, work: str) -> float:
        self.process.stdin.write(f"{work}\n")
        self.process.stdin.flush()
        return float(self._answer())

    def measure(self, work: str) -> None:
        """Time one call. A call that fails is written down, and the next one gets a new process."""
        if len(self.failures) >= ATTEMPTS:
            return
        try:
            if self.process is None:
                self.start()
            self.seconds[work].append(self._ask(work))
            if self.name == FIRST:
                self.stop()
        except (RuntimeError, OSError) as error:
            self.failures.append(str(error))
            self.stop(patience=1)

    def stop(self, patience: float = 20) -> None:
        if self.process is None:
            return
        with contextlib.suppress(OSError):
            self.process.stdin.close()  # the end of its questions
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None

    def median(self, work: str) -> float | None:
        return statistics.median(self.seconds[work]) if self.seconds[work] else None


# ------------------------------------------------------------------ the table


def ratio(launchers: dict[str, Launcher], work: str, peer: str) -> float | None:
    """How many times our seconds a peer takes; the seconds that we make it settle left out."""
    ours, theirs = launchers["ddplab launch"].median(work), launchers[peer].median(work)
    if ours is None or theirs is None:
        return None
    from works import SETTLE

    settled = SETTLE if work == "ddp" and LAUNCHERS[peer][1] != "ddplab" else 0
    return (theirs - settled) / ours


def table(launchers: dict[str, Launcher]) -> str:
    lines = [f"{'':<40}" + "".join(f"{title:>26}" for title in WORKS.values()) + "   package"]
    lines.append(f"{'':<40}" + f"{'seconds':>15}{'x ours':>11}" * 2)
    for name, launcher in launchers.items():
        cells = ""
        for work in WORKS:
            median, times = launcher.median(work), ratio(launchers, work, name)
            cells += f"{median:>15.3f}" if median is not None else f"{'-':>15}"
            cells += f"{times:>11.2f}" if times is not None else f"{'-':>11}"
        package = LAUNCHERS[name][1]
        try:
            package += " " + importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            package += ", not installed"
        lines.append(f"{name:<40}{cells}   {package}")
        if launcher.failures:
            lines.append(f"    {len(launcher.failures)} calls failed: {launcher.failures[0]}")
    return "\n".join(lines)


def verdicts(launchers: dict[str, Launcher]) -> tuple[str, bool]:
    """The required ratios, a line each, and whether all of them hold."""
    lines, all_hold = [], True
    for work, peer, bound in REQUIRED:
        times = ratio(launchers, work, peer)
        share = f"1/{1 / bound:.0f}" if bound < 0.5 else f"{bound:g} x"
        if times is None:
            measured, holds = "not measured", False
        else:
            measured = f"1/{times:.1f}" if times > 2 else f"{1 / times:.2f} x"
            holds = 1 / times <= bound
        all_hold &= holds
        lines.append(f"{WORKS[work][:3]} at most {share:<5} of {peer:<30}{measured:>14}   {'yes' if holds else 'no'}")
    return "\n".join(lines), all_hold


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=9, help="calls of each work that a median is taken of")
    parser.add_argument("--serve", choices=LAUNCHERS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve)
        return 0
    launchers = {name: Launcher(name) for name in LAUNCHERS}
    before = os.getloadavg()[0]
    try:
        for number in range(asked.calls):
            if sys.stderr.isatty():
                print(f"\rround {number + 1} of {asked.calls}", end="", file=sys.stderr, flush=True)
            for launcher in launchers.values():
                for work in WORKS:
                    launcher.measure(work)
    finally:
        for launcher in launchers.values():
            launcher.stop()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(
        f"2 ranks over gloo on {cores} CPU cores, medians of {asked.calls} calls, Python {sys.version.split()[0]}; ",
        end="",
    )
    print(f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after\n")
    print(table(launchers))
    print("\nIn (b) the peers wait 0.05 s before they end, lest gloo hang; the ratios leave it out (see works.py).")
    print("The first call comes 4 s after `import ddplab`; the others have one call behind them.")
    lines, all_hold = verdicts(launchers)
    print(f"\nRequired of ddplab launch:\n{lines}")
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main())
