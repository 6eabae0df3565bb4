"""A network learns to read: its answers are those of the loop that lesson 1.2 has its learners write."""

import re

import matplotlib
import pytest
import torch

from ddplab.course.learning_to_read import reading

matplotlib.use("Agg")


@pytest.mark.parametrize(("updates", "of_12", "share"), [(0, 1, 11.7), (20, 8, 48.3), (30, 10, 65.0), (450, 11, 94.7)])
def test_it_reads_half_after_fewer_than_thirty_updates(updates, of_12, share):
    words, figure = reading(updates)
    told = re.fullmatch(r"after (\d+) updates?: (\d+) of these 12 right, and ([\d.]+)% of all 360 test images", words)
    assert int(told[1]) == updates
    assert abs(int(told[2]) - of_12) <= 1 and float(told[3]) == pytest.approx(share, abs=2)  # another CPU may round
    signs = [axis.get_title() for axis in figure.axes]
    assert len(signs) == 12 and sum(sign.endswith("✓") for sign in signs) == int(told[2])
    assert all(re.fullmatch(r"\d [✓✗]", sign) for sign in signs)


def test_some_digits_that_were_right_go_wrong_again():
    before, after = ([axis.get_title()[-1] for axis in reading(updates)[1].axes] for updates in (30, 45))
    assert ("✓", "✗") in zip(before, after, strict=True)


def test_the_random_state_is_left_alone():
    reading.__globals__["_answers"].cache_clear()
    torch.manual_seed(5)
    there = torch.get_rng_state()
    reading(1)
    assert torch.equal(torch.get_rng_state(), there)
