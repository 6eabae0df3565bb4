"""Checks of lesson 4.7, Uneven shares, workers and streams."""

import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import needs_function, on_ranks
from ddplab.checks.turns import turn, waiting
from ddplab.hardware import device


@exercise("4.7.1", "Stop together")
def stop_together(together: Callable[..., Any]) -> None:
    """`together(batches)` must yield, on every rank, as many batches as the rank with the fewest has."""
    needs_function("together", together)
    for sizes, form in (((3, 2), iter), ((1, 3), list), ((0, 2), iter)):
        where = f"with {sizes[0]} and {sizes[1]} batches on the ranks"
        waiting = "All ranks ask equally often, before each batch: a rank without one says so, and then all end."
        ranks = on_ranks(_steps_in_rank, together, sizes, form, size=2, hints=TOGETHER_HINTS, waiting=waiting)
        fewest = min(sizes)
        for rank, (batches, _) in enumerate(ranks):
            wanted = [f"batch {n} of rank {rank}" for n in range(fewest)]
            if batches == wanted:
                continue
            if len(set(batches)) < len(batches):
                hint = "`iter(batches)` begins at the first one: call it once, before the loop."
                raise NotYet(f"{where}, rank {rank} gets a batch again: {batches}", hint)
            if batches == wanted[:-1]:
                hint = "Ask about the batch that you are about to yield, not about the one after it."
                raise NotYet(f"{where}, the last step that both could make is left out", hint)
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


def _steps_in_rank(together: Callable[..., Any], sizes: tuple[int, ...], form: Any) -> tuple[list[Any], int]:
    """The batches that `together` yields, and how many it had read of a stream when it yielded the first."""
    rank, read, got, read_at_first = dist.get_rank(), [], [], 0

    def batches() -> Iterator[torch.Tensor]:
        for n in range(sizes[rank]):
            read.append(n)
            yield torch.tensor([n, rank])

    given = form(batches())
    if form is list:
        read.clear()  # that was us
    for batch in together(given):
        read_at_first = read_at_first or len(read)
        everyone = torch.ones((), device=device())
        dist.all_reduce(everyone)  # what DDP's backward would do
        if everyone.item() != dist.get_world_size():
            raise RuntimeError("a collective of `together` met one of the training step")
        is_ours = isinstance(batch, torch.Tensor) and batch.shape == (2,)
        got.append("batch {} of rank {}".format(*batch.tolist()) if is_ours else repr(batch))
        if len(got) > max(sizes):
            break  # it may never end
    return got, read_at_first


