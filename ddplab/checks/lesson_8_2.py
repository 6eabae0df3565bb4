"""Checks of lesson 8.2, Cutting the model."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import needs_function, off, on_ranks
from ddplab.hardware import device

TOOLS = ("accumulate", "ddp", "zero", "fsdp", "tensor")


@exercise("8.2.1", "Which tool?")
def which_tool(a: Any, b: Any, c: Any, d: Any, e: Any) -> None:
    """Five situations, one tool each."""
    right = {"a": "accumulate", "b": "ddp", "c": "zero", "d": "fsdp", "e": "tensor"}
    hints = {
        "a": "One image fits, and there is one GPU. What takes a batch in portions?",
        "b": "It fits. Nothing has to be cut but the work.",
        "c": "8 bytes a parameter for weights and gradients: 40 GB. What are the other 40?",
        "d": "Weights and gradients alone are 8 bytes a parameter, 240 GB. They have to be shared out as well.",
        "e": "FSDP puts a whole layer together on every rank, for a moment.",
    }
    for (name, wanted), answer in zip(right.items(), (a, b, c, d, e), strict=True):
        if not isinstance(answer, str) or answer.strip().lower() not in TOOLS:
            raise NotYet(f"`{name}` is {answer!r}", f"One of the words {', '.join(map(repr, TOOLS))}.")
        if (said := answer.strip().lower()) != wanted:
            raise NotYet(f"`{name}` is not {said!r}: {_why_not(name, said)}", hints[name])


def _why_not(name: str, said: str) -> str:
    if said == "accumulate":
        return "accumulation makes activations smaller, and nothing else"
    if said == "ddp":
        return "with DDP every rank needs the room that one GPU needs"
    if name == "a":
        return "that takes several GPUs"
    if name == "b":
        return "that would work, and change more than is needed"
    if said == "zero":
        return "ZeRO leaves weights and gradients whole on every rank"
    if said == "fsdp":
        return (
            "that would work, and change more than is needed" if name == "c" else "that layer would have to fit whole"
        )
    return "no single layer is too large here, and cutting layers sends activations all the time"


@exercise("8.2.2", "A layer cut the other way")
def cut_the_other_way(columns_apart: Callable[..., Any]) -> None:
    """`columns_apart(x, weight, bias)` on 2 and 3 ranks must give the whole layer's output on every rank."""
    needs_function("columns_apart", columns_apart)
    for size in (2, 3):
        _cut_on(size, columns_apart)


HINTS = {
    "shapes cannot be multiplied": "`x` has as many columns as `weight`. Take the same part of both, along `dim=1`.",
    "incompatible": "`x` has as many columns as `weight`. Take the same part of both, along `dim=1`.",
    "a view": "`all_reduce` writes into its tensor: give it the product, a new tensor, not a part of another.",
}


def _cut_on(size: int, columns_apart: Callable[..., Any]) -> None:
    ranks = on_ranks(_layer_in_rank, columns_apart, size, size=size, hints=HINTS)
    where, (x, weight, bias) = f"on {size} ranks", _layer(size)
    wanted = x @ weight.T + bias
    for rank, (out, *_) in enumerate(ranks):
        if out is None:
            raise NotYet(f"{where}, rank {rank} got no tensor back", "Is there a `return`?")
        if out.shape != wanted.shape:
            hint = "Cut columns, `dim=1`, of `weight` and `x`: then each part has all outputs, and they add up."
            raise NotYet(f"{where}, rank {rank} returns the shape {tuple(out.shape)}, not {tuple(wanted.shape)}", hint)
        for what, other, hint in (
            (f"the bias {size} times over", wanted + (size - 1) * bias, "Add it once, after `all_reduce`."),
            ("no bias", wanted - bias, "One rank's worth of `bias`, after `all_reduce`."),
            ("the mean of the parts", (wanted - bias) / size + bias, "The parts are a sum: do not divide."),
            ("the mean of the parts", wanted / size, "The parts are a sum: do not divide."),
            (f"{size} times the output", wanted * size, "Each rank has to work on its own part only."),
            (f"{size} times the product", (wanted - bias) * size + bias, "Each rank works on its own part only."),
        ):
            if off(out, wanted) > 1e-9 and off(out, other) < 1e-9:
                raise NotYet(f"{where}, rank {rank} returns {what}", hint)
        if off(out, wanted) > 1e-9:
            reduced = all(off(other, out) < 1e-9 for other, *_ in ranks if other is not None)
            raise NotYet(
                f"{where}, rank {rank} does not return the layer's output"
                + ("" if reduced else ", and the ranks return different numbers"),
                "Every column of `weight` is some rank's, and only one's. Is `size` fixed anywhere?"
                if reduced
                else "The parts have to meet: `dist.all_reduce`.",
            )
    if max(inner for _, _, inner in ranks) >= weight.shape[1]:
        hint = "A rank's own columns, `dim=1`, of `weight` and of `x`; what comes out is a part of every output."
        raise NotYet(f"{where}, a rank multiplies all inputs: its weight is whole, or cut by rows", hint)
    if max(most for _, most, _ in ranks) >= weight.numel():
        hint = "Right numbers, and nothing saved. Take this rank's columns first, then multiply."
        raise NotYet(f"{where}, a rank multiplies by the whole weight", hint)


def _layer(size: int) -> tuple[Any, Any, Any]:
    """x, weight and bias, for 2 or 3 ranks."""
    columns = 12 * (size - 1)  # a share for two ranks, fixed at 6 columns, must not do for three
    rng = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((5, columns), (4, columns), (4,))
    )


def _layer_in_rank(columns_apart: Callable[..., Any], size: int) -> tuple[Any, int, int]:
    """What the learner's function returns, the size of the largest piece of weight that it multiplied by, and how many
    of the inputs it multiplied at most."""
    x, weight, bias = (t.to(device()) for t in _layer(size))
    seen, inner = [0], [0]

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
            if func.overloadpacket.__name__ in ("mm", "addmm", "matmul", "bmm"):
                first = next(arg for arg in args if _elements(arg))
                inner.append(first.shape[-1])
                seen.append(max(_elements(arg) for arg in args if _elements(arg) and len(arg) != len(x)))
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Products():
        out = columns_apart(x, weight, bias)
    return (out.detach().cpu() if isinstance(out, torch.Tensor) else None), max(seen), max(inner)


def _elements(value: Any) -> int:
    return value.numel() if hasattr(value, "numel") and value.dim() > 1 else 0
