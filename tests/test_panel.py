"""How a run shows itself in a script, and a panel that fails. test_kernel and test_browser have the live one."""

import time
from itertools import pairwise

import pytest

from ddplab import launch, launcher
from ddplab.follow import View
from ddplab.panel import KEPT_POINTS, Trail


def test_the_summary_is_one_stable_line(capsys):
    launch(lambda: print("hello"), device="cpu")
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == ["2 ranks on cpu (gloo): finished", "[rank 0] hello", "[rank 1] hello"]


def test_a_trail_of_many_points_stays_small_even_and_ends_with_the_newest():
    trail = Trail()
    for step in range(100_000):
        trail.add((step, 0.5))
        assert trail[0] == (0, 0.5) and trail[-1] == (step, 0.5) and len(trail) <= KEPT_POINTS
    assert len({after[0] - before[0] for before, after in pairwise(trail[:-1])}) == 1


def test_a_panel_that_fails_does_not_end_the_run(monkeypatch):
    class Broken(View):
        def update(self):
            raise ZeroDivisionError

    monkeypatch.setattr(launcher, "view_of", lambda *_: Broken())
    with pytest.warns(UserWarning, match="the panel stopped, the run goes on"):
        assert launch(lambda: time.sleep(0.2)).state == "finished"
