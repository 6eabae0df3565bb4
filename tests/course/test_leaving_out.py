"""A script with a line taken out, as lesson 5.6 plays it."""

from pathlib import Path

import pytest

from ddplab.course.leaving_out import taken_out

SCRIPT = str(Path(__file__).parents[2] / "lessons" / "5_torchrun" / "train.py")


def test_what_a_missing_line_does_is_told():
    whole, only_the_number, one_epoch_twice, refused = taken_out(
        SCRIPT, "dist.all_reduce(total)", ("epoch + 1)", "epoch)"), "dist.init_process_group(", epochs=2
    ).rows
    assert whole[1] == "none" and whole[3:] == ["to compare with", "begins at 1: the same bits"]
    assert only_the_number[3:] == ["the same bits", "begins at 1: the same bits"] and only_the_number[2] != whole[2]
    assert one_epoch_twice[3] == "the same bits" and one_epoch_twice[4].startswith("begins at 0: ")
    assert refused[1].startswith("ValueError: Default process group") and refused[3:] == ["", ""]


def test_what_is_not_one_line_is_refused():
    with pytest.raises(ValueError, match=r"stands in 0 lines"):
        taken_out(SCRIPT, "dist.all_gather(")
    with pytest.raises(ValueError, match=r"stands in 2 lines"):
        taken_out(SCRIPT, "dist.all_reduce(")
    with pytest.raises(ValueError, match=r"no Python: .*line \d+"):
        taken_out(SCRIPT, "loader = DataLoader(")
