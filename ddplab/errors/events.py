"""The events of a log: the lines that say something, whose they are, and which page of knowledge has their words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from ddplab.errors import log
from ddplab.errors.book import LEVELS, Entry
from ddplab.errors.patterns import anchors, holds, needs, rules, words_in

TRACEBACK = "Traceback (most recent call last):"
APART = 80  # lines between the fragments of one message, at most: other ranks write in between
KEPT = 400  # events, and kinds of lines, that are remembered
OFTEN = 300  # lines of one kind (the same but for numbers) that are read: each of many ranks may say it
OURS = ("torch", "rank", "NCCL", "nccl", "gloo", "c10d", "GPU", "ddplab")  # a broad message beside one of these is ours
UNKNOWN = 5  # the level of an exception that no entry knows: above every consequence, below what is known

_KINDS = r"(?:Error|Exception|Exit|Interrupt|Timeout|Expired|Killed|Abort|Aborted|Failure|NotFound)"
_RAISED = re.compile(rf"^(?:[EW]\s+)?((?:\w+\.)*\w*{_KINDS})(?::\s*(.*))?$")
_RANK_RAISED = re.compile(r"^rank \d+ raised ([\w.]+)(?:: (.*))?$")  # ddplab's own verdict
_HOLLOW = re.compile(r"^Exception:?$|\(\d+ sub-exceptions?\)$")
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)(?:, in (\S+))?')
_LIBRARY = re.compile(r"site-packages|dist-packages|lib[/\\]python\d|[/\\](?:torch|ddplab)[/\\]|^<|[/\\]bin[/\\]|runpy")
_ROOT = re.compile(r"^\s*Root Cause", re.IGNORECASE)
_ROOT_RANK = re.compile(r"^\s*rank\s*: (\d+)")
_ROOT_CODE = re.compile(r"^\s*exitcode\s*: (\d+)")
# Lines that are looked at though no page has their words: raised exceptions, torchrun's table, spawn's headings.
# Each by one of its words, which is looked for before its pattern is; a pattern's last group is where the line is.
_CONTEXT = {
    **{kind: re.compile(rf"{kind}(?:\x1b\[[\d;]*m)*(?::|\r?$)", re.MULTILINE) for kind in _KINDS[3:-1].split("|")},
    "Traceback": re.compile(r"Traceback \(most"),
    "File": re.compile(r"File \"[^\"\n]+\", line \d"),
    "Root": re.compile("Root Cause"),
    "rank": re.compile(r"rank +: \d"),
    "FAILURES": re.compile("<NO_OTHER_FAILURES>"),
    "exitcode": re.compile(r"exitcode +: \d"),
    "Process": re.compile(r"-- Process \d+ term"),
}
_SIGNED = re.compile(r"\[?[EFIW]\d{4}|\[[EFIW] |\*{5}|\s|.*(?:WARN|Warning: )")  # a logger's line, or a line of code
_NO_DIGITS = str.maketrans("", "", "0123456789")


class Event(NamedTuple):
    """Something in the log that says something: the line, its rank, the entry that knows it (None: none does)."""

    line: int
    rank: int | None
    text: str
    entry: Entry | None
    length: int = 0  # of what matched: of two that match at one place, the longer knows more
    broad: bool = False  # other programs say the same words
    place: str = ""  # the innermost line of the traceback above it that is no library's: train.py, line 7, in step

    @property
    def level(self) -> int:
        return LEVELS[self.entry.level] if self.entry else UNKNOWN

    @property
    def hollow(self) -> bool:
        """It only carries another exception: `Exception:` of spawn, a group of exceptions."""
        return self.entry is None and _HOLLOW.search(self.text) is not None


class Reader:
    """Reads lines, remembers events: a bounded number, the first of each kind for each rank."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.known: set[tuple] = set()
        self.code: dict[tuple, Event] = {}  # those whose words so far are only their line of code
        self.parts: dict[tuple, dict[int, int]] = {}
        self.kinds: Counter[str] = Counter()
        self.sticky: int | None = None  # spawn's headings tell whose the traceback below is
        self.places: dict[int | None, str] = {}
        self.table = False
        self.root: int | None = None  # the rank that torchrun saw fail first
        self.status = 1  # its exit status; 1 is any exception's
        self.alone = False  # it saw no other
        self.before: list[str] | None = None  # what was said without a rank before the first event
        self.tail = ""
        self.read = 0
        self.ours = False  # a word of torch's, of a rank or of a GPU is in the log

    def chunk(self, text: str, rank: int | None = None) -> None:
        """Read some lines. rank: whose all of them are, where that is known."""
        words = words_in(text, frozenset(_CONTEXT))
        self.ours = self.ours or rank is not None or any(word in text for word in OURS)
        here = [anchor for anchor, its in needs() if words.issuperset(its) and anchor in text]
        starts = {text.rfind("\n", 0, at) + 1: at for anchor in here for at in _places(text, anchor)}
        for word in words & _CONTEXT.keys():
            for match in _CONTEXT[word].finditer(text):
                starts.setdefault(text.rfind("\n", 0, match.start()) + 1, match.start())
        ends = set(_ends_of_tracebacks(text)) if "Traceback" in words else set()
        for start in ends:
            starts.setdefault(start, start)
        number, counted = self.read + 1, 0
        for start, at in sorted(starts.items()):
            number += text.count("\n", counted, start)
            counted = start
            end = text.find("\n", at)
            raw = text[max(start, at - log.LONGEST) : min(end if end >= 0 else len(text), at + log.LONGEST)]
            kind = raw.translate(_NO_DIGITS)
            if self.kinds[kind] >= OFTEN:
                continue
            self.kinds[kind] += len(self.kinds) < KEPT or kind in self.kinds
            line = log.line(raw, number)
            if line.text.startswith("-- Process"):
                self.sticky = line.rank
            if line.rank is None:
                line = line._replace(rank=self.sticky if rank is None else rank)
            self.line(line, here, start in ends)
            if self.before is None and any(e.level for e in self.events):
                self.before = _of_no_rank(self.tail + text[max(0, start - log.LONGEST) : start])
        self.read += text.count("\n") + (not text.endswith("\n"))
        self.tail = text[-log.LONGEST :]

    def line(self, line: log.Line, here: list[str], raised: bool) -> None:
        matched = [where for anchor in here if anchor in line.text for where in anchors()[anchor]]
        before, known = len(self.events), False
        for r, p in matched:
            rule = rules()[r]
            if holds(line.text, rule.parts[p]) and self.complete(r, p, line):
                known = True
                said = short(line.text, line.text.find(rule.parts[p][0]))
                self.add(Event(line.number, line.rank, said, rule.entry, rule.length, rule.broad))
        new = self.events[before:]
        self.frame(line)
        if not known and (raised or _RAISED.match(line.text) or _RANK_RAISED.match(line.text)):
            self.add(Event(line.number, line.rank, short(line.text), None))
        if new and new[-1].level > LEVELS["follower"]:
            # the lines below an exception are part of its message: what they say is known after all
            self.events = [e for e in self.events if e.entry or not _continues(e, new[-1])]
        self.agent(line)

    def frame(self, line: log.Line) -> None:
        """Remember the innermost line of a rank's traceback that is no library's."""
        if line.text.startswith("Traceback (most"):
            self.places.pop(line.rank, None)
        elif (frame := _FRAME.match(line.text)) and not _LIBRARY.search(frame[1]):
            within = f", in {frame[3]}" if frame[3] and frame[3] != "<module>" else ""
            file = frame[1].replace("\\", "/").rpartition("/")[2]
            self.places[line.rank] = f"{file}, line {frame[2]}{within}"

    def complete(self, r: int, p: int, line: log.Line) -> bool:
        wanted = len(rules()[r].parts)
        if wanted == 1:
            return True
        seen = self.parts.setdefault((r, line.rank), {})
        seen[p] = line.number
        whole = len(seen) == wanted and max(seen.values()) - min(seen.values()) <= APART
        if whole:  # what looked unknown while only a part of it had been read
            self.events = [e for e in self.events if e.entry or e.rank != line.rank or e.line not in seen.values()]
        return whole

    def add(self, event: Event) -> None:
        event = event._replace(place=self.places.get(event.rank, ""))
        key = (event.rank, event.entry.name if event.entry else event.text)
        if key not in self.known and len(self.events) < KEPT:
            self.known.add(key)
            self.events.append(event)
            if event.text.startswith("raise "):
                self.code[key] = event
        elif key in self.code:  # the traceback's line of code came first: `raise RuntimeError("…")`
            before = self.code.pop(key)
            self.events = [event if e is before else e for e in self.events]

    def agent(self, line: log.Line) -> None:
        """Torchrun's last table: the rank below "Root Cause" is the first whose end its agent saw, and how it ended."""
        self.alone = self.alone or "<NO_OTHER_FAILURES>" in line.text
        if _ROOT.match(line.text):
            self.table = True
        elif self.table and (rank := _ROOT_RANK.match(line.text)):
            self.root = int(rank[1])
        elif self.table and (code := _ROOT_CODE.match(line.text)):
            self.status, self.table = int(code[1]), False


