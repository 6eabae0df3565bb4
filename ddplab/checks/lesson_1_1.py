"""Checks of lesson 1.1, Start here."""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import needs_function, on_ranks
from ddplab.checks.relations import close
from ddplab.checks.turns import turn, waiting
from ddplab.folder import Folder
from ddplab.hardware import device
from ddplab.launcher import launch
from ddplab.run import Run
from ddplab.worker import log


@exercise("1.1.1", "Every rank says who it is")
def who_am_i(greet: Callable[[], str]) -> None:
    """`greet()` returns "rank R of W", read from torch.distributed. Run here on three ranks, then on two."""
    needs_function("greet", greet)
    said = on_ranks(greet, size=3)
    wanted = [f"rank {rank} of 3" for rank in range(3)]
    if said == wanted:
        if (on_two := on_ranks(greet, size=2)) != ["rank 0 of 2", "rank 1 of 2"]:
            hint = "Ask torch.distributed for both numbers: `dist.get_rank()`, `dist.get_world_size()`."
            raise NotYet(f"right on three ranks; but on two, rank 0 said {on_two[0]!r}", hint)
        return
    if all(line is None for line in said):
        hint = "What a rank prints is output, what it returns is a result: use `return`."
        raise NotYet("`greet` returns nothing, so every rank sends back None", hint)
    if not all(isinstance(line, str) for line in said):
        raise NotYet(f"rank 0 returned {said[0]!r}, not a text", 'An f-string: f"rank {rank} of {world_size}".')
    if said == [f"rank {rank} of 3" for rank in (1, 2, 3)]:
        raise NotYet("the ranks are counted from 1", "`dist.get_rank()` counts from 0; return it as it is.")
    if len(set(said)) == 1:
        raise NotYet(f"all three ranks said {said[0]!r}", "Ask torch.distributed for the rank: `dist.get_rank()`.")
    if all(line.startswith(f"rank {rank} of ") for rank, line in enumerate(said)):
        hint = "Ask torch.distributed for it: `dist.get_world_size()`."
        raise NotYet(f"on three ranks, rank 0 said {said[0]!r}: that is not the world size", hint)
    raise NotYet(f"rank 0 said {said[0]!r}, not {wanted[0]!r}", "Compare the two texts letter by letter.")


@exercise("1.1.2", "A row a step")
def countdown(count: Callable[[int], None]) -> None:
    """`count(n)` logs a column `left`: n, n - 1, … 1, a row each. Run here on two ranks with n = 4, then with n = 2."""
    needs_function("count", count)
    run = _counted(count, 4)
    columns = run.metrics.columns()
    if not columns:
        raise NotYet(
            "the ranks printed, but logged nothing" if any(run.output.values()) else "no rank logged anything",
            "A row of metrics is made by `log(left=…)`, inside the loop.",
        )
    if "left" not in columns:
        hint = "The keyword is the column's name."
        raise NotYet(f"there is no column 'left', only {', '.join(map(repr, columns))}", hint)
    if {row["rank"] for row in run.metrics} != {0, 1}:
        raise NotYet("only one of the two ranks logged", "Leave the rank out of it: every rank logs its own rows.")
    left = run.metrics.column("left", rank=0)
    if left == [4, 3, 2, 1]:
        from_two = _counted(count, 2).metrics
        if [row.get("left") for row in from_two if row["rank"] == 0] != [2, 1]:
            shown = [row.get("left") for row in from_two if row["rank"] == 0]
            hint = "Count from `n`, whatever it is."
            raise NotYet(f"count(4) is right, but count(2) logged {shown}, not [2, 1]", hint)
        return
    hints = {
        (1, 2, 3, 4): "It should count down: `range(n, 0, -1)`.",
        (4, 3, 2, 1, 0): "The last row is 1, not 0: `range(n, 0, -1)` leaves 0 out.",
        (3, 2, 1, 0): "The first row is n itself: `range(n, 0, -1)`.",
        (0, 1, 2, 3): "It should count down from n to 1: `range(n, 0, -1)`.",
    }
    once = "One row was logged: is `log` outside the loop?" if len(left) == 1 else "Try it: launch(count, 4).metrics"
    raise NotYet(f"count(4) logged {left}, not [4, 3, 2, 1]", hints.get(tuple(left), once))


