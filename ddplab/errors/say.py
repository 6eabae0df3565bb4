"""An answer in words: lines for a terminal, a box for a notebook."""

from __future__ import annotations

import html
import os
import re
import shutil
import textwrap
from functools import cache
from pathlib import Path

from ddplab.errors import index
from ddplab.errors.book import Entry, entries
from ddplab.errors.find import Answer
from ddplab.tables import marked

ROOT = Path(__file__).parents[2]
COLLECT = (
    "The whole log from its first line, of all ranks (torchrun --log-dir logs --redirects 3 keeps one file for each).",
    "The first traceback in it, not the last: what stands below is often only its consequence.",
    "The same run with TORCH_DISTRIBUTED_DEBUG=DETAIL, and on GPUs with NCCL_DEBUG=WARN; while it hangs: "
    "py-spy dump --pid PID of each rank (lesson 6.1).",
    "Does it fail on one rank too (--nproc-per-node 1)? Then it has nothing to do with several.",
)
UNKNOWN = "I do not know this one."
NOTHING = "I see no error in these"


@cache
def lesson_file(number: str) -> str:
    """Return the notebook of lesson "4.2", from the course's folder; "" where the course is not beside the package."""
    found = sorted((ROOT / "lessons").glob(f"*/{number}_*.ipynb"))
    return str(found[0].relative_to(ROOT)) if found else ""


def where_shown(entry: Entry) -> str:
    """Return "lesson 4.2, “Heading”", "" where no lesson shows it."""
    return f"lesson {entry.lesson}" + (f", “{entry.heading}”" if entry.heading else "") if entry.lesson else ""


def blocks(answer: Answer) -> list[tuple[str, str]]:
    """Return the answer as (kind, words): "who", "title", "text", "cause", "tell", "mend", "item" or "place"."""
    event, out = answer.event, []
    if answer.guess and (event or answer.symptom):
        out.append(("text", "A guess by your few words. Surer: the error's own words, or the whole log."))
    if event and event.entry is None:
        out += _raised_by_nobody_we_know(answer)
    elif event:
        out.append(("who", _who(answer)))
        out += [("who", f"rank {rank} only followed: {_cut(words)}") for rank, words in sorted(answer.followed.items())]
        out += [("who", words) for words in _beside(answer)]
        if event.entry.level == "note" and answer.lines > 1:
            out.append(("title", f"No error is in these {answer.lines:,} lines. A note is:"))
        if event.broad and not (answer.sure or answer.guess):
            out.append(("text", "Many programs say these words, and nothing here says that it was torch. If it was:"))
        out += _page(event.entry)
        if event.entry.level == "follower":
            out.append(("text", "Only the followers' words are in this log, not the reason. What to collect next:"))
            out += [("item", line) for line in COLLECT[:3]]
        elif not answer.sure and not answer.guess:
            out.append(("text", "This message is a broad one: read the causes as places to look, not as a verdict."))
    elif answer.symptom:
        out.append(("title", answer.symptom.title))
        for name in answer.symptom.entries:
            entry = entries()[name]
            what = entry.causes[0].what if entry.title == answer.symptom.title else entry.title
            out += [("cause", what), ("tell", entry.causes[0].tell), ("mend", entry.causes[0].mend)]
            out.append(("place", f"more: python -m ddplab why {name}"))
    else:
        what = "This is no text, and no message that I know is in it." if answer.binary else UNKNOWN
        what = "There was nothing to read." if answer.lines == 0 else what
        if answer.lines > 1 and not answer.binary:
            what = f"{NOTHING} {answer.lines:,} lines: no exception, and no message that I have a page for."
        out += [("title", what), ("text", "What to collect next:"), *(("item", line) for line in COLLECT)]
    for also in answer.also:
        known = f"{also.entry.title} ({also.entry.name})" if also.entry else _cut(also.text)
        out.append(("place", f"also in this log, line {also.line}: {known}"))
    return out


def _who(answer: Answer) -> str:
    event = answer.event
    where = f"line {event.line:,} of {answer.lines:,}: " if answer.lines > 1 else ""
    said = f"{where}{_cut(event.text)}" + (f" (at {event.place})" if event.place else "")
    if answer.calls:
        waits = "; ".join(f"{_ranks(ranks)} in {call}" for call, ranks in answer.calls.items())
        return f"The ranks do not wait in the same call: {waits}. {said}"
    if len(answer.alike) > 1:
        return f"{_ranks(answer.alike)} say the same. {said}"
    if answer.first is not None:
        verbs = {"follower": "only followed", "wait": "spoke first"}
        verb = verbs.get(event.entry.level if event.entry else "", "failed first")
        if event.entry and event.entry.name == "child-failed":
            verb = "failed first, as its launcher saw it"
        return f"rank {answer.first} {verb}. {said}"
    return f"{said} (which rank, the log does not say)" if answer.followed else said


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _beside(answer: Answer) -> list[str]:
    """What else the log has where only followers speak: torchrun's word for who was first, and words without a rank."""
    out = []
    if answer.root not in (None, answer.first):
        out.append(f"torchrun saw rank {answer.root} fail first; no traceback of that rank is in this log.")
    elif answer.alone and answer.entry.name != "child-failed":
        out.append("torchrun saw no other rank of this machine fail: the other end had ended well, or is elsewhere.")
    if answer.status > 1:
        out.append(
            f"Its exit code is {answer.status}; an exception's is 1. Look for `sys.exit({answer.status})` in the "
            "script and its libraries. 2 is argparse's too, or no such file; a shell adds 128 to a signal's number."
        )
    return out + [f"said before it, by no rank by name: {_cut(words)}" for words in answer.before]


