"""The shortest program: what lesson 9.2 says of its ends, tried on real ranks and virtual GPUs, program by program."""

import itertools
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ddplab.course.shortest import (
    FIRST_TWO,
    LIGHTS,
    MEASURED,
    NAMES,
    PROGRAM,
    SHOWN,
    SOURCES,
    THIRD,
    _board,
    _lit,
    _memory,
    caught,
    first_two_programs,
    hunt,
    third_program,
)
from ddplab.vgpu import active

ALL = [frozenset(it) for count in range(len(NAMES) + 1) for it in itertools.combinations(NAMES, count)]
ENDS = {4: [{"seed"}, {"numbers", "group", "DDP"}], 5: [{"numbers", "group", "DDP", "sampler"}]}
NEEDS = {"group": "numbers", "DDP": "group", "sampler": "group", "set_epoch": "sampler", "destroy": "group"}


def keeps_the_lights_on(left, lights: int) -> bool:
    """What the lesson teaches, as a rule: nothing lacks what it needs, one net, one share each, every digit in turn."""
    runs = all(NEEDS.get(name) in {None, *left} for name in left)
    same = "DDP" in left or ("seed" in left and "sampler" not in left)
    every = "sampler" not in left or "drop_last" not in left or "set_epoch" in left
    return runs and same and every and (lights == 4 or "sampler" in left)


def test_by_the_rule_few_programs_keep_the_lights_on_and_the_shortest_is_what_the_hunt_takes_it_for():
    """An end is a program from which no line can go any more."""
    assert len(ALL) == 256
    for lights, count in ((4, 28), (5, 12)):
        green = [left for left in ALL if keeps_the_lights_on(left, lights)]
        assert len(green) == count and min(map(len, green)) == THIRD.par[lights]
        assert [left for left in green if not any(left - {name} in green for name in left)] == ENDS[lights]


@pytest.mark.times(12, stress=256)
def test_real_ranks_keep_to_the_rule(times):
    """The ends, and what is left of them without one more line; then others, drawn: `make stress` plays all 256."""
    ends = [frozenset(end) for end in itertools.chain(*ENDS.values())]
    near = [*ends, *{end - {name} for end in ends for name in end} - {*ends}]
    tried = list(dict.fromkeys([*near, *random.Random(0).sample(ALL, len(times))]))
    with ThreadPoolExecutor(2) as runs:
        played = dict(zip(tried, runs.map(lambda left: third_program(*set(NAMES) - left), tried), strict=True))
    for left, it in played.items():
        for lights in (4, 5):
            assert all(it.lights[:lights]) == keeps_the_lights_on(left, lights), (sorted(left), lights, it.facts())
            assert len(_lit(it, lights)) == lights + 1, "what is below the lights would move"


def test_each_line_that_is_missing_puts_a_light_out_or_costs_nothing():
    missing = {name: third_program(name) for name in NAMES}
    assert {name: it.lights.index(False) for name, it in missing.items() if not all(it.lights)} == {
        "numbers": 0,
        "group": 0,
        "DDP": 2,
        "sampler": 0,
        "set_epoch": 3,
    }
    assert "environment variable RANK expected" in missing["numbers"].error
    assert missing["set_epoch"].facts()[3] == "32 of 33 in 6 epochs; the order never changes"
    assert missing["drop_last"].facts()[3:] == (
        "33 of 33 in 6 epochs; in each, 1 served twice",
        "of 33 digits, each rank computes 17 an epoch",
    )
    alone = third_program(*set(NAMES) - {"seed"})
    assert alone.facts()[3] == "33 of 33 in 6 epochs; in each, 33 served twice; the order never changes"
    assert _lit(alone, 4)[3].endswith(alone.facts()[3]), "it is read on one line"


def test_an_optimiser_of_a_copy_moves_nothing():
    of_net, of_a_copy = (third_program(parameters_of=it) for it in list(SOURCES)[1:])
    assert all(of_net.lights) and of_net.shared == 4
    assert [name for name, on in zip(LIGHTS, of_a_copy.lights, strict=True) if not on] == ["their weights have moved"]


def test_of_the_lights_that_are_offered_for_the_fifth_one_is_right_about_every_program():
    """Some are on for one of the programs that do all the work twice, and one is off where the shares are made even."""
    told = {light: caught(light).splitlines() for light in MEASURED}
    assert [lines[0].rsplit(": ")[1] for lines in told.values()] == [
        f"right about {right} of 4 programs" for right in (2, 3, 3, 4)
    ]
    signs = {light: "".join(line[-1] for line in lines[2:]) for light, lines in told.items()}
    assert [*signs.values()] == ["✓✓✗✗", "✓✓✓✗", "✓✗✓✓", "✓✓✓✓"]


