"""The copies that torch does in CUDA C++, and what `torch.nn.parallel` asks about the machine: ours, for
virtual GPUs.

Torch's own Python (`DataParallel`, `replicate`, `scatter`, `parallel_apply`, `gather`, the autograd
functions `Broadcast`, `ReduceAddCoalesced`, `Scatter` and `Gather`, and `comm.py`) calls what is in here
instead of `torch._C`. Copies are cut, coalesced and ordered as torch/csrc/cuda/comm.cpp does it, so that
the meter counts what a GPU would copy.
"""

import functools
import sys
import types
from contextlib import ExitStack, contextmanager, nullcontext

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _reorder_tensors_as, _take_tensors
from torch.nn.parallel import comm

from .meter import meter
from .tensor import because, here, label, move, place, place_of, raw, real_data, seed_all, seeds, set_data, to

# ---- torch._C._broadcast, _broadcast_coalesced, _scatter, _gather ------------------------------------------


def broadcast(tensor: Tensor, devices: list[int]) -> list[Tensor]:
    """tensor itself on its own device, a copy on each other one."""
    with because("replicate"), torch.no_grad():
        return [move(tensor, place_of(device)) for device in devices]


def broadcast_coalesced(tensors: list[Tensor], devices: list[int], buffer_size: int) -> list[list[Tensor]]:
    """The originals for devices[0]; for the others, slices of large buffers, one copy each."""
    if any(place(t) != devices[0] for t in tensors):
        raise RuntimeError(f"All tensors must be on devices[0]: {devices[0]}")
    copies: list[list[Tensor]] = [[] for _ in devices[1:]]
    order = []
    for chunk in _take_tensors(tensors, buffer_size):  # of one type, and sparse ones alone
        order += chunk
        sparse = chunk[0].is_sparse
        buffers = chunk if sparse else [_flatten_dense_tensors([t.detach() for t in chunk])]
        for mine, device in zip(copies, devices[1:], strict=True):
            there = [t for buffer in buffers for t in broadcast(buffer, [device])]
            mine += there if sparse else _cut_like(chunk, there[0])
    return [list(tensors), *(list(_reorder_tensors_as(mine, tensors)) for mine in copies)]


def _cut_like(tensors: list[Tensor], buffer: Tensor) -> list[Tensor]:
    """Slices of the buffer with these tensors' shapes. (Torch's own would be handed both, which inference mode does not
    take apart: two devices in one kernel.)"""
    pieces = buffer.split([t.numel() for t in tensors])
    return [piece.view(t.shape).data for piece, t in zip(pieces, tensors, strict=True)]


def scatter(tensor: Tensor, devices: list[int], chunk_sizes=None, dim: int = 0, streams=None) -> list[Tensor]:
    """Pieces of tensor along dim, one a device, fewer if it is short. A piece that stays is a view."""
    if chunk_sizes is not None and len(chunk_sizes) != len(devices):
        got = f"len(devices) = {len(devices)} and len(chunk_sizes) = {len(chunk_sizes)}"
        raise RuntimeError(f"Expected devices and chunk_sizes to be of same length, but got {got}")
    pieces = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split_with_sizes(chunk_sizes, dim)
    with because("scatter"):
        return [move(piece, place_of(device)) for piece, device in zip(pieces, devices, strict=False)]


def gather(tensors: list[Tensor], dim: int, destination: int | None) -> Tensor:
    """All tensors, one after the other along dim, in new memory on destination (-1: the CPU)."""
    expected = list(tensors[0].shape)
    for i, t in enumerate(tensors):
        if not isinstance(place(t), int):
            raise RuntimeError(
                f"Expected all input tensors to be on virtual GPUs, but the one at index {i} is on {t.device}"
            )
        expected[dim] = t.shape[dim]
        if list(t.shape) != expected:
            raise RuntimeError(f"Input tensor at index {i} has invalid shape {list(t.shape)}, but expected {expected}")
    target = None if destination == -1 else place_of("vgpu" if destination is None else destination)
    for t in tensors:
        meter.count("gather", place(t), target, t.nbytes)
    with raw():
        return label(torch.cat(tensors, dim).to(tensors[0].dtype), target)


def reduce_add(inputs, destination=None, real=comm.reduce_add):
    """Torch's own; only the meter is told why."""
    with because("reduce"):
        return real(inputs, destination)


# ---- the zeros that autograd hands to backward for an output nobody used -----------------------------------


def _with_labelled_zeros(function: type) -> list[tuple[str, staticmethod]]:
    """An autograd function's own forward and backward, with those zeros (made in C++) labelled."""
    forward, backward = function.forward, function.backward

    def remember_places(ctx, *args):
        out = forward(ctx, *args)
        ctx.places = [place(t) for t in ((out,) if isinstance(out, Tensor) else out)]
        return out

    def label_zeros(ctx, *grads):
        return backward(ctx, *map(label, grads, ctx.places))

    return [("forward", staticmethod(remember_places)), ("backward", staticmethod(label_zeros))]


# ---- what torch asks about the machine ---------------------------------------------------------------------


@contextmanager
def current_device(device):
    """torch.vgpu.device(1): "vgpu" without a number means "vgpu:1" in here."""
    outer, here.gpu = here.gpu, here.gpu if device is None else place_of(device)
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
    vgpu.set_device = lambda device: setattr(here, "gpu", place_of(device))
    vgpu.device = current_device
    vgpu.synchronize = lambda device=None: None
    vgpu.get_device_name = lambda device=None: "virtual GPU (CPU memory)"
    vgpu.memory_allocated = lambda device="vgpu": meter.memory[f"vgpu:{place_of(device)}"]
    vgpu.max_memory_allocated = lambda device="vgpu": meter.peak[f"vgpu:{place_of(device)}"]
    vgpu.manual_seed = vgpu.manual_seed_all = seed_all
    vgpu.get_rng_state = lambda device="vgpu": seeds.get(place_of(device), seeds[None])
    vgpu.set_rng_state = lambda new, device="vgpu": seeds.__setitem__(place_of(device), new)
    vgpu.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    vgpu._is_in_bad_fork = lambda: False
    return vgpu


