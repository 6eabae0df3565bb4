"""Answers to the exercises of lesson 16: correct, blank, and wrong as learners are wrong."""

import math

BYTES = {"ddp": (16, 0), "zero": (8, 8), "fsdp": (0, 16)}


def fewest(parameters, tool, room=80e9):
    whole, shared = BYTES[tool]
    left = room - whole * parameters
    if left < 0 or (shared and left == 0):
        return None
    return max(1, math.ceil(shared * parameters / left)) if shared else 1


def blank(parameters, tool, room=80e9):
    raise NotImplementedError("your code here")


def ddp_shares(parameters, tool, room=80e9):
    return fewest(parameters, "fsdp" if tool == "ddp" else tool, room)


def not_rounded(parameters, tool, room=80e9):
    given = fewest(parameters, tool, room)
    return 16 * parameters / room if tool == "fsdp" else given


def rounded_down(parameters, tool, room=80e9):
    return max(1, int(16 * parameters / room)) if tool == "fsdp" else fewest(parameters, tool, room)


def none_at_all(parameters, tool, room=80e9):
    return int(16 * parameters // room) if tool == "fsdp" else fewest(parameters, tool, room)


def the_brim(parameters, tool, room=80e9):
    return None if tool == "ddp" and 16 * parameters == room else fewest(parameters, tool, room)


def zero_shares_all(parameters, tool, room=80e9):
    return fewest(parameters, "fsdp" if tool == "zero" else tool, room)


def one_number_of_adam(parameters, tool, room=80e9):
    return max(1, math.ceil(12 * parameters / room)) if tool == "fsdp" else fewest(parameters, tool, room)


def infinite(parameters, tool, room=80e9):
    given = fewest(parameters, tool, room)
    return math.inf if given is None else given


def always_80(parameters, tool, room=80e9):
    return fewest(parameters, tool)


def in_words(parameters, tool, room=80e9):
    given = fewest(parameters, tool, room)
    return "none" if given is None else given


ANSWERS = {
    "16.1": {
        "correct": (19240, 32768, 5712),
        "blank": (..., ..., ...),
        "wrong": [
            ((38480, 32768, 5712), ["`fsdp_rank_0` is 38480", "all of Adam's state"]),
            ((9620, 32768, 5712), ["`fsdp_rank_0` is 9620", "one number a parameter"]),
            ((2405, 32768, 5712), ["`fsdp_rank_0` is 2405", "number of parameters"]),
            ((19240, 19240, 19240), ["`zero_rank_0` is 19240", "an exact half"]),
            ((19240, 33280, 5200), ["`zero_rank_0` is 33280", "the first layer"]),
            ((19240, 32768, 32768), ["`zero_rank_1` is 32768", "rank 0's"]),
            ((19240, 32768, 5200), ["`zero_rank_1` is 5200", "second layer alone"]),
            ((19240, "32768 bytes", 5712), ["`zero_rank_0` gives a str", "not a number"]),
        ],
    },
    "16.2": {
        "correct": fewest,
        "blank": blank,
        "wrong": [
            (ddp_shares, ["fewest(7e9, 'ddp', 80e9) gives 2, and no number is enough"]),
            (not_rounded, ["fewest(4e9, 'fsdp', 80e9) gives 0.8, which is no number"]),
            (rounded_down, ["fewest(7e9, 'fsdp', 80e9) gives 1: it does not fit on so few"]),
            (none_at_all, ["gives 0, which is no number"]),
            (the_brim, ["fewest(5e9, 'ddp', 80e9) gives None, and 1 would do"]),
            (zero_shares_all, ["fewest(7e9, 'zero', 80e9) gives 2: it does not fit on so few"]),
            (one_number_of_adam, ["fewest(30e9, 'fsdp', 80e9) gives 5: it does not fit on so few"]),
            (infinite, ["gives inf, and no number is enough"]),
            (always_80, ["fewest(70e9, 'fsdp', 24e9) gives 14: it does not fit"]),
            (in_words, ["gives 'none'"]),
            (7, ["not a function"]),
        ],
    },
}
