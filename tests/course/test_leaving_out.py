"""A script with a line taken out, as lesson 5.6 plays it."""

from pathlib import Path

import pytest
import torch

from ddplab.course.leaving_out import BLANKS, _run, filled, left_blank, taken_out

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


def test_a_checkpoint_that_cannot_be_read_is_told():
    """Without `torch.save(` the file is there, and empty; without a model in it there are no weights to compare."""
    _, empty, without_model = taken_out(SCRIPT, "torch.save(", ('"model": model.module, ', ""), epochs=2).rows
    assert empty[1] == "none" and empty[3:] == ["what is saved cannot be read", "EOFError"]
    assert without_model[1] == "none" and without_model[3] == "no model is saved"


def test_what_the_learner_writes_is_left_blank():
    blank = left_blank(SCRIPT)
    assert compile(str(blank), "train.py", "exec")
    assert not [words for them in BLANKS.values() for words in them if words in str(blank)]
    assert [str(blank).count(f"# your turn {turn}") for turn in BLANKS] == [2, 1, 1]  # a: refused, and shared out
    assert "batch_size=...,  # your turn a" in str(blank) and "manual_seed(...)  # your turn b" in str(blank)
    assert 'aria-label="train.py" tabindex="0"' in blank._repr_html_()
    with pytest.raises(ValueError, match="stands in 2 lines"):
        left_blank(SCRIPT, {"a": ["dist.all_reduce("]})


def test_what_the_learner_has_written_trains_as_the_script_does(tmp_path):
    """Our ways end with the same bits; another seed of an epoch does not, and a batch or a place refused is told."""

    def refuse(*given):
        raise ValueError(f"refused {given}")

    ours = {
        "asked": lambda words, size: (words, int(words[3]) // size),
        "seed": lambda run, epoch, rank: (run * 1000 + epoch) * 10000 + rank,
        "agreed": lambda found: found,
    }
    weights = {}
    for name, changed in {"ours": {}, "another": {"seed": lambda run, epoch, rank: 7}}.items():
        folder = tmp_path / name
        folder.mkdir()
        source = Path(filled(SCRIPT, str(folder), **{**ours, **changed})).read_text()
        error, _, weights[name] = _run(source, f"{folder}/run.pt", 2)
        assert not error
    error, _, whole = _run(Path(SCRIPT).read_text(), f"{tmp_path}/run.pt", 2)
    assert not error and torch.equal(weights["ours"], whole) and not torch.equal(weights["another"], whole)
    for name in ("asked", "agreed"):
        source = Path(filled(SCRIPT, str(tmp_path), **{**ours, name: refuse})).read_text()
        assert _run(source, f"{tmp_path}/{name}.pt", 2)[0].startswith("ValueError: refused")
