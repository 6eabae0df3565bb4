"""Checks of lesson 8.2, Cutting the model."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import flat, multiple, needs_function, off, on_ranks
from ddplab.checks.turns import turn, waiting
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


@exercise("8.2.2", "A pipeline of any length")
def any_length(stage: Callable[..., Any]) -> None:
    """`stage(part, x, loss, width)` on 2 and 3 ranks must leave each part the gradients of the whole network."""
    needs_function("stage", stage)
    for size in (2, 3):
        net, x = _chain(size)
        _loss(net(x)).backward()
        ranks = on_ranks(_stage_in_rank, stage, size, size=size, hints=HINTS, waiting=BOTH_WAYS)
        for rank, got in enumerate(ranks):
            _judge_stage(f"on {size} ranks, stage {rank}", got, net, rank, x)


WIDTH = 3
BOTH_WAYS = "Each `send` needs its `recv`. Rank 0 has no stage before it and the last none after; the others have both."
NO_GRADIENT = "No gradient to send? What came down needs `requires_grad_()` before it goes through `part`."
HINTS = {
    "does not require grad": "What came down has to have `requires_grad_()` before it goes through `part`.",
    "must be Tensor": NO_GRADIENT,
    "Expected parameter": NO_GRADIENT,
    "Expected all tensors to be on the same device": "A tensor to receive into has to be on `device()`.",
}


def _chain(size: int) -> tuple[nn.Sequential, torch.Tensor]:
    """A network of one layer for each rank, and four images of WIDTH numbers."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(size)]
    return nn.Sequential(*layers), torch.randn(4, WIDTH)


def _loss(out: torch.Tensor) -> torch.Tensor:
    return (out - 1).square().sum()


def _stage_in_rank(stage: Callable[..., Any], size: int) -> torch.Tensor | None:
    net, x = _chain(size)
    part = net[dist.get_rank()].to(device())
    stage(part, x.to(device()), _loss, WIDTH)
    gradients = [p.grad for p in part.parameters()]
    return None if any(g is None for g in gradients) else flat(gradients)


def _judge_stage(where: str, got: torch.Tensor | None, net: nn.Sequential, rank: int, x: torch.Tensor) -> None:
    if got is None:
        hint = "Go backward from the gradient that comes up: `out.backward(gradient)`; the last stage from its loss."
        raise NotYet(f"{where} has no gradients", hint)
    wanted = flat(p.grad for p in net[rank].parameters())
    if off(got, wanted) < 1e-4:
        return
    own, below = net[rank](net[:rank](x).detach()), rank < len(net) - 1
    later = net[: rank + 2](x).detach().requires_grad_()  # what the stage below puts out, and its gradient
    (past,) = torch.autograd.grad(_loss(net[rank + 2 :](later)), later)
    for what, loss, hint in (
        ("of a sum of its own output", own.sum(), "`out.backward(gradient)`, with what came up."),
        ("of a loss of its own output", _loss(own), "Only the last stage has a loss."),
        ("of the output that came back", (own * own.detach()).sum(), "The gradient has to come up, not the output."),
        ("of what came up to the stage below, handed on", (own * past).sum(), "Send up `.grad` of what came down."),
    ):
        if below and off(got, flat(torch.autograd.grad(loss, list(net[rank].parameters()), retain_graph=True))) < 1e-4:
            raise NotYet(f"{where} has the gradients {what}", hint)
    if not got.any():
        raise NotYet(f"{where} has gradients of zero", "Is the gradient received before it is used?")
    if factor := multiple(got, wanted, 1e-4):
        hint = "No stage divides or multiplies what comes up."
        raise NotYet(f"{where} has {factor:.3g} times the gradients of the whole network", hint)
    raise NotYet(f"{where} has other gradients than the whole network", "Who sends what to whom?")


# your turn


def _two_layers(rank: int, size: int) -> tuple[torch.Tensor, nn.Linear, nn.Linear]:
    """Two images of two numbers, two layers of six, and a counter of multiplications, which runs from now on."""
    first, second = nn.Linear(2, 6).requires_grad_(False), nn.Linear(6, 2).requires_grad_(False)
    first.weight[:] = torch.tensor([[1.0, 0], [0, 1], [1, 1], [-1, 0], [2, 0], [0, -3]])
    first.bias[:] = 1
    second.weight[:] = torch.tensor([[1.0, 2, 3, 4, -5, 6], [10, 20, 30, 40, -50, 60]])
    second.bias[:] = torch.tensor([100.0, 1000])
    first.counter = FlopCounterMode(display=False)
    first.counter.__enter__()
    return torch.tensor([[1.0, 2]], device=device()), first.to(device()), second.to(device())