ASK_BEFORE_EACH = (
    "A message of `together` met one of the training step. All ranks have to ask before every batch, also those that "
    "still have many, and with a tensor of the same shape and type."
)
TOGETHER_HINTS = {
    "has no len()": "`batches` may be a stream: nobody knows how many there are before they end.",
    "Boolean value of Tensor": "A batch may be a tensor, which is neither true nor false: `batch is None`.",
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
    model.seen, model.joins, hook = [], 0, model.join_hook

    def joined(*given: Any, **named: Any) -> Any:
        model.joins += 1
        return hook(*given, **named)

    model.join_hook = joined  # `Join` asks for it, once
    model.module.register_forward_pre_hook(lambda net, _: model.seen.append(f"{net.weight.item():g}"))
    batches = [torch.full((2, 1), 0.5, device=device()) for _ in range(3 - rank)]  # a mean of two is not their sum
    return model, torch.optim.SGD(model.parameters(), lr=1.0), batches


def _weights(_: Any, model: Any, *rest: Any) -> list[str]:
    last = model.module.weight.item()
    said = f"{last:g}" + f", {model.joins} times `Join`" * (model.joins > 1)
    return [" ".join(model.seen) or "none", "below -2" if last in (-2.5, -3) else said]  # a mean over two, or one


def _train_all(model: Any, optimizer: Any, batches: Any, join: bool = True, zero: bool = True, step: bool = True,
               inside: bool = False, reduce: Any = torch.sum) -> None:  # fmt: skip
    def each() -> None:
        for batch in batches:
            if zero:
                optimizer.zero_grad()
            reduce((model.module if inside else model)(batch)).backward()
            if step:
                optimizer.step()

    if not join:
        return each()
    with Join([model]):
        each()


def _as_many_steps(model: Any, optimizer: Any, batches: Any, weight: float) -> None:
    for number in range(3):
        optimizer.zero_grad()
        (model(batches[number % len(batches)]).sum() * (weight if number >= len(batches) else 1)).backward()
        optimizer.step()


def _one_step(model: Any, optimizer: Any, batches: Any, joined: bool = True) -> None:
    with Join([model]):
        for batch in batches:
            optimizer.zero_grad()
            model(batch).sum().backward()
        if joined:
            optimizer.step()
    if not joined:
        optimizer.step()


def _join_each(model: Any, optimizer: Any, batches: Any) -> None:
    for batch in batches:
        _train_all(model, optimizer, [batch])


IN_DDP = "Call `model`, not what is inside of it, and without `no_sync()`."
ONE_STEP = "there is one step, after all batches"
LIKE_DDP = (
    "`Join` goes around the whole loop: in it one `backward()` for each forward pass, and no message of yours, for a "
    "shadow answers DDP's only."
)
TOO_MANY, SHADOW = "rank 1 makes a third step, for which it has no batch", "`Join` lets a shadow stand in for it."

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
        (partial(_train_all, step=False), "the weight never moves",
         "`optimizer.step()` for each batch, with its gradient still there: `zero_grad()` stands before `backward()`."),
        (partial(_train_all, reduce=torch.mean), "each step is half as long as it should be",
         "The loss is the sum of what the model puts out: no mean over a batch's rows, and nothing divided."),
        (partial(_train_all, inside=True), "nothing is averaged: the ranks' weights differ", IN_DDP),
        (partial(_train_all, inside=True, join=False), "nothing is averaged: the ranks' weights differ",
         IN_DDP),
        (partial(_as_many_steps, weight=1), TOO_MANY, SHADOW),
        (partial(_as_many_steps, weight=0), TOO_MANY, SHADOW),
        (_one_step, ONE_STEP, "`optimizer.step()` for each batch."),
        (partial(_one_step, joined=False), ONE_STEP, "`optimizer.step()` for each batch, inside of `Join`."),
        (waiting(partial(_train_all, join=False)), "rank 0 waits in its third backward: rank 1 is through, and shadows "
         "nobody", "The loop stands inside of `with Join([model]):`."),
        (waiting(_join_each), "`Join` begins and ends with each batch: rank 1 is through after its second, and shadows "
         "nobody", "Once, around the whole loop: first `with Join([model]):`, in it the `for`."),
    ],
    hints={
        "'NoneType' object is not iterable": "`Join` gives nothing to go through: the loop is over `batches`.",
        "not iterable": "`Join` takes a list: `Join([model])`.",
        "has no len()": "`Join` takes a list: `Join([model])`.",
        "Joinable": "`Join` takes a list of models in DDP: `Join([model])`.",
        "different collectives": LIKE_DDP,
        "scalar outputs": "The loss is one number, the sum of what the model puts out.",
        "exhausted": "That option makes `Join` raise where it would shadow: leave it out.",
        "'join_hook'": "`Join` takes models in DDP: `Join([model])`.",
        "_broadcast_coalesced": LIKE_DDP,
    },
    otherwise="`with Join([model]):` goes around the whole loop, once; what makes a step is done for each batch.",
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
    """How many this rank serves, of as many as come out even; and what is amiss with those, or else with one more."""
    shares = []
    for stream.size in (size, size + 1):
        shares.append([int(it) for it in DataLoader(stream, batch_size=None, num_workers=2)])
        if astray := set(shares[-1]) - set(range(stream.size)):
            raise IndexError(f"a stream of {stream.size} samples, from 0 on, has no sample {max(astray)}")
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, shares[-1])
        times = Counter(sample for share in everyone for sample in share)
        twice = sum(times[sample] > 1 for sample in set(shares[-1]))
        missed = sum(not times[it] for it in range(stream.size))
        if any(times[it] != 1 for it in range(stream.size)):
            break
    else:
        stream.size = LONG
        peaks = [*DataLoader(_Weighed(stream), batch_size=None, num_workers=2)]
        return [len(shares[0]), twice, missed, *["all in memory"] * (max(peaks) > 20 * LONG)]  # a list: 40 for each
    return [len(shares[0]), twice, missed]


LONG = 50_000


class _Weighed(IterableDataset):
    """How many bytes a worker of a stream has held when it serves its first sample."""

    def __init__(self, stream: Any) -> None:
        vars(self).update(vars(stream), stream=stream)  # `get_worker_info().dataset` has its `size`, too

    def __iter__(self) -> Iterator[int]:
        tracemalloc.start()
        try:
            next(iter(self.stream), None)
            yield tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


