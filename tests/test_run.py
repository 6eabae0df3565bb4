"""Promise 8, and what a run is while it runs and after: watched, stopped, waited for, drawn."""

import time

import pytest
from leftovers import ranks_alive, until

from ddplab import RankError, launch, log


def test_a_run_without_wait_can_be_watched_and_stopped():
    def endless():
        for step in range(10**9):
            log(step=step, loss=1.0 / (step + 1))
            time.sleep(0.01)

    run = launch(endless, wait=False, quiet=True)
    assert run.state == "running" and until(lambda: len(run.metrics) > 10)
    run.stop()
    assert run.state == "stopped" and run.results == [None, None] and not ranks_alive()
    assert len(run.metrics.column("loss", rank=1)) > 1
    assert run.wait() is run


def test_wait_raises_the_error_of_a_run_that_failed():
    run = launch(lambda: 1 / 0, wait=False, quiet=True)
    with pytest.raises(RankError, match="ZeroDivisionError"):
        run.wait()
    assert run.state == "failed"


def test_the_curves_are_drawn_with_a_visible_line_that_says_what_they_show():
    def train():
        for step in range(4):
            log(loss=float(step), accuracy=0.5)

    run = launch(train, quiet=True)
    figure = run.plot("loss")
    (axis,) = figure.axes
    assert axis.get_title() == "loss at each step, one line per rank" and len(axis.lines) == 2
    assert axis.lines[0].get_linestyle() != axis.lines[1].get_linestyle()
    assert len(run.plot().axes) == 2
    assert list(run.plot("loss", level=2.5).axes[0].lines[-1].get_ydata()) == [2.5, 2.5]
    with pytest.raises(KeyError):
        run.plot("nothing")
