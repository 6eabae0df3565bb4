"""The controls that lessons share: small files of JavaScript, whose names, keys and focus are the browser's own.

ipywidgets' own sliders have no name for a screen reader, and JupyterLab takes the arrow keys from its lists.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def radio_buttons(question: str, options: Sequence[str], choice: str | None, choose: Callable[[str], None]) -> Any:
    """A group of radio buttons, as a widget with a trait `choice`; `choose` is called with what is chosen.

    question: HTML.
    """
    import anywidget
    import traitlets

    class RadioButtons(anywidget.AnyWidget):
        _esm = HERE / "radio_buttons.js"
        question = traitlets.Unicode().tag(sync=True)
        options = traitlets.List().tag(sync=True)
        choice = traitlets.Unicode(allow_none=True).tag(sync=True)

    widget = RadioButtons(question=question, options=list(options), choice=choice)
    widget.observe(lambda change: choose(change["new"]), "choice")
    return widget


def choices(
    options: dict[str, Sequence[Any]], chosen: dict[str, Any], choose: Callable[[dict[str, Any]], None] = lambda _: None
) -> Any:
    """Lists to choose from, each with its name, as a widget; `choose` is called with all values when one has changed.

    options: name → what it offers. chosen: name → the value to begin with, one of them. The widget's `values` are those
    chosen now.
    """
    import anywidget
    import traitlets

    class Choices(anywidget.AnyWidget):
        _esm = HERE / "choices.js"
        options = traitlets.Dict().tag(sync=True)  # name → texts
        chosen = traitlets.Dict().tag(sync=True)  # name → place in that list

        @property
        def values(self) -> dict[str, Any]:
            return {name: options[name][place] for name, place in self.chosen.items()}

        @values.setter
        def values(self, values: dict[str, Any]) -> None:
            self.chosen = {name: list(options[name]).index(value) for name, value in values.items()}

    widget = Choices(options={name: [_text(it) for it in offered] for name, offered in options.items()})
    widget.values = chosen
    widget.observe(lambda _: choose(widget.values), "chosen")
    return widget


def claims_board(claims: list[list[Any]]) -> Any:
    """The board of claims as a widget: search, a filter, and a quiz. claims: see board.js; their texts are HTML."""
    import anywidget
    import traitlets

    class Board(anywidget.AnyWidget):
        _esm = HERE / "board.js"
        claims = traitlets.List().tag(sync=True)

    return Board(claims=claims)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
