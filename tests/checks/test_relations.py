"""What is said of an answer that nobody expected: how its numbers relate to those wanted."""

import pytest

from ddplab.checks.relations import close, relation

RANKS = {"rank 0": [1, 10.0], "rank 1": [2, 20.0], "rank 2": [3, 30.0]}
MEANS = {"rank 0": [5.0, 5.0], "rank 1": [5.0, 5.0], "rank 2": [5.0, 5.0]}


def changed(rows, change):
    return {row: [change(cell) for cell in cells] for row, cells in rows.items()}


SAID = {
    "what is summed": (changed(RANKS, lambda it: 3 * it), RANKS, "every number is 3 times what is wanted"),
    "what is divided": (changed(RANKS, lambda it: it / 3), RANKS, "every number is 1/3 of what is wanted"),
    "what is halved": (changed(RANKS, lambda it: it / 2), RANKS, "every number is half of what is wanted"),
    "a sign": (changed(RANKS, lambda it: -it), RANKS, "every number is minus what is wanted"),
    "a sum for a mean, and a sign": (
        changed(RANKS, lambda it: -3 * it), RANKS, "every number is minus 3 times what is wanted"),
    "a column": (
        {row: [a, 2 * b] for row, (a, b) in RANKS.items()}, RANKS, "each wrong number is twice what is wanted"),
    "zeros": (changed(RANKS, lambda it: 0), RANKS, "every number is 0"),
    "one number, as often as there are ranks": (
        RANKS | {"rank 1": [6, 20.0]}, RANKS, "each wrong number is 3 times what is wanted"),
    "the next rank's": (
        dict(zip(RANKS, [[2, 20.0], [3, 30.0], [1, 10.0]], strict=True)),
        RANKS, "each rank holds what the next rank is to hold"),
    "the last rank's": (
        dict(zip(RANKS, [[3, 10.0], [1, 20.0], [2, 30.0]], strict=True)),
        RANKS, "each rank holds what the rank before it is to hold"),
    "the other rank's": (
        {"rank 0": [3], "rank 1": [8]}, {"rank 0": [8], "rank 1": [3]},
        "each rank holds what the other rank is to hold"),
    "one number is 0": (RANKS | {"rank 1": [0, 20.0]}, RANKS, "only rank 1 is wrong"),
    "all alike": ({row: [4, 7.0] for row in RANKS}, RANKS, "all ranks hold the same, and they are to differ"),
    "all hold one rank's": ({row: [1, 10.0] for row in RANKS}, RANKS, "only rank 0 is right"),
    "not alike": (RANKS, MEANS, "the ranks differ, and all are to hold the same"),
    "another order": ({"one": [3, 7, 1]}, {"one": [1, 3, 7]}, "they are the right ones, in another order"),
    "one row, of several lengths": (
        {"2 ranks": [4, 5], "4 ranks": [2, 6, 2]},
        {"2 ranks": [4, 5], "4 ranks": [2, 6, 0]},
        "only “2 ranks” is right",
    ),
    "most of the rows": (
        {"a": [1], "b": [7], "c": [3], "d": [4], "e": [8], "f": [6], "g": [0]},
        {"a": [1], "b": [2], "c": [3], "d": [4], "e": [5], "f": [6], "g": [9]}, "only b, e and g are wrong"),
    "one row": (
        {"two": [1, 2], "three": [7, 3]}, {"two": [1, 2], "three": [5, 5]}, "only two is right"),
}  # fmt: skip

NOTHING_SAID = {
    "the same on all ranks, two of which are to hold the same": (
        {"rank 0": [1], "rank 1": [1], "rank 2": [1]}, {"rank 0": [7], "rank 1": [4], "rank 2": [4]}),
    "one number that happens to be twice another": ({"one": [4, 5]}, {"one": [2, 5]}),
    "no simple number of times": ({"one": [8.0, 16.0]}, {"one": [7.0, 14.0]}),
    "another number of cells": ({"one": [1, 2]}, {"one": [1]}),
    "another row": ({"one": [1]}, {"two": [1]}),
    "rows of several lengths": ({"2 ranks": [4, 5], "4 ranks": [2, 6, 2]}, {"2 ranks": [5, 9], "4 ranks": [2, 6, 0]}),
    "words that tell of other ranks": (
        {"rank 0": ["alone"], "rank 1": ["as on 0"]}, {"rank 0": ["its own"], "rank 1": ["its own"]}),
    "words in another order": ({"one": ["yes", "no"]}, {"one": ["no", "yes"]}),
    "words": ({"one": ["yes", "no"]}, {"one": ["no", "no"]}),
    "a truth is no number": ({"one": [True, True]}, {"one": [2, 2]}),
    "not a number": ({"one": [float("nan"), 2.0]}, {"one": [1.0, 1.0]}),
    "nothing to divide by": ({"one": [1.0, 2.0]}, {"one": [0.0, 0.0]}),
}  # fmt: skip


@pytest.mark.parametrize("mine, wanted, said", SAID.values(), ids=SAID)
def test_a_simple_relation_is_said(mine, wanted, said):
    assert relation(mine, wanted) == said


@pytest.mark.parametrize("mine, wanted", NOTHING_SAID.values(), ids=NOTHING_SAID)
def test_nothing_is_said_where_nothing_simple_is_seen(mine, wanted):
    assert relation(mine, wanted) == ""


def test_numbers_are_alike_up_to_rounding_and_words_exactly():
    assert close(1.0, 1.00001) and close(float("nan"), float("nan")) and close("yes", "yes")
    assert not close(1.0, 1.01) and not close("yes", "no") and not close("1", 1)
