"""Checks of lesson 4.9, Twelve puzzles to DDP: the last six, from a network's start to an unused head."""

import contextlib
import inspect
import os
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddplab.checks.common import kind
from ddplab.checks.turns import cells, turn, waiting
from ddplab.course.messages import noted_sums
from ddplab.hardware import device

PIECES = "Cut the vector into pieces of `grad.numel()` numbers, each with its shape back."
FLAT = "`torch.cat` makes one vector of gradients of any size, once each is flattened."
TWO_ONLY, COUNTS = "right on two ranks only", "`dist.get_world_size()` counts them."
IN_PLACE = "`dist.all_reduce` changes the tensor that it is given, and returns nothing."
OTHER_HOOK = "(In a hook of `register_hook`.)"
SENDS = "it sends although the switch is off: "
NOT_ASKED = f"{SENDS}the switch is asked once, when hooking, or never, and no hook asks it"
ASK = 'Ask inside the hook, each time it is called: `switch["send"]`, of the very dictionary that comes back.'
NOT_HEEDED = f'{SENDS}the hook has the dictionary, and goes on when its "send" is False'
SEND = '`switch["send"]` is to be asked: a dictionary itself is true, whatever is in it.'
TOO_SOON, NOT_YET_THERE = "is called before there is a gradient", "a hook asks for a gradient that is not there yet"
NO_GRADIENT = "A parameter that took no part has no gradient: its `.grad` is None."
HINTS = {
    OTHER_HOOK: "`register_hook` calls its function with the gradient, before that stands in `.grad`; "
    "`register_post_accumulate_grad_hook`, when it is there, with the parameter.",
    "'NoneType' object": IN_PLACE,
    "'NoneType' and": IN_PLACE,
    "that requires grad": "Inside `torch.no_grad()`, or on `tensor.data` or `tensor.detach()`.",
    "Expected parameter `tensor`": "One tensor at a time: a list is none, nor is a network.",
    "has no attribute 'register_post": "Parameters have it: hook each of `net.parameters()`.",
    "takes 0 positional": "torch calls a hook with the parameter: give it an argument.",
    "should return None": "A hook changes `p.grad` in place, and returns nothing.",
    "expected Variable, but hook returned": "A hook changes `p.grad` in place, and returns nothing.",
    "must match the size of tensor": PIECES,
    "is invalid for input of size": PIECES,
    "match the broadcast shape": PIECES,
    "attempting to assign a gradient of size": PIECES,
    "split_with_sizes expects": PIECES,
    "stack expects each tensor to be equal size": FLAT,
    "same number of dimensions": FLAT,
    "ReduceOp.AVG": "Not every torch has an average in gloo. Without `op` it adds up everywhere: add up, then divide.",
    "not defined": "If a cell above defines it, run that one first; if none does, it is yours to define.",
}


class _Net(nn.Module):
    def forward(self, factor: float) -> Any:
        """Make a loss whose gradients are factor for `a` and twice that for `b`."""
        return factor * (self.a.sum() + 2 * self.b.sum())


def _net(rank: int) -> nn.Module:
    """Two weights and a counting buffer: 1, 2 and 5 on rank 0, ten times that on rank 1, and so on.

    On three ranks `b` is four such numbers, for who reckons with one.
    """
    net, shape = _Net(), (2, 2) if dist.get_world_size() == 3 else (1,)
    net.a = nn.Parameter(torch.full((1,), 1 * 10.0**rank, device=device()))
    net.b = nn.Parameter(torch.full(shape, 2 * 10.0**rank, device=device()))
    net.register_buffer("seen", torch.tensor([5.0 * 10**rank], device=device()))
    return net


def _backward(net: nn.Module, factor: float) -> None:
    """The backward pass of that loss. Where a hook misses a `.grad` that is not there yet, that is noted."""
    try:
        net(factor).backward()
    except (TypeError, AttributeError) as error:
        others = any(p._backward_hooks for p in (net.a, net.b))
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__.tb_next)]
        own = [it for it in frames if "torch" not in it.f_code.co_filename.split(os.sep)]
        if others and "None" in str(error) and own and "grad" in own[-1].f_code.co_names:  # it reads a `.grad`
            error.args = (f"{error}\n{OTHER_HOOK}",)
        elif "None" in str(error) and own and "grad" in own[-1].f_code.co_names:
            error.args = (f"{NOT_YET_THERE}: {error}",)
        raise


