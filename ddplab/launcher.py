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
import multiprocessing.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import connection
from typing import Any

import cloudpickle
from torch.distributed import TCPStore
from torch.multiprocessing import start_processes

from ddplab import worker
from ddplab.diagnosis import failure
from ddplab.follow import follow
from ddplab.hardware import place
from ddplab.run import RankError, Run

# Forking a process that has loaded torch is unsafe on macOS; there each rank starts afresh, which is slower.
START_METHOD = "spawn" if sys.platform == "darwin" else "forkserver"


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

        folder = tempfile.tempdir
        if len(tempfile.gettempdir()) > 60:  # the address of a socket has room for about a hundred characters
            tempfile.tempdir = "/tmp"
        os.environ["DDPLAB_SOCKET_DIR"] = get_temp_dir()  # made now, and kept
        tempfile.tempdir = folder
        # Threads of OpenMP that wait by spinning make small models 20 times slower on a machine that has other work.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        theirs, multiprocessing.util.spawnv_passfds = multiprocessing.util.spawnv_passfds, _spawn_apart
        try:
            ensure_running()
        finally:
            multiprocessing.util.spawnv_passfds = theirs


def _spawn_apart(path: bytes, args: list[str], fds: list[int]) -> int:
    """multiprocessing's own way to start its servers, but in a process group of their own. Returns the pid.

    The notebook's ■ reaches the kernel's group, and a server that is importing torch must not die of it. And a kernel
    that is asked to end waits 14 seconds for what is left in its group; these servers end by themselves after it.
    """
    server = subprocess.Popen(args, executable=path, pass_fds=fds, restore_signals=False, process_group=0)
    server.returncode = 0  # nobody waits for it
    return server.pid


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
        path = [folder or os.getcwd() for folder in sys.path]  # a notebook's "" is the folder it is in now
        run = Run(directory, nproc_per_node, kind, backend, start=time.time())
        start = functools.partial(_Processes, (directory, env, path, init, backend), nproc_per_node, store)
        return follow(run, start, timeout, wait=wait, quiet=quiet)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


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
    if isinstance(fn, str):
        raise TypeError(f"launch() takes a function; for a script write torchrun({fn!r}, nproc_per_node=…)")
    if not callable(fn):
        raise TypeError(f"launch() takes a function, not {type(fn).__name__}: write launch(train), not launch(train())")
    if inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn):
        raise TypeError(
            f"{_name(fn)}() is a generator or async function, which does nothing when it is called; return values"
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


class _Processes:
    """The ranks of one launch, as processes that torch started for us."""

    def __init__(self, args: tuple, nprocs: int, store: TCPStore):
        self.store = store  # alive for as long as the ranks are
        before = set(multiprocessing.active_children())
        with _main_left_alone():
            try:
                context = start_processes(worker.main, args, nprocs, join=False, start_method=START_METHOD)
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


_main_lock = threading.Lock()


@contextmanager
def _main_left_alone() -> Iterator[None]:
    """Keep multiprocessing from importing the caller's script again in each rank: the function travels by value."""
    with _main_lock:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
