"""Checks of lesson 7.1, Learning rate and warm-up."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import needs_function
from ddplab.checks.relations import close
from ddplab.checks.turns import turn


@exercise("7.1.1", "A loop that makes its schedule")
def loop(fit: Callable[..., Any]) -> None:
    """`fit(model, loader, optimizer, epochs, share)`: every update has the rate that `share(update, total)` gives."""
    needs_function("fit", fit)
    generator = torch.Generator().manual_seed(0)
    loader = [(torch.randn(8, 4, generator=generator), torch.arange(8) % 3) for _ in range(5)]
    epochs, rates, totals = 3, [], set()

    def share(update: int, total: int) -> float:
        totals.add(total)
        return 1 / (update + 1)

    def prepare() -> tuple:
        model = torch.nn.Linear(4, 3)
        torch.nn.init.zeros_(model.weight)
        torch.nn.init.zeros_(model.bias)
        return model, torch.optim.SGD(model.parameters(), lr=1.0)

    model, optimizer = prepare()
    optimizer.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    fit(model, loader, optimizer, epochs, share)
    wanted = epochs * len(loader)
    if not rates:
        raise NotYet("the optimiser never stepped", "Call `optimizer.step()` for every batch of the loader.")
    if len(rates) != wanted:
        raise NotYet(
            f"{epochs} epochs of {len(loader)} batches made {len(rates)} updates, not {wanted}",
            "One update for each batch, in each epoch.",
        )
    if not totals:
        raise NotYet("nobody asked `share` for a rate", "Hand it to `LambdaLR`, in a function of the update alone.")
    if totals != {wanted}:
        raise NotYet(
            f"`share` is told of a run of {min(totals)} updates, and it has {wanted}",
            "`total` counts updates: the batches of all epochs.",
        )
    _judge_rates([round(1 / rate) - 1 for rate in rates], len(loader))

    reference, optimizer = prepare()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: share(update, wanted))
    for x, y in loader * epochs:
        optimizer.zero_grad()
        F.cross_entropy(reference(x), y).backward()
        optimizer.step()
        scheduler.step()
    if not torch.allclose(model.weight, reference.weight, atol=1e-5):
        hint = "Is `optimizer.zero_grad()` there, for every batch? And the loss is the mean cross-entropy."
        raise NotYet("the rates are right, but the weights come out otherwise", hint)


def _judge_rates(places: list[int], batches: int) -> None:
    """`places`: for each update, which rate of the schedule it had."""
    right = list(range(len(places)))
    if places == right:
        return
    if set(places) == {0}:
        raise NotYet("every update had the first rate", "Nobody calls `scheduler.step()`.")
    if places == [n // batches for n in right]:
        raise NotYet("the rate changed once an epoch", "This schedule counts updates: step it inside the inner loop.")
    if places == [n % batches for n in right]:
        raise NotYet("the schedule begins anew in every epoch", "Make it once, before the first epoch.")
    if places == [n + 1 for n in right]:
        raise NotYet("the first rate of the schedule was skipped", "First `optimizer.step()`, then `scheduler.step()`.")
    if places == [2 * n for n in right]:
        raise NotYet("every other rate was skipped", "One `scheduler.step()` for each update.")
    if places == [math.factorial(n + 1) - 1 for n in right]:
        hint = "The share is one of the peak: keep the rate that the optimiser came with, and multiply that."
        raise NotYet("each share was multiplied onto the rate before", hint)
    shown = ", ".join(str(place) for place in places[:7])
    raise NotYet(f"the updates had the rates number {shown}, …", "They should be 0, 1, 2, 3, …")


# your turn


def _returned(returned: Any, *_: Any) -> Any:
    return returned


def _two_numbers(returned: Any, *given: Any) -> Any:
    """Both numbers. Where they are right, but no loader could use the first, 4.0 say, it is told as it stands there."""
    pair = isinstance(returned, tuple | list | torch.Tensor) and len(returned) == 2
    if pair and not isinstance(returned[0], int):
        if all(map(close, map(float, returned), _from_one_rank(*given))):
            return [repr(returned[0]), returned[1]]
    return returned


def _from_one_rank(size: int, lr: float, ranks: int, keep: bool, kept: Any = None, grown: Any = None) -> tuple:
    """kept, grown: what the first way and the second do otherwise to a batch, a rate, and a number of ranks."""
    way = (kept or (lambda b, r, n: (b // n, r))) if keep else (grown or (lambda b, r, n: (b, r * n)))
    return way(size, lr, ranks)


turn(
    "7.1.a",
    "Two ways from one rank to many",
    _from_one_rank,
    {
        "32 images at 0.1, 4 ranks, keep": lambda: (32, 0.1, 4, True),  # a share is not as large as there are ranks
        "32 images at 0.1, 4 ranks, grow": lambda: (32, 0.1, 4, False),
        "48 images at 0.5, 8 ranks, keep": lambda: (48, 0.5, 8, True),
        "48 images at 0.5, 8 ranks, grow": lambda: (48, 0.5, 8, False),
    },
    look=_two_numbers,
    heads=("images of a rank", "rate"),
    mistakes=[
        (partial(_from_one_rank, kept=lambda b, r, n: (b / n, r)), "the images are a float, and a loader takes an int",
         "`/` makes a float even of 32 and 4. What divides whole numbers, and leaves one?"),
        (lambda size, lr, ranks, keep: (size, lr), "nothing is changed in either way",
         "In one way the batch of a rank changes, in the other the rate."),
        (partial(_from_one_rank, kept=lambda b, r, n: (b // n, r * n)), "with the batch kept the rate is raised too",
         "The same batch and as many updates as before: what is there to make up for?"),
        (partial(_from_one_rank, kept=lambda b, r, n: (b, r)), "every rank takes as many images as the one rank did",
         "To keep the batch, the ranks share it."),
        (partial(_from_one_rank, kept=lambda b, r, n: (b * n, r)), "to keep the batch it is multiplied",
         "All ranks together take as many images as the one rank did. So how many does each take?"),
        (partial(_from_one_rank, kept=lambda b, r, n: (b // n, r / n)), "with the batch kept the rate becomes smaller",
         "The same batch and as many updates as before: what is there to make up for?"),
        (lambda size, lr, ranks, keep: (size // ranks, lr * ranks), "batch and rate are both changed, in either way",
         "In one way the batch of a rank changes, in the other the rate."),
        (lambda *given: _from_one_rank(*given)[::-1], "the two numbers are swapped",
         "First the images, then the rate."),
        (partial(_from_one_rank, grown=lambda b, r, n: (b, r / n)), "the rate becomes smaller",
         "There are fewer updates, so each must go further."),
        (partial(_from_one_rank, grown=lambda b, r, n: (b, r)), "the batch grows and the rate stays",
         "That is what the first four ranks of this lesson did, and they got less far."),
        (partial(_from_one_rank, grown=lambda b, r, n: (b // n, r * n)),
         "the ranks share one rank's batch in both ways", "In the second way the batch grows: what does a rank take?"),
        (partial(_from_one_rank, grown=lambda b, r, n: (b * n, r * n)), "that many images take all ranks together",
         "What does one of them take?"),
        (partial(_from_one_rank, grown=lambda b, r, n: (b, r * math.sqrt(n))), "the rate grows with the root",
         "That is another rule. This one is linear."),
        (lambda size, lr, ranks, keep: _from_one_rank(size, lr, ranks, not keep), "the two ways are swapped",
         "`keep` is true where the batch is to be kept."),
        (lambda size, lr, ranks, keep: _from_one_rank(size, lr, 4, keep), "right on four ranks only",
         "`ranks` says how many there are."),
    ],
    otherwise="The batch is shared in one way, the rate multiplied in the other. Return a whole number, and a rate.",
)  # fmt: skip


def _updates(images: int, epochs: int, size: int, ranks: int, rounded: Callable[[float], float] = math.ceil) -> float:
    return epochs * rounded(images / ranks / size)


turn(
    "7.1.b",
    "Count the updates of a run",
    _updates,
    {
        "1 rank, 10,000 images, 10 epochs, 64 a rank": lambda: (10_000, 10, 64, 1),
        "2 ranks, 10,000 images, 10 epochs, 64 a rank": lambda: (10_000, 10, 64, 2),
        "8 ranks, 10,000 images, 10 epochs, 64 a rank": lambda: (10_000, 10, 64, 8),
        "2 ranks, 100 images, 3 epochs, 20 a rank": lambda: (100, 3, 20, 2),
        "2 ranks, 80 images, 3 epochs, 20 a rank": lambda: (80, 3, 20, 2),
        "2 ranks, 81 images, 3 epochs, 20 a rank": lambda: (81, 3, 20, 2),
    },
    look=_returned,
    heads=("updates",),
    mistakes=[
        (lambda images, epochs, size, ranks: _updates(images, epochs, size, 1), "the ranks are not in it",
         "Each rank has its share of the images only."),
        (partial(_updates, rounded=math.floor), "the short batch at an epoch's end is missing", "Round up."),
        (partial(_updates, rounded=lambda n: math.floor(n) + 1), "one too many where the batches come out even",
         "Without a rest there is no short batch: round up, `math.ceil`."),
        (partial(_updates, rounded=round), "rounded to the nearest number", "Any rest is an update too: round up."),
        (partial(_updates, rounded=float), "there are no parts of an update", "Round up, in every epoch."),
        (lambda images, epochs, size, ranks: math.ceil(epochs * images / ranks / size), "rounded once, over all epochs",
         "Every epoch ends with its own short batch: round up first, then multiply."),
        (lambda images, epochs, size, ranks: epochs * math.ceil(images / size) // ranks,
         "the batches are shared out, not the images", "A rank's images first, in batches of `size`; round that up."),
        (lambda images, epochs, size, ranks: _updates(images // ranks, epochs, size, 1),
         "one image of 81 belongs to no rank", "The sampler fills up, so that each has as many: round up there, too."),
        (lambda images, epochs, size, ranks: _updates(images, epochs, size / ranks, 1),
         "the batches are made smaller, and the images are those of all ranks",
         "`size` is what one rank takes. What do the ranks share?"),
        (lambda images, epochs, size, ranks: epochs * math.ceil(images / size) / ranks,
         "the batches are shared out, not the images", "A rank's images first, in batches of `size`; round that up."),
        (lambda images, epochs, size, ranks: epochs * math.ceil(images / size) * ranks,
         "more ranks make more updates", "Each has its share of the images only, so there are fewer."),
        (lambda images, epochs, size, ranks: _updates(images, 1, size, ranks), "that is one epoch",
         "How many are there?"),
        (lambda images, epochs, size, ranks: ranks * _updates(images, epochs, size, ranks),
         "the updates of all ranks are added up", "The ranks make one update together."),
        (lambda images, epochs, size, ranks: _updates(images, epochs, size, 8), "right on eight ranks only",
         "`ranks` says how many there are."),
    ],
    otherwise="A rank's images in an epoch, in batches of `size`, rounded up; then all epochs.",
)  # fmt: skip


def _share(
    update: int, total: int, warm: int, first: int = 1, since: int | None = None, length: int | None = None,
    wave: Callable[[float], float] = lambda progress: (1 + math.cos(math.pi * progress)) / 2,
) -> float:  # fmt: skip
    """first: what the warm-up counts from. since, length: where the cosine begins, and for how long; -1: the run's."""
    if update < warm:
        return (update + first) / warm
    length = total if length == -1 else length
    return wave((update - (warm if since is None else since)) / (length or total - warm))


