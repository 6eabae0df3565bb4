"""Checks of lesson 4.5, BatchNorm, buffers and mixed precision."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, listed, needs_function, numbers, off, on_ranks
from ddplab.checks.turns import turn, waiting
from ddplab.hardware import device

# A counter on rank 3, bytes under autocast, steps that scalers leave out.
numbers(
    "4.5.1",
    "Three numbers",
    Number(
        "seen", 18, "Before the third forward pass rank 3 gets rank 0's counter. Then it adds its own images."
    ).with_mistakes(
        (24, "that is what rank 3 saw", "Before every forward pass rank 0's buffer overwrites rank 3's."),
        (15, "that is rank 0's counter", "Rank 3 has added its own images since it was overwritten last."),
        (78, "that is what all have seen", "Buffers are never added up."),
        (23, "once too often overwritten", "Rank 0's counter after *two* steps, and then rank 3's third."),
        (13, "too few steps", "Rank 0's counter after two steps is 10."),
        (19.5, "that is the mean", "Gradients are averaged; buffers are overwritten."),
    ),
    Number(
        "bytes_a_parameter", 4, "Gradients have the type of the weights. How many bytes has a `float32`?"
    ).with_mistakes(
        (2, "that is a number of the logits", "Gradients have the type of the weights."),
        (16, "that is of four parameters", "One parameter, one gradient of type `float32`."),
    ),
    Number("left_out", 3, "In how many steps does any rank meet an infinite gradient?").with_mistakes(
        (0, "rank 0 itself meets none", "Its gradients are averaged with those of the others before its scaler looks."),
        (4, "step 50 counted twice", "In step 50 two ranks meet one, and a step is left out once."),
        (2, "those of one rank alone", "The gradients of *all* ranks go into the mean."),
        (1, "the step in which both meet one", "One rank is enough: the mean of a number and infinity is infinity."),
    ),
)


@exercise("4.5.2", "The way back through everybody")
def everybody(normalise: Callable[..., Any]) -> None:
    """`normalise(x)` on two and three ranks must be one device's, and so must the gradient that comes back to x."""
    needs_function("normalise", normalise)
    for rows in ([3, 5], [5, 2, 3]):
        where = f"with {listed(rows)} rows on the ranks"
        ranks = on_ranks(_normalised_in_rank, normalise, rows, size=len(rows), hints=HINTS)
        _judge_values(where, [rank["out"] for rank in ranks], rows)
        _judge_gradients(where, [rank["gradient"] for rank in ranks], rows)


def _judge_values(where: str, outs: list[Any], rows: list[int]) -> None:
    whole = torch.cat(_rows(rows))
    mean, variance = whole.mean(0), whole.var(0, correction=0)
    own = torch.cat([_one_device(part) for part in _rows(rows)])
    means = torch.stack([part.mean(0) for part in _rows(rows)]).mean(0)
    for out, part in zip(outs, _rows(rows), strict=True):
        if out.shape != part.shape:
            raise NotYet(f"{where}, {tuple(part.shape)} go in and {tuple(out.shape)} come out", "Rows stay rows.")
    known = {
        "each rank's rows are normalised by themselves": (own, "Where do the other ranks' rows come in?"),
        "the mean is that of the ranks' means": (
            (whole - means) / (variance + EPSILON).sqrt(),
            "A mean of means weighs ranks. Add up sums and counts.",
        ),
        "the variance is divided by one row less": (
            (whole - mean) / (whole.var(0) + EPSILON).sqrt(),
            "Divide by the number of rows.",
        ),
        "the variance is the mean of the squares": (
            (whole - mean) / (whole.square().mean(0) + EPSILON).sqrt(),
            "Take off the square of the mean.",
        ),
        "the root is missing": ((whole - mean) / (variance + EPSILON), "Divide by √(variance + `epsilon`)."),
        "`epsilon` is missing": ((whole - mean) / variance.sqrt(), "Divide by √(variance + `epsilon`)."),
        "all columns have one mean and one variance": (
            (whole - whole.mean()) / (whole.var(correction=0) + EPSILON).sqrt(),
            "Each column has its own: add up over the rows, `sum(0)`.",
        ),
    }
    got, right = torch.cat(outs), _one_device(whole)
    if off(got, right) < 1e-6:
        return
    for what, (value, hint) in known.items():
        if off(got, value) < 1e-6:
            raise NotYet(f"{where}, {what}", hint)
    if got.isnan().any():
        hint = "A variance below 0 has no root. Is everything divided by how many rows all ranks have?"
        raise NotYet(f"{where}, what comes out is not a number", hint)
    raise NotYet(f"{where}, what comes out is {off(got, right):.0%} off", "Sums and counts, both over all ranks.")