def _one(tensor: Any) -> Any:
    """A tensor's number where all of it is one number."""
    return "none" if tensor is None else tensor.flatten()[0] if (tensor == tensor.flatten()[0]).all() else tensor


def _gradients(net: nn.Module) -> list[Any]:
    return [_one(p.grad) for p in (net.a, net.b)]


# ------------------------------------------------------------------ a: begin alike


def _begin_alike(net: nn.Module, src: int = 0, what: str = "state_dict") -> None:
    tensors = net.state_dict().values() if what == "state_dict" else list(getattr(net, what)())
    for tensor in tensors:
        dist.broadcast(tensor.detach(), src=src)


def _summed_start(net: nn.Module, mean: bool = False) -> None:
    for tensor in net.state_dict().values():
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size() if mean else 1


def _one_side(net: nn.Module, giver: bool) -> None:
    if (dist.get_rank() == 0) == giver:
        _begin_alike(net)


def _copies(net: nn.Module) -> None:
    for tensor in net.state_dict().values():
        dist.broadcast(tensor.clone(), src=0)


turn(
    "4.9.a",
    "Begin alike",
    _begin_alike,
    lambda rank, size: (_net(rank),),
    ranks=(2, 3),
    look=lambda _, net: [_one(net.a), _one(net.b), net.seen],
    heads=("a", "b", "buffer"),
    hints={"to unpack": "A dictionary gives its names; its `.items()` names and tensors, its `.values()` the tensors.",
           "Must specify": "`src=0` says whose go to all.",
           "<class 'str'>": "A dictionary gives its names; its `.values()` are the tensors.", **HINTS},
    otherwise="Every rank broadcasts each tensor of `net.state_dict()`, and all name the same `src`: rank 0.",
    mistakes=[
        (partial(_begin_alike, what="parameters"), "the buffer is each rank's own", "`net.state_dict()` has it too."),
        (partial(_begin_alike, what="buffers"), "the weights are each rank's own", "`net.state_dict()` has all."),
        (partial(_begin_alike, src=1), "all have rank 1's", "`src` says whose go to all."),
        (_summed_start, "all have the sum over the ranks", "One rank's are sent to all: `dist.broadcast`."),
        (partial(_summed_start, mean=True), "all have the mean over the ranks",
         "One rank's are sent to all: `dist.broadcast`."),
        (waiting(lambda net: _begin_alike(net, src=dist.get_rank()), "rank 1", "waits in broadcast from rank 1"),
         "every rank names itself as `src`, and all wait",
         "`src` says whose go to all: one and the same rank, on every rank."),
        (waiting(lambda net: _begin_alike(net, src=1 - dist.get_rank()), "rank 0", "waits in broadcast from rank 1"),
         "each rank names the other as `src`, and all wait",
         "`src` says whose go to all: one and the same rank, on every rank."),
        (waiting(partial(_one_side, giver=True), "rank 0", "waits in broadcast from rank 0"),
         "rank 0 broadcasts, and no other rank takes part",
         "All ranks call `broadcast`, also those that receive."),
        (waiting(partial(_one_side, giver=False), "rank 1", "waits in broadcast from rank 0"),
         "rank 0, whose weights are to go to all, does not broadcast",
         "All ranks call `broadcast`, also the one that gives."),
        (_copies, "nothing in the network has changed",
         "Broadcast into the tensors themselves, not into copies. (An object that came has to be loaded.)"),
    ],
)  # fmt: skip


# ------------------------------------------------------------------ b: a hook


TOO_EARLY, AGAIN = ", changed before", "once more"
B_TWICE = "both sums are of b"


class _Watched:
    """A sum that is on its way, which notes when it is waited for, and whether its tensor was changed until then.

    tensor: None where changes are not looked for, since the message makes some itself: gloo divides for a mean.
    """

    def __init__(self, work: Any, tensor: Any, waited: list[str], moment: list[str]):
        self.work, self.tensor, self.waited, self.moment = work, tensor, waited, moment
        self.version, self.first = getattr(tensor, "_version", 0), True

    def wait(self, *timeout: Any) -> Any:
        changed = getattr(self.tensor, "_version", 0) != self.version
        self.waited.append(self.moment[-1] + TOO_EARLY * changed if self.first else AGAIN)
        self.first = False
        return self.work.wait(*timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.work, name)


