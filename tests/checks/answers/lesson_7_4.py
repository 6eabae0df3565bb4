"""Answers to the exercises of lesson 7.4: the right ones, the blanks, and mistakes that people make."""

import numpy as np
import torch

# 7.4.1: two numbers from timings


def two_numbers(timings):
    ranks, size, seconds = torch.tensor(timings, dtype=torch.float64).T
    rows = torch.stack([2 * (ranks - 1), 2 * (ranks - 1) / ranks * size], dim=1)
    alpha, per_byte = torch.linalg.lstsq(rows, seconds[:, None]).solution.flatten()
    return alpha, 1 / per_byte


def by_two_rows(timings):
    (ranks, small, quick), (same, large, slow) = timings[0], next(it for it in timings[::-1] if it[0] == timings[0][0])
    assert ranks == same
    bandwidth = 2 * (ranks - 1) / ranks * (large - small) / (slow - quick)
    return (quick - 2 * (ranks - 1) / ranks * small / bandwidth) / 2 / (ranks - 1), bandwidth


def by_numpy(timings):
    rows = [[1, size / ranks] for ranks, size, _ in timings]
    alpha, per_byte = np.linalg.lstsq(np.array(rows), [t / 2 / (n - 1) for n, _, t in timings], rcond=None)[0]
    return [alpha, 1 / per_byte]


def with_line(timings, alpha=lambda a, n: a, bandwidth=lambda b, n: b):
    """Two right numbers, with one thing done otherwise; the ranks are those of the first row."""
    a, b = by_two_rows(timings)
    return alpha(a, timings[0][0]), bandwidth(b, timings[0][0])


def of_all_turns(timings):
    return with_line(timings, alpha=lambda a, n: 2 * (n - 1) * a)


def of_the_vector(timings):
    return with_line(timings, bandwidth=lambda b, n: b / (2 * (n - 1) / n))


# your turn


def piece_by_piece(size, ranks):
    piece, turns = size / ranks, 2 * ranks - 2
    return torch.tensor([turns, turns * piece])


def in_halves(size, ranks):
    half = ranks - 1
    return [half + half, half * size / ranks + half * size / ranks]


def the_vector_in_each_turn(size, ranks):
    return 2 * ranks - 2, sum(size for _ in range(2 * ranks - 2))


def divides_too_early(size, ranks):
    turns = 2 * (ranks - 1)
    return turns, turns // ranks * size


def divides_by_the_turns(size, ranks):
    turns = 2 * (ranks - 1)
    return turns, size / (ranks / turns)


def the_last_apart(compute, buckets, room):
    *others, last = buckets
    return compute + max(sum(others) - room, 0) + last


def by_steps(compute, buckets, room):
    over = torch.tensor(buckets, dtype=torch.float64).sum() - room
    return compute + over.clamp(min=buckets[-1])


def the_last_left_out(compute, buckets, room):
    return compute + max(0, sum(buckets[:-1]) - room)


def where_it_does_not_fit(compute, buckets, room):
    if sum(buckets) > room:
        return compute + max(sum(buckets) - room, buckets[-1])


def one_or_the_other(compute, buckets, room):
    *others, last = buckets
    return compute + (sum(others) - room if sum(others) > room else last)


def the_larger_of_the_two(compute, buckets, room):
    return compute + max(sum(buckets[:-1]) - room, buckets[-1])


def all_but_the_first(compute, buckets, room):
    return compute + buckets[-1] + max(0, sum(buckets[1:]) - room)


def those_that_fit_whole(compute, buckets, room):
    for bucket in buckets:
        if bucket <= room:
            room -= bucket
        else:
            compute += bucket
    return compute


def with_the_list(compute, buckets, room):
    return compute + buckets - room


def alpha_by_pieces(ranks, alpha, bandwidth):
    piece = alpha * bandwidth  # bytes that pass while a message costs its alpha
    return sum(piece for _ in range(ranks))


def by_the_two_parts(ranks, alpha, bandwidth):
    turns = 2 * (ranks - 1)
    return turns * alpha / (turns / ranks / bandwidth)


ANSWERS = {
    "7.4.1": {
        "correct": two_numbers,
        "accepted": [by_two_rows, by_numpy],
        "wrong": [
            (of_all_turns, ["on 2 ranks", "that of all turns together"]),
            (of_the_vector, ["on 4 ranks", "those of the vector"]),
            (lambda timings: by_two_rows(timings)[::-1], ["swapped"]),
            (lambda timings: (by_two_rows(timings)[0], 1 / by_two_rows(timings)[1]), ["the seconds of a byte"]),
            (lambda timings: (timings[0][2], by_two_rows(timings)[1]), ["the time of the smallest message"]),
            (lambda timings: (1e-3, 1e9), ["it is 1e-05 and 1e+09"]),
            (lambda timings: print(timings), ["gives nothing"]),
            (3, ["not a function"]),
        ],
    },
    "7.4.a": {
        "accepted": [piece_by_piece, in_halves],
        "wrong": [
            (the_vector_in_each_turn, ["or the whole vector in every turn"]),
            (divides_too_early, ["once the vector, which is what `//` makes"]),
            (divides_by_the_turns, ["1 rank raised ZeroDivisionError"]),
        ],
    },
    "7.4.b": {
        "accepted": [alpha_by_pieces, by_the_two_parts],
        "wrong": [
            (lambda ranks, alpha, bandwidth: alpha * bandwidth, ["the ranks are not in it"]),
            (lambda ranks, alpha, bandwidth: 2 * (ranks - 1) * alpha * bandwidth, ["alphas of all turns"]),
            (lambda ranks, alpha, bandwidth: ranks / alpha * bandwidth, ["ZeroDivisionError"]),
        ],
    },
    "7.4.c": {
        "accepted": [the_last_apart, by_steps],
        "wrong": [
            (the_last_left_out, ["the last bucket is left out"]),
            (where_it_does_not_fit, ["step is None"]),
            (the_larger_of_the_two, ["either the last bucket is exposed, or what the others leave over"]),
            (all_but_the_first, ["the first bucket is left out"]),
            (one_or_the_other, ["either the last bucket is exposed, or what the others leave over"]),
            (those_that_fit_whole, ["a part does not fit is exposed whole"]),
            (with_the_list, ["and 'list'"]),
        ],
    },
}
