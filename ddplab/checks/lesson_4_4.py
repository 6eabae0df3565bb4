"""Checks of lesson 4.4, What DDP leaves to you."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import (
    flat,
    listed,
    multiple,
    needs_function,
    needs_loss,
    off,
    on_ranks,
)
from ddplab.checks.turns import turn, waiting
from ddplab.course.messages import noted_sums
from ddplab.hardware import device


@exercise("4.4.1", "Runs that share no noise")
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


@exercise("4.4.2", "A loss over words")
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
            "A collective needs all ranks, even one that has no words.",
        )
    many, one = ranks[0]["gradient"], ranks[0]["right"]
    if many.isnan().any() or any(rank["loss"] != rank["loss"] for rank in ranks):
        hint = "A rank without words: its own mean is 0 / 0. Add up, and divide by the words of all ranks."
        raise NotYet(f"{where}, a rank's loss is not a number", hint)
    if off(many, one) < 1e-6:  # whoever counts words in float32 loses a few digits
        return
    factor = multiple(many, one, 1e-6)
    if factor is None:
        hint = "Add up the rank's words, `reduction='sum'`, and divide by something that all ranks share."
        if len({length for rank in lengths for length in rank}) == 1:  # even the ranks' own means would be right
            hint = "Does each word have its own loss? `transpose` swaps dimensions; `view` and `reshape` only recount."
        raise NotYet(f"{where}, the gradient is {off(many, one):.0%} off that of one device", hint)
    size, total = len(lengths), sum(counts)
    padded = sum(4 * len(rank) for rank in lengths)
    hints = {
        total / padded: "Padding is no word: count the labels that are not -100.",
        total / padded / size: "Padding is no word, and DDP divides by the number of ranks.",
        total: "That is a sum over the words. Divide by how many there are on all ranks.",
        total / size: "That is a sum. Divide by the words of all ranks; DDP divides by ranks.",
        total / sum(map(len, lengths)): "That is a mean over the sentences. Divide by the words.",
        size: "N times too much: divide by the words of all ranks, not of one.",
        2 / size: "Ask for the number of ranks: `dist.get_world_size()`.",
        1 / size: "DDP divides by the number of ranks. Undo that.",  # also where nothing is padded
    }
    hint = next((h for f, h in hints.items() if abs(f - factor) < 1e-5), "The right direction, the wrong size.")
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
    if any(p.grad is None for p in net.parameters()):
        raise TypeError("loss_over_words returned a loss that hangs on no weight")
    gradient = flat(p.grad for p in net.parameters())
    return {"gradient": gradient, "right": right, "calls": len(calls), "loss": mine.item()}


HINTS = {
    "not a Generator": "`return` the generator: `torch.Generator().manual_seed(…)`.",
    "returned a tensor of shape": "One number: `reduction='sum'`.",
    "hangs on no weight": "DDP waits for the gradients of every rank. Make the loss of `logits`, also where it is 0.",
    "does not require grad": "`.item()`, `.detach()` and a new tensor cut the way back: make the loss of `logits`.",
    "loss_over_words returned None": "`return` the loss.",
    "loss_over_words returned": "Return the tensor itself, without `.item()`: `backward()` needs it.",
    "Expected target size": "Flatten both: `logits.flatten(0, 1)` and `labels.flatten()`.",
    "has no attribute 'item'": "`dist.all_reduce` returns nothing; it changes the tensor that it is given.",
    "'NoneType'": "`dist.all_reduce` returns nothing; it changes the tensor that it is given.",
    "Expected parameter": "`dist.all_reduce` takes a tensor: `torch.tensor(…, device=device())`.",
    "Invalid function argument": "`dist.all_reduce` takes a tensor: `torch.tensor(…, device=device())`.",
    "ReduceOp.AVG": "Not every torch has an average in gloo. Without `op` it adds up everywhere: add up, then divide.",
}


# ------------------------------------------------------------------ your turn


def _seeds(seed: int, noise: Any = lambda rank: rank, order: Any = lambda rank: 0, seeded: bool = True) -> Any:
    torch.manual_seed(seed + noise(dist.get_rank()))
    generator = torch.Generator()
    return generator.manual_seed(seed + order(dist.get_rank())) if seeded else generator


def _seeded_twice(seed_ranks: Any, seed: int) -> tuple[list[list[float]], Any, bool]:
    """Return a rank's noise with seed 0 and twice with another, what was returned at last, and whether always alike."""
    noises, seeds = [], set()
    for number in (0, seed, seed):
        order = seed_ranks(number)
        seeds.add(order.initial_seed())
        noises.append(F.dropout(torch.ones(100, device=device())).tolist())
    return noises, order, len(seeds) == 1


