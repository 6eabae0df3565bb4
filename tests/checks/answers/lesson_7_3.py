"""Answers to the exercises of lesson 7.3: correct, blank, and what learners write before they get there."""

import math
from functools import partial
from itertools import pairwise
from operator import ge, gt

import numpy as np
import torch

# 7.3.1: Amdahl, backwards


def share(alone, together, ranks):
    return (together / alone - 1 / ranks) / (1 - 1 / ranks)


def other_form(alone, together, ranks):
    speedup = alone / together
    return (ranks / speedup - 1) / (ranks - 1)


# 7.3.2: what is exposed?


def exposed_time(messages, work):
    def within(moment, spans):
        return any(start <= moment < end for start, end in spans)

    moments = sorted({moment for span in [*messages, *work] for moment in span})
    pieces = pairwise(moments)
    return sum(b - a for a, b in pieces if within(a, messages) and not within(a, work))


def in_halves(messages, work):
    """A grid of half milliseconds, which happens to be fine enough for the check's spans."""
    on_the_way = {half for start, end in messages for half in range(int(2 * start), int(2 * end))}
    busy = {half for start, end in work for half in range(int(2 * start), int(2 * end))}
    return len(on_the_way - busy) / 2


def total(spans):
    return sum(end - start for start, end in spans)


def overlap(a, b):
    return max(0, min(a[1], b[1]) - max(a[0], b[0]))


def pair_by_pair(messages, work):
    return total(messages) - sum(overlap(message, piece) for message in messages for piece in work)


def first_to_last(messages, work):
    whole = [(min(m[0] for m in messages), max(m[1] for m in messages))] if messages else []
    return exposed_time(whole, work)


def what_is_hidden(messages, work):
    return exposed_time(messages, []) - exposed_time(messages, work)


def in_whole_steps(messages, work, beyond=0):
    sent, busy = ({t for s, e in it for t in range(int(s), int(e) + beyond)} for it in (messages, work))
    return len(sent - busy)


def trusts_the_order(messages, work):
    """Merges the messages as they come."""
    merged = []
    for start, end in messages:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return exposed_time(merged, work)


def ends_with_the_last(messages, work):
    merged = []
    for start, end in sorted(work):
        if merged and start <= merged[-1][1]:
            start, _ = merged.pop()
        merged.append((start, end))
    return exposed_time(messages, merged)


def as_list(messages, work):
    return [m for m in messages if not any(overlap(m, piece) for piece in work)]


# 7.3.3: how many are worth it?


def exactly(compute, message, efficiency):
    return compute * (1 / efficiency - 1) / message


def most(compute, message, efficiency):
    return max(1, int(exactly(compute, message, efficiency) + 1e-9))


def by_trying(compute, message, efficiency, *, enough=ge):
    ranks = 1
    while enough(compute / ((ranks + 1) * (compute / (ranks + 1) + message)), efficiency):
        ranks += 1
    return ranks


def speedup_for_efficiency(compute, message, efficiency):
    ranks = 1
    while ranks < 1000 and compute / (compute / (ranks + 1) + message) >= efficiency:
        ranks += 1
    return ranks


# your turn


def warms_up_apart(step, wait, clock, steps):
    for _ in range(3):
        step()
        wait()
    best = math.inf
    for _ in range(steps):
        before = clock()
        step(), wait()
        best = min(best, clock() - before)
    return best


def by_sorting(step, wait, clock, steps):
    times = [timed(step, wait, clock) for _ in range(steps + 3)]
    return sorted(times[-steps:])[0]


def timed(step, wait, clock):
    wait()
    begin = clock()
    step()
    wait()
    return clock() - begin


def by_numpy(ranks):
    waits = np.array([parts["exposed"] for parts in ranks])
    return waits.argmin() if np.ptp(waits) > sum(ranks[-1].values()) / 2 else None


def by_torch(ranks):
    waits = torch.tensor([float(parts["exposed"]) for parts in ranks])
    whole = sum(sum(parts.values()) for parts in ranks) / len(ranks)
    if waits.max() - waits.min() > whole / 2:
        return waits.argmin()


def far_enough(ranks, limit):
    waits = [parts["exposed"] for parts in ranks]
    return waits.index(min(waits)) if max(waits) - min(waits) > limit else None


def part_of_the_whole(ranks, part, but=()):
    return far_enough(ranks, part * sum(ms for name, ms in ranks[0].items() if name not in but))


def or_false(ranks):
    found = part_of_the_whole(ranks, 1 / 2)
    return False if found is None else found


def in_a_list(ranks):
    found = part_of_the_whole(ranks, 1 / 2)
    return None if found is None else [found]


def by_who_waits_next(ranks):
    """How far is the least from the next? That is as good in all the cases of the check."""
    (least, rank), (second, _), *_ = sorted((parts["exposed"], rank) for rank, parts in enumerate(ranks))
    return rank if second - least > sum(ranks[0].values()) / 2 else None


def never_waits_for_the_first(step, wait, clock, steps):
    for _ in range(3):
        step()
    times = []
    for _ in range(steps):
        start = clock()
        step(), wait()
        times.append(clock() - start)
    return min(times)


def one_look_for_all(step, wait, clock, steps):
    for _ in range(3):
        step(), wait()
    times, before = [], clock()
    for _ in range(steps):
        step(), wait()
        times.append(clock() - before)
    return min(times)


def pops(ranks):
    """Takes apart what it was given, which must not spoil what the next answer is given."""
    waits = [(parts.pop("exposed"), sum(parts.values())) for parts in ranks]
    (low, _), (high, rest) = min(waits), max(waits)
    return [it[0] for it in waits].index(low) if high - low > (high + rest) / 2 else None


