"""Answers to the exercises of lesson 5.5: the right one, the blank, and mistakes that people make."""

import os
import random
from functools import partial

import torch
from torch.nn.functional import cross_entropy


def my_loss(model, images, labels, rank, size):
    return loss_of(model, images, labels, rank, size) * size / len(images)


def loss_of(model, images, labels, rank, size, share=None, reduction="sum"):
    mine = share(rank, size) if share else slice(rank, None, size)
    return cross_entropy(model(images[mine]), labels[mine], reduction=reduction)


mean_of_share = partial(loss_of, reduction="mean")
everything = partial(mean_of_share, share=lambda rank, size: slice(None))
rest_lost = partial(mean_of_share, share=lambda rank, size: slice(rank * (10 // size), (rank + 1) * (10 // size)))

ALONE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"


def line_by_line(path, start):
    if os.path.isfile(path):
        with open(path) as file:
            kept = [line for line in file if int(line.split()[0]) < start]
        with open(path, "w") as file:
            file.writelines(kept)


def the_first_lines(path, start):
    with open(path, "a+") as file:
        file.seek(0)
        lines = file.readlines()
        file.truncate(sum(map(len, lines[:start])))


def by_random(step, n, rank, size):
    return random.Random(step).sample(range(n), 64)[rank::size]


def in_blocks(step, n, rank, size):
    torch.manual_seed(step)
    return torch.randperm(n)[:64].tensor_split(size)[rank]


ANSWERS = {
    "5.5.a": {
        "accepted": [
            lambda n: f"{ALONE} torchrun --standalone --max_restarts={n} --nproc_per_node=2 train.py --epochs 3",
            lambda n: f"export {ALONE}; torchrun --nproc-per-node 2 --max-restarts {n} train.py",
        ],
        "wrong": [
            (
                lambda n: f"{ALONE} torchrun --master-port 29500 --nproc-per-node 2 --max-restarts {n} train.py",
                ["a named port makes a static meeting"],
            ),
            (lambda n: print(n), ["starts no torchrun"]),
        ],
    },
    "5.5.b": {"accepted": [line_by_line, the_first_lines], "wrong": [(lambda path: None, ["TypeError"])]},
    "5.5.c": {"accepted": [by_random, in_blocks]},
    "5.5.1": {"correct": (32, 16, 24, 0)},
    "5.5.2": {
        "correct": my_loss,
        "wrong": [
            (mean_of_share, ["on 3 ranks", "4, 3, 3 images", "not that of the whole batch"]),
            (lambda *given: loss_of(*given) / 10, ["on 2 ranks", "0.5 times"]),
            (loss_of, ["on 1 rank ", "10 times"]),
            (everything, ["on 2 ranks", "takes all 10 images"]),
            (rest_lost, ["on 3 ranks", "3 + 3 + 3 images"]),
            (lambda *given: my_loss(*given).item(), ["returns a float, not a tensor"]),
            (0.5, ["not a function"]),
        ],
    },
}
