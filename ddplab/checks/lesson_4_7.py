"""Checks of lesson 4.7, Uneven shares, workers and streams."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import needs_function, on_ranks
from ddplab.checks.turns import turn
from ddplab.hardware import device


@exercise("4.7.1", "A fair stream")
def fair_stream(my_part: Callable[..., Any]) -> None:
    """`my_part(stream, rank, ranks)`, called in each worker of 2 ranks, must serve each of 12 samples once."""
    needs_function("my_part", my_part)
    by_workers = on_ranks(_serve_in_rank, my_part, (0, 1, 2), size=2, hints=STREAM_HINTS)
    for which, workers in enumerate((0, 1, 2)):
        where = f"on 2 ranks with {workers or 'no'} worker{'s' * (workers != 1)} each"
        served = [rank[which] for rank in by_workers]
        times = Counter(sample for share in served for sample in share)
        if not times:
            hint = "`my_part` gives samples: `yield` them, or `return` something that can be iterated."
            raise NotYet(f"{where}, nobody is served anything", hint)
        if times[READ_TO_ITS_END]:
            hint = "A stream may never end, or not fit into memory: no `list(stream)`. Give each sample as it comes."
            raise NotYet(f"{where}, the whole stream is read before the first sample is given", hint)
        if strange := [sample for sample in times if sample not in range(12)]:
            raise NotYet(f"{where}, a sample is {strange[0]!r}", "Give the samples of `stream` themselves.")
        most, never = max(times.values()), [sample for sample in range(12) if not times[sample]]
        if most == 1 and not never:
            if len({len(share) for share in served}) > 1:
                shares = " and ".join(str(len(share)) for share in served)
                raise NotYet(f"{where}, the ranks get {shares} of 12 samples", "The same number for each worker.")
            continue
        if most > 1 and all(max(Counter(share).values(), default=1) == 1 for share in served):
            raise NotYet(
                f"{where}, both ranks serve sample {next(s for s in range(12) if times[s] > 1)}"
                + (f", and nobody serves {never[0]}" if never else ""),
                "A worker's number counts within its rank. Count the workers of all ranks through.",
            )
        if most > 1:
            raise NotYet(
                f"{where}, one rank serves sample {next(s for s in range(12) if times[s] > 1)} more than once"
                + (f", and nobody serves {never[0]}" if never else ""),
                "Each worker gets the whole stream. Which worker is this, of how many? `get_worker_info()`.",
            )
        hint = "With w workers on each of n ranks there are n * w of them: each takes every (n * w)-th sample."
        raise NotYet(f"{where}, nobody serves sample {never[0]}", hint)


READ_TO_ITS_END = "served in place of a sample"


def _serve_in_rank(my_part: Callable[..., Any], workers: Iterable[int]) -> list[list[Any]]:
    class Stream(IterableDataset):
        def __init__(self) -> None:
            self.place = dist.get_rank(), dist.get_world_size()

        def __iter__(self) -> Iterator[Any]:
            ended = []

            def samples() -> Iterator[int]:  # a generator: no len(), no indices
                yield from range(12)
                ended.append(True)

            part = my_part(samples(), *self.place)
            for number, sample in enumerate(() if part is None else part):
                if number == 0 and ended:
                    yield READ_TO_ITS_END
                yield sample

    return [list(DataLoader(Stream(), batch_size=None, num_workers=number)) for number in workers]


STREAM_HINTS = {
    "'NoneType' object has no attribute": "Without workers `get_worker_info()` is None: then the rank is the only one.",
    "has no len()": "A stream has no length. `itertools.islice` does without.",
    "not subscriptable": "A stream has no indices. `itertools.islice` takes every n-th all the same.",
}


@exercise("4.7.2", "Noise that never repeats")
def fresh_noise(make_loader: Callable[..., Any]) -> None:
    """`make_loader(dataset, seed)` on 2 ranks: other noise in every worker and epoch, and the same on a second run."""
    needs_function("make_loader", make_loader)
    runs = on_ranks(_noise_in_rank, make_loader, size=2, hints=LOADER_HINTS)
    for rank, seen in enumerate(runs):
        if seen["workers"] != 2:
            raise NotYet(f"the loader of rank {rank} has {seen['workers']} workers", "`num_workers=2`.")
        if any(len(epoch) != 4 for epoch in seen["first"]):
            hint = "The whole data set on each rank; here only the noise matters."
            raise NotYet(f"rank {rank} gets {len(seen['first'][0])} samples in an epoch and not 4", hint)
    first = [seen["first"] for seen in runs]
    if first[0][0][0::2] == first[0][0][1::2]:
        raise NotYet("both workers of rank 0 draw the same numbers", "A worker's seed has to depend on the worker.")
    if any(epochs[0] == epochs[1] for epochs in first):
        hint = "Torch's base seed is a new one for each epoch; a `worker_init_fn` that seeds by number undoes that."
        raise NotYet("epoch 1 repeats the numbers of epoch 0", hint)
    if set().union(*first[0]) & set().union(*first[1]):
        hint = "The base seed comes from the loader's generator. Each rank needs one with a seed of its own."
        raise NotYet("rank 0 and rank 1 draw the same numbers", hint)
    if [seen["again"] for seen in runs] != first:
        hint = "Then no run can be repeated. Make the generator's seed out of `seed` and the rank."
        raise NotYet("a second run with the same seed draws other numbers", hint)
    others = [seen["other"] for seen in runs]
    if others == first:
        raise NotYet("seed 1 gives the same numbers as seed 0", "The generator's seed has to depend on `seed` too.")
    for rank, epochs in enumerate(first):
        for other, others_epochs in enumerate(others):
            if set().union(*epochs) & set().union(*others_epochs):
                hint = "0 + 1 is 1 + 0. Keep more room between seeds: how many ranks might there be?"
                what = f"rank {rank} of the run with seed 0 draws numbers of rank {other} of the run with seed 1"
                raise NotYet(what, hint)


def _noise_in_rank(make_loader: Callable[..., Any]) -> dict[str, Any]:
    class Noise(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return np.random.randint(2**31)

    def two_epochs(seed: int) -> tuple[list[list[int]], int]:
        torch.manual_seed(seed)  # as a script does, so that all ranks make the same model
        loader = make_loader(Noise(), seed)
        if not isinstance(loader, DataLoader):
            raise TypeError(f"make_loader returned {type(loader).__name__}, not a DataLoader")
        return [[int(number) for batch in loader for number in torch.as_tensor(batch).flatten()] for _ in range(2)], (
            loader.num_workers
        )

    first, workers = two_epochs(0)
    return {"workers": workers, "first": first, "again": two_epochs(0)[0], "other": two_epochs(1)[0]}


LOADER_HINTS = {
    "make_loader returned NoneType": "`return` the loader.",
    "make_loader returned": "Return the loader itself.",
}


@exercise("4.7.3", "Stop together")
def stop_together(together: Callable[..., Any]) -> None:
    """`together(batches)` must yield, on every rank, as many batches as the rank with the fewest has."""
    needs_function("together", together)
    for sizes in ((3, 2), (1, 3), (0, 2)):
        where = f"with {sizes[0]} and {sizes[1]} batches on the ranks"
        ranks = on_ranks(_steps_in_rank, together, sizes, size=2, hints=TOGETHER_HINTS, timeout=3)
        fewest = min(sizes)
        for rank, (batches, _) in enumerate(ranks):
            wanted = [f"batch {n} of rank {rank}" for n in range(fewest)]
            if batches == wanted:
                continue
            if len(batches) != fewest:
                raise NotYet(
                    f"{where}, rank {rank} makes {len(batches)} step{'s' * (len(batches) != 1)} and not {fewest}",
                    "Before each batch: has every rank one? `dist.ReduceOp.MIN` of a 1 or 0 tells all of them.",
                )
            raise NotYet(f"{where}, rank {rank} gets {batches}", "Its own batches, in order, each of them once.")
        for rank, (_, read) in enumerate(ranks):
            if read > 2:  # the batch itself, and perhaps the one after it
                hint = "A stream may never end, or not fit into memory. Ask before each batch, and read it then."
                raise NotYet(f"{where}, rank {rank} has read {read} batches before its first step", hint)


def _steps_in_rank(together: Callable[..., Any], sizes: tuple[int, ...]) -> tuple[list[Any], int]:
    """The batches that `together` yields, and how many it had read when it yielded the first."""
    rank, read, got, read_at_first = dist.get_rank(), [], [], 0

    def batches() -> Iterator[str]:
        for n in range(sizes[rank]):
            read.append(n)
            yield f"batch {n} of rank {rank}"

    for batch in together(batches()):
        read_at_first = read_at_first or len(read)
        everyone = torch.ones((), device=device())
        dist.all_reduce(everyone)  # what DDP's backward would do
        if everyone.item() != dist.get_world_size():
            raise RuntimeError("a collective of `together` met one of the training step")
        got.append(batch)
    return got, read_at_first


ASK_BEFORE_EACH = (
    "A message of `together` met one of the training step. All ranks have to ask before every batch, also those that "
    "still have many, and with a tensor of the same shape and type."
)
TOGETHER_HINTS = {
    "has no len()": "`batches` may be a stream: nobody knows how many there are before they end.",
    "not an iterator": "`iter(batches)` makes one.",
    "generator raised StopIteration": "`next(batches, None)` gives None at the end instead of raising.",
    "'NoneType' object is not iterable": "`together` is to yield batches. Is there a `yield`?",
    "met one of the training step": ASK_BEFORE_EACH,
    "SIGABRT": ASK_BEFORE_EACH,  # how gloo ends a rank whose message is met by one of another size
    "Connection closed by peer": ASK_BEFORE_EACH,  # what the other rank hears then
}


# ------------------------------------------------------------------ your turn


def _three_and_two(rank: int, size: int) -> tuple[Any, Any, list[Any]]:
    model = DDP(torch.nn.Linear(1, 1, bias=False).to(device()))
    model.module.weight.data.zero_()
    model.seen = []
    model.module.register_forward_pre_hook(lambda net, _: model.seen.append(f"{net.weight.item():g}"))
    batches = [torch.ones(1, 1, device=device()) for _ in range(3 - rank)]
    return model, torch.optim.SGD(model.parameters(), lr=1.0), batches


def _weights(_: Any, model: Any, *rest: Any) -> list[str]:
    last = model.module.weight.item()
    return [" ".join(model.seen) or "none", "-2.5 or -3" if last in (-2.5, -3) else f"{last:g}"]


def _train_all(model: Any, optimizer: Any, batches: Any, join: bool = True, zero: bool = True, step: bool = True,
               inside: bool = False) -> None:  # fmt: skip
    def each() -> None:
        for batch in batches:
            if zero:
                optimizer.zero_grad()
            (model.module if inside else model)(batch).sum().backward()
            if step:
                optimizer.step()

    if not join:
        return each()
    with Join([model]):
        each()


turn(
    "4.7.a",
    "All batches, and no hang",
    _train_all,
    _three_and_two,
    ranks=(2,),
    look=_weights,
    heads=("weight at each step", "at last"),
    mistakes=[
        (lambda model, optimizer, batches: _train_all(model, optimizer, batches[:2]),
         "rank 0's third batch is not used", "All batches: `Join` is for the rank that has fewer."),
        (partial(_train_all, zero=False), "the gradients of older steps add up", "`zero_grad()` in each step."),
        (partial(_train_all, step=False), "the weight never moves", "`optimizer.step()` in each step."),
        (partial(_train_all, inside=True), "nothing is averaged: the ranks' weights differ", "Call `model`, in DDP."),
        (partial(_train_all, inside=True, join=False), "nothing is averaged: the ranks' weights differ",
         "Call `model`, in DDP."),
        (partial(_train_all, join=False), "rank 0 waits in its third backward: rank 1 is through, and shadows nobody",
         "The loop stands inside of `with Join([model]):`."),
    ],
    hints={
        "not iterable": "`Join` takes a list: `Join([model])`.",
        "Joinable": "`Join` takes a list of models in DDP: `Join([model])`.",
    },
    otherwise="`with Join([model]):` goes around the whole loop, once.",
)  # fmt: skip


class _Noise(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return np.random.randint(2**31)


def _loader_of(dataset: Any, by: Any = lambda rank: rank, **options: Any) -> Any:
    own = torch.Generator().manual_seed(by(dist.get_rank()))
    return DataLoader(dataset, num_workers=2, generator=own, **options)


def _plain(dataset: Any, init: Any = None) -> Any:
    return DataLoader(dataset, num_workers=2, worker_init_fn=init)


def _seeds_the_rank(dataset: Any) -> Any:
    torch.manual_seed(dist.get_rank())
    return _plain(dataset)


def _by_number(worker: int) -> None:
    np.random.seed(100 * dist.get_rank() + worker)


def _noise_seen(loader: Any, _: Any) -> list[Any]:
    seed = torch.initial_seed()
    if not isinstance(loader, DataLoader):
        raise TypeError(f"loader_of returned {type(loader).__name__}, not a DataLoader")
    epochs = [[int(it) for batch in loader for it in torch.as_tensor(batch).flatten()] for _ in range(2)]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, epochs)
    others = [it for rank, theirs in enumerate(everyone) if rank != dist.get_rank() for epoch in theirs for it in epoch]
    elsewhere = sum(it in others for epoch in epochs for it in epoch)
    return [loader.num_workers, elsewhere, len(set(epochs[0]) & set(epochs[1])), seed]


OWN = "The base seed is drawn from the loader's generator: `DataLoader(…, generator=…)`. Seed one by the rank."

turn(
    "4.7.b",
    "Noise of its own for each rank",
    _loader_of,
    lambda rank, size: (_Noise(),),
    ranks=(2, 3),
    look=_noise_seen,
    heads=("workers", "on other ranks", "in both epochs", "seed"),
    mistakes=[
        (_plain, "the ranks draw the same numbers", OWN),
        (partial(_loader_of, by=lambda rank: 0), "the ranks draw the same numbers", OWN),
        (partial(_loader_of, by=lambda rank: rank // 2), "the ranks draw the same numbers", OWN),
        (partial(_plain, init=np.random.seed), "the ranks draw the same numbers, and draw them again in each epoch",
         "A worker's number seeds nothing: torch has seeded the worker. " + OWN),
        (partial(_plain, init=_by_number), "each epoch repeats the first",
         "The base seed is a new one for each epoch. A `worker_init_fn` that seeds by number undoes that."),
        (_seeds_the_rank, "the rank itself is seeded anew, and with it its model", OWN),
        (lambda dataset: DataLoader(dataset, num_workers=1, generator=torch.Generator().manual_seed(dist.get_rank())),
         "that is one worker", "`num_workers=2`"),
    ],
    hints={"not a DataLoader": "`return` the loader."},
)  # fmt: skip


class _Fair(IterableDataset):
    """A stream; `part` says of rank, ranks, worker and workers where a worker begins, and how far its steps are."""

    def __init__(self, size: int, rank: int = 0, ranks: int = 1) -> None:
        self.size, self.rank, self.ranks = size, rank, ranks

    @staticmethod
    def part(rank: int, ranks: int, worker: int, workers: int) -> tuple[int, int]:
        return rank * workers + worker, ranks * workers

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        start, step = self.part(self.rank, self.ranks, info.id, info.num_workers)
        return islice(range(self.size), start, None, step)


def _shared(part: Callable[[int, int, int, int], tuple[int, int]]) -> type:
    return type("_Otherwise", (_Fair,), {"part": staticmethod(part), "__module__": __name__})


def _served(stream: Any, size: int, *_: Any) -> list[int]:
    mine = [int(it) for it in DataLoader(stream, batch_size=None, num_workers=2)]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    times = Counter(sample for share in everyone for sample in share)
    return [len(mine), sum(times[sample] > 1 for sample in set(mine)), sum(not times[it] for it in range(size))]


COUNT = "Count the workers of all ranks through, 0, 1, 2, …; each takes every so-many-th, from its number on."

turn(
    "4.7.c",
    "A fair stream",
    _Fair,
    lambda rank, size: (4 * size, rank, size),
    ranks=(2, 3),
    look=_served,
    heads=("served", "of them twice or more", "served to nobody"),
    mistakes=[
        (_shared(lambda rank, ranks, worker, workers: (0, 1)), "every worker serves everything", COUNT),
        (_shared(lambda rank, ranks, worker, workers: (worker, workers)), "each rank serves everything",
         "A worker's number counts within its rank. " + COUNT),
        (_shared(lambda rank, ranks, worker, workers: (rank, ranks)), "both workers of a rank serve the same",
         "A rank has two workers. " + COUNT),
        (_shared(lambda rank, ranks, worker, workers: (rank + worker, ranks * workers)),
         "two workers have the same number", "With two workers each, rank 1's are number 2 and 3."),
        (_shared(lambda rank, ranks, worker, workers: (rank * workers + worker, ranks * workers + 1)),
         "the steps are too long", "How many workers are there, on all ranks?"),
        (_shared(lambda rank, ranks, worker, workers: (rank * workers + worker, 4)), "right on two ranks only",
         "How many workers are there, on all ranks?"),
        (_shared(lambda rank, ranks, worker, workers: (worker * workers + rank, ranks * workers)),
         "right on two ranks only", "How many workers are there, on all ranks?"),
    ],
    hints={
        "non-iterator": "`return` an iterator, as `islice(…)` or `iter(…)` is one, or `yield` samples.",
        "NoneType": "`return` an iterator, or `yield` samples.",
    },
)  # fmt: skip
