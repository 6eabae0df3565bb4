"""Who is looking: a person at a notebook, a test that compares outputs, or a terminal."""

from __future__ import annotations

import os
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any


def live() -> bool:
    """Return True in a notebook that a person looks at: widgets work, and nobody compares outputs."""
    return in_kernel() and "PYTEST_CURRENT_TEST" not in os.environ and os.environ.get("DDPLAB_PANEL") != "off"


def in_kernel() -> bool:
    """Return True in a notebook's kernel, looked at or not."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)  # Colab's is a subclass


def show(words: Any, widget: Callable[[], Any], picture: Callable[[], Any] | None = None) -> None:
    """Display a widget where somebody can press it, and the words where nobody can.

    picture: draws a matplotlib figure that stands beside the words, in a notebook's kernel.
    """
    if not live() and not (picture and in_kernel()):
        print(words)
        return
    from IPython.display import display

    # Where the widget is gone (a saved file, a forge) words and picture stand in for it.
    stays = {"text/plain": str(words), **({"image/png": png(picture())} if picture else {})}
    if not live():
        display(stays, raw=True)
        return
    bundle = widget()._repr_mimebundle_()
    data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
    display({**data, **stays}, metadata, raw=True)


@contextmanager
def counting(words: str) -> Iterator[None]:
    """While the block runs, say to a person who looks at a notebook what goes on, and for how many seconds already."""
    if not live():
        yield
        return
    from IPython.display import display

    begun, over = time.monotonic(), threading.Event()
    line = display({"text/plain": words}, raw=True, display_id=True)

    def tell(how: str) -> None:
        line.update({"text/plain": f"{words} {time.monotonic() - begun:.0f} s {how}"}, raw=True)

    def count() -> None:
        while not over.wait(1):
            tell("so far")

    counter = threading.Thread(target=count)
    counter.start()
    try:
        yield
    finally:
        over.set()
        counter.join()
        tell("in all")


def png(figure: Any) -> str:
    """Return a matplotlib figure as a notebook stores it: a PNG file, in base64."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=90)
    return b64encode(buffer.getvalue()).decode()
