"""Checks of lesson 6.1, When it hangs or crashes."""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ddplab.checks.turns import turn, waiting

ALL_REDUCE = "    all_reduce (torch/distributed/distributed_c10d.py:3252)\n    step (train.py:31)\n"
BARRIER = "    barrier (torch/distributed/distributed_c10d.py:5082)\n    <module> (train.py:64)\n"
GATHER = "    all_gather_object (torch/distributed/distributed_c10d.py:3481)\n    evaluate (train.py:48)\n"
LOADS = "    _try_get_data (torch/utils/data/dataloader.py:1310)\n    <module> (train.py:27)\n"
SAVES = "    _save (torch/serialization.py:1230)\n    save (train.py:55)\n"
RECORD = "    wrapper (torch/distributed/elastic/multiprocessing/errors/__init__.py:367)\n"  # of @record
OWN_SUM = "    all_reduce_by_hand (distributed_metrics.py:12)\n    step (train.py:30)\n"
JOBS = {
    "the job above": [ALL_REDUCE, "    <module> (stuck.py:12)\n"],
    "rank 0 saves": [SAVES, BARRIER, BARRIER],
    "rank 2 loads": [ALL_REDUCE, ALL_REDUCE, LOADS, ALL_REDUCE],
    "two evaluate": [OWN_SUM, GATHER, GATHER, SAVES],
    "its own sum": [ALL_REDUCE, OWN_SUM],
    "all wait": [ALL_REDUCE, BARRIER],
    "with @record (5.2)": [ALL_REDUCE + RECORD, SAVES + RECORD],
}
STACKS = {
    name: lambda tops=tops: (
        {n: f'Process {n + 100}: python -u train.py\n\nThread (idle): "MainThread"\n{it}' for n, it in enumerate(tops)},
    )
    for name, tops in JOBS.items()
}


def _never_came(stacks: Any, words: str = "distributed_c10d.py", wait: bool = False, of: Any = None) -> list[int]:
    return [rank for rank, stack in stacks.items() if (words in stack) == wait][:of]


def _listed(ranks: Any) -> str:
    return ", ".join(map(str, sorted(ranks))) or "nobody"


turn(
    "6.1.a",
    "Who never came",
    _never_came,
    STACKS,
    look=lambda ranks, _: f"the text {ranks!r}" if isinstance(ranks, str) else _listed(ranks),
    heads=("never came",),
    mistakes=[
        (partial(_never_came, wait=True), "you list those who wait", "For whom do they wait?"),
        (partial(_never_came, words="all_reduce"), "an all-reduce is not the only collective",
         "What do all collectives have in common in these stacks? Look behind the name of the function."),
        (partial(_never_came, words="all_reduce ("), "a gather and a barrier are collectives too",
         "What do all collectives have in common in these stacks? Look behind the name of the function."),
        (partial(_never_came, words="torch/"), "not all of torch is a collective", "In which file of torch's?"),
        (partial(_never_came, words="torch"), "not all of torch is a collective", "In which file of torch's?"),
        (partial(_never_came, words="torch/distributed"), "`@record` lies in that folder, too",
         "In which file do torch's collectives stand?"),
        (partial(_never_came, words="distributed"), "a file of somebody's own has that word in its name, too",
         "In which file do torch's collectives stand?"),
        (partial(_never_came, words="distributed_c10d.py", of=1), "one of several is left out", "All who never came."),
        (lambda stacks: [rank for rank, stack in stacks.items() if not any(
            word in stack for word in ("all_reduce", "barrier", "broadcast", "all_gather"))],
         "a function of somebody's own has such a name, too", "In which file do torch's collectives stand?"),
        (lambda stacks: [stacks[rank] for rank in _never_came(stacks)], "those are stacks", "The ranks' numbers."),
        (lambda stacks: [max(stacks)], "that is the last rank, always", "What do the texts say?"),
        (lambda stacks: _listed(_never_came(stacks)), "that is a text", "Return a list of the ranks' numbers."),
        (lambda stacks: ", ".join(map(str, _never_came(stacks))), "that is a text",
         "Return a list of the ranks' numbers."),
        (partial(_never_came, words="idle"), "nobody is named, in no job at all",
         "`idle` stands in every stack here, and `sleep` in none. In which file does one that waits stand?"),
    ],
    hints={"'int' object is not iterable": "A list, also of one rank.",
           "argument of type 'int'": "`for rank, stack in stacks.items()`: else a dictionary gives its keys only."},
    otherwise="Print the stacks of that job: what does one that waits in a collective have, whatever the collective?",
)  # fmt: skip


