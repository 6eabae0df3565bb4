"""Checks of lesson 5.7, survive the night: the functions of its script, each tried without agents."""

import contextlib
import os
import resource
import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.checks.common import flat, kind, multiple, off
from ddplab.checks.turns import turn
from ddplab.course.night_job import ROOM, digest, network
from ddplab.launcher import launch


def _job(steps: int) -> tuple[Any, Any]:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        _train(net, optimizer, step)
    return net, optimizer


def _train(net: Any, optimizer: Any, step: int) -> None:
    optimizer.zero_grad()
    inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(step))
    cross_entropy(net(inputs), torch.arange(8)).backward()
    optimizer.step()


def _resumed(resume: Callable[..., Any], done: int | None) -> list[Any]:
    """The step with which it goes on, and whether the weights, and those after one more step, are the saved job's."""
    with tempfile.TemporaryDirectory(prefix="ddplab-check-") as folder:
        path = f"{folder}/last.pt"
        before, its = _job(0 if done is None else done + 1)
        if done is not None:
            torch.save({"net": before.state_dict(), "optimizer": its.state_dict(), "done": done}, path)
        net, optimizer = _job(0)
        step = resume(path, net, optimizer)
        cells = [f"step {step}" if isinstance(step, int) else kind(step)]
        for more in range(2):
            same = digest(net.state_dict()) == digest(before.state_dict())
            cells.append("as left in peace" if same else "others")
            if not more:
                _train(before, its, 99), _train(net, optimizer, 99)
        return cells


def _resume(path: str, net: Any, optimizer: Any, check: bool = True, parts: str = "no", more: int = 1) -> Any:
    if check and not os.path.exists(path):
        return 0
    saved = torch.load(path)
    if "n" in parts:
        net.load_state_dict(saved["net"])
    if "o" in parts:
        optimizer.load_state_dict(saved["optimizer"])
    return saved["done"] + more


turn(
    "5.7.a",
    "Begin again",
    _resume,
    {"the first evening": lambda: (None,), "steps 0 to 5 saved": lambda: (5,), "steps 0 to 11 saved": lambda: (11,)},
    call=_resumed,
    heads=("goes on with", "weights", "after one more step"),
    mistakes=[
        (partial(_resume, parts="n", more=0), "the optimizer begins anew, and a step is trained twice",
         "That is the script as it was. What else is in the file, and which step comes *next*?"),
        (partial(_resume, more=0), "a step that is done is trained once more", "`done` is the last one trained."),
        (partial(_resume, parts="n"), "the optimizer has lost its momentum", "It too has a state in the file."),
        (partial(_resume, parts="o"), "the weights begin anew",
         "The file has the state of `net`. What puts it into the model? `net = …` gives a name to something else."),
        (partial(_resume, more=2), "a step is left out", "Which step comes after `done`?"),
        (lambda path, net, optimizer: _resume(path, net, optimizer, parts="no") and 0,
         "what was saved is put back, and it begins at step 0 all the same", "Which step comes after `done`?"),
        (lambda path, net, optimizer: _resume(path, net, optimizer, parts="no") or 1,
         "on the first evening a step is left out", "Where there is no file the first step is 0."),
        (lambda path, net, optimizer: 0, "all begins anew", "What is saved lies at `path`."),
        (lambda path, net, optimizer: _resume(path, net, optimizer) and None, "nothing came back",
         "Return the step to go on with."),
        (partial(_resume, check=False), "on the first evening there is no file yet", "`os.path.exists(path)`"),
        (lambda path, net, optimizer: _resume(path, net, optimizer) or None,
         "on the first evening nothing came back", "Which step is the first?"),
        (lambda path, net, optimizer: 0 if os.path.exists(path) else _resume(path, net, optimizer, check=False),
         "the file is read where there is none", "The first evening is the one on which the path does *not* exist."),
    ],
    hints={"loading state_dict": "The file holds three things by name. The state of `net` is one: `saved[\"net\"]`."},
    otherwise="The file holds `net`, `optimizer` and `done`. Where there is none, the first step is 0.",
)  # fmt: skip


