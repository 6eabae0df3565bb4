"""The data and the models that the lessons share."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ddplab.course.data import digits, random_images

ROOT = Path(__file__).parents[2]
FIRST_TRAIN = [2, 8, 2, 6, 6, 7, 1, 9, 8, 5, 2, 8]
FIRST_TEST = [7, 9, 4, 7, 0, 2, 6, 1, 3, 1, 3, 7]


@pytest.mark.parametrize(("train", "n"), [(True, 1437), (False, 360)])
def test_digits_have_the_promised_shapes_types_and_range(train, n):
    x, y = digits(train=train).tensors
    assert x.shape == (n, 1, 8, 8) and x.dtype == torch.float32
    assert y.shape == (n,) and y.dtype == torch.int64
    assert x.min() == 0 and x.max() == 1
    assert sorted(set(y.tolist())) == list(range(10))
    assert torch.equal(x * 16, (x * 16).round()), "the file holds whole numbers from 0 to 16"


def test_the_two_parts_are_the_uci_digits_and_share_no_row():
    _, y = digits(train=True).tensors
    _, y_test = digits(train=False).tensors
    counts = torch.bincount(torch.cat([y, y_test]), minlength=10).tolist()
    # the class counts that UCI's own description of the file (optdigits.tes) lists
    assert counts == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    x = torch.cat([digits(train=True).tensors[0], digits(train=False).tensors[0]])
    assert len(x.flatten(1).unique(dim=0)) == 1797, "every image is there once"


def test_each_digit_is_in_each_part_about_as_often():
    for train in (True, False):
        counts = torch.bincount(digits(train=train).tensors[1], minlength=10) / len(digits(train=train))
        assert counts.min() > 0.07 and counts.max() < 0.13


def test_the_split_is_the_same_every_time_and_draws_no_random_number():
    torch.manual_seed(1)
    random.seed(1)
    before = torch.get_rng_state(), random.getstate()
    first = digits().tensors
    torch.manual_seed(2)
    second = digits().tensors
    torch.manual_seed(1)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    digits(train=False)
    random_images(10)
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]


def test_the_first_labels_do_not_change_between_releases():
    assert digits(train=True).tensors[1][:12].tolist() == FIRST_TRAIN
    assert digits(train=False).tensors[1][:12].tolist() == FIRST_TEST


def test_random_images_are_seeded_noise():
    x, y = random_images().tensors
    assert x.shape == (1000, 1, 28, 28) and y.shape == (1000,) and y.dtype == torch.int64
    assert abs(x.mean()) < 0.01 and abs(x.std() - 1) < 0.01
    assert torch.equal(x, random_images(seed=0).tensors[0])
    assert not torch.equal(x, random_images(seed=1).tensors[0])


def test_digits_are_found_from_any_directory(tmp_path):
    code = "from ddplab.course.data import digits; print(len(digits()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1437"


def test_source_and_licence_are_named():
    for text in ((ROOT / "NOTICE").read_text(), sys.modules["ddplab.course.data"].__doc__):
        assert "10.24432/C50P49" in text and "CC BY 4.0" in text and "Alpaydin" in text
