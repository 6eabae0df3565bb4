"""Write what can be read off the lessons (README's map, each part's table, the ways through), and ERRORS.md.

    python tools/make_pages.py           # write
    python tools/make_pages.py --check   # write nothing; fail where a page is not what it would be

A cell tagged `in-readme` has its stored picture written to pictures/, named as its lesson, for README to show.
A lesson's first cell has its title, and says how long it takes. All else on these pages is written by hand.
"""

import argparse
import base64
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import error_pages
import nbformat
from run_notebooks import ROOT, read

# What a way leads through, in order. tests/test_course.py follows its links, and looks that nothing needed is left out.
WAYS = {
    "an hour and a quarter": ["1.1", "3.1", "4.1", "5.1"],
    "half a day": ["1.1", "1.2", "2.1", "3.1", "3.2", "3.3", "4.1", "4.4", "4.6", "5.1", "6.1"],
}
BEGIN, END = "<!-- made by tools/make_pages.py: -->", "<!-- until here -->"


class Page(NamedTuple):
    """A lesson or a part's page: its number ("4.1"), title, minutes (0 for a part's page), and file."""

    number: str
    title: str
    minutes: int
    path: Path


def pages(root: Path) -> list[Page]:
    found = []
    for path in sorted((root / "lessons").glob("*/*.ipynb")):
        notebook = read(path)
        title = notebook.cells[0].source.splitlines()[0].removeprefix("# ").partition(" · ")[2]
        time = re.search(r"\*\*Time:\*\* (\d+) minutes", notebook.cells[0].source)
        found.append(Page(path.name.split("_")[0], title, int(time[1]) if time else 0, path))
    return found


def link(page: Page, folder: Path, numbered: bool = True) -> str:
    words = f"{page.number} · {page.title}" if numbered else page.title
    return f"[{words}]({os.path.relpath(page.path, folder)})"


def beside(page: Page, folder: Path, root: Path) -> str:
    """Links from a page in `folder` to a lesson's exercises and their solutions; "" where it has none."""
    there = [(kind, root / kind / page.path.relative_to(root / "lessons")) for kind in ("exercises", "solutions")]
    return ", ".join(f"[{kind}]({os.path.relpath(path, folder)})" for kind, path in there if path.exists())


def table(lessons: list[Page], folder: Path, root: Path) -> str:
    rows = [
        f"| {it.number} | {link(it, folder, False)} | {it.minutes or ''} | {beside(it, folder, root)} |"
        for it in lessons
    ]
    return "\n".join(["|     | Lesson | Minutes | |", "|-----|--------|--------:|-|", *rows])


def map_of_all(found: list[Page], root: Path) -> str:
    """README's map: each part with its lessons, and the ways."""
    text = []
    for part in (it for it in found if it.number.endswith(".0")):
        lessons = [it for it in found if it.number[0] == part.number[0] and it is not part]
        text += [f"### Part {part.number[0]} · {link(part, root, False)}", "", table(lessons, root, root), ""]
    return "\n".join(text).rstrip()


def ways(found: list[Page], folder: Path) -> str:
    """The ways through the course, each with its links and how long it takes."""
    by_number, lines = {it.number: it for it in found}, []
    for name, numbers in WAYS.items():
        on_it = [by_number[number] for number in numbers]
        stops = " → ".join(f"[{it.number}]({os.path.relpath(it.path, folder)})" for it in on_it)
        minutes = sum(it.minutes for it in on_it)
        lines.append(
            f"- **In {name}** ({minutes} minutes of lessons, two to three times that with every turn): {stops}"
        )
    hours = round(sum(it.minutes for it in found if not it.number.startswith("9")) / 60)
    guide = os.path.relpath(ROOT / "workshop" / "GUIDE.md", folder)
    lines.append(
        f"- **In two days:** the parts in their order. They are {hours} hours, and [the instructor's "
        f"timetable]({guide}) picks eight of them, and leaves half as much for turns. "
        "Part 9 and the exercises come on top."
    )
    return "\n".join(lines)


def onward(page: Page, found: list[Page], written: str) -> str:
    """For the last cell of a lesson: where each way that passes here goes on, if its `Next` does not say so."""
    by_number, lines = {it.number: it for it in found}, []
    for name, numbers in WAYS.items():
        if page.number in numbers[:-1]:
            after = by_number[numbers[numbers.index(page.number) + 1]]
            if after.path.name not in written.partition("**Next:**")[2]:
                lines.append(f"In a hurry? With {name} for the course, go on with {link(after, page.path.parent)}.")
    return "\\\n".join(lines)


def between(text: str, made: str) -> str:
    """The text with what stands between the two marks replaced; as it is where it has no marks."""
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: f"{BEGIN}\n{made}\n{END}", text, flags=re.DOTALL)


def made(root: Path) -> dict[Path, bytes]:
    """Each page's file with what it should hold; the pictures of cells that README shows, too."""
    found, texts, pictures = pages(root), {}, {}
    readme = root / "README.md"
    before, heading, after = readme.read_text(encoding="utf-8").partition("## The lessons")
    texts[readme] = between(before, ways(found, root)) + heading + between(after, map_of_all(found, root))
    for page in found:
        notebook, folder = read(page.path), page.path.parent
        shown = [cell for cell in notebook.cells if "in-readme" in cell.metadata.get("tags", [])]
        pictures |= {root / "pictures" / f"{page.number}.png": picture_of(cell) for cell in shown}
        last = notebook.cells[-1]
        if page.number.endswith(".0"):
            lessons = [it for it in found if it.number[0] == page.number[0] and it is not page]
            last.source = between(last.source, table(lessons, folder, root))
        else:
            for cell in notebook.cells[:-1]:
                cell.source = between(cell.source, ways(found, folder))
            written = last.source.partition(BEGIN)[0].rstrip()
            further = onward(page, found, written)
            last.source = written + (f"\n\n{BEGIN}\n{further}\n{END}" if further else "")
        texts[page.path] = nbformat.writes(notebook).rstrip() + "\n"
    texts[root / "ERRORS.md"] = error_pages.page(root)
    return {path: text.encode() for path, text in texts.items()} | pictures


def picture_of(cell: nbformat.NotebookNode) -> bytes:
    """Return the PNG file that a cell has stored."""
    [picture] = [it.data["image/png"] for it in cell.outputs if "image/png" in it.get("data", {})]
    return base64.b64decode(picture)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a page differs")
    only_check = parser.parse_args().check
    files = made(ROOT).items()
    drifted = [(path, held) for path, held in files if not path.exists() or path.read_bytes() != held]
    for path, held in drifted:
        print(f"{path.relative_to(ROOT)} {'is not what tools/make_pages.py makes' if only_check else 'written'}")
        if not only_check:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(held)
    if not only_check:
        subprocess.run([sys.executable, ROOT / "tools" / "rehearsal_page.py"], check=True)  # it imports torch
    return 1 if drifted and only_check else 0


if __name__ == "__main__":
    sys.exit(main())