def _counted(count: Callable[[int], None], n: int) -> Run:
    """The run of `count(n)` on two ranks. Raises NotYet for one that logs and logs."""
    run = launch(count, n, nproc_per_node=2, quiet=True, timeout=15, wait=False)
    try:
        while run.state == "running":
            time.sleep(0.1)
            if len(run.metrics) > 1000:
                hint = "Does the number become smaller each time? `range(n, 0, -1)`"
                raise NotYet(f"count({n}) has logged more than 1,000 rows, and goes on", hint)
    finally:
        run.stop()  # of a run that has ended nothing is left to stop
    return run.wait()


@exercise("1.1.3", "One curve for all")
def one_curve(darts_of_all: Callable[[int], None]) -> None:
    """`darts_of_all(handfuls)` logs, after each handful, π from the darts of all ranks so far. On 2 ranks and on 3."""
    needs_function("darts_of_all", darts_of_all)
    for size in (2, 3):
        run = launch(darts_of_all, 4, nproc_per_node=size, quiet=True, timeout=15)
        where, rows = f"on {size} ranks", _column(run, "pi")
        if short := [rank for rank in range(size) if len(rows[rank]) != 4]:
            hint = "Each rank logs a row after each handful, inside the loop."
            raise NotYet(f"{where}, rank {short[0]} logged {len(rows[short[0]])} rows for 4 handfuls", hint)
        own = [_estimates(rank) for rank in range(size)]
        of_all = [sum(it) / size for it in zip(*own, strict=True)]
        sum_of_all = [size * it for it in of_all]
        if all(_alike(it, of_all) for it in rows):
            continue
        if all(_alike(it, mine) for it, mine in zip(rows, own, strict=True)):
            raise NotYet(f"{where}, each rank logs its own π", "Pool the hits first: `dist.all_reduce`.")
        if all(_alike(it, sum_of_all) for it in rows):
            hint = f"How many darts have {size} ranks thrown after n handfuls?"
            raise NotYet(f"{where}, the last π is {rows[0][-1]:.2f}: the hits of all, the darts of one", hint)
        if all(_alike(it[:1], of_all[:1]) for it in rows):
            hint = "`all_reduce` works in place. Is the rank's own count of hits still its own afterwards?"
            raise NotYet(f"{where}, the first row is right, and the later ones have counted darts twice", hint)
        if _alike(rows[0], of_all):
            raise NotYet(f"{where}, only rank 0 logs everybody's π", "Every rank has the sum, so every rank can log.")
        hint = "4 times the hits of all, over the darts of all."
        raise NotYet(f"{where}, rank 0 logged {rows[0][0]:.4g} first, not {of_all[0]:.4g}", hint)


def _column(run: Run, name: str) -> list[list[Any]]:
    """Each rank's column of that name; an empty one for a rank that logged none."""
    return [[row[name] for row in run.metrics if row["rank"] == rank and name in row] for rank in range(run.world_size)]


def _alike(mine: Sequence[Any], wanted: Sequence[float]) -> bool:
    """Tell whether two rows of numbers are the same, up to rounding."""
    return len(mine) == len(wanted) and all(map(close, mine, wanted))


def _estimates(rank: int) -> list[float]:
    """What a rank takes π for after each of four handfuls of its own."""
    hand = torch.Generator().manual_seed(rank)
    hits = [int((torch.rand(100, 2, generator=hand).norm(dim=1) < 1).sum()) for _ in range(4)]
    return [4 * total / (100 * n) for n, total in enumerate(accumulate(hits), 1)]


# ------------------------------------------------------------------ your turn


def _fragile(
    broken: int,
    fails: Callable[[int, int], bool] = lambda rank, broken: rank == broken,
    returns: Callable[[int], Any] = lambda rank: 10 * rank,
    waits: Callable[[int], float] = lambda rank: rank,
) -> Any:
    rank = dist.get_rank()
    time.sleep(waits(rank))
    if fails(rank, broken):
        raise ValueError("ouch")
    return returns(rank)


