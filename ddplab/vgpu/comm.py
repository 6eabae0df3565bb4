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
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import comm
from torch.utils._device import DeviceContext

from . import checkpoint, gradients
from .meter import meter
from .tensor import (
    VTensor,
    because,
    cpu,
    device_generators,
    device_of,
    generator,
    here,
    label,
    move,
    place,
    place_of,
    random,
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
    target = None if destination == -1 else place_of(state["name"] if destination is None else destination)
    for t in tensors:
        meter.count("gather", place(t), target, t.nbytes)
    with raw():
        return label(torch.cat(tensors, dim).to(tensors[0].dtype), target)


def broadcast_over_ranks(group, tensors, buffer_size, src=0, real=torch.distributed._broadcast_coalesced):
    """Torch's own, device by device, as it cuts its buckets: of a model cut by hand, DDP sends both parts."""
    for device in dict.fromkeys(t.device for t in tensors):
        real(group, [t for t in tensors if t.device == device], buffer_size, src)


def reduce_add(inputs, destination=None, real=comm.reduce_add):
    """Torch's own; only the meter is told why."""
    with because("reduce"):
        return real(inputs, destination)


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
    vgpu._initialized = True  # torch.utils.checkpoint asks it
    vgpu.device_count = lambda: count
    vgpu.current_device = lambda: here.gpu
    vgpu.set_device = lambda device: setattr(here, "gpu", place_of(device))
    vgpu.device = current_device
    vgpu.synchronize = lambda device=None: None
    vgpu.get_device_name = lambda device=None: "virtual GPU (CPU memory)"
    vgpu.memory_allocated = lambda device="vgpu": meter.memory[f"vgpu:{place_of(device)}"]
    vgpu.max_memory_allocated = lambda device="vgpu": meter.peak[f"vgpu:{place_of(device)}"]
    vgpu.manual_seed = vgpu.manual_seed_all = seed_all
    vgpu.get_rng_state, vgpu.set_rng_state = get_rng_state, set_rng_state
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


def _known_index(*args, **kwargs) -> int:  # DataParallel(device_ids=...): a GPU that is not there is refused at once
    index = torch._utils._get_device_index(*args, **kwargs)
    if not -1 <= index < state["count"]:
        raise AssertionError("Invalid device id")  # torch/cuda/__init__.py, get_device_properties
    return index


def _default() -> torch.device:  # torch.get_default_device asks a new tensor for the number, which would ask it
    contexts = [m for m in torch.overrides._get_current_function_mode_stack() if isinstance(m, DeviceContext)]
    return contexts[-1].device if contexts else torch.device("cpu")


def _inside(data):
    """The tensors of a virtual GPU in a list, and in the lists in it."""
    for it in data if isinstance(data, list | tuple) else ():
        yield from [it] if type(it) is VTensor else _inside(it)


def _constructor(real, listed=True):  # torch.tensor(..., device="vgpu:0"): made on the CPU, then sent
    @functools.wraps(real)
    def build(*args, device=None, requires_grad=False, pin_memory=False, **kwargs):
        given = [*args, *kwargs.values()]
        device = _default() if device is None and not any(type(a) is VTensor for a in given[:1]) else device
        if not any(type(a) is VTensor for a in given):
            kwargs["device"] = "cpu"  # and not what `with torch.device(...)` says, which comes after
        out = real(*args, **kwargs)
        for it in _inside(given[0]) if listed and given else ():
            meter.count(".item()", it.gpu, None, it.nbytes)  # its number is looked at, as on a GPU
        out = out.to(device)
        out = out.pin_memory() if pin_memory else out
        return out.requires_grad_() if requires_grad else out

    return build


def factory(op, *args, device=None, **kwargs):
    """What torch calls for any other kernel asked to make a tensor with device="vgpu:i"."""
    gpu = place_of(state["name"] if device is None else device)
    kwargs.pop("pin_memory", None)
    with raw():
        kwargs["device"] = "cpu"
        drawn = torch.Tag.nondeterministic_seeded in op.tags  # randperm
        out = random(op, gpu, args, kwargs) if drawn else op(*args, **kwargs)
        return label(out, gpu) if isinstance(out, Tensor) else [label(t, gpu) for t in out]


# ---- how optimisers sort tensors ---------------------------------------------------------------------------


def group(lists, with_indices=False):
    """torch._C._group_tensors_by_device_and_dtype, by label. Raises as aten/src/ATen/native/ForeachUtils.h does."""
    groups: dict = {}
    for i, first in enumerate(lists[0]):
        key = (first.device, first.dtype)
        for t in (other[i] for other in lists[1:] if other):
            if t is None or (t.device, t.dtype) == key:
                continue
            there = t.device == first.device  # `step` of fused=True and capturable=True; states in bfloat16
            step = there or (t.device.type == "cpu" and t.numel() == 1)
            if not step or t.dtype not in (torch.float32, torch.float64, *[torch.bfloat16] * there):
                raise RuntimeError(
                    "Tensors of the same index must be on the same device and the same dtype except `step` tensors "
                    "that can be CPU and float32/64, and optimizer states that can be bfloat16 for mixed-precision "
                    "training"
                )
        members, indices = groups.setdefault(key, ([[] for _ in lists], []))
        for mine, other in zip(members, lists, strict=True):
            if other:
                mine.append(other[i])
        if with_indices:
            indices.append(i)
    return groups


# ---- generators --------------------------------------------------------------------------------------------


class Generator(torch._C.Generator):
    """torch.Generator(device="vgpu:0"): a CPU generator that says where it belongs. Others are torch's own."""

    def __new__(cls, device="cpu"):
        gpu = place_of(device)
        if not isinstance(gpu, int):
            return torch._C.Generator(device)
        self = super().__new__(cls, "cpu")
        self.gpu = gpu
        device_generators[self._cdata] = gpu  # C++ hands over another Python object for it
        return self

    def __init__(self, device="cpu"):
        pass

    def __del__(self):
        device_generators.pop(self._cdata, None)

    device = property(lambda self: torch.device(state["name"], self.gpu))


class _Generators(type):
    def __call__(cls, device="cpu"):
        return Generator(device)

    def __instancecheck__(cls, x):
        return isinstance(x, torch._C.Generator)

    def __subclasscheck__(cls, other):
        return issubclass(other, torch._C.Generator)


class AnyGenerator(metaclass=_Generators):
    """What torch.Generator is while virtual GPUs are on."""


def get_rng_state(device=None) -> Tensor:
    return generator(here.gpu if device is None else place_of(device)).get_state()


def set_rng_state(new: Tensor, device=None) -> None:
    check_rng_state(new)
    generator(here.gpu if device is None else place_of(device)).set_state(new)


def check_rng_state(new: Tensor) -> None:
    if place(new) is not None:  # torch.load with a map_location has brought it here; ATen/core/Generator.h
        raise TypeError("RNG state must be a torch.ByteTensor")


_groups = []  # of processes, each kept until the end of this one
_new_group = c10d._new_process_group_helper


@functools.wraps(_new_group)
def new_group(*args, **kwargs):
    """Keep each group. To drop gloo's right after a collective can hang: Python's lock is held while its thread is
    awaited, and that thread frees the last collective's work, in which torch keeps our modes: Python objects."""
    made = _new_group(*args, **kwargs)
    _groups.append(made[0])
    return made


def patches() -> list[tuple[object, str, object]]:
    """What is replaced under either name: (where, name, what with)."""
    functions = sys.modules["torch.nn.parallel._functions"]  # a file, which torch.nn.parallel hides behind functions
    lazy = torch.nn.parameter.UninitializedTensorMixin
    seen_by_functions = _Torch(torch, accelerator=_Torch(torch.accelerator, is_available=lambda: False))  # no streams
    table = [
        (c10d, "_new_process_group_helper", new_group),
        (functions, "torch", seen_by_functions),
        (comm, "reduce_add", reduce_add),
        (torch.distributed, "_broadcast_coalesced", broadcast_over_ranks),
        (comm, "nccl", types.SimpleNamespace(is_available=lambda tensors: False)),
        (torch._C, "_broadcast", broadcast),
        (torch._C, "_broadcast_coalesced", broadcast_coalesced),
        (torch._C, "_scatter", scatter),
        (torch._C, "_gather", gather),
        (torch._C, "_group_tensors_by_device_and_dtype", group),
        (torch, "Generator", AnyGenerator),
        (Tensor, "to", to),
        (Tensor, "cpu", cpu),
        (Tensor, "device", property(device_of)),
        (Tensor, "data", property(real_data.__get__, set_data)),
        (lazy, "_allowed_methods", [*lazy._allowed_methods, to]),
        (torch.nested, "nested_tensor", _constructor(torch.nested.nested_tensor, listed=False)),
    ]
    for name in ("tensor", "as_tensor", "asarray", "sparse_coo_tensor"):
        table.append((torch, name, _constructor(getattr(torch, name))))
    return [*table, *gradients.patches(), *checkpoint.patches()]


def vgpu_patches(count: int) -> list[tuple[object, str, object]]:
    """What else is replaced where their name is "vgpu": torch.vgpu stands beside torch.cuda."""
    names = ("data_parallel", "parallel_apply")  # files
    data_parallel, parallel_apply = (sys.modules[f"torch.nn.parallel.{name}"] for name in names)
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
    return [
        (torch, "vgpu", _module(count)),
        (torch._utils, "_get_available_device_type", lambda: "vgpu"),
        (data_parallel, "_get_available_device_type", lambda: "vgpu"),
        (data_parallel, "_get_device_index", _known_index),
        (parallel_apply, "_get_device_index", torch._utils._get_device_index),
        (parallel_apply, "torch", seen_by_parallel_apply),
        (Tensor, "is_vgpu", property(lambda self: False)),
        (Tensor, "vgpu", _send),
        (torch.nn.Module, "vgpu", _send),
    ]


def pretend(count: int) -> ExitStack:
    """Replace all that; closing what comes back puts everything as it was. An error leaves nothing replaced."""
    with ExitStack() as undo:
        _groups.extend(c10d._world.pg_map)
        there = [] if state.get("wake") else patches()  # in a rehearsal they are in place, for good
        for owner, name, ours in there + vgpu_patches(count):
            if name in vars(owner):
                undo.callback(setattr, owner, name, vars(owner)[name])
            else:
                undo.callback(delattr, owner, name)
            setattr(owner, name, ours)
        before, sys.modules["torch.vgpu"] = sys.modules.get("torch.vgpu"), torch.vgpu  # torch's C++ imports it
        undo.callback(sys.modules.update, {"torch.vgpu": before} if before else {})  # a rehearsal's
        undo.callback(sys.modules.pop, "torch.vgpu")
        return undo.pop_all()