class _Torch:
    """torch as one file of torch.nn.parallel sees it: some names ours, all others torch's."""

    def __init__(self, real, **ours):
        self.__dict__.update(ours, _real=real)

    def __getattr__(self, name: str):
        return getattr(self._real, name)


def _send(self, device="vgpu"):  # x.vgpu(1), module.vgpu()
    return self.to(torch.device("vgpu", place_of(device)))


def _constructor(real):  # torch.tensor(..., device="vgpu:0"): made on the CPU, then sent
    @functools.wraps(real)
    def build(*args, device=None, requires_grad=False, **kwargs):
        out = real(*args, **kwargs).to(device)
        return out.requires_grad_() if requires_grad else out

    return build


def factory(op, *args, device=None, **kwargs):
    """What torch calls for any other kernel asked to make a tensor with device="vgpu:i"."""
    with raw():
        out = op(*args, device="cpu", **kwargs)
        return label(out, place_of(device)) if isinstance(out, Tensor) else [label(t, place_of(device)) for t in out]


# ---- torch.load: a storage stays in CPU memory and remembers where map_location wants it ----------------------

real_restore, real_rebuild = torch.serialization.default_restore_location, torch._utils._rebuild_tensor


def restore(storage, location: str):
    """The storage where map_location wants it; on a virtual GPU the tensor made of it is labelled in `rebuild`."""
    if not str(location).startswith("vgpu"):
        return real_restore(storage, location)
    storage.vgpu = place_of(location)
    return storage


def rebuild(storage, *layout) -> Tensor:
    return move(real_rebuild(storage, *layout), getattr(storage._untyped_storage, "vgpu", None))


def patches(count: int) -> list[tuple[object, str, object]]:
    """Everything that is replaced while virtual GPUs are on: (where, name, what with)."""
    names = ("data_parallel", "parallel_apply", "_functions")  # files, which torch.nn.parallel hides behind functions
    data_parallel, parallel_apply, functions = (sys.modules[f"torch.nn.parallel.{name}"] for name in names)
    lazy = torch.nn.parameter.UninitializedTensorMixin
    accelerator = _Torch(
        torch.accelerator,
        is_available=lambda: True,
        current_accelerator=lambda: torch.device("vgpu"),
        current_stream=nullcontext,
        device_index=current_device,
    )
    seen_by_parallel_apply = _Torch(
        torch,
        accelerator=accelerator,
        # torch before 2.9 asks these two:
        cuda=_Torch(torch.cuda, current_stream=nullcontext, stream=lambda s: s, device=current_device),
        amp=_Torch(torch.amp, autocast=lambda _, enabled: torch.autocast("vgpu", enabled=enabled)),
        is_autocast_enabled=lambda kind="vgpu": torch.is_autocast_enabled(kind),
    )
    seen_by_functions = _Torch(torch, accelerator=_Torch(torch.accelerator, is_available=lambda: False))  # no streams
    table = [
        (torch, "vgpu", _module(count)),
        (torch._utils, "_get_available_device_type", lambda: "vgpu"),
        (torch._utils, "_rebuild_tensor", rebuild),
        (torch.serialization, "default_restore_location", restore),
        (data_parallel, "_get_available_device_type", lambda: "vgpu"),
        (parallel_apply, "_get_device_index", torch._utils._get_device_index),
        (parallel_apply, "torch", seen_by_parallel_apply),
        (functions, "torch", seen_by_functions),
        (comm, "reduce_add", reduce_add),
        (comm, "nccl", types.SimpleNamespace(is_available=lambda tensors: False)),
        (torch._C, "_broadcast", broadcast),
        (torch._C, "_broadcast_coalesced", broadcast_coalesced),
        (torch._C, "_scatter", scatter),
        (torch._C, "_gather", gather),
        (Tensor, "to", to),
        (Tensor, "data", property(real_data.__get__, set_data)),
        (Tensor, "is_vgpu", property(lambda self: False)),
        (Tensor, "vgpu", _send),
        (torch.nn.Module, "vgpu", _send),
        (lazy, "_allowed_methods", [*lazy._allowed_methods, to]),
        (torch.nested, "nested_tensor", _constructor(torch.nested.nested_tensor)),
    ]
    for name in ("tensor", "as_tensor", "asarray", "sparse_coo_tensor"):
        table.append((torch, name, _constructor(getattr(torch, name))))
    for function in (functions.Broadcast, functions.ReduceAddCoalesced, functions.Scatter, functions.Gather):
        table += [(function, *method) for method in _with_labelled_zeros(function)]
    return table


def pretend(count: int) -> ExitStack:
    """Replace all that; closing what comes back puts everything as it was."""
    undo = ExitStack()
    for owner, name, ours in patches(count):
        if name in vars(owner):
            undo.callback(setattr, owner, name, vars(owner)[name])
        else:
            undo.callback(delattr, owner, name)
        setattr(owner, name, ours)
    sys.modules["torch.vgpu"] = torch.vgpu  # torch's C++ imports it
    undo.callback(sys.modules.pop, "torch.vgpu")
    library = torch.library.Library("_", "IMPL")
    library.fallback(factory, "PrivateUse1")
    undo.callback(library._destroy)
    return undo
