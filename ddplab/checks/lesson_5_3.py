"""Checks of lesson 5.3, on a cluster."""

import contextlib
import io
import os
import re
import shlex
import socket
import subprocess
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from torch.distributed.run import get_args_parser

from ddplab.checks import CannotCheck, NotYet, exercise
from ddplab.checks.common import kind
from ddplab.checks.turns import turn
from ddplab.course.played_servers import sbatch

ALL_GPUS = [("nproc_per_node", "gpu"), ("nproc_per_node", "auto")]  # torchrun counts them itself
LATE = 64 * 65536  # a late job, whose number leaves no remainder when it is divided by the number of ports


@exercise("5.3.1", "Mend the script")
def mend_the_script(mended: str) -> None:
    """A Slurm script with four mistakes: bash runs it, with a play srun, and torchrun's parser reads the rest."""
    if not isinstance(mended, str):
        raise NotYet(f"`mended` is {kind(mended)}, not a text", "The whole script, between the quotes.")
    mended = mended.lstrip()
    if not mended.startswith("#!"):
        raise NotYet("its first line is not `#!/bin/bash`", "Slurm refuses a script without it.")
    jobs = [_submit(mended, number) for number in (4242, 4243, LATE)]
    tasks = _asked(lambda *_: mended, 2, 4)[1]
    if tasks > 1:
        raise NotYet(
            f"Slurm would start {tasks:g} agents on each node, and a meeting of 2 lets only two of them in",
            "Tasks are what srun starts. How many agents does a node need?",
        )
    if tasks < 1:
        raise NotYet("Slurm would start one agent for both nodes", "Tasks are what srun starts. Each node needs one.")
    first, second, late = jobs
    for name, wanted in {"nnodes": "2", "nproc_per_node": "4", "training_script": "train.py"}.items():
        found = getattr(first, name)
        if found != wanted and (name, found) not in ALL_GPUS:
            raise NotYet(f"torchrun reads {name} as {found!r}, not {wanted!r}", "Two nodes of four ranks run train.py.")
    if first.rdzv_backend != "c10d":
        raise NotYet(
            f"the meeting is of the kind {first.rdzv_backend!r}: each node would need a number of its own",
            "Which option says that the numbers are dealt out?",
        )
    _judge_the_meeting(mended, *(job.rdzv_endpoint.partition(":")[::2] for job in (first, second, late)))


def _judge_the_meeting(mended: str, first: tuple[str, str], second: tuple[str, str], late: tuple[str, str]) -> None:
    """The endpoints, host and port, of jobs 4242, 4243 and LATE."""
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
    for number, it in ((4242, port), (4243, second[1]), (LATE, late[1])):
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


# ------------------------------------------------------------------ your turn


LONG = ("nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres")  # what is read here
NEAR = ("nodelist", "nodefile", "ntasks-per-core", "ntasks-per-socket", "ntasks-per-gpu", "tasks-per-node",
        "gpus-per-socket", "gpu-bind", "gpu-freq", "gres-flags")  # Slurm's too, and much like those  # fmt: skip


def _not_slurms(words: Sequence[str]) -> str:
    """Return the first option that Slurm does not know, and that is much like one that it does; "" where none is."""
    names = [word.partition("=")[0] for word in words if word.startswith("--")]
    return next((it for it in names if it[2:] not in LONG + NEAR and get_close_matches(it[2:], LONG, 1, 0.85)), "")


def _asked(ask: Callable[..., str], nodes: int, gpus: int) -> list[float | str]:
    """What Slurm reads in a script's head: nodes, agents on each, GPUs on each."""
    options = []
    for line in ask(nodes, gpus).splitlines():
        if line.startswith("#SBATCH"):
            if line.count("#SBATCH") > 1:
                raise ValueError("sbatch reads a line up to a second #SBATCH in it")
            words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            if words and not words[0].startswith("-"):
                raise ValueError(f"Invalid directive found in batch script: {words[0]}")  # as sbatch says it
            options += words
        elif line.strip() and not line.startswith("#"):
            break  # at the first command Slurm stops reading
    if unknown := _not_slurms(options):
        raise ValueError(f"sbatch: unrecognized option '{unknown}'")
    reader = ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    for name in ("ntasks-per-node", "gpus-per-node", "gpus-per-task", "gres"):
        reader.add_argument(f"--{name}")
    for letter, name in (("N", "nodes"), ("n", "ntasks"), ("G", "gpus")):
        reader.add_argument(f"-{letter}", f"--{name}")
    read, _ = reader.parse_known_args(options)
    number = lambda text: float((text or "0").rpartition(":")[2].partition("-")[0])  # noqa: E731
    its_nodes = number(read.nodes) or 1
    tasks = number(read.ntasks_per_node) or number(read.ntasks) / its_nodes or 1
    on_each = number(read.gpus_per_node) or number(read.gres) or number(read.gpus_per_task) * tasks
    in_all = number(read.gpus)
    if in_all and not on_each and its_nodes > 1:  # Slurm need not deal them evenly
        return [its_nodes, tasks, f"{in_all:g} in all"]
    return [its_nodes, tasks, on_each or in_all]


