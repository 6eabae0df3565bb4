"""The album of endings: what lesson 9.3 says of it, how many there are, and how few steps fill it."""

import random

import pytest
import torch
from torch import nn

from ddplab.course.endings import CHOICES, ENDINGS, LOUD, PAR, SILENT, WEIGHTS, WRONG, album, one_step
from ddplab.vgpu import virtual_gpus

USUAL = {name: offered[0] for name, offered in CHOICES.items()} | {"rows": 8}
LIST, PARAMETERS = "masked, lengths in a list", "for it in self.parameters()"
FOUND = {  # what the lesson's fold says: the ending, and what is changed for it
    "as on one": {},
    "scalar": {"forward_returns": "a loss"},
    "shape": {"layer": "LSTM", "forward_returns": "the LSTM's state", "rows": 7},
    "one row": {"layer": "BatchNorm", "rows": 3},
    "stayed": {"weight": "a plain tensor"},
    "not moved": {"weight": "nn.Parameter, not moved"},
    "no words": {"weight": "next(self.parameters())"},
    "lengths": {"sentences": LIST},
    "times": {"forward_returns": "a loss, then .sum()"},
    "off": {"forward_returns": "a loss, then .mean()", "rows": 7},
    "form": {"layer": "LSTM", "forward_returns": "the LSTM's state"},
    "numbers": {"layer": "BatchNorm"},
    "no gradient": {"weight": PARAMETERS},
    "idle": {"rows": 4, "GPUs": 3},
}
CURED = {  # and the one change that silences an error
    "scalar": {"forward_returns": "a loss, then .sum()"},
    "shape": {"rows": 8},
    "one row": {"rows": 4},
    "stayed": {"weight": PARAMETERS},
    "not moved": {"weight": PARAMETERS},
    "no words": {"weight": PARAMETERS},
    "lengths": {"rows": 2},
}
FEWEST = [  # single changes, from where the board begins
    {"weight": PARAMETERS},
    {"weight": "a plain tensor"},
    {"weight": PARAMETERS},
    {"sentences": LIST},
    {"rows": 2},
    {"weight": "next(self.parameters())"},
    {"weight": "nn.Parameter"},
    {"sentences": "packed"},
    {"forward_returns": "a loss, then .mean()"},
    {"sentences": "of one length"},
    {"GPUs": 3},
    {"layer": "BatchNorm"},
    {"rows": 4},
    {"forward_returns": "a loss"},
    {"forward_returns": "a loss, then .sum()"},
]


@pytest.mark.parametrize("ending", ENDINGS)
def test_each_ending_is_where_the_lesson_says(ending):
    assert one_step(**USUAL | FOUND[ending]).ending == ending


def test_there_are_fourteen_seven_speak_and_six_are_silent():
    assert [*FOUND] == [*ENDINGS] and (len(ENDINGS), len(LOUD), len(SILENT), PAR) == (14, 7, 6, 15)


def test_whatever_a_learner_chooses_ends_in_the_album_or_stops_one_gpu_as_well():
    chance = random.Random(0)
    for _ in range(120):
        chosen = {name: chance.choice(offered) for name, offered in CHOICES.items()}
        came = one_step(**chosen)
        assert came.ending in ENDINGS or (came.one.error and "one GPU stops as well" in came.fact), chosen


@pytest.mark.parametrize("error", LOUD)
def test_one_change_silences_each_error(error):
    assert one_step(**USUAL | FOUND[error] | CURED[error]).ending in WRONG
    assert len(CURED[error]) == 1


def test_fifteen_changes_fill_both_lists_and_fewer_cannot():
    """Each error is followed by what is wrong, two steps for each; two more endings are neither; one is the first."""
    draw, chosen = album(), USUAL | FOUND["not moved"]
    told = draw(**chosen)
    assert "1 of 14 endings, 0 of 6 silent ones; changes: 0" in told and "by one change: 0 of 7" in told
    listed, high = told.rstrip("\n").splitlines()[-7:], told.count("\n")
    assert listed.count("☐ the model is not on GPU 0") == 1
    assert sum(line.startswith("☐ “") for line in listed) == 6
    for change in FEWEST:
        assert "Both are full" not in told
        chosen = chosen | change
        told = draw(**chosen)
        assert told.count("\n") == high and told.splitlines()[6].startswith("Your album"), "the page stays still"
    assert "14 of 14 endings, 6 of 6 silent ones; changes: 15. Full ✓" in told
    assert "\nBoth are full after 15 changes: par ✓\nYour album" in told, "above what may lie below the window's end"
    assert 2 * len(LOUD) + len({*ENDINGS} - {*LOUD, *WRONG}) == PAR + 1
    assert "Both are full after 15 changes: par ✓" in draw(**USUAL | {"rows": 9})


