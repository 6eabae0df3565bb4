"""Answers to the exercises of lesson 00: the right one, the blank, and mistakes that people make.

`ANSWERS[id]` holds `correct`, `blank` and `wrong`, a list of (answer, words that the message must contain).
An answer that is a tuple stands for several arguments of `check`.
"""

import os

import torch.distributed as dist


def greet():
    return f"rank {dist.get_rank()} of {dist.get_world_size()}"


def blank():
    raise NotImplementedError("your code here")


def printed():
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}")


def always_of_two():
    return f"rank {dist.get_rank()} of 2"


def always_rank_0():
    return f"rank 0 of {dist.get_world_size()}"


def counted_from_one():
    return f"rank {dist.get_rank() + 1} of {dist.get_world_size()}"


def only_the_number():
    return dist.get_rank()


def capital():
    return f"Rank {dist.get_rank()} of {dist.get_world_size()}"


def text_plus_number():
    return "rank " + dist.get_rank()


def misspelt():
    return f"rank {dist.get_rnak()} of {dist.get_world_size()}"


def undefined():
    return f"rank {rank} of {world_size}"  # noqa: F821


def dies():
    os._exit(0)


ANSWERS = {
    "00.1": {
        "correct": greet,
        "blank": blank,
        "wrong": [
            (printed, ["returns nothing", "None"]),
            (always_of_two, ["rank 0 said 'rank 0 of 2'", "not the world size"]),
            (always_rank_0, ["all three ranks said 'rank 0 of 3'"]),
            (counted_from_one, ["counted from 1"]),
            (only_the_number, ["rank 0 returned 0", "not a text"]),
            (capital, ["rank 0 said 'Rank 0 of 3'", "not 'rank 0 of 3'"]),
            (text_plus_number, ["TypeError", "rank", "of text_plus_number"]),
            (misspelt, ["AttributeError", "get_rnak"]),
            (undefined, ["NameError", "'rank' is not defined"]),
            (dies, ["your code", "raised"]),
            ("rank 0 of 3", ["not a function"]),
        ],
    },
}
