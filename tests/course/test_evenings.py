"""Evenings on two played servers: what is on paper, and what real agents and ranks make of it. Lesson 5.5's."""

from collections import Counter
from itertools import pairwise
from statistics import fmean

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
    STEPS,
    Event,
    alone,
    board,
    drawn,
    evening,
    par,
    play,
    reckon,
    told,
)


def my_images(step, n, rank, size):
    return torch.randperm(n, generator=torch.Generator().manual_seed(step))[:64][rank::size]


def of_its_own(step, n, rank, size):  # as the lesson proposes to try
    return my_images(step * size + rank, n, 0, 1)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(evenings, "BEST", {})
    monkeypatch.setattr(evenings, "SIGHT", {})
    monkeypatch.setattr(evenings, "TRIED", {})


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
    need = Counter(next(n for n in range(9) if not reckon(events, 40, n).lost) for events in nights)
    assert {restarts: round(count / 250) for restarts, count in need.items()} == {1: 1, 2: 2, 3: 1}
    costs = {every: fmean(reckon(events, every, 3).steps for events in nights) for every in range(1, STEPS + 1)}
    assert set(sorted(costs, key=costs.get)[:2]) == {4, 5}
    between = STEPS / fmean(map(len, nights))
    assert 12 <= between < 13 and round((2 * 1 * between) ** 0.5, 1) == 5.0
    bills = {(every, n): [reckon(events, every, n) for events in nights] for every in range(1, 21) for n in range(4)}
    cost = {plan: fmean(LOST if it.lost else it.steps for it in those) for plan, those in bills.items()}
    assert cost[OURS] < min(cost.values()) + 0.1 and min(cost[every, 2] for every in range(1, 21)) > cost[OURS] + 3
    assert [sum(reckon(drawn(n), every, 3).steps for n in range(2, 7)) for every in (4, OURS[0])] == [292, 299]
    assert round(fmean(it.lost for it in bills[OURS[0], 2]), 1) in (0.2, 0.3)


def test_par_cannot_be_undercut_and_the_stored_try_is_not_it():
    assert par(drawn(1)) == reckon(drawn(1), 6, 2).steps == 56 and reckon(drawn(1), 16, 2).steps == 66
    assert [every for every in range(1, 41) if reckon(drawn(1), every, 2).steps == 56] == [6], "one plan alone"
    assert reckon(drawn(1), 6, 1).lost and all(par(drawn(number)) > STEPS for number in COUNTED)


def test_a_plan_is_reckoned_by_hand():
    events = [Event(5, JOINS), Event(12, KILLED[1]), Event(20, LEAVES)]
    bill = reckon(events, 10, 1)
    assert (bill.taken, bill.saves, bill.lost, bill.steps) == (40 + 5 + 2, 3, False, 50 + PREMIUM)
    assert reckon(events, 10, 0).lost and reckon(events, 10, 0).taken == 5 + 12


@pytest.mark.parametrize(
    ("share", "restarts", "used", "same"), [(my_images, 2, [2, 1], True), (of_its_own, 3, [2, 1], False)]
)
def test_real_agents_and_ranks_do_what_is_on_paper(share, restarts, used, same):
    """Evening 6: it joins, a rank of each is killed, it leaves. The bill does not notice whose images it were."""
    events = drawn(6)
    assert [event.what for event in events] == [JOINS, *KILLED, LEAVES]
    lines, weights = play(share, events, 7, restarts)
    assert [line["came"] for line in lines if "came" in line] == [event.what for event in events]
    bill, steps = reckon(events, 7, restarts), [line for line in lines if "step" in line and line["rank"] == 0]
    assert len(steps) == bill.taken == 40 + 2 + 1 + 1 + 2
    begun = {line["attempt"]: line for line in reversed(steps)}
    assert [begun[attempt]["step"] for attempt in sorted(begun)] == [0, 7, 14, 28, 35], "from the last save each time"
    assert [begun[attempt]["size"] for attempt in sorted(begun)] == [1, 2, 2, 2, 1]
    assert [max(it["used"] for it in lines if it["server"] == name) for name in SERVERS] == used
    calm = alone(share)
    assert torch.allclose(weights, calm, atol=1e-5) is same
    words, figure = told(lines, weights, calm, 6, 7, restarts, 6)
    assert f"40 steps + 6 taken again + 5 saves + {2 * restarts} for restarts = {51 + 2 * restarts}; par is 55" in words
    assert "you bet 6 taken again: ♦ won" in words
    assert ("✓ the weights are the calm job's" in words) is same and ("6 +0♦" in words or "6 ✗♦" in words) is not same
    assert ("off; at sight that counts as 100" in words) is ("7/3 weights ✗" in words) is not same
    assert len(words.splitlines()) == 8, "the page stays still"
    par_line = next(it for it in figure.axes[0].collections if it.get_linestyle()[0][1] and it.get_linewidth()[0] == 2)
    ends = par_line.get_segments()[0][:, 1]
    assert min(ends) > -0.6, "it strikes out no word of what comes"
    boxes = [patch for patch in figure.axes[0].patches if patch.get_hatch()]
    assert len(boxes) == 6 + 4, "rank 1 takes all again but the two after it has left"
    assert not any(psutil.pid_exists(pid) for pid in {line["pid"] for line in lines})


