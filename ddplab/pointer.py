"""The last line of every error that is ours: where it is explained. As a note, so that the message stays as it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

POINTER = "(`python -m ddplab why` explains it; in a notebook `ddplab.why()` in the next cell)"
_HERE = os.path.dirname(__file__) + os.sep
Function = TypeVar("Function", bound=Callable[..., Any])


def pointing(function: Function) -> Function:
    """Return the function with the pointer below whatever our own code raises in it.

    What the caller's function or a library raises stays as it is. So does everything in a rank: there the note would
    become part of the message, and its RankError has a pointer of its own.
    """

    @wraps(function)
    def pointed(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # IPython leaves this frame out
        try:
            return function(*args, **kwargs)
        except Exception as error:
            last = error.__traceback__
            while last.tb_next:
                last = last.tb_next
            ours = last.tb_frame.f_code.co_filename.startswith(_HERE)
            del last  # it holds this frame, and this frame held it: what the caller has let go would live on
            if ours and "DDPLAB_RUN_DIR" not in os.environ and POINTER not in getattr(error, "__notes__", ()):
                error.add_note(POINTER)
            raise

    return pointed
