"""Checks of lesson 6.2, When a rank is late."""

import contextlib
import datetime
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from statistics import mean, median
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ddplab.checks.turns import leaving, turn

MET, PREPARED = "met, by the check", "prepared, by the check"  # keys in a store that is theirs, too


def _calls() -> int:
    """How many collectives this rank has called."""
    return sum(group._get_sequence_number_for_group() for group in c10d._world.pg_map)


def _limit(group: dist.ProcessGroup) -> float:
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def _prepare_and_seconds(rank: int, size: int) -> tuple[Callable[[], None], float]:
    """All calls of the group have half a second, and preparing takes longer. It is noted how long roll calls may."""
    c10d._set_pg_timeout(datetime.timedelta(seconds=0.5), dist.group.WORLD)

    def prepare() -> None:
        prepare.calls += 1
        c10d._get_default_store().set(MET, str(prepare.met()))
        time.sleep(0.8)
        c10d._get_default_store().set(PREPARED, str(time.monotonic()))

    def roll_call(group: Any = None, timeout: datetime.timedelta | None = None, **options: Any) -> None:
        if timeout is None or isinstance(timeout, datetime.timedelta):
            prepare.limits.append((timeout or c10d.default_pg_timeout).total_seconds())
        prepare.roll_call(group, timeout, **options)

    prepare.roll_call, prepare.limits, dist.monitored_barrier = dist.monitored_barrier, [], roll_call
    prepare.calls, prepare.groups, prepare.limit = 0, set(c10d._world.pg_map), _limit(dist.group.WORLD)
    before = _calls()
    prepare.met = lambda: _calls() - before + len(prepare.limits)
    return prepare, 3.2


def _there(_: Any, prepare: Any, seconds: float) -> list[str]:
    store, when, dist.monitored_barrier = c10d._get_default_store(), "no", prepare.roll_call
    if store.check([PREPARED]):
        when = "yes" if time.monotonic() - float(store.get(PREPARED)) < 1.5 else "long before"
    made = [_limit(group) for group in c10d._world.pg_map if group not in prepare.groups]
    limit = max(prepare.limits or made, default=0)
    if when == "yes" and _limit(dist.group.WORLD) != prepare.limit:
        when = "yes, with a new limit for all calls"
    elif limit > 60 * 60 * 24:
        when = "yes, or days later"
    elif limit >= 60 * seconds:
        when = "yes, or minutes later"
    elif when == "yes" and 0 < limit < 0.9 * seconds:
        when = "yes, this time"
    if when == "no" and prepare.met():
        with contextlib.suppress(dist.DistStoreError):  # where nobody prepares
            store.wait([MET], datetime.timedelta(seconds=0.5))
            when += ", though all have met" * (store.get(MET) != b"0")
    return ["yes" if prepare.calls else "no", when]


def _wait_for_rank_0(
    prepare: Any, seconds: float, who: tuple[int, ...] = (0,), waits: tuple[int, ...] = (0, 1)
) -> None:
    patient = dist.new_group(timeout=datetime.timedelta(seconds=seconds))
    if dist.get_rank() in who:
        prepare()
    if dist.get_rank() in waits:
        dist.barrier(patient)


def _meets_first(prepare: Any, seconds: float) -> None:
    _wait_for_rank_0(prepare, seconds, who=())
    if dist.get_rank() == 0:
        prepare()


def _impatient(prepare: Any, seconds: float) -> None:
    if dist.get_rank() == 0:
        prepare()
    dist.barrier()


def _asleep(prepare: Any, seconds: float) -> None:
    prepare() if dist.get_rank() == 0 else time.sleep(seconds)


def _for_all_calls(prepare: Any, seconds: float) -> None:
    c10d._set_pg_timeout(datetime.timedelta(seconds=seconds), dist.group.WORLD)
    _impatient(prepare, seconds)


