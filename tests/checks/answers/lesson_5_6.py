"""Answers to the turns of lesson 5.6: other right ones, and mistakes that people make."""

from argparse import ArgumentParser

import torch
import torch.distributed as dist

from ddplab import device


def asserted(words, size):
    parser = ArgumentParser()
    parser.add_argument("--epochs", default=10, type=int)
    parser.add_argument("--batch", default=64, type=int)
    asked = parser.parse_args(words)
    assert asked.batch % size == 0
    return [asked.epochs, int(asked.batch / size)]


def by_hand(words, size):
    given = {"--epochs": 10, "--batch": 64} | dict(zip(words[::2], map(int, words[1::2]), strict=True))
    share, rest = divmod(given["--batch"], size)
    if rest:
        exit(f"{rest} images are left over")
    return given["--epochs"], share


def by_text(run, epoch, rank):
    return int(f"{run + 1}{epoch:05}{rank:05}")


def by_two_reductions(found):
    least, most = (torch.tensor(found, device=device()) for _ in "ab")
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    if least != most:
        raise ValueError("not the same")
    return int(least)


def compared_with_a_list(found):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, found)
    assert everyone == [found] * len(everyone)
    return found


def compared_with_the_mean(found):
    total = torch.tensor(float(found), device=device())
    dist.all_reduce(total)
    if total.item() / dist.get_world_size() != found:
        raise RuntimeError("not the same")
    return found


def compared_with_rank_0(found):
    first = torch.tensor(found, device=device())
    dist.broadcast(first, 0)
    if first.item() != found:
        raise RuntimeError("not what rank 0 found")
    return found


def without_a_tensor(found):
    dist.all_reduce(found, op=dist.ReduceOp.MIN)
    return found


def far_apart(found):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, found)
    if max(everyone) - min(everyone) > 1:
        raise RuntimeError("far apart")
    return found


def only_told(found):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, found)
    if len(set(everyone)) > 1:
        print("not the same")
    return found


def with_any_exception(found):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, found)
    if len(set(everyone)) > 1:
        raise Exception("not the same")
    return found


def hashed(run, epoch, rank):
    return hash((run, epoch, rank))


def no_default(words, size):
    parser = ArgumentParser()
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch", type=int)
    asked = parser.parse_args(words)
    return asked.epochs, asked.batch // size


def one_size_for_all(words, size):
    return 10, asserted(words, 1)[1] // size


def typed_as(kind):
    def answer(words, size):
        parser = ArgumentParser()
        parser.add_argument("--epochs", type=kind, default=10)
        parser.add_argument("--batch", type=int, default=64)
        asked = parser.parse_args(words)
        return asked.epochs, asked.batch // size

    return answer


def divided(words, size):
    epochs, images = asserted(words, size)
    return epochs, images / 1


def the_smallest(found):
    epoch = torch.tensor(found)
    dist.all_reduce(epoch, op=dist.ReduceOp.MIN)
    return epoch.item()


ANSWERS = {
    "5.6.a": {
        "accepted": [asserted, by_hand],
        "wrong": [
            (lambda words, size: None, ["nothing"]),
            (divided, ["16.0 is no whole number"]),
            (no_default, ["'NoneType'"]),
            (one_size_for_all, ["10 epochs, whatever is typed"]),
            (typed_as(str), ["the epochs that are typed are text"]),
            (typed_as(float), ["become 3.0"]),
        ],
    },
    "5.6.b": {
        "accepted": [by_text, lambda run, epoch, rank: rank + 1000 * epoch + 10**8 * run, hashed],
        "wrong": [
            (lambda run, epoch, rank: None, ["TypeError"]),
            (lambda run, epoch, rank: int(f"{run}{epoch}{rank}"), ["a rank of a high number"]),
            (lambda run, epoch, rank: run * 10**5 + epoch * 50 + rank, ["a rank of a high number"]),
            (lambda run, epoch, rank: run * 10**5 + rank * 64 + epoch, ["in a late epoch"]),
            (lambda run, epoch, rank: f"{run}{epoch:03}{rank:02}", ["that is text"]),
            (lambda run, epoch, rank: hash((str(run), epoch, rank)), ["differs from process to process"]),
            (lambda run, epoch, rank: torch.manual_seed(run * 10**6 + epoch * 100 + rank), ["TypeError"]),
        ],
    },
    "5.6.c": {
        "accepted": [by_two_reductions, compared_with_a_list, with_any_exception],
        "wrong": [
            (the_smallest, ["all go on at the smallest epoch"]),
            (compared_with_the_mean, ["rank 1 goes on"]),
            (compared_with_rank_0, ["only the rank that differs refuses"]),
            (without_a_tensor, ["Expected parameter `tensor`"]),
            (far_apart, ["3, 4 and 3 differ"]),
            (only_told, ["each rank goes on where it likes"]),
        ],
    },
}
