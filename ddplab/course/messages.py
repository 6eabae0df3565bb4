"""What a rank sends and receives, seen below torch.distributed's functions: however a learner has imported them."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

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
}  # a barrier carries nothing, and is not noted


@dataclass(frozen=True)
class Message:
    """A send, a receive or a collective of this rank."""

    name: str  # as in torch.distributed
    other: int | None = None  # the other rank, of a send or recv
    first: float | None = None  # of a send, the first number in the tensor
    size: int = 0  # bytes that it carries
    before: tuple[float, ...] = ()  # what the watched tensor held when it was called


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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = NAMES.get(func.__name__.split(".")[0]) if func.namespace == "c10d" else None
        if name:
            other = first = None
            if name in ("send", "recv"):
                tensors, _, other = args[:3]
                if not 0 <= other < dist.get_world_size():
                    raise ValueError(f"there is no rank {other}")
                if other == dist.get_rank() and dist.get_backend() == "gloo":
                    raise ValueError(f"rank {other} {'sends to' if name == 'send' else 'receives from'} itself")
                first = float(tensors[0].flatten()[0]) if name == "send" else None
            before = () if self.watched is None else tuple(self.watched.flatten().tolist())
            carried = args[0][0] if isinstance(args[0], list) else args[0]
            size = carried.nbytes if isinstance(carried, torch.Tensor) else 0
            self.noted.append(Message(name, other, first, size, before))
        return func(*args, **(kwargs or {}))
