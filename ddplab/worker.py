"""What runs inside a rank: its environment, its process group, `log`, and the way back for what it returns.

A rank and its notebook share one folder of plain files (see `folder`), so nothing is lost when the rank dies.
Nothing of the notebook side (widgets, figures) is imported here.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import io
import json
import linecache
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, NoReturn

import cloudpickle
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d  # nothing public reads the flight recorder in the process itself

from ddplab.folder import Folder, load, save
from ddplab.hardware import cpu_cores, device
from ddplab.pointer import pointing

# ------------------------------------------------------------------ what learners call inside a rank

_row_count = 0
_log_file: int | None = None


@pointing
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
    row = {"step": _row_count, "time": time.monotonic()}  # one clock for all processes, and nobody sets it back
    for name, value in values.items():
        if name in ("rank", "time"):
            raise TypeError(f"log() fills in {name!r} itself; give your value another name")
        row[name] = value if type(value) in (int, float, str, bool, type(None)) else _number(name, value)
    _row_count += 1
    if _log_file is None:
        if (folder := Folder.of_this_rank()) is None:
            columns = "  ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items() if k != "time"
            )
            # the line in one write, so that ranks in one terminal don't tear each other's
            print(f"[rank {os.environ.get('RANK', 0)}] {columns}\n", end="", flush=True)
            return
        _log_file = folder.append_to(int(os.environ["RANK"]), "metrics")
    line = json.dumps(row).encode() + b"\n"
    written = os.write(_log_file, line)  # one write: a row is there whole, or it was the last that there is room for
    if written < len(line):
        os.write(_log_file, line[written:])  # raises, and says whether the disk or a limit is at its end


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
    here = device()
    if here.type == "cuda" and torch.cuda.is_initialized():  # a rank on the CPU may have looked at a GPU
        torch.cuda.synchronize(here)
    dist.barrier(device_ids=[here.index] if dist.get_backend() == "nccl" else None)  # else NCCL's warns of a guess
    time.sleep(0.1)
    dist.destroy_process_group()


# ------------------------------------------------------------------ the life of a rank under launch()


class Order(NamedTuple):
    """What a process is told when it becomes a rank: which one, of which run, and how things stand in the notebook."""

    folder: Folder
    env: dict[str, str]  # all of it, less RANK and LOCAL_RANK
    path: list[str]  # sys.path
    argv: list[str]
    cwd: str
    init: bool
    backend: str
    prepare: Callable[[], Callable[[], None]] | None = None  # called before torch is used; returns what ends it
    leased: bool = False  # the file of the run's lease follows (see `lease`)
    rank: int = 0


RETURNED = "returned"  # what a rank says when its result is on disk
LEAVE = None  # what it is told then; a process that still waits for an order leaves too


def stand_by(_: int, orders: Connection) -> None:
    """Wait, as a process that is no rank yet, for an order; carry it out and leave. Leaves too when the kernel ends."""
    os.setsid()  # a group of its own: this rank and whatever it starts can be ended together
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook decides what an interrupt means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        # a data loader's workers start as in any script, and so find what a cell has defined
        multiprocessing.set_start_method("fork", force=True)
    with contextlib.suppress(Exception):  # if it fails, let it fail in the learner's code, where it is told
        touch()
    torch.default_generator.seed()  # forks of one forkserver would all draw the same numbers; torchrun's ranks do not
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    try:
        with contextlib.suppress(EOFError):  # the notebook is gone
            if (order := orders.recv()) is not LEAVE:
                if order.leased:
                    reduction.recv_handle(orders)  # stays open: what this rank uses is not free before it has ended
                main(order, orders)
        leave(0)
    finally:
        os._exit(1)  # whatever goes wrong outside of the learner's function


def touch(in_forkserver: bool = False) -> None:
    """Do in small, and for nothing, what nearly every rank does.

    A fork shares its parent's memory until one of the two writes to a page, which is then copied. Those copies take
    more time than the work itself; here they are made while nobody waits for them. In the forkserver it does once for
    all what torch puts off until something is used first, which is as much again; no backward pass there, which may
    start threads, and a process is forked without its threads. The process group and the GPUs are left to the rank.
    """
    packed = io.BytesIO()
    torch.save((_number, (), {}), packed, pickle_module=cloudpickle)
    torch.load(io.BytesIO(packed.getvalue()), weights_only=False)
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loss = net(torch.randn(8, 8)).pow(2).mean()
    if not torch.backends.cuda.is_built():  # both ask CUDA for its devices, and it is too early to choose
        if in_forkserver:
            for parameter in net.parameters():
                parameter.grad = torch.zeros_like(parameter)
        else:
            loss.backward()
        optimizer.step()
    optimizer.zero_grad()
    # torch.manual_seed keeps the text of every line that led to it, thrice, for accelerators that may come to be used
    for module in (torch.random, torch.cuda, torch.cuda.random, torch.xpu, torch.xpu.random, torch.mtia):
        linecache.getlines(module.__file__)
    traceback.format_stack()


def main(order: Order, orders: Connection) -> None:
    """Run the function that `launch` saved as one rank, then leave without tearing torch down."""
    folder, env, rank, backend = order.folder, order.env, order.rank, order.backend
    os.environ.clear()  # the forkserver's environment is as old as the forkserver
    os.environ.update(env, RANK=str(rank), LOCAL_RANK=str(rank))
    threading.Thread(target=_end_with_notebook, args=(folder,), daemon=True).start()
    redirect_output(folder, rank)
    introduce(folder, rank)
    close = None
    try:
        if order.prepare is not None:
            close = order.prepare()
        if torch.cuda.is_initialized():
            raise RuntimeError("CUDA was used before the rank began; please report this as a bug of ddplab")
        torch.set_num_threads(max(1, cpu_cores() // int(env["LOCAL_WORLD_SIZE"])))
        here = device()
        if here.type == "cuda":
            torch.cuda.set_device(here)
        os.chdir(order.cwd)
        sys.path[:], sys.argv[:] = order.path, order.argv
        dist.set_debug_level_from_env()  # torch read TORCH_DISTRIBUTED_DEBUG when the forkserver imported it
        _keep_process_groups()
        fn, args, kwargs = load(folder.file("fn"), here)
        if order.init:
            if backend == "gloo" and dist.get_debug_level() == dist.DebugLevel.DETAIL:
                # At a bare "gloo" DDP's logger in torch 2.13 crashes (lesson 6.3 shows it). It does not where torch
                # leaves the default backend open: devices are named, and torch._dynamo has registered a backend more.
                importlib.import_module("torch._dynamo")
                backend = "cpu:gloo,cuda:gloo"
            dist.init_process_group(backend, device_id=here if backend == "nccl" else None)
            dist.barrier()  # everybody is connected: a rank that fails at once does not surprise the others
        _save_result(fn(*args, **kwargs), folder, rank)
        _flush()
        if close is not None:
            close()
    except BaseException as error:
        report(error, folder, rank)
        if close is not None:
            close()
        leave(1)
    with contextlib.suppress(EOFError, OSError):  # the notebook is gone
        orders.send(RETURNED)
        orders.recv()  # nobody leaves before every rank has returned: a last collective would meet a closed connection
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


def _end_with_notebook(folder: Folder) -> None:
    """Outlive the notebook's kernel by a moment only: the sentinel becomes ready when it is gone, killed or not."""
    wait([multiprocessing.parent_process().sentinel])
    folder.remove()
    os.killpg(0, signal.SIGKILL)


