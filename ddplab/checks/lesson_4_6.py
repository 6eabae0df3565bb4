"""Checks of lesson 4.6, Sharding the data."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, needs_function, number, numbers, on_ranks
from ddplab.checks.turns import turn
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


@exercise("4.6.2", "One accuracy, on any number of ranks")
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


# ------------------------------------------------------------------ your turn


def _share(order: Any, rank: int, ranks: int, pad: Any = lambda order, n: order[:n], start: int = 0) -> list[int]:
    padded = list(order) + pad(list(order), -len(order) % ranks)
    return padded[rank + start :: ranks]


def _block(order: Any, rank: int, ranks: int) -> list[int]:
    each = -(-len(order) // ranks)
    return (list(order) * 2)[rank * each : (rank + 1) * each]


turn(
    "4.6.a",
    "Dealt and padded",
    _share,
    {
        f"rank {rank} of {ranks}": partial(lambda rank, ranks: (list(range(10)), rank, ranks), rank, ranks)
        for rank, ranks in ((0, 4), (1, 4), (2, 4), (3, 4), (1, 2), (1, 6))
    },
    heads=("samples", "", ""),
    mistakes=[
        (partial(_share, pad=lambda order, n: []), "nothing is padded: some ranks are a card short",
         "Lengthen the order, until `ranks` divides it."),
        (lambda order, rank, ranks: order[: len(order) // ranks * ranks][rank::ranks],
         "dropped, and not padded", "Nobody is left out: add samples, and take none away."),
        (partial(_share, pad=lambda order, n: order[-1:] * n), "padded with the last sample",
         "The pack begins again, from its first sample."),
        (partial(_share, pad=lambda order, n: order[len(order) - n :]), "padded with the end of the order",
         "The pack begins again, from its first sample."),
        (_block, "each rank gets a block", "The cards go round: rank 0 gets every `ranks`-th, from the first."),
        (lambda order, rank, ranks: (order + order[: len(order) % ranks])[rank::ranks],
         "padded with too many, or too few",
         "`len(order) % ranks` is how many there are too many. How many are missing?"),
        (partial(_share, pad=lambda order, n: order[:2]), "padded with two, always", "How many are missing?"),
        (partial(_share, start=1), "one place too far", "Rank 0 begins with the first."),
        (lambda order, rank, ranks: _share(order, 0, ranks), "every rank gets rank 0's", "From place `rank` on."),
    ],
    hints={"unsupported operand": "A list and a list make a longer list: `order + [...]`."},
)  # fmt: skip


def _epochs(data: Any, epochs: int, step: Any, batch: int = 2, by: Any = lambda epoch: epoch, before: bool = True,
            **options: Any) -> None:  # fmt: skip
    sampler = DistributedSampler(data, **options)
    loader = DataLoader(data, batch_size=batch, sampler=sampler)
    for epoch in range(epochs):
        if before:
            sampler.set_epoch(by(epoch))
        for x in loader:
            step(x)


def _without_sampler(data: Any, epochs: int, step: Any) -> None:
    for _ in range(epochs):
        for x in DataLoader(data, batch_size=2, shuffle=True):
            step(x)


def _steps(rank: int, size: int) -> tuple[Any, int, Any]:
    seen: list[list[int]] = []

    def step(x: Any) -> None:
        seen.append(torch.as_tensor(x).flatten().tolist())

    step.seen = seen
    return range(8), 2, step


def _what_was_seen(_: Any, data: Any, epochs: int, step: Any) -> list[Any]:
    mine = [sample for batch in step.seen for sample in batch]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    halves = [[part[at * len(part) // 2 : (at + 1) * len(part) // 2] for part in everyone] for at in (0, 1)]
    once = all(sorted(sample for part in half for sample in part) == list(data) for half in halves)
    stored = all(part == sorted(part) for half in halves for part in half)
    order = "stored" if stored else "the same" if halves[0] == halves[1] else "new"
    return [len(step.seen), "once" if once else "not once each", order]


TOLD = "`sampler.set_epoch(epoch)`, before the loader is iterated."

turn(
    "4.6.b",
    "A new order each epoch",
    _epochs,
    _steps,
    ranks=(2,),
    look=_what_was_seen,
    heads=("steps", "each sample", "2nd order"),
    mistakes=[
        (partial(_epochs, before=False), "both epochs have the same order", TOLD),
        (partial(_epochs, by=lambda epoch: 0), "both epochs have the same order", TOLD),
        (partial(_epochs, shuffle=False), "nothing is shuffled", "The sampler's own `shuffle` is `True` by itself."),
        (_without_sampler, "every rank reads all samples", "The sampler goes into the loader: `sampler=…`."),
        (partial(_epochs, by=lambda epoch: epoch + dist.get_rank()), "the ranks deal from different packs",
         "The epoch is the same number on all ranks, and so is the seed."),
        (partial(_epochs, batch=1), "the batches hold one sample", "`batch_size=2` is the batch of one rank."),
        (partial(_epochs, batch=4), "the batches hold four samples", "`batch_size=2` is the batch of one rank."),
        (lambda data, epochs, step: _epochs(data, 1, step), "there is one epoch only", "Two loops."),
    ],
    hints={
        "mutually exclusive": "The sampler shuffles. Leave the loader's `shuffle` out.",
        "has no attribute 'set_epoch'": "It is the sampler that wants to know the epoch.",
    },
)  # fmt: skip


def _ten_samples(rank: int, size: int) -> tuple[int, Any]:
    asked: list[int] = []

    def is_right(i: int) -> bool:
        asked.append(int(i))
        return int(i) > 1

    is_right.asked = asked
    return 10, is_right


def _counted(both: Any, n: int, is_right: Any) -> list[Any]:
    few = len(is_right.asked) <= -(-n // dist.get_world_size())
    return [*(int(it) for it in both), "a share" if few else "too many"]


def _count(n: int, is_right: Any, samples: Any = lambda n, rank, size: range(rank, n, size),
           reduce: Any = dist.all_reduce) -> list[int]:  # fmt: skip
    mine = [int(i) for i in samples(n, dist.get_rank(), dist.get_world_size())]
    counts = torch.tensor([sum(is_right(i) for i in mine), len(mine)]).to(device())
    reduce(counts)
    return counts.tolist()


def _reduce_on_rank_0(counts: Any) -> None:
    if dist.get_rank() == 0:
        dist.all_reduce(counts)
        counts.tolist()


def _sampler(n: int, rank: int, size: int, **options: Any) -> Any:
    return DistributedSampler(range(n), shuffle=False, **options)


NO_PADDING = "Deal by hand, without padding: every `size`-th, from the rank's own number on."

turn(
    "4.6.c",
    "Each sample once",
    _count,
    _ten_samples,
    ranks=(4, 3),
    look=_counted,
    heads=("right", "read", "here"),
    mistakes=[
        (partial(_count, samples=_sampler), "samples are read twice", NO_PADDING),
        (partial(_count, samples=partial(_sampler, drop_last=True)), "the last two samples are read by nobody",
         "Deal by hand: every `size`-th, from the rank's number on."),
        (partial(_count, samples=lambda n, rank, size: range(rank * (n // size), (rank + 1) * (n // size))),
         "the last two samples are read by nobody", "Deal by hand: every `size`-th, from the rank's number on."),
        (partial(_count, reduce=lambda counts: None), "each rank tells of its own share only", "`dist.all_reduce`"),
        (partial(_count, samples=lambda n, rank, size: range(n)), "every rank reads all, and they are added up",
         "A share: every `size`-th, from the rank's number on."),
        (partial(_count, samples=lambda n, rank, size: range(n), reduce=lambda counts: None), "every rank reads all",
         "It is right, and four times the work. A share: every `size`-th."),
        (partial(_count, reduce=lambda counts: dist.reduce(counts, dst=0)), "rank 0 has the sums, others do not",
         "`dist.all_reduce` leaves them on every rank."),
        (partial(_count, samples=lambda n, rank, size: range(0, n, size)), "samples are read twice", NO_PADDING),
        (partial(_count, reduce=_reduce_on_rank_0), "only rank 0 comes to the all_reduce", "Every rank has to."),
    ],
    hints={"not iterable": "Return two numbers: right, and read."},
)  # fmt: skip