def _judge_gradients(where: str, found: list[Any], rows: list[int]) -> None:
    """The right gradient is that of all losses. Two parts of it are what people get who have left out the rest."""
    if any(gradient is None for gradient in found):
        raise NotYet(f"{where}, what comes out is right, and no gradient reaches `x`", "No `detach`, no `no_grad()`.")
    parts = _rows(rows)
    whole = torch.cat(parts).requires_grad_()
    weights, deviation = torch.cat(_weights(rows)), (whole.detach().var(0, correction=0) + EPSILON).sqrt()
    (right,) = torch.autograd.grad((_one_device(whole) * weights).sum(), whole)
    fixed = weights / deviation  # as if mean and variance did not hang on x
    own = []
    for rank in range(len(rows)):
        ours = [part.clone().requires_grad_(number == rank) for number, part in enumerate(parts)]
        loss = (_one_device(torch.cat(ours)).split(rows)[rank] * _weights(rows)[rank]).sum()
        own.append(torch.autograd.grad(loss, ours[rank])[0])
    got = torch.cat(found)
    if off(got, right) < 1e-6:
        return
    known = {
        "as if mean and variance did not hang on `x`": (fixed, "`dist.all_reduce` has no way back. Use `Sum.apply`."),
        "that of the rank's own loss": (torch.cat(own), "The other ranks' losses hang on this rank's `x` too."),
        "right where it goes straight, and the way through the sums is divided by the ranks": (
            fixed + (right - fixed) / len(rows),
            "DDP averages gradients of weights. This is the gradient of a sum: add up.",
        ),
        "right where it goes straight, and the way through the sums comes once for each rank": (
            fixed + (right - fixed) * len(rows),
            "Add up over the ranks once.",
        ),
    }
    for what, (value, hint) in known.items():
        if off(got, value) < 1e-6:
            raise NotYet(f"{where}, what comes out is right; the gradient is {what}", hint)
    hint = "The sum of all ranks' gradients: one more `all_reduce`, of a copy."
    raise NotYet(f"{where}, what comes out is right; the gradient is {off(got, right):.0%} off", hint)


EPSILON = 1e-5


def _one_device(x: Any) -> Any:
    return (x - x.mean(0)) / (x.var(0, correction=0) + EPSILON).sqrt()


def _rows(rows: list[int]) -> list[Any]:
    """Each rank's rows: the same everywhere, with means far apart."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 3, generator=generator, dtype=torch.float64) + 2 * rank + 1 for rank, n in enumerate(rows)]


def _weights(rows: list[int]) -> list[Any]:
    """What each rank's loss weighs its outputs with."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in rows]


def _normalised_in_rank(normalise: Callable[..., Any], rows: list[int]) -> dict[str, Any]:
    rank = dist.get_rank()
    x = _rows(rows)[rank].to(device()).requires_grad_()
    out = normalise(x)
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"normalise returned {type(out).__name__}, not a tensor")
    if out.requires_grad and out.shape == x.shape:
        (out * _weights(rows)[rank].to(device())).sum().backward()
    return {"out": out.detach().cpu(), "gradient": None if x.grad is None else x.grad.cpu()}


