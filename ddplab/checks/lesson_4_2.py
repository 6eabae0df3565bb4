"""Checks of lesson 4.2, Inside DDP."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import flat, listed, multiple, needs_function, off, on_ranks
from ddplab.course.data import digits
from ddplab.course.messages import noted_sums
from ddplab.course.models import MLP
from ddplab.hardware import device

MIB = 2**20
CHAINS = [  # widths of a chain of layers, and a cap in bytes
    ([128] * 6, 65_536),  # each layer is exactly as large as the cap
    ([128] * 6, 70_000),
    ([64, 32, 128, 256, 64, 8, 16], 20_000),
]


@exercise("4.2.1", "Pack the buckets")
def packed(pack: Callable[..., Any]) -> None:
    """`pack(sizes, cap)` must give the buckets of a real DDP, for several chains of layers."""
    needs_function("pack", pack)
    _compare(pack, [3, 4, 1, 5, 2], 5, [[3, 4], [1, 5], [2]], "it is")
    for (sizes, buckets), (_, cap) in zip(on_ranks(_buckets_of_ddp, size=1)[0], CHAINS, strict=True):
        _compare(pack, sizes, cap, buckets, "DDP makes of it")


def _compare(pack: Callable[..., Any], sizes: list[int], cap: int, buckets: list[list[int]], whose: str) -> None:
    call = f"pack({sizes}, {cap})"
    answer = pack(list(sizes), cap)
    if answer is None:
        raise NotYet(f"{call} gives None", "`return` the list of buckets.")
    try:
        answer = [list(bucket) for bucket in answer]
        flat = [size for bucket in answer for size in bucket]
    except TypeError:
        raise NotYet(f"{call} gives {answer!r}", "A list of buckets, each a list of sizes.") from None
    if answer == buckets:
        return
    if [] in answer:
        raise NotYet(f"{call} makes an empty bucket", "Begin a new bucket when there is a gradient to put into it.")
    if flat == sizes[::-1] != sizes:
        raise NotYet(f"{call} turns the order round", "`sizes` is already in the order in which they are ready.")
    if len(flat) < len(sizes):
        hint = "What is in the last bucket at the end leaves too, full or not."
        raise NotYet(f"{call} loses {len(sizes) - len(flat)} of {len(sizes)} gradients", hint)
    if flat != sizes:
        raise NotYet(f"{call} packs {flat}", "Every gradient once, whole, in the order given.")
    reason = "a bucket leaves as soon as it holds `cap` bytes or more, and not before"
    hint = "Put the gradient in first; then look whether the bucket is full."
    if any(sum(bucket) < cap for bucket in answer[:-1]):
        reason = "you close a bucket before it is full"
        hint = "A bucket may go over the cap: its last gradient is what fills it."
    elif any(sum(bucket[:-1]) >= cap for bucket in answer):
        reason = "you add to a bucket that is full already"
        hint = "Full means `cap` bytes or more; exactly `cap` is full."
    raise NotYet(f"{call} gives {answer}, and {whose} {buckets}: {reason}", hint)


def _buckets_of_ddp() -> list[tuple[list[int], list[list[int]]]]:
    """For each chain, the gradients' sizes in the order they are ready, and the buckets of the second backward."""

    def of(widths: list[int], cap: int) -> tuple[list[int], list[list[int]]]:
        pairs = list(itertools.pairwise(widths))
        net = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairs)).to(device())
        model, buckets = DDP(net, bucket_cap_mb=cap / MIB), []

        def note(state, bucket):  # DDP looks at a hook's annotations, and wants its own or none
            buckets.append([p.numel() * 4 for p in bucket.parameters()])
            return allreduce_hook(None, bucket)

        model.register_comm_hook(None, note)
        for _ in range(2):
            buckets.clear()
            model(torch.ones(1, widths[0], device=device())).mean().backward()
        return [4 * a * b for a, b in reversed(pairs)], buckets

    return [of(*chain) for chain in CHAINS]


IMAGES = 64  # of all portions of all ranks


@exercise("4.2.2", "One update of many portions")
def accumulated(accumulate: Callable[..., Any]) -> None:
    """`accumulate(model, portions)` on two ranks: one device's gradient over all images, each bucket sent once."""
    needs_function("accumulate", accumulate)
    for parts in (4, 1):
        where = f"with {parts} portions" if parts > 1 else "with a single portion"
        ranks = on_ranks(_accumulate_in_rank, accumulate, parts, size=2, hints=HINTS)
        _judge_accumulation(where, parts, ranks)