turn(
    "7.1.c",
    "A schedule that ends where the run does",
    _share,
    {f"update {n} of 100, 10 warm": partial(tuple, (n, 100, 10)) for n in (0, 4, 9, 10, 55, 100)}
    | {
        "update 20 of 40, 0 warm": lambda: (20, 40, 0),
        "update 10 of 40, 0 warm": lambda: (10, 40, 0),
        "update 0 of 20, 2 warm": lambda: (0, 20, 2),
    },
    look=_returned,
    heads=("share of the peak",),
    mistakes=[
        (partial(_share, first=0), "the first update is wasted, with a rate of 0",
         "Update 0 is the first of `warm`: count from 1."),
        (partial(_share, since=0, length=-1), "the cosine began at update 0", "It begins after the warm-up."),
        (partial(_share, length=-1), "the cosine is too long", "It has the updates that the warm-up leaves."),
        (partial(_share, wave=lambda p: math.cos(math.pi * p)), "the rate becomes negative",
         "A cosine goes from 1 to -1. Which sum and which share of it go from 1 to 0?"),
        (partial(_share, wave=lambda p: (1 + math.cos(2 * math.pi * p)) / 2), "it is down midway, and climbs again",
         "Half a wave: from 0 to π."),
        (partial(_share, wave=lambda p: math.cos(math.pi / 2 * p)), "a quarter of a wave brings it down",
         "Half a wave: from 0 to π. It goes from 1 to -1; which sum and which share of it go from 1 to 0?"),
        (partial(_share, wave=lambda p: (1 + math.cos(180 * p)) / 2), "180 radians are many waves",
         "`math.cos` counts in radians: half a wave is π."),
        (lambda update, total, warm: (update + 1) / warm if 0 < warm == update else _share(update, total, warm),
         "the warm-up goes on at update `warm`", "`warm` updates are numbered 0 to `warm - 1`."),
        (partial(_share, wave=lambda p: 1 - p), "it comes down in a straight line", "Half a cosine wave."),
        (partial(_share, wave=lambda p: (1 - math.cos(math.pi * p)) / 2), "the cosine goes up where it should go down",
         "The cosine of 0 is 1, and there the share is 1 too."),
        (partial(_share, wave=lambda p: (1 + math.cos(p)) / 2), "the cosine never ends its half wave",
         "The cosine is down at π, not at 1."),
        (partial(_share, wave=lambda p: 1 + math.cos(math.pi * p)), "the cosine begins at 2",
         "Which share of that sum goes from 1 to 0?"),
        (lambda update, total, warm: _share(update, total - 1, warm), "it is down at update `total - 1`",
         "The share is 0 at update `total`: how many updates after `warm` is that?"),
        (partial(_share, wave=lambda p: 1 + math.cos(math.pi * p) / 2), "only the cosine is halved, and not the sum",
         "Put `1 + cos` into parentheses."),
        (lambda update, total, warm: (1 + math.cos(math.pi * update - warm / total - warm)) / 2
         if update >= warm else _share(update, total, warm), "`*` and `/` come before `-`",
         "Put `update - warm` and `total - warm` into parentheses."),
        (lambda update, total, warm: (update + 1) / total if update < warm else _share(update, total, warm),
         "the warm-up is divided by all updates", "At update `warm - 1` the share is 1."),
        (lambda update, total, warm: update / (warm - 1) if update < warm else _share(update, total, warm),
         "the first update is wasted, with a rate of 0", "Update 0 is the first of `warm`: its share is 1/`warm`."),
        (lambda update, total, warm: 0.1 + 0.9 * update / warm if update < warm else _share(update, total, warm),
         "the warm-up begins at a tenth, and never comes to 1", "From 1/`warm` at update 0, in equal steps."),
        (lambda update, total, warm: _share(update, total, 0, since=warm - 1, length=total - warm + 1)
         if update >= warm else _share(update, total, warm), "the cosine began at update `warm - 1`",
         "It is 1 at update `warm`."),
        (lambda update, total, warm: _share(update, 100, warm), "right for a run of 100 updates only",
         "`total` says how many there are."),
        (lambda update, total, warm: _share(update, total, 0, since=warm, length=total - warm),
         "before update `warm` the cosine counts, too", "There the warm-up has the last word: `return`, or `else`."),
        (lambda update, total, warm: _share(update, total, warm) if update >= warm else 1.0,
         "there is no warm-up", "For `update < warm` the share is another one."),
        (lambda update, total, warm: min((update + 1) / warm, _share(update, total, warm)),
         "with `warm = 0` it divides by zero",
         "With `warm = 0` no update is in the warm-up: ask for that first."),
    ],
    otherwise="Up to `warm - 1` a straight line; then `(1 + cos) / 2`, of 0 to π.",
)  # fmt: skip
