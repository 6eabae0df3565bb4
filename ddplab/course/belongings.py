"""What each replica of `nn.DataParallel` has of a module: which belongings were copied, and which are shared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import replicate

_NEW = set(vars(nn.Module()))  # what torch itself puts into every module


def inside(module: nn.Module, devices: Sequence[torch.device]) -> str:
    """Return a table in words: what the module has, in which drawer, and what the replica on each device has for it.

    A replica has a copy, or the very same object as the module: shared. Of a function it is told what it captured.
    """
    replicas = replicate(module, list(devices))
    heads = ["", "drawer", *(f"replica {n}" for n in range(len(replicas)))]
    rows = [
        [f"{path}{name}", drawer, *(_held(thing, _of(replica, path, name), drawer) for replica in replicas)]
        for path, part in _parts(module)
        for name, drawer, thing in _belongings(part)
    ]
    lines = [heads, *(rows or [["(nothing)", *[""] * (len(heads) - 1)]])]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def times(x: Tensor, kept: Any) -> Tensor:
    """Return x times a tensor, or the first one in a list or a dictionary; a layer or another function is called."""
    if isinstance(kept, Tensor | int | float):
        return x * kept
    if hasattr(kept, "values"):  # a `ParameterDict` is no Mapping
        return times(x, next(iter(kept.values())))
    return times(x, next(iter(kept))) if hasattr(kept, "__iter__") else kept(x)


def _parts(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for path, part in module.named_modules():
        yield (f"{path}." if path else ""), part


def _belongings(part: nn.Module) -> Iterator[tuple[str, str, Any]]:
    for name, thing in part._parameters.items():
        yield name, "parameters", thing
    for name, thing in part._buffers.items():
        yield name, "buffers", thing
    for name, thing in vars(part).items():
        if name not in _NEW and not name.startswith("_") and not isinstance(thing, str | int | float):
            yield name, "none", thing


def _of(replica: nn.Module, path: str, name: str) -> Any:
    return getattr(replica.get_submodule(path.removesuffix(".")), name)


def _held(theirs: Any, has: Any, drawer: str) -> str:
    if drawer != "none":
        return f"a copy, {_place(has)}" if has.device != theirs.device else _place(has)
    told = _place(has) if isinstance(has, Tensor) else _told(has)
    return f"shared, {told}" if has is theirs and told else "shared" if has is theirs else told


def _told(thing: Any) -> str:
    """What a device means, what is in a list or a dictionary, and what a function has captured."""
    if isinstance(thing, torch.device):
        return f"means {thing}"
    if isinstance(thing, Mapping | list | tuple):
        held = thing.values() if isinstance(thing, Mapping) else thing
        places = sorted({_place(it) for it in held if isinstance(it, Tensor)})
        return f"a {type(thing).__name__} of {len(thing)}" + f", {' and '.join(places)}" * bool(places)
    if isinstance(getattr(thing, "__self__", None), nn.Module):  # a method
        return f"self is {_captured(thing.__self__)}"
    names, cells = getattr(getattr(thing, "__code__", None), "co_freevars", ()), getattr(thing, "__closure__", None)
    caught = [(name, cell.cell_contents) for name, cell in zip(names, cells or (), strict=True)]
    return ", ".join(f"{name} is {_captured(it)}" for name, it in caught)


def _captured(thing: Any) -> str:
    return _place(thing) if isinstance(thing, Tensor) else "the module" if isinstance(thing, nn.Module) else "captured"


def _place(tensor: Tensor) -> str:
    return "on the CPU" if tensor.device.type == "cpu" else f"on GPU {tensor.device.index}"
