"""A job that is stopped and begun again, beside one left in peace: what each part of a checkpoint is good for."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ddplab.course.ddp_drawings import beside
from ddplab.course.digits_job import make, train
from ddplab.launcher import launch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = ("model", "optimizer", "scheduler", "random state")
GOES_ON = ("the epoch that comes", "the epoch done")
EPOCHS, STEPS = 4, 12  # of the whole job; of an epoch
Ran = tuple[Tensor, list[float]]  # the weights at the end, and the loss of each step


def resumed(
    without: Collection[str] = (),
    stopped_after: int = 2,
    goes_on_at: int = 2,
    snapshot: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Ran:
    """On every rank: train some epochs, take a snapshot, make everything anew as a restart does, and train the rest.

    without: the parts that are not put back. snapshot: a function from a job to what has to be kept; ours, if None.
    """
    job, losses = make(), []
    train(job, range(stopped_after), losses)
    saved = (snapshot or _states)(job)
    job = make()  # a restart
    for name in job:
        if name not in without:
            job[name].load_state_dict(saved[name])
    if "random state" not in without:
        _random().set_rng_state(saved["random state"])
    return train(job, range(goes_on_at, EPOCHS), losses), losses


def in_peace() -> Ran:
    """On every rank: the whole job, never stopped."""
    losses: list[float] = []
    return train(make(), range(EPOCHS), losses), losses


@cache
def calm() -> Ran:
    """What rank 0 of two comes to when the job is left in peace."""
    return launch(in_peace, quiet=True).results[0]


def off(end: Tensor) -> float:
    """Return how far weights are from those of the calm run, as a share of their length."""
    return ((end - calm()[0]).norm() / calm()[0].norm()).item()


def lose(
    model: str, optimizer: str, scheduler: str, random_state: str, stopped_after: int, goes_on_at: str
) -> tuple[str, Figure]:
    """Stop the job after so many epochs, lose parts of it, go on; say how far off it ends, and draw both runs.

    model, …: "kept" or "lost". goes_on_at: one of GOES_ON.
    """
    lost = [name for name, it in zip(PARTS, (model, optimizer, scheduler, random_state), strict=True) if it == "lost"]
    first = stopped_after - (goes_on_at == GOES_ON[1])
    end, losses = launch(resumed, lost, stopped_after, first, quiet=True).results[0]
    figure = beside(calm()[1], [losses], "loss of each step on rank 0", ("left in peace", "stopped and resumed"))
    figure.axes[0].axvline(STEPS * stopped_after - 0.5, linestyle=":")
    return f"lost: {', '.join(lost) or 'nothing'}; the final weights are {off(end):.1%} off", figure


def _states(job: dict[str, Any]) -> dict[str, Any]:
    return {**{name: part.state_dict() for name, part in job.items()}, "random state": _random().get_rng_state()}


def _random() -> Any:
    return torch.cuda if torch.cuda.is_initialized() else torch