def leave(code: int) -> NoReturn:
    """End this process now. Torch's destructors do not run: in them, gloo's threads and Python's lock can deadlock."""
    for child in multiprocessing.active_children():  # data loader workers that are still about
        child.terminate()
    _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the learner may have closed it, or put something else in its place
            stream.flush()


# ------------------------------------------------------------------ the files a rank leaves (script.py uses them too)


def redirect_output(folder: Folder, rank: int) -> None:
    """Send everything this process prints, from Python or from C++, to the rank's own file."""
    file = folder.append_to(rank, "output")
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    sys.stdout.reconfigure(line_buffering=True)


def introduce(folder: Folder, rank: int) -> None:
    """Say who this rank is, and have it tell where it is: its stacks on SIGUSR1 and when it crashes (SIGABRT, SIGSEGV),
    its latest collectives when somebody opens the pipe for writing."""
    if limit := os.environ.get("DDPLAB_WRITE_LIMIT"):  # an exercise is being checked, and may log without end
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    stacks = open(folder.of(rank, "stacks"), "w")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    faulthandler.enable(stacks)
    pipe = folder.pipe(rank)
    threading.Thread(target=_write_calls_when_asked, args=(pipe, folder, rank), daemon=True).start()
    folder.note(rank, "pid", {"pid": os.getpid(), "thread": threading.main_thread().ident})


def _write_calls_when_asked(pipe: str, folder: Folder, rank: int) -> None:
    """On a thread of its own: the main thread may be stuck in a collective, where no Python signal handler runs."""
    while True:
        with open(pipe) as asked:  # waits for somebody who opens it for writing
            asked.read()
        write_calls(folder, rank)


def write_calls(folder: Folder, rank: int, latest: int = 100) -> None:
    """Write down this rank's latest collectives, as torch's flight recorder has them: each has a number in its group,
    the same on every rank, so that whoever reads them can find the first that differs.
    """
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
    folder.note(rank, "calls", calls)


def report(error: BaseException, folder: Folder, rank: int) -> None:
    """Write down the exception that ends this rank: when, what, and where in whose code."""
    write_calls(folder, rank)
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        frames.append((error.filename, error.lineno, "<module>"))
    record = {
        "time_ns": time.monotonic_ns(),
        "attempt": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)),
        "type": type(error).__name__,
        "message": _words(error),
        "why": [*getattr(error, "__notes__", ()), *_why(error)],
        "frames": frames,
        "text": "".join(traceback.format_exception(error)),
    }
    folder.note(rank, "error", record)


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as own:  # an exception that cannot even say what it is
        return f"(its message cannot be read: {type(own).__name__})"


def _why(error: BaseException) -> list[str]:
    """Say what caused an exception (`raise … from`), or what an ExceptionGroup holds, a line each."""
    lines = [f"caused by {type(error.__cause__).__name__}: {_words(error.__cause__)}"] if error.__cause__ else []
    return lines + [f"holds {type(e).__name__}: {_words(e)}" for e in getattr(error, "exceptions", ())]


def _save_result(value: Any, folder: Folder, rank: int) -> None:
    try:
        save(value, folder.of(rank, "result"))
    except OSError:
        raise
    except Exception as error:
        raise TypeError(
            f"rank {rank} returned a {type(value).__name__} that cannot travel back to the notebook: {error}"
        ) from None
