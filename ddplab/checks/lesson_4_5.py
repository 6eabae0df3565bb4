"""Checks of lesson 4.5, BatchNorm, buffers and mixed precision."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, listed, needs_function, numbers, off, on_ranks
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


@exercise("4.5.2", "Statistics of everybody")
def everybody(statistics: Callable[..., Any]) -> None:
    """`statistics(x)` on two and three ranks with different numbers of rows must be that of all rows together."""
    needs_function("statistics", statistics)
    for rows in ([3, 5], [5, 2, 3]):
        where = f"with {listed(rows)} rows on the ranks"
        ranks = on_ranks(_statistics_in_rank, statistics, rows, size=len(rows), hints=HINTS)
        for rank in ranks:
            _judge_statistics(where, rank, rows)


def _judge_statistics(where: str, rank: dict[str, Any], rows: list[int]) -> None:
    parts = _rows(rows)
    everything = torch.cat(parts)
    mean, variance = everything.mean(0), everything.var(0, correction=0)
    got_mean, got_variance = rank["answer"]
    for name, got in {"mean": got_mean, "variance": got_variance}.items():
        if got.shape != mean.shape:
            hint = "One number for each column: sum over the rows, dimension 0."
            raise NotYet(f"{where}, the {name} has the shape {tuple(got.shape)}, not {tuple(mean.shape)}", hint)
    if rank["changed"]:
        raise NotYet(f"{where}, `x` itself has changed", "`all_reduce` writes into its tensor; give it a new one.")
    means = torch.stack([part.mean(0) for part in parts])
    if off(got_mean, mean) > 1e-9:
        known = {
            "the mean of the rank's own rows": (rank["own"].mean(0), "Where do the other ranks' rows come in?"),
            "the sum over the ranks": (mean * len(everything), "Divide by the number of rows of all ranks."),
            "the sum of the ranks' means": (means.sum(0), "Add up sums and counts over the ranks, not means."),
            "the mean of the ranks' means": (means.mean(0), "A mean of means weighs ranks. Add up sums and counts."),
            "the sum, divided by the rank's own rows": (
                mean * len(everything) / len(rank["own"]),
                "The number of rows has to be added up over the ranks too.",
            ),
        }
        for what, (value, hint) in known.items():
            if off(got_mean, value) < 1e-9:
                raise NotYet(f"{where}, the mean is {what}", hint)
        raise NotYet(f"{where}, the mean is {off(got_mean, mean):.0%} off", "Sums and counts, both over all ranks.")
    if off(got_variance, variance) > 1e-9:
        spread = torch.stack([part.var(0, correction=0) for part in parts])
        known = {
            "divided by one row less": (everything.var(0), "Divide by the number of rows."),
            "the mean of the ranks' own": (
                spread.mean(0),
                "The ranks' means differ too, and that is part of the spread. Use the sum of squares.",
            ),
            "the rank's own": (rank["own"].var(0, correction=0), "Add up the squares over the ranks as well."),
            "the standard deviation": (variance.sqrt(), "Leave the root out."),
            "the mean of the squares": (variance + mean.square(), "Take off the square of the mean."),
        }
        for what, (value, hint) in known.items():
            if off(got_variance, value) < 1e-9:
                raise NotYet(f"{where}, the mean is right; the variance is {what}", hint)
        hint = "The mean of the squares, less the square of the mean."
        raise NotYet(f"{where}, the mean is right; the variance is {off(got_variance, variance):.0%} off", hint)


def _rows(rows: list[int]) -> list[Any]:
    """Each rank's rows: the same everywhere, with means far apart."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 3, generator=generator, dtype=torch.float64) + 2 * rank + 1 for rank, n in enumerate(rows)]


def _statistics_in_rank(statistics: Callable[..., Any], rows: list[int]) -> dict[str, Any]:
    own = _rows(rows)[dist.get_rank()]
    x = own.clone().to(device())
    answer = statistics(x)
    if not (isinstance(answer, tuple | list) and len(answer) == 2 and all(map(torch.is_tensor, answer))):
        raise TypeError(f"statistics returned {type(answer).__name__}, not two tensors")
    changed = not torch.equal(x.cpu(), own)
    return {"answer": [part.detach().cpu().double() for part in answer], "own": own, "changed": changed}


HINTS = {
    "not two tensors": "`return mean, variance`.",
    "SIGABRT": "The ranks have different numbers of rows: all-reduce what has the same shape on all, as sums.",
    "Expected parameter": "`dist.all_reduce` takes a tensor: `torch.tensor(…, device=device())`.",
    "Invalid function argument": "`dist.all_reduce` takes a tensor: `torch.tensor(…, device=device())`.",
    "'NoneType'": "`dist.all_reduce` returns nothing; it changes the tensor that it is given.",
    "ReduceOp.AVG": "Not every torch has an average in gloo. Without `op` it adds up everywhere: add up, then divide.",
}
