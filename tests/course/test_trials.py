"""Runs side by side: what is trained, shown and pressed."""

import base64

import pytest
from leftovers import until as soon

import ddplab.course.trials
from ddplab.course import trials
from ddplab.course.trials import COMPARED, TOP, side_by_side


@pytest.fixture
def live(monkeypatch):
    monkeypatch.setattr(ddplab.course.trials, "live", lambda: True)


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
    runs = side_by_side(epochs=3)
    runs.train(16, 0.1, 2)
    runs.train(16, 0.1, 1)
    first, again = (trial.curves() for trial in runs.trials)
    assert first[0] == again[0] != first[1]
    assert [epoch for epoch, _ in first[0]] == [0, 1, 2, 3] and first[0][-1][1] < first[0][0][1] / 2
    assert runs.trials[0].facts()[:4] == ["16", "0.1", "3", "270"]  # 90 batches of 16 in 1,437 images
    assert " to " in runs.trials[0].facts()[4] and " to " not in runs.trials[1].facts()[4]


def test_a_picture_and_a_table_where_nobody_can_press(displayed):
    runs = side_by_side((64, 0.1), (256, 1.0), seeds=1, epochs=1)
    runs._ipython_display_()
    (bundle,) = displayed
    assert bundle.keys() == {"image/png", "text/plain"}
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert [line.split()[:2] for line in bundle["text/plain"].splitlines()[1:]] == [["64", "0.1"], ["256", "1"]]
    runs._ipython_display_()
    assert len(runs.trials) == 2  # shown again, not trained again


FIRST = {"batch": "64", "rate": "0.1", "seeds": "1"}


def test_lists_and_buttons(live, displayed):
    runs = side_by_side((64, 0.1), seeds=1, epochs=1)
    runs._ipython_display_()
    first, last = displayed
    assert "image/png" not in first and {"image/png", "text/plain"} < last.keys()
    view = "application/vnd.jupyter.widget-view+json"
    assert first[view] == last[view]
    lists, buttons, page = runs._widget().children
    go, clear = buttons.children
    assert {name: lists.options[name][n] for name, n in lists.chosen.items()} == FIRST
    assert "batch 64, rate 0.1" in page.value
    lists.chosen = {name: len(lists.options[name]) - 1 for name in ("batch", "rate")} | {"seeds": 1}
    go.click()
    go.click()  # while it trains this does nothing
    assert soon(lambda: "Trained." in page.value and "rate 3" in page.value, 60)
    assert "batch 1024, rate 3" in page.value and page.value.count("<polyline") == 3 and "Trained." in page.value
    clear.click()
    assert not runs.trials and "Nothing trained yet" in page.value


def test_the_oldest_makes_room():
    runs = side_by_side(epochs=1)
    for batch in (1024, 512, 256, 128, 64):
        runs.train(batch, 0.1, 1)
    assert [trial.batch for trial in runs.trials] == [512, 256, 128, 64] and len(runs.trials) == COMPARED


def test_a_run_that_blows_up_stays_in_the_chart():
    runs = side_by_side(epochs=2)
    runs.train(8, 1e30, 1)
    points = runs.trials[0].curves()[0]
    assert len(points) == 3 and points[-1][1] == TOP
    assert "nan" in str(runs) or "inf" in str(runs)
    assert "<polyline" in runs._page(False) and runs.figure()


def test_what_goes_wrong_is_said_in_the_page(live, monkeypatch):
    def refuse(*_, **__):
        raise OSError("no <room>")

    monkeypatch.setattr(trials, "launch", refuse)
    runs = side_by_side()
    _, buttons, page = runs._widget().children
    for _ in range(2):  # and the next try is not refused
        page.value = ""
        buttons.children[0].click()
        assert soon(lambda: "OSError: no &lt;room&gt;" in page.value)


@pytest.mark.parametrize(
    ("settings", "options"),
    [([(0, 0.1)], {}), ([(8, 0)], {}), ([(8, 0.1)] * 5, {}), ([], {"seeds": 4}), ([], {"epochs": 0})],
)
def test_what_cannot_be_trained(settings, options):
    with pytest.raises(ValueError, match=r"at most 4 settings|at least 1"):
        side_by_side(*settings, **options)
