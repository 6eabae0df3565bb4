"""Checks of lesson 5.2, several nodes."""

import contextlib
import io
import json
import os
import shlex
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ddplab.checks.turns import turn


def _read(meeting: Callable[..., str], server: str, host: str, port: int) -> list[str]:
    """What torchrun's own parser makes of the options: nodes, kind of meeting, endpoint, name of the job."""
    from torch.distributed.run import get_args_parser

    refusal, options = io.StringIO(), meeting(server, host, port)
    if isinstance(options, list | tuple):
        return ["several texts"]
    if not isinstance(options, str):
        return [f"returns a {type(options).__name__}"]
    words = shlex.split(options)
    if typed := [word for word in words if word == "torchrun" or word.endswith(".py")]:
        return [f"{'torchrun' if typed[0] == 'torchrun' else 'the script'} once more"]
    try:
        with contextlib.redirect_stderr(refusal):
            read = get_args_parser().parse_args([*words, "job.py"])
    except SystemExit:
        return ["torchrun refuses: " + refusal.getvalue().strip().rpartition("error: ")[2][:60]]
    if read.standalone:
        return ["this server alone"]
    if read.training_script != "job.py":
        return ["a word too many"]
    if read.rdzv_backend == "static" and not read.rdzv_endpoint:
        return ["no c10d meeting"]
    least, _, most = read.nnodes.partition(":")
    nodes = least if most in ("", least) else read.nnodes  # 2:2 is 2
    nodes += ", several ranks on each" * (read.nproc_per_node != "1")
    return [nodes, read.rdzv_backend, read.rdzv_endpoint or "nowhere", read.rdzv_id]


def _meeting(server: Any, host: Any, port: int, nodes: str = " --nnodes 2", kind: str = "c10d", id: Any = 7) -> str:
    return f"--rdzv-backend {kind} --rdzv-endpoint {host}:{port} --rdzv-id {id}{nodes}"


turn(
    "5.2.a",
    "What is typed on each server",
    _meeting,
    {
        f"on {server}, store on {host}": lambda it=(server, host, port): it
        for server, host, port in [("gpu01", "gpu01", 29400), ("gpu02", "gpu01", 29400), ("gpu01", "gpu02", 31000)]
    },
    call=_read,
    heads=("nodes", "kind", "endpoint", "id"),
    mistakes=[
        (partial(_meeting, nodes=" --nproc-per-node 2"),
         "how many servers have to come is not said, only how many ranks each has",
         "`--nproc-per-node` counts ranks, `--nnodes` servers."),
        (partial(_meeting, nodes=" --nnodes 1:2"), "one server alone is enough, and may start without the other",
         "Both have to come: `--nnodes 2`."),
        (partial(_meeting, nodes=" --nnodes 2 --nproc-per-node 2"),
         "right, but the cells below count on one rank for each server", "The four options of the table."),
        (lambda server, host, port: _meeting(server, server, port), "each server calls itself the one with the store",
         "All go to one place. Who holds the store?"),
        (lambda server, host, port: _meeting(server, "localhost", port), "localhost is another machine on each server",
         "Who holds the store?"),
        (lambda server, host, port: _meeting(server, host, 29400), "the port is always 29400", "It is given: `port`."),
        (lambda server, host, port: f"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint {host} --rdzv-id 7",
         "the endpoint names a machine and no port", "`host:port`"),
        (partial(_meeting, kind="static"), "that is the old kind of meeting, in which each needs a number",
         "The kind is `c10d`, and not what torchrun takes by default."),
        (partial(_meeting, nodes=""), "each agent is content with itself", "How many have to come?"),
        (lambda server, host, port: _meeting(server, host, port, id=f"7-{server}"), "each server names another job",
         "One job, one name: 7."),
        (partial(_meeting, id=8), "that is another job", "This one is called 7."),
        (lambda server, host, port: f"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint {host}:{port}",
         "the job has no name", "`--rdzv-id`"),
        (lambda server, host, port: f"--nnodes 2 --node-rank 0 --master-addr {host} --master-port {port}",
         "that is the old kind of meeting, and no endpoint is named",
         "`--rdzv-backend` says which kind it is, `--rdzv-endpoint` who holds the store."),
        (lambda server, host, port: "--nnodes 2 --rdzv-backend c10d --rdzv-id 7", "no endpoint is named",
         "`--rdzv-endpoint`: the machine with the store and its port, a colon between them."),
        (lambda server, host, port: "--nnodes 2 --rdzv-backend c10d --rdzv-id 7" if server == host
         else _meeting(server, host, port), "the server with the store is told no endpoint",
         "All type the same: it recognises itself in the name."),
        (lambda server, host, port: _meeting(server, "localhost" if server == host else host, port),
         "the server with the store is told another name than the other server", "All type the same line."),
        (lambda server, host, port: f"--rdzv-backend c10d --rdzv-id 7 --nnodes 2 --rdzv-endpoint {host} {port}",
         "a word that belongs to no option is taken for the script", "`host:port` is one word."),
        (lambda server, host, port: _meeting(server, "gpu01", port), "the host is always gpu01",
         "It is given: `host`."),
        (lambda server, host, port: _meeting("", "{host}", "{port}"), "the names stand there, to the letter",
         "A text in which Python fills values in begins with `f`."),
        (lambda server, host, port: f"--nnodes 2, --rdzv-backend c10d, --rdzv-endpoint {host}:{port}, --rdzv-id 7",
         "a comma belongs to the value before it", "In a terminal spaces stand between options, and nothing else."),
        (lambda *it: _meeting(*it).split(), "those are several texts, and one is typed", '`" ".join(…)` makes one.'),
        (lambda server, host, port: f"torchrun {_meeting(server, host, port)}",
         "`torchrun` would be typed twice", "The options alone: what stands before and behind them is typed already."),
        (lambda server, host, port: f"{_meeting(server, host, port)} job.py",
         "the script would be typed twice", "The options alone: what stands before and behind them is typed already."),
        (lambda server, host, port: f"{_meeting(server, host, port)} --standalone",
         "`--standalone` takes the place of all four, and each server runs a job of its own", "Leave it out."),
    ],
    hints={"No closing quotation": "A quotation mark is missing."},
    otherwise="The four options of the table, each with its value; an f-string fills in the names between braces.",
)  # fmt: skip


