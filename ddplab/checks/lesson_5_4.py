"""Checks of lesson 5.4, checkpoints."""

import contextlib
import copy
import io
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.checks.common import kind, off
from ddplab.checks.turns import leaving, turn
from ddplab.course.digits_job import make, train
from ddplab.hardware import device
from ddplab.launcher import launch
from ddplab.run import RankError, RankTimeoutError

RANDOM = "random state"  # its name in a snapshot: the cells below the turn look for it


def _trained(*_: int) -> tuple[dict[str, Any]]:
    job = make()
    train(job, range(2))
    return (job,)


def _random() -> Any:
    return torch.cuda if torch.cuda.is_initialized() else torch


def _taken(snapshot: Callable[[dict[str, Any]], Any], job: dict[str, Any]) -> tuple[Any, Any]:
    """The random state with which the job goes on in peace, and the snapshot."""
    return _random().get_rng_state(), snapshot(job)


def _end(taken: tuple[Any, Any], job: dict[str, Any]) -> list[str]:
    """How far a job that is made anew from the snapshot ends from one that was left in peace."""
    drawn, snapshot = taken
    usable: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(usable, isinstance(snapshot, Mapping) and len(snapshot) > 0)
    if not usable[dist.get_rank()]:
        return ["an empty one" if isinstance(snapshot, Mapping) else f"none ({kind(snapshot)} came back)"]
    if not all(usable):  # to train takes all ranks
        return ["another rank has none"]
    for name, it in snapshot.items():
        if name == RANDOM and (not isinstance(it, torch.Tensor) or it.dtype != torch.uint8):
            return [f"none ({kind(it)} as `{RANDOM}`)"]
        if name != RANDOM and name not in job and not snapshot.keys() >= {*job, RANDOM}:
            under = RANDOM not in snapshot and snapshot.keys() >= job.keys()
            return ["the random state elsewhere" if under else f"none (`{name}` is no part of `job`)"]
        if name in job and not isinstance(it, Mapping):
            what = "a part itself" if it is job[name] else "a method" if callable(it) else kind(it)
            return [f"none ({what} as `{name}`)"]
    saved = {name: copy.deepcopy(it) for name, it in snapshot.items() if name in job or name == RANDOM}
    _random().set_rng_state(drawn)
    calm = train(job, range(2, 4))
    _random().set_rng_state(drawn)
    job = make()
    for name, it in saved.items():
        if name == RANDOM:
            _random().set_rng_state(it)
        elif isinstance(job[name], DDP) and not next(iter(it), "module.").startswith("module."):
            return ["names of the network inside"]
        else:
            job[name].load_state_dict(it)
    far = off(train(job, range(2, 4)), calm)
    if far >= 1e-4 and RANDOM in saved and not torch.equal(saved[RANDOM], drawn):
        return ["another random state"]
    return ["as left in peace" if far < 1e-4 else f"{far:.1%} off"]


def _snapshot(job: dict[str, Any], without: str = "", random: bool = True) -> dict[str, Any]:
    states = {name: part.state_dict() for name, part in job.items() if name != without}
    return states | ({RANDOM: _random().get_rng_state()} if random else {})


def _otherwise_named(job: dict[str, Any]) -> dict[str, Any]:
    states = _snapshot(job)
    return states | {"rng": states.pop(RANDOM)}


def _all_like_rank_0(job: dict[str, Any]) -> dict[str, Any]:
    drawn = [_random().get_rng_state()]
    dist.broadcast_object_list(drawn)
    return _snapshot(job) | {RANDOM: drawn[0]}


def _of_the_network(job: dict[str, Any]) -> dict[str, Any]:
    return _snapshot(job) | {"model": job["model"].module.state_dict()}


