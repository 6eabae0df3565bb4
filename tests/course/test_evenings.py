"""Evenings on two played servers: what is on paper, and what real agents and ranks make of it. Lesson 5.5's."""

from collections import Counter
from itertools import pairwise, repeat
from random import Random
from statistics import fmean
from types import SimpleNamespace

import psutil
import pytest
import torch

from ddplab.course import evenings
from ddplab.course.evenings import (
    BEST,
    COUNTED,
    JOINS,
    KILLED,
    LEAVES,
    LOST,
    OURS,
    PREMIUM,
    SERVERS,
    SIGHT,
    STEPS,
    UNDER_WAY,
    Bill,
    Evening,
    Event,
    at_sight,
    board,
    drawn,
    evening,
    leave,
    ours,
    par,
    play,
    reckon,
    told,
)


def of_its_own(step, n, rank, size):  # as the lesson proposes to try
    return ours(step * size + rank, n, 0, 1)


@pytest.fixture(autouse=True)
def fresh():
    yield
    leave()
    BEST.clear()
    SIGHT.clear()


def test_an_evening_has_one_that_joins_and_comes_again_by_its_number():
    for number in range(1, 400):
        events = drawn(number)
        what = [event.what for event in events]
        assert drawn(number) == events and what.count(JOINS) == 1 and what.count(LEAVES) <= 1 and len(what) <= 4
        assert all(later.step >= event.step + 3 for event, later in pairwise(events)) and 0 < events[0].step < STEPS
        there = 1
        for it in what:
            assert it != KILLED[1] or there == 2, "a rank that is killed is there"
            there += {JOINS: 1, LEAVES: -1}.get(it, 0)
        assert there in (1, 2)
    assert len({tuple(drawn(number)) for number in COUNTED}) == len(COUNTED)


def test_half_of_the_evenings_need_two_restarts_and_at_sight_saving_every_four_or_five_steps_is_best():
    """What lesson 5.5 says of those who know nothing."""
    nights = [drawn(number) for number in range(1, 1001)]
    need = Counter(next(n for n in range(9) if not reckon(events, repeat(40), n).lost) for events in nights)
    assert {restarts: round(count / 250) for restarts, count in need.items()} == {1: 1, 2: 2, 3: 1}
    costs = {every: fmean(reckon(events, repeat(every), 3).steps for events in nights) for every in range(1, STEPS + 1)}
    assert set(sorted(costs, key=costs.get)[:2]) == {4, 5}
    between = STEPS / fmean(map(len, nights))
    assert 12 <= between < 13 and round((2 * 1 * between) ** 0.5, 1) == 5.0
    bills = {
        (every, n): [reckon(events, repeat(every), n) for events in nights] for every in range(1, 21) for n in range(4)
    }
    cost = {plan: fmean(LOST if it.lost else it.steps for it in those) for plan, those in bills.items()}
    assert cost[OURS] < min(cost.values()) + 0.1 and min(cost[every, 2] for every in range(1, 21)) > cost[OURS] + 3
    assert round(fmean(it.lost for it in bills[OURS[0], 2]), 1) in (0.2, 0.3)


def test_par_cannot_be_undercut_and_the_stored_try_is_not_it():
    assert par(drawn(1)) == 47 and reckon(drawn(1), repeat(16), 2) == Bill(60, 2, 2, False)
    assert reckon(drawn(1), repeat(16), 2).steps == 66 and reckon(drawn(1), repeat(6), 1).lost
    dice = Random(0)
    for events in map(drawn, COUNTED):
        ends = [0, *[event.step for event in events], STEPS]
        known = [later - earlier for earlier, later in pairwise(ends)]
        need = next(n for n in range(4) if not reckon(events, known, n).lost)
        assert reckon(events, known, need).steps == par(events)
        tries = [[dice.randrange(1, 20) for _ in range(99)] for _ in range(300)]
        bills = [reckon(events, legs, n) for legs in tries for n in range(4)]
        assert all(bill.lost or bill.steps >= par(events) for bill in bills)


def test_a_plan_is_reckoned_by_hand():
    events = [Event(5, JOINS), Event(12, KILLED[1]), Event(20, LEAVES)]
    bill = reckon(events, repeat(10), 1)
    assert (bill.taken, bill.saves, bill.lost, bill.steps) == (40 + 5 + 2, 3, False, 50 + PREMIUM)
    assert reckon(events, repeat(10), 0).lost and reckon(events, repeat(10), 0).taken == 5 + 12
    assert reckon(events, [5, 7], 1) == Bill(12, 2, 1, False), "it stands there still; all was saved"