def _ask(
    nodes: int, gpus: int, tasks: str = "--ntasks-per-node=1", mark: str = "#SBATCH", of: str = "gpus-per-node"
) -> str:
    return f"{mark} --nodes={nodes}\n{mark} {tasks}\n{mark} --{of}={gpus}"


turn(
    "5.3.a",
    "What to ask Slurm for",
    _ask,
    {"2 nodes of 4 GPUs": lambda: (2, 4), "3 nodes of 8 GPUs": lambda: (3, 8)},
    call=_asked,
    heads=("nodes", "agents on each", "GPUs on each"),
    mistakes=[
        (lambda nodes, gpus: _ask(nodes, gpus, f"--ntasks-per-node={gpus}"), "there is an agent for each GPU",
         "What `srun` starts is torchrun. How many of those does a node need?"),
        (lambda nodes, gpus: _ask(nodes, gpus, "--ntasks=1"), "one agent is not enough for all nodes",
         "One on each: `--ntasks-per-node`."),
        (lambda nodes, gpus: _ask(nodes, gpus, f"--ntasks={gpus}"), "`--ntasks` counts the agents of all nodes",
         "One on each: `--ntasks-per-node`."),
        (partial(_ask, mark="# SBATCH"), "Slurm reads a line only where it begins with `#SBATCH`",
         "One word, and nothing before it."),
        (lambda nodes, gpus: f"#SBATCH --gpus-per-node={gpus}\nset -eu\n#SBATCH --nodes={nodes}",
         "as Slurm reads it, one node is asked for", "`--nodes=…`, and above the first command: there Slurm stops."),
        (lambda nodes, gpus: _ask(nodes, gpus * nodes), "each node is asked for the GPUs of all", "`--gpus-per-node`"),
        (lambda nodes, gpus: _ask(nodes, gpus * nodes, of="gpus"),
         "`--gpus` counts those of all nodes, and Slurm need not deal them evenly", "`--gpus-per-node`"),
        (partial(_ask, of="gpus"), "`--gpus` counts those of all nodes", "`--gpus-per-node`"),
        (lambda nodes, gpus: _ask(gpus, nodes), "nodes and GPUs have changed places", "First `nodes`, then `gpus`."),
        (lambda nodes, gpus: _ask(nodes, gpus, f"--ntasks-per-node={nodes}"),
         "on each node there are as many agents as there are nodes", "How many does one node need?"),
        (lambda nodes, gpus: _ask(2, 4), "that is right for the first case only", "Both numbers are given."),
        (lambda nodes, gpus: f"#SBATCH --nodes={nodes}", "as Slurm reads it, nobody asks for a GPU",
         "`--gpus-per-node`, as an option of its own."),
    ],
    hints={"'NoneType'": "Return the lines, as one text.", "'splitlines'": "Return the lines as one text.",
           "second #SBATCH": "A line for each, or all options behind one `#SBATCH`.",
           "unrecognized option": "Slurm knows `--nodes`, `--ntasks-per-node` and `--gpus-per-node`, with hyphens.",
           "Invalid directive": "Each option begins with `--`.",
           "could not convert": "Slurm wants numbers. In an f-string Python fills in the names between braces."},
    otherwise="`--nodes` for the job; `--ntasks-per-node` and `--gpus-per-node` for each of them.",
)  # fmt: skip


TOP = """#!/bin/bash
set -eu
first=gpu03
gpus=$SLURM_GPUS_ON_NODE
port=$((10000 + SLURM_JOB_ID % 20000))
SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURMD_NODENAME=gpu03  # in the script itself: the first node's
SLURM_JOBID=$SLURM_JOB_ID SLURM_NTASKS=$SLURM_NNODES SLURM_NTASKS_PER_NODE=1 SLURM_GPUS_PER_NODE=$gpus
"""


