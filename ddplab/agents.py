"""%%torchrun: a cell as a script under the real torchrun, shown and followed as `launch` does it.

Torchrun itself runs in a process of its own (see `script.agent`) and does everything it does in a terminal: it
parses its own options, meets the other nodes, starts the ranks, restarts them. Ours is to watch; and, unless you say
where the nodes meet, to let it listen on this machine's loopback interface alone, where torchrun's own listens to all.
https://docs.pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ddplab import lease, rehearse
from ddplab.diagnosis import Cause, failure
from ddplab.folder import Folder
from ddplab.follow import watch
from ddplab.hardware import ONLY_HERE, cpu_cores, hold_store, loopback
from ddplab.panel import view_of
from ddplab.pointer import pointing
from ddplab.processes import end_group
from ddplab.run import RankError, Run
from ddplab.shortage import cannot_write, plainly

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


@pointing
@plainly
def torchrun(
    script: str,
    *script_args: Any,
    timeout: float | None = 60.0,
    wait: bool = True,
    quiet: bool = False,
    virtual: bool = False,
    **options: Any,
) -> Run:
    """Run a script file under the real torchrun and return the `Run`, as `%%torchrun` does with a cell.

    Args:
        script: path of a Python script. script_args: its own arguments.
        options: torchrun's options with underscores, such as nproc_per_node=2, nnodes=2, max_restarts=1.
        timeout, wait, quiet: as in `launch`.
        virtual: True rehearses it, each rank on a virtual GPU (see `ddplab.rehearse`).

    With nnodes=2 (or more) and no word on where the nodes meet, that many agents are started on this machine.
    Raises `RankError` when a rank fails for good, `RankTimeoutError` without progress, ValueError for options that
    torchrun refuses, FileNotFoundError when there is no such script.
    """
    if not os.path.isfile(script):
        raise FileNotFoundError(f"there is no script {script!r} in {os.getcwd()}")
    flags = []
    for name, value in options.items():
        if value is not False:
            flags.append(f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}"))
    return _torchrun(flags, os.path.abspath(script), list(map(str, script_args)), timeout, wait, quiet, virtual)


def _torchrun(
    flags: list[str], script: str, script_args: list[str], timeout: float | None, wait: bool, quiet: bool,
    virtual: bool, script_name: str | None = None, folder: Folder | None = None,
) -> Run:  # fmt: skip
    if "DDPLAB_RUN_DIR" in os.environ:
        raise RuntimeError(
            "torchrun was asked for inside a rank: each of N ranks would start N more; call it in the notebook"
        )
    from torch.distributed.run import determine_local_world_size, parse_min_max_nnodes

    folder, place = folder or Folder.new(), None
    try:
        asked = _parse([*flags, script])
        if asked.training_script != script:
            raise ValueError(
                f"{asked.training_script!r} is not one of torchrun's options. The script is given already; "
                "in a cell its own arguments go after --"
            )
        nproc = determine_local_world_size(asked.nproc_per_node)
        nodes = parse_min_max_nnodes(asked.nnodes)[1]
        meeting_place_given = (
            asked.rdzv_endpoint or asked.rdzv_backend != "static" or asked.node_rank or asked.standalone
        )
        agents = 1 if meeting_place_given else nodes
        kind = "virtual" if virtual else "cuda" if lease.gpus_for_a_run(nproc * agents) >= nproc * agents else "cpu"
        folder.world_size = nproc * nodes
        folder.script_names = {script: script_name} if script_name else {}
        run = Run(folder, kind, None, start=time.monotonic(), nproc_per_node=nproc, nnodes=agents)
        place = lease.ask(kind, nproc * agents)
        command = [script, *script_args]
        start = functools.partial(_Agents, run, folder, flags, command, not meeting_place_given, place)
        return watch(run, folder, start, timeout, view_of(run, folder, wait, quiet), wait, place)
    except BaseException:
        if place is not None:
            place.end()
        folder.remove()
        raise


def _parse(arguments: list[str]) -> argparse.Namespace:
    """Read torchrun's options with torchrun's own parser; what it refuses is a ValueError."""
    from torch.distributed.run import get_args_parser

    refusal = io.StringIO()
    try:
        with contextlib.redirect_stderr(refusal):
            parser = get_args_parser()
            parser.prog = "torchrun"
            return parser.parse_args(arguments)
    except SystemExit:
        said = refusal.getvalue().strip().splitlines() or ["torchrun --help in a terminal lists what there is"]
        raise ValueError(f"torchrun does not take this: {said[-1]}") from None


class _Agents:
    """Torchrun's agents: one, or as many as nodes are played on this machine."""

    def __init__(
        self,
        run: Run,
        folder: Folder,
        flags: list[str],
        command: list[str],
        standalone: bool,
        place: lease.Lease | None,
    ):
        self.run, self.folder, self.store, agents = run, folder, None, run.nnodes
        if standalone:  # the caller holds the store they meet at; that of torchrun's --standalone listens to everybody
            self.store = hold_store()
            endpoint = f"127.0.0.1:{self.store.port}"
            ours = ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-conf=is_host=0", ONLY_HERE]
            flags = [*ours, *flags]
        self.logs = [folder.file(f"agent{node}.log") for node in range(agents)]
        self.agents = []
        flags = [f"--log-dir={folder.file('torchelastic')}", *flags]  # else torchrun leaves a folder of its own in /tmp
        for node, log in enumerate(self.logs):
            argv = [*flags, "-m", "ddplab.script", *command]
            program = "from ddplab.script import agent; agent()"
            with open(log, "wb") as output:
                self.agents.append(
                    subprocess.Popen(
                        [sys.executable, "-c", program, str(node), *argv],
                        stdin=subprocess.PIPE,  # never written to: its end tells the agent that the notebook is gone
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        pass_fds=[place.descriptor] if place is not None else [],  # held for as long as it lives
                        env=(loopback() if standalone else {}) | _agent_environment(run, folder, flags, node, place),
                    )
                )

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def exit_codes(self) -> dict[int, int | None]:
        codes: dict[int, int | None] = {}
        for node in range(len(self.agents)):
            codes |= {int(rank): code for rank, code in (self.folder.read(node, "failures") or {}).items()}
        return codes

    def ended(self) -> bool:
        return all(agent.poll() is not None for agent in self.agents)

    def failed(self) -> bool:
        return any(agent.poll() for agent in self.agents) or (self.ended() and bool(self._vanished()))

    def pids(self) -> dict[int, int]:
        ranks = range(self.folder.world_size)
        known = {rank: self.folder.read(rank, "pid") for rank in ranks if not self.folder.has(rank, "result")}
        return {rank: it["pid"] for rank, it in known.items() if it}

    def cause(self, died_at: dict[int, int]) -> Cause:
        codes = self.exit_codes() or self._vanished()
        if codes:
            return failure(self.folder, codes, died_at)
        agent, log = next((a, log) for a, log in zip(self.agents, self.logs, strict=True) if a.poll())
        said = Path(log).read_text(errors="replace").strip()[-2000:] or cannot_write(self.folder.path) or "nothing"
        return Cause(
            f"torchrun ended with exit status {agent.returncode} before any rank failed; it said:\n{said}", None
        )

    def end(self) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                agent.terminate()  # torchrun then ends its ranks
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline and not self.ended():
            time.sleep(0.01)
        for rank in range(self.folder.world_size):
            if known := self.folder.read(rank, "pid"):
                end_group(known["pid"], signal.SIGKILL)
        for agent in self.agents:
            end_group(agent.pid, signal.SIGKILL)
            agent.wait()
            agent.stdin.close()
        if self.run.device == "virtual":
            gpus = self.run.nproc_per_node * self.run.nnodes
            self.run.rehearsal = rehearse.told(self.folder.file("book"), gpus, self.folder.script_names)

    def _vanished(self) -> dict[int, int | None]:
        """Return the ranks that began and left with status 0 before their script had ended."""
        has, ranks = self.folder.has, range(self.folder.world_size)
        return {rank: 0 for rank in ranks if has(rank, "pid") and not has(rank, "result")}


