"""An evening on two played servers: a job that trains while a server joins, leaves, and ranks are killed.

    evening()              with our way to share out the images
    evening(my_images)     with yours

Whoever plays says, press by press, how many steps are trained until the next save. Agents, meetings, ranks, deaths and
restarts are real. The agents are torchrun's, called from Python, so that their ranks are forks that need not import
torch. Played are the borders between the servers, and the hour: what comes waits until all ranks are at its step, and
whoever is left waits until it has come.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, repeat
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
from ddplab.worker import cleanup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS, BATCH = 40, 64
PREMIUM = 2  # what a restart costs that is allowed, used or not; a save costs 1, and so does a step
SERVERS = ("server1", "server2")  # the first is there from the beginning to the end
JOINS, LEAVES = "server2 joins", "server2 leaves"
KILLED = tuple(f"{name}'s rank is killed" for name in SERVERS)
COUNTED = range(1, 13)  # the evenings that the board keeps count of
TRIES = 3  # where a busy machine has lost an agent's sign of life, what the lesson plays is played again
SILENCE = 120.0  # seconds after which what was ordered counts as upset
BEST: dict[int, int | None] = {}  # evening → steps over par (None: lost)
LOST = 100  # what an evening counts for, at sight, that is lost
FIRST = {"restarts": 2, "steps_until_the_save": 16}  # on evening 1, played by the lesson
OURS = (5, 3)  # steps until a save, and restarts, for who knows nothing of an evening
SIGHT: dict[int, int] = {}  # evening → what its first try came to; not the first evening, which the lesson plays
UNDER_WAY: list[Evening] = []  # the evening that waits for an order, if any


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


def reckon(events: Sequence[Event], legs: Iterable[int], restarts: int) -> Bill:
    """Return what an evening comes to, on paper. legs: how many steps are trained until a save, order after order."""
    at = taken = saves = 0
    left, coming = dict.fromkeys(SERVERS, restarts), list(events)
    for leg in legs:
        to = min(at + leg, STEPS)
        struck = bool(coming) and coming[0].step < to
        taken += (coming[0].step if struck else to) - at
        if not struck:
            at, saves = to, saves + (to < STEPS)
        if struck or (coming and coming[0].step == to):  # whatever comes, all ranks begin anew
            what = coming.pop(0).what
            if what == JOINS:
                left[SERVERS[1]] = restarts  # an agent of its own, and no agent has lost a rank
            else:
                left[pays(what)] -= 1
                if left[pays(what)] < 0:
                    return Bill(taken, saves, restarts, True)
        if at == STEPS:
            break
    return Bill(taken, saves, restarts, False)


def pays(what: str) -> str:
    """Whose agent needs a restart: a killed rank's own, and that of whom a server leaves, for it loses its rank too."""
    return SERVERS[what == KILLED[1]]


def par(events: Sequence[Event]) -> int:
    """Return the least that an evening can come to: a save before each event, and no restart too many."""
    need = next(n for n in range(len(events) + 1) if not reckon(events, repeat(STEPS), n).lost)
    return STEPS + len(events) + PREMIUM * need


