"""Checks of lesson 6.4, Where they fell out of step."""

from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.checks.turns import turn, waiting

TORCH = "/usr/lib/python3/site-packages/torch/nn/"
LIGHTNING = "/usr/lib/python3/site-packages/lightning/"
STACKS = {  # the innermost call first: name, file, line
    "a training step": [
        ("_sync_buffers", TORCH + "parallel/distributed.py", 2425),
        ("_call_impl", TORCH + "modules/module.py", 1789),
        ("<module>", "/home/me/train.py", 29),
    ],
    "an evaluation": [
        ("_sync_buffers", TORCH + "parallel/distributed.py", 2425),
        ("evaluate", "/home/me/train.py", 11),
        ("<module>", "/home/me/train.py", 31),
    ],
    "a call of one's own": [("<module>", "/home/me/train.py", 40)],
    "in a folder torch_jobs": [
        ("backward", "/usr/lib/python3/site-packages/torch/_tensor.py", 623),
        ("step", "/home/me/torch_jobs/steps.py", 7),
        ("main", "/home/me/torch_jobs/train.py", 52),
    ],
    "called by a library": [
        ("all_reduce", "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py", 3252),
        ("sync", LIGHTNING + "strategy.py", 64),
        ("on_epoch_end", "/home/me/model.py", 18),
        ("fit", LIGHTNING + "trainer.py", 580),
        ("main", "/home/me/train.py", 12),
        ("<module>", LIGHTNING + "cli.py", 3),
    ],
}


def _frames(stack: list[tuple[str, str, int]]) -> tuple[list[dict[str, Any]]]:
    return ([dict(zip(("name", "filename", "line"), it, strict=True)) for it in stack],)


def _own_frame(
    frames: Any, library: str = "site-packages", way: int = 1, of: bool = False, take: Callable[[Any], Any] = next
) -> Any:
    return take(frame for frame in frames[::way] if (library in frame["filename"]) == of)


def _from_outside(frames: Any, begins: bool = True, ends: bool = False) -> Any:
    if begins:
        last = None
    for frame in reversed(frames):
        if "site-packages" in frame["filename"]:
            return last
        last = frame
    return last if ends else None


TAKES = (next, lambda frames: next(frames, None), lambda frames: [*frames][0])  # noqa: RUF015


turn(
    "6.4.a",
    "Where your code made the call",
    _own_frame,
    {name: lambda stack=stack: _frames(stack) for name, stack in STACKS.items()},
    look=lambda it, _: [] if it is None else [it["filename"].split("/")[-1], it["line"], it["name"]],
    heads=("file", "line", "name"),
    mistakes=[
        (lambda frames: frames[-1], "that is where the script begins", "Which end of the list is the innermost?"),
        (partial(_own_frame, way=-1), "that is the outermost line of yours", "Which end of the list is the innermost?"),
        *((partial(_from_outside, begins=begins, ends=ends),
           "from outside, the search ends at the first library, and a library can be the outermost of all",
           "Begin at the other end of the list, with the innermost.") for begins in (0, 1) for ends in (0, 1)),
        (lambda frames: frames[0], "no library is left out: that is the innermost line of all",
         "`site-packages` stands somewhere within the path that `filename` has; `name` is only the function."),
        *((partial(_own_frame, library="torch", take=it), "torch_jobs is no library, and torch not the only one",
           "In which folder do all libraries lie?") for it in TAKES),
        *((partial(_own_frame, of=True, take=it), "that is the innermost of the libraries' frames",
           "Yours is wanted: which frames does your test let through?") for it in TAKES),
        (lambda frames: None if "site-packages" in frames[0]["filename"] else frames[0],
         "where the innermost frame is a library's nothing comes back", "Does a `return` end the loop too soon?"),
        (partial(_own_frame, library="/torch/"), "torch is not the only library", "Where do all libraries lie?"),
        (lambda frames: next(frame for frame in frames if frame["name"] == "<module>"),
         "not every call comes from `<module>`", "Look at the file, not the name."),
    ],
    hints=dict.fromkeys(("indices must be integers", "object is not subscriptable"), "Return a frame, the dictionary."),
    otherwise="From the innermost on: the first frame whose `filename` is in no `site-packages`.",
)  # fmt: skip


def _lists(*ranks: str, first: int = 1) -> list[list[dict[str, Any]]]:
    """Each rank in short: "b29 r29" is a broadcast in line 29, then an all-reduce there."""
    names = {"b": "broadcast", "r": "all_reduce", "g": "all_gather"}
    return [
        [{"number": n, "call": names[it[0]], "line": int(it[1:])} for n, it in enumerate(rank.split(), first)]
        for rank in ranks
    ]


