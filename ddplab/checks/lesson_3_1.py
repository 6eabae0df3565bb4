"""Checks of lesson 3.1, Processes and collectives."""

import io
import math
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import kind, needs_function, on_ranks, reducing_to_one
from ddplab.checks.turns import turn, waiting
from ddplab.course.messages import noted_messages
from ddplab.hardware import device

FROM_0 = "Ranks are counted from 0."


@exercise("3.1.1", "Predict the state")
def state(a: Any, b: Any, c: Any, d: Any) -> None:
    """1, 2, 4 on three ranks: all_reduce, += rank; broadcast from 2, *= rank; all_gather; reduce_scatter."""
    _three("a", a, [7, 8, 9], {
        (7, 7, 7): ("you stopped after the `all_reduce`", "The line after it adds each rank's own number."),
        (1, 3, 6): ("the ranks have not met yet", "After `all_reduce` each holds 1 + 2 + 4, not its own number."),
        (8, 9, 10): ("rank 0 has added 1, rank 1 has added 2, and rank 2 has added 3", FROM_0),
        (7, 3, 6): ("only rank 0 has the sum", "That is `reduce`. `all_reduce` leaves the sum on every rank."),
    }, "`all_reduce` puts 1 + 2 + 4 on every rank; then each adds its own rank.")  # fmt: skip
    _three("b", b, [0, 9, 18], {
        (9, 9, 9): ("you stopped after the `broadcast`", "The line after it multiplies by each rank's own number."),
        (0, 7, 14): ("that is rank 0's number on all ranks", "Who is the source? `src=2`."),
        (0, 8, 16): ("that is rank 1's number on all ranks", "Who is the source? `src=2`."),
        (9, 18, 27): ("rank 0 has multiplied by 1, rank 1 by 2, and rank 2 by 3", FROM_0),
        (0, 8, 18): ("nothing was broadcast", "After `broadcast` from 2, all ranks hold what rank 2 held."),
    }, "`broadcast` gives every rank what rank 2 held in a; then each multiplies by its own rank.")  # fmt: skip
    _three("c", c, [0, 9, 18], {
        (27, 27, 27): ("that is an `all_reduce`", "To gather is to collect the numbers as they are."),
        (27, 270, 2700): ("that belongs to d", "`all_gather` does not add."),
    }, "What the three ranks hold in b, side by side, in the order of the ranks.")  # fmt: skip
    _three("d", d, [27, 270, 2700], {
        (27, 27, 27): ("the pieces differ", "Rank 1 gets the sum of everybody's *second* piece, which is `10 * x`."),
        (0, 90, 1800): ("nothing was added up", "Piece r of *every* rank goes into the sum that rank r gets."),
        (2997, 2997, 2997): ("each rank gets one piece of the sum", "Keep the three pieces apart."),
        (0, 999, 1998): ("each rank added its own pieces", "Add piece r of all ranks, and not the pieces of one rank."),
    }, "Rank r gets the sum over all ranks of their piece number r.")  # fmt: skip


def _three(name: str, answer: Any, right: list[int], mistakes: dict[tuple, tuple[str, str]], otherwise: str) -> None:
    """Three whole numbers, one for each rank."""
    answer = answer.tolist() if hasattr(answer, "tolist") else answer
    if not isinstance(answer, list | tuple) or len(answer) != 3:
        raise NotYet(f"`{name}` is {answer!r}, not three numbers", "A list such as [1, 2, 3].")
    if list(answer) != right:
        why, hint = mistakes.get(tuple(answer), ("that is not it", otherwise))
        raise NotYet(f"`{name}` is {list(answer)}: {why}", hint)


@exercise("3.1.2", "All-gather with nothing but a sum")
def gathered(gather_all: Callable[..., Any]) -> None:
    """`gather_all(x)` must return row r from rank r, on every rank, by `all_reduce` alone."""
    needs_function("gather_all", gather_all)
    for size in (2, 3):
        _gathered_on(size, gather_all)