turn(
    "5.4.a",
    "All that changes",
    _snapshot,
    _trained,
    ranks=(2,),
    call=_taken,
    look=_end,
    heads=("weights at the end",),
    mistakes=[
        (partial(_snapshot, random=False), "all of `job` is there, and dropout draws other numbers",
         "What decides which number is drawn next? `torch.get_rng_state()`, on a GPU `torch.cuda.get_rng_state()`."),
        (partial(_snapshot, without="scheduler"), "the learning rate begins its cosine anew", "Who lets it fall?"),
        (partial(_snapshot, without="optimizer"), "Adam has lost its running means and its rate", "Whose are they?"),
        (partial(_snapshot, without="model"), "the weights begin anew", "`model` has a state too."),
        (lambda job: {"model": job["model"].state_dict()}, "weights alone are good for predicting, not for going on",
         "All of `job` changes while it runs, and something else does."),
        (leaving("elsewhere", _otherwise_named),
         "it has another name than the cells below look for", "Call it `random state`."),
        (leaving("inside", _of_the_network),
         "that is the state of the network inside; the cells below give it to DDP, whose names begin "
         "with `module.`",
         "`job[name].state_dict()` of each part as it stands in `job`."),
        (lambda job: {"model": job["model"].state_dict(), RANDOM: _snapshot(job)[RANDOM]},
         "weights and random numbers go on, and the rest begins anew", "What else is in `job`?"),
        (leaving("a part itself", lambda job: dict(job)),
         "that is the job itself, and not its state", "Each part has a `state_dict()`."),
        (leaving("a method", lambda job: {name: part.state_dict for name, part in job.items()}),
         "`state_dict` is kept, and not called", "With parentheses: `state_dict()`."),
        (lambda job: _snapshot(job) | {RANDOM: torch.get_rng_state}, "the function is kept, and not what it returns",
         "With parentheses: `get_rng_state()`."),
        (leaving("nothing came", lambda job: None), "nothing came back", "Is there a `return`?"),
        (lambda job: _snapshot(job) | {RANDOM: torch.initial_seed()},
         "a seed says where the random numbers began, not how far they have come",
         "`torch.get_rng_state()`, on a GPU `torch.cuda.get_rng_state()`."),
        (leaving("another rank has", lambda job: _snapshot(job) if dist.get_rank() == 0 else None),
         "rank 1 returns nothing", "Each rank calls it, and each has a random state of its own."),
        (lambda job: {}, "the snapshot is empty", "What does `job` hold, and what else changes while it runs?"),
        (leaving("another rank has", lambda job: {} if dist.get_rank() else _snapshot(job)),
         "rank 1's snapshot is empty",
         "Each rank returns a whole one: its random state is its own, and it goes on from its own snapshot."),
        (lambda job: _snapshot(job, random=dist.get_rank() == 0), "rank 1 keeps no random state",
         "Each rank has one of its own: it draws other numbers than rank 0."),
        (lambda job: {RANDOM: _random().get_rng_state()} if dist.get_rank() else _snapshot(job),
         "rank 1 keeps its random state alone", "Each rank makes its job anew: it needs all parts' states for that."),
        (leaving("another random", lambda job: (torch.manual_seed(0), _snapshot(job))[1]),
         "the random state kept is another than the job had when `snapshot` was called",
         "A seed begins anew. As the state is, so it is kept."),
        (leaving("another random", _all_like_rank_0),
         "rank 1 goes on with rank 0's random state", "Each rank has one of its own."),
    ],
    otherwise="On each rank, for each part its `state_dict()`, under its name in `job`, and torch's random state.",
    hints={"KeyError": "Each state has the name that its part has in `job`.",
           "'dict' object has no attribute": "`job` is a dict: each of its parts has a `state_dict()`.",
           "values to unpack": "`job.items()` gives names and parts.",
           "RNG state": "On a GPU it is `torch.cuda.get_rng_state()`."},
)  # fmt: skip


class Killed(BaseException):
    """Not an Exception, so that `except Exception` in an answer does not survive it."""