def _rank_after_its_nap() -> int:
    time.sleep(dist.get_rank())
    return dist.get_rank()


SLIPS = (NameError, AttributeError, TypeError, ImportError)


def _became(fragile: Callable[[int], Any], broken: int) -> Any:
    """Return what a rank brings back, or that it fails: in a moment, and without an end to the process that is asked.

    A slip on a rank that is not to fail is raised: it was not meant.
    """
    naps: list[float] = []
    dies = {"side_effect": SystemExit}
    with (
        patch.object(time, "sleep", naps.append),
        patch.object(os, "_exit", **dies),
        patch.object(os, "abort", **dies),
        patch.object(os, "kill", **dies),
        patch.object(signal, "raise_signal", **dies),
    ):
        try:
            brings = fragile(broken)
        except BaseException as error:
            if dist.get_rank() != broken and isinstance(error, SLIPS):
                raise
            brings = "fails"
    early = "fails too early" if brings == "fails" else "does not wait"
    return brings if sum(naps) == dist.get_rank() else early


turn(
    "1.1.a",
    "One of the ranks fails",
    _fragile,
    lambda rank, size: ({4: 2, 3: 0}[size],),
    ranks=(4, 3),
    call=_became,
    look=lambda brings, broken: [] if brings is None else brings,
    heads=("comes back",),
    mistakes=[
        (partial(_fragile, fails=lambda rank, broken: True), "every rank fails", "`if rank == broken:` comes first."),
        (partial(_fragile, fails=lambda rank, broken: False), "no rank fails",
         "Printing is no failure, and neither is an error that is caught. `raise` one, or divide by zero."),
        (partial(_fragile, returns=lambda rank: None), "the number does not come back, and no rank fails",
         "Leave the last line as it is, and `raise` above it."),
        (partial(_fragile, fails=lambda rank, broken: rank != broken), "all the others fail", "`==` for `!=`."),
        (partial(_fragile, fails=lambda rank, broken: rank == broken - 1), "the rank before it fails",
         "Ranks are counted from 0, and so is `broken`."),
        (partial(_fragile, fails=lambda rank, broken: rank == broken + 1), "the rank after it fails",
         "`broken` has its number, as `rank` has this one's: both are counted from 0."),
        (partial(_fragile, fails=lambda rank, broken: rank == 2), "it is always rank 2 that fails",
         "Another time it is to be another: `broken` has the number."),
        (partial(_fragile, fails=lambda rank, broken: rank >= broken), "the ranks after it fail as well", "`==`"),
        (partial(_fragile, fails=lambda rank, broken: rank <= broken), "the ranks before it fail as well", "`==`"),
        (partial(_fragile, fails=lambda rank, broken: rank > 0), "all but rank 0 fail",
         "`if rank` is true of every rank but 0: `if rank == broken`."),
        (partial(_fragile, fails=lambda rank, broken: rank == 0), "rank 0 fails",
         "`broken` has the number of the one that is to fail."),
        (lambda broken: 1 / 0, "every rank fails", "`if rank == broken:` comes first, below `time.sleep(rank)`."),
        (lambda broken: 1 / 0 if dist.get_rank() == broken else 10 * _rank_after_its_nap(),
         "it fails before its second has come", "Your line belongs below `time.sleep(rank)`."),
        (partial(_fragile, waits=lambda rank: 0), "the ranks do not wait", "Leave `time.sleep(rank)` as it is."),
        *[
            (lambda broken, instead=instead: instead if _rank_after_its_nap() == broken else 10 * dist.get_rank(),
             "the rank returns, and does not fail", "An error that is *returned* is a value: `raise` it.")
            for instead in (None, ValueError("ouch"))
        ],
    ],
    otherwise="Where `rank` is `broken`, `raise` an error; everything else stays.",
)  # fmt: skip


