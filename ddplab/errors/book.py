"""The pages of knowledge: what `entries/*.toml` say, read into tuples."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "entries"

# How much a match says. What a rank says by itself outweighs its silent death, that outweighs a vain wait, and so on:
# what stands lower is often only the consequence of what stands higher.
LEVELS = {"error": 6, "killed": 4, "wait": 3, "general": 2, "follower": 1, "note": 0}


class Cause(NamedTuple):
    """One usual cause, how to tell that it is this one, and the mending."""

    what: str
    tell: str
    mend: str


class Entry(NamedTuple):
    """One page. See CONTRIBUTING, "An error", for what each field holds; `says` is a list of lists of fragments."""

    name: str
    title: str
    says: list[list[str]]
    means: str
    causes: list[Cause]
    level: str = "error"
    lesson: str = ""
    heading: str = ""
    source: str = ""
    string: str = ""
    since: str = ""
    until: str = ""
    caused_by: str = ""
    instead_of: tuple[str, ...] = ()  # entries that say less, and are silent where this one speaks
    only: str = ""
    broad: tuple[str, ...] = ()  # those of `says` that other programs say too


class Symptom(NamedTuple):
    """What is seen where no message is: words that ask for it, the entries that may be behind it, likeliest first."""

    name: str
    title: str
    words: list[str]
    entries: list[str]


def rooms() -> dict[str, list[str]]:
    """Return the names of the entries in each file, by the file's name."""
    files = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.toml"))}
    return {name: [row["name"] for row in rows["entry"]] for name, rows in files.items() if "entry" in rows}


@cache
def entries() -> dict[str, Entry]:
    """Return every entry by its name, in the order of the files."""
    found: dict[str, Entry] = {}
    for path in sorted(FOLDER.glob("*.toml")):
        for row in tomllib.loads(path.read_text(encoding="utf-8")).get("entry", ()):
            row["says"] = [
                [says] if isinstance(says, str) else says for says in [*row.get("says", ()), *row.get("broad", ())]
            ]
            row["causes"] = [Cause(**cause) for cause in row["causes"]]
            entry = Entry(**row)
            if entry.name in found:
                raise ValueError(f"{path.name}: two entries are named {entry.name}")
            found[entry.name] = entry
    return found


@cache
def symptoms() -> list[Symptom]:
    """Return the symptoms, in the order in which ERRORS.md lists them."""
    return [Symptom(**row) for row in tomllib.loads((FOLDER / "symptoms.toml").read_text(encoding="utf-8"))["symptom"]]
