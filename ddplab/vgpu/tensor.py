"""The label and the check: a CPU tensor that says it is on a virtual GPU, and is held to it.

A `VTensor` is a `torch.Tensor` whose memory is ordinary CPU memory. Three things make it a citizen of
`vgpu:i`:

- the Python attributes that tell where a tensor is, or move it (`device`, `cpu()`, `to()`, ...) go by the
  label;
- `__torch_dispatch__` sees each kernel before it runs, refuses to mix devices, and labels the result;
- `__torch_function__` sees each call as you wrote it. Torch's C++ believes the tensor to be on the CPU,
  so inside one call it may make CPU tensors for its own use (a causal mask, zeros to scatter into). A
  call that was handed no CPU tensor can only meet such helpers, and takes them in; a call that was handed
  one is checked strictly.
"""

import contextlib
import functools
import threading
from collections import OrderedDict

import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass, TensorBase, _DisableTorchDispatch, _is_any_autocast_enabled

from .meter import Block, meter


class _Here(threading.local):  # what each thread knows; DataParallel runs one thread per replica
    gpu = 0  # what "vgpu" without a number means, as in torch.cuda.current_device()
    cause = ".to"  # what the meter is told about a copy; "" where the copy is only our way of doing things
    strict = None  # inside a call: was it handed a CPU tensor? None outside


here = _Here()
state = {"count": 0, "seeds": {}}  # how many virtual GPUs are on, and each one's random numbers
_seeding = threading.Lock()


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


def label(data: Tensor, gpu: int | None) -> Tensor:
    """A VTensor on gpu over data's memory, without history; data itself for the CPU (None)."""
    if gpu is None:
        return data
    _hold(data, gpu)
    out = Tensor._make_subclass(VTensor, data)
    out.gpu = gpu
    return out


def adopt(tensor, gpu: int | None):
    """A helper that torch's C++ made, labelled as what it is, its history kept; anything else as it is."""
    if type(tensor) is not Tensor or gpu is None or tensor.device.type != "cpu":
        return tensor
    _hold(tensor, gpu)
    out = tensor.as_subclass(VTensor)
    out.gpu = gpu
    return out


def _parts(x: Tensor) -> tuple[Tensor, ...]:  # the pieces of memory
    if x.layout is torch.sparse_coo:
        return x._indices(), x._values()
    if x.layout is torch.strided and not x.is_nested:
        return (x,)
    raise NotImplementedError("virtual GPUs hold strided and sparse COO tensors only, no nested or compressed ones")


def _hold(data: Tensor, gpu: int) -> None:  # tell the meter, once for each piece of memory
    for part in (data,) if data.layout is torch.strided else _parts(data):
        storage = part.untyped_storage()
        if not hasattr(storage, "_block"):
            storage._block = Block(gpu, storage.nbytes())
        elif storage._block.nbytes != storage.nbytes():
            storage._block.resize(storage.nbytes())


def place(tensor: Tensor) -> int | torch.device | None:
    """The number of its virtual GPU; None for the CPU; the device for any other."""
    if type(tensor) is VTensor:
        return tensor.gpu
    return None if tensor.device.type == "cpu" else tensor.device


def gpu_of(device) -> int | torch.device | None:
    """The same for a device as people write it ("vgpu:1", 1, a torch.device). Raises if it is not there."""
    device = torch.device("vgpu", device) if isinstance(device, int) else torch.device(device)
    if device.type != "vgpu":
        return None if device.type == "cpu" else device
    gpu = here.gpu if device.index is None else device.index
    if not 0 <= gpu < state["count"]:
        there = f"there are {state['count']}" if state["count"] else "virtual GPUs are switched off"
        raise RuntimeError(f"vgpu error: invalid device ordinal {gpu} ({there})")
    return gpu


# ---- moving ------------------------------------------------------------------------------------------------

real_to, real_data = TensorBase.to, TensorBase.data


class To(torch.autograd.Function):
    """A copy from one place to another; its gradient comes back the same way."""

    @staticmethod
    def forward(ctx, x, gpu):
        ctx.source, ctx.target = place(x), gpu
        with raw():
            data = x.clone()
            meter.count(here.cause, ctx.source, gpu, sum(p.numel() * p.element_size() for p in _parts(data)))
            return label(data, gpu)

    @staticmethod
    def backward(ctx, grad):
        return To.apply(adopt(grad, ctx.target), ctx.source), None


