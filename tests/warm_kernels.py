"""Kernels for the test run that have imported torch already: they are forks of a process that did so once.

Torch and the rest take a kernel three seconds of a core to import, the forkserver of its ranks as long again, and each
process of a `%%torchrun` cell or a rehearsal too: in ninety notebooks, many minutes. So each test process starts one
spare, at its first notebook, that imports all of it but nothing of ddplab, computes nothing, and forks itself for each
order. The fork becomes the kernel, as the test process's own child: a session, files, environment, folder, arguments
and random numbers of its own. A second fork, the kernel's spare, stays beside it as it is. What the kernel would start
as a fresh Python of ddplab's (see WARM) is forked from that; an agent of torchrun has a spare of its own, for ranks.

Only nbval's kernels are warm, those of the browser tests (see warm_lab.py), and what the tests that conftest.py names
start. How kernels, agents and ranks start is tested with fresh ones.
"""

import atexit
import ctypes
import fcntl
import functools
import gc
import importlib
import inspect
import os
import pickle
import platform
import re
import runpy
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import BuiltinImporter
from itertools import takewhile
from multiprocessing import util
from pathlib import Path
from types import ModuleType
from typing import NoReturn

# What a notebook and its ranks import, and what ipykernel imports only once it runs.
MODULES = [
    "numpy",
    "torch",
    "torch._dynamo",
    "torch.distributed.run",
    "matplotlib.pyplot",
    "ipywidgets",
    "ipykernel.kernelapp",
]
AGENTS = (
    "from ddplab.script import agent; agent()",
    "from ddplab.course.played_agent import agent; agent()",
    "from ddplab.course.bare import _torchrun; _torchrun()",
    "torch.distributed.run",
)
REHEARSE, REHEARSAL = ["-m", "ddplab", "rehearse"], "DDPLAB_REHEARSAL"  # how it starts; what its processes have set
BARE = ("\nimport torch.multiprocessing as mp\n",)  # how a program of 3.4 begins
# how what follows -c or -m begins
WARM = ("from multiprocessing.forkserver import main", *AGENTS, "ddplab.script", *BARE)
ROOM = " " * 8000  # in a spare's command line, for that of its forks
CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())  # the number of this system call
CLONE_PARENT = 0x8000  # the new process is a child not of the caller but of the caller's parent


def launch_kernel(
    cmd: list[str], env: dict[str, str], cwd: str, stdout=None, stderr=None, **_
) -> "WarmKernel | subprocess.Popen":
    """Launch a kernel as jupyter_client's function of that name does."""
    with open(os.devnull, "r+") as nothing:
        streams = [nothing, stdout or 1, stderr or 2]
        files = [nothing if stream == subprocess.DEVNULL else stream for stream in streams]
        files = [file if isinstance(file, int) else file.fileno() for file in files]
        env = {**env, "JPY_PARENT_PID": str(os.getpid())}
        if CLONE is None:  # no processor of which we know how a sibling is forked: a fresh one
            return subprocess.Popen(
                cmd, stdin=files[0], stdout=files[1], stderr=files[2], env=env, cwd=cwd, start_new_session=True
            )
        order = {"argv": cmd, "env": env, "cwd": cwd, "numbers": [0, 1, 2], "session": True, "spared": True}
        send(spare(), order, files)
    return WarmKernel(receive(spare())[0])