def ours(step: int, n: int, rank: int, size: int) -> torch.Tensor:
    """The same 64 images of a step, on however many ranks."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(step))[:BATCH][rank::size]


@pointing
def evening(my_images: Share = ours) -> None:
    """Show what a first plan comes to, and in a live notebook controls: each press trains on, on real agents.

    my_images: from a step, how many images there are, a rank and how many ranks there are, to this rank's images.

    Raises ValueError for images that there are not, before anything is played.
    """

    def own(step: int, n: int, rank: int, size: int) -> Any:
        return my_images(step * size + rank, n, 0, 1)

    ways = {"all ranks share 64": my_images, "64 for each rank": own}
    chosen: list[Any] = []

    def on(evening: int, restarts: int, images: str, steps_until_the_save: int) -> tuple[str, Figure]:
        if not chosen:  # as the cell is run
            now = play(ways[images], evening, steps_until_the_save, restarts)
        else:
            now = chosen[-1]
            if now not in UNDER_WAY or chosen[:3] != [evening, restarts, images]:
                leave()
                now = Evening(ways[images], evening, restarts)
                UNDER_WAY.append(now)
            now.train(steps_until_the_save)
        chosen[:] = [evening, restarts, images, now]
        return told(now)

    leave()
    ranges = {
        "evening": COUNTED,
        "restarts": range(4),
        "images": list(ways),
        "steps_until_the_save": range(1, STEPS + 1),
    }
    with screen.counting("evening 1, played for you:"):
        move(on, FIRST, "train on, and save", **ranges)


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


class Evening:
    """An evening on real agents, which waits for an order wherever all is saved. `lines`: what the ranks have noted."""

    def __init__(self, my_images: Share, number: int, restarts: int, events: Sequence[Event] | None = None):
        self.number, self.restarts, self.events = number, restarts, events or drawn(number)
        self.calm = alone(my_images)
        self.legs: list[int] = []
        self.lines: list[Line] = []
        self.waits: tuple[int, ...] = ()  # how much has come, and the step: there an order is due
        self.ordered, self.before, self.over, self.weights = {self.waits}, 0, False, None
        self.folder, self.store = Folder.new(), hold_store()  # a folder that all ranks reach; it goes with the kernel
        self.here = Path(self.folder.path)
        self.run = launch(
            _server, str(self.here), self.events, restarts, my_images, self.store.port,
            nproc_per_node=2, device="cpu", init=False, quiet=True, timeout=None, wait=False,
        )  # fmt: skip
        self._until_it_waits()

    @pointing
    def train(self, leg: int) -> None:
        """Let the ranks train so many steps and save; come back when they wait again, or the evening is over.

        Raises RuntimeError where a machine is so busy that it comes to something else than on paper.
        """
        self.legs.append(leg)
        self.ordered.add(self.waits)
        self.before = len(self.came)
        order = self.here / ("go" + "-".join(map(str, self.waits)))
        order.with_name("order").write_text(str(leg))
        os.replace(order.with_name("order"), order)
        self._until_it_waits()

    def _until_it_waits(self) -> None:
        try:
            deadline = time.monotonic() + SILENCE
            while self.waits in self.ordered and self.run.state == "running" and time.monotonic() < deadline:
                time.sleep(0.02)
                self.look()
            if self.waits in self.ordered:
                self.look()
                self.over, ended = True, self.here / "weights"
                self.weights = torch.load(ended) if ended.exists() else None
            upset = self.over and self.run.state != "finished"
            if upset or self.bill != reckon(self.events, self.legs, self.restarts):
                why = "the machine is so busy that agents do not hear each other, or my_images fails in a rank"
                raise RuntimeError(f"this evening went another way than on paper, and does not count: {why}")
        except BaseException:  # ■ too: what came of the order is not known
            self.over = True
            raise
        finally:
            if self.over:
                self.end()

    def look(self) -> None:
        pages = [page.read_text().splitlines(keepends=True) for page in self.here.glob("diary-*")]
        lines = (json.loads(line) for page in pages for line in page if line.endswith("\n"))
        self.lines = sorted(lines, key=lambda line: line["time"])
        for line in self.lines:
            self.waits = tuple(line.get("waits", self.waits))

    def end(self) -> None:
        """Leave nothing of it behind."""
        self.run.stop()
        self.folder.remove()
        if self in UNDER_WAY:
            UNDER_WAY.remove(self)

    @property
    def came(self) -> list[str]:
        return [line["came"] for line in self.lines if "came" in line]

    @property
    def steps(self) -> list[int]:
        return [line["step"] for line in self.lines if "step" in line and line["rank"] == 0]

    @property
    def bill(self) -> Bill:
        saves = sum("saved" in line for line in self.lines)
        return Bill(len(self.steps), saves, self.restarts, self.over and self.weights is None)


@pointing
def play(my_images: Share, number: int, every: int, restarts: int, events: Sequence[Event] | None = None) -> Evening:
    """Play an evening to its end, with a save after so many steps each time; again where a busy machine upsets it."""
    for chance in reversed(range(TRIES)):
        try:
            it = Evening(my_images, number, restarts, events)
            while not it.over:
                it.train(every)
            return it
        except RuntimeError:
            if not chance:
                raise
    raise AssertionError


def leave() -> None:
    """Leave the evening that is under way, if any: it is lost."""
    for it in list(UNDER_WAY):
        it.end()
        _count(it, None)


def _server(folder: str, events: list[Event], restarts: int, my_images: Share, port: int) -> None:
    """Be a server: the first types torchrun at once, the other whenever it joins."""
    number, here = int(os.environ["RANK"]), Path(folder)
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    os.environ["SERVER"] = SERVERS[number]
    job = (_job, folder, events, my_images)
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


def _job(folder: str, events: list[Event], my_images: Share) -> None:
    """In a rank: go on from the checkpoint, train as it is ordered, save."""
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
    note(begins=begin)
    model, to = DDP(net), begin
    for step in range(begin, STEPS):
        for number, event in enumerate(events):
            if event.step == step and not (here / f"come{number}").exists():
                (here / f"at{number}-{attempt[0]}-{rank}").touch()
                while len(list(here.glob(f"at{number}-{attempt[0]}-*"))) < size:
                    time.sleep(0.01)
                _come(here, number, event.what, server, rank, note)
                dist.barrier()  # without the server that has left: the other's rank dies here
        if rank == 0 and step == to:
            to += _ordered(here, step, note)
        numbers = _numbers(my_images, step, len(images), rank, size)
        _learn(model, optimizer, images[numbers], labels[numbers], size)
        note(step=step)
        if rank == 0 and step + 1 == to < STEPS:
            torch.save({"net": net.state_dict(), "done": step + 1}, here / "new.pt")
            os.replace(here / "new.pt", here / "last.pt")
            note(saved=step + 1)
    if rank == 0:
        torch.save(_flat(net), here / "weights")
    cleanup()


def _ordered(here: Path, step: int, note: Callable[..., None]) -> int:
    """Wait for whoever plays, and return how many steps are to be trained until the next save."""
    where, parent = (len(list(here.glob("come*"))), step), os.getppid()
    note(waits=where)
    order = here / f"go{where[0]}-{where[1]}"
    while not order.exists():
        if (here / "over").exists() or os.getppid() != parent:
            raise SystemExit("the evening is over")
        time.sleep(0.01)
    return int(order.read_text())


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


def told(it: Evening) -> tuple[str, Figure]:
    """Say in seven lines, so that the page stays still, where an evening is; note what it came to, and draw it."""
    bill, best = it.bill, par(it.events)
    again = bill.taken - len(set(it.steps))
    used = {name: max((line["used"] for line in it.lines if line["server"] == name), default=0) for name in SERVERS}
    left = [f"{name}'s agent {max(0, it.restarts - count)}" for name, count in used.items()]
    saved = max((line["saved"] for line in it.lines if "saved" in line), default=0)
    sums = f"steps {bill.taken - again} + taken again {again} + saves {bill.saves}"
    sums = f"bill: {sums} + restarts {PREMIUM} × {it.restarts} = {bill.steps}"
    if not it.over:
        ahead = [what for what in (JOINS, LEAVES) if what not in it.came]
        kills = 2 - sum(what in KILLED for what in it.came)
        ahead += [f"{kills} rank{'s' * (kills > 1)} killed"] if kills else []
        head = f"EVENING {it.number}: {saved} of {STEPS} steps are saved. How many until the next save?"
        still = "can still come: " + (", ".join(ahead) or "nothing")
    else:
        still = "it was: before step " + ", ".join(f"{at} {what}" for at, what in it.events[: len(it.came)])
        off = 1.0 if it.weights is None else float((it.weights - it.calm).norm() / it.calm.norm())
        won = off < 1e-4
        if won:
            head = "✓ the weights are the calm job's, but for rounding"
        elif it.weights is None:
            head = f"✗ LOST: {saved} of {STEPS} steps are saved"
        else:
            head = f"✗ LOST, whatever it cost: the weights are not the calm job's, {off:.0%} of their length off"
        head = f"EVENING {it.number} is over. {head}"
        sums = f"{sums}; par is {best}" if won else f"no bill; par is {best}"
        _count(it, bill.steps if won else None)
    words = [head, _what_came(it, saved), f"restarts left: {', '.join(left)}", still, sums, board(), at_sight()]
    title = f"the bill of evening {it.number}"
    return "\n".join(words), strip(it.lines, it.events, it.restarts, best if it.over else None, title)


def _what_came(it: Evening, saved: int) -> str:
    """Say what the newest order has met, and what that costs."""
    if len(it.came) == it.before:
        return "nothing came"
    step, what = it.events[it.before]
    if it.over:
        return f"before step {step} {what}: that costs a restart, and {pays(what)}'s agent has none left"
    lost = f"{step - saved} step{'s' * (step - saved != 1)} lost" if step > saved else "all was saved"
    costs = "nobody" if what == JOINS else f"{pays(what)}'s agent"
    return f"before step {step} {what}: back to step {saved} ({lost}); it costs {costs} a restart"


def _count(it: Evening, cost: int | None) -> None:
    """Put an evening on the board: what it cost, None where it was lost. At sight the first try counts."""
    over = None if cost is None else cost - par(it.events)
    BEST[it.number] = min((n for n in (BEST.get(it.number), over) if n is not None), default=None)
    if it.number in COUNTED[1:]:
        SIGHT.setdefault(it.number, LOST if cost is None else cost)


def board() -> str:
    """Return the evenings that are kept count of: not played, lost, or how far over par."""
    signs = {number: "✗" if over is None else f"+{over}" if over else "✓" for number, over in BEST.items()}
    return "evenings:  " + "   ".join(f"{number} {signs.get(number, '☐')}" for number in COUNTED)


def at_sight() -> str:
    """Return, in a line, what the first tries have come to, and what one plan for all comes to."""
    if not SIGHT:
        return f"at sight:  nothing yet; the first try at each evening from 2 on counts, a lost one as {LOST}"
    every, restarts = OURS
    one = sum(reckon(drawn(number), repeat(every), restarts).steps for number in SIGHT)
    which = f"evening{'s' * (len(SIGHT) > 1)} {', '.join(map(str, sorted(SIGHT)))}"
    return f"at sight, {which}: {sum(SIGHT.values())}; our one plan for all evenings: {one}"


def strip(lines: list[Line], events: Sequence[Event], restarts: int, best: int | None, title: str) -> Figure:
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
        if best:  # which would tell, before the end, how much is still to come
            axis.vlines(best, -0.55, 1.65, color=INK, linewidth=2, linestyle="--")  # below the words of what comes
            axis.text(best, 1.85, f"par {best}", ha="center", va="center", fontsize=9)
        names = [f"{name} {SHAPES[place]}" for place, name in enumerate(SERVERS)]
        axis.set(xlim=(-0.5, max(at + 1, 65) + 0.5), ylim=(2.1, -1.15), xlabel=title)
        axis.set_yticks([0, 1.1], names)
        axis.spines[["top", "right", "left"]].set_visible(False)
    return figure