def _watched_sums(moment: list[str], late: bool = False, where: list[int] | None = None) -> tuple[list[Any], list[str]]:
    """From now on, note each sum in the first list, and in the second the moment at which it is waited for.

    late: rank 0 comes late, and the others' sums are on their way then: who divides by now does so in vain.
    where: gets the address of each tensor that is added up.
    """
    sums, waited, noting = noted_sums(), [], dist.ProcessGroup.allreduce

    def watched(*given: Any, **named: Any) -> _Watched:
        time.sleep(0.1 if late and dist.get_rank() == 0 else 0)
        tensors, *options = [*given[1:], *named.values()]
        if where is not None:
            where.append(tensors[0].data_ptr())
        in_place = tensors[0].device.type == "cpu" or dist.get_backend() == "nccl"  # gloo copies from and to GPUs
        plain = in_place and any(getattr(it, "reduceOp", it) == dist.ReduceOp.SUM for it in options)
        on_its_way = _Watched(noting(*given, **named), tensors[0] if plain else None, waited, moment)
        time.sleep(0.03 if late and dist.get_rank() else 0)
        return on_its_way

    dist.ProcessGroup.allreduce = watched
    return sums, waited


def _still_on_its_way(sums: list[Any], waited: list[str]) -> bool:
    """Tell whether a sum was never waited for."""
    return sum(it != AGAIN for it in waited) < len(sums)


def _average(p: Any, by: int = 0) -> None:
    dist.all_reduce(p.grad)
    p.grad /= by or dist.get_world_size()


def _hooked(net: nn.Module, hook: Callable[[Any], None] = _average, which: slice = slice(None)) -> None:
    for p in list(net.parameters())[which]:
        p.register_post_accumulate_grad_hook(hook)


def _of_the_last(net: nn.Module) -> None:
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda _: _average(p))  # noqa: B023


def _hook_that_forgets(net: nn.Module) -> None:
    def hook(grad: Any) -> None:
        total = grad.clone()
        dist.all_reduce(total)  # and returns nothing

    for p in net.parameters():
        p.register_hook(hook)


def _divided_only(p: Any) -> None:
    p.grad /= dist.get_world_size()


def _after_backward(returned: Any, net: nn.Module) -> list[Any]:
    """The gradients, but of sums that nobody has waited for: those may have come, or not."""
    where: list[int] = []
    sums, waited = _watched_sums(["in backward"], where=where)
    before = net.a.detach().clone()
    _backward(net, 10.0 ** dist.get_rank() * 6)
    changed = ["the weights changed"] * bool((net.a != before).any())
    if net.b.grad is not None and where == [net.b.grad.data_ptr()] * 2:
        changed = [B_TWICE]
    return [*(["not there yet?"] * 2 if _still_on_its_way(sums, waited) else _gradients(net)), *changed]


def _weights_too(p: Any) -> None:
    dist.all_reduce(p.data)
    p.data /= dist.get_world_size()


def _not_waited_for(p: Any) -> None:
    dist.all_reduce(p.grad, async_op=True)
    p.grad /= dist.get_world_size()


def _called_too_soon(fn: Callable[..., Any], net: nn.Module) -> Any:
    """Call an answer. Where it asks for a gradient itself, or a hook of its own that it calls, the error says so."""
    try:
        return fn(net)
    except (TypeError, AttributeError) as error:
        frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
        inner = [it for it in frames if "torch" not in it.co_filename.split(os.sep)][-1]
        if "None" in str(error) and "grad" in inner.co_names:
            name = "average_in_backward" if inner.co_varnames[:1] == ("net",) else inner.co_name
            error.args = (f"`{name}` {TOO_SOON}: {error}",)
        raise


