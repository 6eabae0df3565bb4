"""Checks of lesson 4.2, Inside DDP."""

import itertools
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import flat, kind, needs_function, off, on_ranks
from ddplab.checks.turns import turn
from ddplab.course.messages import noted_sums
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


@exercise("4.2.2", "Half the bytes")
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


WIDTHS, CAP = (64, 64, 64, 64, 10), 10_000  # of the network that a learner's DDP gets, and bytes


HINTS = {
    "'NoneType' object is not iterable": "Return what is asked for.",
    "not a Future": "DDP wants a promise: `dist.all_reduce(…, async_op=True).get_future().then(…)`.",
    "the Future holds": "The function in `.then(…)` returns the averaged tensor.",
    "'torch._C.Future' object": "The promise is kept with a list of tensors: `promise.value()[0]` is the sum.",
    "has no attribute 'get_future'": "Without `async_op=True`, `all_reduce` waits and returns None.",
    "ReduceOp.AVG": "Not every torch has an average in gloo. Without `op` it adds up everywhere. Divide yourself.",
}

# ------------------------------------------------------------------ your turn


def _listen(model: Any, notes: list, note: Any = lambda bucket: bucket.buffer().nbytes, send: Any = allreduce_hook,
            on: Any = lambda rank: True) -> None:  # fmt: skip
    def leave(state, bucket):  # DDP looks at a hook's annotations, and wants its own or none
        notes.append(note(bucket))
        return send(state, bucket)

    if on(dist.get_rank()):
        model.register_comm_hook(None, leave)


def _at_once(state, bucket):
    promise = torch.futures.Future()
    promise.set_result(bucket.buffer())
    return promise


def _sum_only(state, bucket):
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])


def _divided_first(state, bucket):
    bucket.buffer().div_(dist.get_world_size())
    return allreduce_hook(state, bucket)


def _ten_numbers(rank: int, size: int) -> tuple[Any, list]:
    model = DDP(nn.Linear(9, 1).to(device()))  # two parameters in one bucket
    register = model.register_comm_hook

    def registered(*given: Any, **named: Any) -> Any:
        hooks = [it for it in (*given[1:2], named.get("hook")) if callable(it)]
        if hooks:
            named["hook"] = _promising(hooks[0])
        return register(*given[:1] if hooks else given, **named)

    model.register_comm_hook = registered
    return model, []


