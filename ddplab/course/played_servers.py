"""Servers for a machine that stands alone: folders for their disks, real terminals, real agents of torchrun.

    server1, server2 = servers()
    port = free_port()
    for server in (server1, server2):
        server.type(f"torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint {server1}:{port} train.py")
    server1.wait(), server1.screen

Played are the borders between the servers, and nothing else. All of them run on this machine, on its CPU: they would
fight over its GPUs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ddplab.course.played_agent import note
from ddplab.pointer import pointing


class Server:
    """One played server. Its `address` is what agents sign in with; `str(server)` gives it."""

    def __init__(self, name: str, address: str):
        self.name, self.address = name, address
        self.disk = Path(tempfile.mkdtemp(prefix=f"ddplab-{name}-"))
        weakref.finalize(self, shutil.rmtree, self.disk, ignore_errors=True)
        self.holds_store = False
        self._process: subprocess.Popen | None = None

    def __str__(self) -> str:
        return self.address

    def type(self, line: str, **variables: str) -> None:
        """Type a command, as into a terminal of this server; it runs on while you do something else.

        variables: of the environment, besides those that this kernel has.

        `torchrun` is this Python's. An agent whose server is named in `--rdzv-endpoint` holds the store, as it does
        where servers are apart; here every agent would find itself in it, so `is_host` says who is meant.
        """
        words, env = self.typed(line, **variables)
        # a command ends when the kernel is gone: torchrun looks after that itself, others have a process beside them
        program = [_AGENT, *words[1:]] if words[0] == "torchrun" else [_WATCH, *words]
        with open(self.disk / "screen", "w") as shown:
            self._process = subprocess.Popen(
                [sys.executable, "-c", *program],
                cwd=self.disk, env=env, stdin=subprocess.PIPE, stdout=shown, stderr=shown, start_new_session=True,
            )  # fmt: skip

    def typed(self, line: str, **variables: str) -> tuple[list[str], dict[str, str]]:
        """Note that a command is typed here; return its words and its environment, for whoever starts it."""
        words = shlex.split(line)
        endpoint = words[words.index("--rdzv-endpoint") + 1] if "--rdzv-endpoint" in words else ""
        self.holds_store = endpoint.startswith(f"{self.address}:")
        host = f"is_host={int(self.holds_store)}"
        if "--rdzv-conf" in words:
            words[words.index("--rdzv-conf") + 1] += f",{host}"
        # torchrun reads its options from variables PET_… too
        env = {**environment(), "SERVER": self.name, "PET_LOCAL_ADDR": self.address, "SAYS": str(self.disk / "says")}
        env |= variables
        if endpoint:
            env["PET_RDZV_CONF"] = host
        self.note("typed, and holds the store" if self.holds_store else "typed")
        return words, env

    def note(self, said: str) -> None:
        """Write down, with the time, what befalls this server."""
        note(self.disk / "says", said)

    @property
    def diary(self) -> list[dict[str, Any]]:
        """What befell this server and what its agents said, in torchrun's own words: `time` and `said` of each line."""
        notes = self.disk / "says"
        lines = notes.read_text().splitlines(keepends=True) if notes.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @property
    def processes(self) -> list[int]:
        """The processes of the command, itself first, then the ranks that it has started."""
        if not self.busy:
            return []
        command = psutil.Process(self._process.pid)
        return [command.pid, *(child.pid for child in command.children(recursive=True))]

    def switch_off(self) -> None:
        """Let every process of this server be gone at once, without a word, and wait until they are."""
        pids = self.processes
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if pids:
            self._process.wait()
            self.note("switched off")

    @property
    def screen(self) -> str:
        """What the terminal shows."""
        return (self.disk / "screen").read_text()

    def says(self, words: str) -> list[str]:
        """The lines of the screen in which these words are."""
        return [line for line in self.screen.splitlines() if words in line]

    @property
    def busy(self) -> bool:
        """Whether the command still runs."""
        return self._process is not None and self._process.poll() is None

    @pointing
    def wait(self, timeout: float = 100) -> int:
        """Wait for the end of the command and return its exit status; TimeoutError when there is none."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.end()
            raise TimeoutError(f"{self.name} was still busy after {timeout:g} s; its screen:\n{self.screen}") from None

    @pointing
    def wait_for(self, words: str, timeout: float = 100) -> None:
        """Wait until the screen shows these words; TimeoutError when they do not come."""
        deadline = time.monotonic() + timeout
        while not self.says(words):
            if time.monotonic() > deadline or not self.busy:
                raise TimeoutError(f"{self.name} never said {words!r}; its screen:\n{self.screen}")
            time.sleep(0.05)

    def end(self, patience: float = 10) -> int:
        """End the command by SIGTERM, as a scheduler does that wants the server back, and then by SIGKILL."""
        self._process.terminate()
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self.switch_off()
            return self._process.wait()


# stdin is a pipe that the kernel holds: it ends with the kernel
_WATCH = """
import os, signal, subprocess, sys, threading, time
command, asked = None, []
def pass_on(*_):
    asked.append(True)
    command and command.terminate()
