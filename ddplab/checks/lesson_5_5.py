"""Checks of lesson 5.5, restarts."""

import contextlib
import io
import logging
import os
import random
import re
import shlex
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from ddplab.checks.common import kind
from ddplab.checks.turns import turn

SWITCH = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
STARTS = {"torchrun", "torch.distributed.run"}


def _asked(command: Callable[[int], str], restarts: int) -> list[str]:
    """What torchrun makes of a command line: processes, restarts, script, and whether its agent lends the store."""
    from torch.distributed import run
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    line = command(restarts)
    if not isinstance(line, str):
        return ["nothing" if line is None else kind(line)]
    line = line.strip().removeprefix("!").replace("\\\n", " ")
    commands = [shlex.split(it) for it in re.split(r"[;&\n]+", line) if it.strip()]
    exported = [word for it in commands if it[0] == "export" for word in it]
    kept = [it[0] for it in commands if it[0].startswith(f"{SWITCH}=") and len(it) == 1]
    if SWITCH in exported:  # what is not exported stays in bash
        exported, kept = exported + kept, []
    words = next((it for it in commands if it[0] != "export" and STARTS.intersection(it)), None)
    if words is None:
        return ["starts no torchrun"]
    at, seen, real = next(n for n, word in enumerate(words) if word in STARTS), [], run.elastic_launch
    switches = [word.partition("=")[2] for word in [*exported, *words[:at]] if word.startswith(f"{SWITCH}=")]
    switched, why = (
        "1" in switches,
        ", and bash keeps the switch" * bool(kept) or ", and the switch is not 1" * bool(switches),
    )
    refusal, others, told = io.StringIO(), dict(os.environ), logging.root.manager.disable
    logging.disable()
    try:
        for name, _, value in (word.partition("=") for word in [*exported, *words[:at]] if word.startswith("PET_")):
            os.environ[name] = value  # an option, as torchrun reads it from the environment
        # torchrun itself, up to the point where it would start something
        run.elastic_launch = lambda config, entrypoint: lambda *_: seen.append(config)
        with contextlib.redirect_stderr(refusal):
            read = run.get_args_parser().parse_args(words[at + 1 :])
            run.run(read)
        os.environ[SWITCH] = "1" if switched else "0"
        meeting = seen[0].rdzv_backend
        endpoint = "localhost:0" if meeting == "c10d" else "localhost:29500"
        lends = get_rendezvous_handler(RendezvousParameters(meeting, endpoint, "job", 1, 1, rank=0)).use_agent_store
    except SystemExit:
        return ["torchrun refuses: " + refusal.getvalue().strip().rpartition("error: ")[2][:90]]
    finally:
        run.elastic_launch = real
        logging.disable(told)
        os.environ.clear()
        os.environ.update(others)  # torchrun sets OMP_NUM_THREADS
    if read.training_script.startswith(SWITCH):
        return ["takes the switch for the script"]
    options = run.get_args_parser()._option_string_actions
    behind = [word for word in read.training_script_args if word.partition("=")[0] in options]
    named = "train.py" if read.module and read.training_script == "train" else os.path.normpath(read.training_script)
    script = " ".join([named, *behind])  # what torchrun would know, and the script is told
    given = f"{seen[0].nproc_per_node}", f"{seen[0].max_restarts}", script
    return [*given, f"{meeting}, lent{why * (meeting == 'c10d')}" if lends else "not lent"]


def _command(restarts: int, switch: str = f"{SWITCH}=1 ", more: str = "") -> str:
    return f"{switch}torchrun --nproc-per-node 2 --max-restarts {restarts} {more}train.py"


