"""Answers to the exercises of lesson 15b: the right ones, the blanks, and mistakes that people make."""


def blank(*args):
    raise NotImplementedError("your code here")


# 15b.2: a ring, timed


def ring_seconds(size, ranks, alpha, bandwidth):
    return 2 * (ranks - 1) * alpha + 2 * (ranks - 1) / ranks * size / bandwidth


def one_alpha(size, ranks, alpha, bandwidth):
    return (alpha if ranks > 1 else 0) + 2 * (ranks - 1) / ranks * size / bandwidth


def whole_vector(size, ranks, alpha, bandwidth):
    return 2 * (ranks - 1) * (alpha + size / bandwidth)


def only_bytes(size, ranks, alpha, bandwidth):
    return 2 * (ranks - 1) / ranks * size / bandwidth


def half_the_turns(size, ranks, alpha, bandwidth):
    return (ranks - 1) * (alpha + size / ranks / bandwidth)


def never_nothing(size, ranks, alpha, bandwidth):
    return 2 * ranks * alpha + 2 * size / bandwidth


def no_return(size, ranks, alpha, bandwidth):
    ring_seconds(size, ranks, alpha, bandwidth)


# 15b.3: two levels


def two_levels(size, nodes, gpus, inside, across):
    return ring_seconds(size, gpus, *inside) + ring_seconds(size, nodes, *across)


def only_inside(size, nodes, gpus, inside, across):
    return ring_seconds(size, gpus, *inside)


def only_across(size, nodes, gpus, inside, across):
    return ring_seconds(size, nodes, *across)


def one_ring(size, nodes, gpus, inside, across):
    return ring_seconds(size, nodes * gpus, *across)


def a_part_across(size, nodes, gpus, inside, across):
    return ring_seconds(size, gpus, *inside) + ring_seconds(size / gpus, nodes, *across)


def inside_twice(size, nodes, gpus, inside, across):
    return 2 * ring_seconds(size, gpus, *inside) + ring_seconds(size, nodes, *across)


def swapped(size, nodes, gpus, inside, across):
    return two_levels(size, nodes, gpus, across, inside)


# 15b.4: the fewest GPUs


def fewest_gpus(step_seconds, batch, samples, days, counts):
    for gpus in sorted(counts):
        if samples / (gpus * batch) * step_seconds(gpus) <= days * 86400:
            return gpus
    return None


def not_sorted(step_seconds, batch, samples, days, counts):
    for gpus in counts:
        if samples / (gpus * batch) * step_seconds(gpus) <= days * 86400:
            return gpus
    return None


def forgets_the_gpus(step_seconds, batch, samples, days, counts):
    for gpus in sorted(counts):
        if samples / batch * step_seconds(gpus) <= days * 86400:
            return gpus
    return None


def trusts_one_gpu(step_seconds, batch, samples, days, counts):
    for gpus in sorted(counts):
        if samples / (gpus * batch) * step_seconds(1) <= days * 86400:
            return gpus
    return None


def strictly(step_seconds, batch, samples, days, counts):
    for gpus in sorted(counts):
        if samples / (gpus * batch) * step_seconds(gpus) < days * 86400:
            return gpus
    return None


def hours_for_days(step_seconds, batch, samples, days, counts):
    for gpus in sorted(counts):
        if samples / (gpus * batch) * step_seconds(gpus) <= days * 86400 * 24:
            return gpus
    return None


def the_quickest(step_seconds, batch, samples, days, counts):
    return min(counts, key=lambda gpus: step_seconds(gpus) / gpus)


def the_last_resort(step_seconds, batch, samples, days, counts):
    return fewest_gpus(step_seconds, batch, samples, days, counts) or max(counts)


ANSWERS = {
    "15b.1": {
        "correct": (14, 175, 17.64, 0.85),
        "blank": (..., ..., ..., ...),
        "wrong": [
            ((7, 175, 17.64, 0.85), ["`turns` is 7", "half"]),
            ((16, 175, 17.64, 0.85), ["`turns` is 16", "two too many"]),
            ((14, 100, 17.64, 0.85), ["`megabytes` is 100", "the vector itself"]),
            ((14, 1400, 17.64, 0.85), ["`megabytes` is 1400", "in each turn"]),
            ((14, 175, 17.5, 0.85), ["`milliseconds` is 17.5", "the bytes alone"]),
            ((14, 175, 31.5, 0.85), ["`milliseconds` is 31.5"]),
            ((14, 175, 0.01764, 0.85), ["`milliseconds` is 0.01764", "in seconds"]),
            ((14, 175, 17.64, 0.1764), ["`efficiency` is 0.1764", "communication"]),
            ((14, 175, 17.64, 85), ["`efficiency` is 85", "percent"]),
            ((14, "many", 17.64, 0.85), ["`megabytes` gives a str, not a number"]),
        ],
    },
    "15b.2": {
        "correct": ring_seconds,
        "blank": blank,
        "wrong": [
            (one_alpha, ["for 2 ranks", "alpha is there once"]),
            (whole_vector, ["for 2 ranks", "the whole vector"]),
            (only_bytes, ["for 2 ranks", "the bytes alone"]),
            (half_the_turns, ["for 2 ranks", "half of the turns"]),
            (never_nothing, ["for 1 rank you get"]),
            (no_return, ["nothing, not a number"]),
            (17.64, ["`ring_seconds` is 17.64, not a function"]),
        ],
    },
    "15b.3": {
        "correct": two_levels,
        "blank": blank,
        "wrong": [
            (only_inside, ["for 4 x 8 GPUs", "nothing crosses the nodes"]),
            (only_across, ["for 4 x 8 GPUs", "nothing happens inside"]),
            (one_ring, ["for 4 x 8 GPUs", "one ring through all"]),
            (a_part_across, ["for 4 x 8 GPUs", "part of the bytes"]),
            (inside_twice, ["for 4 x 8 GPUs", "the ring inside is there twice"]),
            (swapped, ["for 4 x 8 GPUs", "swapped"]),
        ],
    },
    "15b.4": {
        "correct": fewest_gpus,
        "blank": blank,
        "wrong": [
            (not_sorted, ["not in order", "you get 8, and 4 GPUs are enough"]),
            (forgets_the_gpus, ["scales perfectly", "you get None"]),
            (trusts_one_gpu, ["no number is enough", "you get 64 and not None"]),
            (strictly, ["exactly the time", "you get 16, and 8 GPUs are enough"]),
            (hours_for_days, ["you get 1, which takes 3.5 days"]),
            (the_quickest, ["you get 8, and 4 GPUs are enough"]),
            (the_last_resort, ["no number is enough", "not None"]),
        ],
    },
}
