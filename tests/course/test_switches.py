"""Four switches: what is trained, what the page shows, and when a cure is one."""

import base64
import json

import pytest
from leftovers import until as soon

from ddplab.course import switches
from ddplab.course.switches import COMPARED, four_switches
from ddplab.course.trials import TOP, Trial


@pytest.fixture
def live(monkeypatch):
    monkeypatch.setattr(switches, "live", lambda: True)


@pytest.fixture
def displayed(monkeypatch):
    import IPython.display

    class Handle:
        def update(self, data, raw):
            shown.append(data)

    def display(data, raw=False, display_id=None):
        shown.append(data)
        return Handle() if display_id else None

    shown = []
    monkeypatch.setattr(IPython.display, "display", display)
    return shown


def test_runs_differ_by_seed_alone_and_learn():
    runs = four_switches(epochs=3)
    runs.train(16, 0.1, seeds=(0, 1))
    runs.train(16, 0.1)
    first, again = (trial.curves() for trial in runs.trials)
    assert first[0] == again[0] != first[1]
    assert [epoch for epoch, _ in first[0]] == [0, 1, 2, 3] and first[0][-1][1] < first[0][0][1] / 2
    assert runs.trials[0].facts()[:6] == ["16", "1", "16", "0.1", "3", "270"]  # 90 batches of 16 in 1,437 images
    assert " to " in runs.trials[0].facts()[6] and " to " not in runs.trials[1].facts()[6]


def test_ranks_that_share_a_batch_train_as_one_that_has_it():
    runs = four_switches(epochs=1)
    runs.train(64, 0.1, 1, (0, 1))
    runs.train(32, 0.1, 2, (0, 1))
    alone, shared = (trial.curves() for trial in runs.trials)
    for seed in (0, 1):
        assert [loss for _, loss in shared[seed]] == pytest.approx([loss for _, loss in alone[seed]], abs=1e-5)
    assert runs.trials[1].facts()[:4] == ["32", "2", "64", "0.1"]
    assert Trial(1024, 1.0, 2, (0,), runs.trials[0].run).facts()[2] == "all 1437"


def test_a_cure_is_one_switch_and_three_seeds():
    quest = four_switches()
    done = lambda: [words for is_found, words in quest.found() if is_found]  # noqa: E731
    quest.accuracies = {(8, 1.0, 1): {0: 0.2, 1: 0.2}, (16, 1.0, 1): {0: 0.9, 1: 0.7, 2: 0.9}}
    quest.accuracies |= {(16, 0.1, 1): dict.fromkeys(range(3), 0.9), (4, 1.0, 2): dict.fromkeys(range(3), 0.2)}
    assert done() == [] and [words for _, words in quest.found()][1:] == ["a cure: turn one switch"] * 3
    quest.accuracies[8, 1.0, 1][2] = 0.3
    assert done() == ["make it fail: batch 8, rate 1, 1 rank"]
    for setting, cure in [
        ((8, 1.0, 2), "more ranks with 8 each"),
        ((8, 0.1, 1), "a smaller rate"),
        ((64, 1.0, 1), "a larger batch"),
    ]:
        quest.accuracies[setting] = dict.fromkeys(range(3), 0.95)
        assert f"a cure: {cure}" in done()
        assert (quest.end() == "") == (len(done()) < 4)
    assert len(done()) == len(quest.found()) == 4


def test_the_end_sorts_what_was_tried_by_the_rate_for_an_image_and_asks_for_a_record():
    quest = four_switches()
    fails, well = dict.fromkeys(range(3), 0.2), dict.fromkeys(range(3), 0.9)
    quest.accuracies = {(8, 1.0, 1): fails, (8, 0.1, 1): well, (64, 1.0, 1): well, (4, 0.3, 1): {0: 0.9}}
    rows = quest.tried()
    assert [row[1] for row in rows] == ["4", "64", "8", "8"] and rows[0][0] == "→"  # the newest first
    assert [row[7] for row in rows] == ["… 1 of 3 trained", "✓ 3 of 3, a cure", "✓ 3 of 3, a cure", "✗ 0 of 3"]
    assert all(len(row) == len(switches.TRIED) for row in rows) and rows[3][5:7] == ["0.125", "0.200"]
    quest.accuracies[8, 1.0, 2] = well
    assert [row[5] for row in quest.tried()] == ["0.125", "0.075", "0.0625", "0.0156", "0.0125"]  # by rate ÷ images
    assert "Three of three!" in quest.end() and "is 0.0625 (batch 8, rate 1, 2 ranks). Does" in quest.end()
    quest.accuracies[4, 0.3, 1] = {0: 0.9, 1: 0.9, 2: 0.7}
    quest.trials = [Trial(4, 0.3, 1, (0, 1, 2), None)]
    assert quest.said().endswith("2 of 3 seeds learn (test accuracy above 0.8).")
    assert "is 0.0625" in quest.end()  # not without the third seed
    quest.accuracies[4, 0.3, 1] = well
    assert "is 0.075 (batch 4, rate 0.3)." in quest.end() and quest.said().endswith("It holds your record.")