turn(
    "5.5.a",
    "A job that may restart",
    _command,
    {"1 restart": lambda: (1,), "3 restarts": lambda: (3,)},
    call=_asked,
    heads=("processes", "restarts", "script", "the agent's store"),
    mistakes=[
        (partial(_command, switch=""), "each attempt finds the addresses of the one before",
         "The switch is a variable: `NAME=1`, a space, and then `torchrun`, in one command."),
        (partial(_command, more="--master-port 29500 "), "a named port makes a static meeting, which lends its store",
         "Leave the port out: the system picks one."),
        *((it, "torchrun allows no restart, and the script is told how many you wanted",
           "What stands behind the script's name is the script's: the options come before it.")
          for it in (lambda restarts: f"torchrun --nproc-per-node 2 train.py --max-restarts {restarts}",
                     lambda restarts: f"{SWITCH}=1 torchrun --nproc-per-node 2 train.py --max-restarts {restarts}",
                     lambda restarts: f"{SWITCH}=1 torchrun --nproc-per-node 2 train.py --max-restarts={restarts}")),
        (lambda restarts: f"{SWITCH}=1 torchrun train.py --nproc-per-node 2 --max-restarts {restarts}",
         "torchrun is told nothing, and the script everything",
         "What stands behind the script's name is the script's: the options come before it."),
        (lambda restarts: None, "nothing came back", "`return` the line, as text."),
        (lambda restarts: _command(restarts).split(), "a line is text, and that is a list",
         "One text, with the spaces in it."),
        (lambda restarts: "python train.py", "the line starts no torchrun",
         "The switch and its 1, a space, `torchrun` and its options, and then the script."),
        (lambda restarts: _command(restarts).removesuffix("train.py"), "no script is named",
         "`train.py` stands behind the options."),
        (lambda restarts: f"{SWITCH}=1 torchrun --nnodes 2 --max-restarts {restarts} train.py",
         "those are two nodes, with one process on each", "`--nproc-per-node`"),
        (lambda restarts: _command("{restarts}"), "the braces stand in the line, to the letter",
         "A text in which Python fills values in begins with `f`."),
        (lambda restarts: _command("restarts"), "the name stands in the line, and not its number",
         "`f\"… {name} …\"` puts a value into a text."),
        (lambda restarts: _command(restarts, "", f"{SWITCH}=1 "), "torchrun takes the switch for the script",
         "The switch comes before `torchrun`."),
        (lambda restarts: f"{SWITCH}=1 torchrun --nproc-per-node 2 train.py", "by default nobody is started again",
         "`--max-restarts`"),
        (lambda restarts: _command(1), "that is right for one restart only", "The number is given."),
        (lambda restarts: f"{SWITCH}=1 torchrun --max-restarts {restarts} train.py", "one process is not two",
         "`--nproc-per-node`"),
        (lambda restarts: _command(restarts, "", f"--{SWITCH} 1 "), "torchrun has no such option",
         "It is a variable of the environment: `NAME=1` before the command."),
        (partial(_command, switch=f"{SWITCH}=1; "), "as a command of its own the switch stays in bash, and torchrun "
         "does not see it", "Put it before `torchrun`, in one command, or `export` it."),
        (partial(_command, switch=f"{SWITCH}=0 "), "the switch is set, and not to 1", "`NAME=1`"),
        (lambda restarts: _command(restarts + 1), "that is one restart more than is asked for",
         "The first attempt is no restart."),
        (lambda restarts: _command(restarts - 1), "that is one restart fewer than is asked for",
         "The first attempt is no restart: it does not count."),
    ],
    otherwise="The switch and its 1, a space, `torchrun` and its options, and then the script.",
)  # fmt: skip


def _log(go_on: Callable[[str, int], Any], done: int, start: int, torn: str = "") -> list[Any]:
    """Let an attempt log `done` steps and die, and the next begin at `start`.

    Return how many lines there are and how many steps twice, which never, and whether a kept step has its loss.
    torn: what is there of one more line.
    """

    def loss(step: int) -> float:
        return 1 / (step + 1)

    with tempfile.TemporaryDirectory(prefix="ddplab-check-") as folder:
        path = Path(folder, "losses.txt")
        if done:
            path.write_text("".join(f"{step} {loss(step):.3f}\n" for step in range(done)) + torn)
        go_on(str(path), start)
        with open(path, "a") as file:
            file.writelines(f"{step} 0.100\n" for step in range(start, 40))
        lines = path.read_text().splitlines()
    steps = [line.split()[0] for line in lines if line.strip()]
    never = [step for step in range(40) if str(step) not in steps]
    kept = [line for line in lines if re.fullmatch(r"\d+( .*)?", line) and int(line.split()[0]) < start]
    as_was = {f"{step} {loss(step):.3f}".rstrip("0.") for step in range(done)} >= {line.rstrip("0.") for line in kept}
    ends = f"{never[0]} to {never[-1]}" if never else "none"
    return [len(lines), len(steps) - len(set(steps)), ends, "as they were" if as_was else "others"]


