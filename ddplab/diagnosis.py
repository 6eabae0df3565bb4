"""Why a run ended badly, in a learner's terms: who failed first, on which line of their code, who waits for whom."""

from __future__ import annotations

import json
import linecache
import os
import re
import signal
import sys
import sysconfig
from typing import Any, NamedTuple

import torch

from ddplab.folder import Folder
from ddplab.shortage import cannot_write

Frame = tuple[str, int, str]  # file, line, function


class Cause(NamedTuple):
    """Why a run ended badly: the words of a `RankError`, and the rank to blame (None where no rank is)."""

    message: str
    rank: int | None
    type_name: str = ""  # of the rank's own exception, with its message and its whole traceback
    reason: str = ""
    traceback: str = ""


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


def location(frame: Frame, script_names: dict[str, str]) -> str:
    """Return how a learner would name a line: `Cell In[3], line 4, in train` or `train.py, line 4`."""
    file, line, function = frame
    name = script_names.get(file)
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


def excerpt(frames: list[Frame], script_names: dict[str, str]) -> str:
    """Return a traceback cut to the learner's code, the innermost line marked with an arrow."""
    own = learners(frames)
    lines = []
    for number, frame in enumerate(own):
        arrow = "--> " if number == len(own) - 1 else "    "
        lines += [f"\n  {location(frame, script_names)}\n    {arrow}{source_of(frame)}"]
    if len(lines) > 12:  # a function that calls itself
        lines[4:-4] = [f"\n  … {len(lines) - 8} calls more …"]
    return "".join(lines)


# ------------------------------------------------------------------ who failed first

# What a rank says when another rank has died under it. Such a rank is a victim, never the cause.
_VICTIM = re.compile(
    r"Connection (closed|reset) by peer|pair closure|Broken pipe|Socket closed|Socket Timeout|remote process exited"
    r"|NCCL communicator was aborted|failed to recv|Failed to recv|recvValue failed|Connection was likely closed"
)
# What torch says when it has found a mismatch by itself (TORCH_DISTRIBUTED_DEBUG=DETAIL), and when it waited in vain.
_MISMATCH = "Detected mismatch between collectives on ranks"
_WAITED = re.compile(r"Timed out waiting|failed to pass monitoredBarrier|wait timeout after|Watchdog caught collective")
_HINTS = {
    "initialize the default process group twice": "launch() has already initialised the process group; "
    "leave your init_process_group() out, or use launch(..., init=False).",
    "Default process group has not been initialized": "call dist.init_process_group() first, "
    "or leave init=False out of launch().",
    "EOFError: EOF when reading a line": "a rank has no keyboard; pass what you would type as an argument.",
    "BdbQuit": "a rank has no keyboard for a debugger; print, log, or call the function in the notebook itself.",
    "daemonic processes are not allowed": "A data loader worker cannot start processes of its own.",
    "rank < size": "world_size is smaller than the number of ranks; leave rank and world_size out, "
    "and init_process_group() takes them from the environment.",
}
_CRASHES = {-signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL, -signal.SIGSEGV}  # they leave their stack


