"""Kernels for the test run that have imported torch already: they are forks of a server that did so once.

Torch and the rest take a kernel three seconds of a core to import, and the forkserver of its ranks as long again: in
ninety notebooks, minutes. So each test process starts one server, at its first notebook, that imports all of it but
nothing of ddplab, computes nothing, and forks itself for each order. The fork becomes the kernel: a session, files,
environment, folder, arguments and random numbers of its own. A second fork waits to become the kernel's forkserver.

Only nbval's kernels are warm (see conftest.py). How kernels start is tested with fresh ones.
"""

import fcntl
import functools
import gc
import importlib
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from types import ModuleType

# What a notebook and its ranks import, and what ipykernel imports only once it runs.
MODULES = ["numpy", "torch", "torch._dynamo", "matplotlib.pyplot", "ipywidgets", "ipykernel.kernelapp"]
FORKSERVER = "from multiprocessing.forkserver import main"


def launch_kernel(cmd: list[str], env: dict[str, str], cwd: str, stderr, **_) -> "WarmKernel":
    """Launch a kernel as jupyter_client's function of that name does."""
    with open(os.devnull) as nothing:
        order = {"argv": cmd, "env": env, "cwd": cwd, "numbers": [0, 1, 2]}
        return WarmKernel(server(*cmd[: cmd.index("-m")]), order, [nothing.fileno(), 1, stderr.fileno()])


@functools.cache
def server(*python: str) -> socket.socket:
    """Start the server; return the socket to it. It ends when that is closed, also by the death of this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [*python, __file__, str(theirs.fileno())]
        subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True)
    return ours


class WarmKernel:
    """What jupyter_client uses of a Popen object. The kernel is a child of the server, so the server is asked."""

    stdin = stdout = stderr = returncode = None

    def __init__(self, server: socket.socket, order: dict, files: list[int]):
        self.server = server
        send(server, order, files)
        self.pid, _ = receive(server)

    def poll(self) -> int | None:
        if self.returncode is None:
            send(self.server, self.pid)
            self.returncode, _ = receive(self.server)
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
    """Serve, and in each fork become what was ordered."""
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # whose end is the kernel's; read when ipykernel is imported
    # ipykernel sets this before a notebook can import matplotlib
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()  # forks share these objects for as long as nobody, the garbage collector included, touches them
    try:
        order, files = serve(socket.socket(fileno=number))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if pid := os.fork():
            theirs.close()
            lend_forkserver(pid, ours)
        else:
            os.setpgid(0, 0)
            ours.close()
            for file in files:
                os.close(file)
            with theirs:
                order, files = receive(theirs)
    except EOFError:  # nobody wants us any more
        os._exit(0)
    become(files, **order)


def serve(client: socket.socket) -> tuple:
    """Fork for each order, and return it in the fork; tell of a fork how it ended, or None."""
    while True:
        message, files = receive(client)
        if isinstance(message, int):
            pid, status = os.waitpid(message, os.WNOHANG)
            send(client, os.waitstatus_to_exitcode(status) if pid else None)
        elif os.fork() == 0:
            os.setsid()
            message["env"]["JPY_PARENT_PID"] = os.environ["JPY_PARENT_PID"]
            with client:
                send(client, os.getpid())
            return message, files
        for file in files:
            os.close(file)


def lend_forkserver(pid: int, waiting: socket.socket) -> None:
    """Let the first forkserver that this kernel starts be a child that waits for it."""
    fresh = subprocess.Popen.__init__

    @functools.wraps(fresh)
    def start(popen, args, *rest, **options):
        if waiting.fileno() < 0 or args[-2:-1] != ["-c"] or not args[-1].startswith(FORKSERVER):
            return fresh(popen, args, *rest, **options)
        numbers = [0, 1, 2, *options["pass_fds"]]
        with waiting:
            argv = [os.fsdecode(word) for word in args]
            order = {"argv": argv, "env": dict(os.environ), "cwd": os.getcwd(), "numbers": numbers}
            send(waiting, order, numbers)
        popen.pid = pid

    subprocess.Popen.__init__ = start


def become(files: list[int], argv: list[str], env: dict[str, str], cwd: str, numbers: list[int]) -> None:
    """Do what a fresh process with this command line does, and that has these files open under these numbers."""
    above = [fcntl.fcntl(file, fcntl.F_DUPFD, max(numbers) + 1) for file in files]  # out of each other's way
    for file in files:
        os.close(file)
    for file, number in zip(above, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    tempfile.tempdir = None
    sys.modules["numpy"].random.seed()  # Python's own generator is seeded by every fork
    sys.modules["torch"].default_generator.seed()
    option = next(index for index, word in enumerate(argv) if word in ("-m", "-c"))
    sys.orig_argv, sys.argv = argv, [argv[option], *argv[option + 2 :]]
    sys.path[0] = cwd if argv[option] == "-m" else ""
    namespace = sys.modules["__main__"] = ModuleType("__main__")
    if argv[option] == "-m":
        runpy.run_module(argv[option + 1], run_name="__main__", alter_sys=True)
    else:
        exec(argv[option + 1], namespace.__dict__)


if __name__ == "__main__":
    main(int(sys.argv[1]))
