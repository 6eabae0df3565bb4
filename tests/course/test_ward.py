"""The ward of lesson 9.4: what its examinations find, its rules, and how a night ends that is played well."""

import random
from functools import cache

import pytest
import torch

from ddplab import vgpu
from ddplab.course import ward
from ddplab.course.ward import BEGIN, BUDGET, EXAMS, MOVES, UPDATES, WRONG, train


@pytest.fixture(autouse=True, scope="module")
def gpus():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with vgpu.virtual_gpus(2) as gpus:
        yield gpus
    torch.set_num_threads(threads)


def examined(name):
    return ward.examined(name, vgpu.active())


def six_patients(seed):
    return ward.six_patients(vgpu.active(), seed)


def test_what_the_examinations_find(gpus):
    falls, stays = "2.31 → 0.36", "2.31 → 2.31"
    found = {
        "children": (falls, falls, "there", "0.6", "0"),
        "replica 0": (stays, falls, "there", "0", "0"),
        "last replica": (stays, falls, "there", "0", "4"),
        "clones": (stays, stays, "there", "0", "4"),
        "new tensor": (stays, stays, "there", "0", "0"),
        "zero_grad": (stays, stays, "None", "0", "0"),
        "tiny rate": (stays, stays, "there", "1e-09", "0"),
        "in forward": ("2.31 → 2.27", falls, "there", "0", "0"),
    }
    assert {name: tuple(examined(name).values()) for name in UPDATES} == found
    assert len({*found.values()}) == len(UPDATES), "each can be told from all others"
    assert train("the optimiser's", gpus).losses[-1] == pytest.approx(train("children", gpus).losses[-1], abs=1e-12)


def patient(board):
    """Who is here: named as every update in turn on a board like it, until one is right."""
    return next(name for name in UPDATES if board(f"name: {name}").splitlines()[1].startswith("✓"))


def test_a_night_that_is_won_and_what_costs_nothing():
    probe = six_patients(seed=3)
    probe(BEGIN)
    first = patient(probe)
    board = six_patients(seed=3)
    begun = board(BEGIN)
    assert begun.startswith(f"Training 1 of 6; examinations left: {BUDGET} of {BUDGET}\n") and "✓" not in begun
    told = board("examine: .grad")
    assert f"left: {BUDGET - 1} of" in told and examined(first)[".grad"] in told.splitlines()[4]
    assert f"left: {BUDGET - 1} of" in board("examine: .grad") and "know that already" in board("examine: .grad")
    wrong = next(name for name in UPDATES if name != first)
    for _ in range(2):
        assert f"left: {BUDGET - 1 - WRONG} of" in board(f"name: {wrong}")
    told = board(f"name: {first}")
    assert told.startswith("Training 2 of 6;") and f"✓ {first} " in told and "?" in told.splitlines()[4]
    assert len({len(it.splitlines()) for it in (begun, told)}) == 1, "the page stays as high as it is"


def test_a_night_is_lost_and_the_notes_outlive_it():
    board = six_patients(seed=0)
    board(BEGIN)
    lines, told = set(), ""
    while "The night is over" not in told:  # each name in turn, for each patient
        for name in UPDATES:
            told = board(f"name: {name}")
            lines.add(len(told.splitlines()))
            if "The night is over" in told:
                break
    assert "your examinations are spent. It was " in told and "Nights: 1, won: 0" in told and len(lines) == 1
    assert "Choose “begin a night”" in board("examine: .grad")
    assert board(BEGIN).count("✓") == told.count("✓")
    board("examine: .grad")
    assert "Nights: 2, won: 0" in board(BEGIN), "whoever leaves a night has not won it"


def test_with_no_examination_left_one_can_still_name_it():
    board = six_patients(seed=1)
    board(BEGIN)
    for _ in range(40):
        exams = [board(f"examine: {it}") for it in EXAMS]
        if "left: 0" in exams[-1]:
            break
        seen = exams[-1].splitlines()[4].split("this one")[1].split("  ")
        told = [it.strip() for it in seen if it.strip()]
        patient_is = [n for n in UPDATES if [*examined(n).values()] == told]
        assert "✓ Yes" in board(f"name: {patient_is[0]}")
    assert "No examination is left" in exams[-1]


@cache
def best(suspects):
    """How many examinations the best play costs on average, and its next move."""
    if len(suspects) == 1:
        return 0.0, ""
    moves = []
    for exam in EXAMS:
        parts = {}
        for name in suspects:
            parts.setdefault(examined(name)[exam], []).append(name)
        if len(parts) > 1:
            costs = sum(len(part) / len(suspects) * best(tuple(part))[0] for part in parts.values())
            moves.append((1 + costs, exam))
    for name in suspects:
        rest = tuple(it for it in suspects if it != name)
        moves.append((len(rest) / len(suspects) * (WRONG + best(rest)[0]), name))
    return min(moves)


def cost(patient, suspects=tuple(UPDATES)):
    move = best(suspects)[1]
    if move in EXAMS:
        found = examined(patient)[move]
        return 1 + cost(patient, tuple(name for name in suspects if examined(name)[move] == found))
    if move in ("", patient):
        return 0
    return WRONG + cost(patient, tuple(name for name in suspects if name != move))


def test_the_best_play_wins_about_seven_nights_of_ten_and_asks_for_one_gpu_first():
    assert best(tuple(UPDATES))[1] == "loss, 1 GPU" and MOVES[0] == BEGIN
    chance, costs = random.Random(0), {name: cost(name) for name in UPDATES}
    nights = [sum(costs[name] for name in chance.choices(list(UPDATES), k=6)) for _ in range(4000)]
    assert 0.65 < sum(night <= BUDGET for night in nights) / len(nights) < 0.75
