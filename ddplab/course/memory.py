"""What training holds on this rank, in bytes: tensors counted one by one. Of a sharded tensor, only this rank's part.

`ddplab.course.plan.memory` calculates the same from the number of parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer


class Held(NamedTuple):
    """Bytes that stay from one step to the next."""

    weights: int
    gradients: int
    state: int


def held(net: nn.Module, optimizer: Optimizer) -> Held:
    """Count the bytes of the weights, of their gradients, and of what the optimiser keeps for them.

    Step counters, single numbers, are left out. Of a ZeroRedundancyOptimizer it is this rank's own share.
    """
    weights = list(net.parameters())
    gradients = [p.grad for p in weights if p.grad is not None]
    own = getattr(optimizer, "optim", optimizer)  # where ZeroRedundancyOptimizer keeps this rank's optimiser
    state = [t for values in own.state.values() for t in values.values() if isinstance(t, Tensor) and t.dim()]
    return Held(*(sum(_local(t).nbytes for t in part) for part in (weights, gradients, state)))


def whole_weights(net: nn.Module) -> Tensor:
    """The weights of a network as one vector. Those that are cut are put together: all ranks have to call it."""
    return torch.cat([(p.full_tensor() if _sharded(p) else p).detach().flatten() for p in net.parameters()])


def watch_buckets(net: nn.Module) -> Callable[[], int]:
    """Watch the buckets in which DDP sends gradients; call the result after a step: how many bytes lie beside them.

    A bucket whose memory is that of the gradients themselves (`gradient_as_bucket_view=True`) counts nothing, nor does
    a network that is not in DDP. The gradients are averaged as without watching.
    """
    seen: dict[int, Tensor] = {}

    def hook(group, bucket):  # DDP refuses annotations that are text
        if bucket.index() == 0:
            seen.clear()  # DDP lays its buckets out anew after its first step
        seen[bucket.index()] = bucket.buffer()
        return allreduce_hook(group, bucket)

    def beside() -> int:
        if not seen:
            return 0
        of_gradients = {p.grad.untyped_storage().data_ptr() for p in net.parameters() if p.grad is not None}
        return sum(t.nbytes for t in seen.values() if t.untyped_storage().data_ptr() not in of_gradients)

    if isinstance(net, DistributedDataParallel):
        net.register_comm_hook(None, hook)
    return beside


def activations(net: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Count the bytes that `forward()` leaves for `backward()`; weights and buffers of `net` are left out."""
    known, kept = {t.data_ptr() for t in (*net.parameters(), *net.buffers())}, {}

    def note(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in known:
            kept[tensor.data_ptr()] = max(tensor.nbytes, kept.get(tensor.data_ptr(), 0))  # once, if kept twice
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        result = forward()  # held on to until all is counted: no other tensor may take the same place
    del result
    return sum(kept.values())


def _sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if _sharded(tensor) else tensor
