"""Who holds the store, the agents and the ranks, moment after moment, as torchrun's agents told it of a real run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ddplab.course.controls import widget
from ddplab.plots import COLOURS, SHAPES
from ddplab.screen import live


class Server(Protocol):
    """What is asked of a played server: its name, and the `time` and `said` of what befell it."""

    name: str
    diary: list[dict[str, Any]]


Frame = dict[str, Any]  # servers: a list of who is what; disk, said: words


def moments(servers: Sequence[Server], more: Sequence[dict[str, Any]] = ()) -> list[Frame]:
    """Return a frame for each thing that befell these servers: what was typed, and what the agents said.

    more: what a night's diary adds: the steps, the saves, the accidents. A frame is {servers: [{name, agent, store,
    ranks: [[rank, state], …]}, …], disk, said}.
    """
    told = [{**line, "server": server.name} for server in servers for line in server.diary]
    now = {server.name: {"name": server.name, "agent": "", "store": False, "ranks": []} for server in servers}
    frames, disk, step, trained = [], "", None, None
    for line in sorted([*told, *more], key=lambda line: line["time"]):
        at = now.get(line.get("server"), {})
        said = ""
        if "said" in line:
            said = _agent(line["said"], at)
        elif "night" in line:
            said = f"Accident: {line['night']}"
        elif "saved" in line:
            disk = {None: "a broken file", -1: "no checkpoint"}.get(line["saved"], f"step {line['saved']}")
            whether = "has saved" if line["saved"] == trained else "could not save"
            said = f"Rank {line['rank']} {whether}; the disk holds {disk}"
        elif "trained" in line and line["rank"] == 0:
            trained = line["trained"]
        elif "step" in line and line["rank"] == 0:
            step = line["step"]
            if frames:
                frames[-1]["step"] = step
        if said:
            held = [{**it, "ranks": [list(rank) for rank in it["ranks"]]} for it in now.values()]
            frames.append({"servers": held, "disk": disk, "said": said, "step": step, "time": line["time"]})
    return frames


def _agent(said: str, at: dict[str, Any]) -> str:
    """Put down what an agent said, and return it in our words; "" for what changes nothing."""
    name = at["name"]
    if said.startswith("typed"):
        at.update(agent="starts", store="store" in said, ranks=[])
        return f"On {name} torchrun is typed" + ("; its agent holds the store" if at["store"] else "")
    if "Rendezvous'ing" in said:
        at.update(agent="signs in", ranks=[])
        return f"{name}'s agent signs in at the store, and waits for the others"
    if "Rendezvous complete" in said:
        number, nodes = (int(re.search(rf"group_{word}=(\d+)", said)[1]) for word in ("rank", "world_size"))
        ranks = [int(rank) for rank in re.search(r"global_ranks=\[([\d, ]*)\]", said)[1].split(",")]
        at.update(agent=f"node {number} of {nodes}", ranks=[[rank, "runs"] for rank in ranks])
        return f"The meeting gives {name} node rank {number} of {nodes}; it starts {_names(ranks)}"
    if "Worker group FAILED" in said:
        left = re.search(r"(\d+)/(\d+) attempts left", said)[1]
        at.update(agent="starts anew", ranks=[[rank, "died"] for rank, _ in at["ranks"]])
        return f"{name}'s agent finds its rank dead, and starts anew; {_restarts(int(left) - 1)} left"
    if "new nodes from" in said:
        at["ranks"] = [[rank, "stopped"] for rank, _ in at["ranks"]]
        return f"{name}'s agent hears of a newcomer: it stops its ranks for a new meeting"
    if "death signal" in said:
        at.update(agent="leaves", ranks=[[rank, "stopped"] for rank, _ in at["ranks"]])
        return f"{name} is asked to leave (SIGTERM): its agent stops its ranks"
    if "successfully finished" in said:
        at["ranks"] = [[rank, "returned"] for rank, _ in at["ranks"]]
        return f"The ranks of {name} have returned"
    if said in ("ended", "switched off") and at["agent"]:
        at.update(agent="", store=False, ranks=[])
        return f"{name}'s agent has ended" if said == "ended" else f"{name} is gone"
    return ""


def _restarts(number: int) -> str:
    return f"{number} restart{'s' * (number != 1)}"


def _names(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} " + " and ".join(map(str, ranks))


class Board:
    """Who holds what, as it happens or afterwards: with a slider where somebody can press it, else as text.

    servers: whom it is about. more: a function that returns a night's diary so far. buttons: names of accidents.
    """

    def __init__(self, servers: Sequence[Server], more: Callable[[], list] = list, buttons: Sequence[str] = ()):
        self.servers, self.more, self.morning = servers, more, None
        self.frames: list[Frame] = []
        self.asked: list[str] = []
        self.cannot: list[str] = []
        self.widget = None
        self.buttons = list(buttons)
        self.update()

    def appear(self) -> None:
        """Show the board where somebody looks at it."""
        if not live():
            return
        from IPython.display import display

        looks = list(zip(SHAPES, COLOURS, strict=True))
        names = {
            "frames": self.frames,
            "looks": looks,
            "buttons": self.buttons,
            "saves": self.more is not list,
            "going": True,
            "verdict": "",
            "ask": "",
            "cannot": [],
        }
        self.widget = widget("holders", **names)
        self.widget.observe(lambda change: change["new"] and self.asked.append(change["new"].split("#")[0]), "ask")
        self.place = display(self._bundle(), raw=True, display_id=True)

    def _bundle(self) -> dict[str, Any]:
        """Return the widget, and the words that stand in for it where it is gone (a saved file, a forge)."""
        bundle = self.widget._repr_mimebundle_()
        return {**(bundle[0] if isinstance(bundle, tuple) else bundle), "text/plain": str(self)}

    def update(self) -> None:
        frames = moments(self.servers, self.more())
        if frames != self.frames:
            self.frames = frames
            if self.widget:
                self.widget.frames = frames

    def dim(self, cannot: list[str]) -> None:
        """Show which of the accidents cannot come now; a press on one is asked all the same."""
        if cannot != self.cannot:
            self.cannot = cannot
            if self.widget:
                self.widget.cannot = cannot

    def pressed(self) -> bool:
        return bool(self.asked)

    def take(self) -> str | None:
        return self.asked.pop(0) if self.asked else None

    def end(self, morning: Any = None) -> None:
        """The run is over; what came of it, if anything is to be said."""
        self.update()
        self.morning = morning
        if self.widget:
            self.widget.verdict, self.widget.going = str(morning or ""), False
            self.place.update(self._bundle(), raw=True)

    def __str__(self) -> str:
        said = [f"{number:>2}  {frame['said']}" for number, frame in enumerate(self.frames)]
        return "\n".join([*said, *([str(self.morning)] if self.morning else [])])

    __repr__ = __str__