turn(
    "4.9.b",
    "A hook",
    _hooked,
    lambda rank, size: (_net(rank),),
    ranks=(2, 3),
    call=_called_too_soon,
    look=_after_backward,
    heads=("gradient of a", "gradient of b"),
    hints={TOO_SOON: "Gradients come with `backward()`, later. Hand a function over, and do not call it: torch calls "
           "it, with the parameter, when there is one.",
           NOT_YET_THERE: "A hook averages the parameter that it is called with. Others may have no gradient by then.",
           **HINTS},
    otherwise="Every rank hooks every parameter; the hook adds `p.grad` up over the ranks, and then divides, once.",
    mistakes=[
        (partial(_hooked, hook=partial(_average, by=1)),
         "`.grad` is the sum over the ranks, and not the mean",
         "Add up once, and divide `p.grad` itself, in place: `t = t / …` is another tensor, `p.grad` stays the sum."),
        (partial(_hooked, hook=partial(_average, by=2)), TWO_ONLY, COUNTS),
        (partial(_hooked, which=slice(1)), "the second parameter is each rank's own", "Every parameter wants a hook."),
        (_of_the_last, "the last parameter's gradient is averaged twice, and the first one's never",
         "A hook averages the parameter that it is called with. A loop's `p` is, by then, the last one."),
        (partial(_hooked, which=slice(1, None)), "the first parameter is each rank's own",
         "Every parameter wants a hook, and a hook averages the parameter that it is called with."),
        (_hook_that_forgets, "every rank keeps its own gradients",
         "Change `p.grad` itself, in a hook that runs when it is there: `register_post_accumulate_grad_hook`."),
        (partial(_hooked, hook=_weights_too), "the weights are averaged, and not their gradients", "`p.grad`"),
        (partial(_hooked, hook=_divided_only), "divided, and not added up",
         "`dist.all_reduce(p.grad)` adds up, in `p.grad` itself: the sum of a copy is in the copy."),
        (partial(_hooked, hook=lambda p: dist.all_reduce(p.grad, op=dist.ReduceOp.MAX)),
         "all have the largest", "Without `op` it adds up."),
        (partial(_hooked, hook=lambda p: _average(p, by=dist.get_rank() and 1)),
         "rank 0 has the mean, others the sum", "`all_reduce` leaves the sum on every rank: each divides."),
        (partial(_hooked, hook=lambda p: dist.reduce(p.grad, 0) or _divided_only(p)), "only rank 0 has the mean",
         "`reduce` adds up on one rank, `all_reduce` on each."),
        (partial(_hooked, hook=lambda p: dist.broadcast(p.grad, 0)), "all have rank 0's gradients",
         "`broadcast` sends one rank's to all; `all_reduce` adds up."),
        (lambda net: [_hooked(net), _hooked(net, hook=_divided_only)], "divided twice", "Once is enough."),
        (partial(_hooked, hook=_not_waited_for), "nobody waits for the sums", "Here without `async_op`."),
    ],
)  # fmt: skip


# ------------------------------------------------------------------ c: a bucket


def _in_one(
    net: nn.Module, by: int = 0, back: bool = True, order: int = 1, ones: bool = False,
    send: Callable[..., Any] = dist.all_reduce,
) -> None:  # fmt: skip
    grads = [p.grad for p in net.parameters()]
    vector = torch.cat([grad.flatten() for grad in grads])
    send(vector)
    vector /= len(vector) if by < 0 else by or dist.get_world_size()
    grads = grads[::order]
    for grad, piece in zip(grads, vector.split([grad.numel() for grad in grads]), strict=True):
        if back:
            grad.copy_(piece[0] if ones else piece.view_as(grad))


def _one_by_one(net: nn.Module) -> None:
    for p in net.parameters():
        _average(p)


def _each_from_the_beginning(net: nn.Module) -> None:
    vector = torch.cat([p.grad.flatten() for p in net.parameters()])
    dist.all_reduce(vector)
    for p in net.parameters():
        p.grad.copy_(vector[: p.grad.numel()].view_as(p.grad) / dist.get_world_size())


def _one_number(net: nn.Module) -> None:
    total = torch.stack([p.grad.sum() for p in net.parameters()]).sum()
    dist.all_reduce(total)
    for p in net.parameters():
        p.grad.fill_(total / dist.get_world_size())


def _into_the_weights(net: nn.Module) -> None:
    for p in net.parameters():
        p.data.copy_(p.grad)
    dist.all_reduce(torch.zeros(1, device=device()))


def _gathered(net: nn.Module) -> None:
    for p in net.parameters():
        everyone = [torch.empty_like(p.grad) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, p.grad)
        p.grad = torch.stack(everyone).mean(0)


def _local(net: nn.Module) -> None:
    for p in net.parameters():
        p.grad /= dist.get_world_size()


def _with_gradients(rank: int, size: int) -> tuple[nn.Module]:
    """On three ranks the gradient of `b` is four numbers: once, twice, three and four times what it is on two."""
    net = _net(rank)
    b = torch.arange(1.0, net.b.numel() + 1, device=device()).view_as(net.b) * net.b
    (10.0**rank * 6 * (net.a.sum() + 2 * b.sum())).backward()
    net.sums, net.waited = _watched_sums(["here"])
    return (net,)


