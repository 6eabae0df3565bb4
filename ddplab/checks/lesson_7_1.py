"""Checks of lesson 7.1, Learning rate and warm-up."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, needs_function, number, numbers

# 50,000 images, 30 epochs, 64 images a rank, SGD 0.1 on one rank; now 8 ranks, 5 % warm-up, then a cosine.
numbers(
    "7.1.1",
    "Numbers of a bigger run",
    Number("updates", 2940, "A rank has 50,000 / 8 images in an epoch, and takes 64 at a time.").with_mistakes(
        (23460, "that many one rank makes", "Eight ranks share the images of an epoch."),
        (2910, "the short batch at the end of each epoch is missing", "It is an update too: round up."),
        (98, "that is one epoch", "There are 30 of them."),
        (2930, "rounded once, over all epochs", "Every epoch ends with its own short batch: round up per epoch."),
        (30 * 50_000 / 512, "there are no parts of an update", "Round up, in every epoch."),
    ),
    Number("lr", 0.8, "The linear rule: the rate grows as the batch does.").with_mistakes(
        (0.1, "the old rate, for a batch of 64", "The batch is 8 times as large."),
        (0.1 * math.sqrt(8), "that is the square-root rule", "The optimiser is SGD: the linear rule."),
        (0.1 / 8, "smaller than before", "Fewer updates, so each must go further."),
        (6.4, "multiplied twice", "The batch is 8 times as large, not 64 times."),
    ),
    Number("warm", 147, "5 % of `updates`.").with_mistakes(
        (1173, "5 % of what one rank alone would make", "Of the updates that the new run has."),
        (0.05, "that is the share", "How many updates is it?"),
        (1.5, "that counts epochs", "A schedule counts updates."),
    ),
    Number("t_max", 2793, "The cosine has what the warm-up leaves.").with_mistakes(
        (2940, "then it ends `warm` updates too late", "The cosine begins after the warm-up."),
        (30, "that counts epochs", "A schedule counts updates."),
        (3087, "the warm-up is added", "It is a part of the run."),
        (22287, "that many are left on one rank", "Of the updates that the new run has."),
    ),
)


@exercise("7.1.2", "A schedule that ends where the run does")
def schedule(rate: Callable[[int, int, int, float], Any]) -> None:
    """`rate(update, total, warm, peak)`: up to the peak in `warm` updates, half a cosine to zero at `total`."""
    needs_function("rate", rate)
    for total, warm, peak in ((200, 20, 1.0), (1100, 100, 0.4), (50, 0, 2.0)):
        run = f"total={total}, warm={warm}, peak={peak}"
        got = [number("rate", rate(update, total, warm, peak)) for update in range(total + total // 2)]
        wanted = [_right(update, total, warm, peak) for update in range(len(got))]
        wrong = [n for n in range(len(got)) if not abs(got[n] - wanted[n]) < 1e-6 * peak]
        if wrong:
            _explain(got, wanted, wrong[0], run, total, warm, peak)


def _right(update: int, total: int, warm: int, peak: float) -> float:
    if update < warm:
        return peak * (update + 1) / warm
    return peak * (1 + math.cos(math.pi * (update - warm) / (total - warm))) / 2 if update < total else 0.0


def _explain(got: list, wanted: list, n: int, run: str, total: int, warm: int, peak: float) -> None:
    """Raise the NotYet that says how the schedule is wrong, from the first update at which it is."""
    where = f"{run}: update {n} has the rate {got[n]:.6g}, not {wanted[n]:.6g}"
    if n >= total:
        what = "and the rate climbs back" if got[-1] > got[n] else "and the rate has not"
        raise NotYet(f"{where}: the run has ended, {what}", "From update `total` on the rate is 0.")
    if n < warm:
        if got[0] == 0 and abs(got[warm - 1] - wanted[warm - 2]) < 1e-6 * peak:
            raise NotYet(f"{where}: the first update is wasted", "Update 0 is the first of `warm`: count from 1.")
        if abs(got[n] - wanted[n] / peak) < 1e-6:
            raise NotYet(f"{where}: the peak is not in it", "Multiply by `peak`.")
        raise NotYet(f"{where}: that is in the warm-up", "peak / warm at update 0, peak at update warm - 1.")
    if abs(got[n] - wanted[n] / peak) < 1e-6:
        raise NotYet(f"{where}: the peak is not in it", "Multiply by `peak`.")
    if warm and abs(got[n] - peak * (1 + math.cos(math.pi * n / total)) / 2) < 1e-6 * peak:
        raise NotYet(f"{where}: the cosine began at update 0", "It begins after the warm-up: update - warm.")
    if warm and abs(got[n] - peak * (1 + math.cos(math.pi * (n - warm) / total)) / 2) < 1e-6 * peak:
        raise NotYet(f"{where}: the cosine is too long", "It has total - warm updates.")
    if got[total - 1] < -0.1 * peak:
        hint = "A cosine goes from 1 to -1. (1 + cos) / 2 goes from 1 to 0."
        raise NotYet(f"{where}: the rate becomes negative", hint)
    middle = (total + warm) // 2
    if abs(got[middle]) < 0.01 * peak:
        raise NotYet(f"{where}: it is down half-way", "Half a wave: the cosine of 0 to π, not of 0 to 2π.")
    raise NotYet(f"{where}: that is after the warm-up", "peak * (1 + cos(π * progress)) / 2, progress from 0 to 1.")


@exercise("7.1.3", "A loop that steps it")
def loop(fit: Callable[..., Any]) -> None:
    """`fit(model, loader, optimizer, scheduler, epochs)`: every update has the rate that the schedule gives it."""
    needs_function("fit", fit)
    generator = torch.Generator().manual_seed(0)
    loader = [(torch.randn(8, 4, generator=generator), torch.arange(8) % 3) for _ in range(5)]
    epochs, rates = 3, []

    def prepare() -> tuple:
        model = torch.nn.Linear(4, 3)
        torch.nn.init.zeros_(model.weight)
        torch.nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1))

    model, optimizer, scheduler = prepare()
    optimizer.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    fit(model, loader, optimizer, scheduler, epochs)
    if not rates:
        raise NotYet("the optimiser never stepped", "Call `optimizer.step()` for every batch of the loader.")
    if len(rates) != epochs * len(loader):
        raise NotYet(
            f"{epochs} epochs of {len(loader)} batches made {len(rates)} updates, not {epochs * len(loader)}",
            "One update for each batch, in each epoch.",
        )
    _judge_rates([round(1 / rate) - 1 for rate in rates], len(loader), scheduler)

    reference, optimizer, scheduler = prepare()
    for x, y in loader * epochs:
        optimizer.zero_grad()
        F.cross_entropy(reference(x), y).backward()
        optimizer.step()
        scheduler.step()
    if not torch.allclose(model.weight, reference.weight, atol=1e-5):
        hint = "Is `optimizer.zero_grad()` there, for every batch? And the loss is the mean cross-entropy."
        raise NotYet("the rates are right, but the weights come out otherwise", hint)


def _judge_rates(places: list[int], batches: int, scheduler: Any) -> None:
    """`places`: for each update, which rate of the schedule it had."""
    right = list(range(len(places)))
    if places == right:
        if scheduler.last_epoch != len(places):
            raise NotYet("the scheduler did not step after the last update", "Once after every update, the last too.")
        return
    if set(places) == {0}:
        raise NotYet("every update had the first rate", "Nobody calls `scheduler.step()`.")
    if places == [n // batches for n in right]:
        raise NotYet("the rate changed once an epoch", "This schedule counts updates: step it inside the inner loop.")
    if places == [n + 1 for n in right]:
        raise NotYet("the first rate of the schedule was skipped", "First `optimizer.step()`, then `scheduler.step()`.")
    if places == [2 * n for n in right]:
        raise NotYet("every other rate was skipped", "One `scheduler.step()` for each update.")
    shown = ", ".join(str(place) for place in places[:7])
    raise NotYet(f"the updates had the rates number {shown}, …", "They should be 0, 1, 2, 3, …")