HINTS = {
    "normalise returned NoneType": "`return` the normalised rows.",
    "normalise returned": "One tensor, of the shape of `x`.",
    "SIGABRT": "The ranks have different numbers of rows: all-reduce what has the same shape on all, as sums.",
    "Expected parameter": "`dist.all_reduce` takes a tensor: `torch.tensor(…, device=device())`.",
    "Invalid function argument": "`dist.all_reduce` takes a tensor: `torch.tensor(…, device=device())`.",
    "'NoneType'": "`dist.all_reduce` returns nothing; it changes the tensor that it is given.",
    "ReduceOp.AVG": "Not every torch has an average in gloo. Without `op` it adds up everywhere: add up, then divide.",
}

# ------------------------------------------------------------------ your turn


def _own_numbers(rank: int, size: int) -> tuple[Any]:
    return (torch.tensor([[1.0, 3.0], [5.0, 7.0], [9.0]][rank], device=device()),)


def _all(x: Any) -> Any:
    x = torch.as_tensor(x, dtype=torch.float32, device=device()).clone()
    dist.all_reduce(x)
    return x


def _of_all(x: Any) -> tuple[Any, Any, Any]:
    count = _all(len(x))
    mean = _all(x.sum()) / count
    return mean, _all((x - mean).square().sum()) / count, count


def _normalised(x: Any, by: Any = lambda mean, variance, count: (mean, variance.sqrt())) -> Any:
    mean, scale = by(*_of_all(x))
    return (x - mean) / scale


def _sums_of_four(x: Any) -> Any:
    mean = _all(x.sum()) / 4
    return (x - mean) / (_all(x.square().sum()) / 4 - mean.square()).sqrt()


def _only_on_rank_0(x: Any) -> Any:
    return _normalised(x) if dist.get_rank() == 0 else x


def _as_if_even(x: Any) -> Any:
    ranks = dist.get_world_size()
    mean = _all(x.mean()) / ranks
    return (x - mean) / (_all(x.square().mean()) / ranks - mean.square()).sqrt()


def _counts_its_own(x: Any) -> Any:
    count = len(x) * dist.get_world_size()
    mean = _all(x.sum()) / count
    return (x - mean) / (_all(x.square().sum()) / count - mean.square()).sqrt()


def _averages_spreads(x: Any) -> Any:
    mean = _of_all(x)[0]
    return (x - mean) / (_all((x - mean).square().mean()) / dist.get_world_size()).sqrt()


def _own_squares(x: Any) -> Any:
    mean, _, count = _of_all(x)
    return (x - mean) / ((x - mean).square().sum() / count).sqrt()


def _counts_only_its_own(x: Any) -> Any:
    mean = _all(x.sum()) / len(x)
    return (x - mean) / (_all(x.square().sum()) / len(x) - mean.square()).sqrt()


def _everybodys(x: Any) -> Any:
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, x.cpu())
    whole = torch.cat(parts)
    return (whole - whole.mean()) / whole.std(correction=0)


def _distances_of_four(x: Any) -> Any:
    mean = _all(x.sum()) / 4
    return (x - mean) / (_all((x - mean).square().sum()) / 4).sqrt()


def _by(mean: Any, variance: Any) -> Any:
    """A way to normalise, by what `mean(x)` and `variance(x, mean)` return."""

    def by(x: Any) -> Any:
        off = mean(x)
        return (x - off) / variance(x, off).sqrt()

    return by


def _their_mean(x: Any) -> Any:
    return _of_all(x)[0]


def _in_distances(count: Any) -> Any:
    """A way in two rounds: the mean, then the squares of the distances, where `count(x)` numbers are counted."""
    return _by(lambda x: _all(x.sum()) / count(x), lambda x, mean: _all((x - mean).square().sum()) / count(x))


def _tried(answer: Any, x: Any) -> list[Any]:
    """What comes out; where only the mean is right, with it by what other numbers are divided, whose spreads differ."""
    own = x.tolist()
    found = [round(it, 2) for it in answer(x).tolist()]
    if dist.get_world_size() != 2:
        return found
    others = torch.tensor([[1.0, 3.0], [4.0, 10.0]][dist.get_rank()], device=device())
    out = answer(others.clone())  # on both ranks, whatever the first numbers have become
    if found != [it - 4 for it in own]:
        return found
    by = f"{(others[0] - 4.5) / out[0]:.3g}"
    return [*found, f"and of 1, 3 on rank 0 and 4, 10 on rank 1 it divides by {by}"]


