"""Answers to the turn of lesson 9.5; most of its mistakes are rows in ddplab/checks/lesson_9_5.py."""


def a_fifth(updates):
    warm_up = updates // 5
    return warm_up, updates - warm_up


def as_the_guide_meant_it(updates):
    warm_up = round(updates / 11)
    return [warm_up, updates - warm_up]


def few_at_most(updates):
    warm_up = min(100, updates // 4)
    return warm_up, updates - warm_up


def in_fractions(updates):
    return updates / 10, updates * 9 / 10


def one_number(updates):
    return updates // 10


def half_as_long(updates):
    return updates // 20, updates // 2


ANSWERS = {
    "9.5.a": {
        "accepted": [a_fifth, as_the_guide_meant_it, few_at_most],
        "wrong": [
            (in_fractions, ["updates are whole"]),
            (one_number, ["int"]),
            (half_as_long, ["200 updates"]),
        ],
    },
}
