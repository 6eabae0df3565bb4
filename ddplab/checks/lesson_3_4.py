"""Checks of lesson 3.4, Where processes come from."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, asks, expect_all
from ddplab.checks.turns import turn

NUMBERS = asks(
    "3.4.1",
    Number("forked", 1, "The parent reads it. Does a copy of the parent have to?").with_mistakes(
        (4, "as if each child read the file again", "A forked child *is* the parent, a moment later."),
        (3, "as if the children read it", "A forked child *is* the parent, a moment later. Who reads the file?"),
        (0, "somebody runs the script", "The parent reads the file before it can fork."),
    ),
    Number("spawned", 4, "The parent reads it, and then every child.").with_mistakes(
        (3, "that counts the children only", "The parent has read the file too."),
        (1, "that is fork", "A spawned child starts empty, and must learn what its function is."),
        (2, "that was one child", "Here are three."),
    ),
    Number("launched", 3, "The launcher starts the script once for each rank.").with_mistakes(
        (4, "the launcher itself does not read your file", "It starts Python on it, once for each rank."),
        (1, "that would be one rank", "The launcher starts the script once for each rank."),
    ),
)


@exercise("3.4.1", "Who reads the file?")
def outcomes(forked: Any, spawned: Any, launched: Any, note: Any, guard: Any) -> None:
    """A file that prints, then starts three children; what a spawned child finds; which error the guard mends."""
    expect_all(NUMBERS, {"forked": forked, "spawned": spawned, "launched": launched})
    if note not in ("old", "new"):
        raise NotYet(f"`note` is {note!r}, neither 'old' nor 'new'", "One of the two words.")
    if note == "new":
        raise NotYet("`note` is 'new': that is fork", "The spawned child has read the file, but not the guard's part.")
    if guard not in ("attribute", "bootstrapping"):
        raise NotYet(f"`guard` is {guard!r}, neither 'attribute' nor 'bootstrapping'", "One of the two words.")
    if guard == "attribute":
        hint = "Which of the two errors comes from reading the file twice?"
        raise NotYet("`guard` is 'attribute': a function that is in no file is not found, guard or no guard", hint)


@exercise("3.4.2", "A script that can be spawned")
def mended(script: Any) -> None:
    """The text must run as a file, spawn two children, and each must print its line."""
    if not isinstance(script, str):
        raise NotYet(f"`script` is a {type(script).__name__}, not a text", "Keep the quotation marks around it.")
    ran = _run(script)
    if ran is None:
        hint = "Who starts whom, and who waits for whom? (If this machine is very busy, check again.)"
        raise NotYet(f"the script did not end within {SECONDS} seconds", hint)
    if "Can't pickle" in ran.said or "Can't get local object" in ran.said or "cannot pickle" in ran.said.lower():
        hint = "A lambda is nobody's name. `Process(target=work, args=(…,))` sends a name and arguments."
        raise NotYet("the target cannot be sent to another process: it has no name in the file", hint)
    if "bootstrapping phase" in ran.said:
        hint = 'Call `main()` only under `if __name__ == "__main__":`.'
        raise NotYet("each child reads the file and is about to spawn again (bootstrapping)", hint)
    if ran.lines != LINES and ran.said.strip():
        last = ran.said.strip().splitlines()[-1]
        raise NotYet(f"the script ends with {last}", "Run it from a terminal to see it all.")
    if ran.lines and ran.by_parent == len(ran.lines):
        if ran.spawned:
            hint = "`target=work(…)` calls it at once, in the parent. Give them apart: `target=work, args=(…)`."
            raise NotYet("the parent prints the lines itself, and the children that it spawns print nothing", hint)
        hint = "`child.run()` and plain calls run in the parent; `child.start()` starts a process."
        raise NotYet("the parent prints the lines itself, and spawns nothing", hint)
    if ran.lines == LINES and ran.by_fork:
        raise NotYet("the children are forked, and not spawned", 'Keep "spawn", and mend what is around it.')
    if ran.lines == LINES and ran.spawned < 2:
        raise NotYet(f"{ran.spawned} child was spawned, and two are asked for", "One for each rank.")
    if ran.lines == LINES:
        return
    if ran.lines == ["rank 0 multiplies by 1", "rank 1 multiplies by 1"]:
        hint = "A spawned child has read the file and run nothing under the guard. Pass `factor` as an argument."
        raise NotYet("the children multiply by 1: what `main()` has set is not known to them", hint)
    if not ran.lines:
        raise NotYet("the script prints nothing", "Somebody has to call `main()`, and the children `work`.")
    raise NotYet(
        f"the script prints {len(ran.lines)} lines, and not the two that are asked for: {' / '.join(ran.lines)[:120]}",
        "`rank 0 multiplies by 3` and `rank 1 multiplies by 3`, in any order.",
    )


LINES = ["rank 0 multiplies by 3", "rank 1 multiplies by 3"]
SECONDS = 55
MOST = 1_000_000  # bytes that a script may print

# Python runs a module of this name when it starts. Each process notes that it has started, what it prints, and what it
# spawns: a process that prints and has not started is a fork. (Of a pool that has little to do, a child may be ended
# before it has started; its parent has noted it.)
NOTING = """
import os, sys
from multiprocessing.process import BaseProcess