def _judge_accumulation(where: str, parts: int, ranks: list[dict[str, Any]]) -> None:
    mine, right = ranks[0]["gradient"], ranks[0]["right"]
    if mine is None:
        raise NotYet(f"{where}, there are no gradients afterwards", "Who calls `backward()`? And no `zero_grad()`.")
    if not ranks[0]["called"]:
        hint = "Call `model(images)` itself."
        raise NotYet(f"{where}, you call the network inside DDP, so nothing is exchanged", hint)
    sent = ranks[0]["sent"]
    if sent == 0:
        hint = "The last portion belongs outside of `no_sync()`, its forward pass too."
        raise NotYet(f"{where}, no bucket ever left: the ranks keep gradients of their own", hint)
    if sent > 1 and ranks[0]["backwards"] == sent:
        hint = "Only the last portion exchanges. For the others use `with model.no_sync():`"
        if ranks[0]["held"]:
            hint = "`no_sync()` goes around the forward pass too: the call of `model` decides, `backward()` never asks."
        raise NotYet(f"{where}, each bucket left {sent} times", hint)
    if sent > 1:
        raise NotYet(f"{where}, each bucket left {sent} times", "Hold back all portions but the last.")
    if ranks[0]["seen"] != IMAGES // 2:
        hint = "Each portion once."
        raise NotYet(f"{where}, {ranks[0]['seen']} images of a rank's {IMAGES // 2} went through the model", hint)
    if off(mine, right) < 1e-9:
        return
    if off(mine, ranks[1]["gradient"]) > 1e-9:
        hint = "What is added after the exchange stays local: finish a portion, forward and backward, before the next."
        raise NotYet(f"{where}, each bucket left once, but too early: the ranks end with different gradients", hint)
    factor = multiple(mine, right)
    if factor is not None:
        hint = {
            parts: "Each portion's loss is a mean over the portion. Divide by the number of portions.",
            1 / parts: "You divide once too often.",
            IMAGES / 2: "That is a sum over the images. Take the mean.",
        }.get(round(factor, 9), "The mean over all images: what does a portion's loss stand for?")
        raise NotYet(f"{where}, the gradient is {factor:.4g} times that of all images at once", hint)
    if off(mine, ranks[0]["last"]) < 1e-9 or off(mine, ranks[0]["last"] / parts) < 1e-9:
        raise NotYet(f"{where}, the gradient is that of the last portion alone", "No `zero_grad()` in between.")
    hint = "Is every portion's loss divided alike, the last one's too?"
    raise NotYet(f"{where}, the gradient is {off(mine, right):.0%} off that of all images at once", hint)


def _accumulate_in_rank(accumulate: Callable[..., Any], parts: int) -> dict[str, Any]:
    torch.manual_seed(0)
    done = {"sent": 0, "seen": 0, "held": False, "called": False, "backwards": 0}
    images, labels = (tensor[:IMAGES].to(device()) for tensor in digits().tensors)
    images = images.double()
    net = MLP(hidden=8).double().to(device())

    def gradient_of(part: slice) -> Any:
        return flat(torch.autograd.grad(F.cross_entropy(net(images[part]), labels[part]), list(net.parameters())))

    chunk = IMAGES // 2 // parts  # portion k of rank r: image 2 * chunk * k + r and every second from there
    last = slice(IMAGES - 2 * chunk, IMAGES)
    right, of_last = gradient_of(slice(IMAGES)), gradient_of(last)
    model, forward, no_sync = DDP(net), DDP.forward, DDP.no_sync

    def noted_forward(self: Any, x: Any) -> Any:
        done["called"] = True
        return forward(self, x)

    def see(_: Any, inputs: Any) -> None:
        done["seen"] += len(inputs[0])

    def noted_no_sync(self: Any) -> Any:
        done["held"] = True
        return no_sync(self)

    def note(state, bucket):  # DDP looks at a hook's annotations, and wants its own or none
        done["sent"] += bucket.is_last()
        return allreduce_hook(None, bucket)

    def count(_: Any) -> None:
        done["backwards"] += 1

    DDP.forward, DDP.no_sync = noted_forward, noted_no_sync  # this process ends with the check
    model.register_comm_hook(None, note)
    net.register_forward_pre_hook(see)
    next(net.parameters()).register_post_accumulate_grad_hook(count)
    mine = [part[dist.get_rank() :: 2] for part in (images, labels)]
    accumulate(model, list(zip(mine[0].split(chunk), mine[1].split(chunk), strict=True)))
    missing = any(p.grad is None for p in net.parameters())
    gradient = None if missing else flat(p.grad for p in net.parameters())
    return {"gradient": gradient, "right": right, "last": of_last, **done}


