"""What scripts ask torch.cuda and torch.accelerator, answered for virtual GPUs."""

import faulthandler
import functools
import os
import signal
import subprocess
import sys
import types
import warnings
from multiprocessing.reduction import ForkingPickler

import torch
from torch import Tensor

from ddplab.vgpu import meter
from ddplab.vgpu.comm import check_rng_state, get_rng_state, set_rng_state
from ddplab.vgpu.meter import called
from ddplab.vgpu.tensor import VTensor, generator, here, is_dtensor, label, place_of, raw, seed_all, state, to

from . import legacy
from .frames import yours
from .kernels import asserting, kernels
from .streams import Event, Stream, number, stream, synchronize

__all__ = ["after_fork", "kernels", "library", "patches"]

library = torch.library.Library("_", "IMPL")
aten = torch.library.Library("aten", "IMPL")
_used = {"initialized": False, "bad_fork": False}


def count() -> int:
    return len(meter.book.visible())


def wake() -> None:
    """CUDA's lazy initialisation: note that it happened, refuse in a forked child (torch/cuda/__init__.py)."""
    if _used["bad_fork"]:
        how = "To use CUDA with multiprocessing, you must use the 'spawn' start method"
        raise RuntimeError(f"Cannot re-initialize CUDA in forked subprocess. {how}")
    _used["initialized"] = True
    if not meter.book.seen:
        meter.book.seen = meter.book.visible()
        if state["name"] == "cuda":  # else `virtual_gpus(4)` is on, which has as many as were asked for
            state["count"] = count()
        if not meter.book.seen:
            raise RuntimeError("No CUDA GPUs are available")  # c10/cuda/CUDAFunctions.cpp


def after_fork() -> None:
    """In a forked child."""
    faulthandler.unregister(signal.SIGTERM)  # it would write where its parent does
    _used["bad_fork"] = _used["bad_fork"] or _used["initialized"]


def take_the_place_of_real_factories(ours) -> None:
    """Where torch is built for CUDA, its kernels that make a tensor from no other are there, before any fallback."""
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
        space, _, rest = name.partition("::")
        if space == "aten":
            packet, _, overload = rest.partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            if not any("Tensor" in str(argument.type) for argument in op._schema.arguments):
                aten.impl(rest, functools.partial(ours, op), "CUDA", allow_override=True)


def set_device(device) -> None:
    if isinstance(device, int) and device < 0:
        return
    wake()
    here.gpu = number(device)


class Within:
    """torch.cuda.device(1), a block."""

    def __init__(self, device):
        self.idx = -1 if device is None or device == -1 else number(device)
        self.prev_idx = -1

    def __enter__(self):
        self.prev_idx = _exchange(self.idx)

    def __exit__(self, *_):
        here.gpu = self.prev_idx
        return False


def _exchange(gpu: int) -> int:
    outer, here.gpu = here.gpu, here.gpu if gpu < 0 else place_of(gpu)
    return outer


def properties(device=None):
    gpu = here.gpu if device is None else torch._utils._get_device_index(device, optional=True)
    if not 0 <= gpu < count():
        raise AssertionError("Invalid device id")
    return types.SimpleNamespace(
        name="virtual GPU (CPU memory)",
        major=meter.book.kind.capability[0],
        minor=meter.book.kind.capability[1],
        total_memory=meter.book.capacity or meter.book.kind.gib * 2**30,
        multi_processor_count=132,
        is_integrated=False,
        is_multi_gpu_board=False,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        gcnArchName="",
        uuid=f"GPU-virtual-{gpu}",
        L2_cache_size=50 * 2**20,
        regs_per_multiprocessor=65536,
    )


def held(device=None) -> int:
    return meter.memory[called(number(device))]


def peak(device=None) -> int:
    return max(meter.peak[called(number(device))], held(device))


def reset_peak(device=None) -> None:
    meter.peak[called(number(device))] = held(device)


def memory_stats(device=None) -> dict:
    out = {"num_ooms": 0, "num_alloc_retries": 0}
    for kind in ("allocated", "reserved", "active", "requested"):
        out |= {f"{kind}_bytes.all.current": held(device), f"{kind}_bytes.all.peak": peak(device)}
    return out


def mem_get_info(device=None) -> tuple[int, int]:
    gpu, total = meter.book.visible()[number(device)], properties(device).total_memory
    return total - sum(values[gpu][0] for _, _, values in meter.book.rows()), total


RealDevice, real_parse_to, real_one_hot = torch.device, torch._C._nn._parse_to, torch.nn.functional.one_hot


