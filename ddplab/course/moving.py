"""Sliders for a cell's own numbers: whoever moves one sees at once what the cell's function makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddplab import screen
from ddplab.course.controls import widget
from ddplab.pointer import pointing


@pointing
def move(
    draw: Callable[..., Any],
    at: Mapping[str, Any] | None = None,
    press: str = "",
    drag: bool = True,
    **ranges: Sequence[Any],
) -> None:
    """Show what `draw` returns, and in a live notebook a slider for each of its arguments.

    draw: is called with one value of each range, by name, and returns words, or words and a matplotlib figure. It runs
        in the notebook's kernel, each time anew. at: name → where to begin, the first value if not told.
    press: the words of a button, for a game where a choice has its price: nothing is asked before it is pressed.
    drag: False where a picture keeps what was chosen: a slider asks where it is let go, not on the way.
    ranges: name → the values that an argument may have; numbers get a slider, words a list to choose from.

    Elsewhere it is words and picture of where it begins. Raises ValueError for a beginning that is in no range.
    """
    values = {name: list(offered) for name, offered in ranges.items()}
    at = {name: offered[0] for name, offered in values.items()} | dict(at or {})
    for name, value in at.items():
        if value not in values.get(name, ()):
            raise ValueError(f"{name} begins at {value!r}, which is none of {values.get(name, [])}")
    words, figure = _drawn(draw, at)

    def sliders() -> Any:
        places = [values[name].index(at[name]) for name in values]
        return _widget(draw, values, places, _page(words, figure), press, drag)

    screen.show(words, sliders, figure and (lambda: figure))


def noted(lines: dict[str, float], name: str, loss: float, last: int = 7) -> str:
    """Note what a trial came to, and return the lines noted so far, a bar for each: the first one and the newest.

    lines: name → loss, kept between the moves; a trial that is made again moves to the end. A bar is twenty ■ for a
    loss of 1, and 3 is as far as it goes. last: how many of the newest are shown.
    """
    first = next(iter(lines), name)
    if name != first:
        lines.pop(name, None)
    lines[name] = loss
    shown = [first, *[other for other in lines if other != first][-last:]]
    width = max(map(len, shown))
    bars = {it: f"{it:{width}}  loss {lines[it]:.2f}  {'■' * round(20 * min(3, lines[it]))}" for it in shown}
    return "\n".join(bar + ("  now" if it == name else "") for it, bar in bars.items())


def _drawn(draw: Callable[..., Any], at: Mapping[str, Any]) -> tuple[str, Any]:
    drawn = draw(**at)
    return (drawn, None) if isinstance(drawn, str) else drawn


def _page(words: str, figure: Any) -> dict[str, Any]:
    return {"words": words, "png": screen.png(figure) if figure else None}


def _widget(
    draw: Callable[..., Any],
    values: dict[str, list],
    places: list[int],
    first: dict[str, Any],
    press: str = "",
    drag: bool = True,
) -> Any:
    """Tab reaches the sliders, the arrow keys move them: moving.js. It asks again when an answer has come."""
    offered = [
        [name.replace("_", " "), isinstance(them[0], str), list(map(_text, them))] for name, them in values.items()
    ]
    page = widget("moving", offered=offered, asked=[0, *places], shown=first, press=press, drag=drag)

    def answer(change: Any) -> None:
        _, *places = change["new"]
        try:
            chosen = {name: values[name][place] for name, place in zip(values, places, strict=True)}
            page.shown = _page(*_drawn(draw, chosen)) | {"asked": change["new"][0]}
        except (Exception, KeyboardInterrupt) as error:  # a message from the page has no cell to raise in
            page.shown = {"words": f"{type(error).__name__}: {error}", "png": None, "asked": change["new"][0]}

    page.observe(answer, "asked")
    return page


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
