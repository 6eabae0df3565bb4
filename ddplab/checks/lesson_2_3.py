"""Checks of lesson 2.3, Pitfall: custom parameters."""

import reprlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import replicate

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import gpus_for, kind, needs_function, off

# What is in the collection of 2.3.1, by its letter: why it is saved, follows and learns, or why not.
ZOO = {
    "a": "an `nn.Parameter` is registered",
    "b": "a tensor assigned to `self` goes into no drawer",
    "c": "a buffer is registered, and does not learn",
    "d": "`persistent=False` keeps a buffer out of the checkpoint, and only that",
    "e": "nobody looks into a Python list",
    "f": "a `ParameterList` registers what it holds",
    "g": "twice a parameter is the result of a computation, a plain tensor",
    "h": "nobody looks into a Python dictionary",
    "i": "a module inside a module is registered, with all that it has",
}


@exercise("2.3.1", "Travellers")
def travellers(saved: Any, follow: Any, learn: Any) -> None:
    """Three strings of letters: what is in state_dict(), what follows into a replica, what an optimiser moves."""
    for name, answer, right in (("saved", saved, "acfi"), ("follow", follow, "acdfi"), ("learn", learn, "afi")):
        letters = _letters(name, answer)
        for letter, why in ZOO.items():
            if letter in letters and letter not in right:
                raise NotYet(f"`{name}` has {letter}, which should not be there", f"{why[0].upper()}{why[1:]}.")
            if letter in right and letter not in letters:
                raise NotYet(f"`{name}` lacks {letter}", f"{why[0].upper()}{why[1:]}.")


def _letters(name: str, answer: Any) -> set[str]:
    try:
        letters = {letter for letter in "".join(answer).lower() if letter.isalnum()}
    except TypeError:
        raise NotYet(f"`{name}` is {answer!r}, not a string of letters", 'For instance "abc".') from None
    if unknown := letters - ZOO.keys():
        raise NotYet(f"`{name}` has {min(unknown)}, and nothing in the class has that name", "a to i.")
    return letters


@exercise("2.3.2", "A layer, mended")
def mended(Mended: Any) -> None:
    """`Mended(4)` must do what `Broken(4, device)` does, on the CPU, on one GPU and on two, and save only its gains."""
    model = _made("Mended", Mended, 4)
    names = [name for name, _ in model.named_parameters()]
    if len(names) != 2:
        raise NotYet(
            f"`Mended(4)` has {len(names)} parameters, not 2" + (f": {', '.join(names)}" if names else ""),
            "The two gains, and nothing else. "
            + ("Who looks into a list?" if len(names) < 2 else "The wave is fixed."),
        )
    if extra := sorted(model.state_dict().keys() - set(names)):
        hint = "What can be computed again need not be saved: a buffer has an argument for that."
        raise NotYet(f"`state_dict()` also holds {', '.join(extra)}", hint)
    x = torch.linspace(-1, 1, 6 * 5 * 4).view(6, 5, 4)
    wanted = (x + torch.sin(torch.arange(5.0))[:, None]) * 2.0 + 2.0
    with gpus_for(2) as gpus:
        _compare("on the CPU", model(x), wanted)
        model.to(gpus[0])
        for device_ids in ([0], [0, 1]):
            where = "on two GPUs" if device_ids[1:] else "on one GPU"
            output = _run("Mended", where, model, device_ids, x)
            _compare(where, output, wanted)
            _gradients(where, model, output)


def _compare(where: str, output: Any, wanted: Any) -> None:
    if not isinstance(output, torch.Tensor):
        raise NotYet(f"{where}, `forward` returns {kind(output)}, not a tensor", "Is there a `return`?")
    if output.shape != wanted.shape or off(output.detach().cpu(), wanted) > 1e-5:
        hint = "Change where tensors live, not what is computed."
        raise NotYet(f"{where}, the output is not that of the original", hint)


def _gradients(where: str, model: Any, output: Any) -> None:
    model.zero_grad()
    if output.requires_grad:
        output.sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is None or not parameter.grad.abs().sum() > 0:
            raise NotYet(f"{where}, no gradient reaches `{name}`", "`.data` and `.detach()` cut the way back.")


@exercise("2.3.3", "Detective")
def detective(strays: Callable[..., Any]) -> None:
    """`strays(model)`: the dotted names of attributes with a tensor that is not registered."""
    needs_function("strays", strays)
    for what, model, wanted, hint in _suspects():
        found = strays(model)
        if found is None:
            raise NotYet("`strays` returns nothing", "Collect the names in a list, and `return` it.")
        if isinstance(found, str) or not all(isinstance(name, str) for name in found):
            hint = 'For instance ["0.scale"].'
            raise NotYet(f"`strays` gives {reprlib.repr(found).splitlines()[0]}, not a list of names", hint)
        names = set(found)
        for name in sorted(names - wanted):
            if name.startswith("."):
                hint = "The path of the model itself is empty, and an empty path needs no dot."
            if name.split(".")[-1].startswith("_"):
                hint = "That is a drawer: what lies in it is registered. Leave the three drawers out."
            raise NotYet(f"{what}: `strays` names {name!r}, which is no stray", hint)
        for name in sorted(wanted - names):
            raise NotYet(f"{what}: `strays` misses {name!r}" + (f", it has {sorted(names)}" if names else ""), hint)


