"""Your turn: a few lines that the learner writes in the middle of a lesson, judged by what they leave, and drawn.

    turn("3.3.a", "Everybody's mean", mean, given=lambda rank, size: (torch.ones(2) * rank,), ranks=(2, 3), mistakes=[
        (total, "every rank holds the sum", "`all_reduce` adds up. What makes a mean of a sum?"),
    ])

A mistake is a row: a function that makes it, what it is, and a hint. An answer that leaves what that function leaves
has made that mistake; so each row is its own sample for the tests.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ddplab.checks import CannotCheck, NotFilledIn, NotYet, exercise, place_in, place_of
from ddplab.checks.common import PATIENCE, WAITING, may_be_slow, needs_function
from ddplab.checks.hints import COMMON, first_line, hint_for
from ddplab.checks.relations import Given, Rows, close, relation
from ddplab.course.films import Frame, frames, name_of, strip
from ddplab.launcher import launch
from ddplab.run import RankError, RankTimeoutError
from ddplab.tables import HTML, brief, html_table, marked

WRONG, WAITS = "✗", "…"
LONG = 60  # characters of a cell that is still one line
NOTHING, BACK = "nothing", "what came back is "
ELSEWHERE = r"^rank (\d+) is not in a collective: it is at (?!turns\.py|lesson_\d).*?(line \d+(?:, in \S+)?)$"
MET = re.compile("^returned .*?(: the check met| that could not be)")
Mistake = tuple[Callable[..., Any], str, str]  # a function that makes it, what it is, and a hint


@dataclass
class Left:
    """What a function left: the name of each row (a rank, or a case), its numbers or words, and what became of it.

    fate: row → "raised KeyError: …", whole, or "waits in all_reduce, line 4", for rows that came to no end; "returned a
        list of 3: …" where what came back is of no use to the check.
    reason: what the learner's code raised, in full. place: on which line of theirs.
    film: its frames, of a tensor that was `filmed`.
    silent: the function returned nothing whenever it was called in this process. at_times: nothing at times.
    late: rows of which the function had returned when something was raised.
    """

    rows: dict[str, list[Any]]
    fate: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    place: str = ""
    film: Sequence[Frame] = ()
    silent: bool = False
    at_times: bool = False
    late: set[str] = field(default_factory=set)

    def same(self, other: Left) -> bool:
        """Tell whether both left the same, up to rounding, or failed in the same way."""
        fates = [{row: MET.sub("met", fate) for row, fate in it.fate.items()} for it in (self, other)]
        kinds = [{row: re.split(r"[:,]", fate)[0] for row, fate in it.items()} for it in fates]
        failed = kinds[0] == kinds[1] and self.late == other.late
        return self.rows.keys() == other.rows.keys() and failed and not self.off(other)

    def off(self, wanted: Left) -> list[tuple[str, int]]:
        """Return the row and the place of each thing that is not as wanted, in the table's order."""
        found = []
        for row, cells in wanted.rows.items():
            mine = self.rows.get(row, [])
            for place in range(max(len(cells), len(mine))):
                if place >= min(len(cells), len(mine)) or not close(mine[place], cells[place]):
                    found.append((row, place))
        return found


