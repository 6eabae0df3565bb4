"""The copies that torch does in CUDA C++, and what `torch.nn.parallel` asks about the machine: ours, for
virtual GPUs.

Torch's own Python (`DataParallel`, `replicate`, `scatter`, `parallel_apply`, `gather`, the autograd
functions `Broadcast`, `ReduceAddCoalesced`, `Scatter` and `Gather`, and `comm.py`) calls what is in here
instead of `torch._C`. Copies are cut, coalesced and ordered as torch/csrc/cuda/comm.cpp does it, so that
the meter counts what a GPU would copy.
"""

import contextlib
import functools
import sys
import types

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _reorder_tensors_as, _take_tensors, _unflatten_dense_tensors
from torch.nn.parallel import comm

from .meter import meter
from .tensor import (
    adopt,
    because,
    get_seed,
    gpu_of,
    here,
    label,
    move,
    place,
    raw,
    real_data,
    seed_all,
    set_data,
    state,
    to,
)

# ---- torch._C._broadcast, _broadcast_coalesced, _scatter, _gather ------------------------------------------


def broadcast(tensor: Tensor, devices: list[int]) -> list[Tensor]:
    """tensor itself on its own device, a copy on each other one."""
    with because("replicate"):
        return [move(tensor.detach(), d) if d != place(tensor) else tensor for d in map(gpu_of, devices)]


def broadcast_coalesced(tensors: list[Tensor], devices: list[int], buffer_size: int) -> list[list[Tensor]]:
    """The originals for devices[0]; for the others, slices of large buffers, one copy each."""
    for t in tensors:
        if place(t) != devices[0]:
            raise RuntimeError(f"All tensors must be on devices[0]: {devices[0]}")
    copies: list[list[Tensor]] = [[] for _ in devices[1:]]
    order = []
    for chunk in _take_tensors(tensors, buffer_size):
        order += chunk
        if chunk[0].is_sparse:
            with because("replicate"), torch.no_grad():
                for mine, device in zip(copies, devices[1:], strict=True):
                    mine += [move(t, gpu_of(device)) for t in chunk]
            continue
        flat = _flatten_dense_tensors([t.detach() for t in chunk])
        for mine, there in zip(copies, broadcast(flat, devices[1:]), strict=True):
            mine += [t.data for t in _unflatten_dense_tensors(there, chunk)]
    return [list(tensors)] + [list(_reorder_tensors_as(mine, tensors)) for mine in copies]


def scatter(tensor: Tensor, devices: list[int], chunk_sizes=None, dim: int = 0, streams=None) -> list[Tensor]:
    """Pieces of tensor along dim, one a device, fewer if it is short. A piece that stays is a view."""
    if chunk_sizes is not None and len(chunk_sizes) != len(devices):
        raise RuntimeError(
            "Expected devices and chunk_sizes to be of same length, but got "
            f"len(devices) = {len(devices)} and len(chunk_sizes) = {len(chunk_sizes)}"
        )
    pieces = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split_with_sizes(chunk_sizes, dim)
    with because("scatter"):
        return [move(piece, gpu_of(device)) for piece, device in zip(pieces, devices, strict=False)]


def gather(tensors: list[Tensor], dim: int, destination: int | None) -> Tensor:
    """All tensors, one after the other along dim, in new memory on destination (-1: the CPU)."""
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    first, shape = tensors[0], list(tensors[0].shape)
    dim, total = dim + first.dim() * (dim < 0), 0
    for i, t in enumerate(tensors):
        if t.dim() != first.dim():
            raise RuntimeError(
                "Expected all input tensors to have the same number of dimensions, "
                f"but got {t.dim()} and expected {first.dim()}"
            )
        shape[dim] = t.shape[dim]
        if list(t.shape) != shape:
            raise RuntimeError(f"Input tensor at index {i} has invalid shape {list(t.shape)}, but expected {shape}")
        total += t.shape[dim]
    shape[dim] = total
    last = torch.channels_last
    both = first.dim() == 4 and all(t.is_contiguous(memory_format=last) and not t.is_contiguous() for t in tensors)
    device = (
        "cpu" if destination == -1 else torch.device("vgpu", gpu_of("vgpu" if destination is None else destination))
    )
    out = torch.empty(shape, dtype=first.dtype, device=device, memory_format=last if both else torch.contiguous_format)
    with because("gather"), torch.no_grad():
        for piece, t in zip(out.split([t.shape[dim] for t in tensors], dim), tensors, strict=True):
            piece.copy_(t)
    return out


