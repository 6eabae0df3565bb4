"""Checks of lesson 2.1, How DataParallel works."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, asks, expect_all, gpus_for, hint_for, kind, needs_function, number
from ddplab.course.checklist import dataparallel_checklist
from ddplab.course.data import digits
from ddplab.course.models import MLP

NUMBERS = asks(
    "2.1.1",
    Number("copied", 12_000_000, "4 bytes a parameter, for every GPU that does not have them yet.").with_mistakes(
        (16_000_000, "that is a copy for each of four", "The first GPU has the original."),
        (4_000_000, "that is one copy", "How many GPUs need one?"),
        (3_000_000, "those are numbers, not bytes", "4 bytes each."),
        (1_000_000, "those are the parameters", "How many GPUs need a copy, and how many bytes is it?"),
        (24_000_000, "that is there and back", "One forward only."),
    ),
    Number("grad", 10, "What do 3 and 7 make?").with_mistakes(
        (2.5, "that is the mean", "Nobody divides: the loss is a sum, and DataParallel adds up."),
        (1, "that is the first GPU's", "The gradients of all replicas come home."),
        (4, "that is the last GPU's", "The gradients of all replicas come home."),
    ),
    Number("averaged", 1, "Nobody divides but your loss. By what does it divide?").with_mistakes(
        (2.5, "that is the mean of the four GPUs' gradients", "The mean is over the ten outputs, not over GPUs."),
        (10, "that is the gradient of the sum", "The mean of ten outputs is their sum, divided."),
        (4, "that is divided by 2.5", "The mean is over the ten outputs."),
        (0.25, "that is divided twice", "Once by the ten outputs; DataParallel divides by nothing."),
    ),
)


@exercise("2.1.1", "Numbers of one step")
def numbers(sizes: Any, copied: Any, grad: Any, averaged: Any) -> None:
    """A batch of 10 on four GPUs; a million parameters; gradients 1 to 4, of a sum and of a mean."""
    try:
        parts = [number("sizes", size) for size in sizes]
    except TypeError:
        raise NotYet(f"`sizes` is {sizes!r}, not a list", "Four numbers, one for each GPU.") from None
    if parts != [3, 3, 3, 1]:
        shown = f"`sizes` is {', '.join(f'{part:g}' for part in parts)}"
        if sum(parts) != 10:
            raise NotYet(f"{shown}: {sum(parts):g} samples, and the batch has 10", "Nothing is lost.")
        if len(parts) != 4:
            raise NotYet(f"{shown}: {len(parts)} numbers for four GPUs", "One number for each GPU.")
        hint = "It divides, rounds up, and gives that many to each until nothing is left. Try scatter, or `chunk`."
        raise NotYet(f"{shown}: that would be fairer than what scatter does", hint)
    expect_all(NUMBERS, {"copied": copied, "grad": grad, "averaged": averaged})


@exercise("2.1.2", "A forward of your own")
def own_forward(forward: Callable[..., Any]) -> None:
    """`forward(net, batch, gpus)` must be nn.DataParallel's, for batches of 8, 3 and 1, gradients included."""
    needs_function("forward", forward)
    for n, sizes in ((2, (8, 3, 1)), (3, (8, 4))):
        with gpus_for(n) as gpus:
            _judge_forward(forward, gpus, sizes, " on three GPUs" if n == 3 else "")


def _judge_forward(forward: Callable[..., Any], gpus: Any, sizes: tuple[int, ...], on: str) -> None:
    net = MLP(hidden=4).to(gpus[0])
    model = nn.DataParallel(net, device_ids=gpus)
    for size in sizes:
        devices = len(torch.empty(size).chunk(len(gpus)))
        batch = torch.randn(size, 1, 8, 8).to(gpus[0])
        where = f"with a batch of {size}{on}"
        itself = mock.patch.object(nn.DataParallel, "forward", autospec=True, side_effect=nn.DataParallel.forward)
        with _noted(net) as seen, itself as wrapped:
            got = _hinted(where, forward, net, batch, gpus)
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
        reason = str(error).strip().splitlines()[-1][:160]
        raise NotYet(f"{where} your code raised {type(error).__name__}: {reason}", hint) from None


@exercise("2.1.3", "The prefix, taken off")
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


@exercise("2.1.4", "A script, mended")
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
