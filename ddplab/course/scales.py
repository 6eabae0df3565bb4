"""Scales under every message that a rank sends with `dist.all_reduce`, as a communication hook of DDP does."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torchs


def weigh() -> list[int]:
    """Put scales under `dist.all_reduce` in this process. Returns a list to which each call adds its tensor's bytes.

    Call it in a rank, once: the scales stay until the process ends, and a rank's process ends with its launch.
    """
    sent, all_reduce = [], dist.all_reduce

    def weighed(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        sent.append(tensor.nbytes)
        return all_reduce(tensor, *args, **options)

    dist.all_reduce = weighed
    return sent


def power_sgd(state, bucket):  # without type hints: DDP reads those of a hook, and takes no text for a type
    """torch's `powerSGD_hook`, for ranks on the CPU too: on a machine with GPUs it would wait for one there.

    Register it in a rank: what it tells torch of GPUs holds until the process ends.
    """
    if bucket.buffer().device.type == "cpu":
        torch.cuda.is_available = lambda: False
    return torchs.powerSGD_hook(state, bucket)