def _gathered_on(size: int, gather_all: Callable[..., Any]) -> None:
    hints = HINTS | dict.fromkeys(TOO_SMALL, ROWS)
    ranks = on_ranks(
        _gather_in_rank, gather_all, size=size, hints=hints, waiting="In a collective all ranks take part."
    )
    where = f"on {size} ranks"
    right = torch.stack([_row(rank, size) for rank in range(size)])
    for rank, (got, calls, moved) in enumerate(ranks):
        if other := [name for name in calls if name != "all_reduce"]:
            raise NotYet(f"{where}, you called `dist.{other[0]}`", "`dist.all_reduce` is all that you may use.")
        if not isinstance(got, torch.Tensor):
            raise NotYet(f"{where}, rank {rank} returns {kind(got)}, not a tensor", "One tensor, with a row a rank.")
        if got.shape != right.shape:
            raise NotYet(f"{where}, rank {rank} returns the shape {tuple(got.shape)}, not {tuple(right.shape)}", ROWS)
        if torch.equal(got.double(), right):
            if moved:
                raise NotYet(f"{where}, rank {rank}'s own `x` has changed", "All-reduce a tensor of your own.")
            continue
        if not calls:
            raise NotYet(f"{where}, no rank made a collective", "The rows have to travel: `dist.all_reduce`.")
        total = right.sum(0)
        if all(torch.equal(row.double(), total) for row in got):
            hint = "What must the other ranks put into row r, so that adding theirs changes nothing?"
            raise NotYet(f"{where}, every row is the sum of all ranks' numbers", hint)
        if torch.equal(got[0].double(), total) and not got[1:].any():
            raise NotYet(f"{where}, all ranks wrote into row 0", "Rank r writes into row r: `dist.get_rank()`.")
        if torch.equal(got.double() - right, (got.double() - right)[:1, :1].expand_as(right)):
            hint = "The rows of the others must begin as zeros."
            raise NotYet(f"{where}, every number is too large by {float(got[0, 0] - right[0, 0]):g}", hint)
        hint = "Zeros everywhere, your own numbers in your own row, then one sum over the ranks."
        raise NotYet(f"{where}, rank {rank} has {got.tolist()} and not {right.tolist()}", hint)


ROWS = "One row for each rank, as long as x: `torch.zeros(dist.get_world_size(), len(x))`."
TOO_SMALL = ("is out of bounds", "must match the")  # what torch says of rows too few, and too short


def _row(rank: int, size: int) -> Any:
    """Three numbers on two ranks and two on three: rows and columns are told apart."""
    return torch.arange(1.0, 6 - size, dtype=torch.float64) * 10**rank


def _gather_in_rank(gather_all: Callable[..., Any]) -> tuple[Any, list[str], bool]:
    messages = noted_messages()
    row = _row(dist.get_rank(), dist.get_world_size()).to(device())
    x = row.clone()
    got = gather_all(x)
    return got, [message.name for message in messages], not torch.equal(x, row)


ALIKE = "In a collective all ranks bring tensors of one shape and type. `mine` differs; its sum and its length do not."
HINTS = {
    "SIGABRT": ALIKE,  # how gloo ends a process whose partner brought another size
    "invalid tensor size": ALIKE,
    "expected a single tensor": "`dist.all_reduce` takes a tensor, and not a number: `torch.tensor(…)`.",
    "Expected parameter `tensor`": "`dist.all_reduce` takes a tensor, and not a number: `torch.tensor(…)`.",
    "'NoneType' object": "`dist.all_reduce` returns nothing: it changes the tensor that you give it.",
    "unsupported operand type(s) for /: 'NoneType'": "`dist.all_reduce` changes the tensor that you give it.",
}

# ------------------------------------------------------------------ your turn


def _digits(rank: int, size: int) -> tuple[Any]:
    torch.use_deterministic_algorithms(True)  # so that `torch.empty` is full of NaN
    return (torch.tensor([1.0, 2.0], device=device()) * 10**rank,)  # ones are rank 0's, tens rank 1's


