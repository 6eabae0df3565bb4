"""Checks of lesson 2.4, Pitfall: manual updates."""

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import gpus_for, kind, needs_function
from ddplab.checks.hints import first_line, hint_for
from ddplab.checks.turns import turn

STEPS = 5  # of the loop in exercise 2.4.2


@exercise("2.4.1", "A running mean, mended")
def running_mean(RunningMean: Callable[..., Any]) -> None:
    """`absorb(kept)` must leave all rows in `total` and `rows`, on two GPUs and on one, however short the batch."""
    if isinstance(RunningMean, nn.Module):
        raise NotYet("`RunningMean` is a module, not the class", "The check makes modules of its own.")
    needs_function("RunningMean", RunningMean)
    sizes = (5, 4, 1)
    batches = [part + 1 for part in torch.arange(30.0).view(10, 3).split(sizes)]
    wanted = torch.cat(batches).sum(0)
    with gpus_for(2) as both:
        for gpus in (both, both[:1]):
            where = "on two GPUs" if len(gpus) == 2 else "on one GPU"
            net = RunningMean(3).to(gpus[0])
            parallel = nn.DataParallel(net, device_ids=gpus)
            for batch in batches:
                rows, total = _plain(net.rows), _plain(net.total)
                with _hints(GATHER):
                    answer = parallel(batch)
                if not isinstance(answer, tuple) or len(answer) != 2:
                    hint = "Two things: the scores, and one object for `absorb`, say a tuple of tensors."
                    raise NotYet(f"`forward` returns {_kind(answer)}, not the pair `scores, kept`", hint)
                scores, kept = answer
                if tuple(getattr(scores, "shape", ())) != (len(batch), 1):
                    hint = "`self.layer(x)` comes first, then what `absorb` needs."
                    raise NotYet("the first thing that `forward` returns is not the scores", hint)
                if not (torch.equal(_plain(net.rows), rows) and torch.equal(_plain(net.total), total)):
                    hint = "On two GPUs only replica 0's part of that is kept. Return it; change it in `absorb`."
                    raise NotYet(f"{where}, `forward` itself changes `total` or `rows`", hint)
                with _hints(ABSORB):
                    net.absorb(kept)
            _absorbed(where, _plain(net.rows), _plain(net.total), wanted, batches)


def _absorbed(where: str, rows: Any, total: Any, wanted: Any, batches: list[Any]) -> None:
    if tuple(rows.shape) not in ((), (1,)) or tuple(total.shape) != (3,):
        hint = "Gathered tensors have an entry for each replica. Add those up: `.sum(0)`."
        raise NotYet(f"{where}, `total` has shape {tuple(total.shape)} and `rows` has {tuple(rows.shape)}", hint)
    count, everything = float(rows), sum(len(batch) for batch in batches)
    if not count and not total.any():
        raise NotYet(f"{where}, `absorb` leaves `total` and `rows` at 0", "Add to `self.total` and `self.rows`.")
    if count == everything and torch.allclose(total, wanted):
        return
    halves = [batch.chunk(2) if where == "on two GPUs" else (batch,) for batch in batches]
    if count == sum(len(half[0]) for half in halves) < everything:
        hint = "What comes back has an entry for each replica. Add up all of them."
        raise NotYet(f"{where}, `rows` is {count:g} of {everything}: only the first replica's rows", hint)
    if count == sum(map(len, halves)):
        hint = "Let each replica return its own `len(x)`."
        raise NotYet(f"{where}, `rows` is {count:g} of {everything}: it counts replicas, not rows", hint)
    if count != everything:
        raise NotYet(f"{where}, `rows` is {count:g}, and {everything} rows went through", "Each row once.")
    if torch.allclose(total, sum(half.mean(0) for pair in halves for half in pair)):
        hint = "Return sums. Divide at the very end, by all rows."
        raise NotYet(f"{where}, `total` is a sum of means, and the means come from 3 rows and from 2", hint)
    if torch.allclose(total, sum(pair[0].sum(0) for pair in halves)):
        raise NotYet(f"{where}, `total` has only the first replica's rows", "Add up what all replicas return.")
    raise NotYet(f"{where}, `rows` is right and `total` is not the sum of all rows", "`x.sum(0)`, column by column.")


