"""Checks of lesson 2.1, How DataParallel works."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import (
    gpus_for,
    kind,
    lies_on,
    needs_function,
)
from ddplab.checks.hints import first_line, hint_for
from ddplab.checks.turns import turn
from ddplab.course.checklist import dataparallel_checklist
from ddplab.course.data import digits
from ddplab.course.models import MLP, with_weights


@exercise("2.1.1", "A DataParallel of your own")
def own_data_parallel(MyDataParallel: Callable[..., Any]) -> None:
    """`MyDataParallel(net, gpus)(batch)` must be nn.DataParallel's: short batches, gradients, and weights that move."""
    if isinstance(MyDataParallel, nn.Module):
        raise NotYet("`MyDataParallel` is a module, not the class", "The check makes modules of its own.")
    needs_function("MyDataParallel", MyDataParallel)
    for n, sizes in ((2, (8, 3, 1)), (3, (8, 4))):
        with gpus_for(n) as gpus:
            _judge_own(MyDataParallel, gpus, sizes, " on three GPUs" if n == 3 else "")


def _judge_own(MyDataParallel: Callable[..., Any], gpus: Any, sizes: tuple[int, ...], on: str) -> None:
    net = MLP(hidden=4).to(gpus[0])
    model, mine = nn.DataParallel(net, device_ids=gpus), MyDataParallel(net, gpus)
    if getattr(mine, "module", None) is not net:
        raise NotYet("`.module` is not the network", "`self.module = net`, as the real one has it.")
    for size in sizes:
        devices = len(torch.empty(size).chunk(len(gpus)))
        batch = torch.randn(size, 1, 8, 8).to(gpus[0])
        where = f"with a batch of {size}{on}"
        itself = mock.patch.object(nn.DataParallel, "forward", autospec=True, side_effect=nn.DataParallel.forward)
        with _noted(net) as seen, itself as wrapped:
            got = _hinted(where, mine, batch)
        if not isinstance(got, torch.Tensor):
            hint = "`return` the result." if got is None else "One tensor: gather the parts."
            raise NotYet(f"{where} it returns {kind(got)}, not a tensor", hint)
        if wrapped.called:
            raise NotYet("that is `nn.DataParallel` itself", "The four functions, from scatter to gather.")
        if len({where for where, _ in seen}) < devices:
            used = sorted({str(where) for where, _ in seen})
            hint = "Scatter the batch over `gpus`, and give each replica its part."
            if len(used) > 1:
                raise NotYet(f"{where} only {' and '.join(used)} compute", "As many GPUs as there are in `gpus`.")
            raise NotYet(f"{where} only {used[0] if used else 'no GPU'} computes", hint)
        if sum(n for _, n in seen) != size:
            hint = "Scatter the batch; every replica gets its part, and no more."
            raise NotYet(f"{where} the GPUs compute {sum(n for _, n in seen)} images", hint)
        wanted = model(batch)
        if got.device != wanted.device:
            raise NotYet(f"{where} the result is on {got.device}", "Gather it on `gpus[0]`.")
        if got.shape != wanted.shape or not torch.allclose(got, wanted, atol=1e-5):
            raise NotYet(f"{where} the scores are not those of DataParallel", "Gather the parts in order.")
        _same_gradients(where, net, got, wanted)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1)  # as an optimiser would, in place
    batch = torch.randn(8, 1, 8, 8).to(gpus[0])
    where = f"after an update of `net`{on}"
    if not torch.allclose(_hinted(where, mine, batch), model(batch), atol=1e-5):
        raise NotYet(f"{where} the scores are still those of before", ANEW)


ANEW = "The optimiser moves `net`, and nobody tells the replicas. When does the real one make them?"


