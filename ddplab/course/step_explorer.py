"""A step of DDP to play with: which rank is slow, the bucket's size, the ranks, overlap. Drawn by a model.

The model is a chain of eight equal layers, `nn.Linear(512, 512)`, in DDP from its second step on. Its rules are DDP's:
the last layer's gradients come first; a bucket takes gradients until it holds its limit *or more*; it leaves a rank
when all of its gradients are there; it travels when it has left every rank and the bucket before it is back; the
optimizer comes when all are back. Its milliseconds are made up. `step.js` has the same model, so that no kernel has to
work while somebody plays; tests hold the two to each other, and what they say to what a real DDP does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ddplab.course.controls import widget
from ddplab.plots import COLOURS, INK, ON_COLOUR, SHAPES, drawing
from ddplab.pointer import pointing
from ddplab.screen import live, show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIB = 2**20
MODEL = {  # milliseconds, but for the first two
    "layers": 8,
    "bytes": 4 * (512 * 512 + 512),  # of a layer's gradients
    "forward": 1.0,  # of a layer
    "backward": 2.0,
    "optimizer": 2.0,  # of all layers
    "message": 0.25,  # of each of the 2(N - 1) messages of a ring, however short
    "mebibyte": 1.0,  # and what each mebibyte adds that a rank sends, which is 2(N - 1)/N of a bucket
}
BUCKETS = {f"{cap} MiB": (cap * MIB, cap * MIB) for cap in (1, 2, 4, 8)}  # name → limits of the first and of the others
BUCKETS["default"] = MIB, 25 * MIB
RANKS = (2, 3, 4, 8)
SLOWER = (1.5, 2.0, 3.0)
PHASE_COLOURS = {"forward": COLOURS[0], "backward": COLOURS[2], "optimizer": COLOURS[3], "travels": COLOURS[1]}


@dataclass(frozen=True)
class StepModel:
    """A step of the model: what was chosen, and what follows. Times are milliseconds from where the step begins."""

    ranks: int = 4
    slow: int | None = 1  # a rank
    slower: float = 2.0  # so many times as long it computes
    bucket: str = "2 MiB"  # a name in BUCKETS
    overlap: bool = True

    def pace(self, rank: int) -> float:
        """How many times as long as the others a rank computes."""
        return self.slower if rank == self.slow else 1.0

    def buckets(self) -> list[list[int]]:
        """The layers in each bucket, in the order in which their gradients come."""
        packed: list[list[int]] = [[]]
        for layer in reversed(range(MODEL["layers"])):
            limit = BUCKETS[self.bucket][len(packed) > 1]
            if len(packed[-1]) * MODEL["bytes"] >= limit:
                packed.append([])
            packed[-1].append(layer)
        return packed

    def ready(self, rank: int, layer: int) -> float:
        """When a rank has the gradients of a layer."""
        layers = MODEL["layers"]
        return self.pace(rank) * (layers * MODEL["forward"] + (layers - layer) * MODEL["backward"])

    def leaves(self, rank: int, bucket: int) -> float:
        """When a bucket leaves a rank: all its gradients are there; without overlap, all of the network are."""
        return self.ready(rank, self.buckets()[bucket][-1] if self.overlap else 0)

    def travels(self) -> list[tuple[float, float]]:
        """From when to when each bucket travels: the same on all ranks."""
        trips: list[tuple[float, float]] = []
        for number, layers in enumerate(self.buckets()):
            start = max([self.leaves(rank, number) for rank in range(self.ranks)] + [end for _, end in trips[-1:]])
            messages, size = 2 * (self.ranks - 1), len(layers) * MODEL["bytes"] / MIB
            trips.append((start, start + messages * (MODEL["message"] + size / self.ranks * MODEL["mebibyte"])))
        return trips

    def waits_for(self, bucket: int) -> str:
        """What a bucket waits for where it has left a rank and does not travel yet: "rank 1" or "bucket 0"."""
        leaves = [self.leaves(rank, bucket) for rank in range(self.ranks)]
        before = self.travels()[bucket - 1][1] if bucket else 0.0
        return f"bucket {bucket - 1}" if before > max(leaves) else f"rank {leaves.index(max(leaves))}"

    def waiting(self, rank: int) -> float:
        """How long a rank computes nothing, at the end of `backward()`: until the last bucket is back."""
        return self.travels()[-1][1] - self.ready(rank, 0)

    def seconds(self) -> float:
        """The milliseconds of the step, until the last rank's optimizer has ended."""
        return self.travels()[-1][1] + MODEL["optimizer"] * max(map(self.pace, range(self.ranks)))

    def __str__(self) -> str:
        slow = "" if self.slow is None else f", rank {self.slow} {self.slower:g} times as slow"
        lines = [f"{self.ranks} ranks{slow}, buckets: {self.bucket}, {'overlap' if self.overlap else 'no overlap'}"]
        for number, (layers, (start, end)) in enumerate(zip(self.buckets(), self.travels(), strict=True)):
            lines.append(f"bucket {number} ({_named('layer', layers)}): travels from {start:.1f} to {end:.1f} ms")
        alike: dict[float, list[int]] = {}
        for rank in range(self.ranks):
            alike.setdefault(self.ready(rank, 0), []).append(rank)
        for ready, ranks in alike.items():
            waits = self.waiting(ranks[0])
            lines.append(f"{_named('rank', ranks)}: all gradients at {ready:.1f} ms, then {waits:.1f} ms of waiting")
        return "\n".join([*lines, f"the step takes {self.seconds():.1f} ms (a model's, not measured)"])

    __repr__ = __str__

    def draw(self) -> Figure:
        """Draw the step, a lane for each rank: computing above, its buckets below, hatched where something waits.

        Where no rank is slow all of them do the same; so the lanes are those of a rank of 2, of 3, of 4 and of 8.
        """
        lanes = [(f"{SHAPES[rank]} rank {rank}", self, rank) for rank in range(self.ranks)]
        if self.slow is None:
            lanes = [(f"each of {ranks} ranks", replace(self, ranks=ranks), 0) for ranks in RANKS]
        with drawing(9, 0.8 + 0.75 * len(lanes), layout="constrained") as figure:
            axis = figure.subplots()
            for lane, (_, step, rank) in enumerate(lanes):
                step._lane(axis, lane, rank)
            axis.set(xlabel="ms, of a model", yticks=range(len(lanes)), yticklabels=[name for name, _, _ in lanes])
            axis.set_ylim(len(lanes) - 0.4, -0.6)
        return figure

    def _lane(self, axis: Any, lane: int, rank: int) -> None:
        pace, ready, trips = self.pace(rank), self.ready(rank, 0), self.travels()
        ends = [0, pace * MODEL["layers"] * MODEL["forward"], ready, trips[-1][1]]
        ends.append(ends[-1] + pace * MODEL["optimizer"])
        for name, start, end in zip(("forward", "backward", "waits", "optimizer"), ends, ends[1:], strict=False):
            _bar(axis, lane - 0.4, start, end, "opt." if name == "optimizer" else name, PHASE_COLOURS.get(name))
        for number, (start, end) in enumerate(trips):
            begins = max(self.leaves(rank, number), trips[number - 1][1] if number else 0.0)
            _bar(axis, lane, begins, start, "", None)
            _bar(axis, lane, start, end, str(number), PHASE_COLOURS["travels"])

    def _ipython_display_(self) -> None:
        show(self, self._widget)
        if not live():
            from IPython.display import display

            display(self.draw())

    def _widget(self) -> Any:
        chosen = {"ranks": self.ranks, "slow": self.slow, "slower": self.slower, "bucket": self.bucket}
        chosen["overlap"] = self.overlap
        options = {"ranks": RANKS, "slower": SLOWER, "buckets": BUCKETS}
        signs = list(zip(SHAPES, COLOURS, strict=True))
        return widget("step", model=MODEL, options=options, chosen=chosen, looks=PHASE_COLOURS, signs=signs)


