"""Checks of lesson 2.5, The cost of DataParallel. They run on virtual GPUs, for only those have a meter."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, asks, expect_all, flat, gpus_for, kind, needs_function, number, off
from ddplab.course.data import digits
from ddplab.course.models import MLP

MEGABYTES = asks(
    "2.5.1",
    Number("forward", 300, "4 bytes a parameter, one copy for each GPU but the first.").with_mistakes(
        (100, "that is one copy of the model", "GPU 0 has the model. How many others need it?"),
        (400, "GPU 0 has the model already", "N - 1 copies, not N."),
        (75, "you counted parameters", "A float32 number takes 4 bytes."),
        (25, "you counted parameters", "A float32 number takes 4 bytes, and three GPUs need the model."),
    ),
    Number("step", 600, "What goes out in the forward comes back as gradients.").with_mistakes(
        (300, "that is the forward alone", "The gradients of the parameters come back."),
        (400, "the gradients come back from three GPUs, each with all of them", "As much back as went out."),
        (800, "GPU 0 copies nothing to itself", "N - 1 copies each way."),
    ),
    Number("evaluation", 3000, "Ten forwards, no backward.").with_mistakes(
        (0, "`no_grad` saves the gradients, not the replicas", "A replica is made at every forward."),
        (300, "that is one batch", "A replica is made at every forward, and there are ten."),
        (6000, "there is no backward", "Without `backward()` nothing is reduced."),
        (1000, "that is one GPU's copies", "Three GPUs need the model."),
    ),
)


@exercise("2.5.1", "The bytes of a large model")
def numbers(forward: Any, step: Any, evaluation: Any) -> None:
    """25 million float32 parameters on four GPUs: MB of the model that cross."""
    given = {"forward": forward, "step": step, "evaluation": evaluation}
    for name, value in given.items():
        if number(name, value) >= 10_000:
            raise NotYet(f"`{name}` is {float(value):,.0f}: those are bytes", "In MB: divide by a million.")
    expect_all(MEGABYTES, given)


@exercise("2.5.2", "A leaner GPU 0")
def leaner(LossInside: Callable[..., Any]) -> None:
    """`LossInside(net)(images, labels)` under DataParallel gathers at most 4 bytes an image, and trains the same."""
    needs_function("LossInside", LossInside)
    if isinstance(LossInside, nn.Module):
        raise NotYet("`LossInside` is a module already, not a class", "Pass the class; the check makes modules.")
    for n, batch in ((2, 32), (4, 30)):
        where = f"on {n} GPUs with {batch} images"
        with gpus_for(n, virtual=True) as gpus:
            net, images, labels = _case(batch)
            wrapped = LossInside(net)
            if not isinstance(wrapped, nn.Module):
                hint = "Write a class that inherits from `nn.Module`, with `__init__` and `forward`."
                raise NotYet(f"`LossInside(net)` gives a {type(wrapped).__name__}, not a module", hint)
            images, labels = images.to(gpus[0]), labels.to(gpus[0])
            losses = wrapped.to(gpus[0])(images, labels)  # without DataParallel, which would only cloud an error
            if not isinstance(losses, torch.Tensor):
                raise NotYet(f"`forward` returns {kind(losses)}, not a tensor of losses", LOSS_HINT)
            if not losses.requires_grad:
                raise NotYet("the losses do not know their gradient", "Leave out `.item()`, `.detach()` and `no_grad`.")
            gpus.meter.reset()
            losses = nn.DataParallel(wrapped)(images, labels)
            gathered = gpus.meter.bytes("gather")
            if tuple(losses.shape) == (batch, 10):
                raise NotYet(f"{where}, GPU 0 still gathers ten numbers an image: {gathered:,} bytes", LOSS_HINT)
            if tuple(losses.shape) == (n,):
                raise NotYet(
                    f"{where}, each replica returns one loss, and they are gathered into {n}"
                    + (": the mean of means is off when the last replica has fewer images" if batch % n else ""),
                    'One loss an image weighs every image alike: `reduction="none"`.',
                )
            if losses.shape[:1] != (batch,) or losses.numel() != batch:
                raise NotYet(f"{where}, the losses have shape {tuple(losses.shape)}, not ({batch},)", LOSS_HINT)
            if gathered > 4 * (batch - -(-batch // n)):  # the first GPU's share need not travel
                hint = "A loss in float32 has 4 bytes."
                raise NotYet(f"{where}, GPU 0 gathers {losses.element_size()} bytes an image, not 4 at most", hint)
            losses.mean().backward()
            if any(p.grad is None for p in net.parameters()):
                raise NotYet(f"{where}, `net` got no gradients", "Keep `net` itself in the module: `self.net = net`.")
            gradient = flat(p.grad for p in net.parameters())
        if off(gradient, _gradient(batch)) > 1e-6:
            raise NotYet(f"{where}, the gradient is not that of one device", "Cross-entropy, and nothing else.")


LOSS_HINT = "One number an image, its loss. `F.cross_entropy` has an argument `reduction`."


@exercise("2.5.3", "One replication is enough")
def once(evaluate: Callable[..., Any]) -> None:
    """`evaluate(net, batches, gpus)`: the outputs of one device, and the parameters copied once for all batches."""
    needs_function("evaluate", evaluate)
    for n in (2, 3):
        with gpus_for(n, virtual=True) as gpus:
            net, images, _ = _case(30)
            right = [net(part).detach() for part in images.split(6)]
            bytes_of_net = 4 * sum(p.numel() for p in net.parameters())
            net.to(gpus[0])
            batches = [part.to(gpus[0]) for part in images.split(6)]
            gpus.meter.reset()
            outputs = evaluate(net, batches, gpus)
            links = [(cause, gpus[0], gpu) for cause in ("replicate", ".to") for gpu in gpus[1:]]
            times = round(sum(gpus.meter.bytes(*link) for link in links) / (bytes_of_net * (n - 1)))
            _compare_outputs(f"on {n} GPUs", outputs, right, gpus)
        if times > 1:
            raise NotYet(
                f"on {n} GPUs, the model was copied to each of the others {times} times, for {len(batches)} batches",
                "`replicate` belongs before the loop, the other three inside.",
            )
        if not times:
            raise NotYet(f"on {n} GPUs, GPU 0 did all the work itself", "`scatter` the batch, on all of `gpus`.")
        if any(getattr(output, "requires_grad", False) for output in outputs):
            raise NotYet("the outputs carry a graph with them", "Evaluate inside `with torch.no_grad():`.")


def _compare_outputs(where: str, outputs: Any, right: list[Any], gpus: Any) -> None:
    if not isinstance(outputs, list | tuple):
        got = "a tensor" if isinstance(outputs, torch.Tensor) else kind(outputs)
        raise NotYet(f"`evaluate` returns {got}, not a list of outputs", "One tensor for each batch, in a list.")
    if len(outputs) != len(right):
        raise NotYet(f"{where}, {len(right)} batches gave {len(outputs)} outputs", "One tensor for each batch.")
    for output, wanted in zip(outputs, right, strict=True):
        if not isinstance(output, torch.Tensor):
            hint = "`parallel_apply` returns a list, one output for each replica; `gather` puts them together."
            raise NotYet(f"{where}, an output is a {type(output).__name__}, not a tensor", hint)
        if tuple(output.shape) != tuple(wanted.shape):
            hint = "All the pieces, one below the other: `gather(outputs, gpus[0])`."
            raise NotYet(f"{where}, an output has shape {tuple(output.shape)}, not {tuple(wanted.shape)}", hint)
        if output.device not in (gpus[0], torch.device("cpu")):
            raise NotYet(f"{where}, an output lies on {output.device}", "Gather on `gpus[0]`.")
        if off(output.detach().cpu(), wanted) > 1e-6:
            raise NotYet(f"{where}, the outputs are not those of one device", "Is the order of the rows kept?")


def _case(batch: int) -> tuple[Any, Any, Any]:
    """A small network, the same at every call, with a batch of digits."""
    torch.manual_seed(0)
    images, labels = digits().tensors
    return MLP(), images[:batch], labels[:batch]


def _gradient(batch: int) -> Any:
    """The gradient of the mean loss on one device."""
    net, images, labels = _case(batch)
    F.cross_entropy(net(images), labels).backward()
    return flat(p.grad for p in net.parameters())
