"""Checks of lesson 3.3, All-reduce and DDP by hand."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ddplab.checks.turns import turn, waiting
from ddplab.course.data import digits
from ddplab.course.messages import noted_messages
from ddplab.course.models import MLP
from ddplab.hardware import device

HINTS = {
    "receives from itself": "Rank 0 receives, and from all others: `range(1, size)`.",
    "SIGABRT": "gloo ends a rank to which more comes than it has room for, or less: `torch.empty_like(x)`.",
    "Boolean value of Tensor": "`send` and `recv` take the tensor first, and then the rank.",
    "Pair is not connected": "Does rank 0 wait for a message from itself? `range(1, size)`.",
    "there is no rank": "They are numbered from 0 to N - 1: `range(1, size)` are all but rank 0.",
    "Expected parameter `tensor`": "`send` and `recv` are given a tensor; `recv` fills it, and returns no tensor.",
    "waits in recv": "Is there a `send` for each `recv`, in the order in which they wait for each other?",
    "waits in send": "Is there a `recv` for each `send`? `range(1, size)` are all but rank 0.",
}

# ------------------------------------------------------------------ your turn


book: list[int] = []  # as the lesson's: bytes of each message that this rank has sent


def _send(x: Any, to: int) -> None:
    dist.send(x, to)
    book.append(x.nbytes)


def _book(fn: Any) -> list[int]:
    """Return the book that a function's `send` keeps; an empty one where it knows of none."""
    fn = inspect.unwrap(fn)
    while isinstance(fn, partial):
        fn = fn.func
    return getattr(fn, "__globals__", {}).get("book", [])


def _with_its_book(all_reduce: Callable[..., Any], x: Any) -> None:
    _book(all_reduce).clear()
    all_reduce(x)
    x.booked = len(_book(all_reduce))


def _noting(rank: int, size: int) -> tuple[Any]:
    torch.use_deterministic_algorithms(True)  # so that `torch.empty` is full of NaN
    x = torch.tensor([1.0, 2.0], device=device()) * 10**rank  # ones are rank 0's, tens rank 1's
    x.noted = noted_messages()
    return (x,)


def _sum_and_way(_: Any, x: Any) -> list[Any]:
    names = [message.name for message in x.noted]
    sent = dist.get_world_size() - 1 if dist.get_rank() == 0 else 1  # what goes by rank 0
    if "send" not in names or {*names} - {"send", "recv"}:
        return [x, "no" if {*names} - {"send", "recv"} else "nothing sent"]
    return [x, "no book" if x.booked < names.count("send") else "yes" if x.booked == sent else "another way"]


def _plain(x: Any, back: str = "at the end", into: str = "part", over: int = 1, own: int = 1, hand: str = "x",
           send: Callable[..., None] = _send) -> None:  # fmt: skip
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        send(x, 0)
        if back != "never":
            dist.recv(x, 0)
        return
    x *= own
    for other in range(1, size):
        part = x if into == "itself" else torch.empty_like(x)
        dist.recv(x if into == "x" else part, other)
        x += part if into in ("part", "itself") else 0
        if back == "at once":
            send(x, other)
    x += part * {"last": 1, "all last": size - 1}.get(into, 0)
    x /= over
    for other in range(1, size if back == "at the end" else 0):
        send(x if hand == "x" else part, other)


def _nobody_takes_it(x: Any) -> None:
    _plain(x, back="never" if dist.get_rank() else "at the end")


def _hands_out_first(x: Any) -> None:
    for other in range(1, dist.get_world_size() if dist.get_rank() == 0 else 0):
        _send(x, other)
    _plain(x, back="never")


def _receives_first(x: Any) -> None:
    if dist.get_rank() > 0:
        dist.recv(x, 0)
        _send(x, 0)
    else:
        _plain(x)


def _keeps_its_own(x: Any) -> None:
    own = x.clone()
    _plain(x)
    if dist.get_rank() == 0:
        x.copy_(own)


def _keeps_the_sum(x: Any) -> None:
    _plain(x, back="at the end" if dist.get_rank() else "never")


def _added_again(x: Any) -> None:
    own = x.clone()
    _plain(x)
    if dist.get_rank() > 0:
        x += own


def _received_elsewhere(x: Any) -> None:
    _plain(x if dist.get_rank() == 0 else x.clone())


def _into_another(x: Any) -> None:
    _plain(x.clone())


