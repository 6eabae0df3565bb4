"""Answers to the exercises of lesson 09c: the right ones, the blanks, and mistakes that people make."""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def blank(*args):
    raise NotImplementedError("your code here")


# 09c.2: statistics of everybody


def statistics(x):
    sums = torch.stack([x.sum(0), x.square().sum(0), torch.ones_like(x).sum(0)])
    dist.all_reduce(sums)
    total, squares, rows = sums
    return total / rows, squares / rows - (total / rows).square()


def in_two_rounds(x):
    rows = torch.tensor(float(len(x)), dtype=x.dtype, device=x.device)
    mean = x.sum(0)
    dist.all_reduce(rows)
    dist.all_reduce(mean)
    mean = mean / rows
    spread = (x - mean).square().sum(0)
    dist.all_reduce(spread)
    return mean, spread / rows


def of_my_own(x):
    return x.mean(0), x.var(0, correction=0)


def mean_of_means(x):
    mean, spread = x.mean(0), x.var(0, correction=0)
    dist.all_reduce(mean)
    dist.all_reduce(spread)
    return mean / dist.get_world_size(), spread / dist.get_world_size()


def sum_of_means(x):
    mean = x.mean(0)
    dist.all_reduce(mean)
    return mean, mean


def own_count(x):
    total = x.sum(0)
    dist.all_reduce(total)
    return total / len(x), total


def own_spread(x):
    return statistics(x)[0], x.var(0, correction=0)


def mean_of_spreads(x):
    spread = x.var(0, correction=0)
    dist.all_reduce(spread)
    return statistics(x)[0], spread / dist.get_world_size()


def one_row_less(x):
    mean, spread = statistics(x)
    rows = torch.tensor(float(len(x)), device=x.device)
    dist.all_reduce(rows)
    return mean, spread * rows / (rows - 1)


def with_the_root(x):
    mean, spread = statistics(x)
    return mean, spread.sqrt()


def only_squares(x):
    mean, spread = statistics(x)
    return mean, spread + mean.square()


def one_for_all_columns(x):
    mean, spread = statistics(x)
    return mean.mean(), spread.mean()


def spoils_x(x):
    answer = statistics(x)
    x.zero_()
    return answer


def only_the_mean(x):
    return statistics(x)[0]


def reduces_a_number(x):
    rows = len(x)
    dist.all_reduce(rows)


def uses_what_it_returns(x):
    total = dist.all_reduce(x.sum(0))
    return total / len(x), total


# 09c.3: seeds that agree and differ


def seed_ranks(seed):
    torch.manual_seed(seed * dist.get_world_size() + dist.get_rank())
    return torch.Generator().manual_seed(seed)


def with_room(seed):
    torch.manual_seed(1000 * seed + dist.get_rank())
    return torch.Generator().manual_seed(seed)


def neighbours_meet(seed):
    torch.manual_seed(seed + dist.get_rank())
    return torch.Generator().manual_seed(seed)


def all_alike(seed):
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


def orders_apart(seed):
    torch.manual_seed(1000 * seed + dist.get_rank())
    return torch.Generator().manual_seed(1000 * seed + dist.get_rank())


def never_seeded(seed):
    return torch.Generator().manual_seed(seed)


def fixed_order(seed):
    torch.manual_seed(1000 * seed + dist.get_rank())
    return torch.Generator()


def even_and_odd(seed):
    torch.manual_seed(1000 * seed + dist.get_rank() % 2)
    return torch.Generator().manual_seed(seed)


def returns_the_seed(seed):
    torch.manual_seed(1000 * seed + dist.get_rank())
    return seed


def the_global_one(seed):
    return torch.manual_seed(1000 * seed + dist.get_rank())


# 09c.4: a loss over words


def loss_over_words(logits, labels):
    words = (labels != -100).sum()
    dist.all_reduce(words)
    total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return total * dist.get_world_size() / words


def in_other_dimensions(logits, labels):
    words = (labels != -100).sum()
    dist.all_reduce(words)
    total = F.cross_entropy(logits.transpose(1, 2), labels, reduction="sum")
    return total / words * dist.get_world_size()


def plain_mean(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def weighted_mean(logits, labels):
    mine = (labels != -100).sum()
    words = mine.clone()
    dist.all_reduce(words)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) * mine / words * dist.get_world_size()


def no_world_size(logits, labels):
    return loss_over_words(logits, labels) / dist.get_world_size()


