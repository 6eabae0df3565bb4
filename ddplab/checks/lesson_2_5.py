"""Checks of lesson 2.5, The cost of DataParallel. They run on virtual GPUs, for only those have a meter."""

import itertools
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import flat, gpus_for, kind, multiple, needs_function, off
from ddplab.checks.turns import turn
from ddplab.course.data import digits
from ddplab.course.models import MLP


@exercise("2.5.1", "One replication is enough")
def once(evaluate: Callable[..., Any]) -> None:
    """`evaluate(net, batches, gpus)`: the outputs of one device, and the parameters copied once for all batches."""
    needs_function("evaluate", evaluate)
    for n in (2, 3):
        with gpus_for(n, virtual=True) as gpus:
            net, images, _ = _case(30)
            right = [net(part).detach() for part in images.split(6)]
            bytes_of_net = 4 * sum(p.numel() for p in net.parameters())
            net.to(gpus[0])
            batches = [part.to(gpus[0]) for part in images.split(6)]
            gpus.meter.reset()
            outputs = evaluate(net, batches, gpus)
            links = [(cause, gpus[0], gpu) for cause in ("replicate", ".to") for gpu in gpus[1:]]
            times = round(sum(gpus.meter.bytes(*link) for link in links) / (bytes_of_net * (n - 1)))
            _compare_outputs(f"on {n} GPUs", outputs, right, gpus)
        if times > 1:
            raise NotYet(
                f"on {n} GPUs, the model was copied to each of the others {times} times, for {len(batches)} batches",
                "`replicate` belongs before the loop, the other three inside.",
            )
        if not times:
            raise NotYet(f"on {n} GPUs, GPU 0 did all the work itself", "`scatter` the batch, on all of `gpus`.")
        if any(getattr(output, "requires_grad", False) for output in outputs):
            raise NotYet("the outputs carry a graph with them", "Evaluate inside `with torch.no_grad():`.")


def _compare_outputs(where: str, outputs: Any, right: list[Any], gpus: Any) -> None:
    if not isinstance(outputs, list | tuple):
        got = "a tensor" if isinstance(outputs, torch.Tensor) else kind(outputs)
        raise NotYet(f"`evaluate` returns {got}, not a list of outputs", "One tensor for each batch, in a list.")
    if len(outputs) != len(right):
        raise NotYet(f"{where}, {len(right)} batches gave {len(outputs)} outputs", "One tensor for each batch.")
    for output, wanted in zip(outputs, right, strict=True):
        if not isinstance(output, torch.Tensor):
            hint = "`parallel_apply` returns a list, one output for each replica; `gather` puts them together."
            raise NotYet(f"{where}, an output is a {type(output).__name__}, not a tensor", hint)
        if tuple(output.shape) != tuple(wanted.shape):
            hint = "All the pieces, one below the other: `gather(outputs, gpus[0])`."
            raise NotYet(f"{where}, an output has shape {tuple(output.shape)}, not {tuple(wanted.shape)}", hint)
        if output.device not in (gpus[0], torch.device("cpu")):
            raise NotYet(f"{where}, an output lies on {output.device}", "Gather on `gpus[0]`.")
        if off(output.detach().cpu(), wanted) > 1e-6:
            raise NotYet(f"{where}, the outputs are not those of one device", "Is the order of the rows kept?")


def _case(batch: int) -> tuple[Any, Any, Any]:
    """A small network, the same at every call, with a batch of digits."""
    torch.manual_seed(0)
    images, labels = digits().tensors
    return MLP(), images[:batch], labels[:batch]


# ------------------------------------------------------------------ your turn


def _counted(predict: Callable[..., Any], n: int, wide: int, rows: int) -> list[Any]:
    """Bytes by cause, as the answer has them."""
    found = predict((wide + 1) * wide, n, rows, wide)
    return ["a dictionary"] if isinstance(found, dict) else list(found)


def _metered(parameters: int, n: int, rows: int, wide: int) -> list[int]:
    """The bytes of a step of a linear layer, by cause, as the meter counts them. It is what is wanted."""
    with gpus_for(n, virtual=True) as gpus:
        model = nn.DataParallel(nn.Linear(wide, wide).to(gpus[0]))
        x = torch.zeros(rows, wide, device=gpus[0])
        gpus.meter.reset()
        model(x).sum().backward()
        assert parameters == sum(p.numel() for p in model.parameters())
        return [gpus.meter.bytes(cause) for cause in ("replicate", "reduce", "scatter", "gather")]