def _along_a_chain(x: Any) -> None:
    rank, last, came = dist.get_rank(), dist.get_world_size() - 1, torch.empty_like(x)
    if rank > 0:
        dist.recv(came, rank - 1)
        x += came
    if rank < last:
        _send(x, rank + 1)
        dist.recv(x, rank + 1)
    if rank > 0:
        _send(x, rank - 1)


BY_RANK_0 = "The plain way: all others send to rank 0; it adds up, and sends the sum to each of them."

turn(
    "3.3.a",
    "All-reduce, the plain way",
    _plain,
    _noting,
    ranks=(3, 2),
    call=_with_its_book,
    look=_sum_and_way,
    heads=("x", "", "by send and recv"),
    device="cpu",
    mistakes=[
        (lambda x: x, "nothing has moved", "Rank 0 does one thing, all others do another: `if rank > 0:`."),
        (partial(_plain, back="never"), "only rank 0 has the sum", "It sends it back, and the others receive it."),
        (partial(_plain, back="at once"), "rank 1 gets a sum before rank 2's part is in it",
         "First collect from all, and then hand out: two loops."),
        (partial(_plain, into="x"), "what comes overwrites what rank 0 held",
         "Receive into a tensor of its own, `torch.empty_like(x)`, and add that."),
        (partial(_plain, into="itself"), "what comes overwrites what rank 0 held, and is then added to itself",
         "`part = x` is a second name for `x`, and no second tensor: `torch.empty_like(x)`."),
        (partial(_plain, own=0), "rank 0's own numbers are missing", "It adds what comes to its own `x`."),
        (partial(_plain, own=2), "rank 0's own numbers are added twice", "They are in its `x` already."),
        (_keeps_its_own, "rank 0 hands the sum out, and its own `x` is as it was",
         "`x = x + part` makes another tensor. `x += part` adds to the one that is there."),
        (partial(_plain, over=3), "it is the mean, and the sum is asked for", "An all-reduce adds up, no more."),
        (lambda x: dist.all_reduce(x), "a collective of torch's does it", "Here you build it: `send` and `dist.recv`."),
        (partial(_plain, send=dist.send), "the sum is right, and the book knows of no message",
         "`send(x, to)` of the cell above keeps it; what follows reads it."),
        (_along_a_chain, "the sum is right, and it has come another way",
         BY_RANK_0),
        (partial(_plain, hand="part"), "rank 0 hands out what came last, and not the sum", "`send(x, other)`"),
        (partial(_plain, into="last"), "only the last that came is added", "Add each, inside of the loop."),
        (partial(_plain, into="all last"), "what came last is added as often as there are others",
         "One tensor in a list is the same one each time: `torch.empty_like(x)` inside of the loop makes new ones."),
        (_received_elsewhere, "the sum comes to all, and only rank 0's `x` holds it",
         "Receive into `x` itself: `dist.recv(x, 0)`. `x = …` gives the name to another tensor."),
        (_into_another, "the sum is in another tensor, and `x` is as it was",
         "`x += part` on rank 0, and `dist.recv(x, 0)` on the others."),
        (waiting(_nobody_takes_it, "rank 0", "waits in send"), "rank 0 sends the sum, and nobody receives it",
         "All but rank 0 send, and then receive."),
        (waiting(_keeps_the_sum, "rank 1", "waits in recv"), "rank 0 has the sum, and sends it to nobody",
         "The others wait for it: `send(x, other)`."),
        (_added_again, "all but rank 0 add the sum to their own numbers",
         "What comes back is the sum of all: receive it into `x` itself."),
        (waiting(_receives_first, "rank 0", "waits in recv"), "all receive first, and nobody has sent",
         "Who sends first? All but rank 0."),
        (waiting(_hands_out_first, "rank 0", "waits in send"), "both send first, and nobody receives",
         "Who receives first? Rank 0."),
    ],
    hints=HINTS,
    otherwise=BY_RANK_0,
)  # fmt: skip


class _Net(torch.nn.Module):
    """A weight, a bias and a frozen parameter, with gradients that tell whose they are."""

    def __init__(self) -> None:
        super().__init__()
        each = torch.ones(4, device=device()) * 10 ** dist.get_rank()
        self.weight, self.bias, self.frozen = map(torch.nn.Parameter, each.split([2, 1, 1]))
        self.frozen.requires_grad_(False)
        self.weight.grad = torch.tensor([1.0, 2.0], device=device()) * 10 ** dist.get_rank()
        self.bias.grad = torch.tensor([4.0], device=device()) * 10 ** dist.get_rank()


WEIGHTS_CHANGED = "the weights have changed"