def note(kind, text):
    with open(os.path.join(os.environ["DDPLAB_NOTES"], f"{os.getpid()}.{kind}"), "a") as file:
        file.write(text)

class Noted:
    def __init__(self, stream):
        self.stream = stream
    def write(self, text):
        note("said", text)
        return self.stream.write(text)
    def __getattr__(self, name):
        return getattr(self.stream, name)

def start(process, start=BaseProcess.start):
    import multiprocessing

    note("spawned", "x" * ((process._start_method or multiprocessing.get_start_method(True)) == "spawn"))
    return start(process)

note("started", " ".join(sys.orig_argv))
sys.stdout = Noted(sys.stdout)
BaseProcess.start = start
"""


@dataclass
class Ran:
    """What a script has done: the lines printed, sorted, and by whom; how many children it spawned; its errors.

    number: what it has written into the file beside it, for a turn.
    """

    lines: list[str]
    by_parent: int
    by_fork: int
    spawned: int
    said: str
    number: str = ""


def _run(script: str) -> Ran | None:
    """Run the text as a file, with a limit of time and of output. None when it went beyond."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for below in ("notes", "python"):
            (folder / below).mkdir()
        (folder / "job.py").write_text(script)
        (folder / "python" / "sitecustomize.py").write_text(NOTING)
        path = os.pathsep.join([str(folder / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "DDPLAB_NOTES": str(folder / "notes")}
        with open(folder / "errors", "w+") as errors:
            parent = subprocess.Popen(
                [sys.executable, folder / "job.py"],
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
            ended = _ends(parent, folder)
            errors.seek(0)
            ran = _read(folder / "notes", parent.pid, errors.read()) if ended else None
        if ran and (folder / "job.py.number").exists():
            ran.number = (folder / "job.py.number").read_text()
        return ran


def _ends(parent: subprocess.Popen, folder: Path) -> bool:
    """Wait for the script, then leave no process of it."""
    begun = time.monotonic()
    try:
        while parent.poll() is None:
            written = sum(file.stat().st_size for file in [folder / "errors", *(folder / "notes").iterdir()])
            if written > MOST:
                raise NotYet("the script prints without end", "Does every loop in it end, in every process?")
            if time.monotonic() - begun > SECONDS:
                return False
            time.sleep(0.05)
        return True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def _read(notes: Path, parent: int, errors: str) -> Ran:
    said = {int(file.stem): file.read_text().splitlines() for file in notes.glob("*.said")}
    started = {int(file.stem) for file in notes.glob("*.started")}
    spawned = sum(len(file.read_text()) for file in notes.glob("*.spawned"))
    by_fork = sum(len(lines) for pid, lines in said.items() if pid not in started)
    lines = sorted(line for lines in said.values() for line in lines)
    return Ran(lines, len(said.get(parent, [])), by_fork, spawned, errors)


# ------------------------------------------------------------------ your turn

HELLO = """
from multiprocessing import get_context

def hello(rank):
    print("hello from rank", rank)
"""
DRAWN = """
import random
from multiprocessing import get_context

number = random.random()
"""
TOLD = """
if __name__ == "__main__":
    with open(__file__ + ".number", "w") as file:
        file.write(str(number))
"""
SPAWN = 'get_context("spawn").Process(target=hello, args=(0,)).start()\n'
MAIN = '\nif __name__ == "__main__":\n    '


def _no_text(text: Any) -> str:
    return "" if isinstance(text, str) else "nothing" if text is None else f"a {type(text).__name__}"


def _who(ran: Ran) -> str:
    """Who printed the lines of a script."""
    if not ran.lines:
        return "nobody, though a child has run" if ran.spawned and "Error" not in _error(ran.said) else "nobody"
    return "the first process" if ran.by_parent else "a forked child" if ran.by_fork else "a spawned child"


def _error(said: str) -> str:
    """What kind of error a script has shown first; that a name was not found is told apart."""
    kind = next(iter(re.findall(r"^(?:\w+\.)*(\w+Error)", said, re.MULTILINE)), "none")
    if "group argument must be None" in said:
        return "AssertionError of `Process`"
    if "tuple(args)" in said and re.search("'(int|float)' object is not iterable", said):
        return "TypeError: no tuple"
    if name := kind == "NameError" and re.search(r"name '(\w+)' is not defined", said):
        return f"NameError: {name[1]}"
    return "can't get attribute" if "Can't get attribute" in said else kind


def _outcome(text: Any) -> list[Any]:
    if what := _no_text(text):
        return [f"{what} is returned", 0, "no text"]
    ran = _run(HELLO + dedent(text))
    if ran is None:
        return ["nobody", 0, "it does not end"]
    return [_who(ran), len(ran.lines), _error(ran.said)]


A_TEXT = {"is not defined": 'Return the lines as a *text*, between `"""` and `"""`: they run as a file, not here.'}


def _unknown(names: str, hint: str) -> list[tuple[Callable[[], str], str, str]]:
    """Rows of names that people write and that the file does not know."""
    return [
        (lambda name=name: f"{MAIN}{name}\n", f"it names `{name}`, which the file does not know", hint)
        for name in names.split()
    ]


turn(
    "3.4.a",
    "The end of the file",
    lambda: MAIN + SPAWN,
    {"as a file": lambda: ()},
    look=_outcome,
    heads=("hello is said by", "times", "error"),
    mistakes=[
        (lambda: SPAWN, "each process that reads the file is about to spawn the next",
         "What must be true of a process that may start others? Python's message has the line."),
        (lambda: MAIN.replace("__main__", "main") + SPAWN, "no process is started",
         'The first process has the `__name__` `"__main__"`, and a process begins with `start()`.'),
        (lambda: MAIN + "hello(0)\n", "the first process calls `hello` itself",
         "`Process(target=hello, args=(0,))`: function and arguments apart, and then `start()`, which is not `run()`."),
        (lambda: MAIN + SPAWN + "\nhello(0)\n", "each process that reads the file says hello",
         "What stands outside of the guard, a spawned process runs, too. It says hello by its `target`."),
        *_unknown("mp spawn Process multiprocessing context torch rank",
                  "The file knows `get_context` and `hello`: `get_context(…)` has a `Process`."),
        *_unknown("__main__", '`"__main__"` is a text: it stands in quotation marks.'),
        (lambda: MAIN + SPAWN.replace("target=hello, args=", "hello, "), "`Process` wants its arguments by name",
         "`target=`, and `args=`."),
        (lambda: MAIN + SPAWN.replace("Process", "process"), "it asks something for what it has not",
         "What the context has is called `Process`, and what that has, `start`."),
        (lambda: MAIN + "hello(0)\n    " + SPAWN, "the first process says hello as well", "Only the child is to."),
        (lambda: MAIN + SPAWN.replace("start", "join"), "a process is waited for that was never started", "`start()`"),
        (lambda: "    if True:\n" + SPAWN, "Python cannot read the file: the lines are indented in another way",
         "What belongs to the `if` is indented by four spaces more than the `if`."),
        (lambda: MAIN.replace(":", "") + SPAWN, "Python cannot read the file",
         "Is a colon missing, a bracket, or a quotation mark? Does `==` have both of its signs?"),
        (list, "a list is returned, and no text", "One text: three quotation marks go around several lines."),
        (lambda: MAIN + SPAWN.replace("spawn", "fork"), "the child is forked", '`get_context("spawn")`'),
        (lambda: MAIN + SPAWN.replace(", args=(0,)", ""), "`Process`, or the child, is not given what it takes",
         "`target` is the function, no text, and `args` a tuple, with a comma even where there is one: `args=(0,)`."),
        (lambda: MAIN + SPAWN.replace("(0,)", "(0)"), "`args` is a number, and `Process` wants a tuple",
         "In brackets alone `(0)` is the number 0; a comma makes the tuple: `(0,)`."),
        (lambda: MAIN + "for rank in range(2): " + SPAWN, "two processes say hello", "One is asked for."),
        (lambda: None, "nothing is returned", "Return a text: in quotation marks, three of them for several lines."),
    ],
    hints=A_TEXT,
    otherwise="Under the guard: a context that spawns, a `Process` with `hello` and its number, and `start()`.",
)  # fmt: skip


def _number(text: Any) -> list[Any]:
    if what := _no_text(text):
        return [f"{what} is returned", "nothing", "no text"]
    ran = _run(DRAWN + dedent(text) + TOLD)
    if ran is None:
        return ["nobody", "nothing", "it does not end"]
    what = "no number" if ran.lines else "nothing"
    if any(re.search(r"\d\.\d", line) for line in ran.lines):
        what = "another"
    said = [it for line in ran.lines for it in re.findall(r"\d+\.\d+", line)]
    if ran.number and any(round(float(ran.number), len(it.partition(".")[2])) == float(it) for it in said):
        what = "not as it came"
    if ran.number and (times := sum(ran.number in line for line in ran.lines)):
        what = "the same number" + f", {times} times" * (times > 1)
    return [_who(ran), what, _error(ran.said)]


PRINTS = "\ndef child(number):\n    print(number)\n"
GIVEN = SPAWN.replace("hello, args=(0,)", "child, args=(number,)")

turn(
    "3.4.b",
    "What travels",
    lambda: PRINTS + MAIN + GIVEN,
    {"as a file": lambda: ()},
    look=_number,
    heads=("printed by", "what", "error"),
    mistakes=[
        (lambda: PRINTS.replace("(number):", "():") + MAIN + GIVEN.replace("(number,)", "()"),
         "the child prints another number than the first process has",
         "Who reads the file draws `number` anew. Give the child the first one's, in `args`, and print what it is "
         "given: by the name in `child`'s brackets."),
        (lambda: PRINTS.replace("(number)\n", "(round(number, 2))\n") + MAIN + GIVEN,
         "the child prints the number, and not as it came", "All of its digits: `print(number)`."),
        (lambda: PRINTS + MAIN + GIVEN.replace("(number,)", '("number",)'), "the child prints no number",
         "`number` without quotation marks is what the first process has drawn."),
        (lambda: PRINTS.replace("print(number)", "return number") + MAIN + GIVEN, "the child runs, and prints nothing",
         "What it returns, nobody reads. `print` it."),
        (lambda: PRINTS + MAIN + "for _ in range(2): " + GIVEN, "it is printed twice", "One child, and one `print`."),
        *_unknown("mp spawn Process hello child context multiprocessing",
                  "The file knows `random`, `get_context` and `number`, and what you define in it."),
        *_unknown("__main__", '`"__main__"` is a text: it stands in quotation marks.'),
        (list, "a list is returned, and no text", "One text: three quotation marks go around several lines."),
        (lambda: None, "nothing is returned", "Return a text: in quotation marks, three of them for several lines."),
        (lambda: PRINTS + GIVEN, "each process that reads the file is about to spawn the next",
         "The guard is missing."),
        (lambda: PRINTS + MAIN + GIVEN.replace("spawn", "fork"), "the child is forked", '`get_context("spawn")`'),
        (lambda: PRINTS + MAIN + "child(number)\n", "the first process prints it",
         "The child is to. With its arguments after it a function is called here: `Process` wants the two apart. And "
         "`start()` makes a child; `run()` does not."),
        (lambda: PRINTS + MAIN + GIVEN.replace("target=child, args=", "child, "),
         "`Process` wants its arguments by name", "`target=`, and `args=`."),
        (lambda: PRINTS + MAIN + "print(number)\n    " + GIVEN, "the first process prints, too",
         "Only the child is to: what stands outside of its function, the first process runs."),
        (lambda: PRINTS + MAIN + GIVEN.replace(", args=(number,)", ""),
         "`Process`, or the child, is not given what it takes",
         "`target` is a function, and `args` a tuple, with a comma even where there is one: `args=(…,)`."),
        (lambda: PRINTS + MAIN + GIVEN.replace("(number,)", "(number)"),
         "`args` is a number, and `Process` wants a tuple",
         "Brackets alone leave it a number; a comma makes the tuple: `(…,)`."),
        (lambda: MAIN + GIVEN.replace("child, args=(number,)", "lambda: print(number)"),
         "the target cannot be sent to another process: it has no name in the file",
         "A lambda is nobody's name. Write `child` with `def`."),
        (lambda: MAIN + PRINTS.strip().replace("\n", "\n    ") + "\n    " + GIVEN,
         "`child` is defined under the guard, where no spawned process looks", "Define it above the guard."),
        (lambda: PRINTS, "no process is started", "Defining `child` starts nobody: a `Process`, under the guard."),
    ],
    hints={"name 'number' is not defined": "No f-string: `number` stands in the text as it is; the file fills it in."}
    | A_TEXT,
    otherwise="Above the guard a function that prints what it is given; below it a `Process`, given `number`.",
)  # fmt: skip


class _Start:
    """Starts a process that says what it was told, and notes whether others were still waited for."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen] = []
        self.alone = False

    def __call__(self, who: Mapping[str, str]) -> subprocess.Popen:
        self.alone |= bool(self.started) and all(process.returncode is not None for process in self.started)
        said = "print(get('RANK'), 'of', get('WORLD_SIZE') + ', GPU', get('LOCAL_RANK'))"
        script = f"import os; get = lambda name: os.environ.get(name, 'none'); {said}"
        clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        self.started.append(
            subprocess.Popen([sys.executable, "-c", script], env=clean | who, stdout=subprocess.PIPE, text=True)
        )
        return self.started[-1]


def _launched(got: Any, start: _Start, ranks: int) -> list[str]:
    for process in start.started:
        process.communicate() if process.returncode is None else None
    if isinstance(got, str | dict):
        return ["no" if start.alone else "yes", f"a {type(got).__name__}"]
    told = [it.strip() if isinstance(it, str) else type(it).__name__ for it in got or ["nothing"]]
    return ["no" if start.alone else "yes", *told]


def _launcher(
    start: Any,
    ranks: int,
    numbers: Any = range,
    without: str = "",
    wait: bool = False,
    local: int | None = None,
    more: int = 0,
    what: Callable[..., Any] = lambda process: process.communicate()[0],
) -> list[str]:
    started = []
    for rank in numbers(ranks):
        who = {"RANK": rank, "LOCAL_RANK": rank if local is None else local, "WORLD_SIZE": ranks + more}
        started.append(start({name: str(value) for name, value in who.items() if name != without}))
        if wait:
            started[-1] = started[-1].communicate()[0]
    return started if wait else [what(process) for process in started]


TOLD_BY = "`start` is given them, in a dictionary; their names are written in capitals, as `RANK`."

turn(
    "3.4.c",
    "A launcher by hand",
    _launcher,
    {f"{ranks} ranks": partial(lambda ranks: (_Start(), ranks), ranks) for ranks in (2, 3)},
    look=_launched,
    heads=("together", "first", "second", "third"),
    mistakes=[
        (partial(_launcher, wait=True), "each rank is started when the one before has ended, so they never meet",
         "Two loops: start all, and then wait for each."),
        (partial(_launcher, numbers=lambda ranks: [0] * ranks), "all are told that they are rank 0",
         "The number in the loop is the rank."),
        (partial(_launcher, numbers=lambda ranks: range(1, ranks + 1)), "the ranks are counted from 1", "From 0."),
        (partial(_launcher, numbers=lambda ranks: range(1, ranks)), "rank 0 is not started", "`range(ranks)`"),
        (lambda start, ranks: _launcher(start, 2), "there are always two", "There are `ranks` of them."),
        (partial(_launcher, without="WORLD_SIZE"), "nobody knows how many there are", "`WORLD_SIZE`"),
        (partial(_launcher, without="LOCAL_RANK"), "nobody knows which GPU is for it", "`LOCAL_RANK`"),
        (partial(_launcher, local=0), "all take GPU 0", "On one machine the local rank is the rank."),
        (partial(_launcher, numbers=lambda ranks: range(ranks)[::-1]), "the last rank comes first",
         "Rank 0's comes first in the list."),
        (partial(_launcher, without="RANK"), "nobody knows which rank it is", "`RANK`"),
        (lambda start, ranks: print(_launcher(start, ranks)), "nothing is returned", "What each printed, in a list."),
        (lambda start, ranks: _launcher(start, ranks)[:1], "only rank 0 is in the list", "What each printed."),
        (partial(_launcher, what=lambda process: process.wait()), "`wait` returns a number, 0 where all went well",
         "`communicate` waits, too, and returns what was printed."),
        (lambda start, ranks: _launcher(lambda it: start({**it, "RANK": str(int(it["RANK"]) + 1)}), ranks),
         "the ranks are counted from 1", "From 0, as the local ranks."),
        (lambda start, ranks: _launcher(start, ranks, local=ranks), "all are told the same GPU, which nobody has",
         "On one machine the local rank is the rank."),
        (partial(_launcher, numbers=lambda ranks: range(ranks + 1)), "one more is started than there are ranks",
         "`range(ranks)` ends before `ranks`."),
        (lambda start, ranks: _launcher(start, ranks)[-1:], "only the last rank is in the list",
         "What each printed: is the line inside of the loop?"),
        (partial(_launcher, what=lambda process: process.communicate()[1]), "None is in the list, for each",
         "What was printed is the first of the two that `communicate()` returns: number 0."),
        (partial(_launcher, what=lambda process: process.communicate()[0].split()), "each text is cut into words",
         "Leave it whole: a text for each."),
        (lambda start, ranks: _launcher(lambda it: start({**it, "RANK": str(ranks), "WORLD_SIZE": it["RANK"]}), ranks),
         "`RANK` and `WORLD_SIZE` are mixed up", "`RANK` is the number in the loop, and `WORLD_SIZE` is `ranks`."),
        (partial(_launcher, more=-1), "`WORLD_SIZE` is the number of the last rank, and not how many there are",
         "There are `ranks` of them."),
        (lambda start, ranks: [start({}).communicate()[0] for _ in range(ranks)],
         "they are told nothing, and each is started when the one before has ended", TOLD_BY),
        (lambda start, ranks: [it.communicate()[0] for it in [start({}) for _ in range(ranks)]],
         "the processes are told nothing of what they look for", TOLD_BY),
        (lambda start, ranks: "".join(_launcher(start, ranks)), "one text is returned", "A list: a text for each."),
        (lambda start, ranks: dict(enumerate(_launcher(start, ranks))), "a dictionary is returned",
         "A list, rank 0's first."),
        (partial(_launcher, what=lambda process: process), "the processes are returned, and not what they printed",
         "`communicate` waits for one, and returns that."),
        (partial(_launcher, what=lambda process: process.wait() or process.stdout),
         "the pipes are returned, and not what came out of them", "`communicate` waits, and reads."),
        (partial(_launcher, what=lambda process: process.communicate()), "what `communicate` returns is two things",
         "What was printed is the first."),
        (lambda start, ranks: [""] * ranks, "nobody is started by `start`", "Call `start`, once for each."),
    ],
    hints={"expected str": "Environment variables are texts: `str(rank)`.",
           "'dict' and": "`start` is given a dictionary: `RANK`, and what else a rank must know.",
           "unexpected keyword argument": "`start` is given one thing: a dictionary.",
           "argument: 'who'": "`start` is given the variables for this rank, in a dictionary.",
           "attribute 'decode'": "It is a text already."},
    otherwise="A list of texts: what a process printed is the first of the two things that `communicate()` returns.",
)  # fmt: skip
