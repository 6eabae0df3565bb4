"""ERRORS.md, made of what `python -m ddplab why` knows: by what one sees, and by message."""

import runpy
from pathlib import Path

from run_notebooks import ROOT

HEAD = """# Errors

What people see when training on several GPUs goes wrong, and how to mend it. Nobody has to read this page whole:

    python -m ddplab why "the message"                # or a few words: "it hangs at the end"
    torchrun … train.py 2>&1 | python -m ddplab why   # a whole log, of all ranks
    ddplab.why()                                      # in a notebook, after a cell that failed

It finds the entry, says which rank failed first, and where the installed torch raises the message. This page is made
of the same files (`ddplab/errors/entries/`) by `tools/make_pages.py`.
"""
ROOMS = {  # a file of entries -> what it is about
    "ddp": "DistributedDataParallel",
    "collectives": "Collectives: calls that do not match, waits in vain",
    "start": "The start: who meets where",
    "devices": "Devices",
    "dataparallel": "DataParallel",
    "data": "Data",
    "checkpoint": "Checkpoints",
    "memory": "Memory, mixed precision, and what has no message",
    "processes": "Processes: how they begin and end",
    "nccl": "NCCL",
    "followers": "Followers: what is said because another rank had failed",
}


def page(root: Path) -> str:
    """The text of ERRORS.md; lessons are linked where `root` has them."""
    book = runpy.run_path(str(ROOT / "ddplab" / "errors" / "book.py"))  # without ddplab, which imports torch
    entries, rooms = book["entries"](), book["rooms"]()
    out = [HEAD, "## By what you see", "", "| | Look at, likeliest first |", "|-|-|"]
    for symptom in book["symptoms"]():
        links = ", ".join(f"[{_plain(entries[name].title)}](#{name})" for name in symptom.entries)
        out.append(f"| {symptom.title} | {links} |")
    out += ["", "## By message", "", "| The message has | Entry |", "|-|-|"]
    fragments = {parts[0]: name for name, entry in entries.items() for parts in entry.says}
    for says, name in sorted(fragments.items(), key=lambda pair: pair[0].lower()):
        out.append(f"| {_code(says)} | [{name}](#{name}) |")
    for room, title in ROOMS.items():
        out += ["", f"## {title}"]
        for name in rooms[room]:
            out += ["", *_entry(entries[name], root)]
    return "\n".join(out) + "\n"


def _entry(entry, root: Path) -> list[str]:
    out = [f"### {entry.name}", "", f"**{entry.title}.** {entry.means}", ""]
    for number, cause in enumerate(entry.causes, 1):
        out += [f"{number}. {cause.what}", f"   - *How to tell:* {cause.tell}", f"   - *Mend:* {cause.mend}"]
    places = []
    if entry.lesson:
        found = sorted((root / "lessons").glob(f"*/{entry.lesson}_*.ipynb"))
        words = f"lesson {entry.lesson}" + (f", “{_plain(entry.heading)}”" if entry.heading else "")
        places.append(f"Shown in [{words}]({found[0].relative_to(root)})." if found else f"Shown in {words}.")
    if entry.source:
        places.append(f"Raised in `{entry.source}`.")
    if entry.only:
        places.append(f"Not caused by a test: {entry.only}.")
    return [*out, "", " ".join(places)] if places else out


def _plain(words: str) -> str:
    return words.replace("*", "").replace("|", "\\|")


def _code(words: str) -> str:
    words = words.replace("|", "\\|").strip()
    return f"`` {words} ``" if "`" in words else f"`{words}`"
