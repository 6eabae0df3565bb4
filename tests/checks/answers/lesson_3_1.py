"""Answers to the exercises of lesson 3.1: the right ones, the blanks, and mistakes that people make."""

from functools import partial

import torch
import torch.distributed as dist
from torch.distributed import all_reduce

# 3.1.2: all-gather with nothing but a sum


def gather_all(x, *, begin=torch.zeros, ranks=None, row=None, send=True, columns=None):
    """The right answer, with one thing done otherwise at a time."""
    rows = begin(ranks or dist.get_world_size(), columns or len(x), dtype=x.dtype, device=x.device)
    mine = dist.get_rank() if row is None else row
    if mine < len(rows):
        rows[mine] += x
    if send:
        dist.all_reduce(rows)
    return rows


def imported_by_name(x):
    rows = torch.zeros(dist.get_world_size(), len(x)).to(x)
    rows[dist.get_rank()] = x
    all_reduce(rows)
    return rows


def in_every_row(x):
    rows = x.repeat(dist.get_world_size(), 1)
    dist.all_reduce(rows)
    return rows


def the_real_one(x):
    rows = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, x)
    return torch.stack(rows)


def spoils_x(x):
    rows = gather_all(x)
    x.zero_()
    return rows


# your turn


def by_keyword(x):
    torch.distributed.broadcast(tensor=x, src=dist.get_world_size() - 1)
    return x


def by_adding(x):
    if dist.get_rank() < dist.get_world_size() - 1:
        x.zero_()
    dist.all_reduce(x)
    return x


def always_from_rank_2(x):
    dist.broadcast(x, src=2)
    return x


def what_broadcast_returns(x):
    return dist.broadcast(x, src=dist.get_world_size() - 1)


def as_objects(x):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, x.tolist())
    return torch.tensor(everyone).flatten()


def a_list(x):
    return list(into_rows(x))


def into_rows(x):
    rows = x.new_zeros(dist.get_world_size(), len(x))
    dist.all_gather(list(rows), x)
    return rows.double()


def tensor_first(x):
    places = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(x, places)
    return places


def always_three_places(x):
    places = [torch.empty_like(x) for _ in range(3)]
    dist.all_gather(places, x)
    return torch.cat(places)


def from_everybodys(x):
    everyone = into_rows(x.view(1))
    return everyone.mean().item(), everyone.max().item()


def largest_first(x):
    largest = x.clone()
    all_reduce(largest, dist.ReduceOp.MAX)
    dist.all_reduce(x)
    x /= dist.get_world_size()
    return {"mean": x, "largest": largest}


def uses_what_comes_back(x):
    return dist.all_reduce(x) / dist.get_world_size(), x


def one_after_the_other(x):
    mean, largest = from_everybodys(x)
    return [largest, mean]


def gathered_places_on_all(x):
    places = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.gather(x, places, dst=0)
    return torch.cat(places)