@dataclass
class Beside:
    """The picture under a turn: what is wanted and what the learner's lines left, each wrong place marked."""

    wanted: Left
    yours: Left | None  # None while nothing is written
    heads: Sequence[str] = ()

    def __str__(self) -> str:
        lines = []
        for name, rows in self._tables():
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            lines.append(f"  {name}")
            lines += ["    " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows if any(row)]
        return "\n".join([*lines, *(textwrap.fill(said, 100, subsequent_indent="    ") for said in self._said())])

    def _repr_html_(self) -> str:
        boxes = ""
        for name, (heads, *rows) in self._tables():
            table = html_table(heads, [[_sign(row), *map(_cell, cells)] for row, *cells in rows], name, row_heads=True)
            boxes += f'<div style="margin:4px 24px 4px 0"><b>{name}</b>{table}</div>'
        film = f"<b>your film</b>{strip(self.yours.film)}" if self.yours and self.yours.film else ""
        look = "white-space:pre-wrap;overflow-wrap:anywhere;max-width:60em;max-height:16em;overflow:auto"
        look += ";border-left:4px solid #d84343;padding-left:8px;margin:4px 0"
        said = "".join(f'<div style="{look}">{marked(it)}</div>' for it in self._said())
        return f'<div style="display:flex;flex-wrap:wrap;align-items:flex-start">{boxes}</div>{said}{film}'

    def _said(self) -> list[str]:
        """Return what was raised, whole, once for the rows that raised it: their cells say only its kind."""
        rows: dict[str, list[str]] = {}
        for row, fate in (self.yours.fate if self.yours else {}).items():
            rows.setdefault(fate, []).append(row)
        return [f"{', '.join(those)} {fate}" for fate, those in rows.items() if ": " in fate]

    def _tables(self) -> list[tuple[str, list[list[str]]]]:
        """Return the name of each table and its lines: heads, then a row's name, its cells, and what became of it."""
        if self.yours is None:
            return [("wanted", self._lines(self.wanted))]
        yours = self._lines(self.yours)
        if self.yours.same(self.wanted):
            return [("yours, as wanted", yours)]
        return [("wanted", self._lines(self.wanted)), ("yours", yours)]

    def _lines(self, left: Left) -> list[list[str]]:
        off = left.off(self.wanted)
        lines = [["", *self.heads]]
        for row, wanted in self.wanted.rows.items():
            held = [brief(cell) for cell in left.rows.get(row, [])]
            if any(at == row for at, _ in off) and row not in left.fate:
                held += ["nothing"] * (len(wanted) == len(held) + 1 or not held)
                held = [f"{WRONG} {cell}" if (row, place) in off else cell for place, cell in enumerate(held)]
            lines.append([row, *held])
        width = max(map(len, lines))
        fates = ["", *(left.fate.get(row, "").partition(": ")[0] for row in self.wanted.rows)]
        signs = [f"{WAITS if fate.startswith('waits') else WRONG} {fate}" if fate else "" for fate in fates]
        padded = [line + [""] * (width - len(line)) for line in lines]
        return [[*line, sign] for line, sign in zip(padded, signs, strict=True)] if any(signs) else padded


def _cell(shown: str) -> str:
    if not shown.startswith((WRONG, WAITS)):
        return shown
    ink = "#d84343" if shown.startswith(WRONG) else "#8a8a8a"  # an untrusted notebook would lose a variable
    look = f"border:2px solid {ink};padding:0 4px"
    if len(shown) > LONG:  # else who reads its end has to scroll sideways
        look += ";display:inline-block;max-width:44em;white-space:normal;text-align:left"
    return HTML(f'<b style="{look}">{marked(shown)}</b>')


def _sign(row: str) -> str:
    """Return the name of a row; a rank's has its sign before it."""
    rank = re.fullmatch(r"rank (\d+)", row)
    return name_of(int(rank[1])) if rank else row


class Turn(NamedTuple):
    """A registered turn: the function that is right, the mistakes, and how what a function left is judged.

    known: what a function leaves on so many ranks, `known(function, size)`, asked for once and kept.
    judged: judges what is left on each number of ranks, `judged(lambda size: …)`. Returns the picture, raises NotYet.
    """

    right: Callable[..., Any]
    mistakes: Sequence[Mistake]
    known: Callable[[Callable[..., Any], int], Left]
    judged: Callable[[Callable[[int], Left]], Beside]


TURNS: dict[str, Turn] = {}


def waiting(mistake: Callable[..., Any], row: str = "", fate: str = "") -> Callable[..., Any]:
    """Say of a mistake that ranks wait for ever. To try it takes seconds: only who waits as well has to be asked.

    row, fate: how one rank's fate begins there, "waits in send", say: then only who shares that has to be.
    """
    mistake.waits = (row, fate)
    return mistake