@contextlib.contextmanager
def _killed(when: str, nth: int) -> Iterator[list[tuple[str, str]]]:
    """Die when half of the bytes are written, or at the nth line that renames, moves or copies; then all is undone.

    Yields the names that something got, and whether it was renamed or copied. Another folder is played to lie on
    another disk.
    """
    real = {(module, name): getattr(module, name)
            for module, name in ((torch, "save"), (os, "replace"), (os, "rename"), (shutil, "copyfile"))}  # fmt: skip
    moved: list[tuple[str, str]] = []

    def save(state: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        real[torch, "save"](state, f, *args, **kwargs)
        if when == "writes":
            if hasattr(f, "truncate"):
                f.truncate(f.tell() // 2)
                f.flush()
                raise Killed
            _halve(f)

    def then(key: tuple[Any, str], src: Any = None, dst: Any = None, **kwargs: Any) -> Any:
        if src is None or dst is None or not os.path.exists(src):  # it cannot be carried out, and says so itself
            return real[key](*[it for it in (src, dst) if it is not None], **kwargs)
        moved.append((os.fspath(dst), "renamed" if key[0] is os else "copied"))
        if key[0] is os and os.path.dirname(os.path.abspath(src)) != os.path.dirname(os.path.abspath(dst)):
            raise OSError(18, "Invalid cross-device link")
        if when == "renames" and len(moved) == nth:
            if key[0] is os:
                raise Killed
            real[key](src, dst, **kwargs)
            _halve(dst)
        return real[key](src, dst, **kwargs)

    try:
        torch.save = save
        for key in list(real)[1:]:
            setattr(*key, partial(then, key))
        yield moved
    finally:
        for (module, name), function in real.items():
            setattr(module, name, function)


def _halve(name: Any) -> None:
    os.truncate(name, os.path.getsize(name) // 2)
    raise Killed


def _left(save: Callable[[Any, str], Any], when: str, nth: int = 1) -> list[str]:
    """What lies at the path afterwards, and what else in the folder."""
    with tempfile.TemporaryDirectory(prefix="ddplab-check-") as folder:
        path = f"{folder}/last.pt"
        torch.save({"w": torch.zeros(500)}, path)
        with open(path, "rb") as old, contextlib.suppress(Killed), _killed(when, nth) as moved:
            save({"w": torch.ones(500)}, path)
            same_file = os.path.exists(path) and os.path.samestat(os.fstat(old.fileno()), os.stat(path))
        others = sorted(set(os.listdir(folder)) - {"last.pt"})
        try:
            found = "the new one" if torch.load(path)["w"][0] else "the old one"
        except FileNotFoundError:
            found = "nothing"
        except Exception:
            found = ", ".join(["half a file", *dict(moved).get(path, "").split()])
    if when == "never":
        found += ", over the old" * (same_file and found == "the new one")
        return [found, ["nothing else", "another file"][len(others)] if len(others) < 2 else f"{len(others)} files"]
    if found not in ("the new one", "the old one"):
        return [found, "anything"]
    died_there = when == "renames" and len(moved) == nth
    return _left(save, when, nth + 1) if died_there else ["a whole one", "anything"]


def _save(state: Any, path: str) -> None:
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)


def _copied(state: Any, path: str, remove: bool = True) -> None:
    torch.save(state, f"{path}.new")
    shutil.copyfile(f"{path}.new", path)
    if remove:
        os.remove(f"{path}.new")


def _removed_first(state: Any, path: str) -> None:
    torch.save(state, f"{path}.new")
    os.remove(path)
    os.rename(f"{path}.new", path)


def _whatever_happens(state: Any, path: str) -> None:
    try:
        torch.save(state, f"{path}.new")
    finally:
        os.replace(f"{path}.new", path)


def _backup(state: Any, path: str) -> None:
    shutil.copyfile(path, f"{path}.old")
    torch.save(state, path)


def _bytes_copied(state: Any, path: str, remove: bool = True) -> None:
    torch.save(state, f"{path}.new")
    Path(path).write_bytes(Path(f"{path}.new").read_bytes())
    if remove:
        os.remove(f"{path}.new")


def _old_one_first(state: Any, path: str, remove: bool = True) -> None:
    torch.save(state, f"{path}.new")
    os.replace(path, f"{path}.old")
    os.replace(f"{path}.new", path)
    if remove:
        os.remove(f"{path}.old")


def _elsewhere(state: Any, path: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, f"{folder}/new.pt")
        os.replace(f"{folder}/new.pt", path)


def _away_first(state: Any, path: str, remove: bool = True) -> None:
    os.replace(path, f"{path}.old")
    torch.save(state, path)
    if remove:
        os.remove(f"{path}.old")


def _gone_first(state: Any, path: str) -> None:
    os.remove(path)
    _save(state, path)


OVER = "the bytes are written over the old ones: killed half-way, both are lost"
GAP = "the old one is taken away first: for a moment there is no checkpoint at the path"
AWAY = "the old one is taken away before the new one is whole"
WRITE_FIRST = "First write the new one, under another name; then give it the old one's, in one move."
BY_ITSELF = "`os.replace` takes the old one's place by itself."
COPIED = "to copy is to write: killed half-way, the old one is lost"

turn(
    "5.4.c",
    "A save that survives",
    _save,
    {
        "left in peace": lambda: ("never",),
        "killed while it writes": lambda: ("writes",),
        "killed when it renames": lambda: ("renames",),
    },
    call=_left,
    heads=("at the path", "beside it"),
    mistakes=[
        (lambda state, path: torch.save(state, path), "the old checkpoint is emptied before the new one is there",
         "Write under another name, and rename when all of it is there."),
        (_copied, COPIED, "Rename, do not copy."),
        (partial(_copied, remove=False), COPIED, "Rename, do not copy."),
        (_bytes_copied, OVER, "Write under another name, and then rename."),
        (partial(_bytes_copied, remove=False), OVER, "Write under another name, and then rename."),
        (_removed_first, GAP, BY_ITSELF),
        (_gone_first, "the old one is removed first: while the new one is written, there is no checkpoint at all",
         f"{WRITE_FIRST} {BY_ITSELF}"),
        (_old_one_first, GAP, BY_ITSELF),
        (partial(_old_one_first, remove=False), GAP, BY_ITSELF),
        (_away_first, AWAY, WRITE_FIRST),
        (partial(_away_first, remove=False), AWAY, WRITE_FIRST),
        (lambda state, path: torch.save(state, f"{path}.new"), "the new one never gets its name", "`os.replace`"),
        (_whatever_happens, "half a file is given the good name", "Rename only when `torch.save` has returned."),
        (_backup, "the old one is safe, under a name where nobody looks", "Let `path` be good at every moment."),
        (_elsewhere, "from another disk no file can be renamed",
         "Put the new one into the same folder: `path` and an ending."),
        (lambda state, path: (os.replace(f"{path}.new", path), torch.save(state, f"{path}.new")),
         "a file is asked for that is not there", "First written, then renamed: both by the same name."),
        (lambda state, path: (torch.save(state, f"{path}.new"), os.replace(path, f"{path}.new")),
         "renamed the wrong way round", "`os.replace(from, to)`"),
    ],
    hints={"Invalid cross-device link": "Put the new one into the same folder: `path` and an ending."},
    otherwise="At every moment a whole checkpoint at `path`; and when all is done, nothing else beside it.",
)  # fmt: skip


MAPS = ("where they were", "some where they were", "where the loader says")  # where a load puts the tensors of any GPU


def _both(save_then_load: Callable[[Any, str], Any], size: int) -> list[str]:
    """Who writes, what each rank loads, whether rank 1 waits for rank 0, and where the tensors go."""
    with tempfile.TemporaryDirectory(prefix="ddplab-check-") as folder:
        try:
            ranks = launch(
                _on_a_slow_disk, save_then_load, f"{folder}/last.pt", nproc_per_node=size, quiet=True, timeout=4
            ).results
        except RankTimeoutError:
            there = [rank for rank in range(size) if os.path.exists(f"{folder}/last.pt.met{rank}")]
            return [f"rank {there[0]} waits at a barrier alone" if len(there) == 1 else "ranks wait for ever"]
        except RankError as error:
            met = [os.path.exists(f"{folder}/last.pt.met{rank}") for rank in range(size)]
            if "PytorchStreamReader" in error.reason or error.type_name in ("EOFError", "FileNotFoundError"):
                late = ", though a file is there" if error.type_name != "FileNotFoundError" else ""
                late = ", behind a barrier" if met[error.rank] else ", past a barrier" if any(met) else late
                return [f"rank {error.rank} comes too early{late}"]
            raise
    writers = " and ".join(f"rank {rank}" for rank, it in enumerate(ranks) if it["wrote"])
    loaded = ["nothing" if it["returned"] is None else f"rank {it['returned']}'s" for it in ranks]
    for rank, it in enumerate(ranks):
        if not it["read"]:
            loaded[rank] = "not at all" if it["returned"] is None else "nothing read"
    if writers != "rank 0":
        return [writers or "nobody"]
    maps = min((it["mapped"] for it in ranks), key=MAPS.index)
    return [writers, *loaded, "yes" if ranks[1]["waited"] else "no", maps]


def _on_a_slow_disk(save_then_load: Callable[[Any, str], Any], path: str) -> dict[str, Any]:
    """Call the answer on this rank; the state holds the rank's number, so that rank 0's can be told."""
    real_save, real_load = torch.save, torch.load
    seen = {"wrote": False, "read": False, "mapped": MAPS[-1], "waited": False}
    me, done = threading.get_ident(), threading.Event()

    def watch() -> None:  # whether this rank, when it waits, waits in torch.distributed, however that is imported
        while not done.wait(0.02) and not seen["waited"]:
            frame = sys._current_frames().get(me)
            while frame is not None and not seen["waited"]:
                seen["waited"] = f"torch{os.sep}distributed{os.sep}" in frame.f_code.co_filename
                frame = frame.f_back

    def in_memory(args: tuple) -> bool:  # so torch packs a tensor that is sent as an object: no file
        return any(isinstance(it, io.BytesIO) for it in args[:2])

    def slow_save(*args: Any, **kwargs: Any) -> None:
        if not in_memory(args):
            seen["wrote"] = True
            time.sleep(0.25)
            if args[1:] and isinstance(args[1], str | os.PathLike):
                Path(args[1]).touch()  # a file is there, and empty, while a slow disk writes it
            time.sleep(0.25)
        real_save(*args, **kwargs)

    def watched_load(*args: Any, **kwargs: Any) -> Any:
        if not in_memory(args):
            seen["read"] = True
            to = args[1] if len(args) > 1 else kwargs.get("map_location")
            seen["mapped"] = MAPS[0 if to is None else 1 if isinstance(to, Mapping) and "cuda:7" not in to else 2]
        return real_load(*args, **kwargs)

    real_wait = dist.Work.wait

    def timed_wait(*args: Any, **kwargs: Any) -> Any:  # of what was begun with async_op=True
        began = time.monotonic()
        try:
            return real_wait(*args, **kwargs)
        finally:
            seen["waited"] |= time.monotonic() - began > 0.1

    dist.barrier()
    real_barrier, rank = dist.ProcessGroup.barrier, dist.get_rank()

    def noted_barrier(*args: Any, **kwargs: Any) -> Any:
        Path(f"{path}.met{rank}").touch()
        return real_barrier(*args, **kwargs)

    torch.save, torch.load, dist.Work.wait = slow_save, watched_load, timed_wait  # this process ends with the check
    dist.ProcessGroup.barrier = noted_barrier
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        found = save_then_load({"rank": torch.tensor(dist.get_rank())}, path)
    except (FileNotFoundError, EOFError, RuntimeError):
        time.sleep(0 if seen["wrote"] else 1)  # the others may yet come to a barrier, which is to be told
        raise
    finally:
        done.set()
        watcher.join()
    returned = int(found["rank"]) if isinstance(found, dict) and "rank" in found else found
    return {**seen, "returned": returned if returned is None or isinstance(returned, int) else -1}


def _meet(
    state: Any, path: str, writer: int = 0, meet: bool = True, readers: Sequence[int] = (0, 1), **load: Any
) -> Any:
    """Rank -1 writes: every rank does. load: arguments of torch.load."""
    rank = dist.get_rank()
    if writer in (rank, -1):
        torch.save(state, path if writer != -1 else f"{path}{rank}")
    if meet:
        dist.barrier()
    if rank not in readers:
        return None
    return torch.load(path if writer != -1 else f"{path}0", **({"map_location": "cpu"} | load))


def _alone(state: Any, path: str) -> Any:
    loaded = _meet(state, path)
    return loaded if dist.get_rank() == 0 else None


def _rank_0_meets(state: Any, path: str) -> Any:
    if dist.get_rank() == 0:
        torch.save(state, path)
        dist.barrier()
    return torch.load(path, map_location="cpu")


def _rank_1_meets(state: Any, path: str) -> Any:
    if dist.get_rank() == 0:
        torch.save(state, path)
    else:
        dist.barrier()
    return torch.load(path, map_location="cpu")


def _looks_for_it(state: Any, path: str) -> Any:
    if dist.get_rank() == 0:
        torch.save(state, path)
    while not os.path.exists(path):
        time.sleep(0.01)
    return torch.load(path, map_location="cpu")


def _sleeps(state: Any, path: str) -> Any:
    if dist.get_rank() == 0:
        torch.save(state, path)
    time.sleep(1.5)
    return torch.load(path, map_location="cpu")


def _sent(state: Any, path: str, read: bool = True) -> Any:
    if dist.get_rank() == 0:
        torch.save(state, path)
    held = [torch.load(path, map_location="cpu") if read and dist.get_rank() == 0 else state]
    dist.broadcast_object_list(held, src=0, device=device())
    return held[0]


turn(
    "5.4.b",
    "Nobody too early",
    _meet,
    {"2 ranks": lambda: (2,)},
    call=_both,
    heads=("written by", "rank 0 loads", "rank 1 loads", "rank 1 waits", "tensors go"),
    mistakes=[
        (leaving("too early", partial(_meet, meet=False)),
         "a rank loads what is not written yet",
         "Which line does no rank cross before all have reached it? It comes between the two, on every rank."),
        (leaving("too early", _looks_for_it), "a file is there, and a rank loads it before it is written to its end",
         "A file is there as soon as it is opened. Which line does no rank cross before all have reached it?"),
        (leaving("behind a barrier", lambda state, path: (dist.barrier(), _meet(state, path, meet=False))[1]),
         "the barrier stands before the writing, and rank 1 loads what is not written yet", "Between the two."),
        (leaving("past a barrier", _rank_0_meets),
         "rank 0 comes to a barrier, and rank 1 loads before it comes to one: nothing is written yet",
         "It stands on every rank's path, between the two: behind the `if`, and not in it."),
        (leaving("where they were", partial(_meet, map_location=None)),
         "tensors go to the GPU on which rank 0 had them", "`torch.load` has an argument that says where they go."),
        (partial(_meet, writer=-1), "both ranks write", "Only the one whose `dist.get_rank()` is 0."),
        (leaving("at a barrier alone", _rank_1_meets), "rank 1 waits at a barrier to which rank 0 never comes",
         "It stands on every rank's path: behind the `if`, and not in it."),
        (partial(_meet, writer=1), "rank 1 writes", "Rank 0 holds the state that counts."),
        (_alone, "rank 1 returns nothing", "Every rank loads."),
        (lambda state, path: (_meet(state, path), state)[1], "rank 1 returns its own state, and not the file's",
         "Return what you have loaded."),
        (leaving("'no'", _sleeps), "rank 1 waits, but not for rank 0 itself",
         "A time can be too short, and a file can be yesterday's. Which line does no rank pass before all have come?"),
        (leaving("nothing read", _sent),
         "rank 1 returns what it was sent, and has not read the file", "Every rank loads, from `path`."),
        (leaving("nothing read", partial(_sent, read=False)),
         "nobody reads the file", "Every rank returns what `torch.load` gives it."),
        (leaving("nothing read", lambda state, path: _meet(state, path, readers=[1]) or state),
         "rank 0 returns its own state, and does not read the file",
         "Every rank loads: so all have what a restart would have."),
        (leaving("not at all", partial(_meet, readers=[1])), "rank 0 does not load", "Every rank loads."),
        (leaving("not at all", partial(_meet, readers=[0])), "rank 1 does not load", "Every rank loads."),
        (lambda state, path: (_meet(state, path), None)[1], "the file is loaded, and nothing is returned",
         "Is there a `return`?"),
        (leaving("where they were", partial(_meet, map_location={"cuda:0": "cpu"})),
         "the map leaves where they were the tensors of each GPU that it does not name",
         "Which place is there on every machine?"),
        (lambda state, path: dist.barrier(), "nobody writes", "Rank 0: `torch.save(state, path)`."),
    ],
    hints={"deserialize object on": "A machine may have fewer GPUs, or none. Which place is there on every machine?"},
    otherwise="Rank 0 writes, then all wait for each other, and then every rank loads, to a place that it surely has.",
)  # fmt: skip
