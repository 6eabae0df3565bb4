"""Checks of lesson 7.6, Fewer messages, or smaller ones."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab.checks.turns import turn

Tensor = torch.Tensor


def _returned(returned: Any, *_: Any) -> Any:
    return returned


def _half(
    state: Any, bucket: dist.GradBucket, kind: torch.dtype = torch.bfloat16,
    by: Callable[[], float] = dist.get_world_size, times: int = 1, late: bool = False,
) -> torch.futures.Future:  # fmt: skip
    """The hook, with one thing done otherwise. late: it rounds what has come back, and not what leaves."""
    numbers = bucket.buffer() / by()
    numbers = numbers if late else numbers.to(kind)
    for _ in range(times - 1):
        dist.all_reduce(numbers.clone(), async_op=True)
        numbers = numbers * dist.get_world_size()
    done = dist.all_reduce(numbers, async_op=True).get_future()
    return done.then(lambda done: done.value()[0].to(kind).float())


def _sends_nothing(state: Any, bucket: dist.GradBucket) -> torch.futures.Future:
    future = torch.futures.Future()
    future.set_result(bucket.buffer().bfloat16().float())
    return future


def _waits(state: Any, bucket: dist.GradBucket) -> torch.futures.Future:
    numbers = bucket.buffer().bfloat16() / dist.get_world_size()
    dist.all_reduce(numbers)
    future = torch.futures.Future()
    future.set_result(numbers.float())
    return future


def _net_and_images(rank: int, size: int) -> tuple[nn.Module, Tensor]:
    numbers = [1.002, 257.0, 3.0] if size == 2 else [3.0, 6.0, 12.0]  # a third of these is whole, so nothing is rounded
    return nn.Linear(3, 1, bias=False), torch.tensor([numbers]) * (1 + 2 * rank)


@contextmanager
def _noting(waits: list[bool]) -> Iterator[None]:
    """Note where the code inside waits for a message. What a `then` calls may: there the message has come."""
    here, in_then, future, work = get_ident(), [], torch.Future, dist.Work
    kept = future.wait, future.then, work.wait

    def noted(wait: Callable[..., Any]) -> Callable[..., Any]:
        def waiting(self: Any, *given: Any, **named: Any) -> Any:
            waits.append(get_ident() == here and not in_then)
            return wait(self, *given, **named)

        return waiting

    def then(self: Any, callback: Callable[..., Any]) -> Any:
        def called(done: Any) -> Any:
            if get_ident() != here:
                return callback(done)
            in_then.append(True)
            try:
                return callback(done)
            finally:
                in_then.pop()

        return kept[1](self, called)

    future.wait, future.then, work.wait = noted(kept[0]), then, noted(kept[2])
    try:
        yield
    finally:
        future.wait, future.then, work.wait = kept


def _through(hook: Callable[..., Any], net: nn.Module, x: Tensor) -> list[Any]:
    """Return the gradient that a hook brings DDP, the bytes that this rank hands over for it, and whether it waits."""
    sent, waits, all_reduce = [], [], dist.all_reduce

    def counted(tensor: Tensor, *given: Any, **named: Any) -> Any:
        waits.append(not named.get("async_op", any(given[2:3])))
        sent.append(tensor.nbytes)
        return all_reduce(tensor, *given, **named)

    def checked(state, bucket):  # torch reads what a hook is annotated with, and how it names these two
        with _noting(waits):
            future = hook(state, bucket)
        if not hasattr(future, "then"):  # DDP itself would end in a segmentation fault
            raise TypeError(f"DDP wants a future from its hook, and not: {type(future).__name__}")
        return future.then(tensor)

    def tensor(done: torch.futures.Future) -> Tensor:  # else torch asks for a bug report
        if not isinstance(value := done.value(), Tensor):
            raise TypeError(f"DDP wants a future of a tensor, and not of: {type(value).__name__}")
        return value

    model = DistributedDataParallel(net)
    model.register_comm_hook(None, checked)
    dist.all_reduce = counted
    try:
        model(x).sum().backward()
    except RuntimeError as error:  # torch wraps what a callback raised, once for each `then`
        own = str(error).rpartition("when running the callback: ")[2].partition("\n\nAt:")[0]
        raise RuntimeError(own) from None
    finally:
        dist.all_reduce = all_reduce
    return [net.weight.grad, sum(sent), "yes" if any(waits) else "no"]


turn(
    "7.6.a",
    "A hook that sends half the bytes",
    _half,
    _net_and_images,
    ranks=(2, 3),
    device="cpu",
    call=_through,
    look=_returned,
    heads=("mean: 1st", "2nd", "3rd", "bytes sent", "waits"),
    mistakes=[
        (partial(_half, by=lambda: 1), "the sum over the ranks, not their mean", "Divide by `dist.get_world_size()`."),
        (partial(_half, by=lambda: dist.get_world_size() ** 2), "divided twice", "By the number of ranks, once."),
        (partial(_half, by=lambda: 2), "right on two ranks only", "`dist.get_world_size()` counts them."),
        (partial(_half, kind=torch.float32), "all bytes are sent, and nothing is rounded",
         "`bucket.buffer().bfloat16()`."),
        (partial(_half, late=True), "rounded after the journey: all bytes were sent",
         "Round what is given to `all_reduce`."),
        (partial(_half, kind=torch.float16), "that is float16", "`bfloat16`: more room for the size, fewer digits."),
        (partial(_half, times=2), "each bucket is sent twice, and added up twice", "One `all_reduce`."),
        (_sends_nothing, "nothing is sent: each rank keeps its own gradients",
         "`dist.all_reduce`, on the rounded numbers."),
        (_waits, "the hook waits for its message, so nothing hides",
         "`async_op=True`, and what is left to do in `.then(…)` on its `get_future()`."),
    ],
    hints={"future of a tensor": "A message's future holds a list: `.then(lambda done: done.value()[0])`.",
           "wants a future": "`dist.all_reduce(…, async_op=True).get_future()`, and `.then(…)` on that.",
           "INTERNAL ASSERT": "The message has not come yet. Ask for its value in `.then(…)`.",
           "'list' and": "`done.value()` is a list of one tensor: `[0]`.",
           "'list' object": "`done.value()` is a list of one tensor: `[0]`.",
           "not subscriptable": "`then` hands over the finished future: `done.value()[0]`.",
           "get_future": "Only `async_op=True` gives something that has a future."},
    otherwise="Round and divide what leaves; `.then(lambda done: done.value()[0].float())` on the future of its sum.",
)  # fmt: skip


def _column_and_row(matrix: Tensor, row: Tensor, length: Callable = torch.norm,
                    new: Callable = lambda matrix, column: matrix.T @ column) -> tuple[Tensor, Tensor]:  # fmt: skip
    column = matrix @ row
    column = column / length(column)
    return column, new(matrix, column)


def _both(returned: Any, matrix: Tensor, row: Tensor) -> list[Any]:
    """The column and the row, or their shapes where one of them is not a vector."""
    if isinstance(returned, Tensor):
        return [f"one tensor, of shape {tuple(returned.shape)}"]
    column, new = returned
    return [_vector(it, n) for it, n in zip((column, new), matrix.shape, strict=True)]


def _vector(it: Any, n: int) -> Any:
    """The vector, or in its n places the shape of what is none."""
    shape = tuple(getattr(it, "shape", ()))
    return it if len(shape) == 1 else [f"shape {shape}", *(n - 1) * "-"]


def _matrix(*rows: list[float], begin: list[float]) -> tuple[Tensor, Tensor]:
    return torch.tensor(rows), torch.tensor(begin)


turn(
    "7.6.b",
    "A column and a row",
    _column_and_row,
    {
        "one product": lambda: _matrix([3.0, 6.0], [4.0, 8.0], begin=[1.0, 0.0]),
        "two that differ": lambda: _matrix([3.0, 0.0], [0.0, 1.0], begin=[1.0, 0.0]),
        "begun at the other": lambda: _matrix([3.0, 0.0], [0.0, 1.0], begin=[0.0, 2.0]),
        "2 rows of 3": lambda: _matrix([0.0, 3.0, 5.0], [0.0, 4.0, 0.0], begin=[0.0, 1.0, 0.0]),
    },
    look=_both,
    heads=("column", "", "row"),
    mistakes=[
        (partial(_column_and_row, length=lambda column: 1), "the column has not the length 1",
         "`column.norm()` is its length: divide by it, before you make the row."),
        (partial(_column_and_row, length=torch.sum), "the column's numbers add up to 1",
         "Its length is `column.norm()`, the root of the squares added up."),
        (lambda matrix, row: (_column_and_row(matrix, row)[0], row), "the row is the one that you began with",
         "The column is made of the row, and then a new row of the column: `matrix.T @ column`."),
        (lambda matrix, row: (lambda column, new: (column, new / new.norm()))(*_column_and_row(matrix, row)),
         "the row has the length 1 too", "Then the product has lost its size. Only the column is brought to length 1."),
        (lambda matrix, row: _column_and_row(matrix, row)[::-1], "row and column are swapped", "The column first."),
        (lambda matrix, row: (matrix @ row / (matrix @ row).norm(), matrix.T @ (matrix @ row)),
         "the row comes from the long column", "From the column of length 1."),
        (lambda matrix, row: (matrix @ row[:, None], matrix.T @ (matrix @ row[:, None])),
         "they are matrices of one column", "A column and a row are vectors here, of one dimension each, as `row` is."),
        (lambda matrix, row: (matrix @ row[:, None], (matrix @ row[:, None]).T @ matrix),
         "they are a matrix of one column and one of one row",
         "A column and a row are vectors here, of one dimension each, as `row` is."),
        (lambda matrix, row: torch.outer(*_column_and_row(matrix, row)), "that is their product",
         "Return two: the column, and the row."),
        *((partial(_column_and_row, length=by),
           f"the column is divided by {what}", "Its length is `column.norm()`, the root of the squares added up.")
          for by, what in ((len, "how many numbers it has"), (lambda it: it.abs().max(), "its largest number"),
                           (lambda it: it @ it, "the square of its length"))),
        (lambda matrix, row: (matrix @ row / row.norm(), matrix.T @ (matrix @ row / row.norm())),
         "the row is brought to length 1, and not the column", "First `matrix @ row`; that is brought to length 1."),
        (lambda matrix, row: (_column_and_row(matrix, row)[0], matrix @ row), "`matrix @ row` comes back as the row",
         "The new row is `matrix.T @ column`."),
        (lambda matrix, row: _column_and_row(matrix, _column_and_row(matrix, row)[1]), "both steps are done twice",
         "One column of the row, one row of the column."),
        (lambda matrix, row: (matrix * row, matrix.T @ (matrix * row)), "that is no column, but a matrix",
         "`matrix * row` only multiplies; `matrix @ row` adds up as well."),
        (lambda matrix, row: (matrix[:, 0] / matrix[:, 0].norm(), matrix[0]), "a column and a row of the matrix itself",
         "The column is `matrix @ row`."),
    ],
    hints={"size mismatch": "A column is `matrix @ row`, and a row `matrix.T @ column`."},
    otherwise="`matrix @ row`, over its length; then `matrix.T @` that.",
)  # fmt: skip


def _with_memory(gradient: Tensor, lost: Tensor, squeeze: Callable) -> tuple[Tensor, Tensor]:
    sent = squeeze(gradient + lost)
    return sent, gradient + lost - sent


def _numbers(gradient: list[float], lost: list[float], squeeze: Callable = torch.round) -> tuple:
    return torch.tensor(gradient), torch.tensor(lost), squeeze


turn(
    "7.6.c",
    "What was lost comes later",
    _with_memory,
    {
        "nothing lost yet": lambda: _numbers([0.4, 1.3], [0.0, 0.0]),
        "the next step": lambda: _numbers([0.4, 1.3], [0.4, 0.3]),
        "and the next": lambda: _numbers([0.4, 1.3], [-0.2, -0.4]),
        "squeezed to nothing": lambda: _numbers([0.4, 1.3], [2.0, 1.0], torch.zeros_like),
    },
    look=_returned,
    heads=("sent", "", "lost"),
    mistakes=[
        (lambda gradient, lost, squeeze: (squeeze(gradient), gradient - squeeze(gradient)),
         "what was lost is forgotten", "Add it to the gradient before you squeeze."),
        (lambda gradient, lost, squeeze: (squeeze(gradient + lost), gradient - squeeze(gradient + lost)),
         "what was lost counts for what is sent, and not for what stays",
         "What stays is all that you had, less what you sent."),
        (lambda gradient, lost, squeeze: _with_memory(gradient, -lost, squeeze), "what was lost is subtracted",
         "It is still due: add it."),
        (lambda gradient, lost, squeeze: (squeeze(gradient), gradient + lost - squeeze(gradient)),
         "what was lost is never sent", "Squeeze the sum of the two: each alone may be too small to be sent."),
        (lambda gradient, lost, squeeze: (squeeze(gradient) + lost, gradient - squeeze(gradient)),
         "what was lost is sent as it is", "That would be as large as a gradient: squeeze the sum."),
        (lambda gradient, lost, squeeze: (squeeze(gradient + lost), gradient + 2 * lost - squeeze(gradient + lost)),
         "what was lost is counted twice", "What you had, less what you sent."),
        (lambda gradient, lost, squeeze: (squeeze(gradient + lost), lost), "what was lost before comes back as it was",
         "What stays is all that you had, less what you sent."),
        (lambda gradient, lost, squeeze: (squeeze(gradient + lost), lost - squeeze(gradient + lost)),
         "what stays is reckoned without the gradient", "What stays is all that you had, less what you sent."),
        (lambda gradient, lost, squeeze: (squeeze(gradient + lost), gradient + lost),
         "all counts as lost, also what is sent",
         "What stays is all that you had, less what you sent."),
        (lambda gradient, lost, squeeze: (
            squeeze(gradient + lost), squeeze(_with_memory(gradient, lost, squeeze)[1])),
         "what is lost is squeezed, too", "It stays here: keep it as it is."),
        (lambda gradient, lost, squeeze: (gradient + lost, torch.zeros_like(lost)), "nothing is squeezed",
         "Send `squeeze(…)` of the sum."),
        (lambda gradient, lost, squeeze: _with_memory(gradient, lost, squeeze)[::-1], "the two are swapped",
         "First what is sent."),
        (lambda gradient, lost, squeeze: (squeeze(gradient + lost), squeeze(gradient + lost) - gradient - lost),
         "what is lost has the wrong sign", "What you had, less what you sent."),
    ],
    otherwise="All that there is to send is the gradient and what was lost. Squeeze that; what does not go stays.",
)  # fmt: skip
