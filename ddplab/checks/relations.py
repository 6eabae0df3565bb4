"""How what an answer left relates to what is wanted: "twice that, everywhere", "what the next rank is to hold".

It is said of answers that nobody expected. A clause is a fact about the numbers; what follows is for the learner.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

Rows = Mapping[str, Sequence[Any]]  # a rank's name, or a case's, and its numbers and words


def close(a: Any, b: Any) -> bool:
    """Tell whether two cells are alike: numbers up to rounding in float32, everything else exactly."""
    if isinstance(a, int | float) and isinstance(b, int | float):
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6)
    return a == b


def relation(mine: Rows, wanted: Rows) -> str:
    """Return a clause on how the two relate; nothing where they are not of one shape, or nothing simple is seen."""
    if [*map(len, mine.values())] != [*map(len, wanted.values())] or mine.keys() != wanted.keys():
        return ""
    pairs = [pair for row in wanted for pair in zip(mine[row], wanted[row], strict=True)]
    held, asked = mine, wanted
    if len({*map(len, wanted.values())}) == 1:  # then columns mean something, and those that are right are left out
        columns = enumerate(zip(zip(*mine.values(), strict=True), zip(*wanted.values(), strict=True), strict=True))
        off = [place for place, (a, b) in columns if not _alike(a, b)]
        held, asked = ({row: [cells[place] for place in off] for row, cells in it.items()} for it in (mine, wanted))
    numbers = all(isinstance(cell, int | float) for row in asked for cell in (*held[row], *asked[row]))
    among = (_whose(held, asked) or _order(held, asked)) if numbers else ""  # words tell of a relation themselves
    return _factor(pairs, len(wanted)) or _rows(held, asked) or among


def _alike(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(close, some, others))


def _factor(pairs: Sequence[tuple[Any, Any]], rows: int) -> str:
    """Say by which simple number all that is off is too large or too small."""
    off = [(a, b) for a, b in pairs if not close(a, b)]
    if any(isinstance(it, bool) or not isinstance(it, int | float) or not math.isfinite(it) for ab in off for it in ab):
        return ""
    which = "every number is" if len(off) == len(pairs) else "each wrong number is"
    if len(off) > 1 and all(a == 0 for a, _ in off):
        return f"{which} 0"
    if not all(b for _, b in off):
        return ""
    factors = [a / b for a, b in off]
    times = Fraction(factors[0]).limit_denominator(16)
    if not all(close(factor, float(times)) for factor in factors):
        return ""
    # One number alone is a multiple of another by chance, too.
    if len(off) == 1 and abs(times) not in (rows, Fraction(1, rows)):
        return ""
    named = {1: "", 2: "twice", Fraction(1, 2): "half of"}
    named |= {n: f"{n} times" for n in range(3, 17)} | {Fraction(1, n): f"1/{n} of" for n in range(3, 17)}
    if abs(times) not in named:
        return ""
    return " ".join([which, *["minus"] * (times < 0), *[named[abs(times)]] * (abs(times) != 1), "what is wanted"])


def _whose(held: Rows, asked: Rows) -> str:
    """Say of ranks that they hold what others are to hold, or the same where they are to differ, or the other way."""
    mine, wanted = [*held.values()], [*asked.values()]
    n = len(wanted)
    if n < 2 or not all(row.startswith("rank ") for row in asked):
        return ""
    same, wanted_same = (all(_alike(it, rows[0]) for it in rows) for rows in (mine, wanted))
    if wanted_same:
        return "" if same else "the ranks differ, and all are to hold the same"
    if same and not any(_alike(a, b) for a, b in itertools.combinations(wanted, 2)):
        return "all ranks hold the same, and they are to differ"
    for further in range(1, n):
        if all(_alike(mine[rank], wanted[(rank + further) % n]) for rank in range(n)):
            whose = "the other rank" if n == 2 else {1: "the next rank", n - 1: "the rank before it"}.get(further)
            return f"each rank holds what {whose or f'the rank {further} further on'} is to hold"
    return ""


def _order(held: Rows, asked: Rows) -> str:
    right = all(_alike(sorted(held[row]), sorted(asked[row])) for row in asked)
    return "they are the right ones, in another order" if right else ""


def _rows(held: Rows, asked: Rows) -> str:
    """Say which rows are right, or which are not, where some are: the fewer of the two."""
    right = {row: _alike(held[row], asked[row]) for row in asked}
    kind = sum(right.values()) <= len(right) / 2  # of two rows one is right: that one is named
    named = [row for row in right if right[row] == kind]
    if not named:
        return ""
    named = [row if row.startswith("rank ") or row.isalnum() else f"“{row}”" for row in named]
    listed = " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
    return f"only {listed} {'is' if len(named) == 1 else 'are'} {'right' if kind else 'wrong'}"
