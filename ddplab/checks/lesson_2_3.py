"""Checks of lesson 2.3, Pitfall: custom parameters."""

import copy
import reprlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import replicate

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import gpus_for, kind, lies_on, needs_function, off
from ddplab.checks.turns import turn

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
    for name, gain in model.named_parameters():
        if gain.numel() != 4:
            raise NotYet(
                f"`{name}` of `Mended(4)` has {gain.numel()} numbers, not 4", "A gain has one for each channel."
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
        names = set(found) if isinstance(found, Iterable) and not isinstance(found, str) else {None}
        if not all(isinstance(name, str) for name in names):
            hint = 'For instance ["0.scale"].'
            raise NotYet(f"`strays` gives {reprlib.repr(found).splitlines()[0]}, not a list of names", hint)
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


# ------------------------------------------------------------------ your turn


def _equipped(equip: Callable[..., Any], gpu: int) -> list[Any]:
    """Where a replica's three tensors lie, whose numbers they hold, and which of them the module saves and learns."""
    names = ("gain", "mean", "mask")
    with gpus_for(2) as gpus:
        module = nn.Identity()
        equip(module, *(torch.full((3,), float(number)) for number in (5, 6, 7)))
        module.to(gpus[0])
        replica = replicate(module, gpus[:])[gpu]
        held, drawers = [getattr(replica, name, None) for name in names], module._parameters | module._buffers
        words = ["None" if hasattr(replica, name) else "nothing" for name in names]
        lie = [
            lies_on(it) + ", plain" * (name not in drawers) + _whose(it, name)
            if isinstance(it, torch.Tensor)
            else (word if it is None else kind(it))
            for it, word, name in zip(held, words, names, strict=True)
        ]
        saved = " ".join(name for name in names if name in module.state_dict())
        moved = {name for name, it in module.named_parameters() if it.requires_grad}
        learn = " ".join(name for name in names if name in moved)
        if not moved and "gain" in dict(module.named_buffers()):
            learn = "nothing: gain is a buffer"
    return [*lie, saved or "nothing", learn or "nothing"]


def _whose(tensor: Any, name: str) -> str:
    """Say whose numbers a tensor holds that is to hold those given as `name`: gain's are 5, mean's 6, mask's 7."""
    number = tensor.detach().flatten()[:1].tolist()
    whose = {5.0: "gain", 6.0: "mean", 7.0: "mask"}.get(*number, "") if number else ""
    return "" if whose == name else f", with {whose}'s numbers" if whose else ", with other numbers"


def _equip(
    module: Any,
    gain: Any,
    mean: Any,
    mask: Any,
    mean_as: str = "buffer",
    mean_saved: bool = True,
    mask_as: str = "buffer",
    mask_saved: bool = False,
    gain_as: Callable[..., Any] = nn.Parameter,
) -> None:
    if mean_as == "buffer":
        module.register_buffer("mean", mean, persistent=mean_saved)
    else:
        module.mean = nn.Parameter(mean) if mean_as == "parameter" else mean
    if mask_as == "buffer":
        module.register_buffer("mask", mask, persistent=mask_saved)
    else:
        module.mask = mask
    if gain_as is nn.Parameter:
        module.gain = nn.Parameter(gain)
    elif gain_as is nn.Buffer:
        module.register_buffer("gain", gain.requires_grad_())
    else:
        module.gain = gain_as(gain)


def _all_parameters(module: Any, gain: Any, mean: Any, mask: Any) -> None:
    module.gain, module.mean, module.mask = nn.Parameter(gain), nn.Parameter(mean), nn.Parameter(mask)


def _all_plain(module: Any, gain: Any, mean: Any, mask: Any) -> None:
    module.gain, module.mean, module.mask = gain.requires_grad_(), mean, mask


def _not_named(module: Any, gain: Any, mean: Any, mask: Any) -> None:
    module.gain = nn.Parameter(gain)


def _but_for(name: str, module: Any, *given: Any) -> None:
    _equip(module, *given)
    delattr(module, name)


def _nothing_put_back(module: Any, gain: Any, mean: Any, mask: Any) -> None:
    _equip(module, gain, mean, mask)
    module.mean = module.mask = None  # what `register_buffer` returns


turn(
    "2.3.a",
    "Three tensors that travel",
    _equip,
    {"replica 0": lambda: (0,), "replica 1": lambda: (1,)},
    call=_equipped,
    otherwise="A `Parameter` learns; a buffer is saved; a buffer that is not persistent is neither, and follows.",
    heads=("gain", "mean", "mask", "saved", "learns"),
    mistakes=[
        (
            _all_plain,
            "all three stay on the CPU: they are plain attributes, in no drawer",
            "Each of them has to be registered. There are two kinds of tensors that are.",
        ),
        (
            partial(_equip, gain_as=lambda gain: 1 * nn.Parameter(gain)),
            "`gain` stays behind: it is a tensor, and no parameter",
            "A tensor with `requires_grad` is no parameter, nor is a result of computing: `nn.Parameter` makes one.",
        ),
        (
            partial(_equip, gain_as=lambda gain: nn.ParameterList([gain])),
            "`gain` is a list, with a parameter in it",
            "Give the name on `module` to the parameter itself.",
        ),
        (
            partial(_equip, gain_as=lambda gain: [nn.Parameter(gain)]),
            "`gain` is a list, and nobody looks into it",
            "Give the name on `module` to the parameter itself.",
        ),
        (
            partial(_equip, mean_as="plain"),
            "`mean` stays behind",
            "It has to be registered, though it does not learn.",
        ),
        (
            partial(_equip, mask_as="plain"),
            "`mask` stays behind",
            "It has to be registered, though it is not saved: a buffer has an argument for that.",
        ),
        (
            partial(_equip, mean_as="plain", mask_saved=True),
            "`mean` stays behind, a plain attribute, and `mask` is saved",
            "Both have to be registered: `mean` as what is saved, `mask` as what is not.",
        ),
        (
            partial(_equip, mean_as="plain", mask_as="plain"),
            "`mean` and `mask` stay behind",
            "Both have to be registered, though they do not learn.",
        ),
        (
            partial(_equip, mean_saved=False),
            "`mean` is not saved",
            "`persistent=False` is for what is not to be saved.",
        ),
        (
            lambda module, gain, mean, mask: None,
            "the module has none of the three",
            "What is made is not registered yet: it needs its name on `module`.",
        ),
        *[
            (
                partial(_but_for, name),
                f"the module has no `{name}`",
                f"The names are `gain`, `mean` and `mask`: `module.{name}`.",
            )
            for name in ("gain", "mean", "mask")
        ],
        *[
            (
                lambda module, *given, order=order: _equip(module, *(given[it] for it in order)),
                told,
                "Give each name the tensor of that name.",
            )
            for order, told in (
                ((0, 1, 1), "`mask` is made of `mean`"),
                ((0, 0, 2), "`mean` is made of `gain`"),
                ((0, 2, 2), "`mean` is made of `mask`"),
                ((0, 2, 1), "`mean` and `mask` have changed places"),
            )
        ],
        *[
            (
                lambda module, *given, new=new: _equip(
                    module, *(torch.rand(3) if place in new else it for place, it in enumerate(given))
                ),
                f"{told} own, and not those that were given",
                "Make it of the tensor that the function gets: `nn.Parameter(gain)`.",
            )
            for new, told in (
                ((0,), "`gain` has numbers of its"),
                ((1,), "`mean` has numbers of its"),
                ((2,), "`mask` has numbers of its"),
                ((0, 1), "`gain` and `mean` have numbers of their"),
                ((0, 1, 2), "all three have numbers of their"),
            )
        ],
        (
            _nothing_put_back,
            "`mean` and `mask` are `None`, which is what `register_buffer` returns",
            "The call alone gives the name: no `module.mean =` before it.",
        ),
        (
            _not_named,
            "the module has no `mean` and no `mask`",
            "`nn.Buffer(…)` alone is on no module: give it its name there, `module.mean = …`.",
        ),
        (
            partial(_equip, mean_as="parameter"),
            "`mean` learns too",
            "Only `gain` learns. What is registered and does not learn?",
        ),
        (
            partial(_equip, mask_saved=True),
            "`mask` is saved too",
            "Saving is what a buffer's `persistent` is about. A parameter is always saved.",
        ),
        (
            partial(_equip, mean_saved=False, mask_saved=True),
            "`mask` is saved, and `mean` is not",
            "The other way round.",
        ),
        (
            _all_parameters,
            "`mean` and `mask` learn too, and `mask` is saved",
            "Only `gain` learns. What is registered and does not learn?",
        ),
        (
            partial(_equip, gain_as=nn.Buffer, mask_saved=True),
            "`gain` is a buffer, and `mask` is saved",
            "Three kinds are wanted: one that learns, one that is saved only, and one that is neither.",
        ),
        (
            partial(_equip, gain_as=nn.Buffer),
            "`gain` is a buffer, and does not learn",
            "An optimiser moves parameters. A buffer with `requires_grad` is still a buffer.",
        ),
        (
            partial(_equip, gain_as=partial(nn.Parameter, requires_grad=False)),
            "`gain` is a parameter that does not learn",
            "An optimiser moves those with `requires_grad`, which `nn.Parameter(gain)` has.",
        ),
    ],
    hints={
        "register_buffer() missing": "It wants the name, as a string, and then the tensor.",
        "positional arguments but": "`persistent` goes by its name: `persistent=False`.",
        "already exists": "The attribute is there already, as a plain one. Register it first, or instead.",
        "name should be a string": "The name comes first, as a string, and then the tensor.",
        "torch.nn.Parameter or None required": "`register_parameter` wants a parameter: `nn.Parameter(…)` makes it.",
        "torch.nn.Parameter or None expected": "A name that was given to a parameter keeps to parameters.",
        "'self' is not defined": "Here it is called `module`.",
    },
)


def _in_replica(places: Callable[..., Any], gpu: int, columns: int) -> list[Any]:
    with gpus_for(2) as gpus:
        module = nn.Identity()
        module.register_buffer("mean", torch.full((1,), 3.0))
        module.gain, module.device = nn.Parameter(torch.full((1,), 2.0)), gpus[0]
        replica = replicate(module.to(gpus[0]), gpus[:])[gpu]
        x = 10.0 * torch.ones(2, columns).to(gpus[gpu])
        found = places(replica, x)
        if not bool((x == 10).all()):
            return ["x is changed", "-"]
        if not isinstance(found, torch.Tensor):
            return [kind(found), "-"]
        if found.shape != x.shape:
            numbers = " ".join(f"{it:g}" for it in found.flatten().tolist())
            return [f"{numbers}, in another shape", lies_on(found)]
        rows = [" ".join(f"{it:g}" for it in row) for row in found.tolist()]
        return [" / ".join(dict.fromkeys(rows)), lies_on(found)]  # rows that are alike are shown once


ON_THE_CPU = "The numbers are made on the CPU: `torch.arange` takes a `device`. What in here is on the right one?"


def _numbered(module: Any, x: Any, on: Callable[..., Any] = lambda module, x: x.device, n: int = 0) -> Any:
    return x + torch.arange(n or x.shape[1], device=on(module, x))


turn(
    "2.3.b",
    "A tensor made on the spot",
    _numbered,
    {"replica 0, 3 columns": lambda: (0, 3), "replica 1, 3 columns": lambda: (1, 3), "replica 1, 4": lambda: (1, 4)},
    call=_in_replica,
    otherwise="A new tensor, made where `x` lies, which neither `parameters()` nor an old `device` can tell here.",
    heads=("result", "on"),
    mistakes=[
        (
            partial(_numbered, on=lambda module, x: module.device),
            "the numbers are made on GPU 0, also for replica 1",
            "What `__init__` noted is true of GPU 0 only. What comes to each replica afresh?",
        ),
        (
            partial(_numbered, on=lambda module, x: next(module.parameters()).device),
            "a replica lists no parameters",
            "Ask something that each replica does have: what it was called with.",
        ),
        (
            lambda module, x: x.cpu() + torch.arange(x.shape[1]),
            "the result is on the CPU",
            "Leave `x` where it is, and make the numbers there.",
        ),
        (
            lambda module, x: x.add_(torch.arange(x.shape[1], device=x.device)),
            "`x` itself is changed, and in replica 0 that is the caller's batch",
            "Make a new tensor: `x + …`.",
        ),
        (
            lambda module, x: _numbered(module, x.to(module.device)),
            "replica 1 computes on GPU 0",
            "Leave `x` where it is, and make the numbers there.",
        ),
        (
            lambda module, x: x + 0,
            "`x` comes back as it was",
            "One number for each column, `x.shape[1]` of them: 0, 1, 2, …",
        ),
        (
            lambda module, x: x + torch.arange(len(x), device=x.device).unsqueeze(1),
            "the rows are numbered, and not the columns",
            "One number for each column, `x.shape[1]` of them: 0, 1, 2, …",
        ),
        (
            lambda module, x: _numbered(module, x * module.gain),
            "`x` is multiplied by the gain",
            "`gain` and `mean` have no part in the numbers.",
        ),
        (
            lambda module, x: _numbered(module, x + module.mean),
            "the mean is added, too",
            "`gain` and `mean` have no part in the numbers.",
        ),
        (
            lambda module, x: x * torch.arange(x.shape[1], device=x.device),
            "`x` is multiplied by the numbers",
            "Add them: `x + …`.",
        ),
        (
            lambda module, x: x + 1,
            "each column gets the same number",
            "0, 1, 2, …, as `arange` counts.",
        ),
        (
            lambda module, x: [column + place for place, column in enumerate(x.T)],
            "a list comes back",
            "One tensor, as `x` is: a row of numbers is added to each row of it.",
        ),
        (partial(_numbered, n=3), "there are always three numbers", "As many as `x` has columns."),
        (
            lambda module, x: torch.arange(x.shape[1], device=x.device),
            "the numbers come back, without `x`",
            "Add them to `x`.",
        ),
        (
            lambda module, x: x + torch.arange(1, x.shape[1] + 1, device=x.device),
            "the numbers begin at 1",
            "0, 1, 2, …, as `arange` counts.",
        ),
    ],
    hints={
        "CUDA": "`cuda` alone names one GPU, for all replicas. What comes to each replica afresh?",
        "and cpu!": ON_THE_CPU,
        "cpu and ": ON_THE_CPU,
        "must match the size of tensor": "One number for each column: `x.shape[1]` of them.",
        "arange()": "`arange` is told how many: one number for each column, `x.shape[1]`.",
        "'range'": "A tensor of numbers is made by `torch.arange`.",
    },
)


class _Traveller(nn.Module):
    """Notes whether it was sent anywhere itself, and not a copy of it."""

    sent = False

    def _apply(self, *given: Any, **named: Any) -> Any:
        self.sent = True
        return super()._apply(*given, **named)


class _Plain(_Traveller):
    """Multiplies by what `keep` makes of a tensor on the device."""

    def __init__(self, device: Any, keep: Callable[[Any], Any] = lambda ones: ones) -> None:
        super().__init__()
        self.scale = keep(torch.ones(3, device=device))

    def forward(self, x: Any) -> Any:
        return x * (self.scale if isinstance(self.scale, torch.Tensor) else self.scale[0])


class _Caching(_Traveller):
    """Multiplies by a tensor that the first call makes and keeps, or that is new at each call."""

    def __init__(self, device: Any, new: bool = False) -> None:
        super().__init__()
        self.new, self.cache = new, {}

    def forward(self, x: Any) -> Any:
        return x * (torch.ones_like(x) if self.new else self.cache.setdefault(3, torch.ones_like(x)))


def _survives(moves: Callable[..., Any], make: Callable[..., Any]) -> list[Any]:
    with gpus_for(1) as gpus:
        model = make(gpus[0])
        found = moves(model, torch.ones(2, 3, device=gpus[0]))
        by_hand = [it.device.type == "cpu" for it in (*model.parameters(), *model.buffers())]
        sent = model.sent or (bool(by_hand) and all(by_hand))
        return [str(found) if isinstance(found, bool) else kind(found), "yes" if sent else "no"]


def _moves(model: Any, x: Any, first: bool = True, to: Any = "cpu", yes: Any = True, no: Any = False) -> Any:
    if first:
        model(x)
    try:
        model.to("cpu")(x.to(to))
        return yes
    except RuntimeError:
        return no


def _copy_moves(model: Any, x: Any) -> Any:
    model(x)
    try:
        copy.deepcopy(model).to("cpu")(x.cpu())
        return True
    except RuntimeError:
        return False


def _asks_where(model: Any, x: Any) -> Any:
    model.to("cpu")
    return all(it.device.type == "cpu" for it in model.parameters())


def _silent(model: Any, x: Any) -> Any:
    model.to("cpu")(x.cpu())
    return True


turn(
    "2.3.c",
    "A detector",
    _moves,
    {
        "a parameter": lambda: (partial(_Plain, keep=nn.Parameter),),
        "a buffer": lambda: (partial(_Plain, keep=nn.Buffer),),
        "a ParameterList": lambda: (partial(_Plain, keep=lambda it: nn.ParameterList([it])),),
        "a tensor made beside x": lambda: (partial(_Caching, new=True),),
        "a plain attribute": lambda: (_Plain,),
        "a parameter in a list": lambda: (partial(_Plain, keep=lambda it: [nn.Parameter(it)]),),
        "a result of .to": lambda: (partial(_Plain, keep=lambda it: nn.Parameter(it.cpu()).to(it.device)),),
        "a cache": lambda: (_Caching,),
    },
    call=_survives,
    otherwise="Run the model; move it and its input; run it again, in a `try`: True, and in the `except` False.",
    heads=("your detector says", "the model itself was sent"),
    mistakes=[
        (
            partial(_moves, first=False),
            "the cache is filled on the CPU, where it does no harm",
            "Run the model on its GPU before the journey: `model(x)`.",
        ),
        (
            lambda model, x: _moves(model, x, to=x.device),
            "the input stays on the GPU: a model that has moved fails, and one that stayed behind runs",
            "It has to travel too: `x.cpu()`.",
        ),
        (
            _copy_moves,
            "a copy of the model is sent, and the model itself stays on the GPU",
            "Send `model` itself: `model.to(…)` moves it.",
        ),
        (lambda model, x: True, "each model survives", "Send it to the CPU and run it there: `except RuntimeError:`."),
        (
            _asks_where,
            "each model survives the move, for nobody has run it there",
            "What is not registered shows no device. Run the model again, with `x.cpu()`, in a `try`.",
        ),
        (partial(_moves, yes=False, no=True), "the answers have changed places", "`True` where it runs."),
        (partial(_moves, no=None), "what fails has no answer", "`return False` in the `except`."),
        (
            lambda model, x: bool(list(model.parameters()) + list(model.buffers())),
            "that is whether something is registered",
            "Who computes with `x.device` needs no drawer. Let the model run.",
        ),
        (_silent, "the error goes on its way", "`try:` before the second run, `except RuntimeError:` after it."),
    ],
    hints={
        "at least two devices": "`try:` before the second run, `except RuntimeError:` after it.",
        "deepcopy protocol": "Send `model` itself, and no copy: `model.to(…)` moves it.",
    },
)
