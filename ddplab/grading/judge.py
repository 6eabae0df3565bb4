"""The process that forks one for each notebook, seen from outside: questions, answers, and what puts an end to it."""

import json
import os
import secrets
import selectors
import signal
import site
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ddplab import checks
from ddplab.grading.judging import DID_NOT_RUN, NOT_BELIEVED, remove
from ddplab.grading.sheets import Step

PACKAGE = Path(__file__).resolve().parent.parent
SAID = {checks.CORRECT, checks.NOT_YET, checks.BLANK, checks.CANNOT_CHECK, DID_NOT_RUN, NOT_BELIEVED}
START = 120.0  # seconds that the process of a notebook may take to be there
PRINTED = 20_000_000  # bytes that a notebook may print
STORED = 200_000_000  # bytes of all files in its folder


class Ended(Exception):
    """The process of a notebook ended, or was ended: what its cell did, in words, and the state that this means."""

    def __init__(self, what: str, state: str = DID_NOT_RUN):
        super().__init__(what)
        self.state = state


FORGED = "was answered by something that is not the check", NOT_BELIEVED


class Judge:
    """The process that forks one for each notebook (see `judging`), and the questions to the one that plays."""

    def __init__(self) -> None:
        self.server: subprocess.Popen | None = None
        self.folder = ""

    def begin(self) -> str:
        """Start the process of a notebook, in a private folder of its own. Returns why it is not confined, or ""."""
        if self.server is None or self.server.poll() is not None:
            self._start()
        self.folder = tempfile.mkdtemp(prefix="ddplab-")
        self.output = tempfile.TemporaryFile()
        ours, theirs = socket.socketpair()
        parent = PACKAGE.parent  # in a checkout it holds the solutions too
        paths = [path for path in self.path if path != str(parent) or not (parent / "pyproject.toml").exists()]
        order = {
            "folder": self.folder,
            "readable": [str(PACKAGE), *paths, *_installed(), sys.prefix, sys.base_prefix],
            "listed": [str(parent)],
            "env": self._environment(self.folder),
        }
        with theirs:
            files = [theirs.fileno(), self.output.fileno()]
            socket.send_fds(self.orders, [json.dumps(order).encode()], files)
            self.orders.recv(8)
        ours.settimeout(30)
        self.channel, self.unread, self.looked = ours, b"", 0.0
        return str(self._answer(START).get("not_confined", ""))

    def _start(self) -> None:
        self.orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        parent = str(PACKAGE.parent)
        known = [os.path.abspath(path) for path in sys.path if os.path.isdir(path)]
        self.path = [path for path in known if path == parent or path != os.getcwd()]  # where `python -m` was called
        self.path = self.path if parent in self.path else [parent, *self.path]
        theirs_not = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        python = {"PYTHONPATH": os.pathsep.join(self.path), "OPENBLAS_NUM_THREADS": "1"}
        code = "import sys; from ddplab.grading.judging import serve; serve(int(sys.argv[1]))"
        with theirs:
            self.server = subprocess.Popen(
                [sys.executable, "-P", "-s", "-c", code, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd="/",
                env=theirs_not | python | {"DDPLAB_GRADING": "1", "MPLBACKEND": "agg"},
                start_new_session=True,
            )

    def _environment(self, folder: str) -> dict[str, str]:
        """The environment of a notebook: what a program needs to run, and none of this process's secrets."""
        kept = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "TZ", "RES_OPTIONS")
        private = dict.fromkeys(("HOME", "TMPDIR", "IPYTHONDIR", "XDG_CACHE_HOME"), folder)
        python = {"PYTHONPATH": os.pathsep.join(self.path), "PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}
        ours = {"DDPLAB_GRADING": "1", "DDPLAB_PANEL": "off", "OMP_WAIT_POLICY": "PASSIVE", "MPLBACKEND": "agg"}
        return {name: os.environ[name] for name in kept if name in os.environ} | private | python | ours

    def ask(self, step: Step, seconds: float) -> dict:
        """Have a step run, and return what is said of it. Raises Ended where nothing comes, or too much."""
        nonce = secrets.token_hex(16)
        question = {"call": step.call, "blank": step.blank} if step.call else {"source": step.source}
        try:
            self.channel.sendall(json.dumps(question | {"nonce": nonce}).encode() + b"\n")
        except OSError:
            raise Ended("ended the kernel") from None
        answer = self._answer(seconds)
        said = answer if answer.get("nonce") == nonce else {}
        key = "state" if step.call else "error"
        if not isinstance(said.get(key), str) or (step.call and said[key] not in SAID):
            raise Ended(*FORGED)
        return said

    def _answer(self, seconds: float) -> dict:
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.channel, selectors.EVENT_READ)
            while b"\n" not in self.unread:
                if waiting.select(max(0.0, min(0.2, deadline - time.monotonic()))):
                    try:
                        new = self.channel.recv(1 << 16)
                    except OSError:
                        new = b""
                    self.unread += new
                    if not new:
                        raise Ended("ended the kernel")
                    if len(self.unread) > 1_000_000:
                        raise Ended(*FORGED)
                elif time.monotonic() > deadline:
                    raise Ended(f"did not end within {seconds:.0f} s")
                self._look_at_files()
        line, _, self.unread = self.unread.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Ended(*FORGED)
        return answer

    def _look_at_files(self) -> None:
        """Raise Ended where more was printed or stored than a disk has to hold."""
        if os.fstat(self.output.fileno()).st_size > PRINTED:
            raise Ended(f"printed more than {PRINTED:,} bytes")
        if time.monotonic() - self.looked > 1:
            self.looked = time.monotonic()
            if _size(self.folder) > STORED:
                raise Ended(f"stored more than {STORED:,} bytes")

    def end(self) -> None:
        """End the notebook's process and all that it has started; remove its folder."""
        self.channel.close()
        try:
            self.orders.send(b'"end"')
            self.orders.recv(8)
        except OSError:
            pass
        if sys.platform == "darwin":  # where the process that was asked has become the notebook's own
            os.killpg(self.server.pid, signal.SIGKILL)
            self.server.wait()
        self.output.close()
        remove(self.folder)

    def close(self) -> None:
        """End all that is left. To be called in any case, also when somebody interrupts."""
        if self.server is not None:
            self.orders.close()
            self.server.wait()


def _installed() -> list[str]:
    return [path for path in [*site.getsitepackages(), site.getusersitepackages()] if os.path.isdir(path)]


def _size(folder: str) -> int:
    """The bytes of all files below a folder; what is gone by the time counts as nothing."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_size
            except OSError:
                pass
    return total