@pytest.mark.parametrize(("share", "used", "same"), [(ours, [2, 1], True), (of_its_own, [2, 1], False)])
def test_real_agents_and_ranks_do_what_is_on_paper(share, used, same):
    """Evening 6: it joins, a rank of each is killed, it leaves. An end with other weights is lost, whatever it cost."""
    events = drawn(6)
    assert [event.what for event in events] == [JOINS, *KILLED, LEAVES]
    it = play(share, 6, 7, 2)
    assert it.over and it.came == [event.what for event in events]
    steps = [line for line in it.lines if "step" in line and line["rank"] == 0]
    assert len(steps) == it.bill.taken == 40 + 2 + 1 + 1 + 2 and it.bill == reckon(events, repeat(7), 2)
    begun = {line["attempt"]: line for line in reversed(steps)}
    assert [begun[attempt]["step"] for attempt in sorted(begun)] == [0, 7, 14, 28, 35], "from the last save each time"
    assert [begun[attempt]["size"] for attempt in sorted(begun)] == [1, 2, 2, 2, 1]
    assert [max(line["used"] for line in it.lines if line["server"] == name) for name in SERVERS] == used
    assert torch.allclose(it.weights, it.calm, atol=1e-5) is same
    words, figure = told(it)
    assert ("bill: steps 40 + taken again 6 + saves 5 + restarts 2 × 2 = 55; par is 48" in words) is same
    assert ("is over. ✓ the weights are the calm job's" in words) is same and ("6 +7 " in words) is same
    assert ("LOST, whatever it cost" in words and "\nno bill; par is 48" in words and "6 ✗" in words) is not same
    assert words.endswith(f"at sight, evening 6: {55 if same else LOST}; our one plan for all evenings: 63")
    assert "it was: before step 9 server2 joins, 15 server1's" in words and len(words.splitlines()) == 7
    par_line = next(it for it in figure.axes[0].collections if it.get_linestyle()[0][1] and it.get_linewidth()[0] == 2)
    ends = par_line.get_segments()[0][:, 1]
    assert min(ends) > -0.6, "it strikes out no word of what comes"
    boxes = [patch for patch in figure.axes[0].patches if patch.get_hatch()]
    assert len(boxes) == 6 + 4, "rank 1 takes all again but the two after it has left"
    pids = {line["pid"] for line in it.lines}
    assert not any(psutil.pid_exists(pid) for pid in pids) and not it.here.exists()


def test_an_evening_that_is_played_order_by_order_tells_what_each_has_met_and_what_that_costs():
    it = Evening(ours, 6, 3)
    UNDER_WAY.append(it)
    said = []
    for leg in (5, 40, 7, 14, 1):  # server1's rank is killed right after a save
        it.train(leg)
        said.append(told(it)[0].splitlines())
        assert len(said[-1]) == 7 and "par" not in told(it)[0], "which would tell how much is still to come"
    heads = [lines[0].partition(": ")[2] for lines in said]
    assert heads == [f"{n} of 40 steps are saved. How many until the next save?" for n in (5, 5, 12, 12, 13)]
    assert [lines[1] for lines in said] == [
        "nothing came",
        "before step 9 server2 joins: back to step 5 (4 steps lost); it costs nobody a restart",
        "nothing came",
        "before step 15 server1's rank is killed: back to step 12 (3 steps lost); it costs server1's agent a restart",
        "nothing came",
    ]
    assert said[0][3] == "can still come: server2 joins, server2 leaves, 2 ranks killed"
    assert said[4][2:4] == [
        "restarts left: server1's agent 2, server2's agent 3",
        "can still come: server2 leaves, 1 rank killed",
    ]
    assert said[4][4] == "bill: steps 15 + taken again 5 + saves 3 + restarts 2 × 3 = 29"
    it.train(16)
    assert told(it)[0].splitlines()[1].endswith("back to step 29 (all was saved); it costs server2's agent a restart")
    pids = {line["pid"] for line in it.lines}
    assert not SIGHT and it.here.exists()
    leave()
    assert SIGHT == {6: LOST} and BEST == {6: None} and not UNDER_WAY, "who leaves it has lost it"
    assert not any(psutil.pid_exists(pid) for pid in pids) and not it.here.exists()


