"""Checks of lesson 9.1, One GPU fails, two learn."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler, SequentialSampler, TensorDataset

from ddplab.checks.turns import leaving, turn


def _together(my_images: Callable[..., Any], rank: int, ranks: int) -> list[Any]:
    """What all ranks have drawn, and what this one is dealt of it. Each rank has random numbers of its own."""
    torch.manual_seed(1 + rank)
    images, sampler = my_images(rank, ranks)
    pixels, labels = images[:]
    names = pixels.double().cpu().sum(dim=(1, 2, 3)).tolist()  # no two images have the same sum
    told = [{*zip(names, labels.tolist(), strict=True)}, [names[it] for it in sampler]]
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(everyone, told)
    drawn = {pair for pairs, _ in everyone for pair in pairs}
    dealt = Counter(name for _, share in everyone for name in {*share})
    different = {name for name, _ in drawn}
    most = max(Counter(name for name, _ in drawn).values())
    mine = told[1]
    return [len(different), most, len(mine), sum(dealt[name] > 1 for name in {*mine}), len(different - {*dealt})]


def _my_images(
    rank: int, ranks: int, seed: int | None = 0, deal: Callable[..., Any] = DistributedSampler, labels: bool = True
) -> tuple[TensorDataset, Any]:
    """labels: those are alike on all ranks, too."""
    if seed is not None:
        torch.manual_seed(seed)
    pixels = torch.randn(1000, 1, 28, 28)
    if not labels:
        torch.manual_seed(1 + rank)
    images = TensorDataset(pixels, torch.randint(10, (1000,)))
    return images, deal(images, ranks, rank)


turn(
    "9.1.a",
    "One thousand images, shared",
    _my_images,
    lambda rank, ranks: (rank, ranks),
    ranks=(2, 4),
    call=_together,
    look=lambda left, *_: left,
    heads=("images drawn", "labels of each", "dealt to this rank", "and to others too", "dealt to nobody"),
    mistakes=[
        (partial(_my_images, seed=None), "each rank draws images of its own",
         "All ranks need one seed, the same number on each, before the draw; or rank 0 draws, and sends."),
        (partial(_my_images, labels=False), "the images are the same on all ranks, and their labels are not",
         "Whatever makes the pixels the same has to hold for the labels too."),
        (partial(_my_images, deal=lambda images, ranks, rank: DistributedSampler(images, ranks, 0)),
         "all ranks are dealt the share of rank 0", "The third argument is the rank's own number."),
        (partial(_my_images, deal=lambda images, ranks, rank: SequentialSampler(images)),
         "every rank is dealt all of them", "A `DistributedSampler` deals each rank a share."),
        (partial(_my_images, deal=lambda images, ranks, rank: DistributedSampler(images, 2 * ranks, rank)),
         "half of the images are dealt to nobody", "The sampler is told how many ranks there are."),
        (leaving("Invalid rank", partial(_my_images, deal=lambda images, ranks, rank:
                                         DistributedSampler(images, rank, ranks))),
         "the rank and how many there are have changed places", "`DistributedSampler(images, ranks, rank)`"),
    ],
    hints={
        "to unpack": "Return both: `images, sampler`.",
        "object is not iterable": "What is returned second is a sampler: it gives this rank's places in `images`.",
        "Invalid rank": "`DistributedSampler(images, ranks, rank)`",
        "waits in broadcast": "Every rank calls every broadcast: rank 0 sends, the others take.",
    },
    otherwise="The text's two lines, and one before them.",
)  # fmt: skip
