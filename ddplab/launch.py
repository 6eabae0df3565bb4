"""launch(fn): run a function that was defined in a cell on N ranks, and bring back what it returned.

Torch's own process layer starts the ranks (`torch.multiprocessing.start_processes`) from a *forkserver*: a small
process that has imported torch once and never touched a GPU, so each rank is a fork of it and starts in milliseconds.
The function travels by cloudpickle. The caller holds the store that ranks meet at, on a port the system picks, so
there is no port to collide. Sources: https://docs.pytorch.org/docs/stable/multiprocessing.html and
https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import connection
from typing import Any, Protocol

import cloudpickle
from torch.distributed import TCPStore
from torch.multiprocessing import start_processes

from ddplab import worker
from ddplab.devices import place
from ddplab.diagnosis import Frame, failure, hang, parse_stacks
from ddplab.run import RankError, Run

# Forking a process that has loaded torch is unsafe on macOS; there each rank starts afresh, which is slower.
START_METHOD = "spawn" if sys.platform == "darwin" else "forkserver"
_live_runs: weakref.WeakSet[Run] = weakref.WeakSet()


# Is this process the forkserver? It imports ddplab too, so that its forks need not.
IN_FORKSERVER = any("from multiprocessing.forkserver import main" in argument for argument in sys.orig_argv)
if IN_FORKSERVER:  # it outlives a killed kernel by a moment, and takes the folder of its socket along
    atexit.register(shutil.rmtree, os.environ.get("DDPLAB_SOCKET_DIR", ""), ignore_errors=True)


def warm_up() -> None:
    """Start the forkserver in the background; it imports torch while you read. Returns at once."""
    if START_METHOD == "forkserver":
        # torch._dynamo is what the first DDP(...) of a process imports: a second, saved in every rank
        multiprocessing.set_forkserver_preload(["torch", "torch._dynamo", "ddplab.worker"])
        from multiprocessing.forkserver import ensure_running
        from multiprocessing.util import get_temp_dir

        os.environ["DDPLAB_SOCKET_DIR"] = get_temp_dir()
        # Threads of OpenMP that wait by spinning make small models 20 times slower on a machine that has other work.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        ensure_running()


def launch(
    fn: Callable[..., Any],
    *args: Any,
    nproc_per_node: int = 2,
    device: str | None = None,
    backend: str | None = None,
    init: bool = True,
    timeout: float | None = 60.0,
    wait: bool = True,
    quiet: bool = False,
    **kwargs: Any,
) -> Run:
    """Run `fn(*args, **kwargs)` on `nproc_per_node` ranks of this machine and return the `Run`.

    In each rank the environment variables that torchrun sets are there (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, …),
    the process group is initialised, and `ddplab.device()` is the rank's device. fn, its arguments and what it uses
    from the notebook travel by value; GPU tensors arrive on the rank's own GPU, results on the CPU.

    Args:
        fn: any callable: defined in a cell, a closure, a lambda, a partial.
        nproc_per_node: how many ranks.
        device: "cpu", "cuda", or None: a GPU each (nccl) where the machine has one per rank, else the CPU (gloo).
            "cuda" with fewer GPUs than ranks lets ranks share them, over gloo.
        backend: "gloo", "nccl" or None to let the device decide.
        init: False leaves `dist.init_process_group()` to fn.
        timeout: seconds without progress (nothing logged, printed or finished) after which the run counts as
            hanging; None waits for ever.
        wait: False returns at once; then use `run.wait()`, `run.stop()` or the panel's Stop button.
        quiet: True shows and prints nothing.

    Raises:
        RankError: a rank raised or died; `.run` holds what came back. RankTimeoutError: no progress.
        ValueError, TypeError: a request that cannot work, said before any process starts.
    """
    _check_call(fn, args, kwargs, nproc_per_node, timeout)
    kind, backend = place(nproc_per_node, device, backend)
    directory = tempfile.mkdtemp(prefix="ddplab-")
    try:
        _save_function(fn, args, kwargs, f"{directory}/fn")
        store = hold_store()
        env = rank_environment(directory, nproc_per_node, kind, store.port)
        run = Run(directory, nproc_per_node, kind, backend, start=time.time())
        ranks = _Processes(worker.main, (directory, env, init, backend), nproc_per_node, store)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return follow(run, ranks, timeout, wait=wait, quiet=quiet)


def hold_store() -> TCPStore:
    """Return a store that this process holds, on a free port of this machine that no other can reach.

    The port is bound here and now, so there is no race for it. Left to itself TCPStore listens on every address,
    for other machines too.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def rank_environment(directory: str, nproc: int, kind: str, port: int) -> dict[str, str]:
    """Return the environment of a rank: the caller's own, and what torchrun adds (less RANK and LOCAL_RANK).

    https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    """
    return {
        **os.environ,
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(nproc),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": os.path.basename(directory),
        "DDPLAB_RUN_DIR": directory,
        "DDPLAB_DEVICE": kind,
    }


