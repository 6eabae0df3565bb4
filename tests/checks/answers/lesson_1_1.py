"""Answers to the exercises of lesson 1.1: the right one, the blank, and mistakes that people make.

`ANSWERS[id]` holds `correct` and `wrong`, a list of (answer, words that the message must contain). It may hold
`accepted`, a list of other right answers; `blank`, where that is not a function without its lines, or `...` for each
value; and `also blank`, a list of answers begun and not finished. An answer that is a tuple stands for several
arguments of `check`. A mistake that a `Number` of the check lists is judged without being named here.
"""

import os
import signal
import sys
import time
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


def darts_of_all(handfuls, share=lambda: dist.get_world_size(), pool=True, who=lambda: True, afresh=True):
    """One curve for all, with one thing done otherwise at a time."""
    hand = torch.Generator().manual_seed(dist.get_rank())
    hits = torch.tensor(0.0, device=device())
    for n in range(1, handfuls + 1):
        hits += (torch.rand(100, 2, generator=hand).norm(dim=1) < 1).sum().item()
        of_all = hits.clone() if afresh else hits
        if pool:
            dist.all_reduce(of_all)
        if who():
            log(pi=4 * of_all / (100 * n * share()))


def logs_at_the_end(handfuls):
    hand = torch.Generator().manual_seed(dist.get_rank())
    hits = (torch.rand(100 * handfuls, 2, generator=hand).norm(dim=1) < 1).sum().to(device())
    dist.all_reduce(hits)
    log(pi=4 * hits / (100 * handfuls * dist.get_world_size()))


def only_rank_0_pools_right(handfuls):
    darts_of_all(handfuls, share=lambda: dist.get_world_size() + dist.get_rank())


def mean_of_estimates(handfuls):
    hand, hits = torch.Generator().manual_seed(dist.get_rank()), 0
    for n in range(1, handfuls + 1):
        hits += (torch.rand(100, 2, generator=hand).norm(dim=1) < 1).sum()
        pi = (4 * hits / (100 * n)).to(device())
        dist.all_reduce(pi)
        log(pi=pi / dist.get_world_size())


# your turn


def breaks(how):
    def fragile(broken):
        rank = dist.get_rank()
        time.sleep(rank)
        if rank == broken:
            how()
        return 10 * rank

    return fragile


def shouts():
    raise RuntimeError("I am broken")


def without_an_if(broken):
    rank = dist.get_rank()
    time.sleep(rank)
    1 / (rank - broken)
    return 10 * rank


def asserts(broken):
    time.sleep(dist.get_rank())
    assert dist.get_rank() != broken, "ouch"
    return 10 * dist.get_rank()


def before_its_time(broken):
    rank = dist.get_rank()
    if rank == broken:
        raise ValueError("ouch")
    time.sleep(rank)
    return 10 * rank


def asks_nobody(broken):
    time.sleep(dist.get_rank())
    if rnk == broken:  # noqa: F821
        raise ValueError("ouch")
    return 10 * dist.get_rank()


def catches_it(broken):
    time.sleep(dist.get_rank())
    try:
        1 / (dist.get_rank() - broken)
    except ZeroDivisionError:
        print("ouch")
    return 10 * dist.get_rank()


def with_a_mean(handfuls):
    hand, thrown = torch.Generator().manual_seed(dist.get_rank()), []
    for _ in range(handfuls):
        thrown.append((torch.rand(100, 2, generator=hand).norm(dim=1) < 1).double())
        log(pi=4 * torch.cat(thrown).mean())


def with_hits_too(handfuls):
    hand, hits = torch.Generator().manual_seed(dist.get_rank()), 0
    for n in range(handfuls):
        hits += (torch.rand(100, 2, generator=hand).norm(dim=1) < 1).sum()
        log(hits=hits, pi=hits / (n + 1) / 25)


def in_float(hits):
    hits = torch.tensor([float(hits)], device=device())
    dist.all_reduce(hits)
    return hits.item()


def still_a_tensor(hits):
    hits = torch.tensor([hits], device=device())
    dist.all_reduce(hits)
    return hits


def listed_by_rank(hits):
    row = torch.zeros(dist.get_world_size(), device=device())
    row[dist.get_rank()] = hits
    dist.all_reduce(row)
    return int(row.sum())


def a_plain_number(hits):
    dist.all_reduce(hits)
    return hits


def darts_alone(handfuls, note):
    hand, hits = torch.Generator().manual_seed(dist.get_rank()), 0
    for n in range(1, handfuls + 1):
        hits += (torch.rand(100, 2, generator=hand).norm(dim=1) < 1).sum().item()
        note(4 * hits / (100 * n))


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
            (text_plus_number, ["TypeError", "rank", "in text_plus_number"]),
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
        "correct": darts_of_all,
        "accepted": [mean_of_estimates],
        "wrong": [
            (partial(darts_of_all, pool=False, share=lambda: 1), ["on 2 ranks", "each rank logs its own π"]),
            (partial(darts_of_all, share=lambda: 1), ["the hits of all, the darts of one"]),
            (partial(darts_of_all, share=lambda: 2), ["on 3 ranks"]),
            (partial(darts_of_all, afresh=False), ["the first row is right", "counted darts twice"]),
            (partial(darts_of_all, who=lambda: dist.get_rank() == 0), ["rank 1 logged 0 rows for 4 handfuls"]),
            (logs_at_the_end, ["rank 0 logged 1 rows"]),
            (only_rank_0_pools_right, ["only rank 0 logs everybody's π"]),
            (3.14, ["`darts_of_all` is 3.14, not a function"]),
        ],
    },
    "1.1.a": {
        "accepted": [
            breaks(shouts),
            breaks(lambda: 1 / 0),
            breaks(lambda: int("seven")),
            breaks(lambda: os._exit(1)),
            breaks(lambda: os.kill(os.getpid(), signal.SIGKILL)),
            breaks(sys.exit),
            breaks(lambda: misspelt),  # noqa: F821
            without_an_if,
            asserts,
        ],
        "wrong": [
            (asks_nobody, ["rank 0 raised NameError", "'rnk' is not defined"]),
            (before_its_time, ["it fails before its second has come"]),
            (catches_it, ["no rank fails"]),
            (lambda broken: sys.exit(), ["every rank fails"]),
        ],
    },
    "1.1.b": {
        "accepted": [with_a_mean, with_hits_too, partial(darts_alone, note=lambda pi: log(pi=round(pi, 3)))],
        "wrong": [
            (partial(darts_alone, note=lambda pi: log(pi)), ["positional argument"]),
            (partial(darts_alone, note=lambda pi: log(pi=int(pi))), ["every number is rounded down"]),
        ],
    },
    "1.1.c": {
        "accepted": [in_float, listed_by_rank],
        "wrong": [
            (a_plain_number, ["rank 0 raised"]),
            (still_a_tensor, ["the sum comes back inside a tensor"]),
        ],
    },
}
