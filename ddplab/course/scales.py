"""Scales under every message that a rank sends with `dist.all_reduce`, as a communication hook of DDP does."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


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
