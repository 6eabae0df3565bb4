"""Checks of lesson 6.5, The pager."""

from collections.abc import Callable
from functools import cache, partial, wraps
from textwrap import shorten
from typing import Any

from ddplab.checks import EXERCISES
from ddplab.checks.turns import turn
from ddplab.course.bare import error_lines
from ddplab.course.faults import SOUND, build
from ddplab.course.incident_runs import COLON, INDENT, broken, differences, ends, last_night, patched, play
from ddplab.course.incidents import note_closed

HEADS = ("rank", "the place", "the job then")
WELL = "ends as it should"
PATCH = (
    'Return a rank (or `None`) and a dictionary: line → the text to put there, as in `1, {7: ""}`. '
    "`page.script()` has the numbers."
)
HINTS = {"not a ": PATCH}
HINTS |= {"indent": INDENT, "of train.py:": COLON}


@cache
def _job(text: str, seed: int) -> str:
    """What becomes of an incident's patched script: nothing but good, or how it differs from last night's."""
    built = build(seed)
    outcome = last_night() if text == SOUND else play(text, env=built.env)
    own = [line for line in error_lines(outcome.terminal) if "by peer" not in line]
    if outcome.state != "ended":
        return ends(outcome) + (
            f": {shorten(own[0].partition(']: ')[2] or own[0], 80, placeholder=' …')}" if own else ""
        )
    return "; ".join(differences(outcome, built.fault.probe == "rows")) or WELL


def _look(seed: int, answer: Any) -> list[Any]:
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise TypeError(f"not a rank and its patches: {answer!r}")
    rank, patches = answer
    built = build(seed)
    known = range(1, len(built.text.splitlines()) + 1)
    if not (rank is None or isinstance(rank, int)) or not hasattr(patches, "items"):
        raise TypeError(f"not a rank and its patches: {answer!r}")
    for line, text in patches.items():
        if line not in known or not isinstance(text, str):
            raise TypeError(f"not a line and its patch: {line!r}: {text!r}")
    who = "right" if built.is_culprit(rank) else "not on all ranks" if rank is None else f"not rank {rank}"
    there = set(patches) & set(built.lines)
    if found := broken(built.text, patches):
        raise found[0](f"{found[1]} (The rank: {who}. The place: {'right' if there else 'not there'}.)")
    job = _job(patched(built.text, patches), seed)
    return [who, "right" if there or job == WELL else "not there", job]  # what mends it may stand elsewhere


def _answer(rank: int | None, patches: dict[int, str]) -> tuple[int | None, dict[int, str]]:
    return rank, patches


def _turn(id: str, seed: int, mistakes: list[tuple[Callable[..., Any], str, str]], otherwise: str) -> None:
    built = build(seed)
    turn(
        id,
        f"Incident {seed}",
        partial(_answer, built.rank, built.mend),
        {f"incident {seed}": lambda: ()},
        look=partial(_look, seed),
        heads=HEADS,
        mistakes=mistakes,
        hints=HINTS,
        otherwise=otherwise,
    )
    judge = EXERCISES[id].judge

    @wraps(judge)
    def noting(*answers: Any) -> Any:
        picture = judge(*answers)
        note_closed(seed)  # on the lesson's board; it has not come back where the answer was wrong
        return picture

    EXERCISES[id].judge = noting


MEND = {33: "", 34: ""}
AS_IT_WAS = "the line through which rank 2 leaves the evaluation stands as it was"
_turn(
    "6.5.a",
    16,
    [
        (partial(_answer, 0, MEND), "rank 0 waits where two others wait too", "Which rank is elsewhere?"),
        (partial(_answer, None, MEND), "not all ranks go that way", "Its condition holds on one rank alone. On which?"),
        (partial(_answer, 2, {34: "        return None"}), "some rank still leaves before the all-reduce",
         "The others wait there for all ranks. Let none return above it."),
        (partial(_answer, 1, MEND), "rank 1 waits in the evaluation, as it should", "Which rank is elsewhere?"),
        (partial(_answer, 2, {38: "", 39: ""}), "now nobody adds up: each rank has the hits of its own share",
         "The all-reduce is right. Who leaves before it?"),
        (partial(_answer, 2, {}), AS_IT_WAS, "Through which line does it leave, and on what condition?"),
        (partial(_answer, 2, {69: ""}), f"{AS_IT_WAS}, and now the job fails",
         "The barrier is not at fault: all ranks should come to it. Through which line does rank 2 leave them?"),
    ],
    "Which rank stands elsewhere than the others, and through which line did it leave?",
)  # fmt: skip

SET_EPOCH = {56: "    sampler.set_epoch(epoch)"}
_turn(
    "6.5.b",
    4,
    [
        (partial(_answer, 0, SET_EPOCH), "the other ranks do the same", "`None` stands for all ranks."),
        (partial(_answer, None, {56: ""}), "without the line the sampler shuffles as for epoch 0, each time",
         "What does the sampler have to be told, so that each epoch is another?"),
        (partial(_answer, 3, SET_EPOCH), "the other ranks do the same", "`None` stands for all ranks."),
        (partial(_answer, None, {48: SOUND.splitlines()[47]}), "that changes nothing of what the ranks do",
         "Which line tells the sampler something wrong?"),
        (partial(_answer, None, {48: "loader = DataLoader(train, BATCH, shuffle=True)"}),
         "now each rank trains on all rows", "The sampler deals out the shares; it only has to shuffle anew."),
        (partial(_answer, None, {47: "sampler = DistributedSampler(train, seed=SEED + rank)"}),
         "each rank shuffles by itself now, so some rows are nobody's, and each epoch is as the one before",
         "With one seed for all the shares fit together. What is the sampler told at the beginning of an epoch?"),
    ],
    "Which call tells the sampler that a new epoch begins, and what does it get tonight?",
)  # fmt: skip

LOSS = "        loss = cross_entropy({}, y.to(device))"
ADDED = (
    "the losses are added up, and the weights are each rank's own as before",
    "It is gradients that want a mean. Which object takes it?",
)
THROUGH = {58: LOSS.format("model(x.to(device))")}
_turn(
    "6.5.c",
    12,
    [
        (partial(_answer, 1, THROUGH), "rank 1 does what all others do", "`None` stands for all ranks."),
        (partial(_answer, None, {58: LOSS.format("model.module(x.to(device))")}),
         "what is inside of DDP is the bare model again", "Which object averages the gradients?"),
        (partial(_answer, None, {58: LOSS.format("model(x)")}), "the batch has stayed on the CPU",
         "The model is on a GPU; so must the batch be."),
        (partial(_answer, 0, THROUGH), "rank 0 does what all others do", "`None` stands for all ranks."),
        (partial(_answer, None, {50: SOUND.splitlines()[49]}), "that changes nothing: no rank hears of the others",
         "`DDP(net)` is right. Who uses it?"),
        (partial(_answer, None, {60: "        loss.backward(); dist.all_reduce(loss.detach())"}), *ADDED),
        (partial(_answer, None, {58: f"{LOSS.format('net(x.to(device))')}; dist.all_reduce(loss)"}), *ADDED),
        (partial(_answer, None, {60: "        loss.backward(); [dist.all_reduce(p.grad) for p in net.parameters()]"}),
         "the gradients are added up, and no mean is taken", "Divide by `size`. Or which object does both?"),
    ],
    "Ask two ranks for their weights. Which call should have kept them equal?",
)  # fmt: skip