def _gradients(_: Any, net: Any) -> list[Any]:
    held = ["none" if p.grad is None else p.grad for p in (net.weight, net.bias, net.frozen)]
    changed = any((p != 10 ** dist.get_rank()).any() for p in net.parameters())
    return [*held, *[WEIGHTS_CHANGED] * changed]


def _average(
    net: Any, before: int = 1, after: int = 0, which: slice = slice(None), frozen: bool = False, reduce: Any = None
) -> None:
    for p in list(net.parameters())[which]:
        if frozen and p.grad is None:
            p.grad = torch.zeros_like(p)
        if p.grad is not None:
            p.grad /= before
            (reduce or dist.all_reduce)(p.grad)
            p.grad /= after or dist.get_world_size()


def _into_the_weights(net: Any) -> None:
    _average(net, after=1)
    for p in net.parameters():
        p.data = p.data if p.grad is None else p.grad / dist.get_world_size()


def _all_reduces_weights(net: Any) -> None:
    _average(net, reduce=id)
    for p in net.parameters():
        dist.all_reduce(p.data)


def _by_length(net: Any) -> None:
    for p in net.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= len(p)


def _divide_the_last(net: Any) -> None:
    _average(net, after=1)
    [p for p in net.parameters() if p.grad is not None][-1].grad /= dist.get_world_size()


INSIDE = "Is the line inside of the loop? What stands below it is done once, to the last one."

turn(
    "3.3.b",
    "Everybody's mean gradient",
    _average,
    lambda rank, size: (_Net(),),
    ranks=(3, 2),
    look=_gradients,
    heads=("weight.grad", "", "bias.grad", "frozen"),
    mistakes=[
        (lambda net: net, "the gradients are as they were",
         "Change `p.grad` itself, in place: not `p`, and not a copy."),
        (partial(_average, after=1), "the gradients are added up, and are no mean",
         "What makes a mean of a sum? In place: after `g = g / …` it is another tensor that has the mean."),
        (partial(_average, reduce=id), "each rank divides its own gradients, and nobody adds up",
         "They have to meet: `dist.all_reduce(p.grad)`, of the gradient itself and no copy."),
        (_all_reduces_weights, "the weights have changed, and each rank's gradients are only divided",
         "`p.grad` is to be added up, and not `p`."),
        (lambda net: [dist.all_reduce(p.data) for p in net.parameters()],
         "the weights have changed, and the gradients are as they were", "`p.grad`, and not `p`."),
        (lambda net: [dist.broadcast(p.data, 0) for p in net.parameters()],
         "all have rank 0's weights now, and the gradients are as they were", "`p.grad`; `all_reduce` adds up."),
        (_into_the_weights, "the gradients are added up, and their mean is put into the weights",
         "`p.grad` is to hold it, and not `p`."),
        (lambda net: _average(net, after=dist.get_rank() or 1e-40), "each rank divides by its own number",
         "How many ranks are there? `dist.get_world_size()`."),
        (_by_length, "each gradient is divided by how many numbers it has",
         "A mean over the ranks: `dist.get_world_size()`."),
        (lambda net: _average(net, before=dist.get_world_size()), "it divides twice", "Once, before or after the sum."),
        (lambda net: _average(net, after=dist.get_world_size() ** dist.get_world_size()),
         "it divides once for each rank", "Once in all, before or after the sum."),
        (partial(_average, which=slice(1)), "only the first parameter is averaged", "A loop over all parameters."),
        (partial(_average, before=3, after=1, reduce=partial(dist.broadcast, src=0)),
         "all hold a third of rank 0's gradients", "All ranks' gradients count. Which collective adds up?"),
        (_divide_the_last, "only the last gradient is divided", INSIDE),
        (partial(_average, after=3), "it divides by 3", "How many ranks are there? `dist.get_world_size()`."),
        (partial(_average, after=2), "it divides by 2", "How many ranks are there? `dist.get_world_size()`."),
        (lambda net: _average(net, after=1 / dist.get_world_size()), "the sum is multiplied by the number of ranks",
         "A mean is smaller than the sum: divide."),
        (partial(_average, after=1, reduce=partial(dist.all_reduce, op=dist.ReduceOp.MAX)),
         "the gradients are the largest of all ranks", "A mean is made of a sum, which is what comes without `op`."),
        (partial(_average, frozen=True), "the frozen parameter has a gradient now", "Pass over those that have none."),
        (partial(_average, after=1, reduce=partial(dist.broadcast, src=0)), "all hold rank 0's gradients",
         "Each rank has seen images of its own, and all count. Which collective adds up?"),
        (partial(_average, reduce=partial(dist.reduce, dst=0)), "only rank 0 has the mean", "`all_reduce`, for all."),
        (waiting(lambda net: dist.get_rank() or _average(net)), "only rank 0 adds up, and waits for the others",
         "A collective is a call that all ranks make."),
    ],
    hints={"for /: 'NoneType'": "Is it what `all_reduce` returns? That is nothing. Or a frozen parameter's `.grad`?",
           "'NoneType'": "The frozen parameter's `.grad` is None. Pass over it: `if p.grad is not None:`.",
           "Boolean value of Tensor": "Ask `p.grad is not None`.",
           "assign a gradient of size": "Over the ranks goes the mean: each number keeps its place.",
           "Expected parameter `tensor`": "The frozen parameter's `.grad` is None. Pass over it."},
    otherwise="On all ranks, for each `p.grad` that there is: add it up over the ranks, and divide it by their number.",
)  # fmt: skip


