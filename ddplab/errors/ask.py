"""A question in a few words, where there is no message to go by: the answer is a guess, and said to be one."""

from __future__ import annotations

import re
from functools import cache
from math import log

from ddplab.errors.book import Entry, Symptom, entries, symptoms

LONGEST = 120  # characters of a question; what is longer is a log, or a text about something
ENOUGH = 0.6  # of what the question's words weigh, an entry has to have

_COMMAND = re.compile(r"\s*(?:[$%#>] |(?:sudo|pip3?|conda|mamba|uv|apt|apt-get|docker|git|make|npm|cd|ls|export) )")
_LOGGED = re.compile(r"(?:ERROR|FATAL|PANIC|BUG|DETAIL|[Ff]atal error|\berror): ")  # a line of some log: no question
_SMALL = set("a an the it i at in on of my with to for and than is error".split())
_HOLLOW = {"doe", "not", "do", "no", "work"}  # they count beside another word, and not alone
_ALIKE = {"oom": ("out", "memory"), "segfault": ("segmentation", "fault"), "deadlock": ("hang",), "freeze": ("hang",)}


def symptom(text: str) -> Symptom | None:
    """Return the symptom that shares the most words with the question; None where it shares too few."""
    asked = _words(text)
    if _COMMAND.match(text) or _LOGGED.search(text):
        return None
    scored = []
    for it in symptoms():
        for words in map(_words, [it.title, *it.words]):
            shared = asked & words
            scored.append((len(shared) / len(words) ** 0.5 if shared - _HOLLOW else 0, it))
    score, best = max(scored, key=lambda pair: pair[0])
    return best if score >= 1 else None


def page(text: str) -> Entry | None:
    """Return the entry that has most of the question's words, rare ones weighing more; None where none has enough.

    The last word may have been cut off.
    """
    asked = _words(text) - _HOLLOW
    last = (re.findall(r"[a-z0-9]+", text.lower()) or [""])[-1]
    if _COMMAND.match(text) or _LOGGED.search(text) or len(asked) < 2:
        return None
    whole = sum(map(_weight, asked))
    scored = []
    for entry, words in _vocabulary().items():
        cut = {last} if len(last) > 3 and any(word.startswith(last) for word in words) else set()
        shared = asked & (words | cut)
        if len(shared) > 1 and sum(map(_weight, shared)) >= ENOUGH * whole:
            named = len(shared & _words(entry))
            scored.append((sum(map(_weight, shared)), named, entry))
    return entries()[max(scored, key=lambda row: row[:2])[2]] if scored else None


@cache
def _vocabulary() -> dict[str, set[str]]:
    """Each entry's words, but of notes: who asks has an error."""
    return {
        entry.name: _words(" ".join([entry.name, entry.title, *(part for parts in entry.says for part in parts)]))
        for entry in entries().values()
        if entry.level != "note"
    }


def _weight(word: str) -> float:
    """What a word tells: the rarer it is among the entries, the more."""
    return log(2 * len(_vocabulary()) / (1 + sum(word in words for words in _vocabulary().values())))


def _words(text: str) -> set[str]:
    found = re.findall(r"[a-z0-9]+", text.lower())
    found = [word.removesuffix("s") for word in found]
    return {word for it in found for word in _ALIKE.get(it, (it,))} - _SMALL
