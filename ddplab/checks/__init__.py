"""Exercise checks: four states, a message that names the mistake, and never a crash.

A lesson's checks live in `ddplab/checks/lesson_N_N.py` and are loaded when the first of them is asked for:

    @exercise("4.1.2", "Equal gradients")
    def equal_gradients(train):                  # receives what the notebook passed to check("4.1.2", ...)
        results = launch(train, nproc_per_node=2, quiet=True).results
        if results[0] != results[1]:
            raise NotYet("the ranks end with different weights", hint="Who averages the gradients?")

A check that returns is content. It raises `NotYet` when the answer is wrong and `CannotCheck` when this
machine cannot tell. Everything else that the learner's code raises is caught here and told as a "not yet".
"""

import contextlib
import importlib
import inspect
import json
import linecache
import os
import re
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ddplab.checks.hints import COMMON, first_line, hint_for
from ddplab.checks.slips import slip
from ddplab.screen import in_kernel
from ddplab.sharing import share_verdict
from ddplab.tables import marked

CORRECT, NOT_YET = "correct", "not yet"
BLANK, CANNOT_CHECK = "not filled in yet", "cannot check here"
UNKNOWN = "no such exercise"

LIMIT = 60.0  # seconds that a check waits for an answer, whatever the answer does
WRITTEN = 20_000_000  # bytes, in any one file of a rank that is being checked: its rows, its output, its own

BLANK_CODE = "your code here"  # what the exercise notebooks raise where the learner has written nothing yet


class NotYet(Exception):
    """The answer is wrong: what is wrong with it, in one sentence, what to try, and a picture if there is one."""

    def __init__(self, message: str, hint: str = "", picture: Any = None):
        super().__init__(message)
        self.hint, self.picture = hint, picture


class CannotCheck(Exception):
    """This machine cannot tell: the reason, in one sentence."""


class NotFilledIn(Exception):
    """The answer is still blank. The usual blanks are seen here; a check raises this for its own kind."""


@dataclass
class Exercise:
    """A registered check: its id ("4.1.2"), its title, and the function that judges an answer."""

    id: str
    title: str
    judge: Callable[..., None]
    none_is_blank: bool = False
    lazy: bool = False
    blank: Callable[[], Any] | None = None


@dataclass(repr=False)
class Verdict:
    """What a check found. `str()` of it is the block that the notebook shows; a picture is shown below its words."""

    id: str
    title: str
    state: str
    message: str = ""
    hint: str = ""
    picture: Any = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.words}\n{self.picture}" if self.picture else self.words

    __repr__ = __str__

    @property
    def is_turn(self) -> bool:
        """Whether it is of a turn in the middle of a lesson, "4.1.a", and not of an exercise, "4.1.2"."""
        return re.fullmatch(r"\d\.\d+\.[a-z]", self.id) is not None

    @property
    def words(self) -> str:
        """The verdict without its picture."""
        kind = "your turn" if self.is_turn else "exercise"
        name = f"{kind} {self.id}, {self.title}" if self.title else f"{kind} {self.id}"
        first = f"{name}: {self.state}: {self.message}" if self.message else f"{name}: {self.state}"
        return f"{first}\n  hint: {self.hint}" if self.hint else first

    def _repr_html_(self) -> str:
        hint = f"<div>hint: {marked(self.hint)}</div>" if self.hint else ""
        sign = {CORRECT: "✓", NOT_YET: "✗"}.get(self.state, "…")
        words = marked(self.words.splitlines()[0])
        picture = self.picture._repr_html_() if self.picture else ""
        return f'<div role="note" style="line-height:1.5"><b>{sign} {words}</b>{hint}</div>{picture}'


EXERCISES: dict[str, Exercise] = {}


