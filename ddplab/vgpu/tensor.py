"""The label and the check: a CPU tensor that says it is on a virtual GPU, and is held to it.

A `VTensor` is a `torch.Tensor` whose memory is ordinary CPU memory. Three things make it a citizen of `vgpu:i`:

- the Python attributes that tell where a tensor is, or move it (`device`, `cpu()`, `to()`, `numpy()`, ...) go by the label;
- `__torch_dispatch__` sees each kernel before it runs, refuses to mix devices in CUDA's words, and labels the result;
- `__torch_function__` sees each call as you wrote it. Torch's C++ believes the tensor to be on the CPU, so inside one call
  it may make CPU tensors for its own use (a causal mask, zeros to scatter into). A call that was handed no CPU tensor can
  only meet such helpers, and takes them in; a call that was handed one is checked strictly.
"""

import functools
import threading
from collections import OrderedDict

import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass, _DisableTorchDispatch, _is_any_autocast_enabled

from .meter import Block, meter, place_name


class _Here(threading.local):  # what each thread knows; DataParallel runs one thread per replica
    gpu = 0  # what "vgpu" without a number means, as in torch.cuda.current_device()
    strict = (
        None  # in a call that was handed CPU tensors: True; that was handed none: False; in no call: None
    )
    cause = (
        ".to"  # what the meter is told about a copy; "" for copies that are only our own way of doing things
    )


here = _Here()
state = {"count": 0, "seeds": {}}  # how many virtual GPUs are on; each one's random numbers
_seeding = threading.Lock()


class raw:
    """Context: torch sees plain CPU tensors, without label, check or meter."""

    def __enter__(self):
        self.function, self.dispatch = DisableTorchFunctionSubclass(), _DisableTorchDispatch()
        self.function.__enter__()
        self.dispatch.__enter__()

    def __exit__(self, *_):
        self.dispatch.__exit__(None, None, None)
        self.function.__exit__(None, None, None)


class because:
    """Context: copies made in here are counted under this cause."""

    def __init__(self, cause: str):
        self.cause = cause

    def __enter__(self):
        self.outer, here.cause = here.cause, self.cause

    def __exit__(self, *_):
        here.cause = self.outer


# ---- the label -------------------------------------------------------------------------------------------------------


def label(data: Tensor, gpu: int | None) -> Tensor:
    """A VTensor on gpu over data's memory, without history; data itself for the CPU (None)."""
    if gpu is None:
        return data
    out = Tensor._make_subclass(VTensor, data)
    out.gpu = gpu
    _hold(data, gpu)
    return out


def adopt(tensor: Tensor | None, gpu: int | None) -> Tensor | None:
    """A helper tensor that torch's C++ made, labelled as what it is, its history kept; anything else as it is."""
    if type(tensor) is not Tensor or gpu is None or tensor.device.type != "cpu":
        return tensor
    out = tensor.as_subclass(VTensor)
    out.gpu = gpu
    _hold(tensor, gpu)
    return out


def _hold(data: Tensor, gpu: int) -> None:  # tell the meter, once for each piece of memory
    for part in (data,) if data.layout is torch.strided else _parts(data):
        storage = part.untyped_storage()
        if not hasattr(storage, "_block"):
            storage._block = Block(gpu, storage.nbytes())
        elif storage._block.nbytes != storage.nbytes():
            storage._block.resize(storage.nbytes())


def _parts(x: Tensor) -> tuple[Tensor, ...]:
    if x.layout is torch.strided and not x.is_nested:
        return (x,)
    if x.layout is torch.sparse_coo:
        return x._indices(), x._values()
    kind = "nested" if x.is_nested else x.layout
    raise NotImplementedError(f"virtual GPUs hold strided and sparse COO tensors, not {kind}")


def place(tensor: Tensor) -> int | None | torch.device:
    """The number of its virtual GPU, None on the CPU, the device anywhere else."""
    if type(tensor) is VTensor:
        return tensor.gpu
    return None if tensor.device.type == "cpu" else tensor.device


def gpu_of(device: object) -> int | None | torch.device:
    """The same, of a device as people write it ("vgpu:1", a number, a torch.device). Raises if there is no such one."""
    device = torch.device("vgpu", device) if isinstance(device, int) else torch.device(device)
    if device.type != "vgpu":
        return None if device.type == "cpu" else device
    gpu = here.gpu if device.index is None else device.index
    if not 0 <= gpu < state["count"]:
        there = f"there are {state['count']}" if state["count"] else "virtual GPUs are switched off"
        raise RuntimeError(f"vgpu error: invalid device ordinal {gpu} ({there})")
    return gpu


