"""Checks of lesson 1.1, Start here."""

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

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


def _hand(cards: list[str], first: int = 0, step: int = 0) -> list[str]:
    return cards[dist.get_rank() + first :: step or dist.get_world_size()]


def _block(cards: list[str]) -> list[str]:
    each = len(cards) // dist.get_world_size()
    return cards[dist.get_rank() * each :][:each]


turn(
    "1.1.a",
    "A hand of cards",
    _hand,
    lambda rank, size: (["♠A", "♥K", "♦Q", "♣J", "♠10", "♥9"],),
    ranks=(2, 3),
    look=lambda hand, _: [] if hand is None else "a dictionary" if isinstance(hand, dict) else hand,
    heads=("cards",),
    mistakes=[
        (lambda cards: cards, "every rank has all the cards", "`dist.get_rank()` says whose hand it is."),
        (lambda cards: cards[dist.get_rank()], "each rank has one card only", "And the next round? `[start::step]`."),
        (lambda cards: cards[dist.get_world_size() * dist.get_rank() :][: dist.get_world_size()],
         "each rank has neighbours, and what is left is dealt to nobody",
         "The card in place i goes to rank i % W, with W ranks."),
        (lambda cards: " ".join(_hand(cards)), "the cards have become one text", "A list of them."),
        (lambda cards: _hand([*range(len(cards))]), "those are places in the list, and not cards",
         "The cards that lie there."),
        (_block, "the cards are cut into piles, not dealt round", "Rank 0's second card comes after a card for all."),
        (partial(_hand, first=1), "the dealing begins with the wrong card", "Ranks count from 0, and so do lists."),
        (partial(_hand, step=2), "that deals to two ranks, however many there are", "`dist.get_world_size()`"),
        (lambda cards: cards[:: dist.get_world_size()], "every rank has rank 0's hand", "Where does a hand begin?"),
        (lambda cards: [sign for card in _hand(cards) for sign in card], "the cards have come apart into their signs",
         "`append` adds a card to a list; `+=` adds all that is in it."),
        (lambda cards: _hand(cards[::-1]), "it is dealt from the last card on", "The first card goes to rank 0."),
        (lambda cards: {dist.get_rank(): _hand(cards)}, "a dictionary comes back", "The cards alone, in a list."),
        (lambda cards: cards[dist.get_rank() : dist.get_world_size()],
         "each hand goes from the rank's own place to that of the number of ranks",
         "`start::step` has two colons: where the hand begins, and how far it is to its next card."),
        (lambda cards: [card for n, card in enumerate(cards) if n % dist.get_world_size() == dist.get_rank() + 1],
         "rank 0 has the hand of rank 1, and the last has none", "Ranks count from 0, and so does what `%` leaves."),
        (lambda cards: cards[dist.get_rank() :: dist.get_world_size() - 1],
         "a hand has every card from the rank's own place on",
         "`start::step`: from one round to the next it is as many cards as there are ranks."),
        (lambda cards: None, "nothing comes back", "What a rank prints is output. `return` what it has."),
    ],
    hints={"step cannot be zero": "`start::step`: first the rank, then how many ranks there are.",
           "is not defined": "A rank asks: `dist.get_rank()`, and `dist.get_world_size()` for how many there are."},
    otherwise="Rank r gets the card in place r, then every W-th one after it, with W ranks.",
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
