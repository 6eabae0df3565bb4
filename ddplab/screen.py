"""Who is looking: a person at a notebook, a test that compares outputs, or a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any


def live() -> bool:
    """Return True in a notebook that a person looks at: widgets work, and nobody compares outputs."""
    return in_kernel() and "PYTEST_CURRENT_TEST" not in os.environ and os.environ.get("DDPLAB_PANEL") != "off"


def in_kernel() -> bool:
    """Return True in a notebook's kernel, looked at or not."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)  # Colab's is a subclass


def show(words: Any, widget: Callable[[], Any]) -> None:
    """Display a widget where somebody can press it, and the words where nobody can."""
    if not live():
        print(words)
        return
    from IPython.display import display

    bundle = widget()._repr_mimebundle_()
    data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
    # Where the widget is gone (a saved file, a forge) the words stand in for it.
    display({**data, "text/plain": str(words)}, metadata, raw=True)