def exercise(
    id: str, title: str, *, none_is_blank: bool = False, lazy: bool = False, blank: Callable[[], Any] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the check function below it as exercise `id`.

    none_is_blank: an answer None means "not filled in yet". (`...` always does.)
    lazy: the notebook passes `lambda: name`; the check receives the name's value, and a name that does not
        exist yet means "not filled in yet".
    blank: returns the picture of what is wanted, to show while nothing is written. What a check returns is shown too.
    """

    def register(judge: Callable[..., None]) -> Callable[..., None]:
        EXERCISES[id] = Exercise(id, title, judge, none_is_blank, lazy, blank)
        return judge

    return register


def check(id: str, /, *answers: Any, **named: Any) -> None:
    """Check the answer to an exercise and print the verdict: one block, the same every time.

    It never raises, whatever the answer does, and leaves the notebook's random state as it was. Where the
    environment variable DDPLAB_REPORT names a file, the verdict is added to it as a line of JSON. Whoever has joined a
    room shows it the state (see `ddplab.sharing`).
    """
    verdict = judge(id, *answers, **named)
    if verdict.is_turn and in_kernel() and answers:
        from ddplab.checks.kept import keep

        keep(answers[0], verdict.state == CORRECT)
    if verdict.picture is not None and in_kernel():
        from IPython.display import display

        display(verdict)
    else:
        print(verdict)
    share_verdict(verdict.id, verdict.state)
    if report := os.environ.get("DDPLAB_REPORT"):
        told = {name: value for name, value in vars(verdict).items() if name != "picture"}
        with open(report, "a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")


def judge(id: str, /, *answers: Any, **named: Any) -> Verdict:
    """The verdict on an answer, as `check` prints it."""
    found = find(id)
    if found is None:
        known = ", ".join(sorted(EXERCISES)) or "none"
        return Verdict(str(id), "", UNKNOWN, f"the exercises loaded so far are {known}")
    try:
        with _random_state_kept(), _output_hidden(), _limits():
            picture = _ask(found, answers, named)
    except Exception as error:
        state, message, hint = _explain(error, found)
        picture = getattr(error, "picture", None)
        if state == NOT_YET:
            seen = next(filter(None, (slip(it, f"{message} {hint}") for it in answers)), "")
            hint = f"{hint} {seen}".strip()
        if state == BLANK and found.blank:
            with _random_state_kept(), _output_hidden():
                picture = found.blank()
        return Verdict(found.id, found.title, state, message, hint, picture)
    except SystemExit as error:  # a learner's sys.exit() must not end the notebook
        return Verdict(found.id, found.title, NOT_YET, f"your code called sys.exit({error.code!r})")
    return Verdict(found.id, found.title, CORRECT, picture=picture)


def find(id: str) -> Exercise | None:
    """The exercise with this id, its lesson's checks loaded if need be. None when there is none."""
    lesson = re.fullmatch(r"(\d)\.(\d+)\.(\d+|[a-z])", str(id))
    if lesson:
        name = f"{__name__}.lesson_{lesson[1]}_{lesson[2]}"
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    return EXERCISES.get(id)


def _ask(found: Exercise, answers: tuple, named: dict[str, Any]) -> Any:
    try:
        inspect.signature(found.judge).bind(*answers, **named)
    except TypeError:
        wanted = ", ".join(inspect.signature(found.judge).parameters)
        raise NotYet("the check got other things than it needs", f'Call it as check("{found.id}", {wanted}).') from None
    if found.lazy:
        answers = tuple(_value(answer) for answer in answers)
        named = {name: _value(answer) for name, answer in named.items()}
    if any(_is_blank(answer, found.none_is_blank) for answer in [*answers, *named.values()]):
        raise NotFilledIn
    return found.judge(*answers, **named)


def _value(answer: Any) -> Any:
    """What a lazily passed answer, `lambda: name`, stands for."""
    if not (inspect.isfunction(answer) and answer.__name__ == "<lambda>" and not answer.__code__.co_argcount):
        return answer
    try:
        return answer()
    except NameError:
        raise NotFilledIn from None


def _is_blank(answer: Any, none_is_blank: bool) -> bool:
    if answer is ... or (answer is None and none_is_blank):
        return True
    if isinstance(answer, dict):
        answer = list(answer.values())
    return isinstance(answer, list | tuple) and any(_is_blank(part, none_is_blank) for part in answer)


def _explain(error: Exception, found: Exercise) -> tuple[str, str, str]:
    """An exception, however it came about, as state, message and hint."""
    if isinstance(error, NotYet):
        return NOT_YET, str(error), error.hint
    if isinstance(error, CannotCheck):
        return CANNOT_CHECK, str(error), ""
    if isinstance(error, NotFilledIn):
        return BLANK, "", ""

    kinds = [kind.__name__ for kind in type(error).__mro__]  # by name, so that nothing is loaded to compare with
    rank_error = "RankError" in kinds
    name = (getattr(error, "type_name", None) if rank_error else None) or type(error).__name__
    text = str((getattr(error, "reason", None) if rank_error else None) or error).strip()
    if name == "NotImplementedError" and (not text or BLANK_CODE in text):
        return BLANK, "", ""  # torch raises NotImplementedError too, always with words of its own

    if "RankTimeoutError" in kinds:
        return NOT_YET, f"your ranks never finished: {first_line(text)}", getattr(error, "hint", "")
    if "File too large" in text:
        return NOT_YET, f"your code logs or prints without end: more than {WRITTEN:,} bytes", "Does the loop end?"
    hint = hint_for(text, COMMON)
    what = name + (f": {first_line(text)}" if text else "")
    if rank_error:
        rank = getattr(error, "rank", None)
        who = "your code" if rank is None else f"your code, on rank {rank},"
        return NOT_YET, f"{who} raised {what}{place_in(str(getattr(error, 'traceback', '')))}", hint
    if place := place_of(error):
        return NOT_YET, f"your code raised {what}{place}", hint
    return (
        NOT_YET,
        f"the check could not use your answer, it met {what}",
        "Is it of the kind that is asked for?",
    )


def place_of(error: BaseException) -> str:
    """Where in the learner's own code an exception passed last: " (line 3, in greet: `return 1 / 0`)"."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_learners(frame.filename)]
    if not own:
        return ""
    line = linecache.getline(own[-1].filename, own[-1].lineno).strip()
    return f" (line {own[-1].lineno}, in {own[-1].name}{f': `{line}`' if line else ''})"


def place_in(text: str) -> str:
    """The same from a rank's traceback, which comes as text."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', text)
    own = [(line, name) for file, line, name in frames if _is_learners(file)]
    return f" (line {own[-1][0]}, in {own[-1][1]})" if own else ""