def _same_gradients(where: str, net: Any, got: Any, wanted: Any) -> None:
    weights = list(net.parameters())
    right = torch.autograd.grad(wanted.square().mean(), weights)
    found = torch.autograd.grad(got.square().mean(), weights, allow_unused=True) if got.requires_grad else [None]
    if any(grad is None for grad in found):
        raise NotYet(f"{where} no gradient reaches `net`", "No `detach`, no `no_grad()` and no `.data` on the way.")
    if not all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, right, strict=True)):
        hint = "Those of every replica must come home: `replicate(net, …)` without `detach`, no `no_grad()`."
        raise NotYet(f"{where} the scores are right, and the gradients in `net` are not", hint)


def _hinted(where: str, forward: Callable[..., Any], *inputs: Any) -> Any:
    """What forward returns; an error that people meet here is raised as a NotYet with a hint."""
    hints = {
        "modified inplace": ANEW,
        "is not equal to the number of inputs": "No part, no replica: replicate on as many GPUs as there are parts.",
        "index out of range": "A short batch makes fewer parts than there are GPUs.",
        "device": "Each part needs a replica on its own GPU.",
    }
    try:
        return forward(*inputs)
    except (AssertionError, IndexError, RuntimeError) as error:
        hint = hint_for(str(error), hints)
        if not hint or isinstance(error, NotImplementedError):
            raise
        raise NotYet(f"{where} your code raised {type(error).__name__}: {first_line(str(error))}", hint) from None


@exercise("2.1.2", "The prefix, taken off")
def prefix(bare: Callable[..., Any]) -> None:
    """`bare(state)` must give the names of the model inside, also where a layer is called module."""
    needs_function("bare", bare)

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module, self.submodule, self.modular = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)

    class Encoder(nn.Module):  # a part in a DataParallel of its own, the model around it bare
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = nn.DataParallel(nn.Linear(2, 2)), nn.Linear(2, 2)

    for what, net, wrap in (
        ("a wrapped model", MLP(hidden=2), True),
        ("a file that is bare already", MLP(hidden=2), False),
        ("a wrapped model whose layers are called module, submodule and modular", Odd(), True),
        ("a bare model with a layer called encoder.module", Encoder(), False),
    ):
        wanted = net.state_dict()
        given = dict(nn.DataParallel(net).state_dict() if wrap else wanted)
        before = list(given)
        got = bare(given)
        if got is None and list(given) == list(wanted) != before:
            raise NotYet("it changes the dictionary that it got, and returns nothing", "Return a new dictionary.")
        if not isinstance(got, Mapping):
            raise NotYet(f"for {what} it returns {kind(got)}, not a dictionary", "Names and tensors, both.")
        if list(given) != before:
            raise NotYet("it changes the dictionary that it got", "Leave that as it is; build a new one.")
        missing, extra = wanted.keys() - got.keys(), got.keys() - wanted.keys()
        if missing or extra:
            became = f"`{min(extra)}`" if extra else "nothing"
            raise NotYet(f"for {what}, {became} is there where `{min(missing)}` should be", _hint(what, got, before))
        if any(not torch.is_tensor(got[name]) or not torch.equal(got[name], wanted[name]) for name in wanted):
            raise NotYet(f"for {what} a tensor is not the one that belongs to its name", "Pair names and tensors.")


def _hint(what: str, got: Mapping[str, Any], before: list[str]) -> str:
    if set(got) == set(before):
        return "The names came back as they were."
    if "bare already" in what:
        return "Not every name has the prefix. Look before you cut."
    if "wrapped model whose" in what or "encoder" in what:
        return "`replace` takes every place, not only the beginning. A prefix is cut once, at the front."
    return "`strip` and `lstrip` take letters, not a word. There is a method of str for prefixes."


