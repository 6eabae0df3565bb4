"""Torchrun's agent, called from Python, as lesson 5.5 calls it. What a typed one does: `test_played_servers.py`."""

import os
import signal

from ddplab import launch
from ddplab.course.played_agent import agent_of


def test_an_agent_starts_both_ranks_again_while_restarts_are_left(tmp_path):
    def dies_once(word):
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        print(f"{word} {attempt}: rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}")
        if attempt == "0":
            if os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()  # until torchrun stops it

    def job():  # rank 0 allows no restart, rank 1 allows one
        restarts = int(os.environ["RANK"])
        return agent_of(dies_once, "attempt", restarts=restarts, logs=str(tmp_path))

    run = launch(job, nproc_per_node=2, device="cpu", init=False, quiet=True)
    assert run.results == ["failed", "finished"]
    assert "attempt 1" not in run.output[0]
    assert "attempt 1: rank 0 of 2" in run.output[1] and "attempt 1: rank 1 of 2" in run.output[1]