def _raised_by_nobody_we_know(answer: Answer) -> list[tuple[str, str]]:
    message = answer.event.text
    out = [("who", _who(answer))]
    out += [("who", f"rank {rank} only followed: {_cut(words)}") for rank, words in sorted(answer.followed.items())]
    place = index.look_up(message)
    if place and place.file.startswith("ddplab/"):
        out.append(("title", f"ddplab itself says so, at {place}."))
        out.append(("text", "The message names what it got and what it wants; there is nothing more to know about it."))
        return out
    if place:
        out.append(("title", f"{UNKNOWN} But torch raises it, at {place}; I have no page for it."))
        out.append(("text", "Read those lines: the condition above the raise is what was not met."))
    elif found := index.look_up_library(message):
        out.append(
            ("title", f"{UNKNOWN} But torch's C++ says it ({found[0]}): “{_cut(found[1])}”; I have no page for it.")
        )
    else:
        out.append(("title", f"{UNKNOWN} In what torch says of ranks and GPUs I find no such words."))
        if answer.event.place:
            there = ", on that rank" if answer.first is not None else ""
            own = "of the script's own lines the last before it was raised"
            out.append(("text", f"Begin at {answer.event.place}{there}: {own}."))
            return [*out, ("text", COLLECT[-1])]
        out.append(("text", "Your own code's, a library's, or another torch's: its traceback names the line."))
    return [*out, ("text", "What to collect next:"), *(("item", line) for line in COLLECT)]


def _page(entry: Entry) -> list[tuple[str, str]]:
    out = [("title", f"{entry.title} ({entry.name})"), ("text", entry.means)]
    for cause in entry.causes:
        out += [("cause", cause.what), ("tell", cause.tell), ("mend", cause.mend)]
    if entry.lesson:
        file = lesson_file(entry.lesson)
        out.append(("place", f"shown in {where_shown(entry)}" + (f" ({file})" if file else "")))
    if entry.source:
        out.append(("place", f"raised at {index.raised_at(entry.source, entry.string)}"))
    if entry.only:
        out.append(("place", f"not caused here, only {entry.only}"))
    return out


def page(entry: Entry) -> str:
    """Return an entry's page as lines for a terminal."""
    return _lines(_page(entry))


def text(answer: Answer) -> str:
    """Return the answer as lines for a terminal."""
    return _lines(blocks(answer))


def _lines(blocks: list[tuple[str, str]]) -> str:
    width = max(40, min(shutil.get_terminal_size((100, 24)).columns, 100))
    labels = {"tell": "   how to tell: ", "mend": "   mend: ", "item": " - "}
    out, number, last = [], 0, ""
    for kind, words in blocks:
        number += kind == "cause"
        first = f"{number}. " if kind == "cause" else labels.get(kind, "")
        if kind in ("title", "cause") or (kind == "place" and last in ("mend", "item")):
            out.append("")
        rest = "   " if kind in ("cause", *labels) else ""
        out += textwrap.wrap(
            words, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
        )
        last = kind
    return "\n".join(out).lstrip("\n")


def box(answer: Answer) -> str:
    """Return the answer as HTML, in the theme's own colours."""
    out, inside, causes = [], False, 0
    for kind, words in blocks(answer):
        if kind in ("cause", "item") and not inside:
            out.append(f'<ol start="{causes + 1}">' if kind == "cause" else "<ul>")
            inside = kind
        if inside and kind not in ("cause", "tell", "mend", "item"):
            out.append("</ol>" if inside == "cause" else "</ul>")
            inside = False
        causes += kind == "cause"
        said = marked(words).replace("\n", "<br>")
        if kind == "who":
            out.append(f"<div><code>{html.escape(words)}</code></div>")
        elif kind == "title":
            out.append(f"<p><strong>{said}</strong></p>")
        elif kind in ("cause", "item"):
            out.append(f"<li>{said}")
        elif kind in ("tell", "mend"):
            out.append(f"<br><em>{'how to tell' if kind == 'tell' else 'mend'}:</em> {said}")
        else:
            out.append(f"<p>{_linked(said)}</p>")
    look = "border:1px solid var(--jp-border-color1,#888);border-radius:4px;padding:8px 14px;max-width:60em"
    return f'<div role="note" aria-label="why it failed" style="{look}">{"".join(out)}</div>'


def _linked(said: str) -> str:
    """Link the lesson's file, from the folder of the notebook, as JupyterLab resolves links."""

    def link(file: re.Match) -> str:
        return f'(<a href="{html.escape(os.path.relpath(ROOT / file[1]))}"><code>{file[1]}</code></a>)'

    return re.sub(r"\((lessons/[^)]+\.ipynb)\)", link, said)


def _cut(words: str, most: int = 200) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"
