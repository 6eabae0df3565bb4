"""Where a script is: the frames of a stack that are its own, torch's and ours left out."""

import functools
import os
import sys
import types
from pathlib import Path

import torch

_LIBRARIES = (os.path.dirname(torch.__path__[0]) + os.sep, str(Path(__file__).parent.parent) + os.sep, "<")


@functools.cache
def yours(file: str) -> bool:
    """Tell whether a file is a script's: not Python's, not a library's, not ours."""
    return not file.startswith(_LIBRARIES) and f"{os.sep}lib{os.sep}python" not in file


def script() -> types.FrameType | None:
    """Where a script is now; None in a thread that it has not begun."""
    frame = sys._getframe(1)
    while frame is not None and not yours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def stack() -> tuple[tuple[str, int, str], ...]:
    """By which calls of its own it has come there, the outermost first: file, line, function."""
    frame, found = script(), []
    while frame is not None:
        code = frame.f_code
        if yours(code.co_filename):
            found.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(found[::-1])
