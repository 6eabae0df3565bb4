"""The label and the check: a CPU tensor that says it is on a virtual GPU, and is held to it.

A `VTensor` is a `torch.Tensor` whose memory is ordinary CPU memory. Three things make it a citizen of
`vgpu:i`:

- the Python attributes that tell where a tensor is, or move it (`device`, `cpu()`, `to()`, ...) go by the
  label (`state["name"]`: in a rehearsal the devices are called "cuda:i", see ddplab/rehearse);
- `__torch_dispatch__` sees each kernel before it runs, refuses to mix devices, and labels the result;
- `__torch_function__` sees each call as you wrote it. Torch's C++ believes the tensor to be on the CPU,
  so inside one call it may make CPU tensors for its own use (a causal mask, zeros to scatter into). A
  call that was handed no CPU tensor can only meet such helpers, and takes them in; a call that was handed
  one is checked strictly.

A place is written as in `VTensor.gpu`: the number of a virtual GPU, or None for the CPU.
"""

import contextlib
import functools
import threading
from collections import OrderedDict

import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass, TensorBase, _DisableTorchDispatch, _is_any_autocast_enabled
from torch.nn import Parameter

from .meter import Block, meter, state


class _Here(threading.local):  # what each thread knows; DataParallel runs one thread per replica
    gpu = 0  # what "vgpu" without a number means, as in torch.cuda.current_device()
    cause = ".to"  # what the meter is told about a copy; "" where the copy is only our way of doing things
    strict = None  # inside a call: was it handed a CPU tensor? None outside


here = _Here()


@contextlib.contextmanager
def raw():
    """In here torch sees plain CPU tensors: no label, no check, no meter."""
    with DisableTorchFunctionSubclass(), _DisableTorchDispatch():
        yield


@contextlib.contextmanager
def because(cause: str):
    """Copies made in here are counted under this cause."""
    outer, here.cause = here.cause, cause
    try:
        yield
    finally:
        here.cause = outer


# ---- the label ---------------------------------------------------------------------------------------------


def label(x, gpu: int | None):
    """A plain CPU tensor becomes a VTensor on gpu, over the same memory; anything else stays as it is."""
    if type(x) is VTensor:
        _hold(x, x.gpu)
    if type(x) is not Tensor or gpu is None or not x.is_cpu:
        return x
    _hold(x, gpu)
    out = x.as_subclass(VTensor) if x.requires_grad else Tensor._make_subclass(VTensor, x)
    out.gpu = gpu
    return out


def _parts(x: Tensor) -> tuple[Tensor, ...]:  # the pieces of memory
    if x.layout is torch.sparse_coo:
        return x._indices(), x._values()
    if x.layout is torch.strided and not x.is_nested:
        return (x,)
    raise NotImplementedError("virtual GPUs hold strided and sparse COO tensors only, no nested or compressed ones")


def _hold(x: Tensor, gpu: int) -> None:  # tell the meter, once for each piece of memory
    for part in _parts(x):
        storage = part.untyped_storage()
        block = getattr(storage, "_block", None)
        if block is None:
            block = storage._block = Block(gpu)
        block.resize(storage.nbytes())


def place(x: Tensor) -> int | torch.device | None:
    """The number of its virtual GPU; None for the CPU; the device for any other."""
    if type(x) is VTensor:
        return x.gpu
    return None if x.is_cpu else x.device


def is_dtensor(x) -> bool:
    """Tell whether its part is on a virtual GPU. By name: importing the class itself takes a second."""
    return type(x).__name__ == "DTensor" and type(x._local_tensor) is VTensor


def place_of(device) -> int | torch.device | None:
    """The same for a device as people write it ("vgpu:1", 1, a torch.device). Raises if it is not there."""
    if not isinstance(device, torch.device):
        device = torch.device("vgpu", device) if isinstance(device, int) else torch.device(device)
    if device.type not in state["kinds"]:  # torch's C++ makes "vgpu:0" of a bare 0
        return None if device.type == "cpu" else device
    if wake := state.get("wake"):  # a rehearsal's: CUDA refuses in a forked child
        wake()
    gpu = here.gpu if device.index is None else device.index
    if not 0 <= gpu < state["count"]:
        raise _no_such_gpu(gpu)
    return gpu


