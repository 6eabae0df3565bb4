"""A network learns to read: what it says of twelve digits that it has never trained on, after so many updates."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from ddplab.course.data import digits
from ddplab.course.models import MLP
from ddplab.course.training_drawings import images

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

EPOCHS, BATCH, RATE = 10, 32, 0.1  # as lesson 1.2 trains


def reading(updates: int) -> tuple[str, Figure]:
    """Return what an MLP has learned after so many updates, from 0 to 450, in words and as a picture.

    Above each of the first twelve test images stands what the network takes it for, with ✓ or ✗. It is trained once,
    on the CPU and from seed 0, when first asked.
    """
    pictures, labels = digits(train=False).tensors
    answers = _answers()[updates]
    right = answers == labels
    so_many = f"{updates} update{'s' * (updates != 1)}"
    said = f"after {so_many}: {int(right[:12].sum())} of these 12 right, and {right.double().mean():.1%} of all"
    signs = [f"{answer} {'✓' if hit else '✗'}" for answer, hit in zip(answers.tolist(), right.tolist(), strict=True)]
    return f"{said} {len(labels)} test images", images(pictures[:12], signs[:12])


@cache
def _answers() -> list[Tensor]:
    """The network's answers to all test images: before the first update, and after each."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MLP()
    loader = DataLoader(digits(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    images_to_read = digits(train=False).tensors[0]

    def answers() -> Tensor:
        with torch.no_grad():
            return model(images_to_read).argmax(dim=1)

    found = [answers()]
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            found.append(answers())
    return found