# ------------------------------------------------------------------ at the door


def _check_call(fn: Any, args: tuple, kwargs: dict, nproc_per_node: Any, timeout: Any) -> None:
    if "DDPLAB_RUN_DIR" in os.environ:
        raise RuntimeError("launch() was called inside a rank; call it in the notebook, a rank cannot launch ranks")
    if not callable(fn):
        raise TypeError(
            f"launch() takes a function, not {type(fn).__name__}; write launch({_name(fn)}) without calling it"
        )
    if type(nproc_per_node) is not int or nproc_per_node < 1:
        raise ValueError(f"nproc_per_node must be a whole number of at least 1, not {nproc_per_node!r}")
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise ValueError(f"timeout is a positive number of seconds, or None to wait for ever, not {timeout!r}")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return  # a builtin that keeps its signature to itself
    reserved = inspect.signature(launch).parameters.keys() - {"fn", "args", "kwargs"}
    bound = fn.keywords if isinstance(fn, functools.partial) else {}
    for name in signature.parameters:
        if name in reserved and name not in bound:
            raise TypeError(
                f"{_name(fn)}() has a parameter called {name!r}, which launch() takes for itself; rename it, "
                f"or bind it first: launch(functools.partial({_name(fn)}, {name}=…))"
            )
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{_name(fn)}{signature} cannot be called with what launch() was given: {error}") from None


def _save_function(fn: Callable[..., Any], args: tuple, kwargs: dict, path: str) -> None:
    try:
        worker.save((fn, args, kwargs), path)
    except Exception as error:
        named = {f"argument {number}": value for number, value in enumerate(args, 1)}
        named |= {f"argument {name!r}": value for name, value in kwargs.items()}
        what, value = next(_cannot_travel({**named, **_used_by(fn)}), (_name(fn), fn))
        raise TypeError(
            f"{what} (a {type(value).__name__}) cannot travel to another process: {error}. "
            f"Make it inside {_name(fn)}() instead."
        ) from None


def _used_by(fn: Any, seen: frozenset = frozenset()) -> dict[str, Any]:
    """Return the notebook variables that a function uses, and those that the functions among them use."""
    fn = inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn)
    if not isinstance(fn, types.FunctionType) or fn in seen:
        return {}
    try:
        variables = inspect.getclosurevars(fn)
    except ValueError:
        return {}
    used = {
        f"the variable {name!r} that {_name(fn)}() uses": v
        for name, v in {**variables.globals, **variables.nonlocals}.items()
    }
    deeper = [_used_by(value, seen | {fn}) for value in used.values()]
    return {**{k: v for d in deeper for k, v in d.items()}, **used}


