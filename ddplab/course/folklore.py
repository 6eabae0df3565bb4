"""All claim boxes of the course on one board, read from what the cells of rooms and lessons have stored.

Nothing here is typed by hand: a claim, its verdict and its number are those of the box, as it was when the lesson
was last run and saved. Run a lesson on your machine, save it, and the table has your numbers.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ddplab.course.claims import KINDS, VERDICTS, Claim, guesses, right
from ddplab.course.controls import widget
from ddplab.plots import ON_COLOUR, drawing
from ddplab.pointer import pointing
from ddplab.screen import live
from ddplab.tables import markdown_table, marked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEXTS = {  # what to call a text, and the rows of its claims
    "one GPU fails, two learn": range(1, 19),
    "only one GPU is used": range(19, 34),
    "training does not start": range(34, 47),
    "parameters do not move": range(47, 59),
    "a guide": range(59, 79),
}
HATCHES = dict(zip(VERDICTS, ["", "..", "//", "xx", "oo"], strict=True))  # colour is not the only sign
SYMBOL = "|".join(re.escape(symbol) for symbol, _ in VERDICTS.values())
BOX = re.compile(
    rf"Claim +(?P<row>\d*) *“(?P<text>.*)”\n"
    rf"Verdict +(?:{SYMBOL}) (?P<verdict>{'|'.join(VERDICTS)})(?: …)?: "
    rf"(?P<because>.*)\n(?P<how>Measured|Read) +(?P<measured>.*)"
)


@dataclass(frozen=True)
class Box:
    """One claim box. `row`: its number in the list of claims, None for other folklore. `link`: to its heading."""

    row: int | None
    text: str
    verdict: str
    because: str
    measured: str
    lesson: str  # "2.2", "4.1"
    link: str


@pointing
def boxes(folder: str | Path = "..") -> list[Box]:
    """The claim boxes stored in a folder of lessons, by parts: those with a row first, then by lesson.

    A numbered claim is settled in its room (9.1 to 9.5), or in a lesson. Where both have a box, the room's counts.
    Raises FileNotFoundError where the folder has no lessons with boxes in them.
    """
    found = [box for path in sorted(Path(folder).glob("*/[0-9]*.ipynb")) for box in _boxes_of(path)]
    if not found:
        raise FileNotFoundError(f"no claim boxes in {folder}: give the folder of the lessons, saved with their outputs")
    in_rooms = {box.row for box in found if box.lesson.startswith("9.")}
    found = [box for box in found if box.lesson.startswith("9.") or box.row is None or box.row not in in_rooms]
    return sorted(found, key=lambda box: (box.row is None, box.row or 0, box.lesson))


def table(boxes: Iterable[Box]) -> str:
    """The boxes in Markdown, a folded table for each text: claim, verdict, and below it what was measured; a link."""
    boxes, folded = list(boxes), []
    for text, rows in {"yours": range(79, 99), **TEXTS, "from elsewhere": [None]}.items():
        if own := [box for box in boxes if box.row in rows]:
            led = [box.lesson if box.link == "#" else f"[{box.lesson}]({box.link})" for box in own]
            lines = [[str(box.row or ""), box.text, _unfolds(box), to] for box, to in zip(own, led, strict=True)]
            head = f"<summary>{text}: {len(own)} claim{'s' * (len(own) > 1)}</summary>"
            made = markdown_table(["", "claim", "verdict", "settled in"], lines)
            folded.append(f"<details>{head}\n\n{made}\n\n</details>")
    return "\n\n".join(folded)


def _unfolds(box: Box, hint: str = "") -> str:
    found = f"{VERDICTS[box.verdict][0]} **{box.verdict}**"
    first, then = (hint, f"{found}: ") if hint else (found, "")
    return f"<details><summary>{first}</summary>{then}{box.because}. *Measured:* {box.measured}</details>"


def _told(boxes: Iterable[Box]) -> list[list[Any]]:
    return [[it.row, *map(marked, (it.text, it.verdict, it.because, it.measured)), it.lesson, it.link] for it in boxes]


def board(boxes: Iterable[Box], *yours: Claim, said: Mapping[int, bool] | None = None) -> None:
    """Show the boxes: in a live notebook with search and a filter, in a saved file as tables. yours: come first.

    said: row → whether the learner judged it right, as `quiz` returns it; what was guessed in this session counts too,
    and above stands how many of all those were otherwise.
    """
    judged = {str(row): so for row, so in (right | dict(said or {})).items()}
    if judged:
        print(f"You judged {len(judged)} of these claims; {[*judged.values()].count(False)} turned out otherwise.")
    own = [Box(it.row, it.text, it.verdict, it.because, it.measured, "yours", "#") for it in yours]
    boxes = [*own, *boxes]
    _show(boxes, table(boxes), lambda: widget("board", claims=_told(boxes), said=judged))


def quiz(boxes: Iterable[Box]) -> dict[int, bool]:
    """Ask of five claims at a time, drawn by chance, whether they hold, and count mistakes by their kind.

    In a saved file the same five stand, with what was found folded. Returns row → whether it was said right, as yet.
    """
    asked = [box for box in boxes if box.row is not None and box.verdict != "not settled"]
    few = [[box.text, _unfolds(box, "what was found"), f"[{box.lesson}]({box.link})"] for box in asked]
    five = markdown_table(["claim", "does it hold?", ""], random.Random(5).sample(few, 5))
    said: dict[int, bool] = {}

    def asking() -> Any:
        page = widget("quiz", claims=_told(asked), said={})
        page.observe(lambda change: said.update({int(row): it for row, it in change["new"].items()}), "said")
        return page

    _show(asked, five, asking)
    return said


@pointing
def guess(room: str | Mapping[int, str], folder: str | Path = "..", rows: Container[int] | None = None) -> None:
    """Let the learner guess which claims of a room ("9.2") hold before its cells settle them; nothing tells it here.

    The claims stand as the room settles them, and each one's box then says what was guessed (see `claim`). folder: that
    of the lessons. rows: the numbers of those asked for, all if None. Raises FileNotFoundError where there are none.
    In place of a room the claims themselves may stand: number → claim.
    """
    if not isinstance(room, str):
        _ask([Box(row, text, *[""] * 5) for row, text in room.items()])
        return
    own = [box for path in sorted(Path(folder).glob(f"*/{room}_*.ipynb")) for box in _boxes_of(path)]
    own = [box for box in own if box.row is not None and (rows is None or box.row in rows)]
    if not own:
        raise FileNotFoundError(
            f"no claim boxes of {room} in {folder}: run the lesson to its end, save it, and come back"
        )
    _ask(own)


def _ask(own: list[Box]) -> None:
    claims = [[str(box.row), box.text] for box in own]
    saved = markdown_table(["", "claim: holds, holds if …, does not hold, or not settled?"], claims)
    _show(own, saved, lambda: _guesses([[number, marked(text)] for number, text in claims]))


def _guesses(claims: list[list[str]]) -> Any:
    signs = [[kind, VERDICTS[verdict][0]] for verdict, kind in KINDS.items() if verdict != "misleading"]
    asked = {number for number, _ in claims}  # another list of the lesson keeps its own
    guessed = {str(row): it for row, it in guesses.items() if str(row) in asked}
    page = widget("guesses", claims=claims, verdicts=signs, guessed=guessed)
    page.observe(lambda change: guesses.update({int(row): it for row, it in change["new"].items()}), "guessed")
    return page


def _show(boxes: list[Box], in_a_saved_file: str, make: Callable[[], Any]) -> None:
    from IPython.display import display

    data = {"text/markdown": in_a_saved_file, "text/plain": f"{len(boxes)} claims"}
    if live():
        seen, _ = make()._repr_mimebundle_()
        data |= {name: view for name, view in seen.items() if name != "text/plain"}
    display(data, raw=True)


def verdicts_by_text(boxes: Iterable[Box]) -> Figure:
    """Draw a bar for each text, all equally long, with a piece for each verdict and its number of claims."""
    boxes, left = list(boxes), [0.0] * len(TEXTS)
    of = [max(1, sum(it.row in rows for it in boxes)) for rows in TEXTS.values()]
    with drawing(8, 3) as figure:
        axis = figure.add_subplot(xlabel="% of its claims")
        for verdict, hatch in HATCHES.items():
            counts = [sum(it.verdict == verdict and it.row in rows for it in boxes) for rows in TEXTS.values()]
            shares = [100 * count / all_of_it for count, all_of_it in zip(counts, of, strict=True)]
            bars = axis.barh([*TEXTS], shares, left=left, hatch=hatch, edgecolor=ON_COLOUR, label=verdict)
            patch = {"facecolor": bars[0].get_facecolor(), "edgecolor": "none", "pad": 1}
            numbers = [count or "" for count in counts]
            axis.bar_label(bars, numbers, label_type="center", color=ON_COLOUR, bbox=patch)
            left = [before + share for before, share in zip(left, shares, strict=True)]
        axis.invert_yaxis()
        axis.legend(loc="upper center", bbox_to_anchor=(0.4, -0.2), ncols=5)
    return figure


def _boxes_of(path: Path) -> Iterable[Box]:
    heading = ""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            headings = re.findall(r"^#+ (.+)$", "".join(cell["source"]), re.MULTILINE)
            heading = headings[-1] if headings else heading
        for output in cell.get("outputs", []):
            told = "".join(output.get("data", {}).get("text/plain", ""))
            for match in filter(None, map(BOX.match, told.split("\n\n"))):  # a box may hold several claims
                row = int(match["row"]) if match["row"] else None
                link = f"../{path.parent.name}/{path.name}#{quote(heading.replace('`', '').replace(' ', '-'))}"
                measured = match["measured"] if match["how"] == "Measured" else f"nothing; read: {match['measured']}"
                text = (match["text"], match["verdict"], match["because"], measured)
                yield Box(row, *text, path.name.split("_")[0], link)
