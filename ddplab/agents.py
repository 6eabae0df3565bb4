"""%%torchrun: a cell as a script under the real torchrun, shown and followed as `launch` does it.

Torchrun itself runs in a process of its own (see `script.agent`) and does everything it does in a terminal: it
parses its own options, meets the other nodes, starts the ranks, restarts them. Ours is only to watch.
https://docs.pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ddplab.diagnosis import failure
from ddplab.follow import follow
from ddplab.hardware import cpu_cores
from ddplab.launcher import end_group, hold_store
from ddplab.run import RankError, Run

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def torchrun(
    script: str,
    *script_args: Any,
    timeout: float | None = 60.0,
    wait: bool = True,
    quiet: bool = False,
    **options: Any,
) -> Run:
    """Run a script file under the real torchrun and return the `Run`, as `%%torchrun` does with a cell.

    Args:
        script: path of a Python script. script_args: its own arguments.
        options: torchrun's options with underscores, such as nproc_per_node=2, nnodes=2, max_restarts=1.
        timeout, wait, quiet: as in `launch`.

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
    return _torchrun(flags, os.path.abspath(script), list(map(str, script_args)), timeout, wait, quiet)


def _torchrun(
    flags: list[str], script: str, script_args: list[str], timeout: float | None, wait: bool, quiet: bool,
    cell_name: str | None = None, directory: str | None = None,
) -> Run:  # fmt: skip
    if "DDPLAB_RUN_DIR" in os.environ:
        raise RuntimeError(
            "torchrun was asked for inside a rank: each of N ranks would start N more; call it in the notebook"
        )
    from torch.distributed.run import determine_local_world_size, parse_min_max_nnodes

    directory = directory or tempfile.mkdtemp(prefix="ddplab-")
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
        kind = "cuda" if torch.cuda.device_count() >= nproc * agents else "cpu"
        run = Run(directory, nproc * nodes, kind, None, start=time.time())
        run.nproc_per_node, run.nnodes = nproc, agents
        run.cell_names = {script: cell_name} if cell_name else {}
        start = functools.partial(
            _Agents, run, flags, [script, *script_args], agents, standalone=not meeting_place_given
        )
        return follow(run, start, timeout, wait=wait, quiet=quiet)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
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

    def __init__(self, run: Run, flags: list[str], command: list[str], agents: int, standalone: bool):
        self.store = None
        if standalone and agents == 1:
            flags = ["--standalone", *flags]
        elif standalone:  # the caller holds the store the agents meet at, on a port the system picks
            self.store = hold_store()
            endpoint = f"127.0.0.1:{self.store.port}"
            flags = ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-conf=is_host=0", *flags]
        self.logs = [f"{run.directory}/agent{node}.log" for node in range(agents)]
        self.agents = []
        flags = [f"--log-dir={run.directory}/torchelastic", *flags]  # else torchrun leaves a folder of its own in /tmp
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
                        env=_agent_environment(run, flags, node, agents),
                    )
                )

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def exit_codes(self) -> dict[int, int | None]:
        codes: dict[int, int | None] = {}
        for log in self.logs:
            with contextlib.suppress(FileNotFoundError):
                codes |= {int(rank): code for rank, code in json.loads(Path(f"{log}.failures").read_text()).items()}
        return codes

    def ended(self) -> bool:
        return all(agent.poll() is not None for agent in self.agents)

    def failed(self, run: Run) -> bool:
        return any(agent.poll() for agent in self.agents) or (self.ended() and bool(_vanished(run)))

    def pids(self, run: Run) -> dict[int, int]:
        known = {rank: run.read(rank, "pid") for rank in range(run.world_size) if not run.has(rank, "result")}
        return {rank: it["pid"] for rank, it in known.items() if it}

    def error(self, run: Run, died_at: dict[int, int]) -> RankError:
        codes = self.exit_codes() or _vanished(run)
        if codes:
            return failure(run, codes, died_at)
        agent, log = next((a, log) for a, log in zip(self.agents, self.logs, strict=True) if a.poll())
        said = Path(log).read_text(errors="replace").strip()[-2000:]
        return RankError(
            f"torchrun ended with exit status {agent.returncode} before any rank failed; it said:\n{said}",
            run,
            None,
        )

    def end(self, run: Run) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                agent.terminate()  # torchrun then ends its ranks
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline and not self.ended():
            time.sleep(0.01)
        for rank in range(run.world_size):
            if known := run.read(rank, "pid"):
                end_group(known["pid"], signal.SIGKILL)
        for agent in self.agents:
            end_group(agent.pid, signal.SIGKILL)
            agent.wait()
            agent.stdin.close()