def leaving(words: str, mistake: Callable[..., Any]) -> Callable[..., Any]:
    """Say of a mistake that these words are in what it leaves. To try it takes seconds: others need not wait."""
    mistake.leaves = words
    return mistake


def turn(
    id: str,
    title: str,
    right: Callable[..., Any],
    given: Callable[[int, int], tuple] | Mapping[str, Callable[[], tuple]],
    mistakes: Sequence[Mistake],
    *,
    ranks: Sequence[int] = (),
    call: Callable[..., Any] | None = None,
    look: Callable[..., Any] | None = None,
    heads: Sequence[str] = (),
    hints: Mapping[str, str] | None = None,
    otherwise: str,
    device: str | None = None,
) -> None:
    """Register a turn: an exercise in the middle of a lesson, `check("3.3.a", function)`.

    Args:
        right: does what is asked for; what it leaves is wanted.
        given: with `ranks`, the function's arguments on a rank: `given(rank, size)`, called in the rank. Without, what
            each case is called, and a function that returns its arguments.
        mistakes: rows of a function that makes a mistake, what the mistake is, and a hint.
        ranks: the numbers of ranks to try it on; none for a function that runs in the notebook.
        call: how an answer is tried where something else calls it, or somewhere else, on virtual GPUs, say:
            `call(answer, *arguments)`. What it returns takes the place of what the answer returns.
        look: what counts of what was left, `look(returned, *arguments)`: numbers, words or tensors, nested at will. The
            returned value when left out, and where that is None the first argument.
        heads: what the columns are called. hints: words of an error's message, and what to say to who met it.
        otherwise: the hint for an answer that nobody expected.
        device: "cpu" for what is said of gloo, "virtual" for what is said of CUDA and NCCL; as `launch` chooses, when
            left out.
    """
    as_given = look is None and call is None  # an answer that does nothing leaves its first argument
    look = look or (lambda returned, *arguments: arguments[0] if returned is None else returned)

    def tried(fn: Callable[..., Any], size: int) -> Left:
        said: list[str] = []
        heard = fn if size or inspect.isclass(fn) else noting(fn, said)
        if call:
            heard = functools.partial(_called_by, call, heard) if size else functools.partial(call, heard)
            heard.of_ours = True
        left = what_is_left(heard, given, size, look, device, said)
        left.silent = {*said} - {""} == {NOTHING}
        left.at_times = NOTHING in said
        return left

    known = functools.cache(tried)

    def judge(answer: Callable[..., Any]) -> Beside:
        needs_function(title, answer)
        if says_nothing(answer):
            raise NotFilledIn
        return judged(functools.partial(tried, answer))

    def judged(left_on: Callable[[int], Left]) -> Beside:
        shown = None
        for size in ranks or (0,):
            wanted = known(right, size)
            if wanted.fate:
                known.cache_clear()  # it may be the moment: a machine that is very busy, say
                row, fate = next(iter(wanted.fate.items()))
                raise CannotCheck(f"our own way does not work on this machine either: {row} {_told(fate)}")
            left = left_on(size)
            picture = Beside(wanted, left, heads)
            if left.fate or left.off(wanted):
                where = f"on {size} rank{'s' * (size > 1)}, " if len(ranks) > 1 else ""
                what, hint = named(left, size) or unexpected(left, wanted, size)
                raise NotYet(where + what, hint, picture)
            shown = shown or picture
        return shown

    def named(left: Left, size: int) -> tuple[str, str] | None:
        waits = any(fate.startswith(("waits", "never")) for fate in left.fate.values())
        held = f"{[*left.rows.values(), *left.fate.values()]}"
        asked = [row for row in mistakes if not hasattr(row[0], "waits") and getattr(row[0], "leaves", "") in held]
        if waits:
            those = [(row, *row[0].waits) for row in mistakes if hasattr(row[0], "waits")]
            asked = [row for row, rank, fate in those if left.fate.get(rank, "").startswith(fate)] + asked
        return next(((what, hint) for wrong, what, hint in asked if known(wrong, size).same(left)), None)

    def unexpected(left: Left, wanted: Left, size: int) -> tuple[str, str]:
        hint = "Is there a `return`?" if left.silent and not wanted.silent else otherwise
        before = ""
        if size != next(iter(ranks), 0):  # it has passed on the numbers of ranks before this one
            before = f"; on {ranks[0]} rank{'s' * (ranks[0] > 1)} it was right"
        if left.fate:
            row, fate = next(iter(left.fate.items()))
            hint = hint_for(left.reason, hints or {}) or hint_for(left.reason, COMMON) or hint
            return f"{row} {_told(fate)}{left.place}{_partner(left, row)}{before}", hint
        if as_given and known(_nothing, size).same(left):
            return f"everything is as it was{before}", hint
        row, place = left.off(wanted)[0]
        mine, asked = ([*map(_quoted, it.rows[row]), *["nothing"] * 99][place] for it in (left, wanted))
        if mine == asked:  # alike to four digits, as the table shows them
            mine, asked = (repr(it.rows[row][place]) for it in (left, wanted))
        clause = relation(left.rows, wanted.rows, {} if size or call else _by_name(right, given), right_with)
        further = _further(left.rows[row], wanted.rows[row], place, heads)
        if mine == "None" and left.at_times and not left.silent and not wanted.at_times:
            hint = "Is there a `return` on each way through the function? Here nothing came back."
        column = _column(heads, place, len(wanted.rows[row]))
        told = f"{row}: {column} is {mine}, and should be {asked}{further}"
        if asked == "right":  # a verdict of the check's own, not something that the answer has left
            told = f"{row}, {column}: {mine}{further}".replace('"', "")
        return f"{told}{'; ' if further else ': '}{clause}".rstrip(";: ") + before, hint

    def right_with(given: Given) -> Rows:
        cases = {row: functools.partial(tuple, it.values()) for row, it in given.items()}
        return what_is_left(right, cases, 0, look).rows

    TURNS[id] = Turn(right, mistakes, known, judged)
    judge.__module__ = f"ddplab.checks.lesson_{'_'.join(id.split('.')[:2])}"
    exercise(id, title, blank=lambda: Beside(known(right, next(iter(ranks), 0)), None, heads))(judge)


