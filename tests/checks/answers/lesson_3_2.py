"""Answers to the exercises of lesson 3.2: the right ones, the blanks, and mistakes that people make."""

from functools import partial

import torch
import torch.distributed as dist
from torch.distributed import recv, send

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


def imported_by_name(ball):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        send(ball, 1)
        recv(ball, size - 1)
    else:
        recv(ball, rank - 1)
        ball = ball + rank
        send(ball, (rank + 1) % size)
    return ball


def with_isend(ball):
    rank, size = dist.get_rank(), dist.get_world_size()
    came = torch.zeros_like(ball)
    if rank == 0:
        work = dist.isend(ball, 1 % size)
    dist.irecv(came, (rank - 1) % size).wait()
    if rank > 0:
        work = dist.isend(came + rank, (rank + 1) % size)
    work.wait()
    return came


def returns_its_own(ball):
    came = ball.clone()
    go_around(came)
    return ball


def sends_its_own(ball):
    rank, size = dist.get_rank(), dist.get_world_size()
    came = torch.zeros_like(ball)
    if rank == 0:
        dist.send(ball, 1)
        dist.recv(came, size - 1)
    else:
        dist.recv(came, rank - 1)
        dist.send(ball + rank, (rank + 1) % size)
    return came


def the_other_way(ball):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        dist.send(ball, size - 1)
        dist.recv(ball, 1)
    else:
        dist.recv(ball, (rank + 1) % size)
        ball += rank
        dist.send(ball, rank - 1)
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


# your turn


def hand_with_irecv(x, giver, taker):
    if dist.get_rank() == taker:
        dist.irecv(x, giver).wait()
    if dist.get_rank() == giver:
        dist.isend(x, taker).wait()


def hand_by_gathering(x, giver, taker):
    places = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(places, x)
    if dist.get_rank() == taker:
        x.copy_(places[giver])


def hand_a_copy(x, giver, taker):
    place = x.clone()
    if dist.get_rank() == giver:
        send(x, dst=taker)
    if dist.get_rank() == taker:
        recv(place, src=giver)
        x.copy_(place)


def hand_over_in_another(x, giver, taker):
    place = x.clone()
    hand_with_irecv(place, giver, taker)
    return place


def never_waits_for_it(x, giver, taker):
    if dist.get_rank() == giver:
        dist.isend(x, taker)
    if dist.get_rank() == taker:
        dist.recv(x, giver)


def takes_two(x, giver, taker):
    if dist.get_rank() == giver:
        dist.send(x, taker)
    if dist.get_rank() == taker:
        dist.recv(x, giver)
        dist.recv(x, giver)


def gives_to_itself(x, giver, taker):
    dist.send(x, dist.get_rank())


def along_with_objects(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank:
        came = x.new_empty(1)
        recv(came, rank - 1)
        x = x + came
    if rank + 1 < size:
        send(x, rank + 1)
    return x.item()


def along_without_a_return(x):
    along_with_objects(x)


def along_in_what_came(x):
    rank, size, came = dist.get_rank(), dist.get_world_size(), torch.zeros_like(x)
    if rank > 0:
        dist.recv(came, rank - 1)
    came += x
    if rank < size - 1:
        dist.send(came, rank + 1)


def along_by_gathering(x):
    everyone = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, x)
    x.copy_(sum(everyone[: dist.get_rank() + 1]))


def into_whole_numbers(x):
    rank, came = dist.get_rank(), torch.tensor([0])
    if rank > 0:
        dist.recv(came, rank - 1)
        x += came
    if rank + 1 < dist.get_world_size():
        dist.send(x, rank + 1)


def past_the_end(x):
    rank, came = dist.get_rank(), x.clone()
    if rank > 0:
        dist.recv(came, rank - 1)
        x += came
    dist.send(x, rank + 1)