def _both_asleep(prepare: Any, seconds: float) -> None:
    if dist.get_rank() == 0:
        prepare()
    time.sleep(seconds)


def _a_group_for_one(prepare: Any, seconds: float) -> None:
    if dist.get_rank() == 0:
        prepare()
    else:
        _wait_for_rank_0(prepare, seconds)


GROUPS = "All ranks call `new_group`, outside of the `if`, with a limit in seconds."

turn(
    "6.2.a",
    "A long wait, once",
    _wait_for_rank_0,
    _prepare_and_seconds,
    ranks=(2,),
    device="cpu",
    look=_there,
    heads=("has called prepare()", "it was done when the rank went on"),
    mistakes=[
        (partial(_wait_for_rank_0, waits=()), "rank 1 goes on before the data are there",
         "What does rank 1 wait in, and is it of that group?"),
        (leaving("all have met", _meets_first),
         "the barrier comes before `prepare()`: all go on, and then rank 0 prepares",
         "A barrier lets go when the last has come: rank 0 comes to it when it has prepared."),
        (partial(_wait_for_rank_0, who=(0, 1)), "every rank prepares", "Rank 0 alone: `dist.get_rank()`."),
        (partial(_wait_for_rank_0, who=(1,)), "rank 1 prepares, and not rank 0", "0 counts as False in an `if`."),
        (partial(_wait_for_rank_0, who=()), "nobody prepares", "Rank 0 calls `prepare()`."),
        (leaving("Timed out waiting 500ms", _impatient), "the limit of rank 1's wait is over before rank 0 is done",
         "A group has its limit for calls that are given it: make one with `seconds`, and pass it on: `group=`."),
        (leaving("Timed out", partial(_wait_for_rank_0, waits=(0,))), "rank 1 does not come to the barrier",
         "A barrier is for all ranks: it stands outside of the `if`."),
        (leaving("Timed out", partial(_wait_for_rank_0, waits=(1,))), "rank 0 does not come to the barrier",
         "A barrier is for all ranks: it stands outside of the `if`."),
        (leaving("wait timeout", _a_group_for_one), "rank 1 makes a group, and rank 0 does not", GROUPS),
        (leaving("or days later", lambda prepare, seconds: _wait_for_rank_0(prepare, 86400 * seconds)),
         "those are days", "`timedelta(seconds=…)`: what comes first in it, without a name, is days."),
        (leaving("or minutes later", lambda prepare, seconds: _wait_for_rank_0(prepare, 60 * seconds)),
         "the limit is many times `seconds`", "`timeout=datetime.timedelta(seconds=…)`"),
        (leaving("this time", lambda prepare, _: _wait_for_rank_0(prepare, 2.0)),
         "the limit is less than `seconds`, enough by luck", "It is given: `datetime.timedelta(seconds=seconds)`."),
        (leaving("a new limit", _for_all_calls), "every call has the new limit from now on, and not this wait alone",
         "Leave the group of all calls as it is: `new_group` makes another one beside it."),
        (leaving("long before", _both_asleep), "both ranks go on long after it was done",
         "A rank that sleeps does not hear of it: wait in a call that both make."),
        (leaving("long before", _asleep), "rank 1 goes on long after it was done",
         "A rank that sleeps does not hear of it: wait in a call that both make."),
    ],
    hints={"type datetime.timedelta": "`datetime.timedelta(seconds=seconds)`", "wait timeout after": GROUPS,
           "keyword argument 'timeout'": f"This torch's `barrier` takes no limit, and a group has one. {GROUPS}",
           "Timed out": f"Somebody waits in a call that the other never made, or made in another group. {GROUPS}"},
    otherwise="A group with a limit of its own; rank 0 prepares; then all ranks meet in that group's barrier.",
)  # fmt: skip


