"""Answers to the exercises of lesson 4.4: the right ones, the blanks, and mistakes that people make."""

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F

# 4.4.2: statistics of everybody


def statistics(x):
    sums = torch.stack([x.sum(0), x.square().sum(0), torch.ones_like(x).sum(0)])
    dist.all_reduce(sums)
    total, squares, rows = sums
    return total / rows, squares / rows - (total / rows).square()


def reduced(x):
    x = torch.as_tensor(x, dtype=torch.float64).clone()
    dist.all_reduce(x)
    return x


def in_two_rounds(x):
    rows = reduced(len(x))
    mean = reduced(x.sum(0)) / rows
    return mean, reduced((x - mean).square().sum(0)) / rows


def own_mean(x):
    return x.mean(0)


def own_spread(x):
    return x.var(0, correction=0)


def mean_of_means(x):
    return reduced(own_mean(x)) / dist.get_world_size(), reduced(own_spread(x)) / dist.get_world_size()


def one_row_less(x):
    mean, spread = statistics(x)
    return mean, spread * reduced(len(x)) / (reduced(len(x)) - 1)


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


def uses_what_it_returns(x):
    total = dist.all_reduce(x.sum(0))
    return total / len(x), total


# 4.4.3: seeds that agree and differ


def seed_ranks(seed, *, mask=None, order=None):
    """mask, order: the seeds, made of the seed and the rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(mask(seed, rank) if mask else seed * size + rank)
    return torch.Generator().manual_seed(order(seed, rank) if order else seed)


def never_seeded(seed):
    return torch.Generator().manual_seed(seed)


def fixed_order(seed):
    seed_ranks(seed)
    return torch.Generator()


def returns_the_seed(seed):
    seed_ranks(seed)
    return seed


def the_global_one(seed):
    return torch.manual_seed(1000 * seed + dist.get_rank())


# 4.4.4: a loss over words


def loss_over_words(logits, labels, *, padding_too=False, ranks=None):
    words = torch.tensor(labels.numel()).to(labels.device) if padding_too else (labels != -100).sum()
    dist.all_reduce(words)
    return a_sum(logits, labels) * (ranks or dist.get_world_size()) / words


def flattened(logits, labels, reduction):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction=reduction)


a_sum, plain_mean, one_for_each_word = (partial(flattened, reduction=how) for how in ("sum", "mean", "none"))


def in_other_dimensions(logits, labels):
    words = (labels != -100).sum()
    dist.all_reduce(words)
    total = F.cross_entropy(logits.transpose(1, 2), labels, reduction="sum")
    return total / words * dist.get_world_size()


def weighted_mean(logits, labels):
    mine = (labels != -100).sum()
    words = mine.clone()
    dist.all_reduce(words)
    return plain_mean(logits, labels) * mine / words * dist.get_world_size()


def not_flattened(logits, labels):
    return F.cross_entropy(logits, labels, reduction="sum")


def skips_when_empty(logits, labels):
    return logits.sum() * 0 if (labels == -100).all() else loss_over_words(logits, labels)


ANSWERS = {
    "4.4.1": {"correct": (18, 3, 3, 4)},
    "4.4.2": {
        "correct": statistics,
        "accepted": [in_two_rounds],
        "wrong": [
            (lambda x: (own_mean(x), own_spread(x)), ["the mean is the mean of the rank's own rows"]),
            (mean_of_means, ["with 3 and 5 rows", "the mean is the mean of the ranks' means"]),
            (lambda x: (reduced(own_mean(x)),) * 2, ["the sum of the ranks' means"]),
            (lambda x: (reduced(x.sum(0)) / len(x),) * 2, ["divided by the rank's own rows"]),
            (lambda x: (statistics(x)[0], own_spread(x)), ["the variance is the rank's own"]),
            (lambda x: (statistics(x)[0], mean_of_means(x)[1]), ["the variance is the mean of the ranks' own"]),
            (one_row_less, ["divided by one row less"]),
            (with_the_root, ["the standard deviation"]),
            (only_squares, ["the mean of the squares"]),
            (one_for_all_columns, ["has the shape (), not (3,)"]),
            (spoils_x, ["`x` itself has changed"]),
            (lambda x: statistics(x)[0], ["returned Tensor, not two tensors"]),
            (lambda x: dist.all_reduce(len(x)), ["raised TypeError"]),
            (uses_what_it_returns, ["raised TypeError", "'NoneType'"]),
        ],
    },
    "4.4.3": {
        "correct": seed_ranks,
        "accepted": [partial(seed_ranks, mask=lambda seed, rank: 1000 * seed + rank)],
        "wrong": [
            (
                partial(seed_ranks, mask=lambda seed, rank: seed + rank),
                ["rank 1 of the run with seed 7", "rank 0 of the run with seed 8"],
            ),
            (partial(seed_ranks, mask=lambda seed, rank: seed), ["all ranks draw the same dropout mask"]),
            (partial(seed_ranks, order=lambda seed, rank: seed + rank), ["different orders"]),
            (never_seeded, ["the same seed gives another mask"]),
            (fixed_order, ["the seeds 7 and 8 give the same order"]),
            (partial(seed_ranks, mask=lambda seed, rank: 1000 * seed + rank % 2), ["two of three ranks"]),
            (returns_the_seed, ["returned int, not a Generator"]),
            (the_global_one, ["different orders"]),
        ],
    },
    "4.4.4": {
        "correct": loss_over_words,
        "accepted": [in_other_dimensions],
        "wrong": [
            (plain_mean, ["with 7 and 3 words", "% off"]),
            (weighted_mean, ["with 7 and 0 words", "not a number"]),
            (partial(loss_over_words, ranks=1), ["with 8 and 8 words", "0.5 times"]),
            (partial(loss_over_words, padding_too=True), ["with 7 and 3 words", "0.625 times"]),
            (partial(loss_over_words, ranks=2), ["with 6, 4 and 2 words", "0.6667 times"]),
            (a_sum, ["with 8 and 8 words", "8 times"]),
            (not_flattened, ["raised RuntimeError", "target size"]),
            (one_for_each_word, ["raised TypeError", "shape (8,)"]),
            (
                lambda logits, labels: loss_over_words(logits, labels).item(),
                ["raised TypeError", "not a tensor with one number"],
            ),
            (lambda logits, labels: None, ["raised TypeError", "returned None"]),
            (skips_when_empty, ["with 7 and 0 words", "`all_reduce`"]),
        ],
    },
}