def _promising(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return the hook; where it returns no promise that is said, and not met by DDP, which may die of it."""

    @wraps(hook)  # DDP looks at the arguments' names
    def leave(state: Any, bucket: Any) -> Any:
        promise = hook(state, bucket)
        if not hasattr(promise, "then"):
            raise TypeError(f"the hook returned {kind(promise)}, not a Future")
        return promise

    return leave


def _noted_and_gradient(_: Any, model: Any, notes: list) -> list[Any]:
    early = "written before: " * bool(notes)
    model(torch.full((1, 9), 3.0 + 4 * dist.get_rank(), device=device())).sum().backward()
    notes = [type(note).__name__ if "Bucket" in str(type(note)) else note for note in notes]
    return [early + " ".join(map(str, notes)) or "nothing", model.module.weight.grad[0, 0].item()]


def _listen_at_the_first_door(model: Any, notes: list) -> None:
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda it: notes.append(it.grad.nbytes))


BYTES = "A tensor has `.nbytes`."
CALLED = "The hook's two arguments are `state` and `bucket`; DDP asks for the second by that name."
FIRST_STATE = "Two arguments: what becomes `state`, `None` here, and then the hook."
RETURN = "Does your hook return what `allreduce_hook` returns?"

turn(
    "4.2.a",
    "A bell on the second door",
    _listen,
    _ten_numbers,
    ranks=(2, 3),
    look=_noted_and_gradient,
    heads=("noted", "gradient"),
    mistakes=[
        (lambda model, notes: None, "nothing is noted",
         "`model.register_comm_hook(None, …)` takes your function, and that writes `notes.append(…)`."),
        (_listen_at_the_first_door, "each parameter's bytes are noted, and not each bucket's",
         "That is the first door. At the second DDP calls a communication hook, with the bucket."),
        (lambda model, notes: notes.extend(p.nbytes for p in model.parameters()),
         "bytes are noted before any bucket has left", "Let the hook do it, each time that DDP calls it."),
        (partial(_listen, send=_at_once), "the bucket is noted, and every rank keeps its own gradient",
         "A hook stands in the place of DDP's all-reduce. Call `allreduce_hook`, and return what that returns."),
        (partial(_listen, send=_sum_only), "the gradient is the ranks' sum",
         "`allreduce_hook` takes the mean of what the ranks hold, and needs no other `all_reduce` beside it."),
        (partial(_listen, send=_divided_first), "the gradient is divided twice by the number of ranks",
         "`allreduce_hook` takes the mean: leave the bucket, and the promise that it returns, as they are."),
        (partial(_listen, note=lambda bucket: bucket.buffer()), "you note the tensor itself", BYTES),
        (partial(_listen, note=lambda bucket: bucket), "you note the bucket itself", "How many bytes is it?"),
        (partial(_listen, note=lambda bucket: bucket.gradients()[0].nbytes), "you note one gradient of the bucket",
         "`bucket.buffer()` has all of them."),
        (partial(_listen, note=lambda bucket: sys.getsizeof(bucket.buffer())), "you note the size of a Python object",
         BYTES),
        (partial(_listen, note=lambda bucket: bucket.buffer().nbytes / 2**20), "you note mebibytes", BYTES),
        (partial(_listen, note=lambda bucket: 8 * bucket.buffer().nbytes), "you note bits", "A byte has eight."),
        (partial(_listen, note=lambda bucket: bucket.buffer().shape), "you note the shape", BYTES),
        (partial(_listen, note=lambda bucket: bucket.buffer().numel()), "you note numbers, and not bytes", BYTES),
        (partial(_listen, note=lambda bucket: len(bucket.parameters())), "you note how many tensors it holds", BYTES),
        (partial(_listen, note=lambda bucket: bucket.index()), "you note the bucket's number", BYTES),
        (partial(_listen, on=lambda rank: rank == 0), "only rank 0 listens", "Every rank registers its own hook."),
    ],
    hints={
        "cannot access local variable 'notes'": "`+=` makes `notes` a name of the hook's own: `notes.append(…)`.",
        "returned a Tensor": "A promise of it, as `allreduce_hook` returns one: without `.wait()` and `.value()`.",
        "isPyObject": "`dist.all_reduce` promises a list, and in it the sum. `allreduce_hook` promises the mean.",
        "returned a Work": "`.get_future()` makes a promise of it; and it is to be one of the mean.",
        "KeyError": CALLED, "'bucket'": CALLED, "takes 1 positional": CALLED, "Future": RETURN, "SIGSEGV": RETURN,
        "SIGABRT": RETURN, "'list' object has no attribute 'size'": "What `allreduce_hook` takes first is a process "
        "group: give it `None`.", "'builtin_function": "It is a method: `bucket.buffer()`.",
        "has no attribute 'buffer'": "Give DDP the function, without calling it. DDP calls it with each bucket.",
        "must be callable": FIRST_STATE, "positional argument: 'hook'": FIRST_STATE,
        "attribute 'register_comm_hook'": "It is a method of DDP, which `model` is, and not of the network inside.",
        "only be called once": "A model has one communication hook, and it does both: it notes and all-reduces.",
    },
    otherwise="A hook with `state` and `bucket` notes the bytes of its `buffer()`, and returns `allreduce_hook`'s.",
)  # fmt: skip


def _accumulate(
    model: Any, portions: Any, loss_of: Any, held: Any = lambda at, n: at < n - 1, forward: bool = True,
    backward: bool = True, divide: Any = lambda at, n: n, zero: bool = False, order: Any = None,
) -> None:  # fmt: skip
    """The loop, with one thing done otherwise at a time; forward and backward: what `no_sync` goes around."""
    n = len(portions)
    for at, portion in enumerate(portions) if order is None else ((at, portions[at]) for at in order(n)):
        if zero:
            model.zero_grad()
        with model.no_sync() if held(at, n) and forward else nullcontext():
            loss = loss_of(model, portion) / divide(at, n)
        with model.no_sync() if held(at, n) and backward else nullcontext():
            loss.backward()


def _four_portions(rank: int, size: int) -> tuple[Any, list[Any], Callable[..., Any]]:
    model, sent = DDP(nn.Linear(1, 1, bias=False).to(device())), []
    _listen(model, sent)
    model.sent, model.held, model.entered, no_sync = sent, [], 0, model.no_sync

    def noted() -> Any:
        model.entered += 1
        return no_sync()

    model.no_sync = noted
    model.register_forward_pre_hook(lambda it, _: it.held.append(not it.require_backward_grad_sync))
    model.module.register_forward_hook(partial(_kept_until_backward, model))
    model.kept, model.at_once = 0, 0
    given = (1, 2, 3, 10) if size == 2 else (1, 2, 3, 10, 9, 5, 12)
    numbers = [torch.full((1, 1), 10.0 * rank + number, device=device()) for number in given]
    return model, numbers, lambda model, portion: model(portion).mean()


def _kept_until_backward(model: Any, _: Any, given: Any, output: Any) -> None:
    """Note how many portions have gone forward, and not backward yet: so many graphs are kept at once."""
    rows = len(given[0])
    model.kept += rows
    model.at_once = max(model.at_once, model.kept)
    if output.requires_grad:
        output.register_hook(lambda _: setattr(model, "kept", model.kept - rows))


def _gradient_and_sent(_: Any, model: Any, *rest: Any) -> list[Any]:
    grad = model.module.weight.grad
    sent: Any = len(model.sent)
    if model.entered and not any(model.held):  # a `no_sync`, and no forward pass in it
        sent = f"{sent}, `no_sync` in vain"
    return ["none" if grad is None else grad.item(), sent, model.at_once]


def _by_hand(model: Any, portions: list[Any], loss_of: Any, divide: bool = True) -> None:
    _accumulate(model, portions, loss_of, held=lambda *_: True)
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size() if divide else 1


def _zeroed_while_held(model: Any, portions: list[Any], loss_of: Any) -> None:
    n = len(portions)
    for portion in portions[:-1]:
        model.zero_grad()
        with model.no_sync():
            (loss_of(model, portion) / n).backward()
    (loss_of(model, portions[-1]) / n).backward()


def _at_once(model: Any, portions: list[Any], loss_of: Any, backward: str) -> None:
    """All portions go forward before the first `backward()`: of their sum, of each loss, or of the last."""
    losses = [loss_of(model, portion) / len(portions) for portion in portions]
    for loss in [sum(losses)] if backward == "of the sum" else losses if backward == "of each" else losses[-1:]:
        loss.backward()


LEFT = "A `backward()` for each portion, and no `zero_grad()` in between."
ONE_BY_ONE = "A graph is in memory until its `backward()`: let that follow before the next portion goes forward."
EACH_TIME = "every portion is exchanged"
AROUND = "`no_sync()` goes around the forward pass of all portions but the last. `backward()` never asks."
ALONE = "The last portion's forward pass and `backward()` stand outside of `no_sync()`, and go through `model` itself."

turn(
    "4.2.b",
    "One batch of many portions",
    _accumulate,
    _four_portions,
    ranks=(2, 3),
    look=_gradient_and_sent,
    heads=("gradient", "buckets sent", "portions at once"),
    mistakes=[
        (partial(_at_once, backward="of the sum"), "the gradient is right, but there is one `backward()` for all "
         "portions, which keeps the graphs of all of them at once", ONE_BY_ONE),
        (partial(_at_once, backward="of each"), "all portions go forward before the first `backward()`", ONE_BY_ONE),
        (partial(_at_once, backward="of the last"), "only the last portion is left", LEFT),
        (partial(_accumulate, held=lambda *_: False), EACH_TIME, AROUND),
        (partial(_accumulate, forward=False), EACH_TIME + ": no forward pass stands in `no_sync()`", AROUND),
        (partial(_accumulate, forward=False, held=lambda *_: True),
         EACH_TIME + ": no forward pass stands in `no_sync()`", AROUND),
        (partial(_accumulate, held=lambda *_: True), "nothing is ever exchanged", ALONE),
        (partial(_accumulate, held=lambda *_: True, divide=lambda *_: 1),
         "nothing is ever exchanged, and no loss is divided", ALONE),
        (partial(_accumulate, held=lambda at, n: at > 0), "the first portion is exchanged, the later ones are not",
         "What is added after the exchange stays on its rank. Exchange with the last."),
        (partial(_accumulate, held=lambda at, n: at == n - 1), "only the last portion is held back",
         "It is the other way around: the last is exchanged, and takes along all that was added before."),
        (partial(_accumulate, divide=lambda at, n: n if at == n - 1 else 1), "only the last portion is divided",
         "Every portion's loss counts alike."),
        (partial(_accumulate, divide=lambda at, n: 1), "the gradient is that of the sum of the four losses",
         "A mean of four means: divide by how many portions there are."),
        (partial(_accumulate, divide=lambda at, n: n * dist.get_world_size()), "divided by the ranks, too",
         "DDP divides by the ranks. You divide by the portions."),
        (partial(_accumulate, divide=lambda at, n: n if at < n - 1 else 1), "the last portion is not divided",
         "Every portion's loss counts alike."),
        (partial(_accumulate, zero=True), "only the last portion is left", LEFT),
        (partial(_accumulate, zero=True, divide=lambda *_: 1), "only the last portion is left", LEFT),
        (partial(_accumulate, held=lambda *_: True, order=lambda n: range(n - 1)),
         "the last portion is missing, and nothing is exchanged", ALONE),
        (partial(_accumulate, held=lambda at, n: at > -1, order=lambda n: [*range(n), -1]),
         "the last portion goes through twice", "Once inside of `no_sync()` is once too often: outside only."),
        (partial(_accumulate, divide=lambda at, n: 2), "the gradient is that of losses divided by 2",
         "By how many portions there are, `len(portions)`. The ranks are DDP's business."),
        (partial(_accumulate, divide=lambda at, n: n - 1), "divided by one portion too few",
         "All portions count, the last one too: `len(portions)`."),
        (_zeroed_while_held, "only the last two portions are left", LEFT),
        (lambda model, portions, loss_of: _accumulate(model, [*portions[:3], portions[3]], loss_of),
         "right for four portions only", "How many there are, `len(portions)` says."),
        (partial(_accumulate, divide=lambda at, n: 4), "divided by 4, which is right for four portions only",
         "How many there are, `len(portions)` says."),
        (lambda *it: (_accumulate(*it), it[0].zero_grad()), "the gradient came, and was set to zero",
         "What is set to zero after `backward()` is lost."),
        (partial(_by_hand, divide=False), "added up by hand: DDP has not sent it, and nobody has divided",
         "Let DDP do it: the last portion stands outside of `no_sync()`."),
        (_by_hand, "the gradient is right, but DDP has not sent it",
         "Let DDP do it: the last portion stands outside of `no_sync()`."),
    ],
    hints={"has no attribute 'no_sync'": "`no_sync` is a method of the `model` that you are given.",
           "context manager": "`model.no_sync()`, with its parentheses, is the context.",
           "'Tensor' object is not callable": "`loss_of(model, portion)`: first the model."},
    otherwise="Each portion goes through once, its loss divided by how many there are: the last one like the others.",
)  # fmt: skip


UNTOUCHED = "everybody is accused, as before any `backward()`"


def _culprits(net: Any, loss: Any, backward: bool = True, guilty: Any = lambda p: p.requires_grad and p.grad is None):
    if backward:
        loss.backward()
    return [name for name, p in net.named_parameters() if guilty(p)]


def _as_what(net: Any, loss: Any, what: Any) -> list[Any]:
    names = _culprits(net, loss)
    return [what(at, p) for at, (name, p) in enumerate(net.named_parameters()) if name in names]


def _accused(names: Any, *_: Any) -> str:
    if isinstance(names, str):
        return "one text"
    names = list(names)
    if any(isinstance(name, tuple) for name in names):
        return "pairs"
    said = ["a parameter" if torch.is_tensor(name) else str(name) for name in names]
    return ", ".join(sorted(said)) or "nobody"


def _net(use: str, frozen: str = "", zeros: str = "") -> tuple[Any, Any]:
    net = nn.ModuleDict({name: nn.Linear(4, 4) for name in ("body", "cats", "dogs")})
    if frozen:
        net[frozen].requires_grad_(False)
    hidden = net["body"](torch.ones(2, 4))
    loss = sum(net[head](hidden).sum() for head in use.split())
    return net, loss + 0 * net[zeros](hidden).sum() if zeros else loss


turn(
    "4.2.c",
    "The culprits, by name",
    _culprits,
    {
        "the cats are used": partial(_net, "cats"),
        "the dogs are used": partial(_net, "dogs"),
        "cats, and 0 times the dogs": partial(_net, "cats", zeros="dogs"),
        "dogs, and the cats are frozen": partial(_net, "dogs", frozen="cats"),
    },
    look=_accused,
    heads=("culprits",),
    mistakes=[
        (partial(_culprits, guilty=lambda p: p.grad is None), "frozen parameters are accused",
         "A parameter with `requires_grad=False` keeps nobody waiting."),
        (partial(_culprits, guilty=lambda p: p.requires_grad and (p.grad is None or not p.grad.any())),
         "who gets a gradient of zeros is accused", "Zeros are a gradient. Look for `None`."),
        (partial(_culprits, guilty=lambda p: p.grad is None or not p.grad.any()),
         "gradients of zeros are accused, and frozen parameters, too",
         "Zeros are a gradient: only `None` keeps DDP waiting. And a frozen parameter wants none."),
        (lambda net, loss: [name for name in _culprits(net, loss) if "dogs" in name], "only dogs are ever accused",
         "Another loss leaves others without a gradient. Go through all of `net.named_parameters()`."),
        (partial(_culprits, backward=False), UNTOUCHED,
         "Has `backward()` run? What it left must still be there."),
        (partial(_culprits, guilty=lambda p: p.grad is not None), "those that do get one", "The other ones."),
        (partial(_culprits, guilty=lambda p: p.grad is not None and not p.grad.any()), "only gradients of zeros",
         "A parameter that takes no part has `None` in `.grad`."),
        (lambda net, loss: [name for name in _culprits(net, loss) if "weight" in name], "biases get away",
         "All of `net.named_parameters()`."),
        (partial(_as_what, what=lambda at, p: p), "those are the parameters themselves",
         "`net.named_parameters()` gives names, too."),
        (partial(_as_what, what=lambda at, p: at), "those are numbers", "`net.named_parameters()` gives names, too."),
        (partial(_as_what, what=lambda at, p: None), "those are no names: a parameter does not know its own",
         "`net.named_parameters()` gives names, too."),
        (lambda net, loss: [(name, net) for name in _culprits(net, loss)], "those are pairs",
         "The names only."),
        (lambda net, loss: ", ".join(_culprits(net, loss)), "the names are in one text", "A list of names."),
        (partial(_culprits, guilty=lambda p: True), f"{UNTOUCHED}; frozen ones, too",
         "Which `.grad` are `None` after `backward()`, and which of those should have one?"),
        (partial(_culprits, guilty=lambda p: False), "nobody is accused", "Whose `.grad` is `None`?"),
        (lambda net, loss: sorted({name.split(".")[0] for name in _culprits(net, loss)}), "those are names of modules",
         "Each parameter has a name of its own, as `dogs.bias`."),
        (lambda net, loss: sorted({it.split(".")[0] for it in _culprits(net, loss, guilty=lambda p: p.grad is None)}),
         "those are names of modules, and frozen ones are among them", "Go through `net.named_parameters()`."),
        (lambda net, loss: next(iter(_culprits(net, loss)), None), "one text comes back, or nothing",
         "A list of all the names: `return` it behind the loop."),
        (partial(_culprits, guilty=lambda p: not p.requires_grad), "those are frozen, and keep nobody waiting",
         "Look for those that want a gradient and have none."),
    ],
    hints={"'NoneType' object is not iterable": "`return` the list of names.",
           "Default process group": "On one device, before anything is wrapped: look at `net` itself.",
           "appears to not have been used": "With `allow_unused=True` it gives `None` for these.",
           "Tensors does not require grad": "A frozen parameter has no gradient to ask for: leave it out.",
           "Boolean value of Tensor": "A tensor is neither true nor false. Ask `p.grad is None`."},
    otherwise="Names as `net.named_parameters()` has them: of those that want a gradient, and have `None`.",
)  # fmt: skip
