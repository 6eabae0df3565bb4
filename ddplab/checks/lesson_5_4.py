"""Checks of lesson 5.4, checkpoints."""

import contextlib
import itertools
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, needs_function, numbers, on_ranks

# 100 batches an epoch, saved after each 30th, killed in epoch 3 during batch 70, four ranks.
numbers(
    "5.4.1",
    "After the accident",
    Number("next_epoch", 3, "In which epoch was the last checkpoint written?").with_mistakes(
        (4, "that would leave out the rest of epoch 3", "The last checkpoint was written within epoch 3."),
        (2, "epoch 2 was finished", "The last checkpoint was written within epoch 3."),
        (0, "the job does not begin anew", "It has a checkpoint."),
    ),
    Number("next_batch", 60, "Saved after batches 29, 59 and 89; killed during 70.").with_mistakes(
        (59, "that batch was done before the save", "The position is the batch that comes *next*."),
        (61, "one batch is left out", "Saved after batch 59. Which comes next?"),
        (70, "what was done since the last checkpoint is lost", "Which checkpoint came before batch 70?"),
        (71, "what was done since the last checkpoint is lost", "Which checkpoint came before batch 70?"),
        (0, "the position is within the epoch", "The checkpoint knows the batch too."),
        (30, "there is a later checkpoint", "Saved after batches 29, 59 and 89."),
        (90, "the job did not get that far", "Which checkpoint came before batch 70?"),
    ),
    Number(
        "twice", 10, "From the position in the checkpoint to the last batch that was finished before the accident."
    ).with_mistakes(
        (11, "batch 70 was never finished the first time", "Finished before the accident, and again after it."),
        (9, "one is missing", "Count the first and the last: from 60 to 69."),
        (70, "the batches before 60 are in the checkpoint", "From where does the job go on?"),
        (40, "that many batches of epoch 3 are left to do", "Which of them had been done before the accident?"),
        (370, "that is everything that was done", "From where does the job go on?"),
    ),
    Number("random_states", 4, "Each rank draws numbers of its own.").with_mistakes(
        (1, "that would be rank 0's alone", "Each rank draws numbers of its own."),
        (3, "a rank is missing", "All four ranks start again, also the one that died."),
    ),
)


class Killed(BaseException):
    """Not an Exception, so that `except Exception` in an answer does not survive it."""


