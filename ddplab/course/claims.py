"""Predictions and what settles them, and claim boxes: a piece of folklore with the verdict that a cell has measured.

Cells that settle something are stored folded, and so is what is shown between a question and its answer (see `fold` in
tools/run_notebooks.py): nobody reads an answer by chance. Running such a cell shows what it says.
"""

import html
from dataclasses import dataclass, field
from string import ascii_lowercase
from typing import Any

from ddplab.course.controls import radio_buttons
from ddplab.pointer import pointing
from ddplab.screen import show
from ddplab.tables import marked

# A verdict is a word and a symbol first; the colour only repeats it, at least 3 to 1 on a light and on a dark page.
VERDICTS = {
    "true": ("✓", "#2e7d32"),
    "true if": ("◐", "#0277bd"),
    "misleading": ("≈", "#b26a00"),
    "false": ("✗", "#c62828"),
    "not settled": ("?", "#757575"),  # neither a cell nor what was read could tell
}
# What one guesses of a claim: verdict → its kind. Whether a claim misleads or is false would be a coin toss.
KINDS = dict(zip(VERDICTS, ["holds", "holds if …", "does not hold", "does not hold", "not settled"], strict=True))
# What the learner has guessed in this notebook, by the claims' numbers, and which of those that are settled were right.
guesses: dict[int, str] = {}
right: dict[int, bool] = {}
# Written out, and not the theme's variables, which JupyterLab takes out of a notebook that nobody has trusted yet.
BOX = "border:1px solid #757575;padding:10px 14px;margin:8px 0;max-width:46em;line-height:1.5"


@dataclass
class Prediction:
    """A question with its options, and the option the learner chose: `choice`, None until there is one."""

    question: str
    options: tuple[str, ...]
    choice: str | None = None
    _shown: bool = field(default=False, repr=False)  # in the cell that runs now

    def __str__(self) -> str:
        options = [f"  ({letter}) {text}" for letter, text in zip(ascii_lowercase, self.options, strict=False)]
        return "\n".join([f"Predict: {self.question}", *options])

    def _ipython_display_(self) -> None:
        if not self._shown:  # as the last line of the cell that asked, it is there already
            _ask(self)


@dataclass
class Claim:
    """What `claim` returns. A notebook shows it as a box, everything else as lines of text."""

    text: str
    verdict: str
    because: str
    measured: str
    row: int | None = None
    read: str = ""  # where it was read, if no cell can measure it; `measured` is empty then
    guessed: str = ""  # one sentence about the learner's own guess, or nothing

    @property
    def _heading(self) -> str:
        return "Claim" if self.row is None else f"Claim {self.row}"

    @property
    def _verdict(self) -> str:
        return self.verdict + " …" if self.verdict == "true if" else self.verdict

    def __str__(self) -> str:
        rows = [
            (self._heading, f"“{self.text}”"),
            ("Verdict", f"{VERDICTS[self.verdict][0]} {self._verdict}: {self.because}"),
            ("Measured", self.measured),
            ("Read", self.read),
            ("You", self.guessed),
        ]
        return "\n".join(f"{name:<10}{text}" for name, text in rows if text)

    __repr__ = __str__

    def _repr_html_(self, box: str = BOX) -> str:
        you = f"<div>{self.guessed}</div>" if self.guessed else ""
        symbol, colour = VERDICTS[self.verdict]
        return (
            f'<div role="note" aria-label="{html.escape(f"{self._heading}: {self._verdict}")}" '
            f'style="{box};border-left:6px solid {colour}"><small>{self._heading}</small>'
            f"<div>“{marked(self.text)}”</div>"
            f"<div><strong>{symbol} {self._verdict}</strong>: {marked(self.because)}</div>"
            f"<div><small>{'Read' if self.read else 'Measured'}:</small> "
            f"{marked(self.read or self.measured)}</div>{you}</div>"
        )


class Claims(tuple[Claim, ...]):
    """Claims that one cell settles, in one box, one below the other: `Claims([first, second])`."""

    def __str__(self) -> str:
        return "\n\n".join(map(str, self))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        joined = BOX.replace("padding:10px 14px;margin:8px 0", "padding:5px 14px;margin:0 0 -1px")
        return f'<div style="padding-bottom:1px">{"".join(it._repr_html_(joined) for it in self)}</div>'


class Folded(Claims):
    """Claims below each other, of each its verdict and its text; what was measured unfolds."""

    def _repr_html_(self) -> str:
        told = ""
        for it in self:
            verdict = f"<strong>{VERDICTS[it.verdict][0]} {it._verdict}</strong>"
            head = f"<summary>{it.row or ''} {verdict}: “{marked(it.text)}”</summary>"
            what = (
                f"{marked(it.because)}<div><small>Measured:</small> {marked(it.measured)}</div><div>{it.guessed}</div>"
            )
            told += f'<details style="margin:3px 0">{head}<div style="margin:2px 0 6px 1.2em">{what}</div></details>'
        return f'<div role="note" aria-label="claims" style="{BOX}">{told}</div>'


