"""What checks of several lessons ask of an answer."""

import contextlib
import inspect
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ddplab import vgpu
from ddplab.checks import NotYet, exercise
from ddplab.launcher import launch
from ddplab.run import RankError


def needs_function(name: str, answer: Any) -> None:
    """Raise NotYet unless the answer can be called."""
    if not callable(answer):
        raise NotYet(
            f"`{name}` is {reprlib.repr(answer)}, not a function",
            hint="Pass the function itself, without calling it.",
        )


def number(name: str, answer: Any) -> float:
    """The answer as a number; a tensor with one element will do. Raises NotYet for anything else."""
    try:
        return float(answer)
    except (TypeError, ValueError, RuntimeError):
        what = "nothing" if answer is None else f"a {type(answer).__name__}"
        raise NotYet(
            f"`{name}` gives {what}, not a number", hint="One number, such as 3 or 0.25. Is there a `return`?"
        ) from None


def expect(
    name: str, answer: Any, wanted: float, known: Mapping[float, tuple[str, str]], otherwise: str, within: float = 1e-9
) -> None:
    """Raise NotYet unless the answer is the number wanted.

    known: wrong numbers that people arrive at, each with what it is and a hint. otherwise: the hint for any other.
    """
    value = number(name, answer)
    if abs(value - wanted) <= within * max(1.0, abs(wanted)):
        return
    for wrong, (what, hint) in known.items():
        if abs(value - wrong) <= within * max(1.0, abs(wrong)):
            raise NotYet(f"`{name}` is {value:.10g}: {what}", hint)
    raise NotYet(f"`{name}` is {value:.10g}: that is not it", otherwise)


@dataclass(frozen=True)
class Number:
    """A number that an exercise asks for, as data.

    name: what the notebook calls it. wanted: the right answer, met to `within` of its size. otherwise: the hint for a
    number that nobody expected. mistakes: a row for each wrong number that people arrive at: the number, what it is,
    and a hint.
    """

    name: str
    wanted: float
    otherwise: str
    mistakes: Sequence[tuple[float, str, str]] = ()
    within: float = 1e-9


def numbers(id: str, title: str, *asked: Number) -> None:
    """Register an exercise whose answers are numbers: `check(id, first, second, …)`, in the order of `asked`."""

    def judge(*answers: Any, **named: Any) -> None:
        expect_all(asked, judge.__signature__.bind(*answers, **named).arguments)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    judge.__signature__ = inspect.Signature([inspect.Parameter(it.name, kind) for it in asked])
    judge.__module__ = f"ddplab.checks.lesson_{id.partition('.')[0]}"
    exercise(id, title)(judge)


def on_ranks(fn: Any, *args: Any, size: int, hints: Mapping[str, str] | None = None, timeout: float = 20) -> list[Any]:
    """What `fn(*args)` returns on each of `size` ranks.

    hints: words of an error's message, and what to say to a learner whose code raised it; then NotYet is raised.
    Any other error goes on as the RankError it is.
    """
    try:
        return launch(fn, *args, nproc_per_node=size, quiet=True, timeout=timeout).results
    except RankError as error:
        hint = next((hint for words, hint in (hints or {}).items() if words in error.reason), "")
        if not hint:
            raise
        reason = error.reason.strip().splitlines()[0][:160]
        raise NotYet(f"your code, on rank {error.rank}, raised {error.type_name}: {reason}", hint) from None


@contextlib.contextmanager
def gpus_for(n: int, virtual: bool = False) -> Iterator[Any]:
    """n GPUs for a check: real ones or the notebook's own, else virtual ones. Afterwards all is as it was.

    virtual: virtual ones in any case, for a check that reads the meter.
    """
    before, threads = vgpu.active(), torch.get_num_threads()
    if before is not None and (virtual or len(before) != n):
        before.off()
    torch.set_num_threads(1)  # a replica is a thread already
    try:
        yield vgpu.virtual_gpus(n).on() if virtual else vgpu.gpus(n)
    finally:
        torch.set_num_threads(threads)
        if vgpu.active() is not before:
            if vgpu.active() is not None:
                vgpu.active().off()
            if before is not None:
                before.on()


def off(value: Any, reference: Any) -> float:
    """How far a vector is from another, as a share of the other's length; NaN counts as infinitely far."""
    far = float((value - reference).norm() / reference.norm())
    return far if far == far else float("inf")


def expect_all(asked: Iterable[Number], given: Mapping[str, Any]) -> None:
    """Raise NotYet unless each number asked for is the one wanted. For a check that looks at other answers too."""
    for it in asked:
        known = {wrong: (what, hint) for wrong, what, hint in it.mistakes}
        expect(it.name, given[it.name], it.wanted, known, it.otherwise, it.within)


def flat(tensors: Iterable[Any]) -> Any:
    """The numbers of several tensors, on the CPU, as one vector: `flat(p.grad for p in net.parameters())`."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).cpu()


def multiple(value: Any, reference: Any, within: float = 1e-9) -> float | None:
    """By which factor a vector is a multiple of another. None where it is no multiple of it."""
    factor = float((value @ reference) / (reference @ reference))
    return factor if off(value, factor * reference) < within else None


def listed(parts: Sequence[Any]) -> str:
    """Two or more things in a sentence: "3, 4 and 5"."""
    return f"{', '.join(map(str, parts[:-1]))} and {parts[-1]}"


def needs_loss(name: str, answer: Any) -> None:
    """Raise TypeError, for which `on_ranks` can have a hint, unless a learner's function returned a loss in a rank."""
    if isinstance(answer, torch.Tensor) and answer.numel() == 1:
        return
    what = f"a tensor of shape {tuple(answer.shape)}" if isinstance(answer, torch.Tensor) else repr(answer)
    raise TypeError(f"{name} returned {what}, not a tensor with one number")
