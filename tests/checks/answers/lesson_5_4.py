"""Answers to the exercises of lesson 5.4: the right ones, the blanks, and mistakes that people make."""

import copy
import os
import shutil
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import broadcast

from ddplab import device

# your turn


def by_the_model_inside(job):
    states = {name: getattr(part, "module", part).state_dict() for name, part in job.items()}
    return {"drawn": (torch.cuda if torch.cuda.is_initialized() else torch).get_rng_state(), **states}


def copied(job):
    return copy.deepcopy(by_the_model_inside(job))


def through_a_file(state, path):
    with open(f"{path}.part", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.part", path)


def by_pathlib(state, path):
    new = Path(path).with_suffix(".tmp")
    torch.save(state, new)
    new.replace(path)


def backup_left(state, path):
    shutil.copy(path, f"{path}.old")
    through_a_file(state, path)


def by_a_message(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
    written = torch.zeros(1, device=device())
    broadcast(written, src=0)
    return torch.load(path, map_location="cpu")


def others_first(state, path):
    if dist.get_rank() != 0:
        dist.barrier()
        return torch.load(path, map_location=lambda storage, place: storage)
    torch.save(state, path)
    dist.barrier()
    return torch.load(path, "cpu")


def met_before(state, path):
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save(state, path)
    return torch.load(path, map_location="cpu")


def polls(state, path):
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)
    while not os.path.exists(path):
        time.sleep(0.1)
    return torch.load(path, map_location="cpu")


# 5.4.2: the rest of the job


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
    "5.4.a": {"accepted": [by_the_model_inside, copied], "wrong": [(lambda job: None, ["nothing came back"])]},
    "5.4.c": {"accepted": [through_a_file, by_pathlib], "wrong": [(backup_left, ["last.pt.old as beside it"])]},
    "5.4.b": {
        "accepted": [by_a_message, others_first],
        "wrong": [
            (met_before, ["a rank loads what is not written yet"]),
            (polls, ["a rank waits for a time, and not for rank 0"]),
        ],
    },
    "5.4.2": {
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
