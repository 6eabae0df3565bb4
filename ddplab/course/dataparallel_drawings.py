"""Pictures of `nn.DataParallel`: where one forward's pieces are, how sentences are cut, and which bytes cross."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ddplab.plots import COLOURS, INK, ON_COLOUR, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

CAUSES = ("replicate", "reduce", "scatter", "gather")  # of a step; what else crosses is drawn behind them
HATCHES = ("", "///", "...", "\\\\", "xx", "++")
STAGES = ("scatter", "replicate", "parallel_apply", "gather")


def crossing(net: nn.Module, images: int, gpus: int) -> tuple[list[int], dict[str, int]]:
    """Return how many digits each GPU gets, which may be none, and the bytes that cross in each stage of a forward.

    By arithmetic: the net goes to each GPU but the first; 64 numbers of an image, and later 10 scores, are shared out.
    """
    most = -(-images // gpus)
    parts = [min(most, images - done) for done in range(0, images, most)]
    away, weights = sum(parts[1:]), sum(weight.nbytes for weight in net.parameters())
    crossed = {"scatter": 4 * 64 * away, "replicate": (len(parts) - 1) * weights, "gather": 4 * 10 * away}
    return parts + [0] * (gpus - len(parts)), crossed


def one_forward(crossed: Mapping[str, int], parts: Sequence[int] = (4, 4)) -> Figure:
    """Draw one forward of `nn.DataParallel`, from left to right, a row of boxes for each GPU.

    Args:
        crossed: the bytes that leave the first GPU in the stages "scatter" and "replicate", and come to it in "gather".
        parts: how many images each GPU gets, for two GPUs or more. Who gets none is idle, and has no copy of the net.

    Thin arrows stay on a GPU; thick ones cross, the thicker the more, and have their bytes beside them, of all GPUs
    together. Returns the matplotlib figure.
    """
    n, others = len(parts), len(parts) - 1
    images = f"{sum(parts):,} image{'s' * (sum(parts) != 1)}"
    boxes = {(0, others): images, (4, others): f"{sum(parts):,} x 10\nscores"}
    for row, part in enumerate(reversed(parts)):  # the first GPU is at the top
        busy = {2: "replica", 3: f"{part:,} x 10\nscores"} if part else {}
        boxes |= {(1, row): f"{part:,} image{'s' * (part != 1)}" if part else "idle"}
        boxes |= {(column, row): what for column, what in busy.items()}
    crossings = {"scatter": ((0, 1), 1), "replicate": ((2, 2), 1), "gather": ((3, 4), -1)}
    stays = [((column, row), (column + 1, row)) for column, row in boxes if (column + 1, row) in boxes]
    with drawing(9, 1 + n) as figure:
        axis = figure.subplots()
        placed = {}
        for place, what in boxes.items():
            frame = {"boxstyle": "round,pad=0.5", "facecolor": "none", "edgecolor": INK}
            placed[place] = axis.text(*place, what, ha="center", va="center", fontsize=10, bbox=frame)
        arrows = [(start, end, 0) for start, end in stays]
        for stage, ((left, right), way) in crossings.items():
            width = 2 + 6 * crossed[stage] / max(1, *crossed.values())
            for row in (row for row in range(others) if (2, row) in boxes):
                ends = [(left, others), (right, row)] if way > 0 else [(left, row), (right, others)]
                arrows.append((*ends, width))
        for start, end, width in arrows:  # drawn after the boxes, so that they end at their frames
            crosses = start[1] != end[1]
            look = {"lw": width, "color": COLOURS[1]} if crosses else {"lw": 1, "color": INK}
            if start[0] == end[0] and start[1] - end[1] > 1:  # around the replicas in between
                look["connectionstyle"] = f"arc3,rad={0.55 - 0.1 * (start[1] - end[1])}"
            from_, to = placed[start].get_bbox_patch(), placed[end].get_bbox_patch()
            arrow = {"arrowstyle": "-|>", "mutation_scale": 18 if crosses else 12, "shrinkA": 2, "shrinkB": 2, **look}
            axis.annotate("", end, start, arrowprops={"patchA": from_, "patchB": to, **arrow}, zorder=3)
        for stage, ((left, right), _) in crossings.items():
            if not crossed[stage]:  # nothing to say of an arrow that is not there
                continue
            beside = (left + right) / 2 + 0.2 if stage != "gather" else right + 0.1
            axis.text(beside, others - 0.5, f"{crossed[stage]:,} bytes", va="center")
        axis.set_xticks(range(1, 5), STAGES)
        names = [f"gpus[{gpu}]" for gpu in reversed(range(n))]
        axis.set(xlim=(-0.5, 4.75), ylim=(-0.4, n - 0.6), yticks=range(n), yticklabels=names)
    return figure


def sentence_grid(
    sentences: Sequence[Sequence[str]],
    ends: Sequence[int] = (),
    says: Sequence[float] = (1, 1),
    rings: Sequence[int] = (),
) -> Figure:
    """Draw a padded batch of sentences, a row for each, a box for each word, and the cut between two GPUs.

    Args:
        sentences: each as a list of words; the first half is GPU 0's.
        ends: how many words wide each GPU's result is, drawn as a dashed line across its half.
        says: what a word counts on each GPU, drawn as so many times the usual size of letters.
        rings: of each sentence, from the first on, the place of a word that gets a ring; 1 is its first.

    Padding is hatched, and the cut is a thick line. Returns the matplotlib figure.
    """
    from matplotlib.patches import Ellipse, Rectangle

    width, cut = max(map(len, sentences)), (len(sentences) + 1) // 2
    with drawing(9, 3.6) as figure:
        axis = figure.subplots()
        for row, sentence in enumerate(sentences):
            for column in range(width):
                word = sentence[column] if column < len(sentence) else None
                hatch = None if word is not None else "////"
                axis.add_patch(Rectangle((column, row), 1, 1, facecolor="none", edgecolor=INK, hatch=hatch))
                if word is not None:
                    size = 9.5 * says[row >= cut]
                    axis.text(column + 0.5, row + 0.5, word, ha="center", va="center", fontsize=size)
        axis.axhline(cut, color=INK, linewidth=4)
        for gpu, end in enumerate(ends):
            top, bottom = (0, cut) if gpu == 0 else (cut, len(sentences))
            axis.plot([end, end], [top + 0.1, bottom - 0.1], "--", color=COLOURS[1], linewidth=4)
        for row, place in enumerate(rings):
            ring = {"fill": False, "edgecolor": COLOURS[1], "linewidth": 3}
            axis.add_patch(Ellipse((place - 0.5, row + 0.5), 0.9, 0.8, **ring))
        middles = [cut / 2, (cut + len(sentences)) / 2]
        axis.set(xlim=(0, width + 0.05), ylim=(len(sentences), 0), xticks=[])
        axis.set_yticks(middles, ["GPU 0", "GPU 1"])
    return figure


def traffic(meter: Any, most: Sequence[float | None] = (None, None)) -> Figure:
    """Draw what a meter of virtual GPUs has counted: bytes on each link, by cause, and the most that each device held.

    most: where the axes of the links and of the memory end, in bytes, so that pictures can be compared; by itself, each
        ends a little beyond its longest bar.
    Returns the matplotlib figure.
    """
    from matplotlib.ticker import EngFormatter, MaxNLocator

    links, names = sorted({row[1:3] for row in meter.rows}), sorted(meter.peak)
    height = 0.4 * max(len(links), len(names))
    with drawing(9, 1.4 + height, layout="constrained") as figure:
        left, right = figure.subplots(1, 2)
        start = [0] * len(links)
        causes = sorted({row[0] for row in meter.rows}, key=lambda it: (*(it != cause for cause in CAUSES), it))
        for cause, colour, hatch in zip(causes, COLOURS, HATCHES, strict=False):
            sizes = [meter.bytes(cause, *link) for link in links]
            look = {"color": colour, "hatch": hatch, "edgecolor": ON_COLOUR, "linewidth": 0.5, "label": cause}
            left.barh([" → ".join(link) for link in links], sizes, left=start, **look)
            start = [a + b for a, b in zip(start, sizes, strict=True)]
        right.barh(names, [meter.peak[name] for name in names], color=INK, alpha=0.35)
        titles = (("bytes copied", "between devices"), ("the most bytes held", "on each device"))
        for axis, (x, title), end in zip((left, right), titles, most, strict=True):
            axis.set(xlabel=x, title=title, xlim=(0, end))
            axis.xaxis.set_major_locator(MaxNLocator(5))
            axis.xaxis.set_major_formatter(EngFormatter("B"))
            if len(axis.containers) > 1:  # below the bars, where it hides none
                axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.6 / height), ncols=3)
    return figure


def kept_and_lost(kept: Mapping[str, Sequence[int]], rows: int, heads: Sequence[str]) -> str:
    """Return a table in words: of each line of code, below each head, how many of the rows are kept, ■, or lost, □."""
    table = {"": [f"{head:{rows + 3}}" for head in heads]}
    table |= {line: [f"{n:2} {'■' * n}{'□' * (rows - n)}" for n in counts] for line, counts in kept.items()}
    width = max(map(len, table)) + 1
    return "\n".join(f"{line:{width}}{'    '.join(cells)}".rstrip() for line, cells in table.items())
