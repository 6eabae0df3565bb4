"""Checks of lesson 9.3, Training does not start."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel

from ddplab.checks.common import gpus_for
from ddplab.checks.turns import turn


class _Scaled(nn.Module):
    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * _first(self.scale)


def _first(scale: Any) -> Any:
    while isinstance(scale, list | tuple | dict | nn.ParameterList | nn.ParameterDict):
        held = [*scale.values()] if hasattr(scale, "values") else scale
        scale = held[0]
    return scale


def _runs(my_scale: Callable[..., Any], gpus: int) -> list[str]:
    """Return how a first step with this weight ends on so many GPUs, whether it could learn, and is of ones."""
    with gpus_for(gpus, virtual=True) as those:
        scale = my_scale(torch.ones(3), those[0])
        weight = _first(scale)
        if not isinstance(weight, torch.Tensor):
            return ["has no tensor to multiply by", "no", "no"]
        learns = "yes" if weight.requires_grad else "no"
        is_ones = "yes" if bool((weight == 1).all()) else "no"
        try:
            DataParallel(_Scaled(scale))(torch.ones(4, 3, device=those[0]))
            end = "runs"
        except RuntimeError as error:
            if not re.search("on device|same device", str(error)):  # its shape, say
                raise
            replica = re.search(r"in (replica \d)", str(error))
            end = f"stops in {replica[1]}" if replica else "stops before any replica"
    return [end, learns, is_ones]


def _my_scale(ones: torch.Tensor, gpu: Any) -> Any:
    return [nn.Parameter(ones.to(gpu))]


turn(
    "9.3.a",
    "A weight that stays behind",
    _my_scale,
    {"1 GPU": lambda: (1,), "2 GPUs": lambda: (2,)},
    call=_runs,
    heads=("the step", "asks for a gradient", "is ones"),
    mistakes=[
        (lambda ones, gpu: nn.Parameter(ones.to(gpu)), "what is registered, parameter or buffer, reaches every GPU",
         "A `ParameterList` registers too. So the claim needs a condition: who registers a weight in a plain list?"),
        (lambda ones, gpu: nn.Parameter(ones), "the weight was not moved, and DataParallel says so at once",
         "It is registered, so it would reach every GPU. Move it, in a way that leaves no parameter behind."),
        (lambda ones, gpu: nn.Buffer(ones.to(gpu)), "it reaches every GPU, and does not learn",
         "It has to ask for a gradient, and stay unregistered."),
        (lambda ones, gpu: ones.to(gpu), "it stays behind, but nothing could train it",
         "A plain tensor may ask for a gradient too: `requires_grad_()`."),
        (lambda ones, gpu: ones, "it is on the CPU: one GPU stops as well", "`.to(gpu)`"),
        (lambda ones, gpu: [nn.Parameter(0 * ones.to(gpu))], "it stays behind, but its numbers are not those of `ones`",
         "Make it of the `ones` that the function is given."),
        (lambda ones, gpu: ones.requires_grad_(), "it lies on the CPU: one GPU stops as well", "`.to(gpu)`"),
    ],
    otherwise="A list, or a `.to(gpu)` after the `nn.Parameter`: neither is registered.",
)  # fmt: skip
