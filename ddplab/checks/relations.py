"""How what an answer left relates to what is wanted: "twice that, everywhere", "what the next rank is to hold".

It is said of answers that nobody expected. A clause is a fact about the numbers; what follows is for the learner.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Any

Rows = Mapping[str, Sequence[Any]]  # a rank's name, or a case's, and its numbers and words
Given = Mapping[str, Mapping[str, Any]]  # a case's name, and its arguments, by their names

MULTIPLES = (*range(3, 17), 100, 1000, 1024, 1000**2, 1024**2, 1000**3, 1024**3)
OF_ONE = {  # what a number can be, of that which is wanted and of an argument
    "`{}` itself": lambda wanted, it: it,
    "`{}` times what is wanted": lambda wanted, it: it * wanted,
    "what is wanted, divided by `{}`": lambda wanted, it: wanted / it,
    "larger by `{}` than what is wanted": lambda wanted, it: wanted + it,
    "smaller by `{}` than what is wanted": lambda wanted, it: wanted - it,
    "`{0}` times `{0}` times what is wanted": lambda wanted, it: it * it * wanted,
    "1, divided by what is wanted": lambda wanted, it: 1 / wanted,
}
OF_TWO = {
    "`{}` times `{}`": lambda wanted, a, b: a * b,
    "`{}` divided by `{}`": lambda wanted, a, b: a / b,
    "`{1}` divided by `{0}`": lambda wanted, a, b: b / a,
    "`{}` less `{}`": lambda wanted, a, b: a - b,
    "`{}` and `{}`, added up": lambda wanted, a, b: a + b,
    "`{}` times `{}` times what is wanted": lambda wanted, a, b: a * b * wanted,
    "what is wanted, divided by `{}` and by `{}`": lambda wanted, a, b: wanted / a / b,
}


def close(a: Any, b: Any) -> bool:
    """Tell whether two cells are alike: numbers up to rounding in float32, everything else exactly."""
    if isinstance(a, int | float) and isinstance(b, int | float):
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6)
    return a == b


def relation(
    mine: Rows, wanted: Rows, given: Given = MappingProxyType({}), right: Callable[[Given], Rows] = lambda given: {}
) -> str:
    """Return a clause on how the two relate; nothing where they have other rows, or nothing simple is seen.

    given: the arguments by which each row came, by their names, where all of them are numbers, truths and words.
    right: what is right with other arguments.
    """
    if mine.keys() != wanted.keys():
        return ""
    if [*map(len, mine.values())] != [*map(len, wanted.values())]:
        return _shifted(mine, wanted) or _count(mine, wanted)
    pairs = [pair for row in wanted for pair in zip(mine[row], wanted[row], strict=True)]
    held, asked = mine, wanted
    if len({*map(len, wanted.values())}) == 1:  # then columns mean something, and those that are right are left out
        columns = enumerate(zip(zip(*mine.values(), strict=True), zip(*wanted.values(), strict=True), strict=True))
        off = [place for place, (a, b) in columns if not _alike(a, b)]
        held, asked = ({row: [cells[place] for place in off] for row, cells in it.items()} for it in (mine, wanted))
    numbers = all(isinstance(cell, int | float) for row in asked for cell in (*held[row], *asked[row]))
    by_size = _rounded(pairs) or _factor(pairs, len(wanted)) or _distance(pairs) or _by_arguments(mine, wanted, given)
    order = _order(held, asked) if numbers else ""
    among = _rows(held, asked) or (_whose(held, asked) if numbers else _shifted(held, asked))
    return _as_if(mine, wanted, given, right) or by_size or order or among


def _alike(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(close, some, others))


def _off(pairs: Sequence[tuple[Any, Any]]) -> tuple[list[tuple[Any, Any]], str]:
    """Return the pairs that are off, where they are numbers all, and how a sentence on them begins."""
    off = [(a, b) for a, b in pairs if not close(a, b)]
    if not all(_is_number(it) for ab in off for it in ab):
        off = []
    return off, "every number is" if len(off) == len(pairs) else "each wrong number is"


def _rounded(pairs: Sequence[tuple[Any, Any]]) -> str:
    off, which = _off(pairs)
    if len(off) > 1 and all(a == 0 and 0 < b < 1 for a, b in off):
        return f"{which} 0, as of what is rounded down"
    for how, to in (("rounded down", math.floor), ("rounded", round)):
        if off and all(abs(b) > 1 and b != int(b) and a == to(b) for a, b in off):
            return f"{which} {how}"
    return ""


def _factor(pairs: Sequence[tuple[Any, Any]], rows: int) -> str:
    """Say by which simple number all that is off is too large or too small."""
    off, which = _off(pairs)
    if len(off) > 1 and all(a == 0 for a, _ in off):
        return f"{which} 0"
    if not off or not all(b for _, b in off):
        return ""
    factors = [a / b for a, b in off]
    small = 0 < abs(factors[0]) < 1 / 16
    times = Fraction(1, round(1 / factors[0])) if small else Fraction(factors[0]).limit_denominator(16)
    if not all(close(factor, float(times)) for factor in factors):
        return ""
    # One number alone is a multiple of another by chance, too.
    if len(off) == 1 and abs(times) not in (rows, Fraction(1, rows)):
        return ""
    named = {1: "", 2: "twice", Fraction(1, 2): "half of"}
    named |= {n: f"{n:,} times" for n in MULTIPLES} | {Fraction(1, n): f"1/{n:,} of" for n in MULTIPLES}
    if abs(times) not in named:
        return ""
    return " ".join([which, *["minus"] * (times < 0), *[named[abs(times)]] * (abs(times) != 1), "what is wanted"])


def _distance(pairs: Sequence[tuple[Any, Any]]) -> str:
    """Say how much all that is off is too large or too small, where that is one small whole number, several times."""
    off, which = _off(pairs)
    if len({*off}) < 2:
        return ""
    far = off[0][0] - off[0][1]
    if abs(far) > 16 or not close(far, round(far)) or not all(close(a - b, far) for a, b in off):
        return ""
    return f"{which} {abs(round(far))} too {'large' if far > 0 else 'small'}"


def _by_arguments(mine: Rows, wanted: Rows, given: Given) -> str:
    """Say how all that is off comes of one of the arguments, or two; or what is off in the column of the first."""
    columns: dict[int, list[tuple[Any, Any, Mapping[str, Any]]]] = {}
    for row, arguments in given.items():
        for place, (a, b) in enumerate(zip(mine[row], wanted[row], strict=True)):
            if not close(a, b):
                columns.setdefault(place, []).append((a, b, arguments))
    first = next(iter(columns.values()), [])  # that of the first wrong number, which the sentence has named
    for off, where in (([it for column in columns.values() for it in column], ""), (first, ", in that column")):
        if said := _come_of(off):
            return f"each wrong number is {said}{where}"
    return ""


def _come_of(off: Sequence[tuple[Any, Any, Mapping[str, Any]]]) -> str:
    """Say how numbers come of what is wanted and of arguments; nothing where they are all the same number."""
    if len({a for a, *_ in off}) < 2 or not all(_is_number(it) for a, b, _ in off for it in (a, b)):
        return ""
    numbers = [name for name in off[0][2] if all(_is_number(it[name]) for *_, it in off)]
    # Of an argument that is always the same nothing is to be seen.
    vary = [name for name in numbers if len({it[name] for *_, it in off}) > 1]
    ways = [(clause, by, (name,)) for name in vary for clause, by in OF_ONE.items()]
    ways += [(clause, by, pair) for pair in itertools.combinations(numbers, 2) for clause, by in OF_TWO.items()]
    for clause, by, names in ways:
        with contextlib.suppress(ZeroDivisionError):
            if all(close(a, by(b, *(it[name] for name in names))) for a, b, it in off):
                return clause.format(*names)
    return ""


def _as_if(mine: Rows, wanted: Rows, given: Given, right: Callable[[Given], Rows]) -> str:
    """Say with which other arguments it would be right; nothing where there are none, or where one row alone is off.

    Nor of what is 0 everywhere: that comes of too many things.
    """
    if all(cell == 0 for cells in mine.values() for cell in cells):
        return ""
    if not given or sum(not _alike(mine[row], wanted[row]) for row in wanted) < 2:
        return ""

    def comes_of(change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> bool:
        there = right({row: {**arguments, **change(arguments)} for row, arguments in given.items()})
        return all(_alike(mine[row], there.get(row, ())) for row in wanted)

    names = [*next(iter(given.values()))]
    numbers = [name for name in names if all(_is_number(it[name]) for it in given.values())]
    for name in names:
        for value in dict.fromkeys([*[1] * (name in numbers), *(it[name] for it in given.values())]):
            if comes_of(lambda _, name=name, value=value: {name: value}):
                return f"it is what is right for `{name}` = {value!r}, everywhere"
    for a, b in itertools.combinations(numbers, 2):
        if comes_of(lambda it, a=a, b=b: {a: it[b], b: it[a]}):
            return f"it is what is right with `{a}` and `{b}` swapped"
    return ""


def _is_number(it: Any) -> bool:
    return isinstance(it, int | float) and not isinstance(it, bool) and math.isfinite(it)


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
    return _shifted(held, asked)


def _shifted(held: Rows, asked: Rows) -> str:
    """Say of ranks, each of which is to hold something else, that they hold what those further on are to hold."""
    mine, wanted = [*held.values()], [*asked.values()]
    n, ranks = len(wanted), all(row.startswith("rank ") for row in asked)
    if n < 2 or not ranks or any(_alike(a, b) for a, b in itertools.combinations(wanted, 2)):
        return ""
    for further in range(1, n):
        if all(_alike(mine[rank], wanted[(rank + further) % n]) for rank in range(n)):
            whose = "the other rank" if n == 2 else {1: "the next rank", n - 1: "the rank before it"}.get(further)
            return f"each rank holds what {whose or f'the rank {further} further on'} is to hold"
    if n == 2 and min(map(len, wanted)) < 2:  # one number alone is another's by chance, too
        return ""
    if all(map(_alike, mine, wanted[1:])):
        return f"{'rank 0' if n == 2 else 'each rank but the last'} holds what the next rank is to hold"
    if all(map(_alike, mine[1:], wanted)):
        return f"{'rank 1' if n == 2 else 'each rank but rank 0'} holds what the rank before it is to hold"
    return ""


def _count(mine: Rows, wanted: Rows) -> str:
    """Say where something came that how many there are is not as wanted; and of numbers that they add up to the one."""
    several = [row for row in wanted if mine[row] and len(mine[row]) != len(wanted[row])]
    first = next((row for row in wanted if not _alike(mine[row], wanted[row])), None)
    if first not in several or any(not row for row in mine.values()):  # the sentence before it is about the first
        return ""
    here, there = len(mine[several[0]]), len(wanted[several[0]])
    numbers = all(isinstance(it, int | float) for row in wanted for it in (*mine[row], *wanted[row]))
    if there == 1 and numbers and all(_alike([sum(mine[row])], wanted[row]) for row in wanted):
        return f"there are {here}, which add up to it"
    return f"there {'is' if here == 1 else 'are'} {here}, and {there} {'is' if there == 1 else 'are'} wanted"


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