def _nothing(*arguments: Any) -> None:
    """Do what an answer does that changes nothing."""


def _column(heads: Sequence[str], place: int, width: int) -> str:
    """Return what a cell is called: the head of its column, or "number 2 of weights" where several have one head."""
    padded = [*heads, *[""] * (width - len(heads))]
    first = next((n for n in range(min(place, width - 1), -1, -1) if padded[n]), None)
    if first is None:
        return f"number {place + 1}"
    several = first < place or padded[place + 1 : place + 2] == [""]
    return f"number {place - first + 1} of {padded[first]}" if several else padded[place]


def _further(mine: Sequence[Any], wanted: Sequence[Any], place: int, heads: Sequence[str]) -> str:
    """Say what words stand wrong beyond the first place that is wrong: they may tell more than that one."""
    cells = [*zip(heads, mine, wanted, strict=False)][place + 1 :]
    words = [(head, a) for head, a, b in cells if head and isinstance(a, str) and isinstance(b, str) and a != b]
    return "".join(f"; {head}: {_quoted(cell)}" for head, cell in words)


def _by_name(fn: Callable[..., Any], given: Mapping[str, Callable[[], tuple]]) -> Given:
    """Return the arguments of each case by their names; none where one is no number, truth or word."""
    cases = {case: arguments() for case, arguments in given.items()}
    if not all(isinstance(it, int | float | str) for arguments in cases.values() for it in arguments):
        return {}
    names = [*inspect.signature(fn).parameters]
    return {case: dict(zip(names, arguments, strict=False)) for case, arguments in cases.items()}