def _agent_environment(
    run: Run, folder: Folder, flags: list[str], node: int, place: lease.Lease | None
) -> dict[str, str]:
    env = {**os.environ, "DDPLAB_RUN_DIR": folder.path, "PYTHONUNBUFFERED": "1"}
    env |= place.environment() if place is not None else {}
    if any(flag.startswith(("-r", "-t", "--redirects", "--tee")) for flag in flags):
        env["DDPLAB_KEEP_OUTPUT"] = "1"  # the learner sends the ranks' output somewhere: leave it there
    cores = int(env.get("DDPLAB_CORES") or cpu_cores())
    env.setdefault("OMP_NUM_THREADS", str(max(1, cores // (run.nproc_per_node * run.nnodes))))
    there = torch.cuda.device_count()
    if run.device == "virtual":
        there = run.nproc_per_node * run.nnodes
        env |= rehearse.environment(folder.file("book"), there)
        env.pop("CUDA_VISIBLE_DEVICES", None)  # it numbers real ones
    if run.device == "cpu" and lease.gpus_for_a_run() < there:
        env["CUDA_VISIBLE_DEVICES"] = ""  # there are some, but not for this run
    if run.nnodes > 1:  # nodes have GPUs of their own: give each agent its share, or none
        gpus = env.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(there)))).split(",")
        share = gpus[node * run.nproc_per_node : (node + 1) * run.nproc_per_node] if run.device != "cpu" else []
        env["CUDA_VISIBLE_DEVICES"] = ",".join(share)
    return env


