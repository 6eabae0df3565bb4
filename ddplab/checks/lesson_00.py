"""Checks of lesson 00, Start here."""

from collections.abc import Callable
from typing import Any

from ddplab.checks import NotYet, exercise


@exercise("00.1", "Every rank says who it is")
def who_am_i(greet: Callable[[], str]) -> None:
    """`greet()` returns "rank R of W", read from torch.distributed. Run here on three ranks."""
    from ddplab import launch

    if not callable(greet):
        raise NotYet(
            f"`greet` is {type(greet).__name__!r}, not a function",
            hint="Pass the function itself, without calling it: the ranks do that.",
        )
    said: list[Any] = launch(greet, nproc_per_node=3, quiet=True, timeout=30).results
    wanted = [f"rank {rank} of 3" for rank in range(3)]
    if said == wanted:
        return
    if all(line is None for line in said):
        raise NotYet(
            "`greet` returns nothing, so every rank sends back None",
            hint="What a rank prints is output, what it returns is a result: use `return`.",
        )
    if not all(isinstance(line, str) for line in said):
        raise NotYet(f"rank 0 returned {said[0]!r}, not a text", hint='An f-string: f"rank {rank} of {world_size}".')
    if said == [f"rank {rank} of 3" for rank in (1, 2, 3)]:
        raise NotYet("the ranks are counted from 1", hint="`dist.get_rank()` counts from 0; return it as it is.")
    if len(set(said)) == 1:
        raise NotYet(f"all three ranks said {said[0]!r}", hint="Ask torch.distributed for the rank: `dist.get_rank()`.")
    if all(line.startswith(f"rank {rank} of ") for rank, line in enumerate(said)):
        raise NotYet(
            f"on three ranks, rank 0 said {said[0]!r}: that is not the world size",
            hint="Ask torch.distributed for it: `dist.get_world_size()`.",
        )
    raise NotYet(f"rank 0 said {said[0]!r}, not {wanted[0]!r}", hint="Compare the two texts letter by letter.")