def _vanished(run: Run) -> dict[int, int | None]:
    """Return the ranks that began and left with status 0 before their script had ended."""
    return {rank: 0 for rank in range(run.world_size) if run.has(rank, "pid") and not run.has(rank, "result")}


def _agent_environment(run: Run, flags: list[str], node: int, agents: int) -> dict[str, str]:
    env = {**os.environ, "DDPLAB_RUN_DIR": run.directory, "PYTHONUNBUFFERED": "1"}
    if any(flag.startswith(("-r", "-t", "--redirects", "--tee")) for flag in flags):
        env["DDPLAB_KEEP_OUTPUT"] = "1"  # the learner sends the ranks' output somewhere: leave it there
    env.setdefault("OMP_NUM_THREADS", str(max(1, cpu_cores() // (run.nproc_per_node * agents))))
    if agents > 1:  # nodes have GPUs of their own: give each agent its share, or none
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count())))).split(",")
        share = gpus[node * run.nproc_per_node : (node + 1) * run.nproc_per_node] if run.device == "cuda" else []
        env["CUDA_VISIBLE_DEVICES"] = ",".join(share)
    return env


# ------------------------------------------------------------------ the cell magic


def _refuse(message: str) -> NoReturn:
    raise ValueError(f"%%torchrun: {message}")


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register `%%torchrun` in a notebook; importing ddplab does it."""

    def run_cell(line: str, cell: str) -> None:
        """Run the cell as a script under the real torchrun.

        %%torchrun --nproc-per-node 2 [torchrun's other options] [-- the script's own arguments]

        --save NAME.py keeps the script, --out NAME stores the Run in a variable, --timeout SECONDS as in launch().
        """
        ours = argparse.ArgumentParser(prog="%%torchrun", add_help=False, allow_abbrev=False)
        ours.error = _refuse
        ours.add_argument("--save")
        ours.add_argument("--out")
        ours.add_argument("--timeout", type=float, default=60.0)
        words = shlex.split(line)
        script_args = words[words.index("--") + 1 :] if "--" in words else []
        options, flags = ours.parse_known_args(words[: words.index("--")] if "--" in words else words)

        if options.save:
            options.save = os.path.abspath(os.path.expanduser(options.save))
            os.makedirs(os.path.dirname(options.save), exist_ok=True)
        directory = tempfile.mkdtemp(prefix="ddplab-")
        script = options.save or f"{directory}/cell.py"
        # the magic's own line becomes a comment, so that line numbers are those of the cell
        command = shlex.join(["torchrun", *flags, os.path.basename(script), *script_args])
        Path(script).write_text(f"# {command}\n{cell}", encoding="utf-8")
        name = f"Cell In[{len(shell.user_ns['In']) - 1}]"  # the cell that runs is the last of In
        if options.save:
            name = f"{os.path.basename(script)} ({name})"
        try:
            run = _torchrun(
                flags, script, script_args, options.timeout, True, False, cell_name=name, directory=directory
            )
        except RankError as error:
            if options.out:
                shell.user_ns[options.out] = error.run
            raise
        if options.out:
            shell.user_ns[options.out] = run

    shell.register_magic_function(run_cell, "cell", "torchrun")