signal.signal(signal.SIGTERM, pass_on)  # first: whoever ends this one before leaves the command alone
command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
asked and command.terminate()
def end():
    os.read(0, 1)
    command.terminate()
    time.sleep(5)
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=end, daemon=True).start()
sys.exit(command.wait())
"""


_AGENT = "from ddplab.course.played_agent import agent; agent()"


def servers() -> tuple[Server, Server]:
    """Two servers with empty disks, server1 and server2. Each has one of this machine's names for itself."""
    return Server("server1", "127.0.0.1"), Server("server2", "localhost")


@dataclass
class Batch:
    """What became of a batch script: its exit status, its output, and each command that it gave to `srun`, in words."""

    status: int
    output: str
    asked: list[list[str]]


@pointing
def sbatch(
    script: str, *beside: str, nodes: int = 2, gpus: int = 1, job: int | None = None, dry: bool = False
) -> Batch:
    """Run a SLURM script without SLURM: the real bash, with a play `scontrol` and a play `srun`.

    `scontrol show hostnames` names localhost first. `srun` notes its command, and starts it once for each node, on
    this machine. Nobody reads the `#SBATCH` lines. It runs in an empty folder, with a copy of the files that are to
    lie `beside` it. The job's number, if you give none, leads to a free port where the script adds
    SLURM_JOB_ID % 20000 to 10000. In a dry run srun notes, and nothing is started.
    """
    if shutil.which("bash") is None:
        raise FileNotFoundError("there is no bash here")
    with tempfile.TemporaryDirectory(prefix="ddplab-slurm-") as folder:
        tools, disk = Path(folder, "tools"), Path(folder, "disk")
        tools.mkdir(), disk.mkdir()
        for file in (script, *beside):
            shutil.copy(file, disk)
        played = {"scontrol": _SCONTROL, "srun": _SRUN} | ({"torchrun": "#!/bin/sh\n"} if dry else {})
        for name, text in played.items():
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        job = job or next(n for n in range(os.getpid(), 10**7) if _is_free(10000 + n % 20000))
        slurm = {"JOB_ID": job, "JOB_NODELIST": f"node[1-{nodes}]", "NNODES": nodes, "JOB_NUM_NODES": nodes}
        slurm |= {"GPUS_ON_NODE": gpus} if gpus else {}  # Slurm leaves it out where nobody has asked for one
        slurm |= {"CPUS_PER_TASK": 1, "SUBMIT_DIR": disk, "TOOLS": tools, "DRY": "yes" * dry}
        env = environment() | {f"SLURM_{name}": str(value) for name, value in slurm.items()}
        env["PATH"] = os.pathsep.join([str(tools), env["PATH"]])
        command = ["bash", os.path.basename(script)]
        done = subprocess.run(command, cwd=disk, env=env, capture_output=True, text=True, timeout=120)
        notes = sorted(tools.glob("asked*"), key=lambda note: note.stat().st_mtime_ns)
        asked = [note.read_text().split("\0")[:-1] for note in notes]
    return Batch(done.returncode, done.stdout + done.stderr, asked)


NIGHTS = ["calm", "preempted", "an agent fails", "slow, and the time is over"]
AGAIN = "queued again"


