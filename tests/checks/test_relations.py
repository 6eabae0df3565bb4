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
    "thousandths": (changed(RANKS, lambda it: it / 1000), RANKS, "every number is 1/1,000 of what is wanted"),
    "one too many": (changed(RANKS, lambda it: it + 1), RANKS, "every number is 1 too large"),
    "one too few": (
        {"a": [3], "b": [4], "c": [9]}, {"a": [3], "b": [5], "c": [10]}, "each wrong number is 1 too small"),
    "a column that is counted from 1": (
        {row: [a - 1, b] for row, (a, b) in RANKS.items()}, RANKS, "each wrong number is 1 too small"),
    "whole numbers": ({"one": [2], "two": [4]}, {"one": [2.7], "two": [4.2]}, "every number is rounded down"),
    "shares": ({"one": [0], "two": [0]}, {"one": [0.75], "two": [0.5]},
        "every number is 0, as of what is rounded down"),
    "rounded numbers": ({"one": [3], "two": [4]}, {"one": [2.7], "two": [4.2]}, "every number is rounded"),
    "another order in one row": ({"one": [1, 2], "two": [4, 3]}, {"one": [1, 2], "two": [3, 4]},
        "they are the right ones, in another order"),
    "words of the other rank": (
        {"rank 0": ["♥K", "♣J"], "rank 1": ["♠A", "♦Q"]}, {"rank 0": ["♠A", "♦Q"], "rank 1": ["♥K", "♣J"]},
        "each rank holds what the other rank is to hold"),
    "those of the next, and nothing for the last": (
        {"rank 0": ["♥K", "♣J"], "rank 1": []}, {"rank 0": ["♠A", "♦Q"], "rank 1": ["♥K", "♣J"]},
        "rank 0 holds what the next rank is to hold"),
    "the next rank's, but for the last": (
        dict(zip(RANKS, [[2, 20.0], [3, 30.0], [4, 40.0]], strict=True)),
        RANKS, "each rank but the last holds what the next rank is to hold"),
    "the rank's before, but for the first": (
        dict(zip(RANKS, [[0, 0.0], [1, 10.0], [2, 20.0]], strict=True)),
        RANKS, "each rank but rank 0 holds what the rank before it is to hold"),
    "the parts of a sum": ({"one": [1, 2], "two": [3, 4]}, {"one": [3], "two": [7]}, "there are 2, which add up to it"),
    "too many": ({"one": [1, 2]}, {"one": [1]}, "there are 2, and 1 is wanted"),
    "too few": ({"one": [1]}, {"one": [1, 3]}, "there is 1, and 2 are wanted"),
    "one row": (
        {"two": [1, 2], "three": [7, 3]}, {"two": [1, 2], "three": [5, 5]}, "only two is right"),
}  # fmt: skip

NOTHING_SAID = {
    "the same on all ranks, two of which are to hold the same": (
        {"rank 0": [1], "rank 1": [1], "rank 2": [1]}, {"rank 0": [7], "rank 1": [4], "rank 2": [4]}),
    "one number that happens to be twice another": ({"one": [4, 5]}, {"one": [2, 5]}),
    "one number, one too large, several times": ({"one": [8, 8]}, {"one": [7, 7]}),
    "no simple number of times": ({"one": [8.0, 16.0]}, {"one": [7.0, 14.0]}),
    "what never came": ({"one": []}, {"one": [1]}),
    "one number, off by something": ({"one": [5]}, {"one": [2]}),
    "another row": ({"one": [1]}, {"two": [1]}),
    "rows of several lengths": ({"2 ranks": [4, 5], "4 ranks": [2, 6, 2]}, {"2 ranks": [5, 9], "4 ranks": [2, 6, 0]}),
    "words that tell of other ranks": (
        {"rank 0": ["alone"], "rank 1": ["as on 0"]}, {"rank 0": ["its own"], "rank 1": ["its own"]}),
    "words in another order": ({"one": ["yes", "no"]}, {"one": ["no", "yes"]}),
    "words": ({"one": ["yes", "no"]}, {"one": ["no", "no"]}),
    "a truth is no number": ({"one": [True, True]}, {"one": [2, 2]}),
    "not a number": ({"one": [float("nan"), 2.0]}, {"one": [1.0, 1.0]}),
    "how many there are, in another row than the first that is wrong": (
        {"one": [10, "a"], "two": [10, "b", "c"]}, {"one": [3, "a"], "two": [10, "b"]}),
    "nothing to divide by": ({"one": [1.0, 2.0]}, {"one": [0.0, 0.0]}),
}  # fmt: skip