@exercise("2.1.3", "A script, mended")
def mended(careful: Callable[..., Any]) -> None:
    """`careful(net, data, gpus)` must return a model and a loader in which the checklist finds no fault."""
    needs_function("careful", careful)
    data = TensorDataset(digits().tensors[0], torch.arange(len(digits())))  # each sample says which one it is
    with gpus_for(2) as gpus:
        returned = careful(MLP(hidden=2), data, gpus)
        if not (isinstance(returned, tuple | list) and len(returned) == 2):
            raise NotYet("it does not return two things", "`return model, loader`")
        model, loader = returned
        if not isinstance(model, nn.Module) or not isinstance(loader, DataLoader):
            kinds = f"a {type(model).__name__} and a {type(loader).__name__}"
            raise NotYet(f"it returns {kinds}", "A model and a DataLoader, in this order.")
        for finding in dataparallel_checklist(model, loader).findings:
            if finding.ok is False:
                raise NotYet(f"{finding.question} No: {finding.found}", finding.do)
        first, second = ([which.tolist() for _, which in loader] for _ in range(2))
        if any(len(batch) != 50 for batch in first[:-1]):
            raise NotYet(f"its batches have {len(first[0])} samples", "50 are asked for.")
        served = [sample for batch in first for sample in batch]
        if len(set(served)) < len(served):
            found = f"an epoch serves {len(set(served))} of {len(data)} samples, and some of them more than once"
            raise NotYet(found, "Shuffled means: every sample once, in any order. Without replacement.")
        if len(served) != len(data):
            raise NotYet(f"an epoch serves {len(served)} of {len(data)} samples", "Leave the last batch in.")
        if first == second:
            raise NotYet("two epochs come in the same order", "`shuffle=True`")


@contextmanager
def _noted(net: Any) -> Iterator[list[tuple[Any, int]]]:
    """In here, each forward of net or of a replica notes where it ran, and on how many samples."""
    seen: list[tuple[Any, int]] = []
    with net.register_forward_pre_hook(lambda _, inputs: seen.append((inputs[0].device, len(inputs[0])))):
        yield seen


# ------------------------------------------------------------------ your turn: the four stages, on virtual GPUs

WIDE = 25  # numbers in a row: 100 bytes


def _rows(first: int, last: int, gpu: Any) -> Any:
    """Rows 10·first to 10·last on a GPU, each filled with its own number."""
    return (10.0 * torch.arange(first, last + 1))[:, None].repeat(1, WIDE).to(gpu)


def _shown(tensor: Any, gpu: Any) -> str:
    """What a tensor of rows holds, "10 20"; and where it lies, unless that is on `gpu`."""
    if not isinstance(tensor, torch.Tensor):
        return tensor if isinstance(tensor, str) else "nothing" if tensor is None else f"a {type(tensor).__name__}"
    away = "" if tensor.device == gpu else f", on {lies_on(tensor)}"
    if tensor.dim() != 2 or tensor.shape[1] != WIDE:
        return f"shape {tuple(tensor.shape)}{away}"
    return " ".join(f"{number:g}" for number in tensor[:, 0].tolist()) + away


def _listed(returned: Any) -> list[Any]:
    if isinstance(returned, dict):
        return ["a dictionary"]
    return [returned] if isinstance(returned, torch.Tensor | nn.Module) else list(returned or ())


def _scattered(scatter: Callable[..., Any], rows: int, n: int) -> list[Any]:
    """Which rows lie on each of n GPUs, and how many bytes went there; three columns of each."""
    with gpus_for(n, virtual=True) as gpus:
        batch = _rows(1, rows, gpus[0])
        gpus.meter.reset()
        parts = [*_listed(scatter(batch, gpus)), *[None] * n][:n]
        crossed = [gpus.meter.bytes(None, gpus[0], gpu) for gpu in gpus[1:]]
        lie = [_shown(part, gpu) for part, gpu in zip(parts, gpus, strict=True)]
    return [*lie, *["-"] * (3 - n), *crossed, *["-"] * (3 - n)]


def _copies_dropped(batch: Any, gpus: Any) -> Any:
    parts = batch.chunk(len(gpus))
    for part, gpu in zip(parts, gpus, strict=False):
        part.to(gpu)
    return parts


def _cut(batch: Any, gpus: Any, cut: Callable[..., Any] = lambda batch, n: batch.chunk(n), to: Any = None) -> list[Any]:
    return [part.to(gpu if to is None else to(gpus)) for part, gpu in zip(cut(batch, len(gpus)), gpus, strict=False)]


