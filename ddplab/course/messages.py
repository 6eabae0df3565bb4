"""What a rank sends and receives, seen below torch.distributed's functions: however a learner has imported them.

And what it is told when the other side does not come, or brings something else.
"""

import datetime
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from ddplab.hardware import device
from ddplab.launcher import launch
from ddplab.worker import log

NAMES = {  # the operations of torch.ops.c10d, and what torch.distributed calls them
    "allreduce_": "all_reduce",
    "reduce_": "reduce",
    "broadcast_": "broadcast",
    "gather_": "gather",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather_into_tensor",
    "scatter_": "scatter",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
}  # a barrier carries nothing, and is not noted


@dataclass(frozen=True)
class Message:
    """A send, a receive or a collective of this rank."""

    name: str  # as in torch.distributed
    other: int | None = None  # the other rank, of a send or recv; None while one from anybody still waits
    first: float | None = None  # of a send, the first number in the tensor
    size: int = 0  # bytes that it carries
    before: tuple[float, ...] = ()  # what the watched tensor held when it was called
    watched: bool = False  # whether it carries the watched tensor itself, or a part of it
    early: bool = False  # a receive into the watched tensor, of which a send is still on its way (seen under gloo only)


def noted_messages(watched: torch.Tensor | None = None) -> list[Message]:
    """From now on, note in this rank each message into the list that is returned.

    A send to a rank that there is not, which would crash the process, raises ValueError; under gloo, which has no
    connection from a rank to itself, so does a send to itself.
    """
    noted: list[Message] = []
    _Noting(noted, watched).__enter__()  # until the process ends
    return noted


def filmed(x: torch.Tensor) -> torch.Tensor:
    """The same tensor, whose `messages` note from now on what this rank sends and receives, and what it held then."""
    x.messages = noted_messages(x)
    return x


@dataclass(frozen=True)
class Sum:
    """An all_reduce that this rank's Python asked for: of what, and whether it goes on while that is on its way."""

    kind: torch.dtype
    numbers: int
    in_background: bool


def noted_sums() -> list[Sum]:
    """From now on, note in this rank each all_reduce, on whichever thread; DDP's own are not among them."""
    noted: list[Sum] = []
    allreduce = dist.ProcessGroup.allreduce

    def noting(group: Any, tensors: Any, *options: Any, **named: Any) -> Any:
        for tensor in tensors if isinstance(tensors, list | tuple) else [tensors]:
            waits = [getattr(it, "asyncOp", None) is False for it in (*options, *named.values())]
            noted.append(Sum(tensor.dtype, tensor.numel(), not any(waits)))
        return allreduce(group, tensors, *options, **named)

    dist.ProcessGroup.allreduce = noting
    return noted


class _Noting(TorchDispatchMode):
    def __init__(self, noted: list[Message], watched: torch.Tensor | None):
        super().__init__()
        self.noted, self.watched = noted, watched
        self.going: list[Any] = []  # what `isend` returns, of the watched tensor
        send, receive = dist.ProcessGroup.send, dist.ProcessGroup.recv_anysource

        def sending(group: Any, tensors: Any, *args: Any, **named: Any) -> Any:
            work = send(group, tensors, *args, **named)
            if self.noted and self.noted[-1].watched and dist.get_backend() == "gloo":  # whose sends end with `wait()`
                self.going.append(work)
            return work

        def receiving(group: Any, *args: Any, **named: Any) -> Any:
            work = receive(group, *args, **named)
            return _FromAnybody(work, self.noted, len(self.noted) - 1)

        dist.ProcessGroup.send, dist.ProcessGroup.recv_anysource = sending, receiving

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = NAMES.get(func.__name__.split(".")[0]) if func.namespace == "c10d" else None
        if name:
            other = first = None
            if name in ("send", "recv"):
                tensors, other = args[0], args[2] if "any" not in func.__name__ else None
                if other is not None and not 0 <= other < dist.get_world_size():
                    raise ValueError(f"there is no rank {other}")
                if other == dist.get_rank() and dist.get_backend() == "gloo":
                    raise ValueError(f"rank {other} {'sends to' if name == 'send' else 'receives from'} itself")
                first = float(tensors[0].flatten()[0]) if name == "send" else None
            before = () if self.watched is None else tuple(self.watched.flatten().tolist())
            carried = args[0][0] if isinstance(args[0], list) else args[0]
            size = carried.nbytes if isinstance(carried, torch.Tensor) else 0
            held = self.watched if isinstance(carried, torch.Tensor) else None
            same = held is not None and carried.untyped_storage().data_ptr() == held.untyped_storage().data_ptr()
            early = same and name == "recv" and not all(work.is_completed() for work in self.going)
            self.noted.append(Message(name, other, first, size, before, same, early))
        return func(*args, **(kwargs or {}))