class _Devices(type):
    def __call__(cls, *args, **kwargs):
        if args and type(args[0]) is int:
            args = ("cuda", *args)
        return RealDevice(*args, **kwargs)

    def __instancecheck__(cls, x):
        return isinstance(x, RealDevice)

    def __subclasscheck__(cls, other):
        return issubclass(other, RealDevice)


class Device(metaclass=_Devices):
    """torch.device, for which a bare number is a CUDA device; without an accelerator torch's own refuses one."""


def parse_to(*args, **kwargs):
    """Module.to's arguments."""
    if args and type(args[0]) is int:
        args = (RealDevice("cuda", args[0]), *args[1:])
    if type(kwargs.get("device")) is int:
        kwargs["device"] = RealDevice("cuda", kwargs["device"])
    return real_parse_to(*args, **kwargs)


def _one_hot(x, num_classes=-1):  # of any kind of tensor that it does not know, torch's compares and takes all
    if type(x) is not VTensor or num_classes < 1:
        return real_one_hot(x, num_classes)
    with raw():
        return label(asserting(real_one_hot)(x.detach(), num_classes), x.gpu)


def _set_rng_state(new: Tensor) -> None:  # of the CPU
    check_rng_state(new)
    torch.default_generator.set_state(new)


def _export(*args, **kwargs):
    raise NotImplementedError("torch.export is not rehearsed: in C++ it asks for a real GPU")


def _of_the_cpu(begin):
    def begin_profile(self, enabled=True, *, use_cuda=False, use_device=None, use_cpu=True, **options):
        if use_cuda or use_device:
            meter.book.skipped.add("the GPU's side of a profile")
            use_cpu = True
        begin(self, enabled, use_cpu=use_cpu, **options)

    return begin_profile


def _skip(what: str):  # a compiler would lose the labels
    def skipped(obj=None, *args, **kwargs):
        if what not in meter.book.skipped and yours(sys._getframe(1).f_code.co_filename):
            warnings.warn(f"rehearsal: {what} is skipped on virtual GPUs, the model runs eagerly", stacklevel=2)
            meter.book.skipped.add(what)
        if isinstance(obj, torch.nn.Module) and what == "torch.compile":  # its state_dict says _orig_mod
            from torch._dynamo import OptimizedModule

            warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks")  # nccl.py's
            return OptimizedModule(obj, lambda forward: forward)
        return skipped if obj is None else obj

    return skipped


def _no_snapshot(*args, **kwargs):
    meter.book.skipped.add("snapshots of the allocator's memory")


def _no_segments(*args, **kwargs) -> list:
    return _no_snapshot() or []


def _profiler() -> int:  # of nsys, which shows nothing of a virtual GPU
    meter.book.skipped.add("the GPU's side of a profile")
    return 0


_cudart = types.SimpleNamespace(  # what torch.cuda.cudart() brings, as far as torch's own code and scripts call it
    cudaError=types.SimpleNamespace(success=0),
    cudaProfilerStart=_profiler,
    cudaProfilerStop=_profiler,
    cudaMemGetInfo=mem_get_info,
)


def _no_graphs(*args, **kwargs):
    raise NotImplementedError("CUDA graphs are not rehearsed: a virtual GPU has no queue to record")


def send(self: Tensor, device=None, non_blocking=False, memory_format=torch.preserve_format) -> Tensor:
    """Tensor.cuda."""
    return to(self, RealDevice("cuda", number(device)), non_blocking=non_blocking, memory_format=memory_format)


def pin_memory(self: Tensor, device=None) -> Tensor:
    """Tensor.pin_memory: a copy that says it is pinned."""
    if is_pinned(self):
        return self
    out = self.detach().clone()
    out._pinned = True
    return out


def is_pinned(self: Tensor, device=None) -> bool:
    """Tensor.is_pinned."""
    return getattr(self, "_pinned", False)


def _pinned(real):  # torch.empty(3, pin_memory=True)
    def made(*args, pin_memory=False, **kwargs):
        out = real(*args, **kwargs)
        return out.pin_memory() if pin_memory else out

    return made


def _from_the_cpu(real):  # a CPU factory refuses a CUDA generator
    def made(*args, **kwargs):
        given, device = kwargs.get("generator"), kwargs.get("device")
        place = torch.get_default_device() if device is None else torch.device(device)
        if hasattr(given, "gpu") and place.type == "cpu":
            raise RuntimeError("Expected a 'cpu' device type for generator but found 'cuda'")
        return real(*args, **kwargs)

    return made


def _own_generator(real):  # so does a method that draws
    def drawn(x, *args, **kwargs):
        if hasattr(kwargs.get("generator"), "gpu") and not isinstance(x, VTensor):
            raise RuntimeError("Expected a 'cpu' device type for generator but found 'cuda'")
        if is_dtensor(x) and real.__name__ in ("uniform_", "normal_"):
            return _sharded(real, x, args, kwargs)
        return real(x, *args, **kwargs)

    return drawn