def _either_way(rank: int, size: int) -> tuple[Any]:
    """Each rank's digits; of two ranks the first has the larger number in one place, and the last in the other."""
    (x,) = _digits(rank, size)
    x[0] = x[0] if size > 2 else 10 / x[0]
    return (x,)


def _found(got: Any, *_: Any) -> Any:
    return "nothing" if got is None else got


def _one_tensor(got: Any, *_: Any) -> Any:
    return "a list" if isinstance(got, list | tuple) else _found(got)


def _from_last(x: Any, src: int | None = None, only: Callable[[bool], bool] | None = None) -> Any:
    last = dist.get_world_size() - 1
    if only is None or only(dist.get_rank() == last):
        dist.broadcast(x, src=last if src is None else src)
    return x


def _only_to_0(x: Any) -> Any:
    own = x.clone()
    return [_from_last(x), own][0 < dist.get_rank() < dist.get_world_size() - 1]


turn(
    "3.1.a",
    "From the last to all",
    _from_last,
    _either_way,
    ranks=(3, 2),
    look=lambda got, *_: [*_either_way(dist.get_rank(), dist.get_world_size()), _one_tensor(got)],
    heads=("brings", "", "x", ""),
    mistakes=[
        (lambda x: x, "every rank holds its own numbers still",
         "`dist.broadcast(x, src=…)`, on all ranks: it fills `x` itself, at once unless `async_op` is set."),
        (partial(_from_last, src=0), "all hold rank 0's numbers", "Whose number is `src`? The last rank's."),
        (partial(_from_last, src=1), "all hold rank 1's numbers", "With N ranks, which number has the last?"),
        (lambda x: dist.all_reduce(x) or x, "the numbers are added up", "`all_reduce` adds. `dist.broadcast` copies."),
        (lambda x: dist.all_reduce(x, dist.ReduceOp.MAX) or x, "all hold the largest numbers, whoever had them",
         "`dist.broadcast` asks who had them: `src`."),
        (torch.zeros_like, "nobody's numbers: it is not `x` that is broadcast", "`x` itself is sent, and filled."),
        (lambda x: _from_last(x).tolist(), "a list is returned", "`return x`, the tensor."),
        (lambda x: _everyones(x), "everybody's numbers are returned", "The last rank's alone: `dist.broadcast`."),
        (lambda x: _everyones(x, join=lambda places: places[dist.get_rank() - 1]),
         "each rank holds what the rank before it had", "-1 in a list is the last: `places[-1]`."),
        (_only_to_0, "only rank 0 gets them", "`dist.broadcast` gives them to all."),
        (lambda x: _from_last(x)[:1], "only the first of the numbers is returned", "`return x`, all of it."),
        (lambda x: None, "nothing is returned", "`dist.broadcast` returns nothing; it fills `x`. Return that."),
        (waiting(partial(_from_last, only=bool), "rank 2", "waits in broadcast"),
         "only the last rank calls `broadcast`, and waits for the others",
         "Those who get something call it too: no `if` around a collective."),
        (waiting(partial(_from_last, only=lambda last: not last), "rank 0", "waits in broadcast from rank 2"),
         "the last rank does not call `broadcast`",
         "The one that has the numbers calls it too, or who sends?"),
        (waiting(lambda x: dist.broadcast(x, src=dist.get_rank()) or x, "rank 0", "waits in broadcast from rank 0"),
         "every rank names itself as `src`, and all wait",
         "All have to name the same rank: the one that holds what is wanted."),
    ],
    hints={"'dst'": "`broadcast` has no `dst`: it goes to all. `src` says from whom.",
           "Must specify global_rank": "`src=` says whose numbers they are.",
           "got <class 'int'>": "First the tensor, and then `src`.",
           "input list size": "`scatter` deals out pieces. `broadcast` gives all of it to everybody.",
           "root rank": "With N ranks, which number has the last? `dist.get_world_size()` is N.",
           "not part of group": "With N ranks, which number has the last? `dist.get_world_size()` is N."},
    otherwise="One `dist.broadcast(x, src=…)` on every rank, all with the same `src`, the last rank; and return `x`.",
)  # fmt: skip


