"""Ranks that are used again, for the tests of checks: hundreds of functions, of a few milliseconds each.

`launch` uses no rank twice, and to make ranks and see them off takes a hundred times as long as most functions of a
check do. Here the ranks of one launch carry out one function after the other, as long as each comes to an end on all of
them. What raises, waits for ever or destroys its process group is launched as it is for a learner, on fresh ranks.
Where it has raised on all ranks these are used again; else they are ended, and made anew for the next. What a test does
not find as it should be is launched on fresh ranks, too: see `on_used_ranks_first` in test_checks.py.
"""

import atexit
import contextlib
import importlib
import os
import pickle
import sys
import time
from collections.abc import Iterable
from multiprocessing import connection
from types import CodeType, ModuleType, SimpleNamespace
from unittest.mock import patch

import cloudpickle
import psutil
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from leftovers import there_before
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ddplab import processes, worker
from ddplab.checks import common, turns
from ddplab.folder import Folder, save
from ddplab.launcher import hold_store, launch, rank_environment

kept: dict[int, "Ranks"] = {}  # those that are there to be used, by their number
REPLACED_IN = (torch, dist, c10d, dist.ProcessGroup, dist.Work)
SIZES = (2, 3, 4)  # as many ranks as checks ask for
STILL = 1.0  # seconds without work for a processor after which ranks count as waiting: then the function is launched
LIMIT = 10.0  # seconds that a function may take here in any case
# Seconds after which such a launch counts as hanging; what is not told then is launched with all its patience.
SOON = 1.5


class Ranks:
    """As many ranks as asked for, that talk through gloo, as `launch` starts them, and a connection to each."""

    def __init__(self, size: int):
        cloudpickle.register_pickle_by_value(importlib.import_module(__name__))
        self.folder = Folder.new(size)
        with connection.Listener(self.folder.file("us"), "AF_UNIX") as door:
            save((serve, (door.address,), {}), self.folder.file("fn"))
            self.store = hold_store()
            env = rank_environment(self.folder, size, "cpu", self.store.port)
            path = [entry or os.getcwd() for entry in sys.path]
            self.workers = processes.take(size)
            there_before.update(it.process.pid for it in self.workers)  # no test has left them behind
            for rank, it in enumerate(self.workers):
                it.orders.send(worker.Order(self.folder, env, path, sys.argv, os.getcwd(), True, "gloo", rank=rank))
            arrived = [door.accept() for _ in range(size)]
        self.places = [place for _, place in sorted(((it.recv(), it) for it in arrived), key=lambda pair: pair[0])]

    def results(self, fn, args: tuple, kwargs: dict) -> list | None:
        """Return what fn returns on each rank, or None where it does not come to its end on all of them."""
        order, deadline = cloudpickle.dumps((fn, args, kwargs, dict(os.environ))), time.monotonic() + LIMIT
        told, worked, since = {}, 0.0, time.monotonic()
        with contextlib.suppress(EOFError, OSError, psutil.NoSuchProcess):  # a rank has gone
            for place in self.places:
                place.send_bytes(order)
            while len(told) < len(self.places) and time.monotonic() < deadline:
                silent = [it for it in self.places if it not in told]
                for place in connection.wait(silent, min(0.1, deadline - time.monotonic())):
                    told[place] = pickle.loads(place.recv_bytes())
                    if told[place] is None:  # it has raised; do the others too?
                        deadline = min(deadline, time.monotonic() + 0.1)
                if (now := self.worked()) > worked + 0.02:  # two ticks of its clock
                    worked, since = now, time.monotonic()
                elif time.monotonic() > since + STILL:
                    break
        raised = {it is None for it in told.values()}
        self.usable = len(told) == len(self.places) and len(raised) == 1  # else one may have sent what nobody took
        return [told[place][0] for place in self.places] if self.usable and raised == {False} else None

    def worked(self) -> float:
        """Return the seconds for which their main threads have had a processor: where many tests run, that says who
        waits. Gloo's own thread does not count: it spins as long as a message lies there that nobody takes."""
        pids = [it.process.pid for it in self.workers]
        threads = [it for pid in pids for it in psutil.Process(pid).threads() if it.id == pid]
        return sum(it.user_time + it.system_time for it in threads)

    def end(self) -> None:
        for place in self.places:
            place.close()
        processes.end(self.workers)
        self.folder.remove()


def serve(address: str) -> None:
    """Carry out, as a rank, what is sent: tell what a function returned, as a tuple of one, or None and no more."""
    with connection.Client(address) as us:
        us.send(dist.get_rank())
        ours, group = {name: os.environ[name] for name in os.environ}, dist.group.WORLD
        as_they_are = {owner: {name: it for name, it in vars(owner).items() if callable(it)} for owner in REPLACED_IN}
        while True:
            fn, args, kwargs, environment = pickle.loads(us.recv_bytes())
            os.environ.update({**environment, **ours})
            torch.seed()
            try:
                told = cloudpickle.dumps((fn(*args, **kwargs),))
            except BaseException:
                told = pickle.dumps(None)
            put_back(as_they_are)
            if dist.group.WORLD is not group:  # it has destroyed the process group
                return
            us.send_bytes(told)


def put_back(functions: dict) -> None:
    """Undo what a check has replaced in its rank, in which it takes itself for the last: else each one adds to it."""
    while (mode := _get_current_dispatch_mode()) is not None:
        mode.__exit__(None, None, None)
    for owner, before in functions.items():
        for name, it in before.items():
            if vars(owner).get(name) is not it:
                setattr(owner, name, it)


def folders() -> set[str]:
    """Return the names of their folders, which no test has left behind."""
    return {os.path.basename(ranks.folder.path) for ranks in kept.values()}


@atexit.register  # before multiprocessing's own, which would wait for them
def end() -> None:
    while kept:
        kept.popitem()[1].end()


def launch_on_used(fn, *args, nproc_per_node, device=None, quiet=True, timeout=60.0, **kwargs):
    """Return what has the `results` of `launch(fn, …)`, or what that returns; raise what it raises."""
    if nproc_per_node in SIZES and device != "virtual":
        if nproc_per_node not in kept:
            kept[nproc_per_node] = Ranks(nproc_per_node)
        results = kept[nproc_per_node].results(fn, args, kwargs)
        if results is not None:
            return SimpleNamespace(results=results)
        if not kept[nproc_per_node].usable:
            kept.pop(nproc_per_node).end()
    how = {"nproc_per_node": nproc_per_node, "device": device, "quiet": quiet, "timeout": min(timeout, SOON)}
    return launch(fn, *args, **how, **kwargs)


def submodules(code: CodeType, globals_used: Iterable) -> list[ModuleType]:
    """Return what cloudpickle's function does: the imported modules that this code can reach below those it uses.

    That one looks for them through the names of all modules there are, with torch's two thousand, for each function.
    """
    found = []
    for it in globals_used:
        if isinstance(it, ModuleType) and getattr(it, "__package__", ""):
            names = [f"{it.__name__}.{name}" for name in code.co_names]
            below = [sys.modules[name] for name in names if name in sys.modules]
            found += below + submodules(code, below)
    return found


@contextlib.contextmanager
def used():
    """Let checks launch on used ranks, and what goes to ranks be pickled quickly."""
    quick = patch.object(cloudpickle.cloudpickle, "_find_imported_submodules", submodules)
    with quick, patch.object(common, "launch", launch_on_used), patch.object(turns, "launch", launch_on_used):
        yield