# What is done with the model, and with the rows: how many copies of it go out and come back, for n GPUs, or which share
# of them counts for scatter and for gather; what is said of it, and a hint. The first of each is right.
MODEL = [
    (lambda n: (n - 1, n - 1), "", ""),
    (lambda n: (n, n), "GPU 0 gets a copy too", "GPU 0 has the model already. How many others need it?"),
    (lambda n: (n, n - 1), "GPU 0 gets a copy too", "GPU 0 has the model already. How many others need it?"),
    (
        lambda n: (n - 1, n),
        "GPU 0's own gradients come to it, too",
        "They are there already. What comes is the others'.",
    ),
    (lambda n: (n - 1, 0), "no gradients come back", "As many gradients come back as parameters went out."),
    (lambda n: (n - 1, 1), "the gradients of one GPU come back, and no other's", "Each of the others has some."),
    (lambda n: (1, 1), "there is always one replica", "How many GPUs need one that have none yet?"),
    (
        lambda n: (n > 1, n > 1),
        "the model goes to one other GPU, however many there are",
        "How many GPUs need one that have none yet?",
    ),
    (
        lambda n: (2 * n - 2, n - 1),
        "the parameters go out twice",
        "Once out. What comes back has its own name, reduce.",
    ),
    (lambda n: (n - 1, 2 * n - 2), "the gradients are counted twice", "They come back, once, and stay on GPU 0."),
    (lambda n: (2 * n - 2, 2 * n - 2), "the model is counted twice each way", "Once out, once back, 4 bytes a number."),
    (lambda n: (1 - 1 / n, 1 - 1 / n), "the model is cut like the batch", "Each GPU gets all of the model."),
    (lambda n: (n / 4 - 1 / 4, n / 4 - 1 / 4), "the parameters are numbers, not bytes", "Each has 4 bytes."),
]
ROWS = [
    (lambda n: (2 - 2 / n, 1 - 1 / n), "", ""),
    (
        lambda n: (1 - 1 / n, 1 - 1 / n),
        "the gradients of the outputs are left out: they go from GPU 0 to the others, too",
        "Scatter counts twice what leaves: the inputs, and on the way back the gradients of the outputs.",
    ),
    (lambda n: (2 - 2 / n, 2 - 2 / n), "the outputs are counted twice", "They come home once."),
    (
        lambda n: (4 - 4 / n, 2 - 2 / n),
        "the rows are counted twice each time",
        "4 bytes a number, whichever way it goes.",
    ),
    (lambda n: (2, 1), "all rows leave GPU 0", "GPU 0 keeps a share of the rows for itself."),
    (
        lambda n: (1, 1),
        "all rows leave GPU 0, and the gradients of the outputs do not",
        "GPU 0 keeps a share of the rows for itself. What else goes from it to the others, on the way back?",
    ),
    (lambda n: (2 * n, n), "every GPU gets the whole batch", "The batch is cut, and GPU 0 keeps its share."),
    (lambda n: (2 - 2 / n, 1), "GPU 0's own outputs come to it, too", "They are there already."),
    *[
        (share, "only one GPU's share of the rows is counted", "One leaves GPU 0 for each of the other GPUs.")
        for share in (lambda n: (2 / n, 1 / n), lambda n: (2 / n * (n > 1), (n > 1) / n))
    ],
    *[
        (share, "of the outputs only one GPU's share comes", "There is one from each of the others.")
        for share in (lambda n: (2 - 2 / n, 1 / n), lambda n: (2 - 2 / n, (n > 1) / n))
    ],
    (
        lambda n: (2 * n - 2, n - 1),
        "every other GPU gets the whole batch",
        "The batch is cut: each gets a share of 1/n.",
    ),
    (
        lambda n: (1 - 1 / n, 2 - 2 / n),
        "scatter and gather have changed places",
        "Scatter is what leaves GPU 0: the inputs, and on the way back the gradients of the outputs.",
    ),
    (
        lambda n: (0.2 - 0.2 / n, 0.1 - 0.1 / n),  # the check's rows have ten
        "a row has one number",
        "It has `width` of them, on the way in and on the way out.",
    ),
    (lambda n: (0.5 - 0.5 / n, 0.25 - 0.25 / n), "the rows are numbers, not bytes", "Each number has 4 bytes."),
]


def _formula(p: int, n: int, rows: int, wide: int, model: Any = MODEL[0][0], given: Any = ROWS[0][0]) -> list[float]:
    return [*(4 * p * copies for copies in model(n)), *(4 * wide * rows * share for share in given(n))]