def _no_such_gpu(gpu: int) -> RuntimeError:
    if state["name"] == "cuda":  # c10/cuda/CUDAException.cpp, with the hint of c10/cuda/CUDAMiscFunctions.cpp
        return torch.AcceleratorError(
            "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\n"
            "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might "
            "be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
        )
    there = f"there are {state['count']}" if state["count"] else "virtual GPUs are switched off: .on() switches them on"
    return RuntimeError(f"vgpu error: invalid device ordinal {gpu} ({there})")


# ---- moving ------------------------------------------------------------------------------------------------

real_to, real_data, real_device = TensorBase.to, TensorBase.data, TensorBase.device


class To(torch.autograd.Function):
    """A copy from one place to another; its gradient comes back the same way."""

    @staticmethod
    def forward(ctx, x, target):
        ctx.source, ctx.target = place(x), target
        with raw():
            data = x.clone()
            meter.count(here.cause, ctx.source, target, sum(part.nbytes for part in _parts(data)))
            return label(data, target)

    @staticmethod
    def backward(ctx, grad):
        return To.apply(label(grad, ctx.target), ctx.source), None


def move(x: Tensor, target: int | torch.device | None) -> Tensor:
    """x in another place: x itself if it is there already, else a differentiable, counted copy."""
    if is_dtensor(x):
        if x._local_tensor.gpu == target:
            return x
        if target is None and not (x.requires_grad and torch.is_grad_enabled()):
            return type(x)(move(x._local_tensor, None), x._spec, requires_grad=False)
        raise NotImplementedError(
            "a DTensor cannot be moved to another virtual GPU, nor back with its gradient: move its to_local(), "
            "full_tensor() or detach()"
        )
    if isinstance(place(x), torch.device):  # a real GPU's tensor
        x = x.cpu()
    if isinstance(target, torch.device):
        return real_to(move(x, None), target)
    return x if place(x) == target else To.apply(x, target)


def to(self: Tensor, *args, **kwargs) -> Tensor:
    """`Tensor.to` in all its forms, with virtual GPUs among the places to go to."""
    first = args[0] if args else kwargs.pop("other", kwargs.get("device"))
    if isinstance(first, Tensor):  # x.to(other)
        return to(self, first.device, first.dtype, *args[1:], **kwargs)
    if first is None or isinstance(first, torch.dtype):
        return real_to(self, *args, **kwargs)
    target = place_of(first)
    if type(self) is not VTensor and not isinstance(target, int) and not is_dtensor(self):
        return real_to(self, *args, **kwargs)
    rest = {name: value for name, value in kwargs.items() if name != "device"}
    return move(real_to(self, None, *args[1:], **rest), target)  # a new dtype, and so on, before the journey


def cpu(self: Tensor, memory_format=torch.preserve_format) -> Tensor:
    """`Tensor.cpu`."""
    return to(self, "cpu", memory_format=memory_format)


def device_of(self: Tensor) -> torch.device:
    """`Tensor.device`: a DTensor is where its part is, and C++ sees memory of the CPU there."""
    return self._local_tensor.device if is_dtensor(self) else real_device.__get__(self)


def set_data(self: Tensor, new: Tensor) -> None:
    """`self.data = new`, by which `Module.to` lets a parameter move and stay the same Python object.

    From the CPU to a virtual GPU and back, it becomes another kind of tensor: what C++ knows of it changes
    places with a new one, its own attributes and hooks stay. No backward through an older output can work
    then; on CUDA neither.
    """
    if (type(self) is VTensor) == (type(new) is VTensor):
        if type(self) is VTensor:
            self.gpu = new.gpu
        return real_data.__set__(self, new)
    grad, requires_grad = self.grad, self.requires_grad
    hooks, after = self._backward_hooks, self._post_accumulate_grad_hooks
    if requires_grad and self.is_leaf and not self.is_inference():
        torch.autograd.graph.get_gradient_edge(self).node.register_prehook(_moved)
    new = Parameter(new, requires_grad) if isinstance(self, Parameter) else new.detach()
    own = {name: value for name, value in self.__dict__.items() if name not in ("gpu", "_is_param")}
    self.__class__, new.__class__ = new.__class__, self.__class__
    self.__dict__, new.__dict__ = new.__dict__, self.__dict__
    torch._C._swap_tensor_impl(self, new)
    self.__dict__.update(own)
    self.requires_grad_(requires_grad)
    if hooks is not None:
        self._backward_hooks = hooks
    if after is not None:
        self._post_accumulate_grad_hooks = after
    with because(""):  # Module.to moves the gradient itself, right after this, and that is counted
        self.grad = None if grad is None else grad.to(self.device)