# For each job, what each rank computes in each step, in milliseconds.
STEPS = {
    "a job of two": [[20, 20, 20], [60, 60, 60]],
    "rank 0 is slow": [[50, 70, 60], [20, 20, 30], [60, 30, 20]],
    "a long first step": [[20, 20, 20, 20, 20], [900, 20, 20, 20, 20], [20, 60, 60, 60, 60], [20, 20, 20, 20, 20]],
    "a pause at the end": [[20, 20, 20, 20], [60, 60, 60, 20], [20, 20, 20, 300]],
}


def _rows(ranks: list[list[int]]) -> list[dict[str, float]]:
    """As `log` leaves them. An all-reduce takes two milliseconds, and the last rank is the last to have the sum."""
    return [
        {"rank": rank, "step": step, "computed": mine / 1000, "waited": (max(all_) - mine + 2 + 0.1 * rank) / 1000}
        for step, all_ in enumerate(zip(*ranks, strict=True))
        for rank, mine in enumerate(all_)
    ]


def _straggler(rows: Any, value: Any = lambda row: row["waited"], of: Any = median, pick: Any = min) -> int:
    ranks = sorted({row["rank"] for row in rows})
    return pick(ranks, key=lambda rank: of([value(row) for row in rows if row["rank"] == rank]))


def _last(rows: Any, by: str = "computed") -> list[tuple[int, int]]:
    """Who is the last, or (by what it waited) the first, in how many steps, the most of them first."""
    steps: dict[int, list[Any]] = {}
    for row in rows:
        steps.setdefault(row["step"], []).append(row)
    late = (max(step, key=lambda row: row[by])["rank"] for step in steps.values())
    return Counter(late).most_common()


turn(
    "6.2.b",
    "Who makes all others wait",
    _straggler,
    {name: lambda ranks=ranks: (_rows(ranks),) for name, ranks in STEPS.items()},
    look=lambda rank, _: int(rank),
    heads=("rank",),
    mistakes=[
        (partial(_straggler, pick=max), "who waits longest waits for somebody else", "How long does the latest wait?"),
        *((it, "who waits longest waits for somebody else", "How long does the latest wait?")
          for it in (partial(_straggler, of=max, pick=max), lambda rows: _last(rows, "waited")[0][0])),
        (partial(_straggler, value=lambda row: row["waited"] + row["computed"], pick=max),
         "whole steps take equally long on all ranks", "Look at one part of the step."),
        (partial(_straggler, of=sum), "a single long step decides", "In most steps: count steps, or take a median."),
        (partial(_straggler, of=mean), "a single long step decides", "In most steps: count steps, or take a median."),
        (partial(_straggler, of=min), 'in "a long first step" that one was last in one step only',
         "In most steps: count steps, or take a median."),
        (partial(_straggler, value=lambda row: row["computed"]), "that one computes least, and is there before others",
         "Others wait for who comes last."),
        (lambda rows: _last(rows)[0][1], "that is in how many steps, and not who",
         "`most_common(1)[0]` is a pair: the rank, and how often."),
        (partial(_straggler, of=lambda waits: waits[-1]), "in the last step it was that one, in most steps another",
         "Count the steps, or take a median."),
        (partial(_straggler, of=lambda waits: waits[0]), "in the first step it was that one, in most steps another",
         "Count the steps, or take a median."),
    ],
    hints={"must be a string, a bytes-like object or a real number": "Return the number of a rank.",
           "no median for empty data": "How many ranks has the job? The rows tell."},
    otherwise="The rank that comes last to the all-reduce: how long does it wait?",
)  # fmt: skip


PATIENT = datetime.timedelta(seconds=0.1)


class _Store(dist.HashStore):
    """Notes whether somebody has waited for a key that is not there, as long as a store waits."""

    waited = False

    def _note(self, keys: list[str]) -> None:
        self.waited |= self.timeout == PATIENT and not self.check(keys)

    def get(self, key: str) -> bytes:
        self._note([key])
        return super().get(key)

    def wait(self, keys: list[str], *timeout: Any, **named: Any) -> None:
        if not timeout and not named:
            self._note(keys)
        super().wait(keys, *timeout, **named)


