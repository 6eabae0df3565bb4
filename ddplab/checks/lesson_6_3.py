"""Checks of lesson 6.3, When a rank dies."""

import contextlib
import io
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ddplab.checks.turns import turn, waiting
from ddplab.course.models import MLP
from ddplab.vgpu import active, virtual_gpus

PEER = "RuntimeError: Connection closed by peer [10.0.0.7]:33698"
RESET = "RuntimeError: Connection reset by peer [10.0.0.7]:33698"
WRECKS = {  # rank, at, exit, said
    "one fails, two are victims": [
        (2, 8.2, 1, PEER),
        (1, 8.1, 1, "ValueError: could not convert string"),
        (0, 8.3, 1, RESET),
    ],
    "a victim's clock is behind": [(3, 7.9, 1, RESET), (2, 7.8, 1, PEER), (0, 8.4, 1, "KeyError: 'label'")],
    "one is killed, without a word": [(0, 5.1, 1, PEER), (2, 5.0, -9, ""), (1, 5.2, 1, PEER)],
    "one fails, torchrun ends another": [(0, 5.9, -15, ""), (3, 6.0, 1, "RuntimeError: no memory"), (1, 6.2, 1, PEER)],
    "four fail, one after the other": [
        (1, 6.0, 1, "KeyError: 'label'"),
        (2, 3.1, 1, PEER),
        (3, 3.0, -11, "Fatal Python error: Segmentation fault"),
        (0, 5.2, 1, "OSError"),
        (4, 9.1, 1, "OSError"),
    ],
    "two fail, torchrun ends the first": [
        (0, 7.2, 1, PEER),
        (2, 7.0, -15, "ValueError: bad row"),
        (1, 7.1, 1, "ValueError: bad row"),
    ],
}


def _first_cause(
    deaths: Any,
    peers: bool = False,
    ended: bool = False,
    spoke: bool = True,
    own: Callable[[Any], Any] = bool,
    by: Any = lambda it: it["at"],
    says: str = "by peer",
) -> int:
    left = [it for it in deaths if peers or says not in it["said"]]
    left = [it for it in left if ended or it["exit"] != -15 or (spoke and it["said"])]
    return min(filter(own, left), key=by)["rank"]


def _in_a_loop(deaths: Any, own: Callable[[Any], Any]) -> int | None:
    with contextlib.suppress(ValueError):
        return _first_cause(deaths, own=own)


def _deaths(wreck: list[tuple[Any, ...]]) -> tuple[list[dict[str, Any]]]:
    return ([dict(zip(("rank", "at", "exit", "said"), it, strict=True)) for it in wreck],)


turn(
    "6.3.a",
    "Who died first",
    _first_cause,
    {name: lambda wreck=wreck: _deaths(wreck) for name, wreck in WRECKS.items()},
    look=lambda rank, _: int(rank),
    heads=("rank",),
    mistakes=[
        *((partial(_first_cause, peers=True, spoke=spoke), "a victim's clock was behind, and it seems to have died "
           "first", "What do victims say? Is every one of them left out?") for spoke in (True, False)),
        *((partial(_first_cause, says="closed by peer", spoke=spoke), "rank 3 said `reset by peer`, and is a victim "
           "too", "Which words do both kinds of victims say?") for spoke in (True, False)),
        (partial(_first_cause, spoke=False), "rank 2 had failed and said so before torchrun's signal met it",
         "Of those with exit code -15, who is silent was ended; who tells of an error of its own is not innocent."),
        (partial(_first_cause, ended=True), "torchrun has ended that one: it tells of nothing of its own",
         "Which exit code do the ranks have that torchrun has ended?"),
        (partial(_first_cause, peers=True, ended=True), "the earliest death may be a victim's", "What do victims say?"),
        *((partial(way, own=lambda it: it["said"]), "a rank that died without a word is left out",
           "A rank that was killed says nothing, and is to blame all the same.") for way in (_first_cause, _in_a_loop)),
        *((partial(way, own=lambda it: it["exit"] > 0), "every rank that a signal has ended is left out",
           "Of the negative exit codes only -15 may be torchrun's doing.") for way in (_first_cause, _in_a_loop)),
        *((partial(_first_cause, by=lambda it: 0, spoke=spoke), "the log is not in the order of the deaths",
           "`at` says when.") for spoke in (True, False)),
        (partial(_first_cause, by=lambda it: -it["at"]), "that is the last one to die of its own", "The first."),
        (partial(_first_cause, by=lambda it: it["rank"]), "that is the lowest number of those who died of their own",
         "`at` says when."),
        (lambda deaths: deaths[0]["rank"], "that is the first in the log", "A log has them in any order."),
        (lambda deaths: [it["rank"] for it in deaths].index(_first_cause(deaths)),
         "that is a place in the log, not a rank", "`[\"rank\"]` of the entry that you found."),
        (lambda deaths: next(it["at"] for it in deaths if it["rank"] == _first_cause(deaths)),
         "that is when it died", "Who was it? Its `[\"rank\"]`."),
    ],
    hints={"must be a string, a bytes-like object or a real number": "Return the rank's number.",
           "between instances of 'dict'": "Of two entries neither is less: `min(…, key=lambda it: it[\"at\"])`.",
           "empty sequence": "Nobody is left there, yet some rank died of its own fault: a killed one says nothing."},
    otherwise="Leave out who was taken along: `by peer`, or exit code -15 and not a word. Of the rest, the earliest.",
)  # fmt: skip


