"""Pictures for the part on torchrun: which GPU a rank asks for, and where a job falls back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ddplab.plots import INK, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BREAK = (float("nan"), float("nan"))  # where a line is interrupted
HOW = ("by RANK", "by my_device")
NONE = float("nan")  # in place of a GPU's number


def gpus_asked_for(
    local: Sequence[float], node: Sequence[int], gpus: int | None = None, ring: str = "cuda:{LOCAL_RANK}"
) -> Figure:
    """Draw the GPU that each rank of a job asks for: by its RANK (a cross), and by its LOCAL_RANK (a ring).

    local, node: LOCAL_RANK, or what else the ring stands for, and GROUP_RANK of rank 0, 1, 2, … A grey band marks the
    GPUs that a node has, as many as LOCAL_RANKs if not told; a line joins the rings that share one. Returns the figure.
    """
    ranks = list(range(len(local)))
    with drawing(max(6, 0.7 * len(ranks)), max(3, 0.25 * len(ranks))) as figure:
        axis = figure.subplots()
        axis.axhspan(-0.4, (gpus or int(max(local)) + 1) - 0.6, color=INK, alpha=0.2, label="GPUs that a node has")
        axis.plot(ranks, ranks, "X", markersize=10, label="cuda:{RANK}")
        axis.plot(ranks, local, "o", markersize=16, fillstyle="none", label=ring)
        for those in _sharing(local, node):
            axis.plot(those, [local[rank] for rank in those], color=INK, linewidth=3, alpha=0.6)
        axis.set_xticks(ranks, [f"RANK {rank}\nnode {node[rank]}" for rank in ranks])
        axis.set_yticks(ranks, [f"cuda:{rank}" for rank in ranks])
        axis.set_ylim(-0.7, len(ranks) - 0.3)
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, fontsize=9)
    return figure


def _sharing(local: Sequence[float], node: Sequence[int]) -> list[list[int]]:
    """Return the ranks of each GPU that more than one asks for."""
    asked = list(zip(node, local, strict=True))
    crowds = {place: [rank for rank, its in enumerate(asked) if its == place] for place in asked if place[1] >= 0}
    return [ranks for ranks in crowds.values() if len(ranks) > 1]


def breaking(my_device: Callable[[dict[str, str], int], Any]) -> Callable[[int, int, int], tuple[str, Figure]]:
    """Return a function that counts who asks for a GPU that its node lacks, by RANK and by `my_device`, and draws all.

    Whom `my_device` lets share a GPU, or leaves without an answer, it counts as well.

    my_device: from a process's variables and the number of GPUs that it sees to its device, as turn 5.1.c wants it.
    """

    def ask(nodes: int, ranks_on_each: int, gpus_on_each: int) -> tuple[str, Figure]:
        asked: list[float] = []
        node, size = [], nodes * ranks_on_each
        for rank in range(size):
            told = {"RANK": rank, "LOCAL_RANK": rank % ranks_on_each, "GROUP_RANK": rank // ranks_on_each}
            told |= {"LOCAL_WORLD_SIZE": ranks_on_each, "WORLD_SIZE": size}
            given = my_device({name: str(number) for name, number in told.items()}, gpus_on_each)
            device = torch.device("cpu" if given is None else given)
            asked += [NONE if device.type == "cpu" else device.index or 0]
            node += [told["GROUP_RANK"]]
        vain = [sum(gpu >= gpus_on_each for gpu in gpus) for gpus in (range(size), asked)]
        by = [f"{'none' if it == 0 else it} of {size} ask in vain {how}" for it, how in zip(vain, HOW, strict=True)]
        more = {"share a GPU": sum(map(len, _sharing(asked, node))), "ask for none": sum(it != it for it in asked)}
        by += [f"{it} of {size} {fault} by my_device" for fault, it in more.items() if it]
        return "; ".join(by), gpus_asked_for(asked, node, gpus_on_each, "my_device")

    return ask


def fall_back(attempts: Sequence[range], whole: int, save_every: int, save_takes: float = 0) -> tuple[str, Figure]:
    """Say what becomes of a job of `whole` steps, and draw how far it has come, against the time in steps.

    attempts: the steps that each attempt takes. One that does not reach the last step was killed. save_every: after so
    many steps the job saves. save_takes: how many steps' time.
    """
    lines: dict[str, list] = {"trained": [], "trained again": [], "saved": [], "falls back": []}
    now, furthest, saved, deaths = 0.0, 0, (0.0, 0), []
    for steps in attempts:
        lines["falls back"] += [(now, furthest), (now, saved[1]), BREAK] if deaths else []
        for step in steps:
            line = lines["trained again" if step < furthest else "trained"]
            goes_on = line[-2:-1] == [(now, step)]  # one stroke then, so that a dashed line has room for its dashes
            line[len(line) - goes_on :] = [*([] if goes_on else [(now, step)]), (now + 1, step + 1), BREAK]
            now += 1
            if (step + 1) % save_every == 0:
                saved = (now + save_takes, step + 1)
                lines["saved"] += [(now, step + 1), saved, BREAK]
                now += save_takes
        furthest = max(furthest, steps.stop)
        deaths += [(now, steps.stop)] * (steps.stop < whole)
    looks = (
        {},
        {"linestyle": "--", "linewidth": 3},
        {"marker": "s", "markersize": 7, "linewidth": 3},
        {"linestyle": ":", "linewidth": 3},
    )
    with drawing(8, 3.4) as figure:
        axis = figure.subplots()
        for (name, points), look in zip(lines.items(), looks, strict=True):
            axis.plot(*zip(*points or [BREAK], strict=True), label=name, **look)
        axis.plot(*zip(*deaths or [BREAK], strict=True), "X", color=INK, markersize=9, label="killed")
        axis.set(xlabel="time, in steps", ylabel="how far the job is", ylim=(-2, whole + 2))
        axis.locator_params(integer=True)
        axis.legend(loc="upper left", fontsize=9)
    end = "failed" if attempts[-1].stop < whole else "finished"
    restarts, trained = f"{len(attempts) - 1} restart{'s' * (len(attempts) != 2)}", sum(map(len, attempts))
    again = f"{trained - furthest} of them again"
    return f"{end} after {restarts}: trained {trained} steps, {again}; saved {saved[1]} of {whole}", figure
