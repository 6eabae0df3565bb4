"""Answers to the exercises of lesson 1.1: the right one, the blank, and mistakes that people make.

`ANSWERS[id]` holds `correct` and `wrong`, a list of (answer, words that the message must contain). It may hold
`accepted`, a list of other right answers; `blank`, where that is not a function without its lines, or `...` for each
value; and `also blank`, a list of answers begun and not finished. An answer that is a tuple stands for several
arguments of `check`. A mistake that a `Number` of the check lists is judged without being named here.
"""

import os
from functools import partial

import torch
import torch.distributed as dist

from ddplab import device, log


def greet():
    return f"rank {dist.get_rank()} of {dist.get_world_size()}"


def capital():
    return f"Rank {dist.get_rank()} of {dist.get_world_size()}"


def text_plus_number():
    return "rank " + dist.get_rank()


def dies():
    os._exit(0)


def count(n, *, numbers=lambda n: range(n, 0, -1), note=lambda left: log(left=left)):
    for left in numbers(n):
        note(left)


def never_counts_down(n):
    while n > 0:
        log(left=n)


def logs_after_the_loop(n):
    left = n
    while left > 1:
        left -= 1
    log(left=left)


def rank_0_alone_logs(n):
    if dist.get_rank() == 0:
        count(n)


def birds_here():
    return torch.tensor(10 ** dist.get_rank(), device=device())


def count_birds(birds_here=birds_here, op=dist.ReduceOp.SUM):
    birds = birds_here()
    dist.all_reduce(birds, op=op)
    return birds.item()


def birds_for_rank_0():
    birds = birds_here()
    if dist.get_rank() == 0:
        for other in range(1, dist.get_world_size()):
            theirs = torch.zeros_like(birds)
            dist.recv(theirs, other)
            birds += theirs
    else:
        dist.send(birds, 0)
    return birds.item()


def a_plain_number():
    birds = 10 ** dist.get_rank()
    dist.all_reduce(birds)
    return birds


ANSWERS = {
    "1.1.1": {
        "correct": greet,
        "wrong": [
            (lambda: print(greet()), ["returns nothing", "None"]),
            # always of two
            (lambda: f"rank {dist.get_rank()} of 2", ["rank 0 said 'rank 0 of 2'", "not the world size"]),
            (lambda: f"rank 0 of {dist.get_world_size()}", ["all three ranks said 'rank 0 of 3'"]),  # always rank 0
            (lambda: f"rank {dist.get_rank() + 1} of {dist.get_world_size()}", ["counted from 1"]),  # counted from one
            (lambda: dist.get_rank(), ["rank 0 returned 0", "not a text"]),  # only the number
            (capital, ["rank 0 said 'Rank 0 of 3'", "not 'rank 0 of 3'"]),
            (lambda: f"rank {dist.get_rank()} of 3", ["on two, rank 0 said 'rank 0 of 3'"]),  # always of three
            (text_plus_number, ["TypeError", "rank", "of text_plus_number"]),
            (lambda: f"rank {dist.get_rnak()} of {dist.get_world_size()}", ["AttributeError", "get_rnak"]),  # misspelt
            (lambda: f"rank {rank} of {world_size}", ["NameError", "'rank' is not defined"]),  # noqa: F821
            (dies, ["your code", "raised"]),
            ("rank 0 of 3", ["not a function"]),
        ],
    },
    "1.1.2": {
        "correct": count,
        "wrong": [
            (partial(count, note=print), ["printed, but logged nothing"]),
            (lambda n: None, ["no rank logged anything"]),
            (partial(count, numbers=lambda n: range(1, n + 1)), ["count(4) logged [1, 2, 3, 4], not [4, 3, 2, 1]"]),
            (partial(count, numbers=lambda n: range(n, -1, -1)), ["[4, 3, 2, 1, 0], not [4, 3, 2, 1]"]),
            (lambda n: count(4), ["count(2) logged [4, 3, 2, 1], not [2, 1]"]),  # always from four
            (never_counts_down, ["more than 1,000 rows, and goes on"]),
            (logs_after_the_loop, ["count(4) logged [1]"]),
            (partial(count, note=lambda i: log(i=i)), ["no column 'left'", "'i'"]),
            (lambda n: log(left=list(range(n, 0, -1))), ["TypeError", "got a list"]),
            (rank_0_alone_logs, ["only one of the two ranks"]),
            (partial(count, note=log), ["TypeError", "positional"]),
            (lambda: log(left=4), ["cannot be called"]),
            (3, ["`count` is 3, not a function"]),
        ],
    },
    "1.1.3": {
        "correct": count_birds,
        "wrong": [
            (lambda: birds_here().item(), ["1, 10, 100", "its own birds only"]),  # own birds
            (birds_for_rank_0, ["only rank 0 has the sum"]),
            (lambda: dist.all_reduce(birds_here()), ["nothing came back from rank 0"]),  # returns all reduce
            (partial(count_birds, op=dist.ReduceOp.MAX), ["the largest, not the sum"]),
            (lambda: count_birds() / dist.get_world_size(), ["the mean, not the sum"]),
            (a_plain_number, ["your code", "raised"]),
            (partial(count_birds, lambda: torch.ones((), device=device())), ["every rank put in 1"]),
            (lambda: 111, ["on two, rank 0 returned 111, not 11"]),  # a constant
            (lambda: f"{count_birds()} birds", ["rank 0 returned '111 birds', not a number"]),  # a sentence
            (111, ["`count_birds` is 111, not a function"]),
        ],
    },
}