def failure(folder: Folder, exit_codes: dict[int, int | None], died_at: dict[int, int]) -> Cause:
    """Find why a run failed.

    Args:
        exit_codes: rank → exit code as `multiprocessing` gives it (negative for a signal), None while it lives.
        died_at: rank → when its death was seen, in nanoseconds of `time.monotonic_ns`.

    The rank to blame is the first that vanished or raised. Victims come last: a rank that lost its connection, and one
    that was aborted or ended (SIGABRT, SIGTERM) when another had raised.
    """
    errors = {rank: error for rank in range(folder.world_size) if (error := folder.read(rank, "error")) is not None}
    if errors:
        newest = max(error["attempt"] for error in errors.values())
        errors = {rank: error for rank, error in errors.items() if error["attempt"] == newest}
    silent = {
        rank: code
        for rank, code in exit_codes.items()
        if code is not None and rank not in errors and not (code == 0 and folder.has(rank, "result"))
    }
    events = [(3 if _is_victim(error) else 1, error["time_ns"], rank) for rank, error in errors.items()]
    for rank, code in silent.items():
        brought_down = code in (-signal.SIGABRT, -signal.SIGTERM)  # by a library, or by torchrun ending the others
        events.append((2 if brought_down else 0, died_at.get(rank, 0), rank))
    if not events:
        return Cause("no rank began, and none said why", None)
    _, _, rank = min(events)
    if rank in silent:
        message = f"rank {rank} {_how_it_died(silent[rank])}, without a Python exception"
        crash = _crash(folder, rank) if silent[rank] in _CRASHES else ""
        if silent[rank] > 0 and (full := cannot_write(folder.path)):  # nor could it write down its exception
            crash = f"\nhint: {full.strerror}"
        return Cause(f"{message}{crash}{_others(folder, rank, {rank}, told=bool(crash))}", rank)
    error = errors[rank]
    if _MISMATCH in error["message"]:
        return _found_by_torch(folder, errors)
    same = {r for r, e in errors.items() if _same(e, error)}
    rank = min(same)
    error = errors[rank]
    reason = f": {error['message']}" if error["message"] else ""
    said = f"{error['type']}{reason}"
    why = "".join(f"\n  {line}" for line in error["why"])
    message = f"rank {rank} raised {said}{excerpt(error['frames'], folder.script_names)}{why}"
    hint = next((f"\nhint: {hint}" for words, hint in _HINTS.items() if words in said), "") or _never_came(folder, said)
    return Cause(
        f"{message}{hint}{_others(folder, rank, same, told=bool(_WAITED.search(said)))}",
        rank,
        error["type"],
        error["message"],
        error["text"],
    )


def others_matter(folder: Folder, exit_codes: dict[int, int | None]) -> bool:
    """Tell whether a failure means something only beside what the other ranks were doing: a crash, a vain wait."""
    said = [(folder.read(rank, "error") or {}).get("message", "") for rank in range(folder.world_size)]
    return any(code in _CRASHES for code in exit_codes.values()) or any(
        _MISMATCH in words or _WAITED.search(words) for words in said
    )


def _is_victim(error: dict[str, Any]) -> bool:
    return bool(_VICTIM.search(error["message"]))


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Tell whether two ranks say the same, each perhaps with its own number in it."""
    one, other = ((e["type"], re.sub(r"\brank \d+", "rank", e["message"]), e["frames"]) for e in (a, b))
    return one == other


def _how_it_died(code: int) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        why = " (often the machine ran out of memory)" if -code == signal.SIGKILL else ""
        return f"was killed by {name}{why}"
    if code == 0:
        return "left with exit status 0 before it had returned (os._exit, or a library that ends the process)"
    return f"left with exit status {code}"


def _crash(folder: Folder, rank: int) -> str:
    """Say where a rank was when C++ ended it, and C++'s own last words, which torch prints and nobody reads."""
    place = _where(folder, stack_of(folder, rank))
    words = re.findall(r"what\(\): +(?:\[enforce fail at [^]]*\] )?(.+)", folder.output(rank))
    hint = ""
    if words and "collective mismatch" in words[-1]:
        hint = (
            "\nhint: what one rank sent is not what the other expected, in this collective or an earlier one. "
            "With the environment variable TORCH_DISTRIBUTED_DEBUG=DETAIL torch names both."
        )
    return (f", {place}" if place else "") + (f"\nits last words: {words[-1]}" if words else "") + hint


def _never_came(folder: Folder, said: str) -> str:
    """Name the rank for which init_process_group waited in vain: its number ends the key that was never set."""
    if not (missing := re.search(r"wait timeout after .* keys: /default_pg/\S*/(\d+)$", said)):
        return ""
    if int(missing[1]) < folder.world_size:
        return f"\nhint: rank {missing[1]} never came to init_process_group()."
    return (
        f"\nhint: it waited for rank {missing[1]}, and this run has ranks 0 to {folder.world_size - 1}: "
        "is world_size larger than the number of ranks?"
    )


def _others(folder: Folder, blamed: int, same: set[int], told: bool = False) -> str:
    """One line for each other rank. Ranks that the failure brought down are "stopped", however they went.

    told: say where they were stopped.
    """
    lines = []
    for rank in range(folder.world_size):
        if rank == blamed:
            continue
        state = "raised the same" if rank in same else "had finished" if folder.has(rank, "result") else "was stopped"
        if told and state == "was stopped":
            error = folder.read(rank, "error")
            state += f" {_where(folder, error['frames'] if error else stack_of(folder, rank))}"
        lines.append(f"\nrank {rank} {state}".rstrip())
    return "".join(lines)