@dataclass
class Settled:
    """What `settle` returns: the answer to a prediction. A notebook shows it as a box, everything else as text."""

    question: str
    answer: str
    because: str
    predicted: str = ""  # one sentence about the learner's own prediction, or nothing
    right: bool | None = None  # was it as predicted? None without a prediction

    def __str__(self) -> str:
        rows = [("Question", self.question), ("Answer", f"{self.answer}: {self.because}"), ("You", self.predicted)]
        return "\n".join(f"{name:<10}{text}" for name, text in rows if text)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        sign = {None: "→", True: "✓", False: "↻"}[self.right]
        you = f"<div>{marked(self.predicted)}</div>" if self.predicted else ""
        return (
            f'<div role="note" aria-label="{html.escape(f"Answer: {self.answer}")}" style="{BOX}">'
            f"<small>{marked(self.question)}</small>"
            f"<div><strong>{sign} {marked(self.answer)}</strong>: {marked(self.because)}</div>{you}</div>"
        )


@pointing
def settle(prediction: Prediction, answer: str, *, because: str, holds: bool) -> Settled:
    """Answer a prediction with what the cells above have just measured. Let it be the last line of its cell.

    answer: which of the prediction's options turned out right.    because: one sentence, with the number measured.
    holds: what the cells have shown to be so; when it is False the answer is not what this machine measured, and
        `AssertionError` says so.

    `because` may mark code with backticks. When the learner has chosen an option, the box says whether it matched.
    Raises ValueError for an `answer` that is not among the prediction's options.
    """
    predicted = _compare(prediction, answer)
    if not holds:
        raise AssertionError(
            f"the answer “{answer}” to “{prediction.question}” is not what this machine measured ({because}). "
            "If nothing in the cells above was changed, please report it."
        )
    right = None if prediction.choice is None else prediction.choice == answer
    return Settled(prediction.question, answer, because, predicted, right)


@pointing
def claim(
    text: str,
    *,
    verdict: str,
    because: str,
    measured: Any = None,
    holds: bool | None = None,
    read: str = "",
    row: int | None = None,
) -> Claim:
    """A claim, its verdict and the number just measured. Let it be the last line of its cell.

    text: the claim in our own words.            verdict: "true", "true if", "misleading", "false", "not settled".
    because: one sentence.                       measured: the number, formatted so that it is stable.
    holds: what the cell has just shown to be so; when it is False the verdict is not what this machine
        measured, and `AssertionError` says so.
    read: in place of `measured` and `holds`, where it was read, for the few claims that no cell can measure (who
        wrote a paper). The box then says so. "not settled" is for these alone.
    row: its number in the table of claims.

    `because`, `text` and `measured` may mark code with backticks. Raises ValueError for an unknown verdict, or for a
    claim that is neither measured nor read, or both.
    """
    if verdict not in VERDICTS:
        raise ValueError(f"verdict is {verdict!r}; it must be one of {', '.join(map(repr, VERDICTS))}")
    by_measuring, by_reading = measured is not None and holds is not None, bool(read)
    if by_measuring == by_reading or (verdict == "not settled" and by_measuring):
        raise ValueError("a claim is measured, with measured=… and holds=…, or it can only be read about, with read=…")
    if by_measuring and not holds:
        raise AssertionError(
            f"the verdict “{verdict}” on “{text}” is not what this machine measured ({measured}). "
            "If nothing in the cells above was changed, please report it."
        )
    return Claim(text, verdict, because, "" if read else str(measured), row, read, _compare_guess(row, verdict))


@pointing
def predict(question: str, *options: str) -> Prediction:
    """Ask before the cell that settles it: radio buttons in a live notebook, text elsewhere.

    The chosen option is in `.choice` of the Prediction that comes back; pass that to `settle`.
    Raises ValueError with fewer than two options, or the same one twice.
    """
    if len(options) < 2 or len(set(options)) < len(options):
        raise ValueError(f"predict needs two or more different options, got {list(options)}")
    prediction = Prediction(question, options)
    _ask(prediction)
    _mark_as_shown(prediction)
    return prediction


def _compare_guess(row: int | None, verdict: str) -> str:
    if row not in guesses:
        return ""
    right[row] = guesses[row] == KINDS[verdict]
    so_it_is = ", and so it is" if right[row] else ""
    return f"You guessed “{guesses[row]}”{so_it_is}. Right so far: {sum(right.values())} of {len(right)}."


def _compare(prediction: Prediction, answer: str) -> str:
    if answer not in prediction.options:
        raise ValueError(f"answer is {answer!r}; the options were {', '.join(map(repr, prediction.options))}")
    if prediction.choice is None:
        return ""
    if prediction.choice == answer:
        return f"You predicted “{answer}”, and so it is."
    return f"You predicted “{prediction.choice}”. It turned out “{answer}”."


def _ask(prediction: Prediction) -> None:
    def choose(option: str) -> None:
        prediction.choice = option

    question = f"<strong>Predict:</strong> {marked(prediction.question)}"
    show(prediction, lambda: radio_buttons(question, prediction.options, prediction.choice, choose))


def _mark_as_shown(prediction: Prediction) -> None:
    """Until the running cell ends. (Cell numbers would not do: nbval runs every cell as number 1.)"""
    from IPython import get_ipython

    if (shell := get_ipython()) is None:
        return
    prediction._shown = True

    def forget(_result: object) -> None:
        prediction._shown = False
        shell.events.unregister("post_run_cell", forget)

    shell.events.register("post_run_cell", forget)
