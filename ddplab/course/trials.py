"""One small model trained on the digits, with any batch, rate and number of ranks; and one layer, with many rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ddplab.course.data import digits
from ddplab.course.models import MLP
from ddplab.hardware import device
from ddplab.worker import log

if TYPE_CHECKING:
    from ddplab.run import Run

TOP, CHANCE = 3.0, 2.3  # of the loss axis, the same in every chart; the loss of who knows nothing
HEADS = ("batch", "ranks", "images an update", "rate", "epochs", "updates", "training loss", "test accuracy")


def train_digits(batch: int, rate: float, epochs: int, ranks: int = 1, seeds: Sequence[int] = (0,)) -> None:
    """Train `MLP` on the digits with plain SGD, once for each seed, each time on so many ranks together.

    batch: images that each rank takes to an update; the ranks of a run add up their gradients. The first rank of
    each run logs, before the first epoch and after each: `loss`, over all training images, and `accuracy`, on the
    test split.
    """
    torch.set_num_threads(1)
    run, place = divmod(dist.get_rank(), ranks)
    groups = [dist.new_group(range(first, first + ranks)) for first in range(0, dist.get_world_size(), ranks)]
    torch.manual_seed(seeds[run])  # the same on each rank of a run: the same weights, the same shuffle
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    (x, y), (test_x, test_y) = digits().tensors, digits(train=False).tensors
    for epoch in range(epochs + 1):
        for part in torch.randperm(len(x)).split(batch * ranks) if epoch else ():
            mine = part[place::ranks]
            optimizer.zero_grad()
            (F.cross_entropy(model(x[mine]), y[mine], reduction="sum") / len(part)).backward()
            if ranks > 1:
                add_up([parameter.grad for parameter in model.parameters()], groups[run])
            optimizer.step()
        with torch.no_grad():
            loss, right = F.cross_entropy(model(x), y), model(test_x).argmax(dim=1) == test_y
        if place == 0:
            log(step=epoch, loss=loss, accuracy=right.double().mean())


def add_up(gradients: Sequence[torch.Tensor], group: Any) -> None:
    """All-reduce many tensors as one message."""
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, group=group)
    for gradient, summed in zip(gradients, flat.split([it.numel() for it in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))


@dataclass(frozen=True)
class Trial:
    """One setting of the switches, and the launch that tries it: for each seed, `ranks` processes."""

    batch: int
    rate: float
    ranks: int
    seeds: Sequence[int]
    run: Run

    @property
    def name(self) -> str:
        return named(self.batch, self.rate, self.ranks)

    def curves(self) -> dict[int, list[tuple[int, float]]]:
        """Seed → (epoch, loss) for each epoch so far. A loss beyond the chart is drawn at its top edge."""
        found: dict[int, list] = {seed: [] for seed in self.seeds}
        for row in self.run.metrics:
            loss = min(row["loss"], TOP) if isfinite(row["loss"]) else TOP
            found[self.seeds[row["rank"] // self.ranks]].append((row["step"], loss))
        return found

    def accuracy(self) -> dict[int, float]:
        """Seed → test accuracy after the latest epoch."""
        return {self.seeds[row["rank"] // self.ranks]: row["accuracy"] for row in self.run.metrics}

    def facts(self) -> list[str]:
        """What `HEADS` says; of loss and test accuracy the seeds' lowest and highest after the latest epoch."""
        newest = {row["rank"]: row for row in self.run.metrics}.values()
        epoch = min((row["step"] for row in newest), default=0)
        all_, together = len(digits()), self.batch * self.ranks
        spans = [span([row[name] for row in newest]) for name in ("loss", "accuracy")]
        numbers = [f"{it:g}" for it in (self.rate, epoch, epoch * ceil(all_ / together))]
        images = f"{together}" if together <= all_ else f"all {all_}"
        return [f"{self.batch}", f"{self.ranks}", images, *numbers, *spans]


def named(batch: int, rate: float, ranks: int) -> str:
    """Return a setting in words."""
    return f"batch {batch}, rate {rate:g}" + (f", {ranks} ranks" if ranks > 1 else "")


def span(values: list[float]) -> str:
    """Return the lowest and the highest, or the one value there is."""
    low, high = (f"{value:.3f}" for value in (min(values), max(values))) if values else ("", "")
    return low if low == high else f"{low} to {high}"


def sweep(
    kind: type[torch.optim.Optimizer], batch: int, rates: torch.Tensor, orders: int = 4, epochs: int = 1
) -> torch.Tensor:
    """Train one linear layer on the digits with each of `rates`; return its test loss, a number for each rate.

    kind: the optimiser. orders: of the data, over which the loss is the mean. All runs train at once, as a stack of
    weights, (orders, rates, 64, 10): the optimiser steps with a rate of 1, and each run goes its own part of the way.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # numbers too small to matter become 0: CPUs are slow with them
    images, labels = _pixels(train=True)
    weight = torch.zeros(orders, len(rates), 64, 10, device=device(), requires_grad=True)
    optimizer, own_rate = kind([weight], lr=1.0), rates.view(-1, 1, 1).to(device())
    shuffles = [torch.Generator().manual_seed(order) for order in range(orders)]
    for _ in range(epochs):
        order = torch.stack([torch.randperm(len(labels), generator=shuffle) for shuffle in shuffles])
        for pick in order.split(batch, dim=1)[: len(labels) // batch]:  # full batches only
            optimizer.zero_grad()
            _losses(images[pick], labels[pick], weight).sum().backward()
            before = weight.detach().clone()
            optimizer.step()
            weight.data = torch.lerp(before, weight.data, own_rate)
    images, labels = _pixels(train=False)
    return _losses(images[None], labels[None], weight).detach().mean(dim=0).cpu()


def _pixels(train: bool) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = digits(train).tensors
    mean = digits(train=True).tensors[0].mean(dim=0)
    return (images - mean).flatten(1).to(device()), labels.to(device())


def _losses(images: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    scores = images.unsqueeze(1) @ weight  # (orders, rates, images, 10)
    labels = labels.unsqueeze(1).expand(scores.shape[:-1])
    each = F.cross_entropy(scores.flatten(0, 2), labels.flatten(), reduction="none")
    return each.view(labels.shape).mean(dim=-1)  # (orders, rates)
