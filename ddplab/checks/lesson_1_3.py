"""Checks of lesson 1.3, Where the memory goes."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from sys import getsizeof
from typing import Any

import torch
from torch import nn

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import listed, needs_function, number
from ddplab.checks.turns import turn


@exercise("1.3.1", "What fits on a device")
def what_fits(bytes_to_train: Callable[[int, str], float]) -> None:
    """`bytes_to_train(n, optimizer)`: parameters, gradients and state of n float32 parameters, without activations."""
    needs_function("bytes_to_train", bytes_to_train)
    right = {"sgd": 8, "momentum": 12, "adam": 16}
    each = {name: number("bytes_to_train", bytes_to_train(1000, name)) / 1000 for name in right}
    if each == right:
        large = number("bytes_to_train", bytes_to_train(7_000_000_000, "adam"))
        if large != 112e9:
            raise NotYet(f"7 billion parameters gave {large:g}, not 112e9", "Is it the same formula for every n?")
        return
    told = "for each parameter it counts " + ", ".join(f"{name} {size:g}" for name, size in each.items()) + " bytes"
    mistakes = [
        ({"sgd": 4, "momentum": 8, "adam": 12}, "the gradients are missing", "One gradient for each parameter."),
        ({"sgd": 2, "momentum": 3, "adam": 4}, "those are numbers, not bytes", "A float32 has 4 bytes."),
        ({"sgd": 16, "momentum": 24, "adam": 32}, "a float32 has 4 bytes, not 8", "8 bytes would be float64."),
        ({"sgd": 4, "momentum": 6, "adam": 8}, "a float32 has 4 bytes, not 2", "2 bytes would be float16."),
        ({"sgd": 0, "momentum": 4, "adam": 8}, "that is the state alone", "Add the parameters and their gradients."),
    ]
    for sizes, what, hint in mistakes:
        if each == sizes:
            raise NotYet(f"{told}: {what}", hint)
    if len(set(each.values())) == 1:
        raise NotYet(f"{told}: the same for every optimiser", "Only the optimiser's state differs: 0, 1 or 2 numbers.")
    name = next(name for name in right if each[name] != right[name])
    hints = {
        "sgd": "Plain SGD keeps nothing: a parameter and its gradient, 4 bytes each.",
        "momentum": "Momentum keeps one number more for each parameter.",
        "adam": "Adam keeps two numbers more for each parameter.",
    }
    raise NotYet(f"{told}: {name} is not right", hints[name])


# ------------------------------------------------------------------ your turn


def _network(
    dtype: torch.dtype = torch.float32, frozen: bool = False, buffer: int = 0, backward: bool = True
) -> tuple[nn.Module]:
    """Two layers of 9 + 1 and 50 + 50 parameters after a backward pass; the second frozen, and a buffer, if asked."""
    net = nn.Sequential(nn.Linear(9, 1), nn.Linear(1, 50))
    if buffer:
        net.register_buffer("running_mean", torch.zeros(buffer))
    net.to(dtype)[1].requires_grad_(not frozen)
    if backward:
        net(torch.ones(1, 9, dtype=dtype)).sum().backward()
    net.before = _gradients(net)
    return (net,)


def _gradients(net: nn.Module) -> list[float | None]:
    return [None if p.grad is None else float(p.grad.sum()) for p in net.parameters()]


A_DICT = "a dictionary"


def _counted(both: Any, net: nn.Module) -> Any:
    """The two numbers; and that it is more than counting, where the gradients are not what they were."""
    if both is None:
        return []
    both = [A_DICT] if isinstance(both, dict) else both
    return both if _gradients(net) == net.before else [both, "its gradients have changed"]


def _and_buffers(net: nn.Module) -> tuple[int, int]:
    """As who takes all of `state_dict()` for parameters."""
    return sum(tensor.nbytes for tensor in net.state_dict().values()), _bytes_held(net)[1]


def _as_if_there(net: nn.Module) -> tuple[int, int]:
    """As who counts a gradient wherever one may come."""
    return _bytes_held(net)[0], sum(p.nbytes for p in net.parameters() if p.requires_grad)


def _bytes_held(
    net: nn.Module, size: Callable[[Any], int] = lambda tensor: tensor.nbytes, which: slice = slice(None)
) -> tuple[int, int]:
    parameters = [*net.parameters()][which]
    return sum(map(size, parameters)), sum(size(p.grad) for p in parameters if p.grad is not None)


turn(
    "1.3.a",
    "Bytes of parameters and gradients",
    _bytes_held,
    {
        "110 parameters, float32": _network,
        "110 in float64, and a buffer": partial(_network, torch.float64, buffer=5),
        "110, and 100 of them frozen": partial(_network, frozen=True),
        "110, before backward": partial(_network, backward=False),
    },
    look=_counted,
    heads=("parameters", "gradients"),
    mistakes=[
        (partial(_bytes_held, size=torch.numel), "those are numbers, not bytes", "`.nbytes`, and not `.numel()`."),
        (partial(_bytes_held, size=lambda tensor: 4 * tensor.numel()), "4 bytes are taken for granted",
         "A float64 has 8. A tensor knows its `.nbytes`."),
        (_and_buffers, "a buffer is counted as a parameter",
         "`state_dict()` has buffers, too; `model.parameters()` has parameters alone."),
        (_as_if_there, "gradients are counted before there are any", "Look at each `p.grad`: it may be None."),
        (lambda net: (_and_buffers(net)[0], _as_if_there(net)[1]),
         "a buffer is counted as a parameter, and gradients before there are any",
         "Go through `model.parameters()`, and look at each `p.grad`."),
        (lambda net: (_bytes_held(net)[1],) * 2, "what has no gradient is in neither number",
         "They take memory as well. Only a gradient they have not."),
        (lambda net: (_bytes_held(net)[0],) * 2, "a frozen parameter has no gradient", "Look at each `p.grad`."),
        (partial(_bytes_held, size=lambda tensor: 1), "those are tensors, and not bytes", "Add up their `.nbytes`."),
        (lambda net: {}, "a dictionary comes back", "Two numbers are asked for: `return first, second`."),
        (lambda net: sum(_bytes_held(net)), "there is one number, and two are asked for", "`return first, second`"),
        (lambda net: _bytes_held(net)[0], "the gradients are missing", "They are in `p.grad`, for each `p`."),
        (lambda net: _bytes_held(net[0]), "that is the first layer alone", "`model.parameters()` goes through all."),
        (partial(_bytes_held, which=slice(1)), "that is the first parameter alone",
         "Go through all of `model.parameters()`, and only then `return`."),
        (partial(_bytes_held, which=slice(-1, None)), "that is the last parameter alone",
         "Each is to be added, `+=`, to those before it."),
        (lambda net: (sum(_bytes_held(net)), _bytes_held(net)[1]), "the first number has the gradients in it, too",
         "First the parameters alone, `p.nbytes`, and then their gradients."),
        (lambda net: _bytes_held(net)[::-1], "the two numbers have changed places",
         "First the parameters, then the gradients."),
        (lambda net: (_bytes_held(net)[0] - _bytes_held(net)[1], _bytes_held(net)[1]),
         "the first number has only the frozen parameters in it", "All of them take memory, the others as well."),
        (partial(_bytes_held, size=lambda tensor: 8 * tensor.nbytes), "those are bits", "A byte has eight of them."),
        (partial(_bytes_held, size=torch.Tensor.element_size), "those are the bytes of one number of each tensor",
         "`.nbytes` is of all its numbers."),
        (partial(_bytes_held, size=getsizeof), "that is what Python needs to know of them, without their numbers",
         "A tensor has the bytes of its numbers in `.nbytes`."),
        (lambda net: [it for p in net.parameters() for it in (p.nbytes, 0 if p.grad is None else p.grad.nbytes)],
         "there is a number for each tensor", "Add them up: two numbers come back."),
        (lambda net: [[p.nbytes for p in net.parameters()],
                      [p.grad.nbytes for p in net.parameters() if p.grad is not None]],
         "there is a number for each tensor", "Add them up: two numbers come back."),
        (lambda net: print(_bytes_held(net)), "nothing comes back", "`return` the two numbers."),
        (lambda net: (_bytes_held(net), net.zero_grad())[0], "the gradients are counted, and then gone",
         "Only count: the optimiser needs them still."),
    ],
    hints={"Boolean value of Tensor": "Whether there is a gradient: `if p.grad is not None`.",
           "'int' object is not callable": "`.nbytes` is a number, and no method: without parentheses.",
           "'NoneType' object has no attribute": "Where there is no gradient, `.grad` is None: leave it out."},
    otherwise="Add up `.nbytes` over `model.parameters()`, then over their gradients.",
)  # fmt: skip


def _one(returned: Any) -> Any:
    """One number as it is; what holds several, or one in a box, as its words: later cells compute with the number."""
    return [] if returned is None else str(returned) if isinstance(returned, dict | list | tuple) else returned


def _after_an_update(make: Callable[..., Any], dtype: torch.dtype = torch.float32) -> tuple[Any]:
    (net,) = _network(dtype)
    optimizer = make(net.parameters())
    optimizer.step()
    return (optimizer,)


def _of_their_shape(optimizer: Any) -> int:
    """As who counts only what has the shape of its parameter."""
    held = [(p, t) for p, of in optimizer.state.items() for t in of.values()]
    return sum(t.nbytes for p, t in held if t.shape == p.shape)


def _state_bytes(
    optimizer: Any,
    size: Callable[[Any], int] = lambda tensor: tensor.nbytes,
    counts: Callable[[Any], bool] = torch.Tensor.dim,
    names: str = "",
    which: slice = slice(None),
) -> int:
    dictionaries = [*optimizer.state.values()][which]
    tensors = [t for held in dictionaries for name, t in held.items() if names in name]
    return sum(size(tensor) for tensor in tensors if counts(tensor))


turn(
    "1.3.b",
    "Bytes of an optimiser's state",
    _state_bytes,
    {
        "plain SGD": lambda: _after_an_update(partial(torch.optim.SGD, lr=0.1)),
        "SGD with momentum": lambda: _after_an_update(partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
        "Adam": lambda: _after_an_update(torch.optim.Adam),
        "Adafactor": lambda: _after_an_update(torch.optim.Adafactor),
        "Adam, in float64": lambda: _after_an_update(torch.optim.Adam, torch.float64),
    },
    look=lambda held, _: _one(held),
    heads=("bytes of state",),
    mistakes=[
        (partial(_state_bytes, counts=torch.is_tensor), "Adam's counters are counted too",
         "`.dim()` of a counter is 0."),
        (partial(_state_bytes, counts=lambda tensor: not tensor.dim()), "only Adam's counters are counted",
         "The other tensors: `.dim()` of a counter is 0."),
        (partial(_state_bytes, counts=lambda tensor: tensor.dim() > 1), "what has one dimension is left out",
         "A bias has one. Only a counter has none: its `.dim()` is 0."),
        (_of_their_shape, "a tensor that has not its parameter's shape is left out",
         "Adafactor keeps a row's and a column's numbers of a matrix. Only a counter's `.dim()` is 0."),
        (partial(_state_bytes, size=torch.numel), "those are numbers, not bytes", "`.nbytes`, and not `.numel()`."),
        (partial(_state_bytes, size=lambda tensor: 4 * tensor.numel()), "4 bytes are taken for granted",
         "A float64 has 8. A tensor knows its `.nbytes`."),
        (partial(_state_bytes, size=lambda tensor: 1), "those are tensors, and not bytes", "Add up their `.nbytes`."),
        (partial(_state_bytes, names="exp_avg_sq"), "that is one of the things that Adam keeps, and not momentum's",
         "Go through all the values of each parameter's dictionary."),
        (lambda optimizer: 880, "the same whatever the optimiser keeps", "Look into `optimizer.state`."),
        (lambda optimizer: 440, "those are the parameters", "`optimizer.state.values()` has what it keeps for them."),
        (partial(_state_bytes, names="exp_avg"), "only Adam's state is counted, and momentum keeps something, too",
         "Whatever it is called: go through the `.values()` of each parameter's dictionary."),
        (partial(_state_bytes, names="momentum"), "only momentum's state is counted, and Adam keeps something, too",
         "Whatever it is called: go through the `.values()` of each parameter's dictionary."),
        (lambda optimizer: sum(p.nbytes for p in optimizer.state), "for Adam you count as much as for momentum",
         "Adam keeps two tensors a parameter, in the `.values()`. The keys of `optimizer.state` are parameters."),
        (lambda optimizer: _state_bytes(optimizer) + sum(p.nbytes for p in optimizer.state),
         "the parameters are counted, too",
         "They are the keys of `optimizer.state`; what it keeps is in the `.values()`."),
        (partial(_state_bytes, counts=lambda tensor: tensor.numel() > 1), "a tensor with one number is left out",
         "It may have a dimension all the same, as the bias of one output has: `.dim()` tells."),
        (lambda optimizer: _state_bytes(optimizer, which=slice(1)) if optimizer.state else None,
         "only what is kept for the first parameter is counted",
         "`optimizer.state` has an entry for each. Is the `return` below both loops?"),
        (partial(_state_bytes, which=slice(-1, None)), "only what is kept for the last parameter is counted",
         "Begin with 0, before both loops, and add, `+=`."),
        (lambda optimizer: [t.nbytes for held in optimizer.state.values() for t in held.values() if t.dim()],
         "those are the tensors one by one", "`sum(…)` of them."),
        (lambda optimizer: None, "nothing comes back", "Is there a `return`?"),
    ],
    hints={
        "sparse tensor layout": "A loop over a dictionary goes through its keys, here the parameters: `.values()`.",
        "'tuple' object has no": "`.items()` gives pairs, a name and a tensor: `.values()` gives the tensors.",
        "'dict' object has no": "What is kept for a parameter is a dictionary: go through its `.values()`.",
        "is not associated with a value": "Begin with 0, before the loops: plain SGD keeps nothing.",
    },
    otherwise="Two loops: over `optimizer.state.values()`, and over the `.values()` of each.",
)  # fmt: skip


def _gb_on_each(parameters: float, gradients: float, state: float, activations: float, devices: int) -> float:
    return parameters + gradients + state + activations / devices


PARTS = ("the parameters", "the gradients", "the state", "the activations")
RIGHT = ("whole", "whole", "whole", "shared out")
KNOWN = {  # what is done with each of the parts, where there is more to say of it
    ("shared out",) * 4: ("everything is shared out", "Each device holds the whole model."),
    ("whole",) * 4: ("nothing is shared out", "Each device takes its share of the batch."),
    ("whole", "shared out", "shared out", "shared out"): ("gradients and state are shared out",
        "For each parameter on the device there is a gradient, and the state."),
    ("whole", "shared out", "whole", "shared out"): ("the gradients are shared out",
        "There is one gradient for each parameter, however many images it sums up."),
    ("whole", "whole", "shared out", "shared out"): ("the state is shared out", "Each device updates the whole model."),
    ("left out", "left out", "left out", "shared out"): ("that is the activations' share alone",
        "Parameters, gradients and state are on each device as well, for each has the whole model."),
    ("whole", "whole", "whole", "left out"): ("the activations are left out",
        "Which share of them does a device keep?"),
    ("whole", "whole", "left out", "shared out"): ("the state is left out", "It lies on each device, for the update."),
    ("whole", "left out", "whole", "shared out"): ("the gradients are left out", "They lie on each device."),
}  # fmt: skip


def _spread(*given: float, done: Sequence[str]) -> float:
    times = {"whole": 1, "shared out": 1 / given[4], "left out": 0}
    return sum(gb * times[how] for gb, how in zip(given[:4], done, strict=True))


def _told(done: Sequence[str]) -> str:
    """Say what is done with the parts that it is not to be done with."""
    said = []
    for how in ("left out", "shared out", "whole"):
        parts = [part for part, this, right in zip(PARTS, done, RIGHT, strict=True) if this == how != right]
        if parts:
            verb = "is" if parts == ["the state"] else "are"
            said.append(f"{listed(parts)} {verb} {how.replace('whole', 'not shared out')}")
    return ", and ".join(said).replace(
        "shared out, and the activations are not shared out", "shared out, and the activations are not"
    )


turn(
    "1.3.c",
    "Bytes on each of N devices",
    _gb_on_each,
    {
        "1 + 10 + 100 + 1000 GB, on 1": lambda: (1, 10, 100, 1000, 1),
        "1 + 10 + 100 + 1000 GB, on 2": lambda: (1, 10, 100, 1000, 2),
        "2 + 30 + 400 + 500 GB, on 3": lambda: (2, 30, 400, 500, 3),
    },
    look=lambda gb, *_: _one(gb),
    heads=("GB on each device",),
    mistakes=[
        *[
            (partial(_spread, done=done), *KNOWN.get(done, (_told(done), "Whole on each: the model, its gradients, its "
                                                            "state. Shared out: the batch, and so the activations.")))
            for done in product(("whole", "shared out", "left out"), repeat=4)
            if done != RIGHT and {*done} != {"left out"}
        ],
        (lambda *it: sum(it[:3]) * it[4] + it[3], "that is the total of all devices", "How much is on one of them?"),
        (lambda *it: sum(it[:3]) + it[3] / 2, "that is for two devices", "`devices` says how many there are."),
        (lambda *it: sum(it[:3]) + it[3] // it[4], "only whole GB are counted", "`/` keeps what `//` drops."),
        (lambda *it: [_gb_on_each(*it)] * it[4], "one number comes back for each device",
         "They all hold as much: one."),
        (lambda *it: None, "nothing comes back", "Is there a `return`?"),
        (lambda *it: sum(it[:3]) + it[3] * it[4], "more devices have more activations each",
         "The batch is cut: each device takes its share of it."),
    ],
    otherwise="Which of the bars above is half as high with half the batch?",
)  # fmt: skip