def _sharded(real, x, args: tuple, kwargs: dict):
    """Fill a DTensor's part with its part of the whole: torch/distributed/tensor/_random.py counts on Philox."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    part = x._local_tensor
    kwargs = kwargs | {"generator": kwargs.get("generator") or generator(part.gpu)}
    shape, start = compute_local_shape_and_global_offset(x.shape, x.device_mesh, x.placements)
    with raw():
        whole = real(torch.empty(x.shape, dtype=x.dtype, device="cpu"), *args, **kwargs)
        part.detach().copy_(whole[tuple(slice(a, a + n) for a, n in zip(start, shape, strict=True))])
    return x


def _reduce(x: VTensor):  # through a queue to another process; torch/multiprocessing/reductions.py: reduce_tensor
    if x.requires_grad and not x.is_leaf:
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support "
            "crossing process boundaries.  If you just want to transfer the data, call detach() on the tensor before "
            "serializing (e.g., putting it on the queue)."
        )
    with raw():
        return _rebuilt, (x.detach(), x.gpu, x.requires_grad, isinstance(x, torch.nn.Parameter))


def _rebuilt(memory: Tensor, gpu: int, requires_grad: bool, parameter: bool) -> Tensor:
    x = label(memory, gpu)
    return torch.nn.Parameter(x, requires_grad) if parameter else x.requires_grad_(requires_grad)


def _asks_the_machine(real):  # nvidia-smi knows no virtual GPUs
    @functools.wraps(real)
    def started(*args, **kwargs):
        if "nvidia-smi" in str([a for a in (*args, *kwargs.values()) if isinstance(a, (str, list, tuple))]):
            meter.book.skipped.add("what nvidia-smi says of this machine's own GPUs")
        return real(*args, **kwargs)

    return started


def _shared(real):  # a DataLoader's worker makes its batch in one; torch has them for CUDA too
    def new(size, *, device="cpu"):
        place_of(device)  # refuses in a forked worker
        return real(size, device=device)

    return new


def _spawned(real):  # torch.multiprocessing.spawn's ranks: what they raise goes to a file, and past sys.excepthook
    @functools.wraps(real)  # it is pickled by its name
    def wrap(fn, *args):
        return real(meter.book.guarded(fn), *args)

    return wrap


def patches() -> list[tuple[object, str, object]]:
    """What is replaced in torch.cuda and about it: (where, name, what with)."""
    ForkingPickler.register(VTensor, _reduce)
    c, optimizer, foreach = torch.cuda, sys.modules["torch.optim.optimizer"], torch.utils._foreach_utils

    def nothing(*args, **kwargs):
        return None

    answers = dict(
        is_available=lambda: count() > 0,
        device_count=count,
        current_device=number,
        set_device=set_device,
        device=Within,
        _exchange_device=_exchange,
        _maybe_exchange_device=_exchange,
        is_initialized=lambda: _used["initialized"] and not _used["bad_fork"],
        _initialized=True,  # torch.utils.checkpoint asks it
        init=wake,
        _lazy_init=wake,
        _lazy_call=lambda function, **_: function(),
        _is_in_bad_fork=lambda: _used["bad_fork"],
        synchronize=synchronize,
        get_device_name=lambda device=None: properties(device).name,
        get_device_capability=lambda device=None: meter.book.kind.capability,
        get_device_properties=properties,
        can_device_access_peer=lambda a, b: True,
        is_bf16_supported=lambda including_emulation=True: including_emulation or meter.book.kind.capability >= (8, 0),
        is_tf32_supported=lambda: True,
        get_arch_list=lambda: ["sm_90"],
        is_current_stream_capturing=lambda: False,
        Stream=Stream,
        ExternalStream=Stream,
        Event=Event,
        stream=stream,
        StreamContext=stream,
        current_stream=Stream,
        default_stream=Stream,
        set_stream=nothing,
        CUDAGraph=_no_graphs,
        make_graphed_callables=_no_graphs,
        _cudart=_cudart,
        _sleep=nothing,
        ipc_collect=nothing,
        empty_cache=nothing,
        memory_stats=memory_stats,
        memory_allocated=held,
        memory_reserved=held,
        memory_cached=held,
        max_memory_allocated=peak,
        max_memory_reserved=peak,
        max_memory_cached=peak,
        reset_peak_memory_stats=reset_peak,
        reset_max_memory_allocated=reset_peak,
        reset_max_memory_cached=reset_peak,
        reset_accumulated_memory_stats=nothing,
        mem_get_info=mem_get_info,
        memory_snapshot=_no_segments,
        memory_summary=lambda device=None, abbreviated=False: repr(meter),
        set_per_process_memory_fraction=nothing,
        manual_seed=lambda seed: generator(here.gpu).manual_seed(int(seed)) and None,
        manual_seed_all=seed_all,
        seed=lambda: generator(here.gpu).seed() and None,
        seed_all=lambda: seed_all(int.from_bytes(os.urandom(7))),
        initial_seed=lambda: generator(here.gpu).initial_seed(),
        get_rng_state=get_rng_state,
        set_rng_state=set_rng_state,
        get_rng_state_all=lambda: [get_rng_state(i) for i in range(count())],
        set_rng_state_all=lambda new: [set_rng_state(s, i) for i, s in enumerate(new)] and None,
    )
    table = [(c, name, answer) for name, answer in answers.items()]
    table += [(c.memory, name, _no_snapshot) for name in ("_record_memory_history", "_dump_snapshot", "_snapshot")]
    for file in (c.memory, c.random, c.streams):
        table += [(file, name, answer) for name, answer in answers.items() if hasattr(file, name)]
    table += [(c.nvtx, name, nothing) for name in ("range_push", "range_pop", "mark", "range_start", "range_end")]
    accelerator = dict(
        getAccelerator=lambda: RealDevice("cuda"),
        getDeviceIndex=lambda: here.gpu,
        setDeviceIndex=set_device,
        exchangeDevice=_exchange,
        maybeExchangeDevice=_exchange,
        getStream=Stream,
        setStream=nothing,
        synchronizeDevice=synchronize,
        emptyCache=nothing,
        getDeviceStats=memory_stats,
        resetPeakStats=reset_peak,
        resetAccumulatedStats=nothing,
    )
    table += [(torch._C, f"_accelerator_{name}", answer) for name, answer in accelerator.items()]
    table += [
        (torch.backends.cuda, "is_built", lambda: True),
        (torch.backends.cudnn, "version", lambda: 91900),
        (torch.backends.cudnn, "is_acceptable", lambda tensor: False),
        (torch._C, "_get_accelerator", lambda check=None: RealDevice("cuda")),
        (torch, "device", Device),
        (torch._C._nn, "_parse_to", parse_to),
        (torch.version, "cuda", "13.0"),
        (
            sys.modules["torch.multiprocessing.spawn"],
            "_wrap",
            _spawned(sys.modules["torch.multiprocessing.spawn"]._wrap),
        ),
        (os, "system", _asks_the_machine(os.system)),
        (subprocess.Popen, "__init__", _asks_the_machine(subprocess.Popen.__init__)),
        (torch.UntypedStorage, "_new_shared", _shared(torch.UntypedStorage._new_shared)),
        (torch.autograd.profiler.profile, "__init__", _of_the_cpu(torch.autograd.profiler.profile.__init__)),
        (torch.export, "export", _export),
        (torch, "set_rng_state", _set_rng_state),
        (torch.random, "set_rng_state", _set_rng_state),
        (torch.jit, "script", _skip("torch.jit.script")),
        (torch, "compile", _skip("torch.compile")),
        (torch.nn.functional, "one_hot", _one_hot),
        (torch.nn.Module, "compile", lambda self, *args, **kwargs: _skip("torch.compile")(self.forward) and None),
        (sys.modules["torch.nn.parallel._functions"], "_get_stream", Stream),
        (torch, "Stream", Stream),
        (torch, "Event", Event),
        (Tensor, "cuda", send),
        (Tensor, "pin_memory", pin_memory),
        (Tensor, "is_pinned", is_pinned),
        (optimizer, "_foreach_supported_types", [*optimizer._foreach_supported_types, VTensor]),
        (foreach, "_foreach_supported_types", [*foreach._foreach_supported_types, VTensor]),
    ]
    draws = "normal_ uniform_ bernoulli_ random_ exponential_ multinomial bernoulli".split()
    table += [(Tensor, name, _own_generator(getattr(Tensor, name))) for name in draws]
    table += [(torch, name, _own_generator(getattr(torch, name))) for name in ("normal", "multinomial", "bernoulli")]
    factories = "empty zeros ones full empty_like zeros_like empty_strided".split()
    table += [(torch, name, _pinned(getattr(torch, name))) for name in factories]
    drawn = {name: _from_the_cpu(_pinned(getattr(torch, name))) for name in ("randperm", "rand", "randn", "randint")}
    table += [(torch, name, made) for name, made in drawn.items()]
    return [*table, *legacy.patches(), (torch.utils.data.dataset, "randperm", drawn["randperm"])]  # random_split's
