"""Promises 6 and 9 where something is killed at a random moment; `stress/kills.py` plays 200 rounds, kernels too."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "stress"))
import kills
from leftovers import until

KILLED_AT_ONCE = """
import os, signal, torch
from ddplab.folder import Folder
from ddplab.processes import warm_up
warm_up()
Folder.new(2)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.times(6, stress=60)
def test_whatever_rank_is_killed_and_when_nothing_is_left_no_row_is_lost_and_the_next_launch_works(times):
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    for number in times:
        kind = ("rank", "ranks", "spare")[number % 3]
        end, wrong = kills.round_of(kind, rng)
        assert wrong == [], f"seed {seed}, round {number}, {kind}: {end}"


def test_a_kernel_that_is_killed_while_its_forkserver_still_imports_torch_leaves_no_folder(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("DDPLAB_")}
    gone = subprocess.run([sys.executable, "-c", KILLED_AT_ONCE], env=env | {"TMPDIR": str(tmp_path)}, timeout=120)
    assert gone.returncode == -signal.SIGKILL
    until(lambda: not list(tmp_path.glob("*-*")), 60)
    assert not list(tmp_path.glob("ddplab-*")) and not list(tmp_path.glob("pymp-*"))
