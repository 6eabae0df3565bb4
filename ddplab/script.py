"""The two processes of a `%%torchrun` cell that are not the learner's: torchrun's agent, and the start of each rank.

    notebook ──> agent: torchrun itself, torch.distributed.run.main ──> python -m ddplab.script SCRIPT.py  (one a rank)

Each rank prepares the files that `folder` describes and then runs SCRIPT.py as `python SCRIPT.py` would.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
import traceback
from typing import NoReturn

from ddplab import worker
from ddplab.folder import Folder
from ddplab.hardware import ONLY_HERE, hold_store


def agent() -> None:
    """Be torchrun: `sys.argv` holds this agent's number and then torchrun's own arguments."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
    from torch.distributed.run import main

    if ONLY_HERE in sys.argv:  # all are on this machine: the store that torch makes for the ranks would hear everybody
        DynamicRendezvousHandler._create_tcp_store_server = lambda *_: hold_store()
    folder, node = Folder.of_this_rank(), int(sys.argv[1])
    notebook_is_gone = threading.Event()

    def end_with_notebook() -> None:
        while os.read(0, 1):  # nobody writes; the pipe ends when the notebook's kernel does
            pass
        notebook_is_gone.set()
        os.kill(os.getpid(), signal.SIGTERM)  # torchrun ends its ranks on SIGTERM

    threading.Thread(target=end_with_notebook, daemon=True).start()
    os.environ["DDPLAB_AGENT_PID"] = str(os.getpid())
    try:
        main(sys.argv[2:])
    except ChildFailedError as error:
        codes = {rank: it.exitcode for rank, it in error.failures.items()}
        folder.note(node, "failures", codes)
        sys.exit(1)
    finally:
        if notebook_is_gone.is_set():
            folder.remove()


def rank() -> None:
    """Run `sys.argv[1]` as the script of one rank; what ends it is reported and then goes its usual way."""
    folder, number, script = Folder.of_this_rank(), int(os.environ["RANK"]), sys.argv[1]
    folder.forget_attempt(number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_agent, args=(int(os.environ["DDPLAB_AGENT_PID"]),), daemon=True).start()
    if "DDPLAB_KEEP_OUTPUT" not in os.environ:
        worker.redirect_output(folder, number)
    worker.introduce(folder, number)
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        if error.code:
            _fail(error, folder, number)
    except BaseException as error:
        _fail(error, folder, number)
    folder.note(number, "result", None)


def _fail(error: BaseException, folder: Folder, number: int) -> NoReturn:
    worker.report(error, folder, number)  # the notebook shows it
    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        traceback.print_exception(error)  # unless a restart makes good what went wrong
    worker.leave(1)


def _end_with_agent(agent: int) -> None:
    while os.getppid() == agent:
        time.sleep(0.2)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    rank()