def _store(here: set[int], size: int) -> tuple[Any, int]:
    store = _Store()
    store.set_timeout(PATIENT)
    for rank in here:
        store.set(f"here/{rank}", "yes")
    return store, size


HERE = {
    "rank 1 of 2": ({0}, 2),
    "rank 0 of 3": ({1, 2}, 3),
    "two of 4": ({0, 2}, 4),
    "all are there": ({0, 1, 2}, 3),
    "4 of 12": ({0, 1, 3, 4, 6, 8, 9, 11}, 12),
}


def _not_here(store: Any, size: int, first: int = 0, here: bool = False, of: int | None = None) -> list[int]:
    return [rank for rank in range(first, size) if store.check([f"here/{rank}"]) == here][:of]


def _missing(ranks: Any, store: _Store, *_: Any) -> str:
    return (", ".join(map(str, sorted(ranks))) or "nobody") + ", after a long wait" * store.waited


def _by_waiting(store: Any, size: int) -> list[int]:
    missing = []
    for rank in range(size):
        try:
            store.get(f"here/{rank}")
        except dist.DistStoreError:
            missing.append(rank)
    return missing


turn(
    "6.2.c",
    "Who is not here",
    _not_here,
    {name: lambda case=case: _store(*case) for name, case in HERE.items()},
    look=_missing,
    heads=("not here",),
    mistakes=[
        (partial(_not_here, here=True), "those are the ranks that are here", "Turn the question round."),
        (partial(_not_here, of=1), "one of several is left out", "All that are missing: do not stop at the first."),
        (partial(_not_here, first=1), "rank 0 may be missing too", "Ranks count from 0."),
        (lambda store, size: _not_here(store, size + 1), "there is no such rank",
         "`size` ranks, from 0 on: the last one is `size - 1`."),
        (lambda store, size: [n for n in range(size) if not store.get(f"here/{n}")],
         "rank 1 of 2 raised DistStoreError: Wait timeout", "`store.get` waits for a key. Which call only looks?"),
        (_by_waiting, "right, after a long wait: for each key that is not there, as long as a store waits",
         "In a job that is five minutes for each rank. `store.check` answers at once."),
        (lambda store, size: list(range(size)), "every rank is said to be missing", "Print the key that you ask for."),
        (lambda store, size: [] if store.check([f"here/{n}" for n in range(size)]) else list(range(size)),
         "you ask for all keys at once: then it says only whether all are there", "Ask for one key at a time."),
        (lambda store, size: [f"here/{n}" for n in _not_here(store, size)], "those are keys", "The ranks' numbers."),
        (lambda store, size: _not_here(store, size + 1, first=1), "you count the ranks from 1", "The first is rank 0."),
        (lambda store, size: _not_here(store, 1), "of those that are missing only rank 0 is named",
         "Does a `return` end the loop in its first turn?"),
        *((it, "a yes or no for each rank comes back", "The numbers of those for which `check` says no.")
          for it in (lambda store, size: [store.check([f"here/{n}"]) for n in range(size)],
                     lambda store, size: [not store.check([f"here/{n}"]) for n in range(size)])),
        (lambda store, size: list(range(store.num_keys(), size)), "you count the keys, and do not ask whose they are",
         "Ask for each rank's key."),
    ],
    hints={"incompatible function arguments": "`store.check` takes a list of keys, and keys are text.",
           "Store' is not iterable": "`store.check([key])` says whether a key is there.",
           "Wait timeout": "That call waits for a key. Which one only looks?",
           "'int' object is not iterable": "Return a list: several may be missing, or nobody.",
           "'NoneType' object is not iterable": "Return a list, an empty one where nobody is missing."},
    otherwise="Ask for the key of each rank: `here/0`, `here/1` and so on.",
)  # fmt: skip
