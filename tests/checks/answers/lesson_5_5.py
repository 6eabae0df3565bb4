"""Answers to the turns of lesson 5.5: other right ones, and mistakes that people make."""

import os
import random

import torch

ALONE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"


def line_by_line(path, start, whole=lambda line: True):
    if os.path.isfile(path):
        with open(path) as file:
            kept = [line for line in file if whole(line) and int(line.split()[0]) < start]
        with open(path, "w") as file:
            file.writelines(kept)


def the_whole_ones(path, start):
    line_by_line(path, start, lambda line: line.endswith("\n"))


def in_pairs(path, start):
    if os.path.isfile(path):
        with open(path) as file:
            pairs = [line.split() for line in file]
        with open(path, "w") as file:
            for step, loss in pairs:
                if int(step) < start:
                    file.write(f"{step} {loss}\n")


def the_first_lines(path, start):
    with open(path, "a+") as file:
        file.seek(0)
        lines = file.readlines()
        file.truncate(sum(map(len, lines[:start])))


def with_gaps(path, start):
    if os.path.isfile(path):
        with open(path) as file:
            kept = [line for line in file if int(line.split()[0]) < start]
        with open(path, "w") as file:
            file.write("\n".join(kept))


def all_but_one(path, start):
    if os.path.isfile(path):
        with open(path) as file:
            lines = file.readlines()
        with open(path, "w") as file:
            file.writelines(lines[: start - 1])


def around(step, n, rank, size):
    return [(64 * step + number) % n for number in range(64)][rank::size]


def one_further(step, n, rank, size):
    return [(step + number) % n for number in range(64)][rank::size]


def past_the_last(step, n, rank, size):
    first = 64 * step % n
    return torch.arange(first, first + 64)[rank::size]


def cut_at_the_last(step, n, rank, size):
    first = (step * 64) % n
    return torch.arange(n)[first : first + 64][rank::size]


def by_random(step, n, rank, size):
    return random.Random(step).sample(range(n), 64)[rank::size]


def in_blocks(step, n, rank, size):
    with torch.random.fork_rng():
        torch.manual_seed(step)
        return torch.randperm(n)[:64].tensor_split(size)[rank]


def with_the_seed_of_all(step, n, rank, size):
    torch.manual_seed(step)
    return torch.randperm(n)[:64].tensor_split(size)[rank]


def in_whole_epochs(step, n, rank, size):
    first = 64 * (step % (n // 64))
    return range(first + rank, first + 64, size)


def in_two_turns(step, n, rank, size):
    return [64 * (step % 2) + number for number in range(64)][rank::size]


def each_twice(step, n, rank, size):
    return by_random(step // 2, n, rank, size)


def made_up(path, start):
    with open(path, "w") as file:
        file.writelines(f"{step} 0.0\n" for step in range(start))


ANSWERS = {
    "5.5.a": {
        "accepted": [
            lambda n: f"{ALONE} torchrun --standalone --max_restarts={n} --nproc_per_node=2 train.py --epochs 3",
            lambda n: f"env {ALONE} python -m torch.distributed.run --nproc_per_node 2 --max_restarts {n} train.py",
            lambda n: f"export {ALONE}; torchrun --nproc-per-node 2 --max-restarts {n} train.py",
            lambda n: f"{ALONE}; export {ALONE[:-2]}; torchrun --nproc-per-node 2 --max-restarts {n} train.py",
            lambda n: f"{ALONE} torchrun --nproc-per-node 2 --max-restarts {n} ./train.py",
            lambda n: f"{ALONE} torchrun -r 3 --nproc-per-node 2 --max-restarts {n} -m train",
            lambda n: f"{ALONE} PET_MAX_RESTARTS={n} PET_NPROC_PER_NODE=2 torchrun --standalone train.py",
        ],
        "wrong": [
            (
                lambda n: f"{ALONE} torchrun --master-port 29500 --nproc-per-node 2 --max-restarts {n} train.py",
                ["a named port makes a static meeting"],
            ),
            (lambda n: print(n), ["nothing came back"]),
            (
                lambda n: f"export {ALONE} torchrun --nproc-per-node 2 --max-restarts {n} train.py",
                ["starts no torchrun"],
            ),
            (
                lambda n: f"{ALONE} torchrun --standalone --nproc-per-node=2 train.py --max-restarts {n}",
                ["the script is told how many"],
            ),
            (
                lambda restarts: ALONE + " torchrun --nproc-per-node 2 --max-restarts {restarts} train.py",
                ["the braces stand in the line"],
            ),
            (
                lambda n: f"{ALONE}; torchrun --nproc-per-node 2 --max-restarts {n} train.py",
                ["the switch stays in bash"],
            ),
            (
                lambda n: f"{ALONE}\ntorchrun --standalone --nproc-per-node 2 --max-restarts {n} train.py",
                ["the switch stays in bash"],
            ),
            (
                lambda n: f"torchrun {ALONE} --standalone --nproc-per-node 2 --max-restarts {n} train.py",
                ["takes the switch for the script"],
            ),
            (
                lambda n: f"{ALONE[:-1]}true torchrun --nproc-per-node 2 --max-restarts {n} train.py",
                ["is set, and not to 1"],
            ),
            (lambda n: f"{ALONE} torchrun --nproc-per-node 2 --max-restarts {n + 1} train.py", ["one restart more"]),
        ],
    },
    "5.5.b": {
        "accepted": [the_whole_ones, the_first_lines],
        "wrong": [
            (line_by_line, ["a line that a death cut short"]),
            (in_pairs, ["ValueError: not enough values"]),
            (lambda path: None, ["TypeError"]),
            (with_gaps, ["between the lines stand empty ones"]),
            (all_but_one, ["one line too few is kept"]),
            (made_up, ["their losses are gone"]),
        ],
    },
    "5.5.c": {
        "accepted": [by_random, in_blocks, around, in_whole_epochs],
        "wrong": [
            (
                lambda step, n, rank, size: range(
                    64 * step + rank * (64 // size), 64 * step + (rank + 1) * (64 // size)
                ),
                ["a late step's numbers are past the last image"],
            ),
            (in_two_turns, ["a few sets take turns"]),
            (each_twice, ["what the step before had"]),
            (with_the_seed_of_all, ["dropout draws from them"]),
            (one_further, ["most images of a step"]),
            (past_the_last, ["goes past it"]),
            (cut_at_the_last, ["gets fewer"]),
            (lambda step, n, rank, size: by_random(step + 7 * rank, n, rank, size), ["a batch of its own"]),
        ],
    },
}