@exercise("5.4.2", "A save that survives")
def survives(save: Callable[[Any, str], Any]) -> None:
    """`save(state, path)`, killed at every stage: the old checkpoint or the new one must be there, whole."""
    needs_function("save", save)
    folder = tempfile.mkdtemp(prefix="ddplab-check-")
    path, old, new = f"{folder}/last.pt", {"w": torch.zeros(500)}, {"w": torch.ones(500)}
    try:
        torch.save(old, path)
        with _watched(path, kill=False) as seen:
            save(new, path)
        _good_save(folder, path, new, seen)
        torch.save(old, path)
        with contextlib.suppress(Killed), _watched(path, kill=True):
            save(new, path)
        _whole_after_the_kill(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _watched(path: str, kill: bool) -> Iterator[dict[str, Any]]:
    """See how files are saved, renamed and copied; with `kill`, die when half of the bytes are written."""
    real = {"save": torch.save, "replace": os.replace, "rename": os.rename, "copyfile": shutil.copyfile}
    seen: dict[str, Any] = {"saved": 0, "renamed from": [], "gone": False, "copied": False}

    def cut(name: Any) -> None:
        whole = Path(name).read_bytes()
        Path(name).write_bytes(whole[: len(whole) // 2])
        raise Killed

    def watched_save(state: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        seen["saved"] += 1
        real["save"](state, f, *args, **kwargs)
        if kill:
            name = f if isinstance(f, str | os.PathLike) else getattr(f, "name", None)
            if name is None:
                raise Killed  # into memory: nothing has reached the disk
            if not isinstance(f, str | os.PathLike):
                f.flush()
            cut(name)

    def renaming(how: str) -> Callable[..., None]:
        def rename(src: Any, dst: Any, **kwargs: Any) -> None:
            if os.path.abspath(dst) == path:
                seen["renamed from"].append(os.path.abspath(src))
                seen["gone"] = seen["gone"] or not os.path.exists(path)
            real[how](src, dst, **kwargs)

        return rename

    def copyfile(src: Any, dst: Any, **kwargs: Any) -> Any:
        seen["copied"] = seen["copied"] or os.path.abspath(dst) == path
        return real["copyfile"](src, dst, **kwargs)

    torch.save, shutil.copyfile = watched_save, copyfile
    os.replace, os.rename = renaming("replace"), renaming("rename")
    try:
        yield seen
    finally:
        torch.save, shutil.copyfile = real["save"], real["copyfile"]
        os.replace, os.rename = real["replace"], real["rename"]


def _good_save(folder: str, path: str, new: Any, seen: dict[str, Any]) -> None:
    """After a save that nobody disturbed."""
    if not os.path.exists(path):
        hint = "os.replace(from, to): the new file's name comes first, `path` second."
        raise NotYet("after your save there is no file at `path`", hint)
    if not _is(path, new):
        hint = "Save under another name, then rename it: os.replace(new_name, path)."
        raise NotYet("after your save the file at `path` still holds the old state", hint)
    if seen["copied"]:
        hint = "Rename, do not copy: os.replace(new_name, path)."
        raise NotYet("you copy the new file over the old one; killed in the middle of the copy, both are lost", hint)
    if not seen["renamed from"]:
        hint = "Save under another name, such as `path` with an ending, and rename when it is complete."
        raise NotYet("you write to `path` itself; killed in the middle, the old checkpoint is lost", hint)
    if seen["gone"]:
        raise NotYet(
            "you remove the old checkpoint before the new one has its name; killed in between, there is none",
            "os.replace puts the new file in the old one's place. Nothing has to be removed.",
        )
    if any(os.path.dirname(src) != folder for src in seen["renamed from"]):
        hint = "Put the new file beside the old one: `path` with an ending."
        raise NotYet("the new file is written in another folder; on another disk it cannot be renamed into place", hint)
    if left := sorted(set(os.listdir(folder)) - {os.path.basename(path)}):
        raise NotYet(f"after your save {len(left)} file(s) too many lie in the folder: {left[0]}", "Tidy up.")


def _whole_after_the_kill(path: str) -> None:
    if not os.path.exists(path):
        raise NotYet("killed in the middle of torch.save, no checkpoint is left", "Leave the old one alone.")
    if not _is(path, None):
        hint = "Rename only when torch.save has returned, not in a `finally`."
        raise NotYet("killed in the middle of torch.save, the file at `path` cannot be read any more", hint)


def _is(path: str, state: Any) -> bool:
    """Whether the file can be read and, unless state is None, holds this state."""
    try:
        found = torch.load(path)
        return state is None or torch.equal(found["w"], state["w"])
    except Exception:
        return False


@exercise("5.4.3", "Nobody too early")
def nobody_too_early(save_then_load: Callable[[Any, str], Any]) -> None:
    """On 2 ranks with a slow disk: rank 0 writes, every rank returns what it read from the file."""
    needs_function("save_then_load", save_then_load)
    folder = tempfile.mkdtemp(prefix="ddplab-check-")
    too_early = "Rank 0's disk is slow here. Nobody may open the file before rank 0 has written it."
    hints = dict.fromkeys(("No such file", "PytorchStreamReader", "EOF"), too_early)
    try:
        ranks = on_ranks(_on_a_slow_disk, save_then_load, f"{folder}/last.pt", size=2, hints=hints, timeout=8)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    writers = [rank for rank, it in enumerate(ranks) if it["wrote"]]
    if not writers:
        raise NotYet("no rank writes the file", "torch.save(state, path), on rank 0.")
    if writers == [0, 1]:
        raise NotYet("both ranks write the file", "Only the rank whose dist.get_rank() is 0 saves.")
    if writers != [0]:
        raise NotYet("rank 1 writes the file, and rank 0 does not", "Rank 0 holds the state that counts here.")
    for rank, it in enumerate(ranks):
        if it["returned"] is None:
            raise NotYet(f"rank {rank} returns nothing", "Every rank loads, and returns what it has loaded.")
        if it["returned"] != 0 or not it["read"]:
            hint = "return torch.load(path, …), on every rank. `state` is each rank's own."
            raise NotYet(f"rank {rank} does not return what is in the file", hint)
    if not ranks[1]["waited"]:
        raise NotYet(
            "rank 1 does not wait for rank 0: it sleeps, or tries until there is a file, be it yesterday's",
            "Which line does no rank cross before all have reached it?",
        )
    if not all(it["mapped"] for it in ranks):
        raise NotYet(
            "it loads each tensor onto the GPU on which rank 0 had it, and here there may be no such GPU",
            "torch.load has an argument that says where tensors go: map_location.",
        )


def _on_a_slow_disk(save_then_load: Callable[[Any, str], Any], path: str) -> dict[str, Any]:
    """Call the answer on this rank; the state holds the rank's number, so that rank 0's can be told."""
    real_save, real_load = torch.save, torch.load
    seen = {"wrote": False, "read": False, "mapped": True, "waited": False}
    me, done = threading.get_ident(), threading.Event()

    def watch() -> (
        None
    ):  # whether this rank, when it waits, waits in torch.distributed; the style of import plays no part
        while not done.wait(0.02) and not seen["waited"]:
            frame = sys._current_frames().get(me)
            while frame is not None and not seen["waited"]:
                seen["waited"] = f"torch{os.sep}distributed{os.sep}" in frame.f_code.co_filename
                frame = frame.f_back

    def slow_save(*args: Any, **kwargs: Any) -> None:
        seen["wrote"] = True
        time.sleep(0.5)
        real_save(*args, **kwargs)

    def watched_load(*args: Any, **kwargs: Any) -> Any:
        seen["read"] = True
        seen["mapped"] = len(args) > 1 or kwargs.get("map_location") is not None
        return real_load(*args, **kwargs)

    torch.save, torch.load = slow_save, watched_load  # this process ends with the check
    dist.barrier()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        found = save_then_load({"rank": torch.tensor(dist.get_rank())}, path)
    finally:
        done.set()
        watcher.join()
    returned = int(found["rank"]) if isinstance(found, dict) and "rank" in found else found
    return {**seen, "returned": returned if returned is None or isinstance(returned, int) else -1}


@exercise("5.4.4", "The rest of the job")
def rest_of_the_job(remaining: Callable[..., Any]) -> None:
    """`remaining(position, epochs, batches)` gives (epoch, batch, data) from a position to the end of the job."""
    needs_function("remaining", remaining)
    for position in [(0, 0), (1, 2), (0, 3), (2, 4), (1, 4), (2, 1)]:
        asked: list[int] = []

        def batches(epoch: int, asked: list[int] = asked) -> list[str]:
            asked.append(epoch)
            return [f"batch {batch} of epoch {epoch}" for batch in range(4)]

        answer = remaining(position, 3, batches)
        if answer is None:
            raise NotYet("`remaining` gives nothing", "`yield epoch, batch, data` in the loop, or return a list.")
        wanted = _from(position)
        got = [tuple(item) if isinstance(item, list | tuple) else item for item in itertools.islice(answer, 100)]
        if len(got) == 100:
            hint = f"{len(wanted)} batches are left. What ends your loop?"
            raise NotYet(f"3 epochs of 4 batches, from {position} on: it gives 100 batches, and more", hint)
        if got != wanted:
            raise NotYet(*_why_not(position, got, wanted))


def _from(position: tuple[int, int]) -> list[tuple[int, int, str]]:
    everything = [(e, b, f"batch {b} of epoch {e}") for e in range(3) for b in range(4)]
    return [item for item in everything if item[:2] >= position]


def _why_not(position: tuple[int, int], got: list[Any], wanted: list[Any]) -> tuple[str, str]:
    where = f"3 epochs of 4 batches, from {position} on"
    if any(not isinstance(item, tuple) or len(item) != 3 for item in got):
        odd = next(item for item in got if not isinstance(item, tuple) or len(item) != 3)
        return f"{where}: it gives {odd!r}", "Three things each: epoch, batch, and the data."
    places = [item[:2] for item in got]
    if places == [item[:2] for item in wanted]:
        return (
            f"{where}: the numbers are right, but they come with other data",
            "Ask `batches(epoch)` anew for every epoch, and let batch 0 be the first that it gives.",
        )
    epoch, batch = position
    next_one = "The position is the batch that comes next."
    for start, what, hint in (
        ((0, 0), "the job begins anew", "Pass over what comes before the position."),
        ((epoch, 0), f"the epoch begins anew, {batch} batches are trained twice", "Pass over the batches done."),
        ((epoch, batch + 1), f"{position} itself is left out", next_one),
        ((epoch + 1, 0), f"the rest of epoch {epoch} is left out", f"The position is within epoch {epoch}."),
        ((epoch, batch - 1), f"batch {batch - 1} is trained twice", next_one),
    ):
        if places == [item[:2] for item in _from(start)]:
            return f"{where}: {what}", hint
    if places == [(e, b) for e in range(epoch, 3) for b in range(batch, 4)]:
        hint = "Only the first epoch is one that was begun; the later ones start at batch 0."
        return f"{where}: batches 0 to {batch - 1} are left out in every epoch", hint
    missing = [place for place in (item[:2] for item in wanted) if place not in places]
    if missing:
        return f"{where}: {missing[0]} is missing", "To the end of the last epoch, epochs counted from 0."
    return (
        f"{where}: it gives {len(places)} batches, and {len(wanted)} are left",
        "Which places come twice or too early?",
    )