# ---- moving ----------------------------------------------------------------------------------------------------------


class To(torch.autograd.Function):
    """A copy from one place to another; its gradient comes back the same way."""

    @staticmethod
    def forward(ctx, x, gpu):
        ctx.source, ctx.target = place(x), gpu
        with raw():
            data = x.clone()  # fresh memory, same strides
            meter.count(here.cause, ctx.source, gpu, _nbytes(data))
            return label(data, gpu)

    @staticmethod
    def backward(ctx, grad):
        return To.apply(adopt(grad, ctx.target), ctx.source), None


def _nbytes(x: Tensor) -> int:
    return sum(part.numel() * part.element_size() for part in _parts(x))


def move(x: Tensor, gpu: int | None) -> Tensor:
    """x on gpu (None: the CPU): x itself if it is there, else a differentiable, counted copy."""
    source = place(x)
    if isinstance(source, torch.device):
        x = x.cpu()
    return x if source == gpu else To.apply(x, gpu)


def to(self: Tensor, *args, **kwargs) -> Tensor:
    """`Tensor.to`, in all its forms, with virtual GPUs among the places to go to."""
    first = args[0] if args else kwargs.get("device", kwargs.get("other"))
    if isinstance(first, Tensor):
        kwargs.setdefault("dtype", first.dtype)
        first = first.device
        args, kwargs = (), {k: v for k, v in kwargs.items() if k != "other"} | {"device": first}
    ours = type(self) is VTensor
    if isinstance(first, (str, torch.device)) or (type(first) is int and state["count"]):
        target = gpu_of(first)
        if ours or isinstance(target, int):
            if args:
                args = (None, *args[1:])
            else:
                kwargs["device"] = None
            here_ = real_to(self, *args, **kwargs) if len(args) > 1 or len(kwargs) > (not args) else self
            if isinstance(target, torch.device):
                return move(here_, None).to(target)
            return move(here_, target)
    return real_to(self, *args, **kwargs)


real_to, real_data = torch._C.TensorBase.to, torch._C.TensorBase.data


def set_data(self: Tensor, new: Tensor) -> None:
    """`self.data = new`, by which `Module.to` lets a parameter move and stay the same Python object.

    From the CPU to a virtual GPU and back, the object becomes another kind of tensor: all that Python and C++ know of it
    changes places with a new tensor's. A backward through an output from before the move cannot work; on CUDA neither.
    """
    if type(self) is type(new) is VTensor:
        self.gpu = new.gpu
    if (type(self) is VTensor) == (type(new) is VTensor):
        return real_data.__set__(self, new)
    grad, requires_grad = self.grad, self.requires_grad
    if requires_grad and self.is_leaf:
        torch.autograd.graph.get_gradient_edge(self).node.register_prehook(_moved)
    new = torch.nn.Parameter(new, requires_grad) if isinstance(self, torch.nn.Parameter) else new.detach()
    self.__class__, new.__class__ = new.__class__, self.__class__
    self.__dict__, new.__dict__ = new.__dict__, self.__dict__
    torch._C._swap_tensor_impl(self, new)
    self.requires_grad_(requires_grad)
    with because(""):  # Module.to moves the gradient itself, right after this, and is counted then
        self.grad = None if grad is None else grad.to(self.device)


def _moved(grads):
    raise RuntimeError("a parameter was moved to another device between the forward and this backward")


# ---- the check -------------------------------------------------------------------------------------------------------

_INDEXING = {
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_unsafe_index",
}
_CPU_SCALARS = {
    "where",
    "masked_fill",
    "masked_fill_",
    "fill",
    "fill_",
    "index_fill",
    "index_fill_",
    "lerp",
    "lerp_",
}
_RNN = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
_CPU_INTEGERS = {
    *_RNN,
    "_pack_padded_sequence",
    "_pad_packed_sequence",
}  # lengths stay on the CPU, on CUDA too


def _tensors(items):
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif type(item) in (list, tuple):
            yield from _tensors(item)


