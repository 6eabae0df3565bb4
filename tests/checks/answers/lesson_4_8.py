"""Answers to the puzzles of lesson 4.8: other right ways, and mistakes beside those that the puzzles name."""

import torch
import torch.distributed as dist
from torch.distributed import batch_isend_irecv, recv, send


def pass_on(chunk, to, sender):
    arrived = torch.empty_like(chunk)
    both = [dist.P2POp(dist.isend, chunk, to), dist.P2POp(dist.irecv, arrived, sender)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return arrived


# a: swap


def both_at_once(x, other):
    place = torch.zeros_like(x)
    for work in batch_isend_irecv([dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, place, other)]):
        work.wait()
    x[:] = place


def into_a_copys_place(x, other):
    copy = x.clone()
    coming = dist.irecv(x, other)
    dist.send(copy, other)
    coming.wait()


def into_what_is_sent(x, other):
    coming = dist.irecv(x, other)
    going = dist.isend(x, other)
    going.wait()
    coming.wait()


def begun_and_received_over(x, other):
    going = dist.isend(x, other)
    dist.recv(x, other)
    going.wait()


def over_itself_in_one_batch(x, other):
    for work in batch_isend_irecv([dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, x, other)]):
        work.wait()


def sent_then_received_over(x, other):
    if dist.get_rank() < other:
        dist.send(x, other)  # it has gone
        dist.recv(x, other)
    else:
        place = torch.empty_like(x)
        dist.recv(place, other)
        dist.isend(x, other).wait()
        x.copy_(place)


def even_first(x, other):
    mine = x.clone()
    for turn in (0, 1):
        if dist.get_rank() % 2 == turn:
            send(mine, other)
        else:
            recv(x, other)


def one_way_only(x, other):
    if dist.get_rank() < other:
        dist.send(x, other)
    else:
        dist.recv(x, other)


def into_x_itself(x, other):
    place = x
    if dist.get_rank() < other:
        dist.send(x, other)
    dist.recv(place, other)
    if dist.get_rank() > other:
        dist.send(x, other)


def expects_it_back(x, other):
    if dist.get_rank() < other:
        dist.send(x, other)
        x.copy_(dist.recv(other))
    else:
        came = dist.recv(other)
        dist.send(x, other)
        x.copy_(came)


def all_send_first(x, other):
    place = torch.empty_like(x)
    dist.send(x, other)
    dist.recv(place, other)
    x.copy_(place)


def lower_half_first(x, other):
    place = torch.empty_like(x)
    if dist.get_rank() == 0:
        dist.send(x, other)
        dist.recv(place, other)
    else:
        dist.recv(place, other)
        dist.send(x, other)
    x.copy_(place)


# b: broadcast


def to_itself_too(x):
    if dist.get_rank() == 0:
        for other in range(dist.get_world_size()):
            dist.send(x, other)
    else:
        dist.recv(x, 0)


def into_a_name(x):
    if dist.get_rank() == 0:
        in_the_background(x)
    else:
        place = torch.empty_like(x)
        dist.recv(place, 0)
        x = place


def in_the_background(x):
    if dist.get_rank() == 0:
        for work in [dist.isend(x, other) for other in range(1, dist.get_world_size())]:
            work.wait()
    else:
        place = torch.empty_like(x)
        dist.irecv(place, 0).wait()
        x.copy_(place)


def from_anybody(x):
    if dist.get_rank():
        recv(x)
    else:
        [send(x, other) for other in range(1, dist.get_world_size())]


def in_a_chain(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank:
        recv(x, rank - 1)
    if rank + 1 < size:
        send(x, rank + 1)


def from_the_left_neighbour(x):
    rank = dist.get_rank()
    if rank:
        recv(x, rank - 1)
    else:
        [send(x, other) for other in range(1, dist.get_world_size())]


def each_to_rank_0(x):
    if dist.get_rank():
        dist.send(x, 0)


def to_rank_1_alone(x):
    if dist.get_rank() == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)