def _is_learners(file: str) -> bool:
    """Whether code in this file is the learner's: not ours, not Python's, not an installed package's."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    library = os.path.dirname(os.path.abspath(os.__file__))
    foreign = file.startswith((package + os.sep, library + os.sep, "<frozen"))
    return not foreign and "site-packages" not in file and "dist-packages" not in file


@contextlib.contextmanager
def _random_state_kept() -> Iterator[None]:
    """Give Python's, NumPy's and torch's random state back as they were found."""
    import random

    import numpy
    import torch

    python, array, tensor = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(array)
        torch.set_rng_state(tensor)
        if on_gpu is not None:
            torch.cuda.set_rng_state_all(on_gpu)


@contextlib.contextmanager
def _output_hidden() -> Iterator[None]:
    """What the learner's code prints while it is checked would come between the verdicts."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """End an answer that runs, logs or prints without end, in the notebook or in its ranks.

    Raises NotYet after LIMIT seconds, by way of the interrupt that ■ sends: it stops ranks too, and leaves nothing.
    """
    rung = threading.Event()

    def ring(*_: object) -> None:
        rung.set()
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell has started in the background
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    on_main = threading.current_thread() is threading.main_thread()  # only there can a signal be handled
    before = signal.signal(signal.SIGALRM, ring) if on_main else None
    os.environ["DDPLAB_WRITE_LIMIT"] = str(WRITTEN)  # see ddplab.worker
    try:
        if on_main:
            signal.setitimer(signal.ITIMER_REAL, LIMIT, 1)  # and again, should the answer catch the first
        yield
    except KeyboardInterrupt:
        if not rung.is_set():
            raise  # somebody's own ■
        what = f"your code had not ended after {LIMIT:.0f} seconds, and was stopped"
        raise NotYet(what, hint="Does every loop in it end, on every rank?") from None
    finally:
        del os.environ["DDPLAB_WRITE_LIMIT"]
        if on_main:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
