"""The card dealer: which samples DistributedSampler deals to which rank, for each way to set it, as a film."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import product
from typing import Any

from torch.utils.data import DistributedSampler

from ddplab.course.controls import widget
from ddplab.course.drawings import strip
from ddplab.plots import COLOURS, SHAPES
from ddplab.pointer import pointing
from ddplab.screen import show

EPOCHS = 3
CHOICES = {  # what can be chosen, in the order of a deal's key
    "samples": tuple(range(6, 14)),
    "ranks": (2, 3, 4),
    "shuffle": (True, False),
    "set_epoch": (True, False),
    "drop_last": (True, False),
}
OFFERED = (*CHOICES, "epochs")
Epochs = list[list[list[int]]]  # of each epoch and rank, the samples that it is served


def dealt(samples: int, ranks: int, shuffle: bool, set_epoch: bool, drop_last: bool) -> Epochs:
    """Return what torch's own DistributedSampler deals to each rank, in each of three epochs."""
    epochs = []
    for epoch in range(EPOCHS):
        shares = []
        for rank in range(ranks):
            data = range(samples)
            sampler = DistributedSampler(data, num_replicas=ranks, rank=rank, shuffle=shuffle, drop_last=drop_last)
            if set_epoch:
                sampler.set_epoch(epoch)
            shares.append(list(sampler))
        epochs.append(shares)
    return epochs


@pointing
def dealer(
    samples: int = 10,
    ranks: int = 4,
    shuffle: bool = True,
    set_epoch: bool = True,
    drop_last: bool = True,
    *,
    epochs: int = EPOCHS,
    wrong: Collection[int] = (),
    offer: Sequence[str] = OFFERED,
) -> None:
    """Show a dealer: choose, press Play, and the cards go to the ranks, with counters of "twice" and "nobody".

    The first arguments and `epochs`, 1 to 3, are what is chosen at first. Where nobody can press a button, that is
    drawn as strips, and counted.

    wrong: samples that a model reads wrong. They bear a ✗, and the share that is read right is counted as well.
    offer: what can be chosen; of everything when left out. The rest stays as it is.

    Raises ValueError for what the dealer does not offer.
    """
    chosen = {"samples": samples, "ranks": ranks, "shuffle": shuffle, "set_epoch": set_epoch, "drop_last": drop_last}
    for name, value, offered in [
        *((name, value, CHOICES[name]) for name, value in chosen.items()),
        ("epochs", epochs, tuple(range(1, EPOCHS + 1))),
        *(("offer", name, OFFERED) for name in offer),
    ]:
        if value not in offered:
            raise ValueError(f"{name} is one of {', '.join(map(str, offered))}, not {value!r}")
    first = dealt(**chosen)[:epochs]
    titles = {f"epoch {epoch}": shares for epoch, shares in enumerate(first)}
    make = partial(_table, chosen, epochs, sorted(wrong), list(offer))
    show(counted(first, samples, wrong), make, lambda: strip(titles, samples, wrong=wrong))


def counted(epochs: Epochs, samples: int, wrong: Collection[int] = ()) -> str:
    """Return which samples were dealt twice or to nobody: a line for each epoch, and one for all, where they are more.

    wrong: samples that a model reads wrong; where there are some, each line says how many it reads right.
    """
    lines, everybody = [], set()
    for epoch, shares in enumerate(epochs):
        served = [sample for share in shares for sample in share]
        twice = sorted({sample for sample in served if served.count(sample) > 1})
        line = f"epoch {epoch}: dealt twice: {_named(twice)}; to nobody: {_named(set(range(samples)) - set(served))}"
        hits = sum(sample not in wrong for sample in served)
        lines.append(line + (f"; {hits} of {len(served)} right: {hits / len(served):.3f}" if wrong else ""))
        everybody.update(served)
    never = f"in no epoch: {_named(set(range(samples)) - everybody)}"
    return "\n".join([*lines, never] if len(epochs) > 1 else lines)


def _named(samples: Any) -> str:
    return f"{len(samples)} ({', '.join(map(str, sorted(samples)))})" if samples else "none"


def _table(chosen: dict[str, Any], epochs: int, wrong: list[int], offer: list[str]) -> Any:
    deals = {_key(values): dealt(*values) for values in product(*CHOICES.values())}
    choices = {name: list(values) for name, values in CHOICES.items()}
    first = {"chosen": chosen | {"epochs": epochs}, "wrong": wrong, "offer": offer}
    return widget("cards", deals=deals, choices=choices, looks=list(zip(SHAPES, COLOURS, strict=True)), **first)


def _key(values: Any) -> str:
    return " ".join(str(int(value)) for value in values)
