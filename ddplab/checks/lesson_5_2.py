"""Checks of lesson 5.2, several nodes."""

import contextlib
import io
import re
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.run import get_args_parser
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.checks import CannotCheck, NotYet, exercise
from ddplab.checks.common import Number, asks, expect_all, flat, kind, multiple, needs_function, off, on_ranks
from ddplab.course.played_servers import sbatch

NODES = ("that counts nodes", "Each node starts 8 processes.")
GONE = "Which server was it that went?"
SIZES = asks(
    "5.2.1",
    Number("largest", 32, "At most 4 nodes of 8.").with_mistakes(
        (4, *NODES),
        (8, "that is one node", "At most 4 nodes of 8."),
    ),
    Number("smallest", 16, "`--nnodes 2:4` says how many nodes are the least.").with_mistakes(
        (2, *NODES),
        (8, "that is one node, and two are the least", "Read `--nnodes 2:4` again."),
        (1, *NODES),
    ),
)
AFTER_THE_LOSS = asks(
    "5.2.1",
    Number("left", 0, "What was on gpu03, besides eight ranks?").with_mistakes(
        (24, "that is three nodes, but they have lost something", GONE),
        (16, "that is two nodes, but they have lost something", GONE),
        (8, "that is one node", GONE),
    ),
    Number("rank", 21, "RANK = GROUP_RANK * 8 + LOCAL_RANK.").with_mistakes(
        (5, "that is its LOCAL_RANK", "The folder is called after LOCAL_RANK. RANK counts through all nodes."),
        (13, "that counts 8 processes before its node", "Before node 2 come node 0 and node 1."),
        (29, "that counts three nodes before its own", "Nodes count from 0: before node 2 come node 0 and node 1."),
        (7, "that adds the numbers", "Before node 2 come two nodes of 8 processes."),
    ),
)


@exercise("5.2.1", "Read the command")
def read_the_command(largest: int, smallest: int, store: str, left: int, rank: int) -> None:
    """`--nnodes 2:4 --nproc-per-node 8 … --rdzv-endpoint gpu03:29400` on gpu01 to gpu04."""
    expect_all(SIZES, {"largest": largest, "smallest": smallest})
    if not isinstance(store, str):
        raise NotYet(f"`store` is {store!r}, not a name", "A text, such as 'gpu01'.")
    if store.split(":")[0] != "gpu03":
        hint = "Neither the first node nor node 0 has to. Which option says where they meet?"
        raise NotYet(f"`store` is {store!r}: that server does not hold it", hint)
    expect_all(AFTER_THE_LOSS, {"left": left, "rank": rank})


IMAGES = 10


@exercise("5.2.2", "One batch, any number of ranks")
def any_number_of_ranks(my_loss: Callable[..., Any]) -> None:
    """`my_loss(model, images, labels, rank, size)` on 1, 2 and 3 ranks: DDP's gradient must be the whole batch's."""
    needs_function("my_loss", my_loss)

    def gradient() -> str | tuple[Any, Any, int]:
        torch.manual_seed(0)
        net, images, labels = torch.nn.Linear(4, 3), torch.randn(IMAGES, 4), torch.arange(IMAGES) % 3
        whole = torch.autograd.grad(torch.nn.functional.cross_entropy(net(images), labels), net.weight)[0]
        model, seen = DDP(net), []
        net.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
        loss = my_loss(model, images, labels, dist.get_rank(), dist.get_world_size())
        if not isinstance(loss, torch.Tensor):
            return kind(loss)
        loss.backward()
        return flat([net.weight.grad]), flat([whole]), sum(seen)

    for size in (1, 2, 3):
        _compare(on_ranks(gradient, size=size), size)


def _compare(results: list[Any], size: int) -> None:
    if isinstance(results[0], str):
        hint = "Is there a `return`, and no `.item()`?"
        raise NotYet(f"`my_loss` returns {results[0]}, not a tensor with a loss", hint)
    ranks = f"on {size} rank{'s' * (size > 1)}"
    seen = [n for _, _, n in results]
    if size > 1 and seen == [IMAGES] * size:
        hint = "Take every `size`-th image, and begin with your `rank`-th."
        raise NotYet(f"{ranks} each rank takes all {IMAGES} images: nothing is shared", hint)
    if sum(seen) != IMAGES:
        hint = f"{IMAGES} // 3 leaves a rest. `images[rank::size]` leaves none."
        raise NotYet(f"{ranks} the ranks take {' + '.join(map(str, seen))} images, and the batch has {IMAGES}", hint)
    got, whole = results[0][:2]
    if off(got, whole) < 1e-5:
        return
    if (factor := multiple(got, whole, within=1e-5)) is not None:
        hint = "DDP adds the ranks' gradients up and divides by `size`. What has to be left when it has?"
        raise NotYet(f"{ranks} DDP's gradient is {factor:.3g} times that of the whole batch", hint)
    raise NotYet(
        f"{ranks}, with {', '.join(map(str, seen))} images, DDP's gradient is not that of the whole batch",
        "A mean over a small share makes its images count for more. Begin with reduction='sum'.",
    )


@exercise("5.2.3", "Mend the script")
def mend_the_script(mended: str) -> None:
    """A SLURM script with four mistakes: bash runs it, with a play srun, and torchrun's parser reads the rest."""
    if not isinstance(mended, str):
        raise NotYet(f"`mended` is {kind(mended)}, not a text", "The whole script, between the quotes.")
    mended = mended.lstrip()
    if not mended.startswith("#!"):
        raise NotYet("its first line is not `#!/bin/bash`", "SLURM refuses a script without it.")
    jobs = [_submit(mended, number) for number in (4242, 4243)]
    tasks = re.findall(r"^#SBATCH\s+(?:--ntasks-per-node)[= ](\d+)", mended, re.MULTILINE)
    if tasks and tasks[-1] != "1":
        raise NotYet(
            f"SLURM would start {tasks[-1]} agents on each node, and a meeting of 2 lets only two of them in",
            "Tasks are what srun starts. How many agents does a node need?",
        )
    first, second = jobs
    for name, wanted in {"nnodes": "2", "nproc_per_node": "4", "training_script": "train.py"}.items():
        if (found := getattr(first, name)) != wanted:
            raise NotYet(f"torchrun reads {name} as {found!r}, not {wanted!r}", "Two nodes of four ranks run train.py.")
    if first.rdzv_backend != "c10d":
        raise NotYet(
            f"the meeting is of the kind {first.rdzv_backend!r}: each node would need a number of its own",
            "Which option says that the numbers are dealt out?",
        )
    host, _, port = first.rdzv_endpoint.partition(":")
    if not host:
        raise NotYet(f"the endpoint is {first.rdzv_endpoint!r}: it names no machine", "Say which node holds the store.")
    written = re.search(r"--rdzv[-_]endpoint[= ]+[\"']?([\w.-]+):", mended)
    if written:  # no $ in it; the play scontrol says localhost too, so the words tell and not the value
        hint = "A name that is right for every job: `$(hostname)` is filled in on the first node."
        raise NotYet(f"the store is always on {written[1]!r}, whichever nodes SLURM gives", hint)
    if port == second.rdzv_endpoint.partition(":")[2]:
        hint = "$SLURM_JOB_ID differs from job to job."
        raise NotYet(f"jobs 4242 and 4243 both meet at port {port or 29400}, and may be on one node", hint)
    if not (port.isdigit() and 1024 <= int(port) <= 65535):
        hint = "A remainder keeps a number small: %."
        raise NotYet(f"the port is {port}, and ports of yours are 1024 to 65535", hint)


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
