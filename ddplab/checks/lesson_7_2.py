"""Checks of lesson 7.2, The best rate, by sweep."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import needs_function, number
from ddplab.checks.turns import turn


@exercise("7.2.1", "An exponent from a sweep")
def exponent(exponent: Callable[[list, list], Any]) -> None:
    """`exponent(batches, rates)`: the slope of the straight line through the points, both axes logarithmic."""
    needs_function("exponent", exponent)
    exact = [4, 16, 64, 256]
    noisy = [8, 16, 64, 128, 512], [0.11, 0.16, 0.9, 1.1, 3.0]
    cases = [
        ("a rate that grows as the batch", exact, [0.5 * batch for batch in exact]),
        ("a rate that grows as the root of the batch", exact, [0.01 * math.sqrt(batch) for batch in exact]),
        ("a rate that does not grow", exact, [0.3] * len(exact)),
        ("points that lie on no line", *noisy),
    ]
    for what, batches, rates in cases:
        got, wanted = number("exponent", exponent(list(batches), list(rates))), _slope(batches, rates, math.log)
        if abs(got - wanted) < 1e-4:
            continue
        _explain(f"{what}: {got:.4g}, not {wanted:.4g}", got, wanted, batches, rates)


def _slope(batches: list, rates: list, scale: Callable[[float], float] = float) -> float:
    """Least squares: the slope of the line through the points (scale(batch), scale(rate))."""
    x, y = [scale(batch) for batch in batches], [scale(rate) for rate in rates]
    middle = sum(x) / len(x), sum(y) / len(y)
    products = sum((a - middle[0]) * (b - middle[1]) for a, b in zip(x, y, strict=True))
    return products / sum((a - middle[0]) ** 2 for a in x)


def _explain(where: str, got: float, wanted: float, batches: list, rates: list) -> None:
    def near(value: float) -> bool:
        return abs(got - value) < 1e-4 * max(1, abs(value))

    x, y = [math.log(batch) for batch in batches], [math.log(rate) for rate in rates]
    if wanted and near(1 / wanted):
        raise NotYet(f"{where}: upside down", "How often the rate doubles while the batch doubles once.")
    if near(_slope(batches, rates)):
        raise NotYet(f"{where}: there are no logarithms in it", "A power is a straight line once both are logarithms.")
    if near(_slope(batches, y)) or near(_slope(x, rates)):
        raise NotYet(f"{where}: only one of the two is a logarithm", "Both: the rates and the batches.")
    if near((y[-1] - y[0]) / (x[-1] - x[0])):
        raise NotYet(f"{where}: only the first and the last point count", "Fit a line to all of them.")
    if near(sum(a * b for a, b in zip(x, y, strict=True)) / sum(a * a for a in x)):
        hint = "The line may begin anywhere: subtract the means first."
        raise NotYet(f"{where}: that line goes through (1, 1)", hint)
    if near(math.exp(wanted)) or near(2**wanted) or near(10**wanted):
        raise NotYet(f"{where}: that is a factor", "The exponent itself, without raising anything to it.")
    raise NotYet(f"{where}: not the slope of that line", "Of log(rate) against log(batch), by least squares.")


# your turn


class _Products(TorchDispatchMode):
    """Counts how often matrices are multiplied."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = func.overloadpacket.__name__
        self.count += name in ("mm", "bmm", "addmm", "baddbmm", "linear", "matmul")
        return func(*args, **kwargs or {})


def _at_once(answer: Callable[..., torch.Tensor], *stacks: torch.Tensor) -> list:
    with _Products() as products:
        found = answer(*stacks)
    return ["yes" if products.count < 2 else "no", " x ".join(map(str, found.shape)) or "one number", found]


def _stacks(orders: int, rates: int, images: int) -> tuple:
    x, y = torch.randn(orders, images, 2), torch.randint(3, (orders, images))
    return x, y, torch.randn(orders, rates, 2, 3), torch.randn(orders, rates, 1, 3)


def _losses(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor,
    labels: Callable = lambda y, rates: y.unsqueeze(1).expand(-1, rates, -1),
    end: Callable = lambda each: each.mean(dim=-1), biased: float = 1.0, soft: bool = False,
) -> torch.Tensor:  # fmt: skip
    scores = x.unsqueeze(1) @ weight + biased * bias
    wanted = labels(y, weight.shape[1]).reshape(scores.shape[:-1])
    scores = scores.softmax(-1) if soft else scores
    each = F.cross_entropy(scores.flatten(0, 2), wanted.flatten(), reduction="none")
    return end(each.view(scores.shape[:-1]))


