"""Checks of lesson 6.1, When it hangs or crashes."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import listed, needs_function, number, on_cpu

CAUSES = {
    "a": "tensors of different sizes",
    "b": "a slow rank",
    "c": "one rank has a batch more",
    "d": "one rank skips a collective",
    "e": "a port in use",
}
RIGHT = {1: "c", 2: "d", 3: "b", 4: "a"}
READ_AGAIN = {
    1: "`backward` is a collective of DDP's. Who has returned, and what had it no more of?",
    2: "Rank 0's line stands under an `if`. What did rank 1 do about it?",
    3: "Rank 1 is not in a collective, and it has not returned. What is it doing?",
    4: "Both are in the same call, and what arrived is not as large as what was expected. What do the two bring?",
}


@exercise("6.1.1", "Read the diagnosis")
def read_the_diagnosis(causes: Any) -> None:
    """Number of a diagnosis → letter of its cause."""
    if not isinstance(causes, Mapping) or set(causes) != set(RIGHT):
        raise NotYet("`causes` needs one letter for each of 1, 2, 3 and 4", 'A dictionary, such as {1: "e", …}.')
    for n, right in RIGHT.items():
        letter = causes[n].strip().lower() if isinstance(causes[n], str) else causes[n]
        if letter not in CAUSES:
            raise NotYet(f"`causes[{n}]` is {causes[n]!r}, and the causes are a to e", 'A letter, such as "e".')
        if letter == "e":
            raise NotYet(f"{n} is not a port in use", "With a port in use no rank gets as far as a collective.")
        if letter != right:
            raise NotYet(f"{n} is not {letter}, {CAUSES[letter]}", READ_AGAIN[n])


# ------------------------------------------------------------------ 6.1.2

METRICS = [
    {"loss": 64.0, "images": 32, "correct": 20},
    {"images": 16, "loss": 4.0, "correct": 9},  # so sorting by value gives another order than on rank 0
    {"correct": 5, "images": 8, "loss": 24.0},
]


def _added_up(add_up: Callable[..., Any]) -> Any:
    sums = add_up(dict(METRICS[dist.get_rank()]))
    if isinstance(sums, Mapping):
        return {name: getattr(value, "tolist", lambda value=value: value)() for name, value in sums.items()}
    return type(sums).__name__


@exercise("6.1.2", "Sums that cannot cross")
def add_up(add_up: Callable[..., Any]) -> None:
    """`add_up(metrics)` on 2 and 3 ranks whose dictionaries have the same names in different orders."""
    needs_function("add_up", add_up)
    for size in (2, 3):
        for rank, sums in enumerate(on_cpu(_added_up, add_up, size=size)):
            _judge_sums(f"on {size} ranks, rank {rank}", sums, rank, size)


def _judge_sums(where: str, sums: Any, rank: int, size: int) -> None:
    if not isinstance(sums, dict):
        raise NotYet(f"{where} gets {'nothing' if sums == 'NoneType' else f'a {sums}'}, not a dictionary")
    if set(sums) != set(METRICS[0]):
        raise NotYet(f"{where} gets the names {', '.join(sorted(map(str, sums)))}", "The names of `metrics`, all.")
    right = {name: sum(metrics[name] for metrics in METRICS[:size]) for name in METRICS[0]}
    got = {name: number(name, value) for name, value in sums.items()}
    if got == right:
        return
    if got == METRICS[rank]:
        raise NotYet(f"{where} gets its own numbers back", "The tensor that went into `all_reduce` has the sums.")
    if all(abs(got[name] - right[name] / size) < 1e-6 for name in right):
        raise NotYet(f"{where} gets the mean, not the sum", "`all_reduce` adds up by itself.")
    by_value = [sorted(metrics, key=metrics.get) for metrics in METRICS[:size]]
    for order in (by_value, [names[::-1] for names in by_value]):
        crossed = {
            name: sum(metrics[names[place]] for metrics, names in zip(METRICS, order, strict=False))
            for place, name in enumerate(order[rank])
        }
        if got == crossed:
            hint = "The values differ from rank to rank, and so does their order. What is the same on all ranks?"
            raise NotYet(f"{where} gets sums in the order of the values, and they have crossed", hint)
    wrong = next(name for name in right if got[name] != right[name])
    hint = "Bring the names into one order that every rank can work out for itself."
    raise NotYet(f"{where}, {wrong!r} is {got[wrong]:g} instead of {right[wrong]:g}", hint)


# ------------------------------------------------------------------ 6.1.3

LENGTHS = ([3, 2], [2, 2], [1, 900], [2, 0], [4, 2, 3])


def _run_together(run: Callable[..., Any], lengths: list[int]) -> tuple[Any, list[Any], int]:
    read, seen = 0, []

    def batches() -> Iterator[int]:
        nonlocal read
        for n in range(lengths[dist.get_rank()]):
            read += 1
            yield n

    def step(batch: Any) -> None:
        seen.append(batch)
        dist.all_reduce(torch.ones(3))

    return run(batches(), step), seen, read


@exercise("6.1.3", "As many steps for all")
def stop_together(run: Callable[..., Any]) -> None:
    """`run(batches, step)` on ranks with different numbers of batches: all take as many steps as the poorest has."""
    needs_function("run", run)
    for lengths in LENGTHS:
        where = f"with {listed(lengths)} batches"
        ranks = on_cpu(_run_together, run, lengths, size=len(lengths))
        steps = [len(seen) for _, seen, _ in ranks]
        if any(None in seen for _, seen, _ in ranks):
            raise NotYet(f"{where}, `step` was given None", "A rank without a batch makes all of them stop.")
        if len(set(steps)) > 1:
            raise NotYet(f"{where}, the ranks took {', '.join(map(str, steps))} steps", "All take the same number.")
        if steps[0] != min(lengths):
            hint = "As many as the rank with the fewest batches can."
            raise NotYet(f"{where}, every rank took {steps[0]} steps instead of {min(lengths)}", hint)
        for rank, (taken, seen, read) in enumerate(ranks):
            if seen != list(range(steps[0])):
                raise NotYet(f"{where}, rank {rank} trained on the batches {seen}", "Each batch once, in order.")
            if read > steps[0] + 1:
                hint = "Nobody knows how long `batches` is; ask for the next one before each step."
                raise NotYet(f"{where}, rank {rank} read {read} batches to take {steps[0]} steps", hint)
            if number("run", taken) != steps[0]:
                raise NotYet(f"{where}, `run` returned {taken} on rank {rank} after {steps[0]} steps")
