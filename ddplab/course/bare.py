"""A script under torchrun alone, as in a terminal: nobody follows it, and nobody reads a verdict out of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import psutil

from ddplab.pointer import pointing


class BareTorchrun:
    """A job started as `torchrun --standalone --nproc-per-node N script` starts one; it runs until it ends or `stop`.

    Args:
        script: path of a Python script. nproc_per_node: how many ranks. environment: variables for the job; None
            takes one out.

    What it prints goes where a terminal's would, into one stream: `output`. When the notebook's kernel ends, so do all
    of its processes.
    """

    def __init__(self, script: str | Path, nproc_per_node: int = 2, **environment: str | None):
        self._log = tempfile.NamedTemporaryFile("rb", prefix="torchrun-", suffix=".log")
        program = "from ddplab.course.bare import _torchrun; _torchrun()"
        options = ["--standalone", f"--nproc-per-node={nproc_per_node}"]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment}
        with open(self._log.name, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, *options, str(script)],
                stdin=subprocess.PIPE,  # never written to: its end tells the job that the notebook is gone
                stdout=log,
                stderr=subprocess.STDOUT,
                env={name: value for name, value in variables.items() if value is not None},
            )
        self.size, self.script = nproc_per_node, str(script)
        self._stop = weakref.finalize(self, _end, self.process)

    @property
    def output(self) -> str:
        """What has been printed so far, by torchrun and by the ranks."""
        return Path(self._log.name).read_text(errors="replace")

    @property
    def pids(self) -> dict[int, int]:
        """Rank → the number of its process, of those that are alive."""
        found = {}
        for process in _below(self.process.pid):
            try:
                if self.script in process.cmdline()[-1:] and process.ppid() == self.process.pid:
                    found[int(process.environ()["RANK"])] = process.pid
            except (psutil.Error, KeyError):
                pass
        return dict(sorted(found.items()))

    @pointing
    def wait_for(self, words: str, times: int = 1, seconds: float = 240) -> BareTorchrun:
        """Wait until the output has these words so many times, or the job has ended. TimeoutError after `seconds`."""
        deadline = time.monotonic() + seconds
        while self.output.count(words) < times and self.process.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{seconds:g} s, and the job has not printed {words!r}; it said:\n{self.output}")
            time.sleep(0.05)
        return self

    @pointing
    def wait(self, seconds: float = 240) -> int:
        """Wait until the job has ended by itself, and return its exit status. TimeoutError after `seconds`."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the job still runs after {seconds:g} s; it said:\n{self.output}") from None

    def stop(self) -> None:
        """End all of its processes."""
        self._stop()

    def py_spy(self, rank: int) -> str:
        """What `py-spy dump --pid` says of a rank, below the command as one types it."""
        pid = self.pids[rank]
        command = ["py-spy", "dump", "--pid", str(pid)]
        program = Path(sysconfig.get_path("scripts")) / "py-spy"
        plain = {name: value for name, value in os.environ.items() if name not in ("CLICOLOR_FORCE", "FORCE_COLOR")}
        found = str(program) if program.exists() else "py-spy"
        asked = subprocess.run([found, *command[1:]], capture_output=True, env=plain)
        said = (asked.stdout or asked.stderr).decode(errors="replace").rstrip()
        said = re.sub(r"/[^\s()]*/(?=python)", "", said)  # where Python lies is of no interest
        return f"$ {' '.join(command)}\n{said}\n"


def error_lines(output: str) -> list[str]:
    """The last line of each traceback in a log: `[rank0]: RuntimeError: …`; of each rank, in the order of the log."""
    return [line for line in output.splitlines() if re.match(r"(\[rank\d+\]: )?(\w+\.)*\w+(Error|Exception): \S", line)]


def deaths(job: BareTorchrun, seconds: float = 240) -> list[dict[str, Any]]:
    """Wait for a job's end, and say of each rank that died its `rank`, when (`at`), its `exit` code and what it `said`.

    at: after how many seconds its process was seen to be gone, 0 if it had gone before anybody looked; the first comes
    first. exit: as in torchrun's summary. said: the last line of its traceback, or nothing. TimeoutError when the job
    still runs after so many seconds.
    """
    begun, alive, gone = time.monotonic(), {}, {}
    while job.process.poll() is None and time.monotonic() - begun < seconds:
        if len(alive) < job.size:
            alive |= {rank: psutil.Process(pid) for rank, pid in job.pids.items() if rank not in alive}
        gone |= {rank: time.monotonic() - begun for rank, it in alive.items() if rank not in gone and _gone(it)}
        time.sleep(0.01 if len(alive) == job.size else 0.1)
    job.wait(max(0.0, seconds - (time.monotonic() - begun)))
    at = dict.fromkeys(alive, time.monotonic() - begun) | gone
    said = dict(re.findall(r"^\[rank(\d+)\]: (.*)", "\n".join(error_lines(job.output)), re.MULTILINE))
    dead = [
        {
            "rank": int(rank),
            "at": at.get(int(rank), 0.0),
            "exit": int(code),
            "said": said.get(rank, ""),
        }
        for rank, code in re.findall(r"rank +: (\d+) .*\n +exitcode +: (-?\d+)", job.output)
    ]
    return sorted(dead, key=lambda it: it["at"])


def root_cause(output: str) -> int | None:
    """The rank that torchrun's summary calls the root cause, if there is a summary."""
    found = re.search(r"Root Cause.*?\n +rank +: (\d+)", output, re.DOTALL)
    return int(found[1]) if found else None


def _gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _end(process: subprocess.Popen) -> None:
    below = _below(process.pid)
    for it in [process, *below]:
        try:
            it.kill()
        except psutil.NoSuchProcess:
            pass
    process.wait()
    process.stdin.close()
    psutil.wait_procs(below, timeout=5)


def _torchrun() -> None:
    """Run torchrun in this process, and end it and all below it when stdin ends."""

    def follow_the_notebook() -> None:
        while os.read(0, 4096):  # not sys.stdin, whose lock would abort Python at its own end
            pass
        for it in _below(os.getpid()):
            it.kill()
        os._exit(1)

    from torch.distributed.run import main

    threading.Thread(target=follow_the_notebook, daemon=True).start()
    main(sys.argv[1:])