def _go_on(
    path: str,
    start: int,
    upto: int | None = 0,
    check: bool = True,
    end: str = "\n",
    by_step: bool = False,
    keepends: bool = False,
) -> None:
    if check and not os.path.exists(path):
        return
    lines = Path(path).read_text().splitlines(keepends=keepends)
    places = [int(line.split()[0]) if by_step else n for n, line in enumerate(lines)]
    kept = [it for n, it in zip(places, lines, strict=True) if (n < start + (upto or 0)) == (upto is not None)]
    Path(path).write_text("".join(line + ("" if keepends else end) for line in kept))


WAYS = (_go_on, *(partial(_go_on, by_step=True, keepends=keepends) for keepends in (False, True)))


def _apart(path: str, start: int, by_step: bool = False) -> None:
    if os.path.exists(path):
        with open(path) as file:
            kept = [line for n, line in enumerate(file) if (int(line.split()[0]) if by_step else n) < start]
        Path(path).write_text("\n".join(kept))


def _but_one(path: str, start: int) -> None:
    if os.path.exists(path):
        lines = Path(path).read_text().splitlines(keepends=True)
        Path(path).write_text("".join(lines[: start - 1]))


def _by_the_first_letter(path: str, start: int) -> None:
    if os.path.exists(path):
        lines = Path(path).read_text().splitlines(keepends=True)
        Path(path).write_text("".join(line for line in lines if int(line[0]) < start))


def _without_last_end(path: str) -> None:
    if os.path.exists(path):
        Path(path).write_text(Path(path).read_text().removesuffix("\n"))


turn(
    "5.5.b",
    "Each step once",
    _go_on,
    {
        "the first attempt": lambda: (0, 0),
        "32 steps done, 30 saved": lambda: (32, 30),
        "7 steps done, 6 saved": lambda: (7, 6),
        "9 steps done, none saved": lambda: (9, 0),
        "killed when of line 31 only the 3 was written": lambda: (31, 30, "3"),
    },
    call=_log,
    heads=("lines", "twice", "never", "losses kept"),
    mistakes=[
        (lambda path, start: None, "steps that are trained again stand there twice",
         "Take them out of the file before they come again: it has to be written anew."),
        (lambda path, start: os.path.exists(path) and os.remove(path), "what is behind you is lost too",
         "Keep the lines of the steps before `start`. To open a file for writing empties it: read it first."),
        *((it, "of a line that a death cut short the 3 is taken for step 3",
           "What is no whole line goes, whatever number it begins with.") for it in WAYS[1:]),
        *((lambda path, start, it=it: start and it(path, start), "where nothing was saved, the old lines stay",
           "Where `start` is 0, no line of the file is to be kept.") for it in WAYS),
        *((partial(it, upto=None), "the lines from `start` on are kept, and those before it are lost",
           "The other way round: what was saved stays.") for it in (*WAYS, partial(_go_on, keepends=True))),
        (lambda path, start: Path(path).write_text("".join(f"{step} 0.0\n" for step in range(start))),
         "the steps are there, and their losses are gone", "Keep the lines as they were."),
        (_by_the_first_letter, "of 30 only the 3 is looked at",
         "The step is the whole first word of its line: `line.split()[0]`."),
        (lambda path, start: os.path.exists(path) and Path(path).write_text(
            "".join(Path(path).read_text().splitlines(keepends=True)[:-1])),
         "one line is taken out, however many are too many", "All lines from `start` on."),
        *((partial(it, upto=1), "one line too many is kept", "`start` itself is going to be trained.") for it in WAYS),
        *((it, "one line too few is kept", "All steps before `start` were saved.")
          for it in (*(partial(it, upto=-1) for it in WAYS), _but_one)),
        *((partial(it, check=False), "in the first attempt there is no file yet", "`os.path.exists(path)`")
          for it in WAYS),
        (lambda path, start: _go_on(path, start) or _without_last_end(path),
         "the last line has lost its end, and the next is written into it", "Each line ends with `\\n`, the last too."),
        *((it, "between the lines stand empty ones",
           "Each line ends with one `\\n`, and one that was read has its own already.")
          for it in (_apart, partial(_apart, by_step=True), partial(_go_on, end="\n\n"),
                     partial(_go_on, end="\n\n", by_step=True))),
        *((partial(it, end=""), "the lines run into each other", "Each line ends with `\\n`.") for it in WAYS[:2]),
        (lambda path, start: os.path.exists(path) and Path(path).write_text(
            "".join(line + "\n" for line in Path(path).read_text().splitlines() if line.split()[0] < str(start))),
         "texts are compared letter by letter: `'7' < '30'` is false", "`int(…)`"),
        (lambda path, start: os.path.exists(path) and Path(path).write_text(Path(path).read_text() + "".join(
            line + "\n" for line in Path(path).read_text().splitlines() if int(line.split()[0]) < start)),
         "lines are added, and none is taken out", "`\"w\"` writes a file anew; with `\"a\"` it grows."),
    ],
    hints={"must be str, not list": "`write` takes one text, `writelines` a list of lines.",
           "values to unpack": "The last line may be half a line, of a rank that died when it wrote.",
           "invalid literal": "The step is the first word of its line: `line.split()[0]`.",
           "No such file": "Before the first attempt there is no file yet: `os.path.exists(path)`."},
    otherwise="The first `start` lines stay. What comes behind them goes, be it a whole line or half of one.",
)  # fmt: skip


