"""Four switches: batch, rate, ranks and seed of one small model, which a learner turns, trains and compares."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ddplab.course.controls import widget
from ddplab.course.data import digits
from ddplab.course.trials import CHANCE, HEADS, TOP, Trial, named, span, train_digits
from ddplab.launcher import launch
from ddplab.plots import COLOURS, INK, SVG_DASHES, drawing
from ddplab.pointer import pointing
from ddplab.screen import live, png
from ddplab.tables import text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCHES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
RANKS = (1, 2, 4)
SEEDS = {"0": (0,), "1": (1,), "2": (2,), "0 and 1": (0, 1), "all three": (0, 1, 2)}
SWITCHES = {"batch on each rank": BATCHES, "rate": RATES, "ranks": RANKS, "seed": tuple(SEEDS)}
COMPARED = 4  # settings that are shown; the oldest makes room
WATCH = 0.1  # seconds between redraws
START = (8, 1.0, 1)  # batch, rate and ranks of the quest: what is to fail
NOTHING = "Nothing trained yet: press Train."
TRIED = ("", "batch", "ranks", "images an update", "rate", "rate ÷ images", "test accuracy", "seeds that learn")
LEARNED, FAILED = 0.8, 0.5  # test accuracy above which a run has learned, and below which it has failed
CURES = ("a smaller rate", "a larger batch", "more ranks with 8 each")


class SideBySide:
    """Runs of one small model on the digits, a chart for each setting. In a live notebook you choose the next."""

    def __init__(self, settings: Sequence[tuple], epochs: int):
        self.settings, self.epochs = settings, epochs
        self.trials: list[Trial] = []
        self.accuracies: dict[tuple, dict[int, float]] = {}  # batch, rate, ranks → seed → test accuracy
        self._redraw: Callable[[bool], None] = lambda busy: None  # until there is a page to draw on

    def train(self, batch: int, rate: float, ranks: int = 1, seeds: Sequence[int] = (0,)) -> None:
        """Try one setting in processes of its own, and redraw the page, if there is one, while it goes on."""
        run = launch(train_digits, batch, rate, self.epochs, ranks, seeds, nproc_per_node=ranks * len(seeds),
                     device="cpu", wait=False, quiet=True)  # fmt: skip
        trial = Trial(batch, rate, ranks, seeds, run)
        self.trials = [*self.trials, trial][-COMPARED:]
        try:
            while run.state == "running":
                time.sleep(WATCH)
                self._redraw(True)
        finally:
            run.stop()  # for whoever presses ■; of a run that has ended nothing is left to stop
        run.wait()
        before = self.accuracies.pop((batch, rate, ranks), {})
        self.accuracies[batch, rate, ranks] = before | trial.accuracy()  # the newest is the last
        self._redraw(False)

    def found(self) -> list[tuple[bool, str]]:
        """The quest: whether each thing to find is found, and its words. A cure not found yet has no name."""
        broken = self._on_all_seeds(lambda accuracy: accuracy < FAILED)
        well = self._on_all_seeds(lambda accuracy: accuracy > LEARNED)
        names = [name for name in CURES if name in map(_cure, well)]
        rest = [(False, "a cure: turn one switch")] * (len(CURES) - len(names))
        fails = (START in broken, "make it fail: batch 8, rate 1, 1 rank")
        return [fails, *((True, f"a cure: {name}") for name in names), *rest]

    def end(self) -> str:
        """What three of three cures tell, and how to go on; before that, nothing."""
        if not all(is_found for is_found, _ in self.found()):
            return ""
        told = (
            "Three of three! In each cure, rate ÷ images is smaller than where it failed: the list is sorted by it now."
        )
        record = self._record()
        mine = f"{_for_an_image(record):.3g} ({named(*record)})"
        return f"{told} Your record with all three seeds is {mine}. Does a higher one learn?"

    def _record(self) -> tuple:
        """The most of the rate for an image with which all seeds learn."""
        return max(self._on_all_seeds(lambda accuracy: accuracy > LEARNED), key=_for_an_image)

    def tried(self) -> list[list[str]]:
        """A row of `TRIED` for each setting: the newest first, or when all is found, by the rate for an image."""
        settings = list(reversed(self.accuracies))
        newest = settings[0] if settings else None
        if self.end():
            settings.sort(key=_for_an_image, reverse=True)
        return [["→" if it == newest else "", *self._facts(*it)] for it in settings]

    def _facts(self, batch: int, rate: float, ranks: int) -> list[str]:
        seeds = self.accuracies[batch, rate, ranks]
        learn = self.learn(batch, rate, ranks)
        cure = ", a cure" * (learn.startswith("✓") and _cure((batch, rate, ranks)) != "")
        numbers = [f"{it:.3g}" for it in (rate, _for_an_image((batch, rate, ranks)))]
        accuracies = span(list(seeds.values()))
        return [f"{batch}", f"{ranks}", f"{_images(batch, ranks)}", *numbers, accuracies, learn + cure]

    def learn(self, batch: int, rate: float, ranks: int) -> str:
        """How many of three seeds learn with a setting, with ✓ for all and ✗ for none."""
        seeds = self.accuracies.get((batch, rate, ranks), {})
        if len(seeds) < len(SEEDS["all three"]):
            return f"… {len(seeds)} of 3 trained"
        well = sum(accuracy > LEARNED for accuracy in seeds.values())
        return f"{'✓' if well == 3 else '✗' if well == 0 else '◐'} {well} of 3"

    def said(self) -> str:
        """What the newest trial tells: whether all seeds are there, which switches are turned, and what came of it."""
        if not self.trials:
            return "The charts are gone; the list and what is ticked stay." if self.accuracies else NOTHING
        it = self.trials[-1]
        seeds = self.accuracies.get((it.batch, it.rate, it.ranks), {})
        if len(seeds) < 3:
            return f"Trained, {len(seeds)} of 3 seeds: a tick needs all three."
        well = sum(accuracy > LEARNED for accuracy in seeds.values())
        learn = f"Trained: {well} of 3 seeds learn (test accuracy above {LEARNED:g})."
        if self.end():
            setting = it.batch, it.rate, it.ranks
            cure = " A cure." * (well == 3 and _cure(setting) != "")
            return learn + cure + " It holds your record." * (setting == self._record())
        turned = [f"the {name}" for name, now, first in zip(("batch", "rate", "ranks"), (it.batch, it.rate, it.ranks),
                                                            START, strict=True) if now != first]  # fmt: skip
        if len(turned) > 1:
            both = f"{', '.join(turned[:-1])} and {turned[-1]}"
            return f"{learn} You have turned {both}: which of them matters? Turn one alone."
        if not turned:
            failed = all(accuracy < FAILED for accuracy in seeds.values())
            return f"{learn} {'It fails: now turn one switch.' if failed else ''}".strip()
        return f"{learn} You have turned {turned[0]}: {'a cure' if well == 3 else 'not yet a cure'}."

    def _on_all_seeds(self, holds: Callable[[float], bool]) -> set[tuple]:
        return {it for it, seeds in self.accuracies.items() if {0, 1, 2} <= {s for s, a in seeds.items() if holds(a)}}

    def __str__(self) -> str:
        if not self.trials:
            return "Nothing trained yet."
        return text_table(HEADS, [trial.facts() for trial in self.trials])

    __repr__ = __str__

    def _ipython_display_(self) -> None:
        from IPython.display import display

        page, handle = (self._widget(), None) if live() else (None, None)
        if page is not None:
            handle = display({**page._repr_mimebundle_()[0], "text/plain": str(self)}, raw=True, display_id=True)
        for setting in () if self.trials or page else self.settings:  # on a page the first to train is who looks at it
            self.train(*setting, seeds=SEEDS["all three"])
        # Where the widget is gone (a saved file, a forge) the picture and the text stand in for it.
        bundle = {"image/png": png(self.figure()), "text/plain": str(self)} if self.trials else {}
        if handle is not None and bundle:
            handle.update({**page._repr_mimebundle_()[0], **bundle}, raw=True)
        elif bundle:
            display(bundle, raw=True)

    def figure(self) -> Figure:
        """Draw the loss against the epoch: a row for each setting, a chart for each seed."""
        seeds = sorted({seed for trial in self.trials for seed in trial.seeds})
        with drawing(2.8 * len(seeds), 1.9 * len(self.trials)) as figure:
            rows = figure.subplots(len(self.trials), len(seeds), sharex=True, sharey=True, squeeze=False)
            for row, trial in zip(rows, self.trials, strict=True):
                for seed, points in trial.curves().items():
                    axis = row[seeds.index(seed)]
                    axis.plot(*zip(*points, strict=True), color=COLOURS[seed], marker=".")
                    axis.axhline(CHANCE, color=INK, linestyle=":", linewidth=1)
                    axis.set(ylim=(0, TOP), xticks=range(0, self.epochs + 1, 5))
                    learns = "✓" if trial.accuracy()[seed] > LEARNED else "✗"
                    axis.set_title(f"{learns} {trial.name}, seed {seed}", fontsize=9)
                row[0].set_ylabel("training loss")
            for axis in rows[-1]:
                axis.set_xlabel("epoch")
        return figure

    # -------------------------------------------------------------- live

    def _widget(self) -> Any:
        """Four switches (Tab reaches them, the arrow keys turn them), two buttons, and the charts: switches.js."""
        first = (*(self.settings or [(32, 0.1)])[0], 1)[:3]
        page = widget(
            "switches",
            options=SWITCHES,
            chosen=[_nearest(first[0], BATCHES), _nearest(first[1], RATES), first[2], "all three"],
            looks=list(zip(COLOURS, SVG_DASHES * 2, strict=True)),
            compared=COMPARED,
            axes=[self.epochs, TOP, CHANCE],
            heads=TRIED,
            drawn={},
            asked=[],
        )
        at_work = threading.Lock()

        def redraw(busy: bool, error: str = "") -> None:
            status = "Training …" if busy else self.said()
            shown = [
                {"name": it.name, "curves": list(it.curves().items()), "learn": self.learn(it.batch, it.rate, it.ranks)}
                for it in self.trials
            ]
            quest = {"found": self.found(), "end": self.end(), "tried": self.tried()}
            page.drawn = {"status": error or status, "trials": shown, **quest}

        def work(batch: int, rate: float, ranks: int, seeds: str) -> None:
            with at_work:
                try:
                    self.train(batch, rate, ranks, SEEDS[seeds])
                except Exception as error:  # a thread has no cell to raise in
                    redraw(False, f"{type(error).__name__}: {error}")

        def press(change: Any) -> None:
            if at_work.locked():  # a button that is switched off meanwhile would lose the focus; it does nothing
                return
            _, what, *setting = change["new"]
            if what == "clear":
                self.trials = []
                redraw(False)
            else:  # the page stays alive, and so does the kernel
                threading.Thread(target=work, args=setting, daemon=True).start()

        page.observe(press, "asked")
        self._redraw = redraw
        redraw(False)
        return page


@pointing
def four_switches(*settings: tuple, epochs: int = 10) -> SideBySide:
    """Show four switches and a quest: make batch 8 at rate 1 fail with three seeds, then find three cures.

    settings: each a batch size, a learning rate and, if not 1, a number of ranks that share in each update with a
        batch of that size each; at most 4. They are trained where nobody can press a button, with three seeds.

    In a live notebook you choose batch, rate, ranks and seed yourself and watch each run beside the others;
    elsewhere the result is a picture and a table. Raises ValueError for what cannot be trained.
    """
    if len(settings) > COMPARED or epochs < 1:
        raise ValueError(f"at most {COMPARED} settings, and at least one epoch")
    if any(batch < 1 or rate <= 0 or ranks not in ([], [1], [2], [4]) for batch, rate, *ranks in settings):
        raise ValueError(f"a batch is at least 1, a rate above 0, and ranks are 1, 2 or 4, in each of {settings}")
    return SideBySide(settings, epochs)


def _cure(setting: tuple) -> str:
    """Return which cure it is where all seeds learn: one switch is turned, in the direction that helps."""
    batch, rate, ranks = setting
    turned = (rate < START[1], batch > START[0], ranks > START[2])
    others = sum(now != first for now, first in zip(setting, START, strict=True)) != 1
    return "" if others or True not in turned else CURES[turned.index(True)]


def _images(batch: int, ranks: int) -> int:
    return min(batch * ranks, len(digits()))


def _for_an_image(setting: tuple) -> float:
    batch, rate, ranks = setting
    return rate / _images(batch, ranks)


def _nearest(value: float, options: Sequence[float]) -> float:
    return min(options, key=lambda option: abs(option - value))
