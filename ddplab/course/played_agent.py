"""What a played server runs when torchrun is typed: torchrun itself, in a process that ends with the kernel.

Torch's launcher takes half a second to import. Each function that needs it imports it, for whoever wants but `note`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from ddplab.hardware import hold_store


def agent() -> None:
    """Be torchrun, with the options in `sys.argv`; note what the agent says, and end with the kernel."""
    threading.Thread(target=_end_with_the_kernel, daemon=True).start()
    noted_torchrun(sys.argv[1:])


def noted_torchrun(words: list[str]) -> None:
    """Be torchrun, with these options; note what the agent says in the file that the variable SAYS names."""
    from torch.distributed.run import main

    said, notes = logging.getLogger("torch.distributed.elastic.agent.server.api"), logging.Handler()
    notes.emit = lambda record: note(Path(os.environ["SAYS"]), record.getMessage())
    said.setLevel(logging.INFO)  # these lines go into the notes; the screen shows what it always shows
    at = said
    while at := at.parent:
        for handler in at.handlers:
            handler.addFilter(lambda record: record.name != said.name or record.levelno >= logging.WARNING)
    said.addHandler(notes)
    try:
        main(words)
    finally:
        note(Path(os.environ["SAYS"]), "ended")


def agent_of(script: Callable[..., Any], *arguments: Any, restarts: int, logs: str) -> str:
    """Be torchrun's agent for two ranks, forks of this process that call `script`; return how the job has ended.

    restarts: as `--max-restarts`. logs: a folder for what the agent writes. What the ranks print, this process prints.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    store = hold_store()  # where the agent meets itself: on a port that no other machine can reach
    config = LaunchConfig(
        1, 1, 2, max_restarts=restarts, rdzv_backend="c10d", rdzv_endpoint=f"127.0.0.1:{store.port}",
        rdzv_configs={"is_host": 0}, local_addr="127.0.0.1", start_method="fork", logs_specs=DefaultLogsSpecs(logs),
    )  # fmt: skip

    def rank(*arguments: Any) -> Any:  # what torchrun starts has no handler; the agent's would leave a file in a fork
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return script(*arguments)

    try:
        elastic_launch(config, rank)(*arguments)
    except ChildFailedError:
        return "failed"
    return "finished"


def _end_with_the_kernel() -> None:
    os.read(0, 1)  # a pipe that the kernel holds: it ends with the kernel
    stopped = Path(os.environ.get("STOPPED", os.devnull))  # by a cut cable: these cannot end by themselves
    for pid in stopped.read_text().split() if stopped.exists() else []:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    ranks = psutil.Process().children(recursive=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    for rank in ranks:
        with contextlib.suppress(psutil.NoSuchProcess):
            rank.kill()
    os.killpg(0, signal.SIGKILL)


def note(notes: Path, said: str) -> None:
    """Append a line to what befell a server: the time, and words."""
    with open(notes, "a") as file:
        file.write(json.dumps({"time": time.time(), "said": said}) + "\n")
