"""Answers to the turns of lesson 6.4: other right ones, and mistakes that people make."""

import torch
import torch.distributed as dist


def in_a_loop(frames):
    for frame in frames:
        if "/site-packages/" not in frame["filename"]:
            return frame


def from_a_list(frames):
    return min((it for it in frames if it["filename"].startswith("/home")), key=frames.index)


def by_number(lists, what):
    ranks = [{it["number"]: it[what] for it in rank} for rank in lists]
    for number in sorted(set().union(*ranks)):
        if len({rank.get(number) for rank in ranks}) != 1:
            return number
    return None


def by_place(lists, what):
    longest = max(lists, key=len)
    for place, call in enumerate(longest):
        if any(len(rank) <= place or rank[place][what] != call[what] for rank in lists):
            return call["number"]


@torch.no_grad()
def under_a_decorator(model, x):
    if dist.get_rank() != 0:
        return None
    model.eval()
    answer = model.module(x)
    model.train()
    return answer


def detached(model, x):
    model.module.train(False)
    answer = model.module(x).detach().tolist() if dist.get_rank() == 0 else None
    model.module.train(True)
    return answer


ANSWERS = {
    "6.4.a": {
        "accepted": [in_a_loop, from_a_list],
        "wrong": [(lambda frames: in_a_loop(frames)["line"], ["raised TypeError"])],
    },
    "6.4.b": {"accepted": [by_number, by_place]},
    "6.4.c": {"accepted": [under_a_decorator, detached]},
}
