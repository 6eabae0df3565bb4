"""Checks of lesson 5.2, several nodes."""

from typing import Any

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, asks, expect_all

RANK = asks(
    "5.2.1",
    Number("largest", 31, "Four nodes of 8, and ranks count from 0.").with_mistakes(
        (32, "that is how many ranks there are", "Ranks count from 0."),
        (7, "that is the last rank of the first node", "RANK counts through all four nodes."),
        (3, "that is the last node", "Each node starts 8 processes."),
    ),
    Number("rank", 21, "RANK = GROUP_RANK * 8 + LOCAL_RANK.").with_mistakes(
        (5, "that is its LOCAL_RANK", "The folder is called after LOCAL_RANK. RANK counts through all nodes."),
        (13, "that counts 8 processes before its node", "Before node 2 come node 0 and node 1."),
        (29, "that counts three nodes before its own", "Nodes count from 0: before node 2 come node 0 and node 1."),
        (7, "that adds the numbers", "Before node 2 come two nodes of 8 processes."),
    ),
    Number("node_ranks", 0, "What does a c10d meeting do with the numbers?").with_mistakes(
        (4, "a c10d meeting deals the numbers out", "In which kind of meeting has each node to be told its number?"),
        (3, "a c10d meeting deals the numbers out", "In which kind of meeting has each node to be told its number?"),
        (1, "a c10d meeting deals the numbers out, also to the node with the store", "Who needs a --node-rank?"),
    ),
)


@exercise("5.2.1", "Read the command")
def read_the_command(largest: int, store: str, rank: int, node_ranks: int) -> None:
    """`--nnodes 4 --nproc-per-node 8 … --rdzv-endpoint gpu03:29400` on gpu01 to gpu04."""
    given: dict[str, Any] = {"largest": largest, "rank": rank, "node_ranks": node_ranks}
    if not isinstance(store, str):
        raise NotYet(f"`store` is {store!r}, not a name", "A text, such as 'gpu01'.")
    if store.split(":")[0] != "gpu03":
        hint = "Neither the first node nor node 0 has to. Which option says where they meet?"
        raise NotYet(f"`store` is {store!r}: that server does not hold it", hint)
    expect_all(RANK, given)
