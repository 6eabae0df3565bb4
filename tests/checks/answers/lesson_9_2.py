"""Answers to the turn of lesson 9.2; its mistakes are rows in ddplab/checks/lesson_5_1.py."""

import torch


def by_local_rank(env, gpus):
    return torch.device("cuda", int(env["LOCAL_RANK"]))


def by_remainder(env, gpus):  # all nodes are alike
    return f"cuda:{int(env['RANK']) % gpus}"


def from_the_last(env, gpus):
    return f"cuda:{gpus - 1 - int(env['LOCAL_RANK'])}"


ANSWERS = {
    "9.2.a": {
        "accepted": [by_local_rank, by_remainder, from_the_last],
        "wrong": [
            (lambda env, gpus: f"cuda:{env['RANK']}", ["RANK runs on"]),
            (lambda env, gpus: f"cuda:{env['RANK'] % gpus}", ["a text stands where a number belongs"]),
            (lambda env, gpus: env["local_rank"], ["KeyError"]),
            (lambda env, gpus: f"cuda{env['LOCAL_RANK']}", ["Invalid device string"]),
        ],
    },
}