def _averaged(_: Any, net: nn.Module) -> list[Any]:
    """How many sums left, and the gradients, but of sums that nobody has waited for."""
    all_of_b = "none" if net.b.grad is None else net.b.grad  # not one number for four
    gradients = ["not there yet?"] * 2 if _still_on_its_way(net.sums, net.waited) else [_one(net.a.grad), all_of_b]
    changed = any((p != p.flatten()[0]).any() or p.flatten()[0] != first * 10.0 ** dist.get_rank()
                  for p, first in ((net.a, 1), (net.b, 2)))  # fmt: skip
    return [len(net.sums), *gradients, *["the weights changed"] * bool(changed)]


turn(
    "4.9.c",
    "A bucket",
    _in_one,
    _with_gradients,
    ranks=(2, 3),
    look=_averaged,
    heads=("messages", "gradient of a", "gradient of b"),
    hints=HINTS,
    otherwise="All gradients into one vector, its sum divided once, and each piece back to the gradient it came from.",
    mistakes=[
        (_one_by_one, "the means are right, with a message for each parameter", "`torch.cat` makes one vector."),
        (partial(_in_one, by=1), "added up, and not divided", "Divide by `dist.get_world_size()`."),
        (partial(_in_one, by=2), TWO_ONLY, COUNTS),
        (partial(_in_one, by=4), "divided by four, and here are two ranks", "Once, by `dist.get_world_size()`."),
        (partial(_in_one, ones=True), "each gradient got one number, in all its places", PIECES),
        (partial(_in_one, by=-1), "divided by how many numbers the vector has", "By `dist.get_world_size()`."),
        (_one_number, "all parameters have got one and the same number",
         "`torch.cat` puts gradients side by side, and `split` takes them apart again."),
        (_into_the_weights,
         "the weights are changed, and the gradients not", "`p.grad.copy_(piece)`, and no `p.data`."),
        (_each_from_the_beginning, "each gradient gets what the vector begins with",
         "A piece begins where the one before it ends: `vector.split(…)` with the length of each."),
        (partial(_in_one, send=partial(dist.broadcast, src=0), by=1), "all have rank 0's gradients",
         "`broadcast` sends one rank's to all; `all_reduce` adds up."),
        (_gathered, "the means are right, and come without an all_reduce",
         "One vector, and one `dist.all_reduce` of it."),
        (partial(_in_one, back=False), "the vector is right, and `.grad` is as it was", "Cut it up and copy it back."),
        (partial(_in_one, order=-1), "the pieces went back in another order", "In the order in which they came."),
        (_local, "divided, and nothing was sent", "`dist.all_reduce(vector)`."),
        (partial(_in_one, send=partial(dist.all_reduce, async_op=True)), "nobody waits for the sum",
         "Here without `async_op`."),
        (partial(_in_one, send=partial(dist.reduce, dst=0)), "only rank 0 has the means",
         "`reduce` adds up on one rank, `all_reduce` on each."),
    ],
)  # fmt: skip


# ------------------------------------------------------------------ d: overlap


def _early(
    net: nn.Module,
    wait: bool = False,
    divide: bool = True,
    background: bool = True,
    empty: bool = True,
    copy: bool = False,
    waited_for: slice = slice(None),
    too_early: bool = False,
    first: int = 1,
    last_only: bool = False,
) -> Callable[[], None]:
    sent = []

    def hook(p: Any) -> None:
        p = [*net.parameters()][-1] if last_only else p
        p.grad /= first
        work = dist.all_reduce(p.grad.clone() if copy else p.grad, async_op=background)
        if wait:
            work.wait()
        if too_early:
            p.grad /= dist.get_world_size()
        sent.append((work, p))

    def finish() -> None:
        for work, p in sent[waited_for]:
            if background:
                work.wait()
            if divide and not copy:
                p.grad /= dist.get_world_size()
        if empty:
            sent.clear()

    _hooked(net, hook)
    return finish


def _all_at_the_end(net: nn.Module) -> Callable[[], None]:
    return lambda: _one_by_one(net)


