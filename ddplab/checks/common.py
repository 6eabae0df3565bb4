"""What checks of several lessons ask of an answer."""

import contextlib
import inspect
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

import ddplab.vgpu as vgpu
from ddplab.checks import NotYet, exercise
from ddplab.checks.hints import first_line, hint_for
from ddplab.launcher import launch
from ddplab.run import RankError, RankTimeoutError


def needs_function(name: str, answer: Any) -> None:
    """Raise NotYet unless the answer can be called."""
    if not callable(answer):
        hint = "Pass the function itself, without calling it."
        raise NotYet(f"`{name}` is {reprlib.repr(answer)}, not a function", hint)


def kind(answer: Any) -> str:
    """What an answer is, for a message: "nothing", or "a list"."""
    name = type(answer).__name__.replace("VTensor", "Tensor")  # a virtual GPU's
    return "nothing" if answer is None else f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def number(name: str, answer: Any) -> float:
    """The answer as a number; a tensor with one element will do. Raises NotYet for anything else."""
    try:
        return float(answer)
    except (TypeError, ValueError, RuntimeError):
        hint = "One number, such as 3 or 0.25. Is there a `return`?"
        raise NotYet(f"`{name}` gives {kind(answer)}, not a number", hint) from None


def same_seconds(
    where: str, value: float, right: float, known: Mapping[float, tuple[str, str]], otherwise: str
) -> None:
    """Raise NotYet unless the seconds are right; name the mistake where it is a known one."""
    if abs(value - right) <= 1e-9 + 1e-6 * right:
        return
    for wrong, (what, hint) in known.items():
        if abs(value - wrong) <= 1e-6 * wrong:
            raise NotYet(f"{where} you get {value:.6g} s: {what}", hint)
    raise NotYet(f"{where} you get {value:.6g} s, and it is {right:.6g} s", otherwise)


@dataclass(frozen=True)
class Number:
    """A number that an exercise asks for, as data.

    name: what the notebook calls it. wanted: the right answer, met to `within` of its size. otherwise: the hint for a
    number that nobody expected. mistakes: a row for each wrong number that people arrive at: the number, what it is,
    and a hint. They read best as `Number("gpus", 4, "Count them.").with_mistakes((8, "…", "…"), …)`.
    """

    name: str
    wanted: float
    otherwise: str
    mistakes: Sequence[tuple[float, str, str]] = ()
    within: float = 1e-9

    def with_mistakes(self, *rows: tuple[float, str, str]) -> "Number":
        """The same number, with these mistakes."""
        return replace(self, mistakes=rows)

    def judge(self, answer: Any) -> None:
        """Raise NotYet unless the answer is the number wanted."""
        value = number(self.name, answer)
        if self._same(value, self.wanted):
            return
        for wrong, what, hint in self.mistakes:
            if self._same(value, wrong):
                raise NotYet(f"`{self.name}` is {value:.10g}: {what}", hint)
        raise NotYet(f"`{self.name}` is {value:.10g}: that is not it", self.otherwise)

    def _same(self, value: float, other: float) -> bool:
        return abs(value - other) <= self.within * max(1.0, abs(other))


def expect(
    name: str, answer: Any, wanted: float, known: Mapping[float, tuple[str, str]], otherwise: str, within: float = 1e-9
) -> None:
    """Judge an answer as a `Number` does. known: what a wrong number is, and a hint."""
    Number(name, wanted, otherwise, [(wrong, *told) for wrong, told in known.items()], within).judge(answer)


ASKED: dict[str, list[Number]] = {}  # by the exercise's id


def asks(id: str, *asked: Number) -> tuple[Number, ...]:
    """The same numbers, noted as asked for by an exercise: the tests then judge each row of their mistakes.

    For a check that judges them itself, by `expect_all`. Each is an argument of the check, and has its name.
    """
    ASKED.setdefault(id, []).extend(asked)
    return asked


def numbers(id: str, title: str, *asked: Number) -> None:
    """Register an exercise whose answers are numbers: `check(id, first, second, …)`, in the order of `asked`."""
    asks(id, *asked)

    def judge(*answers: Any, **named: Any) -> None:
        expect_all(asked, judge.__signature__.bind(*answers, **named).arguments)

    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    judge.__signature__ = inspect.Signature([inspect.Parameter(it.name, either) for it in asked])
    judge.__module__ = f"ddplab.checks.lesson_{'_'.join(id.split('.')[:2])}"
    exercise(id, title)(judge)


PATIENCE = 4.0  # seconds without progress after which ranks count as waiting for ever
WAITING = r"^rank (\d+) (?:waits in|called) (.+?)(?: of shape .*?)?(?: at .*?(line \d+(?:, in \S+)?).*)?$"  # `launch`'s


