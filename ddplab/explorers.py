"""The widgets that learners play with. Each is one function, and plain text where nobody can press a button."""

from __future__ import annotations

import html
import os
import threading
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from ddplab.claims import marked
from ddplab.data import digits
from ddplab.launch import launch
from ddplab.models import MLP
from ddplab.worker import log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ddplab.run import Run

MARKS = {True: "✓ yes", False: "✗ no", None: "? open"}


@dataclass(frozen=True)
class Finding:
    """One question of a checklist, its answer (None: nothing here to judge), what was found, and what to do."""

    question: str
    ok: bool | None
    found: str
    do: str = ""

    def __str__(self) -> str:
        text = f"{MARKS[self.ok]:<7} {self.question} {self.found}"
        return f"{text}\n        → {self.do}" if self.do else text


class Checklist:
    """The findings about somebody's own objects. A live notebook walks through them, everything else prints them."""

    def __init__(self, title: str, judge: Callable[[], list[Finding]]):
        self.title = title
        self._judge = judge
        self.look()

    def look(self) -> None:
        """Judge the same objects again, as they are now."""
        self.findings = self._judge()

    @property
    def faults(self) -> list[Finding]:
        """The findings whose answer is no."""
        return [finding for finding in self.findings if finding.ok is False]

    def __str__(self) -> str:
        return "\n".join([f"{self.title}: {self._score()}", *map(str, self.findings)])

    __repr__ = __str__

    def _score(self) -> str:
        return f"{sum(finding.ok is True for finding in self.findings)} of {len(self.findings)} in order"

    def _ipython_display_(self) -> None:
        from ddplab.panel import show

        show(self, self._widget)

    def _widget(self) -> Any:
        """One finding at a time, three buttons (Tab reaches them, Space presses them)."""
        import ipywidgets

        page, at = ipywidgets.HTML(), 0
        back, onward, again = (ipywidgets.Button(description=name) for name in ("Back", "Next", "Look again"))
        again.tooltip = "Judge the same model and loader again, as they are now"

        def go(step: int) -> None:
            nonlocal at
            at = min(max(at + step, 0), len(self.findings) - 1)
            back.disabled, onward.disabled = at == 0, at == len(self.findings) - 1
            page.value = self._page(at)

        def look_again(_button: Any) -> None:
            self.look()
            go(0)

        back.on_click(lambda _: go(-1))
        onward.on_click(lambda _: go(1))
        again.on_click(look_again)
        go(0)
        return ipywidgets.VBox([page, ipywidgets.HBox([back, onward, again])])

    def _page(self, at: int) -> str:
        finding = self.findings[at]
        do = f"<div>→ {marked(finding.do)}</div>" if finding.do else ""
        return (
            f'<div role="status" style="max-width:46em;line-height:1.5">'
            f"<div>{html.escape(self.title)}, {at + 1} of {len(self.findings)} ({self._score()})</div>"
            f"<strong>{marked(finding.question)}</strong>"
            f"<div><strong>{MARKS[finding.ok]}</strong>: {marked(finding.found)}</div>{do}</div>"
        )