turn(
    "2.5.a",
    "To the byte",
    _metered,
    {
        "1 GPU": lambda: (1, 10, 12),
        "2 GPUs, 12 rows": lambda: (2, 10, 12),
        "4 GPUs, 12 rows": lambda: (4, 10, 12),
        "4 GPUs, 40 rows": lambda: (4, 10, 40),
    },
    call=_counted,
    otherwise="Of each cause: how many numbers cross, to or from how many GPUs, and 4 bytes for each.",
    heads=("replicate", "reduce", "scatter", "gather"),
    hints={
        "division": "With one GPU there are no others, and nothing crosses.",
        "modulo": "With one GPU there are no others, and nothing crosses.",
        "not iterable": "Four numbers, in this order: replicate, reduce, scatter, gather.",
    },
    mistakes=[
        (
            lambda *it: dict(enumerate(_formula(*it))),
            "a dictionary comes back",
            "The four numbers alone, in this order: replicate, reduce, scatter, gather.",
        ),
        (
            lambda *it: [each / 4 for each in _formula(*it)],
            "those are numbers, not bytes",
            "A number in float32 has 4 bytes.",
        ),
        *[
            (
                partial(_formula, model=model, given=given),
                ", and ".join(filter(None, what)),
                " ".join(filter(None, hints)),
            )
            for (model, *of_model), (given, *of_rows) in itertools.product(MODEL, ROWS)
            for what, hints in [zip(of_model, of_rows, strict=True)]
            if any(what) and not all("numbers" in it for it in what)
        ],
        *[
            (
                lambda *it, order=order: [_formula(*it)[place] for place in order],
                "the four numbers are right, and they stand in another order",
                "replicate, reduce, scatter, gather: as the heads of the table say.",
            )
            for order in ((0, 2, 3, 1), (2, 0, 3, 1), (0, 2, 1, 3))
        ],
        (
            lambda p, n, rows, wide: [rows * each for each in _formula(p, n, 1, wide)],
            "the model travels once a row",
            "Replicas are made once a forward, however many rows there are.",
        ),
    ],
)


OTHER_LOSSES = {
    "a softmax taken twice": lambda scores, labels: F.cross_entropy(scores.softmax(1), labels),
    "scores without a softmax": F.nll_loss,
    "a softmax without `log`": lambda scores, labels: F.nll_loss(scores.softmax(1), labels),
}


def _gathered(forward: Callable[..., Any], rows: int, n: int) -> list[Any]:
    """Bytes gathered, numbers that came home, and whether the mean has one device's gradient."""

    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 10)

        def forward(self, x: Any, labels: Any) -> Any:
            return forward(self.net, x, labels)

    with gpus_for(n, virtual=True) as gpus, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a scalar from each replica is told below
        torch.manual_seed(0)
        inside = Inside()
        x, labels = torch.randn(rows, 4), torch.arange(rows) % 10
        right, *others = (
            flat(torch.autograd.grad(loss(inside.net(x), labels), list(inside.net.parameters())))
            for loss in (F.cross_entropy, *OTHER_LOSSES.values())
        )
        inside.to(gpus[0]).zero_grad()
        x, labels = x.to(gpus[0]), labels.to(gpus[0])
        gpus.meter.reset()
        losses = nn.DataParallel(inside)(x, labels)
        if not isinstance(losses, torch.Tensor):
            return [kind(losses), "-", "-"]
        held = [gpus.meter.bytes("gather"), losses.numel()]
        if not losses.requires_grad:
            return [*held, "none"]
        losses.mean().backward()
        grad = flat(p.grad for p in inside.net.parameters())
        times = 1 if off(grad, right) < 1e-6 else multiple(grad, right, within=1e-5)
    if times:
        return [*held, "yes" if times == 1 else f"{times:.3g} times it"]
    known = (name for name, other in zip(OTHER_LOSSES, others, strict=True) if off(grad, other) < 1e-5)
    return [*held, next((f"no: as of {name}" for name in known), "no")]


def _losses(net: Any, x: Any, labels: Any, reduction: str = "none") -> Any:
    return F.cross_entropy(net(x), labels, reduction=reduction)


