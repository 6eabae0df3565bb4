"""Checks of lesson 4.6, Sharding the data."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, needs_function, number, numbers, on_ranks
from ddplab.hardware import device

# 101 samples on 8 ranks, batches of 4 on each; a model that is right on 81.
numbers(
    "4.6.1",
    "Numbers of a sharded epoch",
    Number("served", 104, "The next multiple of 8.").with_mistakes(
        (101, "that is how many samples there are", "Ranks make equal numbers of steps, and 101 / 8 is not whole."),
        (13, "that is one rank's share", "All eight ranks together."),
        (96, "that is what `drop_last=True` serves", "The sampler pads unless it is told to drop."),
    ),
    Number("left_out", 5, "101 less the last multiple of 8.").with_mistakes(
        (3, "that many are served twice without `drop_last`", "How many lie above the last multiple of 8?"),
        (0, "that is so without `drop_last`", "With it, nobody gets anything twice, and somebody is left out."),
        (1, "that is what one rank alone would leave out of its batches", "The sampler's: 101 samples, 8 ranks."),
    ),
    Number("steps", 4, "A rank has 104 / 8 samples, in batches of 4.").with_mistakes(
        (26, "that many it takes one rank alone", "A rank has 13 samples of its own."),
        (25, "that many full batches one rank alone has", "A rank has 13 samples of its own."),
        (3, "the last batch of the rank is not full, but it is there", "13 = 3 x 4 + 1."),
        (3.25, "a step is a step, also with a batch that is not full", "Round up."),
    ),
    # three digits will do
    Number("lowest", 81 / 104, "81 right, of as many as are served.", within=6e-4).with_mistakes(
        (81 / 101, "that is the true accuracy", "Which samples might be the padding?"),
        (84 / 104, "that is the highest", "In the worst case the padding hits three that the model reads wrong."),
        (78 / 101, "the padding takes nothing away", "It adds three samples, in the worst case three wrong ones."),
        (78 / 104, "the padding takes nothing away", "In the worst case three wrong ones are added to 101."),
    ),
)


@exercise("4.6.2", "A sampler of your own")
def own_sampler(deal: Callable[..., Any]) -> None:
    """`deal(n, rank, ranks, epoch)` must give what DistributedSampler gives, without making one."""
    needs_function("deal", deal)
    for n, ranks, epoch in ((12, 4, 0), (10, 4, 0), (10, 4, 3), (3, 8, 1)):
        where = f"with {n} samples on {ranks} ranks, epoch {epoch}"
        wanted = _torchs(n, ranks, epoch)
        got = _dealt(deal, n, ranks, epoch, where)
        if got != wanted:
            _what_differs(where, n, ranks, epoch, got, wanted)


def _dealt(deal: Callable[..., Any], n: int, ranks: int, epoch: int, where: str) -> list[list[int]]:
    """What `deal` gives each rank, while a DistributedSampler refuses to be made."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise NotYet("that is torch's sampler", "Yours takes four lines, without it.")

    init, DistributedSampler.__init__ = DistributedSampler.__init__, refuse
    try:
        got = [deal(n, rank, ranks, epoch) for rank in range(ranks)]
    finally:
        DistributedSampler.__init__ = init
    try:
        return [[int(sample) for sample in share] for share in got]
    except (TypeError, ValueError):
        what = "nothing" if got[0] is None else repr(got[0])[:80]
        raise NotYet(f"{where}, rank 0 gets {what}", "A list of sample numbers. Is there a `return`?") from None


def _what_differs(where: str, n: int, ranks: int, epoch: int, got: list[list[int]], wanted: list[list[int]]) -> None:
    sizes = [len(share) for share in got]
    if len(set(sizes)) > 1:
        raise NotYet(
            f"{where}, the ranks get {', '.join(map(str, sizes))} samples",
            f"The same number each: lengthen the order until {ranks} divides it, with samples from its start."
            + (" When there are fewer samples than ranks, once is not enough." if n < ranks else ""),
        )
    if sizes[0] != len(wanted[0]):
        hint = "Pad, do not drop; and a share is one of `ranks` parts of the whole."
        raise NotYet(f"{where}, each rank gets {sizes[0]} samples and not {len(wanted[0])}", hint)
    if got[0] == got[-1]:
        raise NotYet(f"{where}, every rank gets the same", "The share depends on `rank`: every `ranks`-th sample.")
    order = [sample for column in zip(*wanted, strict=True) for sample in column]
    blocks = [order[rank * sizes[0] : (rank + 1) * sizes[0]] for rank in range(ranks)]
    if got == blocks:
        hint = "The cards go round: rank 0 gets places 0, 4, 8, … of the order, when there are 4 ranks."
        raise NotYet(f"{where}, each rank gets a block of the order", hint)
    mine = [sample for column in zip(*got, strict=True) for sample in column]
    if mine[:n] == list(range(n)):
        raise NotYet(f"{where}, nothing is shuffled", "`torch.randperm(n, generator=…)`, seeded with the epoch.")
    if sorted(mine[:n]) == list(range(n)) and mine[n:] != mine[: len(mine) - n]:
        raise NotYet(f"{where}, the padding is {mine[n:]}", "The order begins again, from its first sample.")
    if epoch and got == _torchs(n, ranks, 0):
        raise NotYet(f"{where}, the order is that of epoch 0", "Seed the generator with the epoch.")
    if sorted(set(mine)) != list(range(n)):
        hint = "Each rank works out the same order; only then does it take its part. So the seed is the epoch alone."
        raise NotYet(f"{where}, the ranks do not deal from the same order: some samples are nobody's", hint)
    hint = "`torch.randperm(n, generator=torch.Generator().manual_seed(epoch))`."
    raise NotYet(f"{where}, the order is not the sampler's", hint)