# ------------------------------------------------------------------ where everybody waits

_COLLECTIVES = {
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single",
    "barrier", "batch_isend_irecv", "broadcast", "broadcast_object_list", "gather", "gather_object",
    "init_process_group", "monitored_barrier", "new_group", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "scatter", "scatter_object_list", "send", "destroy_process_group",
}  # fmt: skip


def parse_stacks(text: str, thread: int = 0) -> list[Frame]:
    """Return a thread's frames, outermost first, from what faulthandler last wrote; of the only one, without number."""
    frames: dict[int, list[Frame]] = {}
    for line in text.splitlines():
        if header := re.match(r"(?:Current thread|Thread) (0x[0-9a-f]+)", line):
            current = frames[int(header[1], 16)] = []
        elif line.startswith("Stack (most recent call first)"):
            current = frames[0] = []
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
    if frames and ".wait(" in source_of(frames[-1]):  # C++ leaves no frame; any wait in Python does
        return "wait()"
    of_ddp = {function for file, _, function in frames if file.endswith("torch/nn/parallel/distributed.py")}
    if of_ddp:
        return "the construction of DDP" if "__init__" in of_ddp else "the forward pass of DDP"
    return None


def stack_of(folder: Folder, rank: int) -> list[Frame]:
    """Return where the main thread of a rank was when it was last asked, or crashed; [] when it has not said."""
    known = folder.read(rank, "pid")
    return parse_stacks(folder.stacks(rank), known["thread"]) if known else []


def _where(folder: Folder, frames: list[Frame]) -> str:
    """Return `in all_reduce at Cell In[3], line 4, in train`, with the line itself below; "" for an empty stack."""
    own, collective = learners(frames), waits_in(frames)
    at = f"at {location(own[-1], folder.script_names)}\n    --> {source_of(own[-1])}" if own else ""
    return f"in {collective} {at}".strip() if collective else at


def hang(folder: Folder, seconds: float) -> Cause:
    """Word a run without progress: where each rank waits, and which rank never came."""
    lines, waiting, missing = [], {}, []
    for rank in range(folder.world_size):
        frames = stack_of(folder, rank)
        collective = waits_in(frames)
        if folder.has(rank, "result"):
            missing.append(rank)
            lines.append(f"rank {rank} has returned")
        elif collective:
            waiting[rank] = collective
            lines.append(f"rank {rank} waits {_where(folder, frames)}")
        else:
            missing.append(rank)
            lines.append(f"rank {rank} is not in a collective: it is {_where(folder, frames) or 'not in your code'}")
    blamed, advice = None, "If this work needs longer, launch it with a larger timeout (in seconds), or timeout=None."
    if differing := mismatch(folder):
        called = [f"rank {rank} called {_call(folder, call)}" for rank, call in differing.items()]
        # one line for a rank that is still in that call
        lines = called + [line for line in lines if not any(line.split(" at ", 1)[-1] in it for it in called)]
        lines += _out_of_step(folder, called)
        verdict = _how_they_differ(differing)
        advice = "Waiting longer does not help: every rank has to make the same calls, in the same order."
    elif waiting and missing:
        names = " and ".join(dict.fromkeys(waiting.values()))
        verdict = f"{_ranks(waiting)} in {names} for {_ranks(missing)}, which never came"
        blamed = missing[0]
    elif len(set(waiting.values())) > 1:
        messages = {"recv", "send", "batch_isend_irecv"} & set(waiting.values())
        verdict = f"the ranks wait in different {'calls' if messages else 'collectives'}, each for the others"
    elif set(waiting.values()) == {"init_process_group"}:
        verdict = (
            f"all {folder.world_size} ranks are in init_process_group, which waits for more: "
            "is world_size too large, or do two of them give the same rank?"
        )
    else:
        verdict = "all ranks are in the same place" if waiting else "no rank is in a collective"
    return Cause(
        "\n".join([f"no rank logged, printed or finished anything for {seconds:g} s: {verdict}", *lines, advice]),
        blamed,
    )


# ------------------------------------------------------------------ which collectives do not match