def _told_kinds(answer: Callable[..., Any], *given: Any) -> tuple[Any, bool]:
    """What an answer returns on this rank, and whether it was sent another kind of number than it had room for.

    Gloo copies bytes, and asks for no `dtype`: what comes of it is luck.
    """
    store, rank, send, sent, other = c10d._get_default_store(), dist.get_rank(), dist.broadcast, [], []

    @functools.wraps(send)
    def broadcast(tensor: Any, src: Any = None, *args: Any, **kwargs: Any) -> Any:
        sent.append(tensor)
        store.set(mine := f"kind of {len(sent)} on {rank}", str(getattr(tensor, "dtype", "")))
        store.get(mine)  # `set` waits for no answer: now it is there for the others, before anything is sent
        made = send(tensor, src, *args, **kwargs)
        its = f"kind of {len(sent)} on {src}"
        if src is not None and store.check([its]):
            other.append(store.get(its).decode() != str(getattr(tensor, "dtype", "")))
        return made

    with mock.patch.object(dist, "broadcast", broadcast):
        return answer(*given), any(other)


def _mean_and_word(told: tuple[Any, bool], *_: Any) -> list[Any]:
    held, other_kind = told
    if held is None:
        return []
    if isinstance(held, torch.Tensor) and held.numel() == 1:
        held = held.item()
    if isinstance(held, bool | int | float):  # one of the two
        held = ([], [held]) if isinstance(held, bool) else ([held], [])
    else:
        held = held[:1], held[1:]
    return [*map(float, held[0]), *("another kind" if other_kind else "stop" if it else "go on" for it in held[1])]


def _loss_and_target(rank: int, size: int) -> tuple[torch.Tensor, float | None]:
    return torch.tensor([rank + 1.0]), 2.0 if rank == 0 else None


def _mean_and_stop(loss: Any, target: Any, parts: int = 0, decided: str = "mean", src: int | None = 0) -> Any:
    mean, stop = loss / (parts or dist.get_world_size()), torch.zeros(1)
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        stop += (mean if decided == "mean" else loss) <= target
    if src is not None:
        dist.broadcast(stop, src=src if src >= 0 else dist.get_rank())
    return mean, bool(stop)


def _another_kind(loss: Any, target: Any) -> Any:
    dist.all_reduce(loss)
    mean, stop = loss / dist.get_world_size(), torch.tensor(0)
    if dist.get_rank() == 0:
        stop = torch.tensor(bool(mean <= target))
    dist.broadcast(stop, src=0)
    return mean, bool(stop)


def _only_below(loss: Any, target: Any) -> Any:
    return _mean_and_stop(loss, None if target is None else target - 0.01)


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


def _mean_on_rank_0(loss: Any, target: Any) -> Any:
    dist.reduce(loss, 0)
    stop = torch.zeros(1)
    if dist.get_rank() == 0:
        stop += loss / dist.get_world_size() <= target
    dist.broadcast(stop, src=0)
    return loss / dist.get_world_size(), bool(stop)


turn(
    "6.1.b",
    "Two calls in step",
    _mean_and_stop,
    _loss_and_target,
    ranks=(4, 2, 3),
    device="cpu",
    call=_told_kinds,
    look=_mean_and_word,
    heads=("mean loss", ""),
    mistakes=[
        (partial(_mean_and_stop, src=None, decided="loss"), "rank 0 stops, and nobody else hears of it",
         "The rank that knows the target tells the others: which of the two calls does that?"),
        (_each_for_itself, "a rank asks for a target that it does not have", "Only rank 0 compares, and tells."),
        (partial(_mean_and_stop, decided="loss"), "it stops, though the mean is above the target",
         "Rank 0 compares the mean, and not its own loss: is it `<=` the target?"),
        (_only_below, "it goes on, though the mean has come down to the target", "At the target counts: `<=`."),
        (partial(_mean_and_stop, parts=1), "that is the sum of the losses", "Divide by `dist.get_world_size()`."),
        (lambda loss, target: (loss, _mean_and_stop(loss, target)[1]), "each rank returns its own loss",
         "What `all_reduce` has filled is the sum of all."),
        (partial(_mean_and_stop, src=1), "the sign comes from a rank that does not know", "`src` is who tells."),
        (waiting(partial(_mean_and_stop, src=-1)), "every rank waits in `broadcast`",
         "Is `src` the same number on every rank? It is the rank that tells."),
        (_another_kind, "rank 0 sends one kind of number, and others have room for another: what comes of it is luck",
         "A tensor of the same `dtype` on every rank: 1 or 0, say, for yes or no."),
        (lambda loss, target: _mean_and_stop(loss, target) and None, "nothing came back",
         "Is there a `return`? Every rank returns the mean, and whether to stop."),
        (lambda loss, target: _mean_and_stop(loss, target) if not dist.get_rank() else
         _mean_and_stop(loss, target) and None, "only rank 0 returns something", "Every rank returns both."),
        (lambda loss, target: _mean_and_stop(loss, target)[0], "one thing came back, and two are wanted",
         "The mean, and whether to stop."),
        (lambda loss, target: _mean_and_stop(loss, target)[1], "one thing came back, and two are wanted",
         "The mean, and whether to stop."),
        (lambda loss, target: _mean_and_stop(loss, target)[::-1], "the two are swapped", "The mean first."),
        (waiting(_crosswise), "rank 0 is in one call, the others are in the other",
         "Both calls stand where every rank passes, in one order. What is for rank 0 alone is the comparison."),
        (_mean_on_rank_0, "only rank 0 has the mean", "Which call leaves the sum on every rank?"),
        (waiting(_only_rank_0), "rank 0 waits for ranks that never come", "A collective does not stand under an `if`."),
    ],
    hints={words: "Rank 0 alone has a target, elsewhere it is `None`: it compares, and tells the others."
           for words in ("not supported between", "dtype of NoneType", "number, not 'NoneType'")},
    otherwise="Both calls stand where every rank passes; the comparison is for rank 0 alone.",
)  # fmt: skip


