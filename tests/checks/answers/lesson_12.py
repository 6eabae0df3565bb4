"""Answers to the exercises of lesson 12: the right ones, the blanks, and mistakes that people make."""

import os
import shutil
import tempfile

import torch
import torch.distributed as dist


def blank(*_):
    raise NotImplementedError("your code here")


# 12.2


def save(state, path):
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)


def onto_itself(state, path):
    torch.save(state, path)


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


def never_renamed(state, path):
    torch.save(state, f"{path}.new")


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


def no_file(state, path):
    torch.save(state)


# 12.3


def save_then_load(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()
    return torch.load(path, map_location="cpu")


def wherever_it_was(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()
    return torch.load(path)


def no_barrier(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
    return torch.load(path)


def barrier_first(state, path):
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save(state, path)
    return torch.load(path)


def barrier_of_one(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
        dist.barrier()
    return torch.load(path)


def both_write(state, path):
    torch.save(state, f"{path}{dist.get_rank()}")
    dist.barrier()
    return torch.load(f"{path}0")


def rank_1_writes(state, path):
    if dist.get_rank():
        torch.save(state, path)
    dist.barrier()
    return torch.load(path)


def one_loads(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()
    if dist.get_rank() == 0:
        return torch.load(path)


def its_own_state(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()
    torch.load(path)
    return state


def nobody_writes(state, path):
    dist.barrier()
    return state


# 12.4


def remaining(position, epochs, batches):
    for epoch in range(epochs):
        for batch, data in enumerate(batches(epoch)):
            if (epoch, batch) >= position:
                yield epoch, batch, data


def as_a_list(position, epochs, batches):
    return list(remaining(position, epochs, batches))


def from_the_beginning(position, epochs, batches):
    return remaining((0, 0), epochs, batches)


def whole_epoch(position, epochs, batches):
    return remaining((position[0], 0), epochs, batches)


def in_every_epoch(position, epochs, batches):
    for epoch in range(position[0], epochs):
        for batch, data in enumerate(batches(epoch)):
            if batch >= position[1]:
                yield epoch, batch, data


def one_too_late(position, epochs, batches):
    return remaining((position[0], position[1] + 1), epochs, batches)


def one_too_early(position, epochs, batches):
    return remaining((position[0], position[1] - 1), epochs, batches)


def next_epoch(position, epochs, batches):
    return remaining((position[0] + 1, 0), epochs, batches)


def numbers_alone(position, epochs, batches):
    for epoch, batch, _ in remaining(position, epochs, batches):
        yield epoch, batch


def always_the_same_epoch(position, epochs, batches):
    return remaining(position, epochs, lambda epoch: batches(position[0]))


def one_epoch_short(position, epochs, batches):
    return remaining(position, epochs - 1, batches)


def counted_anew(position, epochs, batches):
    for epoch in range(position[0], epochs):
        first = position[1] if epoch == position[0] else 0
        for batch, data in enumerate(batches(epoch)[first:]):
            yield epoch, batch, data


def returns_nothing(position, epochs, batches):
    for epoch, batch, _ in remaining(position, epochs, batches):
        print(epoch, batch)


ANSWERS = {
    "12.1": {
        "correct": (3, 60, 10, 4),
        "blank": (..., ..., ..., ...),
        "wrong": [
            ((4, 60, 10, 4), ["`next_epoch` is 4", "rest of epoch 3"]),
            ((3, 59, 10, 4), ["`next_batch` is 59", "before the save"]),
            ((3, 70, 10, 4), ["`next_batch` is 70", "lost"]),
            ((3, 60, 11, 4), ["`twice` is 11", "never finished"]),
            ((3, 60, 70, 4), ["`twice` is 70", "in the checkpoint"]),
            ((3, 60, 10, 1), ["`random_states` is 1", "rank 0's alone"]),
            (("epoch 3", 60, 10, 4), ["`next_epoch` gives a str", "not a number"]),
        ],
    },
    "12.2": {
        "correct": save,
        "blank": blank,
        "wrong": [
            (onto_itself, ["write to `path` itself"]),
            (through_a_file, ["write to `path` itself"]),
            (copied, ["copy the new file over the old one"]),
            (removed_first, ["remove the old checkpoint", "there is none"]),
            (elsewhere, ["in another folder"]),
            (never_renamed, ["still holds the old state"]),
            (wrong_way_round, ["there is no file at `path`"]),
            (whatever_happens, ["cannot be read any more"]),
            (backup_left, ["last.pt.old"]),
            (no_file, ["TypeError", "'f'"]),
            ("save", ["not a function"]),
        ],
    },
    "12.3": {
        "correct": save_then_load,
        "blank": blank,
        "wrong": [
            (no_barrier, ["rank 1", "FileNotFoundError"]),
            (barrier_first, ["rank 1", "FileNotFoundError"]),
            (barrier_of_one, ["rank 1", "FileNotFoundError"]),
            (both_write, ["both ranks write"]),
            (rank_1_writes, ["rank 1 writes the file, and rank 0 does not"]),
            (one_loads, ["rank 1 returns nothing"]),
            (its_own_state, ["rank 1 does not return what is in the file"]),
            (nobody_writes, ["no rank writes"]),
            (wherever_it_was, ["the GPU on which rank 0 had it"]),
        ],
    },
    "12.4": {
        "correct": remaining,
        "accepted": [as_a_list],
        "blank": blank,
        "wrong": [
            (from_the_beginning, ["from (1, 2) on", "begins anew"]),
            (whole_epoch, ["the epoch begins anew, 2 batches are trained twice"]),
            (in_every_epoch, ["batches 0 to 1 are left out in every epoch"]),
            (one_too_late, ["(0, 0) itself is left out"]),
            (one_too_early, ["batch 1 is trained twice"]),
            (next_epoch, ["the rest of epoch 0 is left out"]),
            (numbers_alone, ["it gives (0, 0)"]),
            (always_the_same_epoch, ["other data"]),
            (one_epoch_short, ["(2, 0) is missing"]),
            (counted_anew, ["(1, 2)"]),
            (returns_nothing, ["gives nothing"]),
        ],
    },
}
