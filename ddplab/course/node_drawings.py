"""Pictures for the part on torchrun: which GPU a rank asks for, whom it calls, where a job falls back."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ddplab.plots import COLOURS, INK, MARKERS, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ddplab.run import Run

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
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, fontsize=8)
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


def crowd(started: int, spawned: int) -> tuple[str, Figure]:
    """Say how many processes train where torchrun starts some and each spawns more; draw them over the GPUs they take.

    What mp.spawn calls number n takes GPU n. A mark is a process, in the shape of the RANK under which it was spawned.
    The axes are those of a server with eight GPUs, so that the towers grow with the numbers.
    """
    with drawing(8, 3.4) as figure:
        axis = figure.subplots()
        for rank in range(started):
            look = {"color": COLOURS[rank], "linestyle": "none", "markersize": 10, "label": f"RANK {rank}"}
            axis.plot(range(spawned), [rank + 1] * spawned, MARKERS[rank], **look)
        axis.set(xlim=(-0.6, 7.6), ylim=(0.4, 8.6), ylabel="processes on it")
        axis.set_xticks(range(8), [f"cuda:{gpu}" for gpu in range(8)])
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8, reverse=True)  # as the towers stand
    each = f"{started * spawned} process{'es' * (started * spawned > 1)}, {started} on each GPU"
    return f"{started} × {spawned}: {each}; {started} of them {'is' if started == 1 else 'are'} number 0", figure


def takes(attempts: Sequence[range], save_every: int, save_takes: float) -> float:
    """Return how long a job takes, in steps' time, over all its attempts, that save after so many steps."""
    saves = sum(steps.stop // save_every - steps.start // save_every for steps in attempts)
    return sum(map(len, attempts)) + saves * save_takes


def fall_back(attempts: Sequence[range], whole: int, save_every: int, save_takes: float = 0) -> tuple[str, Figure]:
    """Say what becomes of a job of `whole` steps, and draw how far it has come, against the time in steps.

    attempts: the steps that each attempt takes. One that does not reach the last step was killed. save_every: after so
    many steps the job saves. save_takes: how many steps' time.
    """
    lines: dict[str, list] = {"trained": [], "trained again": [], "saved": [], "falls back": []}
    now, furthest, saved, deaths = 0.0, 0, (0.0, 0), []
    for steps in attempts:
        lines["falls back"] += [saved, (now, saved[1]), (now, furthest), BREAK] if deaths else []
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
    looks = ({}, {"linestyle": "--", "linewidth": 3}, {"marker": "_", "linewidth": 3}, {"linestyle": ":"})
    with drawing(8, 3.4) as figure:
        axis = figure.subplots()
        for (name, points), look in zip(lines.items(), looks, strict=True):
            axis.plot(*zip(*points or [BREAK], strict=True), label=name, **look)
        axis.plot(*zip(*deaths or [BREAK], strict=True), "X", color=INK, markersize=9, label="killed")
        axis.set(xlabel="time, in steps", ylabel="how far the job is", ylim=(-2, whole + 2))
        axis.legend(loc="upper left", fontsize=8)
    end = "failed" if attempts[-1].stop < whole else "finished"
    again = f"{len(attempts) - 1} restart{'s' * (len(attempts) != 2)}, in the time of {now:g} steps"
    return f"{end} after {again}: {sum(map(len, attempts))} trained, {saved[1]} of {whole} saved", figure


def calls(run: Run, agent: int) -> Figure:
    """Draw a job of two ranks that was restarted once: what the store held, and whom a rank called in attempt 1.

    run: of agents. Each returns which rank is late, None for nobody, the switch, and how its job has ended; its ranks
    have printed where they listen, a port and the attempt, and who is not late also what it finds: such a place, or
    nothing. agent: whose job is drawn. Returns the matplotlib figure.
    """
    late, _, end = run.results[agent]
    said, sign = run.output[agent], "X" if end == "failed" else "o"
    listens = dict(re.findall(r"^rank (. listens at) (\d+ 1)$", said, re.MULTILINE))
    finds = dict(re.findall(r"^rank (.) finds (nothing|\d+ .)$", said, re.MULTILINE))
    with drawing(8, 3) as figure:
        axis = figure.subplots()
        for rank, row in ((0, 1), (1, 2)):  # the store's rows lie between the bars
            bar, other = 3 * rank, 1 - rank
            axis.barh(bar, 2.5, left=0, color=COLOURS[rank], height=0.4)
            axis.barh(bar, 4, left=4, color=COLOURS[rank], height=0.4, alpha=0.4 if rank == late else 1)
            axis.plot(2.7, bar, "X", color=INK, markersize=9)
            axis.plot(8.2, bar, sign, color=INK, markersize=9, fillstyle="full" if sign == "X" else "none")
            found = finds.get(str(other), listens.get(f"{rank} listens at", "nothing"))
            dead, empty = found.endswith(" 0"), found == "nothing"
            words = "nothing yet: wait" if empty else f"{'✗ ' * dead}port {found[:-2]}, of attempt {found[-1]}"
            axis.barh(row, 2.8, left=4.5, height=0.6, edgecolor=INK, facecolor="none", linestyle="--" if empty else "-")
            axis.text(5.9, row, words, ha="center", va="center", fontsize=9)
            if str(other) in finds:
                looks, call = 4.1 + 0.2 * rank, ((4.4, row), (2.4, bar)) if dead else ((7.35, row), (7.8, bar))
                for begin, tip in (((looks, 3 * other), (looks, row)), call):
                    axis.annotate("", tip, begin, arrowprops={"arrowstyle": "->", "color": INK, "linewidth": 2})
                axis.text(2.9 if dead else 7.7, row, "refused" if dead else "answers", va="center", fontsize=9)
        axis.set(yticks=range(4), yticklabels=("rank 0", "store: rank 0", "store: rank 1", "rank 1"), ylim=(3.5, -0.5))
        axis.set_xticks((1.2, 6), ("attempt 0", "attempt 1"))
    return figure
