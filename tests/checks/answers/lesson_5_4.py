"""Answers to the exercises of lesson 5.4: the right ones, the blanks, and mistakes that people make."""

import os
import shutil
import tempfile
import time
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed import broadcast

# 5.4.2: a save that survives


def save(state, path):
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)


def through_a_file(state, path):
    with open(path, "wb") as file:
        torch.save(state, file)


def copied(state, path):
    torch.save(state, f"{path}.new")
    shutil.copy(f"{path}.new", path)
    os.remove(f"{path}.new")


def removed_first(state, path):
    torch.save(state, f"{path}.new")
    os.remove(path)
    os.rename(f"{path}.new", path)


def elsewhere(state, path):
    new = f"{tempfile.gettempdir()}/ddplab-answer-{os.getpid()}.pt"
    torch.save(state, new)
    os.replace(new, path)


def wrong_way_round(state, path):
    torch.save(state, f"{path}.new")
    os.replace(path, f"{path}.new")


def whatever_happens(state, path):
    try:
        torch.save(state, f"{path}.new")
    finally:
        os.replace(f"{path}.new", path)


def backup_left(state, path):
    shutil.copy(path, f"{path}.old")
    save(state, path)


# 5.4.3: nobody too early


def save_then_load(state, path, *, writer=0, before=False, barrier=(0, 1), load=(0, 1), where="cpu"):
    """before, barrier: where the barrier stands, and who meets there; load: who loads."""
    rank = dist.get_rank()
    if before:
        dist.barrier()
    if rank == writer:
        torch.save(state, path)
    if rank in barrier and not before:
        dist.barrier()
    return torch.load(path, map_location=where) if rank in load else None


def both_write(state, path):
    torch.save(state, f"{path}{dist.get_rank()}")
    dist.barrier()
    return torch.load(f"{path}0")


def its_own_state(state, path):
    save_then_load(state, path)
    return state


def nobody_writes(state, path):
    dist.barrier()
    return state


def sleeps(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
    time.sleep(3)
    return torch.load(path, map_location="cpu")


def polls(state, path):
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)
    while not os.path.exists(path):
        time.sleep(0.1)
    return torch.load(path, map_location="cpu")


def retries(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
    while True:
        try:
            return torch.load(path, map_location="cpu")
        except (OSError, RuntimeError, EOFError):
            time.sleep(0.1)


def by_a_message(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
    written = torch.zeros(1)
    broadcast(written, src=0)
    return torch.load(path, map_location="cpu")


# 5.4.4: the rest of the job


def remaining(position, epochs, batches):
    for epoch in range(epochs):
        for batch, data in enumerate(batches(epoch)):
            if (epoch, batch) >= position:
                yield epoch, batch, data


def moved(position, epochs, batches, *, by):
    return remaining((position[0], position[1] + by), epochs, batches)


def from_the_beginning(position, epochs, batches):
    return remaining((0, 0), epochs, batches)


def whole_epoch(position, epochs, batches):
    return remaining((position[0], 0), epochs, batches)


def in_every_epoch(position, epochs, batches):
    for epoch in range(position[0], epochs):
        for batch, data in enumerate(batches(epoch)):
            if batch >= position[1]:
                yield epoch, batch, data


def next_epoch(position, epochs, batches):
    return remaining((position[0] + 1, 0), epochs, batches)


def numbers_alone(position, epochs, batches):
    return [(epoch, batch) for epoch, batch, _ in remaining(position, epochs, batches)]


def always_the_same_epoch(position, epochs, batches):
    return remaining(position, epochs, lambda epoch: batches(position[0]))


def counted_anew(position, epochs, batches):
    for epoch in range(position[0], epochs):
        first = position[1] if epoch == position[0] else 0
        for batch, data in enumerate(batches(epoch)[first:]):
            yield epoch, batch, data


def without_end(position, epochs, batches):
    while True:
        yield from remaining(position, epochs, batches)


ANSWERS = {
    "5.4.1": {"correct": (3, 60, 10, 4)},
    "5.4.2": {
        "correct": save,
        "wrong": [
            (lambda state, path: torch.save(state, path), ["write to `path` itself"]),
            (through_a_file, ["write to `path` itself"]),
            (copied, ["copy the new file over the old one"]),
            (removed_first, ["remove the old checkpoint", "there is none"]),
            (elsewhere, ["in another folder"]),
            (lambda state, path: torch.save(state, f"{path}.new"), ["still holds the old state"]),
            (wrong_way_round, ["there is no file at `path`"]),
            (whatever_happens, ["cannot be read any more"]),
            (backup_left, ["last.pt.old"]),
            (lambda state, path: torch.save(state), ["TypeError", "'f'"]),
            ("save", ["not a function"]),
        ],
    },
    "5.4.3": {
        "correct": save_then_load,
        "accepted": [by_a_message],
        "wrong": [
            (partial(save_then_load, barrier=()), ["rank 1", "FileNotFoundError"]),
            (partial(save_then_load, before=True), ["rank 1", "FileNotFoundError"]),
            (partial(save_then_load, barrier=(0,)), ["rank 1", "FileNotFoundError"]),
            (both_write, ["both ranks write"]),
            (partial(save_then_load, writer=1), ["rank 1 writes the file, and rank 0 does not"]),
            (partial(save_then_load, load=(0,)), ["rank 1 returns nothing"]),
            (its_own_state, ["rank 1 does not return what is in the file"]),
            (nobody_writes, ["no rank writes"]),
            (sleeps, ["rank 1 does not wait for rank 0"]),
            (polls, ["rank 1 does not wait for rank 0"]),
            (retries, ["rank 1 does not wait for rank 0"]),
            (partial(save_then_load, where=None), ["the GPU on which rank 0 had it"]),
        ],
    },
    "5.4.4": {
        "correct": remaining,
        "accepted": [lambda *given: list(remaining(*given))],
        "wrong": [
            (from_the_beginning, ["from (1, 2) on", "begins anew"]),
            (whole_epoch, ["the epoch begins anew, 2 batches are trained twice"]),
            (in_every_epoch, ["batches 0 to 1 are left out in every epoch"]),
            (partial(moved, by=1), ["(0, 0) itself is left out"]),
            (partial(moved, by=-1), ["batch 1 is trained twice"]),
            (next_epoch, ["the rest of epoch 0 is left out"]),
            (numbers_alone, ["it gives (0, 0)"]),
            (always_the_same_epoch, ["other data"]),
            (lambda position, epochs, batches: remaining(position, epochs - 1, batches), ["(2, 0) is missing"]),
            (counted_anew, ["(1, 2)"]),
            (without_end, ["it gives 100 batches, and more"]),
            (lambda *given: print(*remaining(*given)), ["gives nothing"]),
        ],
    },
}