def _everyones(x: Any, same: bool = False, join: Callable[..., Any] = torch.cat) -> Any:
    places = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    if same:
        places = places[:1] * len(places)
    dist.all_gather(places, x)
    return join(places)


def _own_place(x: Any, others: float) -> Any:
    places = [torch.full_like(x, others) for _ in range(dist.get_world_size())]
    places[dist.get_rank()] = x
    return torch.cat(places)


def _gathered_on_0(x: Any, others: float | None = None) -> Any:
    """Gather; what the others return: nothing, or places in which nothing has come."""
    places = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.gather(x, places if dist.get_rank() == 0 else None, dst=0)
    if dist.get_rank() > 0:
        return None if others is None else torch.cat(places).fill_(others)
    return torch.cat(places)


OWN_FIRST = "each rank puts its own numbers first", "The order is the same on all ranks: rank 0's first."

turn(
    "3.1.b",
    "Everybody's numbers, in order",
    _everyones,
    _digits,
    ranks=(3, 2),
    look=_one_tensor,
    heads=("rank 0's", "", "rank 1's", "", "rank 2's", ""),
    mistakes=[
        (lambda x: x, "each rank returns its own numbers alone",
         "What `dist.all_gather` puts into the places is to come back, in one tensor."),
        (lambda x: x.repeat(dist.get_world_size()), "each rank has its own numbers, again and again",
         "They have to travel: `dist.all_gather`."),
        (partial(_everyones, same=True), "all places are one and the same tensor, and the last to come stays in it",
         "`[place] * n` is n names for one tensor. Make a new one for each rank."),
        *[(by, "only rank 0 returns them",
           "`gather` brings them to one rank. Which collective does it for all? And all return what came.")
          for by in (*(partial(_gathered_on_0, others=others) for others in (None, 0.0, math.nan)),
                     lambda x: [_everyones(x), x][dist.get_rank() > 0],
                     lambda x: [_everyones(x), x[:0]][dist.get_rank() > 0])],
        (partial(_everyones, join=lambda places: None), "nothing is returned",
         "`all_gather` returns nothing; it fills the places. Return those."),
        (partial(_everyones, join=lambda places: torch.cat(places[::-1])), "the last rank's numbers come first",
         "The places are in the order of the ranks as they are."),
        (lambda x: torch.cat([x, _everyones(x)]), "each rank puts its own numbers before all",
         "Its own are among everybody's already."),
        (partial(_everyones, join=lambda places: torch.cat(places[1:])), "rank 0's numbers are left out",
         "The first place is rank 0's: a list begins at 0."),
        *[(partial(_own_place, others=others), "each rank fills its own place alone, and nothing comes to the others",
           "They have to travel: `dist.all_gather`.") for others in (0.0, math.nan)],
        *[(partial(_everyones, join=lambda places, empty=empty: torch.cat(places).fill_(empty)),
           "the places are empty still: nothing has come, or not yet",
           "`dist.all_gather` fills them, at once unless `async_op` is set.") for empty in (0.0, math.nan)],
        (lambda x: _from_last(x, src=0).repeat(dist.get_world_size()), "all numbers are rank 0's",
         "A broadcast overwrites `x`, and then a rank has lost its own: give it a copy, for each rank a new one."),
        (partial(_everyones, join=lambda places: places[0]), "only rank 0's numbers are returned",
         "What makes one tensor of several? `torch.cat(…)`."),
        (partial(_everyones, join=lambda places: places[-1]), "only the last rank's numbers are returned",
         "What makes one tensor of several? `torch.cat(…)`."),
        (partial(_everyones, join=list), "the numbers are in a list, and not in one tensor",
         "What makes one tensor of several? `torch.cat(…)`."),
        (partial(_everyones, join=lambda places: torch.stack(places, 1)), "the ranks' numbers are shuffled together",
         "One rank after the other: `torch.cat(…)`."),
        (lambda x: dist.all_reduce(x) or x, "the numbers are added up", "To gather is to keep them apart."),
        (partial(_everyones, join=lambda places: torch.cat(places).roll(-2 * dist.get_rank())), *OWN_FIRST),
        (partial(_everyones, join=lambda places: torch.cat([places.pop(dist.get_rank()), *places])), *OWN_FIRST),
        (waiting(lambda x: _everyones(x) if dist.get_rank() == 0 else x), "only rank 0 calls `all_gather`, and waits",
         "Who sends, calls it too."),
    ],
    hints={
        "expected length": "One place for each rank: `dist.get_world_size()` of them.",
        "`gather_list`": "`gather` fills the places of one rank only. Which collective does it for all?",
        "with elements of type": "Each place is a tensor like `x`: `torch.empty_like(x)`.",
        "only one element tensors": "`torch.tensor` takes numbers. Of several tensors `torch.cat(…)` makes one.",
        "scatter_list": "`scatter` deals out. To bring everybody's to everybody is `all_gather`.",
        "'NoneType'": "All get them, so every rank brings places.",
        "`tensor_list`": "First a list of places, one tensor for each rank; then the tensor to send.",
        "dtypes": "The places have to be like `x`: `torch.empty_like(x)`.",
        "invalid tensor size": "The places have to be like `x`: `torch.empty_like(x)`.",
        "'dst'": "There is no `dst`: it is for everybody.",
    },
    otherwise="An empty place for each rank; `dist.all_gather` fills them, from all ranks.",
)  # fmt: skip


