"""Answers to the exercises of lesson 5.1: the right one, the blank, and mistakes that people make."""

import os
import random
import socket
from types import SimpleNamespace

import torch

KEPT_OPEN = []


def first_of_job(env):
    return env["RANK"] == "0"


def first_of_node(env):
    return env["LOCAL_RANK"] == "0"


def said(checkpoint=first_of_job, data=first_of_node, world_size=4, nnodes=2, error=None):
    """What comes back from the script of 5.1.1, with the two expressions evaluated for each rank."""
    output = {}
    for rank in range(world_size):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "GROUP_RANK": str(rank // 2)}
        output[rank] = f"writes the checkpoint: {checkpoint(env)}\nunpacks the data: {data(env)}\n"
    return SimpleNamespace(output=output, world_size=world_size, nnodes=nnodes, error=error)


silent = said()
silent.output = {rank: "" for rank in range(4)}


def free_port():
    with socket.socket() as door:
        door.bind(("", 0))
        return door.getsockname()[1]


def guessed():
    return random.randint(20000, 30000)  # below those that the system gives to others while this is judged


def address_too():
    return "127.0.0.1", free_port()


def never_closed():
    door = socket.socket()
    door.bind(("", 0))
    door.listen()
    KEPT_OPEN.append(door)
    return door.getsockname()[1]


def misspelt():
    with socket.socket() as door:
        door.bnid(("", 0))


def environment(group_rank, local_rank, nnodes, nproc_per_node, port):
    return {
        "RANK": str(group_rank * nproc_per_node + local_rank),
        "LOCAL_RANK": str(local_rank),
        "GROUP_RANK": str(group_rank),
        "WORLD_SIZE": str(nnodes * nproc_per_node),
        "LOCAL_WORLD_SIZE": str(nproc_per_node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def numbers(*numbers):
    return {name: int(text) if text.isdigit() else text for name, text in environment(*numbers).items()}


def rank_by_nodes(group_rank, local_rank, nnodes, nproc_per_node, port):
    rank = group_rank * nnodes + local_rank
    return environment(group_rank, local_rank, nnodes, nproc_per_node, port) | {"RANK": str(rank)}


def no_address(*numbers):
    return {name: text for name, text in environment(*numbers).items() if name != "MASTER_ADDR"}


def by_update(rank, size, port):
    os.environ |= {"RANK": f"{rank}", "WORLD_SIZE": f"{size}", "MASTER_ADDR": "localhost", "MASTER_PORT": f"{port}"}


def all_seven(rank, size, port):
    os.environ.update(environment(0, rank, 1, size, port))


def of_this_process_alone(rank, size, port):
    for name, value in environment(0, rank, 1, size, port).items():
        os.putenv(name, value)  # which os.environ does not notice


def address_with_port(rank, size, port):
    by_update(rank, size, port)
    os.environ["MASTER_ADDR"] = f"127.0.0.1:{port}"


def size_from_0(rank, size, port):
    by_update(rank, size - 1, port)


def port_of_my_own(rank, size, port):
    by_update(rank, size, 29500)


def rank_and_size_exchanged(rank, size, port):
    by_update(size, rank, port)


def as_a_dict(rank, size, port):
    return environment(0, rank, 1, size, port)


def by_remainder(env, gpus):
    return f"cuda:{int(env['RANK']) % gpus}" if gpus else "cpu"


def by_itself(rank, size, port):
    environ = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environ["LOCAL_RANK"] = environ["RANK"]


def by_local_names(rank, size, port):
    told = {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(it) for name, it in told.items()})


def one_local_name(rank, size, port):
    by_local_names(rank, size, port)
    os.environ["RANK"] = os.environ.pop("LOCAL_RANK")


def line(processes, threads):
    return f"OMP_NUM_THREADS={threads} torchrun --nproc-per-node {processes} train.py --epochs 5"


ANSWERS = {
    "5.1.a": {
        "accepted": [by_update, all_seven],
        "wrong": [
            (of_this_process_alone, ["none of the four is set"]),
            (by_itself, ["none of the four is set"]),
            (by_local_names, ["`LOCAL_RANK` is set, and `RANK` is not"]),
            (one_local_name, ["`LOCAL_WORLD_SIZE` is set, and `WORLD_SIZE` is not"]),
            (address_with_port, ["the address has the port in it"]),
            (rank_and_size_exchanged, ["have changed places"]),
            (as_a_dict, ["a dict comes back, and nothing is set"]),
            (lambda rank, size, port: by_update(rank, size + 1, port), ["one more than there are"]),
            (lambda rank, size, port: by_update(rank + 1, size, port), ["the numbers begin at 1"]),
            (size_from_0, ["the highest number"]),
            (port_of_my_own, ["may be taken"]),
        ],
    },
    "5.1.c": {
        "accepted": [
            by_remainder,
            lambda env, gpus: f"cuda:{env['LOCAL_RANK']}" if gpus > 0 else torch.device("cpu"),
            lambda env, gpus: f"cuda:{int(env['RANK']) % int(env['LOCAL_WORLD_SIZE'])}" if gpus else "cpu",
        ],
        "wrong": [
            (lambda env, gpus: f"cuda:{env['RANK'] % gpus}", ["a text stands where a number belongs"]),
            (lambda env, gpus: f"cuda:{env['LOCAL_WORLD_SIZE']}" if gpus else "cpu", ["both ask for GPU 2"]),
            (lambda env, gpus: env["local_rank"], ["KeyError"]),
            (lambda env, gpus: f"cuda:{int(env['LOCAL_RANK']) + 1}" if gpus else "cpu", ["counted from 1"]),
            (lambda env, gpus: f"cuda:{int(env['LOCAL_RANK']) - 1}" if gpus else "cpu", ["Invalid device string"]),
            (lambda env, gpus: torch.device("cuda", env["LOCAL_RANK"]) if gpus else "cpu", ["must be int, not str"]),
            (lambda env, gpus: f"cuda:{os.environ['LOCAL_RANK']}", ["KeyError"]),
            (lambda env, gpus: f"cuda{env['LOCAL_RANK']}" if gpus else "cpu", ["Invalid device string"]),
        ],
    },
    "5.1.b": {
        "accepted": [
            lambda n, t: (
                f"OMP_NUM_THREADS={t} python -m torch.distributed.run --nproc_per_node={n} train.py --epochs=5"
            ),
            lambda n, t: f"env OMP_NUM_THREADS={t} torchrun --nproc-per-node {n} ./train.py --epochs 5",
            lambda n, t: f"!OMP_NUM_THREADS={t} torchrun --standalone --nproc-per-node {n} train.py --epochs 5",
            lambda n, t: f"export OMP_NUM_THREADS={t} && torchrun --nproc-per-node {n} train.py --epochs 5",
        ],
        "wrong": [
            (lambda n, t: line(2, 4), ["both numbers are right for the"]),
            (lambda n, t: print(n), ["starts nothing"]),
            (lambda n, t: line(t, n), ["numbers are swapped"]),
            (lambda n, t: line("processes", "threads"), ["to the letter"]),
            (
                lambda n, t: f"OMP_NUM_THREADS={t}; torchrun --nproc-per-node {n} train.py --epochs 5",
                ["no variable reaches torchrun"],
            ),
            (lambda n, t: f"torchrun OMP_NUM_THREADS={t} --nproc-per-node {n} train.py", ["variable for the script"]),
            (lambda n, t: line(n, n * t), ["of all processes together"]),
            (lambda n, t: line(n, t).replace("--nproc-per-node", "--nnodes"), ["counts machines"]),
            (lambda n, t: line(n, t).replace(" train", "train"), ["no word of it is `train"]),
            (lambda n, t: line(n, t).replace("--nproc-per-node", "-n"), ["torchrun has no `-n`"]),
            (lambda n, t: line(n, t).replace("--epochs ", ""), ["a number, and not of what"]),
            (
                lambda n, t: f"python3 -m torch.distributed.launch --nproc-per-node {n} train.py --epochs 5",
                ["torchrun's forerunner"],
            ),
            (lambda n, t: line(n, t).split(), ["a list of words"]),
        ],
    },
    "5.1.1": {
        "correct": said(),
        "blank": said(lambda env: ..., lambda env: ...),
        "wrong": [
            (said(first_of_node), ["“writes the checkpoint” is True on ranks 0 and 2", "one on every node"]),
            (said(data=first_of_job), ["“unpacks the data” is True on rank 0 alone", "second node has none"]),
            (said(lambda env: env["RANK"] == 0), ["“writes the checkpoint” is True on no rank"]),
            (said(lambda env: True), ["“writes the checkpoint” is True on all four ranks"]),
            (
                said(data=lambda env: env["GROUP_RANK"] == "0"),
                ["“unpacks the data” is True on ranks 0 and 1", "the whole first node"],
            ),
            (said(lambda env: env["RANK"]), ["on rank 0 `first_of_job` is 0", "neither True nor False"]),
            (said(data=lambda env: env["LOCAL_RANK"] == "1"), ["ranks 1 and 3", "should be on ranks 0 and 2"]),
            (said(nnodes=1), ["4 ranks of 1 agents"]),
            (said(error=KeyError("LOCALRANK")), ["KeyError", "LOCALRANK"]),
            (silent, ["rank 0 does not print"]),
            ([True, False], ["not a run"]),
        ],
    },
    "5.1.2": {
        "correct": free_port,
        "wrong": [
            (lambda: 29511, ["29511 again", "another program holds"]),
            (guessed, ["again", "another program holds"]),
            (lambda: 0, ["returns 0", "the question"]),
            (address_too, ["an address and a port"]),
            (lambda: str(free_port()), ["the text"]),
            (never_closed, ["nobody can use the port"]),
            (lambda: None, ["returns nothing"]),
            (lambda: 80, ["returns 80", "1024"]),
            (misspelt, ["AttributeError", "bnid"]),
            (29511, ["not a function"]),
        ],
    },
    "5.1.3": {
        "correct": environment,
        "wrong": [
            (numbers, ["RANK is 0, of type int", "are text"]),
            (
                lambda *numbers: environment(*numbers) | {"RANK": str(numbers[1])},
                ["GROUP_RANK 1, LOCAL_RANK 0", "RANK is 0, not 2"],
            ),
            (rank_by_nodes, ["GROUP_RANK 1, LOCAL_RANK 0", "RANK is 3, not 2"]),
            (lambda *numbers: environment(*numbers) | {"WORLD_SIZE": str(numbers[3])}, ["WORLD_SIZE is 2, not 6"]),
            (lambda *numbers: environment(*numbers) | {"MASTER_PORT": "29500"}, ["MASTER_PORT is 29500, not 29400"]),
            (no_address, ["MASTER_ADDR is missing"]),
            (
                lambda *numbers: environment(*numbers) | {"MASTER_ADDR": "first-server"},
                ["MASTER_ADDR is 'first-server'"],
            ),
            (lambda *numbers: print(environment(*numbers)), ["returns nothing"]),
            (environment(0, 0, 1, 1, 29400), ["not a function"]),
        ],
    },
}