def _left_early(finish: Any, net: nn.Module) -> list[Any]:
    """How many sums left during backward, how many were waited for then and afterwards, and the gradients of two steps.

    What nobody has waited for is not looked at: it may have come, or not.
    """
    moment = ["in backward"]
    where: list[int] = []
    sums, waited = _watched_sums(moment, late=True, where=where)
    if not callable(finish):
        return [f"{kind(finish)} came back"]
    _backward(net, 10.0 ** dist.get_rank() * 6)
    left = len(sums)
    moment.append("after it")
    finish()
    seen = [left, *(sum(it.startswith(when) for it in waited) for when in moment)]
    if where == [net.b.grad.data_ptr()] * 2:
        return [*seen, B_TWICE, B_TWICE]
    if _still_on_its_way(sums, waited):
        return [*seen, "not there yet?", "not there yet?"]
    too_early = any(it.endswith(TOO_EARLY) for it in waited)
    first, so_far = cells(_gradients(net)), len(waited)
    net.zero_grad()
    net(10.0 ** dist.get_rank() * 6).backward()
    finish()
    if too_early:
        return [*seen, "changed too early", "changed too early"]
    if cells(_gradients(net)) == first:
        return [*seen, *first]
    again = "the old messages again" if AGAIN in waited[so_far:] else "others"
    return [*seen, *(f"{one}, then {again}" for one in first)]


IN_THE_HOOK = "each message is waited for in the hook: nothing overlaps"
LATER = "`async_op=True`, and `wait()` in `finish`."

turn(
    "4.9.d",
    "Overlap",
    _early,
    lambda rank, size: (_net(rank),),
    ranks=(2, 3),
    look=_left_early,
    heads=("left in backward", "waited for in it", "waited for after it", "gradient of a", "gradient of b"),
    hints={"has no attribute 'wait'": "With `async_op=True` all_reduce returns what to wait for: keep that.",
           "required positional argument": "`finish()` is called without arguments: it reads `sent` from outside.",
           "has no attribute 'grad'": "A message knows no parameter: keep both, `sent.append((work, p))`.",
           "local variable 'sent'": "`sent = …` inside `finish` is a new `sent`; `sent.clear()` empties the outer one.",
           **HINTS},
    mistakes=[
        (partial(_early, wait=True), IN_THE_HOOK, LATER),
        (partial(_early, wait=True, divide=False), "each message is waited for in the hook, and nobody divides", LATER),
        (partial(_early, background=False), IN_THE_HOOK, LATER),  # leaves the same: tried by the tests as well
        (_all_at_the_end, "nothing leaves before `finish`", "A hook sends at the moment when the gradient is there."),
        (partial(_early, divide=False), "added up, and not divided",
         "Divide `p.grad` when the sum has come, in place: `t = t / …` is another tensor."),
        (partial(_early, waited_for=slice(0)), "nobody waits for the messages",
         "`work.wait()` for each, in `finish`; then divide."),
        (partial(_early, waited_for=slice(-1, None)), "only one message is waited for", "`work.wait()` for each."),
        (partial(_early, too_early=True), "a gradient is changed before its sum has come",
         "First `wait()`, then divide. Until then the message needs its tensor as it is."),
        (partial(_early, copy=True), "a copy was sent, and `.grad` is as it was", "Send `p.grad` itself."),
        (lambda net: lambda: None, "nothing is sent, in backward or after it",
         "A hook at each parameter sends: `p.register_post_accumulate_grad_hook(…)`."),
        (partial(_early, empty=False), "a second step divides once more for the messages of the first",
         "What `finish` has waited for need not stay in `sent`."),
        (partial(_early, last_only=True),
         "the last parameter's gradient is sent twice, and the first one's never",
         "A hook sends the gradient of the parameter that it is called with. A loop's `p` is, by then, the last one."),
        (partial(_early, first=2), "divided twice", "Before it is sent, or when the sum has come: once."),
        (lambda net: (_early(net), [])[1], "a list comes back, and no function",
         "`return finish`: the function itself."),
        (lambda net: (_early(net), None)[1], "nothing came back",
         "`return finish`: the function itself, which is called later."),
    ],
    otherwise="A hook only sends. `finish`, the function that comes back, waits for each message, and then divides.",
)  # fmt: skip


# ------------------------------------------------------------------ e: no_sync


def _with_switch(
    net: nn.Module, always: bool = False, never: bool = False, last_only: bool = False, by: int = 0
) -> dict[str, bool]:
    switch = {"send": True}

    def hook(p: Any) -> None:
        if (switch["send"] or always) and not never:
            _average(p, by)
        elif last_only:
            p.grad = None

    _hooked(net, hook)
    return switch