def _two_sums(rank: int, size: int) -> tuple[dict[str, torch.Tensor]]:
    loss, images = torch.tensor([[10.0], [80.0]][rank % 2]), torch.tensor([[20.0], [10.0]][rank % 2])
    return ({"loss": loss, "images": images} if rank % 2 == 0 else {"images": images, "loss": loss},)


def _loss_per_image(sums: Any, names: Any = ("loss", "images"), whole: bool = True) -> Any:
    both = torch.cat([sums[name] for name in names])
    if whole:
        dist.all_reduce(both)
    return both[0] / both[1]


def _by_value(sums: Any) -> Any:
    return _loss_per_image(sums, sorted(sums, key=lambda name: -sums[name].item()))


def _of_ratios(sums: Any, divide: bool = True) -> Any:
    ratio = sums["loss"] / sums["images"]
    dist.all_reduce(ratio)
    return ratio / dist.get_world_size() if divide else ratio


def _crossed(sums: Any) -> Any:
    for it in sums.values():
        dist.all_reduce(it)
    return sums["loss"] / sums["images"]


def _on_rank_0(sums: Any) -> Any:
    both = torch.cat([sums["loss"], sums["images"]])
    dist.reduce(both, 0)
    return both[0] / both[1]


def _loss_only(sums: Any) -> Any:
    dist.all_reduce(sums["loss"])
    return sums["loss"] / sums["images"]


def _images_only(sums: Any) -> Any:
    dist.all_reduce(sums["images"])
    return sums["loss"] / sums["images"]


def _not_divided(sums: Any, as_tensor: bool) -> Any:
    both = torch.cat([sums["loss"], sums["images"]])
    dist.all_reduce(both)
    return both if as_tensor else {name: both[["loss", "images"].index(name)] for name in sums}


IN_ONE = "Put both into one tensor, the loss first on every rank, whatever the order of the dictionary."

turn(
    "6.1.c",
    "Two sums that cannot cross",
    _loss_per_image,
    _two_sums,
    ranks=(2, 4),
    device="cpu",
    look=lambda returned, *_: [] if returned is None else returned,
    heads=("loss per image",),
    mistakes=[
        (_crossed, "the sums have crossed: a loss was added to a number of images", IN_ONE),
        (lambda sums: _loss_per_image(sums, list(sums)), "the tensor has the order of the dictionary", IN_ONE),
        (_by_value, "the larger of the two is taken for the loss", "Which is which, the names say: `sums[\"loss\"]`."),
        (_of_ratios, "that is the mean of the ranks' means, and one rank has more images",
         "First the two sums over all ranks, then the division."),
        (partial(_of_ratios, divide=False), "that is a sum of the ranks' means",
         "First the two sums over all ranks, then the division."),
        (partial(_loss_per_image, whole=False), "each rank divides its own sums",
         "Add up over the ranks first, and divide what `all_reduce` has filled."),
        (partial(_loss_per_image, names=("images", "loss")), "those are images per loss", "Loss divided by images."),
        (lambda sums: _loss_per_image(sums) and None, "nothing came back", "Is there a `return`, for every rank?"),
        (lambda sums: _loss_per_image(sums) if not dist.get_rank() else _loss_per_image(sums) and None,
         "only rank 0 returns something", "Every rank returns it."),
        (lambda sums: _loss_per_image(sums) / dist.get_world_size(),
         "that is divided by the number of ranks, too: all of it, or the loss alone",
         "Both sums over all ranks, and then one division: by the images."),
        (lambda sums: _loss_per_image(sums) * dist.get_world_size(),
         "the images alone are divided by the number of ranks, or all of it is multiplied by that",
         "Both sums over all ranks, and then one division: by the images."),
        (_images_only, "the images are of all ranks, and the loss is each rank's own",
         "Both sums over all ranks, and then the division."),
        (_loss_only, "the loss is of all ranks, and the images are each rank's own",
         "Both sums over all ranks, and then the division."),
        *((partial(_not_divided, as_tensor=it), "the two sums came back", "One number is wanted: divide.")
          for it in (False, True)),
        (_on_rank_0, "only rank 0 has the sums", "Which call leaves them on every rank?"),
        (waiting(lambda sums: _loss_per_image(sums) if dist.get_rank() == 0 else sums["loss"] / sums["images"]),
         "rank 0 waits for the others", "Every rank makes the call."),
    ],
    otherwise=IN_ONE,
)  # fmt: skip