def _out_and_work(returned: Any, x: torch.Tensor, first: nn.Linear, second: nn.Linear) -> list[Any]:
    first.counter.__exit__(None, None, None)
    return [returned, first.counter.get_total_flops() // 2]


def _layers_cut(
    x: torch.Tensor, first: nn.Linear, second: nn.Linear, whole: bool = False, reduce: str = "sum", bias: str = "after",
    between: Callable = F.relu, first_bias: float = 1, every: bool = False, narrow: bool = True,
    last: Callable = lambda it: it, of: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Tensor parallel, with one thing done otherwise: `every` cuts every size-th column, `of` says whose part it is."""
    rank, size = (0, 1) if whole else (dist.get_rank() if of is None else of, dist.get_world_size())
    rows, mine = first.weight.chunk(size)[rank], first_bias * first.bias.chunk(size)[rank]
    columns = second.weight[:, rank::size] if every else second.weight.chunk(size, dim=1)[rank]
    out = (between(x @ rows.T + mine) if narrow else F.relu(first(x)).chunk(size, dim=1)[rank]) @ columns.T
    out = last(out)
    if bias == "before":
        out = out + second.bias
    if reduce:
        dist.all_reduce(out)
    if reduce == "mean":
        out = out / size
    return out + second.bias if bias == "after" else out


def _hidden_added_up(x: torch.Tensor, first: nn.Linear, second: nn.Linear) -> torch.Tensor:
    def added_up(hidden: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(hidden := F.relu(hidden))
        return hidden

    return _layers_cut(x, first, second, between=added_up)


def _otherwise_cut(
    x: torch.Tensor, first: nn.Linear, second: nn.Linear, columns: bool = True, rows: bool = True
) -> torch.Tensor:
    """columns, rows: the first layer is cut into columns, the second into rows."""
    rank, size, out = dist.get_rank(), dist.get_world_size(), torch.zeros(len(x), 2, device=x.device)
    cut = slice(rank, None, size)
    if columns:
        dist.all_reduce(hidden := x[:, cut] @ first.weight[:, cut].T)
    else:
        hidden = torch.zeros(len(x), 6, device=x.device)
        hidden[:, cut] = x @ first.weight[cut].T
        dist.all_reduce(hidden)
    hidden = F.relu(hidden + first.bias)
    if rows:
        out[:, cut] = hidden @ second.weight[cut].T
    else:
        out += hidden[:, cut] @ second.weight[:, cut].T
    dist.all_reduce(out)
    return out + second.bias


THIS_CUT = "The first weight into rows, `chunk(size)`, the second into columns, `chunk(size, dim=1)`."

turn(
    "8.2.a",
    "Two layers, cut",
    _layers_cut,
    _two_layers,
    ranks=(2, 3),
    look=_out_and_work,
    heads=("output", "", "multiplications"),
    mistakes=[
        (_otherwise_cut, "the layers are cut the other way round: the first into columns, the second into rows",
         THIS_CUT),
        *((partial(_otherwise_cut, **{it: False}), "both layers are cut in the same way", THIS_CUT)
          for it in ("columns", "rows")),
        (partial(_layers_cut, reduce=""), "each rank has its own part of the sum", "One `dist.all_reduce`."),
        (partial(_layers_cut, bias="before"), "the second bias is added once on each rank",
         "Once, after the parts have been added up."),
        (partial(_layers_cut, bias="", first_bias=0), "both biases are missing",
         "A rank's own part of the first; the second whole, after the parts have been added up."),
        (_hidden_added_up, "what the first layer puts out is added up, and it is no part of a sum",
         "Only what the second puts out is: one `all_reduce`, at the end."),
        (partial(_layers_cut, bias=""), "the second bias is missing", "After the parts have been added up."),
        (partial(_layers_cut, first_bias=0), "the first bias is missing", "A rank's own part of it."),
        (partial(_layers_cut, between=lambda it: it), "there is no ReLU between the layers",
         "On this rank's part of what the first puts out."),
        (partial(_layers_cut, last=F.relu), "there is a ReLU after the second layer, too", "Only between the two."),
        (partial(_layers_cut, narrow=False), "one of the layers is whole on every rank",
         "Multiply by this rank's rows of the first alone, and by its columns of the second."),
        (partial(_layers_cut, reduce="mean"), "the parts are averaged", "They are parts of a sum: do not divide."),
        (partial(_layers_cut, whole=True, reduce=""), "every rank does all of it: right numbers, and nothing is cut",
         "`first.weight.chunk(size)[rank]` has this rank's rows."),
        (partial(_layers_cut, whole=True), "every rank does all of it, and then all are added up",
         "`first.weight.chunk(size)[rank]` has this rank's rows."),
        (partial(_layers_cut, of=0), "every rank takes rank 0's part", "`chunk(size)[rank]`, of both weights."),
        (partial(_layers_cut, every=True), "the columns are not those of this rank's rows",
         "The same places: what the first layer puts out here, the second takes in here."),
        (lambda x, first, second: dist.all_reduce(x @ first.weight.chunk(dist.get_world_size())[0].T),
         "there is no output", "`all_reduce` adds up in place and returns nothing: return the tensor."),
    ],
    hints={
        "shapes cannot be multiplied": "Rows of the first weight, columns (`dim=1`) of the second; and `.T` of each.",
        "out of range": f"{THIS_CUT} Cut otherwise, there are parts for two ranks only.",
        "must match the size": "The first bias has to be cut as its weight is.",
    },
    otherwise="All ranks add up their parts with `dist.all_reduce`, in place; then comes the second bias.",
)  # fmt: skip


def _half_of_squares(out: torch.Tensor) -> torch.Tensor:
    return out.square().sum() / 2


def _halves(rank: int, size: int) -> tuple[nn.Linear, torch.Tensor, Callable, torch.Tensor]:
    part = nn.Linear(1, 1).to(device())
    with torch.no_grad():
        part.weight.fill_(2.0 + rank), part.bias.zero_()
    x = torch.tensor([[1.0], [2.0]], device=device())
    return part, x, _half_of_squares, torch.zeros(2, 1, device=device())


def _gradients(returned: Any, part: nn.Linear, *_: Any) -> list[Any]:
    return ["none" if p.grad is None else p.grad.item() for p in part.parameters()]


def _pipeline(
    part: nn.Linear, x: torch.Tensor, loss: Callable, middle: torch.Tensor, up: Callable = lambda it: it.grad,
    on: Callable = lambda out, gradient: out.backward(gradient), lower: Callable = lambda loss, out: loss(out),
    meets: bool = True,
) -> None:  # fmt: skip
    """up: what rank 1 sends of what came down. on: how rank 0 goes on. lower: rank 1's loss. meets: rank 1 sends."""
    if dist.get_rank() == 0:
        out = part(x)
        dist.send(out.detach(), 1)
        dist.recv(middle, 1)
        on(out, middle)
    else:
        dist.recv(middle, 0)
        lower(loss, part(middle.requires_grad_())).backward()
        if meets:
            dist.send(up(middle), 0)


def _no_gradient_wanted(part: nn.Linear, x: torch.Tensor, loss: Callable, middle: torch.Tensor) -> None:
    if dist.get_rank() == 0:
        return _pipeline(part, x, loss, middle)
    dist.recv(middle, 0)
    loss(part(middle)).backward()
    return dist.send(middle.grad, 0)


def _from_its_own_output(part: nn.Linear, x: torch.Tensor, loss: Callable, middle: torch.Tensor) -> None:
    if dist.get_rank() == 0:
        return _pipeline(part, x, loss, middle)
    dist.recv(middle, 0)
    out = part(middle)
    out.retain_grad()
    loss(out).backward()
    return dist.send(out.grad, 0)


def _only_the_gradient_at_the_cut(part: nn.Linear, x: torch.Tensor, loss: Callable, middle: torch.Tensor) -> None:
    if dist.get_rank() == 0:
        return _pipeline(part, x, loss, middle)
    dist.recv(middle, 0)
    return dist.send(torch.autograd.grad(loss(part(middle.requires_grad_())), middle)[0], 0)


turn(
    "8.2.b",
    "Backward across the cut",
    _pipeline,
    _halves,
    ranks=(2,),
    look=_gradients,
    heads=("weight's gradient", "bias's gradient"),
    mistakes=[
        (partial(_pipeline, on=lambda out, gradient: out.sum().backward()),
         "rank 0 goes backward from a sum of its own, or from ones",
          "`out.backward(…)`, from the gradient that came up."),
        (partial(_pipeline, on=lambda out, gradient: None), "rank 0 does not go backward",
         "`out.backward(…)`, from the gradient that came up."),
        (partial(_pipeline, on=lambda out, gradient: out.backward(gradient / 2)), "the gradient is halved",
         "Nothing is averaged here: each rank has a part of its own."),
        (partial(_pipeline, up=lambda it: it.detach()),
         "rank 1 sends back `middle`, and not its gradient; or rank 0 takes its own output for that",
         "Rank 1 sends up `middle.grad`, which `backward` fills; rank 0 goes `out.backward(…)` from what came."),
        (partial(_pipeline, up=lambda it: 0 * it.grad), "the gradients of rank 0 are 0",
         "Is the gradient at the cut received before `out.backward(…)`, into the tensor that this takes?"),
        (partial(_pipeline, lower=lambda loss, out: out.sum()), "rank 1 goes backward from a sum, or from ones",
         "From `loss(…)` of what its part returns."),
        (partial(_pipeline, lower=lambda loss, out: loss(out) / 2), "the loss is halved", "`loss` as it is."),
        (_from_its_own_output, "rank 1 sends its own output, or the gradient there, and not the one at the cut",
         "Through its part, back to what came down: `middle.grad`."),
        (_no_gradient_wanted, "there is no gradient at the cut to send",
         "`middle.requires_grad_()`, before it goes through `part`; after `backward` its gradient is there."),
        (_only_the_gradient_at_the_cut, "rank 1 has no gradients of its own",
         "`backward()` gives them to its part too; `torch.autograd.grad` does not."),
        (partial(_pipeline, lower=lambda loss, out: 2 * loss(out)), "all gradients are doubled",
         "They add up: one `backward` on each rank."),
        (waiting(partial(_pipeline, meets=False)), "rank 0 waits for a gradient that nobody sends",
         "`dist.send`, to rank 0."),
    ],
    hints={"only for scalar outputs": "`out.backward(…)` wants the gradient at the cut, which came up.",
           "does not have a grad_fn": "Rank 0 goes backward from `out`, as it came out of `part`, with the gradient."},
    otherwise="Rank 1: the loss of `part(middle)`, backward, `middle.grad` up. Rank 0: receive it, `out.backward(…)`.",
)  # fmt: skip

turn(
    "8.2.c",
    "The bubble of a timetable",
    lambda stages, portions: (stages - 1) / (stages - 1 + portions),
    {
        f"stages: {stages}, portions: {portions}": partial(tuple, (stages, portions))
        for stages, portions in ((4, 1), (2, 1), (2, 4), (4, 12), (1, 8))
    }
    | {"more of both": lambda: (8, 28)},
    look=lambda returned, *_: returned,
    heads=("idle",),
    mistakes=[
        (lambda stages, portions: (stages - 1) / portions, "as a part of the work, not of the whole time",
         "How many columns has the drawing?"),
        (lambda stages, portions: portions / (stages - 1 + portions), "that is the share that works", "The dots."),
        (lambda stages, portions: 0, "it is 0 each time, as of a share that is rounded down",
         "`//` and `int` drop the fraction, and a share is nothing else: `/`."),
        (lambda stages, portions: (stages - 1) / portions - 1 + stages, "`/` comes before `-` and `+`",
         "Put the columns into parentheses."),
        *((lambda stages, portions, less=less: stages / (stages + portions - less), "a dot too many in each row",
           "The first stage has how many dots, at the end of its row?") for less in (0, 1)),
        (lambda stages, portions: stages * (stages - 1) / (portions + stages - 1),
         "the dots of all rows, divided by the columns of one", "All the cells, or one row alone."),
        (lambda stages, portions: 2 * (stages - 1) / (2 * (stages - 1) + portions), "the dots are counted twice",
         "A stage waits before its first portion and after its last: how many dots has a row in all?"),
        (lambda stages, portions: stages - 1 / (stages - 1 + portions), "`/` comes before `-`",
         "Put the dots into parentheses."),
        (lambda stages, portions: (stages - 1) / stages - 1 + portions, "`/` comes before `-` and `+`",
         "Put the columns into parentheses."),
        (lambda stages, portions: (stages - 1) / (stages + portions), "a column too many",
         "The last stage begins after how many columns?"),
        (lambda stages, portions: 1 - 1 / stages, "that is for one portion", "More portions make it smaller."),
        (lambda stages, portions: (1 - 1 / stages) / portions, "the bubble of one portion, divided by the portions",
         "With more portions the drawing has more columns, and as many dots as before."),
        (lambda stages, portions: 100 * (stages - 1) / (portions + stages - 1), "that is in percent",
         "A share: all of the time is 1."),
        (lambda stages, portions: stages - 1, "that is how many dots a row has", "As a share of the columns."),
        (lambda stages, portions: 3 / (3 + portions), "right for 4 stages only", "`stages` says how many there are."),
    ],
    hints={"(8, ": "It is to be a rule, for any number of stages and portions: compute it from the two."},
    otherwise="The dots of a row, divided by its columns: all rows have equally many.",
)  # fmt: skip