class _Blocks(_Fair):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = self.part(self.rank, self.ranks, info.id, info.num_workers)
        return iter(range(first * (self.size // step), (first + 1) * (self.size // step)))


class _Padded(_Fair):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        start, step = self.part(self.rank, self.ranks, info.id, info.num_workers)
        return iter([number % self.size for number in range(start, -(-self.size // step) * step, step)])


class _UpTo(_Fair):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return islice(range(self.size), *self.part(self.rank, self.ranks, info.id, info.num_workers))


class _Listed(_Fair):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        start, step = self.part(self.rank, self.ranks, info.id, info.num_workers)
        return iter(list(range(self.size))[start::step])


class _BlocksUp(_Fair):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = self.part(self.rank, self.ranks, info.id, info.num_workers)
        each = self.size // step + 1
        return iter(range(first * each, min((first + 1) * each, self.size)))


COUNT = "Count the workers of all ranks in one go: which number has worker 0 of rank 1, and how many are there?"

turn(
    "4.7.b",
    "A fair stream",
    _Fair,
    lambda rank, size: (4 * size, rank, size),
    ranks=(2, 3),
    look=_served,
    heads=("served", "repeated", "missing"),
    mistakes=[
        (_shared(lambda rank, ranks, worker, workers: (0, 1)), "every worker serves everything", COUNT),
        (_shared(lambda rank, ranks, worker, workers: (worker, workers)), "each rank serves everything",
         "A worker's number counts within its rank. " + COUNT),
        (_shared(lambda rank, ranks, worker, workers: (rank, ranks)), "both workers of a rank serve the same",
         "A rank has two workers. " + COUNT),
        (_shared(lambda rank, ranks, worker, workers: (rank + worker, ranks * workers)),
         "two workers have the same number", "With two workers each, rank 1's are number 2 and 3."),
        (_shared(lambda rank, ranks, worker, workers: (rank * workers + worker, ranks * workers + 1)),
         "a sample is served to nobody",
         "From sample 0 up to the last, in steps that are as long as there are workers, on all ranks."),
        (_shared(lambda rank, ranks, worker, workers: (rank * workers + worker, 4)),
         "right on two ranks only, where there are four workers", "How many workers are there, on all ranks?"),
        (_shared(lambda rank, ranks, worker, workers: (worker * workers + rank, ranks * workers)),
         "right on two ranks only: counted as if there were as many ranks as a rank has workers",
         "`worker.id` times the ranks, or `self.rank` times the workers of a rank: not the other way round."),
        (_shared(lambda rank, ranks, worker, workers: (rank * ranks + worker, ranks * workers)),
         "right on two ranks only: counted as if a rank had as many workers as there are ranks",
         "Each rank before yours has `worker.num_workers` workers."),
        (_shared(lambda rank, ranks, worker, workers: (rank * workers + worker, ranks + workers)),
         "right on two ranks only: the steps are ranks and workers, added up",
         "How many workers are there, on all ranks?"),
        (_shared(lambda rank, ranks, worker, workers: (rank + ranks * worker, ranks)),
         "the steps are too short", "How many workers are there, on all ranks?"),
        (_shared(lambda rank, ranks, worker, workers: (rank * workers + worker, workers)),
         "the steps are too short", "How many workers are there, on all ranks?"),
        (_Padded, "some samples are served again, so that the shares come out even",
         "Each sample once: one worker may have one more than another."),
        (_Listed, "each worker reads the whole stream into memory before it serves a sample",
         "A stream may be longer than that, and never end: `islice` and `yield` hold one sample at a time."),
        (_UpTo, "not every so-many-th, but all up to there", "`islice(samples, start, None, step)`"),
        (_BlocksUp, "each sample is served once, but the first ranks serve more than the last",
         "Where all comes out even, `size // n` is a share, and one more is too many. Who serves a rest?"),
        (_Blocks, "what does not come out even is served to nobody", "With one sample more, who serves it?"),
    ],
    otherwise=COUNT,
    hints={
        "'WorkerInfo' object": "A worker's number is its `.id`; how many its rank has, `.num_workers` says.",
        "non-iterator": "`return` an iterator, as `islice(…)` or `iter(…)` is one, or `yield` samples.",
        "NoneType": "`return` an iterator, or `yield` samples.",
    },
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


def _by_rank(worker: int) -> None:
    np.random.seed(dist.get_rank())


def _by_base_and_rank(worker: int) -> None:
    np.random.seed((torch.initial_seed() + dist.get_rank()) % 2**32)


def _by_rank_and_worker(worker: int) -> None:
    np.random.seed(dist.get_rank() + worker)


def _noise_seen(loader: Any, _: Any) -> list[Any]:
    seed = torch.initial_seed()
    if not isinstance(loader, DataLoader):
        raise TypeError(f"loader_of returned {type(loader).__name__}, not a DataLoader")
    epochs = [[int(it) for batch in loader for it in torch.as_tensor(batch).flatten()] for _ in range(2)]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, epochs)
    others = [it for rank, theirs in enumerate(everyone) if rank != dist.get_rank() for epoch in theirs for it in epoch]
    elsewhere = sum(it in others for epoch in epochs for it in epoch)
    if elsewhere and (loader.generator or loader.worker_init_fn):
        elsewhere = f"{elsewhere}, {'by a generator' if loader.generator else 'by a worker_init_fn'}"
    return [loader.num_workers, elsewhere, len(set(epochs[0]) & set(epochs[1])), seed]


ALIKE, BY_RANK = (
    "the loaders' own generators are alike",
    "`.manual_seed(…)` takes a number that differs from rank to rank.",
)
OWN = "The base seed is drawn from the loader's generator: `DataLoader(…, generator=…)`. Seed one by the rank."

turn(
    "4.7.c",
    "Noise of its own for each rank",
    _loader_of,
    lambda rank, size: (_Noise(),),
    ranks=(2, 3),
    look=_noise_seen,
    heads=("workers", "also on other ranks", "also in the other epoch", "seed of the rank"),
    mistakes=[
        (_plain, "the ranks draw the same numbers", OWN),
        (lambda dataset: DataLoader(dataset, num_workers=2, sampler=DistributedSampler(dataset)),
         "the ranks draw the same numbers, for fewer samples each", "Sharing out samples shares out no dice. " + OWN),
        (partial(_loader_of, by=lambda rank: 0), ALIKE, BY_RANK),
        (partial(_loader_of, by=lambda rank: rank // 2), ALIKE, BY_RANK),
        (partial(_plain, init=np.random.seed), "the ranks draw the same numbers, and draw them again in each epoch",
         "A worker's number seeds nothing: torch has seeded the worker. " + OWN),
        (partial(_plain, init=_by_number), "each epoch repeats the first",
         "The base seed is a new one for each epoch. A `worker_init_fn` that seeds by number undoes that."),
        (partial(_plain, init=_by_rank), "each epoch repeats the first, and a rank's workers each other",
         "The base seed is a new one for each epoch. A `worker_init_fn` that seeds by number undoes that."),
        (partial(_plain, init=_by_base_and_rank), "numbers come up on another rank",
         "Do you add the rank where torch has added the worker's number? 0 + 1 is 1 + 0. " + OWN),
        (partial(_plain, init=_by_rank_and_worker), "each epoch repeats the first, and two workers each other",
         "0 + 1 is 1 + 0, and a number is the same in each epoch. " + OWN),
        (_seeds_the_rank, "the rank itself is seeded anew, and with it its model", OWN),
        (partial(_plain, init=lambda worker: torch.manual_seed(dist.get_rank())),
         "with this `worker_init_fn`, too, the ranks draw the same numbers", "The noise is numpy's. " + OWN),
        (lambda dataset: DataLoader(dataset, num_workers=1, generator=torch.Generator().manual_seed(dist.get_rank())),
         "that is one worker", "`num_workers=2`"),
        (lambda dataset: DataLoader(dataset, generator=torch.Generator().manual_seed(dist.get_rank())),
         "there are no workers", "`num_workers=2`"),
    ],
    hints={
        "not a DataLoader": "`return` the loader.",
        "between 0 and 2**32": "A numpy seed is shorter than torch's: `% 2**32`. A generator does without it.",
        "Cannot access accelerator": "A generator is made first, and then seeded: `torch.Generator().manual_seed(…)`.",
        "Generator' object is not callable": "The loader takes the generator as `generator=…`.",
        "random_()": "The loader takes a `torch.Generator`, here one that is seeded by the rank.",
    },
    otherwise="Two workers, and a generator of the rank's own, from which the loader draws a base seed for each epoch.",
)  # fmt: skip