def _check(func, args: tuple, kwargs: dict) -> None:
    """Several devices in one kernel: return if CUDA would run it, raise in its words if not."""
    schema = func._schema
    name = schema.name
    if name == "aten::copy_":
        target, source = args[0], args[1]
        return meter.count(here.cause, place(source), place(target), target.numel() * target.element_size())
    named = [(spec, value) for spec, value in zip(schema.arguments, args, strict=False)]
    named += [(spec, kwargs[spec.name]) for spec in schema.arguments if spec.name in kwargs]
    found = [(spec, t) for spec, value in named for t in _tensors([value])]
    ours = next(t for _, t in found if type(t) is VTensor)
    if name in _INDEXING:
        for index in _tensors([args[1]]):
            if place(index) not in (None, place(args[0])):
                on = args[0].device
                raise RuntimeError(
                    f"indices should be either on cpu or on the same device as the indexed tensor ({on})"
                )
            meter.count(".to", place(index), place(args[0]), index.numel() * index.element_size())
        found = [
            (spec, t)
            for spec, t in found
            if spec.name != "indices" and (spec.name != "values" or t.dim() > 0)
        ]
    elif name == "aten::_pack_padded_sequence":
        found = found[:1]
    else:
        short = name.removeprefix("aten::")
        if (
            torch.Tag.pointwise in func.tags
            or short in _CPU_SCALARS
            or short.startswith(("_foreach", "_fused"))
        ):
            found = [
                (s, t)
                for s, t in found
                if t.dim() > 0 or place(t) is not None or (s.alias_info and s.alias_info.is_write)
            ]
    places = {place(t) for _, t in found}
    if len(places) < 2:
        return
    if not here.strict and places <= {None, ours.gpu} and _in_cpp():
        return
    raise RuntimeError(_complaint(func, found, ours))


def _in_cpp() -> bool:  # is torch's C++ asking, so that a CPU tensor can only be its own helper?
    if here.strict is None:  # no call of yours: the backward of a C++ function, or of a Python one
        node = torch._C._current_autograd_node()
        return node is not None and not isinstance(node, torch.autograd.function.BackwardCFunction)
    return True


def _complaint(func, found, ours) -> str:
    name = func._schema.name.removeprefix("aten::")
    if name.startswith("convolution") and any(place(t) is None for _, t in found):
        kinds = [t.type() for _, t in found[:2]]
        if kinds[0] != kinds[1]:
            return f"Input type ({kinds[0]}) and weight type ({kinds[1]}) should be the same"
    same = "Expected all tensors to be on the same device, but "
    if torch.Tag.pointwise in func.tags:
        other = next(t for _, t in found if place(t) != ours.gpu)
        return f"{same}found at least two devices, {ours.device} and {other.device}!"
    first = found[0][1].device
    spec, other = next((s, t) for s, t in found if t.device != first)
    return (
        f"{same}got {spec.name} is on {other.device}, different from other tensors on {first} "
        f"(when checking argument in method wrapper_VGPU_{name})"
    )


def _check_rnn(args: tuple) -> None:  # input, [batch_sizes,] hidden, weights, ...
    rest = args[1:] if type(args[1]) in (list, tuple) or args[1].is_floating_point() else args[2:]
    for what, tensors in (("hidden", rest[:1]), ("parameter", rest[1:2])):
        for t in _tensors(tensors):
            if t.device != args[0].device:
                raise RuntimeError(
                    f"Input and {what} tensors are not at the same device, found input tensor at {args[0].device} "
                    f"and {what} tensor at {t.device}"
                )


@functools.cache
def _special(func) -> str | None:  # the few kernels that need more than a check and a label
    name = func._schema.name.removeprefix("aten::")
    if name in ("_local_scalar_dense", "_pack_padded_sequence"):
        return name
    if torch.Tag.nondeterministic_seeded in func.tags:
        return "random"
    if "out" in func._overloadname or name in ("resize_", "resize_as_", "set_"):
        return "resize"
    return None


def seed_all(seed: int) -> None:
    """Every device starts the same sequence of random numbers, as on CUDA."""
    state["seeds"] = {}
    state["seed"] = torch.Generator().manual_seed(seed).get_state()


def get_seed(gpu: int) -> Tensor:
    return state["seeds"].get(gpu, state["seed"])


