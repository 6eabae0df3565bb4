"""Checks of lesson 4.6, Sharding the data."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, listed, needs_function, numbers
from ddplab.checks.turns import turn, waiting
from ddplab.hardware import device

# 101 samples on 8 ranks, batches of 4 on each; a model that is right on 81.
numbers(
    "4.6.1",
    "Numbers of a sharded epoch",
    Number("served", 104, "The next multiple of 8.").with_mistakes(
        (101, "that is how many samples there are", "Ranks make equal numbers of steps, and 101 / 8 is not whole."),
        (13, "that is one rank's share", "All eight ranks together."),
        (96, "that is what `drop_last=True` serves", "The sampler pads unless it is told to drop."),
    ),
    Number("left_out", 5, "101 less the last multiple of 8.").with_mistakes(
        (3, "that many are served twice without `drop_last`", "How many lie above the last multiple of 8?"),
        (0, "that is so without `drop_last`", "With it, nobody gets anything twice, and somebody is left out."),
        (1, "that is what one rank alone would leave out of its batches", "The sampler's: 101 samples, 8 ranks."),
    ),
    Number("steps", 4, "A rank has 104 / 8 samples, in batches of 4.").with_mistakes(
        (26, "that many it takes one rank alone", "A rank has 13 samples of its own."),
        (25, "that many full batches one rank alone has", "A rank has 13 samples of its own."),
        (3, "the last batch of the rank is not full, but it is there", "13 = 3 x 4 + 1."),
        (3.25, "a step is a step, also with a batch that is not full", "Round up."),
    ),
    # three digits will do
    Number("lowest", 81 / 104, "81 right, of as many as are served.", within=6e-4).with_mistakes(
        (8100 / 104, "that is in per cent", "A share, between 0 and 1."),
        (81 / 101, "that is the true accuracy", "Which samples might be the padding?"),
        (84 / 104, "that is the highest", "In the worst case the padding hits three that the model reads wrong."),
        (78 / 101, "the padding takes nothing away", "It adds three samples, in the worst case three wrong ones."),
        (78 / 104, "the padding takes nothing away", "In the worst case three wrong ones are added to 101."),
    ),
)


@exercise("4.6.2", "A sampler that goes on where it was")
def goes_on(Rest: Callable[..., Any]) -> None:
    """`Rest(n, rank, ranks)` deals each sample of an epoch once, also what is left of one, to any number of ranks."""
    if isinstance(Rest, Sampler):
        raise NotYet("`Rest` is a sampler, not the class", "The check makes samplers of its own.")
    needs_function("Rest", Rest)
    torch.manual_seed(0)
    first, second = _dealt(Rest, 10, 2, 0), _dealt(Rest, 10, 2, 1)
    _each_once("in epoch 0, 10 samples on 2 ranks", first, set(range(10)))
    _each_once("in epoch 1", second, set(range(10)))
    if first == second:
        raise NotYet("epoch 1 has the order of epoch 0", "The generator's seed can be the epoch.")
    torch.manual_seed(1)
    if _dealt(Rest, 10, 2, 0) != first:
        hint = (
            "After a restart the order must be the same: `torch.randperm(n, generator=…)`, seeded by the epoch alone."
        )
        raise NotYet("the order of epoch 0 is another after `torch.manual_seed(1)`", hint)
    _each_once("in epoch 0, 10 samples on 4 ranks", _dealt(Rest, 10, 4, 0), set(range(10)))
    sampler = Rest(10, 0, 1)
    sampler.set_epoch(0, done=4)
    sampler.set_epoch(1)
    if len(left := list(sampler)) != 10:
        hint = "`done` is of the epoch that is chosen: `set_epoch(1)` says that it is 0."
        raise NotYet(f"after `set_epoch(0, done=4)`, `set_epoch(1)` serves {len(left)} samples of 10", hint)
    before = [sample for share in _dealt(Rest, 23, 4, 3) for sample in share[:2]]  # two steps, then the job is gone
    for ranks in (4, 3, 16):
        where = f"4 ranks have served 2 of 23 samples each; then {ranks} go on with done=8"
        shares = _dealt(Rest, 23, ranks, 3, 8)
        again = sorted({sample for share in shares for sample in share} & set(before))
        if len(again) == 8:
            raise NotYet(f"{where}, and begin anew", "Skip the first `done` of the epoch's order, then deal.")
        if again:
            raise NotYet(f"{where}: {listed(again)} served once more", _why_again(Rest))
        _each_once(where, shares, set(range(23)) - set(before), OF_ALL)


OF_ALL = "`done` counts the samples of all ranks. They went round and round: rank 0, rank 1, rank 2, …"


def _why_again(Rest: Callable[..., Any]) -> str:
    """A hint for somebody who serves samples again: is the epoch's order kept, by what is left and by more ranks?"""
    (whole,), (left,), shares = _dealt(Rest, 23, 1, 3), _dealt(Rest, 23, 1, 3, 8), _dealt(Rest, 23, 4, 3)
    in_turn = [sample for step in zip_longest(*shares) for sample in step if sample is not None]
    if whole not in (in_turn, [sample for share in shares for sample in share]):
        return "Has the epoch one order, whatever the number of ranks?"
    return OF_ALL if left == whole[8:] else "The epoch's order stays as it is; what is left is its end."