def padding_counts(logits, labels):
    words = torch.tensor(float(labels.numel()), device=labels.device)
    dist.all_reduce(words)
    total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return total * dist.get_world_size() / words


def two_ranks(logits, labels):
    return loss_over_words(logits, labels) * 2 / dist.get_world_size()


def a_sum(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def not_flattened(logits, labels):
    return F.cross_entropy(logits, labels, reduction="sum")


def one_for_each_word(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")


def a_float(logits, labels):
    return loss_over_words(logits, labels).item()


def no_return(logits, labels):
    loss_over_words(logits, labels)


def skips_when_empty(logits, labels):
    if (labels == -100).all():
        return logits.sum() * 0
    return loss_over_words(logits, labels)


ANSWERS = {
    "09c.1": {
        "correct": (18, 3, 3, 4),
        "blank": (..., ..., ..., ...),
        "wrong": [
            ((24, 3, 3, 4), ["`seen` is 24", "what rank 3 saw"]),
            ((15, 3, 3, 4), ["`seen` is 15", "rank 0's counter"]),
            ((78, 3, 3, 4), ["`seen` is 78", "all have seen"]),
            ((99, 3, 3, 4), ["`seen` is 99", "not it"]),
            ((18, 2.75, 3, 4), ["`clipped` is 2.75", "mean of clipped"]),
            ((18, 5, 3, 4), ["`clipped` is 5", "not clipped"]),
            ((18, 3, 1 / 3, 4), ["`weight_of_a_word`", "wrong way round"]),
            ((18, 3, 3, 2), ["`bytes_a_parameter` is 2", "logits"]),
            ((18, 3, 3, "four"), ["`bytes_a_parameter` gives a str"]),
        ],
    },
    "09c.2": {
        "correct": statistics,
        "accepted": [in_two_rounds],
        "blank": blank,
        "wrong": [
            (of_my_own, ["the mean is the mean of the rank's own rows"]),
            (mean_of_means, ["with 3 and 5 rows", "the mean is the mean of the ranks' means"]),
            (sum_of_means, ["the sum of the ranks' means"]),
            (own_count, ["divided by the rank's own rows"]),
            (own_spread, ["the variance is the rank's own"]),
            (mean_of_spreads, ["the variance is the mean of the ranks' own"]),
            (one_row_less, ["divided by one row less"]),
            (with_the_root, ["the standard deviation"]),
            (only_squares, ["the mean of the squares"]),
            (one_for_all_columns, ["has the shape (), not (3,)"]),
            (spoils_x, ["`x` itself has changed"]),
            (only_the_mean, ["returned Tensor, not two tensors"]),
            (reduces_a_number, ["raised TypeError"]),
            (uses_what_it_returns, ["raised TypeError", "'NoneType'"]),
        ],
    },
    "09c.3": {
        "correct": seed_ranks,
        "accepted": [with_room],
        "blank": blank,
        "wrong": [
            (neighbours_meet, ["rank 1 of the run with seed 7", "rank 0 of the run with seed 8"]),
            (all_alike, ["all ranks draw the same dropout mask"]),
            (orders_apart, ["different orders"]),
            (never_seeded, ["the same seed gives another mask"]),
            (fixed_order, ["the seeds 7 and 8 give the same order"]),
            (even_and_odd, ["two of three ranks"]),
            (returns_the_seed, ["returned int, not a Generator"]),
            (the_global_one, ["different orders"]),
        ],
    },
    "09c.4": {
        "correct": loss_over_words,
        "accepted": [in_other_dimensions],
        "blank": blank,
        "wrong": [
            (plain_mean, ["with 7 and 3 words", "% off"]),
            (weighted_mean, ["with 7 and 0 words", "not a number"]),
            (no_world_size, ["with 8 and 8 words", "0.5 times"]),
            (padding_counts, ["with 7 and 3 words", "0.625 times"]),
            (two_ranks, ["with 6, 4 and 2 words", "0.6667 times"]),
            (a_sum, ["with 8 and 8 words", "8 times"]),
            (not_flattened, ["raised RuntimeError", "target size"]),
            (one_for_each_word, ["raised TypeError", "shape (8,)"]),
            (a_float, ["raised TypeError", "not a tensor with one number"]),
            (no_return, ["raised TypeError", "returned None"]),
            (skips_when_empty, ["with 7 and 0 words", "`all_reduce`"]),
        ],
    },
}