def _found(where: Any, *_: Any) -> list[float]:
    node, folder = where
    return [float(node), float(folder)]


RANKS = {f"RANK {rank}, {each} a node": lambda it=(rank, each): it for rank, each in [(3, 2), (6, 4), (21, 8), (16, 8)]}

turn(
    "5.2.b",
    "The folder of a rank",
    lambda rank, nproc_per_node: divmod(rank, nproc_per_node),
    RANKS,
    look=_found,
    heads=("node rank", "folder"),
    mistakes=[
        (lambda rank, each: (rank // each, rank), "the folder is called after RANK", "What is it called after?"),
        (lambda rank, each: (rank % each, rank // each), "node and folder are exchanged", "First the node."),
        (lambda rank, each: (rank // each + 1, rank % each), "the nodes are counted from 1", "From 0."),
        (lambda rank, each: (rank // each, rank % each + 1), "the folders are counted from 1", "From 0."),
        (lambda rank, each: (rank // each, rank // each), "the folder is called after the node",
         "Which rank of its node?"),
        (lambda rank, each: (rank // each, rank - rank // each), "of all ranks before it one a node is counted off",
         "The nodes before it have `nproc_per_node` ranks each."),
        (lambda rank, each: (rank // each, rank - each), "only one node is counted off", "Which rank of *its* node?"),
        (lambda rank, each: (rank // 2, rank % 2), "two ranks a node are right in the first case only",
         "How many there are is given."),
        (lambda rank, each: (rank / each, rank % each), "that is a fraction of a node", "`//` divides whole numbers."),
        (lambda rank, each: (-(-rank // each), rank % each), "the node is rounded up", "`//` leaves the rest away."),
        (lambda rank, each: divmod(rank - 1, each), "the ranks are counted from 1", "RANK begins at 0."),
    ],
    hints={"unpack": "Return two numbers: the node's, and the folder's."},
    otherwise="Node 0 has the first `nproc_per_node` ranks, node 1 the next, and each counts its own from 0.",
)  # fmt: skip


NIGHTS = {  # each node's folder, the local rank, the second of its death, its last words; as the file system lists them
    "a full disk": [
        ("night_a1", 0, 1_795_000_007, "RuntimeError: Connection closed by peer"),
        ("night_a1", 1, 1_795_000_008, "RuntimeError: the communicator was aborted"),
        ("night_b2", 1, 1_795_000_002, "OSError: the disk is full"),
        ("night_b2", 2, 1_795_000_004, "SystemExit: 1"),
        ("night_c3", 0, 1_795_000_007, "RuntimeError: the communicator was aborted"),
    ],
    "a bad image": [
        ("night_a1", 0, 1_795_000_303, "RuntimeError: Broken pipe"),
        ("night_c3", 0, 1_795_000_301, "ValueError: image 17 is empty"),
        ("night_c3", 3, 1_795_000_304, "SystemExit: 1"),
        ("night_d4", 0, 1_795_000_303, "RuntimeError: the communicator was aborted"),
    ],
}


def _told(culprit: Callable[..., Any], night: str) -> str:
    """What the answer says of a night's files; they were copied, so their own times say nothing of a death.

    The oldest by those times is the last but one of the list: it is nothing else that could be taken for the first.
    """
    with tempfile.TemporaryDirectory(prefix="ddplab-check-") as folder:
        ages = [*range(len(NIGHTS[night]) - 1), -1]
        for age, (node, local_rank, second, words) in zip(ages, NIGHTS[night], strict=True):
            file = Path(folder, node, "attempt_0", str(local_rank), "error.json")
            file.parent.mkdir(parents=True)
            extra = {"py_callstack": "Traceback …", "timestamp": str(second)}
            file.write_text(json.dumps({"message": {"message": words, "extraInfo": extra}}))
            os.utime(file, (second - 10 * age, 1_796_000_000 - 10 * age))
        words = culprit(Path(folder))
        if isinstance(words, str) and words.startswith("{"):
            with contextlib.suppress(ValueError):
                words = json.loads(words)
        return "a path" if isinstance(words, Path) else str(words)


def _culprit(logs: Path, where: str = "**/error.json", choose: Any = min, by: str = "timestamp") -> str:
    paths = sorted(logs.glob(where))
    errors = [json.loads(path.read_text())["message"] for path in paths]
    if by == "file":
        return errors[min(range(len(paths)), key=lambda n: paths[n].stat().st_mtime)]["message"]
    if by == "place":
        return errors[0]["message"]
    if by == "end":
        return errors[-1]["message"]
    return choose(errors, key=lambda it: it["extraInfo"]["timestamp"] if by == "timestamp" else it["message"])[
        "message"
    ]


def _whole_file(logs: Path, inner: bool = False) -> Any:
    errors = [json.loads(path.read_text()) for path in logs.rglob("error.json")]
    first = min(errors, key=lambda it: it["message"]["extraInfo"]["timestamp"])
    return first["message"] if inner else first


def _not_of_a_connection(logs: Path) -> str:
    errors = [json.loads(path.read_text())["message"]["message"] for path in sorted(logs.rglob("error.json"))]
    return next(it for it in errors if "onnection" not in it)


turn(
    "5.2.c",
    "Who died first",
    _culprit,
    {night: lambda night=night: (night,) for night in NIGHTS},
    call=_told,
    heads=("culprit",),
    mistakes=[
        (partial(_culprit, by="place"), "that is the first file of the list", "The files know when: `timestamp`."),
        (partial(_culprit, by="end"), "that is the last file of the list", "The files know when: `timestamp`."),
        (partial(_culprit, choose=max), "that one died last", "The culprit is the earliest, by its `timestamp`."),
        (partial(_culprit, by="file"), "that is the time of the file, which copying has changed",
         "The time of death stands in the file: `timestamp`."),
        (partial(_culprit, where="*/attempt_0/0/error.json"), "only the first rank of each node was asked",
         "Each rank may have left one: `rglob` finds them all."),
        (partial(_culprit, by="message"), "that is the first in the alphabet", "The culprit is the earliest."),
        (_not_of_a_connection, "one that does not complain of a connection, and not the first to die",
         "Others may have had something else to say. The times decide."),
        (_whole_file, "that is all of the file", 'The words alone: `["message"]["message"]`.'),
        (partial(_whole_file, inner=True), "the time is still there beside the words",
         'The words alone: `["message"]["message"]`.'),
        (lambda logs: min((json.loads(path.read_text())["message"]["extraInfo"]["timestamp"], path)
                          for path in logs.rglob("error.json"))[0], "that is when, and not what", "Its `message`."),
        (lambda logs: min(logs.rglob("error.json")), "that is a file, and its words are asked for",
         "`json.loads(path.read_text())` holds them."),
    ],
    otherwise='The words stand in a file under `["message"]["message"]`, its time beside them under `"extraInfo"`.',
    hints={"has no attribute 'read'": "`json.load` reads an open file, `json.loads` a text: `path.read_text()`.",
           "string indices": "A file's text is no dict yet: `json.loads` makes one of it.",
           "out of range": "Files lie some folders below `logs`: `logs.rglob(…)` finds them.",
           "empty": "Files lie some folders below `logs`: `logs.rglob(…)` finds them.",
           "Expecting value": "`json.loads` reads a text: `path.read_text()`.",
           "JSON object must be": "`json.loads` reads a text: `path.read_text()`.",
           "'str' and 'PosixPath'": "`logs` is a `Path`: `logs.rglob(…)`.",
           "not supported between instances of 'dict'": "`min(…, key=…)` needs to know by what: the time of death."},
)  # fmt: skip
