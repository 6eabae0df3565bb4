"""Checks of lesson 5.1, torchrun."""

import contextlib
import os
import random
import socket
from collections.abc import Callable
from typing import Any

import numpy
import torch
import torch.distributed as dist

from ddplab.checks import NotFilledIn, NotYet, exercise
from ddplab.checks.common import Number, asks, expect_all, kind, needs_function
from ddplab.launcher import launch

COUNT = "Draw the four servers and count."
EIGHT = "Nodes count from 0: before node 2 come node 0 and node 1, with 8 processes each."
NUMBERS = asks(
    "5.1.1",
    Number("world_size", 32, COUNT).with_mistakes(
        (4, "that is the number of nodes", "Each of the 4 nodes starts 8 processes."),
        (8, "that is what one node starts", "There are 4 such nodes."),
        (12, "the two numbers are added", "Each of the 4 nodes starts 8 processes."),
    ),
    Number(
        "rank", 19, "RANK = GROUP_RANK * nproc_per_node + LOCAL_RANK, where torchrun starts as many on every node."
    ).with_mistakes(
        (3, "that is its LOCAL_RANK", "Count the processes of the nodes before its own, too."),
        (11, "that counts 8 processes before its node", EIGHT),
        (16, "that is the first rank of its node", "LOCAL_RANK 3 is the fourth process there."),
        (20, "that counts from 1", "RANK, GROUP_RANK and LOCAL_RANK all start at 0."),
    ),
    Number("gpu", 3, COUNT).with_mistakes(
        (19, "that is its RANK, and no server has that many GPUs", "A server counts its own GPUs from 0."),
        (2, "that is its GROUP_RANK", "Which of the three numbers starts again on every node?"),
        (4, "that counts from 1", "The GPUs of a server are cuda:0 to cuda:7."),
    ),
    Number("with_spawn", 256, COUNT).with_mistakes(
        (32, "that is without mp.spawn", "Each of the 32 processes of torchrun spawns 8 more."),
        (40, "the two numbers are added", "Each of the 32 processes of torchrun spawns 8, not all of them together."),
        (64, "that is one server", "8 processes of torchrun with 8 spawned ones each, on 4 servers."),
        (288, "that counts the processes that only spawn and wait", "Count those that train."),
    ),
)


@exercise("5.1.1", "Read the command")
def read_the_command(world_size: int, rank: int, gpu: int, with_spawn: int) -> None:
    """Four servers, `torchrun --nnodes 4 --nproc-per-node 8`; the process with GROUP_RANK 2 and LOCAL_RANK 3."""
    given = {"world_size": world_size, "rank": rank, "gpu": gpu, "with_spawn": with_spawn}
    for name, answer in given.items():
        if isinstance(answer, str):  # "cuda:3", perhaps, or a number as text
            raise NotYet(f"`{name}` is {answer!r}, not a whole number", "A bare number, such as 7.")
    expect_all(NUMBERS, given)


@exercise("5.1.2", "Once per job, once per node", lazy=True)
def once_per_job_and_node(run: Any) -> None:
    """The run of a script on 2 nodes of 2 ranks, each printing `writes the checkpoint: …` and `unpacks the data: …`."""
    if not hasattr(run, "output"):
        hint = "`--out run` on the first line of the script's cell makes it."
        raise NotYet(f"the check got {type(run).__name__!r}, not a run", hint)
    if getattr(run, "error", None) is not None:
        raise run.error
    if (run.world_size, run.nnodes) != (4, 2):
        hint = "Leave the first line of the cell as it was: `--nnodes 2 --nproc-per-node 2`."
        raise NotYet(f"the script ran with {run.world_size} ranks of {run.nnodes} agents, not 4 of 2", hint)
    wanted = {"writes the checkpoint": ([0], "first_of_job"), "unpacks the data": ([0, 2], "first_of_node")}
    for job, (ranks, name) in wanted.items():
        said = {rank: _after(f"{job}: ", text) for rank, text in run.output.items()}
        if "Ellipsis" in said.values():
            raise NotFilledIn
        _one_of_true_and_false(name, job, said)
        doing = [rank for rank, text in said.items() if text == "True"]
        if doing != ranks:
            raise NotYet(*_who_does(job, name, doing))


def _after(start: str, text: str) -> str | None:
    return next((line[len(start) :].strip() for line in text.splitlines() if line.startswith(start)), None)


def _one_of_true_and_false(name: str, job: str, said: dict[int, str | None]) -> None:
    for rank, text in said.items():
        if text is None:
            raise NotYet(f"rank {rank} does not print `{job}: …`", "Leave the two print lines as they were.")
        if text not in ("True", "False"):
            hint = 'A comparison gives one of them: os.environ["…"] == "…".'
            raise NotYet(f"on rank {rank} `{name}` is {text}, neither True nor False", hint)


def _who_does(job: str, name: str, doing: list[int]) -> tuple[str, str]:
    if not doing:
        return (
            f"“{job}” is True on no rank",
            'What is in os.environ is text, and "0" is not equal to 0. Compare with "0", or use int(…).',
        )
    who = f"“{job}” is True on rank{'s' * (len(doing) > 1)} {' and '.join(map(str, doing))}"
    if len(doing) == 4:
        return f"“{job}” is True on all four ranks", "True only where the number is that of a first one: 0."
    if doing == [0]:
        return f"“{job}” is True on rank 0 alone, so the second node has none", "Which number is 0 once on every node?"
    if doing == [0, 2]:
        return f"{who}, one on every node", "LOCAL_RANK starts again on each node. Which number does not?"
    if doing == [0, 1]:
        return f"{who}, the whole first node", "GROUP_RANK is the number of the node, not of a process."
    wanted = "rank 0" if name == "first_of_job" else "ranks 0 and 2"
    return f"{who}, and it should be on {wanted}", "Print RANK, LOCAL_RANK and GROUP_RANK, and compare."