@functools.cache
def spare() -> socket.socket:
    """Start a spare beside this process, which is nobody's fork; return the socket to it.

    It ends when that is closed, also by the death of this process.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno()), ROOM]
        options = {"stdin": subprocess.DEVNULL, "start_new_session": True}
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # NumPy's library starts threads when it is imported
        subprocess.Popen(command, pass_fds=[theirs.fileno()], env=env, **options)
    return ours


class WarmKernel:
    """What jupyter_client uses of a Popen object."""

    stdin = stdout = stderr = returncode = None

    def __init__(self, pid: int):
        self.pid = pid

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def send(to: socket.socket, message, files: list[int] = ()) -> None:
    socket.send_fds(to, [pickle.dumps(message)], files)


def receive(source: socket.socket) -> tuple:
    """Return a message and the files sent with it; raise EOFError when the other side is gone."""
    data, files, *_ = socket.recv_fds(source, 1 << 20, 64)
    return pickle.loads(data), files  # of nothing: EOFError


def main(number: int) -> None:
    """Be the spare of the process that started this one, and in each fork become what was ordered."""
    os.environ["JPY_PARENT_PID"] = str(os.getppid())  # whose end is the kernel's; read when ipykernel is imported
    # ipykernel sets this before a notebook can import matplotlib
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    gc.disable()  # looking for garbage in what is imported takes a fifth of the time
    for module in MODULES:
        importlib.import_module(module)
    for name in [name for name in sys.modules if name.partition(".")[0] == "ddplab"]:
        if not name.startswith(("ddplab.vgpu", "ddplab.rehearse")):  # which patch torch in a rehearsal
            del sys.modules[name]  # a notebook imports it itself, and then finds its magic
    for library in list(weakref.finalize._registry):  # torch's own 174, which each process would undo before it ends
        library.atexit = False
    gc.freeze()  # forks share these objects for as long as nobody, the garbage collector included, touches them
    gc.enable()
    try:
        order, files = serve_siblings(socket.socket(fileno=number))
    except EOFError:  # nobody wants us any more
        os._exit(0)
    become(files, **order)


def with_spare(order: dict, files: list[int]) -> tuple:
    """Leave a spare beside this process; return what this process is to become, or a fork of the spare."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        subprocess.Popen._execute_child = from_spare(ours)
        util.spawnv_passfds = spawned_from_spare(ours)
        return order, files
    os.setpgid(0, 0)  # ■ is for the kernel
    ours.close()
    for file in files:
        os.close(file)
    return serve_siblings(theirs)


def serve_siblings(client: socket.socket) -> tuple:
    """Fork for each order, as a child of the one who orders; return the order in the fork."""
    while True:
        order, files = receive(client)
        if fork_sibling() == 0:
            session, group, spared = (order.pop(name, None) for name in ("session", "group", "spared"))
            if session:
                os.setsid()
            elif group is not None and group >= 0:
                os.setpgid(0, group)
            with client:  # told only now: who ends the group of a kernel shall not end the spare's
                send(client, os.getpid())
            return with_spare(order, files) if spared or starts_others(order["argv"]) else (order, files)
        for file in files:
            os.close(file)


def fork_sibling() -> int:
    """Fork this process, which has one thread only: the new process is a child of its parent."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid = ctypes.PyDLL(None).syscall(CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)  # holds the interpreter's lock
    (python.PyOS_AfterFork_Parent if pid else python.PyOS_AfterFork_Child)()
    return pid


def from_spare(spare: socket.socket) -> Callable:
    """Return how Popen starts a process, but that a fresh Python of ddplab's or torchrun's is a fork of the spare."""
    fresh = subprocess.Popen._execute_child
    names = list(inspect.signature(fresh).parameters)

    @functools.wraps(fresh)
    def start(*values):
        asked = dict(zip(names, values, strict=True))
        env = dict(os.environ if asked["env"] is None else asked["env"])
        argv = typed([os.fsdecode(word) for word in asked["args"]], env)
        program = argv[argv.index("-c" if "-c" in argv else "-m") + 1] if {"-c", "-m"} & set(argv) else ""
        traced = "DDPLAB_TRACED" in env  # by a sitecustomize of 3.4's, which the spare has not run
        a_script = is_script(argv) and ("TORCHELASTIC_RUN_ID" in env or REHEARSAL in env) and not traced
        warm = program.startswith(WARM) or argv[1:4] == REHEARSE or a_script
        if os.environ.get(REHEARSAL, env.get(REHEARSAL)) != env.get(REHEARSAL):
            warm = False  # the spare's torch is patched for another rehearsal
        if CLONE is None or not warm or argv[0] != sys.executable:
            return fresh(*values)
        popen, numbers = asked["self"], [0, 1, 2, *asked["pass_fds"]]
        streams = zip((asked["p2cread"], asked["c2pwrite"], asked["errwrite"]), (0, 1, 2), strict=True)
        files = [number if given == -1 else given for given, number in streams]
        order = {
            "argv": argv,
            "env": env,
            "cwd": asked["cwd"] or os.getcwd(),
            "numbers": numbers,
            "session": asked["start_new_session"],
            "group": asked["process_group"],
        }
        send(spare, order, [*files, *asked["pass_fds"]])
        popen.pid, _ = receive(spare)
        popen._child_created = True
        popen._close_pipe_fds(*(asked[end] for end in names if end.startswith(("p2c", "c2p", "err"))))

    return start


def spawned_from_spare(spare: socket.socket) -> Callable:
    """Return how multiprocessing starts a process, but that what it spawns, as `mp.spawn` does, is the spare's fork."""
    fresh = util.spawnv_passfds

    def start(path: bytes, argv: list[str], pass_fds: list[int]) -> int:
        argv = [os.fsdecode(word) for word in argv]
        if CLONE is None or not any(word.startswith("from multiprocessing.spawn import") for word in argv):
            return fresh(path, argv, pass_fds)
        numbers = [0, 1, 2, *pass_fds]
        send(spare, {"argv": argv, "env": dict(os.environ), "cwd": os.getcwd(), "numbers": numbers}, numbers)
        return receive(spare)[0]

    return start