def _for_virtual(name: str, ours):  # a tensor on a real GPU still goes to torch's own
    real = getattr(torch._C, name, None)

    @functools.wraps(ours)
    def choose(tensors, *args):
        first = tensors if isinstance(tensors, Tensor) else next(iter(tensors), None)
        return real(tensors, *args) if first is not None and first.is_cuda else ours(tensors, *args)

    return choose


def _reduce_add(inputs, destination=None, real=comm.reduce_add):  # torch's own; only the meter is told why
    with because("reduce"):
        return real(inputs, destination)


# ---- the zeros that autograd hands to backward for an output nobody used -----------------------------------


def _with_labelled_zeros(function: type) -> dict[str, staticmethod]:
    """An autograd function's own forward and backward, with those zeros (made in C++) labelled."""
    forward, backward = function.forward, function.backward

    def remember_places(ctx, *args):
        out = forward(ctx, *args)
        ctx.places = [place(t) for t in ((out,) if isinstance(out, Tensor) else out)]
        return out

    def label_zeros(ctx, *grads):
        return backward(ctx, *[adopt(g, p) for g, p in zip(grads, ctx.places, strict=True)])

    return {"forward": staticmethod(remember_places), "backward": staticmethod(label_zeros)}


# ---- what torch asks about the machine ---------------------------------------------------------------------


@contextlib.contextmanager
def current_device(device):
    """torch.vgpu.device(1): "vgpu" without a number means "vgpu:1" in here."""
    outer, here.gpu = here.gpu, here.gpu if device is None else gpu_of(device)
    try:
        yield
    finally:
        here.gpu = outer


def _module(count: int) -> types.ModuleType:
    """torch.vgpu, what torch.cuda is to CUDA; DataParallel and autocast ask it."""
    vgpu = types.ModuleType("torch.vgpu", "Virtual GPUs, made by ddplab.vgpu.")
    vgpu.is_available = vgpu.is_initialized = lambda: True
    vgpu.device_count = lambda: count
    vgpu.current_device = lambda: here.gpu
    vgpu.set_device = lambda device: setattr(here, "gpu", gpu_of(device))
    vgpu.device = current_device
    vgpu.synchronize = lambda device=None: None
    vgpu.get_device_name = lambda device=None: "virtual GPU (CPU memory)"
    vgpu.memory_allocated = lambda device="vgpu": meter.memory[f"vgpu:{gpu_of(device)}"]
    vgpu.max_memory_allocated = lambda device="vgpu": meter.peak[f"vgpu:{gpu_of(device)}"]
    vgpu.manual_seed = vgpu.manual_seed_all = seed_all
    vgpu.get_rng_state = lambda device="vgpu": get_seed(gpu_of(device))
    vgpu.set_rng_state = lambda new, device="vgpu": state["seeds"].__setitem__(gpu_of(device), new)
    vgpu.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    vgpu._is_in_bad_fork = lambda: False
    return vgpu


class _Torch:
    """torch as one file of torch.nn.parallel sees it: some names ours, all others torch's."""

    def __init__(self, real, **ours):
        self.__dict__.update(ours, _real=real)

    def __getattr__(self, name: str):
        return getattr(self._real, name)


def _stream(device=None):
    return contextlib.nullcontext()  # everything happens in order


