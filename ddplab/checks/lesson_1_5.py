"""Checks of lesson 1.5, Noise and batches."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import needs_function
from ddplab.checks.turns import turn

PLANS = {
    (96, 2, 20): (16, 3),
    (96, 4, 20): (12, 2),
    (64, 1, 64): (64, 1),
    (64, 2, 64): (32, 1),
    (100, 2, 20): (10, 5),
    (26, 2, 12): (1, 13),
}


@exercise("1.5.1", "The same batch on any number of GPUs")
def plans(plan: Callable[..., Any]) -> None:
    """Several batches, numbers of ranks and sizes that fit; then a batch that cannot be shared."""
    needs_function("plan", plan)
    for (batch, ranks, fits), (size, count) in PLANS.items():
        call, given = f"plan({batch}, {ranks}, {fits})", plan(batch, ranks, fits)
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise NotYet(f"`{call}` gives {given!r}, not a pair", "`return size, pieces`")
        if any(isinstance(n, bool) or n != int(n) for n in given):
            raise NotYet(f"`{call}` is {tuple(given)}: those are not whole numbers", "`//` divides to whole numbers.")
        mine, pieces = given
        says = f"`{call}` is ({mine:g}, {pieces:g})"
        if (mine, pieces) == (size, count):
            continue
        if (mine, pieces) == (count, size):
            raise NotYet(f"{says}: the wrong way round", "First the size of a piece, then the number of pieces.")
        if mine * pieces == batch and ranks > 1:
            raise NotYet(f"{says}: that is the whole batch on each of {ranks} ranks", "A rank has its share only.")
        if mine * pieces * ranks != batch:
            total = mine * pieces * ranks
            raise NotYet(f"{says}: {total:g} images an update, not {batch}", "size * pieces * ranks is the batch.")
        if mine > fits:
            raise NotYet(f"{says}: a piece of {mine:g} does not fit", f"At most {fits} images at a time.")
        raise NotYet(f"{says}: it can be done with fewer pieces", "Try 1, 2, 3, … and take the first that works.")
    for batch, ranks, fits in ((100, 3, 20), (2, 4, 20)):
        try:
            given = plan(batch, ranks, fits)
        except ValueError:
            continue
        raise NotYet(
            f"`plan({batch}, {ranks}, {fits})` is {given!r}: {ranks} ranks cannot share {batch} images equally",
            "Raise ValueError there.",
        )


# ------------------------------------------------------------------ your turn


def _rms_error(gradients: Any, whole: Any) -> Any:
    return (gradients - whole).pow(2).sum(dim=1).mean().sqrt() / whole.norm()


def _gradients(*off: list[float]) -> tuple[Any, Any]:
    """Gradients that are off by so much from a whole one of length 10, and that one."""
    whole = torch.tensor([6.0, 8.0, 0.0, 0.0][: len(off[0])])
    return whole + torch.tensor(off), whole


OTHER_LENGTHS = [  # what it is divided by, if not by the length of `whole`
    (lambda gradients, whole: whole.pow(2).sum(), "it is divided by the squared length of `whole`"),
    (lambda gradients, whole: whole, "it is divided by each number of `whole`"),
    (lambda gradients, whole: len(whole), "it is divided by how many numbers `whole` has: that is `len`"),
    (lambda gradients, whole: whole.sum(), "it is divided by the numbers of `whole`, added up"),
    (lambda gradients, whole: whole.mean(), "it is divided by the mean of `whole`'s numbers"),
    (lambda gradients, whole: gradients.norm(), "it is divided by the length of all gradients together"),
]
CANCEL = "Square each number before anything is added up."
OTHER_MEANS = [  # what is made of the differences, if not the root of the mean of their squared lengths
    (lambda off: off.abs().sum(dim=1).mean(), "absolute values are added up, and no squares", "Squares, and a root."),
    (
        lambda off: off.std(),
        "that is the spread of all the numbers, `std`",
        "One squared length for each row; then their mean, and its root.",
    ),
    (lambda off: off.mean().abs(), "the errors cancel, for they are added up before they are squared", CANCEL),
    (lambda off: off.sum(dim=1).pow(2).mean().sqrt(), "a row's numbers are added up before they are squared", CANCEL),
    (
        lambda off: off.norm() / len(off),
        "the root of the sum is divided by how many there are, not the sum",
        "The mean first, and its root then.",
    ),
    (lambda off: off.norm(dim=1).max(), "that is the longest error", "Of the squared lengths the mean, and its root."),
]

turn(
    "1.5.a",
    "The rms error",
    _rms_error,
    {
        "off by 5 and 5": partial(_gradients, [3.0, 4.0], [4.0, -3.0]),
        "off by 2 and 14": partial(_gradients, [2.0, 0.0], [0.0, 14.0]),
        "off by 10 to either side": partial(_gradients, [6.0, 8.0], [-6.0, -8.0]),
        "off by 20, four numbers": partial(_gradients, [10.0, 10.0, 10.0, 10.0], [10.0, -10.0, 10.0, -10.0]),
    },
    look=lambda error, *_: [] if error is None else error,
    heads=("rms error",),
    mistakes=[
        (lambda gradients, whole: _rms_error(gradients, whole) * whole.norm(), "it is not a share of `whole`",
         "Divide by `whole.norm()`."),
        (lambda gradients, whole: (gradients - whole).norm(dim=1).mean() / whole.norm(),
         "that is the mean of the lengths", "Square them before the mean, and take the root after it."),
        (lambda gradients, whole: _rms_error(gradients, whole) ** 2, "the root is missing",
         "`.sqrt()`, after the mean."),
        (lambda gradients, whole: (_rms_error(gradients, whole) * whole.norm()) ** 2 / whole.norm(),
         "the mean of squares has no root taken", "`.sqrt()`, before you divide."),
        (lambda gradients, whole: (gradients - whole).pow(2).mean().sqrt() / whole.norm(),
         "the mean goes over the numbers too", "The squared length of a row is the *sum* of its squares."),
        (lambda gradients, whole: (gradients - whole).pow(2).sum().sqrt() / whole.norm(),
         "that is a sum over the gradients", "One squared length for each row; then their mean."),
        (lambda gradients, whole: (gradients.mean(dim=0) - whole).norm() / whole.norm(),
         "the errors cancel, for the mean was taken first", "First each gradient's error, then the mean."),
        (lambda gradients, whole: gradients.pow(2).sum(dim=1).mean().sqrt() / whole.norm(),
         "that is the length of the gradients, not of their errors", "Subtract `whole` first."),
        (lambda gradients, whole: (gradients.norm(dim=1) - whole.norm()).pow(2).mean().sqrt() / whole.norm(),
         "lengths were compared, not vectors", "Subtract first, then take the length."),
        (lambda gradients, whole: (gradients - whole).pow(2).sum(dim=0).mean().sqrt() / whole.norm(),
         "the sum goes over the gradients, the mean over the numbers", "A gradient is a row: `dim=1` runs along it."),
        (lambda gradients, whole: (gradients - whole).norm(dim=1) / whole.norm(), "there is a number for each gradient",
         "One for all of them: square, take the mean, then the root."),
        (lambda gradients, whole: (_rms_error(gradients, whole) ** 2 * whole.norm()).sqrt(),
         "the root is taken of `whole`'s length, too", "The root first, of the mean alone; then divide."),
        *[(lambda gradients, whole, by=by: _rms_error(gradients, whole) * whole.norm() / by(gradients, whole), what,
           "Divide by the length of `whole`: `whole.norm()`.") for by, what in OTHER_LENGTHS],
        *[(lambda gradients, whole, to=to: to(gradients - whole) / whole.norm(), what, hint)
          for to, what, hint in OTHER_MEANS],
        (lambda gradients, whole: _rms_error(gradients, gradients.mean(dim=0)) * gradients.mean(dim=0).norm()
         / whole.norm(), "that is how far they lie from their own mean", "From `whole`: subtract that."),
        (lambda gradients, whole: 1 / _rms_error(gradients, whole), "upside down",
         "The error is divided by the length of `whole`."),
        (lambda gradients, whole: None, "nothing comes back", "Is there a `return`?"),
    ],
    otherwise="Differences, squared lengths, mean, root; divided by the length of `whole`.",
)  # fmt: skip


def _batch_for(wanted: float, batch: int, error: float, power: float = 2.0) -> float:
    return batch * (error / wanted) ** power


def _by_halvings(wanted: float, batch: int, error: float) -> float:
    while error > wanted:
        batch, error = 4 * batch, error / 2
    return batch


turn(
    "1.5.b",
    "The price of calm",
    _batch_for,
    {
        f"{error} with 32, {wanted} wanted": partial(lambda *it: it, wanted, 32, error)
        for error, wanted in ((1.0, 0.5), (1.0, 0.1), (4.0, 8.0))
    },
    look=lambda batch, *_: [] if batch is None else "a text" if isinstance(batch, str) else batch,
    heads=("batch",),
    mistakes=[
        (partial(_batch_for, power=1), "as if twice the batch halved the error",
         "It goes with the *root* of the batch."),
        (partial(_batch_for, power=-2), "the wrong way round", "A smaller error needs a larger batch."),
        (partial(_batch_for, power=-1), "the wrong way round, and without the square",
         "A smaller error needs a larger batch. Half of it needs four times as large a one."),
        (partial(_batch_for, power=0.5), "the root was taken of the errors",
         "The error goes with the root of the batch. So how does the batch go with the error?"),
        (lambda wanted, batch, error: 4 * batch, "right for half the error only",
         "By what factor is the error to shrink?"),
        (lambda wanted, batch, error: batch / wanted**2, "right where the error is 1 only", "Where is `error`?"),
        (_by_halvings, "too large a batch, unless the error is to be halved",
         "Any two errors have a ratio, larger than 1 or smaller. How does the batch go with it?"),
        (lambda wanted, batch, error: batch / wanted, "the error is left out, and the square", "Where is `error`?"),
        (lambda wanted, batch, error: batch * error / wanted**2, "`wanted` is squared, and `error` is not",
         "The square of the ratio: `(…) ** 2` around both."),
        (lambda wanted, batch, error: batch * error**2 / wanted, "`error` is squared, and `wanted` is not",
         "The square of the ratio: `(…) ** 2` around both."),
        (lambda wanted, batch, error: batch * (error // wanted) ** 2, "the ratio is rounded down",
         "`/` divides; `//` drops the fraction."),
        (lambda wanted, batch, error: (batch * error / wanted) ** 2, "the batch is squared, too",
         "Only the ratio of the errors is squared."),
        (lambda wanted, batch, error: batch**2 * error / wanted,
         "the batch is squared, and not the ratio of the errors", "It is the other way."),
        (lambda wanted, batch, error: batch**0.5 * error / wanted, "the root is taken of the batch",
         "The error goes with the root of the batch. So the batch goes with what of the error?"),
        (lambda wanted, batch, error: batch * 2 * error / wanted, "the ratio is doubled, and not squared",
         "Half the error needs four times the batch, a third of it nine times."),
        (lambda wanted, batch, error: batch * 2 ** (error / wanted), "that is 2 to the power of the ratio",
         "The other way: the ratio to the power of 2."),
        (lambda wanted, batch, error: batch * (error - wanted) ** 2, "the difference of the errors is squared",
         "By what factor is the error to shrink? That is a ratio."),
        (lambda wanted, batch, error: (error / wanted) ** 2 / batch, "it is divided by the batch",
         "A smaller error needs a larger batch: times `batch`."),
        (lambda wanted, batch, error: str(batch), "a text comes back", "A number is wanted."),
        (lambda wanted, batch, error: (error / wanted) ** 2, "that is how many times the batch",
         "And with how many images did it begin?"),
        (lambda wanted, batch, error: None, "nothing comes back", "Is there a `return`?"),
    ],
    otherwise="Half the error needs four times the batch, a third of it nine times.",
)  # fmt: skip


def _drawn_thrice(deal: Any, n: int, batch: int) -> list[list[float]]:
    drawn = [deal(n, batch) for _ in range(3)]
    if isinstance(drawn[0], int) or (isinstance(drawn[0], torch.Tensor) and not drawn[0].dim()):
        return []
    return [[int(it) if int(it) == it else float(it) for it in draw] for draw in drawn]


def _drawn(draws: list[list[float]], n: int, batch: int) -> list[Any]:
    """How many images were drawn, whether all are different, from where, whether by lot, and by another each time."""
    if not draws:
        return ["one number", *"----"]
    if not all(draws):
        return ["none", *"----"]
    chosen, again, _ = draws
    counts = {*map(len, draws)}
    many = "fewer, by chance" if len(counts) > 1 and max(counts) < batch else len(chosen)
    steps = {after - before for before, after in pairwise(chosen)}
    top = max(chosen)
    where = "beyond the end" if top >= n else "the first only" if batch < n and top < batch else "all"
    where = where if all(isinstance(it, int) for it in chosen) else "fractions"
    lots = ["yes" if it else "no" for it in (len(steps) > 1, set(chosen) != set(again))]
    lots = ["-", "-"] if batch == n else lots  # all of them: no lot
    return [many, "yes" if len(set(chosen)) == len(chosen) else "no", where, *lots]


turn(
    "1.5.c",
    "Each image once",
    lambda n, batch: torch.randperm(n)[:batch],
    {f"{batch} of {n:,}": partial(lambda n, batch: (n, batch), n, batch) for n, batch in ((1000, 10), (50, 50))},
    call=_drawn_thrice,
    look=_drawn,
    heads=("images", "all different", "out of", "by lot", "others each time"),
    mistakes=[
        (lambda n, batch: torch.randint(n, (batch,)), "an image may come twice", "Shuffle all of them. Then?"),
        (lambda n, batch: torch.randint(n, (batch,)).unique(), "fewer than `batch`, where what came twice is dropped",
         "Shuffle all of them: then nothing comes twice."),
        (lambda n, batch: torch.randperm(n)[:10], "always ten images", "As many as `batch` says."),
        (lambda n, batch: torch.arange(batch), "always the first images, and no lot", "`torch.randperm` shuffles."),
        (lambda n, batch: torch.randperm(batch), "only the first images can come", "Shuffle all n of them."),
        (lambda n, batch: torch.randperm(n), "all images come", "Take the first `batch` of the shuffled ones."),
        (lambda n, batch: torch.randperm(n)[1:batch], "one image is missing", "A slice begins at 0: `[:batch]`."),
        (lambda n, batch: torch.randperm(n)[: batch + 1], "one image too many, where there are more",
         "`[:batch]` takes `batch` of them."),
        (lambda n, batch: torch.randperm(n)[batch:], "the first `batch` of the shuffled ones are left out",
         "`[:batch]` takes those, and `[batch:]` the others."),
        *[(to, "one number comes back, and no batch", "`[:batch]` takes the first `batch` of what is shuffled.")
          for to in (lambda n, batch: torch.randperm(n)[batch], lambda n, batch: torch.randperm(n)[0])],
        (lambda n, batch: torch.randperm(n)[::batch],
         "`batch` is how many batches there are, or the step: n / batch come", "`[:batch]` takes `batch` of them."),
        (lambda n, batch: torch.randperm(n - 1)[:batch], "where all are to come, one is missing",
         "`torch.randperm(n)` shuffles 0 to n - 1 already: all of them, from the first on."),
        (lambda n, batch: torch.rand(n)[:batch], "those are fractions, and no numbers of images",
         "Whole numbers, shuffled: `torch.randperm(n)`."),
        (lambda n, batch: torch.randperm(n)[:batch] + 1, "image n does not exist", "They are numbered from 0."),
        (lambda n, batch: torch.randint(n - batch + 1, (1,)) + torch.arange(batch),
         "only the first is drawn by lot, and the others come after it", "Shuffle all n of them."),
        (lambda n, batch: torch.arange(0, n, n // batch), "that is a pattern, no lot", "`torch.randperm` shuffles."),
        (lambda n, batch: torch.randperm(n, generator=torch.Generator().manual_seed(0))[:batch],
         "each call draws the same images, for the seed is set inside", "Seed once, outside, where the run begins."),
    ],
    hints={"'NoneType' object is not subscriptable": "`random.shuffle` returns nothing: it shuffles the list itself.",
           "'NoneType' object is not iterable": "Nothing comes back: is there a `return`?",
           "only one element tensors": "One batch is wanted: the numbers of `batch` images, in one dimension."},
    otherwise="`torch.randperm(n)` is a shuffled 0, 1, …, n - 1.",
)  # fmt: skip