def move(x: Tensor, gpu: int | None) -> Tensor:
    """x on gpu (None: the CPU): x itself if it is there, else a differentiable, counted copy."""
    if isinstance(place(x), torch.device):
        x = x.cpu()  # a real GPU's
    return x if place(x) == gpu else To.apply(x, gpu)


def to(self: Tensor, *args, **kwargs) -> Tensor:
    """`Tensor.to` in all its forms, with virtual GPUs among the places to go to."""
    first, rest = (args[0], args[1:]) if args else (kwargs.get("device", kwargs.get("other")), ())
    others = {k: v for k, v in kwargs.items() if k not in ("device", "other")}
    if isinstance(first, Tensor):  # x.to(other)
        first, others = first.device, {"dtype": first.dtype, **others}
    if isinstance(first, (str, torch.device)) or (type(first) is int and state["count"]):
        target = gpu_of(first)
        if type(self) is VTensor or isinstance(target, int):
            out = real_to(self, None, *rest, **others) if rest or others else self  # a new dtype, and so on
            return move(out, None).to(target) if isinstance(target, torch.device) else move(out, target)
    if torch.nn.parameter.is_lazy(self):  # it knows torch's `to` only
        with DisableTorchFunctionSubclass():
            return real_to(self, *args, **kwargs)
    return real_to(self, *args, **kwargs)


def set_data(self: Tensor, new: Tensor) -> None:
    """`self.data = new`, by which `Module.to` lets a parameter move and stay the same Python object.

    From the CPU to a virtual GPU and back, it becomes another kind of tensor: all that Python and C++ know of
    it changes places with a new one. No backward through an older output can work then; on CUDA neither.
    """
    if (type(self) is VTensor) == (type(new) is VTensor):
        if type(self) is VTensor:
            self.gpu = new.gpu
        return real_data.__set__(self, new)
    grad, requires_grad = self.grad, self.requires_grad
    if requires_grad and self.is_leaf:
        torch.autograd.graph.get_gradient_edge(self).node.register_prehook(_moved)
    new = torch.nn.Parameter(new, requires_grad) if isinstance(self, torch.nn.Parameter) else new.detach()
    self.__class__, new.__class__ = new.__class__, self.__class__
    self.__dict__, new.__dict__ = new.__dict__, self.__dict__
    torch._C._swap_tensor_impl(self, new)
    self.requires_grad_(requires_grad)
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


def _tensors(items):
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif type(item) in (list, tuple):
            yield from _tensors(item)


@functools.cache
def _name(func) -> str:
    return func._schema.name.removeprefix("aten::")


def _check(func, args: tuple, kwargs: dict) -> None:
    """Several devices in one kernel: return if CUDA would run it, raise in its words if not."""
    name, specs = _name(func), func._schema.arguments
    if name == "copy_":
        nbytes = args[0].numel() * args[0].element_size()
        return meter.count(here.cause, place(args[1]), place(args[0]), nbytes)
    given = [*zip(specs, args, strict=False), *((s, kwargs[s.name]) for s in specs if s.name in kwargs)]
    found = [(spec, t) for spec, value in given for t in _tensors([value])]
    first = next(t for _, t in found if type(t) is VTensor)
    if name in _INDEXING:
        for index in _tensors([args[1]]):
            if place(index) not in (None, place(args[0])):
                where = f"either on cpu or on the same device as the indexed tensor ({args[0].device})"
                raise RuntimeError(f"indices should be {where}")
            meter.count(".to", place(index), place(args[0]), index.numel() * index.element_size())
        found = [(s, t) for s, t in found if s.name != "indices" and (s.name != "values" or t.dim())]
    elif name == "_pack_padded_sequence":
        found = found[:1]  # the lengths stay on the CPU
    elif torch.Tag.pointwise in func.tags or name in _CPU_SCALARS or name.startswith(("_foreach", "_fused")):
        written = {s.name for s in specs if s.alias_info and s.alias_info.is_write}
        found = [(s, t) for s, t in found if t.dim() or place(t) is not None or s.name in written]
    places = {place(t) for _, t in found}
    if len(places) > 1 and (here.strict or not places <= {None, first.gpu} or not _in_cpp()):
        raise RuntimeError(_complaint(func, found, first))


def _in_cpp() -> bool:  # is torch's C++ asking, so that a CPU tensor can only be a helper of its own?
    node = torch._C._current_autograd_node() if here.strict is None else None  # a backward, in no call of yours
    if here.strict is None and node is None:
        return False
    return not isinstance(node, torch.autograd.function.BackwardCFunction)