class _Number(int):
    """A number that notices whether it is taken for a truth."""

    taken: Any = None

    def __bool__(self) -> bool:
        _Number.taken = int(self)
        return self != 0


def _calls_so_far() -> int:
    return dist.group.WORLD._get_sequence_number_for_group()


def _work(rank: int, size: int) -> tuple[Callable[[], int]]:
    def work() -> int:
        work.calls += 1
        if size != 2 and rank == 1:
            raise ValueError("a bad row")
        if size == 4 and rank == 2:
            raise KeyError("label")
        return _Number(10 * rank)

    work.calls, work.before, _Number.taken = 0, _calls_so_far(), None
    return (work,)


def _told(returned: Any, work: Any) -> list[Any]:
    """What came back, and how it may have come to that, where it is not as wanted."""
    why = " (0 was taken for a failure)" * (returned is None and dist.get_world_size() == 2 and _Number.taken == 0)
    numbers = isinstance(returned, int) and dist.get_world_size() > 2
    why += ", and it has asked" * (numbers and _calls_so_far() > work.before)
    return [f"{returned}{why}", work.calls]


def _everybody(
    work: Any, went: Any = lambda value: value is not None, flag: bool = False, bad: Any = range(1, 99)
) -> Any:
    value = _for_itself(work)
    failed = torch.tensor(0 if went(value) else 1)
    dist.all_reduce(failed)
    return not failed if flag else None if int(failed) in bad else value


def _of_one_kind(work: Any) -> Any:
    value = None
    try:
        value = work()
    except ValueError:
        pass
    return _everybody(lambda: value)


def _one_is_enough(work: Any) -> Any:
    value = _for_itself(work)
    dist.all_reduce(torch.ones(1))
    return value


def _for_itself(work: Any) -> Any:
    try:
        return work()
    except Exception:
        return None


def _not_caught(work: Any) -> Any:
    value = work()
    dist.all_reduce(torch.zeros(1))
    return value


def _told_in_try(work: Any) -> Any:
    try:
        value = work()
        dist.all_reduce(torch.zeros(1))
        return value
    except Exception:
        return None


def _raised_again(work: Any) -> Any:
    if (value := _everybody(work)) is None:
        raise RuntimeError("somebody failed")
    return value


def _all_of_them(work: Any) -> Any:
    numbers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(numbers, _for_itself(work))
    return None if None in numbers else numbers


def _all_true(work: Any) -> Any:
    numbers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(numbers, value := _for_itself(work))
    return value if all(numbers) else None


def _told_rank_0(work: Any) -> Any:
    value = _for_itself(work)
    dist.reduce(failed := torch.tensor(0 if value is not None else 1), dst=0)
    return value if dist.get_rank() or not failed else None


turn(
    "6.3.b",
    "One fails, all know",
    _everybody,
    _work,
    ranks=(3, 2, 4),
    device="cpu",
    look=_told,
    heads=("returns", "calls of work"),
    mistakes=[
        (partial(_everybody, bad=(1,)), "two ranks failed, and the others return their numbers",
         "How many failures are too many?"),
        (_for_itself, "who did well returns its number, though another failed",
         "How does a rank learn whether it failed anywhere?"),
        (_one_is_enough, "the ranks have met, and who did well returns its number, though another failed",
         "Does the result decide? It must tell whether it went well on *all* ranks, and not on one of them."),
        (_all_of_them, "the numbers of all ranks come back", "Each rank returns its own."),
        (lambda work: (_everybody(work), _for_itself(work))[0], "`work` is called twice", "Keep what it returned."),
        (partial(_everybody, flag=True), "False comes back where None is wanted",
         "Where it went well on all, the number; else None."),
        (partial(_everybody, went=bool), "rank 0's number is 0, and was taken for a failure",
         "Where `work` has raised there is no number: None tells that from a 0, `if value` does not."),
        *((it, "rank 0's number is 0, and was taken for a failure",
           "A 0 is a number, too, and no failure. None tells that one failed: `is None` asks for it, `all` and `or` "
           "do not.") for it in (_all_true, lambda work: _everybody(work) or None)),
        (lambda work: [_everybody(work), None][-1], "all went well, and nobody gets a number",
         "Does your code take a fixed number of ranks? Jobs have more or fewer. Is there a `return`?"),
        (_told_rank_0, "only rank 0 learns that another failed", "`dist.all_reduce` tells every rank."),
        (_of_one_kind, "only a ValueError is caught, and rank 2 raises another", "`except Exception`."),
        (_not_caught, "rank 1 raised ValueError: a bad row", "Catch it: `try`, `except`."),
        (_raised_again, "ranks raise an error where None is wanted", "Raise nowhere: return None on all ranks."),
        (waiting(_told_in_try), "rank 0 waits in all_reduce, and rank 1 has returned without it",
         "Where `work` raises, this rank does not come to the collective. Where must that stand, to be met by all?"),
    ],
    hints={"a bad row": "Catch it: `try`, `except`. `finally` by itself lets it through."},
    otherwise="Catch it; then let all ranks add up who failed, outside of `try` and `if`.",
)  # fmt: skip


