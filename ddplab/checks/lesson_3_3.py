"""Checks of lesson 3.3, All-reduce and DDP by hand."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ddplab.checks.turns import turn, waiting
from ddplab.course.data import digits
from ddplab.course.messages import filmed
from ddplab.course.models import MLP
from ddplab.hardware import device

# ------------------------------------------------------------------ your turn


def pass_right(chunk: Any, place: Any) -> Any:
    """As the lesson's: send a chunk to the right, and return what comes from the left."""
    rank, size, arrived = dist.get_rank(), dist.get_world_size(), torch.empty_like(place)
    both = [dist.P2POp(dist.isend, chunk, (rank + 1) % size), dist.P2POp(dist.irecv, arrived, (rank - 1) % size)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return arrived


def _chunks(rank: int, size: int) -> tuple[Any, list[Any]]:
    x = filmed(torch.arange(1.0, size + 1, device=device()) * 10**rank)  # ones are rank 0's, tens rank 1's
    return x, [*x.chunk(size)]


def _first_half(adding_step: Callable[..., Any], x: Any, chunks: list[Any]) -> None:
    for step in range(len(chunks) - 1):
        adding_step(chunks, step)


def _sent_and_held(_: Any, x: Any, chunks: list[Any]) -> list[Any]:
    """How often this rank has sent, what `x` holds, and whether another tensor has come into the list."""
    ours = x.untyped_storage().data_ptr()
    new = any(isinstance(it, torch.Tensor) and it.untyped_storage().data_ptr() != ours for it in chunks)
    return [sum(it.name == "send" for it in x.messages), x, *["a new tensor in the list"] * new]


Number = Callable[[int, int], int]  # of a chunk, by rank and step


def _adds(
    chunks: list[Any],
    step: int,
    goes: Number = lambda rank, step: rank - step,
    comes: Number = lambda rank, step: rank - step - 1,
    put: str = "added",
    size: int = 0,
) -> None:
    rank, size = dist.get_rank(), size or dist.get_world_size()
    place = comes(rank, step) % size
    arrived = pass_right(chunks[goes(rank, step) % size], chunks[place])
    if put == "in the list":
        chunks[place] = chunks[place] + arrived
    elif put == "over it":
        chunks[place].copy_(arrived)
    elif put == "added":
        chunks[place] += arrived


def _all_steps(chunks: list[Any], step: int) -> None:
    for each in range(len(chunks) - 1):
        _adds(chunks, each)


def _numbers(goes: Number, comes: Number | None = None) -> Callable[..., None]:
    """Make the mistake of sending another chunk, or of adding to another one than comes."""
    return partial(_adds, goes=goes, comes=comes or (lambda rank, step: rank - step - 1))


GROWN = "In the first step rank r sends chunk r; then the one to which it has just added: a number less in each step."
LEFT = "What comes is what the left one sends, and its rank is one less: so is the number of its chunk."

turn(
    "3.3.a",
    "A step around the ring",
    _adds,
    _chunks,
    ranks=(3, 4),
    call=_first_half,
    look=_sent_and_held,
    heads=("messages", "chunk 0", "chunk 1", "chunk 2"),
    mistakes=[
        (lambda chunks, step: None, "nothing has moved", "`pass_right(chunk, place)`, once in each step."),
        (_numbers(lambda rank, step: rank, lambda rank, step: rank - 1), "rank r sends its chunk r in every step",
         GROWN),
        (_numbers(lambda rank, step: rank), "rank r sends its chunk r in every step", GROWN),
        (_numbers(lambda rank, step: step, lambda rank, step: step), "all ranks send the chunk with the step's number",
         "In the first step rank 0 sends chunk 0, rank 1 sends chunk 1: `rank` stands in it, too."),
        (_numbers(lambda rank, step: rank + step, lambda rank, step: rank + step - 1),
         "in the second step rank r sends a chunk that it has not just added to", GROWN),
        (_numbers(lambda rank, step: rank, lambda rank, step: rank), "rank r sends its chunk r, and adds to it", LEFT),
        (_numbers(lambda rank, step: rank - step, lambda rank, step: rank - step + 1),
         "what comes from the left is added to the chunk that the right one sends", LEFT),
        (_numbers(lambda rank, step: rank - step, lambda rank, step: rank - step),
         "what comes is added to the chunk that has just gone out", LEFT),
        (_numbers(lambda rank, step: rank - step, lambda rank, step: rank - 1),
         "what comes is added to the same chunk in every step", LEFT),
        (_numbers(lambda rank, step: rank - step - 1, lambda rank, step: rank - step),
         "what goes and what comes have changed places", "In the first step rank r sends chunk r."),
        (_numbers(lambda rank, step: rank - step + 1, lambda rank, step: rank - step),
         "around it goes, and it begins with chunk r + 1", "In the first step rank r sends chunk r."),
        (_numbers(lambda rank, step: rank - step - 1, lambda rank, step: rank - step - 2),
         "around it goes, and it begins with chunk r - 1", "In the first step rank r sends chunk r."),
        (partial(_adds, put="over it"), "what comes takes the place of what was there", "It is added: `+=`."),
        (partial(_adds, put="in the list"), "a new tensor stands in the list, and `x` is as it was",
         "`chunks[i] = …` gives the list another tensor. `chunks[i] += …` adds to the one that is there."),
        (partial(_adds, put="nowhere"), "the chunks are passed on, and what comes is added nowhere",
         "`pass_right` returns it: `chunks[…] += pass_right(…)`."),
        (_all_steps, "each step goes through all steps", "One `pass_right`; `step` says in which step it is."),
        (partial(_adds, size=3), "right on three ranks only", "`size` counts them."),
        (waiting(lambda chunks, step: dist.get_rank() and _adds(chunks, step)), "rank 0 sends nothing",
         "All ranks do the same: each sends to the right and hears from the left."),
    ],
    hints={
        "list index out of range": "Chunks are numbered from 0 to `size - 1`: count around with `% size`.",
        "has no attribute": "`pass_right` takes chunks and no numbers: `chunks[goes]`.",
        "not defined": "The cells above define it: run them first.",
        "required positional argument": "Two are needed: the chunk that goes, and the chunk to which it is added.",
    },
    otherwise="Take three ranks on paper. In each step, one `pass_right`: which chunk does rank 0 send, which comes?",
)  # fmt: skip


def _mean(p: Any, all_reduce: Any, before: float = 1, after: float = 0) -> None:
    p.grad /= before
    all_reduce(p.grad)
    p.grad /= after or dist.get_world_size()


def _average(
    net: Any, before: int = 1, after: int = 0, which: slice = slice(None), reduce: Any = dist.all_reduce
) -> None:
    for p in list(net.parameters())[which]:
        _mean(p, reduce, before, after)


def _divide_the_last(net: Any) -> None:
    _average(net, after=1)
    [*net.parameters()][-1].grad /= dist.get_world_size()


INSIDE = "Is the line inside of the loop? What stands below it is done once, to the last one."


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
    "3.3.b",
    "A training step by hand",
    _one_step,
    _net_batch_and_rate,
    ranks=(2, 4),
    look=_rows_and_change,
    heads=("rows", "change of weights", "", "", ""),
    mistakes=[
        (partial(_one_step, average=id), "each rank goes by its own gradient, and the ranks drift apart",
         "Between `backward()` and the step they have to meet: `dist.all_reduce(p.grad)`."),
        (partial(_one_step, average=partial(_average, reduce=id)),
         "each rank goes by its own gradient, divided by the ranks",
         "Gradients have to meet: `dist.all_reduce(p.grad)`. `backward()` does not go through one of the loss."),
        (_adds_up_weights, "each rank takes its own step, and the weights are added up",
         "Gradients are averaged between `backward()` and the step: `dist.all_reduce(p.grad)`."),
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
        (partial(_one_step, zero=False, average=partial(_average, after=1)),
         "the gradients of the step before are in it, and they are added up and not averaged",
         "`net.zero_grad()` first; and a mean loss has a mean gradient: divide by the number of ranks."),
        (partial(_one_step, zero=False, average=id),
         "the gradients of the step before are in it, and each rank goes by its own",
         "`net.zero_grad()` first; and after `backward()` comes `dist.all_reduce(p.grad)`, divided by `size`."),
        (partial(_one_step, average=partial(_average, after=1)), "the gradients are added up, and not averaged",
         "A mean loss has a mean gradient: divide by the number of ranks."),
        (lambda *it: _one_step(*it, average=lambda net: _average(net, before=dist.get_world_size())),
         "it divides twice by the number of ranks", "Once, before or after the sum."),
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
    otherwise="Has each rank a share of its own, one `size`-th of the images, with their own labels? Are the old "
    "gradients gone, and the new ones averaged?",
)  # fmt: skip


class _Net(torch.nn.Module):
    """A weight and a bias, with gradients that tell whose they are; `sums` counts calls of its `all_reduce`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = (
            torch.nn.Parameter(torch.ones(n, device=device()) * 10 ** dist.get_rank()) for n in (2, 1)
        )
        self.weight.grad = torch.tensor([1.0, 2.0], device=device()) * 10 ** dist.get_rank()
        self.bias.grad = torch.tensor([4.0], device=device()) * 10 ** dist.get_rank()
        self.sums = 0

    def all_reduce(self, x: Any, **options: Any) -> None:
        self.sums += 1
        dist.all_reduce(x, **options)


def _hooked(average: Any, net: Any) -> Any:
    """The network inside of a wrapper whose hooks call `average`."""
    for tensor in net.state_dict().values():
        dist.broadcast(tensor, src=0)
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda p: average(p, dist.all_reduce))
    return net


def _trained(wrap: Any) -> Any:
    """The weights after three steps, each rank with a share and a beginning of its own, in float64.

    So is a tensor of the learner's own that names no dtype.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return _after_three_steps(wrap)
    finally:
        torch.set_default_dtype(before)


def _after_three_steps(wrap: Any) -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    net = MLP(hidden=8).to(device())
    model, optimizer = wrap(net), torch.optim.SGD(net.parameters(), lr=0.5)
    images, labels = (tensor.to(device()) for tensor in digits().tensors)
    for step in range(3):
        mine = slice(64 * step + rank, 64 * (step + 1), size)
        optimizer.zero_grad()
        F.cross_entropy(model(images[mine].double()), labels[mine]).backward()
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(net.parameters()).detach()


def _both_ways(average: Any, net: Any) -> Any:
    """Average the net's gradients; if all ranks' are right, return to how many digits it trains as torch's DDP does."""
    size, right = dist.get_world_size(), torch.ones((), device=device())
    for p, brought in ((net.weight, [1.0, 2.0]), (net.bias, [4.0])):
        average(p, net.all_reduce)
        mean = torch.tensor(brought, device=device()) * sum(10**rank for rank in range(size)) / size
        right *= p.grad is not None and torch.allclose(p.grad, mean)
    dist.all_reduce(right, op=dist.ReduceOp.MIN)
    if not right:
        return "none"
    mine, torchs = (_trained(wrap) for wrap in (partial(_hooked, average), torch.nn.parallel.DistributedDataParallel))
    apart = ((mine - torchs).norm() / torchs.norm()).item()
    return min(12, int(-math.log10(max(apart, 1e-16))))


WEIGHTS_CHANGED = "the weights have changed"


def _gradients(same: Any, net: Any) -> list[Any]:
    changed = any((p != 10 ** dist.get_rank()).any() for p in net.parameters())
    return [net.weight.grad, net.bias.grad, net.sums, same, *[WEIGHTS_CHANGED] * changed]


def _of_weights(p: Any, all_reduce: Any, after: int = 1) -> None:
    all_reduce(p.data)
    p.data /= after


def _into_the_weights(p: Any, all_reduce: Any) -> None:
    all_reduce(p.grad)
    p.data = p.grad / dist.get_world_size()


def _through(p: Any, all_reduce: Any, dtype: Any) -> None:
    total = p.grad.to(dtype)
    all_reduce(total)
    p.grad.copy_(total / dist.get_world_size())


def _all_reduces_weights(p: Any, all_reduce: Any) -> None:
    p.grad /= dist.get_world_size()
    all_reduce(p.data)


HOW_MANY = "How many ranks are there? `dist.get_world_size()`."

turn(
    "3.3.c",
    "The hook of your own DDP",
    _mean,
    lambda rank, size: (_Net(),),
    ranks=(3, 2),
    call=_both_ways,
    look=_gradients,
    heads=("weight.grad", "", "bias.grad", "calls of all_reduce", "digits as torch's own DDP"),
    mistakes=[
        (lambda p, all_reduce: None, "the gradients are as they were",
         "Change `p.grad` itself, in place: not `p`, and not a copy."),
        (partial(_mean, after=1), "the gradients are added up, and are no mean",
         "What makes a mean of a sum? In place: after `g = g / …` it is another tensor that has the mean."),
        (lambda p, all_reduce: _mean(p, id), "each rank divides its own gradients, and nobody adds up",
         "They have to meet: `all_reduce(p.grad)`, of the gradient itself and no copy."),
        (_all_reduces_weights, "the weights have changed, and each rank's gradients are only divided",
         "`p.grad` is to be added up, and not `p`."),
        (_of_weights, "the weights have changed, and the gradients are as they were", "`p.grad`, and not `p`."),
        (lambda p, all_reduce: _of_weights(p, all_reduce, dist.get_world_size()),
         "the weights have changed, and the gradients are as they were", "`p.grad`, and not `p`."),
        (_into_the_weights, "the gradients are added up, and their mean is put into the weights",
         "`p.grad` is to hold it, and not `p`."),
        (lambda p, all_reduce: _mean(p, all_reduce, after=dist.get_rank() or 1e-40),
         "each rank divides by its own number", HOW_MANY),
        (lambda p, all_reduce: _mean(p, all_reduce, after=len(p)), "it divides by how many numbers there are",
         "A mean over the ranks: `dist.get_world_size()`."),
        (lambda p, all_reduce: _mean(p, all_reduce, dist.get_world_size()), "it divides twice",
         "Once, before or after the sum."),
        (partial(_mean, after=3), "it divides by 3", HOW_MANY),
        (partial(_mean, after=2), "it divides by 2", HOW_MANY),
        (lambda p, all_reduce: all_reduce(p.grad / dist.get_world_size()),
         "the mean is in a new tensor, and `p.grad` is as it was", "In place: `p.grad /= …`."),
        (lambda p, all_reduce: _mean(p, partial(all_reduce, op=dist.ReduceOp.MAX), after=1),
         "the gradients are the largest of all ranks", "A mean is made of a sum, which is what comes without `op`."),
        (lambda p, all_reduce: _mean(p, partial(dist.broadcast, src=0), after=1), "all hold rank 0's gradients",
         "Each rank has seen images of its own, and all count. Which collective adds up?"),
        (lambda p, all_reduce: _mean(p, partial(dist.reduce, dst=0)), "only rank 0 has the mean",
         "`all_reduce`, for all."),
        *((partial(_through, dtype=getattr(torch, it)), f"the mean is right, to the digits of {it}: the check trains "
           "in float64, too", "Give a tensor of your own the gradient's `dtype`, as `torch.zeros_like(p.grad)` does.")
          for it in ("float32", "float16", "bfloat16")),
        (lambda p, all_reduce: _mean(p, dist.all_reduce), "right, but not by the `all_reduce` that is given",
         "Call the one that is given: below it will be your ring."),
        (waiting(lambda p, all_reduce: dist.get_rank() or _mean(p, all_reduce)),
         "only rank 0 adds up, and waits for the others", "A collective is a call that all ranks make."),
    ],
    hints={"for /: 'NoneType'": "Is it what `all_reduce` returns? That is nothing: it changes what it is given."},
    otherwise="Add `p.grad` up over the ranks, by `all_reduce`, and divide it by their number.",
)  # fmt: skip
