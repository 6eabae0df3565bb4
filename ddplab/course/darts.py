"""Darts thrown at a square by real ranks: one sees them fall on each rank, and then pooled by an all_reduce."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from ddplab.course.controls import widget
from ddplab.course.moving import move
from ddplab.hardware import device
from ddplab.launcher import launch
from ddplab.plots import COLOURS, INK, SHAPES, drawing
from ddplab.pointer import pointing
from ddplab.run import Run
from ddplab.screen import show
from ddplab.tables import brief
from ddplab.worker import log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAYERS = (*(f"{SHAPES[rank]} rank {rank}" for rank in range(4)), "┃ all together")
PAYS = (6, 6, 6, 6, 3)  # near what is fair: all together is nearest one time in three, a rank one in six
THROWS, WINS = 6, 9  # of a game; points that win it

Darts = list[list[tuple[float, float]]]  # of each rank, where its darts have landed: x and y, from 0 to 1


def logging_darts(throw: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function for `launch` that does what `throw` does, and logs where each dart lands (see `fall`).

    A dart is a row of two random numbers, however and wherever `throw` has torch draw them.
    """
    return partial(_throw, throw)


def _throw(throw: Callable[[], Any]) -> Any:
    with _Logging():
        return throw()


class _Logging(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__.startswith("rand.") and out.dim() == 2 and out.shape[1] == 2:
            log(darts=" ".join(f"{number:.4f}" for number in out.flatten().tolist()))
        return out


def landed(run: Run) -> Darts:
    """Return where the darts of each rank have landed, in their order, from what the ranks have logged."""
    darts: Darts = [[] for _ in range(run.world_size)]
    for row in run.metrics:
        numbers = list(map(float, row.get("darts", "").split()))
        darts[row["rank"]] += zip(numbers[::2], numbers[1::2], strict=True)
    return darts


@pointing
def fall(run: Run) -> None:
    """Show how the darts of a run fell, with buttons to play it and a slider; elsewhere how they lie in the end.

    run: of a function from `logging_darts` that returns on each rank the hits of all ranks. Each dart is a mark of its
    rank, pale where it is outside of the quarter circle. Raises ValueError where no dart was logged.
    """
    darts = landed(run)
    if not any(darts):
        raise ValueError("no dart was logged: launch(logging_darts(…)), with a function that throws some")
    flat = [[round(1000 * number) for dart in rank for number in dart] for rank in darts]
    hits = [[int(within(*dart)) for dart in rank] for rank in darts]
    looks, returned = list(zip(SHAPES, COLOURS, strict=True)), list(map(brief, run.results))
    make = partial(widget, "darts", darts=flat, hits=hits, returned=returned, looks=looks)
    show(words(darts), make, lambda: draw(darts))


def within(x: float, y: float) -> bool:
    """Tell whether a dart is in the quarter circle."""
    return x * x + y * y < 1


def words(darts: Darts) -> str:
    """Return what became of the darts: a line for each rank, and one for all."""
    named = {f"rank {rank}": thrown for rank, thrown in enumerate(darts)} | {"together": _all(darts)}
    return "\n".join(f"{name:8}  {_count(thrown)}" for name, thrown in named.items())


def _all(darts: Darts) -> list[tuple[float, float]]:
    return [dart for rank in darts for dart in rank]


def _count(thrown: list[tuple[float, float]]) -> str:
    hits = sum(within(*dart) for dart in thrown)
    return f"{hits:,} of {len(thrown):,} within: π ≈ {4 * hits / max(1, len(thrown)):.3f}"


def draw(darts: Darts) -> Figure:
    """Draw where the darts lie: a square for each rank, and one for all. Returns the matplotlib figure."""
    with drawing(2.2 * (len(darts) + 1), 2.6) as figure:
        axes = figure.subplots(1, len(darts) + 1)
        circle = torch.linspace(0, torch.pi / 2, 60)
        for axis in axes:
            axis.plot(circle.cos(), circle.sin(), color=INK, linewidth=1)
            axis.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[], aspect="equal")
        for rank, thrown in enumerate(darts):
            for axis in (axes[rank], axes[-1]):
                for inside, alpha in ((True, 0.9), (False, 0.3)):
                    points = [dart for dart in thrown if within(*dart) is inside]
                    look = {"marker": f"${SHAPES[rank % 8]}$", "color": COLOURS[rank % 8], "alpha": alpha}
                    axis.scatter(*zip(*points, strict=True), s=5, linewidths=0, **look) if points else None
            axes[rank].set_title(f"rank {rank}\n{_count(thrown)}", fontsize=9)
        axes[-1].set_title(f"together\n{_count(_all(darts))}", fontsize=9)
    return figure


