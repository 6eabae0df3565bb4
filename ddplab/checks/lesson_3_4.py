"""Checks of lesson 3.4, Where processes come from."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, asks, expect_all

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
    Number("torchrun", 3, "Torchrun starts the script once for each rank.").with_mistakes(
        (4, "torchrun itself does not read your file as Python", "It starts Python on it, once for each rank."),
        (1, "that would be one rank", "Torchrun starts the script once for each rank."),
    ),
)


@exercise("3.4.1", "Who reads the file?")
def outcomes(forked: Any, spawned: Any, torchrun: Any, note: Any, guard: Any) -> None:
    """A file that prints, then starts three children; what a spawned child finds; which error the guard mends."""
    expect_all(NUMBERS, {"forked": forked, "spawned": spawned, "torchrun": torchrun})
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
    if "spawn" not in script or "Process" not in script:
        raise NotYet("the script spawns nothing any more", "Keep `get_context('spawn')`, and mend what is around it.")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "job.py")
        file.write_text(script)
        # buffered, so that a child writes its line at once and whole, and not word by word between the other's
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        try:
            ran = subprocess.run(
                [sys.executable, file], capture_output=True, text=True, timeout=20, check=False, env=environment
            )
        except subprocess.TimeoutExpired:
            raise NotYet("the script did not end within 20 seconds", "Does it spawn again and again?") from None
    lines, said = sorted(ran.stdout.splitlines()), ran.stderr
    if lines == ["rank 0 multiplies by 3", "rank 1 multiplies by 3"]:
        return
    if "Can't pickle" in said or "Can't get local object" in said or "cannot pickle" in said.lower():
        hint = "A lambda is nobody's name. `Process(target=work, args=(…,))` sends a name and arguments."
        raise NotYet("the target cannot be sent to another process: it has no name in the file", hint)
    if "bootstrapping phase" in said:
        hint = 'Call `main()` only under `if __name__ == "__main__":`.'
        raise NotYet("each child reads the file and is about to spawn again (bootstrapping)", hint)
    if said.strip():
        raise NotYet(f"the script ends with {said.strip().splitlines()[-1]}", "Run it from a terminal to see it all.")
    if lines == ["rank 0 multiplies by 1", "rank 1 multiplies by 1"]:
        hint = "A spawned child has read the file and run nothing under the guard. Pass `factor` as an argument."
        raise NotYet("the children multiply by 1: what `main()` has set is not known to them", hint)
    if not lines:
        raise NotYet("the script prints nothing", "Somebody has to call `main()`, and the children `work`.")
    raise NotYet(
        f"the script prints {len(lines)} lines, and not the two that are asked for: {' / '.join(lines)[:120]}",
        "`rank 0 multiplies by 3` and `rank 1 multiplies by 3`, in any order.",
    )
