"""What a test looks at to see that nothing is left behind: processes and folders; and waiting until it is so."""

import os
import tempfile
import time
from pathlib import Path

import psutil

there_before: set[int] = set()  # the browser tests' JupyterLab and the warm kernels' server, which outlive a test


def ranks_alive(pid: int | None = None) -> list[psutil.Process]:
    """Return what descends from this process since the test began, or from another; less multiprocessing's servers
    and the processes that wait to become ranks."""
    return [process for process in _descendants(pid) if not _is_spare(process)]


def spares_alive(pid: int | None = None) -> list[psutil.Process]:
    """Return the processes below this one, or another, that wait to become ranks."""
    return [process for process in _descendants(pid) if _is_spare(process)]


def _is_spare(process: psutil.Process) -> bool:
    try:
        words = " ".join(process.cmdline())
        # a rank's output goes to its run's folder
        return "multiprocessing.forkserver" in words and "/ddplab-" not in os.readlink(f"/proc/{process.pid}/fd/1")
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return False


def _descendants(pid: int | None) -> list[psutil.Process]:
    def is_server(process: psutil.Process) -> bool:
        words = " ".join(process.cmdline())
        # a rank is a fork of the forkserver and looks like it, but it has a session of its own
        server = "multiprocessing.forkserver" in words or "warm_kernels.py" in words
        return "resource_tracker" in words or (server and os.getsid(process.pid) == sid)

    me = psutil.Process(pid)
    sid = os.getsid(me.pid)
    alive = []
    for process in _all_below(me, there_before if pid is None else set()):
        try:
            if process.status() != psutil.STATUS_ZOMBIE and not is_server(process):
                alive.append(process)
        except (psutil.NoSuchProcess, ProcessLookupError):
            pass
    return alive


def _all_below(process: psutil.Process, but: set[int]) -> list[psutil.Process]:
    """Return what descends from a process, less `but` and what descends from those: the browser starts helpers late."""
    new = _children(process, but)
    return new + [below for child in new for below in _all_below(child, but)]


def _children(process: psutil.Process, but: set[int]) -> list[psutil.Process]:
    """Return a process's children, less `but`. Linux tells them; psutil would look at every process there is."""
    try:
        tasks = list(Path(f"/proc/{process.pid}/task").iterdir())
        pids = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
        return [psutil.Process(pid) for pid in pids if pid not in but]
    except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):  # not told here, or one of them just ended
        try:
            return [child for child in process.children() if child.pid not in but]
        except psutil.NoSuchProcess:
            return []


def run_folders(folder: str | None = None) -> list[str]:
    names = os.listdir(folder or tempfile.gettempdir())
    return [name for name in names if name.startswith(("ddplab-", "pytorch-errorfile"))]


def until(condition, seconds: float = 5.0) -> bool:
    """Wait for a condition; return whether it came true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
