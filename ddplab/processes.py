"""Where the processes of ranks come from: a forkserver that has imported torch, and forks of it made ahead.

The *forkserver* is a small process that has imported torch once and never touched a GPU, so each rank is a fork of it
and starts in milliseconds: https://docs.python.org/3/library/multiprocessing.html#contexts-and-start-methods. Torch's
own process layer asks it for them, `torch.multiprocessing.start_processes`. It is a fork itself where that is safe, in
a program that imports ddplab before torch and before any thread runs, and so shares what they have imported; else it
is a fresh Python that imports torch again.

To fork a process with all of torch in it, and to wait for one to end, takes longer than many a launch. So in the
pause after a run processes are forked for those to come: twice as many as it had ranks, at most SPARES. They are no
ranks yet: each waits for an `Order` (see `worker`), carries it out and leaves; none is used twice. One that waits takes
no CPU time and about 13 MiB of memory that it shares with nobody. They end with the kernel, also with a killed one.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import multiprocessing
import multiprocessing.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection, forkserver, resource_tracker, spawn
from multiprocessing.util import get_temp_dir
from typing import NamedTuple, NoReturn

from torch.multiprocessing import ProcessContext, start_processes

from ddplab import worker
from ddplab.folder import remove_family

# Forking a process that has loaded torch is unsafe on macOS; there each rank starts afresh, which is slower.
START_METHOD = "spawn" if sys.platform == "darwin" else "forkserver"
SPARES = 16  # processes that wait, at most
PAUSE = 0.1  # seconds after a run before any is forked: a launch that follows at once has the cores for itself

# Is this process the forkserver? It imports ddplab too, so that its forks need not.
IN_FORKSERVER = any("from multiprocessing.forkserver import main" in argument for argument in sys.orig_argv)


def _prepare_forkserver() -> None:
    with contextlib.suppress(Exception):
        worker.touch(in_forkserver=True)
    gc.freeze()  # its forks share these objects for as long as nobody, the garbage collector included, touches them


def _tidy_up() -> None:
    """The forkserver outlives a killed kernel by a moment, and takes the folders of its socket and of runs along."""
    kernel = int(os.environ["DDPLAB_KERNEL"])  # who may be gone before this process has imported anything
    deadline = time.monotonic() + 1.0  # it has a new parent a moment after it is gone; one that lives keeps its folders
    while os.getppid() == kernel and time.monotonic() < deadline:
        time.sleep(0.01)
    with contextlib.suppress(OSError):
        if os.getppid() != kernel:
            remove_family()
    shutil.rmtree(os.environ.get("DDPLAB_SOCKET_DIR", ""), ignore_errors=True)


if IN_FORKSERVER:
    atexit.register(_tidy_up)
    _prepare_forkserver()


class Worker(NamedTuple):
    """A process that waits for its order, or carries it out, and our end of the pipe to it."""

    process: multiprocessing.process.BaseProcess
    orders: connection.Connection


_spares: list[Worker] = []
_at_work: set[int] = set()  # the process ids of ranks
_lock = threading.Lock()  # held while a process is forked
_launches = 0


_spawnv_passfds = multiprocessing.util.spawnv_passfds  # how multiprocessing starts its servers
LOST = (
    "the forkserver, the process that ranks are forked from, was killed, and its ranks with it (often the machine ran "
    "out of memory); launch again, and it is started again"
)


def warm_up(by_fork: bool = False) -> None:
    """Start the forkserver in the background where none is running. Returns at once.

    by_fork: this process has one thread, has imported torch and torch._dynamo, and has done nothing else with them.
    """
    if START_METHOD != "forkserver":
        return
    # torch._dynamo is what the first DDP(...) of a process imports: a second, saved in every rank
    multiprocessing.set_forkserver_preload(["torch", "torch._dynamo", "ddplab.worker"])
    folder = tempfile.tempdir
    if len(tempfile.gettempdir()) > 60:  # the address of a socket has room for about a hundred characters
        tempfile.tempdir = "/tmp"
    os.environ["DDPLAB_SOCKET_DIR"] = get_temp_dir()  # made now, and kept
    os.environ["DDPLAB_KERNEL"] = str(os.getpid())
    tempfile.tempdir = folder
    os.makedirs(os.environ["DDPLAB_SOCKET_DIR"], 0o700, exist_ok=True)  # a forkserver that has died took it along
    # Threads of OpenMP that wait by spinning make small models 20 times slower on a machine that has other work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    multiprocessing.util.spawnv_passfds = _fork_apart if by_fork else _spawn_apart
    try:
        forkserver.ensure_running()
    finally:
        multiprocessing.util.spawnv_passfds = _spawnv_passfds


def forkserver_alive(patience: float = 0.0) -> bool:
    """Tell whether the forkserver is running; give one that is about to end `patience` seconds for it."""
    pid = forkserver._forkserver._forkserver_pid
    deadline = time.monotonic() + patience
    while pid is not None and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= deadline:
            return True
        time.sleep(0.01)
    return START_METHOD != "forkserver"


def _spawn_apart(path: bytes, args: list[str], fds: list[int]) -> int:
    """multiprocessing's own way to start its servers, but in a process group of their own. Returns the pid.

    The notebook's ■ reaches the kernel's group, and a server that is importing torch must not die of it. And a kernel
    that is asked to end waits 14 seconds for what is left in its group; these servers end by themselves after it.
    """
    server = subprocess.Popen(args, executable=path, pass_fds=fds, restore_signals=False, process_group=0)
    server.returncode = 0  # nobody waits for it
    return server.pid


def _fork_apart(path: bytes, args: list[str], fds: list[int]) -> int:
    """As `_spawn_apart`, but the forkserver is a fork of this process; the resource tracker needs no torch."""
    if "multiprocessing.forkserver" not in os.fsdecode(args[-1]):
        return _spawn_apart(path, args, fds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy's threads, which know how to survive a fork
        pid = os.fork()
    if pid == 0:
        _become_forkserver(os.fsdecode(args[-1]), fds)
    return pid


def _become_forkserver(program: str, fds: list[int]) -> NoReturn:
    """Do, in a fork, what a fresh Python would that runs the forkserver's program and has these files open."""
    try:
        os.setpgid(0, 0)
        for number in map(int, os.listdir("/proc/self/fd")):
            if number > 2 and number not in fds:
                with contextlib.suppress(OSError):  # that of the list itself
                    os.close(number)
        atexit._clear()  # what is registered there is for the program's own end
        multiprocessing.util._finalizer_registry.clear()
        multiprocessing.util.spawnv_passfds = _spawnv_passfds
        forkserver._forkserver.__init__()  # its lock was held when this process was forked
        resource_tracker._resource_tracker.__init__()
        # a rank imports the learner's own modules itself, as they are then; these are held: they may own open files
        learners = {name for name, module in sys.modules.items() if name == "__main__" or _is_learners(module)}
        held = [sys.modules.pop(name) for name in learners]  # noqa: F841
        sys.modules["__main__"] = types.ModuleType("__main__")
        _prepare_forkserver()
        exec(program, {"__name__": "__main__"})
    except Exception:
        traceback.print_exc()
    finally:
        _tidy_up()
        os._exit(0)