def _moved(grads):
    raise RuntimeError("a parameter was moved to another device between the forward and this backward")


# ---- the check ---------------------------------------------------------------------------------------------

_INDEXING = set("index index_put index_put_ _index_put_impl_ _unsafe_index".split())
_CPU_SCALARS = set("where masked_fill masked_fill_ fill fill_ index_fill index_fill_ lerp lerp_".split())
_RNN = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
_PACKING = {"_pack_padded_sequence", "_pad_packed_sequence"}
_SAME = "Expected all tensors to be on the same device, but "


def _tensors(items) -> list[Tensor]:
    found = []
    for item in items:
        if isinstance(item, Tensor):
            found.append(item)
        elif type(item) in (list, tuple):
            found += _tensors(item)
    return found


@functools.cache
def _name(func) -> str:
    return func._schema.name.removeprefix("aten::")


@functools.cache
def _name_and_draws(func) -> tuple[str, bool]:  # whether it draws random numbers
    return _name(func), torch.Tag.nondeterministic_seeded in func.tags


def _check(func, gpu: int, args: tuple, kwargs: dict) -> None:
    """Several places in one kernel: return if CUDA would run it, raise in its words if not."""
    name, specs = _name(func), func._schema.arguments
    if name == "copy_":
        source, target = place(args[1]), place(args[0])
        # What torch itself makes on the CPU (the number of x[0] = 3., a bucket without a label) crosses nothing there.
        if None not in (source, target) or not _torch_asks():
            meter.count(here.cause, source, target, args[0].nbytes)
        return None
    given = dict(zip((spec.name for spec in specs), args, strict=False)) | kwargs
    found = [(argument, t) for argument, value in given.items() for t in _tensors([value])]
    if name in _INDEXING:
        for index in _tensors([args[1]]):
            if place(index) not in (None, place(args[0])):
                where = f"either on cpu or on the same device as the indexed tensor ({args[0].device})"
                raise RuntimeError(f"indices should be {where}")
            meter.count(".to", place(index), place(args[0]), index.nbytes)
            if place(index) is None and meter.book:  # a list too; native/cuda/Copy.cu: memcpy_and_sync
                meter.book.copied("an index from the CPU", gpu, None)
        found = [(a, t) for a, t in found if a != "indices" and (a != "values" or t.dim())]
    elif name == "_pack_padded_sequence":
        found = found[:1]  # the lengths stay on the CPU
    elif name.startswith("_ctc_loss"):
        found = [(a, t) for a, t in found if not a.endswith("_lengths")]  # torch brings them to the CPU by itself
    elif torch.Tag.pointwise in func.tags or name in _CPU_SCALARS or name.startswith(("_foreach", "_fused")):
        written = {spec.name for spec in specs if spec.alias_info and spec.alias_info.is_write}
        found = [(a, t) for a, t in found if t.dim() or place(t) is not None or a in written]
    places = {place(t) for _, t in found}
    if len(places) > 1 and not (places == {None, gpu} and _torch_asks()):
        raise RuntimeError(_complaint(func, gpu, found))


def _torch_asks() -> bool:  # so that a CPU tensor can only be a helper of its own
    if here.strict is None:
        return torch._C._current_autograd_node() is not None  # a backward, in no call of yours
    return not here.strict