@exercise("4.2.3", "Half the bytes")
def halved(half_the_bytes: Callable[..., Any]) -> None:
    """The hook must send two bytes a number, and give back the mean over two and over three ranks, in float32."""
    needs_function("half_the_bytes", half_the_bytes)
    for size in (2, 3):
        ranks = on_ranks(_hook_in_rank, half_the_bytes, size=size, hints=HINTS)
        _judge_hook(f"on {size} ranks", size, ranks)


def _judge_hook(where: str, size: int, ranks: list[dict[str, Any]]) -> None:
    mean = torch.stack([rank["own"] for rank in ranks]).mean(0)
    sent, numbers, got = ranks[0]["sent"], len(mean), [rank["gradient"] for rank in ranks]
    if not sent:
        raise NotYet(f"{where}, nothing was all-reduced", "Start `dist.all_reduce(…, async_op=True)`.")
    if any(kind.itemsize > 2 for kind, _ in sent):
        hint = "`tensor.to(torch.bfloat16)` is a new tensor; all-reduce that one."
        raise NotYet(f"{where}, you sent {sent[0][0]}, {sent[0][0].itemsize} bytes a number", hint)
    if sum(n for _, n in sent) != numbers:
        raise NotYet(f"{where}, {sum(n for _, n in sent)} numbers travelled, for {numbers} gradients", "Once each.")
    if sent[0][0] != torch.bfloat16:
        raise NotYet(f"{where}, you sent {sent[0][0]}", "`torch.bfloat16`: two bytes, with the range of float32.")
    if all(off(own, rank["own"]) < 1e-6 for own, rank in zip(got, ranks, strict=True)):
        hint = "The promise must be of what was all-reduced, not of `bucket.buffer()`."
        raise NotYet(f"{where}, every rank still has its own gradients", hint)
    for factor, hint in {
        size: "`all_reduce` adds up; divide by the number of ranks.",
        1 / size: "Divide once, and not twice.",
        size / 2: "Ask for the number of ranks: `dist.get_world_size()`.",
    }.items():
        if abs(factor - 1) > 1e-9 and all(off(own, factor * mean) < 0.02 for own in got):
            raise NotYet(f"{where}, every gradient is {factor:.3g} times the mean", hint)
    if worst := [off(own, mean) for own in got if off(own, mean) > 0.02]:
        hint = "Is the sum complete when you use it? `.then(…)` waits for it."
        raise NotYet(f"{where}, the gradients are {worst[0]:.0%} off the mean", hint)
    if ranks[0]["kind"] != torch.float32:
        raise NotYet(f"{where}, the promise is of {ranks[0]['kind']}", "DDP wants its bucket back in `float32`.")


