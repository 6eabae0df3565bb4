"""`python -m ddplab why`, and `ddplab.why()` after a cell that failed."""

from __future__ import annotations

import contextlib
import html
import io
import os
import sys
import traceback

from ddplab.errors import find, index, say
from ddplab.errors.book import entries

USAGE = """usage: python -m ddplab why "the message"        # or a few words: "it hangs at the end"
       python -m ddplab why LOGFILE …
       torchrun … train.py 2>&1 | python -m ddplab why
       python -m ddplab why --index                # what the installed torch can raise, and where"""


class Told:
    """An answer to look at: text in a terminal, a box in a notebook. `entry` is the name of its page, or None."""

    def __init__(self, answer: find.Answer, note: str = ""):
        self.answer = answer
        self.note = note
        self.entry = answer.entry.name if answer.entry else None

    def __str__(self) -> str:
        return f"{self.note}\n\n{say.text(self.answer)}".lstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return (f"<p>{html.escape(self.note)}</p>" if self.note else "") + say.box(self.answer)


def why(message: str | BaseException | None = None) -> Told:
    """Say why it failed: what the error means, its usual causes with how to tell and how to mend, who failed first.

    Args:
        message: an error's words, or a whole log, or the exception itself. Without it: the last error of a cell.

    Returns a `Told`, which a notebook shows as a box where it is a cell's last line; in a script, or below `except`,
    print it. It does not raise.
    """
    if isinstance(message, str):
        return Told(find.answer(io.BytesIO(message.encode(errors="replace"))))
    error = message or getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None:
        return Told(find.answer(io.BytesIO()))
    run = getattr(error, "run", None)  # a RankError: what each rank printed is on its run
    texts = {None: "".join(traceback.format_exception_only(error)) + getattr(error, "traceback", "")}
    if run is None:
        texts = {None: "".join(traceback.format_exception(error))}
    else:
        texts |= run.output
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    older = message is None and shell and shell.last_execution_succeeded
    note = "The cell before this one ended well; this is about an older error." if older else ""
    return Told(find.answer_texts(texts), note)


def main(arguments: list[str]) -> int:
    """Answer on standard output. Returns the exit status: 0 with a page, 1 without, 2 where nothing was asked."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what a Windows pipe cannot write becomes "?"
    try:
        status = _main(arguments)
        sys.stdout.flush()
        return status
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer goes nowhere
        if isinstance(error, BrokenPipeError):  # `| head`
            return 0
        print(f"the answer could not be written: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _main(arguments: list[str]) -> int:
    if arguments[:1] in (["-h"], ["--help"]) or (not arguments and (sys.stdin is None or sys.stdin.isatty())):
        print(USAGE)
        return 0 if arguments else 2
    if arguments == ["--index"]:
        for path in index.files("torch"):
            for it in index.raises(path, index.folder_of().parent):
                print(f"{it.file}:{it.line}: {it.type}: {' … '.join(' '.join(part.split()) for part in it.words)}")
        return 0
    if len(arguments) == 1 and arguments[0] in entries():
        print(say.page(entries()[arguments[0]]))
        return 0
    if arguments and all(map(_names_a_file, arguments)):
        try:
            with contextlib.ExitStack() as files:
                answer = find.answer(*[files.enter_context(open(path, "rb")) for path in arguments])
        except OSError as error:
            print(f"{error.filename or arguments[0]} cannot be read as a log: {error.strerror}", file=sys.stderr)
            return 2
    elif arguments:
        answer = find.answer(io.BytesIO(" ".join(arguments).encode(errors="replace")))
    else:
        answer = find.answer(sys.stdin.buffer)
    print(say.text(answer))
    return 0 if answer.entry or answer.symptom else 1


def _names_a_file(argument: str) -> bool:
    """Tell a path from a message; one that is not there is told by its ending, so that a slip is not looked up."""
    slip = argument.endswith((".log", ".txt", ".out", ".err")) and ": " not in argument
    return slip or os.path.exists(argument)  # no path at all, too long or with a NUL, does not exist either