@pytest.mark.parametrize(
    ("events", "loser", "saved"),
    [([Event(6, JOINS), Event(13, KILLED[1])], "server2", 12), ([Event(4, JOINS), Event(9, LEAVES)], "server1", 8)],
)
def test_with_too_few_restarts_it_is_lost(events, loser, saved):
    it = play(ours, 3, 4, 0, events)
    assert it.weights is None and it.came == [event.what for event in events]
    words, figure = told(it)
    assert words.startswith(f"EVENING 3 is over. ✗ LOST: {saved} of 40 steps are saved\nbefore step {events[1].step} ")
    assert f": that costs a restart, and {loser}'s agent has none left\n" in words and "3 ✗   4 ☐" in words
    assert f"\nno bill; par is {par(events)}\n" in words and figure.axes[0].get_xlabel().endswith("evening 3")
    assert len(words.splitlines()) == 7 and figure.axes[0].patches and SIGHT == {3: LOST}


def test_what_a_busy_machine_or_a_hand_on_the_switch_has_upset_does_not_count(monkeypatch):
    it = Evening(ours, 2, 3)
    UNDER_WAY.append(it)
    it.train(3)
    monkeypatch.setattr(evenings, "reckon", lambda *_: Bill(9, 9, 9, False))
    with pytest.raises(RuntimeError, match="went another way than on paper, and does not count"):
        it.train(3)
    monkeypatch.undo()
    assert it.over and not UNDER_WAY and not SIGHT and not it.here.exists()


def test_the_board_keeps_the_best_try_and_adds_up_the_first_ones():
    assert at_sight().endswith("evening from 2 on counts, a lost one as 100")
    for number, cost in [(1, 57), (1, 47), (1, None), (2, None), (2, 60), (3, 60)]:
        evenings._count(SimpleNamespace(number=number, events=drawn(number)), cost)
    assert board().startswith(f"evenings:  1 ✓   2 +{60 - par(drawn(2))}   3 +{60 - par(drawn(3))}   4 ☐")
    ours_ = sum(reckon(drawn(n), repeat(5), 3).steps for n in (2, 3))
    assert at_sight() == f"at sight, evenings 2, 3: {LOST + 60}; our one plan for all evenings: {ours_}"


def test_the_controls_play_what_is_chosen(monkeypatch):
    offered, done = {}, []
    monkeypatch.setattr(evenings, "move", lambda on, at, press, **ranges: offered.update(ranges, on=on))
    monkeypatch.setattr(evenings, "told", lambda it: (it.share, it.number, it.restarts, it.legs))
    monkeypatch.setattr(evenings, "play", lambda share, number, every, restarts: Chosen(share, number, restarts, every))

    class Chosen:
        def __init__(self, share, number, restarts, *legs):
            self.share, self.number, self.restarts, self.legs = list(share(3, 900, 1, 2)), number, restarts, list(legs)

        def train(self, leg):
            self.legs.append(leg)

        def end(self):
            done.append(self.number)
            UNDER_WAY.remove(self)

    monkeypatch.setattr(evenings, "Evening", Chosen)
    monkeypatch.setattr(evenings, "_count", lambda it, cost: None)
    evening(ours)
    on = offered.pop("on")
    assert set(offered["evening"]) == set(COUNTED) and max(offered["restarts"]) == 3
    assert on(1, 2, "all ranks share 64", 16) == (list(ours(3, 900, 1, 2)), 1, 2, [16]) and not UNDER_WAY
    assert on(2, 3, "all ranks share 64", 5)[1:] == (2, 3, [5]) and on(2, 3, "all ranks share 64", 6)[3] == [5, 6]
    assert on(2, 3, "64 for each rank", 7) == (list(of_its_own(3, 900, 1, 2)), 2, 3, [7]) and done == [2]


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (lambda *_: None, "my_images returned nothing"),
        (lambda step, n, rank, size: range(64 * step, 64 * step + 64), "in step 22 rank 0 of 2 asks"),
    ],
)
def test_images_that_there_are_not_are_refused_before_anything_is_played(monkeypatch, share, words):
    monkeypatch.setattr(evenings, "launch", None)
    with pytest.raises(ValueError, match=words):
        evening(share)