def _suspects() -> Iterator[tuple[str, Any, set[str], str]]:
    """Models, harder and harder: what it is, the model, the names wanted, and a hint."""

    def module(**attributes: Any) -> nn.Module:
        made = nn.Identity()
        for name, value in attributes.items():
            setattr(made, name, value)
        return made

    tensor, layer = torch.ones(3), nn.Linear(3, 3)
    yield "a Linear", layer, set(), "Its weight and bias are registered."
    yield "a BatchNorm1d", nn.BatchNorm1d(3), set(), "Its statistics are buffers, in the drawer `_buffers`."
    hint = "`vars(module)` has all that a module keeps, by name; ask of each whether it is a tensor."
    yield "a module with a tensor", module(scale=tensor), {"scale"}, hint
    hint = "Not every attribute is a tensor."
    yield "a module with other things", module(scale=tensor, size=3, name="x", w=None), {"scale"}, hint
    hint = "Leave out the three drawers by their names. Your own attributes may begin with `_` too."
    yield "a module with a private tensor", module(_mask=tensor), {"_mask"}, hint
    hint = "`model.named_modules()` gives the model and all modules inside it, each with its dotted name."
    inside = nn.Sequential(layer, module(scale=tensor))
    yield "a module inside", inside, {"1.scale"}, hint
    yield "a module deep inside", nn.Sequential(inside, module(mask=tensor)), {"0.1.scale", "1.mask"}, hint
    hint = "A list and a tuple can hold tensors too: look at what is in them."
    lists = module(masks=[tensor], pair=(1, tensor), sizes=[1, 2], empty=[])
    yield "a module with lists", lists, {"masks", "pair"}, hint
    hint = "The values of a dictionary, not its keys."
    yield "a module with a dictionary", module(cache={5: tensor}, names={"a": 1}), {"cache"}, hint
    hint = "An `nn.Parameter` in a list is a tensor as well."
    yield "a list of parameters", module(scales=[nn.Parameter(tensor)]), {"scales"}, hint
    owner = module(weight=nn.Parameter(tensor), parts=nn.ParameterList([nn.Parameter(tensor)]), old=tensor)
    yield "a module with both", owner, {"old"}, "What is registered is no stray."


@exercise("2.3.4", "A switch")
def switch(Switch: Any) -> None:
    """`Switch()` must run either operation on two GPUs, with the parameter's gradient that of one."""
    model = _made("Switch", Switch)
    if len(list(model.parameters())) != 1:
        raise NotYet(f"`Switch()` has {len(list(model.parameters()))} parameters, not 1", "Keep `self.weight`.")
    x = torch.arange(1.0, 9.0).view(4, 2)
    with gpus_for(2) as gpus:
        model.to(gpus[0])
        for op, wanted in (("stretch", x * 2), ("shift", x + 2)):
            for device_ids in ([0], [0, 1]):
                where = f"{op!r} on " + ("two GPUs" if device_ids[1:] else "one GPU")
                output = _run("Switch", where, model, device_ids, x, op)
                _compare(where, output, wanted)
                _gradients(where, model, output)
                gradient, right = next(model.parameters()).grad.sum().item(), {"stretch": 36, "shift": 8}[op]
                if abs(gradient - right) > 1e-3:
                    hint = "Every row counts, those of replica 1 too."
                    raise NotYet(f"{where}, the gradient of the sum is {gradient:g}, not {right}", hint)
            _uses_its_own(model, gpus, x, op, wanted)


def _uses_its_own(model: Any, gpus: Any, x: Any, op: str, wanted: Any) -> None:
    """Raise NotYet unless replica 1, whose weight is made another one, computes with that."""
    replica, [(name, _)] = replicate(model, gpus[:])[1], model.named_parameters()
    path, _, leaf = name.rpartition(".")
    owner = replica.get_submodule(path)
    setattr(owner, leaf, getattr(owner, leaf) + 1)
    output = replica(x.to(gpus[1]), op).detach().cpu()
    if torch.allclose(output, wanted):
        hint = "What was stored in `__init__` remembers the module. A method that you look up in `forward` does not."
        raise NotYet(f"{op!r} on two GPUs: replica 1 computes with the module's weight, not with its own", hint)
    if not torch.allclose(output, {"stretch": x * 3, "shift": x + 3}[op]):
        raise NotYet(f"{op!r} on two GPUs: replica 1 computes without its weight", "One of the two methods, as it is.")


def _made(name: str, kind: Any, *args: Any) -> Any:
    """`kind(*args)`, a module. Raises NotYet for anything else."""
    given = ", ".join(map(repr, args))
    if isinstance(kind, nn.Module):
        raise NotYet(f"`{name}` is a module already, not the class", f"Pass the class, `{name}`.")
    if not callable(kind):
        raise NotYet(f"`{name}` is {reprlib.repr(kind)}, not a class", f"Pass the class, `{name}`.")
    try:
        made = kind(*args)
    except TypeError as error:
        if "positional argument" not in str(error):
            raise
        what = str(error).split("()", 1)[-1].strip()
        hint = "The check moves the module itself: no device in `__init__`."
        raise NotYet(f"`{name}({given})` does not work: {what}", hint) from None
    if not isinstance(made, nn.Module):
        raise NotYet(f"`{name}({given})` is not an nn.Module", "class …(nn.Module), as before.")
    return made


def _run(name: str, where: str, model: Any, device_ids: list[int], *inputs: Any) -> Any:
    """The output of the model in DataParallel. What it raises is told as a NotYet, in two lines of it."""
    try:
        return nn.DataParallel(model, device_ids)(*inputs)
    except NotImplementedError:
        raise  # a blank, most likely
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        told = lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1]}"
        if "StopIteration" in told:
            hint = "A replica lists no parameters. The input knows the device: `x.device`."
        elif "replica 1" in told:
            hint = "Replica 1 met something on GPU 0: what is not registered, or a function that remembers the module."
        else:
            hint = "What did not move with the module? What is registered moves."
        raise NotYet(f"{where}, `{name}` fails: {told}", hint) from None
