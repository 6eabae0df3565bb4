"""What a learner has written at a turn, once its check has found it right, is what the lesson goes on with.

Below each turn stands "one way to write it", a cell that defines the same name, so that a lesson runs on blanks too.
Where the learner's own is right it stays: IPython tells of each cell that has run, and after that one it is put back.
"""

from __future__ import annotations

import ast
from typing import Any

KEPT: dict[str, Any] = {}  # name → the learner's own function or class, found right


def keep(answer: Any, right: bool) -> None:
    """Note that an answer with a name in the notebook is right, or that it is not (any more)."""
    from IPython import get_ipython

    shell, name = get_ipython(), getattr(answer, "__name__", None)
    KEPT.pop(name, None)
    if right and shell.user_ns.get(name) is answer:
        KEPT[name] = answer
        if _put_back not in shell.events.callbacks["post_run_cell"]:
            shell.events.register("post_run_cell", _put_back)


def defined_alone(source: str) -> str | None:
    """Return the name of the function or class of which alone a cell consists; None of any other cell."""
    try:
        body = ast.parse(source).body
    except SyntaxError:  # a magic, or a slip
        return None
    return body[0].name if len(body) == 1 and isinstance(body[0], ast.FunctionDef | ast.ClassDef) else None


def _put_back(result: Any) -> None:
    from IPython import get_ipython

    name = defined_alone(result.info.raw_cell or "")
    if name in KEPT:
        get_ipython().user_ns[name] = KEPT[name]
        print(f"Your {name} is right, so the lesson goes on with it.")