def _quoted(cell: Any) -> str:
    """Return a cell as a sentence has it: several words in quotation marks."""
    return f'"{brief(cell)}"' if isinstance(cell, str) and " " in cell else brief(cell)


def noting(fn: Callable[..., Any], said: list[str]) -> Callable[..., Any]:
    """Return the function; whenever it is called, what kind of thing came back is appended to `said`."""

    @functools.wraps(fn)
    def heard(*args: Any, **kwargs: Any) -> Any:
        said.append("")  # for who raises
        returned = fn(*args, **kwargs)
        said[-1] = kind_of(returned)
        return returned

    return heard


def _called_by(call: Callable[..., Any], fn: Callable[..., Any], *arguments: Any) -> Any:
    """Have `call` try a function, in a rank. An error that it meets after that tells what came back."""
    said: list[str] = []
    try:
        return call(fn if inspect.isclass(fn) else noting(fn, said), *arguments)
    except Exception as error:
        if said and said[-1]:
            error.add_note(BACK + said[-1])
        raise


def kind_of(returned: Any) -> str:
    """Return what kind of thing it is, and how many it holds: "a tuple of 3"."""
    if returned is None:
        return NOTHING
    kind = type(returned).__name__.replace("VTensor", "Tensor")  # a virtual GPU's
    long = f" of {len(returned)}" if isinstance(returned, list | tuple | Mapping | set) else ""
    if isinstance(returned, torch.Tensor):
        long = f" of shape {tuple(returned.shape)}"
    return f"{'an' if kind[0] in 'aeioAEIO' else 'a'} {kind}{long}"


def says_nothing(answer: Callable[..., Any]) -> bool:
    """Tell whether the hole in a function, or in a method of a class, is as it was: `...`, at most a return after it.

    Who writes above `...`, or below it, and leaves it there, has written something.
    """
    if inspect.isclass(answer):  # of a class that was defined in a cell Python finds no source; of its methods it does
        return any(says_nothing(member) for member in vars(answer).values() if inspect.isfunction(member))
    try:
        lines = [line.strip() for line in inspect.getsource(answer).splitlines() if line.strip()]
    except (OSError, TypeError):  # not written in a cell or a file
        return False
    places = [n for n, line in enumerate(lines) if re.search(r"(^|: *)\.\.\.( *#.*)?$", line)]
    return any(
        (lines[n] != "..." or lines[n - 1].startswith(("# your turn", "def ", '"""')))
        and all(line.startswith(("return ", "#", '"""')) for line in lines[n + 1 :])
        for n in places
    )


def what_is_left(
    fn: Callable[..., Any],
    given: Any,
    size: int,
    look: Callable[..., Any],
    device: str | None = None,
    said: Sequence[str] = (),
) -> Left:
    """Call a function on its arguments, on `size` ranks or (0) in this process, and return what it leaves.

    said: what came back from the learner's function, and "" for a call that has raised.
    Raises what says that nothing is written yet.
    """
    if size:
        return _left_by_ranks(fn, given, size, look, device, PATIENCE)
    rows, fate, reason, place, late = {}, {}, "", "", set()
    for case, arguments in given.items():
        torch.manual_seed(0)
        before = len(said)
        try:
            these = arguments()
            rows[case] = cells(look(fn(*these), *these))
        except Exception as error:
            if "ellipsis" in str(error):  # `...` still stands where a value is to be
                raise NotFilledIn from error
            rows[case], reason, place = [], str(error), place_in(str(error)) or place_of(error)
            fate[case] = _raised(type(error).__name__, reason)
            # It has returned, and is not where this was raised. Text of theirs that is no Python is theirs.
            if said[before:] and said[-1] and not place and not isinstance(error, SyntaxError):
                late.add(case)
                fate[case] = _of_no_use(said[-1], type(error).__name__, reason)
    return Left(rows, fate, reason, place, late=late)


