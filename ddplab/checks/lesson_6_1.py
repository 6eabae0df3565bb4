"""Checks of lesson 6.1, When it hangs or crashes."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import listed, needs_function, number, on_cpu
from ddplab.checks.turns import turn

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
    {"loss": 64.0, "images": 32, "cats": 20},
    {"images": 16, "loss": 4.0},  # in another order, and without cats
    {"dogs": 5, "images": 8, "loss": 24.0},
]


def _added_up(add_up: Callable[..., Any]) -> Any:
    sums = add_up(dict(METRICS[dist.get_rank()]))
    if isinstance(sums, Mapping):
        return {name: getattr(value, "tolist", lambda value=value: value)() for name, value in sums.items()}
    return type(sums).__name__


@exercise("6.1.2", "Sums of what not every rank has")
def add_up(add_up: Callable[..., Any]) -> None:
    """`add_up(metrics)` on 2 and 3 ranks whose dictionaries differ in their order and in their names."""
    needs_function("add_up", add_up)
    for size in (2, 3):
        for rank, sums in enumerate(on_cpu(_added_up, add_up, size=size)):
            _judge_sums(f"on {size} ranks, rank {rank}", sums, rank, size)


def _judge_sums(where: str, sums: Any, rank: int, size: int) -> None:
    if not isinstance(sums, dict):
        raise NotYet(f"{where} gets {'nothing' if sums == 'NoneType' else f'a {sums}'}, not a dictionary")
    right: dict[str, float] = {}
    for metrics in METRICS[:size]:
        right |= {name: right.get(name, 0) + value for name, value in metrics.items()}
    got = {name: number(name, value) for name, value in sums.items()}
    if got == right:
        return
    if got == METRICS[rank]:
        raise NotYet(f"{where} gets its own numbers back", "Who brings the numbers of the others?")
    if set(got) != set(right) and set(got) == set(METRICS[rank]):
        hint = "Before anything is added, every rank has to know the names of all."
        raise NotYet(f"{where} gets the names that it had itself, and no others", hint)
    if set(got) != set(right):
        raise NotYet(f"{where} gets the names {', '.join(sorted(map(str, got)))}", "The names of all ranks.")
    if all(abs(got[name] - right[name] / size) < 1e-6 for name in right):
        raise NotYet(f"{where} gets the mean, not the sum", "`all_reduce` adds up by itself.")
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


# ------------------------------------------------------------------ your turn

ALL_REDUCE = "    all_reduce (torch/distributed/distributed_c10d.py:3252)\n    step (train.py:31)\n"
BARRIER = "    barrier (torch/distributed/distributed_c10d.py:5082)\n    <module> (train.py:64)\n"
GATHER = "    all_gather_object (torch/distributed/distributed_c10d.py:3481)\n    evaluate (train.py:48)\n"
LOADS = "    _try_get_data (torch/utils/data/dataloader.py:1310)\n    <module> (train.py:27)\n"
SAVES = "    _save (torch/serialization.py:1230)\n    save (train.py:55)\n"
OWN_SUM = "    all_reduce_by_hand (metrics.py:12)\n    step (train.py:30)\n"
JOBS = {
    "the job above": [ALL_REDUCE, "    <module> (stuck.py:12)\n"],
    "rank 0 saves": [SAVES, BARRIER, BARRIER],
    "rank 2 loads": [ALL_REDUCE, ALL_REDUCE, LOADS, ALL_REDUCE],
    "two evaluate": [OWN_SUM, GATHER, GATHER, SAVES],
    "its own sum": [ALL_REDUCE, OWN_SUM],
    "all wait": [ALL_REDUCE, BARRIER],
}
STACKS = {
    name: lambda tops=tops: (
        {n: f'Process {n + 100}: python -u train.py\n\nThread (idle): "MainThread"\n{it}' for n, it in enumerate(tops)},
    )
    for name, tops in JOBS.items()
}


def _never_came(stacks: Any, words: str = "torch/distributed", wait: bool = False, of: Any = None) -> list[int]:
    return [rank for rank, stack in stacks.items() if (words in stack) == wait][:of]


turn(
    "6.1.a",
    "Who never came",
    _never_came,
    STACKS,
    look=lambda ranks, _: ", ".join(map(str, sorted(ranks))) or "nobody",
    heads=("never came",),
    mistakes=[
        (partial(_never_came, wait=True), "you list those who wait", "For whom do they wait?"),
        (partial(_never_came, words="all_reduce"), "an all-reduce is not the only collective",
         "What do all collectives have in common in these stacks? Look behind the name of the function."),
        (partial(_never_came, words="all_reduce ("), "a gather and a barrier are collectives too",
         "What do all collectives have in common in these stacks? Look behind the name of the function."),
        (partial(_never_came, words="torch/"), "not all of torch is a collective", "In which folder of torch's?"),
        (partial(_never_came, words="torch"), "not all of torch is a collective", "In which folder of torch's?"),
        (partial(_never_came, words="distributed_c10d", of=1), "one of several is left out", "All who never came."),
        (lambda stacks: [max(stacks)], "that is the last rank, always", "What do the texts say?"),
        (partial(_never_came, words="idle"), "with gloo a rank that waits is idle, and one that sleeps as well",
         "Not the state of the thread tells: in which function does it stand?"),
    ],
    otherwise="Print the stacks of that job: what does one that waits in a collective have, whatever the collective?",
)  # fmt: skip


def _loss_and_target(rank: int, size: int) -> tuple[torch.Tensor, float | None]:
    return torch.tensor([rank + 1.0]), 2.0 if rank == 0 else None


def _mean_and_stop(loss: Any, target: Any, parts: int = 0, decided: str = "mean", src: int | None = 0) -> Any:
    mean, stop = loss / (parts or dist.get_world_size()), torch.zeros(1)
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        stop += (mean if decided == "mean" else loss) <= target
    if src is not None:
        dist.broadcast(stop, src=src)
    return mean, bool(stop)


def _crosswise(loss: Any, target: Any) -> Any:
    if dist.get_rank() == 0:
        return _mean_and_stop(loss, target)
    stop = torch.zeros(1)
    dist.broadcast(stop, src=0)
    dist.all_reduce(loss)
    return loss / dist.get_world_size(), bool(stop)


def _each_for_itself(loss: Any, target: Any) -> Any:
    dist.all_reduce(loss)
    return loss / dist.get_world_size(), bool(loss / dist.get_world_size() <= target)


def _only_rank_0(loss: Any, target: Any) -> Any:
    return _mean_and_stop(loss, target) if dist.get_rank() == 0 else (loss, False)


turn(
    "6.1.b",
    "Two calls in step",
    _mean_and_stop,
    _loss_and_target,
    ranks=(4, 2),
    device="cpu",
    look=lambda held, *_: [float(held[0]), "stop" if held[1] else "go on"],
    heads=("mean loss", ""),
    mistakes=[
        (partial(_mean_and_stop, src=None, decided="loss"), "rank 0 stops, and nobody else hears of it",
         "Who knows the target tells the others: which of the two calls does that?"),
        (_each_for_itself, "a rank asks for a target that it does not have", "Only rank 0 compares, and tells."),
        (partial(_mean_and_stop, decided="loss"), "rank 0 has compared its own loss", "Compare the mean."),
        (partial(_mean_and_stop, parts=1), "that is the sum of the losses", "Divide by `dist.get_world_size()`."),
        (lambda loss, target: (loss, _mean_and_stop(loss, target)[1]), "each rank returns its own loss",
         "What `all_reduce` has filled is the sum of all."),
        (partial(_mean_and_stop, src=1), "the sign comes from a rank that does not know", "`src` is who tells."),
        (_crosswise, "rank 0 is in one call, the others are in the other",
         "Both calls stand where every rank passes, in one order. What is for rank 0 alone is the comparison."),
        (_only_rank_0, "rank 0 waits for ranks that never come", "A collective does not stand under an `if`."),
    ],
    otherwise="Both calls stand where every rank passes; the comparison is for rank 0 alone.",
)  # fmt: skip


def _two_sums(rank: int, size: int) -> tuple[dict[str, torch.Tensor]]:
    loss, images = torch.tensor([60.0]), torch.tensor([[30.0], [10.0]][rank % 2])
    return ({"loss": loss, "images": images} if rank % 2 == 0 else {"images": images, "loss": loss},)


def _loss_per_image(sums: Any, names: Any = ("loss", "images"), whole: bool = True) -> Any:
    both = torch.cat([sums[name] for name in names])
    if whole:
        dist.all_reduce(both)
    return both[0] / both[1]


def _of_ratios(sums: Any, divide: bool = True) -> Any:
    ratio = sums["loss"] / sums["images"]
    dist.all_reduce(ratio)
    return ratio / dist.get_world_size() if divide else ratio


def _crossed(sums: Any) -> Any:
    for it in sums.values():
        dist.all_reduce(it)
    return sums["loss"] / sums["images"]


IN_ONE = "Put both into one tensor, the loss first on every rank, whatever the order of the dictionary."

turn(
    "6.1.c",
    "Two sums that cannot cross",
    _loss_per_image,
    _two_sums,
    ranks=(2, 4),
    device="cpu",
    heads=("loss per image",),
    mistakes=[
        (_crossed, "the sums have crossed: a loss was added to a number of images", IN_ONE),
        (lambda sums: _loss_per_image(sums, list(sums)), "the tensor has the order of the dictionary", IN_ONE),
        (_of_ratios, "that is the mean of the ranks' means, and one rank has more images",
         "First the two sums over all ranks, then the division."),
        (partial(_of_ratios, divide=False), "that is a sum of the ranks' means",
         "First the two sums over all ranks, then the division."),
        (partial(_loss_per_image, whole=False), "each rank divides its own sums", "Add up over the ranks first."),
        (partial(_loss_per_image, names=("images", "loss")), "those are images per loss", "Loss divided by images."),
        (lambda sums: _loss_per_image(sums) if dist.get_rank() == 0 else sums["loss"] / sums["images"],
         "rank 0 waits for the others", "Every rank makes the call."),
    ],
    otherwise=IN_ONE,
)  # fmt: skip
