"""What a machine has run out of, said plainly: room on a disk, files that may be open, processes, ports."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import tempfile
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

PROBE = 1 << 20  # bytes: a disk with less room than this is called full
_Function = TypeVar("_Function", bound=Callable[..., Any])


def plainly(function: _Function) -> _Function:
    """Return the function; what it raises for want of something on this machine then says what that is and what helps.

    Such an error stays the OSError that it is, with its number; any other is left alone.
    """

    @wraps(function)
    def said(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # IPython leaves this frame out
        try:
            return function(*args, **kwargs)
        except OSError as error:
            if (plain := in_words(error)) is None:
                raise
        raise plain  # here, so that no second traceback is shown above it

    return said


def in_words(error: OSError, folder: str | None = None) -> OSError | None:
    """Return, of an error that says this machine has run out of something, one that says it plainly; else None.

    folder: where it was written to; the folder for temporary files unless given.
    """
    if error.errno is None or hasattr(error, "_is_plain"):
        return None
    says, what, temporary = os.strerror(error.errno), "", folder or _temporary()
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = (
            f"the disk that holds {temporary} is full, and a run keeps there what ranks log, print and "
            "return. Delete what you no longer need, or set TMPDIR to a folder on another disk and restart the kernel"
        )
    elif error.errno == errno.EFBIG:
        what = (
            "a limit is set on the size of the files that this process writes (`ulimit -f`), and a run keeps in files "
            "what ranks log, print and return. Raise it, and restart the kernel"
        )
    elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT) and _is_in(error, temporary):
        what = f"nothing can be written in {temporary}, where runs keep their files. Set TMPDIR to a folder of your own"
        what += ", and restart the kernel"
    elif error.errno == errno.ENOENT and "No usable temporary directory" in str(error):
        says, what = (
            "No usable temporary directory",
            (
                "runs keep their files in a folder for temporary files, and there is none with room that you may "
                "write to: the disk is full, or TMPDIR names no folder"
            ),
        )
    elif error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        what = (
            f"this process has {limit} files, pipes and sockets open, and may have no more (`ulimit -n`). Close some, "
            "or restart the kernel, which closes all"
        )
    elif error.errno == errno.ENFILE:
        what = "all programs of this machine together have as many files open as it allows. End some"
    elif error.errno == errno.EAGAIN:
        what = (
            "no further process can be started: there are as many as you, or this container, may have (`ulimit -u`). "
            "Shut down kernels that you do not use, or ask for fewer ranks"
        )
    elif error.errno == errno.ENOMEM:
        what = "this machine, or this container, has no memory left. Shut down kernels that you do not use"
    elif error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
        what = (
            "no port of this machine is free, and ranks need one to meet at. A connection that was closed gives its "
            "own back after a minute: wait, then try again. `ss -s` counts them"
        )
    if not what:
        return None
    plain = OSError(error.errno, f"{says}: {what}.")
    plain._is_plain = True
    return plain


def cannot_write(folder: str) -> OSError | None:
    """Try to write in a folder; return what is in the way, said plainly, or None. What was written is gone again."""
    probe = os.path.join(folder, "probe")
    try:
        with open(probe, "wb", buffering=0) as file:
            while file.tell() < PROBE:
                file.write(b"\0" * (PROBE - file.tell()))
    except OSError as error:
        return in_words(error, os.path.dirname(folder))
    finally:
        with contextlib.suppress(OSError):
            os.unlink(probe)
    return None


def _is_in(error: OSError, folder: str) -> bool:
    return error.filename is not None and os.path.dirname(os.fspath(error.filename)) == folder


def _temporary() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:
        return "temporary files"