def _dealt(Rest: Callable[..., Any], n: int, ranks: int, epoch: int, done: int = 0) -> list[list[int]]:
    """What each rank is served, with the promised lengths looked at."""
    shares = []
    for rank in range(ranks):
        sampler = Rest(n, rank, ranks)
        sampler.set_epoch(epoch, done) if done else sampler.set_epoch(epoch)
        promised, share = len(sampler), [int(sample) for sample in sampler]
        if promised != len(share):
            what = f"on rank {rank} of {ranks}, `len` says {promised}, and {len(share)} samples come"
            raise NotYet(f"{what} (n={n}, done={done})", "It has to count what is left for this rank.")
        again = [int(sample) for sample in sampler]
        if share and not again:
            raise NotYet("iterating a second time gives nothing", "`__iter__` begins anew: it must use nothing up.")
        if share != again:
            raise NotYet("iterating twice gives two orders", "`set_epoch` alone changes the order: seed it anew.")
        shares.append(share)
    return shares


def _each_once(
    where: str, shares: list[list[int]], wanted: set[int], hint: str = "Shares may differ by one: drop nothing."
) -> None:
    times = Counter(sample for share in shares for sample in share)
    if twice := sorted(sample for sample in times if times[sample] > 1):
        same = "The same order on all ranks; then each takes every ranks-th of it. No padding."
        raise NotYet(f"{where}: {listed(twice)} served twice", same)
    if never := sorted(wanted - set(times)):
        raise NotYet(f"{where}: {listed(never)} served to nobody", hint)
    lengths = [len(share) for share in shares]
    if max(lengths) - min(lengths) > 1:
        raise NotYet(
            f"{where}: the ranks get {listed(lengths)}", "Deal the rest in turn; shares differ by one at most."
        )


# ------------------------------------------------------------------ your turn


def _again(order: list[int], n: int) -> list[int]:
    return (order * n)[:n]


def _share(order: Any, rank: int, ranks: int, pad: Any = _again, start: int = 0) -> list[int]:
    padded = list(order) + pad(list(order), -len(order) % ranks)
    return padded[rank + start :: ranks]


