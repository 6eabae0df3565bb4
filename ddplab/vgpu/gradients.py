"""Gradients stay where their tensors are: autograd, in C++, takes all of ours for CPU tensors, so it is done here.

The words are torch's: torch/csrc/autograd/engine.cpp (validate_outputs), variable.cpp (check_variable_result) and
python_variable.cpp (THPVariable_set_grad).
"""

import functools

import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass, TensorBase
from torch.autograd.function import BackwardCFunction

from .tensor import To, VTensor, is_dtensor, label, move, place, raw, state

real_grad, real_hook, real_make = TensorBase.grad, Tensor.register_hook, torch.autograd._make_grads
real_run = torch.autograd._engine_run_backward
real_apply, real_backward = vars(torch.autograd.Function)["apply"].__func__, BackwardCFunction.apply
_NO_TENSOR = object()
_UNTRIED = "gradients of DTensors (tensor parallelism) cannot be tried on virtual GPUs"


def _fits(grad: Tensor, where, which: str) -> Tensor:
    """grad, which belongs to a tensor there: as CUDA has it, a single number is brought, anything else refused."""
    if place(grad) == where:
        return grad
    if grad.dim() == 0:
        return move(grad, where)
    there = (
        "cpu" if where is None else where if isinstance(where, torch.device) else label(torch.empty(0), where).device
    )
    raise RuntimeError(f"{which} - expected device {there} but got {grad.device}")


def _make_grads(outputs, grads, *args, **kwargs):
    """torch.autograd's own, for backward(gradient) and grad(grad_outputs=...)."""
    if any(type(t) is VTensor for t in (*outputs, *grads)):
        grads = [
            _fits(grad, place(out), f"invalid gradient at index {i}")
            if isinstance(grad, Tensor) and isinstance(out, Tensor)
            else grad
            for i, (out, grad) in enumerate(zip(outputs, grads, strict=False))
        ]
    return real_make(outputs, grads, *args, **kwargs)


def _run(*args, **kwargs):
    """The engine. What hooks, Functions and checkpoints call in there are calls as you wrote them, too."""
    if any(map(is_dtensor, args[0])):
        raise NotImplementedError(_UNTRIED)
    with torch._C._EnableTorchFunction():
        try:
            return real_run(*args, **kwargs)
        except RuntimeError as error:  # torch/csrc/autograd/saved_variable.cpp names the tensor's kind
            kind = f"operation: [torch.{state['name']}."
            if type(args[0][0]) is VTensor and kind not in str(error):
                error.args = (str(error).replace("operation: [torch.", kind),)
            raise


class _Untried(torch.autograd.Function):
    """What a DTensor's part goes through: one may look at it, but its gradient would go back to the DTensor."""

    @staticmethod
    def forward(ctx, part, _):  # the second input wants a gradient, so that there is a backward
        return part.view_as(part)

    @staticmethod
    def backward(ctx, grad):  # torch, in C++, would look for a real GPU's stream, and end the process
        raise NotImplementedError(_UNTRIED)


def _apply(cls, *args, **kwargs):
    """Function.apply, which notes where the inputs and outputs are."""
    if torch.is_grad_enabled() and any(is_dtensor(a) and a.requires_grad for a in args):
        with torch.no_grad():
            out = real_apply(cls, *args, **kwargs)
        if type(out) is VTensor:  # of to_local()
            return real_apply(_Untried, out, torch.zeros((), requires_grad=True))
        if is_dtensor(out):  # on the way to full_tensor()
            return out.requires_grad_()
        raise NotImplementedError(_UNTRIED)
    out = real_apply(cls, *args, **kwargs)
    outs = out if isinstance(out, (tuple, list)) else (out,)
    if cls is To or not any(type(t) is VTensor for t in (*args, *outs)):
        return out
    with DisableTorchFunctionSubclass():
        node = next((o.grad_fn for o in outs if isinstance(o, Tensor) and o.grad_fn is not None), None)
    if isinstance(node, BackwardCFunction):
        node._places_out = [place(o) if isinstance(o, Tensor) else None for o in outs]
        node._places_in = [place(a) if isinstance(a, Tensor) else _NO_TENSOR for a in args]
    return out


def _backward(self, *grads):
    """A Function's backward: C++ makes zeros on the CPU for an output nobody used; what it returns has to fit."""
    if not hasattr(self, "_places_in"):
        return real_backward(self, *grads)
    grads = [label(g, gpu) if isinstance(g, Tensor) else g for g, gpu in zip(grads, self._places_out, strict=True)]
    results = real_backward(self, *grads)
    fitting, index = list(results) if isinstance(results, tuple) else [results], 0
    for i, (result, where) in enumerate(zip(fitting, self._places_in, strict=False)):
        if isinstance(result, Tensor) and where is not _NO_TENSOR:
            which = f"Function {type(self).__name__} returned an invalid gradient at index {index}"
            fitting[i] = _fits(result, where, which)
        index += where is not _NO_TENSOR
    return tuple(fitting) if isinstance(results, tuple) else fitting[0]


def _register_hook(self, hook):
    @functools.wraps(hook, updated=())
    def checked(grad):
        result = hook(grad)
        if isinstance(result, Tensor) and (type(result) is VTensor) != (type(grad) is VTensor):
            kinds = f"was {grad.type()} got {result.type()}"
            name = getattr(hook, "__name__", type(hook).__name__)
            raise RuntimeError(f"hook '{name}' has changed the type of value ({kinds})")
        return result

    with DisableTorchFunctionSubclass():
        return real_hook(self, checked)


def _get_grad(self):
    if type(self) is not VTensor:
        return real_grad.__get__(self)
    with DisableTorchFunctionSubclass():
        grad = real_grad.__get__(self)
        if type(grad) is Tensor:  # DDP's reducer, in C++, put a view of its bucket here
            with raw():
                grad = label(grad, self.gpu)
            real_grad.__set__(self, grad)
        return grad


def _set_grad(self, grad):
    if isinstance(grad, Tensor) and place(grad) != place(self):
        kinds, numbers = (grad.device.type, self.device.type), (grad.get_device(), self.get_device())
        fix = "Please ensure that the gradient and the tensor are on the same device"
        if kinds[0] != kinds[1]:
            what = f"with device type '{kinds[0]}' to a tensor with device type '{kinds[1]}'"
        else:
            what = (
                f"located on device with index '{numbers[0]}' to a tensor located on device with index '{numbers[1]}'"
            )
        raise RuntimeError(f"attempting to assign a gradient {what}. {fix}")
    with DisableTorchFunctionSubclass():
        real_grad.__set__(self, grad)


grad = property(_get_grad, _set_grad, real_grad.__delete__)
VTensor.grad = grad


def patches() -> list[tuple[object, str, object]]:
    return [
        (torch.autograd, "_make_grads", _make_grads),
        (torch.autograd, "_engine_run_backward", _run),
        (torch.autograd.Function, "apply", classmethod(_apply)),
        (BackwardCFunction, "apply", _backward),
        (Tensor, "register_hook", _register_hook),
        (Tensor, "grad", grad),
    ]