def _net_batch_and_rate(*_: int) -> tuple[Any, Any, Any, float]:
    """A small network alike on all ranks, which writes down how many rows it is given, and has an old gradient."""
    net = MLP(hidden=8).to(device())
    torch.nn.init.zeros_(net.layers[-1].bias)
    for p in net.parameters():
        p.grad = torch.full_like(p, 0.1)
    net.rows, net.before = [], _one_of_each(net)
    net.register_forward_pre_hook(lambda _, inputs: net.rows.append(len(inputs[0])))
    images, labels = (tensor[:64].to(device()) for tensor in digits().tensors)
    return net, images, labels, 0.6  # not what the lesson has: who forgets it does not step as far


ONE = (354, 5, 29, 6)  # of each parameter the number that a right step moves farthest


def _one_of_each(net: Any) -> Any:
    return torch.stack([p.detach().flatten()[one] for p, one in zip(net.parameters(), ONE, strict=True)])


def _rows_and_change(_: Any, net: Any, *__: Any) -> list[Any]:
    return [sum(net.rows), _one_of_each(net) - net.before]


def _one_step(
    net: Any,
    images: Any,
    labels: Any,
    lr: float,
    share: str = "own",
    named: str = "",
    zero: bool = True,
    average: Any = _average,
    rate: Any = lambda lr: lr,
    moved: slice = slice(None),
) -> None:
    """A step, with one thing done otherwise at a time; named: whose labels the images get, where not their own."""
    rank, size = dist.get_rank(), dist.get_world_size()
    each = 64 // size
    cuts = {"own": slice(rank, None, size), "first": slice(0, None, size), "all": slice(None), "block": slice(each),
            "piece": slice(rank * each, (rank + 1) * each), "other's": slice(size - 1 - rank, None, size),
            "late": slice(rank + 1, None, size), "of two": slice(rank, None, 2),
            "block of two": slice(32 * rank, 32 * rank + 32),
            "cut": slice(rank, size), "size long": slice(rank * size, (rank + 1) * size),
            "from rank on": slice(rank, rank + each)}  # fmt: skip
    if zero:
        net.zero_grad()
    F.cross_entropy(net(images[cuts[share]]), labels[cuts[named or share]]).backward()
    average(net)
    with torch.no_grad():
        for p in [*net.parameters()][moved]:
            p -= rate(lr) * p.grad


