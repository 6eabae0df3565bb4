"""Checks of lesson 1.1, Start here."""

import time
from collections.abc import Callable

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import needs_function, on_ranks
from ddplab.launcher import launch
from ddplab.run import Run


@exercise("1.1.1", "Every rank says who it is")
def who_am_i(greet: Callable[[], str]) -> None:
    """`greet()` returns "rank R of W", read from torch.distributed. Run here on three ranks, then on two."""
    needs_function("greet", greet)
    said = on_ranks(greet, size=3, timeout=15)
    wanted = [f"rank {rank} of 3" for rank in range(3)]
    if said == wanted:
        if (on_two := on_ranks(greet, size=2, timeout=15)) != ["rank 0 of 2", "rank 1 of 2"]:
            hint = "Ask torch.distributed for both numbers: `dist.get_rank()`, `dist.get_world_size()`."
            raise NotYet(f"right on three ranks; but on two, rank 0 said {on_two[0]!r}", hint)
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
    """`count(n)` logs a column `left`: n, n - 1, … 1, a row each. Run here on two ranks with n = 4, then with n = 2."""
    needs_function("count", count)
    run = _counted(count, 4)
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
        from_two = _counted(count, 2).metrics
        if [row.get("left") for row in from_two if row["rank"] == 0] != [2, 1]:
            shown = [row.get("left") for row in from_two if row["rank"] == 0]
            hint = "Count from `n`, whatever it is."
            raise NotYet(f"count(4) is right, but count(2) logged {shown}, not [2, 1]", hint)
        return
    hints = {
        (1, 2, 3, 4): "It should count down: `range(n, 0, -1)`.",
        (4, 3, 2, 1, 0): "The last row is 1, not 0: `range(n, 0, -1)` leaves 0 out.",
        (3, 2, 1, 0): "The first row is n itself: `range(n, 0, -1)`.",
        (0, 1, 2, 3): "It should count down from n to 1: `range(n, 0, -1)`.",
    }
    once = "One row was logged: is `log` outside the loop?" if len(left) == 1 else "Try it: launch(count, 4).metrics"
    raise NotYet(f"count(4) logged {left}, not [4, 3, 2, 1]", hints.get(tuple(left), once))


def _counted(count: Callable[[int], None], n: int) -> Run:
    """The run of `count(n)` on two ranks. Raises NotYet for one that logs and logs."""
    run = launch(count, n, nproc_per_node=2, quiet=True, timeout=15, wait=False)
    try:
        while run.state == "running":
            time.sleep(0.1)
            if len(run.metrics) > 1000:
                hint = "Does the number become smaller each time? `range(n, 0, -1)`"
                raise NotYet(f"count({n}) has logged more than 1,000 rows, and goes on", hint)
    finally:
        run.stop()  # of a run that has ended nothing is left to stop
    return run.wait()


@exercise("1.1.3", "All birds, on every rank")
def all_birds(count_birds: Callable[[], int]) -> None:
    """Rank r has seen 10**r birds; `count_birds()` returns everybody's sum, on every rank. Run on 3 ranks and on 2."""
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
        on_two = on_ranks(count_birds, size=2, timeout=15)
        if any(result is None or float(result) != 11 for result in on_two):
            hint = "On two ranks it is 1 + 10: let the ranks add up what each of them has seen."
            raise NotYet(f"111 is right on three ranks; but on two, rank 0 returned {on_two[0]!r}, not 11", hint)
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
