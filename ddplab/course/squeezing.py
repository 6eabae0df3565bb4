"""A gradient that travels as a column times a row: what has come of it after so many steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def pressed(matrix: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """Return a column of length 1 and a row, whose product comes near the matrix, from any row."""
    column = torch.nn.functional.normalize(matrix @ row, dim=0)
    return column, matrix.T @ column


def remembered(gradient: Tensor, lost: Tensor, squeeze: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return what is sent of a gradient and of what was lost before, and what is lost now."""
    sent = squeeze(gradient + lost)
    return sent, gradient + lost - sent


def sent_in(
    matrix: Tensor,
    steps: int,
    memory: bool,
    press: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = pressed,
    remember: Callable[..., tuple[Tensor, Tensor]] = remembered,
) -> tuple[Tensor, Tensor]:
    """Send the same gradient in each step as a column and a row. Returns what came in the mean, and what came last.

    memory: what is lost in a step is due in the next; else it is thrown away. Each step begins with the row of the
        step before. press, remember: as above, a learner's for instance, which may work in place.
    """
    row, lost, came = torch.ones(matrix.shape[1]), torch.zeros_like(matrix), torch.zeros_like(matrix)

    def squeeze(whole: Tensor) -> Tensor:
        nonlocal row
        column, row = press(whole, row)
        return column.outer(row)

    for _ in range(steps):
        sent, left = remember(matrix.clone(), lost.clone(), squeeze)
        lost, came = left if memory else lost, came + sent
    return came / steps, sent