def _autocast_enabled(device_type=None):  # without a type it means CUDA's, so here ours
    return torch.is_autocast_enabled(device_type or "vgpu")


def patches(count: int) -> list[tuple[object, str, object]]:
    """Everything that is replaced while virtual GPUs are on: (where, name, what with)."""
    parallel = {n: sys.modules[f"torch.nn.parallel.{n}"] for n in ("data_parallel", "parallel_apply", "_functions")}
    vgpu, kind = _module(count), lambda: "vgpu"
    accelerator = _Torch(
        torch.accelerator,
        is_available=lambda: True,
        current_accelerator=lambda: torch.device("vgpu"),
        current_stream=_stream,
        device_index=current_device,
    )
    cuda = _Torch(torch.cuda, current_stream=_stream, stream=lambda s: s, device=current_device)  # torch before 2.9
    amp = _Torch(torch.amp, autocast=lambda _, enabled: torch.autocast("vgpu", enabled=enabled))
    table = [
        (torch, "vgpu", vgpu),
        (torch._utils, "_get_available_device_type", kind),
        (parallel["data_parallel"], "_get_available_device_type", kind),
        (parallel["parallel_apply"], "_get_device_index", torch._utils._get_device_index),
        (
            parallel["parallel_apply"],
            "torch",
            _Torch(torch, accelerator=accelerator, cuda=cuda, amp=amp, is_autocast_enabled=_autocast_enabled),
        ),
        (
            parallel["_functions"],
            "torch",
            _Torch(torch, accelerator=_Torch(torch.accelerator, is_available=lambda: False)),
        ),
        (comm, "reduce_add", _reduce_add),
        (comm, "nccl", types.SimpleNamespace(is_available=lambda tensors: False)),
        (Tensor, "to", to),
        (Tensor, "data", property(real_data.__get__, set_data)),
        (Tensor, "is_vgpu", property(lambda self: False)),
        (torch, "compile", _refuse_to_compile),
        (torch.export, "export", _refuse_to_compile),
        (Tensor, "vgpu", lambda self, device="vgpu": self.to(torch.device("vgpu", gpu_of(device)))),
        (torch.nn.Module, "vgpu", lambda self, device="vgpu": self.to(torch.device("vgpu", gpu_of(device)))),
    ]
    for function in (
        parallel["_functions"].__dict__[n] for n in ("Broadcast", "ReduceAddCoalesced", "Scatter", "Gather")
    ):
        table += [(function, name, ours) for name, ours in _with_labelled_zeros(function).items()]
    for ours in (broadcast, broadcast_coalesced, scatter, gather):
        table.append((torch._C, f"_{ours.__name__}", _for_virtual(f"_{ours.__name__}", ours)))
    for name in ("tensor", "as_tensor", "asarray", "sparse_coo_tensor"):
        table.append((torch, name, _constructor(getattr(torch, name))))
    table.append((torch.nested, "nested_tensor", _constructor(torch.nested.nested_tensor)))
    return table


def _refuse_to_compile(*args, **kwargs):
    raise NotImplementedError("torch.compile and torch.export do not work while virtual GPUs are on")


def _constructor(real):  # torch.tensor(..., device="vgpu:0"): made on the CPU, then sent
    @functools.wraps(real)
    def build(*args, device=None, requires_grad=False, **kwargs):
        if device is None or not isinstance(gpu := gpu_of(device), int):
            extra = {"requires_grad": True} if requires_grad else {}
            return real(*args, **({} if device is None else {"device": device}), **extra, **kwargs)
        out = move(real(*args, **kwargs), gpu)
        return out.requires_grad_() if requires_grad else out

    return build


def factory(op, *args, device=None, **kwargs):
    """What torch calls for any kernel asked to make a tensor with device="vgpu:i"."""
    gpu = gpu_of(device)
    with raw():
        out = op(*args, device="cpu", **kwargs)
        return label(out, gpu) if isinstance(out, Tensor) else [label(t, gpu) for t in out]