def bet_on_pi() -> None:
    """Show a game: who of four ranks and all of them together comes nearest to π? Each throw is a real run."""
    move(Game().throw, press="Throw", bet_on=PLAYERS)


class Game:
    """Six throws, a bet on each, and what the bets have brought. After the last, the next throw begins a new game."""

    def __init__(self) -> None:
        self.thrown: list[tuple[str, list[float]]] = []  # the bet, and what each player says of π
        self.best, self.dealt = 0, False

    def throw(self, bet_on: str) -> tuple[str, Figure]:
        """Throw with a bet on one of `PLAYERS`, and tell what came of it; the first call shows the empty board."""
        if self.dealt:
            said = launch(_estimates, secrets.randbelow(2**40), nproc_per_node=4, quiet=True).results
            kept = self.thrown if len(self.thrown) < THROWS else []
            self.thrown = [*kept, (bet_on, [*(own for own, _ in said), said[0][1]])]
        self.dealt = True
        return self.told(), self.board()

    def told(self) -> str:
        """Return three lines: the throw, the points, and what is to be done."""
        if not self.thrown:
            return f"Nothing is thrown yet.\n0 points. {WINS} win the game.\nChoose whom you bet on, and press Throw."
        bet, said = self.thrown[-1]
        first, points, left = nearest(said, PLAYERS.index(bet)), self.points, THROWS - len(self.thrown)
        one = f"Throw {len(self.thrown)} of {THROWS}: {PLAYERS[first]} is nearest, with {said[first]:.3f}."
        won = f"+{PAYS[first]}" if bet == PLAYERS[first] else "nothing"
        if left:
            end = f"{WINS - points} more win the game." if points < WINS else f"You have won, with {left} to spare."
            if points + left * max(PAYS) < WINS:
                end = f"It takes {WINS}: this game is lost."
        else:
            self.best = max(self.best, points)
            end = f"{'You win' if points >= WINS else 'You lose'}. Your best game: {self.best}. Throw again?"
        count = f"{points} point{'s' * (points != 1)} so far" if left else f"The game ends with {points} points"
        return f"{one}\nYou had bet on {bet}: {won}.\n{count}. {end}"

    @property
    def points(self) -> int:
        """What the bets of this game have brought."""
        bets = [(PLAYERS.index(bet), said) for bet, said in self.thrown]
        return sum(PAYS[bet] for bet, said in bets if nearest(said, bet) == bet)

    def board(self) -> Figure:
        """Draw a row for each throw of the game: where each player's estimate lies, with a ring around the bet."""
        with drawing(7.5, 2.6, layout="none") as figure:
            axis = figure.add_axes((0.08, 0.12, 0.84, 0.86))  # the same place, whatever stands beside it
            axis.axvline(torch.pi, color=INK, linestyle="--", linewidth=1)
            axis.set(xlim=(2.97, 3.31), ylim=(THROWS + 0.5, 0.5), yticks=range(1, THROWS + 1), ylabel="throw")
            axis.set_xticks([3, 3.05, 3.1, torch.pi, 3.2, 3.25, 3.3], ["3", "3.05", "3.1", "π", "3.2", "3.25", "3.3"])
            for row, (name, said) in enumerate(self.thrown, 1):
                bet = PLAYERS.index(name)
                places = [min(3.3, max(2.98, it)) for it in said]  # who is farther off stands at the edge
                axis.scatter(places[-1], row, s=300, marker="|", linewidths=4, color=INK)
                for rank, place in enumerate(places[:-1]):
                    axis.scatter(place, row, s=60, marker=f"${SHAPES[rank]}$", linewidths=0, color=COLOURS[rank])
                if nearest(said, bet) == bet:
                    axis.text(3.315, row, f"✓ +{PAYS[bet]}", va="center", fontsize=9)
                ring = {"facecolors": "none", "edgecolors": INK, "linewidths": 1.5}
                axis.scatter(places[bet], row, s=230, **ring)
        return figure


def nearest(said: list[float], bet: int = 0) -> int:
    """Return which player is nearest to π; where others are as near, the one that was bet on."""
    return min(range(len(said)), key=lambda player: (abs(said[player] - torch.pi), player != bet))


def _estimates(game: int, count: int = 1000) -> tuple[float, float]:
    """Throw so many darts; return π as this rank's darts tell it, and as all ranks' do."""
    hand = torch.Generator().manual_seed(game + dist.get_rank())
    hits = (torch.rand(count, 2, generator=hand).norm(dim=1) < 1).sum().to(device())
    own = 4 * hits.item() / count
    dist.all_reduce(hits)
    return own, 4 * hits.item() / (count * dist.get_world_size())