def _is_learners(module: types.ModuleType) -> bool:
    """Tell whether a module is neither Python's, nor an installed package's, nor ours."""
    path = sysconfig.get_paths()
    installed = *(path[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")), os.path.dirname(__file__)
    where = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return bool(where) and not where.startswith(installed)


def take(count: int) -> list[Worker]:
    """Return as many processes that wait for an order: spares first, and new ones where those do not suffice."""
    global _launches
    taken: list[Worker] = []
    with _lock:
        warm_up()
        _launches += 1
        try:
            while len(taken) < count:
                taken.append(_spares.pop(0) if _spares else _start())
                # One that waits says nothing, so this is its end: somebody, or a full memory, killed it or its server.
                for gone in [it for it in taken if it.orders.poll() or it.process.exitcode is not None]:
                    end([gone])
                    taken.remove(gone)
        except BaseException:
            end(taken)
            raise
        _at_work.update(it.process.pid for it in taken)
    return taken


def _start() -> Worker:
    ours, theirs = multiprocessing.Pipe()
    with theirs, _main_left_alone():
        try:
            context = _fork(theirs)
        except (EOFError, ConnectionError):  # the forkserver has just been killed, or it died because it could not fork
            forkserver_alive(patience=5.0)
            warm_up()
            try:
                context = _fork(theirs)
            except (EOFError, ConnectionError):
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
    return Worker(context.processes[0], ours)


def _fork(theirs: connection.Connection) -> ProcessContext:
    return start_processes(worker.stand_by, (theirs,), 1, join=False, start_method=START_METHOD)


@contextmanager
def _main_left_alone() -> Iterator[None]:
    """Keep multiprocessing from importing the caller's script again in each process: functions travel by value."""
    theirs, starter = spawn.get_preparation_data, threading.get_ident()

    def preparation_data(name: str) -> dict:
        data = theirs(name)
        if threading.get_ident() == starter:  # others may be starting processes of their own
            data = {key: value for key, value in data.items() if not key.startswith("init_main")}
        return data

    spawn.get_preparation_data = preparation_data
    try:
        yield
    finally:
        spawn.get_preparation_data = theirs


def retire(workers: list[Worker]) -> None:
    """See ranks off that have done their work and are leaving, and fork spares for the next; in the background."""
    if _ends():
        end(workers, patience=5.0)
    else:
        threading.Thread(target=_retire, args=(workers, _launches)).start()


def _retire(workers: list[Worker], launches: int) -> None:
    wanted = min(2 * len(workers), SPARES) if START_METHOD == "forkserver" else 0
    end(workers, patience=5.0)
    time.sleep(PAUSE)
    while len(_spares) < wanted and launches == _launches and not _ends():
        with _lock:
            # Starting a process asks all others whether they have ended; two threads must not ask a rank at once.
            if _at_work:
                return
            try:
                _spares.append(_start())
            except OSError:  # no more files, no more processes: the next launch says so, if it needs one
                return


def _ends() -> bool:
    """Tell whether this process is about to end; Python then waits for what runs, and takes on nothing new."""
    return not threading.main_thread().is_alive()


def end(workers: list[Worker], patience: float = 0.0) -> None:
    """End processes and whatever they have started; those that are leaving have `patience` seconds for it."""
    for process, orders in workers:
        with contextlib.suppress(OSError):  # it is gone
            orders.send(worker.LEAVE)
        orders.close()
        if not patience and process.exitcode is None:
            end_group(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + max(0.4, patience)
    for process, _ in workers:
        process.join(max(0, deadline - time.monotonic()))
        if process.exitcode is None:
            process.kill()  # for one that has only just started, and has no group of its own
        end_group(process.pid, signal.SIGKILL)  # also what the rank itself has started
        process.join()
        _at_work.discard(process.pid)
        if sys.version_info >= (3, 11, 5):  # before, a thread that starts a process stumbles over one that is closed
            process.close()


def end_group(pid: int, number: signal.Signals) -> None:
    """Signal a rank and everything it has started; nothing happens when they are gone."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:  # macOS says so of a group whose processes have all ended
        pass


def _forget() -> None:
    """In a fork of this process: none of these is its own."""
    global _lock
    _lock = threading.Lock()
    _spares.clear()
    _at_work.clear()
    multiprocessing.process._children.clear()  # as multiprocessing does in forks that it makes; it would wait for them


os.register_at_fork(after_in_child=_forget)


@atexit.register
def dismiss() -> None:
    """End the spares; multiprocessing would wait for them when this process ends."""
    with _lock:
        end(_spares)
        _spares.clear()