PAST = "numbers past the last image"


def _dealt(my_images: Callable[..., Any], size: int) -> list[Any]:
    """Of a step on `size` ranks: images of all, those that two have, and whether one rank alone takes the same.

    Where steps have not equally many, or a number is past the last image, it is said of which step.
    """
    untouched = True  # torch's own random numbers

    def numbers_of(step: int, rank: int, of: int) -> list[int]:
        torch.manual_seed(1000 * step + 17 * of + rank + 1)  # nobody has seeded the ranks alike
        before = torch.get_rng_state()
        numbers = [int(it) for it in my_images(step, 1000, rank, of)]
        nonlocal untouched
        untouched = untouched and torch.equal(before, torch.get_rng_state())
        return numbers

    steps = [[it for rank in range(size) for it in numbers_of(step, rank, size)] for step in range(5, 25)]
    every = steps[0]
    twice = any(len(it) > len(set(it)) for it in steps)  # in one step ranks that draw for themselves may be lucky
    same = set(every) == set(numbers_of(5, 0, 1))
    pairs = [({*a}, {*b}) for a, b in pairwise(steps) if a and b]
    again = max((len(a & b) for a, b in pairs), default=0)  # of 64 numbers that are drawn anew about four
    again = "others" if again <= 32 else "mostly the same"
    if same_sets := sum(a == b for a, b in pairs):
        again = "the same" if same_sets == len(pairs) else "at times the same"
    few = again == "others" and len({it for numbers in steps for it in numbers}) < 500  # drawn anew, about 730
    fewer = next((f", and {len(it)} in step {n}" for n, it in enumerate(steps, 5) if len(it) != len(every)), "")
    past = next((f"{PAST} in step {n}" for n, it in enumerate(steps, 5) if max(it, default=0) >= 1000), "right")
    late = [number for rank in range(size) for number in numbers_of(99, rank, size)]
    return [
        *(f"{len(every)}{fewer}" if fewer and late else len(every), "some" if twice else 0),
        *("yes" if same else "no", "others, and soon the same" if few else again),
        "no images" if not late else past if max(late) < 1000 else PAST,
        "let alone" if untouched else "drawn or reset",
    ]