turn(
    "2.5.b",
    "Only losses come home",
    _losses,
    {"8 rows, 2 GPUs": lambda: (8, 2), "10 rows, 4 GPUs": lambda: (10, 4)},
    call=_gathered,
    otherwise="A loss for each row of this part, not yet averaged: the mean over all rows is taken at home.",
    heads=("bytes gathered", "numbers that came", "gradient as on one"),
    mistakes=[
        (
            lambda net, x, labels: net(x),
            "all the scores are gathered, ten for each row",
            "The labels are here, on this GPU. Compute the loss here.",
        ),
        (
            partial(_losses, reduction="mean"),
            "one loss comes from each GPU; where the parts are uneven, their mean is another loss",
            "One loss for each row weighs every row alike. `cross_entropy` has an argument `reduction`.",
        ),
        (
            partial(_losses, reduction="sum"),
            "the losses of a part are added up, so their mean grows with the rows",
            "One loss for each row. `cross_entropy` has an argument `reduction`.",
        ),
        (
            lambda net, x, labels: _losses(net, x, labels) / len(x),
            "each loss is divided by the rows of its part, and their mean is taken at home",
            "One division is enough: leave this one out.",
        ),
        (lambda net, x, labels: -_losses(net, x, labels), "the losses have their signs turned", "As they are."),
        *[
            (wrong, "each loss has 2 bytes", "Leave them in float32, and the scores that they are made of.")
            for wrong in (
                lambda net, x, labels: _losses(net, x, labels).half(),
                lambda net, x, labels: _losses(lambda x: net(x).half(), x, labels),
            )
        ],
        (
            lambda net, x, labels: _losses(lambda x: net(x).softmax(1), x, labels),
            "the softmax is taken twice: `cross_entropy` makes one itself",
            "Give it the scores as they are, `net(x)`.",
        ),
        (
            lambda net, x, labels: F.nll_loss(net(x), labels, reduction="none"),
            "that is the score of the label, with its sign turned, and no cross-entropy",
            "`F.cross_entropy` takes the scores, and makes log-probabilities of them first. `nll_loss` does not.",
        ),
        (
            lambda net, x, labels: F.nll_loss(net(x).softmax(1), labels, reduction="none"),
            "that is the probability of the label, with its sign turned: the logarithm is missing",
            "`F.cross_entropy` takes the scores, and makes log-probabilities of them first. `nll_loss` does not.",
        ),
        (
            lambda net, x, labels: _losses(lambda x: net(x).sigmoid(), x, labels),
            "one number a row comes home, and it is not the cross-entropy of its scores",
            "`cross_entropy` of the scores as they are, and of the labels. The mean is taken later.",
        ),
        (
            lambda net, x, labels: _losses(net, x, labels).detach(),
            "the losses do not know how they came about",
            "`detach`, `item`, `argmax` and `no_grad()` each cut the way back to the weights.",
        ),
        (
            lambda net, x, labels: _losses(net, x, labels).double(),
            "each loss has 8 bytes",
            "Leave them in float32.",
        ),
        (
            lambda net, x, labels: (_losses(net, x, labels), net(x)),
            "the scores come home as well",
            "Return the losses alone.",
        ),
    ],
    hints={
        "Target ": "`cross_entropy` takes the scores, `net(x)`: ten for each row.",
        "log_softmax": "`cross_entropy` takes first the scores, `net(x)`, and then the labels.",
        "valid value for reduction": 'It is a word: `reduction="none"`.',
        "'float' object is not iterable": "What comes home is a tensor: no `item()`, no `tolist()`.",
        "for CPU tensors": "Leave the losses on their GPU: `DataParallel` itself brings them home.",
        "zip() argument": "One tensor with a loss for each row, and no list.",
        "invalid shape": "One dimension, with a loss for each row: they are put one below the other.",
        "batch_size": "The labels are cut like the rows.",
    },
)


class _Calls(TorchFunctionMode):
    """Counts the calls into torch that Python makes in here."""

    number = 0

    def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return call(*args, **(kwargs or {}))


def _looped(means: Callable[..., Any], rows: int) -> list[Any]:
    """The first results, whether all are right, the calls that it took, and the bytes that left."""
    with gpus_for(2, virtual=True) as gpus:
        tens = 10 * torch.arange(1.0, rows + 1)
        tens[3:] += 0.25
        x = torch.stack([2 * tens + 3, -tens, 0 * tens, 2 * tens - 3, tens, 0 * tens], dim=1)
        x[1::2, 4] = 0  # the mean of three is that of all four: not every row has as many zeros
        x = x.to(gpus[1])
        gpus.meter.reset()
        with _Calls() as calls:
            found = means(x)
        left = gpus.meter.bytes(None, None, "cpu")
        if not isinstance(found, torch.Tensor):
            return [kind(found), "-", "-", "-"]
        found_here = found.detach().cpu().flatten().to(tens.dtype)
        twice = torch.cat([x, x])
        with _Calls() as of_twice_as_many:
            means(twice)
        first = " ".join(f"{it:g}" for it in found_here[:3].tolist())
        if found_here.shape != tens.shape:
            first += f", of {' x '.join(map(str, found.shape)) or 'one number'}"
        right = found_here.shape == tens.shape and torch.allclose(found_here, tens)
        few = "few" if of_twice_as_many.number < 1.5 * calls.number else "more with every row"
        return [first, "yes" if right else "no", few, left]


