"""Answers to the exercises of lesson 7.4: the right ones, the blanks, and mistakes that people make."""

# 7.4.2: a ring, timed


def ring_seconds(size, ranks, alpha, bandwidth):
    return 2 * (ranks - 1) * alpha + 2 * (ranks - 1) / ranks * size / bandwidth


def only_bytes(size, ranks, alpha, bandwidth):
    return ring_seconds(size, ranks, 0, bandwidth)


def one_alpha(size, ranks, alpha, bandwidth):
    return (alpha if ranks > 1 else 0) + only_bytes(size, ranks, alpha, bandwidth)


def whole_vector(size, ranks, alpha, bandwidth):
    return 2 * (ranks - 1) * (alpha + size / bandwidth)


def never_nothing(size, ranks, alpha, bandwidth):
    return 2 * ranks * alpha + 2 * size / bandwidth


ANSWERS = {
    "7.4.1": {"correct": (14, 175, 17.64, 0.85)},
    "7.4.2": {
        "correct": ring_seconds,
        "wrong": [
            (one_alpha, ["for 2 ranks", "alpha is there once"]),
            (whole_vector, ["for 2 ranks", "the whole vector"]),
            (only_bytes, ["for 2 ranks", "the bytes alone"]),
            (lambda *given: ring_seconds(*given) / 2, ["for 2 ranks", "half of the turns"]),
            (never_nothing, ["for 1 rank you get"]),
            (lambda *given: None, ["nothing, not a number"]),
            (17.64, ["`ring_seconds` is 17.64, not a function"]),
        ],
    },
}