def _named(what: str, numbers: list[int]) -> str:
    return f"{what}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def _bar(axis: Any, top: float, start: float, end: float, words: str, colour: str | None) -> None:
    """A bar of a lane, hatched where it has no colour; none where it would have no length."""
    if end > start:
        look = {"facecolor": colour} if colour else {"facecolor": "none", "hatch": "////"}
        axis.broken_barh([(start, end - start)], (top, 0.36), edgecolor=INK, linewidth=0.8, **look)
        if colour:
            middle = (start + end) / 2, top + 0.19
            axis.text(*middle, words, ha="center", va="center", fontsize=8, clip_on=True, color=ON_COLOUR)


@pointing
def explore_step(**chosen: Any) -> StepModel:
    """Play with a step of DDP: choose, and drag the time through it.

    chosen: where to begin: ranks (2, 3, 4 or 8), slow (a rank, or None), slower (1.5, 2.0 or 3.0 times), bucket
        ("1 MiB", "2 MiB", "4 MiB", "8 MiB" or "default") and overlap.

    In a live notebook these are lists to choose from; elsewhere the result is a text and a picture. Raises ValueError
    for what no list has, TypeError for a name that none has.
    """
    found = StepModel(**chosen)
    offered = {"ranks": RANKS, "slow": (None, *range(found.ranks)), "slower": SLOWER, "bucket": tuple(BUCKETS)}
    for name, options in {**offered, "overlap": (True, False)}.items():
        if getattr(found, name) not in options:
            raise ValueError(f"{name} is {getattr(found, name)!r}; it must be one of {', '.join(map(repr, options))}")
    return found
