"""A log as it comes: bytes of any kind and any length, to lines with their rank. Memory stays flat."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

CHUNK = 1 << 20  # bytes read at a time
LONGEST = 1 << 14  # characters of a line; what is longer is cut into several

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
            r"(?:>|\|) ",  # quoted; docker compose
            r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d[^ \]]*\]?:? ?",
            r"(?!\S*(?:Error|Exception))[a-z][\w.-]*: (?=Traceback|  File|\S+Error|\[)",  # pdsh: the host's name
        ),
    )
)
# Where a line names the rank that it is about, though it has no prefix.
_NAMED = re.compile(
    r"\[rank(\d+)\]|\[Rank (\d+)\]|^rank (\d+) (?:raised|was killed|left)|^-- Process (\d+) terminated"
    r"|exitcode: -?\d+\) local_rank: (\d+)"
)
_STICKY = re.compile(r"^-- Process (\d+) terminated")  # spawn tells whose the traceback below is


class Line(NamedTuple):
    """One line of a log: its number from 1, its rank (None where nothing says so), its text without the decoration."""

    number: int
    rank: int | None
    text: str


def chunks(stream: BinaryIO) -> Iterator[str]:
    """Yield a stream as text, whole lines at a time where lines have a bearable length.

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
        if not whole and len(text) > CHUNK:
            whole = len(text)
        left = text[whole:]
        if whole:
            yield text[:whole]
    if left:
        yield left


def lines(
    text: str, first: int, rank: int | None = None, wanted: Callable[[str], object] = lambda raw: True
) -> Iterator[Line]:
    """Yield the lines of a chunk, numbered from `first`.

    rank: whose all of it is, where that is known. wanted: of a line as it came, whether it is worth the reading.
    """
    sticky = rank
    for number, raw in enumerate(text.split("\n"), first):
        if not wanted(raw):
            continue
        for start in range(0, len(raw) or 1, LONGEST):
            line = _ANSI.sub("", raw[start : start + LONGEST]).rstrip("\r\n \t")
            line = line.rpartition("\r")[2]  # a progress bar writes over itself
            said = None
            for _ in range(4):
                for prefix in _PREFIXES:
                    if match := prefix.match(line):
                        said = match[1] if prefix.groups and said is None else said
                        line = line[match.end() :]
                        break
                else:
                    break
            if stuck := _STICKY.match(line):
                sticky = int(stuck[1])
            if said is None and (named := _NAMED.search(line)):
                said = next(group for group in named.groups() if group)
            yield Line(number, int(said) if said is not None else sticky, line)