def _asked_when_hooked(net: nn.Module) -> dict[str, bool]:
    switch = {"send": True}
    if switch["send"]:  # asked once, at the wrong time
        _hooked(net)
    return switch


def _divides_always(net: nn.Module) -> dict[str, bool]:
    switch = {"send": True}
    _hooked(net, lambda p: _average(p) if switch["send"] else _divided_only(p))
    return switch


def _switches_itself(net: nn.Module, to: bool) -> dict[str, bool]:
    switch = {"send": True}

    def hook(p: Any) -> None:
        if switch["send"]:
            _average(p)
        if to or switch["send"]:
            switch["send"] = to

    _hooked(net, hook)
    return switch


def _sends_always(net: nn.Module) -> dict[str, bool]:
    switch = {"send": True}
    _hooked(net, lambda p: _average(p) if switch["send"] else dist.all_reduce(p.grad))
    return switch


def _upside_down(net: nn.Module) -> dict[str, bool]:
    switch = {"send": True}
    _hooked(net, lambda p: None if switch["send"] else _average(p))
    return switch


def _two_portions(switch: Any, net: nn.Module) -> list[Any]:
    """A portion without sending, then one with it: the messages after each, and the gradients."""
    sums, factor = noted_sums(), 10.0 ** dist.get_rank() * 6
    switch["send"] = False
    _backward(net, factor)
    first = len(sums)
    switch["send"] = True
    _backward(net, 2 * factor)
    sends_always = 0 < first == len(sums) - first
    off = f"{first}, {_known_of(switch, net)}" if sends_always else first
    return [off, len(sums) - first, *_gradients(net)]


def _within(it: Any) -> list[Any]:
    """What somebody's own function, method, partial or object has at hand."""
    if inspect.ismodule(it) or inspect.isclass(it) or (getattr(it, "__module__", "") or "").startswith("torch"):
        return []
    has = [getattr(it, "__self__", None), getattr(it, "func", None), *getattr(it, "args", ())]
    has += [*(getattr(it, "__defaults__", None) or ()), *getattr(it, "__dict__", {}).values()]
    if inspect.isfunction(it) or inspect.ismethod(it):
        with contextlib.suppress(ValueError):  # a name that has no value yet
            read = inspect.getclosurevars(it)
            has += [*read.nonlocals.values(), *read.globals.values()]
    return has


def _known_of(switch: Any, net: nn.Module) -> str:
    """What the hooks of the parameters know of the switch: they, and what they call."""
    held = [hook for p in (net.a, net.b) for hook in (p._post_accumulate_grad_hooks or {}).values()]
    for it in held[:]:
        held += _within(it) + [further for inner in _within(it) for further in _within(inner)]
    if any(it is switch for it in held):
        return "asked all the same"
    others = any(isinstance(it, Mapping) and "send" in it for it in held)
    return "another one asked" if others else "none asked"


turn(
    "4.9.e",
    "A switch: no_sync",
    _with_switch,
    lambda rank, size: (_net(rank),),
    ranks=(2, 3),
    look=_two_portions,
    heads=("messages while off", "while on", "gradient of a", "gradient of b"),
    otherwise="While the switch is off the hook does nothing at all; while it is on it does what it did in puzzle b.",
    hints={"object does not support item assignment": "Return the switch, a dictionary: `switch`.", **HINTS},
    mistakes=[
        (partial(_with_switch, always=True), NOT_HEEDED, SEND),
        (_asked_when_hooked, NOT_ASKED, ASK),
        (lambda net: dict(_with_switch(net)), f"{SENDS}the hook asks another dictionary than the one that comes back",
         "Return the very one that the hook asks, not a copy of it."),
        (partial(_with_switch, never=True), "it sends nothing at all", "When the switch is on, the hook averages."),
        (partial(_with_switch, last_only=True), "the first portion's gradient is lost", "Let `.grad` grow."),
        (partial(_switches_itself, to=True),
         "with the switch off one message leaves, as where a hook turns it on again",
         "Who has turned it off turns it on again: a hook only asks."),
        (partial(_switches_itself, to=False), "with the switch on one message leaves, as where a hook turns it off",
         "A hook only asks; every parameter's hook finds the switch on."),
        (_sends_always, "with the switch off gradients are added up all the same", "Off means: send nothing."),
        (_upside_down, "it sends when the switch is off, and not when it is on", "The other way round."),
        (partial(_with_switch, by=4), "divided by four, and here are two ranks", "The mean is over the ranks only."),
        (partial(_with_switch, by=1), "added up, and not divided", "Divide by `dist.get_world_size()`."),
        (_divides_always, "with the switch off gradients are divided all the same", "Off means: leave `.grad` alone."),
    ],
)  # fmt: skip


