"""The black box of a rank: it runs the pager's script, and writes down what a probe may ask for.

Ten times a second, and at the end, it is written whole into the incident's folder, as JSON; so it outlives the rank.
Nothing of the script is changed: the box looks at its main thread, at the batches that the loader fetches, at the
script's own variables, and at torch's flight recorder.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import importlib
import json
import os
import pickle
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data._utils import fetch

from ddplab.folder import Folder, save, write
from ddplab.vgpu import virtual_gpus

OURS = str(Path(__file__).parent.parent) + os.sep
LOOK, WRITE = 0.025, 0.1  # seconds from a look at the main thread to the next, and from one writing to the next


def run(folder: str, quota: int, ranks: int, env: dict[int, dict[str, str]]) -> None:
    """Run `folder/train.py` as this rank, as `torchrun` would: what it prints goes to `folder/terminal`.

    env: rank → what its environment has besides. Never returns: the process ends when the script does, and the others
    see its connections closed.
    """
    rank, script = int(os.environ["RANK"]), f"{folder}/train.py"
    os.environ.update(env.get(rank, {}))
    os.chdir(folder)
    terminal = os.open("terminal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(terminal, 1), os.dup2(terminal, 2)
    faulthandler.enable(open(f"crash{rank}", "w"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (quota, quota))
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL":
        _survive_detail()
    virtual_gpus(ranks).on()
    box, code = Box(script, rank), 0
    sys.modules["__main__"] = box.module  # what pickles the script's classes looks for them there
    box.start()
    try:
        exec(compile(Path(script).read_text(), script, "exec"), box.variables)
        sys.stdout.flush()
        box.end("returned")
    except BaseException as error:
        theirs = _without_ours(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(theirs), theirs)
        box.end("raised", [*traceback.extract_tb(theirs)][::-1])
        code = 1
    if code == 0:
        save(None, Folder.of_this_rank().of(rank, "result"))  # for launch: it is well, and not gone
    os._exit(code)


def _survive_detail() -> None:
    """Make what lesson 6.3 does against a crash of torch 2.13: DDP with gloo and DETAIL."""
    importlib.import_module("torch._dynamo")
    begin = dist.init_process_group
    dist.init_process_group = lambda backend, **options: begin(backend.replace("gloo", "cpu:gloo,cuda:gloo"), **options)


def _without_ours(frames: TracebackType | None) -> TracebackType | None:
    """Leave out of a traceback what is ours: this file, and the virtual GPUs."""
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(OURS):
        frames = frames.tb_next
    if frames is not None:
        frames.tb_next = _without_ours(frames.tb_next)
    return frames


class Box:
    """What is known of a rank, and the thread that writes it down."""

    def __init__(self, script: str, rank: int):
        self.script, self.rank = script, rank
        self.module = ModuleType("__main__")
        self.module.__file__ = script
        self.variables: dict[str, Any] = vars(self.module)
        self.known: dict[str, Any] = {"pid": os.getpid(), "thread": threading.get_ident(), "ended": "", "at": 0.0}
        self.known |= {"still": 0, "slept": 0.0, "rows": {}, "memory": [], "weights": [], "calls": []}
        self.looks: collections.Counter[int] = collections.Counter()
        self._place: Any = None
        self._before: torch.Tensor | None = None
        self._brought: dict[int, float] = {}  # number of a call → the one number that it brought
        self._coming: list[Any] = [0]  # the script's own latest call, which the recorder may not have yet
        self._main = threading.get_ident()
        self._lock = threading.Lock()
        self._hook()

    def start(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    def end(self, how: str, frames: list[traceback.FrameSummary] | None = None) -> None:
        """Write down how the script has ended; nothing is written after that."""
        self._note_epoch()
        with self._lock:
            self.known |= {"ended": how, "at": time.time()}
            if frames is not None:
                self.known["stack"] = [(f.filename, f.lineno, f.name) for f in frames]
            self._write()

    def _hook(self) -> None:
        real_fetch, real_sleep = fetch._MapDatasetFetcher.fetch, time.sleep

        def fetched(fetcher: Any, rows: Any) -> Any:
            epoch = str(self.variables.get("epoch", 0))
            if epoch not in self.known["rows"]:
                self._note_epoch()
            self.known["rows"].setdefault(epoch, []).append([int(row) for row in rows])
            return real_fetch(fetcher, rows)

        def sleep(seconds: float) -> None:
            if threading.get_ident() == self._main:
                self.known["slept"] += seconds
            real_sleep(seconds)

        fetch._MapDatasetFetcher.fetch, time.sleep, self._sleep = fetched, sleep, real_sleep
        for name in ("all_reduce", "barrier"):
            setattr(dist, name, self._noted(getattr(dist, name)))

    def _noted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Write the box before a collective of the script's own: gloo may end the process in it."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._read_recorder()
                number, shapes = len(self.known["calls"]) + 1, [list(it.shape) for it in args[:1]]
                if args and args[0].numel() == 1:  # the recorder keeps shapes, and no values
                    self._brought[number] = args[0].item()
                line = sys._getframe(1).f_lineno
                self._coming = [number, call.__name__, shapes, line, self._brought.get(number)]
                self._write()
            return call(*args, **kwargs)

        return noted

    def _note_epoch(self) -> None:
        """Note, before an epoch and at the end, what the GPUs hold, and how far the weights have moved."""
        self.known["memory"].append([torch.vgpu.memory_allocated(n) for n in range(torch.vgpu.device_count())])
        if not isinstance(net := self.variables.get("net"), torch.nn.Module):
            return
        flat = torch.cat([p.detach().cpu().flatten() for p in net.parameters()])
        grads = [p.grad.cpu().flatten() for p in net.parameters() if p.grad is not None]
        moved = 0.0 if self._before is None else float((flat - self._before).norm())
        self.known["weights"].append((float(flat.norm()), moved, float(torch.cat(grads).norm()) if grads else 0.0))
        self._before = flat

    # ---------------------------------------------------------- on the thread of its own

    def _watch(self) -> None:
        written = 0.0
        while not self.known["ended"]:
            self._sleep(LOOK)
            self._look(sys._current_frames().get(self._main))
            if time.monotonic() - written > WRITE:
                written = time.monotonic()
                with self._lock, contextlib.suppress(RuntimeError):  # the main thread has changed a list meanwhile
                    if not self.known["ended"]:
                        self._write()

    def _look(self, frame: FrameType | None) -> None:
        stack, at = [], frame
        while frame is not None:
            if frame.f_code in (Box._write.__code__, Box._read_recorder.__code__, Box._note_epoch.__code__):
                stack = []  # the box's own doing, and none of the script's
            if not frame.f_code.co_filename.startswith(OURS):
                stack.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            if frame.f_code.co_filename == self.script and frame.f_code.co_name == "<module>":
                break  # below it is what runs the script
            frame = frame.f_back
        own = next((line for file, line, _ in stack if file == self.script), None)
        if own is None:
            return
        self.known["stack"] = stack
        self.looks[own] += 1
        place = (stack, at and at.f_lasti)
        self.known["still"] = self.known["still"] + 1 if place == self._place else 0
        self._place = place

    def _read_recorder(self) -> None:
        dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace", None)
        with contextlib.suppress(Exception):  # the recorder is none of torch's public parts
            self.known["calls"] = [self._call(entry) for entry in pickle.loads(dump()).get("entries", [])]

    def _write(self) -> None:
        self._read_recorder()
        if self._coming[0] > len(self.known["calls"]):
            self.known["calls"].append(self._coming)
        self.known["peak"] = [torch.vgpu.max_memory_allocated(n) for n in range(torch.vgpu.device_count())]
        write(f"box{self.rank}", json.dumps(self.known | {"looks": self.looks.most_common()}))

    def _call(self, entry: dict[str, Any]) -> list[Any]:
        line = next((f["line"] for f in entry["frames"] if f["filename"] == self.script), 0)
        shapes = [list(shape) for shape in entry["input_sizes"]]
        number = entry["collective_seq_id"]
        return [number, entry["profiling_name"].split(":")[-1], shapes, line, self._brought.get(number)]