def _random(func, gpu: int, args: tuple, kwargs: dict):
    if kwargs.get("generator") is not None or any(isinstance(a, torch.Generator) for a in args):
        raise RuntimeError("Expected a 'vgpu' device type for generator but found 'cpu'")
    with _seeding:
        outer = torch.get_rng_state()
        torch.set_rng_state(get_seed(gpu))
        try:
            return func(*args, **kwargs)
        finally:
            state["seeds"][gpu] = torch.get_rng_state()
            torch.set_rng_state(outer)


# ---- the tensor ------------------------------------------------------------------------------------------------------


class VTensor(Tensor):
    """A tensor on virtual GPU number `gpu`. Not made directly: use `.to("vgpu:0")` or `torch.zeros(3, device="vgpu:0")`."""

    gpu: int

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        gpu, mixed = None, False
        for arg in (*args, *kwargs.values()) if kwargs else args:
            for t in arg if type(arg) in (list, tuple) else (arg,):
                if type(t) is VTensor:
                    if gpu is None:
                        gpu = t.gpu
                    elif t.gpu != gpu:
                        mixed = True
                elif isinstance(t, Tensor):
                    mixed = True
        if mixed:
            _check(func, args, kwargs)
        special = _special(func)
        if "device" in kwargs and kwargs["device"] is not None:
            gpu = kwargs["device"].index if kwargs["device"].type == "vgpu" else gpu
            kwargs = {**kwargs, "device": "cpu"}
        with DisableTorchFunctionSubclass(), _DisableTorchDispatch():  # raw(), at half the price
            out = func(*args, **kwargs) if special != "random" else _random(func, gpu, args, kwargs)
            if type(out) is Tensor:
                out = out if mixed and out is args[0] else label(out, gpu)
            elif special == "_pack_padded_sequence":
                out = label(out[0], gpu), out[1]  # the batch sizes stay on the CPU
            elif type(out) in (list, tuple):
                out = type(out)(label(t, gpu) if type(t) is Tensor else t for t in out)
            if special == "resize":
                for t in _tensors([out]):
                    _hold(t, gpu)
            elif special == "_local_scalar_dense":
                meter.count(here.cause and ".item()", gpu, None, args[0].element_size())
        return out

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "type_as":
            return to(*args)
        if name in _BEFORE:
            args = _BEFORE[name](args)
        if kwargs.get("device") is not None:
            return _make_elsewhere(func, args, kwargs)
        outer = here.strict
        here.strict = _handed_cpu(args, name) or (bool(kwargs) and _handed_cpu(kwargs.values(), name))
        if here.strict and torch.is_grad_enabled():
            args = _scalars_that_learn(args)
        try:
            with DisableTorchFunctionSubclass():
                if _is_any_autocast_enabled():
                    with _autocast():
                        out = func(*args, **kwargs)
                else:
                    out = func(*args, **kwargs)
            if here.strict or type(out) is VTensor or not isinstance(out, (Tensor, tuple, list)):
                return out
            gpu = next((t.gpu for t in _tensors((*args, *kwargs.values())) if type(t) is VTensor), None)
            if type(out) is Tensor:
                return adopt(out, gpu)
            if name in _CPU_INTEGERS and name not in _RNN:
                return adopt(out[0], gpu), *out[1:]
            if any(type(t) is Tensor for t in out):
                return type(out)([adopt(t, gpu) for t in out])
            return out
        finally:
            here.strict = outer

    device = property(lambda self: torch.device("vgpu", self.gpu))
    is_vgpu = property(lambda self: True)
    is_cpu = property(lambda self: False)
    to = to
    data = property(lambda self: real_data.__get__(self), set_data)

    def get_device(self) -> int:
        return self.gpu

    def cpu(self, memory_format=torch.preserve_format) -> Tensor:
        return move(self, None)

    def tolist(self):
        return self.cpu().tolist()

    def numpy(self, **_):
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def type(self, dtype=None, **_):
        with raw():
            mine = Tensor.type(self).replace("torch.", "torch.vgpu.")
        if dtype is None or dtype == mine:
            return mine if dtype is None else self
        if isinstance(dtype, torch.dtype):
            return self.to(dtype)
        raise NotImplementedError(
            f"Tensor.type({dtype!r}) of a tensor on {self.device}: use .to(device, dtype)"
        )

    def type_as(self, other: Tensor) -> Tensor:
        return self.to(other)

    def __repr__(self, **_):
        with raw():
            text = repr(To.apply(self, None) if self.is_sparse else self.clone().detach())[:-1]
        tail = ", requires_grad=True" if self.requires_grad else ""
        tail = f", grad_fn=<{self.grad_fn.name()}>" if self.grad_fn is not None else tail
        return (
            "Parameter containing:\n" * hasattr(self, "_is_param") + f"{text}, device='{self.device}'{tail})"
        )

    def backward(self, gradient=None, retain_graph=None, create_graph=False, inputs=None):
        torch.autograd.backward(self, gradient, retain_graph, create_graph, inputs=inputs)

    def __format__(self, spec: str) -> str:
        return self.item().__format__(spec) if self.dim() == 0 else object.__format__(self, spec)

    def __deepcopy__(self, memo: dict) -> Tensor:
        if not isinstance(self, torch.nn.Parameter):
            return super().__deepcopy__(memo)
        if id(self) not in memo:
            memo[id(self)] = torch.nn.Parameter(self.data.clone(), self.requires_grad)
        return memo[id(self)]

    def __copy__(self) -> Tensor:
        return self.detach().requires_grad_(self.requires_grad)

    def __reduce_ex__(
        self, protocol
    ):  # torch's own way for devices whose memory it cannot save: no class of ours in the file
        if isinstance(self, torch.nn.Parameter):
            return torch._utils._rebuild_parameter, (self.data, self.requires_grad, OrderedDict())
        args = (self.detach().cpu(), self.dtype, str(self.device), self.requires_grad)
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, args

    def _refuse(self, *args, **kwargs):
        raise NotImplementedError("torch.compile, torch.export and dlpack would lose the label of a virtual GPU's tensor")

    __dlpack__ = __dlpack_device__ = _refuse

    @property
    def __tensor_flatten__(self):  # what a compiler asks every unknown kind of tensor for
        if torch._guards.TracingContext.try_get() is not None or torch._guards.active_fake_mode() is not None:
            self._refuse()
        raise AttributeError("__tensor_flatten__")