# ------------------------------------------------------------------ f: the unused head


def _heads(rank: int, size: int) -> tuple[nn.Module]:
    """Rank 0 uses head a, every other rank head b: what a rank does not use has no gradient there."""
    net = _net(rank)
    (6 * (rank + 1) * (net.a if rank == 0 else net.b).sum()).backward()
    return (net,)


def _zeros_for_none(net: nn.Module, fill: float = 0.0, divide: str = "ranks") -> None:
    for p in net.parameters():
        used = torch.tensor(0.0 if p.grad is None else 1.0, device=p.device)
        by = {"ranks": dist.get_world_size(), "had one": 1 if p.grad is None else dist.get_world_size(), "two": 2}
        if p.grad is None:
            p.grad = torch.full_like(p, fill)
        dist.all_reduce(p.grad)
        if divide == "users":
            dist.all_reduce(used)
        p.grad /= used if divide == "users" else by.get(divide, 1)


def _divided_elsewhere(net: nn.Module) -> None:
    for p in net.parameters():
        mine = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(mine)


def _zeros_for_all(net: nn.Module) -> None:
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
        _average(p)


def _weights_for_none(net: nn.Module) -> None:
    for p in net.parameters():
        if p.grad is None:
            p.grad = p.detach().clone()
        _average(p)


def _skip_none(net: nn.Module) -> None:
    for p in net.parameters():
        if p.grad is not None:
            _average(p)


def _not_put_back(net: nn.Module) -> None:
    for p in net.parameters():
        mine = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(mine)
        mine /= dist.get_world_size()


def _zeros_and_no_message(net: nn.Module) -> None:
    for p in net.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)


def _zeros_unsent(net: nn.Module) -> None:
    for p in net.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        else:
            _average(p)


ZEROS = "Zeros in the shape of the parameter: `torch.zeros_like(p)`."

turn(
    "4.9.f",
    "The unused head",
    _zeros_for_none,
    _heads,
    ranks=(3, 2),
    look=lambda _, net: _gradients(net),
    heads=("gradient of a", "gradient of b"),
    hints={"is ambiguous": "`p.grad is None` asks whether there is one.", "zeros_like()": ZEROS,
           "assign": ZEROS, "'NoneType'": NO_GRADIENT, **HINTS},
    otherwise="For each parameter every rank sends its gradient, or zeros; the mean becomes its `.grad` in any case.",
    mistakes=[
        (partial(_zeros_for_none, divide="users"), "divided by the ranks that used it",
         "A rank that did not use it has the gradient 0, and counts: DDP divides by all ranks."),
        (partial(_zeros_for_none, divide="none"), "added up, and not divided", "Divide by `dist.get_world_size()`."),
        (partial(_zeros_for_none, divide="two"), "divided by two, and there are three ranks", COUNTS),
        (_divided_elsewhere, "the sums are there, and no `.grad` has become the mean",
         "`p.grad = …` at the end, on every rank: `t = t / …` is another tensor, which has to be put there."),
        (_zeros_for_all, "all send zeros, also those who have a gradient", "Only where `p.grad is None`."),
        (_weights_for_none, "a rank that did not use it sends its weight", f"What adds nothing to a sum? {ZEROS}"),
        (partial(_zeros_for_none, fill=1.0), "a rank that did not use it sends ones", "What adds nothing to a sum?"),
        (partial(_zeros_for_none, divide="had one"), "who had no gradient does not divide", "All hold the sum."),
        (_not_put_back, "the mean is there, but a rank without a gradient does not keep it", "`p.grad = …`"),
        (_hooked, "every rank keeps what it had", "`backward()` is over: no hook is called any more. Average here."),
        (_zeros_and_no_message, "nothing was sent", "Average when every rank has something to send."),
        (_skip_none, "a rank without the gradient sends nothing: the ranks' messages meet the wrong ones",
         "Every rank has to send for every parameter, in the same order. What does one send that has no gradient?"),
        (_zeros_unsent, "a rank's zeros are not sent: the ranks' messages meet the wrong ones",
         "It has to send them: `all_reduce` in any case, and not in an `else`."),
    ],
)  # fmt: skip
