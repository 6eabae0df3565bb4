"""How a run shows itself in a script, and a panel that fails. test_kernel and test_browser have the live one."""

import time

import pytest

from ddplab import launch, launcher
from ddplab.follow import View


def test_the_summary_is_one_stable_line(capsys):
    launch(lambda: print("hello"), device="cpu")
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == ["2 ranks on cpu (gloo): finished", "[rank 0] hello", "[rank 1] hello"]


def test_a_panel_that_fails_does_not_end_the_run(monkeypatch):
    class Broken(View):
        def update(self):
            raise ZeroDivisionError

    monkeypatch.setattr(launcher, "view_of", lambda *_: Broken())
    with pytest.warns(UserWarning, match="the panel stopped, the run goes on"):
        assert launch(lambda: time.sleep(0.2)).state == "finished"
