"""Answers to the exercises of lesson 5.4: the right ones, the blanks, and mistakes that people make."""

import copy
import os
import shutil
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import broadcast

from ddplab import device

# your turn


def one_by_one(job):
    random = torch.cuda if torch.cuda.is_initialized() else torch
    states = {"random state": random.get_rng_state()}
    for name in ("scheduler", "optimizer", "model"):
        states[name] = job[name].state_dict()
    return states


def copied(job):
    return copy.deepcopy(one_by_one(job))


def by_the_model_inside(job):
    return one_by_one(job) | {"model": job["model"].module.state_dict()}


def otherwise_named(job):
    states = one_by_one(job)
    return {"drawn": states.pop("random state"), **states}


def seeded_anew(job):
    torch.manual_seed(5)
    return one_by_one(job)


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


def of_a_name_not_taken(state, path):
    number, name = tempfile.mkstemp(dir=os.path.dirname(path))
    with os.fdopen(number, "wb") as file:
        torch.save(state, file)
    os.replace(name, path)


def renamed_too_early(state, path):
    os.replace(f"{path}.part", path)
    torch.save(state, f"{path}.part")


def renamed_to_nothing(state, path):
    torch.save(state, f"{path}.part")
    os.replace(f"{path}.part")


def by_another_name(state, path):
    torch.save(state, f"{path}.part")
    os.replace("{path}.part", path)


def by_a_copy(state, path):
    torch.save(state, f"{path}.part")
    shutil.copy(f"{path}.part", path)


def backup_removed(state, path):
    shutil.copy(path, f"{path}.old")
    torch.save(state, path)
    os.remove(f"{path}.old")


def bytes_by_hand(state, path):
    torch.save(state, f"{path}.part")
    with open(f"{path}.part", "rb") as new, open(path, "wb") as old:
        old.write(new.read())
    os.remove(f"{path}.part")


def old_one_kept(state, path):
    torch.save(state, f"{path}.part")
    os.replace(path, f"{path}.old")
    os.replace(f"{path}.part", path)


def removed_before_writing(state, path):
    if os.path.exists(path):
        os.remove(path)
    torch.save(state, f"{path}.part")
    os.rename(f"{path}.part", path)


def moved(state, path):
    torch.save(state, f"{path}.part")
    shutil.move(f"{path}.part", path)


def by_a_message(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
    written = torch.zeros(1, device=device())
    broadcast(written, src=0)
    return torch.load(path, map_location="cpu")


def by_an_object(state, path):
    """What is sent is a tensor too, which is no writing and no reading of a file."""
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.all_gather_object([None] * dist.get_world_size(), state)
    return torch.load(path, map_location="cpu")


def begun_and_waited_for(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier(async_op=True).wait()
    return torch.load(path, map_location="cpu")


def sent_to_all(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
    held = [state]
    dist.broadcast_object_list(held, src=0, device=device())
    return held[0]


def others_first(state, path):
    if dist.get_rank() != 0:
        dist.barrier()
        return torch.load(path, map_location=lambda storage, place: storage)
    torch.save(state, path)
    dist.barrier()
    return torch.load(path, "cpu")


def rank_0_meets(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
        dist.barrier()
    return torch.load(path, map_location="cpu")


def met_after(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
    found = torch.load(path, map_location="cpu")
    dist.barrier()
    return found


def copied_and_left(state, path):
    torch.save(state, f"{path}.tmp")
    shutil.copy(f"{path}.tmp", path)


def kept_parts_on_rank_0(job):
    kept = one_by_one(job)
    return kept if dist.get_rank() == 0 else {"random state": kept["random state"]}


def kept_random_on_rank_0(job):
    kept = one_by_one(job)
    if dist.get_rank() == 1:
        kept.pop("random state")
    return kept


def others_meet(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
        return torch.load(path, map_location="cpu")
    dist.barrier()
    return torch.load(path, map_location="cpu")


def met_before(state, path):
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save(state, path)
    return torch.load(path, map_location="cpu")


def mapped(to):
    def save_then_load(state, path):
        by_a_message(state, path)
        return torch.load(path, map_location=to)

    return save_then_load


def polls(state, path):
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)
    while not os.path.exists(path):
        time.sleep(0.1)
    return torch.load(path, map_location="cpu")


def looks_for_the_file(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
    while not os.path.isfile(path):
        time.sleep(0.1)
    return torch.load(path, map_location="cpu")


ANSWERS = {
    "5.4.a": {
        "accepted": [one_by_one, copied, lambda job: one_by_one(job) | {"epoch": 2}],
        "wrong": [
            (lambda job: None, ["nothing came back"]),
            (by_the_model_inside, ["begin with `module.`"]),
            (seeded_anew, ["another than the job had"]),
            (lambda job: one_by_one(job) if dist.get_rank() == 0 else None, ["rank 1 returns nothing"]),
            (lambda job: one_by_one(job) if dist.get_rank() == 0 else dict(), ["rank 1's snapshot is empty"]),
            (lambda job: dict(), ["the snapshot is empty"]),
            (kept_parts_on_rank_0, ["rank 1 keeps its random state alone"]),
            (kept_random_on_rank_0, ["rank 1 keeps no random state"]),
            (lambda job: one_by_one(job) | {"model": {}}, ["in loading state_dict"]),
            (lambda job: job.state_dict(), ["'dict' object has no attribute"]),
            (lambda job: {name: part.state_dict() for name, part in job}, ["values to unpack"]),
            (otherwise_named, ["another name than the cells below look for"]),
            (lambda job: one_by_one(job) | {"random state": torch.seed()}, ["a seed says where"]),
            (
                lambda job: one_by_one(job) | {"random state": torch.default_generator},
                ["a Generator as `random state`"],
            ),
            (lambda job: one_by_one(job) | {"model": list(job["model"].parameters())}, ["a list as `model`"]),
            (lambda job: {"model": job["model"].state_dict(), "rng": 1}, ["`rng` is no part of `job`"]),
            (lambda job: {**job, "random state": torch.get_rng_state()}, ["that is the job itself"]),
        ],
    },
    "5.4.c": {
        "accepted": [through_a_file, by_pathlib, moved, of_a_name_not_taken],
        "wrong": [
            (backup_left, ['beside it is "another file"']),
            (backup_removed, ["the old checkpoint is emptied"]),
            (by_a_copy, ["to copy is to write"]),
            (copied_and_left, ["to copy is to write"]),
            (bytes_by_hand, ["written over the old ones"]),
            (renamed_too_early, ["a file is asked for that is not there"]),
            (renamed_to_nothing, ["replace() missing"]),
            (by_another_name, ["'{path}.part'"]),
            (old_one_kept, ["the old one is taken away first"]),
            (removed_before_writing, ["the old one is removed first", "no checkpoint at all"]),
        ],
    },
    "5.4.b": {
        "accepted": [by_a_message, others_first, by_an_object, begun_and_waited_for, mapped(torch.device("cpu"))],
        "wrong": [
            (met_before, ["the barrier stands before the writing"]),
            (rank_0_meets, ["rank 1 loads before it comes to one"]),
            (met_after, ["rank 1 loads before it comes to one"]),
            (others_meet, ["a barrier to which rank 0 never comes"]),
            (looks_for_the_file, ["a file is there", "before it is written to its end"]),
            (polls, ["rank 1 waits, but not for rank 0 itself"]),
            (sent_to_all, ["nobody reads the file"]),
            (mapped({"cuda:0": "cpu"}), ["each GPU that it does not name"]),
            (mapped({"cuda:0": "cpu", "cuda:1": "cpu"}), ["each GPU that it does not name"]),
        ],
    },
}