# ------------------------------------------------------------------ the cell magic


def _refuse(message: str) -> NoReturn:
    raise ValueError(f"%%torchrun: {message}")


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register `%%torchrun` in a notebook; importing ddplab does it."""

    @pointing
    @plainly
    def run_cell(line: str, cell: str) -> None:
        """Run the cell as a script under the real torchrun.

        %%torchrun --nproc-per-node 2 [torchrun's other options] [-- the script's own arguments]

        --save NAME.py keeps the script, --out NAME stores the Run in a variable, --timeout SECONDS as in launch(),
        --virtual rehearses it: each rank finds a virtual GPU (see `ddplab.rehearse`).
        """
        ours = argparse.ArgumentParser(prog="%%torchrun", add_help=False, allow_abbrev=False)
        ours.error = _refuse
        ours.add_argument("--save")
        ours.add_argument("--out")
        ours.add_argument("--timeout", type=float, default=60.0)
        ours.add_argument("--virtual", action="store_true")
        words = shlex.split(line)
        script_args = words[words.index("--") + 1 :] if "--" in words else []
        options, flags = ours.parse_known_args(words[: words.index("--")] if "--" in words else words)

        if options.save:
            options.save = os.path.abspath(os.path.expanduser(options.save))
            os.makedirs(os.path.dirname(options.save), exist_ok=True)
        folder = Folder.new()
        script = options.save or folder.file("cell.py")
        # the magic's own line becomes a comment, so that line numbers are those of the cell
        command = shlex.join(["torchrun", *flags, os.path.basename(script), *script_args])
        Path(script).write_text(f"# {command}\n{cell}", encoding="utf-8")
        name = f"Cell In[{len(shell.user_ns['In']) - 1}]"  # the cell that runs is the last of In
        if options.save:
            name = f"{os.path.basename(script)} ({name})"
        try:
            how = (options.timeout, True, False, options.virtual)
            run = _torchrun(flags, script, script_args, *how, script_name=name, folder=folder)
        except RankError as error:
            if options.out:
                shell.user_ns[options.out] = error.run
            raise
        if options.out:
            shell.user_ns[options.out] = run

    shell.register_magic_function(run_cell, "cell", "torchrun")