def _served(picked: Callable[[int, int], Any], begin: int) -> list[Any]:
    """Whether the images are those picked in peace, how many a step and an epoch have, and the next epoch's order."""
    calm = {}
    for step in range(36):
        torch.manual_seed(step)
        calm[step] = [int(number) for number in picked(step, 768)]
    torch.manual_seed(1)
    again = {step: [int(number) for number in picked(step, 768)] for step in range(begin, 36)}
    same = "the same" if all(calm[step] == again[step] for step in again) else "others"
    epochs = [sorted(number for step in range(first, first + 12) for number in calm[step]) for first in (0, 12)]
    served = min(len(set(epoch)) for epoch in epochs)
    return [same, len(calm[begin]), served, "another" if calm[0] != calm[12] else "the same"]


def _picked(step: int, n: int, seed: Callable[[int, int], int] = lambda epoch, batch: epoch, every: int = 64) -> Any:
    epoch, batch = divmod(step, n // 64)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed(epoch, batch)))
    return order[batch * every : batch * every + 64]


def _from_a_stream(step: int, n: int) -> Any:
    if step == 0:
        order = torch.Generator().manual_seed(0)
        _STREAM[:] = [batch for _ in range(6) for batch in torch.randperm(n, generator=order).split(64)]
    return _STREAM.pop(0)


_STREAM: list[Any] = []


turn(
    "5.7.b",
    "The images of a step",
    _picked,
    {"begun again at step 6": lambda: (6,), "begun again at step 21": lambda: (21,)},
    call=_served,
    heads=("images picked", "a step", "of 768 an epoch", "next epoch's order"),
    mistakes=[
        (_from_a_stream, "a job that begins again gets the start of a stream, and not what belongs to the step",
         "What may decide which images it is? The number of the step alone."),
        (lambda step, n: torch.randperm(n)[:64], "nobody knows any more what was drawn",
         "A generator of your own, with a seed that follows from `step`."),
        (partial(_picked, seed=lambda epoch, batch: 0), "every epoch has the same order",
         "A seed that follows from the epoch."),
        (partial(_picked, seed=lambda epoch, batch: 100 * epoch + batch),
         "each step shuffles anew: some images come twice, others never", "One order for an epoch."),
        (partial(_picked, every=0), "every step of an epoch gets the same images", "Which 64 of the order are its?"),
        (lambda step, n: torch.randperm(n, generator=torch.Generator().manual_seed(step // 12))[step % 12 :: 64],
         "every 64th image of the order makes 12 a step", "A block of 64, or every `n // 64`-th image."),
        (partial(_picked, every=1), "the batches of an epoch overlap", "A batch begins where the one before it ends."),
        (lambda step, n: torch.randperm(n, generator=torch.Generator().manual_seed(step))[:64],
         "each step shuffles anew: some images come twice, others never", "One order for an epoch."),
        (lambda step, n: torch.randperm(n)[64 * (step % 12) :][:64], "nobody knows any more what was drawn",
         "A generator of your own, with a seed that follows from the epoch."),
        (lambda step, n: torch.randperm(n, generator=torch.Generator().manual_seed(0))[64 * step :][:64],
         "after one epoch there are no images left", "Which step of *its* epoch is it? `%`"),
        (lambda step, n: torch.randperm(n, generator=torch.Generator().manual_seed(step // 12))[64 * step :][:64],
         "after one epoch there are no images left", "Which step of *its* epoch is it? `%`"),
    ],
    hints={"'NoneType'": "Return the numbers of the images.", "got float": "`//` divides whole numbers."},
    otherwise="An epoch has one order, of which each of its `n // 64` steps takes 64 of its own.",
)  # fmt: skip


def _on_full_disk(save: Callable[..., Any], room: bool) -> list[str]:
    """What lies at the path after a save and the next, and whether the rank goes on; in a process of its own."""
    return launch(_saves, save, room, nproc_per_node=1, device="cpu", init=False, quiet=True).results[0]


def _saves(save: Callable[..., Any], room: bool) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="ddplab-check-") as folder:
        path, hard = f"{folder}/last.pt", resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        states = []
        for done in (5, 11, 17):
            net, optimizer = _job(done + 1)
            states.append({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "done": done})
        torch.save(states[0], path)
        cells = []
        for state, limit in ((states[1], hard if room else ROOM), (states[2], hard)):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            went_on, before = "goes on", os.open(path, os.O_RDONLY) if os.path.exists(path) else None
            try:
                save(state, path)
            except Exception as error:
                went_on = f"dies of {type(error).__name__}"
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            cells += [_at(path, before), went_on]
            if before is not None:
                os.close(before)
        return cells


def _at(path: str, before: int | None) -> str:
    """What lies at the path. before: the file that lay there: held open, so that no new one is taken for it."""
    try:
        return f"step {torch.load(path)['done']}"
    except FileNotFoundError:
        return "nothing"
    except (OSError, RuntimeError, EOFError):
        over = before is None or os.fstat(before).st_ino == os.stat(path).st_ino
        return "half a file" if over else "half a file, another one"


def _save(
    state: Any, path: str, beside: str = ".new", catch: Any = (OSError, RuntimeError), how: str = "replace"
) -> None:
    with contextlib.suppress(*catch):
        if how == "remove":
            os.remove(path)
        torch.save(state, path + beside)
        if how == "copy":
            shutil.copy(path + beside, path)
        elif how == "swap":
            os.replace(path, path + beside)
        elif beside and how not in ("forget", "after"):
            os.replace(path + beside, path)
    if how == "after":
        os.replace(path + beside, path)


def _save_at_last(state: Any, path: str) -> None:
    try:
        torch.save(state, path + ".new")
    finally:
        os.replace(path + ".new", path)


def _copies_first(state: Any, path: str) -> None:
    shutil.copy(path, path + ".old")
    _save(state, path)


def _clears_up(state: Any, path: str) -> None:
    try:
        torch.save(state, path)
    except RuntimeError:
        os.remove(path)


turn(
    "5.7.c",
    "A save on a full disk",
    _save,
    {"there is room": lambda: (True,), "the disk is full": lambda: (False,)},
    call=_on_full_disk,
    heads=("at the path", "the rank", "after the next save", "the rank"),
    mistakes=[
        (partial(_save, beside="", catch=()), "a full disk leaves half a file where a whole one was, and ends the rank",
         "Write beside it first, under another name; and catch the error that the table names."),
        (partial(_save, beside=""), "the rank goes on, and half a file lies where a whole one was",
         "Write beside it first, under another name; and give it the old one's only if no error came: in the `try`."),
        (partial(_save, how="after"), "the rank goes on, and half of the new file is given the old one's name",
         "Only where no error came: `os.replace` in the `try`, below `torch.save`."),
        (_save_at_last, "half of the new file is given the old one's name, and the rank dies of the full disk",
         "Only where no error came, and who has an error passes it: `try`, both calls, and `except`."),
        (_copies_first, "the old file is safe, and the rank dies of the full disk, in what raises an `OSError`",
         "The `try` goes around all that writes, a copy too; pass the error that the table names."),
        (_clears_up, "half of the new file is removed, and the old one, over which it was written, is gone",
         "Write beside it first, under another name."),
        (partial(_save, catch=()), "the old file is safe, and the rank dies of the full disk",
         "`try`, and catch the error that the table names. Is it of the kind that you catch?"),
        (partial(_save, how="remove"), "the old file is gone before the new one is there",
         "`os.replace` takes its place in one move."),
        (partial(_save, how="swap"), "nothing lies at the path, also where there is room",
         "`os.replace` takes two names: from which, and to which?"),
        (partial(_save, how="forget"), "the file at the path is never renewed",
         "Write beside it; then, who gives the new file the name?"),
    ],
    otherwise="Save under another name; `os.replace` puts it in its place; and catch the error of a full disk.",
)  # fmt: skip


def _patience(meet: Callable[..., Any], seconds: float) -> list[str]:
    """How long the ranks of a group that `meet` makes wait for each other; two processes that torchrun might start."""
    return launch(_waits, meet, seconds, nproc_per_node=2, device="cpu", init=False, quiet=True).results[0]


def _waits(meet: Callable[..., Any], seconds: float) -> list[str]:
    meet(timedelta(seconds=seconds))
    if not dist.is_initialized():
        return ["no group", ""]
    ones = torch.ones(1)
    dist.all_reduce(ones)
    waits = dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    others = [group for group in c10d._world.pg_map if group is not dist.group.WORLD]
    return [f"of {int(ones)} ranks", f"{waits:g} s{', but not another group' * bool(others)}"]


def _meet(patience: timedelta, backend: str = "gloo", times: float = 1, own: timedelta | None = None) -> None:
    dist.init_process_group(backend, timeout=own or patience * times)


turn(
    "5.7.d",
    "How long to wait for whom nobody hears",
    _meet,
    {"3 seconds": lambda: (3,), "half a minute": lambda: (30,)},
    call=_patience,
    heads=("a group", "waits at most"),
    mistakes=[
        (lambda patience: dist.init_process_group("gloo"), "who hears nothing waits for half an hour, the default",
         "`init_process_group` has an argument for that."),
        (lambda patience: dist.init_process_group("gloo") or (dist.new_group(timeout=patience) and None),
         "a group of its own has the limit, and all other calls wait for half an hour",
         "`init_process_group` has an argument for that."),
        (partial(_meet, own=timedelta(seconds=3)), "that is right for 3 seconds only", "It is given: `patience`."),
        (partial(_meet, own=timedelta(seconds=30)), "that is right for half a minute only", "It is given: `patience`."),
        (partial(_meet, times=2), "that is twice as long", "`patience` is the limit, as it is."),
        (partial(_meet, times=60), "those are minutes", "`patience` is a timedelta already."),
        (partial(_meet, times=1000), "that is a thousand times as long", "`patience` is a timedelta already."),
        (lambda patience: None, "no group is made", "`dist.init_process_group`"),
    ],
    hints={"must be a string": "The argument for that has a name: `timeout=`.",
           "has not been initialized": "There is no group yet: `dist.init_process_group` makes it.",
           "unexpected keyword": "The argument for that is called `timeout=`.",
           "datetime.timedelta": "`patience` is a timedelta already.",
           "NCCL": "Over gloo: there is no GPU tonight."},
    otherwise="`dist.init_process_group` over gloo, with `patience` as its limit.",
)  # fmt: skip


def _batch(rank: int, size: int) -> tuple[Any, ...]:
    drawn = torch.Generator().manual_seed(0)
    net = network()
    return DDP(net), torch.randn(64, 64, generator=drawn), torch.randint(10, (64,), generator=drawn), rank, size


def _seen(learn: Callable[..., Any], model: Any, *given: Any) -> list[str]:
    """How many images go forward at once; beside what one process makes of two shares: how near, and to the bit."""
    passes, first = [], []
    hook = model.module.register_forward_pre_hook(
        lambda _, inputs: passes.append(len(inputs[0])) or first.append(inputs)
    )
    learn(model, *given)
    hook.remove()
    net, (images, labels, _, size) = network(), given
    held = [None] * size
    dist.all_gather_object(held, digest([part.grad for part in model.module.parameters()]))
    parts = []
    for share in range(2):
        (cross_entropy(net(images[share::2]), labels[share::2], reduction="sum") / 64).backward()
        parts.append(flat([part.grad for part in net.parameters()]) - sum(parts))
    mine, wanted = ([part.grad for part in it.parameters()] for it in (model.module, net))
    if any(gradient is None for gradient in mine):
        return [" + ".join(map(str, passes)), "none", ""]
    if len(set(held)) > 1:
        return [" + ".join(map(str, passes)), "each rank's own", ""]
    factor = multiple(flat(mine), flat(wanted), within=1e-5)
    near = "the batch's" if off(flat(mine), flat(wanted)) < 1e-5 else f"{factor:.3g} times" if factor else "another"
    for part, name in zip(parts, ("the first share's", "the second share's"), strict=True):
        near = name if multiple(flat(mine), part, within=1e-4) else near
    same = all(torch.equal(*pair) for pair in zip(mine, wanted, strict=True))
    taken = any(torch.equal(first[0][0], images[share::2]) for share in range(2))
    other = ", no share" * (not same and near == "the batch's" and passes[0] == 32 and not taken)
    return [" + ".join(map(str, passes)) + other, near, "the same" if same else "others"]


def _learn(
    model: Any, images: Any, labels: Any, rank: int, size: int, scale: Callable[[int], float] = lambda size: size,
    first: Callable[[int], int] = lambda rank: rank, shares: int = 2, step: Callable[[int], int] = lambda size: size,
) -> None:  # fmt: skip
    for share in range(first(rank), shares, step(size)):
        loss = cross_entropy(model(images[share::shares]), labels[share::shares], reduction="sum") / 64
        (loss * scale(size)).backward()


def _wiped(model: Any, images: Any, labels: Any, rank: int, size: int) -> None:
    for share in range(rank, 2, size):
        model.zero_grad()
        _learn(model, images, labels, share, 2, scale=lambda _: size)


def _first_twice(model: Any, images: Any, labels: Any, rank: int, size: int) -> None:
    for _ in range(rank, 2, size):
        _learn(model, images, labels, rank, 2, scale=lambda _: size)


def _all_at_once(model: Any, images: Any, labels: Any, rank: int, size: int) -> None:
    for share in range(rank, 2, size):
        loss = cross_entropy(model(images[share::size]), labels[share::size], reduction="sum") / 64
        (loss * size).backward()


def _halves(model: Any, images: Any, labels: Any, rank: int, size: int) -> None:
    for share in range(rank, 2, size):
        half = slice(32 * share, 32 * share + 32)
        (cross_entropy(model(images[half]), labels[half], reduction="sum") / 64 * size).backward()


def _no_backward(model: Any, images: Any, labels: Any, rank: int, size: int) -> None:
    for share in range(rank, 2, size):
        model(images[share::2])


def _as_it_was(model: Any, images: Any, labels: Any, rank: int, size: int) -> None:
    cross_entropy(model(images[rank::size]), labels[rank::size]).backward()


turn(
    "5.7.e",
    "The same bits on one node and on two",
    _learn,
    _batch,
    ranks=(2, 1),
    call=_seen,
    heads=("images at once", "the gradient", "its bits"),
    device="cpu",
    mistakes=[
        (_as_it_was, "it is one sum of 64, and on two ranks two of 32: the last digits differ",
         "Always two shares, whoever is there: who is alone takes one after the other."),
        (_halves, "the shares are not images 0, 2, 4, … and 1, 3, 5, …",
         "Every other image, and no half: `[share::2]`."),
        (partial(_learn, scale=lambda size: 1), "DDP divides by 2", "What has to be left when it has?"),
        (partial(_learn, scale=lambda size: 64), "a mean over 64 is taken twice, or not at all",
         "The sum over both shares, divided by 64."),
        (partial(_learn, first=lambda rank: 0, step=lambda size: size), "rank 1 takes rank 0's share",
         "Which share does each begin with?"),
        (partial(_learn, step=lambda size: 2), "half of the batch is left out", "Both shares are its own."),
        (lambda model, *given: _learn(model.module, *given), "the ranks do not exchange their gradients",
         "In DDP the last backward pass does it: not in `model.module`, and not under `no_sync`."),
        (_first_twice, "only the first share is in the gradient",
         "In the second turn, which images go forward: those of `share`, or those of `rank`?"),
        (_all_at_once, "the first of the two shares has all 64 images",
         "Two shares, whoever is there: `[share::2]`."),
        (_no_backward, "no gradient is left", "Each share goes backward, too: `backward()`."),
        (_wiped, "only the second share's gradient is left",
         "Each share has a `backward()`, and nothing sets the gradients to zero between the two."),
        (partial(_learn, scale=lambda size: 2), "the means of the two shares add up to twice the batch's",
         "The sum over both shares, divided by 64."),
        (partial(_learn, scale=lambda size: 2 * size), "the gradient is twice as large as that of the batch",
         "The sum over both shares, divided by 64. DDP divides by `size`."),
        (partial(_learn, first=lambda rank: 0, step=lambda size: 1, scale=lambda size: 1),
         "each rank takes both shares", "On two ranks each takes one."),
        (partial(_learn, first=lambda rank: 0, step=lambda size: 1), "each rank takes both shares",
         "On two ranks each takes one."),
        (lambda model, images, labels, rank, size: cross_entropy(model(images), labels).backward(),
         "each takes the whole batch in one go", "Always two shares: `images[share::2]`."),
        (lambda model, images, labels, rank, size: None, "nothing is learned", "`loss.backward()`"),
        (partial(_learn, shares=4), "four shares are added up in another order by two ranks than by one",
         "As many shares as there can be ranks: two."),
    ],
    otherwise="Images 0, 2, 4, … are one share, 1, 3, 5, … the other; each leaves its part, for DDP divides by `size`.",
)  # fmt: skip