def _first_labels(net: Any, images: Any, labels: Any, lr: float) -> None:
    size = dist.get_world_size()
    _one_step(net, images, labels[: 64 // size].repeat_interleave(size), lr)


def _adds_up_weights(net: Any, images: Any, labels: Any, lr: float) -> None:
    _one_step(net, images, labels, lr, average=id)
    for p in net.parameters():
        dist.all_reduce(p.data)


def _by_adam(net: Any) -> None:
    _average(net)
    for p in net.parameters():
        p.grad = p.grad.sign()


TWO_ONLY = "right on two ranks only", "`size` is the number of ranks: a share is one `size`-th of the images."
NOT_THEIRS = "the labels are not those of the images", "Cut both in the same way."
turn(
    "3.3.c",
    "A training step by hand",
    _one_step,
    _net_batch_and_rate,
    ranks=(2, 4),
    look=_rows_and_change,
    heads=("rows", "change of weights", "", "", ""),
    mistakes=[
        (partial(_one_step, average=id), "each rank goes by its own gradient, and the ranks drift apart",
         "Between `backward()` and the step they have to meet: `average_gradients`."),
        (partial(_one_step, average=partial(_average, reduce=id)),
         "each rank goes by its own gradient, divided by the ranks",
         "Gradients have to meet: `average_gradients`. `backward()` does not go through an `all_reduce` of the loss."),
        (_adds_up_weights, "each rank takes its own step, and the weights are added up",
         "Gradients are averaged between `backward()` and the step: `average_gradients`."),
        (partial(_one_step, average=_by_adam), "each weight moves by `lr`, as with Adam",
         "Gradient descent: `p -= lr * p.grad`, or `torch.optim.SGD`."),
        (partial(_one_step, share="of two"), *TWO_ONLY),
        (partial(_one_step, share="block of two"), *TWO_ONLY),
        (partial(_one_step, share="late"), "it begins one image too late, and image 0 is nobody's",
         "Ranks are counted from 0, and so are images: rank 0's share begins with image 0."),
        (partial(_one_step, share="all"), "every rank computes all 64 images: the step is right, and nothing is won",
         "Rank r takes every `size`-th image, from image r on."),
        (partial(_one_step, share="first"), "all ranks take the same images", "The share depends on the `rank`."),
        (partial(_one_step, share="block"), "all ranks take the same images", "The share depends on the `rank`."),
        (_first_labels, *NOT_THEIRS),
        (partial(_one_step, named="piece"), *NOT_THEIRS),
        (partial(_one_step, share="piece", named="own"), *NOT_THEIRS),
        (partial(_one_step, share="block", named="own"), *NOT_THEIRS),
        (partial(_one_step, named="block"), *NOT_THEIRS),
        (partial(_one_step, named="other's"), *NOT_THEIRS),
        (partial(_one_step, named="first"), *NOT_THEIRS),
        (partial(_one_step, moved=slice(-1, None)), "only the last parameter moves", INSIDE),
        (partial(_one_step, average=_divide_the_last), "only the last parameter's gradient is divided", INSIDE),
        (partial(_one_step, average=partial(_average, which=slice(-1, None))),
         "only the last parameter's gradient is averaged", INSIDE),
        (partial(_one_step, share="cut"), "it takes the images between number `rank` and number `size`",
         "From, to, step: two colons make a step of the `size`."),
        (partial(_one_step, share="size long"), "it takes as many images as there are ranks, one block after the other",
         "A share is one `size`-th of the images: how many are those?"),
        (partial(_one_step, share="from rank on"), "each rank begins one image further on: nearly all are the same",
         "Every `size`-th image is a rank's, from image `rank` on; or each rank has a block of its own."),
        (partial(_one_step, rate=lambda lr: 64 / dist.get_world_size() * lr), "the loss is a sum over a rank's images",
         "Leave `reduction` as it is: the mean."),
        (partial(_one_step, rate=lambda lr: 0 if dist.get_rank() else lr), "only rank 0 takes the step",
         "Each rank has weights of its own."),
        (partial(_one_step, zero=False), "the gradients of the step before are in it", "`net.zero_grad()`"),
        (partial(_one_step, average=partial(_average, after=1)), "the gradients are added up, and not averaged",
         "A mean loss has a mean gradient: divide by the number of ranks."),
        (lambda *it: _one_step(*it, average=lambda net: _average(net, before=dist.get_world_size())),
         "it divides twice by the number of ranks", "`average_gradients` has divided already."),
        (partial(_one_step, rate=lambda lr: 1), "the step forgets `lr`", "`p -= lr * p.grad`"),
        (partial(_one_step, rate=lambda lr: 0.5), "it steps by 0.5, and `lr` is another here", "`p -= lr * p.grad`"),
        (partial(_one_step, rate=lambda lr: 0.1), "it steps by 0.1, and `lr` is another here", "`p -= lr * p.grad`"),
        (partial(_one_step, rate=lambda lr: -lr), "the step goes uphill", "Against the gradient: `-=`."),
        (partial(_one_step, rate=lambda lr: 0), "the weights have not moved",
         "`p -= lr * p.grad`, under `torch.no_grad()`, while the gradient of this step is there."),
    ],
    hints={"batch_size": "Cut the labels in the same way as the images.",
           "'NoneType'": "There is no gradient: `backward()` makes it, and `zero_grad()` belongs before it.",
           "a leaf Variable that requires grad": "Change weights under `with torch.no_grad():`."},
    otherwise="A rank's share is one `size`-th of the images, with their own labels, and no other rank has any of it.",
)  # fmt: skip