def _complaint(func, gpu: int, found: list[tuple[str, Tensor]]) -> str:
    name, (_, first) = _name(func), found[0]
    query, key, value = ([t.device for _, t in found] * 3)[:3]
    if name.startswith("_scaled_dot_product") and not query == key == value:  # native/transformers/sdp_utils_cpp.h
        same = "Expected query, key, and value to have the same device type"
        return f"{same}, but got query.device: {query} key.device: {key} and value.device: {value} instead."
    if torch.Tag.pointwise in func.tags or name in _ITERATED:
        other = next(t for _, t in found if place(t) != gpu)
        return f"{_SAME}found at least two devices, {state['name']}:{gpu} and {other.device}!"
    argument, other = next((a, t) for a, t in found if t.device != first.device)
    argument, kernel = _AS_CUDA.get(name, {}).get(argument, argument), _AS_CUDA.get(name, {}).get("", name)
    overload = "" if func._overloadname == "default" else func._overloadname
    method = "_".join(filter(None, (kernel, overload))) if kernel in _STRUCTURED else f"{overload}_{kernel}"
    which = f"got {argument} is on {other.device}, different from other tensors on {first.device}"
    return f"{_SAME}{which} (when checking argument in method wrapper_{state['name'].upper()}_{method})"


# Kernels that torch runs through TensorIterator, besides those that it tags as pointwise.
_ITERATED = set(
    "mse_loss smooth_l1_loss soft_margin_loss binary_cross_entropy binary_cross_entropy_with_logits".split()
)
_ITERATED |= _CPU_SCALARS | {"masked_scatter"}
# Where torchgen writes a kernel's overload behind its name; elsewhere it stands before it.
_STRUCTURED = set("addmm addmm_ addmv addmv_ baddbmm baddbmm_ bmm mm cat gather scatter scatter_ scatter_add".split())
_STRUCTURED |= set("scatter_add_ scatter_reduce scatter_reduce_ index_add index_add_ index_copy index_copy_".split())
_STRUCTURED |= set("nll_loss_forward isin linalg_cross linalg_lu_solve triangular_solve".split())
# What CUDA calls for a kernel that the CPU has of its own, and how the arguments are called there.
_AS_CUDA = {
    "mv": {"": "addmv_"},
    "_scaled_dot_product_flash_attention_for_cpu": {
        "": "_scaled_dot_product_efficient_attention",
        "attn_mask": "attn_bias",
    },
    "stack": {"": "cat"},
    "embedding": {"": "index_select", "indices": "index", "weight": "self"},
}


# ---- random numbers: each device its own, seeded alike, as on CUDA -----------------------------------------

kernels: dict = {}  # by name: those that torch has for real GPUs only
_seed = [0]
_generators: dict[int, torch.Generator] = {}  # of each device that has drawn; each draws by itself, in any thread


def seed_all(seed: int) -> None:
    """Let every device start anew from this seed."""
    _generators.clear()
    _seed[0] = int(seed)


def generator(gpu: int) -> torch.Generator:
    """The device's own."""
    return _generators.get(gpu) or _generators.setdefault(gpu, torch._C.Generator().manual_seed(_seed[0]))


def _like(fill: str, *numbers):  # rand_like and the like take no generator in every torch
    def draw(x, *given, generator, **options):
        out = torch.empty_like(x, **{key: value for key, value in options.items() if key != "pin_memory"})
        bounds = numbers or (0, *given)[-2:]
        return getattr(out, fill)(*bounds, generator=generator)

    return draw


def _dropout(x, p, train=True, *, generator):  # aten/src/ATen/native/Dropout.cpp: native_dropout_cpu
    if train is False or not x.numel():
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p, generator=generator)
    return x * mask * (0.0 if p == 1 else 1 / (1 - p)), mask


_WITH_GENERATOR = {
    "native_dropout": _dropout,
    "rand_like": _like("uniform_", 0, 1),
    "randn_like": _like("normal_", 0, 1),
}
_WITH_GENERATOR["randint_like"] = _like("random_")
device_generators: dict[int, int] = {}  # torch.Generator("vgpu:0"), by the address of its C++ part -> its GPU


@functools.cache
def _takes_generator(func) -> int | str | None:  # at which place, or by name
    for i, spec in enumerate(func._schema.arguments):
        if spec.name == "generator":
            return "generator" if spec.kwarg_only else i
    return None