def batched(x, call_rank_1):
    if dist.get_rank() == 1:
        dist.recv(x, 0)
    else:
        work = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1)])
        call_rank_1()
        [it.wait() for it in work]
        x.fill_(0)


def by_keyword(x, call_rank_1):
    if dist.get_rank() == 1:
        dist.irecv(x, 0).wait()
        return
    work = dist.isend(tensor=x, dst=1)
    call_rank_1()
    work.wait()
    x *= 0


def clears_before_the_call(x, call_rank_1):
    if dist.get_rank() == 1:
        dist.recv(x, 0)
        return
    work = dist.isend(x, 1)
    x.zero_()
    call_rank_1()
    work.wait()


def an_order_not_given(x, call_rank_1):
    if dist.get_rank() == 1:
        dist.recv(x, 0)
    else:
        order = dist.P2POp(dist.isend, x, 1)
        call_rank_1()
        order.wait()
        x.zero_()


def never_calls(x, call_rank_1):
    if dist.get_rank() == 1:
        dist.recv(x, 0)
    else:
        work = dist.isend(x, 1)
        call_rank_1  # noqa: B018
        work.wait()
        x.zero_()


def waits_for_nothing(x, call_rank_1):
    if dist.get_rank() == 1:
        dist.recv(x, 0)
    else:
        work = dist.send(x, 1)
        call_rank_1()
        work.wait()
        x.zero_()


ANSWERS = {
    "3.2.1": {
        "correct": go_around,
        "accepted": [imported_by_name, with_isend],
        "wrong": [
            (all_receive_first, ["never finished", "all ranks are in the same place"]),
            (partial(go_around, modulo=False), ["on rank 1", "there is no rank 2"]),
            (partial(go_around, own=1), ["on 4 ranks", "rank 2 sends 102 and not 103", "has added 1"]),
            (partial(go_around, own=0), ["on 2 ranks", "rank 1 sends 100", "as it came"]),
            (returns_its_own, ["on 2 ranks", "101 came back to rank 0, and rank 0 returns 100"]),
            (sends_its_own, ["on 2 ranks", "rank 1 sends 1 and", "its own ball"]),
            (the_other_way, ["on 4 ranks", "rank 0 sends to rank 3, and the next is rank 1"]),
            (lambda ball: print(go_around(ball)), ["rank 0 returns nothing"]),
            (by_all_reduce, ["you called `dist.all_reduce`"]),
            (to_rank_0, ["on 2 ranks", "rank 0 sends nothing"]),
            ("around", ["not a function"]),
        ],
    },
    "3.2.a": {
        "accepted": [hand_with_irecv, hand_a_copy],
        "wrong": [
            (gives_to_itself, ["on 3 ranks", "raised ValueError"]),
            (never_waits_for_it, ["the taker waits for a message that does not come"]),
            (takes_two, ["the taker waits for a message that does not come"]),
            (hand_by_gathering, ["the numbers are right, but rank 1 takes part"]),
            (hand_over_in_another, ["a message comes to the taker, and is not in its `x`"]),
            (lambda x, giver, taker: dist.send(taker, x), ["raised"]),
        ],
    },
    "3.2.b": {
        "accepted": [along_with_objects, along_by_gathering],
        "wrong": [
            (past_the_end, ["on 3 ranks", "there is no rank 3"]),
            (into_whole_numbers, ["on 3 ranks", "is read as a whole number"]),
            (along_without_a_return, ["the sum is handed on, and `x` itself is as it was"]),
            (along_in_what_came, ["the sum is handed on, and `x` itself is as it was"]),
        ],
    },
    "3.2.c": {
        "accepted": [batched, by_keyword],
        "wrong": [
            (clears_before_the_call, ["cleared before it has gone"]),
            (never_calls, ["it waits for rank 1, and has not called it"]),
            (waits_for_nothing, ["raised AttributeError"]),
            (an_order_not_given, ["'P2POp' object has no attribute 'wait'"]),
        ],
    },
}
