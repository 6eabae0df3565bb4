"""Checks of lesson 4.1, Distributed data parallel."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, flat, needs_function, numbers, off, on_ranks
from ddplab.checks.turns import turn
from ddplab.course.data import digits
from ddplab.course.messages import noted_sums
from ddplab.course.models import MLP
from ddplab.hardware import device

BATCH, STEPS, LR = 64, 3, 0.5  # of the loop in exercise 4.1.2

numbers(
    "4.1.1",
    "Numbers of a DDP run",
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
        (8, "the wrong way round", "DDP's gradient, divided by one device's. Is what is left larger or smaller?"),
        (1 / 2, "that holds for two ranks", "DDP takes the mean of as many sums as there are ranks."),
        (1, "that holds for a mean", "The sum over the batch is eight sums; DDP takes their mean."),
        (1 / 16, "that is one over the images of a rank", "Count ranks, not images."),
        (1 / 128, "that is one over the effective batch", "Count ranks, not images."),
    ),
)


@exercise("4.1.2", "The loop, converted")
def converted(train: Callable[..., Any]) -> None:
    """`train(net, batches)` on 2 and 4 ranks must leave in `net` what one device has after the same batches."""
    needs_function("train", train)
    for size in (2, 4):
        _converted_on(size, train)


def _converted_on(size: int, train: Callable[..., Any]) -> None:
    waiting = "All ranks make the same steps: every rank works on a share of *every* batch."
    ranks = on_ranks(_train_in_rank, train, size=size, hints=HINTS, waiting=waiting)
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
    hint = "Change only wrap and share: same loss, optimiser and lr, one step a batch, each image with its own label."
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


def _batches(steps: int = STEPS, batch: int = BATCH) -> list[tuple[Any, Any]]:
    x, y = digits().tensors
    parts = [slice(batch * step, batch * (step + 1)) for step in range(steps)]
    return [(x[part].double(), y[part]) for part in parts]


def _which(images: Any) -> list[int]:
    """Which of the images of all batches these are, by number."""
    known = torch.cat([images for images, _ in _batches()]).flatten(1)
    return torch.cdist(images.detach().cpu().double().flatten(1), known).argmin(1).tolist()


def _weights_of_one_device(mistake: str = "", size: int = 1, steps: int = STEPS) -> Any:
    """The weights after the loop on one device, as a vector; with a mistake that many make, if asked."""
    factor = {"lr": size, "sum": BATCH // size, "half": 1 / size}.get(mistake, 1)
    net = _start()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR * factor)
    for images, labels in _batches(steps):
        if mistake != "keep":
            optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()
    return flat(net.parameters())


@exercise("4.1.3", "One process plays all ranks")
def played(play: Callable[..., Any]) -> None:
    """`play(net, batches, ranks)` must leave in `net` what a real DDP has on 2 ranks, and on 4 with uneven shares."""
    needs_function("play", play)
    for ranks, batch in ((2, BATCH), (4, 10)):
        where = f"{STEPS} batches of {batch} images on {ranks} ranks"
        net = _start()
        try:
            play(net, _batches(batch=batch), ranks)
        except (ValueError, RuntimeError) as error:
            if "process group" not in str(error):
                raise
            hint = "There is one process here. Go through the ranks in a loop, `for rank in range(ranks):`."
            raise NotYet(f"your code asks torch.distributed, which is not there: {error}", hint) from None
        mine = flat(net.parameters())
        if off(mine, on_ranks(_real_in_rank, batch, size=ranks)[0]) < 1e-9:
            continue
        if off(mine, flat(_start().parameters())) < 1e-9:
            raise NotYet(f"{where}: the weights of `net` never moved", "`optimizer.step()`, once a batch.")
        for mistake, (why, hint) in PLAYED.items():
            if off(mine, _play(ranks, batch, mistake)) < 1e-9:
                raise NotYet(f"{where}: your weights are not those of DDP, but those of {why}", hint)
        hint = "For each batch: the mean loss of each rank's share, the mean of those, one step."
        raise NotYet(f"{where}: your weights are not those of DDP", hint)


PLAYED = {
    "whole": (
        "one device with the whole batch",
        "With uneven shares a mean of means is another one.",
    ),
    "sum": ("gradients that were added up", "DDP averages: divide by the number of ranks."),
    "last": ("the last rank alone", "`zero_grad()` once a batch; `backward()` adds to what is there."),
    "last, divided": (
        "the last rank alone, divided by the ranks",
        "`zero_grad()` once a batch.",
    ),
    "first": ("rank 0 alone", "Each rank has a share: `images[rank::ranks]`."),
    "steps": ("a step after every rank", "Gradients first, of all ranks; then one step."),
    "steps, divided": ("a step after every rank", "Gradients first, of all ranks; then one step."),
    "keep": ("gradients that are never set to zero", "`optimizer.zero_grad()`, once a batch."),
    "blocks": ("other shares: blocks of neighbours", "Rank r takes every image whose place is r modulo the ranks."),
}


def _play(ranks: int, batch: int, mistake: str) -> Any:
    """The weights that one process comes to, with a mistake that many make."""
    net = _start()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    divide = 1 if mistake in ("whole", "sum", "last", "first", "steps") else ranks
    for images, labels in _batches(batch=batch):
        shares = [(images[rank::ranks], labels[rank::ranks]) for rank in range(ranks)]
        if mistake == "whole":
            shares = [(images, labels)]
        elif mistake == "first":
            shares = shares[:1]
        elif mistake == "blocks":
            shares = list(zip(images.tensor_split(ranks), labels.tensor_split(ranks), strict=True))
        if mistake != "keep":
            optimizer.zero_grad()
        for x, y in shares:
            if "steps" in mistake or "last" in mistake:
                optimizer.zero_grad()
            (F.cross_entropy(net(x), y) / divide).backward()
            if "steps" in mistake:
                optimizer.step()
        if "steps" not in mistake:
            optimizer.step()
    return flat(net.parameters())


def _start() -> Any:
    """The network of seed 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MLP().double()


