"""The shortest program: what lesson 9.2 says of its ends, tried on real ranks, program by program."""

import itertools
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from ddplab.course.shortest import LIGHTS, NAMES, PAR, PROGRAM, SOURCES, SWITCHES, hunt, third_program

ALL_IN = dict.fromkeys(NAMES, "in")
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
        assert len(green) == count and min(map(len, green)) == PAR[lights]
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
    assert missing["set_epoch"].facts()[3] == "32 of 33 in 6 epochs, all in one order"
    assert missing["drop_last"].facts()[3:] == (
        "33 of 33 in 6 epochs, 1 twice in each",
        "of 33 digits, each rank computes 17 an epoch",
    )


def test_an_optimiser_of_a_copy_moves_nothing():
    of_net, of_a_copy = (third_program(parameters_of=it) for it in list(SOURCES)[1:])
    assert all(of_net.lights) and of_net.shared == 4
    assert [name for name, on in zip(LIGHTS, of_a_copy.lights, strict=True) if not on] == ["their weights have moved"]


def test_the_hunt_shows_the_program_its_lights_and_the_tries():
    """It never names the shortest before it is found, and a try that is made again is told once."""
    draw = hunt(4)
    first = draw(**ALL_IN | {"set_epoch": "out"}).splitlines()
    assert [line[11:] for line in first[:3]] == [line for _, line in PROGRAM[:3]]
    assert "set_epoch      # sampler.set_epoch(epoch)" in first
    assert first[-1] == "✓✓✓✗  7 of 8 lines: without set_epoch   now"
    failed = draw(**ALL_IN | {"group": "out"}).splitlines()
    assert failed[len(PROGRAM) + 1].startswith("✗ both ranks end without an error  ValueError: Default process group")
    assert "? their weights have moved" in failed
    draw(**dict.fromkeys(NAMES, "out") | dict.fromkeys(["numbers", "group", "DDP"], "in"))
    again = draw(**ALL_IN | {"set_epoch": "out"}).splitlines()
    assert again[-4:] == [
        "The shortest with all 4 lights on has 3 of 8 lines; there is a shorter one",
        "✗???  7 of 8 lines: without group",
        "✓✓✓✓  3 of 8 lines: only numbers, group, DDP",
        "✓✓✓✗  7 of 8 lines: without set_epoch   now",
    ]
    won = draw(**dict.fromkeys(NAMES, "out") | {"seed": "in"}).splitlines()
    assert won[-5] == "The shortest with all 4 lights on has 1 of 8 lines, and none is shorter ✓"
    assert draw(**dict.fromkeys(NAMES, "out"), parameters_of="a copy of net").splitlines()[-1] == (
        "✓✗✗✓  0 of 8 lines: only the loop; SGD has those of a copy of net   now"
    )


def test_every_switch_is_a_line_and_a_name_of_none_is_refused():
    assert [*SWITCHES] == [*NAMES, "parameters_of"] and len(NAMES) == 8
    with pytest.raises(ValueError, match="'barrier' is no line's name"):
        third_program("barrier")