def _my_images(step: int, n: int, rank: int, size: int, seed: Any = None, batch: int = 64, rest: bool = True) -> Any:
    order = torch.Generator().manual_seed(step if seed is None else seed(step, rank, size))
    images = torch.randperm(n, generator=order)[:batch]
    return images[rank::size] if rest else images[rank * (batch // size) : (rank + 1) * (batch // size)]


turn(
    "5.5.c",
    "A batch that does not notice",
    _my_images,
    {f"{size} rank{'s' * (size > 1)}": lambda size=size: (size,) for size in (1, 2, 3)},
    call=_dealt,
    heads=("images", "twice", "as one rank alone", "the next step's", "in step 99", "torch's own numbers"),
    mistakes=[
        *((it, "each rank draws a batch of its own",
           "All draw the same 64, by a generator seeded with `step` alone, and then share.")
          for it in (partial(_my_images, seed=lambda step, rank, size: 100 * step + rank),
                     partial(_my_images, seed=lambda step, rank, size: 100 * step + rank, rest=False),
                     lambda step, n, rank, size: torch.randperm(n)[:64][rank::size])),
        (partial(_my_images, seed=lambda step, rank, size: 100 * step + size), "more ranks, another batch",
         "What may decide which 64? The step alone."),
        (partial(_my_images, seed=lambda *_: 0), "every step takes the same images", "Seed with `step`."),
        (lambda step, n, rank, size: _my_images(step // 2, n, rank, size), "some steps take what the step before had",
         "Seed with `step`."),
        (lambda step, n, rank, size: range(64 * (step % 2) + rank, 64 * (step % 2) + 64, size),
         "a few sets take turns, and the other images are never seen", "64 further on in each step, or drawn anew."),
        (lambda step, n, rank, size: (torch.manual_seed(step), torch.randperm(n)[:64][rank::size])[1],
         "torch's own random numbers are reset in each step, and dropout draws from them",
         "A generator of its own has a seed of its own: `torch.Generator()`."),
        (lambda step, n, rank, size: _my_images(step, n, 0, 1), "each rank takes all 64",
         "Every `size`-th, from `rank` on."),
        (lambda step, n, rank, size: _my_images(step, n, rank, size, batch=64 * size), "the batch grows with the ranks",
         "64 of all ranks together."),
        *((it, "a late step's numbers are past the last image", "Begin again at image 0 when you are through: `% n`.")
          for it in (lambda step, n, rank, size: [*range(64 * step + rank, 64 * step + 64, size)],
                     lambda step, n, rank, size: range(
                         64 * step + 64 // size * rank, 64 * step + 64 // size * (1 + rank)))),
        (lambda step, n, rank, size: torch.arange(n)[64 * step : 64 * step + 64][rank::size],
         "a late step gets no images", "Begin again at image 0 when you are through: `% n`."),
        (lambda step, n, rank, size: range(64 * step % n + rank, 64 * step % n + 64, size),
         "a step that begins near the last image goes past it", "`% n` for each number, and not for the first alone."),
        (lambda step, n, rank, size: torch.arange(n)[64 * step % n :][:64][rank::size],
         "a step that begins near the last image gets fewer", "`% n` for each number, and not for the first alone."),
        (lambda step, n, rank, size: [number % n for number in range(step + rank, step + 64, size)],
         "most images of a step are those of the step before", "64 further on in each step, or drawn anew."),
        (lambda step, n, rank, size: random.sample(range(n), 64)[rank::size],
         "who asks again for a step gets others", "A seed for the draw: `step`."),
        (partial(_my_images, rest=False), "of 64 among three, one is left out", "`images[rank::size]` leaves none."),
        (lambda step, n, rank, size: _my_images(step, n, 0, size), "all ranks take rank 0's share", "From `rank` on."),
        (lambda step, n, rank, size: torch.randint(n, (64,), generator=torch.Generator().manual_seed(step))[rank::size],
         "an image can be drawn twice", "`torch.randperm` has each number once."),
    ],
    hints={"invalid combination": "`generator=` takes a `torch.Generator()`, seeded by its `manual_seed(…)`."},
    otherwise="The step alone decides which 64 it is, each once, on every rank alike. Then the ranks share them.",
)  # fmt: skip