def test_each_cure_leaves_less_of_the_rate_for_an_image():
    start = switches._for_an_image(switches.START)
    every = [(batch, rate, ranks) for batch in switches.BATCHES for rate in switches.RATES for ranks in switches.RANKS]
    assert {switches._cure(it) for it in every} == {"", *switches.CURES}
    assert all(switches._for_an_image(it) < start for it in every if switches._cure(it))


@pytest.mark.parametrize(
    ("setting", "accuracies", "told"),
    [
        ((8, 1.0, 1), [0.2], "Trained, 1 of 3 seeds: a tick needs all three."),
        ((8, 1.0, 1), [0.2] * 3, "0 of 3 seeds learn (test accuracy above 0.8). It fails: now turn one switch."),
        ((8, 0.1, 1), [0.9] * 3, "You have turned the rate: a cure."),
        ((4, 1.0, 1), [0.9, 0.2, 0.2], "You have turned the batch: not yet a cure."),
        ((16, 0.1, 1), [0.9] * 3, "You have turned the batch and the rate: which of them matters? Turn one alone."),
    ],
)
def test_what_a_trial_tells(setting, accuracies, told):
    quest = four_switches()
    quest.trials = [Trial(*setting, (0,), None)]
    quest.accuracies[setting] = dict(enumerate(accuracies))
    assert quest.said().endswith(told)


def test_a_picture_and_a_table_where_nobody_can_press(displayed):
    runs = four_switches((64, 0.1), (256, 1.0), epochs=1)
    runs._ipython_display_()
    (bundle,) = displayed
    assert bundle.keys() == {"image/png", "text/plain"}
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    rows = [line.split()[:4] for line in bundle["text/plain"].splitlines()[1:]]
    assert rows == [["64", "1", "64", "0.1"], ["256", "1", "256", "1"]]
    runs._ipython_display_()
    assert len(runs.trials) == 2  # shown again, not trained again


def test_switches_and_buttons(live, displayed):
    runs = four_switches((64, 0.1), epochs=1)
    runs.train(64, 0.1)
    runs._ipython_display_()
    first, last = displayed
    assert "image/png" not in first and {"image/png", "text/plain"} < last.keys()
    view = "application/vnd.jupyter.widget-view+json"
    assert first[view] == last[view]
    page = runs._widget()
    names = lambda: [trial["name"] for trial in page.drawn["trials"]]  # noqa: E731
    assert page.chosen == [64, 0.1, 1, "all three"] and names() == ["batch 64, rate 0.1"]
    page.asked = [1, "train", 1024, 3.0, 2, "all three"]
    page.asked = [2, "train", 8, 3.0, 1, "0"]  # while it trains this does nothing
    assert soon(lambda: page.drawn["status"].startswith("Trained: ") and len(names()) == 2, 60)
    assert names()[1] == "batch 1024, rate 3, 2 ranks" and len(page.drawn["trials"][1]["curves"]) == 3
    json.dumps(page.drawn)
    page.asked = [3, "clear", 8, 3.0, 1, "0"]
    assert not runs.trials and page.drawn["status"] == "The charts are gone; the list and what is ticked stay."
    assert [row[1] for row in page.drawn["tried"]] == ["1024", "64"]  # and so does the list


def test_a_quest_leaves_the_first_run_to_who_looks_at_it(live, displayed):
    quest = four_switches((8, 1.0))
    quest._ipython_display_()
    assert len(displayed) == 1 and displayed[0]["text/plain"] == "Nothing trained yet."


def test_the_oldest_makes_room():
    runs = four_switches(epochs=1)
    for batch in (1024, 512, 256, 128, 64):
        runs.train(batch, 0.1)
    assert [trial.batch for trial in runs.trials] == [512, 256, 128, 64] and len(runs.trials) == COMPARED


def test_a_run_that_blows_up_stays_in_the_chart():
    runs = four_switches(epochs=2)
    runs.train(8, 1e30)
    points = runs.trials[0].curves()[0]
    assert len(points) == 3 and points[-1][1] == TOP
    assert "nan" in str(runs) or "inf" in str(runs)
    assert runs.figure()


def test_what_goes_wrong_is_said_in_the_page(live, monkeypatch):
    def refuse(*_, **__):
        raise OSError("no room")

    monkeypatch.setattr(switches, "launch", refuse)
    page = four_switches()._widget()
    for n in range(2):  # and the next try is not refused
        page.drawn = {}
        page.asked = [n, "train", 8, 1.0, 1, "0"]
        assert soon(lambda: page.drawn.get("status") == "OSError: no room")
        assert soon(lambda: not page.drawn["trials"])


@pytest.mark.parametrize(
    ("settings", "options"),
    [([(0, 0.1)], {}), ([(8, 0)], {}), ([(8, 0.1)] * 5, {}), ([(8, 0.1, 3)], {}), ([], {"epochs": 0})],
)
def test_what_cannot_be_trained(settings, options):
    with pytest.raises(ValueError, match=r"at most 4 settings|at least 1"):
        four_switches(*settings, **options)