ONE_EACH = (1.0, 10.0, 100.0)


def _brings(rank: int, size: int) -> float:
    return ONE_EACH[rank if size > 2 else 1 - rank]  # the largest is the last rank's of three, and the first's of two


def _one_each(rank: int, size: int) -> tuple[Any]:
    return (torch.tensor(_brings(rank, size), device=device()),)


def _of_all(x: Any, op: Any = dist.ReduceOp.SUM, over: float = 1, reduce: Any = dist.all_reduce) -> Any:
    x = x.clone()
    reduce(x, op=op)
    return x / over


def _pair(x: Any, mean: Any = None, largest: Any = None, over: int = 0, by: Any = 2 * (dist.all_reduce,)) -> Any:
    mean = _of_all(x if mean is None else mean, over=over or dist.get_world_size(), reduce=by[0])
    return mean, _of_all(x if largest is None else largest, dist.ReduceOp.MAX, reduce=by[1])


def _to_0(x: Any, op: Any) -> None:
    dist.reduce(x, dst=0, op=op)


REDUCE = "That is `reduce`, which serves one rank, `dst`. Every rank shall return both: `all_reduce`."
OVERWRITES = "`all_reduce` overwrites what it is given. Give each a copy: `x.clone()`."

turn(
    "3.1.c",
    "The mean and the largest",
    _pair,
    _one_each,
    ranks=(3, 2),
    call=reducing_to_one,
    look=lambda got, _: [_brings(dist.get_rank(), dist.get_world_size()), _found(got)],  # whatever became of x since
    heads=("brings", "mean", "largest"),
    mistakes=[
        (lambda x: (x, x), "each rank returns its own number", "The numbers have to meet: `dist.all_reduce`."),
        (partial(_pair, over=1), "the first is the sum", "What makes a mean of a sum?"),
        (lambda x: _pair(x, largest=_of_all(x)), "the second is the largest of the sums", OVERWRITES),
        (lambda x: _pair(x, largest=_pair(x)[0]), "the second is the largest of the means", OVERWRITES),
        (lambda x: _pair(x, mean=_pair(x)[1]), "the first is the mean of the largest", OVERWRITES),
        (lambda x: (_pair(x)[1], _pair(x)[1] * dist.get_world_size()),
         "both come from one tensor, in which the largest stood already", OVERWRITES),
        (lambda x: (_pair(x)[0], x), "the second is each rank's own number",
         "`x.max()` looks at this rank alone. `dist.all_reduce`, with `op=dist.ReduceOp.MAX`, at all of them."),
        (lambda x: (_of_all(x), _of_all(x)), "both are the sum",
         "`mean()` and `max()` look at one rank's tensor alone. A mean of a sum: divide. The largest: `ReduceOp.MAX`."),
        (lambda x: (_pair(x)[0] / dist.get_world_size(), _pair(x)[1]), "the mean is divided by the ranks twice",
         "Once: before they are added up, or after it."),
        (lambda x: (_of_all(x) / dist.get_rank(), _pair(x)[1]), "each rank divides by its own number",
         "By how many there are: `dist.get_world_size()`."),
        (lambda x: (_pair(x)[0], _of_all(x, dist.ReduceOp.PRODUCT)), "the second is the product",
         "`dist.ReduceOp.MAX`"),
        (lambda x: (_pair(x)[0], _from_last(x.clone())),
         "the second is the last rank's number, and it need not be the largest",
         "`dist.all_reduce`, with `op=dist.ReduceOp.MAX`, finds out."),
        (lambda x: (_pair(x)[0], _of_all(x, dist.ReduceOp.MIN)), "the second is the smallest", "`dist.ReduceOp.MAX`"),
        (lambda x: _pair(x, largest=x / dist.get_world_size()), "the largest is divided by the ranks, too",
         "Only what has been added up is to be divided."),
        (lambda x: _pair(x)[0], "the mean only is returned", "And the largest: `return mean, largest`"),
        (lambda x: [_pair(x), None][dist.get_rank() > 0], "only rank 0 returns them", "Every rank returns both."),
        (partial(_pair, over=3), "it divides by 3", "How many ranks are there? `dist.get_world_size()`."),
        (partial(_pair, over=2), "it divides by 2", "How many ranks are there? `dist.get_world_size()`."),
        (partial(_pair, by=(_to_0, _to_0)), "only rank 0 has them", REDUCE),
        (partial(_pair, by=(dist.all_reduce, _to_0)), "only rank 0 has the largest", REDUCE),
        (partial(_pair, by=(_to_0, dist.all_reduce)), "only rank 0 has the mean", REDUCE),
        (lambda x: _pair(x)[::-1], "the largest comes first", "First the mean, and then the largest."),
        (lambda x: print(_pair(x)), "nothing is returned", "`return mean, largest`"),
    ],
    hints={"NoneType": "`dist.all_reduce` returns nothing: it changes the tensor that you give it.",
           "incompatible function arguments": "`op=` takes one of torch's own operations: `dist.ReduceOp.MAX`.",
           "multiple values for argument": "One tensor in each call, and its operation."},
    otherwise="Two all-reduces: one that adds up, and one with `op=dist.ReduceOp.MAX`.",
)  # fmt: skip