def _left_by_ranks(
    fn: Callable[..., Any],
    given: Any,
    size: int,
    look: Callable[..., Any],
    device: str | None,
    patience: float,
) -> Left:
    names = [f"rank {rank}" for rank in range(size)]
    try:
        run = launch(_in_rank, fn, given, look, nproc_per_node=size, device=device, quiet=True, timeout=patience)
        held, told, ends = zip(*run.results, strict=True)
        return Left(dict(zip(names, held, strict=True)), film=frames(told, ends) if any(told) else ())
    except RankError as error:
        if "ellipsis" in error.reason:
            raise NotFilledIn from error
        rows = {name: it[0] if it else [] for name, it in zip(names, error.run.results, strict=True)}
        if isinstance(error, RankTimeoutError):
            waits = re.findall(WAITING, str(error), re.MULTILINE)
            through = {f"{rank}" for rank, said in error.run.output.items() if f"\n{WHOM}{DONE}\n" in said}
            waits = [(rank, what, "" if rank in through else line) for rank, what, line in waits]
            there = {rank: f"waits in {what}{_whom(error, rank, what)}" for rank, what, _ in waits}
            fate = {f"rank {rank}": f"{there[rank]}, {line}" for rank, _, line in waits if line}
            ended = {it: it in through for it, _, line in waits if not line}  # what a busy rank said may lack its line
            fate |= {f"rank {it}": "waits for the others" if done else there[it] for it, done in ended.items()}
            if patience == PATIENCE and may_be_slow(error):
                return _left_by_ranks(fn, given, size, look, device, 5 * PATIENCE)
            late = [name for name in names if name not in fate and not rows[name]]
            elsewhere = dict(re.findall(ELSEWHERE, str(error), re.MULTILINE))
            for name in late:
                at = elsewhere.get(name.removeprefix("rank "), "")
                fate[name] = "never came" + f": it is at {at}" * bool(at)
            return Left(rows, fate or dict.fromkeys(names, "waits for ever"), str(error))
        said = re.sub(r"^rank \d+ ", "", first_line(str(error)))  # the row says which
        if raised := error.type_name and (error.type_name, error.reason):
            back = re.search(rf"^{BACK}(.*)$", str(error.traceback), re.MULTILINE)
            back = None if place_in(str(error.traceback)) else back
            said = _of_no_use(back[1], *raised) if back else _raised(*raised)
        failed = names if error.rank is None else [f"rank {error.rank}"]
        stopped = {name: "was stopped" for name in names if not rows[name] and name not in failed}
        fate = dict.fromkeys(failed, said) | stopped
        late = {*failed} if error.type_name and back else set()
        return Left(rows, fate, error.reason or str(error), place_in(str(error.traceback)), late=late)


def _in_rank(fn: Callable[..., Any], given: Callable[[int, int], tuple], look: Callable[..., Any]) -> tuple:
    """Return what the function leaves on this rank, what was sent meanwhile, and what a filmed tensor holds then."""
    torch.manual_seed(0)
    _note_whom()
    arguments = given(dist.get_rank(), dist.get_world_size())
    returned = fn(*arguments)
    _print(f"\n{WHOM}{DONE}\n")
    told, end = [], ()
    if arguments and hasattr(arguments[0], "messages"):  # it is filmed; what `look` sends is not to be in the film
        told, end = list(arguments[0].messages), tuple(arguments[0].flatten().tolist())
    try:
        return cells(look(returned, *arguments)), told, end
    except Exception as error:
        if not getattr(fn, "of_ours", False):  # then it was not the learner's that returned this
            error.add_note(BACK + kind_of(returned))
        raise


