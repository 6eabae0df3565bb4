"""Why a run ended badly, in a learner's terms: who failed first, on which line of their code, who waits for whom."""

from __future__ import annotations

import linecache
import os
import re
import signal
import sys
import sysconfig
from collections.abc import Callable
from typing import Any

import torch

from ddplab.run import RankError, RankTimeoutError, Run

Frame = tuple[str, int, str]  # file, line, function

# ------------------------------------------------------------------ which line of whose code

_LIBRARIES = tuple(
    os.path.realpath(folder) + os.sep
    for folder in {
        *(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
        os.path.dirname(torch.__path__[0]),
        os.path.dirname(__file__),
    }
)


def learners(frames: list[Frame]) -> list[Frame]:
    """Return the frames that are the learner's own code: not Python's, not a library's, not ours."""
    return [f for f in frames if not f[0].startswith("<") and not os.path.realpath(f[0]).startswith(_LIBRARIES)]


def place_of(frame: Frame, cell_names: dict[str, str]) -> str:
    """Return how a learner would name a line: `Cell In[3], line 4, in train` or `train.py, line 4`."""
    file, line, function = frame
    name = cell_names.get(file)
    if name is None and "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()) is not None:
        format_code_name = getattr(shell.compile, "format_code_name", lambda file: None)  # IPython from 8 on
        label = format_code_name(file)
        name = " ".join(label) if label else None
    where = f"{name or os.path.basename(file)}, line {line}"
    return where if function == "<module>" else f"{where}, in {function}"


def source_of(frame: Frame) -> str:
    """Return the text of a frame's line, stripped ("" when it is not to be had)."""
    linecache.checkcache(frame[0])
    return linecache.getline(frame[0], frame[1]).strip()


def show(frames: list[Frame], cell_names: dict[str, str]) -> str:
    """Return a traceback cut to the learner's code, the innermost line marked with an arrow."""
    own = learners(frames)
    lines = []
    for number, frame in enumerate(own):
        arrow = "--> " if number == len(own) - 1 else "    "
        lines += [f"\n  {place_of(frame, cell_names)}\n    {arrow}{source_of(frame)}"]
    if len(lines) > 12:  # a function that calls itself
        lines[4:-4] = [f"\n  … {len(lines) - 8} calls more …"]
    return "".join(lines)


# ------------------------------------------------------------------ who failed first

# What a rank says when another rank has died under it. Such a rank is a victim, never the cause.
_VICTIM = re.compile(
    r"Connection (closed|reset) by peer|pair closure|Broken pipe|Socket closed|Socket Timeout|remote process exited"
    r"|NCCL communicator was aborted|failed to recv|Failed to recv|recvValue failed|Connection was likely closed"
)
_HINTS = {
    "initialize the default process group twice": "launch() has already initialised the process group; "
    "leave your init_process_group() out, or use launch(..., init=False).",
    "Default process group has not been initialized": "call dist.init_process_group() first, "
    "or leave init=False out of launch().",
    "EOFError: EOF when reading a line": "a rank has no keyboard; pass what you would type as an argument.",
    "BdbQuit": "a rank has no keyboard for a debugger; print, log, or call the function in the notebook itself.",
    "daemonic processes are not allowed": "A data loader worker cannot start processes of its own.",
}


def failure(run: Run, exit_codes: dict[int, int | None], died_at: dict[int, int]) -> RankError:
    """Build the error of a failed run.

    Args:
        exit_codes: rank → exit code as `multiprocessing` gives it (negative for a signal), None while it lives.
        died_at: rank → when its death was seen, in nanoseconds since the epoch.

    The rank to blame is the first that vanished or raised. Victims come last: a rank that lost its connection, and one
    that was aborted or ended (SIGABRT, SIGTERM) when another had raised.
    """
    errors = {rank: error for rank in range(run.world_size) if (error := run.read(rank, "error")) is not None}
    if errors:
        newest = max(error["attempt"] for error in errors.values())
        errors = {rank: error for rank, error in errors.items() if error["attempt"] == newest}
    silent = {
        rank: code
        for rank, code in exit_codes.items()
        if code is not None and rank not in errors and not (code == 0 and run.has(rank, "result"))
    }
    events = [(3 if _is_victim(error) else 1, error["time_ns"], rank) for rank, error in errors.items()]
    for rank, code in silent.items():
        brought_down = code in (-signal.SIGABRT, -signal.SIGTERM)  # by a library, or by torchrun ending the others
        events.append((2 if brought_down else 0, died_at.get(rank, 0), rank))
    if not events:
        return RankError("no rank began, and none said why", run, None)
    _, _, rank = min(events)
    if rank in silent:
        message = f"rank {rank} {_how_it_died(silent[rank])}, without a Python exception"
        return RankError(f"{message}{_others(run, rank, {rank})}", run, rank)
    error = errors[rank]
    same = {r for r, e in errors.items() if _same(e, error)}
    rank = min(same)
    error = errors[rank]
    reason = f": {error['message']}" if error["message"] else ""
    said = f"{error['type']}{reason}"
    why = "".join(f"\n  {line}" for line in error["why"])
    message = f"rank {rank} raised {said}{show(error['frames'], run.cell_names)}{why}"
    hint = next((f"\nhint: {hint}" for words, hint in _HINTS.items() if words in said), "")
    return RankError(
        f"{message}{hint}{_others(run, rank, same)}",
        run,
        rank,
        error["type"],
        error["message"],
        error["text"],
    )


def _is_victim(error: dict[str, Any]) -> bool:
    return bool(_VICTIM.search(error["message"]))


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return (a["type"], a["message"], a["frames"]) == (b["type"], b["message"], b["frames"])


def _how_it_died(code: int) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        why = " (often the machine ran out of memory)" if -code == signal.SIGKILL else ""
        return f"was killed by {name}{why}"
    if code == 0:
        return "left with exit status 0 before it had returned (os._exit, or a library that ends the process)"
    return f"left with exit status {code}"


def _others(run: Run, blamed: int, same: set[int]) -> str:
    """One line for each other rank. Ranks that the failure brought down are "stopped", however they went."""
    lines = []
    for rank in range(run.world_size):
        if rank == blamed:
            continue
        state = "raised the same" if rank in same else "had finished" if run.has(rank, "result") else "was stopped"
        lines.append(f"\nrank {rank} {state}")
    return "".join(lines)


# ------------------------------------------------------------------ where everybody waits

_COLLECTIVES = {
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single",
    "barrier", "batch_isend_irecv", "broadcast", "broadcast_object_list", "gather", "gather_object",
    "init_process_group", "monitored_barrier", "new_group", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "scatter", "scatter_object_list", "send", "destroy_process_group",
}  # fmt: skip


def parse_stacks(text: str, thread: int) -> list[Frame]:
    """Return the main thread's frames, outermost first, from what faulthandler last wrote."""
    frames: dict[int, list[Frame]] = {}
    for line in text.splitlines():
        if header := re.match(r"(?:Current thread|Thread) (0x[0-9a-f]+)", line):
            current = frames[int(header[1], 16)] = []
        elif frame := re.match(r'  File "(.*)", line (\d+) in (.*)', line):
            current.insert(0, (frame[1], int(frame[2]), frame[3]))
    return frames.get(thread, [])


def waits_in(frames: list[Frame]) -> str | None:
    """Return the name of the collective that a stack is inside of, or None."""
    for file, _, function in reversed(frames):
        if file.endswith("torch/distributed/distributed_c10d.py") and function in _COLLECTIVES:
            return function
        if file.endswith("torch/autograd/graph.py") and function == "_engine_run_backward":
            return "backward"
        if file.endswith("torch/nn/parallel/distributed.py"):
            return "the construction of DDP" if function == "__init__" else "the forward pass of DDP"
    return None


def hang(run: Run, seconds: float, stacks: Callable[[int], list[Frame]]) -> RankTimeoutError:
    """Build the error of a run without progress: where each rank waits, and which rank never came."""
    lines, waiting, missing = [], {}, []
    for rank in range(run.world_size):
        frames = stacks(rank)
        own = learners(frames)
        collective = waits_in(frames)
        where = f" at {place_of(own[-1], run.cell_names)}\n    --> {source_of(own[-1])}" if own else ""
        if run.has(rank, "result"):
            missing.append(rank)
            lines.append(f"rank {rank} has returned")
        elif collective:
            waiting[rank] = collective
            lines.append(f"rank {rank} waits in {collective}{where}")
        else:
            missing.append(rank)
            lines.append(f"rank {rank} is not in a collective: it is{where or ' not in your code'}")
    if waiting and missing:
        names = " and ".join(dict.fromkeys(waiting.values()))
        verdict = f"{_ranks(waiting)} in {names} for {_ranks(missing)}, which never came"
    elif len(set(waiting.values())) > 1:
        verdict = "the ranks wait in different collectives, each for the others"
    else:
        verdict = "all ranks are in the same place" if waiting else "no rank is in a collective"
    return RankTimeoutError(
        f"no rank logged, printed or finished anything for {seconds:g} s: {verdict}\n" + "\n".join(lines)
        + "\nIf this work needs longer, launch it with a larger timeout (in seconds), or timeout=None.",
        run, missing[0] if waiting and missing else None,
    )  # fmt: skip


def _ranks(ranks: Any) -> str:
    numbers = list(ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]}" + (" waits" if isinstance(ranks, dict) else "")
    listed = ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
    return f"ranks {listed}" + (" wait" if isinstance(ranks, dict) else "")