RECORDS = {
    "call": (_lists("b29 r29 b11 b29", "b29 r29 b29 r29"), "call"),
    "line, in the same job": (_lists("b29 r29 b11 b29", "b29 r29 b29 r29"), "line"),
    "call, on four ranks": (_lists("r5 b6 b6 r7", "r5 b6 b6 g8", "r5 g8 b6 r7", "r5 b6 b6 g8"), "call"),
    "line, from 2001 on": (_lists("r5 b6 r5 b7", "r5 b6 r9 b8", first=2001), "line"),
    "call, and one ends sooner": (_lists("r5 b6 r5", "r5 b6"), "call"),
    "call, and rank 0 ends sooner": (_lists("r5 b6", "r5 b6 r5"), "call"),
    "call, and the older ones are dropped": (
        (*_lists("b6 r7 g8", first=2003), *_lists("r5 r5 b6 r7 r7", first=2001)),
        "call",
    ),
    "line, all in step": (_lists("r5 b6", "r5 b6"), "line"),
}


def _first_apart(
    lists: Any,
    what: str,
    first: Any = max,
    last: Any = max,
    place: bool = False,
    of: int | None = None,
    way: int = 1,
    kinds: int = 2,
) -> int | None:
    ranks = [{it["number"]: it[what] for it in rank} for rank in lists[:of]]
    start = first(map(min, ranks))
    for number in range(start, last(map(max, ranks)) + 1)[::way]:
        if len({rank.get(number) for rank in ranks}) >= (kinds or len(ranks)):
            return number - start if place else number
    return None


def _by_place(lists: Any, what: str, zipped: Any = zip_longest, place: bool = False) -> int | None:
    for n, those in enumerate(zipped(*lists)):
        if None in those or len({it[what] for it in those}) > 1:
            return n if place else next(it["number"] for it in those if it)
    return None


def _all_apart(lists: Any, what: str) -> list[int]:
    ranks = [{it["number"]: it[what] for it in rank} for rank in lists]
    numbers = range(max(map(min, ranks)), max(map(max, ranks)) + 1)
    return [number for number in numbers if len({rank.get(number) for rank in ranks}) > 1]


turn(
    "6.4.b",
    "The first number that differs",
    _first_apart,
    {name: lambda case=case: case for name, case in RECORDS.items()},
    look=lambda number, *_: "nowhere" if number is None else repr(number) if isinstance(number, str) else str(number),
    heads=("first at",),
    mistakes=[
        (partial(_first_apart, place=True), "that is the place in the list, counted from 0", "Return the number."),
        (_by_place, "calls of different numbers are compared: the lists do not all begin with the same one",
         "Look calls up by their `number`, on all ranks."),
        (partial(_by_place, zipped=zip), "`zip` ends with the shortest list, and pairs by place and not by number",
         "Look calls up by their `number`, up to the last that any rank has."),
        *((partial(_by_place, zipped=it, place=True), "that is the place in the list, counted from 0",
           "Return the number.") for it in (zip, zip_longest)),
        (partial(_first_apart, last=lambda those: max(those) - 1), "the last number is never looked at",
         "`range` ends before its end."),
        (partial(_first_apart, first=min), "what the recorder has dropped counts as different",
         "Begin with the first number that all ranks have."),
        (partial(_first_apart, last=min), "a rank whose list ends sooner goes unnoticed",
         "Go on up to the last number that any rank has."),
        (partial(_first_apart, last=next), "where rank 0's list ends sooner, nobody notices",
         "Go on up to the last number that any rank has."),
        (partial(_first_apart, kinds=0), "it waits until no two ranks have the same",
         "One that differs is enough: how many different ones are there then, at least?"),
        (_all_apart, "all of them come back", "The first number, and no list."),
        (lambda lists, what: _first_apart(lists, what) or "nowhere", "where nothing differs, a text came back",
         "Return `None` there: only the table says \"nowhere\"."),
        (lambda lists, what: None, "no number comes back, whatever differs",
         "Is there a `return` for the number? And a `return None` inside the loop would end it at the first number."),
        (partial(_first_apart, of=2), "only two ranks are compared", "How many different ones have all ranks?"),
        (partial(_first_apart, way=-1), "that is the last difference", "The first: from the beginning on."),
        (lambda lists, what: _first_apart(lists, "call"), "you always compare the calls", "`it[what]`."),
        (lambda lists, what: _first_apart(lists, "line"), "the lines count, whatever is asked for",
         "`it[what]`, no more."),
    ],
    hints={"list index out of range": "A place in a list is no number of a call: look calls up by their `number`."},
    otherwise="From the first number that all have: the first at which ranks differ, or one has no call (`.get`).",
)  # fmt: skip


class _Net(torch.nn.BatchNorm1d):
    """Counts its forward passes, those of copies and those by `forward` too."""

    passes = 0

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        _Net.passes += 1
        return super().forward(input)


def _model_and_x(rank: int, size: int) -> tuple[Any, Any]:
    """A model of one BatchNorm, which subtracts 10 in evaluation mode, and the batch's mean, 12, when it trains."""
    net = _Net(1)
    net.running_mean.fill_(10.0)
    model = DDP(net)
    _Net.passes = model.calls = 0

    def count(*_: Any) -> None:
        model.calls += 1

    model.register_forward_pre_hook(count)
    model.before = dist.group.WORLD._get_sequence_number_for_group()
    return model, torch.tensor([[11.0], [13.0]])