def _torchs(n: int, ranks: int, epoch: int) -> list[list[int]]:
    """What DistributedSampler gives each rank."""
    samplers = [DistributedSampler(range(n), num_replicas=ranks, rank=rank) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [list(sampler) for sampler in samplers]


@exercise("4.6.3", "One accuracy, on any number of ranks")
def one_accuracy(evaluate: Callable[..., Any]) -> None:
    """`evaluate(net, images, labels)` must give the true accuracy on all of 3 ranks, for 10 images and for 2."""
    needs_function("evaluate", evaluate)
    for n in (10, 2):
        where = f"with {n} images on 3 ranks"
        ranks = on_ranks(_evaluate_in_rank, evaluate, n, size=3, hints=HINTS, timeout=5)
        values = [number("evaluate(…)", value) for value, _ in ranks]
        seen = [images for _, images in ranks]
        _each_image_once(where, n, seen)
        true = 0.8 if n == 10 else 0.5
        if all(abs(value - true) < 1e-6 for value in values):
            continue
        told = ", ".join(f"{value:.3f}" for value in values)
        own = [sum(right_of(n)[i] for i in images) / len(images) if images else float("nan") for images in seen]
        if any(value != value for value in values):
            hint = "A rank without images divides 0 by 0. Add up counts over the ranks; divide after that."
            raise NotYet(f"{where}, the ranks say {told}", hint)
        if len({round(value, 6) for value in values}) > 1:
            if all(abs(a - b) < 1e-6 for a, b in zip(values, own, strict=True) if b == b):
                raise NotYet(f"{where}, each rank says the accuracy of its own images: {told}", "`dist.all_reduce`.")
            raise NotYet(f"{where}, the ranks say {told}", "All ranks need the sums: `all_reduce`, not `reduce`.")
        if abs(values[0] - sum(own) / 3) < 1e-6:
            hint = "The shares differ in size. Add up how many are right and how many there are, then divide."
            raise NotYet(f"{where}, you get {values[0]:.3f}, the mean of the ranks' accuracies; it is {true}", hint)
        hint = "Two sums over all ranks: how many are right, how many there are. Then one division."
        raise NotYet(f"{where}, you get {values[0]:.3f}; it is {true}", hint)


def right_of(n: int) -> list[int]:
    """Of each image: does the net of the check read it right? The first ones, which padding repeats, it does not."""
    return [0, 0, 1, 1, 1, 1, 1, 1, 1, 1] if n == 10 else [0, 1]


def _each_image_once(where: str, n: int, seen: list[list[int]]) -> None:
    every = [image for images in seen for image in images]
    if not every:
        raise NotYet(f"{where}, nobody called the network", "`net(images)` gives ten scores an image.")
    if all(len(images) == n for images in seen):
        hint = "The result may be right, but it is three times the work. A share: `images[rank::size]`."
        raise NotYet(f"{where}, every rank reads all the images", hint)
    if len(every) > n:
        hint = "No padding here: `images[rank::size]` gives each image to one rank."
        raise NotYet(f"{where}, the network reads {len(every)}: some of them twice", hint)
    if len(set(every)) < n:
        hint = "`images[rank::size]` leaves nobody out; a share of `n // size` does."
        raise NotYet(f"{where}, only {len(set(every))} are read", hint)
    shares = [len(images) for images in seen]
    if max(shares) > -(-n // len(shares)):  # n / ranks, rounded up
        told = ", ".join(map(str, shares))
        raise NotYet(f"{where}, the ranks read {told} of them", "Share them out: `images[rank::size]`.")


def _evaluate_in_rank(evaluate: Callable[..., Any], n: int) -> tuple[Any, list[int]]:
    seen: list[int] = []
    right = torch.tensor(right_of(n)).to(device())

    class Net(torch.nn.Module):  # image i has the value i everywhere; its label is 3
        def forward(self, images: Any) -> Any:
            which = images.flatten(1)[:, 0].round().long()
            seen.extend(which.tolist())
            answers = torch.where(right[which.to(right.device)] == 1, 3, 7)
            return torch.nn.functional.one_hot(answers, 10).float().to(images.device)

    images = torch.arange(n).float().view(-1, 1, 1, 1).expand(n, 1, 8, 8).to(device())
    value = evaluate(Net(), images, torch.full((n,), 3).to(device()))
    return (value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value), seen


FEWER = (
    "There is no such image or piece. There may be fewer images than ranks, and then fewer pieces than ranks: "
    "`images[rank::size]` is empty there."
)
HINTS = {
    "division by zero": "A rank may have no images. Add up counts over the ranks; divide after that.",
    "to match target batch_size": "Images and labels have to be cut in the same way.",
    "must match the size of tensor": "Images and labels have to be cut in the same way.",
    "Found dtype": "One tensor with both counts, of one type.",
    "index out of range": FEWER,
    "is out of bounds": FEWER,
}