@pytest.mark.parametrize(
    ("events", "restarts", "loser", "saved"),
    [
        ([Event(6, JOINS), Event(13, KILLED[1])], 0, "server2", 12),
        ([Event(4, JOINS), Event(9, LEAVES)], 0, "server1", 8),
    ],
)
def test_with_too_few_restarts_it_is_lost(monkeypatch, events, restarts, loser, saved):
    monkeypatch.setattr(evenings, "drawn", lambda number: events)
    lines, weights = play(my_images, events, 4, restarts)
    assert weights is None and [line["came"] for line in lines if "came" in line] == [event.what for event in events]
    words, figure = told(lines, weights, torch.ones(1), 3, 4, restarts, 0)
    assert f"✗ LOST: {loser}'s agent had no restart left; {saved} of 40 steps are saved" in words
    assert f"bill):  4/{restarts} ✗\n" in words and "3 ✗   4 ☐" in words and "your bet is lost" in words
    assert f"no bill; par is {par(events)}\n" in words
    assert words.startswith(f"EVENING 3, a save every 4, restarts allowed {restarts}, used ")
    assert "are saved; at sight that counts as 100\n" in words and figure.axes[0].get_xlabel().endswith("evening 3")
    assert "counts as" not in told(lines, weights, torch.ones(1), 3, 4, restarts, 0)[0], "no longer at sight"
    assert len(words.splitlines()) == 8 and figure.axes[0].patches


def test_the_board_keeps_the_best_try_and_a_bet_once_won():
    for number, over, won in [(1, 10, False), (1, 0, True), (1, None, False), (2, None, False), (40, 3, True)]:
        evenings._mark(number, over, won)
    assert board().startswith("evenings:  1 ✓♦   2 ✗   3 ☐") and "40" not in board() and BEST == {}


def test_first_tries_are_added_up_beside_our_one_plan(monkeypatch):
    def tried(number, every, restarts):
        taken, saves, _, lost = reckon(drawn(number), every, restarts)
        lines = [{"step": n % STEPS, "rank": 0} for n in range(taken)] + [{"saved": n, "rank": 0} for n in range(saves)]
        lines = [line | {"server": SERVERS[0], "used": 0} for line in lines]
        lines += [{"came": drawn(number)[-1].what, "server": SERVERS[0], "used": 0}]
        return told(lines, None if lost else torch.ones(1), torch.ones(1), number, every, restarts, 0)[0]

    monkeypatch.setattr(evenings, "strip", lambda *_: None)
    assert tried(1, 6, 2).endswith("each evening from 2 on counts"), "the lesson plays it"
    assert tried(2, 10, 3).endswith(
        f"at sight, evening 2: {reckon(drawn(2), 10, 3).steps}; our one plan for all evenings: 57"
    )
    assert "at sight, evening 2:" in tried(2, 5, 2), "what is known is no longer at sight"
    said = tried(next(n for n in COUNTED[1:] if reckon(drawn(n), 5, 0).lost), 5, 0)
    assert f": {reckon(drawn(2), 10, 3).steps}; " in said, "the first try stays"
    assert f"at sight, evenings 2, 3: {reckon(drawn(2), 10, 3).steps + LOST}; " in tried(3, 5, 0)


def test_the_best_try_is_marked_and_stays_among_the_newest():
    for every, cost in ((16, 66), (6, 56), (1, None), (2, 70), (3, 69), (4, 68), (5, 67)):
        words = evenings.tries(1, f"{every}/2", cost)
    assert words.endswith("bill):  6/2 56★   1/2 ✗   2/2 70   3/2 69   4/2 68   5/2 67")
    assert evenings.tries(1, "6/2", 56).endswith("5/2 67   6/2 56★"), "a plan that is tried again stands there once"
    said = evenings.tries(1, "6/2 weights", None)
    assert said.endswith("6/2 56★   6/2 weights ✗"), "with other images it is no worse a plan"
    assert evenings.tries(2, "6/0", None).endswith("bill):  6/0 ✗")


def test_the_controls_play_what_is_chosen(monkeypatch):
    offered = {}
    monkeypatch.setattr(evenings, "move", lambda tried, at, press, **ranges: offered.update(ranges, tried=tried))
    monkeypatch.setattr(evenings, "play", lambda share, *plan: ([list(share(3, 900, 1, 2)), plan], None))
    monkeypatch.setattr(evenings, "told", lambda lines, weights, calm, *chosen: (lines, chosen))
    evening(my_images)
    tried = offered.pop("tried")
    assert set(offered["evening"]) == set(COUNTED) and max(offered["restarts"]) == 4
    for images, share in (("my_images", my_images), ("64 for each rank", of_its_own)):
        (numbers, plan), chosen = tried(2, 5, 3, images, 7)
        assert numbers == list(share(3, 900, 1, 2)) and plan == (drawn(2), 5, 3) and chosen == (2, 5, 3, 7)


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (lambda *_: None, "my_images returned nothing"),
        (lambda step, n, rank, size: range(64 * step, 64 * step + 64), "in step 22 rank 0 of 2 asks"),
    ],
)
def test_images_that_there_are_not_are_refused_before_anything_is_played(monkeypatch, share, words):
    monkeypatch.setattr(evenings, "play", None)
    with pytest.raises(ValueError, match=words):
        evening(share)