def _order_and_noise(left: tuple[list[list[float]], Any, bool], *_: Any) -> list[str]:
    noise, order, unseeded = left
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (noise, torch.randperm(100, generator=order).tolist()))
    both, orders = zip(*everyone, strict=True)
    at_0, noises, _ = zip(*both, strict=True)
    mine_at_0, mine, again = noise
    alike = "as on all" if all(it == orders[0] for it in orders) else "others differ"
    alike = "torch's own" if order is torch.default_generator else alike
    shared = ["as on another" if held.count(it) > 1 else "its own" for held, it in ((noises, mine), (at_0, mine_at_0))]
    depends = WHATEVER * (mine == mine_at_0) + EACH_TIME * (mine != again)
    return [alike + WHATEVER * unseeded, shared[0] + depends, shared[1]]


def _at_random(seed: int) -> Any:
    torch.seed()
    return torch.Generator().manual_seed(seed)


WHATEVER, EACH_TIME = ", whatever the seed", ", another each time"
ALIKE, BY_RANK = "ranks draw the same noise", "`torch.manual_seed` with something that depends on the rank."

turn(
    "4.4.a",
    "One order, noise for each",
    _seeds,
    lambda rank, size: (7,),
    ranks=(3,),
    call=_seeded_twice,
    look=_order_and_noise,
    heads=("order", "noise", "noise if seed is 0"),
    mistakes=[
        (partial(_seeds, noise=lambda rank: 0), ALIKE, BY_RANK),
        (partial(_seeds, noise=lambda rank: rank > 0), ALIKE, "A number of its own for every rank."),
        *[(lambda seed, own=own: torch.manual_seed(seed + own * dist.get_rank()),
           "what is returned is torch's own generator, from which the noise comes, too",
           "`torch.manual_seed` returns it. The order needs another: `torch.Generator().manual_seed(seed)`.")
          for own in (1, 0)],
        (partial(_seeds, order=lambda rank: rank), "each rank shuffles in an order of its own",
         "Seed the generator with what all ranks share: `seed` alone."),
        (partial(_seeds, noise=lambda rank: 0, order=lambda rank: rank), "just the other way round",
         "Noise for each rank, one order for all."),
        (partial(_seeds, seeded=False), "the order does not depend on the seed", "`generator.manual_seed(seed)`"),
        (partial(_seeds, seeded=False, noise=lambda rank: 0), "the order does not depend on the seed",
         "`generator.manual_seed(seed)`"),
        (lambda seed: _seeds(seed, noise=lambda rank: seed * rank - seed),
         "times the rank: rank 0 always draws the same, and with seed 0 all ranks do", "Add the rank to the seed."),
        (lambda seed: _seeds(seed, noise=lambda rank: seed * rank),
         "times a rank: with seed 0 all ranks draw the same noise", "Add the rank to the seed."),
        (lambda seed: _seeds(seed, noise=lambda rank: rank - seed), "the noise does not depend on the seed",
         "Add the rank to the seed: another seed, other noise."),
        (lambda seed: torch.Generator().manual_seed(seed), "torch's own random numbers are not seeded", BY_RANK),
        (lambda seed: torch.Generator().manual_seed(seed + dist.get_rank()),
         "torch's own random numbers are not seeded, and the order is another on each rank",
         "Two seeds: one with the rank for `torch.manual_seed`, one without it for the generator."),
        (lambda seed: _seeds(0), "neither the order nor the noise depends on the seed",
         "Both begin with `seed`; for the noise, add the rank."),
        (_at_random, "with the same seed the noise is another each time", "Seed it with `seed` and the rank alone."),
    ],
    hints={
        "has no attribute 'initial_seed'": "Return the `torch.Generator`.",
        "Cannot access accelerator": "A generator is made first, and then seeded: `torch.Generator().manual_seed(…)`.",
    },
    otherwise="Add the rank to the seed: other noise on every rank, and with every seed.",
)  # fmt: skip