SPREAD = "How far the ranks' means are apart is part of the spread: add up the squares over all ranks, and count."
COUNTED = "A mean is a sum, divided by how many numbers there are on all ranks together: of squares, too."
COUNTS = "How many there are is a sum over the ranks, too."
OWN_COUNT = "each rank takes it that the others have as many numbers as itself", COUNTS
ALIKE = (
    "the ranks' means weigh alike, and rank 2 has fewer numbers",
    "Add up numbers, squares, and how many there are, over the ranks; and then divide.",
)

turn(
    "4.5.a",
    "Normalised by all ranks' numbers",
    _normalised,
    _own_numbers,
    ranks=(2, 3),
    call=_tried,
    look=lambda found, *_: found,
    heads=("x", "x"),
    mistakes=[
        (lambda x: (x - x.mean()) / x.std(correction=0), "each rank's numbers come out as if it were alone",
         "The sums have to be those of all ranks."),
        (lambda x: (x - x.mean()) / x.std(), "each rank's numbers come out as if it were alone",
         "The sums have to be those of all ranks."),
        (lambda x: x - _their_mean(x), "the mean is taken off, and nothing is divided",
         "Then divide, by the root of the variance of all ranks' numbers."),
        (_by(_their_mean, lambda x, _: x.var(correction=0)), "the mean is everybody's, the variance the rank's own",
         SPREAD),
        (lambda x: (x - x.mean()) / _of_all(x)[1].sqrt(), "the variance is everybody's, the mean the rank's own",
         "Take off the mean of all ranks' numbers."),
        (_by(_their_mean, lambda x, _: _all(x.var(correction=0)) / dist.get_world_size()),
         "the mean is right, and the variance is the mean of the ranks' variances", SPREAD),
        (_by(_their_mean, lambda x, _: (_all(x.std(correction=0)) / dist.get_world_size()).square()),
         "the mean is right, and what you divide by is the mean of the ranks' spreads", SPREAD),
        (partial(_normalised, by=lambda mean, variance, count: (mean, variance)), "divided by the variance",
         "Divide by its root."),
        (partial(_normalised, by=lambda mean, variance, count: (0, variance.sqrt())), "the mean is still in it",
         "Take off the mean first."),
        (partial(_normalised, by=lambda mean, variance, count: (mean, (variance * count / (count - 1)).sqrt())),
         "the variance is divided by one number less", "BatchNorm divides by how many there are."),
        (partial(_normalised, by=lambda mean, variance, count: (mean, (variance + mean.square()).sqrt())),
         "the mean of the squares is no variance yet", "Take off the square of the mean."),
        (partial(_normalised, by=lambda mean, variance, count: (mean, (variance + mean.square() - mean).sqrt())),
         "from the mean of the squares the mean itself is taken off", "Take off its square."),
        (lambda x: x - _of_all(x)[0] / _of_all(x)[1].sqrt(), "only the mean is divided by the root of the variance",
         "First take off the mean, and then divide: in brackets."),
        *[(_by(lambda x: _all(x.sum()), variance), "the sum is taken off, and not the mean", COUNTED)
          for variance in (lambda x, _: _of_all(x)[1], lambda x, off: _all((x - off).square().sum()) / _all(len(x)),
                           lambda x, off: (_all(x.square().sum()) / _all(len(x)) - off.square()).abs())],
        *[(_by(_their_mean, variance), "the squares are added up, and not divided", COUNTED)
          for variance in (lambda x, off: _all(x.square().sum()) - off.square(),
                           lambda x, off: _all((x - off).square().sum()))],
        *[(_by(_their_mean, variance), "sums are squared, and not each number", "First `x ** 2`, then its sum.")
          for variance in (lambda x, off: _all(x.sum().square()) / _all(len(x)) - off.square(),
                           lambda x, off: _all(x.sum()).square() / _all(len(x)) - off.square())],
        (_in_distances(lambda x: dist.get_world_size()), "divided by how many ranks there are, and not numbers",
         COUNTED),
        (lambda x: (x - _their_mean(x)) / _all(x.std(correction=0)), "the ranks' spreads are added up", SPREAD),
        (_by(_their_mean, lambda x, _: _all(x.var(correction=0))), "the ranks' variances are added up", SPREAD),
        (_counts_only_its_own, "what comes out is not a number",
         "A variance below 0 has no root. Is everything divided by how many numbers all ranks have?"),
        (_everybodys, "every rank returns the numbers of all, and not its own", "Return `x`, normalised."),
        (_sums_of_four, "there are not always four numbers", COUNTS),
        (_distances_of_four, "there are not always four numbers", COUNTS),
        (_as_if_even, *ALIKE),
        (_averages_spreads, "the mean is right; of the squares the ranks' means weigh alike, and rank 2 has fewer",
         ALIKE[1]),
        *[(_by(lambda x: _all(x.mean()) / dist.get_world_size(), variance), *ALIKE)
          for variance in (lambda x, _: _of_all(x)[1], lambda x, off: _all((x - off).square().sum()) / _all(len(x)),
                           lambda x, off: _all(x.square().sum()) / _all(len(x)) - off.square())],
        (_counts_its_own, *OWN_COUNT),
        (_in_distances(lambda x: len(x) * dist.get_world_size()), *OWN_COUNT),
        (_in_distances(lambda x: len(x) * 2), "twice the rank's own numbers are taken for all", COUNTS),
        (_own_squares, "the squares are this rank's alone", "Add them up over the ranks, too."),
        (waiting(_only_on_rank_0), "only rank 0 comes to the all_reduce", "Every rank has to call it."),
    ],
    hints={
        "has no attribute 'tolist'": "`return` what comes out.",
        "expected input tensor to be on GPU": "That layer is for GPUs. Sums over the ranks make one for everywhere.",
    }
    | HINTS,
    otherwise="Sums over all ranks, in tensors of their own: of the numbers, of their squares, and how many there are. "
    "The rest follows.",
)  # fmt: skip