def _handed_cpu(items, name: str) -> bool:
    return any(
        type(t) is not VTensor and not (name in _CPU_INTEGERS and not t.is_floating_point())
        for t in _tensors(items)
    )


def _scalars_that_learn(args: tuple) -> tuple:  # a CPU scalar may mix in; its gradient goes back to the CPU
    gpu = next((t.gpu for t in args if type(t) is VTensor), None)
    learns = [isinstance(t, Tensor) and place(t) is None and t.requires_grad and t.dim() == 0 for t in args]
    if gpu is None or not any(learns):
        return args
    with because(""):
        return tuple(move(t, gpu) if learn else t for t, learn in zip(args, learns, strict=True))


def _make_elsewhere(
    func, args: tuple, kwargs: dict
):  # torch.zeros_like(x, device=...), x.new_zeros(3, device=...)
    kwargs = dict(kwargs)
    device, requires_grad = kwargs.pop("device"), kwargs.pop("requires_grad", False)
    with because(""):
        return func(*args, **kwargs).to(device).requires_grad_(requires_grad)


def _autocast():  # torch.autocast("vgpu"), done by the CPU's casts, and not torch.autocast("cpu")
    on = torch.is_autocast_enabled("vgpu")
    return torch.autocast("cpu", torch.get_autocast_dtype("vgpu") if on else None, enabled=on)


def _differentiable_copy(
    args: tuple,
) -> tuple:  # x.copy_(y) and x[i] = y: y's gradient must find its way back
    target, source = args[0], args[-1] if len(args) == 3 else args[1]
    if isinstance(source, Tensor) and source.requires_grad and torch.is_grad_enabled() and source.dim():
        return tuple(source.to(target.device) if a is source else a for a in args)
    return args


def _lengths(args: tuple) -> tuple:
    if type(args[1]) is VTensor:
        raise RuntimeError(
            f"'lengths' argument should be a 1D CPU int64 tensor, but got {args[1].dim()}D {args[1].device} Long tensor"
        )
    return args


_BEFORE = {
    "copy_": _differentiable_copy,
    "__setitem__": _differentiable_copy,
    "_pack_padded_sequence": _lengths,
}
_BEFORE |= dict.fromkeys(_RNN, lambda args: _check_rnn(args) or args)
