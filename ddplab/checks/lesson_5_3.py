"""Checks of lesson 5.3, on a cluster."""

import contextlib
import io
import re
import subprocess
import tempfile
from argparse import Namespace
from pathlib import Path

from torch.distributed.run import get_args_parser

from ddplab.checks import CannotCheck, NotYet, exercise
from ddplab.checks.common import kind
from ddplab.course.played_servers import sbatch


@exercise("5.3.1", "Mend the script")
def mend_the_script(mended: str) -> None:
    """A Slurm script with four mistakes: bash runs it, with a play srun, and torchrun's parser reads the rest."""
    if not isinstance(mended, str):
        raise NotYet(f"`mended` is {kind(mended)}, not a text", "The whole script, between the quotes.")
    mended = mended.lstrip()
    if not mended.startswith("#!"):
        raise NotYet("its first line is not `#!/bin/bash`", "Slurm refuses a script without it.")
    jobs = [_submit(mended, number) for number in (4242, 4243, 4_000_000)]
    tasks = re.findall(r"^#SBATCH\s+(?:--ntasks-per-node)[= ](\d+)", mended, re.MULTILINE)
    if tasks and tasks[-1] != "1":
        raise NotYet(
            f"Slurm would start {tasks[-1]} agents on each node, and a meeting of 2 lets only two of them in",
            "Tasks are what srun starts. How many agents does a node need?",
        )
    first, second, late = jobs
    for name, wanted in {"nnodes": "2", "nproc_per_node": "4", "training_script": "train.py"}.items():
        if (found := getattr(first, name)) != wanted:
            raise NotYet(f"torchrun reads {name} as {found!r}, not {wanted!r}", "Two nodes of four ranks run train.py.")
    if first.rdzv_backend != "c10d":
        raise NotYet(
            f"the meeting is of the kind {first.rdzv_backend!r}: each node would need a number of its own",
            "Which option says that the numbers are dealt out?",
        )
    _judge_the_meeting(mended, *(job.rdzv_endpoint.partition(":")[::2] for job in (first, second, late)))


def _judge_the_meeting(mended: str, first: tuple[str, str], second: tuple[str, str], late: tuple[str, str]) -> None:
    """The endpoints, host and port, of jobs 4242, 4243 and 4000000."""
    host, port = first
    if not host:
        raise NotYet(f"the endpoint is {':'.join(first)!r}: it names no machine", "Say which node holds the store.")
    if re.search(r"[$()`'\"\s]", host):
        hint = "Between single quotes bash fills nothing in; between double quotes it does."
        raise NotYet(f"the store is on a machine called {host!r}, to the letter", hint)
    written = re.search(r"--rdzv[-_]endpoint[= ]+[\"']?([\w.-]+):", mended)
    if written:  # no $ in it; the play scontrol says localhost too, so the words tell and not the value
        hint = "A name that is right for every job: `$(hostname)` is filled in on the first node."
        raise NotYet(f"the store is always on {written[1]!r}, whichever nodes Slurm gives", hint)
    if port == second[1]:
        hint = "$SLURM_JOB_ID differs from job to job."
        raise NotYet(f"jobs 4242 and 4243 both meet at port {port or 29400}, and may be on one node", hint)
    for number, it in ((4242, port), (4243, second[1]), (4_000_000, late[1])):
        if not (it.isdigit() and 1024 <= int(it) <= 65535):
            hint = "Numbers of jobs grow into the millions. A remainder keeps a number small: %."
            raise NotYet(f"the port of job {number} is {it or 'missing'}, and ports of yours are 1024 to 65535", hint)


def _submit(script: str, number: int) -> Namespace:
    """What torchrun understands when this script runs as job `number`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "job.sbatch")
        file.write_text(script if script.endswith("\n") else script + "\n")
        try:
            syntax = subprocess.run(["bash", "-n", str(file)], capture_output=True, text=True)
            if syntax.returncode:
                raise NotYet(f"bash cannot read it: {syntax.stderr.strip().partition('line ')[2] or 'a syntax error'}")
            ran = sbatch(str(file), gpus=4, job=number, dry=True)
        except FileNotFoundError:
            raise CannotCheck("this machine has no bash") from None
        except subprocess.TimeoutExpired:
            raise NotYet("the script does not come to an end") from None
    if lost := re.search(r"(--[\w-]+): command not found", ran.output):
        hint = "A line goes on in the next one when its very last character is a backslash."
        raise NotYet(f"bash takes `{lost[1]}` for a command of its own", hint)
    if not ran.asked:
        hint = "The script itself runs once. What starts a command on every node?"
        raise NotYet("torchrun is started on the first node only, and waits there for the second", hint)
    if unset := re.search(r"(\w+): unbound variable", ran.output):
        raise NotYet(f"`{unset[1]}` is a variable that nobody has set", "The lesson's script has the names.")
    words = ran.asked[0]
    if "torchrun" not in words:
        hint = "srun [its options] torchrun [its options]."
        raise NotYet(f"srun is given `{' '.join(words)[:60]}`, not torchrun", hint)
    refusal = io.StringIO()
    try:
        with contextlib.redirect_stderr(refusal):
            return get_args_parser().parse_args(words[words.index("torchrun") + 1 :])
    except SystemExit:
        said = refusal.getvalue().strip().splitlines()[-1].partition("error: ")[2]
        raise NotYet(f"torchrun refuses it: {said}", "Its own options come before the script's name.") from None