@pointing
def play_night(script: str, night: str, without: str | Sequence[str] = "", job: str = "4242") -> str:
    """Say what becomes of a batch script in a night: the real bash, and real signals, under a play Slurm.

    night: one of NIGHTS; a second run is left in peace. without: a line, or words in one, or several
    such, that are taken out first.
    Slurm's part is played from the `#SBATCH` lines. On this cluster only who asks for it is queued again, `srun` gives
    a task one CPU if it is not told how many, and four hours are the most. Agents are started in words only.
    """
    text = Path(script).read_text().rstrip("\n")
    for words in [without] if isinstance(without, str) else without:
        whole = [line for line in text.splitlines() if line.strip() != words.strip()]
        text = "\n".join(whole) if len(whole) <= text.count("\n") else text.replace(words, "", 1)
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(\S*)", text, re.MULTILINE))
    name = options.get("output", "slurm-%j.out").replace("%x", options.get("job-name", "job")).replace("%j", job)
    told: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ddplab-slurm-") as folder:
        Path(folder, "job").write_text(f"{text}\n")
        for run, befalls in ((1, night), (2, "calm")):
            with open(f"{folder}/{name}", "a" if options.get("open-mode") == "append" else "w") as log:
                state = _play_run(Path(folder), log, options, befalls, job, run, told)
            if state != AGAIN:
                break
        told += [f"state  {state}", "", f"{name}, in the morning:", Path(folder, name).read_text().rstrip()]
    return "\n".join(told)


