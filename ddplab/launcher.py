"""launch(fn): run a function that was defined in a cell on N ranks, and bring back what it returned.

The function travels by cloudpickle, to processes that have been forked already (see `processes`). The caller holds the
store that ranks meet at, on a port the system picks, so there is no port to collide.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from multiprocessing import connection, reduction
from typing import Any

import cloudpickle
from torch.distributed import TCPStore

from ddplab import lease, rehearse, worker
from ddplab.diagnosis import Cause, failure
from ddplab.folder import Folder, save
from ddplab.follow import watch
from ddplab.hardware import choose_device, hold_store, loopback
from ddplab.panel import view_of
from ddplab.pointer import pointing
from ddplab.processes import LOST, end, forkserver_alive, retire, take
from ddplab.run import Run
from ddplab.shortage import plainly


@pointing
@plainly
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
    the process group is initialised, and `ddplab.device()` is the rank's device; unlike torchrun it makes a rank's GPU
    the current one, which "cuda" means. fn, its arguments and what it uses from the notebook travel by value; GPU
    tensors arrive on the rank's own GPU, results on the CPU.

    Args:
        fn: any callable: defined in a cell, a closure, a lambda, a partial.
        nproc_per_node: how many ranks.
        device: "cpu", "cuda", or None: a GPU each (nccl) where the machine has one per rank, else the CPU (gloo).
            "cuda" with fewer GPUs than ranks lets ranks share them, over gloo. "virtual": a virtual GPU each, called
            "cuda:i" in the ranks, which raise what CUDA and NCCL would; the notebook itself stays as it is (see
            `ddplab.rehearse` for what this cannot show).
        backend: "gloo", "nccl" or None to let the device decide.
        init: False leaves `dist.init_process_group()` to fn.
        timeout: seconds without progress (nothing logged, printed or finished) after which the run counts as
            hanging; None waits for ever. To wait for GPUs that other runs have is not counted (see `ddplab.lease`).
        wait: False returns at once; then use `run.wait()`, `run.stop()` or the panel's Stop button.
        quiet: True shows and prints nothing.

    Raises:
        RankError: a rank raised or died; `.run` holds what came back. RankTimeoutError: no progress, or no GPU in time.
        ValueError, TypeError: a request that cannot work, said before any process starts.
        OSError: the machine has run out of something: room on the disk, open files, processes, ports.
    """
    _check_call(fn, args, kwargs, nproc_per_node, timeout)
    gpus = lease.gpus_for_a_run(nproc_per_node if device is None and backend != "gloo" else 0)
    kind, backend = choose_device(nproc_per_node, device, backend, gpus)
    folder, place = Folder.new(nproc_per_node), None
    try:
        _save_function(fn, args, kwargs, folder.file("fn"))
        store = hold_store()
        env = rank_environment(folder, nproc_per_node, kind, store.port)
        path = [entry or os.getcwd() for entry in sys.path]  # a notebook's "" is the folder it is in now
        run = Run(folder, kind, backend, start=time.monotonic(), nproc_per_node=nproc_per_node)
        prepare = rehearse.install if kind == "virtual" else None
        order = worker.Order(folder, env, path, sys.argv, os.getcwd(), init, backend, prepare)
        place = lease.ask(kind, nproc_per_node)
        start = functools.partial(_Ranks, run, folder, order, store, place)
        return watch(run, folder, start, timeout, view_of(run, folder, wait, quiet), wait, place)
    except BaseException:
        if place is not None:
            place.end()
        folder.remove()
        raise


def rank_environment(folder: Folder, nproc: int, kind: str, port: int) -> dict[str, str]:
    """Return the environment of a rank: the caller's own, and what torchrun adds (less RANK and LOCAL_RANK).

    https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    """
    virtual = rehearse.environment(folder.file("book"), nproc) if kind == "virtual" else {}
    return {
        **loopback(),
        **os.environ,
        **virtual,
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
        "TORCHELASTIC_RUN_ID": os.path.basename(folder.path),
        "DDPLAB_RUN_DIR": folder.path,
        "DDPLAB_DEVICE": "cuda" if virtual else kind,
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
        save((fn, args, kwargs), path)
    except OSError:
        raise
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


class _Ranks:
    """The ranks of one launch."""

    def __init__(self, run: Run, folder: Folder, order: worker.Order, store: TCPStore, place: lease.Lease | None):
        self.run, self.folder, self.gpus = run, folder, order.env["DDPLAB_DEVICE"] == "cuda"
        self.store = store  # alive for as long as the ranks are
        if place is not None:
            order = order._replace(env={**order.env, **place.environment()}, leased=True)
        self.workers = take(folder.world_size)
        self.done: set[int] = set()  # ranks that have returned, and wait for leave to go
        self.deaf: set[int] = set()  # ranks whose pipe is closed: they have died, or have closed what they did not open
        for rank, it in enumerate(self.workers):
            with contextlib.suppress(OSError):  # it has just died; whoever follows will see
                it.orders.send(order._replace(rank=rank))
                if place is not None:
                    reduction.send_handle(it.orders, place.descriptor, it.process.pid)

    def wait(self, seconds: float) -> None:
        busy = {rank: self.workers[rank] for rank in self.pids() if rank not in self.done}
        pipes = {rank: it.orders for rank, it in busy.items() if rank not in self.deaf}
        ready = connection.wait([*(it.process.sentinel for it in busy.values()), *pipes.values()], seconds)
        for rank, pipe in pipes.items():
            if pipe in ready:
                try:
                    pipe.recv()  # RETURNED, there is nothing else to say
                    self.done.add(rank)
                except (EOFError, OSError):
                    self.deaf.add(rank)

    def exit_codes(self) -> dict[int, int | None]:
        return {rank: it.process.exitcode for rank, it in enumerate(self.workers)}

    def ended(self) -> bool:
        return all(rank in self.done or code is not None for rank, code in self.exit_codes().items())

    def failed(self) -> bool:
        codes = self.exit_codes().items()
        return any(code is not None and (code != 0 or not self.folder.has(rank, "result")) for rank, code in codes)

    def pids(self) -> dict[int, int]:
        return {rank: it.process.pid for rank, it in enumerate(self.workers) if it.process.exitcode is None}

    def cause(self, died_at: dict[int, int]) -> Cause:
        # multiprocessing gives every process whose forkserver has ended this exit code
        if 255 in self.exit_codes().values() and not forkserver_alive(patience=5.0):
            return Cause(LOST, None)
        return failure(self.folder, self.exit_codes(), died_at)

    def end(self) -> None:
        if len(self.done) < len(self.workers):
            end(self.workers)
        elif self.gpus:  # they are to be free when the call returns
            end(self.workers, patience=5.0)
        else:
            retire(self.workers)
        if self.run.device == "virtual":
            self.run.rehearsal = rehearse.told(self.folder.file("book"), self.folder.world_size, {})
