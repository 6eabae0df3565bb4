"""Checks of lesson 4.1, Distributed data parallel."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import (
    TWICE,
    Number,
    asks,
    expect_all,
    flat,
    listed,
    multiple,
    needs_function,
    needs_loss,
    off,
    on_ranks,
)
from ddplab.course.data import digits
from ddplab.course.models import MLP
from ddplab.hardware import device

BATCH, STEPS, LR = 64, 3, 0.5  # of the loop in exercise 4.1.2

NUMBERS = asks(
    "4.1.1",
    Number("effective_batch", 128, "How many images do all eight ranks take in one step?").with_mistakes(
        (16, "that is what one rank takes", "How many images do all eight take in one step?"),
        (2, "that is a batch of 16 shared out", "Each rank takes 16; nothing divides them further."),
    ),
    Number("steps_per_epoch", 32, "4,096 images, and the effective batch in each step.").with_mistakes(
        (256, "that many it takes one rank alone", "Each step uses up the images of all ranks."),
        (4, "too few: one division too many", "4,096 images, and the effective batch in each step."),
    ),
    Number("after_backward", 4.5, "The mean of 1, 2, …, 8.").with_mistakes(
        (36, "that is the sum", "DDP averages."),
        (1, "that is rank 0's own gradient", "Rank 0's weights go to all, at the wrap. Gradients are averaged."),
    ),
    Number("summed_loss", 1 / 8, "DDP takes the mean of as many sums as there are ranks.").with_mistakes(
        (8, "the wrong way round", "DDP divides. Is what is left larger or smaller?"),
        (1 / 2, "that holds for two ranks", "DDP takes the mean of as many sums as there are ranks."),
        (1, "that holds for a mean", "The sum over the batch is eight sums; DDP takes their mean."),
        (1 / 16, "that is one over the images of a rank", "Count ranks, not images."),
        (1 / 128, "that is one over the effective batch", "Count ranks, not images."),
    ),
)


@exercise("4.1.1", "Numbers of a DDP run")
def numbers_of_a_run(effective_batch: Any, steps_per_epoch: Any, after_backward: Any, summed_loss: Any) -> None:
    """Eight ranks, 16 images each, 4,096 images an epoch; gradients 1 to 8; a summed loss."""
    answers = (effective_batch, steps_per_epoch, after_backward, summed_loss)
    given = {it.name: answer for it, answer in zip(NUMBERS, answers, strict=True)}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise NotYet(f"`{name}` is {value!r}, not a number", "A Python number, such as 3 or 1 / 4.")
    expect_all(NUMBERS, given)


@exercise("4.1.2", "The loop, converted")
def converted(train: Callable[..., Any]) -> None:
    """`train(net, batches)` on 2 and 4 ranks must leave in `net` what one device has after the same batches."""
    needs_function("train", train)
    for size in (2, 4):
        _converted_on(size, train)


def _converted_on(size: int, train: Callable[..., Any]) -> None:
    ranks = on_ranks(_train_in_rank, train, size=size, hints=HINTS)
    where = f"on {size} ranks"
    weights = [rank["weights"] for rank in ranks]
    seen = [rank["seen"] for rank in ranks]
    start = _weights_of_one_device(steps=0)
    if not any(seen):
        raise NotYet(f"{where}, nobody called the network", "The forward pass is a call: `model(images)`.")
    if torch.equal(weights[0], start):
        hint = "`optimizer.step()` moves them, if the optimiser has the parameters of `net` and gradients are there."
        raise NotYet(f"{where}, the weights of `net` never moved", hint)
    if any(off(other, weights[0]) > 1e-9 for other in weights):
        if not ranks[0]["wrapped"]:
            hint = "Put `net` into DDP before the loop."
            raise NotYet(f"{where}, the ranks end with different weights, for nobody averages the gradients", hint)
        if ranks[0]["wrapped"] > 1:
            raise NotYet(
                f"{where}, you make {ranks[0]['wrapped']} DDP models, and the ranks end with different weights",
                "Wrap once, before the loop, and keep the result in a variable: `model = DDP(net)`.",
            )
        if not ranks[0]["called"]:
            raise NotYet(
                f"{where}, you wrapped `net` in DDP, but the loop calls `net` itself, so the gradients never meet",
                "`model = DDP(net)`, and then call `model(images)`.",
            )
        hint = "Does every rank do the same number of steps, with the same optimiser?"
        raise NotYet(f"{where}, the ranks end with different weights", hint)
    _shares(where, size, seen)
    if off(weights[0], _weights_of_one_device()) < 1e-7:
        return
    for other, (why, hint) in {
        "lr": (f"a learning rate {size} times as large", "The average has the size of one gradient: leave lr alone."),
        "sum": ("the sum over a rank's images as its loss", "DDP averages, so the loss has to be a mean."),
        "keep": ("gradients that are never set to zero", "`optimizer.zero_grad()` in every step."),
        "half": (f"a learning rate {size} times smaller", "DDP has divided already: leave loss and lr alone."),
    }.items():
        if off(weights[0], _weights_of_one_device(other, size)) < 1e-7:
            raise NotYet(f"{where}, the weights are not those of one device, but those of {why}", hint)
    hint = "Change nothing but the wrap and the share: same loss, same optimiser, same lr, one step a batch."
    raise NotYet(f"{where}, the ranks agree, but not with one device", hint)


def _shares(where: str, size: int, seen: list[list[list[int]]]) -> None:
    """Each of the first batch's images must be some rank's, and only one's, in equal shares."""
    first = [set(batches[0]) if batches else set() for batches in seen]
    counts = [len(share) for share in first]
    if all(count == BATCH for count in counts):
        hint = "That is N times the work for the result of one. Take a share: `images[rank::size]`, labels too."
        raise NotYet(f"{where}, every rank worked on all {BATCH} images of a batch", hint)
    if any(count != BATCH // size for count in counts):
        listed = ", ".join(map(str, counts))
        hint = f"{BATCH // size} each. Ask for the number of ranks: `dist.get_world_size()`."
        raise NotYet(f"{where}, the ranks take {listed} of {BATCH} images", hint)
    if missed := BATCH - len(set().union(*first)):
        hint = "The share has to depend on the rank: `dist.get_rank()`."
        raise NotYet(f"{where}, {missed} of {BATCH} images are nobody's, because ranks work on the same ones", hint)
    if any(len(batches) != STEPS for batches in seen):
        raise NotYet(f"{where}, rank 0 did {len(seen[0])} forward passes for {STEPS} batches", "One a batch.")


def _train_in_rank(train: Callable[..., Any]) -> dict[str, Any]:
    """Give a learner's loop its network and batches, and report what it did with them."""
    done = {"wrapped": 0, "called": False}
    init, forward = DDP.__init__, DDP.forward

    def noted_init(self: Any, *args: Any, **kwargs: Any) -> None:
        done["wrapped"] += 1
        init(self, *args, **kwargs)

    def noted_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        done["called"] = True
        return forward(self, *args, **kwargs)

    DDP.__init__, DDP.forward = noted_init, noted_forward  # this process ends with the check
    torch.manual_seed(dist.get_rank())  # the ranks begin apart, as they may
    net = MLP().double().to(device())
    seen: list[list[int]] = []
    net.register_forward_pre_hook(lambda _, inputs: seen.append(_which(inputs[0])))
    train(net, [(images.to(device()), labels.to(device())) for images, labels in _batches()])
    return {"weights": flat(net.parameters()), "seen": seen, **done}


def _batches(steps: int = STEPS) -> list[tuple[Any, Any]]:
    x, y = digits().tensors
    parts = [slice(BATCH * step, BATCH * (step + 1)) for step in range(steps)]
    return [(x[part].double(), y[part]) for part in parts]


def _which(images: Any) -> list[int]:
    """Which of the images of all batches these are, by number."""
    known = torch.cat([images for images, _ in _batches()]).flatten(1)
    return torch.cdist(images.detach().cpu().double().flatten(1), known).argmin(1).tolist()


def _weights_of_one_device(mistake: str = "", size: int = 1, steps: int = STEPS) -> Any:
    """The weights after the loop on one device, as a vector; with a mistake that many make, if asked."""
    factor = {"lr": size, "sum": BATCH // size, "half": 1 / size}.get(mistake, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = MLP().double()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR * factor)
    for images, labels in _batches(steps):
        if mistake != "keep":
            optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()
    return flat(net.parameters())


@exercise("4.1.3", "Gradients averaged by hand")
def averaged_by_hand(average_gradients: Callable[..., Any]) -> None:
    """`average_gradients(net)` on 2 and 3 ranks must leave the mean in every `.grad` of every rank."""
    needs_function("average_gradients", average_gradients)
    for size in (2, 3):
        where = f"on {size} ranks"
        ranks = on_ranks(_average_in_rank, average_gradients, size=size, hints=HINTS)
        mean = sum(rank["before"] for rank in ranks) / size
        right = [off(rank["after"], mean) < 1e-9 for rank in ranks]
        if any(rank["moved"] for rank in ranks):
            hint = "Average `p.grad`, the gradients; the weights are the optimiser's affair."
            raise NotYet(f"{where}, the weights changed", hint)
        if all(right):
            continue
        if all(off(rank["after"], rank["before"]) < 1e-9 for rank in ranks):
            hint = "`dist.all_reduce(p.grad)` changes `p.grad` itself; so does `p.grad /= …`. A new tensor is lost."
            raise NotYet(f"{where}, every rank still has its own gradients", hint)
        if any(right):
            good = right.index(True)
            hint = "All ranks need the result: `all_reduce`, not `reduce`; and all must do the same with it."
            raise NotYet(f"{where}, rank {good} has the mean and rank {right.index(False)} has not", hint)
        for factor in (size, 1 / size, size / 2, 2 / size):
            if all(off(rank["after"], factor * mean) < 1e-9 for rank in ranks):
                hint = {
                    size: "`all_reduce` adds up; divide by the number of ranks.",
                    1 / size: "Divide once, and not twice.",
                }.get(factor, "Ask for the number of ranks: `dist.get_world_size()`.")
                raise NotYet(f"{where}, every gradient is {factor:.3g} times the mean", hint)
        hint = "For each `p` in `net.parameters()`: add up `p.grad` over the ranks, then divide."
        raise NotYet(f"{where}, not every gradient is the mean over the ranks", hint)


def _average_in_rank(average_gradients: Callable[..., Any]) -> dict[str, Any]:
    torch.manual_seed(dist.get_rank())  # weights apart too, so that averaging those would be seen
    net = MLP(hidden=4).double().to(device())
    next(net.parameters()).requires_grad_(False)  # a frozen layer has no gradient
    net(torch.randn(8, 1, 8, 8, dtype=torch.float64).to(device())).square().mean().backward()

    def look() -> Any:
        return flat(p.grad for p in net.parameters() if p.grad is not None)

    before, weights = look(), [p.detach().clone() for p in net.parameters()]
    average_gradients(net)
    moved = any(not torch.equal(a, b) for a, b in zip(weights, net.parameters(), strict=True))
    return {"before": before, "after": look(), "moved": moved}


@exercise("4.1.4", "An uneven split, mended")
def mended(my_loss: Callable[..., Any]) -> None:
    """With `my_loss(logits, labels, batch_size)` DDP's gradient must be one device's, however the batch is split."""
    needs_function("my_loss", my_loss)
    for sizes in ([32, 32], [48, 16], [40, 16, 8]):
        where = f"with {listed(sizes)} images"
        one = _gradient_of_one_device()
        many = on_ranks(_gradient_in_rank, my_loss, sizes, size=len(sizes), hints=HINTS)[0]
        if off(many, one) < 1e-9:
            continue
        factor = multiple(many, one)
        if factor is None:
            hint = "A mean weighs every rank alike. Add up the losses of the rank's images, then scale the sum."
            raise NotYet(f"{where} on the ranks, the gradient is {off(many, one):.0%} off that of one device", hint)
        hint = "The right direction, the wrong size: what does DDP do with the ranks' gradients?"
        if abs(factor * len(sizes) - 1) < 1e-9:
            hint = "DDP divides by the number of ranks. Undo that."
        elif abs(factor * len(sizes) - BATCH) < 1e-6:
            hint = "A sum over 64 images is 64 means. Divide by the images of all ranks, and undo what DDP divides by."
        raise NotYet(f"{where} on the ranks, the gradient is {factor:.4g} times that of one device", hint)


def _gradient_in_rank(my_loss: Callable[..., Any], sizes: list[int]) -> Any:
    torch.manual_seed(0)
    net = MLP().double().to(device())
    rank = dist.get_rank()
    mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    images, labels = _batches(1)[0]
    model = DDP(net)  # kept: a DDP that is gone before the backward averages nothing
    loss = my_loss(model(images[mine].to(device())), labels[mine].to(device()), BATCH)
    needs_loss("my_loss", loss)
    loss.backward()
    return flat(p.grad for p in net.parameters())


def _gradient_of_one_device() -> Any:
    """The gradient of the mean loss over the first batch, at the weights that seed 0 gives."""
    return (_weights_of_one_device(steps=0) - _weights_of_one_device(steps=1)) / LR


HINTS = {
    "device_ids": "Leave `device_ids` out: `net` is on the rank's device already, whichever that is.",
    **TWICE,
    "to match target batch_size": "Images and labels have to be cut in the same way.",
    "ReduceOp.AVG": "Not every torch has an average in gloo. Without `op` it adds up everywhere: add up, then divide.",
    "'NoneType' object": "A frozen layer has no gradient: leave out parameters whose `.grad` is None.",
    "Expected parameter `tensor`": "A frozen layer has no gradient: leave out parameters whose `.grad` is None.",
    "my_loss returned a tensor of": "One number: add up the losses of the images, `reduction='sum'`.",
    "my_loss returned None": "`return` the loss.",
    "my_loss returned": "Return the tensor itself, without `.item()`: `backward()` needs it.",
}