@exercise("2.4.2", "The bad example, repaired")
def repaired(step: Callable[..., Any]) -> None:
    """`step(parallel, lr)` must do what SGD does, on networks with a parameter of their own and a frozen layer."""
    needs_function("step", step)
    for make, lr in ((_scaled, 0.1), (_shifted, 0.03)):
        _repaired(step, make, lr)


def _repaired(step: Callable[..., Any], make: Callable[[], Any], lr: float) -> None:
    with gpus_for(2) as gpus:
        net = make()
        start, frozen = net.state_dict(), {name for name, p in net.named_parameters() if not p.requires_grad}
        start = {name: tensor.clone() for name, tensor in start.items()}
        parallel = nn.DataParallel(net.to(gpus[0]), device_ids=gpus)
        before = dict(parallel.module.named_parameters())

        def one_step() -> None:
            with _hints(STEP):
                step(parallel, lr)

        _descend(parallel, one_step)
        after = {name: _plain(tensor) for name, tensor in parallel.module.state_dict().items()}
        now = dict(parallel.module.named_parameters())
    for name in before:
        if now.get(name) is not before[name]:
            hint = "An optimiser made before would still hold the old one. Change the numbers in `p` itself."
            raise NotYet(f"`{name}` is another parameter afterwards", hint)
    right = _sgd(make, lr)
    if all(_near(after[name], right[name]) for name in right):
        return
    if not all(_near(after[name], start[name]) for name in frozen):
        raise NotYet("the frozen layer moved", "A parameter without a gradient stays as it is.")
    moved = {name for name in right if not _near(after[name], start[name])}
    if not moved:
        hint = "`p = p - …` names a new tensor, and a replica is gone after the forward. Write into `p` itself."
        raise NotYet("no parameter of the network moved", hint)
    if left := sorted(before.keys() - frozen - moved, key=lambda name: name.count(".")):
        hint = "`children()` yields the layers inside. Which call yields every parameter, the network's own too?"
        raise NotYet(f"`{left[0]}` never moved", hint)
    for mistake, (message, hint) in {
        "keep": ("the gradients of all steps pile up", "Clear them when you have used them: `p.grad = None`."),
        "up": ("the weights go uphill", "Down the gradient: subtract."),
        "half": ("every step is half as long as it should be", "The gradients are those of the whole batch already."),
        "double": ("every step is twice as long as it should be", "The gradients are added up already. Step once."),
    }.items():
        if all(_near(after[name], tensor) for name, tensor in _sgd(make, lr, mistake).items()):
            raise NotYet(message, hint)
    if all(_near(after[name], tensor) for name, tensor in _sgd(make, 0.1).items()):
        raise NotYet(f"`lr` is {lr:g}, and your steps are those of 0.1", "Use the argument `lr`.")
    worst = next(name for name in right if not _near(after[name], right[name]))
    hint = "For each `p`: minus lr times its gradient."
    raise NotYet(f"after {STEPS} steps `{worst}` is not what SGD makes of it", hint)


def _scaled() -> Any:
    """A network with a parameter of its own, a frozen layer and a layer that learns."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.frozen, self.layer = nn.Linear(4, 4, bias=False), nn.Linear(4, 1)
            self.frozen.requires_grad_(False)

        def forward(self, x: Any) -> Any:
            return self.scale * self.layer(self.frozen(x).tanh())

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        return Scaled().double()


def _shifted() -> Any:
    """Another such network, with other names."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(1))
            self.inside = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1, bias=False))
            self.inside[0].requires_grad_(False)

        def forward(self, x: Any) -> Any:
            return self.inside(x) + self.shift

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return Shifted().double()


