"""From a log to an answer: who failed first, who only followed, and which page of knowledge tells about it."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from ddplab.errors import ask, log
from ddplab.errors.book import LEVELS, Entry, Symptom
from ddplab.errors.events import UNKNOWN, Event, Reader, short
from ddplab.errors.patterns import holds, rules

_WORK = re.compile(r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+)")
_RANKS_FILE = re.compile(r"[/\\](\d+)[/\\]std(?:err|out)\.log$")


class Answer(NamedTuple):
    """What there is to say.

    Attributes:
        event: the event that leads, or None where the log says nothing.
        sure: False where the message is a broad one, or where only consequences are in the log.
        first: the rank that failed first, None where the log does not tell.
        alike: the ranks that say the same as `event`, in order. followed: rank → the words of each that only followed.
        also: other events worth a look, each with an entry of its own.
        symptom: what was asked for, where no message was given. lines: how many were read. binary: it was no text.
        calls: what NCCL's watchdogs say that ranks wait in → those ranks, where they differ.
        guess: there was no message, and the page is the nearest to a few words.
        root: the rank that torchrun saw fail first. status: its exit status. alone: it saw no other.
        before: the last words of no rank by name.
    """

    event: Event | None
    sure: bool
    first: int | None
    alike: list[int]
    followed: dict[int, str]
    also: list[Event]
    symptom: Symptom | None
    lines: int
    binary: bool
    guess: bool = False
    calls: dict[str, list[int]] | None = None
    root: int | None = None
    status: int = 1
    alone: bool = False
    before: tuple[str, ...] = ()

    @property
    def entry(self) -> Entry | None:
        """The page that tells about it; None for "I do not know this one"."""
        return self.event.entry if self.event else None


def answer(*streams: BinaryIO) -> Answer:
    """Read a log to its end, or several, and answer.

    streams: bytes, of any length and kind; it never raises for what they are. A file that torchrun has named after a
    rank (…/1/stderr.log) is that rank's.
    """
    reader, pieces, size, binary = Reader(), [], 0, False
    for stream in streams:
        rank = _RANKS_FILE.search(str(getattr(stream, "name", "")))
        for text in log.chunks(stream):
            if not reader.read:
                binary = "\0" in text or text.count("\ufffd") > len(text) // 10
            size += len(text)
            pieces = [*pieces, text] if size < log.CHUNK else []
            reader.chunk(text, int(rank[1]) if rank else None)
    return _answer(reader, "".join(pieces), binary)


def answer_texts(texts: dict[int | None, str]) -> Answer:
    """Answer from what each rank said by itself: rank → text."""
    reader = Reader()
    for rank, text in texts.items():
        reader.chunk(text, rank)
    return _answer(reader, "\n".join(texts.values())[: log.CHUNK], False)


def _answer(reader: Reader, small: str, binary: bool) -> Answer:
    events = reader.events
    if small and not any(e.entry for e in events):
        events = events + _in_one_piece(small)
    if not reader.ours:  # a connection that anybody may have lost, and nobody's rank
        events = [e._replace(entry=None) if e.broad and e.level == LEVELS["follower"] else e for e in events]
    silent = {name for e in events if e.entry for name in e.entry.instead_of}
    events = [e for e in events if not e.entry or e.entry.name not in silent]
    ranked = sorted(events, key=_order(events, reader.root))
    best = ranked[0] if ranked else None
    if best is None:
        question = small if len(small) < ask.LONGEST else ""
        symptom = ask.symptom(question)
        if not symptom and (entry := ask.page(question)):
            best = Event(1, None, short(question), entry)
        return Answer(best, False, None, [], {}, [], symptom, reader.read, binary, guess=True)
    first, follows = best.rank, best.level == LEVELS["follower"]
    if first is None and (not follows or best.entry.name == "child-failed"):
        first = reader.root
    alike = sorted({e.rank for e in events if e.rank is not None and _subject(e) == _subject(best)})
    if first is None and not follows and len(alike) == 1:
        first = alike[0]
    followed = {}
    for event in ranked:
        blamed = event.entry is not None and event.entry.name == "child-failed"  # by its launcher: it did not follow
        if event.rank in (None, first) or event.rank in alike or blamed:
            continue
        if event.level == LEVELS["follower"] or event.level == LEVELS["wait"] < best.level:
            followed.setdefault(event.rank, event.text)
    also, told = [], {_subject(best)}
    for event in ranked[1:]:
        within = (event.line, event.rank) == (best.line, best.rank) and event.length < best.length
        if _subject(event) not in told and not event.hollow and event.level > LEVELS["follower"] and not within:
            told.add(_subject(event))
            also.append(event)
    known = best.entry is not None and best.entry.level in ("error", "killed", "wait")
    sure = known and (reader.ours or not best.broad)
    beside = {}
    if follows:
        beside = {"root": reader.root, "status": reader.status, "alone": reader.alone}
        beside["before"] = tuple(reader.before or ())
    return Answer(
        best, sure, first, alike, followed, also[:3], None, reader.read, binary, calls=_calls(events), **beside
    )


def _calls(events: list[Event]) -> dict[str, list[int]]:
    calls: dict[str, list[int]] = {}
    for event in events:
        if event.rank is not None and (work := _WORK.search(event.text)):
            calls.setdefault(f"{work[2]}, call {work[1]}", []).append(event.rank)
    return {call: sorted(ranks) for call, ranks in calls.items()} if len(calls) > 1 else {}


def _order(events: list[Event], root: int | None) -> Callable[[Event], tuple]:
    """What leads: an error before what only follows one, and the one of the rank that torchrun saw fail first."""
    own = any(e.rank == root is not None for e in events if e.level >= UNKNOWN)

    def place(e: Event) -> tuple:
        error = e.level >= UNKNOWN
        # whom the launcher ended says less than the launcher's word on who failed
        ended = e.entry is not None and e.entry.name == "agent-ended-others"
        return e.hollow, not error, error and own and e.rank != root, -e.level, ended, e.line, -e.length

    return place


def _subject(event: Event) -> str:
    return event.entry.name if event.entry else event.text


def _in_one_piece(text: str) -> list[Event]:
    """Look once more in a paste whose lines a window has wrapped, a page has escaped, a word processor has quoted."""
    lines = [log.line(raw, 1).text for raw in text.split("\n")]
    flat = html.unescape(" ".join(" ".join(lines).split()))
    flat = flat.translate(str.maketrans("\u2018\u2019\u201c\u201d\u00a0", "''\"\" "))
    closed = flat.replace(" ", "")
    found = []
    for rule in rules():
        pieces = [[" ".join(piece.split()) for piece in part] for part in rule.parts]
        whole = all(holds(flat, part) for part in pieces)
        if not whole and rule.length > 24:  # broken within a word
            whole = all(holds(closed, [piece.replace(" ", "") for piece in part], apart=False) for part in pieces)
        cut = False
        if not whole and rule.length == len(start := pieces[0][0]) > 30:
            cut = (at := flat.rfind(start[:24])) >= 0 and start.startswith(flat[at:])
        if whole or cut:
            found.append(
                Event(1, None, short(flat, flat.find(pieces[0][0][:24])), rule.entry, rule.length, rule.broad or cut)
            )
    return found
