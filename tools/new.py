"""Lay out what a new lesson or a new exercise consists of. Nothing that is there is overwritten.

    python tools/new.py lesson 4_ddp/4.9_name      # lessons/4_ddp/4.9_name.ipynb
    python tools/new.py exercise 4_ddp/4.9_name    # its solution, its check, and the answers that test the check

What is laid out runs and passes its checks as it is; CONTRIBUTING.md says what to make of it.
"""

import argparse
import re
import sys
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from run_notebooks import ROOT, normalise, write

LESSON = [
    """\
# {number} · {title}

**Time:** 20 minutes

**You will be able to**
- …;
- ….

**You need first:** [1.1 · Start here](../1_one_device/1.1_start_here.ipynb).

**What runs here:** the second cell says what this machine has. Every lesson runs with no GPU, one, or many.""",
    "%from ddplab import devices, launch, predict, settle",
    "%devices()",
    """\
## A question

*Is it so?* A question that a person really asks, with a link to where.""",
    '%guess = predict("Is it so?", "yes", "no")',
    "## The smallest code that settles it\n\nChange one thing at a time, and mark changed lines `# NEW`.",
    '%def work():\n    return "so"',
    "%run = launch(work, nproc_per_node=2)\nrun.results",
    "## The answer",
    """\
%settle(
    guess,
    "yes",
    because="both ranks say so",
    holds=run.results == ["so", "so"],
)""",
    """\
## Your turn

What is the smallest change above that makes it false? Predict, then run.

## Take-away

Three sentences.

**Exercises:** [📝 Exercises {number}](../../exercises/{name}.ipynb): what they are about.

**Next:** [1.1 · Start here](../1_one_device/1.1_start_here.ipynb).""",
]

SOLUTION = [
    """\
# 📃 Solutions {number} · {title}

One exercise on [lesson {number}](../../lessons/{name}.ipynb). It ends with a check that says what it found.

| | exercise | difficulty | minutes |
|---|---|---|---|
| {number}.1 | Twice a number | ★ | 5 |""",
    "%from ddplab import check",
    "## {number}.1 · Twice a number (★, 5 minutes)\n\nWrite `double(number)`: twice the number.",
    "%def double(number):\n    ### BEGIN SOLUTION\n    return 2 * number\n    ### END SOLUTION",
    '%check("{number}.1", double)',
    "Back to [lesson {number}](../../lessons/{name}.ipynb).",
]

CHECK = '''\
"""Checks of lesson {number}, {title}."""

from collections.abc import Callable
from typing import Any

from ddplab.checks import NotYet, exercise


@exercise("{number}.1", "Twice a number")
def double(double: Callable[[int], Any]) -> None:
    """`double(number)`: twice the number."""
    for number in (3, -1):
        if (got := double(number)) != 2 * number:
            raise NotYet(f"double({{number}}) is {{got!r}}, not {{2 * number}}", hint="How do you get from 3 to 6?")
'''

ANSWERS = '''\
"""Answers to the exercises of lesson {number}: the right ones, the blanks, and mistakes that people make."""


def double(number):
    return 2 * number


def blank(number):
    raise NotImplementedError("your code here")


def squares(number):
    return number**2


def adds(number):
    return number + 2


def forgets_return(number):
    2 * number


ANSWERS = {{
    "{number}.1": {{
        "correct": double,
        "blank": blank,
        "wrong": [
            (squares, ["double(3) is 9"]),
            (adds, ["double(3) is 5"]),
            (forgets_return, ["double(3) is None"]),
        ],
    }},
}}
'''


def lay_out(kind: str, name: str, root: Path = ROOT) -> list[Path]:
    """Write the files of a new "lesson" or "exercise" under `root`; return where they are."""
    if not (match := re.fullmatch(r"(\d)_\w+/((\1)\.(\d+))_(\w+)", name)):
        raise ValueError(f"a name is like 4_ddp/4.9_name, its part and its number first, not {name!r}")
    module = f"lesson_{match[3]}_{match[4]}"
    words = {"name": name, "number": match[2], "title": match[5].replace("_", " ").capitalize()}
    if kind == "lesson":
        files = {f"lessons/{name}.ipynb": notebook(LESSON, words)}
    else:
        files = {
            f"solutions/{name}.ipynb": notebook(SOLUTION, words),
            f"ddplab/checks/{module}.py": CHECK.format(**words),
            f"tests/checks/answers/{module}.py": ANSWERS.format(**words),
        }
    if taken := [path for path in files if (root / path).exists()]:
        raise FileExistsError(f"there already: {', '.join(taken)}")
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            (root / path).write_text(content, encoding="utf-8")
        else:
            write(content, root / path)
    return [root / path for path in files]


def notebook(cells: list[str], words: dict[str, str]) -> NotebookNode:
    """A notebook of these cells: code where one begins with %."""
    made = new_notebook()
    for cell in cells:
        text = cell.format(**words)
        made.cells.append(new_code_cell(text[1:]) if text[0] == "%" else new_markdown_cell(text))
        made.cells[-1].id = ""  # made of the source below, not by chance
        if text == "%devices()":
            made.cells[-1].metadata.tags = ["nbval-ignore-output"]
    normalise(made)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["lesson", "exercise"])
    parser.add_argument("name", nargs="?", default="", help="its part, number and name, such as 4_ddp/4.9_name")
    asked = parser.parse_args()
    try:
        made = lay_out(asked.kind, asked.name)
    except (ValueError, FileExistsError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(str(path.relative_to(ROOT)) for path in made))
    print("CONTRIBUTING.md says what comes next.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
