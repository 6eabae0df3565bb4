"""What the picture of two layers that are cut says travels is what makes their output right, on real ranks."""

import re
from itertools import product

import pytest
import torch
import torch.distributed as dist

from ddplab import launch
from ddplab.course.cutting import ENDS, MIDDLE, TOOLS, arrows, beside_a_card, held_and_cut, two_layers, walk

SENT = {("rows", "columns"): 4, ("rows", "rows"): 6, ("columns", "rows"): 10, ("columns", "columns"): 8}  # of two


def computed(weight, cut, held, collective):
    rank, size = dist.get_rank(), dist.get_world_size()
    part = weight.chunk(size, dim=0 if cut == "rows" else 1)[rank]
    out = part @ (held if len(held) == part.shape[1] else held.chunk(size)[rank])
    if collective in ("all-reduce", "reduce-scatter"):
        dist.all_reduce(out)
        out = out if collective == "all-reduce" else out.chunk(size)[rank]
    elif collective == "all-gather":
        parts = [torch.empty_like(out) for _ in range(size)]
        dist.all_gather(parts, out)
        out = torch.cat(parts)
    return out


def is_that_of_the_whole(first, second, between, end):
    torch.manual_seed(0)
    x, up, down = (torch.randn(*shape).double() for shape in ((ENDS,), (MIDDLE, ENDS), (ENDS, MIDDLE)))
    held = computed(up, first, x, between).relu()
    if len(held) < MIDDLE and second == "rows":
        return False  # its rows have more columns than there are numbers
    out, whole = computed(down, second, held, end), down @ (up @ x).relu()
    return out.shape == whole.shape and torch.allclose(out, whole)


@pytest.mark.parametrize("way", SENT, ids="-".join)
def test_what_travels_is_what_makes_the_output_right(way):
    words, _ = two_layers(2, *way)
    travels = {int(numbers): name for name, numbers in re.findall(r": (\S+-\S+), (\d+)", words)}
    between, end = travels.get(MIDDLE), travels[ENDS]

    def ranks():
        without = [between and is_that_of_the_whole(*way, None, end), is_that_of_the_whole(*way, between, None)]
        return is_that_of_the_whole(*way, between, end), any(without)

    assert launch(ranks, nproc_per_node=2, quiet=True).results == [(True, False)] * 2
    assert words.endswith(f"each rank sends, on a ring: {SENT[way]} numbers")


def test_every_cell_shows_who_has_it_and_what_travels_stands_beneath():
    words, figure = two_layers(4, "columns", "rows")
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert shown.count("3") == 2 * ENDS * MIDDLE // 4  # of both weights
    assert {"first.weight", "second.weight", "all-reduce", "all-gather"} <= {*shown}
    assert "\nweights on each rank: 16 of 64\n" in words


def test_the_page_stays_still():
    shown = [two_layers(ranks, *way) for ranks in (1, 2, 4) for way in SENT]
    assert {(words.count("\n"), *figure.get_size_inches()) for words, figure in shown} == {(4, 8.5, 3.6)}


def test_one_rank_sends_nothing():
    words, figure = two_layers(1)
    assert words.startswith("1 rank, ") and words.endswith("on a ring: 0 numbers")
    assert words.count("nothing has to travel") == 2
    assert not [text for text in figure.axes[0].texts if text.get_text().startswith(("all-", "reduce-"))]


def test_what_does_not_fit_passes_the_stroke():
    held = {"whole": 81.0, "cut": 80.0, "no end": 8000.0}
    head, *lines = beside_a_card(held, dict.fromkeys(held, 0), card=80).splitlines()
    assert [line.split("|")[0].count("■") for line in lines] == [16, 16, 16]
    assert [line.split("|")[1].count("■") for line in lines] == [1, 0, 23]
    assert ["…" in line for line in lines] == [False, False, True]  # a cut bar says so
    assert {line.index("|") for line in lines} == {head.index("80 GB")}


BILLIONS, LAYERS = (0.1, 1, 2.5, 7, 13, 40, 100), (1, 4, 8, 16, 32, 64, 100)  # of the lesson, and a single layer
SAMPLE, GPUS = (0.1, 0.5, 2, 10, 30, 70, 150), (2, 4, 8, 16, 64, 512)