def _hook_in_rank(hook: Callable[..., Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    net = torch.nn.Linear(64, 16).to(device())
    model, kinds = DDP(net), []
    torch.manual_seed(dist.get_rank() + 1)
    x = torch.randn(8, 64).to(device())
    own = flat(torch.autograd.grad(net(x).square().mean(), list(net.parameters())))

    def watched(state, bucket):
        promise = hook(state, bucket)
        if not hasattr(promise, "then"):
            raise TypeError(f"the hook returned {type(promise).__name__}, not a Future")

        def look(done: Any) -> Any:
            value = done.value()
            value = value[0] if isinstance(value, list | tuple) else value
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"the Future holds {type(value).__name__}, not a tensor")
            kinds.append(value.dtype)
            return value.to(bucket.buffer().dtype)

        return promise.then(look)

    sums = noted_sums()
    model.register_comm_hook(None, watched)
    model(x).square().mean().backward()
    sent = [(it.kind, it.numbers) for it in sums]
    return {"gradient": flat(p.grad for p in net.parameters()), "own": own, "sent": sent, "kind": kinds[-1]}


@exercise("4.2.4", "The culprits, by name")
def named(culprits: Callable[..., Any]) -> None:
    """`culprits(net, loss)` must name the parameters that want a gradient and get none, on four small networks."""
    needs_function("culprits", culprits)
    for what, net, loss, wanted in _networks():
        answer = culprits(net, loss)
        if answer is None:
            raise NotYet("`culprits` gives None", "`return` the list.")
        try:
            names = sorted(answer)
            strings = all(isinstance(name, str) for name in names)
        except (TypeError, RuntimeError, ValueError):
            strings = False
        if isinstance(answer, str) or not strings:
            raise NotYet(f"`culprits` gives {type(answer).__name__}", "A list of names, such as 'dogs.weight'.")
        if extra := [name for name in names if name not in wanted]:
            raise NotYet(f"{what}, you accuse {extra[0]!r}, which is innocent", EXTRA[what])
        if missed := [name for name in wanted if name not in names]:
            raise NotYet(f"{what}, {missed[0]!r} gets away", "It wants a gradient, and no path leads to the loss.")
        if len(names) != len(wanted):
            raise NotYet(f"{what}, you name {len(names)} where there are {len(wanted)}", "Each name once.")


EXTRA = {
    "with two heads of which one is used": "Only what the loss gives no gradient to. Has `backward()` run?",
    "with a frozen layer": "A frozen parameter, `requires_grad=False`, wants no gradient.",
    "with a gradient of zeros": "Zeros are a gradient: DDP got its call. Look for `None`.",
    "where all take part": "Here every parameter takes part.",
}


def _networks() -> list[tuple[str, Any, Any, list[str]]]:
    def heads() -> Any:
        net = nn.ModuleDict({name: nn.Linear(4, 4) for name in ("body", "cats", "dogs")})
        return net, net["body"](torch.ones(2, 4))

    one, hidden_1 = heads()
    frozen, hidden_2 = heads()
    frozen["cats"].requires_grad_(False)
    zeros, hidden_3 = heads()
    full, hidden_4 = heads()
    both = full["cats"](hidden_4) + full["dogs"](hidden_4)
    dogs = ["dogs.bias", "dogs.weight"]
    kinds = list(EXTRA)
    return [
        (kinds[0], one, one["cats"](hidden_1).sum(), dogs),
        (kinds[1], frozen, frozen["body"](hidden_2).sum(), dogs),
        (kinds[2], zeros, zeros["cats"](hidden_3).sum() + 0 * zeros["dogs"](hidden_3).sum(), []),
        (kinds[3], full, both.sum(), []),
    ]


WIDTHS, CAP = (64, 64, 64, 64, 10), 10_000  # of the network that a learner's DDP gets, and bytes
FULL = [4810, 4160, 4160]  # numbers in each of its buckets, sorted downwards


@exercise("4.2.5", "A DDP of your own")
def own_ddp(MiniDDP: Callable[..., Any]) -> None:
    """`MiniDDP(net, cap)` on two and on three ranks: rank 0's weights, means in `.grad`, buckets that leave early."""
    needs_function("MiniDDP", MiniDDP)
    for size in (2, 3):
        ranks = on_ranks(_own_in_rank, MiniDDP, size=size, hints=OWN_HINTS, timeout=8)
        _judge_own(f"on {size} ranks", size, ranks)


def _judge_own(where: str, size: int, ranks: list[dict[str, Any]]) -> None:
    if any(off(rank["weights"], ranks[0]["start"]) > 0 for rank in ranks):
        hint = "In `__init__`: `dist.broadcast(tensor, src=0)` for everything in `net.state_dict().values()`."
        raise NotYet(f"{where}, the ranks do not begin with rank 0's weights", hint)
    for step in (0, 1):
        _judge_step(f"{where}, in step {step + 1}", size, [rank["steps"][step] for rank in ranks])


def _judge_step(where: str, size: int, ranks: list[dict[str, Any]]) -> None:
    sent, early = ranks[0]["sent"], ranks[0]["early"]
    sizes = sorted((it.numbers for it in sent), reverse=True)
    again = " After a step, each bucket must wait for all of its gradients anew." if "step 2" in where else ""
    if not sent:
        hint = f"A hook starts the `dist.all_reduce` when a bucket's last gradient is there.{again}"
        raise NotYet(f"{where}, nothing was all-reduced", hint)
    if len(sent) > len(FULL):
        raise NotYet(f"{where}, {len(sent)} messages left, for {len(FULL)} buckets", f"One for a full bucket.{again}")
    if sizes != FULL:
        hint = f"Gradients in the order of `reversed(list(net.parameters()))`; full is `cap` bytes or more.{again}"
        buckets = listed([*FULL[::-1]])
        raise NotYet(f"{where}, messages of {', '.join(map(str, sizes[::-1]))} numbers left, not {buckets}", hint)
    if early < len(FULL) - 1:
        hint = "Not in `finish`: start it in the hook of the gradient that makes the bucket complete."
        raise NotYet(f"{where}, {early} of {len(FULL)} buckets had left when the last layer was ready", hint)
    if not all(it.in_background for it in sent):
        hint = "`dist.all_reduce(…, async_op=True)` returns at once; keep what it returns, and wait in `finish`."
        raise NotYet(f"{where}, `backward()` stands still while a bucket is on its way", hint)
    mean = sum(rank["own"] for rank in ranks) / size
    if all(off(rank["gradient"], mean) < 1e-5 for rank in ranks):
        return
    if all(off(rank["gradient"], rank["own"]) < 1e-5 for rank in ranks):
        hint = "The bucket is a copy. In `finish`, cut it up, and copy each piece back into its `.grad`."
        raise NotYet(f"{where}, every rank still has its own gradients", hint)
    for factor in (size, 1 / size, size / 2, 2 / size):
        if all(off(rank["gradient"], factor * mean) < 1e-5 for rank in ranks):
            hint = "`all_reduce` adds up; divide once, by `dist.get_world_size()`."
            raise NotYet(f"{where}, every gradient is {factor:.3g} times the mean", hint)
    hint = "Do the pieces go back in the order in which they came, and only after `work.wait()`?"
    raise NotYet(f"{where}, not every gradient is the mean over the ranks", hint)


def _own_in_rank(MiniDDP: Callable[..., Any]) -> dict[str, Any]:
    torch.manual_seed(dist.get_rank())
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(WIDTHS)]
    net = nn.Sequential(*layers).to(device())
    start, seen = flat(net.parameters()), {"sent": 0}
    layers[0].weight.register_post_accumulate_grad_hook(lambda _: seen.update(early=len(sums) - seen["sent"]))
    model = MiniDDP(net, CAP)
    weights, sums, steps = flat(net.parameters()), noted_sums(), []
    for _ in range(2):
        x = torch.randn(8, WIDTHS[0], device=device())
        own = flat(torch.autograd.grad(net(x).square().mean(), list(net.parameters())))
        seen["sent"] = len(sums)
        model.zero_grad()
        model(x).square().mean().backward()
        model.finish()
        gradient = flat(p.grad for p in net.parameters())
        steps.append({"own": own, "gradient": gradient, "sent": sums[seen["sent"] :], "early": seen["early"]})
    return {"start": start, "weights": weights, "steps": steps}