def twice_as_long(ranks):
    (least, rank), (second, _), *_ = sorted((parts["exposed"], rank) for rank, parts in enumerate(ranks))
    return rank if 2 * least < second else None


def leaves_out_the_quickest(step, wait, clock, steps):
    return sorted(timed(step, wait, clock) for _ in range(steps + 3))[3]


def by_all_its_work(ranks):
    worked = [it["data"] + it["forward"] + it["backward"] + it["optimiser"] + it["between"] for it in ranks]
    if max(worked) - min(worked) <= sum(ranks[0].values()) / 2:
        return None
    return worked.index(max(worked))


ANSWERS = {
    "7.3.1": {
        "correct": share,
        "accepted": [other_form],
        "wrong": [
            (lambda alone, together, ranks: alone / together, ["the speed-up"]),
            (lambda alone, together, ranks: alone / together / ranks, ["the efficiency"]),
            (lambda alone, together, ranks: 1 - alone / together / ranks, ["1 less the efficiency"]),
            (lambda alone, together, ranks: together / alone, ["what is left of the time"]),
            (lambda alone, together, ranks: together / alone - 1 / ranks, ["nearly"]),
            (lambda alone, together, ranks: 2 * together / alone - 1, ["share(100, 30, 8)", "holds for 2 ranks"]),
            (lambda alone, together, ranks: share(together, alone, ranks), ["the wrong way round"]),
            (lambda *args: 1 - share(*args), ["that *is* divided"]),
            (lambda *args: None, ["gives nothing"]),
            (0.25, ["not a function"]),
        ],
    },
    "7.3.2": {
        "correct": exposed_time,
        "accepted": [in_halves],
        "wrong": [
            (lambda messages, work: total(messages), ["is 10, and it should be 7"]),
            (lambda messages, work: total(messages) - total(work), ["exposed_time([(5, 10)], [(0, 3)])", "is 2"]),
            (lambda messages, work: max(0, total(messages) - total(work)), ["is 2, and it should be 5"]),
            (pair_by_pair, ["exposed_time([(0, 4), (2, 6)], [])", "is 8"]),
            (first_to_last, ["exposed_time([(0, 2), (4, 6)], [])", "is 6"]),
            (in_whole_steps, ["exposed_time([(0, 4)], [(2.5, 3)])", "it should be 3.5"]),
            (partial(in_whole_steps, beyond=1), ["exposed_time([(0, 3)], [])", "is 4"]),
            (ends_with_the_last, ["[(1, 8), (2, 3)]", "it should be 3"]),
            (what_is_hidden, ["what is hidden"]),
            (trusts_the_order, ["[(8, 9), (0, 3)]", "it should be 2.5"]),
            (as_list, ["gives a list"]),
            (lambda messages, work: None, ["gives nothing"]),
        ],
    },
    "7.3.3": {
        "correct": most,
        "accepted": [by_trying],
        "wrong": [
            (exactly, ["most(80, 10, 0.65)", "not a whole number"]),
            (lambda *given: math.ceil(exactly(*given)), ["one too many"]),
            (lambda *given: int(exactly(*given) + 1e-9), ["most(10, 20, 0.5)", "nobody works"]),
            (partial(by_trying, enough=gt), ["one too few"]),
            (lambda *given: by_trying(*given) + 1, ["one too many"]),
            (speedup_for_efficiency, ["is 1000"]),
            (lambda compute, message, efficiency: compute / message / efficiency, ["not efficient enough"]),
            (lambda *args: None, ["gives nothing"]),
        ],
    },
    "7.3.c": {
        "accepted": [warms_up_apart, by_sorting],
        "wrong": [
            (never_waits_for_the_first, ["pays for those before"]),
            (one_look_for_all, ["the first of those that count"]),
            (leaves_out_the_quickest, ["the three quickest are left out"]),
        ],
    },
    "7.3.b": {
        "accepted": [
            lambda share, n: n / (share * n + 1 - share),
            lambda share, n: 100 / (100 * share + 100 * (1 - share) / n),
            lambda share, n: torch.tensor(n / (1 + share * (n - 1))),
        ],
        "wrong": [
            (lambda share, n: n * (1 - share) + share * 1, ["a mean of two speed-ups"]),
            (lambda share, n: 1 / (share + 1 - share / n), ["only `share` is divided"]),
            (lambda share, n: n if share * n < 1 else 1 / share, ["the smaller of two limits"]),
            (lambda share, n: [n / (1 + share * (n - 1))], ["a list of 1", "should be 8"]),
            (lambda share, n: np.array([n / (1 + share * (n - 1))]), ["a ndarray", "should be 8"]),
        ],
    },
    "7.3.a": {
        "accepted": [
            by_numpy,
            by_torch,
            pops,
            by_all_its_work,
            by_who_waits_next,
            *[partial(part_of_the_whole, part=part) for part in (0.2, 0.25, 1 / 3, 0.4, 0.5)],  # a limit is theirs
        ],
        "wrong": [
            *[(partial(part_of_the_whole, part=part), ["too low: noise is named"]) for part in (0.1, 0.15, 0.18)],
            *[(partial(part_of_the_whole, part=part), ["too high: a slow rank"]) for part in (0.54, 0.6, 2 / 3)],
            (partial(part_of_the_whole, part=1 / 2, but=["between"]), ["busy between the phases"]),
            (twice_as_long, ["somebody is named where all are busy between the phases"]),
            (or_false, ["`False`, which counts as 0"]),
            (in_a_list, ["a list, with the number"]),
            (partial(far_enough, limit=30), ["so many milliseconds"]),
            (partial(far_enough, limit=70), ["slow to read: slow rank is None, and should be 1"]),
        ],
    },
}