def gathered_or(x, otherwise):
    places = [torch.empty_like(x) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    dist.gather(x, places)
    return torch.cat(places) if places else otherwise


def leaves_the_places(x):
    dist.all_gather([torch.empty_like(x) for _ in range(dist.get_world_size())], x)
    return x


def pair_of_copies_of_one(x):
    mean = largest = x.clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    dist.all_reduce(mean)
    return mean / dist.get_world_size(), largest


def pair_of_which_one_is_reduced(x):
    mean, largest = x.clone(), x.clone()
    dist.all_reduce(mean)
    dist.reduce(largest, dst=0, op=dist.ReduceOp.MAX)
    return mean / dist.get_world_size(), largest


def pair_by_an_operation_of_its_own(x):
    dist.all_reduce(x, op=dist.ReduceOp.MEAN)
    return x, x


def pair_with_an_own_largest(x):
    mean = x.clone()
    dist.all_reduce(mean)
    return mean / dist.get_world_size(), x.max()


def sent_to_rank_0(x):
    last = dist.get_world_size() - 1
    if dist.get_rank() == last:
        dist.send(x, dst=0)
    elif dist.get_rank() == 0:
        dist.recv(x, src=last)
    return x


def fills_its_own_place(x):
    rows = x.new_zeros(dist.get_world_size(), len(x))
    rows[dist.get_rank()] = x
    return rows.flatten()


def one_broadcast_after_the_other(x):
    everyone = []
    for rank in range(dist.get_world_size()):
        dist.broadcast(x, src=rank)
        everyone.append(x)
    return torch.cat(everyone)


def report_of_one_place(loss):
    places = [torch.zeros_like(loss)] * dist.get_world_size()
    dist.all_gather(places, loss)
    if dist.get_rank() == 0:
        print(sum(places) / len(places))


def report_of_all_losses(loss):
    losses = into_rows(loss.view(1))
    if dist.get_rank() == 0:
        print(losses.flatten().tolist())


def report_of_scraps(loss):
    dist.reduce(loss, dst=0)
    print(loss.item() / dist.get_world_size())


def report_in_two_lines(loss):
    report_by_reduce(loss)
    if dist.get_rank() == 0:
        print("that was the loss")


def report_to_a_barrier(loss):
    report_by_reduce(loss)
    if dist.get_rank() == 0:
        dist.barrier()


def report_by_reduce(loss):
    dist.reduce(loss, dst=0)
    if dist.get_rank() == 0:
        print("rank 0 of 1024: the mean loss is", loss / dist.get_world_size())


def report_by_reduce_to_the_last(loss, digits=8):
    dist.reduce(loss, dst=dist.get_world_size() - 1)
    if dist.get_rank() == 0:
        print(round(loss.item() / dist.get_world_size(), digits))


def report_by_reduce_of_one(loss):
    if dist.get_rank() == 0:
        report_by_reduce(loss)


def report_by_return(loss):
    dist.all_reduce(loss / dist.get_world_size())
    dist.all_reduce(loss)
    if dist.get_rank() != 0:
        return
    print(f"{loss.item() / dist.get_world_size():.2f}", flush=True)


RIGHT = ([7, 8, 9], [0, 9, 18], [0, 9, 18], [27, 270, 2700])

ANSWERS = {
    "3.1.1": {
        "correct": RIGHT,
        "wrong": [
            (([7, 7, 7], *RIGHT[1:]), ["`a` is [7, 7, 7]", "stopped after the `all_reduce`"]),
            (([1, 3, 6], *RIGHT[1:]), ["`a` is [1, 3, 6]", "not met"]),
            ((RIGHT[0], [9, 9, 9], *RIGHT[2:]), ["`b` is [9, 9, 9]", "stopped after the `broadcast`"]),
            ((RIGHT[0], [0, 7, 14], *RIGHT[2:]), ["`b`", "rank 0's number"]),
            ((*RIGHT[:2], [27, 27, 27], RIGHT[3]), ["`c`", "`all_reduce`"]),
            ((*RIGHT[:3], [0, 90, 1800]), ["`d`", "nothing was added up"]),
            ((*RIGHT[:3], [5, 5, 5]), ["`d` is [5, 5, 5]", "not it"]),
            (([8, 9, 10], *RIGHT[1:]), ["rank 0 has added 1"]),
            ((RIGHT[0], [0, 8, 16], *RIGHT[2:]), ["`b`", "rank 1's number"]),
            ((7, *RIGHT[1:]), ["`a` is 7, not three numbers"]),
        ],
    },
    "3.1.2": {
        "correct": gather_all,
        "accepted": [imported_by_name],
        "wrong": [
            (partial(gather_all, begin=torch.ones), ["on 2 ranks", "every number is too large by 2"]),
            (in_every_row, ["every row is the sum"]),
            (partial(gather_all, row=0), ["all ranks wrote into row 0"]),
            (partial(gather_all, ranks=2), ["on 3 ranks", "returns the shape (2, 2)"]),
            (partial(gather_all, columns=2), ["on rank 0, raised RuntimeError", "must match"]),
            (lambda x: gather_all(x).T, ["on 2 ranks", "returns the shape (3, 2)"]),
            (the_real_one, ["you called `dist.all_gather`"]),
            (lambda x: list(gather_all(x)), ["a list, not a tensor"]),  # a list
            (partial(gather_all, send=False), ["no rank made a collective"]),
            (spoils_x, ["own `x` has changed"]),
            (lambda x: dist.all_reduce(x), ["returns nothing, not a tensor"]),  # returns the call
        ],
    },
    "3.1.a": {
        "accepted": [by_keyword, by_adding],
        "wrong": [
            (always_from_rank_2, ["on 2 ranks", "raised"]),
            (what_broadcast_returns, ["nothing is returned"]),
            (lambda x: by_keyword(x).tolist(), ["a list is returned"]),
            (lambda x: as_objects(x).to(x), ["everybody's numbers are returned"]),
            (lambda x: into_rows(x)[dist.get_rank() - 1], ["what the rank before it had"]),
            (sent_to_rank_0, ["only rank 0 gets them"]),
            (lambda x: by_keyword(x)[0], ["only the first of the numbers"]),
            (lambda x: dist.all_reduce(x, op=dist.ReduceOp.MAX) or x, ["on 2 ranks", "largest numbers"]),
        ],
    },
    "3.1.b": {
        "accepted": [as_objects, into_rows],
        "wrong": [
            (tensor_first, ["on 3 ranks", "raised TypeError"]),
            (gathered_places_on_all, ["raised ValueError", "gather_list"]),
            (a_list, ["in a list, and not in one tensor"]),
            (always_three_places, ["on 2 ranks", "raised"]),
            (lambda x: into_rows(x)[1:].flatten(), ["rank 0's numbers are left out"]),
            (fills_its_own_place, ["each rank fills its own place alone"]),
            (one_broadcast_after_the_other, ["all numbers are rank 0's"]),
            (lambda x: torch.tensor([*into_rows(x)]), ["raised ValueError"]),
            (leaves_the_places, ["each rank returns its own numbers alone"]),
            (lambda x: gathered_or(x, x), ["only rank 0 returns them"]),
            (lambda x: gathered_or(x, x.new_empty(0)), ["only rank 0 returns them"]),
        ],
    },
    "3.1.c": {
        "accepted": [from_everybodys, largest_first],
        "wrong": [
            (uses_what_comes_back, ["on 3 ranks", "raised TypeError"]),
            (one_after_the_other, ["the largest comes first"]),
            (pair_of_copies_of_one, ["in which the largest stood already"]),
            (pair_of_which_one_is_reduced, ["on 3 ranks", "only rank 0 has the largest"]),
            (pair_by_an_operation_of_its_own, ["has no attribute 'MEAN'"]),
            (lambda x: tuple(2 * [into_rows(x.view(1)).sum()]), ["both are the sum"]),
            (lambda x: (from_everybodys(x)[0] / dist.get_world_size(), from_everybodys(x)[1]), ["by the ranks twice"]),
            (lambda x: (from_everybodys(x)[0], into_rows(x.view(1))[-1]), ["on 2 ranks", "the last rank's number"]),
            (lambda x: (from_everybodys(x)[0], into_rows(x.view(1)).prod()), ["the second is the product"]),
            (pair_with_an_own_largest, ["each rank's own number"]),
        ],
    },
    "3.1.d": {
        "accepted": [report_by_reduce, report_by_return],
        "wrong": [
            (report_in_two_lines, ["two lines"]),
            (report_to_a_barrier, ["waits in barrier"]),
            (report_by_reduce_to_the_last, ["the others' have not come to it"]),
            (partial(report_by_reduce_to_the_last, digits=4), ["the others' have not come to it"]),
            (lambda loss: report_by_return(loss / dist.get_world_size()), ["divided by the ranks twice"]),
            (report_of_one_place, ["the last rank's loss, which is the largest, too"]),
            (lambda loss: dist.get_rank() or print("{loss}"), ["a text without a number"]),
            (report_of_all_losses, ["rank 1's loss, alone or among others"]),
            (report_of_scraps, ["every rank prints"]),
            (report_by_reduce_of_one, ["waits in reduce"]),
        ],
    },
}