OWN_HINTS = {
    "has no attribute 'finish'": "`finish` is a method: `def finish(self):`.",
    "takes 1 positional argument but 2": "A hook is called with the parameter; a method has `self` too.",
    "cannot assign module before": "`super().__init__()` first.",
    "'NoneType' object has no attribute": "`forward` returns what the network returns. Without `async_op=True` there "
    "is nothing to wait for.",
    "leaf Variable that requires grad": "Copy under `torch.no_grad()`; it is no part of what is trained.",
    "must match the size of tensor": "Each piece has as many numbers as its gradient, and its shape: `view_as`.",
    "SIGABRT": "Torch ends a rank when what arrives is not what it expects: the same buckets, in the same order.",
}

HINTS = {
    "'NoneType' object is not iterable": "Return what is asked for.",
    "not a Future": "DDP wants a promise: `dist.all_reduce(…, async_op=True).get_future().then(…)`.",
    "the Future holds": "The function in `.then(…)` returns the averaged tensor.",
    "has no attribute 'get_future'": "Without `async_op=True`, `all_reduce` waits and returns None.",
    "ReduceOp.AVG": "Not every torch has an average in gloo. Without `op` it adds up everywhere. Divide yourself.",
    "has no attribute 'no_sync'": "`model` is in DDP already; `no_sync` is a method of the model that you were given.",
}
