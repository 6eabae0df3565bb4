"""Checks of lesson 9.2, Only one GPU is used: turn 5.1.c again, on nodes that all have GPUs."""

from ddplab.checks.lesson_5_1 import taken
from ddplab.checks.turns import TURNS, turn

ASKED = TURNS["5.1.c"]
NODES = {  # each process of a node, as torchrun tells it: RANK, LOCAL_RANK, GROUP_RANK; and the node's GPUs
    "node 0 of 3": lambda: ([(0, 0, 0), (1, 1, 0)], 2),
    "node 1 of 3": lambda: ([(2, 0, 1), (3, 1, 1)], 2),
    "node 2 of 3": lambda: ([(4, 0, 2), (5, 1, 2)], 2),
}

turn(
    "9.2.a",
    "A GPU of its own, on every node",
    ASKED.right,
    NODES,
    [row for row in ASKED.mistakes if "a node without" not in row[1]],
    call=taken,
    heads=("one process", "the other"),
    hints={"'LOCAL_RANK'": "The variables of the process are in `env`.",
           "must be int, not str": "Variables of the environment are texts: `int(…)`.",
           "not all arguments converted": "Variables of the environment are texts: `int(…)`.",
           "Invalid device string": "`cuda:1`, with a colon."},
    otherwise="`cuda:` and a number. Which number begins at 0 on each node?",
)  # fmt: skip
