"""A game of fitting: a training, the levers that make it smaller, what each costs, and GPUs of several sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

from ddplab.course.training_drawings import HATCHES
from ddplab.plots import COLOURS, INK, ON_COLOUR, drawing
from ddplab.pointer import pointing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEAR = 12  # a try that costs more is drawn there; further on where a GPU costs nearly as much at least
NEAR = 0.5  # GB: so near to the least there is, a try has shown it


class Fitting:
    """All tries of a game, the learner's own in the order in which they are made; `draw` is for `move`.

    held: a setting, by name → what lies on each GPU: part → GB. price: a setting → what it costs. rooms: the GPUs' GB.
    levers: name → the values that it may have. tried: earlier tries, which stay; new ones are put there as well.
    """

    def __init__(
        self,
        held: Callable[..., Mapping[str, float]],
        price: Callable[..., float],
        rooms: Sequence[float],
        levers: Mapping[str, Sequence[Any]],
        tried: list[dict[str, Any]] | None = None,
    ):
        self.held, self._asked, self.rooms = held, price, rooms
        self.settings = [dict(zip(levers, values, strict=True)) for values in product(*levers.values())]
        self.tried = [] if tried is None else tried  # each setting once

    @pointing
    def price(self, **setting: Any) -> float:
        """Return what a setting costs. Raises ValueError where that is no number, as when nothing comes back."""
        cost = self._asked(**setting)
        try:
            return float(cost)
        except (TypeError, ValueError):
            raise ValueError(f"`price` returned {cost!r}, and a number is wanted: is there a `return`?") from None

    def gb(self, **setting: Any) -> float:
        """Return what lies on each GPU in all."""
        return float(sum(self.held(**setting).values()))

    def ways(self, room: float) -> list[dict[str, Any]]:
        """Return the cheapest settings that fit into so many GB; none where nothing fits."""
        fit = [setting for setting in self.settings if self.gb(**setting) <= room]
        least = min((self.price(**setting) for setting in fit), default=0)
        return [setting for setting in fit if self.price(**setting) == least]

    def dear(self) -> int:
        """Return where the prices end in the picture: beyond the least of each GPU. It is a multiple of six."""
        least = [self.price(**ways[0]) for room in self.rooms if (ways := self.ways(room))]
        return max(DEAR, 6 * ceil(max((1.5 * it for it in least if isfinite(it)), default=0) / 6))

    def draw(self, **setting: Any) -> tuple[str, Figure]:
        """Note a try. Return how it stands with each GPU, the cheapest that has fitted, and all tries as dots."""
        gb = self.gb(**setting)
        self.tried[:] = [*(it for it in self.tried if it != setting), setting]
        lines = [f"price {self.price(**setting):g}, {gb:.1f} GB on each GPU"]
        for room in self.rooms:
            fits = f"✓ {room - gb:.1f} to spare" if gb <= room else f"✗ {gb - room:.1f} too much"
            lines.append(f"{f'{room:g} GB':5}  {fits:17}  {self._best(room)}")
        dots = [(self.price(**it), self.gb(**it)) for it in self.tried]
        return "\n".join(lines), _tries(self.held(**setting), dots, self.rooms, self.dear())

    def _best(self, room: float) -> str:
        prices = [self.price(**it) for it in self.tried if self.gb(**it) <= room]
        if not prices:
            nearest, floor = (min(self.gb(**it) for it in them) for them in (self.tried, self.settings))
            if floor > room and nearest < floor + NEAR:
                return f"it goes onto none: no setting needs less than {floor:.1f} GB. Why?"
            return f"your nearest: {nearest - room:.1f} too much"
        ways = self.ways(room)
        if min(prices) > self.price(**ways[0]):
            return f"you have fitted it for {min(prices):g}; there is a cheaper way"
        found = sum(way in self.tried for way in ways)
        return f"you have fitted it for {min(prices):g}, the least there is; {found} of its {len(ways)} ways found"


def _tries(
    held: Mapping[str, float], tried: Sequence[tuple[float, float]], rooms: Sequence[float], dear: int
) -> Figure:
    """What fills a GPU in this try, a bar; and each try by price and GB, the newest large. Dashed lines: the GPUs."""
    with drawing(9, 3) as figure:
        bar, dots = figure.subplots(1, 2, sharey=True, width_ratios=(1, 4))
        bottom = 0.0
        for (name, gb), hatch in zip(held.items(), HATCHES, strict=False):
            look = {"hatch": hatch, "edgecolor": ON_COLOUR, "linewidth": 0.6}
            bar.bar(["this try"], float(gb), 0.6, bottom, label=name, **look)
            bottom += float(gb)
        places = [(min(price, dear), gb) for price, gb in tried]
        if earlier := places[:-1]:
            dots.plot(*zip(*earlier, strict=True), "o", color=COLOURS[0], markersize=6, alpha=0.6)
        dots.plot(*places[-1], "o", color=COLOURS[0], markersize=12, markeredgecolor=INK, clip_on=False)
        for axis in (bar, dots):
            for room in rooms:
                axis.axhline(room, color=INK, linestyle="--", linewidth=1)
        for room in rooms:
            dots.text(1.04 * dear + 0.2, room, f"{room:g} GB", va="center")
        bar.set(ylabel="GB on each GPU", ylim=(0, 180), xlim=(-0.6, 0.6))
        dots.set(xlabel="price", xlim=(-dear / 24, dear + dear / 24))
        dots.set_xticks(range(0, dear + 1, dear // 6), [*map(str, range(0, dear, dear // 6)), f"{dear}, or more"])
        handles, names = bar.get_legend_handles_labels()
        dots.legend(handles[::-1], names[::-1], fontsize=9, loc="upper right")
    return figure