class _TwoWeights(nn.Module):
    """Two parameters of one number each, so that clipping each by itself is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.tensor([number], device=device())) for number in (10.0, 20.0))

    def forward(self, x: Any) -> Any:
        return x[0] * self.a + x[1] * self.b


def _two_weights(rank: int, size: int) -> tuple[Any, Any, Any, float]:
    model = DDP(_TwoWeights())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)
    own = torch.tensor([[12.0, 0.0], [0.0, 16.0], [6.0, 8.0]], device=device())[rank]
    limit = {2: 7.5, 3: 40.0}[size]  # on three ranks the mean is as long, and short enough
    return model, torch.optim.SGD(model.parameters(), lr=1.0), model(own).sum(), limit


def _update(model: Any, optimizer: Any, loss: Any, limit: float, do: str = "zero backward clip step",
            clip: Any = clip_grad_norm_) -> None:  # fmt: skip
    steps = {"zero": optimizer.zero_grad, "backward": loss.backward, "step": optimizer.step}
    for what in do.split():
        steps[what]() if what in steps else clip(model.parameters(), limit)


def _clips_its_own(model: Any, optimizer: Any, loss: Any, limit: float) -> None:
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(max=limit))
    _update(model, optimizer, loss, limit, do="zero backward step")


def _divides(model: Any, optimizer: Any, loss: Any, limit: float) -> None:
    _update(model, optimizer, loss / dist.get_world_size(), limit)


def _stretches(model: Any, optimizer: Any, loss: Any, limit: float) -> None:
    _update(model, optimizer, loss, limit, do="zero backward")
    length = torch.cat([p.grad for p in model.parameters()]).norm()
    for parameter in model.parameters():
        parameter.grad *= limit / length
    optimizer.step()


def _without_root(model: Any, optimizer: Any, loss: Any, limit: float) -> None:
    _update(model, optimizer, loss, limit, do="zero backward")
    squares = torch.cat([p.grad for p in model.parameters()]).square().sum()
    for parameter in model.parameters():
        parameter.grad *= min(1, limit / squares)
    optimizer.step()


def _adds_up_again(model: Any, optimizer: Any, loss: Any, limit: float) -> None:
    _update(model, optimizer, loss, limit, do="zero backward")
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    _update(model, optimizer, loss, limit, do="clip step")


WHEN = (
    "`clip_grad_norm_(model.parameters(), limit)` shortens what is in `.grad` then: before `backward()` nothing new, "
    "and after `step()` too late."
)
NOT_CLIPPED = "the step is 10 long: its gradient was not clipped"
BETWEEN = "`clip_grad_norm_` changes `.grad`: when the mean is there, and before it is used."
LAST = "`zero_grad()`, `backward()` of the loss as it is, the gradient made short enough, `optimizer.step()`."
STALE, STILL = "what the older step left takes part", "the weights have not moved"

turn(
    "4.4.b",
    "One clipped step",
    _update,
    _two_weights,
    ranks=(2, 3),
    look=lambda _, model, *rest: [round(it.item(), 3) for it in model.parameters()],
    heads=("weight 0", "weight 1"),
    mistakes=[
        (partial(_update, do="zero backward step"), NOT_CLIPPED, WHEN),
        (partial(_update, do="clip zero backward step"), NOT_CLIPPED, WHEN),
        (partial(_update, do="zero backward step clip"), NOT_CLIPPED, WHEN),
        (_clips_its_own, "each rank clips its own gradient, and DDP averages what is left", BETWEEN),
        (partial(_update, clip=clip_grad_value_), "each number is clipped by itself",
         "`clip_grad_norm_` is given all parameters at once, and looks at the length of the whole."),
        (partial(_update, do="zero backward clip step step"), "it steps twice", "One `optimizer.step()`."),
        (lambda model, optimizer, loss, limit: _update(model, optimizer, loss * (limit / loss.item()), limit,
                                                       do="zero backward step"),
         "the loss is brought down to the limit, and not the gradient", BETWEEN),
        (lambda *it: _update(*it, do="zero backward step" if dist.get_rank() else "zero backward clip step"),
         "only rank 0 clips, and the ranks drift apart", "Each rank has the mean, and weights of its own: all clip."),
        (lambda model, optimizer, loss, limit: _update(model, optimizer, loss, 1.0),
         "clipped to 1, and not to `limit`", "How long it may be is what `update` is given."),
        (partial(_update, do="backward clip step"), STALE, "`optimizer.zero_grad()` first."),
        (partial(_update, do="clip backward step"), STALE, "`optimizer.zero_grad()` first."),
        (partial(_update, do="backward step"), STALE, "`optimizer.zero_grad()` first."),
        (_divides, "the mean is divided by the ranks once more", "DDP has averaged already."),
        (partial(_update, do="zero backward clip"), STILL, LAST),
        (partial(_update, do="backward zero clip step"), STILL, LAST),
        (_stretches, "a gradient that is short enough is lengthened",
         "At most `limit` long: what is shorter stays as it is."),
        (lambda model, optimizer, loss, limit: _update(model, optimizer, loss, 7.5),
         "clipped to 7.5, and not to `limit`", "Here `limit` is 40."),
        (lambda model, optimizer, loss, limit: _update(model, optimizer, loss, limit / dist.get_world_size()),
         "clipped to a part of the limit", "Every rank has the mean of all, and clips that to `limit`."),
        (_without_root, "cut by the square of the length", "The length is the root of the squares added up."),
        (_adds_up_again, "the means of the ranks are added up once more", "DDP has averaged already."),
    ],
    hints={
        "not iterable": "`clip_grad_norm_` takes `model.parameters()`.",
        "no attribute 'grad'": "`clip_grad_norm_` takes `model.parameters()`.",
        "does not require grad": "`backward()` once, of `loss`.",
    },
    otherwise=LAST,
)  # fmt: skip


def _word_losses(rank: int, size: int) -> tuple[Any]:
    model = DDP(nn.Linear(1, 1, bias=False).to(device()))
    words = torch.tensor([[1.0, 1.0, 1.0, 1.0], [6.0], [7.0, 4.0, 3.0]][rank], device=device()).view(-1, 1)
    losses = model(words).flatten()
    losses.model = model
    return (losses,)


def _over_words(losses: Any, count: Any = dist.all_reduce, ranks: Any = dist.get_world_size) -> Any:
    words = torch.tensor(float(len(losses)), device=device())
    count(words)
    return losses.sum() * ranks() / words


def _gradient_of_words(loss: Any, losses: Any) -> float | str:
    """The gradient; of another loss than the one that is returned, where that one's value has been changed since.

    Losses are the weight times the words here, so that the ranks' mean of them is the weight times DDP's gradient.
    """
    loss.backward()
    weight = losses.model.module.weight
    gradient = weight.grad.item()
    if abs(_summed(loss) / dist.get_world_size() - weight.item() * gradient) > 1e-3 * abs(weight.item() * gradient):
        return "not the value's"
    return round(gradient, 3)


def _summed(number: Any) -> float:
    number = number.detach().clone()
    dist.all_reduce(number)
    return number.item()


def _sums_losses(losses: Any) -> Any:
    loss = _over_words(losses)
    dist.all_reduce(loss.data)
    return loss


def _times_words(losses: Any) -> Any:
    words = losses.sum().detach() / _over_words(losses).detach()  # of all, by rank
    return losses.sum() * words


def _on_rank_0(words: Any) -> None:
    if dist.get_rank() == 0:
        dist.all_reduce(words)
        words.item()


turn(
    "4.4.c",
    "A mean over all ranks' words",
    _over_words,
    _word_losses,
    ranks=(2, 3),
    look=_gradient_of_words,
    heads=("gradient",),
    mistakes=[
        (lambda losses: losses.mean(), "each rank's own mean", "Divide the sum by something that all ranks share."),
        (lambda losses: losses.sum(), "sums, divided by ranks and not by words", "How many words have all ranks?"),
        (partial(_over_words, ranks=lambda: 1), "divided by the number of ranks, too", "DDP divides by it. Undo that."),
        (partial(_over_words, ranks=lambda: 1 / dist.get_world_size()), "divided by the number of ranks twice",
         "DDP divides by it once. Undo that: multiply."),
        (partial(_over_words, ranks=lambda: 2), "right on two ranks only", "`dist.get_world_size()` counts them."),
        (_sums_losses, "the losses are all-reduced, too: `backward()` does not go through that",
         "`losses.sum()` stays this rank's. Only how many words there are is everybody's."),
        (partial(_over_words, count=lambda words: None), "divided by the rank's own words",
         "`dist.all_reduce` makes of each rank's number of words that of all."),
        (lambda losses: losses.sum() * dist.get_world_size(), "the sum over all words",
         "Divide by how many words there are on all ranks."),
        (lambda losses: losses.sum() / dist.get_world_size(),
         "sums, divided by 4: that is by the ranks twice, or by the words of the rank that has most",
         "DDP divides by the ranks, once. All words are 5: `dist.all_reduce` adds them up."),
        (_times_words, "multiplied by the words of all ranks, and divided by the ranks", "The other way round."),
        (partial(_over_words, count=partial(dist.reduce, dst=0)), "only rank 0 divides by the words of all",
         "`dist.reduce` leaves the sum on one rank, `dist.all_reduce` on every rank."),
        (lambda losses: losses.mean() / dist.get_world_size(), "each rank's own mean, and divided by the ranks twice",
         "Divide the sum by something that all ranks share."),
        (lambda losses: _over_words(losses) / len(losses), "divided by the rank's own words, too",
         "`losses.sum()`: a mean has divided already."),
        (lambda losses: losses.sum() * 2 / 5, "right for those five words only",
         "Ask all ranks how many words there are."),
        (waiting(partial(_over_words, count=_on_rank_0)), "only rank 0 comes to the all_reduce",
         "Every rank has to call it."),
    ],
    hints={
        "has no attribute 'backward'": "`return` the loss, a tensor.",
        "does not require grad": "Keep the losses in it: add up `losses` itself, without `.item()`.",
        "Invalid function argument": "`all_reduce` takes a tensor, on `device()`.",
        "Expected a": "`all_reduce` takes a tensor, on `device()`.",
        "implicitly created only for scalar": "One number for all words of the rank: add the losses up.",
        "waits in backward": "Do all ranks send equally many numbers? The count of its words is one number on each.",
        "second time": "Return the loss. `backward()` is called on what you return.",
        "invalid tensor size": "The ranks have different numbers of words. Send how many: one number each.",
    },
    otherwise="The sum of this rank's losses, over the words of all ranks, times the ranks by which DDP divides.",
)  # fmt: skip
