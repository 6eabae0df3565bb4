"""A model cut over ranks: who holds which parts of two layers, what room is left, and which tool that takes."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING

from ddplab.plots import COLOURS, INK, ON_COLOUR, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDS, MIDDLE = 4, 8  # numbers that go in, and that come out; and between the two layers
CARD, NODE = 80, 8  # GB of a GPU, and GPUs of a node
TOOLS = {  # tool → what it cuts; what travels in a step
    "accumulate": ("the batch, in time", "nothing more"),
    "activation checkpointing": ("nothing: it computes twice what it does not keep", "nothing more"),
    "DDP": ("the batch, over ranks", "2 x the weights: gradients, all-reduced"),
    "ZeRO's optimiser": ("the batch, and Adam's state", "3 x the weights: new ones are broadcast, too"),
    "FSDP2": ("the batch, and all of the model", "3 x the weights, or 2 if kept whole until backward"),
    "tensor parallel": ("every layer", "activations and their gradients, amid every pass"),
    "pipeline or FSDP2 between nodes": ("the network", "activations at the cut; or 3 x the weights"),
    "more GPUs, or smaller layers": ("nothing yet", "nothing yet"),
    "more GPUs": ("nothing yet", "nothing yet"),
}


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


def held_and_cut(billions: float, layers: int, GB_a_sample: float, GPUs: int) -> tuple[dict[str, float], float]:
    """Return tool → GB of the model that a rank holds, and the GB of model and one sample where every layer is cut."""
    model, node = 16 * billions, min(GPUs, NODE)  # weights and gradients are a quarter each, Adam's state is half
    layer = model / 2 / layers  # its weight and gradient are whole for a moment
    held = {
        "DDP": model,
        "ZeRO's optimiser": model / 2 + model / 2 / GPUs,
        "FSDP2": model / GPUs + layer,
    }
    stage = model * ceil(layers / (GPUs // node)) / layers  # of a pipeline with a node for each
    return held, min(stage / node, model / GPUs + layer / node) + GB_a_sample / node


def walk(
    billions: float, layers: int, GB_a_sample: float, samples: int, GPUs: int, card_GB: float = CARD
) -> tuple[dict[str, float], dict[str, int], dict[str, str]]:
    """Walk the map of lesson 8.2, for cards of so many GB, eight in a node, float32, Adam, and equal layers.

    samples: how many each GPU wants in a step. Returns tool → GB of the model on a rank, tool → samples that fit beside
    them, and tool → why it is taken. What checkpointing leaves of a sample's activations is not counted.
    """
    model = 16 * billions
    held, cut = held_and_cut(billions, layers, GB_a_sample, GPUs)
    room = {tool: int(max(card_GB - size, 0) / GB_a_sample) for tool, size in held.items()}
    zeros, beside = held["ZeRO's optimiser"], f"and a sample takes {GB_a_sample:g} GB"
    if room["DDP"]:
        why = {"DDP": f"the whole model leaves a card {card_GB - model:g} GB, {beside}"}
    elif GB_a_sample > model or (not room["FSDP2"] and held["FSDP2"] < min(card_GB, GB_a_sample)):
        beside = f"the model {model:g}" if GB_a_sample > model else f"a shard and one whole layer {held['FSDP2']:.0f}"
        why = {"activation checkpointing": f"a sample takes {GB_a_sample:g} GB, {beside}"}
        cut_too = "tensor parallel" if model / GPUs < card_GB else "more GPUs"
        enough = next((tool for tool, size in held.items() if size < card_GB), cut_too)
        if enough != "DDP":
            left = f"; {enough} leaves {card_GB - held[enough]:.0f} GB for" if enough in held else ", without"
            kept = "what a checkpointed sample keeps" if enough in held else "any sample"
            why[enough] = f"the whole model takes {model:g} GB{left} {kept}"
    elif room["ZeRO's optimiser"]:
        whole = f"the whole model takes {model:g} GB, {beside}"
        why = {"ZeRO's optimiser": f"{whole}; with Adam's half shared it is {zeros:.0f}"}
    elif room["FSDP2"]:
        why = {"FSDP2": f"with Adam's half shared it still takes {zeros:.0f} GB, {beside}"}
    elif cut >= card_GB:
        least = model / GPUs + GB_a_sample / min(GPUs, NODE)  # with layers as small as one likes
        more = "more GPUs" if least >= card_GB else "more GPUs, or smaller layers"
        why = {more: f"with every layer cut, model and sample take {cut:.4g} GB of each card"}
    else:
        why = {"tensor parallel": f"a shard and one whole layer take {held['FSDP2']:.0f} GB, {beside}"}
        if GPUs > NODE:
            why["pipeline or FSDP2 between nodes"] = f"a node has {NODE} GPUs"
    first = next(iter(why))
    if samples > room.get(first, samples):
        more = f"; with FSDP2 {room['FSDP2']}" if room["FSDP2"] > room[first] else ""
        why["accumulate"] = f"of the {samples} samples only {room[first]} can be in work at a time{more}"
    return held, room, why


def arrows(**numbers: float) -> str:
    """Say where `walk` leads: what each tool holds beside a card, and an arrow for each tool that is taken."""
    held, room, why = walk(**numbers)
    lines = [beside_a_card(held, room, card=numbers.get("card_GB", CARD))]
    for tool, reason in why.items():
        cuts, travels = TOOLS[tool]
        lines += [f"→ {tool}, since {reason}", f"  cuts {cuts}; what travels: {travels}"]
    return "\n".join(lines)
