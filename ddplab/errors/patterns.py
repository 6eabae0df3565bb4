"""The pages' words, as rules; and which of them a text can have, which is asked first and keeps the search quick."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from ddplab.errors.book import Entry, entries

_LETTERS = bytes(n if chr(n).isalpha() and n < 128 else 32 for n in range(256))


class Rule(NamedTuple):
    entry: Entry
    parts: list[list[str]]  # each part: pieces that follow each other in one line

    @property
    def broad(self) -> bool:
        return "…".join(self.parts[0]) in self.entry.broad

    @property
    def length(self) -> int:
        return sum(len(piece) for part in self.parts for piece in part)


@cache
def rules() -> list[Rule]:
    return [Rule(entry, [part.split("…") for part in parts]) for entry in entries().values() for parts in entry.says]


@cache
def anchors() -> dict[str, list[tuple[int, int]]]:
    """The longest piece of each part → where it belongs: (rule, part)."""
    found: dict[str, list[tuple[int, int]]] = {}
    for r, rule in enumerate(rules()):
        for p, pieces in enumerate(rule.parts):
            found.setdefault(max(pieces, key=len), []).append((r, p))
    return found


def holds(text: str, pieces: list[str], apart: bool = True) -> bool:
    """Tell whether the pieces follow each other. apart: MemoryError is not found within OutOfMemoryError."""
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        while apart and at > 0 and piece[:1].isupper() and text[at - 1].isalpha() and text[at - 2] != "\\":
            at = text.find(piece, at + 1)
        if at < 0:
            return False
        at += len(piece)
    return True


@cache
def needs() -> list[tuple[str, list[str]]]:
    """Each anchor with its words of four letters and more."""
    return [(anchor, re.findall("[A-Za-z]{4,}", anchor)) for anchor in anchors()]


@cache
def _wanted(more: frozenset[str]) -> set[str]:
    return {word for _, words in needs() for word in words} | more


def words_in(text: str, more: frozenset[str]) -> set[str]:
    """Which of the rules' words, and of some more, a text has: quickly, since a log has few different words."""
    words = set(text.encode(errors="replace").translate(_LETTERS).split())
    vocabulary = b" ".join(word for word in words if len(word) > 3).decode()
    if len(vocabulary) > len(text) // 2:  # one endless word, or nothing twice: there is nothing to be saved
        return _wanted(more)
    return {word for word in _wanted(more) if word in vocabulary}