@exercise("5.1.3", "A port that nobody has")
def a_free_port(free_port: Callable[[], int]) -> None:
    """`free_port()` returns the number of a port that no program on this machine holds."""
    needs_function("free_port", free_port)
    first = _again(free_port)
    with contextlib.ExitStack() as held:
        _hold(first, held)
        if _again(free_port) == first:  # from the same state, so that a guess guesses the same
            hint = "A number of your own choice, fixed or random, may be taken. Bind to port 0: the system picks."
            raise NotYet(f"it gave {first} again, though another program holds that port now", hint)


def _again(free_port: Callable[[], int]) -> int:
    random.seed(0), numpy.random.seed(0), torch.manual_seed(0)
    port = free_port()
    if port is None:
        raise NotYet("`free_port` returns nothing", "Return the port's number.")
    if isinstance(port, tuple):
        hint = "`getsockname()` gives both; the port is the second of them."
        raise NotYet(f"it returns {port!r}: an address and a port", hint)
    if isinstance(port, str) and port.isdigit():
        raise NotYet(f"it returns the text {port!r}", "Return a whole number; str(…) can wait until it is needed.")
    if type(port) is not int:
        raise NotYet(f"it returns {kind(port)}, not a whole number", "Look at `getsockname()`.")
    if port == 0:
        hint = "After `bind(('', 0))` ask the socket with `getsockname()` which port it got."
        raise NotYet("it returns 0, which is the question, not the answer", hint)
    if not 1024 <= port <= 65535:
        raise NotYet(f"it returns {port}, and a program of yours may have 1024 to 65535", "Bind to port 0.")
    return port


def _hold(port: int, held: contextlib.ExitStack) -> None:
    door = held.enter_context(socket.socket())
    try:
        door.bind(("", port))
        door.listen()
    except OSError:
        raise NotYet(
            "nobody can use the port that it returns: somebody holds it, perhaps your own socket",
            "Bind to port 0, and close the socket before you return: `with socket.socket() as …`.",
        ) from None


@exercise("5.1.4", "Be torchrun")
def be_torchrun(environment: Callable[[int, int, int, int, int], dict[str, str]]) -> None:
    """`environment(group_rank, local_rank, nnodes, nproc_per_node, port)`: the variables of one process.

    Every number is compared for 3 nodes of 2; then 2 nodes of 2 meet by those variables, as real processes.
    """
    needs_function("environment", environment)
    for group_rank, local_rank in [(0, 0), (0, 1), (1, 0), (2, 1)]:
        _compare(environment(group_rank, local_rank, 3, 2, 29400), group_rank, local_rank)

    with socket.socket() as door:
        door.bind(("", 0))
        port = door.getsockname()[1]

    def meet() -> int:
        number = int(os.environ["RANK"])
        for name in [name for name in os.environ if name.endswith(("RANK", "WORLD_SIZE")) or "MASTER_" in name]:
            del os.environ[name]
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # here rank 0 is the host
        os.environ.update(environment(number // 2, number % 2, 2, 2, port))
        dist.init_process_group("gloo")
        everybody = torch.ones(1)
        dist.all_reduce(everybody)
        return int(everybody.item())

    met = launch(meet, nproc_per_node=4, device="cpu", init=False, quiet=True, timeout=20).results
    if met != [4, 4, 4, 4]:
        raise NotYet(f"four processes started with these variables, and met groups of {met}", "WORLD_SIZE?")


def _compare(got: Any, group_rank: int, local_rank: int) -> None:
    who = f"GROUP_RANK {group_rank}, LOCAL_RANK {local_rank}, of 3 nodes of 2"
    if not isinstance(got, dict):
        raise NotYet(f"`environment` returns {kind(got)}, not a dict", 'return {"RANK": …, "LOCAL_RANK": …, …}')
    wanted = {
        "RANK": group_rank * 2 + local_rank,
        "LOCAL_RANK": local_rank,
        "GROUP_RANK": group_rank,
        "WORLD_SIZE": 6,
        "LOCAL_WORLD_SIZE": 2,
        "MASTER_PORT": 29400,
    }
    for name in [*wanted, "MASTER_ADDR"]:
        if got.get(name, ...) is ...:
            if name in got:
                raise NotFilledIn
            raise NotYet(f"{name} is missing", "There are seven: the table in the lesson has them.")
    for name, value in got.items():
        if not isinstance(value, str):
            raise NotYet(
                f"{name} is {value!r}, of type {type(value).__name__}; variables of the environment are text",
                "Give str(…) of each number.",
            )
    for name, number in wanted.items():
        if got[name] != str(number):
            raise NotYet(f"{who}: {name} is {got[name]}, not {number}", _hint(name, got[name], local_rank))
    if got["MASTER_ADDR"] not in ("127.0.0.1", "localhost", socket.gethostname()):
        raise NotYet(f"MASTER_ADDR is {got['MASTER_ADDR']!r}", "All nodes are this machine: 127.0.0.1.")


def _hint(name: str, text: str, local_rank: int) -> str:
    if name == "RANK" and text == str(local_rank):
        return "That is LOCAL_RANK again. RANK goes on counting from node to node."
    return {
        "RANK": "Before this node come group_rank nodes with nproc_per_node processes each.",
        "WORLD_SIZE": "All processes of all nodes.",
        "LOCAL_WORLD_SIZE": "The processes of one node.",
        "MASTER_PORT": "It is what you were given as `port`, for every process the same.",
    }.get(name, "It is what you were given.")
