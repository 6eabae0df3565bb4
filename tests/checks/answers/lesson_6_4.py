"""Answers to the turns of lesson 6.4: other right ones, and mistakes that people make."""

import copy

import torch
import torch.distributed as dist


def in_a_loop(frames):
    for frame in frames:
        if "/site-packages/" not in frame["filename"]:
            return frame


def from_a_list(frames):
    return min((it for it in frames if it["filename"].startswith("/home")), key=frames.index)


def by_number(lists, what):
    first = max(rank[0]["number"] for rank in lists)
    last = max(rank[-1]["number"] for rank in lists)
    for number in range(first, last + 1):
        held = [next((call[what] for call in rank if call["number"] == number), None) for rank in lists]
        if held.count(held[0]) < len(held):
            return number


def of_sets(lists, what):
    calls = [{(it["number"], it[what]) for it in rank} for rank in lists]
    first = max(min(calls_of_a_rank)[0] for calls_of_a_rank in calls)
    odd = {number for number, _ in set().union(*calls) - set.intersection(*calls) if number >= first}
    return min(odd, default=None)


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


def first_and_last(lists, what):
    return by_number([lists[0], lists[-1]], what)


def along_rank_0(lists, what):
    by = [{it["number"]: it[what] for it in rank} for rank in lists]
    start = max(rank[0]["number"] for rank in lists)
    for it in lists[0]:
        n = it["number"]
        if n >= start and any(rank.get(n) != it[what] for rank in by):
            return n
    return None


def all_different(lists, what):
    by = [{it["number"]: it[what] for it in rank} for rank in lists]
    for n in range(max(map(min, by)), max(map(max, by)) + 1):
        if len({rank.get(n) for rank in by}) == len(by):
            return n


def given_up_too_soon(lists, what):
    by = [{it["number"]: it[what] for it in rank} for rank in lists]
    for n in range(max(map(min, by)), max(map(max, by)) + 1):
        for rank in by:
            if rank.get(n) != by[0].get(n):
                return n
        return None


def of_no_torch(frames):
    for frame in frames:
        if "torch" not in frame["filename"]:
            return frame


def of_the_libraries(frames):
    for frame in frames:
        if "site-packages" in frame["filename"]:
            return frame


def of_the_first_turn(frames):
    for frame in frames:
        if "site-packages" not in frame["filename"]:
            return frame
        return None


def by_a_copy(model, x):
    if dist.get_rank() == 0:
        with torch.inference_mode():
            return copy.deepcopy(model.module).eval().forward(x)


def all_compute(model, x):
    model.module.eval()
    with torch.no_grad():
        predictions = model.module.forward(x)
    model.module.train()
    return predictions if dist.get_rank() == 0 else None


def classes(model, x):
    predictions = detached(model, x)
    return None if predictions is None else torch.tensor(predictions).argmax(dim=1)


def all_of_a_call(lists, what):
    calls = [{it["number"]: it for it in rank} for rank in lists]
    for number in range(max(map(min, calls)), max(map(max, calls)) + 1):
        if any(rank.get(number) != calls[0].get(number) for rank in calls):
            return number
    return None


def at_the_beginning(frames):
    return next(frame for frame in frames if not frame["filename"].startswith("site-packages"))


def every_one(lists, what):
    ranks = [{it["number"]: it[what] for it in calls} for calls in lists]
    first, last = max(min(rank) for rank in ranks), max(max(rank) for rank in ranks)
    return [n for n in range(first, last + 1) if any(rank.get(n) != ranks[0].get(n) for rank in ranks)]


def one_trains_again(model, x):
    if dist.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            predictions = model.module(x)
        model.module.train()
        return predictions


def all_inside_evaluate(model, x):
    net = model.module.eval()
    if dist.get_rank() == 0:
        with torch.no_grad():
            predictions = net(x)
        net.train()
        return predictions


def left_in_evaluation(model, x):
    if dist.get_rank() == 0:
        with torch.no_grad():
            return model.eval().module(x)


def from_outside(frames):
    for frame in frames[::-1]:
        if "site-packages" in frame["filename"]:
            return last  # noqa: F821
        last = frame  # noqa: F841


def up_to_the_first_library(frames):
    last = None
    for frame in frames[::-1]:
        if "site-packages" in frame["filename"]:
            break
        last = frame
    return last


ANSWERS = {
    "6.4.a": {
        "accepted": [in_a_loop, from_a_list],
        "wrong": [
            (lambda frames: in_a_loop(frames)["line"], ["the check met TypeError"]),
            (at_the_beginning, ["no library is left out"]),
            (from_outside, ["from outside, the search ends at the first library"]),
            (up_to_the_first_library, ["from outside, the search ends at the first library"]),
            (of_no_torch, ["torch_jobs is no library"]),
            (of_the_libraries, ["the innermost of the libraries' frames"]),
            (of_the_first_turn, ["where the innermost frame is a library's nothing comes back"]),
            (lambda frames: None, ["file is nothing"]),
        ],
    },
    "6.4.b": {
        "accepted": [by_number, of_sets],
        "wrong": [
            (all_of_a_call, ["the lines count"]),
            (every_one, ["all of them come back"]),
            (first_and_last, ["only two ranks are compared"]),
            (along_rank_0, ["where rank 0's list ends sooner"]),
            (lambda lists, what: by_number(lists, what) or "nowhere", ["a text came back"]),
            (all_different, ["no two ranks have the same"]),
            (given_up_too_soon, ["no number comes back"]),
        ],
    },
    "6.4.c": {
        "accepted": [under_a_decorator, detached, by_a_copy],
        "wrong": [
            (all_compute, ["all ranks evaluate, and rank 0 alone returns"]),
            (classes, ["that is not what the model gives back"]),
            (one_trains_again, ["what is inside of DDP trains again, and `model` itself does not"]),
            (all_inside_evaluate, ["the other ranks stay in evaluation mode"]),
            (left_in_evaluation, ["rank 0 goes on in evaluation mode"]),
        ],
    },
}
