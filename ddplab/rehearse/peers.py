"""torch.cuda.nccl: collectives among the GPUs of one process, as scripts from before torch.distributed call them.

Its Python is torch's own; what that calls in C++ is here, and refuses in the words of torch/csrc/cuda/nccl.cpp.
"""

import os

import torch

from ddplab.vgpu import meter
from ddplab.vgpu.tensor import VTensor, raw

__all__ = ["patches"]

_REDUCED = [torch.sum, torch.prod, torch.amax, torch.amin, torch.mean]  # by the number of an ncclRedOp_t


def _exchange(inputs, outputs, made) -> None:
    """Write into each output what `made` makes of all inputs, which it gets as rows, and of the output's turn."""
    tensors = [*inputs, *outputs]
    if any(type(t) is not VTensor or t.is_sparse for t in tensors):
        raise RuntimeError("input and output elements have to be cuda dense Tensors")
    if not all(t.is_contiguous() for t in tensors):
        raise RuntimeError("all inputs and outputs have to be contiguous")
    if len({t.numel() for t in inputs}) > 1:
        raise RuntimeError("all inputs must have the same number of elements")
    if len({t.gpu for t in inputs}) < len(inputs):
        raise RuntimeError("inputs must be on unique devices")
    for t in inputs:
        meter.count("torch.cuda.nccl", t.gpu, "peers", t.nbytes)
    with raw():
        rows = torch.stack([t.detach().flatten() for t in inputs])
        for turn, out in enumerate(outputs):
            out.detach().view(-1).copy_(made(rows, turn))


def _init_rank(*_):
    raise NotImplementedError("torch.cuda.nccl.init_rank is not rehearsed: torch.distributed connects processes")


def patches() -> list[tuple[object, str, object]]:
    """What a CPU build lacks: (where, name, what it is)."""
    table = dict(
        all_reduce=lambda ins, outs, op, *_: _exchange(ins, outs, lambda rows, _: _REDUCED[op](rows, 0)),
        reduce=lambda ins, out, root, op, *_: _exchange(ins, [out], lambda rows, _: _REDUCED[op](rows, 0)),
        broadcast=lambda ins, root, *_: _exchange(ins, ins, lambda rows, _: rows[root]),
        all_gather=lambda ins, outs, *_: _exchange(ins, outs, lambda rows, _: rows.flatten()),
        reduce_scatter=lambda ins, outs, op, *_: _exchange(
            ins, outs, lambda rows, turn: _REDUCED[op](rows, 0).chunk(len(outs))[turn]
        ),
        unique_id=lambda: os.urandom(128),  # NCCL_UNIQUE_ID_BYTES
        init_rank=_init_rank,
    )
    return [
        *((torch._C, f"_nccl_{name}", function) for name, function in table.items()),
        (torch.cuda.nccl, "version", lambda: (2, 29, 7)),
    ]