def _run_by_run(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    orders, rates = weight.shape[:2]
    each = [F.cross_entropy(x[o] @ weight[o, r] + bias[o, r], y[o]) for o in range(orders) for r in range(rates)]
    return torch.stack(each).view(orders, rates)


turn(
    "7.2.a",
    "The losses of many runs at once",
    _losses,
    {"2 orders, 3 rates, 4 images": lambda: _stacks(2, 3, 4), "3 orders, 2 rates, 5 images": lambda: _stacks(3, 2, 5)},
    call=_at_once,
    look=lambda returned, *_: returned,
    heads=("in one go", "shape", "losses"),
    mistakes=[
        (_run_by_run, "right, but run by run, in a loop",
         "Then 1,600 runs take 1,600 times as long. `@` multiplies all of them: give `x` a place for the rates."),
        (partial(_losses, end=torch.mean), "one number, the mean of all runs",
         "Each run wants a loss of its own: average over the images alone."),
        (partial(_losses, end=lambda each: each), "the loss of each image, not of each run",
         "The mean over the images is missing: the last of the three dimensions."),
        (partial(_losses, end=lambda each: each.sum(dim=-1)), "a run's loss is a sum over its images",
         "The mean: else the loss, and each step, grow with the batch."),
        (partial(_losses, end=lambda each: each.mean(dim=1)), "the mean is taken over the rates",
         "Over the images: the last dimension."),
        (partial(_losses, end=lambda each: each.mean(dim=0)), "the mean is taken over the orders",
         "Over the images: the last dimension."),
        (partial(_losses, end=lambda each: each.mean(dim=-1).T), "orders and rates are swapped",
         "Orders first, as in `weight`."),
        (partial(_losses, labels=lambda y, rates: y.repeat(rates, 1)), "runs get the labels of another order",
         "All rates of one order share its labels: `y.unsqueeze(1).expand(…)`."),
        (partial(_losses, labels=lambda y, rates: y.repeat_interleave(rates)), "each label is repeated in its place",
         "A whole row of labels is repeated for each rate: `y.unsqueeze(1).expand(…)`."),
        (partial(_losses, biased=0.0), "`bias` is left out", "It is added to the scores."),
        (partial(_losses, soft=True), "`cross_entropy` is given probabilities, and takes scores",
         "It makes its own softmax."),
        (lambda x, *rest: _losses(x[:1].expand_as(x), *rest), "all orders have the images of the first",
         "`x[…, None, :, :]`, or `x.unsqueeze(1)`: a place for the rates, and the orders stay."),
    ],
    hints={"must match the size": "An order's images are for all of its rates: `x.unsqueeze(1)` makes a place.",
           "Expected target size": "`cross_entropy` wants a row of scores for each image, (images, 10), and a label: "
           "flatten both, and give the losses their shape again.",
           "Expected input batch_size": "Every run needs the labels: `y.unsqueeze(1).expand(…)`, one for each image."},
    otherwise="Scores of shape (orders, rates, images, 10), then `cross_entropy` with reduction='none', and a mean.",
)  # fmt: skip


def _three_runs(kind: Callable[..., torch.optim.Optimizer]) -> tuple:
    """An optimiser with a rate of 1, a weight and a bias of three runs, and the runs' rates, each (3, 1, 1)."""
    weights = [torch.full((3, 1, 1), 10.0, requires_grad=True) for _ in range(2)]
    for weight, gradient in zip(weights, ([1.0, 2.0, 1.0], [1.0, 1.0, 2.0]), strict=True):
        weight.grad = torch.tensor(gradient).view(3, 1, 1)
    optimizer = kind(weights, lr=1.0)
    optimizer.held = tuple(weights)  # another tensor in the list's place is no longer the optimiser's
    optimizer.after = None
    optimizer.register_step_post_hook(lambda *_: setattr(optimizer, "after", [*map(_noted, weights)]))
    return optimizer, weights, torch.tensor([0.1, 1.0, 5.0]).view(3, 1, 1)


def _noted(weight: torch.Tensor) -> tuple:
    """Return what changes when a weight is written to, and its numbers."""
    return (weight._version, weight.data_ptr()), weight.flatten().tolist()


def _written(returned: Any, optimizer: torch.optim.Optimizer, weights: list, rate: torch.Tensor) -> Any:
    """Return the weights; at the first it is said where all were written to after the step, and none has moved.

    Or where there are other tensors in the list.
    """
    now = [*map(_noted, optimizer.held)]
    numbers = [number for _, held in now for number in held]
    if optimizer.after and all(
        a != b and held == after for (a, held), (b, after) in zip(now, optimizer.after, strict=True)
    ):
        numbers[0] = f"{numbers[0]:g}, set again"
    elif any(it is not held for it, held in zip(weights, optimizer.held, strict=False)):
        numbers[0] = f"{numbers[0]:g}, not in the list"
    return numbers


def _without_a_copy(optimizer: torch.optim.Optimizer, weights: list, rate: torch.Tensor) -> None:
    before = [weight.detach() for weight in weights]
    optimizer.step()
    for weight, old in zip(weights, before, strict=True):
        weight.data = torch.lerp(old, weight.data, rate)


def _others_in_the_list(optimizer: torch.optim.Optimizer, weights: list, rate: torch.Tensor) -> None:
    optimizer.step()
    weights[:] = [weight.detach().clone() for weight in weights]


def _one_by_one(optimizer: torch.optim.Optimizer, weights: list, rate: torch.Tensor) -> None:
    """Let an ordinary optimiser of its own step each run."""
    for run, own in enumerate(rate.flatten().tolist()):
        alone = [weight.detach()[run].clone().requires_grad_() for weight in weights]
        for part, weight in zip(alone, weights, strict=True):
            part.grad = weight.grad[run]
        type(optimizer)(alone, lr=own).step()
        for part, weight in zip(alone, weights, strict=True):
            weight.data[run] = part.detach()


def _stepped(optimizer: torch.optim.Optimizer, weights: list, rate: torch.Tensor, end: Callable, only: int = 2) -> None:
    """end: where a run ends that was at `old` and that the step would take to `new`. only: so many of the weights."""
    before = [weight.detach().clone() for weight in weights]
    optimizer.step()
    for weight, old in [*zip(weights, before, strict=True)][:only]:
        weight.data = end(old, weight.data, rate)


def _scaled_first(optimizer: torch.optim.Optimizer, weights: list, rate: torch.Tensor) -> None:
    for weight in weights:
        weight.grad *= rate
    optimizer.step()


def _by_hand(optimizer: torch.optim.Optimizer, weights: list, rate: torch.Tensor) -> None:
    for weight in weights:
        weight.data -= rate * weight.grad


def _without_gradients(optimizer: torch.optim.Optimizer, weights: list, rate: torch.Tensor) -> None:
    optimizer.zero_grad()
    _stepped(optimizer, weights, rate, torch.lerp)


def _every_rate(optimizer: torch.optim.Optimizer, weights: list, rate: torch.Tensor) -> None:
    for own in rate.flatten().tolist():
        optimizer.param_groups[0]["lr"] = own
        optimizer.step()


def _twice(optimizer: torch.optim.Optimizer, weights: list, rate: torch.Tensor) -> None:
    _by_hand(optimizer, weights, rate)
    optimizer.step()


turn(
    "7.2.b",
    "Each run steps with a rate of its own",
    _one_by_one,
    {"SGD": lambda: _three_runs(torch.optim.SGD), "Adam": lambda: _three_runs(torch.optim.Adam)},
    look=_written,
    heads=("weight: 0.1", "1", "5", "bias: 0.1", "1", "5"),
    mistakes=[
        (lambda optimizer, weights, rate: optimizer.step(), "every run went the whole step, as with a rate of 1",
         "Does the weight itself change at the end: `weight.data = …`? And is what you remember a copy, a `clone`?"),
        (_without_a_copy, "the weights are set to where the step has taken them already",
         "Is what you remember a copy, and from before the step? `detach` shares the weight's memory: "
         "`weight.detach().clone()`."),
        (_others_in_the_list, "the list has other tensors now, and the optimiser's own went the whole step",
         "The weight itself has to change: `weight.data = …`, or `weight.copy_(…)` inside `torch.no_grad()`."),
        (lambda optimizer, weights, rate: None, "nothing has moved",
         "Let the optimiser step in between, with the gradients that it has."),
        (partial(_stepped, end=lambda old, new, rate: torch.lerp(new, old, rate)), "the way is gone backwards",
         "From where the weights were, towards where they are after the step."),
        (partial(_stepped, end=lambda old, new, rate: old + rate * (old - new)), "the way is gone backwards",
         "From where the weights were, towards where they are after the step."),
        (partial(_stepped, end=lambda old, new, rate: old + (new - old) / rate), "the way is divided by the rate",
         "So many times the way: multiply."),
        (_without_gradients, "the step moves nothing, as it does without gradients",
         "The gradients are there when the function is called: leave them until it has stepped."),
        (_every_rate, "every run makes the step of each rate, one after the other",
         "One step, with a rate of 1; and then each run goes its own part of that way."),
        (_twice, "SGD's step by hand, and the optimiser's as well",
         "The optimiser steps; then each run goes its own part of that way."),
        (partial(_stepped, end=lambda old, new, rate: new + rate * (new - old)), "each run is one whole step too far",
         "One step for all weights, not one for each; and from where they were before it."),
        (partial(_stepped, end=lambda old, new, rate: rate * (new - old)), "only the way is left of the weights",
         "Add it to where the weights were."),
        (partial(_stepped, end=lambda old, new, rate: rate * new), "the weights are multiplied, not the step",
         "The rate belongs to the difference between after and before."),
        (partial(_stepped, end=torch.lerp, only=1), "only the first tensor goes its own way", "All of `weights`."),
        (_by_hand, "that is SGD's step, for Adam as well", "`optimizer.step()` knows which step is its own."),
        (_scaled_first, "right for SGD; Adam divides the gradient by its size, and the rate is gone",
         "Change what the step did, not the gradients before it."),
    ],
    hints={"leaf Variable": "Change `weight.data`, or the weight inside `torch.no_grad()`.",
           "'list' object": "`weights` is a list of tensors: one after the other.",
           "must be Number, not Tensor": "An optimiser has one rate for all: change what its step did."},
    otherwise="old + rate * (new - old), for each tensor.",
)  # fmt: skip


def _sweep(*losses: float) -> Callable[[], tuple]:
    return lambda: (0.1 * 2.0 ** torch.arange(len(losses)), torch.tensor(losses))


def _best(
    rates: torch.Tensor, losses: torch.Tensor, failed: float = math.inf, edges: tuple = (0, -1),
    give: Callable = lambda rates, losses, place: rates[place], none: Any = math.nan,
) -> Any:  # fmt: skip
    """failed: what a failed run counts as. edges: places that are no answer. give: what is returned of the best.

    none: what is returned where there is none.
    """
    place = int(torch.where(losses.isfinite(), losses, failed).argmin())
    return none if place in [edge % len(rates) for edge in edges] else give(rates, losses, place)


def _between_the_edges(rates: torch.Tensor, losses: torch.Tensor, _: int) -> Any:
    return rates[1 + torch.where(losses.isfinite(), losses, math.inf)[1:-1].argmin()]


def _place_among_others(rates: torch.Tensor, losses: torch.Tensor, edges: bool) -> Any:
    """The place among the runs that have not failed, taken as one in the list of all."""
    ran = losses[losses.isfinite()]
    place = int(ran.argmin()) if len(ran) else 0
    return NAN if not len(ran) or (edges and place in (0, len(rates) - 1)) else rates[place]


NAN, INF = math.nan, math.inf
FRONT = (
    "A failed run stays in its place, with a loss of `math.inf`. Among the others places are other places, and "
    "Python's `min` keeps a nan that comes first."
)
AT_AN_EDGE = "the lowest is at an edge, and yet an answer"
BEYOND = "Beyond the edge a better one may lie: `math.nan`."

turn(
    "7.2.c",
    "The best rate, or none",
    _best,
    {
        "0.9 0.5 0.3 0.6 2.3": _sweep(0.9, 0.5, 0.3, 0.6, 2.3),
        "0.9 0.5 0.3 nan inf": _sweep(0.9, 0.5, 0.3, NAN, INF),
        "nan 0.3 0.5 0.6 0.9": _sweep(NAN, 0.3, 0.5, 0.6, 0.9),
        "0.9 0.5 0.3 0.2 0.1": _sweep(0.9, 0.5, 0.3, 0.2, 0.1),
        "0.1 0.5 0.6 0.8 nan": _sweep(0.1, 0.5, 0.6, 0.8, NAN),
        "nan nan nan inf nan": _sweep(NAN, NAN, NAN, INF, NAN),
        "0.9 0.8 0.6 0.5 0.3 0.5 0.7": _sweep(0.9, 0.8, 0.6, 0.5, 0.3, 0.5, 0.7),
    },
    look=lambda returned, *_: NAN if returned is None else returned,
    heads=("best rate",),
    mistakes=[
        (lambda rates, losses: _best(rates, torch.where(losses.isnan(), -1.0, losses)),
         "a failed run counts as the lowest", "To `argmin` a nan is lower than any number: make it `math.inf` first."),
        (partial(_best, edges=()), AT_AN_EDGE, BEYOND),
        (lambda rates, losses: rates[torch.where(losses.isnan(), -1.0, losses).argmin()],
         "`argmin` alone: a failed run counts as the lowest, and an edge as an answer",
         "To `argmin` a nan is lower than any number: make it `math.inf` first. Then look at the place."),
        (lambda rates, losses: _best(rates, losses, edges=()) if losses.isfinite().any() else NAN, AT_AN_EDGE, BEYOND),
        (lambda rates, losses: _best(rates, losses.nan_to_num(NAN), edges=()), AT_AN_EDGE, BEYOND),
        (lambda rates, losses: _best(rates, losses.nan_to_num(NAN), edges=(-1,)), "the left edge is no answer either",
         "Look at both ends of the list."),
        (lambda rates, losses: _best(rates, losses.nan_to_num(NAN), edges=(0,)), "the right edge is no answer either",
         "Look at both ends of the list."),
        (lambda rates, losses: _best(rates, losses, edges=(), give=_between_the_edges),
         "the best of those between the edges", "Look for the lowest of all first, and then where it stands."),
        (partial(_best, edges=(-1,)), "the left edge is no answer either", "Look at both ends of the list."),
        (partial(_best, edges=(0,)), "the right edge is no answer either", "Look at both ends of the list."),
        (partial(_best, edges=(0, 4)), "the fifth of seven rates is taken for an edge",
         "A list may be longer: its last place is `len(rates) - 1`."),
        (partial(_best, give=lambda rates, losses, place: losses[place]), "that is the loss", "Its rate is wanted."),
        (partial(_best, give=lambda rates, losses, place: place), "that is its place in the list",
         "The rate at this place."),
        (lambda rates, losses: _best(rates, losses.nan_to_num(NAN), give=lambda rates, losses, place: losses[place]),
         "that is the loss", "Its rate is wanted."),
        (lambda rates, losses: _best(rates, losses.nan_to_num(NAN), give=lambda rates, losses, place: place),
         "that is its place in the list", "The rate at this place."),
        (lambda rates, losses: _best(rates, -losses), "that one has the highest loss", "The lowest is wanted."),
        (lambda rates, losses: _best(rates, losses) if losses.isfinite().all() else NAN,
         "where a run has failed, you know no best: it hides it, or what stands beside it is taken for an edge",
         "A failed run hides nothing, and is no edge: leave it in its place, with a loss of `math.inf`."),
        (partial(_place_among_others, edges=True), "where the first run has failed, you know no best", FRONT),
        (partial(_place_among_others, edges=False), "the place among the runs that have not failed, taken as one among "
         "all; and an edge is an answer", FRONT),
        (lambda rates, losses: min(zip(losses.tolist(), rates.tolist(), strict=True))[1],
         "a nan that comes first is the lowest, and an edge is an answer", FRONT),
        (lambda rates, losses: NAN, "you never know the best", "Is its rate returned, where it stands between others?"),
        *[(partial(_best, none=none), f"where the sweep does not know it, {what} comes back", "`math.nan`.")
          for none, what in (("nan", "a text"), (INF, "infinity"), (0.0, "0"), (-1.0, "-1"))],
        (lambda rates, losses: _best(rates, losses.nan_to_num(NAN)), "where all have failed, one is still the best",
         "Did you use `nan_to_num`? It makes a finite number of inf, unless it is told `posinf=math.inf`."),
    ],
    hints={"tensors used as indices": "`argmin` is the place of the lowest; `min` is the lowest itself.",
           "numel() == 0": "Here all have failed. Leave failed runs in their place, with a loss of `math.inf`."},
    otherwise="Take what is not finite as infinite, find the lowest, and look whether it stands at an end.",
)  # fmt: skip