LOSSES = (1.0, 3.0, 8.0)


def _loss(rank: int, size: int) -> tuple[Any]:
    sys.stdout = io.StringIO()  # what the learner prints
    return (torch.tensor(LOSSES[rank], device=device()),)


def _printed(*_: Any) -> Any:
    """What this rank has printed, in whatever words: of its numbers the one that is nearest to the mean."""
    (told, sys.stdout), size = (sys.stdout.getvalue(), sys.__stdout__), dist.get_world_size()
    if (lines := len(told.strip().splitlines())) > 1:
        return f"{lines} lines"
    said = [float(it) for it in re.findall(r"-?\d+(?:\.\d*)?", told)]
    if not said:
        return "no number" if told else "nothing"
    return round(min(said, key=lambda it: abs(it - sum(LOSSES[:size]) / size)), 2)  # in however many digits


def _report(loss: Any, by: Callable[[int], bool] = lambda rank: rank == 0, over: int = 0, add: str = "all") -> None:
    rank = dist.get_rank()
    if add == "all" or (add == "printing" and by(rank)):
        dist.all_reduce(loss)
    if by(rank):
        print((loss / (over or dist.get_world_size())).item())


def _reduced_and_printed(loss: Any) -> None:
    dist.reduce(loss, dst=0)
    print((loss / dist.get_world_size()).item())


