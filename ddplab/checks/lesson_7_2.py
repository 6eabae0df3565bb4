"""Checks of lesson 7.2, The best rate, by sweep."""

import math
from collections.abc import Callable
from typing import Any

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import needs_function, number


@exercise("7.2.1", "An exponent from a sweep")
def exponent(exponent: Callable[[list, list], Any]) -> None:
    """`exponent(batches, rates)`: the slope of the straight line through the points, both axes logarithmic."""
    needs_function("exponent", exponent)
    exact = [4, 16, 64, 256]
    noisy = [8, 16, 64, 128, 512], [0.11, 0.16, 0.9, 1.1, 3.0]
    cases = [
        ("a rate that grows as the batch", exact, [0.5 * batch for batch in exact]),
        ("a rate that grows as the root of the batch", exact, [0.01 * math.sqrt(batch) for batch in exact]),
        ("a rate that does not grow", exact, [0.3] * len(exact)),
        ("points that lie on no line", *noisy),
    ]
    for what, batches, rates in cases:
        got, wanted = number("exponent", exponent(list(batches), list(rates))), _slope(batches, rates, math.log)
        if abs(got - wanted) < 1e-4:
            continue
        _explain(f"{what}: {got:.4g}, not {wanted:.4g}", got, wanted, batches, rates)


def _slope(batches: list, rates: list, scale: Callable[[float], float] = float) -> float:
    """Least squares: the slope of the line through the points (scale(batch), scale(rate))."""
    x, y = [scale(batch) for batch in batches], [scale(rate) for rate in rates]
    middle = sum(x) / len(x), sum(y) / len(y)
    products = sum((a - middle[0]) * (b - middle[1]) for a, b in zip(x, y, strict=True))
    return products / sum((a - middle[0]) ** 2 for a in x)


def _explain(where: str, got: float, wanted: float, batches: list, rates: list) -> None:
    def near(value: float) -> bool:
        return abs(got - value) < 1e-4 * max(1, abs(value))

    x, y = [math.log(batch) for batch in batches], [math.log(rate) for rate in rates]
    if wanted and near(1 / wanted):
        raise NotYet(f"{where}: upside down", "How often the rate doubles while the batch doubles once.")
    if near(_slope(batches, rates)):
        raise NotYet(f"{where}: there are no logarithms in it", "A power is a straight line once both are logarithms.")
    if near(_slope(batches, y)) or near(_slope(x, rates)):
        raise NotYet(f"{where}: only one of the two is a logarithm", "Both: the rates and the batches.")
    if near((y[-1] - y[0]) / (x[-1] - x[0])):
        raise NotYet(f"{where}: only the first and the last point count", "Fit a line to all of them.")
    if near(sum(a * b for a, b in zip(x, y, strict=True)) / sum(a * a for a in x)):
        hint = "The line may begin anywhere: subtract the means first."
        raise NotYet(f"{where}: that line goes through (1, 1)", hint)
    if near(math.exp(wanted)) or near(2**wanted) or near(10**wanted):
        raise NotYet(f"{where}: that is a factor", "The exponent itself, without raising anything to it.")
    raise NotYet(f"{where}: not the slope of that line", "Of log(rate) against log(batch), by least squares.")


@exercise("7.2.2", "The best rate, or none")
def best_rate(best_rate: Callable[[list, list], Any]) -> None:
    """`best_rate(rates, losses)`: the rate of the lowest loss; None where the lowest is at an edge or all failed."""
    needs_function("best_rate", best_rate)
    rates, nan, inf = [0.1, 0.2, 0.4, 0.8, 1.6], math.nan, math.inf
    _one(best_rate, rates, [0.9, 0.5, 0.3, 0.6, 2.3], 0.4)
    _one(best_rate, rates, [0.9, 0.5, 0.3, 0.6, nan], 0.4)
    _one(best_rate, rates, [0.9, 0.5, 0.3, nan, inf], 0.4)
    _one(best_rate, rates, [nan, 0.5, 0.3, 0.6, 0.9], 0.4)  # min() of a list that begins with nan is nan
    _one(best_rate, rates, [0.9, 0.5, 0.3, 0.2, 0.1], None)
    _one(best_rate, rates, [0.1, 0.5, 0.6, 0.8, nan], None)
    _one(best_rate, rates, [nan, nan, nan, inf, nan], None)


def _one(best_rate: Callable[[list, list], Any], rates: list, losses: list, wanted: float | None) -> None:
    got = best_rate(list(rates), list(losses))
    where = f"for the losses {[float(loss) for loss in losses]} you gave {got!r}"
    if wanted is None:
        if got is None:
            return
        if not any(math.isfinite(loss) for loss in losses):
            raise NotYet(f"{where}: all of these runs failed", "There is no best among them: None.")
        edge = "right" if losses[-1] == 0.1 else "left"
        raise NotYet(f"{where}: the lowest is at the {edge} edge", "The true best may lie beyond: None.")
    if got is None:
        if any(math.isnan(loss) for loss in losses):
            hint = "Leave it out, or take it as infinite."
            raise NotYet(f"{where}, not {wanted}: one failed run hides the others", hint)
        raise NotYet(f"{where}, not {wanted}", "This one has a neighbour on either side. Is there a `return`?")
    value = number("best_rate", got)
    if abs(value - wanted) < 1e-9:
        return
    finite = [loss for loss in losses if math.isfinite(loss)]
    if value == min(finite):
        raise NotYet(f"{where}: that is the loss", "The rate that belongs to it.")
    if value == losses.index(min(finite)):
        raise NotYet(f"{where}: that is its place in the list", "The rate at this place.")
    if any(math.isnan(loss) for loss in losses):
        raise NotYet(f"{where}, not {wanted}: a nan is lower than nothing", "Leave out losses that are not finite.")
    if value == rates[losses.index(max(finite))]:
        raise NotYet(f"{where}: that one has the highest loss", "The lowest is wanted.")
    raise NotYet(f"{where}, not {wanted}", "The rate at the place of the lowest loss.")