def check_the_arrow(billions, layers, sample, gpus, card):
    held, cut = held_and_cut(billions, layers, sample, gpus)
    names, (first, *others) = list(held), walk(billions, layers, sample, 8, gpus, card)[2]
    one_sample = {tool for tool, size in held.items() if size + sample <= card}
    if first == "activation checkpointing":
        tools = [tool for tool in others if tool != "accumulate"]
        assert sample > min(16 * billions, held["FSDP2"]) and "DDP" not in one_sample
        assert sample > 16 * billions or not one_sample
        for tool in tools or ["DDP"]:
            cut_too = (16 * billions / gpus < card) == (tool == "tensor parallel")
            assert held[tool] < card if tool in held else cut_too
            assert all(held[smaller] >= card for smaller in names[: names.index(tool) if tool in held else None])
    elif first in held:
        assert first in one_sample and not one_sample & {*names[: names.index(first)]}
    else:
        assert not one_sample and (cut < card) == (first == "tensor parallel")
        assert ("pipeline or FSDP2 between nodes" in others) == (cut < card and gpus > 8)


def test_at_every_place_of_the_sliders_it_fits_where_the_arrow_leads_and_with_no_smaller_tool():
    for place in product(BILLIONS, LAYERS, SAMPLE, GPUS, (11, 32, 80)):
        check_the_arrow(*place)


def test_what_does_not_fit_even_where_every_layer_is_cut_is_not_called_enough():
    assert [*walk(7, 32, 50, 8, 2)[2]] == ["more GPUs"]  # (112 + 50) / 2 GB, however small the layers
    assert [*walk(7, 32, 150, 8, 8)[2]] == ["activation checkpointing", "ZeRO's optimiser"]
    assert [*walk(100, 1, 2, 8, 512)[2]] == ["more GPUs, or smaller layers"]  # one layer on a node: 100 GB each


def test_where_only_the_sample_is_too_much_and_it_is_the_larger_part_it_is_checkpointed():
    sample, layer = (walk(*place)[2] for place in ((7, 32, 70, 8, 8), (40, 4, 2, 8, 16)))
    assert [*sample] == ["activation checkpointing", "ZeRO's optimiser"] and next(iter(layer)) == "tensor parallel"
    assert sample["activation checkpointing"] == "a sample takes 70 GB, a shard and one whole layer 16"
    kept = "ZeRO's optimiser leaves 17 GB for what a checkpointed sample keeps"
    assert sample["ZeRO's optimiser"] == f"the whole model takes 112 GB; {kept}"


def test_the_five_walks_of_lesson_8_2_lead_where_it_says():
    def ends(samples=(2,), gpus=(8,), billions=7, layers=32):
        return [next(iter(walk(billions, layers, size, 8, n)[2])) for size, n in product(samples, gpus)]

    zero = "ZeRO's optimiser"
    assert ends(gpus=GPUS) == ["FSDP2"] + [zero] * 5
    assert ends(gpus=GPUS, billions=40) == ["more GPUs"] * 3 + ["FSDP2"] * 3
    assert ends(gpus=GPUS, billions=40, layers=4) == ["more GPUs"] * 3 + ["tensor parallel"] * 3
    of_who_asked = [next(iter(walk(2.5, layers, sample, 8, 2, 32)[2])) for layers in (32, 8, 4) for sample in (2, 10)]
    assert of_who_asked == [zero, "FSDP2", zero, "tensor parallel", zero, "tensor parallel"]
    assert ends(SAMPLE) == [zero] * 4 + ["FSDP2"] + ["activation checkpointing"] * 2


def test_an_arrow_says_why_and_what_travels():
    told = arrows(billions=7, layers=32, GB_a_sample=10, samples=8, GPUs=8).splitlines()
    assert [line.split(",")[0] for line in told if line.startswith("→")] == ["→ ZeRO's optimiser", "→ accumulate"]
    assert told[-2] == "→ accumulate, since of the 8 samples only 1 can be in work at a time; with FSDP2 6"
    assert sum(line.startswith("  cuts ") for line in told) == 2
    reached = {tool for place in product(BILLIONS, LAYERS, SAMPLE, (1, 64), GPUS) for tool in walk(*place)[2]}
    assert reached == {*TOOLS}
