"""Answers to the exercises of lesson 08b: the right ones, the blanks, and mistakes that people make."""

import torch.distributed as dist


def blank(*args):
    raise NotImplementedError("your code here")


# 08b.1: once around


def around(ball, own):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    if rank == 0:
        dist.send(ball, right)
        dist.recv(ball, left)
    else:
        dist.recv(ball, left)
        ball += own
        dist.send(ball, right)
    return ball


def go_around(ball):
    return around(ball, dist.get_rank())


def adds_one(ball):
    return around(ball, 1)


def adds_nothing(ball):
    return around(ball, 0)


def all_receive_first(ball):
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.recv(ball, (rank - 1) % size)
    dist.send(ball + rank, (rank + 1) % size)
    return ball


def past_the_last(ball):
    rank = dist.get_rank()
    if rank == 0:
        dist.send(ball, 1)
        dist.recv(ball, dist.get_world_size() - 1)
    else:
        dist.recv(ball, rank - 1)
        ball += rank
        dist.send(ball, rank + 1)
    return ball


def returns_nothing(ball):
    go_around(ball)


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


# 08b.2: a broadcast in a few rounds


def tree_broadcast(x):
    rank, size, have = dist.get_rank(), dist.get_world_size(), 1
    while have < size:
        if rank < have and rank + have < size:
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


def powers_of_two_only(x):
    rank, size, have = dist.get_rank(), dist.get_world_size(), 1
    while have < size:
        if rank < have:
            dist.send(x, rank + have)
        elif rank < 2 * have:
            dist.recv(x, rank - have)
        have *= 2


def the_real_one(x):
    dist.broadcast(x, src=0)


def only_one_round(x):
    if dist.get_rank() == 0:
        dist.send(x, 1)
    elif dist.get_rank() == 1:
        dist.recv(x, 0)


def into_another(x):
    if dist.get_rank() == 0:
        dist.send(x, 1)
    elif dist.get_rank() == 1:
        dist.recv(x.clone(), 0)


ANSWERS = {
    "08b.1": {
        "correct": go_around,
        "blank": blank,
        "wrong": [
            (all_receive_first, ["never finished", "all ranks are in the same place"]),
            (past_the_last, ["on rank 1", "there is no rank 2"]),
            (adds_one, ["on 4 ranks", "every rank has added 1"]),
            (adds_nothing, ["on 2 ranks", "comes back as it left"]),
            (returns_nothing, ["rank 0 returns nothing"]),
            (by_all_reduce, ["you called `dist.all_reduce`"]),
            (to_rank_0, ["on 2 ranks", "there were 1 messages"]),
            ("around", ["not a function"]),
        ],
    },
    "08b.2": {
        "correct": tree_broadcast,
        "blank": blank,
        "wrong": [
            (one_after_the_other, ["on 4 ranks", "3 rounds", "rank 0 sends them all"]),
            (hand_to_hand, ["on 4 ranks", "3 rounds", "only one rank sends at a time"]),
            (powers_of_two_only, ["raised ValueError", "there is no rank"]),
            (the_real_one, ["you called `dist.broadcast`"]),
            (only_one_round, ["on 4 ranks", "rank 2 ends with [0.0, 0.0]"]),
            (into_another, ["on 2 ranks", "rank 1 ends with [0.0, 0.0]"]),
        ],
    },
}
