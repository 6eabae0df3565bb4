"""What the processes of a rehearsal write down: bytes held, in one shared map; the rest when they end."""

import faulthandler
import fcntl
import json
import os
import signal
import struct
import sys
import time
import traceback
import weakref
from collections import Counter
from pathlib import Path

import torch

from ddplab.vgpu import meter
from ddplab.vgpu.meter import LARGE, alive, called
from ddplab.vgpu.tensor import VTensor

from . import KINDS
from .frames import script, stack
from .holders import by_kind
from .report import Book, readable
from .weights import Weights

LARGEST = 5  # stacks that are kept of what is held at the peak
GRACE = 2  # seconds in which torchrun stops a rank that waits for ever


class Books(Book):
    """The book as one process writes it."""

    made = staticmethod(stack)  # by which calls of a script a large piece of memory is

    def __init__(self, settings: dict):
        super().__init__(settings["book"], settings["gpus"])
        self.capacity, self.kind, self.pid, self.row = settings["memory"], KINDS[settings["kind"]], 0, 0
        self.seen: list[int] = []  # see visible(); from CUDA's first use on it stays
        self.most: dict[int, int] = {}  # GPU -> most bytes that this process has held
        self.peaks: dict[str, tuple] = {}  # device -> about its peak: bytes, stack of the newest, stacks of the largest
        self.loads: dict[str, tuple[str, int, str]] = {}  # device -> where it was loaded onto: file, line, how not to
        self.lines: Counter = Counter()  # (file, line, what): copies to the CPU, each of which stops a GPU's queue
        self.lines_now: set = set()  # those since the last optimizer step
        self.turn: weakref.WeakSet = weakref.WeakSet()  # the optimizers that have made the step
        self.between: Counter = Counter()  # of each line: before, between and after how many steps it copied
        self.kinds: dict[str, dict[str, int]] = {}  # device -> kind -> most bytes
        self.skipped: set[str] = set()
        self.past: dict[tuple[str, int], None] = {}  # where the module that DDP wraps was called, past DDP: file, line
        self.weights = Weights()
        self.steps, self.error, self.waits = 0, None, {}

    def _mine(self) -> int:  # the offset of this process's row, taken on first use, also after a fork
        if self.pid != os.getpid():
            with open(self.path, "r+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self.pid, self.row = os.getpid(), len(self.rows()) * self.width
                self.most.clear()  # those of the process that this one was forked from
                struct.pack_into("2q", self.map, self.row, self.pid, int(os.environ.get("RANK", -1)))
            self.stood = open(f"{self.path}.{self.pid}.stood", "w")  # for as long as a signal may come
            faulthandler.register(signal.SIGTERM, file=self.stood, all_threads=False, chain=True)
        return self.row

    def ranked(self, rank: int) -> None:
        """This process is that rank."""
        struct.pack_into("q", self.map, self._mine() + 8, rank)

    def visible(self) -> list[int]:
        """The machine's GPUs that stand behind this process's cuda:0, cuda:1, ...: CUDA_VISIBLE_DEVICES names them."""
        if self.seen:
            return self.seen
        names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(self.gpus))))
        found = [name.strip() for name in names.split(",") if name.strip() not in ("", "-1")][: self.gpus]
        there = all(name.isdigit() and int(name) < self.gpus for name in found)
        return [int(name) for name in found] if there else [*range(len(found))]  # of a larger machine: its first ones

    def _machines(self, gpu: int) -> int:
        visible = self.visible()
        return visible[gpu] if gpu < len(visible) else gpu

    def _named(self, name: str) -> str:  # a place as the meter writes it, as the machine's
        kind, _, gpu = name.partition(":")
        return called(self._machines(int(gpu))) if kind == "cuda" else name

    def admit(self, gpu: int, held: int, more: int) -> None:
        """Write down what this process holds from now on. Raises torch.OutOfMemoryError where the GPU is full."""
        mine, gpu = gpu, self._machines(gpu)
        if self.capacity and more > 0:
            rows = [(pid, values[gpu][0]) for pid, _, values in self.rows()]
            used = sum(n for _, n in rows)
            if used + more > self.capacity:  # c10/cuda/CUDACachingAllocator.cpp
                for (other, kind), nbytes in by_kind().items() if self.steps == 0 else ():
                    self.kinds.setdefault(called(self._machines(other)), {})[f"{kind} 0"] = nbytes
                others = "".join(
                    f"Process {pid} has {readable(n)} memory in use. " for pid, n in rows if n and pid != os.getpid()
                )
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {readable(more)}. GPU {mine} has a total capacity of "
                    f"{readable(self.capacity)} of which {readable(max(0, self.capacity - used))} is free. {others}"
                    f"Including non-PyTorch memory, this process has {readable(held)} memory in use. Of the allocated "
                    f"memory {readable(held)} is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
                    "unallocated. (A virtual GPU: what tensors hold, no context, no fragments.)"
                )
        at, now = self._mine() + 24 + 16 * gpu, held + more
        struct.pack_into("q", self.map, at, now)
        if now > self.most.get(gpu, 0):
            self.most[gpu] = now
            struct.pack_into("q", self.map, at + 8, now)
            if now > 1.01 * self.peaks.get(called(gpu), (0,))[0] and (made := stack()):
                large = Counter({made: more} if more >= LARGE else ())
                for block in [*alive]:
                    if block.gpu == mine and block.made:
                        large[block.made] += block.nbytes
                self.peaks[called(gpu)] = now, made, large.most_common(LARGEST)

    def loaded(self, gpu: int) -> None:
        """Note the line of a script that loads onto a GPU."""
        if frame := script():
            sent = any(f.f_code.co_name == "_tensor_to_object" for f, _ in traceback.walk_stack(None))
            how = "send tensors.cpu()" if sent else "map_location says where to"
            self.loads[called(self._machines(gpu))] = frame.f_code.co_filename, frame.f_lineno, how

    def passed_by(self) -> None:
        """Note the line of a script that calls, in training, the module that DDP wraps."""
        if frame := script():
            self.past[frame.f_code.co_filename, frame.f_lineno] = None

    def copied(self, cause: str, source, target) -> None:
        """Note the line of a script that copies from a GPU to the CPU."""
        if target is None and isinstance(source, int):
            if frame := script():
                line = frame.f_code.co_filename, frame.f_lineno, "copy" if cause == ".to" else cause
                self.lines[line] += 1
                self.lines_now.add(line)

    def stepped(self, optimizer, *_) -> None:
        """After an optimizer's step: count it, once for all in turn; at the first two, note what holds how much.

        A GAN has two optimizers, ZeRO one of its own: the next step begins where one of them comes again.
        """
        if optimizer in self.turn or not self.turn:
            self.steps += 1
            self.between.update(self.lines_now)
            self.lines_now.clear()
            self.turn.clear()
        others = [*self.turn]
        self.turn.add(optimizer)
        if self.steps > 2:
            return
        told = {id(p) for other in others for group in other.param_groups for p in group["params"]}
        for group in optimizer.param_groups:
            for p in group["params"]:
                if type(p) is VTensor and id(p) not in told:
                    states = [s for s in optimizer.state.get(p, {}).values() if type(s) is VTensor]
                    for kind, tensors in (("parameters", [p]), ("gradients", [p.grad]), ("optimizer state", states)):
                        self.keep(p.gpu, f"{kind} {self.steps}", sum(t.nbytes for t in tensors if t is not None))

    def keep(self, gpu: int, kind: str, nbytes: int) -> None:
        """That many bytes more are of this kind."""
        kinds = self.kinds.setdefault(called(self._machines(gpu)), {})
        kinds[kind] = kinds.get(kind, 0) + nbytes

    def died(self, kind, error, trace, quiet=False) -> None:
        """sys.excepthook. A rank that lost its peer hangs, as NCCL would have it, until torchrun stops it."""
        from ddplab.diagnosis import _VICTIM, learners, location, source_of, waits_in

        from .nccl import ProcessGroupNCCL
        from .trail import DifferentCollectives

        if isinstance(error, DifferentCollectives):
            self.waits = error.waits
            self.close()
            if not quiet:
                _say(str(error))
                sys.stdout.flush()
                os._exit(1)  # an orderly end would wait for what gloo has begun
            return None
        frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(trace)]
        own = learners(frames)
        at = f"{location(own[-1], {})}: {source_of(own[-1])}" if own else ""
        nccl = isinstance(torch.distributed.group.WORLD, ProcessGroupNCCL)  # gloo's do raise
        if not (nccl and issubclass(kind, RuntimeError) and _VICTIM.search(str(error))):
            if own and kind not in _PARENTS:
                self._mine()  # also of a process that has held nothing
            self.error = {"what": f"{kind.__name__}: {error}", "where": at}
            return None if quiet else sys.__excepthook__(kind, error, trace)
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else os.environ.get("RANK", "?")
        where = f"in {waits_in(frames) or 'a collective'} at {at}"
        self.waits = {f"rank {rank}": where}
        self.close()
        _say(
            f"rank {rank} waits {where}\nfor a rank that is gone. On GPUs it hangs here: until torchrun stops it, "
            "or NCCL's timeout."
        )
        while any(rank >= 0 and pid != self.pid and self._goes_on(pid) for pid, rank, _ in self.rows()):
            time.sleep(0.1)
        time.sleep(GRACE)
        _say(
            "nobody is left who could wake it. NCCL's watchdog ends it after its timeout, 10 minutes if "
            "the script sets none: 'Watchdog caught collective operation timeout'. Here it ends now."
        )

    def stuck(self, waits: dict[str, str]) -> None:
        """These ranks wait for each other for ever: say where, and end."""
        self.waits = waits
        self.close()
        each = "".join(f"\n  {rank} waits {where}" for rank, where in waits.items())
        _say(
            "ranks wait for each other for ever. On GPUs the first message between two ranks does, until NCCL's "
            f"timeout; a later one may only stay in the queue.{each}"
        )
        os._exit(1)

    def _goes_on(self, pid: int) -> bool:
        """Whether a process lives, and neither waits nor has ended."""
        at = next(i for i, (other, *_) in enumerate(self.rows()) if other == pid) * self.width
        if struct.unpack_from("q", self.map, at + 16)[0]:
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    def leave(self, status=None) -> None:
        """sys.exit. What hydra's main and its like catch, say themselves and end with, is noted here."""
        kind, error, trace = sys.exc_info()
        if isinstance(error, Exception) and status not in (None, 0) and self.error is None and not self.waits:
            self.died(kind, error, trace, quiet=True)
        raise SystemExit(status)

    def guarded(self, function):
        """The same function; if it raises, that is noted as at the end of a script. For ranks that a script starts."""

        def run(*args, **kwargs):
            try:
                return function(*args, **kwargs)
            except Exception as error:
                if self.error is None and not self.waits:
                    self.died(type(error), error, error.__traceback__, quiet=True)
                if self.waits:
                    waits = ", ".join(f"{rank} {where}" for rank, where in self.waits.items())
                    ended = f"Watchdog caught collective operation timeout: {waits}"
                    raise torch.distributed.DistBackendError(ended) from None
                raise

        return run

    def close(self) -> None:
        """Write down what the report needs; this process holds nothing any more, its peak stays in the map."""
        self.weights.compare()
        if self.pid != os.getpid():
            return
        struct.pack_into("q", self.map, self.row + 16, 1)
        for gpu in range(self.gpus):
            struct.pack_into("q", self.map, self.row + 24 + 16 * gpu, 0)
        self.between.update(self.lines_now)
        lines = [(*line, n, self.between[line]) for line, n in self.lines.items()]
        names = ("kinds", "peaks", "loads", "steps", "error", "waits")
        data = {name: getattr(self, name) for name in names} | {"lines": lines}
        data["rows"] = [(cause, self._named(a), self._named(b), *counts) for cause, a, b, *counts in meter.rows]
        data |= {"skipped": sorted(self.skipped), "past": [*self.past]}
        data |= {"digests": self.weights.digests, "left_out": sorted(self.weights.left_out)}
        Path(f"{self.path}.{self.pid}.json").write_text(json.dumps(data))


# What a process says of one that it has started, and that has spoken for itself.
_PARENTS = torch.multiprocessing.ProcessRaisedException, torch.multiprocessing.ProcessExitedException


def _say(text: str) -> None:  # torch keeps what an excepthook prints until it has ended
    print(f"[rehearsal] {text}", file=sys.__stderr__, flush=True)