def _cannot_travel(named: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for what, value in named.items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            yield what, value


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", None) or (_name(fn.func) if isinstance(fn, functools.partial) else type(fn).__name__)


# ------------------------------------------------------------------ the processes


class Job(Protocol):
    """What `follow` needs from whatever runs the ranks: here processes, in `magics` torchrun's agents."""

    def wait(self, seconds: float) -> None: ...  # until something ends, or time is up
    def exit_codes(self) -> dict[int, int | None]: ...  # rank → exit code, None while it runs
    def ended(self) -> bool: ...
    def failed(self, run: Run) -> bool: ...  # a rank has failed for good
    def pids(self, run: Run) -> dict[int, int]: ...  # the ranks that run
    def error(self, run: Run, died_at: dict[int, int]) -> RankError: ...
    def end(self, run: Run) -> None: ...  # end everything, now


class _Processes:
    """The ranks of one launch, as processes that torch started for us."""

    def __init__(self, target: Callable, args: tuple, nprocs: int, store: TCPStore):
        self.store = store  # alive for as long as the ranks are
        before = set(multiprocessing.active_children())
        with _main_left_alone():
            try:
                context = start_processes(target, args, nprocs, join=False, start_method=START_METHOD)
            except BaseException:
                for process in set(multiprocessing.active_children()) - before:
                    process.kill()
                    process.join()
                raise
        self.processes = context.processes

    def wait(self, seconds: float) -> None:
        connection.wait([p.sentinel for p in self.processes if p.exitcode is None], seconds)

    def exit_codes(self) -> dict[int, int | None]:
        return {rank: process.exitcode for rank, process in enumerate(self.processes)}

    def ended(self) -> bool:
        return all(process.exitcode is not None for process in self.processes)

    def failed(self, run: Run) -> bool:
        codes = self.exit_codes().items()
        return any(code is not None and (code != 0 or not run.has(rank, "result")) for rank, code in codes)

    def pids(self, run: Run) -> dict[int, int]:
        return {rank: p.pid for rank, p in enumerate(self.processes) if p.exitcode is None}

    def error(self, run: Run, died_at: dict[int, int]) -> RankError:
        return failure(run, self.exit_codes(), died_at)

    def end(self, run: Run) -> None:
        for process in self.processes:
            if process.exitcode is None:
                end_group(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 0.4
        for process in self.processes:
            process.join(max(0, deadline - time.monotonic()))
            end_group(process.pid, signal.SIGKILL)  # also what the rank itself has started
            process.join()
            process.close()


def end_group(pid: int, number: signal.Signals) -> None:
    """Signal a rank and everything it has started; nothing happens when they are gone."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:  # macOS says so of a group whose processes have all ended
        pass


@contextmanager
def _main_left_alone() -> Iterator[None]:
    """Keep multiprocessing from importing the caller's script again in each rank: the function travels by value."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


# ------------------------------------------------------------------ following a run to its end


def follow(run: Run, job: Job, timeout: float | None, wait: bool, quiet: bool) -> Run:
    """Watch the ranks until they end, fail, hang or are stopped; here when `wait`, else on a thread of its own."""
    from ddplab.panel import view_of

    view = view_of(run, wait=wait, quiet=quiet)
    _live_runs.add(run)
    if not wait:
        threading.Thread(target=_follow, args=(run, job, timeout, view), name="ddplab run", daemon=True).start()
        return run
    _follow(run, job, timeout, view)
    if run.error is not None:
        raise run.error
    return run


def _follow(run: Run, job: Job, timeout: float | None, view: Any) -> None:
    died_at: dict[int, int] = {}
    progress, progress_at, look_at = None, time.monotonic(), 0.0
    try:
        while not job.ended():
            job.wait(0.02)
            for rank, code in job.exit_codes().items():
                if code is not None:
                    died_at.setdefault(rank, time.time_ns())
            if job.failed(run) or run.stop_asked.is_set():
                break
            view.update()
            now = time.monotonic()
            if timeout is not None and now > look_at:
                look_at = now + min(0.25, timeout / 4)
                if (latest := run.progress()) != progress:
                    progress, progress_at = latest, now
                elif now - progress_at > timeout:
                    run.error = hang(run, timeout, _ask_for_stacks(run, job))
                    run.state = "timed out"
                    break
        if run.state == "running":
            _settle(run, job, died_at)
    except KeyboardInterrupt as interrupt:
        # IPython's hook: nobody who presses ■ wants to read this file
        interrupt._render_traceback_ = lambda: ["KeyboardInterrupt: every rank has been ended"]
        where = hang(run, 0, _ask_for_stacks(run, job))
        run.state = "interrupted"
        view.interrupted(str(where).splitlines()[1:-1])
        raise
    finally:
        # a second interrupt must not leave ranks behind
        with _uninterrupted():
            job.end(run)
            if run.state == "running":
                run.state = "stopped"
            run.close()
            _live_runs.discard(run)
            view.close()


def _settle(run: Run, job: Job, died_at: dict[int, int]) -> None:
    """Decide how a run that is over has ended."""
    if run.stop_asked.is_set():
        run.state = "stopped"
    elif not job.failed(run):
        run.state = "finished"
    else:
        grace = time.monotonic() + 0.5  # the other ranks may have their own story to write down
        while time.monotonic() < grace and not job.ended():
            job.wait(0.02)
            for rank, code in job.exit_codes().items():
                if code is not None:
                    died_at.setdefault(rank, time.time_ns())
        run.error = job.error(run, died_at)
        run.state = "failed"


def _ask_for_stacks(run: Run, job: Job) -> Callable[[int], list[Frame]]:
    """Have every live rank write its stacks down, and return how to read them."""
    asked = job.pids(run)
    for pid in asked.values():
        try:
            os.kill(pid, signal.SIGUSR1)
        except ProcessLookupError:
            pass

    def written(rank: int) -> str:
        try:
            with open(f"{run.directory}/{rank}.stacks", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline and not all(written(rank) for rank in asked):
        time.sleep(0.01)
    time.sleep(0.02)  # faulthandler writes in pieces

    def stacks(rank: int) -> list[Frame]:
        known = run.read(rank, "pid")
        return parse_stacks(written(rank), known["thread"]) if known else []

    return stacks


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back for the moment it takes to end the ranks (signals reach the main thread only)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@atexit.register
def _stop_live_runs() -> None:
    for run in list(_live_runs):
        run.stop()