turn(
    "3.1.d",
    "One line in the log",
    _report,
    _loss,
    ranks=(3, 2),
    call=reducing_to_one,
    look=lambda *_: [LOSSES[dist.get_rank()], _printed()],
    heads=("brings", "prints"),
    mistakes=[
        (partial(_report, by=lambda rank: True), "every rank prints", "Which rank is to print? `dist.get_rank()`."),
        (partial(_report, by=lambda rank: False), "nobody prints", "`print(…)`, on rank 0: `dist.get_rank() == 0`."),
        (partial(_report, add="no", over=1), "rank 0 prints its own loss", "The others' have to come to it first."),
        (partial(_report, add="no"), "rank 0 prints its own loss, divided: the others' have not come to it",
         "`all_reduce` leaves the sum on every rank, and `reduce` on one: `dst`. Who prints?"),
        (lambda loss: _report(loss / dist.get_world_size()), "it is divided by the ranks twice",
         "Once: before they are added up, or after it."),
        (lambda loss: dist.get_rank() or print(max(LOSSES[:dist.get_world_size()])),
         "rank 0 prints the last rank's loss, which is the largest, too",
         "`ReduceOp.MAX` takes the largest; and places that are all one tensor hold what came last."),
        (lambda loss: dist.get_rank() or print("loss"), "rank 0 prints a text without a number",
         "In quotes a name is a text: `print(mean)`, or `f\"… {mean}\"`."),
        (lambda loss: dist.get_rank() or print(LOSSES[:dist.get_world_size()][1]),
         "what rank 0 prints is rank 1's loss, alone or among others, and not the mean", "Add them up, and divide."),
        (_reduced_and_printed, "every rank prints, and after `reduce` rank 0 alone has the sum",
         "Which rank is to print? `dist.get_rank()`."),
        (partial(_report, over=1), "rank 0 prints the sum", "What makes a mean of a sum?"),
        (partial(_report, over=3), "it divides by 3", "How many ranks are there?"),
        (partial(_report, over=2), "it divides by 2", "How many ranks are there?"),
        (partial(_report, by=bool), "all print but rank 0", "In Python the number 0 counts as False."),
        (partial(_report, by=lambda rank: rank == 1), "rank 1 prints", "Rank 0 prints."),
        (partial(_report, by=lambda rank: rank == dist.get_world_size() - 1), "the last rank prints", "Rank 0 prints."),
        (lambda loss: _report(loss) or print("no loss" * bool(dist.get_rank()), end=""), "the others print, too",
         "Nothing at all: every `print` belongs under the `if`."),
        (lambda loss: (_report(loss.clone()), _report(loss)), "two lines are printed", "One is enough."),
        (waiting(partial(_report, add="printing")), "rank 0 adds up alone, and waits for the others",
         "Everybody adds up; only then rank 0 goes its own way."),
    ],
    hints={
        "NoneType": "`dist.all_reduce` returns nothing: it changes the tensor that you give it.",
        "list assignment index": "`all_gather_object`, too, wants a place for each rank.",
        "Must specify global_rank": "`reduce` leaves the sum on one rank: `dst=` says on which.",
        "waits in barrier": "A barrier is a collective as well: all call it, or none.",
    },
    otherwise="All ranks add up their losses. Rank 0 alone divides by how many they are, and prints.",
)  # fmt: skip
