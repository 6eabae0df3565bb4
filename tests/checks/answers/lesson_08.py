"""Answers to the exercises of lesson 08: the right ones, the blanks, and mistakes that people make."""

import torch
import torch.distributed as dist


def blank(*args):
    raise NotImplementedError("your code here")


# 08.2: one mean for unequal parts


def mean_over_all(mine):
    both = torch.stack([mine.sum(), mine.new_tensor(len(mine))])
    dist.all_reduce(both)
    return both[0] / both[1]


def mean_of_means(mine):
    mean = mine.mean()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


def the_sum(mine):
    total = mine.sum()
    dist.all_reduce(total)
    return total


def by_the_ranks(mine):
    return the_sum(mine) / dist.get_world_size()


def by_my_own_count(mine):
    return the_sum(mine) / max(1, len(mine))


def on_rank_0(mine):
    both = torch.stack([mine.sum(), mine.new_tensor(len(mine))])
    dist.reduce(both, dst=0)
    return both[0] / both[1] if dist.get_rank() == 0 else 0.0


def returns_nothing(mine):
    mean_over_all(mine)


def local(mine):
    return mine.sum() / max(1, len(mine))


def uses_what_comes_back(mine):
    return dist.all_reduce(mine.sum()) / len(mine)


# 08.3: all-gather with nothing but a sum


def gather_all(x):
    rows = torch.zeros(dist.get_world_size(), len(x), dtype=x.dtype, device=x.device)
    rows[dist.get_rank()] = x
    dist.all_reduce(rows)
    return rows


def begins_with_ones(x):
    rows = torch.ones(dist.get_world_size(), len(x), dtype=x.dtype, device=x.device)
    rows[dist.get_rank()] += x
    dist.all_reduce(rows)
    return rows


def in_every_row(x):
    rows = x.repeat(dist.get_world_size(), 1)
    dist.all_reduce(rows)
    return rows


def in_row_0(x):
    rows = torch.zeros(dist.get_world_size(), len(x), dtype=x.dtype, device=x.device)
    rows[0] = x
    dist.all_reduce(rows)
    return rows


def for_two_ranks(x):
    rows = torch.zeros(2, len(x), dtype=x.dtype, device=x.device)
    if dist.get_rank() < 2:
        rows[dist.get_rank()] = x
    dist.all_reduce(rows)
    return rows


def the_real_one(x):
    rows = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, x)
    return torch.stack(rows)


def a_list(x):
    return list(gather_all(x))


def never_sent(x):
    rows = torch.zeros(dist.get_world_size(), len(x), dtype=x.dtype, device=x.device)
    rows[dist.get_rank()] = x
    return rows


def spoils_x(x):
    rows = gather_all(x)
    x.zero_()
    return rows


def returns_the_call(x):
    return dist.all_reduce(x)


RIGHT = ([7, 8, 9], [0, 9, 18], [0, 9, 18], [27, 270, 2700])

ANSWERS = {
    "08.1": {
        "correct": RIGHT,
        "blank": (..., ..., ..., ...),
        "wrong": [
            (([7, 7, 7], *RIGHT[1:]), ["`a` is [7, 7, 7]", "stopped after the `all_reduce`"]),
            (([1, 3, 6], *RIGHT[1:]), ["`a` is [1, 3, 6]", "not met"]),
            ((RIGHT[0], [9, 9, 9], *RIGHT[2:]), ["`b` is [9, 9, 9]", "stopped after the `broadcast`"]),
            ((RIGHT[0], [0, 7, 14], *RIGHT[2:]), ["`b`", "rank 0's number"]),
            ((*RIGHT[:2], [27, 27, 27], RIGHT[3]), ["`c`", "`all_reduce`"]),
            ((*RIGHT[:3], [0, 90, 1800]), ["`d`", "nothing was added up"]),
            ((*RIGHT[:3], [5, 5, 5]), ["`d` is [5, 5, 5]", "not it"]),
            ((7, *RIGHT[1:]), ["`a` is 7, not three numbers"]),
        ],
    },
    "08.2": {
        "correct": mean_over_all,
        "blank": blank,
        "wrong": [
            (mean_of_means, ["with 3, 1 numbers", "the mean of the ranks' means"]),
            (the_sum, ["returns 16", "the sum"]),
            (by_the_ranks, ["divided by the number of ranks"]),
            (by_my_own_count, ["divided by one rank's count"]),
            (on_rank_0, ["rank 0 has the mean and rank 1 has not"]),
            (returns_nothing, ["rank 0 returns nothing"]),
            (local, ["no rank made a collective"]),
            (uses_what_comes_back, ["raised TypeError", "NoneType"]),
            ("mean", ["`mean_over_all` is 'mean', not a function"]),
        ],
    },
    "08.3": {
        "correct": gather_all,
        "blank": blank,
        "wrong": [
            (begins_with_ones, ["on 2 ranks", "every number is too large by 2"]),
            (in_every_row, ["every row is the sum"]),
            (in_row_0, ["all ranks wrote into row 0"]),
            (for_two_ranks, ["on 3 ranks", "returns the shape (2, 2)"]),
            (the_real_one, ["you called `dist.all_gather`"]),
            (a_list, ["a list, not a tensor"]),
            (never_sent, ["no rank made a collective"]),
            (spoils_x, ["own `x` has changed"]),
            (returns_the_call, ["returns nothing, not a tensor"]),
        ],
    },
}