def _darts(handfuls: int, row: Callable[..., Any] = lambda hits, own, n: {"pi": 4 * hits / (100 * n)}) -> int:
    """Throw as in the lesson; log what `row` makes of the hits so far, of this handful's, and of its number."""
    hand, hits = torch.Generator().manual_seed(dist.get_rank()), 0
    for n in range(1, handfuls + 1):
        own = int((torch.rand(100, 2, generator=hand).norm(dim=1) < 1).sum())
        hits += own
        if columns := row(hits, own, n):
            log(**columns)
    return hits


def _logged(*_: Any) -> list[Any]:
    """What this rank has logged so far: the column `pi` of each row, to two decimals, for whoever has rounded it."""
    path = Path(Folder.of_this_rank().of(dist.get_rank(), "metrics"))
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    pis = [row.get("pi", "no pi") for row in rows]
    return [round(pi, 2) if isinstance(pi, int | float) else pi if pi == "no pi" else "no number" for pi in pis]


turn(
    "1.1.b",
    "A row after each handful",
    _darts,
    lambda rank, size: (3,),
    ranks=(2,),
    look=_logged,
    heads=("π, row 1", "row 2", "row 3"),
    mistakes=[
        (partial(_darts, row=lambda *_: {}), "nothing is logged", "A row is made by `log(pi=…)`, inside the loop."),
        (partial(_darts, row=lambda hits, own, n: {"pi": 4 * own / 100}), "each row is of one handful alone",
         "`hits` has counted all of them; how many darts is that?"),
        (partial(_darts, row=lambda hits, own, n: {"pi": hits}), "those are hits, and π is wanted",
         "4 times the share of the darts that hit."),
        (partial(_darts, row=lambda hits, own, n: {"pi": 4 * hits / n}), "that is a hundred times as much",
         "A handful has 100 darts."),
        (partial(_darts, row=lambda hits, own, n: {"pi": 4 * hits / 100}), "it is always divided by one handful",
         "After n handfuls, how many darts are thrown?"),
        (partial(_darts, row=lambda hits, own, n: {"pi": hits / (100 * n)}), "that is the share that hit",
         "The quarter circle is a quarter of π."),
        (partial(_darts, row=lambda hits, own, n: n == 3 and {"pi": 4 * hits / 300}), "there is one row, the last",
         "Is `log` inside the loop?"),
        (partial(_darts, row=lambda hits, own, n: {"pi": 4 * hits / 300}),
         "each row divides by all the darts that there will be", "`thrown` counts those so far."),
        (partial(_darts, row=lambda hits, own, n: {"pi": 4 * hits / 3000}),
         "each row divides by the darts of thirty handfuls", "`thrown` counts those so far."),
        (partial(_darts, row=lambda hits, own, n: {"pi": 4 * own / (100 * n)}),
         "the hits are of one handful, the darts of all", "`hits` has counted all of them."),
        (partial(_darts, row=lambda hits, own, n: {"pi": 4 * hits}), "nothing is divided by the darts",
         "4 times the *share* of the darts that hit."),
        (partial(_darts, row=lambda hits, own, n: {"pi": 4 * 100 * n / hits}), "upside down",
         "The share that hit: hits over darts."),
        (partial(_darts, row=lambda hits, own, n: {"pi": f"{hits / n / 25:.2f}"}), "the rows hold no number",
         "What is logged is drawn as a curve: log the number, and no text."),
        (partial(_darts, row=lambda hits, own, n: {"pi": 4 * hits / (100 * n) / dist.get_world_size()}),
         "it is divided by the number of ranks", "Each rank logs what its own darts tell it."),
        (partial(_darts, row=lambda hits, own, n: n == 1 and {"pi": 4 * hits / 100}), "there is one row, the first",
         "A `return` inside the loop ends it at once."),
        (partial(_darts, row=lambda hits, own, n: [log(pi=4 * hits / (100 * n)) for _ in "ab"][:0]),
         "each row is logged twice", "One `log` for each handful."),
        (partial(_darts, row=lambda hits, own, n: {"PI": 4 * hits / (100 * n)}), "there is no column `pi`",
         "The keyword is the name: `log(pi=…)`."),
        (partial(_darts, row=lambda hits, own, n: not dist.get_rank() and {"pi": 4 * hits / (100 * n)}),
         "only rank 0 logs", "Leave the rank out of it: every rank logs its own rows."),
    ],
    hints={"positional argument": "A column has a name: `log(pi=…)`.",
           "fills in": "Whose row it is, `log` knows: `log(pi=…)` is all."},
    otherwise="4 times the hits so far, over the darts so far.",
)  # fmt: skip