def _block(order: Any, rank: int, ranks: int, up: bool = True) -> list[int]:
    each = -(-len(order) // ranks) if up else len(order) // ranks
    return (list(order) * 2)[rank * each : (rank + 1) * each]


def _pads_its_own(order: Any, rank: int, ranks: int) -> list[int]:
    mine = list(order)[rank::ranks]
    return mine + mine[:1] * (len(mine) * ranks < len(order))


def _listed(returned: Any, order: Any, *_: Any) -> Any:
    """What came back, of an iterator what it gives; of nothing the order, which may have been changed."""
    if isinstance(returned, Iterator):
        return list(islice(returned, 100))  # it may never end
    return order if returned is None else returned


ROUND = "The cards go round: rank 0 gets every `ranks`-th, from the first."

turn(
    "4.6.a",
    "Dealt and padded",
    _share,
    {
        f"rank {rank} of {ranks}": partial(lambda rank, ranks: (list(range(10)), rank, ranks), rank, ranks)
        for rank, ranks in ((0, 4), (1, 4), (2, 4), (3, 4), (1, 2), (1, 6))
    }
    | {"rank 2 of 4, shuffled": lambda: ([7, 2, 9, 4, 0, 8, 3, 6, 1, 5], 2, 4)}
    | {"rank 7 of 8, 3 samples": lambda: ([0, 1, 2], 7, 8)},
    look=_listed,
    heads=("samples", "", ""),
    mistakes=[
        (partial(_share, pad=lambda order, n: []), "nothing is padded: some ranks are a card short",
         "Lengthen the order, until `ranks` divides it."),
        (lambda order, rank, ranks: order[: len(order) // ranks * ranks][rank::ranks],
         "dropped, and not padded", "Nobody is left out: add samples, and take none away."),
        (partial(_share, pad=lambda order, n: order[:n]), "right, but for 3 samples on 8 ranks, where 5 are missing",
         "The pack begins again as often as it takes."),
        (partial(_share, pad=lambda order, n: order[-1:] * n), "padded with the last sample",
         "The pack begins again, from its first sample."),
        (partial(_share, pad=lambda order, n: order[len(order) - n :]), "padded with the end of the order",
         "The pack begins again, from its first sample."),
        (_block, "each rank gets a block", ROUND),
        (partial(_block, up=False), "each rank gets a block", ROUND),
        (lambda order, rank, ranks: (order + order[: len(order) % ranks])[rank::ranks],
         "padded with too many, or too few",
         "`len(order) % ranks` is how many there are too many. How many are missing?"),
        (partial(_share, pad=lambda order, n: order[:2]), "two are padded on 2 ranks as well",
         "Ten on two come out even. How many are missing there?"),
        (partial(_share, pad=lambda order, n: order[:1] * n), "padded with the first sample only",
         "The pack begins again: its first sample, its second, and so on."),
        (partial(_share, pad=lambda order, n: order[-n:]), "padded with the end of the order, and where nothing is "
         "missing with all of it", "The pack begins again, from its first sample. (`order[-0:]` is the whole order.)"),
        (partial(_share, pad=lambda order, n: [0] * n), "padded with zeros", "The pack begins again: with the first "
         "of `order`, whatever it is, then its second."),
        (partial(_share, start=1), "one place too far", "Rank 0 begins with the first."),
        (lambda order, rank, ranks: _share(order, 0, ranks), "every rank gets rank 0's", "From place `rank` on."),
        (lambda order, rank, ranks: _share(sorted(order), rank, ranks), "the order it was given is lost",
         "`order` is dealt as it lies, shuffled or not."),
        (partial(_share, pad=lambda order, n: list(range(n))), "padded with numbers of your own",
         "The pack begins again: with the first of `order`, whatever it is."),
        (_pads_its_own, "padded with the rank's own first", "Pad the whole order, and deal then."),
        (lambda order, rank, ranks: _share(order, 0, 1)[rank:ranks], "a slice from `rank` to `ranks`",
         "The step of a slice comes third: `[start:stop:step]`."),
        (partial(_share, pad=lambda order, n: [order[:n]] if n else []), "a list lies in the order",
         "`append` adds one thing. Two lists make a longer one with `+`."),
    ],
    hints={
        "unsupported operand": "A list and a list make a longer list: `order + [...]`.",
        "'NoneType'": "`append` and `extend` change a list, and return nothing. `order + [...]` is a new one.",
    },
    otherwise="The pack begins again where it ends. Then each rank takes every `ranks`-th, from its own number on.",
)  # fmt: skip


def _epochs(data: Any, epochs: int, step: Any, batch: int = 2, by: Any = lambda epoch: epoch, before: bool = True,
            **options: Any) -> None:  # fmt: skip
    sampler = DistributedSampler(data, **options)
    loader = DataLoader(data, batch_size=batch, sampler=sampler)
    for epoch in range(epochs):
        if before:
            sampler.set_epoch(by(epoch))
        for x in loader:
            step(x)


def _without_sampler(data: Any, epochs: int, step: Any, shuffle: bool = True) -> None:
    for _ in range(epochs):
        for x in DataLoader(data, batch_size=2, shuffle=shuffle):
            step(x)


def _shuffled_by_each(data: Any, epochs: int, step: Any) -> None:
    torch.manual_seed(dist.get_rank())
    _without_sampler(data, epochs, step)


def _steps(rank: int, size: int) -> tuple[Any, int, Any]:
    seen: list[list[int]] = []

    def step(x: Any) -> None:
        seen.append(torch.as_tensor(x).flatten().tolist())
        step.bare |= torch.as_tensor(x).dim() == 0

    step.seen, step.bare = seen, False
    return range(8), 2, step


def _what_was_seen(_: Any, data: Any, epochs: int, step: Any) -> list[Any]:
    mine = [sample for batch in step.seen for sample in batch]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    halves = [[part[at * len(part) // 2 : (at + 1) * len(part) // 2] for part in everyone] for at in (0, 1)]
    times = [Counter(sample for part in half for sample in part) for half in halves]
    twice, missed = any(max(it.values(), default=0) > 1 for it in times), any(len(it) < len(data) for it in times)
    amiss = " and ".join(["some twice"] * twice + ["some never"] * missed)
    same = len(everyone) > 1 and all(part == everyone[0] for part in everyone)
    stored = all(part == sorted(part) for half in halves for part in half)
    order = "stored" if stored else "the same" if halves[0] == halves[1] else "new"
    steps = f"{len(step.seen)}, with no batch" if step.bare else len(step.seen)
    return [steps, "the same on all ranks" if same else amiss or "once", order]


def _first_batches(data: Any, epochs: int, step: Any) -> None:
    sampler = DistributedSampler(data)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        step(next(iter(DataLoader(data, batch_size=2, sampler=sampler))))


INTO = "The sampler goes into the loader: `sampler=…`."
TWO_STEPS, LOOPS = "there are two steps: one epoch, or one batch of each", "Two loops, the inner one over the loader."
TOLD = "`sampler.set_epoch(epoch)`, before the loader is iterated."

turn(
    "4.6.b",
    "A new order each epoch",
    _epochs,
    _steps,
    ranks=(2,),
    look=_what_was_seen,
    heads=("steps", "each sample", "order in epoch 1"),
    mistakes=[
        (partial(_epochs, before=False), "both epochs have the same order", TOLD),
        (partial(_epochs, by=lambda epoch: 0), "both epochs have the same order", TOLD),
        (partial(_epochs, shuffle=False), "nothing is shuffled", "The sampler's own `shuffle` is `True` by itself."),
        (_without_sampler, "every rank reads all samples", INTO),
        (partial(_without_sampler, shuffle=False), "every rank reads all samples", INTO),
        (_shuffled_by_each, "every rank reads all samples", INTO),
        (partial(_epochs, num_replicas=2, rank=0), "all ranks read rank 0's share",
         "Leave `rank` out, and the sampler asks the process group."),
        (lambda data, epochs, step: _epochs(data, epochs, lambda x: step(x[1])), "of each batch one sample is used",
         "A batch is one thing: `for x in loader`."),
        (lambda data, epochs, step: _epochs(data, epochs, lambda x: [step(it) for it in x]),
         "each step gets one sample of a batch", "A step is made on a whole batch: `for x in loader: step(x)`."),
        (partial(_epochs, by=lambda epoch: epoch + dist.get_rank()), "the ranks deal from different packs",
         "The epoch is the same number on all ranks, and so is the seed."),
        (partial(_epochs, batch=1), "the batches hold one sample", "`batch_size=2` is the batch of one rank."),
        (partial(_epochs, batch=4), "the batches hold four samples", "`batch_size=2` is the batch of one rank."),
        (lambda data, epochs, step: _epochs(data, 1, step), TWO_STEPS, LOOPS),
        (_first_batches, TWO_STEPS, LOOPS),
    ],
    hints={
        "mutually exclusive": "The sampler shuffles. Leave the loader's `shuffle` out.",
        "has no attribute 'set_epoch'": "It is the sampler that wants to know the epoch.",
        "'DistributedSampler' object": "The loader reads the data: `DataLoader(data, …, sampler=sampler)`.",
        "infer dtype of DataLoader": "`step` takes a batch: go through the loader.",
    },
    otherwise="Tell the sampler the epoch, and give the loader the sampler. Of two loops the inner is over the loader.",
)  # fmt: skip


def _ten_samples(rank: int, size: int) -> tuple[int, Any]:
    asked: list[int] = []

    def is_right(i: int) -> bool:
        asked.append(int(i))
        return int(i) > 1 if size == 4 else int(i) < 8  # there padding counts two that are right once more

    is_right.asked = asked
    return 10, is_right


def _counted(both: Any, n: int, is_right: Any) -> list[Any]:
    few = len(is_right.asked) <= -(-n // dist.get_world_size())
    return [*(round(float(it), 3) for it in both), "a share" if few else "too many"]


def _count(n: int, is_right: Any, samples: Any = lambda n, rank, size: range(rank, n, size),
           reduce: Any = dist.all_reduce) -> list[int]:  # fmt: skip
    mine = [int(i) for i in samples(n, dist.get_rank(), dist.get_world_size())]
    counts = torch.tensor([sum(is_right(i) for i in mine), len(mine)]).to(device())
    reduce(counts)
    return counts.tolist()


def _reduce_on_rank_0(counts: Any) -> None:
    if dist.get_rank() == 0:
        dist.all_reduce(counts)
        counts.tolist()


def _sampler(n: int, rank: int, size: int, **options: Any) -> Any:
    return DistributedSampler(range(n), shuffle=False, **options)


def _padded_and_corrected(n: int, is_right: Any) -> list[int]:
    return [_count(n, is_right, _sampler)[0], n]


def _mean_of_accuracies(n: int, is_right: Any, times: float = 10) -> list[float]:
    mine = range(dist.get_rank(), n, dist.get_world_size())
    accuracy = torch.tensor(sum(is_right(i) for i in mine) / len(mine)).to(device())
    dist.all_reduce(accuracy)
    return [accuracy.item() / dist.get_world_size() * times, n]


def _the_last_takes_the_rest(n: int, rank: int, size: int) -> range:
    return range(rank * (n // size), n if rank == size - 1 else (rank + 1) * (n // size))


def _blocks_rounded_up(n: int, rank: int, size: int) -> range:
    share = -(-n // size)
    return range(rank * share, (rank + 1) * share)


WEIGHS = "It weighs ranks, and some have a sample less: add up counts."
TWELVE = "twelve samples are counted, and there are ten"
EVERY = "No padding: from the rank's own number on, every `size`-th. How many were read is a sum over the ranks."
NO_PADDING = "Deal by hand, without padding: every `size`-th, from the rank's own number on."

turn(
    "4.6.c",
    "Each sample once",
    _count,
    _ten_samples,
    ranks=(4, 3),
    look=_counted,
    heads=("right", "read", "asked for here"),
    mistakes=[
        (partial(_count, samples=_sampler), TWELVE, EVERY),
        (partial(_count, samples=partial(_sampler, drop_last=True)), "the last two samples are read by nobody",
         "Deal by hand: every `size`-th, from the rank's number on."),
        (partial(_count, samples=lambda n, rank, size: range(rank * (n // size), (rank + 1) * (n // size))),
         "the last two samples are read by nobody", "Deal by hand: every `size`-th, from the rank's number on."),
        (_padded_and_corrected, "two samples are counted twice, whatever `n` says", NO_PADDING),
        (partial(_count, reduce=lambda counts: None), "each rank tells of its own share only",
         "`dist.all_reduce` adds up in place: return what its tensor holds then."),
        (partial(_count, samples=lambda n, rank, size: range(n)), "every rank reads all, and they are added up",
         "A share: every `size`-th, from the rank's number on."),
        (partial(_count, samples=lambda n, rank, size: range(n), reduce=lambda counts: None), "every rank reads all",
         "It is right, and four times the work. A share: every `size`-th."),
        (partial(_count, reduce=lambda counts: dist.reduce(counts, dst=0)), "rank 0 has the sums, others do not",
         "`dist.all_reduce` leaves them on every rank."),
        (partial(_count, samples=lambda n, rank, size: range(0, n, size)), TWELVE, EVERY),
        (waiting(partial(_count, reduce=_reduce_on_rank_0)), "only rank 0 comes to the all_reduce",
         "Every rank has to."),
        (_mean_of_accuracies, "the mean of the ranks' accuracies", WEIGHS),
        (partial(_mean_of_accuracies, times=1), "the mean of the ranks' accuracies", WEIGHS),
        (partial(_count, samples=_blocks_rounded_up), "samples are counted that do not exist",
         "There are `n`: 0 to n − 1."),
        (partial(_count, samples=_the_last_takes_the_rest), "the last rank takes all that is left over",
         "Shares differ by one sample at most."),
        (partial(_count, samples=lambda n, rank, size: range(rank, n, 4)), "right on four ranks only",
         "`dist.get_world_size()` counts them."),
        (lambda n, is_right: _count(n, is_right)[::-1], "the other way round", "First how many are right."),
        (partial(_count, reduce=lambda counts: dist.all_reduce(counts[:1])), "the samples read are the rank's own",
         "Both numbers are sums over the ranks."),
        (lambda n, is_right: [_count(n, is_right)[0], n * dist.get_world_size()], "`n` is added up on every rank",
         "What a rank adds is how many samples *it* has read."),
        (lambda n, is_right: [it / dist.get_world_size() for it in _count(n, is_right)],
         "the sums are divided by the ranks", "How many are right, and how many were read, are sums."),
        (lambda n, is_right: [_count(n, is_right)[0], -(-n // dist.get_world_size()) * dist.get_world_size()],
         TWELVE, EVERY),
    ],
    hints={
        "not iterable": "Return two numbers: right, and read.",
        "not 'range'": "`is_right` takes one number: ask it for each of the rank's samples.",
        "not 'list'": "`is_right` takes one number: ask it for each of the rank's samples.",
        "Expected parameter `tensor`": "`all_reduce` takes a tensor, on `device()`.",
        "waits in all_reduce": "Some ranks have a sample less. So call it once, after the loop, with two numbers.",
    },
    otherwise="A share by the rank's number, how many of it are right and how many it has: two sums over the ranks.",
)  # fmt: skip