def _descend(net: Any, step: Callable[[], None]) -> None:
    """Some backward passes over the same eight rows, each followed by `step()`."""
    x = torch.linspace(-1, 1, 32, dtype=torch.float64).view(8, 4).to(next(net.parameters()).device)
    for _ in range(STEPS):
        (net(x) - x.sum(1, keepdim=True)).square().mean().backward()
        step()


def _sgd(make: Callable[[], Any], lr: float, mistake: str = "") -> dict[str, Any]:
    """The state of the network after the same steps by the optimiser; with a mistake that many make, if asked."""
    net = make()
    optimizer = torch.optim.SGD(
        net.parameters(), lr=lr * {"half": 0.5, "double": 2}.get(mistake, 1), maximize=mistake == "up"
    )

    def step() -> None:
        optimizer.step()
        if mistake != "keep":
            optimizer.zero_grad()

    _descend(net, step)
    return net.state_dict()


@exercise("2.4.3", "Activations, in order")
def activations(collect: Callable[..., Any]) -> None:
    """`collect(parallel, layer, x)` must return what `layer` gave for every row, in order, on the CPU."""
    needs_function("collect", collect)
    with gpus_for(2) as gpus:

        class Slow(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.last, self.used = nn.Linear(1, 1), nn.Linear(1, 1), []

            def forward(self, x: Any) -> Any:
                self.used.append(x.device.index)
                if x.device.index == slower:
                    the_quicker_is_through.wait(2)  # so that this one comes last, always
                out = self.layer(x)
                if x.device.index != slower:
                    the_quicker_is_through.set()
                return self.last(out)

        net = Slow().to(gpus[0])
        parallel = nn.DataParallel(net, device_ids=gpus)
        for n, late in ((5, 0), (5, 1), (1, None)):
            slower = late
            the_quicker_is_through = threading.Event()
            x = torch.tensor([3.0, 1.0, 5.0, 2.0, 4.0])[:n].view(n, 1).to(gpus[0])
            wanted, net.used[:] = _plain(net.layer(x)), []
            runs: list[Any] = []
            ours = net.layer.register_forward_hook(lambda *_, runs=runs: runs.append(1))
            hooks = set(net.layer._forward_hooks)
            with _hints(COLLECT):
                answer = collect(parallel, net.layer, x)
            _collected(answer, wanted, n, sorted(net.used))
            if len(runs) != len(net.used):
                hint = "Return what your hook was given during that forward."
                raise NotYet(f"for {n} rows `layer` ran {len(runs)} times: also apart from the one forward", hint)
            if left := hooks ^ set(net.layer._forward_hooks):
                if left & hooks:
                    raise NotYet("you also take away hooks that are not yours", "Only `handle.remove()` of your own.")
                hint = "`register_forward_hook` returns a handle. Call its `remove()` after the forward."
                raise NotYet("your hook is still on the layer afterwards", hint)
            ours.remove()


def _collected(answer: Any, wanted: Any, n: int, used: list[int]) -> None:
    if not isinstance(answer, torch.Tensor):
        raise NotYet(f"`collect` returns {_kind(answer)}, not a tensor", "Put the parts together: `torch.cat(parts)`.")
    if used != [0, 1][:n]:
        hint = "One forward, through `parallel`."
        raise NotYet(f"for {n} rows the network ran on {used or 'no GPU'}, and not once on each", hint)
    if answer.device.type != "cpu":
        raise NotYet(f"what `collect` returns is on {answer.device}", "`.cpu()` brings each part home.")
    if answer.shape != wanted.shape:
        if len(answer) < n:
            hint = "The hook runs once on every replica. Keep each of the parts."
            raise NotYet(f"you return {len(answer)} of {n} rows", hint)
        raise NotYet(f"you return shape {tuple(answer.shape)}, not {tuple(wanted.shape)}", "Each row once.")
    if torch.allclose(answer.detach(), wanted):
        return
    if torch.allclose(answer.detach(), torch.cat(wanted.chunk(2)[::-1])):
        hint = "Either GPU may be the quicker one. Note with each part which device it is from, and sort by that."
        raise NotYet("the second GPU's rows come first", hint)
    if torch.allclose(answer.detach().sort(0).values, wanted.sort(0).values):
        hint = "In the order of the rows of `x`: GPU 0 has the first of them."
        raise NotYet("every row is there, but they are in another order than the rows of `x`", hint)
    raise NotYet("those are not the outputs of `layer`", "A forward hook gets module, inputs and output.")


@contextlib.contextmanager
def _hints(hints: dict[str, str]) -> Iterator[None]:
    """Turn an error whose message has these words into a NotYet with a hint; let any other pass."""
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        hint = hint_for(text, hints)
        if not hint:
            raise
        raise NotYet(f"your code raised {type(error).__name__}: {first_line(str(error))}", hint) from None


def _kind(answer: Any) -> str:
    if isinstance(answer, torch.Tensor):
        return "one tensor"
    if isinstance(answer, tuple):
        return f"a tuple of {len(answer)}"
    return kind(answer)


def _plain(value: Any) -> Any:
    """A copy of a tensor, or a number, as a tensor on the CPU."""
    return torch.as_tensor(value).detach().cpu().clone()


def _near(a: Any, b: Any) -> bool:
    return float((a - b).abs().max()) < 1e-9


GATHER = {
    "object is not iterable": "Gathering joins tensors, not Python numbers: `torch.tensor([len(x)], device=x.device)`.",
    "not implemented for CPU tensors": "Make it on the replica's own device: `device=x.device`.",
    "Expected all tensors to be on the same device": "Make it on the replica's own device: `device=x.device`.",
    "Input tensor at index": "Parts are joined along their first dimension: give them one, `keepdim=True`.",
}
ABSORB = {
    "must match": "Parts are joined along their first dimension. Give each sum a row: `x.sum(0, keepdim=True)`.",
    "doesn't match the broadcast shape": "What comes back has an entry for each replica. Add those up: `.sum(0)`.",
    "takes 1 positional": "`absorb(self, kept)` gets what `forward` returned as its second value.",
    "Output 0 of Gather": "Use the gathered numbers, and leave them as they are.",
}
STEP = {
    "object has no attribute": "The check has another network too. Ask each for its parameters; do not name them.",
    "a leaf Variable that requires grad": "Under `torch.no_grad()`, or on `p.data`.",
    "NoneType": "A frozen parameter has no gradient, its `.grad` is `None`. Leave it alone.",
}
COLLECT = {
    "expected a non-empty list": "Your hook kept nothing. Register it before the forward, keep parts outside of it.",
    "Expected all tensors to be on the same device": "The parts are on different GPUs. `.cpu()` brings each home.",
    "object has no attribute": "What a hook writes on `module` is on a replica, and gone. Use a list or a dictionary.",
    "KeyError": "One row goes to one GPU only. Use the parts that are there.",
}


# ------------------------------------------------------------------ your turn


class _Diary(nn.Module):
    """The lesson's: each forward hands itself, or the replica that runs, to `write`."""

    def __init__(self, write: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.write = nn.Linear(1, 1), write
        self.number, self.pages = 0, []
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        scores = self.layer(x)
        self.write(self, len(x))
        return scores


def _written(write: Callable[..., Any], n: int) -> list[Any]:
    """What `total` of the module itself is after one forward of five rows on n GPUs, and after three."""
    with gpus_for(2) as gpus:
        diary = _Diary(write).to(gpus[0])
        parallel = nn.DataParallel(diary, device_ids=gpus[:n])
        after = []
        for _ in range(3):
            parallel(torch.ones(5, 1).to(gpus[0]))
            if diary.total.device != diary.layer.weight.device:
                return ["on the CPU", "-"]
            after.append(diary.total.sum().item())
    return [after[0], after[2]]


def _one_more(diary: Any, n: int) -> None:
    diary.total += 1


def _rebinds(diary: Any, n: int) -> None:
    diary.total = diary.total + 1


def _counts_rows(diary: Any, n: int) -> None:
    diary.total += n


def _counts_in_a_number(diary: Any, n: int) -> None:
    diary.number += 1


def _sets_it_to_one(diary: Any, n: int) -> None:
    diary.total.fill_(1)


def _counts_pages(late: tuple[int, ...], diary: Any, n: int) -> None:
    """A page of each replica in one list, and how long it is when replica 0 looks: `late` comes replica 1's page."""
    if n == 5:  # on one GPU
        diary.pages.append(n)
        diary.total.fill_(len(diary.pages))
    if n == 3:
        forward = len(diary.pages) // 2
        diary.pages.extend([n, n])
        diary.total.fill_(len(diary.pages) - late[forward])


def _adds(make: Callable[[int], float]) -> Callable[..., Any]:
    return lambda diary, n: diary.total.add_(make(n))


INTO_TOTAL = (
    "Write into `diary.total` itself: `+=` and `add_` do, `+` and `add` make another tensor. "
    "A Python number of a replica goes with it."
)
NOT_THERE = "`total` of your own module does not move on two GPUs, and does on one"
NEVER = "`total` never moves"

turn(
    "2.4.a",
    "How many forwards",
    _one_more,
    {"one GPU": lambda: (1,), "two GPUs": lambda: (2,)},
    call=_written,
    heads=("after 1 forward", "after 3"),
    mistakes=[
        (
            _rebinds,
            NOT_THERE,
            "The line makes a new tensor, and that goes with the replica. Write into the memory that is there.",
        ),
        (
            _counts_rows,
            "it counts rows; and of those, only replica 0's are kept on two GPUs",
            "Count forwards, not rows. How many does replica 0 take part in?",
        ),
        (_counts_in_a_number, NEVER, INTO_TOTAL),
        (lambda diary, n: None, NEVER, INTO_TOTAL),
        (
            lambda diary, n: setattr(diary, "total", torch.tensor(diary.total.item() + 1)),
            "a new tensor, on the CPU, takes the place of `total`",
            INTO_TOTAL,
        ),
        (
            lambda diary, n: diary.total.fill_(n),
            "it holds how many rows came last, to replica 0",
            "Count forwards, not rows, and add to what is there already.",
        ),
        (
            _adds(lambda n: 0.5),
            "each forward adds a half",
            "Only what replica 0 adds is kept: one addition for each forward, whole.",
        ),
        (
            _adds(lambda n: 1 / n),
            "each forward adds 1, divided by the rows of replica 0",
            "The rows do not matter: a forward is one, whatever it was given.",
        ),
        *[
            (
                partial(_counts_pages, (first, 0, third)),
                "on two GPUs replicas are counted, as in a list, which is the same one for both",
                "Add to `diary.total` itself: of what replicas write into that, only replica 0's is kept.",
            )
            for first in (0, 1)
            for third in (0, 1)
        ],
        (
            _sets_it_to_one,
            "it is 1 for ever",
            "What is there already has to count.",
        ),
    ],
    hints={
        "0-dim tensor": "`diary.total` is one number, without a dimension: no `[…]` behind it.",
        "no attribute 'append'": "`diary.total` is a tensor that holds one number, and no list.",
        "leaf Variable": "Leave the parameters alone. `diary.total` is a buffer.",
        "no attribute 'module'": "`diary` is the module, or the replica that runs: only `parallel` has a `.module`.",
    },
    otherwise="Every forward counts once, whichever replicas take part in it.",
)


class _Net(nn.Module):
    """A network with a layer, and a weight of its own beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([5.0]))
        self.layer = nn.Linear(2, 1)
        self.layer.weight.data[:] = torch.tensor([[0.5, 3.0]])
        self.layer.bias.data[:] = -4.0

    def forward(self, x: Any) -> Any:
        return self.scale * self.layer(x)


class _InPlace(TorchDispatchMode):
    """Notes whether anything is written into a tensor that is there."""

    any = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.any = self.any or func._schema.is_mutable
        return func(*args, **(kwargs or {}))


def _clipped(clip: Callable[..., Any], n: int) -> list[Any]:
    """The weights of the module itself after a step, whether they are the old parameters, and what two GPUs compute."""
    with gpus_for(2) as gpus:
        net = _Net().to(gpus[0])
        parallel, before = nn.DataParallel(net, device_ids=gpus[:n]), list(net.parameters())
        parallel(torch.ones(4, 2).to(gpus[0])).sum().backward()
        gradients = [p.grad.clone() for p in before]
        with _InPlace() as written:
            clip(parallel)
        moved = any(not p.cpu().equal(q) for p, q in zip(net.parameters(), _Net().parameters(), strict=True))
        weights = [net.layer.weight.flatten()[0], net.layer.weight.flatten()[1], net.layer.bias[0], net.scale[0]]
        same = all(p is q for p, q in zip(net.parameters(), before, strict=True))
        told = [] if moved or written.any else ["nothing was written into"]
        if not moved and any(
            p.grad is not None and not p.grad.equal(it) for p, it in zip(before, gradients, strict=True)
        ):
            told = ["gradients were clipped"]
        return [*(round(it.item(), 4) for it in weights), "yes" if same else "no", *told]


def _by_no_grad(parallel: Any, which: Any = lambda parallel: parallel.parameters(), low: float = -1) -> None:
    with torch.no_grad():
        for p in which(parallel):
            p.clamp_(low, 1)


def _changed(by: Callable[[Any], Any]) -> Callable[..., Any]:
    def change(parallel: Any) -> None:
        with torch.no_grad():
            for p in parallel.parameters():
                p.copy_(by(p))

    return change


def _of_children(parallel: Any) -> list[Any]:
    return [p for layer in parallel.module.children() for p in layer.parameters()]


def _rebinds_the_name(parallel: Any) -> None:
    for p in parallel.parameters():
        p = p.clamp(-1, 1)


def _makes_new_parameters(parallel: Any) -> None:
    for module in parallel.module.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(p.detach().clamp(-1, 1)))


def _clips_gradients(parallel: Any) -> None:
    for p in parallel.parameters():
        p.grad.clamp_(-1, 1)


def _with_grad(parallel: Any) -> None:
    for p in parallel.parameters():
        p.clamp_(-1, 1)


def _on_replicas(parallel: Any) -> None:
    replicas = torch.nn.parallel.replicate(parallel.module, parallel.device_ids)
    _by_no_grad(parallel, lambda _: [p for replica in replicas for p in replica.parameters()])


STAY = "no weight of your own module has moved"
INTO = "Write into each parameter `p` itself: not into a copy, and not on a replica, which is gone afterwards."
UNWRITTEN = "no weight was written into: at most, new tensors were made"
NAME = "`p = …` gives the name a new tensor; the parameter keeps its numbers. (A replica's `parameters()` are none.)"

turn(
    "2.4.b",
    "Clipped where they live",
    _by_no_grad,
    {"one GPU": lambda: (1,), "two GPUs": lambda: (2,)},
    call=_clipped,
    heads=("layer: 0.5", "layer: 3", "bias: -4", "scale: 5", "same parameters"),
    otherwise="After the step, on your own module: each of its parameters, in place, under `torch.no_grad()`.",
    mistakes=[
        (_rebinds_the_name, UNWRITTEN, NAME),
        (
            _clips_gradients,
            "the gradients are clipped, and no weight",
            "The step has been made: clip each parameter `p` itself.",
        ),
        (_on_replicas, UNWRITTEN, NAME),
        (lambda parallel: _by_no_grad(parallel, lambda _: [p.clone() for p in parallel.parameters()]), STAY, INTO),
        (
            partial(_by_no_grad, which=_of_children),
            "`scale` is left out: it belongs to the network itself, not to a layer inside",
            "`parameters()` yields all of them, whoever they belong to.",
        ),
        (
            partial(_by_no_grad, which=lambda parallel: [parallel.module.layer.weight]),
            "the bias and `scale` are left out: `weight` is one of the layer's parameters",
            "`parameters()` yields all of them, whoever they belong to.",
        ),
        (
            partial(_by_no_grad, which=lambda parallel: [parallel.module.scale]),
            "`scale` alone is clipped, and the layer is left out",
            "`parameters()` yields all of them, whoever they belong to.",
        ),
        *[
            (_changed(by), "weights that were in the range change, too", "Clip: what lies in the range stays as it is.")
            for by in (
                lambda p: p / p.abs().max(),
                lambda p: p / p.norm(),
                torch.tanh,
                torch.sign,
            )
        ],
        (_changed(lambda p: p.abs().clamp(max=1)), "the sign is lost", "-4 becomes -1: from -1 to 1."),
        (
            _changed(lambda p: p.clamp(1, -1)),
            "all weights are -1: the bounds are in the wrong order",
            "First the lower bound, then the upper: `clamp_(-1, 1)`.",
        ),
        (_changed(lambda p: p.clamp(min=-1)), "nothing stops a weight above 1", "From -1 to 1."),
        (
            partial(_by_no_grad, low=0),
            "negative weights become 0",
            "From -1 to 1.",
        ),
        (
            partial(_by_no_grad, low=float("-inf")),
            "nothing stops a weight below -1",
            "From -1 to 1.",
        ),
        (
            _makes_new_parameters,
            "the network has new parameters, which no optimiser has heard of",
            "Change the numbers in the parameters that are there.",
        ),
        (
            _with_grad,
            "autograd forbids it: a parameter must not be changed in place while it takes notes",
            "`torch.no_grad()` stops the notes, or write into `p.data`.",
        ),
    ],
)


def _reported(report: Callable[..., Any], rows: int, n: int) -> list[Any]:
    """The shape of the gathered scores, the gathered counts and their sum."""

    class Reporter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, x: Any) -> Any:
            return report(self.layer, x)

    with gpus_for(2) as gpus, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a scalar from each replica is fine
        x = torch.arange(1.0, 2 * rows + 1).view(rows, 2).to(gpus[0])
        try:
            got = nn.DataParallel(Reporter().to(gpus[0]), device_ids=gpus[:n])(x)
        except TypeError as error:
            if len(gpus[:n]) == 1 or str(error).startswith("Caught "):  # theirs, from a replica
                raise
            raise TypeError(f"in DataParallel's gather, {error}") from error
    if isinstance(got, torch.Tensor):
        return ["one tensor, " + (" x ".join(map(str, got.shape)) or "a number"), "-", "-"]
    if not isinstance(got, tuple | list) or len(got) != 2:
        return [_kind(got), "-", "-"]
    if not isinstance(got[0], torch.Tensor):
        return [_kind(got[0]), "-", "-"]
    counts = [int(count) for count in torch.as_tensor(got[1]).flatten().tolist()]
    away = "" if got[0].requires_grad or got[0].shape != (rows, 1) else ", no gradient"
    return [(" x ".join(map(str, got[0].shape)) or "one number") + away, " + ".join(map(str, counts)), sum(counts)]


def _report(layer: Any, x: Any, count: Callable[[Any], Any] = lambda x: torch.tensor([len(x)], device=x.device)) -> Any:
    return layer(x), count(x)


turn(
    "2.4.c",
    "Nothing is lost on the way",
    _report,
    {"5 rows, one GPU": lambda: (5, 1), "5 rows, 2 GPUs": lambda: (5, 2), "8 rows, 2 GPUs": lambda: (8, 2)},
    call=_reported,
    otherwise="What `layer` returns for `x`; and beside it a tensor with one number, the rows of `x`, where `x` lies.",
    heads=("scores", "counts", "sum"),
    mistakes=[
        (
            partial(_report, count=len),
            "the count is a Python number, and gather joins tensors",
            "Put it into a tensor, on the device of `x`.",
        ),
        (
            partial(_report, count=lambda x: torch.ones(1, device=x.device)),
            "every replica reports 1: it counts replicas, not rows",
            "How many rows has *this* replica seen? `len(x)`.",
        ),
        (
            partial(_report, count=lambda x: torch.tensor([len(x)])),
            "the count is on the CPU, and gather takes it from GPUs",
            "Make the tensor where `x` is: `device=`.",
        ),
        (
            lambda layer, x: layer(x),
            "the scores come back, without a count",
            "`return` two things.",
        ),
        (
            lambda layer, x: torch.tensor([len(x)], device=x.device),
            "one number comes back from each replica, and no scores",
            "`return` two things: the scores, and a tensor with the count.",
        ),
        *[
            (
                lambda layer, x, into=into: into([layer(x)]),
                f"the scores alone come back, in a {into.__name__}",
                "`return` two things: the scores, and a tensor with the count.",
            )
            for into in (tuple, list)
        ],
        (
            lambda layer, x: (layer(x), x),
            "the rows themselves come back, and not how many they are",
            "One number: `len(x)`.",
        ),
        (
            lambda layer, x: (torch.tensor([len(x)], device=x.device), layer(x)),
            "the count comes first, and the scores second",
            "The scores first, then the count.",
        ),
        (
            partial(_report, count=lambda x: torch.tensor([5], device=x.device)),
            "every replica reports 5",
            "How many rows has *this* replica seen? `len(x)`.",
        ),
        (
            partial(_report, count=lambda x: torch.tensor([x.numel()], device=x.device)),
            "the numbers in `x` are counted, and a row has two",
            "How many rows has this replica seen? `len(x)`.",
        ),
        (
            partial(_report, count=lambda x: torch.ones(len(x), device=x.device)),
            "a 1 comes back for each row, not a count for each replica",
            "One number: how many rows.",
        ),
        (
            lambda layer, x: _report(lambda x: x, x),
            "the rows come back, without their scores",
            "The scores are what `layer` makes of `x`.",
        ),
        (
            lambda layer, x: (layer, torch.tensor([len(x)], device=x.device)),
            "the layer itself comes back, and not its scores",
            "`layer(x)`",
        ),
        *[
            (
                lambda layer, x, by=by: _report(lambda x: by(layer(x)), x),
                "the scores are not those of single rows: they are added up, or averaged",
                "As they come out of `layer`.",
            )
            for by in (torch.sum, lambda scores: scores.sum(0))
        ],
        (
            lambda layer, x: _report(lambda x: layer(x).flatten(), x),
            "the scores have lost their second dimension",
            "As they come out of `layer`: no `squeeze`, no `flatten`.",
        ),
        (
            lambda layer, x: _report(lambda x: layer(x).T, x),
            "the scores are turned round: gather joins along the first dimension, which is to be the rows",
            "As they come out of `layer`.",
        ),
        (
            lambda layer, x: torch.cat([layer(x), torch.ones_like(x[:, :1])], 1),
            "one tensor comes back, of two columns",
            "`return` two things: the scores, and a tensor with the count.",
        ),
        (
            lambda layer, x: dict(enumerate(_report(layer, x))),
            "a dictionary comes back",
            "`return` the two things themselves, with a comma between.",
        ),
        (
            partial(_report, count=lambda x: torch.tensor([x.size(1)], device=x.device)),
            "the numbers in a row are counted, and not the rows",
            "The rows are the first dimension: `len(x)`.",
        ),
        (
            partial(_report, count=lambda x: torch.tensor([*x.shape], device=x.device)),
            "the whole shape of `x` comes back: its rows, and how long they are",
            "One number: how many rows.",
        ),
        (
            partial(_report, count=torch.sum),
            "the numbers in `x` are added up",
            "How many rows has this replica seen? `len(x)`.",
        ),
        (
            lambda layer, x: _report(lambda x: layer(x).detach(), x),
            "no gradient goes back through the scores",
            "No `detach`, no `data`, no `no_grad()`: training goes on with them.",
        ),
    ],
    hints={
        "not iterable": "Put the number into a tensor, on the device of `x`.",
        "not compiled with CUDA": "`device=x.device`: wherever this replica is, on a GPU that is real or not.",
    },
)
