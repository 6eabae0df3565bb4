"""Checks of lesson 5.1, torchrun."""

import contextlib
import io
import os
import random
import re
import shlex
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy
import torch
import torch.distributed as dist

from ddplab.checks import NotFilledIn, NotYet, exercise
from ddplab.checks.common import PATIENCE, kind, needs_function
from ddplab.checks.turns import leaving, turn
from ddplab.course.played_servers import free_port
from ddplab.launcher import launch
from ddplab.run import RankError, RankTimeoutError


@exercise("5.1.1", "Once per job, once per node", lazy=True)
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


@exercise("5.1.2", "A port that nobody has")
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


@exercise("5.1.3", "Be torchrun")
def be_torchrun(environment: Callable[[int, int, int, int, int], dict[str, str]]) -> None:
    """`environment(group_rank, local_rank, nnodes, nproc_per_node, port)`: the variables of one process.

    Every number is compared for 3 nodes of 2; then 2 nodes of 2 meet by those variables, as real processes.
    """
    needs_function("environment", environment)
    for group_rank, local_rank in [(0, 0), (0, 1), (1, 0), (2, 1)]:
        _compare(environment(group_rank, local_rank, 3, 2, 29400), group_rank, local_rank)

    port = free_port()

    def meet() -> int:
        number = int(os.environ["RANK"])
        _forget_who_i_am()
        os.environ.update(environment(number // 2, number % 2, 2, 2, port))
        dist.init_process_group("gloo")
        everybody = torch.ones(1)
        dist.all_reduce(everybody)
        return int(everybody.item())

    met = launch(meet, nproc_per_node=4, device="cpu", init=False, quiet=True, timeout=20).results
    if met != [4, 4, 4, 4]:
        raise NotYet(f"four processes started with these variables, and met groups of {met}", "WORLD_SIZE?")


def _forget_who_i_am() -> None:
    """In a rank: take out of the environment what a launcher has told it."""
    for name in [name for name in os.environ if name.endswith(("RANK", "WORLD_SIZE")) or "MASTER_" in name]:
        del os.environ[name]
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # here rank 0 is the host


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


# ------------------------------------------------------------------ your turn


def _met(tell: Callable[..., None], size: int) -> list[str]:
    """What each of `size` processes says after it was told who it is: "rank 0 of 2", or why they did not meet."""
    port = free_port()

    def begin(meet: bool = True) -> str:
        number = int(os.environ["RANK"])
        _forget_who_i_am()
        back = tell(number, size, port)
        if isinstance(back, Mapping) and "RANK" not in os.environ:
            return "comes back as a dict"
        missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if len(missing) == 4 and "LOCAL_RANK" not in os.environ:
            return "is told nothing"
        if missing and f"LOCAL_{missing[0]}" in os.environ:
            return f"has LOCAL_{missing[0]}, no {missing[0]}"
        if not missing and not meet:
            return _astray(size, port) or f"waits as rank {os.environ['RANK']}"
        dist.init_process_group("gloo")
        everybody = torch.ones(1)
        dist.all_reduce(everybody)
        return f"rank {dist.get_rank()} of {int(everybody)}"

    how = {"nproc_per_node": size, "device": "cpu", "init": False, "quiet": True, "timeout": PATIENCE}
    said = ["waits for ever"]
    try:
        said = launch(begin, meet=False, **how).results
        if any(not it.startswith("waits") for it in said) or "waits as rank 0" not in said:
            return said  # nobody need wait for those who go astray, or for a host that is not there
        return launch(begin, **how).results
    except RankTimeoutError:
        return said
    except RankError as error:
        why = error.reason.partition("rendezvous: ")[2] or f"{error.type_name}: {error.reason}"
        if "EADDRINUSE" in why and said.count("waits as rank 0") == 1:
            return _met(tell, size)  # no other rank wanted the port: another program has taken it in the meantime
        if "EADDRINUSE" in why:
            why = "EADDRINUSE: two want to hold the store"
        return [why.splitlines()[0][:80]]


def _astray(size: int, port: int) -> str:
    """In a process that was told: what of it leads past the others, for which nobody need wait; "" where nothing."""
    if os.environ.get("MASTER_PORT") not in (None, str(port)):
        return "goes to another port"
    if os.environ.get("WORLD_SIZE") not in (None, str(size)):
        return f"thinks it is one of {os.environ['WORLD_SIZE']}"
    if address := os.environ.get("MASTER_ADDR"):
        try:
            socket.getaddrinfo(address, port)
        except OSError:
            return f"finds no machine {address.replace(f':{port}', ':PORT')}"
    return ""


def _tell(rank: int, size: int, port: int, leave_out: str = "", text: Any = str, **other: Any) -> None:
    told = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} | other
    for name, value in told.items():
        if name != leave_out:
            os.environ[name] = text(value)


MISSING = "The error says which variable it expects. Set it, run the cell again, and read the next."

turn(
    "5.1.a",
    "Tell a process who it is",
    _tell,
    {"2 processes": lambda: (2,), "3 processes": lambda: (3,)},
    call=_met,
    heads=("the first", "the second", "the third"),
    mistakes=[
        (leaving("str expected", partial(_tell, text=lambda value: value)), "a number stands where a text belongs",
         "All variables of the environment are texts: `str(…)` makes one of a number."),
        (leaving("told nothing", lambda rank, size, port: None), "none of the four is set in `os.environ`",
         "`os.environ[\"RANK\"] = …`, and so on: a process reads there and nowhere else, and in capitals."),
        (leaving("LOCAL_RANK", lambda rank, size, port: _tell(rank, size, port, leave_out="RANK", LOCAL_RANK=rank)),
         "`LOCAL_RANK` is set, and `RANK` is not", "The number in the whole job is wanted here."),
        (leaving("LOCAL_WORLD_SIZE",
                 lambda rank, size, port: _tell(rank, size, port, leave_out="WORLD_SIZE", LOCAL_WORLD_SIZE=size)),
         "`LOCAL_WORLD_SIZE` is set, and `WORLD_SIZE` is not", "How many there are in the whole job is wanted here."),
        (leaving("RANK", partial(_tell, leave_out="RANK")), "no process knows its number", MISSING),
        (leaving("WORLD_SIZE", partial(_tell, leave_out="WORLD_SIZE")), "no process knows how many there are", MISSING),
        (leaving("MASTER_ADDR", partial(_tell, leave_out="MASTER_ADDR")),
         "no process knows at which machine to meet", MISSING),
        (leaving("MASTER_PORT", partial(_tell, leave_out="MASTER_PORT")),
         "no process knows at which port to meet", MISSING),
        (leaving("EADDRINUSE", partial(_tell, RANK=0)), "every process takes itself for rank 0, and opens the store",
         "Each has a number of its own."),
        (leaving("thinks", partial(_tell, WORLD_SIZE=2)),
         "the number of processes is right for two only", "It is given: `size`."),
        (leaving("thinks", lambda rank, size, port: _tell(rank, size - 1, port)),
         "that is the highest number, not how many there are", "It is given: `size`."),
        (leaving("thinks", lambda rank, size, port: _tell(rank, size + 1, port)), "that is one more than there are",
         "It is given: `size`."),
        (leaving("thinks", lambda rank, size, port: _tell(size, rank, port)),
         "the number and how many there are have changed places",
         "`RANK` is the number, `WORLD_SIZE` how many there are."),
        (leaving("rank 1 of 2", lambda rank, size, port: _tell(size - 1 - rank, size, port)),
         "the numbers are given out backwards", "Each has its number already: `rank`."),
        (leaving("a dict", lambda rank, size, port: {"RANK": str(rank), "WORLD_SIZE": str(size)}),
         "a dict comes back, and nothing is set",
         "`os.environ[\"RANK\"] = …`, and so on: a process reads there, and not what `tell` returns."),
        (leaving("no machine", lambda rank, size, port: _tell(rank, size, port, MASTER_ADDR=f"127.0.0.1:{port}")),
         "the address has the port in it", "A machine and no more: the port is a variable of its own."),
        (leaving("another port", partial(_tell, MASTER_PORT=29500)), "the port is one of your choice, and may be taken",
         "One that is free is given: `port`."),
        (leaving("waits as", lambda rank, size, port: _tell(rank + 1, size, port)),
         "the numbers begin at 1, so nobody opens the store", "Rank 0 is the host."),
        (leaving("another port", lambda rank, size, port: _tell(rank, size, port + rank)),
         "each process knocks at a port of its own", "They have to meet at one: `port`."),
    ],
    otherwise="In the address stands a machine and no more, in the port its number, each a text of its own.",
)  # fmt: skip


SEATS = {  # each process of a node, as torchrun tells it: RANK, LOCAL_RANK, GROUP_RANK
    "node 0, with 2 GPUs": lambda: ([(0, 0, 0), (1, 1, 0)], 2),
    "node 1, with 2 GPUs": lambda: ([(2, 0, 1), (3, 1, 1)], 2),
    "a node without": lambda: ([(4, 0, 2), (5, 1, 2)], 0),
}


def taken(my_device: Callable[..., Any], seats: list[tuple[int, int, int]], gpus: int) -> list[str]:
    """What became of each process of a node: "a GPU of its own", "shares cuda:0". Which one plays no part."""
    job = {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK")
    each = [my_device(dict(zip(names, map(str, seat), strict=True)) | job, gpus) for seat in seats]
    asked = [torch.device(it) if isinstance(it, str) else it for it in each]
    return [_seat(it, asked, gpus) for it in asked]


def _seat(it: Any, asked: list[Any], gpus: int) -> str:
    if not isinstance(it, torch.device) or it.type == "cpu":
        return str(it)
    if (it.index or 0) >= gpus:
        return f"{it} is not there"
    return "a GPU of its own" if [other.index or 0 for other in asked].count(it.index or 0) == 1 else f"shares {it}"


def _my_device(env: Mapping[str, str], gpus: int, by: str = "LOCAL_RANK", check: bool = True) -> Any:
    return torch.device("cuda", int(env[by])) if gpus or not check else torch.device("cpu")


turn(
    "5.1.c",
    "A GPU for each process",
    _my_device,
    SEATS,
    call=taken,
    heads=("one process", "the other"),
    mistakes=[
        (partial(_my_device, by="RANK"), "RANK runs on from node to node, and the GPUs of a node do not",
         "Which number begins at 0 on each node?"),
        (partial(_my_device, by="GROUP_RANK"), "that is the number of the node", "Which number differs within a node?"),
        (partial(_my_device, by="LOCAL_WORLD_SIZE"), "both ask for GPU 2, and the two are GPU 0 and GPU 1",
         "How many there are is the same for both. Which number differs within a node?"),
        (lambda env, gpus: f"cuda:{int(env['LOCAL_RANK']) + 1}" if gpus else "cpu", "the GPUs are counted from 1",
         "They begin at 0, as `LOCAL_RANK` does."),
        (lambda env, gpus: "cuda:0" if gpus else "cpu", "all processes take GPU 0",
         "Which variable differs from process to process of a node?"),
        (lambda env, gpus: "cuda:1" if gpus else "cpu", "all processes take GPU 1",
         "Which variable differs from process to process of a node?"),
        (lambda env, gpus: "cuda" if gpus else "cpu", "without a number it is the same GPU for all",
         "`torch.device(\"cuda\", number)`"),
        (partial(_my_device, by="RANK", check=False),
         "RANK runs on from node to node, and the GPUs of a node do not; a node without is asked for one, too",
         "Which number begins at 0 on each node? And where `gpus` is 0, the CPU."),
        (partial(_my_device, check=False), "a node without GPUs is asked for one", "There, `gpus` is 0."),
        (lambda env, gpus: int(env["LOCAL_RANK"]) if gpus else "cpu", "a bare number does not say what kind of device",
         "`torch.device(\"cuda\", number)`"),
        (lambda env, gpus: "cpu", "nobody takes a GPU", "Where `gpus` is not 0, each process takes one."),
        (lambda env, gpus: torch.device("cuda", env["LOCAL_RANK"]), "a text stands where a number belongs",
         "Variables of the environment are texts: `int(…)`."),
    ],
    hints={"not all arguments converted": "Variables of the environment are texts: `int(…)`.",
           "must be int, not str": "Variables of the environment are texts: `int(…)`.",
           "'LOCAL_RANK'": "The variables of the process are in `env`.",
           "cuda:-": "GPUs are counted from 0, as `LOCAL_RANK` is.",
           "Invalid device string": "`cuda:1`, with a colon.",
           "by zero": "On a node without GPUs `gpus` is 0, and nothing can be divided by it."},
    otherwise="Where there are GPUs `cuda:` and a number, where there are none `cpu`.",
)  # fmt: skip


def _read(command: Callable[..., str], processes: int, threads: int) -> list[str]:
    """What a terminal and torchrun's own parser make of a line: processes, threads, the script, what it is told."""
    from torch.distributed.run import get_args_parser

    line = command(processes, threads)
    if isinstance(line, list | tuple):
        return [f"a {type(line).__name__} of words"]
    line = line.strip().removeprefix("!") if isinstance(line, str) else ""
    *before, words = [shlex.split(it) for it in re.split(r"[;&\n]+", line) if it.strip()] or [[]]
    exported = [word for it in before if it[:1] == ["export"] for word in it]
    at = next((n for n, word in enumerate(words) if "=" not in word and word != "env"), len(words))
    told, words = dict(word.split("=", 1) for word in [*exported, *words[:at]] if "=" in word), words[at:]
    if words[:1] in (["python"], ["python3"]) and words[1:3] == ["-m", "torch.distributed.run"]:
        words = ["torchrun", *words[3:]]
    if words[1:3] == ["-m", "torch.distributed.launch"]:
        return ["starts the old launcher"]
    if words[:1] != ["torchrun"]:
        return [f"starts {words[0]}" if words else "starts nothing"]
    if not any(os.path.basename(word) in ("train.py", "train") for word in words):
        return ["starts no train.py"]
    refusal = io.StringIO()
    try:
        with contextlib.redirect_stderr(refusal):
            read = get_args_parser().parse_args(words[1:])
    except SystemExit:
        return ["torchrun refuses: " + refusal.getvalue().strip().rpartition("error: ")[2][:60]]
    if read.nnodes.partition(":")[0] != "1":
        return ["waits for other nodes"]
    return [
        str(read.nproc_per_node),
        told.get("OMP_NUM_THREADS", "1"),  # as torchrun sets it for more than one process
        os.path.normpath(read.training_script),
        " ".join(read.training_script_args).replace("=", " "),
    ]


def _line(processes: Any, threads: Any, option: str = "--nproc-per-node", script: str = "train.py --epochs 5") -> str:
    return f"OMP_NUM_THREADS={threads} torchrun {option} {processes} {script}"


BEHIND = "What stands behind the script's name is the script's."
IN_FRONT = "A terminal sets a variable for the command behind it: `NAME=value`, then `torchrun`."

turn(
    "5.1.b",
    "A command line",
    _line,
    {"2 processes of 4 threads": lambda: (2, 4), "8 processes of 12": lambda: (8, 12)},
    call=_read,
    heads=("processes", "threads each", "script", "which is told"),
    mistakes=[
        (lambda processes, threads: _line("", threads, "", f"train.py --epochs 5 --nproc-per-node {processes}"),
         "torchrun starts one process, and the script is told how many you wanted", BEHIND),
        (lambda processes, threads: _line("", threads, "", f"train.py --nproc-per-node {processes} --epochs 5"),
         "torchrun starts one process, and the script is told how many you wanted", BEHIND),
        (lambda processes, threads: _line(processes, threads, script="--epochs 5 train.py"),
         "torchrun takes `--epochs` for an option of its own, and knows none",
         "The script's own options come behind its name."),
        (lambda processes, threads: _line(threads, processes),
         "the two numbers are swapped", "`--nproc-per-node` counts processes, `OMP_NUM_THREADS` threads of each."),
        (lambda processes, threads: _line(processes, processes * threads),
         "those are the threads of all processes together", "Each process reads the variable: `threads`."),
        (lambda processes, threads: f"torchrun --nproc-per-node {processes} train.py --epochs 5",
         "no variable reaches torchrun, which then gives each process one thread",
         "`OMP_NUM_THREADS=`, in front of the same command. (Before a `;` it needs `export`.)"),
        (lambda processes, threads: f"torchrun --nproc-per-node {processes} train.py OMP_NUM_THREADS={threads}",
         "the script is told the variable, and nobody sets it", IN_FRONT),
        (lambda processes, threads: f"torchrun OMP_NUM_THREADS={threads} --nproc-per-node {processes} train.py",
         "torchrun takes the variable for the script", IN_FRONT),
        (lambda processes, threads: _line("processes", "threads"),
         "the names stand there, to the letter", "In a text that begins with `f`, what stands in `{…}` is filled in."),
        (lambda processes, threads: _line(processes, threads, script="train.py"),
         "the script is not told how long", "`--epochs 5`, behind its name."),
        (lambda processes, threads: _line(processes, threads, script="train.py 5"),
         "the script is told a number, and not of what", "`--epochs`, and then the number."),
        (lambda processes, threads: f"OMP_NUM_THREADS={threads} python train.py --epochs 5",
         "nobody starts more than one process", "The program is called `torchrun`."),
        (lambda processes, threads: _line(processes, threads, "--nnodes"),
         "`--nnodes` counts machines, and torchrun waits for as many", "`--nproc-per-node` counts processes."),
        (lambda processes, threads: _line(processes, threads, script=""), "no word of it is `train.py`",
         "The script's name, with a space on either side."),
        (lambda processes, threads: _line(processes, threads, "-n"),
         "that is how others start processes: torchrun has no `-n`", "`--nproc-per-node`"),
        (lambda processes, threads: f"python -m torch.distributed.launch --nproc-per-node {processes} train.py",
         "that is torchrun's forerunner", "The program is called `torchrun`."),
        (lambda processes, threads: _line(processes, threads, script="python train.py --epochs 5"),
         "torchrun takes `python` for the script", "It starts Python itself: name the script alone."),
        (lambda processes, threads: _line(2, threads),
         "the number of processes is right for the first case only", "It is given: `processes`."),
        (lambda processes, threads: _line(processes, 4),
         "the number of threads is right for the first case only", "It is given: `threads`."),
        (lambda processes, threads: _line(2, 4), "both numbers are right for the first case only",
         "They are given: `processes` and `threads`."),
        (lambda processes, threads: _line("", threads, ""), "without a word on it, torchrun starts one",
         "`--nproc-per-node`"),
    ],
    otherwise="One text, as you would type it: the variable, `torchrun`, its option, the script, the script's option.",
)  # fmt: skip
