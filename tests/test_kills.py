"""Promises 6 and 9 where something is killed at a random moment; `stress/kills.py` plays 200 rounds, kernels too."""

import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "stress"))
import kills


@pytest.mark.times(6, stress=60)
def test_whatever_rank_is_killed_and_when_nothing_is_left_no_row_is_lost_and_the_next_launch_works(times):
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    for number in times:
        kind = ("rank", "ranks", "spare")[number % 3]
        end, wrong = kills.round_of(kind, rng)
        assert wrong == [], f"seed {seed}, round {number}, {kind}: {end}"
