"""Checks of lesson 4.4, What DDP leaves to you."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import (
    Number,
    flat,
    listed,
    multiple,
    needs_function,
    needs_loss,
    numbers,
    off,
    on_ranks,
)
from ddplab.course.messages import noted_sums
from ddplab.hardware import device

# A clipped mean, the weight of a word on a short rank, a loss over all words.
numbers(
    "4.4.1",
    "Three numbers",
    Number("clipped", 3, "The mean of the four first; then no more than 3.").with_mistakes(
        (2, "that is rank 0's own gradient", "After `backward()` every rank holds the mean."),
        (2.75, "that is the mean of clipped gradients", "DDP averages in `backward()`, and the clipping comes after."),
        (5, "that is the mean, not clipped", "It is longer than 3."),
        (20, "that is the sum", "DDP averages. And then it is clipped."),
    ),
    Number("weight_of_a_word", 3, "A word on rank 0 has 1/12 of its rank's mean. And a word on rank 3?").with_mistakes(
        (1 / 3, "the wrong way round", "In a mean over few words, does each count for more or for less?"),
        (1, "that would be one mean over all words", "DDP averages the means of the ranks, and weighs them alike."),
    ),
    Number("batch_loss", 1.5, "All words' losses, added up, divided by all words.").with_mistakes(
        (1.75, "that is the mean of the ranks' means", "One device knows no ranks: a sum over words, by their number."),
        (60, "that is the sum", "Divide it by the words of all ranks."),
        (15, "that is the sum by the number of ranks", "Divide it by the words of all ranks."),
    ),
)


@exercise("4.4.2", "Seeds that agree and differ")
def seeds(seed_ranks: Callable[..., Any]) -> None:
    """`seed_ranks(seed)` on three ranks: one order, three masks; repeatable; nothing in common between two seeds."""
    needs_function("seed_ranks", seed_ranks)
    first, second, again = (on_ranks(_seed_in_rank, seed_ranks, seed, size=3, hints=HINTS) for seed in (7, 8, 7))
    orders, masks = ([rank[what] for rank in first] for what in ("order", "mask"))
    if any(order != orders[0] for order in orders):
        hint = "Seed the generator with what all ranks share: `seed` alone."
        raise NotYet("the generators of the ranks give different orders", hint)
    if len(set(masks)) == 1:
        hint = "`torch.manual_seed(…)` with something that depends on `dist.get_rank()`."
        raise NotYet("all ranks draw the same dropout mask", hint)
    if len(set(masks)) < len(masks):
        raise NotYet("two of three ranks draw the same dropout mask", "A number of its own for every rank.")
    if first != again:
        what = "mask" if orders[0] == again[0]["order"] else "order"
        hint = "Seed both, and with nothing but `seed` and the rank: no clock, no random number."
        raise NotYet(f"the same seed gives another {what} the second time", hint)
    if orders[0] == second[0]["order"]:
        raise NotYet("the seeds 7 and 8 give the same order", "Seed the generator with `seed`.")
    others = [rank["mask"] for rank in second]
    if common := [(a, b) for a in range(3) for b in range(3) if masks[a] == others[b]]:
        a, b = common[0]
        hint = "7 + 1 is 8 + 0. Keep more room between seeds: how many ranks are there?"
        raise NotYet(f"rank {a} of the run with seed 7 draws the mask of rank {b} of the run with seed 8", hint)


def _seed_in_rank(seed_ranks: Callable[..., Any], seed: int) -> dict[str, Any]:
    generator = seed_ranks(seed)
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"seed_ranks returned {type(generator).__name__}, not a Generator")
    mask = F.dropout(torch.ones(100, device=device())).tolist()
    return {"order": torch.randperm(100, generator=generator).tolist(), "mask": tuple(mask)}


@exercise("4.4.3", "A loss over words")
def words(loss_over_words: Callable[..., Any]) -> None:
    """With `loss_over_words` DDP's gradient must be one device's mean over all real words, however they are dealt."""
    needs_function("loss_over_words", loss_over_words)
    for lengths in ([[4, 4], [4, 4]], [[4, 3], [1, 2]], [[4, 2], [3, 1], [1, 1]], [[4, 3], [0, 0]]):
        _judge_loss(lengths, _losses(loss_over_words, lengths))


def _losses(loss_over_words: Callable[..., Any], lengths: list[list[int]]) -> list[dict[str, Any]]:
    # gloo aborts where one rank's all_reduce meets another's of a different size
    hint = f"{_where(lengths)}: every rank calls it, with the same shape, also a rank that has no words."
    return on_ranks(_loss_in_rank, loss_over_words, lengths, size=len(lengths), hints=HINTS | {"SIGABRT": hint})


def _where(lengths: list[list[int]]) -> str:
    return f"with {listed([sum(rank) for rank in lengths])} words on the ranks"


def _judge_loss(lengths: list[list[int]], ranks: list[dict[str, Any]]) -> None:
    counts, where = [sum(rank) for rank in lengths], _where(lengths)
    calls = [rank["calls"] for rank in ranks]
    if len(set(calls)) > 1:
        raise NotYet(
            f"{where}, rank 0 calls `all_reduce` {calls[0]} times and rank {len(calls) - 1} {calls[-1]} times",
            "A collective needs all ranks, also one that has no words.",
        )
    many, one = ranks[0]["gradient"], ranks[0]["right"]
    if many.isnan().any() or any(rank["loss"] != rank["loss"] for rank in ranks):
        hint = "A rank without words: its own mean is 0 / 0. Add up, and divide by everybody's words."
        raise NotYet(f"{where}, a rank's loss is not a number", hint)
    if off(many, one) < 1e-9:
        return
    factor = multiple(many, one)
    if factor is None:
        hint = "Add up the rank's words, `reduction='sum'`, and divide by something that all ranks share."
        raise NotYet(f"{where}, the gradient is {off(many, one):.0%} off that of one device", hint)
    size, total = len(lengths), sum(counts)
    padded = sum(4 * len(rank) for rank in lengths)
    hints = {
        1 / size: "DDP divides by the number of ranks. Undo that.",
        total / padded: "Padding is no word: count the labels that are not -100.",
        total / padded / size: "Padding is no word, and DDP divides by the number of ranks.",
        total: "That is a sum over the words. Divide by how many there are on all ranks.",
        total / size: "That is a sum. Divide by the words of all ranks; DDP divides by ranks.",
        2 / size: "Ask for the number of ranks: `dist.get_world_size()`.",
    }
    hint = next((h for f, h in hints.items() if abs(f - factor) < 1e-9), "The right direction, the wrong size.")
    raise NotYet(f"{where}, the gradient is {factor:.4g} times that of one device", hint)


def _loss_in_rank(loss_over_words: Callable[..., Any], lengths: list[list[int]]) -> dict[str, Any]:
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 5).double()
    x = torch.randn(len(lengths), 2, 4, 3, dtype=torch.float64)  # ranks, sentences, words, features
    labels = torch.randint(0, 5, (len(lengths), 2, 4))
    for rank, sentences in enumerate(lengths):
        for sentence, length in enumerate(sentences):
            labels[rank, sentence, length:] = -100
    loss = F.cross_entropy(net(x).flatten(0, 2), labels.flatten())
    right = flat(torch.autograd.grad(loss, list(net.parameters())))

    rank, calls = dist.get_rank(), noted_sums()
    model = DDP(net.to(device()))
    mine = loss_over_words(model(x[rank].to(device())), labels[rank].to(device()))
    needs_loss("loss_over_words", mine)
    mine.backward()
    gradient = flat(p.grad for p in net.parameters())
    return {"gradient": gradient, "right": right, "calls": len(calls), "loss": mine.item()}


HINTS = {
    "not a Generator": "`return` the generator: `torch.Generator().manual_seed(…)`.",
    "returned a tensor of shape": "One number: `reduction='sum'`.",
    "loss_over_words returned None": "`return` the loss.",
    "loss_over_words returned": "Return the tensor itself, without `.item()`: `backward()` needs it.",
    "Expected target size": "Flatten both: `logits.flatten(0, 1)` and `labels.flatten()`.",
    "has no attribute 'item'": "`dist.all_reduce` returns nothing; it changes the tensor that it is given.",
    "'NoneType'": "`dist.all_reduce` returns nothing; it changes the tensor that it is given.",
    "Expected parameter": "`dist.all_reduce` takes a tensor: `torch.tensor(…, device=device())`.",
    "Invalid function argument": "`dist.all_reduce` takes a tensor: `torch.tensor(…, device=device())`.",
    "ReduceOp.AVG": "Not every torch has an average in gloo. Without `op` it adds up everywhere: add up, then divide.",
}
