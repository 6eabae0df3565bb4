"""Checks of lesson 9.1, One GPU fails, two learn."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.data import DistributedSampler, SequentialSampler, TensorDataset

from ddplab.checks.turns import leaving, turn


def _together(my_images: Callable[..., Any], ranks: int) -> list[int]:
    """How many images all ranks draw together, how many are dealt, and again. Each has its own random state."""
    drawn, dealt = set(), []
    for rank in range(ranks):
        torch.manual_seed(1 + rank)
        images, sampler = my_images(rank, ranks)
        pixels, labels = images[:]
        names = list(zip(pixels.double().sum(dim=(1, 2, 3)).tolist(), labels.tolist(), strict=True))
        drawn |= {*names}
        dealt += [names[it] for it in sampler]
    return [len(drawn), len({*dealt}), len(dealt) - len({*dealt})]


def _my_images(rank: int, ranks: int, seed: int | None = 0, deal: Callable[..., Any] = DistributedSampler) -> Any:
    if seed is not None:
        torch.manual_seed(seed)
    images = TensorDataset(torch.randn(1000, 1, 28, 28), torch.randint(10, (1000,)))
    return images, deal(images, ranks, rank)


turn(
    "9.1.a",
    "One thousand images, shared",
    _my_images,
    {"2 ranks": lambda: (2,), "4 ranks": lambda: (4,)},
    call=_together,
    heads=("images drawn", "of them dealt", "dealt again"),
    mistakes=[
        (partial(_my_images, seed=None), "each rank draws images of its own",
         "Its random numbers are other ones than the next rank's. One line before the draw makes them the same."),
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
        "process group": "The check asks one rank after another, without a process group, and you need none: let every "
        "rank draw the same, and tell the sampler `ranks` and `rank`.",
    },
    otherwise="The text's two lines, and one before them.",
)  # fmt: skip