def random(kernel, gpu: int, args: tuple, kwargs: dict):
    """Run a kernel that draws, from the device's own generator (or from the one that it was given)."""
    func = kernel
    where = _takes_generator(func)
    given = kwargs.get("generator") or (args[where] if isinstance(where, int) and len(args) > where else None)
    if given is not None:
        if given._cdata not in device_generators:
            raise RuntimeError(f"Expected a '{state['name']}' device type for generator but found 'cpu'")
        return func(*args, **kwargs)
    kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
    if isinstance(where, int):
        return func(*args[:where], generator(gpu), *args[where + 1 :], **kwargs)
    name = _name(func)
    if where is None and name in _WITH_GENERATOR:
        func = _WITH_GENERATOR[name]
    elif where is None:
        overload = "low_generator" if func._overloadname == "low" else "generator"
        func = getattr(getattr(torch.ops.aten, name), overload, None)
        if func is None:  # the CPU's attention, which draws nothing
            return kernel(*args, **kwargs)
    return func(*args, **kwargs, generator=generator(gpu))


# ---- the tensor --------------------------------------------------------------------------------------------

_LACKS = ("not implemented for", "not support bool dtypes on CPU")
_CPUS_WORDS = (  # a few operations are there for fewer dtypes on the CPU than on GPUs, such as histc of whole numbers
    "(These are the CPU's words, which computes for the virtual GPU. Whether a GPU refuses this too was not rehearsed.)"
)


def _is_mask(index) -> bool:
    return type(index) is VTensor and index.dtype in (torch.bool, torch.uint8)


# How large their result is, or what it is, a GPU tells the CPU by a copy.
_TOLD = {"nonzero", "masked_select", "equal", "_unique2", "unique_dim", "unique_consecutive", "bincount"}
_ASKS = _TOLD | _INDEXING | {"_local_scalar_dense", "repeat_interleave"}  # some only at times


def _asks(name: str, gpu: int, args: tuple, kwargs: dict) -> None:
    """Write down that a kernel of these makes the CPU wait for the GPU, if it does."""
    if name == "_local_scalar_dense":
        meter.count(".item()", gpu, None, args[0].nbytes)
    elif not meter.book:
        return
    elif name in _INDEXING:  # a mask's places filled with one number: TensorAdvancedIndexing.cpp asks nothing
        if any(_is_mask(it) for it in args[1]) and (len(args) < 3 or args[2].numel() != 1):
            meter.book.copied("a mask", gpu, None)
    elif name in _TOLD or kwargs.get("output_size") is None:
        meter.book.copied(name.strip("_2"), gpu, None)


