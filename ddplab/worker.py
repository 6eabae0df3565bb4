"""What runs inside a rank: its environment, its process group, `log`, and the way back for what it returns.

A rank and its notebook share one folder. Each rank r leaves plain files there, so nothing is lost when it dies:

    r.pid      its process id and main thread      r.metrics  one JSON row per log()
    r.output   what it printed                     r.stacks   where it was, when somebody asked (SIGUSR1)
    r.result   what fn returned                    r.error    the exception that ended it
    r.calls    its latest collectives, when it raised or somebody opened r.ask, a pipe

Nothing of the notebook side (widgets, figures) is imported here.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import torch
import torch.distributed as dist

from ddplab.hardware import cpu_cores, device

# ------------------------------------------------------------------ what learners call inside a rank

_row_count = 0
_log_file: int | None = None


def log(**values: float | int | str | bool | None) -> None:
    """Record one row of metrics from inside a rank; it appears in the panel and in `run.metrics`.

    Values are numbers, strings, booleans, None, or tensors with one element (a GPU tensor is waited for). `step` counts
    the rank's rows from 0 unless you pass it. Each row is written at once, so it survives the rank's death.
    Without a notebook behind it (a plain process, a script under torchrun in a terminal) the row is printed.
    Raises TypeError naming the value that cannot be logged.
    """
    global _row_count, _log_file
    if not isinstance(values.get("step", 0), int | float):
        raise TypeError(f"log(step=…) is a number, the position on the axis of the curves, not {values['step']!r}")
    row = {"step": _row_count, "time": time.time()}
    for name, value in values.items():
        if name in ("rank", "time"):
            raise TypeError(f"log() fills in {name!r} itself; give your value another name")
        row[name] = value if type(value) in (int, float, str, bool, type(None)) else _number(name, value)
    _row_count += 1
    if _log_file is None:
        if "DDPLAB_RUN_DIR" not in os.environ:
            columns = "  ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items() if k != "time"
            )
            # the line in one write, so that ranks in one terminal don't tear each other's
            print(f"[rank {os.environ.get('RANK', 0)}] {columns}\n", end="", flush=True)
            return
        path = f"{os.environ['DDPLAB_RUN_DIR']}/{os.environ['RANK']}.metrics"
        _log_file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_log_file, json.dumps(row).encode() + b"\n")  # one write: a row is there whole or not at all


def _number(name: str, value: Any) -> Any:
    if getattr(value, "size", None) is not None and hasattr(value, "item"):  # a tensor, or a numpy scalar
        shape = tuple(getattr(value, "shape", ()))
        if all(n == 1 for n in shape):
            return value.item()
        raise TypeError(
            f"log({name}=…) got a {type(value).__name__} of shape {shape}; log one number, such as {name}.mean()"
        )
    raise TypeError(f"log({name}=…) got a {type(value).__name__}; it takes numbers, strings and one-element tensors")


def cleanup() -> None:
    """End the process group of a torchrun script. Call it last, instead of `dist.destroy_process_group()`.

    Gloo finishes its last piece of work on a thread of its own. A script that destroys the group at that
    very moment can hang or abort, because the main thread waits for gloo's while it holds Python's lock. So: wait for
    every rank, let the thread settle, then destroy. Does nothing when there is no process group.
    """
    if not dist.is_initialized():
        return
    if torch.cuda.is_initialized():
        torch.cuda.synchronize(device())
    dist.barrier()
    time.sleep(0.1)
    dist.destroy_process_group()


# ------------------------------------------------------------------ the life of a rank under launch()


def main(local_rank: int, run_dir: str, env: dict[str, str], path: list[str], init: bool, backend: str) -> None:
    """Run the function that `launch` saved in `run_dir` as one rank, then leave without tearing torch down."""
    rank = local_rank
    os.environ.clear()  # the forkserver's environment is as old as the forkserver
    os.environ.update(env, RANK=str(rank), LOCAL_RANK=str(rank))
    os.setsid()  # a group of its own: this rank and whatever it starts can be ended together
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook decides what an interrupt means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_notebook, args=(run_dir,), daemon=True).start()
    redirect_output(run_dir, rank)
    introduce(run_dir, rank)
    try:
        if torch.cuda.is_initialized():
            raise RuntimeError("CUDA was used before the rank began; please report this as a bug of ddplab")
        if sys.platform == "linux":
            # a data loader's workers start as in any script, and so find what a cell has defined
            multiprocessing.set_start_method("fork", force=True)
        torch.set_num_threads(max(1, cpu_cores() // int(env["LOCAL_WORLD_SIZE"])))
        torch.seed()  # forks of one forkserver would all draw the same numbers; ranks of torchrun do not
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()
        here = device()
        if here.type == "cuda":
            torch.cuda.set_device(here)
        sys.path[:] = path
        dist.set_debug_level_from_env()  # torch read TORCH_DISTRIBUTED_DEBUG when the forkserver imported it
        _keep_process_groups()
        fn, args, kwargs = load(f"{run_dir}/fn", here)
        if init:
            if backend == "gloo" and dist.get_debug_level() == dist.DebugLevel.DETAIL:
                # At a bare "gloo" DDP's logger in torch 2.13 crashes (lesson 14c shows it). It does not where torch
                # leaves the default backend open: devices are named, and torch._dynamo has registered a backend more.
                importlib.import_module("torch._dynamo")
                backend = "cpu:gloo,cuda:gloo"
            dist.init_process_group(backend, device_id=here if backend == "nccl" else None)
            dist.barrier()  # everybody is connected: a rank that fails at once does not surprise the others
        _save_result(fn(*args, **kwargs), run_dir, rank)
    except BaseException as error:
        report(error, run_dir, rank)
        leave(1)
    _wait_for_all(run_dir, int(env["WORLD_SIZE"]))
    leave(0)


def _keep_process_groups() -> None:
    """Hold on to every default process group: its destructor must never run, also when fn destroys the group itself.

    A textbook function ends with `dist.destroy_process_group()`. Its DDP model is then the group's last owner, and in
    about one launch of six gloo's thread and Python's lock wait for each other when the model goes.
    """
    begin, kept = dist.init_process_group, []

    @functools.wraps(begin)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        begin(*args, **kwargs)
        kept.append(dist.group.WORLD)

    dist.init_process_group = init_process_group


def _end_with_notebook(run_dir: str) -> None:
    """Outlive the notebook's kernel by a moment only: the sentinel becomes ready when it is gone, killed or not."""
    wait([multiprocessing.parent_process().sentinel])
    shutil.rmtree(run_dir, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _wait_for_all(run_dir: str, world_size: int) -> None:
    """Leave only when every rank has returned, so that nobody's last collective meets a closed connection."""
    pause = 0.001
    while not all(os.path.exists(f"{run_dir}/{rank}.result") for rank in range(world_size)):
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def leave(code: int) -> NoReturn:
    """End this process now. Torch's destructors do not run: in them, gloo's threads and Python's lock can deadlock."""
    for child in multiprocessing.active_children():  # data loader workers that are still about
        child.terminate()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# ------------------------------------------------------------------ the files a rank leaves (script.py uses them too)


def redirect_output(run_dir: str, rank: int) -> None:
    """Send everything this process prints, from Python or from C++, to the rank's own file."""
    file = os.open(f"{run_dir}/{rank}.output", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    sys.stdout.reconfigure(line_buffering=True)


def introduce(run_dir: str, rank: int) -> None:
    """Say who this rank is, and have it tell where it is: its stacks on SIGUSR1 and when it crashes (SIGABRT, SIGSEGV),
    its latest collectives when somebody opens the pipe for writing."""
    stacks = open(f"{run_dir}/{rank}.stacks", "w")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    faulthandler.enable(stacks)
    pipe = f"{run_dir}/{rank}.ask"
    if not os.path.exists(pipe):  # it is there after a restart by torchrun
        os.mkfifo(pipe)
    threading.Thread(target=_write_calls_when_asked, args=(pipe, run_dir, rank), daemon=True).start()
    write(f"{run_dir}/{rank}.pid", json.dumps({"pid": os.getpid(), "thread": threading.main_thread().ident}))


def _write_calls_when_asked(pipe: str, run_dir: str, rank: int) -> None:
    """On a thread of its own: the main thread may be stuck in a collective, where no Python signal handler runs."""
    while True:
        with open(pipe) as asked:  # waits for somebody who opens it for writing
            asked.read()
        write_calls(run_dir, rank)


def write_calls(run_dir: str, rank: int, latest: int = 100) -> None:
    """Write down this rank's latest collectives, as torch's flight recorder has them: each has a number in its group,
    the same on every rank, so that whoever reads them can find the first that differs.
    """
    from torch._C import _distributed_c10d as c10d

    nccl = dist.is_initialized() and dist.get_backend() == "nccl"
    dump = getattr(c10d, "_dump_nccl_trace" if nccl else "_dump_fr_trace", None)
    try:
        recorded = pickle.loads(dump(True, True, False)).get("entries", []) if dump else []
        calls = [
            {
                "group": entry["process_group"][0],
                "number": entry["collective_seq_id"],
                "name": entry["profiling_name"].split(":")[-1],
                "shapes": entry["input_sizes"],
                "frames": [(f["filename"], f["line"], f["name"].split(".")[-1]) for f in reversed(entry["frames"])],
            }
            for entry in recorded[-latest:]
            if not entry["is_p2p"]
        ]
    except Exception:  # the recorder is none of torch's public parts: without it a diagnosis knows less, no more
        calls = []
    write(f"{run_dir}/{rank}.calls", json.dumps(calls))


def report(error: BaseException, run_dir: str, rank: int) -> None:
    """Write down the exception that ends this rank: when, what, and where in whose code."""
    write_calls(run_dir, rank)
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        frames.append((error.filename, error.lineno, "<module>"))
    record = {
        "time_ns": time.time_ns(),
        "attempt": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)),
        "type": type(error).__name__,
        "message": _words(error),
        "why": [*getattr(error, "__notes__", ()), *_why(error)],
        "frames": frames,
        "text": "".join(traceback.format_exception(error)),
    }
    write(f"{run_dir}/{rank}.error", json.dumps(record))


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as own:  # an exception that cannot even say what it is
        return f"(its message cannot be read: {type(own).__name__})"