def _started(start: Callable[[], str], nodes: int, gpus: int, job: int) -> list[str]:
    """Where bash, with a play srun, starts this command, and what torchrun's own parser reads in it."""
    with tempfile.TemporaryDirectory(prefix="ddplab-check-") as folder:
        Path(folder, "job.sbatch").write_text(TOP + start() + "\n")
        ran = sbatch(f"{folder}/job.sbatch", nodes=nodes, gpus=gpus, job=job, dry=True)
    if re.search(r"--[\w-]+: command not found", ran.output):
        return ["bash takes an option for a command"]
    if unset := re.search(r"(\w+): unbound variable", ran.output):
        return [f"nobody has set {unset[1]}"]
    if (unknown := re.search(r"(\S+): command not found", ran.output)) and not ran.asked:
        return [f"bash knows no {unknown[1]}"]
    if not ran.asked:
        return ["on one node" if ran.status == 0 and "torchrun" in start() else "nowhere"]
    words = ran.asked[0]
    if any("$" in word for word in words):
        return ["on every node, with `$` to the letter"]
    torchrun = next((n for n, it in enumerate(words) if Path(it).name in ("torchrun", "torch.distributed.run")), None)
    if torchrun is None:
        return ["it is no torchrun"]
    if unknown := _not_slurms(words[:torchrun]):
        return [f"srun knows no {unknown}"]
    srun = ArgumentParser(add_help=False, exit_on_error=False)
    for short, long in ("-N", "--nodes"), ("-n", "--ntasks"):
        srun.add_argument(short, long, default=str(nodes))
    srun.add_argument("--ntasks-per-node", default="1")
    asked, _ = srun.parse_known_args(words[:torchrun])
    if asked.ntasks_per_node != "1":
        return [f"{asked.ntasks_per_node} agents on a node"]
    if {asked.nodes, asked.ntasks} != {str(nodes)}:
        return [f"{asked.ntasks} tasks on {asked.nodes} of {nodes} nodes"]
    try:
        with contextlib.redirect_stderr(io.StringIO()) as refusal:
            read = get_args_parser().parse_args(words[torchrun + 1 :])
    except SystemExit:
        return ["torchrun refuses: " + refusal.getvalue().strip().rpartition("error: ")[2][:60]]
    if not read.no_python and os.path.basename(read.training_script) not in ("train.py", "train"):
        return [f"torchrun takes {read.training_script} for the script"]
    host = re.sub(rf"^({re.escape(socket.gethostname())}):", "gpu03:", read.rdzv_endpoint)  # the script runs there
    ranks = str(gpus) if ("nproc_per_node", read.nproc_per_node) in ALL_GPUS else read.nproc_per_node
    return ["on every node", read.nnodes, ranks, f"{read.rdzv_backend} {host}".strip()]


def _start(
    srun: str = "srun ",
    nodes: str = "$SLURM_NNODES",
    gpus: str = "$gpus",
    kind: str = "--rdzv-backend c10d ",
    at: str = '"$first:$port"',
    cut: str = "\\\n",
) -> str:
    return f"{srun}torchrun --nnodes {nodes} --nproc-per-node {gpus} {cut}    {kind}--rdzv-endpoint {at} train.py"