def _play_run(folder: Path, log: Any, options: dict, night: str, job: str, run: int, told: list[str]) -> str:
    """One run of the script, until it has ended or Slurm ends it: the job's state. `told` gets what befell it."""
    tools = folder / f"tools{run}"
    tools.mkdir()
    scontrol = _SCONTROL.replace("echo localhost", "echo gpu03")  # no agent is started that would look for it
    for name, played in {"scontrol": scontrol, "srun": _SRUN_WAITS, "sleep": _SLEEP}.items():
        (tools / name).write_text(played)
        (tools / name).chmod(0o755)
    slurm = {"JOB_ID": job, "JOB_NODELIST": "node[…]", "NNODES": options.get("nodes", "1"), "TOOLS": str(tools)}
    asked_for = {"GPUS_ON_NODE": "gpus-per-node", "CPUS_PER_TASK": "cpus-per-task", "MAY_COME_BACK": "requeue"}
    slurm |= {name: options[option] for name, option in asked_for.items() if option in options}
    slurm |= {"RESTART_COUNT": "1"} if run == 2 else {}
    env = environment() | {f"SLURM_{name}": value for name, value in slurm.items()}
    env["PATH"] = os.pathsep.join([str(tools), env["PATH"]])
    bash = subprocess.Popen(["bash", "job"], cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
    asked, asleep, requeued = tools / "asked", tools / "asleep", tools / "requeued"

    def comes(*signs: Path, within: float = 2) -> None:
        deadline = time.monotonic() + within
        while bash.poll() is None and not any(sign.exists() for sign in signs) and time.monotonic() < deadline:
            time.sleep(0.005)

    try:
        told.append(f"{'22:00' if run == 1 else '04:00'}  run {run} of job {job}: the script begins")
        comes(asked, asleep, within=30)
        time.sleep(0.3)  # a script that does not wait has ended by then, and srun has begun
        words = asked.read_text().split("\0")[:-1] if asked.exists() else []
        told += _started(words, slurm["NNODES"]) if words else ["       srun is not called: no agent is started"]
        heeded = any(word.startswith("--kill-on-bad-exit") for word in words)
        hour, what, epoch, status = {
            "calm": ("01:30" if run == 1 else "06:00", "all is trained, and the agents end", 89, 0),
            "preempted": ("00:00", "a more important job: SIGTERM ends the agents, and srun fails", 40, 143),
            "an agent fails": ("23:00", "an agent fails, and srun ends the other", 25, 1),
        }.get(night, ("01:58", "two minutes are left", 60, None))
        if night == "an agent fails" and not heeded:
            what, status = "an agent fails, and the other waits", None
        if words and bash.poll() is None:
            told.append(f"{hour}  {what}")
            checkpoint = folder / words[words.index("--checkpoint") + 1]
            first = checkpoint.read_text() if checkpoint.exists() else 0
            checkpoint.write_text(str(epoch + 1))
            print(f"epochs {first} to {epoch}", file=log, flush=True)
            if status is not None:
                (tools / "status").write_text(str(status))
                (tools / "end").touch()
                comes(asleep)
            elif "signal" in options:
                bash.send_signal(signal.SIGUSR1)
                comes(requeued)
            if requeued.exists():
                told.append("01:58  USR1: the script has itself queued again")
                return AGAIN
            if bash.poll() is None and status is None:
                told.append("02:00  the time is over, and Slurm ends all")
                return "TIMEOUT"
            if bash.poll() is None and night == "preempted":
                told.append("00:00  the script sleeps, until Slurm takes the nodes away")
                return AGAIN if "requeue" in options else "PREEMPTED"
        (tools / "woken").touch()
        status = bash.wait(30)
        slept = "sleeps for 90 seconds, " * asleep.exists()
        how = f"with status {status}" if status >= 0 else "by USR1, which nothing catches"
        told.append(f"       the script {slept}ends {how}, and the job with it")
        return "FAILED" if status else "COMPLETED"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(bash.pid, signal.SIGKILL)
        bash.wait()


def _started(words: list[str], nodes: str) -> list[str]:
    """What srun was told, in words, and what torchrun's own parser reads in the rest."""
    from torch.distributed.run import get_args_parser

    here = words.index("torchrun")
    read = get_args_parser().parse_args(words[here + 1 :])
    cpus = next((it.partition("=")[2] for it in words[:here] if it.startswith("--cpus-per-task=")), "1")
    ranks = "■" * int(read.nproc_per_node)
    on = "1 node, with" if nodes == "1" else f"{nodes} nodes, each with"
    return [
        f"       srun starts an agent on {on} {cpus} CPU{'s' * (cpus != '1')} and the ranks {ranks}",
        f"       an agent waits for {read.nnodes} nodes; the kind of meeting: {read.rdzv_backend}",
        f"       where: {read.rdzv_endpoint or 'nobody says'}; under the id: {read.rdzv_id}; its logs: {read.log_dir}",
        f"       {' '.join([read.training_script, *read.training_script_args])}",
    ]


_SCONTROL = """#!/bin/bash
if [[ $1 == requeue ]]; then
    [[ -n ${SLURM_MAY_COME_BACK+yes} ]] && touch "$SLURM_TOOLS/requeued" && exit
    echo "scontrol: this job may not be queued again"; exit 1
fi
echo localhost
for ((node = 2; node <= SLURM_NNODES; node++)); do echo "node$node"; done
"""

_SRUN = """#!/bin/bash
printf '%s\\0' "$@" > "$SLURM_TOOLS/asked$$"
[[ -z $SLURM_DRY ]] || exit 0
while [[ $1 == -* ]]; do shift; done
for ((node = 0; node < SLURM_NNODES; node++)); do
    SLURM_NODEID=$node SLURM_PROCID=$node PET_LOCAL_ADDR=localhost "$@" & agents[node]=$!
done
for agent in "${agents[@]}"; do wait "$agent" || status=$?; done
exit "${status:-0}"
"""

_SRUN_WAITS = """#!/bin/bash
printf '%s\\0' "$@" > "$SLURM_TOOLS/asking"; mv "$SLURM_TOOLS/asking" "$SLURM_TOOLS/asked"
until [[ -e $SLURM_TOOLS/end ]]; do command -p sleep 0.01; done
exit "$(< "$SLURM_TOOLS/status")"
"""

_SLEEP = """#!/bin/bash
touch "$SLURM_TOOLS/asleep"
until [[ -e $SLURM_TOOLS/woken ]]; do command -p sleep 0.01; done
"""


def _is_free(port: int) -> bool:
    with socket.socket() as door:
        return door.connect_ex(("localhost", port)) != 0


def free_port() -> int:
    """A port that nobody has; the system picks it."""
    with socket.socket() as door:
        door.bind(("", 0))
        return door.getsockname()[1]


def environment() -> dict[str, str]:
    """The environment of a played server: this Python's torchrun comes first, and there is no GPU."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
