"""Save and load all that changes while a job trains. Lesson 5.4 says why each line is there.

On GPUs call `torch.cuda.set_device` first. The path is on a disk that all nodes share.
Give the DataLoader a generator of its own: it draws a number whenever it begins.
"""

import os

import torch
import torch.distributed as dist


def save_checkpoint(path, job, position):  # every rank calls it
    rngs = [torch, torch.cuda] if torch.cuda.is_initialized() else [torch]
    drawn = [None] * dist.get_world_size()
    dist.all_gather_object(drawn, [rng.get_rng_state() for rng in rngs])  # the random states of each rank
    if dist.get_rank() == 0:
        states = {name: getattr(part, "module", part).state_dict() for name, part in job.items()}  # 5.4.a
        torch.save({**states, "drawn": drawn, "position": position}, f"{path}.new")
        os.replace(f"{path}.new", path)  # 5.4.c
    dist.barrier()  # 5.4.b: nobody goes on before the file is there


def load_checkpoint(path, job):  # every rank calls it; returns the position to go on from
    saved = torch.load(path, map_location="cpu")  # 5.4.b
    for name, part in job.items():
        getattr(part, "module", part).load_state_dict(saved[name])
    for rng, state in zip([torch, torch.cuda], saved["drawn"][dist.get_rank()], strict=False):
        rng.set_rng_state(state)
    return saved["position"]