class VTensor(Tensor):
    """A tensor on virtual GPU number `gpu`, made by `.to("vgpu:0")` or `torch.zeros(3, device="vgpu:0")`."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        __tracebackhide__ = True
        kwargs, (name, draws) = kwargs or {}, _name_and_draws(func)
        tensors = _tensors((*args, *kwargs.values()))
        places = [t.gpu for t in tensors if type(t) is VTensor]
        gpu = places[0]
        if torch.is_inference_mode_enabled() and func._can_decompose():  # what autograd's layer does elsewhere
            return func.decompose(*args, **kwargs)
        if places.count(gpu) < len(tensors):
            _check(func, gpu, args, kwargs)
        if kwargs.get("device") is not None:
            gpu = place_of(kwargs["device"]) if kwargs["device"].type in state["kinds"] else gpu
            kwargs = {**kwargs, "device": "cpu"}
        with DisableTorchFunctionSubclass(), _DisableTorchDispatch():
            if name in _ASKS:
                _asks(name, gpu, args, kwargs)
            if draws:
                out = kernels.get(name, random)(func, gpu, args, kwargs)
            else:
                try:
                    out = kernels.get(name, func)(*args, **kwargs)
                except RuntimeError as error:
                    if any(words in str(error) for words in _LACKS) and name not in kernels:
                        error.add_note(_CPUS_WORDS)
                    said = str(error).replace("but got torch.", f"but got torch.{state['name']}.")
                    said = said.replace("expected m1 and m2", "expected mat1 and mat2")  # native/cuda/Blas.cpp
                    if said != str(error):
                        raise type(error)(said) from None
                    raise
            if name == "_pack_padded_sequence":
                return label(out[0], gpu), out[1]
            if type(out) in (list, tuple):
                return type(out)(label(t, gpu) for t in out)
            return out if args and out is args[0] and type(out) is Tensor else label(out, gpu)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        __tracebackhide__ = True  # a learner's traceback ends in the learner's line; IPython reads this
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in _BEFORE:
            args = _BEFORE[name](*args)
        if name == "type_as":
            return to(*args)
        if kwargs.get("device") is not None:
            return _made_elsewhere(func, args, **kwargs)
        tensors = _tensors((*args, *kwargs.values()))
        if name in _RNN or name in _PACKING:  # lengths and batch sizes belong on the CPU
            tensors = [t for t in tensors if type(t) is VTensor or t.is_floating_point()]
        elif name == "ctc_loss":
            tensors = _tensors(args[:2])
        places = [t.gpu for t in tensors if type(t) is VTensor]
        gpu = places[0] if places else None
        outer, here.strict = here.strict, len(places) < len(tensors)
        try:
            if here.strict and torch.is_grad_enabled():
                args = _scalars_that_learn(name, args, gpu)
            casts = _is_any_autocast_enabled()
            if casts and name in _WIDE and torch.is_autocast_enabled(state["name"]):
                args = [_wide(x) for x in args]
            with DisableTorchFunctionSubclass():
                if casts:
                    with _autocast(name):
                        out = func(*args, **kwargs)
                else:
                    out = func(*args, **kwargs)
                if name in _RNN and torch.backends.cudnn.enabled:
                    _hold_to_cudnn(out, gpu, *args)
            if here.strict:
                return out
            if name in _PACKING:
                return label(out[0], gpu), *out[1:]
            if isinstance(out, (tuple, list)) and any(type(t) is Tensor for t in out):
                return type(out)([label(t, gpu) for t in out])
            return label(out, gpu) if type(out) is Tensor else out  # new_tensor's; operations label in the dispatch
        finally:
            here.strict = outer

    device = property(lambda self: torch.device(state["name"], self.gpu))
    is_vgpu = property(lambda self: state["name"] == "vgpu")
    is_cuda = property(lambda self: state["name"] == "cuda")
    is_cpu = property(lambda self: False)
    data = property(real_data.__get__, set_data)
    to, cpu = to, cpu

    def get_device(self) -> int:
        return self.gpu

    def tolist(self):
        return self.cpu().tolist()

    def numpy(self, **_):
        how = "Use Tensor.cpu() to copy the tensor to host memory first."
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. {how}")

    def type(self, dtype=None, **_):
        if dtype is not None:
            return self.to(dtype)
        with raw():
            return Tensor.type(self).replace("torch.", f"torch.{state['name']}.")

    def __repr__(self, **_):
        if meter.book:
            meter.book.copied("its repr", self.gpu, None)
        with raw():
            text = "Parameter containing:\n" * isinstance(self, Parameter) + repr(self.clone().detach())[:-1]
        last = f", grad_fn=<{self.grad_fn.name()}>" if self.grad_fn else ", requires_grad=True" * self.requires_grad
        return f"{text}, device='{self.device}'{last})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def __copy__(self) -> Tensor:
        return self.detach().requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo: dict) -> Tensor:
        if not isinstance(self, Parameter):
            return super().__deepcopy__(memo)
        return memo.setdefault(id(self), Parameter(self.data.clone(), self.requires_grad))

    def __reduce_ex__(self, protocol):  # as torch saves any tensor; checkpoint.py tags its storage
        if isinstance(self, Parameter):
            return torch._utils._rebuild_parameter, (self.data, self.requires_grad, OrderedDict())
        with raw():
            return Tensor.__reduce_ex__(self.detach().requires_grad_(self.requires_grad), protocol)

    def pin_memory(self, *_):
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")

    def is_pinned(self, *_) -> bool:
        return False

    def record_stream(self, stream) -> None:
        """Nothing: there are no streams."""

    def _refuse(self, *args, **kwargs):
        raise NotImplementedError("torch.compile and dlpack would lose the label of a virtual GPU's tensor")

    __dlpack__ = __dlpack_device__ = _refuse

    @property
    def __tensor_flatten__(self):  # what a compiler asks every kind of tensor that it does not know for
        if torch._guards.TracingContext.try_get() or torch._guards.active_fake_mode():
            self._refuse()
        raise AttributeError("__tensor_flatten__")


# ---- calls that need a word before they run ----------------------------------------------------------------


def _autocast(name: str):  # torch.autocast("vgpu"), done by the CPU's casts, and not torch.autocast("cpu")
    on = torch.is_autocast_enabled(state["name"]) and name not in _RNN  # which _check_rnn has cast
    return torch.autocast("cpu", torch.get_autocast_dtype(state["name"]) if on else None, enabled=on)


# What CUDA's autocast computes in float32, and the CPU's in half precision (aten/src/ATen/autocast_mode.h).
_WIDE = set("softmax log_softmax sum prod cumsum cumprod exp expm1 log log2 log10 log1p pow __pow__ __rpow__".split())
_WIDE |= set("reciprocal rsqrt softplus layer_norm group_norm norm dist cdist pdist cosine_similarity".split())
_WIDE |= set(
    "logsumexp cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div soft_margin_loss".split()
)
_WIDE |= set("binary_cross_entropy_with_logits poisson_nll_loss cosine_embedding_loss triplet_margin_loss".split())


def _wide(x):
    return x.float() if isinstance(x, Tensor) and x.dtype in (torch.float16, torch.bfloat16) else x


def _made_elsewhere(func, args: tuple, device, requires_grad=False, **kwargs):  # x.new_zeros(3, device=...)
    with because(""):
        return func(*args, **kwargs).to(device).requires_grad_(requires_grad)


def _scalars_that_learn(name: str, args: tuple, gpu: int) -> list:
    """A CPU scalar may mix in, unless it is written to; its gradient must find its way back to the CPU."""
    in_place = name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))

    def learns(x):
        return isinstance(x, Tensor) and x.requires_grad and x.dim() == 0 and place(x) is None

    with because(""):
        return [move(x, gpu) if learns(x) and not (in_place and x is args[0]) else x for x in args]


def _differentiable_copy(target, *args):  # x.copy_(y), x[i] = y: y's gradient must find its way back
    if torch.is_grad_enabled():
        args = [x.to(target.device) if isinstance(x, Tensor) and x.requires_grad and x.dim() else x for x in args]
    return target, *args


def _packed(sizes) -> bool:  # an RNN's second argument: batch sizes, where its input is a packed sequence
    return isinstance(sizes, Tensor) and not sizes.is_floating_point()


def _check_rnn(x, *args):  # input, [batch sizes,] hidden, weights, ...
    hidden, weights = args[1:3] if _packed(args[0]) else args[:2]
    for what, tensors in (("hidden", hidden), ("parameter", weights)):
        for t in _tensors([tensors]):
            if t.device != x.device:
                found = f"found input tensor at {x.device} and {what} tensor at {t.device}"
                raise RuntimeError(f"Input and {what} tensors are not at the same device, {found}")
    for name, t in zip(("hx", "cx"), _tensors([hidden]), strict=False):
        if not t.is_contiguous():  # as cuDNN has it
            raise RuntimeError(f"rnn: {name} is not contiguous")
    # aten/src/ATen/cudnn/AutocastRNN.cpp: to float16, whatever autocast says; without cuDNN, by its list, as cells are
    return _casts(x, *args, kind=torch.float16 if torch.backends.cudnn.enabled else None)


class _Once(torch.autograd.Function):
    """A zero that hangs on what cuDNN was given. Added to what goes into its backward, it is met in a second one."""

    @staticmethod
    def forward(ctx, *given):
        return torch.zeros(())

    @staticmethod
    def backward(ctx, _):  # tools/autograd/derivatives.yaml and FunctionsManual.cpp: kCudnnDoubleBackwardMsg
        raise NotImplementedError(
            "the derivative for '_cudnn_rnn_backward' is not implemented. Double backwards is not supported for CuDNN "
            "RNNs due to limitations in the CuDNN API. To run double backwards, please disable the CuDNN backend "
            "temporarily while running the forward pass of your RNN. For example: \n"
            "with torch.backends.cudnn.flags(enabled=False):\n    output = model(inputs)"
        )


def _hold_to_cudnn(out, gpu: int, *args) -> None:
    """Refuse as native/cudnn/RNN.cpp: a backward in evaluation mode, and a second one."""
    nodes = {t.grad_fn for t in _tensors(out) if t.grad_fn is not None}
    train = args[7 if _packed(args[1]) else 6]
    zero = _Once.apply(*(t for t in _tensors(args) if t.requires_grad)) if nodes and train else None

    def before(grads):
        if not train:
            raise RuntimeError("cudnn RNN backward can only be called in training mode")
        if torch.is_grad_enabled():  # with create_graph=True
            with raw():
                return tuple(g if g is None else label(g + zero, gpu) for g in grads)

    for node in nodes:
        node.register_prehook(before)


def _check_lengths(x, lengths, *args):
    if type(lengths) is VTensor:
        got = f"{lengths.dim()}D {lengths.device} Long tensor"
        raise RuntimeError(f"'lengths' argument should be a 1D CPU int64 tensor, but got {got}")
    return x, lengths, *args


def _check_conv(*args):  # native/Convolution.cpp, check_input_same_type_as_parameters
    if any(place(t) is not None for t in _tensors(args)):
        kind, *kinds = (_cast(t).type() for t in _tensors(args[:3]))
        for what, other in zip(("weight", "bias"), kinds, strict=False):
            if other != kind:
                raise RuntimeError(f"Input type ({kind}) and {what} type ({other}) should be the same")
        if args[0].dtype is torch.long:  # cudnn/Descriptors.cpp
            raise RuntimeError("getCudnnDataTypeFromScalarType() not supported for Long")
    return args


def _check_attention(q, *args):  # native/transformers/cuda/sdp_utils.cpp: of the kernels, these two take floats
    wide = torch.backends.cuda.math_sdp_enabled() or torch.backends.cuda.mem_efficient_sdp_enabled()
    if not wide and place(q) is not None and _cast(q).dtype not in (torch.half, torch.bfloat16):
        raise RuntimeError("No available kernel. Aborting execution.")
    return q, *args


def _cast(x, kind=None):  # by CUDA's autocast, which leaves what is on the CPU: autocast_mode.h, is_eligible
    casts = type(x) is VTensor and x.is_floating_point() and x.dtype != torch.float64
    casts = casts and torch.is_autocast_enabled(state["name"])
    return x.to(kind or torch.get_autocast_dtype(state["name"])) if casts else x


def _casts(*args, kind=None):  # all of a call that CUDA's autocast casts, and the CPU's does not
    if not _is_any_autocast_enabled():
        return args
    return [_casts(*x, kind=kind) if isinstance(x, (list, tuple)) else _cast(x, kind) for x in args]


def _check_bce(*args):  # aten/src/ATen/autocast_mode.h
    if torch.is_autocast_enabled(state["name"]):
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
            "Many models use a sigmoid layer right before the binary cross entropy layer.\nIn this case, combine the "
            "two layers using torch.nn.functional.binary_cross_entropy_with_logits\nor torch.nn.BCEWithLogitsLoss.  "
            "binary_cross_entropy_with_logits and BCEWithLogits are\nsafe to autocast."
        )
    return args


_BEFORE = {"binary_cross_entropy": _check_bce, "copy_": _differentiable_copy, "__setitem__": _differentiable_copy}
_BEFORE |= dict.fromkeys([f"conv{way}{n}d" for way in ("", "_transpose") for n in (1, 2, 3)], _check_conv)
_BEFORE["scaled_dot_product_attention"] = _check_attention
_BEFORE |= dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _casts)
_BEFORE |= dict.fromkeys(_RNN, _check_rnn) | {"_pack_padded_sequence": _check_lengths}