def _means(x: Any) -> Any:
    return x.sum(1) / (x != 0).sum(1)


AWAY = "the rows leave for the CPU"
STAY = "Leave them where they are: `sum` takes a dimension."

turn(
    "2.5.c",
    "No loop in the forward",
    _means,
    {"20 rows": lambda: (20,), "40 rows": lambda: (40,)},
    call=_looped,
    otherwise="For each row the sum of its numbers, and how many are not 0. A comparison makes a tensor, too.",
    heads=("first three", "all right", "calls into torch", "bytes to the CPU"),
    mistakes=[
        (
            lambda x: torch.stack([row.sum() / (row != 0).sum() for row in x]),
            "it is a loop over the rows still, only with torch in it",
            "`sum` takes a dimension: all rows at once.",
        ),
        (
            lambda x: torch.tensor([sum(row) / sum(map(bool, row)) for row in x.tolist()], device=x.device),
            AWAY,
            STAY,
        ),
        (lambda x: x.cpu().sum(1) / (x.cpu() != 0).sum(1), AWAY, STAY),
        (lambda x: x.sum(1), "those are the sums", "Divide each by how many numbers of its row are not 0."),
        (lambda x: x.mean(1), "the zeros are counted", "Divide by how many numbers of a row are not 0."),
        (
            lambda x: x.sum(1) / (x != 0).sum(),
            "each sum is divided by how many numbers of all rows are not 0",
            "Count in each row: `sum` and `count_nonzero` take a dimension.",
        ),
        (lambda x: x.sum() / (x != 0).sum(1), "the sum is that of all rows", "Along dimension 1."),
        (
            lambda x: x.sum(1) / len(x),
            "divided by how many rows there are",
            "Divide each by how many numbers of its row are not 0.",
        ),
        (lambda x: x.sum(1) / (x == 0).sum(1), "divided by how many zeros a row has", "Count what is not 0: `x != 0`."),
        (lambda x: (x != 0).sum(1) / x.sum(1), "upside down", "The sum over how many."),
        (lambda x: x.abs().sum(1) / (x != 0).sum(1), "the signs are lost", "Add up the numbers as they are."),
        (
            lambda x: x.masked_fill(x == 0, torch.nan).mean(1),
            "a mean with a NaN in it is NaN",
            "`nanmean` leaves them out.",
        ),
        (lambda x: x.masked_fill(x == 0, torch.nan).nanmedian(1).values, "those are medians", "The mean: `nanmean`."),
        *[
            (square, "each row is divided by the count of every row: a square", "Both with `keepdim`, or neither.")
            for square in (
                lambda x: x.sum(1) / (x != 0).sum(1, keepdim=True),
                lambda x: x.sum(1, keepdim=True) / (x != 0).sum(1),
            )
        ],
        (
            lambda x: x.sum(1) / (x != 0).sum(1)[0],
            "each sum is divided by the count of the first row",
            "Each by its own: a count for each row.",
        ),
        (
            lambda x: x[:, :2].mean(1),
            "only the first two numbers of each row are counted",
            "What is not 0 may stand anywhere: add up the whole row.",
        ),
        (
            lambda x: x.sum(0) / (x != 0).sum(0).clamp(min=1),
            "those are the means of the columns",
            "Along the other dimension.",
        ),
        (
            lambda x: x.sum(0) / (x != 0).sum(0),
            "those are the means of the columns",
            "Along the other dimension.",
        ),
        (
            lambda x: _means(x).round(),
            "the means are rounded",
            "As they are: a true division, `/`, and no rounding.",
        ),
        (
            lambda x: _means(x).cpu(),
            "the means leave for the CPU",
            "Leave them where `x` lies.",
        ),
        (
            lambda x: x[x != 0].mean(),
            "one mean comes back, for all rows together",
            "One number for each row.",
        ),
        (
            lambda x: x.sum(1) / (x > 0).sum(1),
            "the negative numbers are not counted",
            "What is not 0 counts, also below it.",
        ),
        (
            lambda x: _means(x.cpu()),
            AWAY,
            STAY,
        ),
    ],
    hints={
        "could not infer output dtype": "Truths have no mean. `sum` counts them.",
        "size of tensor": "Both have to be one number for each row: `(x != 0).sum(1)` counts along dimension 1.",
        "invalid for input": "Not every row has as many zeros. Add up and count, row by row.",
    },
)