turn(
    "5.3.b",
    "One agent on every node",
    _start,
    {"2 nodes of 4 GPUs, job 4242": lambda: (2, 4, 4242), "3 nodes of 8 GPUs, job 4243": lambda: (3, 8, 4243)},
    call=_started,
    heads=("starts", "nodes", "ranks on each", "meeting"),
    mistakes=[
        (partial(_start, srun=""), "the script runs on the first node only, and so does what it starts itself",
         "Who starts a command on every node?"),
        (partial(_start, srun="srun -N 1 -n 1 "), "srun is told to start one agent for all nodes",
         "Without such options it starts as many tasks as the job has asked for."),
        (partial(_start, srun="srun --ntasks-per-node=$gpus "), "srun is told to start an agent for each GPU",
         "The agent starts the ranks: a node needs one."),
        (partial(_start, nodes="2", gpus="4"), "the numbers are right for one job only", "Slurm knows them."),
        (partial(_start, gpus="$((SLURM_NNODES * gpus))"), "each node starts the ranks of all", "Of each node."),
        (partial(_start, kind=""), "without a kind the meeting is a static one, in which each needs a number",
         "`--rdzv-backend`"),
        (lambda: "srun torchrun --nnodes $SLURM_NNODES --nproc-per-node $gpus --master-addr $first train.py",
         "without a kind and an endpoint the meeting is a static one, in which each agent needs a number of its own",
         "Bash fills in the same for all nodes. `--rdzv-backend c10d` deals the numbers out."),
        (lambda: _start().replace('--rdzv-endpoint "$first:$port" ', ""), "nobody says where the meeting is",
         "`--rdzv-endpoint`"),
        (lambda: "srun torchrun train.py", "torchrun has read no option of its own",
         "They come before `train.py`: what comes after it is for `train.py`."),
        (partial(_start, at="'$first:$port'"), "bash leaves a `$` as it is",
         "It does so between single quotes, and behind a backslash. Between double quotes it fills in."),
        (partial(_start, at='"$SLURM_JOB_NODELIST:$port"'), "that is the list of all nodes, as Slurm writes it",
         "The first of them is `$first`."),
        (partial(_start, at='"$first"'), "the meeting has a machine and no port", "`$first:$port`"),
        (partial(_start, at='"{first}:{port}"'), "the names stand there, to the letter", "Bash's begin with `$`."),
        (partial(_start, at='"first:$port"'), "the machine is called first, to the letter", "`$first`"),
        (partial(_start, nodes="$gpus", gpus="$SLURM_NNODES"), "nodes and ranks have changed places",
         "`--nnodes` counts nodes, `--nproc-per-node` the ranks of each."),
        (lambda: _start().replace("--nnodes $SLURM_NNODES ", ""), "nobody says how many nodes: torchrun takes one",
         "`--nnodes`"),
        (partial(_start, nodes="1:$SLURM_NNODES"), "that meeting may begin with one node", "All of them are wanted."),
        (partial(_start, nodes="$SLURM_NODEID"), "that is the number of one node, and not how many there are",
         "`$SLURM_NNODES`"),
        (partial(_start, gpus="1"), "each node starts one rank, whatever it has", "`$gpus`"),
        (lambda: _start().replace("train.py", "python train.py"), "torchrun takes `python` for the script",
         "It starts Python itself: name the script alone."),
        (lambda: _start().replace(" train.py", ""), "no script is named", "`train.py` comes last."),
        (partial(_start, srun="sbatch "), "`sbatch` hands over a script, and this line stands in it",
         "Which command of Slurm's starts another one on every node?"),
        (partial(_start, at='"$first:29400"'), "two jobs on one node meet at one port", "`$port`"),
        (partial(_start, at='"localhost:$port"'), "localhost is another machine on each node", "`$first`"),
        (partial(_start, at='"$first:29500"'), "two jobs on one node meet at one port", "`$port`"),
        (partial(_start, at="first:port"), "bash fills in what begins with `$`", "`$first` is the variable's value."),
        (partial(_start, cut="\n"), "the line ends too early",
         "A line goes on in the next one when its very last character is a backslash, `\\\\` between Python's quotes."),
    ],
    hints={"is not defined": "Braces are Python's, where a text begins with `f`. Bash's variables begin with `$`.",
           "expected str": "Return the command, as a text.", "concatenate str": "Return the command, as a text."},
    otherwise="`srun torchrun`, its options, then `train.py`. Bash's variables begin with `$`, in double quotes.",
)  # fmt: skip


def _job(number: str, **more: str) -> dict[str, str]:
    at = {"SLURM_SUBMIT_DIR": "/home/me", "SLURM_JOB_USER": "me", "SLURM_JOB_NAME": "train"}
    return {"SLURM_JOB_ID": number, "SLURM_JOBID": number, **at, **more}


RUNS = {"job 4242": _job("4242"), "job 4242, again": _job("4242", SLURM_RESTART_COUNT="1"), "job 4243": _job("4243")}


