"""A model cut over ranks: who holds which rows and columns of two layers, and what room a rank's part leaves."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING

from ddplab.plots import COLOURS, INK, ON_COLOUR, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDS, MIDDLE = 4, 8  # numbers that go in, and that come out; and between the two layers


def two_layers(ranks: int, first: str = "rows", second: str = "columns") -> tuple[str, Figure]:
    """Draw who holds what of two linear layers with a ReLU between them, and say what the ranks have to send.

    ranks: how many, 1, 2 or 4. first, second: what the weight of each layer is cut into, "rows" or "columns".

    Returns words and the matplotlib figure.
    """
    by_row = {"first": first == "rows", "second": second == "rows"}
    # Cut into rows a layer gives each rank some of its outputs; into columns, a part of the sum that each output is.
    between, end = ("", ""), ("all-gather" if by_row["second"] else "all-reduce", "")
    if not by_row["first"]:  # columns of the second want some of the sums only
        between = "all-reduce" if by_row["second"] else "reduce-scatter", ", for ReLU wants sums and not their parts"
    elif by_row["second"]:
        between = "all-gather", ", for each row of the second wants them all"
    travels = {MIDDLE: between, ENDS: end} if ranks > 1 else {MIDDLE: ("", ""), ENDS: ("", "")}

    weights, sent = 2 * ENDS * MIDDLE, 0.0
    words = [f"{ranks} rank{'s' * (ranks > 1)}, the first layer cut into {first}, the second into {second}"]
    words.append(f"weights on each rank: {weights // ranks} of {weights}")
    for where, (numbers, (name, why)) in zip(("between the layers", "at the end"), travels.items(), strict=True):
        words.append(f"{where}: " + (f"{name}, {numbers} numbers{why}" if name else "nothing has to travel"))
        sent += {"": 0, "all-gather": 1, "reduce-scatter": 1, "all-reduce": 2}[name] * numbers * (ranks - 1) / ranks
    words.append(f"each rank sends, on a ring: {sent:g} numbers")
    return "\n".join(words), _drawn(ranks, by_row, {numbers: name for numbers, (name, _) in travels.items()})


def _drawn(ranks: int, by_row: dict[str, bool], travels: dict[int, str]) -> Figure:
    """Draw x, the first weight, what the second layer finds, its weight, and the output; and what travels, below."""
    from matplotlib.patches import Rectangle

    blocks = [  # name, left edge, rows, columns, and by what its cells belong to ranks: None where all have all
        ("x", 0, ENDS, 1, None),
        ("first.weight", 3, MIDDLE, ENDS, "row" if by_row["first"] else "column"),
        ("between", 9, MIDDLE, 1, None if by_row["second"] else "row"),
        ("second.weight", 12, ENDS, MIDDLE, "row" if by_row["second"] else "column"),
        ("output", 22, ENDS, 1, None),
    ]
    with drawing(8.5, 3.6) as figure:
        axis = figure.subplots()
        for name, left, rows, columns, by in blocks:
            top = (MIDDLE - rows) / 2
            axis.text(left + columns / 2, -0.5, name, ha="center")
            for row in range(rows):
                for column in range(columns):
                    rank = {"row": row * ranks // rows, "column": column * ranks // columns}.get(by)
                    colour = "none" if rank is None else COLOURS[rank]
                    axis.add_patch(Rectangle((left + column, top + row), 1, 1, facecolor=colour, edgecolor=INK))
                    if rank is not None:
                        middle_of = (left + column + 0.5, top + row + 0.55)
                        axis.text(*middle_of, rank, ha="center", va="center", color=ON_COLOUR, fontsize=8)
        for numbers, left in ((MIDDLE, 9.5), (ENDS, 22.5)):
            axis.text(left, MIDDLE + 0.9, travels[numbers], ha="center")
        axis.set(xlim=(-0.5, 23.5), ylim=(MIDDLE + 1.5, -1.5), aspect="equal")
        axis.axis("off")
    return figure


def beside_a_card(held: Mapping[str, float], room: Mapping[str, int], card: float) -> str:
    """Return a line for each tool: the GB that a rank holds, as a bar with a stroke where the card ends, and its room.

    held: tool → GB. room: tool → the samples that fit beside them. A block is a sixteenth of the card.
    A bar too long for the line ends in "…".
    """
    lines = [f"{'a rank holds':>32}{' ' * 18}{card:g} GB"]
    for tool, size in held.items():
        blocks = ceil(16 * size / card)
        beyond = "■" * max(blocks - 16, 0)
        bar = f"{'■' * min(blocks, 16):16}|{beyond if len(beyond) <= 24 else beyond[:23] + '…':24}"
        lines.append(f"{tool:20}{size:9,.1f} GB  {bar} samples: {room[tool]}")
    return "\n".join(lines)