def _model_and_file(rank: int, size: int) -> tuple[Any, Any]:
    pair, file = virtual_gpus(2).on(), io.BytesIO()
    torch.save({name: torch.full_like(it, 7) for name, it in MLP().to(pair[0]).state_dict().items()}, file)
    model = MLP().to(pair[rank])
    file.seek(0)
    model.before = list(map(id, model.parameters()))  # what an optimizer would have been given
    pair.meter.reset()
    return model, file


def _given_bytes(_: Any, model: Any, file: Any) -> list[Any]:
    pair, weight, rank = active(), next(model.parameters()), dist.get_rank()
    given = [pair.meter.bytes(target=gpu) for gpu in (pair[rank], pair[1 - rank])]
    where = "in the model" if bool((weight == 7).all()) else "elsewhere"
    replaced = model.before != list(map(id, model.parameters()))
    return [*given, where + ", as new parameters" * replaced, str(weight.device)]


def _load_weights(model: Any, file: Any, to: Any = None, into: bool = True, cpu: bool = False, **how: Any) -> None:
    mine = next(model.parameters()).device
    weights = torch.load(file, map_location=mine if to is None else to)
    if cpu:
        weights = {name: it.cpu() for name, it in weights.items()}
    if into:
        model.load_state_dict(weights, **how)


def _passed_on(model: Any, file: Any) -> None:
    if dist.get_rank() == 0:
        _load_weights(model, file)
    for it in model.parameters():
        dist.broadcast(it.data, 0)


turn(
    "6.3.c",
    "Weights on one's own GPU",
    _load_weights,
    _model_and_file,
    ranks=(2,),
    device="cpu",
    look=_given_bytes,
    heads=("its GPU gets", "the other GPU gets", "the weights are", "the model is on"),
    mistakes=[
        (partial(_load_weights, to={}), "rank 1's copy goes through GPU 0",
         "Where should `torch.load` put it? On the GPU that this rank's model is on, whatever that GPU is called."),
        (partial(_load_weights, to={}, cpu=True), "both copies go through GPU 0, and then through the CPU",
         "By the time you move it, it has been on GPU 0: tell `torch.load` where to put it, by `map_location`."),
        (partial(_load_weights, to="vgpu:1"), "rank 0's copy goes through GPU 1", "Which GPU is the model on?"),
        (partial(_load_weights, into=False), "what was loaded is not in the model", "`load_state_dict`."),
        (partial(_load_weights, to="cpu", into=False), "the model has its old weights, and no GPU was given any",
         "`load_state_dict`."),
        (partial(_load_weights, to="cpu", assign=True), "the model is on the CPU now",
         "It stays where it is: no `assign`, no `model.cpu()`."),
        (partial(_load_weights, assign=True), "they are new parameters, and an optimizer that was made for the model "
         "would go on with the old ones", "Copy into the parameters that are there: `load_state_dict` without "
         "`assign`."),
        (_passed_on, "rank 1 reads nothing, and gets its weights from rank 0's GPU", "Let each rank read the file."),
        (lambda model, file: _load_weights(model, file) if dist.get_rank() == 0 else None, "only rank 0 loads",
         "Every rank has a model of its own."),
    ],
    hints={"has no attribute 'device'": "Its parameters have one: `next(model.parameters()).device`.",
           "on a CUDA device": "These GPUs are virtual, and not called cuda. Where are the model's parameters?",
           "'int' object is not callable": "`map_location` takes a device or its name, and no number.",
           "dict-like": "`torch.load` reads the file first.",
           "argument 'map_location'": "It is `torch.load` that takes it.",
           "has no attribute 'to'": "No dictionary has a `to`, nor what `load_state_dict` returns: `torch.load` is "
           "told where to put what it reads.",
           "to use the mmap": "Here the file lies in memory: leave `mmap` out."},
    otherwise="`map_location` says where `torch.load` puts what it reads; then `load_state_dict`.",
)  # fmt: skip