def _places(text: str, anchor: str, most: int = 200) -> Iterator[int]:
    """Where in a text the words stand: the first few hundred places."""
    at = -1
    while most and (at := text.find(anchor, at + 1)) >= 0:
        most -= 1
        yield at


def _ends_of_tracebacks(text: str, longest: int = 400) -> Iterator[int]:
    """Where the lines begin that end a traceback: an exception, whatever its name. Other ranks may write in between."""
    for at in _places(text, TRACEBACK):
        start, frames = text.rfind("\n", 0, at) + 1, 0
        before = text[start:at].replace("+ Exception Group ", "| ")
        for _ in range(longest):
            start = text.find("\n", start) + 1
            first = text[start + len(before) : start + len(before) + 1]
            if start and text.startswith(before, start) and first.isspace():
                frames += 1
            elif not start or text.startswith(before, start) or not before.strip():
                break
        if frames and start and text.startswith(before, start) and (first.isalpha() or first == "_"):
            yield start


def _continues(unknown: Event, known: Event) -> bool:
    return unknown.rank == known.rank and 0 <= known.line - unknown.line <= 12


def _of_no_rank(text: str) -> list[str]:
    """The last two lines before a traceback that no rank and no logger signs: a rank's last words may be there."""
    found = []
    for raw in text.split("\n"):
        line = log.line(raw, 0)
        if line.text.startswith("Traceback"):
            break
        if line.rank is None and line.text == raw.strip() != "" and not _SIGNED.match(raw):
            found.append(short(raw))
    return found[-2:]


def short(text: str, at: int = 0) -> str:
    """Cut a text to 300 characters, from a little before the place that matters."""
    text = " ".join(("…" + text[at - 60 :] if at > 140 else text).split())
    return text if len(text) <= 300 else text[:299] + "…"
