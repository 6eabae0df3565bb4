"""Answers to the exercises of lesson 3.2: the right ones, the blanks, and mistakes that people make."""

from functools import partial

import torch
import torch.distributed as dist

# 3.2.1: once around


def go_around(ball, own=None, modulo=True):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size if modulo else rank + 1, (rank - 1) % size
    if rank == 0:
        dist.send(ball, right)
        dist.recv(ball, left)
    else:
        dist.recv(ball, left)
        ball += rank if own is None else own
        dist.send(ball, right)
    return ball


def all_receive_first(ball):
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.recv(ball, (rank - 1) % size)
    dist.send(ball + rank, (rank + 1) % size)
    return ball


def by_all_reduce(ball):
    ball += dist.get_rank() - 100 * (dist.get_rank() > 0)
    dist.all_reduce(ball)
    return ball


def to_rank_0(ball):
    if dist.get_rank() > 0:
        dist.send(ball * 0 + dist.get_rank(), 0)
        return ball
    part = ball.clone()
    for rank in range(1, dist.get_world_size()):
        dist.recv(part, rank)
        ball += part
    return ball


# 3.2.2: a broadcast in a few rounds


def tree_broadcast(x, powers_of_two_only=False):
    rank, size, have = dist.get_rank(), dist.get_world_size(), 1
    while have < size:
        if rank < have and (rank + have < size or powers_of_two_only):
            dist.send(x, rank + have)
        elif have <= rank < 2 * have:
            dist.recv(x, rank - have)
        have *= 2


def one_after_the_other(x):
    if dist.get_rank() == 0:
        for rank in range(1, dist.get_world_size()):
            dist.send(x, rank)
    else:
        dist.recv(x, 0)


def hand_to_hand(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(x, rank - 1)
    if rank + 1 < size:
        dist.send(x, rank + 1)


def only_one_round(x, into=lambda x: x):
    if dist.get_rank() == 0:
        dist.send(x, 1)
    elif dist.get_rank() == 1:
        dist.recv(into(x), 0)


ANSWERS = {
    "3.2.1": {
        "correct": go_around,
        "wrong": [
            (all_receive_first, ["never finished", "all ranks are in the same place"]),
            (partial(go_around, modulo=False), ["on rank 1", "there is no rank 2"]),
            (partial(go_around, own=1), ["on 4 ranks", "every rank has added 1"]),
            (partial(go_around, own=0), ["on 2 ranks", "comes back as it left"]),
            (lambda ball: print(go_around(ball)), ["rank 0 returns nothing"]),
            (by_all_reduce, ["you called `dist.all_reduce`"]),
            (to_rank_0, ["on 2 ranks", "there were 1 messages"]),
            ("around", ["not a function"]),
        ],
    },
    "3.2.2": {
        "correct": tree_broadcast,
        "wrong": [
            (one_after_the_other, ["on 4 ranks", "3 rounds", "rank 0 sends them all"]),
            (hand_to_hand, ["on 4 ranks", "3 rounds", "only one rank sends at a time"]),
            (partial(tree_broadcast, powers_of_two_only=True), ["raised ValueError", "there is no rank"]),
            (lambda x: dist.broadcast(x, src=0), ["you called `dist.broadcast`"]),
            (only_one_round, ["on 4 ranks", "rank 2 ends with [0.0, 0.0]"]),
            (partial(only_one_round, into=torch.clone), ["on 2 ranks", "rank 1 ends with [0.0, 0.0]"]),
        ],
    },
}