def typed(argv: list[str], env: dict[str, str]) -> list[str]:
    """Return what a line comes to that is torchrun and no more, as bash reads it; `env` gets what it sets before that.

    Any other line is returned as it is.
    """
    words = argv
    if argv[:2] == ["bash", "-c"]:
        if {*argv[2]} & {*"|&;<>()$`*?#~\\\n"}:  # which bash does more with
            return argv
        with suppress(ValueError):  # of a quotation without an end
            words = shlex.split(argv[2])
    settings = list(takewhile(re.compile(r"\w+=").match, words))
    if words[len(settings) : len(settings) + 1] != ["torchrun"]:
        return argv
    env |= dict(setting.split("=", 1) for setting in settings)
    return [sys.executable, "-m", "torch.distributed.run", *words[len(settings) + 1 :]]


def starts_others(argv: list[str]) -> bool:
    """Tell whether this is an agent of torchrun, or runs a script that spawns."""
    scripts = [word for word in argv if word.endswith(".py") and os.path.isfile(word)]
    spawning = any("mp.spawn" in Path(script).read_text() for script in scripts) or "mp.spawn" in argv[-1]
    return bool({*AGENTS} & {*argv}) or argv[1:4] == REHEARSE or spawning


def is_script(argv: list[str]) -> bool:
    """Tell whether this is how an agent of torchrun starts a script, or a rehearsal does."""
    return next((word for word in argv[1:] if word != "-u"), "").endswith(".py")


def become(files: list[int], argv: list[str], env: dict[str, str], cwd: str, numbers: list[int]) -> None:
    """Do what a fresh process with this command line does, and that has these files open under these numbers."""
    above = [fcntl.fcntl(file, fcntl.F_DUPFD, max(numbers) + 1) for file in files]  # out of each other's way
    for file in files:
        os.close(file)
    for file, number in zip(above, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)
    show(argv)
    patched = REHEARSAL in os.environ
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    tempfile.tempdir = None
    if env.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)
    if "OMP_NUM_THREADS" in env:  # read long ago
        sys.modules["torch"].set_num_threads(int(env["OMP_NUM_THREADS"]))
    sys.modules["numpy"].random.seed()  # Python's own generator is seeded by every fork
    sys.modules["torch"].default_generator.seed()
    if REHEARSAL in env and not patched:
        importlib.import_module("ddplab.rehearse").install()
    try:
        run(argv, cwd)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        end_at_once(end.code or 0)
    except Exception as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == __file__:  # a fresh process has nothing of ours in it
            trace = trace.tb_next
        sys.excepthook(type(error), error, trace)
        end_at_once(1)
    end_at_once(0)


def show(argv: list[str]) -> None:
    """Let this process have this command line for who looks at it from outside, as the tests do, to know what it is."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])  # where it stands
    words = "\0".join(argv).encode()[: end - start - 1]
    ctypes.memmove(start, words.rjust(end - start - 1, b"/"), end - start - 1)  # as "///usr/bin/python"


def end_at_once(code: int) -> NoReturn:
    """End as Python does, but let the system take the modules away, torch's too: that takes Python half a second."""
    threading._shutdown()  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(argv: list[str], cwd: str) -> None:
    """Run what Python runs that is given this command line."""
    namespace = sys.modules["__main__"] = ModuleType("__main__")
    if is_script(argv):
        script = 1 + (argv[1] == "-u")
        sys.stdout.reconfigure(write_through=argv[1] == "-u")
        sys.orig_argv, sys.argv = argv, argv[script:]
        sys.path[0] = os.path.dirname(os.path.abspath(argv[script]))
        runpy.run_path(argv[script], run_name="__main__")
        return
    option = next(index for index, word in enumerate(argv) if word in ("-m", "-c"))
    sys.orig_argv, sys.argv = argv, [argv[option], *argv[option + 2 :]]
    sys.path[0] = cwd if argv[option] == "-m" else ""
    if argv[option] == "-m":
        runpy.run_module(argv[option + 1], run_name="__main__", alter_sys=True)
    else:
        namespace.__loader__ = BuiltinImporter  # as Python has it, and says so where it names the module
        exec(argv[option + 1], namespace.__dict__)


if __name__ == "__main__":
    main(int(sys.argv[1]))
