"""The rows that ranks logged: typed, in order, complete."""

import os

import pytest
import torch

from ddplab import RankError, launch, log


def test_metrics_are_rows_with_rank_step_and_time():
    def train():
        for epoch in range(3):
            log(epoch=epoch, loss=torch.tensor(1.5), name="a", flag=True, nothing=None)

    metrics = launch(train, quiet=True).metrics
    assert len(metrics) == 6 and metrics.column("loss", rank=0) == [1.5] * 3
    assert metrics.columns() == ["epoch", "loss", "name", "flag", "nothing"]
    assert [row["step"] for row in metrics if row["rank"] == 1] == [0, 1, 2]
    assert all(0 <= row["time"] < 60 for row in metrics)
    with pytest.raises(KeyError, match="there is: epoch, loss"):
        metrics.column("accuracy")
    assert "<table>" in metrics._repr_html_()


def test_nan_and_infinity_survive():
    run = launch(lambda: log(a=float("nan"), b=float("inf")), nproc_per_node=1, quiet=True)
    row = run.metrics[0]
    assert row["a"] != row["a"] and row["b"] == float("inf")


def test_no_row_is_lost_when_the_rank_is_killed():
    def die():
        for step in range(1000):
            log(step=step)
        os.kill(os.getpid(), 9)

    with pytest.raises(RankError) as caught:
        launch(die, nproc_per_node=1, quiet=True)
    assert [row["step"] for row in caught.value.run.metrics] == list(range(1000))