def test_of_the_first_two_programs_all_are_tried_and_none_is_shorter_than_what_the_hunt_takes_for_the_shortest():
    """No sampler, and on the GPUs what has to be there: `DataParallel` takes the images along, and nobody else."""
    names = FIRST_TWO.names
    all_of_them = [{*it} for count in range(len(names) + 1) for it in itertools.combinations(names, count)]
    played = [(left, first_two_programs(*{*names} - left)) for left in all_of_them]
    moved, green = {"model.to", "images.to", "labels.to"}, []
    for left, it in played:
        runs = moved - {"images.to"} <= left if "wrap" in left else left & moved in (moved, set())
        every = runs and "sampler" not in left
        assert it.lights == (runs, runs, every, every and "wrap" in left)
        assert len(_lit(it, 4, FIRST_TWO)) == 5, "what is below the lights would move"
        green += [left] * all(it.lights)
    assert len(played) == 32 and len(green) == 2 and min(map(len, green)) == FIRST_TWO.par[4]
    on_the_cpu, (_, whole) = played[0][1], played[-1]
    assert on_the_cpu.facts()[3] == "rows of each in a step: 0 0 0 0 0 0 0 0; of the CPU: 32"
    assert whole.facts()[2:] == ("4 of 32 in 6 epochs", "rows of each in a step: 1 1 1 1 0 0 0 0")
    assert whole.losses[-1] < first_two_programs("sampler").losses[-1], "the same four digits come again and again"


def test_the_first_two_programs_leave_random_numbers_and_gpus_as_they_were():
    before = torch.get_rng_state()
    first_two_programs(gpus=2)
    assert torch.equal(torch.get_rng_state(), before) and active() is None
    with pytest.raises(ValueError, match="'seed' is no line's name; they are model"):
        first_two_programs("seed")


def test_the_hunt_of_the_first_two_programs(capsys):
    hunt(script=FIRST_TWO)
    assert capsys.readouterr().out.endswith("None yet with all 4 lights on\n  1  ✓✓✗✗  5 of 5 lines: all   now\n")
    page = _board(_memory(4, FIRST_TWO), [], "at first", 4, FIRST_TWO)
    page.asked = [1, ["sampler", "images.to"], 0]
    words, _ = page.shown
    assert "has 3 of 5 lines (try 1), and none is shorter ✓" in words
    page.asked = [2, ["labels.to"], 0]
    assert page.shown[0].startswith("✗ it ends without an error  RuntimeError: Expected all tensors")


def without(*left):
    return [name for name in NAMES if name not in left]


def test_the_hunt_tells_the_lights_and_the_tries():
    """It never names the shortest before it is found, and a try that is made again is told once, with its number."""
    told = _memory(4)
    assert told(["set_epoch"]).splitlines()[-2:] == [
        "None yet with all 4 lights on",
        "  1  ✓✓✓✗  7 of 8 lines: without set_epoch   now",
    ]
    failed = told(["group"]).splitlines()
    assert failed[0].startswith("✗ both ranks end without an error  ValueError: Default process group")
    assert "? their weights have moved" in failed
    told(without("numbers", "group", "DDP"))
    assert told(["set_epoch"]).splitlines()[-4:] == [
        "The shortest with all 4 lights on has 3 of 8 lines (try 3); there is a shorter one",
        "  2  ✗???  7 of 8 lines: without group",
        "  3  ✓✓✓✓  3 of 8 lines: only numbers, group, DDP",
        "  1  ✓✓✓✗  7 of 8 lines: without set_epoch   now",
    ]
    won = told(without("seed")).splitlines()
    assert won[-5] == "The shortest with all 4 lights on has 1 of 8 lines (try 4), and none is shorter ✓"
    for name in NAMES:
        last = told(NAMES, "a copy of net") if name == "destroy" else told([name])
    assert last.splitlines()[-1] == " 10  ✓✗✗✓  0 of 8 lines: only the loop; SGD has those of a copy of net   now"
    assert len(last.splitlines()) == len(won) + SHOWN - 4, "only the newest are shown"


def test_where_nobody_can_press_a_line_the_program_as_it_begins(capsys):
    hunt(lights=4, out=["set_epoch"])
    lines = capsys.readouterr().out.splitlines()
    assert [line[11:] for line in lines[:3]] == [line for _, line in PROGRAM[:3]]
    assert "set_epoch      # sampler.set_epoch(epoch)" in lines and "optimizer = SGD(model.parameters()" in lines[6]
    assert lines[-1] == "  1  ✓✓✓✗  7 of 8 lines: without set_epoch   now"


def test_the_page_asks_for_what_is_left_and_is_answered_also_where_it_cannot_be_tried():
    page = _board(_memory(4), ["set_epoch"], "at first", 4)
    assert page.asked == [0, ["set_epoch"], 0] and page.shown == ["at first", 0]
    page.asked = [1, without("seed"), 2]
    words, asked = page.shown
    assert asked == 1 and words.endswith("1 of 8 lines: only seed; SGD has those of a copy of net   now")
    page.asked = [2, ["barrier"], 0]
    assert page.shown == ["ValueError: 'barrier' is no line's name; they are " + ", ".join(NAMES), 2]


def test_a_name_of_no_line_is_refused():
    assert len(NAMES) == 8
    with pytest.raises(ValueError, match="'barrier' is no line's name"):
        third_program("barrier")