def _complaint(func, found, first: Tensor) -> str:
    name = _name(func)
    if name.startswith("convolution") and {place(t) for _, t in found[:2]} == {None, first.gpu}:
        kinds = "Input type ({}) and weight type ({}) should be the same"
        return kinds.format(*(t.type() for _, t in found[:2]))
    if torch.Tag.pointwise in func.tags:
        other = next(t for _, t in found if place(t) != first.gpu)
        return f"{_SAME}found at least two devices, {first.device} and {other.device}!"
    here_ = found[0][1].device
    spec, other = next((s, t) for s, t in found if t.device != here_)
    which = f"got {spec.name} is on {other.device}, different from other tensors on {here_}"
    return f"{_SAME}{which} (when checking argument in method wrapper_VGPU_{name})"


# ---- random numbers: each device its own, seeded alike, as on CUDA -----------------------------------------


def seed_all(seed: int) -> None:
    """Let every device start anew from this seed."""
    state["seeds"], state["seed"] = {}, torch.Generator().manual_seed(seed).get_state()


def get_seed(gpu: int) -> Tensor:
    """The state of a device's generator."""
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


# ---- the tensor --------------------------------------------------------------------------------------------


@functools.cache
def _special(func) -> str | None:  # the few kernels that need more than a check and a label
    if _name(func) in ("_local_scalar_dense", "_pack_padded_sequence"):
        return _name(func)
    if torch.Tag.nondeterministic_seeded in func.tags:
        return "random"
    return "resize" if "out" in func._overloadname or _name(func) in ("resize_", "resize_as_", "set_") else None