def may_be_slow(error: RankTimeoutError) -> bool:
    """Tell whether ranks that made no progress may be slow: one is elsewhere, or all are done, or still meeting, or in
    a backward pass, where they compute as well, and `launch` sees no call in which they differ.
    """
    waits = {int(rank): what for rank, what, _ in re.findall(WAITING, str(error), re.MULTILINE)}
    if any(result is None and rank not in waits for rank, result in enumerate(error.run.results)):
        return True
    all_wait = len(waits) == len(error.run.results)
    within = set(waits.values())
    return not waits or (all_wait and (within <= {"init_process_group", "barrier"} or within == {"backward"}))


def on_ranks(
    fn: Any,
    *args: Any,
    size: int,
    hints: Mapping[str, str] | None = None,
    waiting: str = "",
    patience: float | None = None,
) -> list[Any]:
    """What `fn(*args)` returns on each of `size` ranks.

    hints: words of an error's message, and what to say to a learner whose code raised it; then NotYet is raised.
    waiting: what to say to one whose ranks wait for each other for ever.
    patience: seconds without progress after which they do. When left out, PATIENCE, and five times that where they may
        be slow.
    Any other error goes on as the RankError it is.
    """
    try:
        return launch(fn, *args, nproc_per_node=size, quiet=True, timeout=patience or PATIENCE).results
    except RankError as error:
        if isinstance(error, RankTimeoutError) and patience is None and may_be_slow(error):
            return on_ranks(fn, *args, size=size, hints=hints, waiting=waiting, patience=5 * PATIENCE)
        text = error.reason or str(error)  # without a Python exception, as when gloo aborts, there is no reason
        hint = hint_for(text, hints or {})
        if not hint:
            error.hint = waiting  # said where the error is a RankTimeoutError
            raise
        told = first_line(text)
        raised = f"your code, on rank {error.rank}, raised {error.type_name}: {told}" if error.reason else told
        raise NotYet(raised, hint) from None


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


def lies_on(tensor: Any) -> str:
    """Where a tensor lies, real or virtual: "GPU 1", or "CPU"."""
    return "CPU" if tensor.device.type == "cpu" else f"GPU {tensor.device.index}"


def off(value: Any, reference: Any) -> float:
    """How far a vector is from another, as a share of the other's length; NaN counts as infinitely far."""
    far = float((value - reference).norm() / reference.norm())
    return far if far == far else float("inf")


def expect_all(asked: Iterable[Number], given: Mapping[str, Any]) -> None:
    """Raise NotYet unless each number asked for is the one wanted. For a check that looks at other answers too."""
    for it in asked:
        it.judge(given[it.name])


def flat(tensors: Iterable[Any]) -> Any:
    """The numbers of several tensors, on the CPU, as one vector: `flat(p.grad for p in net.parameters())`."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).cpu()


def multiple(value: Any, reference: Any, within: float = 1e-9) -> float | None:
    """By which factor a vector is a multiple of another. None where it is no multiple of it."""
    factor = float((value @ reference) / (reference @ reference))
    return factor if off(value, factor * reference) < within else None


def listed(parts: Sequence[Any]) -> str:
    """Things in a sentence: "3", or "3, 4 and 5"."""
    return " and ".join([", ".join(map(str, parts[:-1])), str(parts[-1])][len(parts) == 1 :])


def needs_loss(name: str, answer: Any) -> None:
    """Raise TypeError, for which `on_ranks` can have a hint, unless a learner's function returned a loss in a rank."""
    if isinstance(answer, torch.Tensor) and answer.numel() == 1:
        return
    what = f"a tensor of shape {tuple(answer.shape)}" if isinstance(answer, torch.Tensor) else repr(answer)
    raise TypeError(f"{name} returned {what}, not a tensor with one number")


def on_cpu(fn: Callable[..., Any], *args: Any, size: int) -> list[Any]:
    """What `fn(*args)` returns on each of `size` ranks that talk through gloo, as in the lesson."""
    return launch(fn, *args, nproc_per_node=size, device="cpu", quiet=True, timeout=3).results


def reducing_to_one(answer: Callable[..., Any], *args: Any) -> Any:
    """Call an answer where `reduce` leaves the sum with `dst` alone: gloo leaves it with others too, by chance."""
    reduce = dist.reduce

    def reduced(tensor: Any, dst: int | None = None, *args: Any, **kwargs: Any) -> Any:
        aside = torch.is_tensor(tensor) and dist.get_rank() not in (dst, kwargs.get("group_dst"))
        return reduce(tensor.clone() if aside else tensor, dst, *args, **kwargs)

    with mock.patch.object(dist, "reduce", reduced):
        return answer(*args)