def _named(names: Callable[[], str], run: str) -> list[str]:
    """Whose name and whose checkpoint a run has: its own, or that of a run before it or of another job."""
    seen: dict[str, list[str]] = {}
    for it in RUNS:
        ours = {name: text for name, text in os.environ.items() if not name.startswith("SLURM_")}
        env = {"USER": "me", "LOGNAME": "me", **ours, **RUNS[it]}  # not every container has a user
        # Time goes on between two runs of a job, more than between two of these.
        bash = ["bash", "-euc", f"date() {{ echo {list(RUNS).index(it)}; }}; printf '%s\\n' {names()}"]
        said = subprocess.run(bash, env=env, capture_output=True, text=True, timeout=10)
        if unset := re.search(r"(\w+): unbound variable", said.stderr):
            return [f"nobody has set {unset[1]}"] * 2
        if "command not found" in said.stderr:
            return ["a command that bash does not know"]
        if said.returncode:
            raise RuntimeError(said.stderr.strip().rpartition("line 1: ")[2] or "bash cannot read it")
        words = [part for word in said.stdout.splitlines() for part in word.split("=", 1)]
        words = ["--rdzv-id" if word == "--rdzv_id" else word for word in words]  # torchrun takes both
        seen[it] = [words[words.index(option) + 1] for option in ("--rdzv-id", "--checkpoint")]
        if "$" in "".join(seen[it]):
            return ["`$` to the letter"]
    before, job = list(RUNS)[: list(RUNS).index(run)], "SLURM_JOB_ID"
    others = [it for it in RUNS if it in before or RUNS[it][job] != RUNS[run][job]]
    return [next((f"that of {it}" for it in others if seen[it][n] == seen[run][n]), "its own") for n in (0, 1)]


def _names(id: str = '"$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}"', checkpoint: str = '"$SLURM_JOB_ID.pt"') -> str:
    return f"--rdzv-id {id} --checkpoint {checkpoint}"


turn(
    "5.3.c",
    "What stays, and what changes",
    _names,
    {run: lambda run=run: (run,) for run in RUNS},
    call=_named,
    heads=("name of the meeting", "checkpoint"),
    mistakes=[
        (partial(_names, id='"$SLURM_JOB_ID"'), "a late agent of the first run walks into the second",
         "What differs between two runs of one job?"),
        (partial(_names, checkpoint='"$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}.pt"'),
         "the second run looks for a checkpoint of its own, and begins anew", "What stays the same from run to run?"),
        (partial(_names, id='"$SLURM_JOB_ID.$SLURM_RESTART_COUNT"'), "in a first run nobody has set that variable",
         "`${NAME:-0}` is 0 where NAME is not set."),
        (partial(_names, id='"$SLURM_JOB_ID_${SLURM_RESTART_COUNT:-0}"'),
         "bash takes the underscore for a part of the name: nobody has set `SLURM_JOB_ID_`",
         "Braces say where a name ends: `${NAME}_`."),
        (partial(_names, id="7", checkpoint="train.pt"), "all jobs share one name and one checkpoint",
         "What differs from job to job?"),
        (partial(_names, checkpoint="train.pt"), "another job goes on from this one's checkpoint",
         "What differs from job to job?"),
        (partial(_names, id="7"), "all runs have one name", "What differs from run to run?"),
        (partial(_names, id="'$SLURM_JOB_ID.$SLURM_RESTART_COUNT'"), "bash leaves a `$` as it is",
         "It does so between single quotes, and behind a backslash. Between double quotes it fills in."),
        (partial(_names, id='"$SLURM_JOB_ID"', checkpoint='"$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}.pt"'),
         "it is the other way round: the checkpoint has another name in each run, and the meeting has not",
         "What is to stay the same from run to run?"),
        (partial(_names, id='"$SLURM_JOB_ID.$(SLURM_RESTART_COUNT:-0)"'),
         "`$(…)` runs a command, and bash knows none of that name", "A variable's value: `${NAME:-0}`, with braces."),
        (partial(_names, checkpoint='"${SLURM_RESTART_COUNT:-0}.pt"'), "jobs share a checkpoint, and runs do not",
         "The number of restarts is the one thing that changes from run to run."),
        (partial(_names, id='"${SLURM_RESTART_COUNT:-0}"'), "two jobs share the name of a meeting",
         "What differs from job to job?"),
    ],
    otherwise="Each run has an id of its own, each job a checkpoint. Braces say where a name ends: `${NAME}`.",
    hints={"is not defined": "Braces are Python's, where a text begins with `f`. Leave the `f` out: these are bash's.",
           "is not in list": "Two options: `--rdzv-id`, and `--checkpoint`."},
)  # fmt: skip