def _layers(rank: int, size: int) -> tuple[Any]:
    net = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1), nn.Sequential(nn.BatchNorm2d(1))).to(device())
    net[0].running_mean.fill_(2 + 4 * rank + (0.5 if size == 4 else 0.0))  # for who drops the fraction
    net[0].running_var.fill_(2.5 - rank)
    net[2][0].running_mean.fill_(12 + 16 * rank)
    for layer in (net[0], net[2][0]):
        layer.num_batches_tracked.fill_(50)
        layer.weight.data.fill_(1 + rank)  # for who averages those; DDP keeps them alike
    return (net,)


def _held(_: Any, net: Any) -> list[float]:
    first, _, (last,) = net
    kept = [first.running_mean, first.running_var, last.running_mean, first.num_batches_tracked]
    weights = {first.weight.item(), last.weight.item()}
    return [*map(float, kept), *["weights too"] * (weights != {1.0 + dist.get_rank()})]


def _average(net: Any, share: Any = dist.get_world_size, layers: Any = slice(None), names: str = "mean var",
             reduce: Any = dist.all_reduce) -> None:  # fmt: skip
    for layer in list(net)[layers]:
        for name, buffer in layer.named_buffers():
            if name.rpartition("running_")[2] in names:
                reduce(buffer)
                buffer.copy_(buffer / share())


def _averages_parameters(net: Any, buffers: bool = False) -> None:
    for p in net.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()
    if buffers:
        _average(net)


