"""A log as it comes: bytes of any kind and any length, to lines with their rank. Memory stays flat."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

CHUNK = 1 << 20  # bytes read at a time
ENDLESS = 1 << 16  # characters of a line, of which the middle is left out
LONGEST = 1 << 12  # characters of a line that are looked at, on each side of what was found

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\n]*\x07|\x1b[()@-_]")
# What torchrun, srun, mpirun, ray, a logger, a quoted paste put before a line; the group is a rank.
_PREFIXES = tuple(
    map(
        re.compile,
        (
            r"\[(?:rank|default|trainer|worker|Rank |RANK |local_rank)(\d+)\] ?:? ?",
            r"\[(\d{1,4})\] ?: ?",
            r"\[\d+,(\d+)\]<std(?:err|out)>: ?",  # mpirun --tag-output
            r"(\d{1,4}): (?=\S|$|  )",  # srun --label
            r"\((?:\w+ )?pid=\d+(?:, ip=[\d.]+)?\) ?",  # ray
            r"(?:>| *\|) | *\+ (?=Exception Group)",  # quoted; a group of exceptions
            r"[a-z0-9][\w.-]*[-_]\d+ +\| ?",  # docker compose: a service and its number
            r"E(?: {3,}|$)|\*\*(?=\w+(?:Error|Exception): )",  # pytest; bold in a forum
            r"(?:DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[?\w+\.py:\d+\] ?",  # vLLM
            r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d[^ \]]*\]?:? ?",
            r"(?!\S*(?:Error|Exception))[a-z][\w.-]*: (?=Traceback|  File|\S+Error|\[)",  # pdsh: the host's name
        ),
    )
)
# Where a line names the rank that it is about, though it has no prefix.
_NAMED = re.compile(
    r"\[rank(\d+)\]|\[Rank (\d+)\]|(?:^|Error: )rank (\d+) (?:raised|was killed|left)|^-- Process (\d+) terminated"
    r"|exitcode: -?\d+\) local_rank: (\d+)|^srun: error: [^:]+: tasks? (\d+):"
)


class Line(NamedTuple):
    """One line of a log: its number from 1, its rank (None where nothing says so), its text without the decoration."""

    number: int
    rank: int | None
    text: str


def chunks(stream: BinaryIO) -> Iterator[str]:
    """Yield a stream as text, whole lines at a time; of an endless line its head and its tail.

    UTF-16, which PowerShell writes, is known by its mark; every other byte that is no UTF-8 becomes "�".
    """
    decoder, left = None, ""
    read = getattr(stream, "read1", stream.read)  # what a pipe has now; it need not fill a chunk
    while data := read(CHUNK):
        if decoder is None:
            name = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
            decoder = codecs.getincrementaldecoder(name)("replace")
        text = left + decoder.decode(data)
        whole = text.rfind("\n") + 1
        left = _bearable(text[whole:])
        if whole:
            yield "\n".join(map(_bearable, text[:whole].split("\n"))) if _endless(text[:whole]) else text[:whole]
    if left:
        yield left


def _bearable(line: str) -> str:
    return line if len(line) <= ENDLESS else line[: ENDLESS // 2] + line[-ENDLESS // 2 :]


def _endless(text: str) -> bool:
    """Tell whether a line may be: whether there are few for so much text."""
    return len(text) > ENDLESS and text.count("\n") < len(text) // 1000


def line(raw: str, number: int) -> Line:
    """Return a line without its decoration."""
    text = _ANSI.sub("", raw).rstrip("\r\n \t")
    text = text.rpartition("\r")[2]  # a progress bar writes over itself
    rank = None
    for _ in range(4):
        for prefix in _PREFIXES:
            if match := prefix.match(text):
                rank = match[1] if prefix.groups and rank is None else rank
                text = text[match.end() :]
                break
        else:
            break
    if rank is None and (named := _NAMED.search(text)):
        rank = next(group for group in named.groups() if group)
    return Line(number, int(rank) if rank is not None else None, text)