Call = dict[str, Any]  # as `worker.write_calls` left it: group, number, name, shapes, frames
_SAME_SHAPES = ("all_reduce", "all_gather", "broadcast", "reduce")  # on every rank; scatter's differ, by their nature


def mismatch(folder: Folder) -> dict[int, Call] | None:
    """Return the first collective that is not the same on all ranks: rank → its call; None when none is known."""
    for calls in _by_number(folder):
        if len({call["name"] for call in calls.values()}) > 1:
            return calls
        if len({json.dumps(call["shapes"]) for call in calls.values() if call["name"] in _SAME_SHAPES}) > 1:
            return calls
    return None


def _by_number(folder: Folder) -> list[dict[int, Call]]:
    """Return the collectives in order, each as rank → its call.

    Torch's flight recorder numbers the collectives of a group in the order of the calls. So the ranks' calls with the
    same number were meant for each other.
    """
    numbered: dict[tuple, dict[int, Call]] = {}
    for rank in range(folder.world_size):
        for call in folder.read(rank, "calls") or ():
            numbered.setdefault((call["group"], call["number"]), {})[rank] = call
    return [calls for _, calls in sorted(numbered.items(), key=lambda item: item[0])]


def _out_of_step(folder: Folder, told: list[str]) -> list[str]:
    """Name the first collective that fitted but came from different lines: often the extra one that did the harm.

    told: the lines that say where the ranks are; what they name already is left out.
    """
    for calls in _by_number(folder):
        if len({json.dumps(learners(call["frames"])) for call in calls.values()}) > 1:
            if all(_where(folder, learners(call["frames"])) in "\n".join(told) for call in calls.values()):
                return []
            return ["out of step since these calls, which happened to fit each other:"] + [
                f"rank {rank} called {_call(folder, call)}" for rank, call in calls.items()
            ]
    return []


def _found_by_torch(folder: Folder, errors: dict[int, dict[str, Any]]) -> Cause:
    """Word a mismatch that torch found. Several ranks may say so, each from its side; tell it once."""
    rank, error = min((rank, error) for rank, error in errors.items() if _MISMATCH in error["message"])
    frames = {r: errors[r]["frames"] if r in errors else stack_of(folder, r) for r in range(folder.world_size)}
    names = {r: waits_in(stack) for r, stack in frames.items() if stack}
    if len(set(names.values())) == 1:  # then only torch knows what differs: Rank 0 is running collective: …
        told = r"Rank (\d+) is running .*?OpType=(\w+), TensorShape=\[(.*?)\](?:, TensorDtypes=(\w+))?"
        found = sorted(re.findall(told, error["message"]))
        kinds = len({dtype for *_, dtype in found}) > 1
        said = {int(r): f"{name.lower()} of shape ({shape})" + f" and dtype {t}" * kinds for r, name, shape, t in found}
        names = said or names
    lines = [f"rank {r} is {_where(folder, stack)}" for r, stack in frames.items() if stack]
    lines += _out_of_step(folder, lines)
    message = "\n".join([f"the ranks do not match, torch found: {_each(names)}", *lines])
    return Cause(message, rank, error["type"], error["message"], error["text"])


def _how_they_differ(calls: dict[int, Call]) -> str:
    names = {rank: call["name"] for rank, call in calls.items()}
    if len(set(names.values())) > 1:
        return "the ranks call different collectives: " + _each(names)
    shapes = {rank: _shapes(call) for rank, call in calls.items()}
    return f"the ranks call {names.popitem()[1]} with different shapes: " + _each(shapes)


def _each(said: dict[int, str]) -> str:
    return ", ".join(f"{what} on rank {rank}" for rank, what in said.items())


def _shapes(call: Call) -> str:
    return " and ".join(str(tuple(shape)) for shape in call["shapes"])


def _call(folder: Folder, call: Call) -> str:
    place = _where(folder, learners(call["frames"]))
    return f"{call['name']} of shape {_shapes(call)} {place}" if call["shapes"] else f"{call['name']} {place}"


def _ranks(ranks: Any) -> str:
    numbers = list(ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]}" + (" waits" if isinstance(ranks, dict) else "")
    listed = ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
    return f"ranks {listed}" + (" wait" if isinstance(ranks, dict) else "")