def test_values_that_a_slider_passes_are_one_change_unless_they_bring_something_new():
    draw, chosen = album(), USUAL | {"layer": "LSTM", "forward_returns": "the LSTM's state"}
    changes = []
    for rows in (8, 7, 6, 5, 4, 3, 4, 8):  # only 7 and 6 are new: an error, and what silences it
        changes.append(int(draw(**chosen | {"rows": rows}).split("changes: ")[1].split("\n")[0]))
    assert changes == [0, 1, 2, 3, 3, 3, 3, 3]
    assert "changes: 4\n" in draw(**chosen | {"rows": 8, "GPUs": 4})
    assert "changes: 5\n" in draw(**chosen | {"rows": 7, "GPUs": 4})


def test_what_silenced_an_error_is_told_from_where_the_slider_was_first():
    draw, chosen = album(), USUAL | {"sentences": LIST}
    for rows in (8, 7, 5, 3):
        draw(**chosen | {"rows": rows})
    assert "rows: 8 → 2; then" in draw(**chosen | {"rows": 2})
    draw = album()
    for rows, gpus in ((8, 2), (7, 2), (7, 3)):  # another thing was changed in between
        draw(**chosen | {"rows": rows, "GPUs": gpus})
    assert "rows: 7 → 3; then" in draw(**chosen | {"rows": 3, "GPUs": 3})


@pytest.mark.parametrize(
    ("chosen", "own"),
    [
        ({"rows": 7}, "off"),
        ({"sentences": "packed", "words_in_last_row": 4}, "off"),
        ({"layer": "BatchNorm"}, "numbers"),
        ({"layer": "BatchNorm", "rows": 7}, "numbers"),
        ({"sentences": LIST, "rows": 2}, "form"),
    ],
)
def test_a_sum_of_losses_is_one_and_a_mean_goes_wrong_by_unequal_parts_or_as_it_would_without_a_loss(chosen, own):
    assert one_step(**USUAL | chosen | {"forward_returns": "a loss, then .sum()"}).ending == "times"
    assert one_step(**USUAL | chosen | {"forward_returns": "a loss, then .mean()"}).ending == own


def test_what_is_called_a_mean_of_unequal_parts_is_one():
    chance = random.Random(1)
    for _ in range(120):
        chosen = {name: chance.choice(offered) for name, offered in CHOICES.items()}
        came = one_step(**chosen | {"weight": "nn.Parameter", "forward_returns": "a loss, then .mean()"})
        if came.ending == "off":
            assert len({*came.parts}) > 1 or chosen["sentences"] == "packed", chosen


def test_the_board_shows_the_step_the_album_and_the_riddles_of_what_is_missing():
    draw = album()
    refused = draw(**USUAL | FOUND["shape"]).splitlines()
    assert refused[:3] == [
        "rows dealt as 4 + 3",
        "one GPU  runs, and returns [1, 7, 6]",
        "2 GPUs   stops: Input tensor at index 1 has invalid shape [1, 3, 6], but expected [1, 4, 6]",
    ]
    assert (
        "✓ the parts do not fit together         LSTM; 7 rows on 2 GPUs; the LSTM's state   new" in refused
        and "☐ “the right numbers, in the wrong place”" in refused
    )
    silent = draw(**USUAL | FOUND["form"]).rstrip("\n").splitlines()
    assert silent[3] == " " * 9 + "nobody tells you: another shape, [2, 4, 6] in place of [1, 8, 6]"
    assert silent[-8] == "Errors that you have silenced by one change: 1 of 7"
    assert "✓ the parts do not fit together         rows: 7 → 8; then: another shape" in silent[-7:]
    assert "☐ “alone, there is no average”" in silent[-7:]
    again = draw(**USUAL | FOUND["form"])
    assert "the LSTM's state   again" in again and "changes: 1" in again
    two_changes = draw(**USUAL | {"layer": "BatchNorm", "rows": 1})
    assert "one GPU stops as well, so this has no place in the album" in two_changes and "now" not in two_changes
    for chosen in FOUND.values():
        lines = draw(**USUAL | chosen | {"sentences": "packed, total_length"}).splitlines()
        assert max(map(len, lines)) <= 110


def test_a_weight_reaches_every_gpu_where_it_is_registered():
    ends = {way: one_step(weight=way) for way in list(WEIGHTS)[5:]}
    assert [it.ending for it in ends.values()] == ["stayed", "stayed", "as on one"]
    assert not any(it.one.error or it.one.registered for it in ends.values())


def test_on_one_gpu_it_is_dataparallel_that_moves_a_model_and_the_board_says_so():
    came = one_step(weight="nn.Parameter, not moved")
    assert not came.one.error and "on one GPU DataParallel moves the model itself" in came.fact
    with virtual_gpus(1) as gpus:
        net, x = nn.Linear(3, 3), torch.ones(2, 3, device=gpus[0])
        with pytest.raises(RuntimeError, match="same device"):
            net(x)
        nn.DataParallel(net)(x)
        assert net.weight.device == gpus[0]