@pytest.mark.parametrize("mine, wanted, said", SAID.values(), ids=SAID)
def test_a_simple_relation_is_said(mine, wanted, said):
    assert relation(mine, wanted) == said


GIVEN = {  # the arguments of each case
    "a": {"ms": 80, "ranks": 4, "weak": True},
    "b": {"ms": 30, "ranks": 2, "weak": False},
    "c": {"ms": 9, "ranks": 3, "weak": True},
    "d": {"ms": 70, "ranks": 5, "weak": True},
}
BY_ARGUMENTS = {
    "times an argument": (lambda ms, ranks, weak: ms if weak else ms * ranks, "`ranks` times what is wanted"),
    "divided once more": (
        lambda ms, ranks, weak: ms / ranks / (ranks if weak else 1), "what is wanted, divided by `ranks`"),
    "an argument added": (
        lambda ms, ranks, weak: ms / ranks + ms if weak else ms, "larger by `ms` than what is wanted"),
    "an argument itself": (lambda ms, ranks, weak: ranks, "`ranks` itself"),
    "upside down": (lambda ms, ranks, weak: ranks / ms if weak else 1 / ms, "1, divided by what is wanted"),
}  # fmt: skip
AS_IF = {
    "one number": (lambda ms, ranks, weak: right(ms, 3, weak), "it is what is right for `ranks` = 3, everywhere"),
    "a truth": (lambda ms, ranks, weak: right(ms, ranks, True), "only b is wrong"),
    "swapped": (lambda ms, ranks, weak: right(ranks, ms, weak), "it is what is right with `ms` and `ranks` swapped"),
    "something else": (lambda ms, ranks, weak: ms - 7 * ranks - weak, ""),
    "two of them": (lambda ms, ranks, weak: ms * ranks + 0, "each wrong number is `ms` times `ranks`"),
}


def right(ms, ranks, weak):
    return ms / ranks if weak else ms


def rows(fn, given=GIVEN):
    return {case: [fn(**arguments)] for case, arguments in given.items()}


@pytest.mark.parametrize("wrong, said", BY_ARGUMENTS.values(), ids=BY_ARGUMENTS)
def test_it_is_said_by_which_argument_numbers_are_off(wrong, said):
    assert relation(rows(wrong), rows(right), GIVEN).endswith(f"number is {said}")


@pytest.mark.parametrize("wrong, said", AS_IF.values(), ids=AS_IF)
def test_it_is_said_with_which_arguments_it_would_be_right(wrong, said):
    assert relation(rows(wrong), rows(right), GIVEN, lambda given: rows(right, given)) == said


@pytest.mark.parametrize("mine, wanted", NOTHING_SAID.values(), ids=NOTHING_SAID)
def test_nothing_is_said_where_nothing_simple_is_seen(mine, wanted):
    assert relation(mine, wanted) == ""


def test_numbers_are_alike_up_to_rounding_and_words_exactly():
    assert close(1.0, 1.00001) and close(float("nan"), float("nan")) and close("yes", "yes")
    assert not close(1.0, 1.01) and not close("yes", "no") and not close("1", 1)


def test_of_several_columns_it_speaks_of_the_one_of_the_first_wrong_number():
    given = {"few": {"size": 30, "ranks": 2}, "more": {"size": 60, "ranks": 4}, "many": {"size": 90, "ranks": 8}}
    wanted = {"few": [7, 1.0], "more": [8, 1.0], "many": [9, 1.0]}
    mine = {"few": [7, 2.0], "more": [8 + 60, 4.0], "many": [9 + 90, 8.0]}
    assert relation(mine, wanted, given) == "each wrong number is `ranks` itself, in that column"
