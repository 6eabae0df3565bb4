"""The shortest program: what lesson 9.2 says of its ends, tried on real ranks, program by program."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from ddplab.course.shortest import LIGHTS, NAMES, PAR, PROGRAM, SOURCES, SWITCHES, hunt, third_program

ALL_IN = dict.fromkeys(NAMES, "in")


@pytest.fixture(scope="module")
def played():
    """All that a learner can leave of the program: what was left → what became of it."""
    left = [frozenset(it) for count in range(len(NAMES) + 1) for it in itertools.combinations(NAMES, count)]
    with ThreadPoolExecutor(2) as runs:
        return dict(zip(left, runs.map(lambda it: third_program(*set(NAMES) - it), left), strict=True))


@pytest.mark.parametrize(
    ("lights", "keep_them_on", "ends"),
    [(4, 28, [{"seed"}, {"numbers", "group", "DDP"}]), (5, 12, [{"numbers", "group", "DDP", "sampler"}])],
)
def test_of_all_programs_few_keep_the_lights_on_and_the_shortest_is_what_the_hunt_takes_it_for(
    played, lights, keep_them_on, ends
):
    """An end is a program from which no line can go any more."""
    assert len(played) == 256
    green = [left for left, it in played.items() if all(it.lights[:lights])]
    assert len(green) == keep_them_on
    assert [left for left in green if not any(left - {name} in green for name in left)] == ends
    assert min(map(len, green)) == PAR[lights]


def test_set_epoch_can_go_only_with_drop_last(played):
    for lights in (4, 5):
        green = [left for left, it in played.items() if all(it.lights[:lights])]
        assert not any("drop_last" in left and "set_epoch" not in left for left in green if "sampler" in left)
        assert any({"drop_last", "set_epoch"}.isdisjoint(left) and "sampler" in left for left in green)


def test_each_line_that_is_missing_puts_a_light_out_or_costs_nothing(played):
    missing = {name: played[frozenset(NAMES) - {name}] for name in NAMES}
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
        "✗???  7 of 8 lines: without group",
        "✓✓✓✓  3 of 8 lines: only numbers, group, DDP",
        "✓✓✓✗  7 of 8 lines: without set_epoch   now",
        "The shortest with all 4 lights on has 3 of 8 lines; there is a shorter one",
    ]
    won = draw(**dict.fromkeys(NAMES, "out") | {"seed": "in"}).splitlines()
    assert won[-1] == "The shortest with all 4 lights on has 1 of 8 lines, and none is shorter ✓"
    assert draw(**dict.fromkeys(NAMES, "out"), parameters_of="a copy of net").splitlines()[-2] == (
        "✓✗✗✓  0 of 8 lines: only the loop; SGD has those of a copy of net   now"
    )


def test_every_switch_is_a_line_and_a_name_of_none_is_refused():
    assert [*SWITCHES] == [*NAMES, "parameters_of"] and len(NAMES) == 8
    with pytest.raises(ValueError, match="'barrier' is no line's name"):
        third_program("barrier")
