"""Answers to the turns of lesson 5.2: other right ones, and mistakes that people make."""

import json


def by_sorting(logs):
    told = [json.loads(path.read_text())["message"] for path in logs.glob("*/*/*/error.json")]
    return sorted(told, key=lambda error: int(error["extraInfo"]["timestamp"]))[0]["message"]


def in_a_loop(logs):
    first, words = float("inf"), ""
    for path in logs.rglob("*.json"):
        with open(path) as file:
            message = json.load(file)["message"]
        if float(message["extraInfo"]["timestamp"]) < first:
            first, words = float(message["extraInfo"]["timestamp"]), message["message"]
    return words


def not_below(logs):
    return min(json.loads(path.read_text())["message"]["message"] for path in logs.glob("error.json"))


def latest(logs):
    told = [json.loads(path.read_text())["message"] for path in logs.rglob("error.json")]
    return sorted(told, key=lambda it: it["extraInfo"]["timestamp"])[-1]["message"]


def without_the_words(logs):
    told = [json.loads(path.read_text()) for path in logs.rglob("error.json")]
    return min(told, key=lambda it: int(it["message"]["extraInfo"]["timestamp"]))["message"]


ANSWERS = {
    "5.2.a": {
        "accepted": [
            lambda server, host, port: f"--rdzv_id=7 --nnodes=2:2 --rdzv_backend=c10d --rdzv_endpoint={host}:{port}",
            lambda server, host, port: (
                f"--node-rank 1 --nnodes 2 --rdzv-id 7 --rdzv-backend c10d --rdzv-endpoint {host}:{port}"
            ),
        ],
        "wrong": [
            (
                lambda server, host, port: (
                    f"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint {host}:{port} --rdzv-id 7 train.py"
                ),
                ["the script would be typed twice"],
            ),
            (
                lambda server, host, port: (
                    f"--nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint={host}:{port} --rdzv-id=7"
                ),
                ["how many servers have to come is not said"],
            ),
            (
                lambda server, host, port: (
                    f"--nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint {host}:{port} --rdzv-id 7"
                ),
                ["right, but the cells below count on one rank"],
            ),
            (
                lambda server, host, port: (
                    f"--nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint {host}:{port} --rdzv-id 7"
                ),
                ["one server alone is enough"],
            ),
            (
                lambda server, host, port: (
                    f"--nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint {host}:{port}"
                ),
                ["several ranks on each", "id: none"],
            ),
            (
                lambda server, host, port: f"--nnodes 2 --rdzv-id 7 --rdzv-backend c10d --rdzv-endpoint {host}:29400",
                ["the port is always 29400"],
            ),
            (
                lambda server, host, port: f"--nnodes 2 --rdzv-id 7 --rdzv-backend c10d --rdzv-endpoint gpu01:{port}",
                ["the host is always gpu01"],
            ),
            (
                lambda server, host, port: f"--nnodes 2 --master-addr {host} --master-port {port}",
                ["the old kind of meeting"],
            ),
            (
                lambda server, host, port: (
                    f"--standalone --nnodes 2 --rdzv-id 7 --rdzv-backend c10d --rdzv-endpoint {host}:{port}"
                ),
                ["takes the place of all four"],
            ),
            (
                lambda server, host, port: f"torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint {host}:{port}",
                ["typed twice"],
            ),
            (lambda server, host, port: f"--nodes 2 --rdzv-endpoint {host}:{port}", ["torchrun refuses"]),
            (
                lambda server, host, port: f"--rdzv-id 7 --nnodes 2 --node-rank 1 --master-addr {host}",
                ["the old kind of meeting", "no endpoint"],
            ),
            (
                lambda server, host, port: f"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint {host} {port} --rdzv-id 7",
                ["belongs to no option"],
            ),
            (
                lambda server, host, port: "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint {host}:{port} --rdzv-id 7",
                ["to the letter"],
            ),
            (
                lambda server, host, port: ("--nnodes 2", "--rdzv-backend c10d", f"--rdzv-endpoint {host}:{port}"),
                ["several texts"],
            ),
        ],
    },
    "5.2.b": {
        "accepted": [
            lambda rank, each: (rank // each, rank % each),
            lambda rank, each: [rank // each, f"{rank - rank // each * each}"],
        ],
        "wrong": [
            (lambda rank, each: rank % each, ["TypeError"]),
            (lambda rank, each: (rank // each, rank // each), ["called after the node"]),
            (lambda rank, each: (rank // each, rank - rank // each), ["one a node is counted off"]),
        ],
    },
    "5.2.c": {
        "accepted": [by_sorting, in_a_loop],
        "wrong": [
            (lambda logs: None, ["culprit is None"]),
            (not_below, ["raised ValueError"]),
            (lambda logs: next(json.loads(path) for path in logs.rglob("error.json")), ["raised TypeError"]),
            (without_the_words, ["the time is still there"]),
            (lambda logs: latest(logs), ["that one died last"]),
            (lambda logs: [json.load(path) for path in logs.rglob("error.json")], ["has no attribute 'read'"]),
            (lambda logs: sorted(logs.glob("*/error.json"))[0], ["list index out of range"]),
            (lambda logs: [path.read_text()["message"] for path in logs.rglob("error.json")], ["string indices"]),
            (lambda logs: by_sorting(logs).split(":")[0], ["culprit is OSError"]),
        ],
    },
}