def _why(error: BaseException) -> list[str]:
    """Say what caused an exception (`raise … from`), or what an ExceptionGroup holds, a line each."""
    lines = [f"caused by {type(error.__cause__).__name__}: {_words(error.__cause__)}"] if error.__cause__ else []
    return lines + [f"holds {type(e).__name__}: {_words(e)}" for e in getattr(error, "exceptions", ())]


def _save_result(value: Any, run_dir: str, rank: int) -> None:
    try:
        save(value, f"{run_dir}/{rank}.result")
    except Exception as error:
        raise TypeError(
            f"rank {rank} returned a {type(value).__name__} that cannot travel back to the notebook: {error}"
        ) from None


def save(value: Any, path: str) -> None:
    """Write any Python value, functions defined in a cell included, so that a reader never sees half of it."""
    torch.save(value, path + "~", pickle_module=cloudpickle, pickle_protocol=cloudpickle.DEFAULT_PROTOCOL)
    os.replace(path + "~", path)


def load(path: str, gpu_tensors_to: torch.device) -> Any:
    """Read what `save` wrote. Tensors that were on a GPU arrive on `gpu_tensors_to`, the others on the CPU."""

    def place(storage: torch.UntypedStorage, where: str) -> torch.UntypedStorage:
        return storage if where == "cpu" or gpu_tensors_to.type == "cpu" else storage.to(device=gpu_tensors_to)

    return torch.load(path, weights_only=False, map_location=place)


def write(path: str, text: str) -> None:
    """Write a small file so that a reader never sees half of it."""
    half = Path(f"{path}~{threading.get_ident()}")  # two threads may write the same
    half.write_text(text)
    os.replace(half, path)