def dataparallel_checklist(model: nn.Module, loader: Any = None) -> Checklist:
    """Five reasons why `nn.DataParallel` leaves GPUs idle, looked for in your own model and DataLoader.

    Nothing is run or changed. In a notebook the result is a small widget: Back, Next, and Look again once you have
    mended something. `.findings` holds one `Finding` a question, `.faults` those that need you. Raises TypeError when
    the first argument is not a model.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the first argument is the model, an nn.Module, not a {type(model).__name__}")
    return Checklist(
        "DataParallel checklist",
        lambda: [_visible(), _wrapped(model), _moved(model), _shared_out(model, loader), _all_the_data(model, loader)],
    )


def _visible() -> Finding:
    question = "Does torch see several GPUs?"
    gpus = getattr(torch, "vgpu", torch.cuda)  # torch.vgpu is there while virtual GPUs are on
    n, hidden = gpus.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    found = f"{n} virtual" if gpus is not torch.cuda else f"{n}"
    found += f"; CUDA_VISIBLE_DEVICES is {'not set' if hidden is None else repr(hidden)}"
    if n > 1:
        return Finding(question, True, found)
    do = "Compare with `nvidia-smi -L`. It lists more? Then CUDA_VISIBLE_DEVICES hides them"
    return Finding(question, False, found, do + (", or torch is a build for the CPU." if n == 0 else "."))


def _wrapped(model: nn.Module) -> Finding:
    question = "Is the model wrapped?"
    if isinstance(model, DistributedDataParallel):
        do = "That is another way, with a process for each GPU and a launcher such as torchrun: see lesson 09."
        return Finding(question, False, "it is in DistributedDataParallel", do)
    if (wrapper := _wrapper(model)) is None:
        do = "`model = nn.DataParallel(model)`, and then call this one, not the one inside."
        return Finding(question, False, f"this is a bare {type(model).__name__}", do)
    name = next(name for name, module in model.named_modules() if module is wrapper)
    found = (f"its part `{name}` is, " if name else "") + f"device_ids is {wrapper.device_ids}"
    if len(wrapper.device_ids) > 1:
        return Finding(question, True, found)
    if wrapper.device_ids:
        return Finding(question, False, found + ", a single device", "Leave `device_ids` out, or name them all.")
    do = "Torch saw no GPU when it was wrapped. Make the GPUs visible, then wrap it anew."
    return Finding(question, False, found + ", so every batch passes through", do)


def _moved(model: nn.Module) -> Finding:
    question = "Are its weights on device_ids[0]?"
    wrapper = _wrapper(model)
    if wrapper is None or not wrapper.device_ids:
        return Finding(question, None, "there are no device_ids")
    home = wrapper.src_device_obj
    tensors = [*wrapper.module.named_parameters(), *wrapper.module.named_buffers()]
    astray = [f"`{name}` is on {tensor.device}" for name, tensor in tensors if tensor.device != home]
    if not astray:
        return Finding(question, True, f"all {len(tensors)} tensors are on {home}")
    more = f", and {len(astray) - 1} more" if len(astray) > 1 else ""
    return Finding(question, False, astray[0] + more, f"`model.to('{home}')`, before the first batch.")


def _shared_out(model: nn.Module, loader: Any) -> Finding:
    question = "Does every batch reach every device?"
    devices = len(wrapper.device_ids) if (wrapper := _wrapper(model)) else 0
    if devices < 2:
        return Finding(question, None, "there is no second device")
    if not isinstance(loader, DataLoader):
        return Finding(question, None, _no_loader(loader))
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if size is None:
        return Finding(question, None, "the loader does not say how large a batch is")
    do = f"Batches of a multiple of {devices} share out evenly: set `batch_size`."
    if _reached(size, devices) < devices:
        return Finding(question, False, f"a batch of {size} reaches {_reached(size, devices)} of {devices} devices", do)
    served = len(sampler) if hasattr(sampler := _sampler(loader), "__len__") else 0
    last = 0 if getattr(loader.batch_sampler, "drop_last", False) else served % size
    if last and _reached(last, devices) < devices:
        found = f"batches of {size} do, the last one, of {last}, reaches {_reached(last, devices)} of {devices} devices"
        return Finding(question, False, found, "Harmless to most models. `drop_last=True` leaves it out.")
    return Finding(question, True, f"batches of {size}, {devices} devices")


def _all_the_data(model: nn.Module, loader: Any) -> Finding:
    question = "Does the loader serve all the data?"
    if isinstance(model, DistributedDataParallel):
        return Finding(question, None, "with DistributedDataParallel each rank serves its own part")
    if not isinstance(loader, DataLoader):
        return Finding(question, None, _no_loader(loader))
    sampler = _sampler(loader)
    if not isinstance(sampler, DistributedSampler):
        return Finding(question, True, "it has no DistributedSampler")
    found = f"its DistributedSampler serves {len(sampler)} of {len(sampler.dataset)} samples"
    if len(sampler) >= len(sampler.dataset):
        return Finding(question, True, found)
    do = "Leave the sampler out and write `shuffle=True`: DataParallel is one process, and cuts each batch by itself."
    return Finding(question, False, found, do)


def _wrapper(model: nn.Module) -> nn.DataParallel | None:
    return next((module for module in model.modules() if isinstance(module, nn.DataParallel)), None)


def _sampler(loader: DataLoader) -> Any:
    return getattr(loader.batch_sampler, "sampler", loader.sampler)  # a batch_sampler of one's own hides it in there


def _reached(batch: int, devices: int) -> int:
    """How many devices get a part: torch cuts parts of equal size, rounded up, until nothing is left."""
    return ceil(batch / ceil(batch / devices))


def _no_loader(loader: Any) -> str:
    return "no loader was given" if loader is None else f"the loader is a {type(loader).__name__}, not a DataLoader"


# ------------------------------------------------------------------ lesson 02: runs side by side

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
            while not run.ended.wait(WATCH):
                redraw()
        finally:
            run.stop()  # for whoever presses ■; of a run that has ended nothing is left to stop
        redraw()
        run.wait()

    def __str__(self) -> str:
        rows = [self.heads, *(trial.facts() for trial in self.trials)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(lines)

    __repr__ = __str__

    def _ipython_display_(self) -> None:
        from IPython.display import display

        from ddplab.panel import live

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
        import matplotlib.pyplot as plt

        from ddplab.plots import DASHES, MARKERS, STYLE

        with plt.style.context(STYLE):
            size = {"figsize": (3.2 * len(self.trials), 2.8), "layout": "constrained"}
            figure, axes = plt.subplots(1, len(self.trials), sharey=True, squeeze=False, **size)
            for axis, trial in zip(axes[0], self.trials, strict=True):
                for seed, points in trial.curves().items():
                    look = {"linestyle": DASHES[seed % 4], "marker": MARKERS[seed % 8], "markersize": 3}
                    axis.plot(*zip(*points, strict=True), **look, label=f"seed {seed}")
                axis.set(xlabel="epoch", ylim=(0, TOP), title=trial.name)
            axes[0, 0].set_ylabel("training loss")
            axes[0, 0].legend()
        plt.close(figure)  # shown by whoever asked, once
        return figure

    # -------------------------------------------------------------- live

    def _widget(self) -> Any:
        """Three sliders (Tab reaches them, the left and right arrow move them), two buttons, and the charts."""
        import ipywidgets

        wide, first = {"continuous_update": False}, self.settings[0] if self.settings else (32, 0.1)
        batch = ipywidgets.SelectionSlider(
            options=BATCHES, value=_nearest(first[0], BATCHES), description="batch", **wide
        )
        rate = ipywidgets.SelectionSlider(options=RATES, value=_nearest(first[1], RATES), description="rate", **wide)
        seeds = ipywidgets.IntSlider(self.seeds, 1, 3, description="seeds", **wide)
        go, clear = ipywidgets.Button(description="Train"), ipywidgets.Button(description="Clear")
        go.tooltip, clear.tooltip = "Train with these, beside what is there", "Take every chart away"
        page = ipywidgets.HTML()

        def redraw() -> None:
            go.disabled = clear.disabled = busy = any(not trial.run.ended.is_set() for trial in self.trials)
            page.value = self._page(busy)

        def work(*chosen: Any) -> None:
            try:
                self.train(*chosen, redraw)
            except Exception as error:  # a thread has no cell to raise in
                go.disabled = clear.disabled = False
                page.value = f"<pre>{html.escape(f'{type(error).__name__}: {error}')}</pre>"

        def train(_button: Any) -> None:
            go.disabled = clear.disabled = True
            # The page stays alive, and so does the kernel.
            threading.Thread(target=work, args=(batch.value, rate.value, seeds.value), daemon=True).start()

        def take_away(_button: Any) -> None:
            self.trials = []
            redraw()

        go.on_click(train)
        clear.on_click(take_away)
        self._redraw = redraw
        redraw()
        return ipywidgets.VBox([ipywidgets.HBox([batch, rate, seeds]), ipywidgets.HBox([go, clear]), page])

    def _page(self, busy: bool) -> str:
        from ddplab.panel import STYLE, chart

        if not self.trials:
            return '<div role="status">Nothing trained yet: choose, and press Train.</div>'
        box = (0, self.epochs, 0, TOP)
        charts = [chart(t.name, t.curves(), 100, i * 300, "epoch", box) for i, t in enumerate(self.trials)]
        cells = [[f"<td>{cell}</td>" for cell in trial.facts()] for trial in self.trials]
        rows = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
        head = "".join(f'<th scope="col">{head}</th>' for head in self.heads)
        label = html.escape("training loss against the epoch: " + "; ".join(trial.name for trial in self.trials))
        width = 300 * len(charts)
        return (
            f'<style>{STYLE}</style><div role="status">{"Training …" if busy else "Trained."}</div>'
            f'<svg role="img" aria-label="{label}" viewBox="0 0 {width} 170" '
            f'style="width:{width}px;max-width:100%;font:11px sans-serif">{"".join(charts)}</svg>'
            f"<div>Training loss against the epoch, one chart for each setting, one line for each seed. What is above "
            f"{TOP:g} is drawn at the top.</div>"
            f'<div class="ddplab"><table><tr>{head}</tr>{rows}</table></div>'
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