turn(
    "2.1.a",
    "Scatter",
    _cut,
    {"8 rows, 2 GPUs": lambda: (8, 2), "6 rows, 3 GPUs": lambda: (6, 3)},
    call=_scattered,
    otherwise="Parts of neighbouring rows, as many as GPUs; part i goes to GPU i, and a list of all comes back.",
    heads=("GPU 0", "GPU 1", "GPU 2", "bytes 0→1", "bytes 0→2"),
    hints={
        "argument 'chunks'": "`chunk` is told how many parts: `len(gpus)`.",
        "must be cuda device": "The GPUs are virtual here: `to(gpu)` takes either kind.",
        "on the same device": "The parts stay apart, in a list: they lie on different GPUs.",
    },
    mistakes=[
        (
            lambda batch, gpus: batch.chunk(len(gpus)),
            "the parts are right, and all of them lie on GPU 0",
            "A tensor goes to another device by its method `to`.",
        ),
        (
            _copies_dropped,
            "copies are made, and what comes back are the parts on GPU 0",
            "`to` returns a new tensor. Keep that one.",
        ),
        (
            lambda batch, gpus: batch.chunk(len(gpus))[0],
            "the first part comes back, and no other",
            "A list of all the parts. A `return` inside a loop ends it at once.",
        ),
        (
            lambda batch, gpus: [batch.to(gpu) for gpu in gpus],
            "every GPU gets the whole batch",
            "Each GPU works on rows of its own. Cut first.",
        ),
        (
            lambda batch, gpus: [batch.to(gpu).chunk(len(gpus))[i] for i, gpu in enumerate(gpus)],
            "every GPU holds its rows, but the whole batch has crossed to it; see the bytes",
            "Cut on GPU 0, and send only the part.",
        ),
        (
            partial(_cut, cut=lambda batch, n: [batch[i::n] for i in range(n)]),
            "neighbours go to different GPUs",
            "Gather will put the parts one below the other. Which order do the rows have then?",
        ),
        (
            partial(_cut, cut=lambda batch, n: batch.chunk(n, dim=1)),
            "every GPU gets a piece of every row",
            "The batch is cut along its first dimension, 0.",
        ),
        (
            partial(_cut, cut=lambda batch, n: batch.split(n)),
            "the parts have as many rows as there are GPUs",
            "You need as many *parts* as GPUs. `split` counts rows in a part, `chunk` counts parts.",
        ),
        (
            partial(_cut, cut=lambda batch, n: batch.chunk(2)),
            "there are always two parts",
            "In the second line of the table there are three GPUs: `len(gpus)`.",
        ),
        (
            partial(_cut, to=lambda gpus: gpus[-1]),
            "all parts go to the last GPU",
            "Part 0 to `gpus[0]`, part 1 to `gpus[1]`, …: `zip` pairs two lists.",
        ),
        (
            partial(_cut, to=None, cut=lambda batch, n: batch.view(n, -1)),
            "the rows of each part have become one long row",
            "`chunk` cuts along the first dimension, and leaves the others as they are.",
        ),
        (
            partial(_cut, cut=lambda batch, n: batch),
            "each GPU gets one row, and the rest is left",
            "Each part gets the batch's rows divided by the number of GPUs: `chunk` cuts like that.",
        ),
        (
            partial(_cut, cut=lambda batch, n: [batch[i : i + len(batch) // n] for i in range(n)]),
            "each part begins one row after the one before it",
            "Part i begins with row `i * rows`, where a part has so many rows.",
        ),
        (
            partial(_cut, cut=lambda batch, n: [part[:-1] for part in batch.chunk(n)]),
            "the last row of each part is left out",
            "A slice ends before its end: `[start:end]` has `end - start` rows.",
        ),
        (
            lambda batch, gpus: [part.to(gpu) for part, gpu in zip(batch.chunk(len(gpus)), gpus[::-1], strict=False)],
            "the first part goes to the last GPU, and so on backwards",
            "Part 0 to `gpus[0]`, part 1 to `gpus[1]`, …",
        ),
        (
            lambda batch, gpus: _cut(batch, gpus)[-1],
            "the last part comes back, and no other",
            "Put each into a list: `append` it, or write `[… for …]`.",
        ),
        (
            lambda batch, gpus: dict(zip(gpus, _cut(batch, gpus), strict=True)),
            "a dictionary comes back",
            "The parts alone, in a list.",
        ),
        (
            lambda batch, gpus: [part.cpu().to(gpu) for part, gpu in zip(batch.chunk(len(gpus)), gpus, strict=False)],
            "the rows go by way of the CPU, so nothing crosses from GPU 0 to the others",
            "Straight from one GPU to the other: `to` alone does that.",
        ),
    ],
)


def _replicated(replicate: Callable[..., Any], n: int) -> list[Any]:
    """What the first and the last replica compute, the bytes that the last one cost, and the gradients in net."""
    with gpus_for(n, virtual=True) as gpus:
        net = nn.Sequential(nn.Linear(WIDE - 1, 1))  # 25 numbers, 100 bytes
        nn.init.zeros_(net[0].bias)
        net[0].weight.data.zero_()[0, 0] = 10
        net.to(gpus[0])
        weight = net[0].weight
        gpus.meter.reset()
        came = _listed(replicate(net, gpus))
        replicas = [*came, *[None] * n][:n]
        crossed = gpus.meter.bytes(None, gpus[0], gpus[n - 1])
        computed, back = [], []
        for number, which in enumerate((0, n - 1), 1):
            given = torch.zeros(1, WIDE - 1)
            given[0, 0] = number
            output, grad = None, None
            try:
                output = replicas[which](given.to(gpus[which]))
                grad = torch.autograd.grad(output.sum(), weight, allow_unused=True)[0]
            except (RuntimeError, TypeError):  # it is nothing, or some weights lie elsewhere, or have no gradient
                pass
            no_net = [kind for kind in (dict, str) if isinstance(replicas[which], kind)]
            failed = "nothing" if replicas[which] is None else "a dictionary" if no_net else "fails"
            computed.append(failed if output is None else output.item())
            back.append("none" if grad is None else grad[0, 0].item())
    return [*computed, crossed, *back, *[f"{len(came)} replicas"] * (len(came) > n)]


def _copied(net: Any, gpus: Any, weights: Callable[[Any], Any] = lambda net: dict(net.named_parameters())) -> list[Any]:
    return [with_weights(net, {name: it.to(gpu) for name, it in weights(net).items()}) for gpu in gpus]


def _alone(net: Any, gpus: Any) -> list[Any]:
    import copy

    return [copy.deepcopy(net).to(gpu) for gpu in gpus]


APART = "every copy computes what it should, but no gradient finds back to `net`"
LEADS = "What `to` makes of a weight leads back to it. Not so `Parameter`, `deepcopy`, `state_dict`, `data`, `detach`."

turn(
    "2.1.b",
    "Replicate",
    _copied,
    {"2 GPUs": lambda: (2,), "3 GPUs": lambda: (3,)},
    call=_replicated,
    otherwise="For each GPU: a dictionary of weights that were brought there, and a copy of `net` that has them.",
    hints={
        "has no attribute 'items'": "`with_weights` wants a dictionary of the weights, by name: `{name: …}`.",
        "has no attribute 'rpartition'": "The names are the keys: `{name: weight}`.",
        "has no attribute 'to'": "`named_parameters()` gives pairs: `for name, weight in …`.",
    },
    heads=("GPU 0 computes", "last GPU computes", "bytes to it", "gradient from GPU 0", "from the last"),
    mistakes=[
        (
            lambda net, gpus: [net for _ in gpus],
            "every replica has its weights on GPU 0",
            "Each weight has to go to the replica's GPU: `to`.",
        ),
        (
            lambda net, gpus: [net.to(gpu) for gpu in gpus],
            "`net`'s own weights have moved to the last GPU: a module's `to` moves them, and a copy made with them has "
            "no others",
            "Move tensors, not a module: the weights, one by one, before `with_weights`.",
        ),
        (
            lambda net, gpus: [with_weights(net, net.state_dict()) for _ in gpus],
            "every replica has its weights on GPU 0, and no gradient finds back to `net`",
            "Take the weights from `named_parameters()`, and send each to the replica's GPU: `to`.",
        ),
        (_alone, APART, LEADS),
        (
            partial(_copied, weights=lambda net: {name: nn.Parameter(it) for name, it in net.named_parameters()}),
            APART,
            LEADS,
        ),
        (
            torch.no_grad()(_copied),
            "no gradient finds back to `net` from the other GPUs",
            "No `no_grad()`: the way back leads through here.",
        ),
        *[
            (
                lambda net, gpus, place=place: [_copied(net, [gpus[place]])[0] for _ in gpus],
                f"all replicas have their weights on {which}",
                "Each replica needs weights on its own GPU: `it.to(gpu)`.",
            )
            for place, which in ((-1, "the last GPU"), (1, "GPU 1"))
        ],
        (
            lambda net, gpus: _copied(net, gpus[-1:]) * len(gpus),
            "all replicas have their weights on the last GPU",
            "A dictionary for each GPU, and a replica made of it, inside of the loop over them.",
        ),
        (
            lambda net, gpus: [with_weights(twin, dict(net.named_parameters())) for twin in _alone(net, gpus)],
            "copies were sent, and were then given the weights of `net`, which lie on GPU 0",
            "Each weight has to go to the replica's GPU: `to`.",
        ),
        (
            lambda net, gpus: [{name: it.to(gpu) for name, it in net.named_parameters()} for gpu in gpus],
            "dictionaries of weights come back",
            "`with_weights(net, weights)` makes a replica of each.",
        ),
        (
            lambda net, gpus: [
                with_weights(net, {name: it.to(gpu)}) for gpu in gpus for name, it in net.named_parameters()
            ],
            "there is a replica for each weight, and one for each GPU is wanted",
            "A dictionary with all the weights first: `with_weights` below the loop over them.",
        ),
        (partial(_copied, weights=lambda net: net.state_dict()), APART, LEADS),
        (partial(_copied, weights=lambda net: {name: it.data for name, it in net.named_parameters()}), APART, LEADS),
        (
            lambda net, gpus: _copied(net, gpus[:1]),
            "one replica comes back, that of GPU 0",
            "One for each of `gpus`. A `return` inside a loop ends it at once.",
        ),
        (
            lambda net, gpus: _copied(net, gpus[:2]),
            "there are two replicas, and three GPUs",
            "One for each of `gpus`, however many there are.",
        ),
        (
            lambda net, gpus: _copied(net, gpus[1:]),
            "the list does not begin with a replica on GPU 0",
            "A list, with one for each of `gpus`, the first included.",
        ),
    ],
)


def _applied(parallel_apply: Callable[..., Any], n: int) -> list[Any]:
    """The first and the last output, whether the replicas were at work together, and the bytes that crossed."""
    met: list[int] = []
    with gpus_for(n, virtual=True) as gpus:
        gate, before = threading.Barrier(n), set(threading.enumerate())

        def compute(part: Any, number: int) -> Any:
            try:
                gate.wait(0.25)  # opens when all are here
                met.append(number)
            except threading.BrokenBarrierError:
                pass
            time.sleep(0.07 * (n - number))  # the first comes last
            return part * 10 ** (number + 1)

        replicas = [partial(compute, number=number) for number in range(n)]
        parts = [_rows(2 * number + 1, 2 * number + 2, gpu) / 10 for number, gpu in enumerate(gpus)]
        gpus.meter.reset()
        try:
            outputs = [*_listed(parallel_apply(replicas, parts)), *[None] * n]
        finally:
            for thread in set(threading.enumerate()) - before:
                thread.join(1)
        crossed = gpus.meter.bytes()
        shown = [_shown(outputs[which], gpus[which]) for which in (0, n - 1)]
        return [*shown, "yes" if len(met) == n else "no", crossed]


def _in_threads(replicas: Any, parts: Any, wait: bool = True, keep: str = "by number", number: Any = None) -> list[Any]:
    """Each replica in a thread. keep: where an output goes: to the place of its replica, or behind the others'."""
    outputs: dict[int, Any] = {}

    def work(i: int) -> None:
        output = replicas[i if number is None else number](parts[i])
        outputs[i if keep == "by number" else len(outputs)] = output

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads if wait else []:
        thread.join()
    return [outputs.get(i) for i in range(len(parts))]


def _returned_to_nobody(replicas: Any, parts: Any) -> list[Any]:
    threads = [threading.Thread(target=it, args=(part,)) for it, part in zip(replicas, parts, strict=True)]
    for thread in threads:
        thread.start()
    return [thread.join() for thread in threads]


LOST = "no output comes back"
OUTLIVES = (
    "What a thread's function returns goes nowhere, and before `join` it is not done. "
    "Let it write into a list or a dictionary; or take the results of a `ThreadPoolExecutor`."
)

turn(
    "2.1.c",
    "Parallel apply",
    _in_threads,
    {"2 GPUs": lambda: (2,), "3 GPUs": lambda: (3,)},
    call=_applied,
    otherwise="Replica i computes part i, all at the same time, each in a thread; output i goes to place i of a list.",
    heads=("output of GPU 0", "of the last GPU", "at work together", "bytes"),
    mistakes=[
        (
            lambda replicas, parts: [replica(part) for replica, part in zip(replicas, parts, strict=True)],
            "one computes after the other: while the first is at work, the others wait",
            "Start a thread for each of them, all of them before you wait for any.",
        ),
        (
            partial(_in_threads, keep="behind"),
            "the outputs come in the order in which the replicas finish",
            "The first replica's output belongs in the first place, whoever is quicker.",
        ),
        (partial(_in_threads, wait=False), LOST, OUTLIVES),
        (_returned_to_nobody, LOST, OUTLIVES),
        (
            partial(_in_threads, number=0),
            "replica 0 computes every part",
            "Part 0 goes to replica 0, part 1 to replica 1, …",
        ),
        (
            lambda replicas, parts: _in_threads(replicas, [parts[0]] * len(parts)),
            "every replica computes part 0",
            "Part 0 goes to replica 0, part 1 to replica 1, …",
        ),
        (
            lambda replicas, parts: _in_threads(replicas, parts)[0],
            "only one output comes back",
            "All outputs, in a list, in the order of the replicas.",
        ),
    ],
)


def _gathered(gather: Callable[..., Any], n: int, home: int) -> list[Any]:
    """Which rows come home, where they lie, how many bytes went there, and whether the last output gets a gradient."""
    with gpus_for(n, virtual=True) as gpus:
        outputs = [_rows(2 * i + 1, 2 * i + 2, gpu).requires_grad_() for i, gpu in enumerate(gpus)]
        far = outputs[n - 1 - home]  # which has to travel
        gpus.meter.reset()
        joined = gather(outputs, gpus[home])
        crossed = gpus.meter.bytes(None, None, gpus[home])
        if not isinstance(joined, torch.Tensor):
            return [_shown(joined, None), "-", crossed, "-"]
        grad = joined.requires_grad and torch.autograd.grad(joined.sum(), far, allow_unused=True)[0] is not None
        return [_shown(joined, joined.device), lies_on(joined), crossed, "yes" if grad else "no"]


def _joined(
    outputs: Any, gpu: Any, join: Callable[..., Any] = torch.cat, first: Any = lambda it: it, to: Any = None
) -> Any:
    return join([first(output).to(to or gpu) for output in outputs])


turn(
    "2.1.d",
    "Gather",
    _joined,
    {"2 GPUs, to GPU 0": lambda: (2, 0), "3 GPUs, to GPU 0": lambda: (3, 0), "2 GPUs, to GPU 1": lambda: (2, 1)},
    call=_gathered,
    otherwise="Bring each output to `gpu`, without cutting its graph, and put them one below the other.",
    heads=("rows", "on", "bytes that came", "gradient goes back"),
    mistakes=[
        (
            lambda outputs, gpu: torch.cat(outputs),
            "the outputs lie on different GPUs, and no operation takes them so",
            "Bring each of them to `gpu` first.",
        ),
        (
            partial(_joined, join=list),
            "a list comes back, not one tensor",
            "They are all on one GPU. Now put them one below the other.",
        ),
        (
            partial(_joined, join=torch.stack),
            "the outputs lie side by side in a new dimension",
            "The result has as many rows as the whole batch, and no dimension more.",
        ),
        (
            partial(_joined, join=lambda parts: torch.cat(parts, dim=1)),
            "the outputs are joined along dimension 1",
            "Rows below rows: dimension 0.",
        ),
        (
            lambda outputs, gpu: outputs[-1].to(gpu),
            "the last output comes back, and no other",
            "All of them, in a list, and then one below the other.",
        ),
        (
            partial(_joined, join=lambda parts: parts[-1]),
            "the last output comes back, and no other",
            "Put each into a list, and join them below the loop.",
        ),
        (
            lambda outputs, gpu: outputs[0].to(gpu),
            "the first output comes back, and no other",
            "All of them, in a list. A `return` inside a loop ends it at once.",
        ),
        (
            partial(_joined, join=lambda parts: torch.cat(parts[::-1])),
            "the last output comes first",
            "In the order in which they come: rows belong to the rows of the batch.",
        ),
        (
            lambda outputs, gpu: _joined(outputs[:1] + outputs, gpu),
            "the first output is there twice",
            "A result that begins with it goes on with `outputs[1:]`.",
        ),
        (
            partial(_joined, join=lambda parts: torch.cat(parts).flatten()),
            "all rows have become one long row",
            "One below the other, and each as it is.",
        ),
        (
            partial(_joined, join=lambda parts: torch.stack(parts).mean(0)),
            "the outputs are averaged",
            "Every row is kept. Put them one below the other.",
        ),
        (
            lambda outputs, gpu: torch.tensor([output.tolist() for output in outputs], device=gpu),
            "the numbers are those, in a new tensor with a dimension more, to which no gradient goes back",
            "Join the tensors themselves: `torch.cat`.",
        ),
        (partial(_joined, join=sum), "the outputs are added up", "Every row is kept. Put them one below the other."),
        (
            partial(_joined, to="cpu"),
            "the result is on the CPU",
            "Put it on `gpu`.",
        ),
        (
            lambda outputs, gpu: torch.cat([output.cpu() for output in outputs]).to(gpu),
            "the outputs go by way of the CPU, so those of `gpu` itself travel too",
            "Straight to `gpu`: what is there already then stays.",
        ),
        (
            partial(_joined, first=lambda it: it.detach()),
            "no gradient can go back to the outputs",
            "No `detach`, no `data`, no `no_grad()`: the way back leads through here.",
        ),
        (
            lambda outputs, gpu: _joined(outputs, outputs[0].device),
            "the result is always on the first GPU",
            "The argument `gpu` says where it belongs.",
        ),
    ],
    hints={
        "same device": "Bring each of them to `gpu` first.",
        "must be tuple of Tensors": "`torch.cat` takes one list of tensors: `torch.cat([… for … in …])`.",
        "to numpy": "Without NumPy: it cuts the way back, and is on the CPU.",
        "on Tensor that requires grad": "Without NumPy: it cuts the way back, and is on the CPU.",
        "'gpus' is not defined": "Here is one, `gpu`.",
    },
)