class _FromAnybody:
    """What torch returns of a receive from anybody: once it has come, who sent it is noted."""

    def __init__(self, work: Any, noted: list[Message], place: int):
        self.work, self.noted, self.place = work, noted, place

    def wait(self, *args: Any) -> Any:
        came = self.work.wait(*args)
        self.noted[self.place] = replace(self.noted[self.place], other=self.work._source_rank())
        return came

    def __getattr__(self, name: str) -> Any:
        return getattr(self.work, name)


def watched(collective: Callable[..., Any], *arguments: Any, ranks: int = 3, **options: Any) -> list[Any]:
    """Launch `collective(x, *arguments)`, and return of each rank what it held before and what came back, or None.

    x: of rank 0 the numbers 1, 2, …, as many as there are ranks; of each further rank ten times as much.
    options: of the launch.
    """
    return launch(_watch, collective, *arguments, nproc_per_node=ranks, quiet=True, **options).results


def _watch(collective: Callable[..., Any], *arguments: Any) -> tuple[list[float], list[float] | None]:
    x = torch.arange(1.0, dist.get_world_size() + 1, device=device()) * 10 ** dist.get_rank()
    before = x.tolist()
    after = collective(x, *arguments)
    return before, None if after is None else after.flatten().tolist()


def two_calls(rank_1: str, port: str, lazily: bool = False) -> None:
    """Make two calls on two ranks, `init_process_group` and an `all_reduce` of a one; rank 0 waits a second.

    rank_1: what it does in their place. port: nobody holds the store, and rank 0 has to open it there; if empty, the
    launcher has it. lazily: gloo connects two ranks only when they have something to send. Each rank logs `call`,
    `seconds`, and what it was told: `says`. When that is an error, rank 0 raises it.
    """
    os.environ["TORCH_GLOO_LAZY_INIT"] = str(int(lazily))
    rank, number, both_begin = int(os.environ["RANK"]), torch.ones(1), rank_1 != "never begins"
    second, long = datetime.timedelta(seconds=1), datetime.timedelta(seconds=30)
    if port:  # nobody holds the store
        del os.environ["TORCHELASTIC_USE_AGENT_STORE"]
        os.environ["MASTER_PORT"] = port
    if rank == 1 and not both_begin:
        return
    call, begun = "init_process_group", time.monotonic()

    def told(says: str) -> None:
        log(call=call, seconds=time.monotonic() - begun, says=says)

    try:
        # what init_process_group does first:
        store, _, ranks = next(dist.rendezvous("env://", timeout=long if both_begin else second))
        if both_begin:  # on a busy machine a process may begin late
            store.set(f"rank {rank} begins", "")
            store.wait(["rank 0 begins", "rank 1 begins"], long)
            begun = time.monotonic()
        limit = second if rank == 0 and rank_1 != "calls both" else long  # rank 1 has patience
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
        told("went through")
        call, begun = "all_reduce", time.monotonic()
        if rank == 1 and rank_1 in ("comes late to all_reduce", "skips all_reduce"):
            time.sleep(3)  # works on
        if rank == 1 and rank_1 == "calls broadcast instead":
            dist.broadcast(number, src=1)
        elif rank == 0 or rank_1 != "skips all_reduce":
            dist.all_reduce(torch.ones(2) if rank == 1 and rank_1 == "brings two numbers" else number)
        told(f"went through, the sum is {number.item():g}")
    except RuntimeError as error:
        told(str(error).split("] ")[-1])
        if rank == 0:
            raise  # which ends the run, and rank 1 with it