def _after(predictions: Any, model: Any, _: Any) -> list[Any]:
    held = ["nothing", "nothing"] if predictions is None else torch.as_tensor(predictions).flatten().tolist()
    inside, outside = (["evaluation", "training"][it.training] for it in (model.module, model))
    mode = inside if inside == outside else f"{outside}, inside in {inside}"
    mode += ", gradients off" * (not torch.is_grad_enabled())
    mode += ", frozen" * (not all(p.requires_grad for p in model.parameters()))
    made = dist.group.WORLD._get_sequence_number_for_group() - model.before
    graph = "yes" if getattr(predictions, "requires_grad", False) else "no"
    held, evaluates = [round(it, 2) if isinstance(it, float) else it for it in held], ["no", "yes"][_Net.passes > 0]
    return [evaluates, *held, graph, max(model.calls, made), mode]


def _evaluate(
    model: Any,
    x: Any,
    inside: bool = True,
    eval: bool = True,
    back: bool = True,
    grad: bool = False,
    alone: bool = True,
    mode_of: int = 0,
    back_of: int | None = None,
) -> Any:
    """mode_of: what is told to evaluate: 0 is what is inside, 1 all of it. back_of: what is told to train again."""
    if alone and dist.get_rank() > 0:
        return None
    net = model.module if inside else model
    both = net, model
    both[mode_of].train(not eval)
    with torch.set_grad_enabled(grad):
        predictions = net(x)
    both[mode_of if back_of is None else back_of].train(back)
    return predictions


def _off_for_good(model: Any, x: Any) -> Any:
    predictions = _evaluate(model, x)
    torch.set_grad_enabled(dist.get_rank() > 0)
    return predictions


def _all_for_one(model: Any, x: Any) -> Any:
    predictions = _evaluate(model, x, alone=False)
    return predictions if dist.get_rank() == 0 else None


def _all_through_ddp(model: Any, x: Any) -> Any:
    predictions = _evaluate(model, x, inside=False, alone=False)
    return predictions if dist.get_rank() == 0 else None


turn(
    "6.4.c",
    "An evaluation that nobody hears of",
    _evaluate,
    _model_and_x,
    ranks=(2,),
    device="cpu",
    look=_after,
    heads=("evaluates", "predictions", "", "a graph", "collective calls", "the model is in"),
    mistakes=[
        (waiting(partial(_evaluate, inside=False)), "the call goes through DDP, and is a collective",
         "What is inside DDP?"),
        (waiting(partial(_evaluate, inside=False, grad=True)), "the call goes through DDP, and is a collective",
         "What is inside DDP?"),
        (partial(_evaluate, eval=False), "the model was in training mode", "`eval()` before, `train()` after."),
        *((partial(_evaluate, back=False, mode_of=it), "rank 0 goes on in evaluation mode",
           "Back to `train()` afterwards.") for it in (0, 1)),
        (partial(_evaluate, mode_of=1, back_of=0), "what is inside of DDP trains again, and `model` itself does not",
         "`model.eval()` is for both, `model.module.train()` for what is inside: undo it where it was done."),
        (partial(_evaluate, grad=True), "a graph is kept", "`torch.no_grad()`."),
        (lambda model, x: _evaluate(model.requires_grad_(dist.get_rank() > 0), x, grad=True),
         "rank 0's parameters are frozen, and stay so", "Under `torch.no_grad()` nothing has to be frozen."),
        (lambda model, x: (_evaluate(model, x), dist.barrier())[0], "all ranks meet in a collective",
         "Nobody has to wait for rank 0 here."),
        (_off_for_good, "rank 0 computes no gradients from now on", "`with torch.no_grad():` ends by itself."),
        (lambda model, x: None if (held := _evaluate(model, x)) is None else held.argmax(dim=1),
         "each is 0, and that is not what the model gives back", "Return its predictions as they are, no `argmax`."),
        (lambda model, x: (_evaluate(model, x), None)[1], "nothing came back", "Is there a `return`, for rank 0?"),
        (lambda model, x: _evaluate(model.eval(), x), "the other ranks stay in evaluation mode",
         "What changes a mode is for rank 0 alone, or is undone on all."),
        (lambda model, x: (model.module.eval(), _evaluate(model, x))[1], "the other ranks stay in evaluation mode",
         "What changes a mode is for rank 0 alone, or is undone on all."),
        (_all_through_ddp, "all ranks call DDP, and that is a collective", "What is inside DDP?"),
        (partial(_evaluate, alone=False), "all ranks evaluate", "Rank 0 alone: `dist.get_rank()`."),
        (_all_for_one, "all ranks evaluate, and rank 0 alone returns", "The others need not compute at all."),
        (partial(_evaluate, eval=False, grad=True), "the model was in training mode, and a graph is kept",
         "`eval()`, and `torch.no_grad()`."),
    ],
    hints={"cannot access local variable": "All ranks come to that line. Which of them have given the name a value?"},
    otherwise="On rank 0: `model.module`, in evaluation mode, under `torch.no_grad()`; then back to training.",
)  # fmt: skip