def _reduced(hits: int) -> float:
    pool = torch.tensor(hits, device=device())
    dist.reduce(pool, 0)
    return hits if dist.get_rank() else pool.item()


def _pooled(hits: int, op: Any = dist.ReduceOp.SUM, factor: Callable[[], float] = lambda: 1) -> float:
    pool = torch.tensor(hits, device=device())
    dist.all_reduce(pool, op=op)
    return pool.item() * factor()


def _tensor(hits: int) -> torch.Tensor:
    pool = torch.tensor(hits, device=device())
    dist.all_reduce(pool)
    return pool


def _last_as_often(hits: int) -> int:
    last = dist.get_world_size() - 1
    return _pooled(hits if dist.get_rank() == last else 0) * (last + 1)


BY_ALL = "`all_reduce` is called by every rank, or it does not end."

turn(
    "1.1.c",
    "Everybody's hits",
    _pooled,
    lambda rank, size: ([7, 80, 900][rank],),
    ranks=(2, 3),
    look=lambda pooled, hits: [hits, [] if pooled is None else "a tensor" if torch.is_tensor(pooled) else pooled],
    heads=("brings", "returns"),
    mistakes=[
        (_tensor, "the sum comes back inside a tensor", "`.item()` takes the number out of it."),
        (lambda hits: hits, "each rank still has its own hits", "Return what the tensor holds after `all_reduce`."),
        (lambda hits: hits * dist.get_world_size(), "each has only its own hits, multiplied",
         "The others hit something else: `dist.all_reduce`."),
        (lambda hits: dist.all_reduce(torch.tensor(hits, device=device())), "nothing comes back",
         "`all_reduce` works in place and returns None. Return the number in the tensor."),
        (partial(_pooled, op=dist.ReduceOp.MAX), "that is the largest", "Leave `op` out: it adds by default."),
        (partial(_pooled, factor=lambda: 1 / dist.get_world_size()), "that is a mean", "Leave the division out."),
        (partial(_pooled, op=dist.ReduceOp.PRODUCT), "that is a product", "Leave `op` out: it adds by default."),
        (partial(_pooled, factor=dist.get_world_size), "that is the sum, as often as there are ranks",
         "One `all_reduce` is enough: a second one adds up the sums."),
        (_last_as_often, "that is the last rank's hits, as often as there are ranks",
         "`[t] * n` is one tensor, n times. `all_reduce` needs no list."),
        (lambda hits: _pooled(1), "that counts the ranks", "Put this rank's hits into the tensor."),
        (_reduced, "only rank 0 has the sum",
         "`reduce` leaves it on one rank, `all_reduce` on each. (With `async_op` it is there after `wait()`.)"),
        (lambda hits: [_pooled(hits)] * (dist.get_rank() == 0), "only rank 0 returns something",
         "Every rank has the sum, and every rank returns it."),
        (lambda hits: _pooled(hits if dist.get_rank() == 0 else 0), "all have the hits of rank 0",
         "`broadcast` sends one rank's to all; `all_reduce` adds up."),
        (lambda hits: hits + _pooled(hits), "each counts its own hits twice", "The sum has them already."),
        (waiting(lambda hits: hits if dist.get_rank() else _pooled(hits)), "rank 0 waits for ever", BY_ALL),
        (waiting(lambda hits: None if dist.get_rank() else _pooled(hits)), "rank 0 waits for ever", BY_ALL),
    ],
    hints={"can't be cast": "Leave `op` out: a sum is wanted, and no average.",
           "torch.Tensor": "`all_reduce` takes a tensor: `torch.tensor(hits, device=device())`.",
           "SIGABRT": "One number on every rank: `torch.tensor(7)` is; `torch.Tensor(7)`, with a capital, is seven."},
    otherwise="A tensor with the rank's hits, `dist.all_reduce(…)`, and its `.item()`.",
)  # fmt: skip
