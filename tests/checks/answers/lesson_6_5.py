"""Answers to the turns of lesson 6.5: other right ones, and mistakes that people make."""


def leaves_nobody():
    return 2, {33: "    if False:"}


def as_a_list():
    return [2, {34: "", 33: ""}]


def with_the_line_before():
    return None, {55: "    start = time.time()", 56: "    sampler.set_epoch(epoch)"}


def as_an_int():
    return [None, {56: "    sampler.set_epoch(int(epoch))"}]


def in_two_steps():
    return None, {58: "        out = model(x.to(device))\n        loss = cross_entropy(out, y.to(device))"}


def with_the_line_after():
    line = "        loss = cross_entropy(model(x.to(device)), y.to(device))"
    return None, {58: line, 59: "        optimizer.zero_grad()"}


ANSWERS = {
    "6.5.a": {
        "accepted": [leaves_nobody, as_a_list],
        "wrong": [
            (lambda: 2, ["raised TypeError"]),
            (lambda: (3, {33: "", 34: ""}), ["incident 16 has not 3 as rank"]),
        ],
    },
    "6.5.b": {"accepted": [as_an_int, with_the_line_before]},
    "6.5.c": {"accepted": [in_two_steps, with_the_line_after]},
}
