"""The bill of `nn.DataParallel`: what a row costs in bytes and operations, and what a ring of GPUs moves instead."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ddplab.vgpu import Meter, virtual_gpus

Moved = list[tuple[str, str, int]]  # from where, to where, how many bytes

ROADS = (("replicate", "0→1"), ("reduce", "1→0"), ("scatter", "0→1"), ("gather", "1→0"))
FOR_ROWS = ("scatter", "gather")


def for_rows(make: Callable[[], nn.Module], row: Sequence[int] | torch.Tensor) -> tuple[int, float, float]:
    """Return of a step on two GPUs: bytes for the model, bytes for each row, operations for each row.

    make: makes the model. row: the shape of one row, or one row where it is not of floats, such as token ids. Bytes are
        float32's, counted on virtual GPUs; operations are those of matrices and convolutions. Of what the model returns
        all floats have a part in the loss.
    """
    one = row if isinstance(row, torch.Tensor) else torch.zeros(*row)
    moved = []
    for rows in (4, 8):  # two on each GPU at least: BatchNorm refuses a single one
        with virtual_gpus(2) as gpus:
            model, batch = nn.DataParallel(make().to(gpus[0])), torch.stack([one] * rows).to(gpus[0])
            gpus.meter.reset()
            _loss(model(batch)).backward()
            moved.append(gpus.meter.bytes())
    # in matrices: what oneDNN makes of an LSTM in one piece is counted by nobody
    with FlopCounterMode(display=False) as count, warnings.catch_warnings(action="ignore"):
        with torch.backends.mkldnn.flags(enabled=False):  # it warns of TF32
            _loss(make()(torch.stack([one] * 2))).backward()
    return 2 * moved[0] - moved[1], (moved[1] - moved[0]) / 4, count.get_total_flops() / 2


def _loss(returned: object) -> torch.Tensor:
    """A number in which all floats have a part that a model returns, in tuples, lists and dictionaries."""
    held = returned.values() if isinstance(returned, Mapping) else returned
    if isinstance(held, torch.Tensor):
        return held.square().mean() if held.is_floating_point() else torch.zeros((), device=held.device)
    return sum(_loss(it) for it in held if it is not None)


def share_of_rows(meter: Meter) -> float:
    """Return which share of the bytes that a meter has counted are rows, or what becomes of them; 0 of nothing."""
    return sum(map(meter.bytes, FOR_ROWS)) / (meter.bytes() or 1)


def bill(meter: Meter, worth: int) -> str:
    """Return in words, by cause, what two GPUs have sent, a bar beside each: one ■ is worth so many bytes."""
    if not meter.bytes():
        return "nothing crosses: a single row cannot be cut, so GPU 1 gets nothing, not even the model"
    told = [f"{cause:<9}  GPU {road} {_bar(meter.bytes(cause), worth)}" for cause, road in ROADS]
    together = f"{'together':<19}{meter.bytes():>11,}, and {share_of_rows(meter):.1%} of it are rows"
    return "\n".join([*told, together])


def around_a_ring(numbers: int, n: int) -> tuple[Moved, bool]:
    """Add up so many gradients around a ring of n virtual GPUs. Returns what moved, and whether all sums are right.

    Each GPU cuts its gradients into n chunks and hands one after the other to its neighbour, who adds its own; then the
    sums go round in the same way.
    """
    with virtual_gpus(n) as gpus:
        held = [list(torch.full((numbers,), 1.0 + k, device=gpus[k]).tensor_split(n)) for k in range(n)]
        gpus.meter.reset()
        for turn in range(2 * (n - 1)):
            chunks = [(k - turn) % n for k in range(n)]  # which one GPU k hands on
            sent = [held[k][chunk].to(gpus[(k + 1) % n]) for k, chunk in enumerate(chunks)]
            for k, (chunk, it) in enumerate(zip(chunks, sent, strict=True)):
                mine = held[(k + 1) % n]
                mine[chunk] = mine[chunk] + it if turn < n - 1 else it
        moved = for_the_model(gpus.meter, causes=None)  # before the next line, whose answers cross as well
        return moved, all(bool((it == n * (n + 1) / 2).all()) for chunks in held for it in chunks)


def for_the_model(meter: Meter, causes: Iterable[str] | None = ("replicate", "reduce")) -> Moved:
    """Return what a meter has counted of these causes, or of all: from where, to where, how many bytes."""
    return [(row[1], row[2], row[4]) for row in meter.rows if causes is None or row[0] in causes]


def through_each(moved: Moved, n: int) -> list[int]:
    """Return of each GPU how many bytes leave or enter it."""
    return [sum(size for *ends, size in moved if f"vgpu:{k}" in ends) for k in range(n)]


def beside_a_ring(meter: Meter, ring: Moved, n: int, worth: int) -> str:
    """Return in words, beside what a ring moved, what a step's meter has counted for the model; a ■ is worth so much.

    First what passes through each GPU, then what all of them have sent.
    """
    star = for_the_model(meter)
    told = [f"{'':7}{'DataParallel':34}DDP, around a ring"]
    for k, both in enumerate(zip(through_each(star, n), through_each(ring, n), strict=True)):
        left, right = (_bar(size, worth) for size in both)
        told.append(f"vgpu:{k} {left:34}{right}")
    sent = [sum(size for *_, size in moved) for moved in (star, ring)]
    return "\n".join([*told, f"sent   {sent[0]:11,}{'':23}{sent[1]:11,}"])


def _bar(size: int, worth: int) -> str:
    return f"{size:11,} {'■' * round(size / worth)}".rstrip()