class VTensor(Tensor):
    """A tensor on virtual GPU number `gpu`, made by `.to("vgpu:0")` or `torch.zeros(3, device="vgpu:0")`."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs, gpu, mixed = kwargs or {}, None, False
        for arg in (*args, *kwargs.values()) if kwargs else args:
            for t in arg if type(arg) in (list, tuple) else (arg,):
                if type(t) is VTensor:
                    gpu = t.gpu if gpu is None else gpu
                    mixed = mixed or t.gpu != gpu
                elif isinstance(t, Tensor):
                    mixed = True
        if mixed:
            _check(func, args, kwargs)
        if kwargs.get("device") is not None:
            gpu = kwargs["device"].index if kwargs["device"].type == "vgpu" else gpu
            kwargs = {**kwargs, "device": "cpu"}
        special = _special(func)
        with DisableTorchFunctionSubclass(), _DisableTorchDispatch():
            out = func(*args, **kwargs) if special != "random" else _random(func, gpu, args, kwargs)
            if type(out) is Tensor:
                return out if mixed and out is args[0] else label(out, gpu)
            if special == "_pack_padded_sequence":
                return label(out[0], gpu), out[1]
            if type(out) in (list, tuple):
                return type(out)(label(t, gpu) if type(t) is Tensor else t for t in out)
            if special == "resize" and type(out) is VTensor:
                _hold(out, gpu)
            elif special == "_local_scalar_dense":
                meter.count(here.cause and ".item()", gpu, None, args[0].element_size())
            return out

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in _BEFORE:
            args = _BEFORE[name](args)
        if name == "type_as":
            return to(*args)
        if kwargs.get("device") is not None:
            return _made_elsewhere(func, args, **kwargs)
        outer = here.strict
        here.strict = _handed_cpu(name, args) or (bool(kwargs) and _handed_cpu(name, kwargs.values()))
        try:
            args = _scalars_that_learn(args) if here.strict and torch.is_grad_enabled() else args
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
            if name in _PACKING:
                return adopt(out[0], gpu), *out[1:]
            return type(out)([adopt(t, gpu) for t in out]) if any(type(t) is Tensor for t in out) else out
        finally:
            here.strict = outer

    device = property(lambda self: torch.device("vgpu", self.gpu))
    is_vgpu = property(lambda self: True)
    is_cpu = property(lambda self: False)
    data = property(real_data.__get__, set_data)
    to = to

    def get_device(self) -> int:
        return self.gpu

    def cpu(self, memory_format=torch.preserve_format) -> Tensor:
        return move(self, None)

    def tolist(self):
        return self.cpu().tolist()

    def numpy(self, **_):
        how = "Use Tensor.cpu() to copy the tensor to host memory first."
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. {how}")

    def type(self, dtype=None, **_):
        if isinstance(dtype, torch.dtype):
            return self.to(dtype)
        if dtype is not None:
            raise NotImplementedError(f"Tensor.type({dtype!r}) on {self.device}: use .to(device, dtype)")
        with raw():
            return Tensor.type(self).replace("torch.", "torch.vgpu.")

    def __repr__(self, **_):
        with raw():
            text = "Parameter containing:\n" * hasattr(self, "_is_param") + repr(self.clone().detach())[:-1]
        last = f", grad_fn=<{self.grad_fn.name()}>" if self.grad_fn else ", requires_grad=True" * self.requires_grad
        return f"{text}, device='{self.device}'{last})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def backward(self, gradient=None, retain_graph=None, create_graph=False, inputs=None):
        torch.autograd.backward(self, gradient, retain_graph, create_graph, inputs=inputs)

    def __copy__(self) -> Tensor:
        return self.detach().requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo: dict) -> Tensor:
        if not isinstance(self, torch.nn.Parameter):
            return super().__deepcopy__(memo)
        if id(self) not in memo:
            memo[id(self)] = torch.nn.Parameter(self.data.clone(), self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol):  # torch's own way for memory it cannot save: no class of ours in the file
        if isinstance(self, torch.nn.Parameter):
            return torch._utils._rebuild_parameter, (self.data, self.requires_grad, OrderedDict())
        args = (self.detach().cpu(), self.dtype, str(self.device), self.requires_grad)
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, args

    def _refuse(self, *args, **kwargs):
        raise NotImplementedError("torch.compile and dlpack would lose the label of a virtual GPU's tensor")

    __dlpack__ = __dlpack_device__ = _refuse

    @property
    def __tensor_flatten__(self):  # what a compiler asks every kind of tensor that it does not know for
        if torch._guards.TracingContext.try_get() or torch._guards.active_fake_mode():
            self._refuse()
        raise AttributeError("__tensor_flatten__")


# ---- calls that need a word before they run ----------------------------------------------------------------


def _handed_cpu(name: str, items) -> bool:  # lengths and batch sizes of packed sequences belong on the CPU
    integers = name in _RNN or name in _PACKING
    return any(type(t) is not VTensor and not (integers and not t.is_floating_point()) for t in _tensors(items))


def _scalars_that_learn(args: tuple) -> tuple:  # a CPU scalar may mix in; its gradient goes back to the CPU
    gpu = next((t.gpu for t in args if type(t) is VTensor), None)
    learns = [isinstance(t, Tensor) and place(t) is None and t.requires_grad and t.dim() == 0 for t in args]
    if gpu is None or not any(learns):
        return args
    with because(""):
        return tuple(move(t, gpu) if learn else t for t, learn in zip(args, learns, strict=True))


def _made_elsewhere(func, args: tuple, device, requires_grad=False, **kwargs):  # x.new_zeros(3, device=...)
    with because(""):
        return func(*args, **kwargs).to(device).requires_grad_(requires_grad)


def _autocast():  # torch.autocast("vgpu"), done by the CPU's casts, and not torch.autocast("cpu")
    on = torch.is_autocast_enabled("vgpu")
    return torch.autocast("cpu", torch.get_autocast_dtype("vgpu") if on else None, enabled=on)


def _differentiable_copy(args: tuple) -> tuple:  # x.copy_(y), x[i] = y: y's gradient must find its way back
    source = args[2] if len(args) == 3 else args[1]
    if isinstance(source, Tensor) and source.requires_grad and torch.is_grad_enabled() and source.dim():
        return tuple(source.to(args[0].device) if a is source else a for a in args)
    return args


def _check_rnn(args: tuple) -> tuple:  # input, [batch sizes,] hidden, weights, ...
    rest = args[1:] if type(args[1]) in (list, tuple) or args[1].is_floating_point() else args[2:]
    for what, tensors in (("hidden", rest[:1]), ("parameter", rest[1:2])):
        for t in _tensors(tensors):
            if t.device != args[0].device:
                found = f"found input tensor at {args[0].device} and {what} tensor at {t.device}"
                raise RuntimeError(f"Input and {what} tensors are not at the same device, {found}")
    return args


def _check_lengths(args: tuple) -> tuple:
    if type(args[1]) is VTensor:
        got = f"{args[1].dim()}D {args[1].device} Long tensor"
        raise RuntimeError(f"'lengths' argument should be a 1D CPU int64 tensor, but got {got}")
    return args


_BEFORE = {"copy_": _differentiable_copy, "__setitem__": _differentiable_copy}
_BEFORE |= dict.fromkeys(_RNN, _check_rnn) | {"_pack_padded_sequence": _check_lengths}
