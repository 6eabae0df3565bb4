"""Checks of lesson 1.1, Start here."""

from collections.abc import Callable

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import needs_function, on_ranks
from ddplab.launcher import launch


@exercise("1.1.1", "Every rank says who it is")
def who_am_i(greet: Callable[[], str]) -> None:
    """`greet()` returns "rank R of W", read from torch.distributed. Run here on three ranks."""
    needs_function("greet", greet)
    said = on_ranks(greet, size=3, timeout=15)
    wanted = [f"rank {rank} of 3" for rank in range(3)]
    if said == wanted:
        return
    if all(line is None for line in said):
        hint = "What a rank prints is output, what it returns is a result: use `return`."
        raise NotYet("`greet` returns nothing, so every rank sends back None", hint)
    if not all(isinstance(line, str) for line in said):
        raise NotYet(f"rank 0 returned {said[0]!r}, not a text", 'An f-string: f"rank {rank} of {world_size}".')
    if said == [f"rank {rank} of 3" for rank in (1, 2, 3)]:
        raise NotYet("the ranks are counted from 1", "`dist.get_rank()` counts from 0; return it as it is.")
    if len(set(said)) == 1:
        raise NotYet(f"all three ranks said {said[0]!r}", "Ask torch.distributed for the rank: `dist.get_rank()`.")
    if all(line.startswith(f"rank {rank} of ") for rank, line in enumerate(said)):
        hint = "Ask torch.distributed for it: `dist.get_world_size()`."
        raise NotYet(f"on three ranks, rank 0 said {said[0]!r}: that is not the world size", hint)
    raise NotYet(f"rank 0 said {said[0]!r}, not {wanted[0]!r}", "Compare the two texts letter by letter.")


@exercise("1.1.2", "A row a step")
def countdown(count: Callable[[int], None]) -> None:
    """`count(n)` logs a column `left`: n, n - 1, … 1, a row each. Run here on two ranks with n = 4."""
    needs_function("count", count)
    run = launch(count, 4, nproc_per_node=2, quiet=True, timeout=15)
    columns = run.metrics.columns()
    if not columns:
        raise NotYet(
            "the ranks printed, but logged nothing" if any(run.output.values()) else "no rank logged anything",
            "A row of metrics is made by `log(left=…)`, inside the loop.",
        )
    if "left" not in columns:
        hint = "The keyword is the column's name."
        raise NotYet(f"there is no column 'left', only {', '.join(map(repr, columns))}", hint)
    if {row["rank"] for row in run.metrics} != {0, 1}:
        raise NotYet("only one of the two ranks logged", "Leave the rank out of it: every rank logs its own rows.")
    left = run.metrics.column("left", rank=0)
    if left == [4, 3, 2, 1]:
        return
    hints = {
        (1, 2, 3, 4): "It should count down: `range(n, 0, -1)`.",
        (4, 3, 2, 1, 0): "The last row is 1, not 0: `range(n, 0, -1)` leaves 0 out.",
        (3, 2, 1, 0): "The first row is n itself: `range(n, 0, -1)`.",
        (0, 1, 2, 3): "It should count down from n to 1: `range(n, 0, -1)`.",
    }
    once = "One row was logged: is `log` outside the loop?" if len(left) == 1 else "Try it: launch(count, 4).metrics"
    raise NotYet(f"count(4) logged {left}, not [4, 3, 2, 1]", hints.get(tuple(left), once))


@exercise("1.1.3", "All birds, on every rank")
def all_birds(count_birds: Callable[[], int]) -> None:
    """Rank r has seen 10**r birds; `count_birds()` returns everybody's sum, on every rank. Run here on three ranks."""
    needs_function("count_birds", count_birds)
    results = on_ranks(count_birds, size=3, timeout=15)
    if any(result is None for result in results):
        silent = [rank for rank, result in enumerate(results) if result is None]
        hint = "`dist.all_reduce(t)` changes `t` in place and returns None: return `t.item()` on every rank."
        raise NotYet(f"nothing came back from rank {silent[0]}", hint)
    try:
        birds = [float(result) for result in results]
    except (TypeError, ValueError):
        raise NotYet(f"rank 0 returned {results[0]!r}, not a number", "Return `t.item()`.") from None
    if birds == [111, 111, 111]:
        return
    told = "the three ranks returned " + ", ".join(f"{number:g}" for number in birds)
    if birds[0] == 111:
        raise NotYet(f"{told}: only rank 0 has the sum", "`reduce` serves one rank, `all_reduce` serves all of them.")
    what, hint = {
        (1, 10, 100): (": each knows of its own birds only", "The ranks must talk: `dist.all_reduce`."),
        (100, 100, 100): (": that is the largest, not the sum", "Leave `op` out: all_reduce adds by default."),
        (37, 37, 37): (": that is the mean, not the sum", "Leave the division out."),
        (11, 11, 11): (": the sum for two ranks, not three", "`all_reduce` knows how many ranks there are."),
        (3, 3, 3): (": every rank put in 1", "Rank r has seen `10 ** dist.get_rank()` birds."),
    }.get(tuple(birds), (", not 111 each", "Start from a tensor with `10 ** dist.get_rank()` in it."))
    raise NotYet(told + what, hint)
