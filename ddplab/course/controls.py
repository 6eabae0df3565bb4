"""The controls that lessons share: small files of JavaScript, whose names, keys and focus are the browser's own.

ipywidgets' own sliders have no name for a screen reader, and JupyterLab takes the arrow keys from its lists.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def widget(script: str, **traits: Any) -> Any:
    """Return the widget that `script`.js draws; traits are values of JSON that the page and the kernel share."""
    import anywidget
    import traitlets

    page = "\n".join((HERE / f"{name}.js").read_text() for name in ("parts", script))
    shared = {name: traitlets.Any(value).tag(sync=True) for name, value in traits.items()}
    return type(script, (anywidget.AnyWidget,), {"_esm": page, **shared})()


def radio_buttons(question: str, options: Sequence[str], choice: str | None, choose: Callable[[str], None]) -> Any:
    """A group of radio buttons, as a widget with a trait `choice`; `choose` is called with what is chosen.

    question: HTML.
    """
    buttons = widget("radio_buttons", question=question, options=list(options), choice=choice)
    buttons.observe(lambda change: choose(change["new"]), "choice")
    return buttons


def choices(options: dict[str, Sequence[Any]], chosen: dict[str, Any], choose: Callable[[dict[str, Any]], None]) -> Any:
    """Lists to choose from, each with its name, as a widget; `choose` is called with all values when one has changed.

    options: name → what it offers. chosen: name → the value to begin with, one of them.
    """
    texts = {name: [_text(it) for it in offered] for name, offered in options.items()}
    places = {name: list(options[name]).index(value) for name, value in chosen.items()}
    lists = widget("choices", options=texts, chosen=places)
    lists.observe(lambda change: choose({name: options[name][n] for name, n in change["new"].items()}), "chosen")
    return lists


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
