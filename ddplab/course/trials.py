"""Runs of one small model side by side: batch sizes, learning rates and seeds that a learner chooses and watches."""

from __future__ import annotations

import html
import os
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from ddplab.course.controls import choices
from ddplab.course.data import digits
from ddplab.course.models import MLP
from ddplab.launcher import launch
from ddplab.plots import DASHES, MARKERS, charts, tiles
from ddplab.screen import live
from ddplab.tables import html_table, text_table
from ddplab.worker import log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ddplab.run import Run

BATCHES = (8, 16, 32, 64, 128, 256, 512, 1024)
RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
COMPARED = 4  # settings that are shown; the oldest makes room
TOP = 3.0  # of the loss axis, the same in every chart: who knows nothing has 2.3
WATCH = 0.1  # seconds between redraws


def train_digits(batch: int, rate: float, epochs: int) -> None:
    """Train `MLP` on the digits with plain SGD. A rank is a run of its own, and its number is the seed.

    Logs, before the first epoch and after each: `loss`, over all training images, and `accuracy`, on the test split.
    """
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ["RANK"]))
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    (x, y), (test_x, test_y) = digits().tensors, digits(train=False).tensors
    for epoch in range(epochs + 1):
        if epoch:
            for part in torch.randperm(len(x)).split(batch):
                optimizer.zero_grad()
                F.cross_entropy(model(x[part]), y[part]).backward()
                optimizer.step()
        with torch.no_grad():
            loss, right = F.cross_entropy(model(x), y), model(test_x).argmax(dim=1) == test_y
        log(step=epoch, loss=loss, accuracy=right.double().mean())


@dataclass(frozen=True)
class Trial:
    """One batch size and one learning rate, and the launch that tries them with a few seeds."""

    batch: int
    rate: float
    run: Run

    @property
    def name(self) -> str:
        return f"batch {self.batch}, rate {self.rate:g}"

    def curves(self) -> dict[int, list[tuple[int, float]]]:
        """Seed → (epoch, loss) for each epoch so far. A loss beyond the chart is drawn at its top edge."""
        found: dict[int, list] = {seed: [] for seed in range(self.run.world_size)}
        for row in self.run.metrics:
            found[row["rank"]].append((row["step"], min(row["loss"], TOP) if isfinite(row["loss"]) else TOP))
        return found

    def facts(self) -> list[str]:
        """Batch, rate, updates, loss and test accuracy after the latest epoch, as the seeds' lowest and highest."""
        newest = {row["rank"]: row for row in self.run.metrics}.values()
        epoch = min((row["step"] for row in newest), default=0)
        updates = epoch * ceil(len(digits()) / self.batch)
        spans = [_span([row[name] for row in newest]) for name in ("loss", "accuracy")]
        return [f"{self.batch}", f"{self.rate:g}", f"{epoch}", f"{updates}", *spans]


