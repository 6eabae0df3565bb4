"""What a played server runs when torchrun is typed: torchrun itself, in a process that ends with the kernel.

Torch's launcher takes half a second to import. Each function that needs it imports it, for whoever wants but `note`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from ddplab.hardware import hold_store

JOB = "played"  # the rendezvous id


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


def agent_of(
    script: Callable[..., Any],
    *arguments: Any,
    restarts: int,
    logs: str,
    nproc_per_node: int = 2,
    nodes: int = 1,
    port: int | None = None,
    address: str = "127.0.0.1",
    **meeting: int,
) -> str:
    """Be torchrun's agent for ranks that are forks of this process and call `script`; return how the job has ended.

    restarts: as `--max-restarts`. logs: a folder for what the agent writes. What the ranks print, this process prints.
    nodes: as `--nnodes 1:…`. port: of a store on this machine; when left out, the agent meets itself. address: what it
    signs in with. meeting: as `--rdzv-conf`. The end is "finished", "failed", "left" after a SIGTERM, or "closed":
    another agent has given up.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousClosedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    store = hold_store() if port is None else None  # on a port that no other machine can reach
    config = LaunchConfig(
        1, nodes, nproc_per_node, run_id=JOB, max_restarts=restarts, rdzv_backend="c10d",
        rdzv_endpoint=f"127.0.0.1:{port or store.port}", rdzv_configs={"is_host": 0, **meeting}, local_addr=address,
        start_method="fork", logs_specs=DefaultLogsSpecs(logs),
    )  # fmt: skip

    def rank(*arguments: Any) -> Any:  # what torchrun starts has no handler; the agent's would leave a file in a fork
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            return script(*arguments)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)  # from what is raised here torch makes a file, and leaves it

    try:
        elastic_launch(config, rank)(*arguments)
    except ChildFailedError:
        return "failed"
    except SignalException:
        if port:
            _sign_out(port)
        return "left"
    except RendezvousClosedError:
        return "closed"
    return "finished"


def _sign_out(port: int) -> None:
    """Take this process off the list of those who have met: else they hear of it when its keep-alive has run out."""
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

    meeting = C10dRendezvousBackend(TCPStore("127.0.0.1", port, is_master=False), JOB)
    done = False
    while not done:  # another agent may have written in between
        written, token = meeting.get_state()
        state = pickle.loads(written)
        for node in [it for it in state.participants if it.pid == os.getpid()]:
            del state.participants[node], state.last_heartbeats[node]
        *_, done = meeting.set_state(pickle.dumps(state), token)


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