def _of_all_numbers(net: Any) -> None:
    size = dist.get_world_size()
    for layer in (net[0], net[2][0]):
        mean, square = layer.running_mean.clone(), layer.running_var + layer.running_mean**2
        dist.all_reduce(mean)
        dist.all_reduce(square)
        layer.running_mean.copy_(mean / size)
        layer.running_var.copy_(square / size - (mean / size) ** 2)


def _drops_fractions(net: Any) -> None:
    for buffer in net.buffers():
        dist.all_reduce(buffer)
        buffer //= dist.get_world_size()


STATISTICS = (
    "They are buffers, of any kind of BatchNorm, and no parameters: `net.buffers()`. In `net` their names begin with "
    "the layer's: `0.running_mean`. The mean has to end up in the buffer itself, not in a copy."
)

turn(
    "4.5.b",
    "Running statistics of all ranks",
    _average,
    _layers,
    ranks=(2, 4),
    look=_held,
    heads=("mean", "variance", "next layer's mean", "batches"),
    mistakes=[
        (lambda net: None, "each rank keeps its own", STATISTICS),
        (_averages_parameters, "the weights are averaged, and each rank keeps its own statistics", STATISTICS),
        (partial(_averages_parameters, buffers=True), "the weights are averaged as well",
         "All but the running statistics stays as it is: `net.buffers()`, and no parameters."),
        (_drops_fractions, "a fraction is dropped", "`/`, and no `//`. How many batches there were is left out."),
        (partial(_average, share=lambda: 1, reduce=partial(dist.all_reduce, op=dist.ReduceOp.MAX)),
         "all have the largest", "Without `op` the all_reduce adds up; then divide."),
        (partial(_average, share=lambda: 1, reduce=lambda it: dist.broadcast(it, src=dist.get_world_size() - 1)),
         "all have the last rank's", "To gather, a list has a tensor for each rank: `[t] * n` is one tensor, n times."),
        (partial(_average, share=lambda: dist.get_world_size() ** 2), "the mean is divided once more", "Once."),
        (partial(_average, share=lambda: 1), "the sum over the ranks",
         "Divide by the number of ranks, in place: `t = t / …` is another tensor, and the buffer stays as it is."),
        (partial(_average, share=lambda: dist.get_world_size() if dist.get_rank() == 0 else 1),
         "rank 0 has the mean, others the sum", "`dist.all_reduce` leaves the sum on every rank: each divides."),
        (partial(_average, share=lambda: 1, names="mean var num_batches_tracked 0.num_batches_tracked"),
         "the sum over the ranks, of batches too", "Divide by the number of ranks; and leave the batches alone."),
        (partial(_average, share=lambda: 2), "right on two ranks only", "`dist.get_world_size()` counts them."),
        (partial(_average, layers=slice(1)), "the BatchNorm2d inside a block is not reached",
         "All of them, of any kind and at any depth: `net.buffers()`, or `net.modules()` and both kinds."),
        (partial(_average, names="mean"), "the means only", "And the variances?"),
        (_of_all_numbers, "the variance is that of all ranks' numbers, with how far apart the means lie; "
         "asked for is the mean of the ranks' variances", "`running_var` as it is: its sum, divided once."),
        (partial(_average, share=lambda: 1, reduce=lambda it: dist.broadcast(it, src=0)),
         "all have rank 0's",
         "DDP sends rank 0's before a forward pass. What is wanted is the mean: the sum, divided once."),
        (partial(_average, reduce=lambda it: dist.reduce(it, dst=0)), "rank 0 has the mean, others do not",
         "`dist.all_reduce` leaves it on every rank."),
        (waiting(lambda net: _average(net) if dist.get_rank() == 0 else None), "only rank 0 comes to the all_reduce",
         "Every rank has to call it."),
    ],
    hints={
        "can't be cast": "How many batches there were is a whole number: leave it out.",
        "a leaf Variable": STATISTICS,
        "has no attribute 'running_": "`net` holds several layers, and not only BatchNorm: `net.buffers()`.",
    },
    otherwise="Each `running_mean` and each `running_var` becomes its mean over the ranks. All else stays as it is.",
)  # fmt: skip