def _real_in_rank(batch: int) -> Any:
    """The weights that a real DDP comes to, each rank with every N-th image."""
    rank, size = dist.get_rank(), dist.get_world_size()
    net = _start().to(device())
    model = DDP(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for images, labels in _batches(batch=batch):
        optimizer.zero_grad()
        F.cross_entropy(model(images[rank::size].to(device())), labels[rank::size].to(device())).backward()
        optimizer.step()
    return flat(net.parameters())


HINTS = {
    "device_ids": "Leave `device_ids` out: `net` is on the rank's device already, whichever that is.",
    "to match target batch_size": "Images and labels have to be cut in the same way.",
}


# ------------------------------------------------------------------ your turn


def _net_and_batch(*_: int) -> tuple[Any, Any, Any]:
    """A small network that writes down how many rows it was given, and a batch of 64 images for all ranks."""
    net = MLP(hidden=8).to(device())
    net.rows, net.wraps = [], []
    net.came, net.gone = [], []  # gradients, whatever became of them; of each, whether its DDP was gone by then

    def forward(_: Any, inputs: Any) -> None:
        net.rows.append(len(inputs[0]))
        if wrap := getattr(DDP, "_active_ddp_module", None):  # torch notes which one is running
            net.wraps.append(ref(wrap))

    def gradient(it: Any) -> None:
        net.came.append(it.grad is not None)
        net.gone.append(bool(net.wraps) and net.wraps[-1]() is None)

    net.register_forward_pre_hook(forward)
    net.layers[-1].bias.register_post_accumulate_grad_hook(gradient)
    images, labels = (tensor[:64].to(device()) for tensor in digits().tensors)
    return net, images, labels


def _rows_and_gradient(_: Any, net: Any, *__: Any) -> list[Any]:
    grad = net.layers[-1].weight.grad
    if grad is None or not grad.any():
        return [sum(net.rows), "set to zero" if net.came else "no gradient"]
    if any(net.gone):
        return [sum(net.rows), "not averaged"]
    return [sum(net.rows), [round(it, 4) for it in grad.sum(1).tolist()[:3]]]  # a bias cannot tell whose label is whose


def _two_ranks(
    net: Any, images: Any, labels: Any, ddp: bool = True, share: str = "", reduction: str = "mean", divide: float = 1
) -> None:
    """share: "" is every size-th image, "blocks" neighbours, "mixed" the former with the labels of the latter.

    "mixed blocks" is the other way round; "of two" and "blocks of two" are shares as there are on two ranks.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    neighbours, turns = labels.chunk(size)[rank], labels[rank::size]
    model = DDP(net) if ddp else net
    if share != "all":
        first = 0 if share == "first" else 64 // size * rank
        blocks = share in ("first", "blocks", "mixed blocks")
        mine = slice(first, first + 64 // size) if blocks else slice(rank, None, size)
        of_two = {"of two": slice(rank, None, 2), "blocks of two": slice(32 * rank, 32 * rank + 32)}
        others = {"cut": slice(rank, size), "late": slice(rank + 1, None, size), "of a share": slice(rank, 64, size**2)}
        others |= {"same": slice(None, None, size), "size long": slice(rank * size, (rank + 1) * size)}
        mine = (others | of_two).get(share, mine)
        images, labels = images[mine], {"mixed": neighbours, "mixed blocks": turns}.get(share, labels[mine])
    loss = F.cross_entropy(model(images), labels, reduction=reduction)
    (loss / divide).backward()


def _keeps_no_ddp(net: Any, images: Any, labels: Any) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    F.cross_entropy(DDP(net)(images[rank::size]), labels[rank::size]).backward()


def _all_the_shares(net: Any, images: Any, labels: Any) -> None:
    model, size = DDP(net), dist.get_world_size()
    for other in range(size):
        F.cross_entropy(model(images[other::size]), labels[other::size]).backward()


OWN = "each rank keeps the gradient of its own images"
TWO_ONLY, SIZE = "right on two ranks only", "`size` is the number of ranks: a share is one `size`-th of the images."
KEEP = "Who averages? Call what `DDP(net)` returns, and not `net` itself."

turn(
    "4.1.a",
    "One batch, shared by all ranks",
    _two_ranks,
    _net_and_batch,
    ranks=(2, 4),
    look=_rows_and_gradient,
    heads=("rows", "gradient", "", ""),
    mistakes=[
        (partial(_two_ranks, ddp=False), OWN, KEEP),
        (partial(_two_ranks, ddp=False, share="blocks"), OWN, KEEP),
        (
            _keeps_no_ddp,
            "you called `DDP(net)`, but nobody kept it: it was gone before `backward()`, and nothing was averaged",
            "Give it a name, which lives until `backward()` is over.",
        ),
        (
            partial(_two_ranks, share="all"),
            "every rank computes all 64 images: the gradient is right, and nothing is won",
            "Rank r takes every `size`-th image, from image r on.",
        ),
        (
            partial(_two_ranks, share="first"),
            "all ranks take the same images",
            "The share depends on the rank: `dist.get_rank()`.",
        ),
        (
            partial(_two_ranks, share="same"),
            "all ranks take the same images",
            "Every `size`-th is right. From which on?",
        ),
        (
            partial(_two_ranks, share="cut"),
            "it takes the images between number `rank` and number `size`",
            "From, to, step: two colons make a step of the `size`.",
        ),
        (
            _all_the_shares,
            "each rank goes through the shares of all, one after the other",
            "This rank's share is enough: no loop.",
        ),
        (
            partial(_two_ranks, share="mixed"),
            "the labels are not those of the images",
            "Cut both in the same way.",
        ),
        (
            partial(_two_ranks, share="mixed blocks"),
            "the labels are not those of the images",
            "Cut both in the same way.",
        ),
        (
            partial(_two_ranks, share="late"),
            "it begins one image too late, and image 0 is nobody's",
            "Ranks are counted from 0, and so are images: rank 0's share begins with image 0.",
        ),
        (
            lambda net, images, labels: _two_ranks(
                net, *(it[dist.get_rank() :: dist.get_world_size()] for it in (images, labels))
            ),
            "the share is cut once more",
            "Every `size`-th image, taken once.",
        ),
        (
            partial(_two_ranks, share="size long"),
            "it takes as many images as there are ranks, one block after the other",
            "A share is one `size`-th of the images: how many are those?",
        ),
        (partial(_two_ranks, share="of two"), TWO_ONLY, SIZE),
        (partial(_two_ranks, share="blocks of two"), TWO_ONLY, SIZE),
        (
            partial(_two_ranks, reduction="sum"),
            "the loss is a sum over the rank's images",
            "Leave `reduction` as it is: the mean.",
        ),
        (
            lambda *it: _two_ranks(*it, divide=dist.get_world_size()),
            "DDP divides by the number of ranks, and you divide again",
            "Leave the loss as it is: the mean over this rank's images.",
        ),
        (
            lambda *it: _two_ranks(*it, divide=1 / dist.get_world_size()),
            "the mean over the ranks comes out multiplied by their number",
            "When `backward()` returns, the mean is there: neither add it up again nor multiply the loss.",
        ),
        (
            lambda net, images, labels: (_two_ranks(net, images, labels), net.zero_grad()),
            "the gradient came, and was set to zero again",
            "What is set to zero after `backward()` is lost. Here it need not be: `net` comes without a gradient.",
        ),
        (
            lambda net, images, labels: DDP(net)(images[dist.get_rank() :: dist.get_world_size()]),
            "`net` has no gradient",
            "Compute the loss, and call its `backward()`. It is `net` itself that goes into DDP, and no copy of it.",
        ),
    ],
    hints={
        "target batch_size (0)": "`images[rank]` is one image. Every `size`-th of them, from that one on, is a share.",
        **HINTS,
        "scalar outputs": "What goes backward is one number, the loss: `F.cross_entropy(…)`.",
        "slice step cannot be zero": "From, to, step: from number `rank` on, in steps of `size`.",
        "does not require grad": "Without `no_grad`: `backward()` needs what the forward pass keeps.",
        "construction of DDP": "All ranks put their network into DDP: no `if` around it.",
        "'float' object": "`backward()` is a method of the loss, a tensor: without `.item()`.",
    },
    otherwise="A rank's share is one `size`-th of the images, with their own labels, and no other rank has any of it. "
    "It goes forward once, and `backward()` once.",
)


NO_PATH = "adding up over the ranks changes the loss, and no gradient:"
ADDED_UP = "added up by `all_reduce`"


def _net_in_ddp(rank: int, size: int) -> tuple[Any, Any, Any]:
    net, images, labels = _net_and_batch()
    mine = slice(rank, 48 if size > 2 else 64, size)  # not always 64 in all
    model = DDP(net)
    model.sums = noted_sums()  # not DDP's own
    return model, images[mine], labels[mine]


def _gradient_of(loss: Any, model: Any, images: Any, labels: Any) -> list[Any]:
    """The gradient; where it is not right, also whether something was added up over the ranks beside it."""
    loss.backward()
    gradient = model.module.layers[-1].bias.grad[:3].clone()
    told = [round(it, 3) for it in gradient.tolist()]
    if model.sums:
        model.zero_grad()
        _summed(model, images, labels).backward()
        told += [ADDED_UP] * (not torch.allclose(gradient, model.module.layers[-1].bias.grad[:3], atol=1e-3))
    return told


def _summed(model: Any, images: Any, labels: Any, factor: float = 0.0) -> Any:
    return F.cross_entropy(model(images), labels, reduction="sum") * (factor or dist.get_world_size())


def _added_up(loss: Any) -> Any:
    dist.all_reduce(loss)
    return loss


def _mean(model: Any, images: Any, labels: Any) -> Any:
    return F.cross_entropy(model(images), labels)


turn(
    "4.1.b",
    "A sum that stays a sum",
    _summed,
    _net_in_ddp,
    ranks=(2, 4),
    look=_gradient_of,
    heads=("gradient", "", ""),
    mistakes=[
        (lambda *it: _added_up(_summed(*it, factor=1)), f"{NO_PATH} DDP divides your sum by the number of ranks",
         "What undoes a division by N?"),
        (lambda *it: _added_up(_mean(*it)), f"{NO_PATH} that is the gradient of a mean", 'Ask for `reduction="sum"`.'),
        (lambda *it: _added_up(_summed(*it, factor=1)) / dist.get_world_size(),
         f"{NO_PATH} DDP divides by the number of ranks, and you divide again", "What undoes a division by N?"),
        (lambda *it: _added_up(_mean(*it)) / dist.get_world_size(),
         f"{NO_PATH} that is the gradient of a mean, and you divide again", 'Ask for `reduction="sum"`.'),
        (partial(_summed, factor=1), "DDP divides your sum by the number of ranks", "What undoes a division by N?"),
        (lambda *it: _summed(*it, factor=1) * dist.get_rank(), "each rank's sum is multiplied by its own number",
         "DDP divides by how many ranks there are: `dist.get_world_size()`."),
        (lambda *it: _summed(*it, factor=1) * (dist.get_rank() + 1), "each rank's sum is multiplied by its own number",
         "DDP divides by how many ranks there are: `dist.get_world_size()`."),
        (lambda *it: _summed(*it) / dist.get_world_size() ** 2, "DDP divides, and you divide again", "Multiply."),
        (_mean, "that is the gradient of a mean", 'Ask for `reduction="sum"`.'),
        (lambda *it: _mean(*it) * dist.get_world_size(), "that is the sum of the ranks' means, not of the images",
         'A mean divides by the images. Ask for `reduction="sum"`.'),
        (lambda *it: 64 * _summed(*it, factor=1), "multiplied by the number of images", "DDP divides by the ranks."),
        (lambda *it: 64 / dist.get_world_size() * _summed(*it, factor=1), "multiplied by the images of one rank",
         "DDP divides by the ranks, whatever the number of images."),
        (lambda model, *it: _summed(model.module, *it), "each rank has the gradient of its own images",
         "DDP averages where *it* is called: `model(images)`, and not `model.module`."),
        (lambda model, *it: _summed(model.module, *it, factor=1), "each rank has the gradient of its own images",
         "DDP averages where *it* is called: `model(images)`, and not `model.module`."),
        (lambda model, *it: _summed(model, *(of[dist.get_rank() :: dist.get_world_size()] for of in it)),
         "the share is cut once more", "`images` and `labels` are this rank's own already."),
        (partial(_summed, factor=2), "right on two ranks only", "`dist.get_world_size()` counts them."),
        (lambda *it: 64 * _mean(*it), "right for 64 images only", "`len(labels)` counts this rank's."),
        (lambda *it: _summed(*it) * dist.get_world_size(), "multiplied twice by the number of ranks",
         "DDP divides once."),
    ],
    hints={"attribute 'tolist'": "No gradient came. Compute the loss from `model(images)`, and leave it a tensor.",
           "scalar outputs": 'Return one number: `reduction="sum"`.',
           "valid value for reduction": 'A text, in quotation marks: `reduction="sum"`.',
           "'NoneType' object has no attribute 'backward'": "Return the loss: the check calls its `backward()`.",
           "'float' object": "Return the tensor: a Python number has no `backward()`.",
           "backward through the graph a second time": "Return the loss, and leave `backward()` to the check."},
    otherwise="Begin with the sum over this rank's images. What does DDP do to it, and what undoes that?",
)  # fmt: skip


def _images_and_seed(rank: int, size: int) -> tuple[int, int, int, int]:
    torch.manual_seed(rank)  # nobody has seeded the ranks alike
    return 67, 3, rank, size


def _with_seeds(share: Callable[..., Any], n: int, seed: int, rank: int, size: int) -> list[list[int]]:
    """Return a rank's images by a seed, by another, by the first once more, by one that is less by the rank, and more.

    By fourteen seeds in all: an order of all images leaves out others each time, so that each image has its turn.
    """
    seeds = [seed, seed + 1, seed, seed - rank, *range(seed + 2, seed + 14)]
    return [[int(it) for it in share(n, which, rank, size)] for which in seeds]


def _shared_out(by_seeds: list[list[int]], n: int, seed: int, rank: int, size: int) -> list[Any]:
    mine, other_seed, *_ = by_seeds
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, by_seeds)
    of_all, of_another_seed, again, less, *more = zip(*everyone, strict=True)
    if not {it for theirs in (*of_all, *of_another_seed) for it in theirs} <= {*range(n)}:
        return ["no such image", "…", "…"]
    if any(len(set(theirs)) < len(theirs) for theirs in of_all):
        return ["the same again", "…", "…"]
    if len(set().union(*of_all)) < sum(map(len, of_all)):  # whoever has the same as another
        if of_all != again:
            return [len(mine), "some", "another each time"]
        if len(set().union(*less)) == sum(map(len, less)):
            return [len(mine), "some", "another on each rank"]
    others = {it for other, theirs in enumerate(of_all) if other != rank for it in theirs}
    shuffled = "alike for each seed" if mine == other_seed else "yes"
    if shuffled == "yes" and len({(after - it) % n for it, after in pairwise(mine)}) == 1:
        shuffled = "only moved on"
    elif mine == sorted(mine):
        shuffled = "no" if mine == other_seed else "sorted again"
    elif shuffled == "yes" and set(mine) == set(other_seed):
        shuffled = "only among its own"
    elif shuffled == "yes" and len(mine) == n // size and not set(mine) & others:
        left_out = {*range(n)}.difference(
            *(theirs for by_seed in (of_all, of_another_seed, *more) for theirs in by_seed)
        )
        shuffled = "never all" if left_out else "yes"
    return [len(mine), len(set(mine) & others), shuffled]


def _my_images(n: int, seed: int, rank: int, size: int, whole: int = 0, shared: bool = True, share: bool = True) -> Any:
    order = torch.Generator()
    order.manual_seed(seed if shared else seed + rank)
    images = torch.randperm(n, generator=order)[: whole or n - n % size]
    return images[rank::size] if share else images


def _padded(n: int, seed: int, rank: int, size: int) -> list[int]:
    return list(DistributedSampler(range(n), size, rank, seed=seed))


turn(
    "4.1.c",
    "One order, shared out",
    _my_images,
    _images_and_seed,
    ranks=(2, 4),
    call=_with_seeds,
    look=_shared_out,
    heads=("images", "also elsewhere", "shuffled"),
    mistakes=[
        (partial(_my_images, whole=67), "not all ranks have the same number of images", "Leave the rest out first."),
        (partial(_my_images, shared=False), "each rank shuffles in an order of its own, and shares overlap by chance",
         "One seed on all ranks: `seed`, without the rank."),
        (lambda n, seed, rank, size: torch.randperm(n)[: n - n % size][rank::size],
         "the order does not come from `seed`: two calls with the same one give two orders",
         "`torch.randperm(n, generator=…)`, with a generator seeded with `seed`."),
        (partial(_my_images, whole=67, shared=False),
         "each rank shuffles in an order of its own, and the one image that does not come out even is not left out",
         "One seed on all ranks first: `seed`, without the rank."),
        (lambda n, seed, rank, size: torch.randperm(n)[rank::size],
         "the order does not come from `seed`, and the one image that does not come out even is not left out",
         "First `torch.randperm(n, generator=…)`, with a generator seeded with `seed`."),
        (partial(_my_images, share=False), "every rank has all images", "Every `size`-th, from number `rank` on."),
        (lambda n, seed, rank, size: torch.arange(n)[: n - n % size][rank::size], "nothing is shuffled",
         "`torch.randperm(n, generator=…)` is a shuffled 0, 1, …, n - 1."),
        (lambda n, seed, rank, size: torch.arange(n)[rank::size],
         "nothing is shuffled, and the one image that does not come out even is not left out",
         "Shuffle first: `torch.randperm(n, generator=…)` is a shuffled 0, 1, …, n - 1."),
        (lambda n, seed, rank, size: _my_images(n, seed, rank, size) + 1, "there is no image number `n`",
         "They are counted from 0, as `torch.randperm` does."),
        (lambda n, seed, rank, size: _my_images(n, seed, rank, size) // 2, "a rank has the same image more than once",
         "`torch.randperm` has each number once; `randint` and `choices` may draw one again."),
        (lambda n, seed, rank, size: _my_images(n, seed, rank, size).sort().values,
         "each rank's share is sorted again", "It is the order that is asked for: leave it shuffled."),
        (lambda n, seed, rank, size: _my_images(n, seed, 0, 1)[rank * (n // size) : n // size],
         "only rank 0 has a share: with the rank the block's beginning moves, and not its end",
         "Where a block ends, the next one begins."),
        (lambda n, seed, rank, size: _my_images(n, 0, rank, size), "the order is the same for each `seed`",
         "The next epoch needs another order. Seed the generator with `seed`."),
        (lambda n, seed, rank, size: _my_images(n, seed, 0, size), "every rank has rank 0's share",
         "From number `rank` on."),
        (lambda n, seed, rank, size: [rank + size * it for it in _my_images(n // size, seed, 0, 1).tolist()],
         "a rank has the same images for each `seed`, in another order", "Shuffle all, and then share out."),
        (lambda n, seed, rank, size: _my_images(n - n % size, seed, rank, size),
         "the rest is cut off before the shuffling: the last images are left out with every `seed`",
         "Shuffle all `n`, and then cut: then others are left out each time."),
        (lambda n, seed, rank, size: [(it + seed) % n for it in range(n)][: n - n % size][rank::size],
         "nothing is shuffled: with another `seed` the same row begins elsewhere",
         "`torch.randperm(n, generator=…)` is a shuffled 0, 1, …, n - 1."),
        (partial(_my_images, whole=66), "one image is left out, however many ranks there are",
         "What is left over is `n % size` images."),
        (_padded, "one image is on two ranks, so that the shares come out even",
         "What does not come out even is left out. (`DistributedSampler` does that with `drop_last=True`.)"),
        *((it, "all ranks together have `n // size` images at most", "That many are for each rank: share out all `n`.")
          for it in (lambda n, seed, rank, size: _my_images(n, seed, 0, 1)[: n // size][rank::size],
                     lambda n, seed, rank, size: _my_images(n // size, seed, rank, size))),
        (lambda n, seed, rank, size: _my_images(n // size, seed, 0, 1),
         "every rank shuffles the same part of the images", "Shuffle all `n`, and then share out."),
        (lambda n, seed, rank, size: _my_images(n, seed, 0, 1)[rank:size], "it takes numbers `rank` to `size` of them",
         "From, to, step: two colons make a step of the `size`."),
    ],
    hints={"'NoneType' object is not iterable": "Is there a `return`?",
           "'NoneType' object is not subscriptable": "What shuffles in place returns nothing.",
           "only one element tensors": "Return this rank's share, and no other's.",
           "generator=int": "`torch.Generator().manual_seed(seed)` is a generator; `seed` is a number."},
    otherwise="First one order of all images, each once, which depends on `seed` alone, so all ranks have the same; "
    "then shares that do not overlap.",
)  # fmt: skip
