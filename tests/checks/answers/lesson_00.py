"""Answers to the exercises of lesson 00: the right one, the blank, and mistakes that people make.

`ANSWERS[id]` holds `correct`, `blank` and `wrong`, a list of (answer, words that the message must contain).
It may hold `accepted`, a list of other right answers, and `also blank`, a list of answers begun and not finished.
An answer that is a tuple stands for several arguments of `check`.
"""

import os

import torch
import torch.distributed as dist

from ddplab import device, log


def greet():
    return f"rank {dist.get_rank()} of {dist.get_world_size()}"


def blank():
    raise NotImplementedError("your code here")


def blank_count(n):
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


def count(n):
    for left in range(n, 0, -1):
        log(left=left)


def counts_by_printing(n):
    for left in range(n, 0, -1):
        print(left)


def counts_up(n):
    for left in range(1, n + 1):
        log(left=left)


def counts_to_zero(n):
    for left in range(n, -1, -1):
        log(left=left)


def logs_after_the_loop(n):
    left = n
    while left > 1:
        left -= 1
    log(left=left)


def another_column(n):
    for i in range(n, 0, -1):
        log(i=i)


def logs_a_list(n):
    log(left=list(range(n, 0, -1)))


def rank_0_alone_logs(n):
    if dist.get_rank() == 0:
        count(n)


def logs_without_a_name(n):
    for left in range(n, 0, -1):
        log(left)


def says_nothing(n):
    pass


def takes_nothing():
    log(left=4)


def birds_here():
    return torch.tensor(10 ** dist.get_rank(), device=device())


def count_birds():
    birds = birds_here()
    dist.all_reduce(birds)
    return birds.item()


def own_birds():
    return birds_here().item()


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


def returns_all_reduce():
    return dist.all_reduce(birds_here())


def largest_flock():
    birds = birds_here()
    dist.all_reduce(birds, op=dist.ReduceOp.MAX)
    return birds.item()


def mean_flock():
    birds = birds_here()
    dist.all_reduce(birds)
    return birds.item() / dist.get_world_size()


def a_plain_number():
    birds = 10 ** dist.get_rank()
    dist.all_reduce(birds)
    return birds


def one_bird_each():
    birds = torch.ones((), device=device())
    dist.all_reduce(birds)
    return birds.item()


def a_sentence():
    return f"{count_birds()} birds"


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
    "00.2": {
        "correct": count,
        "blank": blank_count,
        "wrong": [
            (counts_by_printing, ["printed, but logged nothing"]),
            (says_nothing, ["no rank logged anything"]),
            (counts_up, ["count(4) logged [1, 2, 3, 4], not [4, 3, 2, 1]"]),
            (counts_to_zero, ["[4, 3, 2, 1, 0], not [4, 3, 2, 1]"]),
            (logs_after_the_loop, ["count(4) logged [1]"]),
            (another_column, ["no column 'left'", "'i'"]),
            (logs_a_list, ["TypeError", "got a list"]),
            (rank_0_alone_logs, ["only one of the two ranks"]),
            (logs_without_a_name, ["TypeError", "positional"]),
            (takes_nothing, ["cannot be called"]),
            (3, ["`count` is 3, not a function"]),
        ],
    },
    "00.3": {
        "correct": count_birds,
        "blank": blank,
        "wrong": [
            (own_birds, ["1, 10, 100", "its own birds only"]),
            (birds_for_rank_0, ["only rank 0 has the sum"]),
            (returns_all_reduce, ["nothing came back from rank 0"]),
            (largest_flock, ["the largest, not the sum"]),
            (mean_flock, ["the mean, not the sum"]),
            (a_plain_number, ["your code", "raised"]),
            (one_bird_each, ["every rank put in 1"]),
            (a_sentence, ["rank 0 returned '111 birds', not a number"]),
            (111, ["`count_birds` is 111, not a function"]),
        ],
    },
}