class SideBySide:
    """Runs of one small model on the digits, a chart for each setting. In a live notebook you choose the next."""

    heads = ("batch", "rate", "epochs", "updates", "training loss", "test accuracy")

    def __init__(self, settings: Sequence[tuple[int, float]], seeds: int, epochs: int):
        self.settings, self.seeds, self.epochs = settings, seeds, epochs
        self.trials: list[Trial] = []
        self._redraw: Callable[[], None] = lambda: None  # until there is a page to draw on

    def train(self, batch: int, rate: float, seeds: int, redraw: Callable[[], None] = lambda: None) -> None:
        """Try one setting in processes of its own, and call `redraw` while it goes on."""
        run = launch(train_digits, batch, rate, self.epochs, nproc_per_node=seeds, device="cpu", init=False,
                     wait=False, quiet=True)  # fmt: skip
        self.trials = [*self.trials, Trial(batch, rate, run)][-COMPARED:]
        try:
            while run.state == "running":
                time.sleep(WATCH)
                redraw()
        finally:
            run.stop()  # for whoever presses ■; of a run that has ended nothing is left to stop
        redraw()
        run.wait()

    def __str__(self) -> str:
        return text_table(self.heads, [trial.facts() for trial in self.trials])

    __repr__ = __str__

    def _ipython_display_(self) -> None:
        from IPython.display import display

        page, handle = (self._widget(), None) if live() else (None, None)
        if page is not None:
            handle = display({**page._repr_mimebundle_(), "text/plain": str(self)}, raw=True, display_id=True)
        for batch, rate in self.settings if not self.trials else ():
            self.train(batch, rate, self.seeds, self._redraw)
        # Where the widget is gone (a saved file, a forge) the picture and the text stand in for it.
        bundle = {"image/png": _png(self.figure()), "text/plain": str(self)} if self.trials else {}
        if handle is not None:
            handle.update({**page._repr_mimebundle_(), **bundle}, raw=True)
        elif bundle:
            display(bundle, raw=True)

    def figure(self) -> Figure:
        """Draw the loss against the epoch: a chart for each setting, a line for each seed."""
        with tiles(len(self.trials), 3.2, 2.6) as axes:
            for axis, trial in zip(axes, self.trials, strict=True):
                for seed, points in trial.curves().items():
                    look = {"linestyle": DASHES[seed % 4], "marker": MARKERS[seed % 8], "markersize": 3}
                    axis.plot(*zip(*points, strict=True), **look, label=f"seed {seed}")
                axis.set(xlabel="epoch", ylabel="training loss", ylim=(0, TOP), title=trial.name)
            axes[0].legend()
        return axes[0].figure

    # -------------------------------------------------------------- live

    def _widget(self) -> Any:
        """Three lists to choose from (Tab reaches them, the arrow keys choose), two buttons, and the charts."""
        import ipywidgets

        first = self.settings[0] if self.settings else (32, 0.1)
        chosen = {"batch": _nearest(first[0], BATCHES), "rate": _nearest(first[1], RATES), "seeds": self.seeds}
        lists = choices({"batch": BATCHES, "rate": RATES, "seeds": (1, 2, 3)}, chosen, chosen.update)
        go, clear = ipywidgets.Button(description="Train"), ipywidgets.Button(description="Clear")
        go.tooltip, clear.tooltip = "Train with these, beside what is there", "Take every chart away"
        page = ipywidgets.HTML()

        at_work = threading.Lock()  # a button that is switched off meanwhile would lose the focus; it does nothing

        def redraw() -> None:
            page.value = self._page(at_work.locked())

        def work(*setting: Any) -> None:
            try:
                self.train(*setting, redraw)
            except Exception as error:  # a thread has no cell to raise in
                page.value = f"<pre>{html.escape(f'{type(error).__name__}: {error}')}</pre>"
                at_work.release()
            else:
                at_work.release()
                redraw()

        def train(_button: Any) -> None:
            if at_work.acquire(blocking=False):
                # The page stays alive, and so does the kernel.
                threading.Thread(target=work, args=tuple(chosen.values()), daemon=True).start()

        def take_away(_button: Any) -> None:
            if not at_work.locked():
                self.trials = []
                redraw()

        go.on_click(train)
        clear.on_click(take_away)
        self._redraw = redraw
        redraw()
        return ipywidgets.VBox([lists, ipywidgets.HBox([go, clear]), page])

    def _page(self, busy: bool) -> str:
        if not self.trials:
            return '<div role="status">Nothing trained yet: choose, and press Train.</div>'
        drawn = [(trial.name, trial.curves()) for trial in self.trials]
        what = "training loss against the epoch: " + "; ".join(name for name, _ in drawn)
        return (
            f'<div role="status">{"Training …" if busy else "Trained."}</div>'
            + charts(drawn, what, 100, "epoch", (0, self.epochs, 0, TOP))
            + "<div>Training loss against the epoch, one chart for each setting, one line for each seed. "
            + f"What is above {TOP:g} is drawn at the top.</div>"
            + html_table(self.heads, [trial.facts() for trial in self.trials])
        )


def side_by_side(*settings: tuple[int, float], seeds: int = 2, epochs: int = 10) -> SideBySide:
    """Train one small model on the digits with several settings, and show the losses side by side.

    settings: pairs of a batch size and a learning rate, at most 4, to begin with. seeds: runs of each, 1 to 3.

    In a live notebook you then choose batch, rate and seeds yourself and watch each run beside the others; elsewhere
    the result is a picture and a table. Raises ValueError for what cannot be trained.
    """
    if len(settings) > COMPARED or seeds not in (1, 2, 3) or epochs < 1:
        raise ValueError(f"at most {COMPARED} settings, 1 to 3 seeds and at least one epoch")
    if any(batch < 1 or rate <= 0 for batch, rate in settings):
        raise ValueError(f"a batch is at least 1 and a rate above 0, in each of {settings}")
    return SideBySide(settings, seeds, epochs)


def _span(values: list[float]) -> str:
    """The lowest and the highest, or the one value there is."""
    low, high = (f"{value:.3f}" for value in (min(values), max(values))) if values else ("", "")
    return low if low == high else f"{low} to {high}"


def _nearest(value: float, options: Sequence[float]) -> float:
    return min(options, key=lambda option: abs(option - value))


def _png(figure: Figure) -> str:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=90)
    return b64encode(buffer.getvalue()).decode()