WHOM = "\x1fwhom: "  # begins what a rank prints of a call that names another one
DONE = "nobody: it has returned"  # and is in `look`
NAMING = {"send": "to", "recv": "from", "broadcast": "from", "scatter": "from", "reduce": "to", "gather": "to"}


def _note_whom(most: int = 1000) -> None:
    """From now on, have this rank print whom each call names: it may be the call where it waits for ever.

    most: calls that it does so for. One that never ends to send is not to look as if it made progress.
    """
    if hasattr(dist.ProcessGroup.send, "__wrapped__"):  # a rank of the tests, that is used again
        return
    numbers = itertools.count(1)

    def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def noted(group: Any, tensors: Any, *given: Any, **named: Any) -> Any:
            n, whose = next(numbers), [getattr(it, "rootRank", it) for it in given if not isinstance(it, list)]
            known = n < most and whose and isinstance(whose[0], int) and group.size() == dist.get_world_size()
            if n <= most:
                said = f"{name} {NAMING[name]} rank {whose[0]}" if known else name
                _print(f"\n{WHOM}{said}\n")
            return call(group, tensors, *given, **named)

        return noted

    for name in NAMING:
        setattr(dist.ProcessGroup, name, noting(name, getattr(dist.ProcessGroup, name)))


def _print(said: str) -> None:
    with contextlib.suppress(OSError):  # the rank has printed too much already
        os.write(1, said.encode())


def _whom(error: RankError, rank: str, what: str) -> str:
    """Return " from rank 1" where the call in which a rank waits names it."""
    told = re.findall(rf"^{WHOM}(\w+)(.*)$", error.run.output.get(int(rank), ""), re.MULTILINE)
    called = f"rank {rank} called {what}" in str(error)  # that is not to say that it has not called others since
    return told[-1][1] if told and told[-1][0] == what and not called else ""


def _partner(left: Left, row: str) -> str:
    """Say what became of the rank that the row waits for; where it names none, of one that does something else."""
    fate = left.fate[row]
    if not fate.startswith("waits in "):
        return ""
    named = re.search(r" (?:to|from) (rank \d+)(?:,|$)", fate)
    kind, ended = fate.partition(",")[0], "waits for the others"  # in `look`, that is
    others = [it for it in left.rows if left.fate.get(it, ended).partition(",")[0] != kind]
    other = named[1] if named and named[1] != row else next(iter(others), row)
    theirs = left.fate.get(other, ended)
    over = "has ended" if named else "has returned without it"  # of a collective
    return f"; {other} {over if theirs == ended else _told(theirs)}" * (other != row)


def cells(held: Any) -> list[Any]:
    """Return what somebody holds as a flat list of numbers and words."""
    if isinstance(held, torch.Tensor):
        held = held.detach().cpu()
    if hasattr(held, "tolist"):  # NumPy's too
        held = held.tolist()
    if isinstance(held, Mapping):
        held = list(held.values())
    if isinstance(held, list | tuple):
        return [cell for part in held for cell in cells(part)]
    if isinstance(held, Fraction | Decimal):
        held = float(held)
    return [held if isinstance(held, int | float) else str(held)]


def _raised(kind: str, reason: str) -> str:
    """Return what was raised, whole; of what a thread or a worker raised the traceback is left out."""
    return f"raised {kind}: {first_line(reason) if reason.startswith('Caught ') else reason.strip()}"


def _of_no_use(returned: str, kind: str, reason: str) -> str:
    """Return what is said where the check stumbles over what came back; over nothing, as if it had been raised."""
    if returned == NOTHING:
        return _raised(kind, reason)
    if reason.startswith("Gather function not implemented"):  # DataParallel's, of a tensor on the CPU
        return f"returned {returned} that could not be gathered: {reason.strip()}"
    return _raised(kind, reason).replace("raised", f"returned {returned}: the check met", 1)


def _told(fate: str) -> str:
    """Return what became of a row in one line."""
    what, colon, reason = fate.partition(": ")
    return what + colon + first_line(reason) * bool(colon)