class _TwoWeights(nn.Module):
    """Two parameters, so that who clips each by itself gets something else."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.tensor(10.0), torch.tensor(20.0)])

    def forward(self, x: Any) -> Any:
        return sum(weight * it for weight, it in zip(self.weights, x, strict=True))


def _scaled(rank: int, size: int) -> tuple[Any, Any, Any, Any, float]:
    model = DDP(_TwoWeights().to(device()))
    model.began = []  # with which factor each backward pass began at the loss
    own = torch.tensor([[12.0, 0.0], [0.0, 16.0], [0.0, 0.0], [0.0, 0.0]], device=device())[rank]
    loss = model(own) * {2: 1, 3: float("inf"), 4: 4}[size]
    loss.register_hook(lambda factor: model.began.append(factor.item()))
    scaler = torch.amp.GradScaler(device().type, init_scale=16.0, growth_interval=1)
    limit = 100.0 if size == 4 else 5.0  # there the mean of the gradients, (12, 16), is short enough
    return model, torch.optim.SGD(model.parameters(), lr=1.0), scaler, loss, limit


def _scaled_step(model: Any, optimizer: Any, scaler: Any, loss: Any, limit: float,
                 do: str = "backward unscale clip step update") -> None:  # fmt: skip
    optimizer.zero_grad()
    for what in do.split(", " if "," in do else None):
        {
            "scale": lambda: scaler.scale(loss),
            "backward": lambda: scaler.scale(loss).backward(),
            "unscale": lambda: scaler.unscale_(optimizer),
            "clip": lambda: clip_grad_norm_(model.parameters(), limit),
            "clip to 1": lambda: clip_grad_norm_(model.parameters(), 1.0),
            "clip to a 16th": lambda: clip_grad_norm_(model.parameters(), limit / 16),
            "clip sum": lambda: clip_grad_norm_(model.parameters(), limit, norm_type=1),
            "clip largest": lambda: clip_grad_norm_(model.parameters(), limit, norm_type=float("inf")),
            "add up": lambda: [dist.all_reduce(p.grad) for p in model.parameters()],
            "each": lambda: clip_grad_value_(model.parameters(), limit),
            "stretch": lambda: _stretch([p.grad for p in model.parameters()], limit),
            "loss.backward": loss.backward,
            "step": lambda: scaler.step(optimizer),
            "optimizer.step": optimizer.step,
            "update": scaler.update,
        }[what]()


def _stretch(gradients: list[Any], limit: float) -> None:
    length = torch.stack(gradients).norm()
    for gradient in gradients:
        gradient *= limit / length


def _weights_and_scale(_: Any, model: Any, optimizer: Any, scaler: Any, *rest: Any) -> list[float]:
    held = [*(round(it.item(), 4) for it in model.parameters()), scaler.get_scale()]
    as_it_was = model.began == [1.0] and dist.get_world_size() == 2 and held != [7, 16, 32]
    return [*held, *["of the loss as it was"] * as_it_was]


FOUR = "`scaler.update()` at the end. Each of the scaler's four methods has its turn in each step."
TEN = "the step is 10 long, and not 5"
TOO_LATE = (
    "Clip the gradients of `model.parameters()`, after `backward()`, when they have their own size, and before the "
    "step. And there is one step."
)

turn(
    "4.5.c",
    "Scaled, clipped, stepped",
    _scaled_step,
    _scaled,
    ranks=(2, 3, 4),
    look=_weights_and_scale,
    heads=("weight 0", "weight 1", "scale"),
    mistakes=[
        (partial(_scaled_step, do="backward clip step update"), "you clip gradients that are 16 times too long",
         "`scaler.unscale_(optimizer)` first."),
        (partial(_scaled_step, do="backward clip unscale step update"), "you clip gradients that are 16 times too long",
         "`scaler.unscale_(optimizer)` first."),
        (partial(_scaled_step, do="backward step update"), TEN, TOO_LATE),
        (partial(_scaled_step, do="backward unscale step clip update"), TEN,
         TOO_LATE),
        (partial(_scaled_step, do="backward unscale clip step"), "the scaler never adapts its scale", FOUR),
        (partial(_scaled_step, do="backward unscale clip update step"), "the scale is updated before the step: "
         "`update()` forgets that the gradients are divided, and `step()` divides them again",
         "First the step, then `update()`."),
        (partial(_scaled_step, do="backward unscale clip update"),
         "no weight has moved: there is no step, or the gradients are gone",
         "`scaler.step(optimizer)`, and no `zero_grad` before it."),
        (partial(_scaled_step, do="backward unscale clip optimizer.step update"),
         "an infinite gradient is used for a step", "`scaler.step(optimizer)` may leave it out."),
        (partial(_scaled_step, do="backward optimizer.step"), "the gradients are used 16 times too long",
         "`scaler.scale(loss)` has multiplied them. Who divides?"),
        (partial(_scaled_step, do="loss.backward clip optimizer.step"), "the scaler is not used at all",
         "`scaler.scale(loss)`, and `backward()` of that; then unscale, clip, `scaler.step(optimizer)`, update."),
        *[(partial(_scaled_step, do=do),
           "`backward()` is that of the loss itself: the gradients are divided, and nothing has multiplied them",
           "`backward()` of what `scaler.scale(loss)` returns.")
          for do in ("scale loss.backward clip step update", "scale loss.backward clip unscale step update",
                     "scale loss.backward unscale step update", "scale loss.backward unscale clip step",
                     "scale loss.backward unscale clip optimizer.step")],
        (partial(_scaled_step, do="backward, clip to a 16th, step, update"),
         "the limit is divided by the scaler's number",
         "With gradients 16 times too long it would have to be multiplied; `scaler.unscale_(optimizer)` spares that."),
        (partial(_scaled_step, do="backward, unscale, clip to 1, step, update"), "clipped to 1, and not to `limit`",
         "`clip_grad_norm_(model.parameters(), limit)`"),
        *[(partial(_scaled_step, do=f"backward, unscale, {clip}, step, update"), f"the length is measured by {by}",
           "Leave `norm_type` out: `clip_grad_norm_` then takes the usual length.")
          for clip, by in (("clip sum", "a sum"), ("clip largest", "the largest"))],
        (partial(_scaled_step, do="backward, unscale, add up, clip, step, update"),
         "the gradients are added up once more", "DDP has averaged them, in `backward()`."),
        (partial(_scaled_step, do="backward unscale each step update"), "each weight is cut to the limit by itself",
         "One length for all: `clip_grad_norm_`, given all of them, shortens them together."),
        (partial(_scaled_step, do="backward unscale stretch step update"), "a gradient that is short enough is "
         "lengthened", "At most `limit` long: what is shorter stays as it is."),
        (lambda model, optimizer, scaler, loss, limit: _scaled_step(model, optimizer, scaler, loss, 5.0),
         "clipped to 5, and not to `limit`", "Here `limit` is 100."),
        (partial(_scaled_step, do="backward clip optimizer.step"), "the scaler never adapts its scale", FOUR),
    ],
    hints={
        "scale is None": "`scaler.scale(loss)` first, and of that `backward()`.",
        "No inf checks": "`scaler.scale(loss)` first, and of that `backward()`; then `scaler.step(optimizer)`.",
        "already been called": "Each of the scaler's methods once.",
        "called after step()": "Unscale, and clip, before the step.",
        "'NoneType' object is not iterable": "`scaler.unscale_` returns nothing; it divides what is in `.grad`.",
        "DistributedDataParallel' object is not iterable": "It is `model.parameters()` that is clipped.",
        "object has no attribute 'device'": "`scaler.update()` takes no optimiser.",
        "positional argument: 'optimizer'": "`scaler.unscale_` and `scaler.step` take the optimiser.",
        "'param_groups'": "`scaler.unscale_` and `scaler.step` take the optimiser.",
    },
    otherwise="In their order: scale, `backward()`, unscale, clip, step, update.",
)  # fmt: skip