def all_in_the_loop(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    for other in range(1, size):
        if rank == 0:
            dist.send(x, other)
        else:
            dist.recv(x, 0)


def everybody_tells(x):
    rank = dist.get_rank()
    for other in range(dist.get_world_size()):
        if other == rank:
            continue
        dist.send(x, other)
    if rank:
        dist.recv(x, 0)


def to_two_others(x):
    if dist.get_rank() == 0:
        dist.send(x, 1)
        dist.send(x, 2)
    else:
        dist.recv(x, 0)


# c: a tree


def by_halves(x):
    rank, step = dist.get_rank(), dist.get_world_size() // 2
    while step:
        if rank % (2 * step) == 0:
            dist.send(x, rank + step)
        elif rank % (2 * step) == step:
            dist.recv(x, rank - step)
        step //= 2


def by_bits(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    for bit in range((size - 1).bit_length()):
        other = rank ^ (1 << bit)
        if rank < 1 << bit:
            dist.send(x, other)
        elif rank < 2 << bit:
            dist.recv(x, other)


def one_more_at_a_time(x):
    rank, size, have = dist.get_rank(), dist.get_world_size(), 1
    while have < size:
        if rank < have:
            dist.send(x, rank + have)
        elif rank < 2 * have:
            dist.recv(x, rank - have)
        have += 1


def all_others_receive_in_each_round(x):
    rank, have = dist.get_rank(), 1
    while have < dist.get_world_size():
        if rank < have:
            dist.send(x, rank + have)
        else:
            dist.recv(x, rank - have)
        have *= 2


def from_the_left_in_each_round(x):
    rank, have = dist.get_rank(), 1
    while have < dist.get_world_size():
        if rank < have:
            dist.send(x, rank + have)
        elif rank < 2 * have:
            dist.recv(x, rank - 1)
        have *= 2


def from_the_half_of_its_number(x):
    rank, have = dist.get_rank(), 1
    while have < dist.get_world_size():
        if rank < have:
            dist.send(x, rank + have)
        elif rank < 2 * have:
            dist.recv(x, rank // 2)
        have *= 2


def to_the_right_in_each_round(x):
    rank, have = dist.get_rank(), 1
    while have < dist.get_world_size():
        if rank < have:
            dist.send(x, rank + 1)
        elif rank < 2 * have:
            dist.recv(x, rank - 1)
        have *= 2


def for_four_ranks(x):
    rank = dist.get_rank()
    if rank < 2:
        dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
    if rank < 4:
        dist.send(x, rank + 2) if rank < 2 else dist.recv(x, rank - 2)


def by_halves_from_anybody(x):
    rank, step = dist.get_rank(), dist.get_world_size() // 2
    while step:
        if rank % (2 * step) == 0:
            dist.send(x, rank + step)
        elif rank % (2 * step) == step:
            dist.irecv(x).wait()
        step //= 2


# d: reduce-scatter


def ring_reduce_scatter(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(size - 1):
        goes, comes = (rank - 1 - step) % size, (rank - 2 - step) % size
        chunks[comes] += pass_on(chunks[goes], (rank + 1) % size, (rank - 1) % size)


def add_at_the_end(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    came = [pass_on(chunks[(rank + a) % size], (rank + a) % size, (rank - a) % size) for a in range(1, size)]
    x[rank] += sum(came).item()


def into_the_senders(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    for away in range(1, size):
        to, sender = (rank + away) % size, (rank - away) % size
        chunks[sender] += pass_on(chunks[to], to, sender)


def a_new_sum(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    for away in range(1, size):
        to, sender = (rank + away) % size, (rank - away) % size
        chunks[rank] = chunks[rank] + pass_on(chunks[to], to, sender)


def a_new_sum_written_back(x, chunks):
    a_new_sum(x, chunks)
    x[dist.get_rank()] = chunks[dist.get_rank()].item()


def to_itself_first(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    for away in range(size):
        to, sender = (rank + away) % size, (rank - away) % size
        chunks[rank] += pass_on(chunks[to], to, sender)


def always_the_neighbour(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(1, size):
        chunks[rank] += pass_on(chunks[(rank + 1) % size], (rank + 1) % size, (rank - 1) % size)


def exchanged(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    for away in range(1, size):
        to, sender = (rank + away) % size, (rank - away) % size
        chunks[rank] += pass_on(chunks[to], sender, to)


def whole_tensors(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = x.clone()
    for away in range(1, size):
        x += pass_on(mine, (rank + away) % size, (rank - away) % size)


# e: all-gather


def other_ways_chunk(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    for away in range(1, size):
        to, sender = (rank + away) % size, (rank - away) % size
        chunks[sender].copy_(pass_on(chunks[to], to, sender))


def added_to_its_own(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    for away in range(1, size):
        chunks[rank] += pass_on(chunks[rank], (rank + away) % size, (rank - away) % size)


def in_the_order_in_which_it_comes(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    for away in range(1, size):
        chunks[away].copy_(pass_on(chunks[rank], (rank + away) % size, (rank - away) % size))


def over_its_own(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    for away in range(1, size):
        to, sender = (rank + away) % size, (rank - away) % size
        chunks[rank].copy_(pass_on(chunks[rank], to, sender))


def put_into_the_list(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    for away in range(1, size):
        to, sender = (rank + away) % size, (rank - away) % size
        chunks[sender] = pass_on(chunks[rank], to, sender)


def ring_all_gather(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(size - 1):
        goes, comes = (rank - step) % size, (rank - step - 1) % size
        chunks[comes].copy_(pass_on(chunks[goes], (rank + 1) % size, (rank - 1) % size))


def backwards(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    for away in range(1, size):
        sender = (rank + away) % size
        x[sender] = pass_on(chunks[rank], (rank - away) % size, sender).item()


# f: the ring


def in_two_functions(x, chunks):
    ring_reduce_scatter(x, chunks)
    ring_all_gather(x, chunks)


def carried(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    which = rank
    for step in range(2 * (size - 1)):
        came = pass_on(chunks[which], right, left)
        which = (which - 1) % size
        chunks[which].copy_(chunks[which] + came if step < size - 1 else came)


def to_the_left(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(size - 1):
        came = pass_on(chunks[(rank + step) % size], (rank - 1) % size, (rank + 1) % size)
        chunks[(rank + step + 1) % size] += came
    for step in range(size - 1):
        came = pass_on(chunks[(rank - 1 + step) % size], (rank - 1) % size, (rank + 1) % size)
        chunks[(rank + step) % size].copy_(came)


def the_wrong_way_at_first(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        chunks[(rank + step + 1) % size] += pass_on(chunks[(rank + step) % size], right, left)
    for step in range(size - 1):
        chunks[(rank - step) % size].copy_(pass_on(chunks[(rank - step + 1) % size], right, left))


def the_same_chunk_each_time(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        chunks[(rank - step - 1) % size] += pass_on(chunks[rank], right, left)
    for step in range(size - 1):
        chunks[(rank - step) % size].copy_(pass_on(chunks[right], right, left))


def past_the_last(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    chunks[rank + 1] += pass_on(chunks[rank], (rank + 1) % size, (rank - 1) % size)


def in_new_tensors(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        goes, comes = (rank - step) % size, (rank - step - 1) % size
        chunks[comes] = chunks[comes] + pass_on(chunks[goes], right, left)
    for step in range(size - 1):
        goes, comes = (rank + 1 - step) % size, (rank - step) % size
        chunks[comes] = pass_on(chunks[goes], right, left)


def a_new_sum_first(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        chunks[rank - step - 1] = chunks[rank - step - 1] + pass_on(chunks[rank - step], right, left)
    for step in range(size - 1):
        chunks[rank - step].copy_(pass_on(chunks[(rank + 1 - step) % size], right, left))


def adds_to_what_was_sent(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        chunks[rank - step] += pass_on(chunks[rank - step], right, left)
    for step in range(size - 1):
        chunks[rank - step].copy_(pass_on(chunks[(rank + 1 - step) % size], right, left))


def too_long_at_first(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size):
        chunks[(rank - step - 1) % size] += pass_on(chunks[(rank - step) % size], right, left)
    for step in range(size - 1):
        chunks[(rank - step) % size].copy_(pass_on(chunks[(rank + 1 - step) % size], right, left))


def from_the_start_again(x, chunks):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    for half in (1, 2):
        for step in range(size - 1):
            came = pass_on(chunks[(rank - step) % size], right, left)
            place = chunks[(rank - step - 1) % size]
            place.copy_(place + came if half == 1 else came)


def a_name_of_nothing(x, chunks):
    chunks[comes] += pass_on(chunks[0], 0, 0)  # noqa: F821


ANSWERS = {
    "4.8.a": {
        "accepted": [both_at_once, even_first, into_a_copys_place, sent_then_received_over],
        "wrong": [
            (one_way_only, ["one of the two sends, and nothing comes back"]),
            (into_what_is_sent, ["what comes is written into the `x` that is being sent"]),
            (begun_and_received_over, ["what comes is written into the `x` that is being sent"]),
            (over_itself_in_one_batch, ["what comes is written into the `x` that is being sent"]),
            (into_x_itself, ["both hold what one of the two had"]),
            (all_send_first, ["both send first, and nobody receives"]),
            (lower_half_first, ["on 4 ranks", "rank 2 waits in recv from rank 3", "; rank 3 waits in recv"]),
            (expects_it_back, ["raised TypeError"]),
        ],
    },
    "4.8.b": {
        "accepted": [in_the_background, in_a_chain, from_anybody],
        "wrong": [
            (to_itself_too, ["should not be the same as the rank"]),
            (into_a_name, ["`x` is on every rank what it was"]),
            (from_the_left_neighbour, ["rank 2 waits for rank 1, and it is rank 0 that sends to it"]),
            (each_to_rank_0, ["rank 1 waits in send to rank 0, line", "in each_to_rank_0; rank 0 has ended"]),
            (to_two_others, ["on 2 ranks", "there is no rank 2"]),
            (to_rank_1_alone, ["the last rank waits for ever, for rank 0 sends it nothing"]),
            (all_in_the_loop, ["rank 0 has sent and has ended"]),
            (everybody_tells, ["all send first"]),
            (lambda x: dist.get_rank() and dist.recv(x, 0), ["rank 0 sends to nobody"]),
        ],
    },
    "4.8.c": {
        "accepted": [by_halves, by_bits, by_halves_from_anybody],
        "wrong": [
            (one_more_at_a_time, ["there is no rank"]),
            (all_others_receive_in_each_round, ["rank 0 sends to rank 2, and that waits for rank 1: too early, or"]),
            (from_the_left_in_each_round, ["rank 0 sends to rank 2, and that waits for rank 1", "for the wrong one"]),
            (from_the_half_of_its_number, ["rank 0 sends to rank 2, and that waits for rank 1"]),
            (to_the_right_in_each_round, ["which receives nothing more"]),
            (for_four_ranks, ["on 8 ranks", "the last round is missing"]),
        ],
    },
    "4.8.d": {
        "accepted": [ring_reduce_scatter, add_at_the_end, a_new_sum_written_back],
        "wrong": [
            (into_the_senders, ["another chunk has changed", "own chunk is as it was"]),
            (a_new_sum, ["a new tensor stands in the list"]),
            (to_itself_first, ["rank 0 sends to itself (line", "in pass_on)"]),
            (always_the_neighbour, ["its own chunk is 201"]),
            (exchanged, ["what goes to a rank is not that rank's chunk"]),
            (whole_tensors, ["right, but as much is sent as if whole tensors"]),
        ],
    },
    "4.8.e": {
        "accepted": [ring_all_gather, backwards],
        "wrong": [
            (other_ways_chunk, ["every rank sends zeros"]),
            (over_its_own, ["written over the rank's own chunk"]),
            (put_into_the_list, ["a new tensor stands in the list, and `x` is as it was"]),
            (whole_tensors, ["right, but as much is sent as if whole tensors"]),
            (added_to_its_own, ["added to the rank's own chunk, and the others stay zeros"]),
            (in_the_order_in_which_it_comes, ["what comes first is chunk 1"]),
        ],
    },
    "4.8.f": {
        "accepted": [in_two_functions, carried],
        "wrong": [
            (to_the_left, ["that ring goes to the left"]),
            (in_new_tensors, ["new tensors stand in the list, and `x` is as it was"]),
            (a_new_sum_first, ["the sums of the first half stand in the list"]),
            (adds_to_what_was_sent, ["what comes is added to the chunk that has just gone out"]),
            (too_long_at_first, ["one step too many in one of the halves"]),
            (the_wrong_way_at_first, ["what comes is added to another one than came"]),
            (the_same_chunk_each_time, ["one and the same chunk in every step of a half"]),
            (from_the_start_again, ["in the end chunk r is what rank r had"]),
            (a_name_of_nothing, ["raised NameError"]),
            (past_the_last, ["raised IndexError"]),
        ],
    },
}
