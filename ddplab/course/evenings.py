"""An evening on two played servers: a job that trains while a server joins, leaves, and ranks are killed.

    evening(my_images)

Agents, meetings, ranks, deaths and restarts are real. The agents are torchrun's, called from Python, so that their
ranks are forks that need not import torch. Played are the borders between the servers, and the hour: what comes waits
until all ranks are at its step, and whoever is left waits until it has come.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import screen
from ddplab.course import data, models
from ddplab.course.moving import move
from ddplab.course.played_agent import agent_of
from ddplab.folder import Folder
from ddplab.hardware import hold_store
from ddplab.launcher import launch
from ddplab.plots import COLOURS, INK, ON_COLOUR, SHAPES, drawing
from ddplab.pointer import pointing
from ddplab.run import RankError, RankTimeoutError
from ddplab.worker import cleanup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS, BATCH = 40, 64
PREMIUM = 2  # what a restart costs that is allowed, used or not; a save costs 1, and so does a step
SERVERS = ("server1", "server2")  # the first is there from the beginning to the end
JOINS, LEAVES = "server2 joins", "server2 leaves"
KILLED = tuple(f"{name}'s rank is killed" for name in SERVERS)
COUNTED = range(1, 13)  # the evenings that the board keeps count of
TRIES = 3  # where a busy machine has lost an agent's sign of life, the evening is played again
BEST: dict[int, tuple[int | None, bool]] = {}  # evening → steps over par (None: lost), whether a bet was won
LOST = 100  # what an evening counts for, at sight, that is lost
FIRST = {"save_every": 16, "restarts": 2}  # on evening 1, before anybody has chosen
OURS = (5, 3)  # save_every and restarts, for who knows nothing of an evening
TRIED: dict[int, dict[str, int | None]] = {}  # evening → plan → what it came to (None: lost), the newest last
SIGHT: dict[int, int] = {}  # evening → what its first try came to; not the first evening, which the lesson plays


class Event(NamedTuple):
    """What comes, before which step."""

    step: int
    what: str


class Bill(NamedTuple):
    """What an evening comes to. lost: whether an agent had no restart left."""

    taken: int
    saves: int
    allowed: int
    lost: bool

    @property
    def steps(self) -> int:
        return self.taken + self.saves + PREMIUM * self.allowed


Share = Callable[[int, int, int, int], Any]
Line = dict[str, Any]


def drawn(number: int) -> list[Event]:
    """Return what comes in an evening: server2 joins, mostly it leaves again, and once or twice a rank is killed."""
    dice = random.Random(number)
    while True:
        kills, stays = dice.choice([1, 2, 2]), dice.random() < 0.25
        steps = sorted(dice.sample(range(3, STEPS - 1), 2 + kills - stays))
        joins = dice.randrange(0, 2)
        leaves = None if stays else dice.randrange(joins + 1, len(steps))
        events = []
        for place, step in enumerate(steps):
            here = SERVERS[: 1 + (joins < place and (leaves is None or place < leaves))]
            killed = KILLED[SERVERS.index(dice.choice(here))]
            events.append(Event(step, JOINS if place == joins else LEAVES if place == leaves else killed))
        if all(later.step - event.step >= 3 for event, later in pairwise(events)):
            return events


def reckon(events: Sequence[Event], save_every: int, restarts: int) -> Bill:
    """Return what an evening comes to, on paper."""
    at = saved = taken = saves = 0
    left = dict.fromkeys(SERVERS, restarts)
    for step, what in [*events, Event(STEPS, "")]:
        taken += step - at
        made = [it for it in range(at + 1, step + 1) if it % save_every == 0 and it < STEPS]
        saves, saved = saves + len(made), max([saved, *made])
        at = saved  # whatever comes, all ranks begin anew
        if what == JOINS:
            left[SERVERS[1]] = restarts  # an agent of its own, and no agent has lost a rank
        elif what:
            loser = SERVERS[1] if what == KILLED[1] else SERVERS[0]  # whom a server leaves, loses its rank too
            left[loser] -= 1
            if left[loser] < 0:
                return Bill(taken, saves, restarts, True)
    return Bill(taken, saves, restarts, False)


def par(events: Sequence[Event]) -> int:
    """Return the least that an evening can come to."""
    bills = (reckon(events, every, restarts) for every in range(1, STEPS + 1) for restarts in range(len(events) + 1))
    return min(bill.steps for bill in bills if not bill.lost)


@pointing
def evening(my_images: Share) -> None:
    """Show what a first plan comes to, and in a live notebook controls: each press plays an evening on real agents.

    my_images: from a step, how many images there are, a rank and how many ranks there are, to this rank's images.

    Raises ValueError for images that there are not, before anything is played.
    """

    def own(step: int, n: int, rank: int, size: int) -> Any:
        return my_images(step * size + rank, n, 0, 1)

    ways = {"my_images": my_images, "64 for each rank": own}

    def tried(evening: int, save_every: int, restarts: int, images: str, bet: int) -> tuple[str, Figure]:
        calm = alone(ways[images])
        lines, weights = play(ways[images], drawn(evening), save_every, restarts)
        return told(lines, weights, calm, evening, save_every, restarts, bet)

    ranges = {"evening": COUNTED, "save_every": range(1, STEPS + 1), "restarts": range(5)}
    with screen.counting("evening 1, played for you:"):
        move(tried, FIRST, "play the evening", **ranges, images=list(ways), bet=range(STEPS + 1))


def alone(my_images: Share) -> torch.Tensor:
    """Return the weights of a calm job of one rank; ValueError where it, or one of two, is given what is no image."""
    images, labels = data.digits().tensors
    net, optimizer = _begin()
    for step in range(STEPS):
        for rank, size in ((0, 2), (1, 2), (0, 1)):
            numbers = _numbers(my_images, step, len(images), rank, size)
        _learn(net, optimizer, images[numbers], labels[numbers], 1)
    return _flat(net)


def _numbers(my_images: Share, step: int, n: int, rank: int, size: int) -> torch.Tensor:
    given = my_images(step, n, rank, size)
    if given is None:
        raise ValueError("my_images returned nothing: the turn above has it")
    numbers = torch.tensor([int(it) for it in given], dtype=torch.long)
    if any(not 0 <= it < n for it in numbers.tolist()):
        raise ValueError(f"in step {step} rank {rank} of {size} asks for an image that is none of 0 to {n - 1}")
    return numbers


def _begin() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = models.MLP()
    return net, torch.optim.SGD(net.parameters(), lr=0.5)


def _learn(model: nn.Module, optimizer: torch.optim.Optimizer, x: Any, y: Any, size: int) -> None:
    optimizer.zero_grad()
    loss = cross_entropy(model(x), y, reduction="sum") / BATCH
    (loss * size).backward()  # DDP divides by size, so shares may be uneven
    optimizer.step()


def _flat(net: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(net.parameters()).detach()


# ------------------------------------------------------------------ what is played


@pointing
def play(
    my_images: Share, events: Sequence[Event], save_every: int, restarts: int
) -> tuple[list[Line], torch.Tensor | None]:
    """Play an evening; return what all ranks have noted, and the weights at its end, None where it was lost.

    Raises RuntimeError where a machine is so busy that it comes to something else than on paper, three times.
    """
    bill, cause = reckon(events, save_every, restarts), None
    for _ in range(TRIES):
        with _disk() as folder:
            store = hold_store()
            try:
                launch(
                    _server, folder, list(events), save_every, restarts, my_images, store.port,
                    nproc_per_node=2, device="cpu", init=False, quiet=True, timeout=120,
                )  # fmt: skip
            except (RankError, RankTimeoutError) as error:
                cause = error
                continue
            pages = [page.read_text().splitlines() for page in Path(folder).glob("diary-*")]
            lines = sorted((json.loads(line) for page in pages for line in page), key=lambda line: line["time"])
            ended = Path(folder, "weights")
            weights = torch.load(ended) if ended.exists() else None
        taken = sum("step" in line and line["rank"] == 0 for line in lines)
        if (taken, sum("saved" in line for line in lines), weights is None) == (bill.taken, bill.saves, bill.lost):
            return lines, weights
    why = "the machine is so busy that agents do not hear each other, or my_images fails in a rank"
    raise RuntimeError(f"{TRIES} times this evening went another way than on paper: {why}") from cause


@contextmanager
def _disk() -> Iterator[str]:
    """A folder that all ranks reach; it goes with the kernel, also with one that is killed."""
    folder = Folder.new()
    try:
        yield folder.path
    finally:
        folder.remove()


def _server(folder: str, events: list[Event], save_every: int, restarts: int, my_images: Share, port: int) -> None:
    """Be a server: the first types torchrun at once, the other whenever it joins."""
    number, here = int(os.environ["RANK"]), Path(folder)
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    os.environ["SERVER"] = SERVERS[number]
    job = (_job, folder, events, save_every, my_images)
    meeting = {
        "restarts": restarts, "logs": f"{folder}/logs{number}", "nproc_per_node": 1, "nodes": 2, "port": port,
        "address": ("127.0.0.1", "localhost")[number],
        "last_call_timeout": 1, "keep_alive_interval": 1, "keep_alive_max_attempt": 30,  # all may be slow
    }  # fmt: skip
    if number == 0:
        agent_of(*job, **meeting)
    else:
        joins, leaves = (next((n for n, it in enumerate(events) if it.what == what), None) for what in (JOINS, LEAVES))
        if not _until(here, f"come{joins}"):
            return
        threading.Thread(target=_leave, args=(here, f"come{leaves}"), daemon=True).start()
        if agent_of(*job, **meeting) == "left":
            (here / "left").touch()
            return
    (here / "over").touch()


def _leave(here: Path, sign: str) -> None:
    if _until(here, sign):
        os.kill(os.getpid(), signal.SIGTERM)


def _until(here: Path, sign: str) -> bool:
    """Wait until there is such a file; False when the evening is over before."""
    while not (here / sign).exists():
        if (here / "over").exists():
            return False
        time.sleep(0.01)
    return True


def _job(folder: str, events: list[Event], save_every: int, my_images: Share) -> None:
    """In a rank: go on from the checkpoint, train, save."""
    torch.set_num_threads(1)
    here, server = Path(folder), os.environ["SERVER"]
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    attempt: list[Any] = [time.time_ns()]
    dist.broadcast_object_list(attempt)

    def note(**line: Any) -> None:
        used = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        who = {"time": time.time(), "pid": os.getpid(), "server": server, "rank": rank, "size": size}
        who |= {"used": used, "attempt": attempt[0]}
        with open(here / f"diary-{os.getpid()}", "a") as diary:
            diary.write(json.dumps(who | line) + "\n")

    images, labels = data.digits().tensors
    net, optimizer = _begin()
    begin = 0
    if (here / "last.pt").exists():
        saved = torch.load(here / "last.pt")
        net.load_state_dict(saved["net"])
        begin = saved["done"]
    model = DDP(net)
    for step in range(begin, STEPS):
        for number, event in enumerate(events):
            if event.step == step and not (here / f"come{number}").exists():
                (here / f"at{number}-{attempt[0]}-{rank}").touch()
                while len(list(here.glob(f"at{number}-{attempt[0]}-*"))) < size:
                    time.sleep(0.01)
                _come(here, number, event.what, server, rank, note)
        numbers = _numbers(my_images, step, len(images), rank, size)
        _learn(model, optimizer, images[numbers], labels[numbers], size)
        note(step=step)
        if rank == 0 and (step + 1) % save_every == 0 and step + 1 < STEPS:
            torch.save({"net": net.state_dict(), "done": step + 1}, here / "new.pt")
            os.replace(here / "new.pt", here / "last.pt")
            note(saved=step + 1)
    if rank == 0:
        torch.save(_flat(net), here / "weights")
    cleanup()


def _come(here: Path, number: int, what: str, server: str, rank: int, note: Callable[..., None]) -> None:
    """All ranks are here: let it come. Whoever is left goes on only where a server leaves, and loses it then."""
    struck = SERVERS[KILLED.index(what)] if what in KILLED else SERVERS[0]
    if server == struck:
        note(came=what)
        (here / f"come{number}").touch()
        if what in KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
    if not _until(here, "left" if what == LEAVES else "never"):
        raise SystemExit("the other agent has given up")


# ------------------------------------------------------------------ what is shown


def told(
    lines: list[Line], weights: torch.Tensor | None, calm: torch.Tensor, number: int, save_every: int, restarts: int,
    bet: int,
) -> tuple[str, Figure]:  # fmt: skip
    """Say in eight lines, so that the page stays still, what an evening came to; note it on the board, and draw it."""
    events, came = drawn(number), [line for line in lines if "came" in line]
    steps = [line["step"] for line in lines if "step" in line and line["rank"] == 0]
    bill = Bill(len(steps), sum("saved" in line for line in lines), restarts, weights is None)
    again, best = len(steps) - len(set(steps)), par(events)
    used = {name: max((it["used"] for it in lines if it["server"] == name), default=0) for name in SERVERS}
    words = [
        f"EVENING {number}, a save every {save_every}, restarts allowed {restarts}, used "
        + ", ".join(f"{count} by {name}'s agent" for name, count in used.items()),
        "before step " + ", ".join(f"{events[n].step} {line['came']}" for n, line in enumerate(came)),
    ]
    same, plan = False, f"{save_every}/{restarts}"
    counts = f"; at sight that counts as {LOST}" if number in COUNTED[1:] and number not in SIGHT else ""
    if weights is None:
        saved = max((line["saved"] for line in lines if "saved" in line), default=0)
        loser = SERVERS[came[-1]["came"] == KILLED[1]]
        words += [f"✗ LOST: {loser}'s agent had no restart left; {saved} of {STEPS} steps are saved{counts}"]
        words += [f"no bill; par is {best}", "your bet is lost too"]
    else:
        off = float((weights - calm).norm() / calm.norm())
        same = off < 1e-4
        words += [
            "✓ the weights are the calm job's, but for rounding" if same
            else f"✗ the weights are not the calm job's: {off:.0%} of their length off{counts}",
            f"{STEPS} steps + {again} taken again + {bill.saves} saves + {PREMIUM * restarts} for restarts"
            f" = {bill.steps}; par is {best}",
            f"you bet {bet} taken again: {'♦ won' if bet == again else f'it is {again}'}",
        ]  # fmt: skip
    _mark(number, bill.steps - best if same else None, weights is not None and bet == again)
    if number in COUNTED[1:]:
        SIGHT.setdefault(number, bill.steps if same else LOST)
    plan += " weights" * (weights is not None and not same)
    words += [tries(number, plan, bill.steps if same else None), board(), at_sight()]
    return "\n".join(words), strip(lines, events, restarts, best, f"the bill of evening {number}")


def tries(number: int, plan: str, cost: int | None) -> str:
    """Note what a plan came to; return the newest five of this evening, the best one marked and always among them."""
    those = TRIED.setdefault(number, {})
    those.pop(plan, None)
    those[plan] = cost
    best = min((it for it in those.values() if it is not None), default=None)
    all_ = [f"{it} {'✗' if bill is None else bill}{'★' * (bill == best is not None)}" for it, bill in those.items()]
    shown = [it for it in all_[:-5] if "★" in it][-1:] + all_[-5:]
    return f"your tries at evening {number} (save every/restarts bill):  " + "   ".join(shown)


def _mark(number: int, over: int | None, won: bool) -> None:
    before, bet = BEST.get(number, (None, False))
    overs = [it for it in (before, over) if it is not None]
    BEST[number] = (min(overs) if overs else None, bet or won)


def board() -> str:
    """Return the evenings that are kept count of: not played, lost, or how far over par; ♦ where a bet was won."""
    signs = []
    for number in COUNTED:
        over, won = BEST.get(number, (None, False))
        sign = "☐" if number not in BEST else "✗" if over is None else f"+{over}" if over else "✓"
        signs.append(f"{number} {sign}{'♦' * won}")
    return "evenings:  " + "   ".join(signs)


def at_sight() -> str:
    """Return, in a line, what the first tries have come to, and what one plan for all comes to."""
    if not SIGHT:
        return "at sight:  nothing yet; the first try at each evening from 2 on counts"
    ours = sum(reckon(drawn(number), *OURS).steps for number in SIGHT)
    which = f"evening{'s' * (len(SIGHT) > 1)} {', '.join(map(str, sorted(SIGHT)))}"
    return f"at sight, {which}: {sum(SIGHT.values())}; our one plan for all evenings: {ours}"


def strip(lines: list[Line], events: Sequence[Event], restarts: int, best: int, title: str) -> Figure:
    """Draw the bill: a box for each restart that is allowed, each step of a rank, hatched if again, and each save."""
    from matplotlib.patches import Rectangle

    with drawing(9, 2.5) as figure:
        axis = figure.subplots()

        def box(left: float, lane: float, width: float, high: float, colour: str, hatch: str | None = None) -> None:
            on = colour in COLOURS
            look = {"facecolor": colour, "edgecolor": ON_COLOUR if on else INK, "linewidth": 0.5 if on else 1.5}
            axis.add_patch(Rectangle((left, lane - high / 2), width, high, hatch=hatch, **look))

        for place in range(restarts):
            box(PREMIUM * place, 0.55, PREMIUM, 1.8, "none")
        if restarts:
            axis.text(PREMIUM * restarts / 2, 1.85, "restarts", ha="center", va="center", fontsize=9)
        at, done, came, attempt = float(PREMIUM * restarts), set(), 0, None
        for line in lines:
            if "step" in line and line["rank"] == 0:
                hatch = "//////" if line["step"] in done else None
                for it in lines:
                    if (it.get("step"), it["attempt"]) == (line["step"], line["attempt"]):
                        box(at, 1.1 * SERVERS.index(it["server"]), 1, 0.7, COLOURS[it["rank"]], hatch)
                if line["attempt"] != attempt:
                    axis.text(at + 0.2, 0.55, line["step"], va="center", fontsize=9)
                done.add(line["step"])
                at, attempt = at + 1, line["attempt"]
            elif "saved" in line:
                box(at + 0.1, 0, 0.8, 0.95, INK)
                at += 1
            elif "came" in line:
                step, what = events[came]
                over = -0.62 - 0.34 * (came % 2)  # there the word stands, and there the line ends
                axis.vlines(at, over + 0.12, 1.62, color=INK, linewidth=1, linestyle=":")
                if what in KILLED:
                    lane = 1.1 * KILLED.index(what)
                    axis.plot([at], [lane], "X", color=INK, markeredgecolor="white", markersize=11, zorder=3)
                short = {JOINS: "joins", LEAVES: "leaves"}.get(what, "killed")
                axis.text(at, over, f"{short}, {step}", ha="center", fontsize=9)
                came += 1
        axis.vlines(best, -0.55, 1.65, color=INK, linewidth=2, linestyle="--")  # below the words of what comes
        axis.text(best, 1.85, f"par {best}", ha="center", va="center", fontsize=9)
        names = [f"{name} {SHAPES[place]}" for place, name in enumerate(SERVERS)]
        axis.set(xlim=(-0.5, max(at, best) + 1.5), ylim=(2.1, -1.15), xlabel=title)
        axis.set_yticks([0, 1.1], names)
        axis.spines[["top", "right", "left"]].set_visible(False)
    return figure
