"""A checklist over a learner's own model and loader: five reasons why `nn.DataParallel` leaves GPUs idle.

A live notebook walks through it, one finding at a time; everything else prints it.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from ddplab.pointer import pointing
from ddplab.screen import show
from ddplab.tables import marked

MARKS = {True: "✓ yes", False: "✗ no", None: "? open"}


@dataclass(frozen=True)
class Answer:
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

    def __init__(self, title: str, judge: Callable[[], list[Answer]]):
        self.title = title
        self._judge = judge
        self.look()

    def look(self) -> None:
        """Judge the same objects again, as they are now."""
        self.findings = self._judge()

    @property
    def faults(self) -> list[Answer]:
        """The findings whose answer is no."""
        return [finding for finding in self.findings if finding.ok is False]

    def __str__(self) -> str:
        return "\n".join([f"{self.title}: {self._score()}", *map(str, self.findings)])

    __repr__ = __str__

    def _score(self) -> str:
        return f"{sum(finding.ok is True for finding in self.findings)} of {len(self.findings)} in order"

    def _ipython_display_(self) -> None:
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


@pointing
def dataparallel_checklist(model: nn.Module, loader: Any = None) -> Checklist:
    """Five reasons why `nn.DataParallel` leaves GPUs idle, looked for in your own model and DataLoader.

    Nothing is run or changed. In a notebook the result is a small widget: Back, Next, and Look again once you have
    mended something. `.findings` holds one `Answer` a question, `.faults` those that need you. Raises TypeError when
    the first argument is not a model.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the first argument is the model, an nn.Module, not a {type(model).__name__}")
    return Checklist(
        "DataParallel checklist",
        lambda: [_visible(), _wrapped(model), _moved(model), _shared_out(model, loader), _all_the_data(model, loader)],
    )


def _visible() -> Answer:
    question = "Does torch see several GPUs?"
    gpus = getattr(torch, "vgpu", torch.cuda)  # torch.vgpu is there while virtual GPUs are on
    n, hidden = gpus.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    found = f"{n} virtual" if gpus is not torch.cuda else f"{n}"
    found += f"; CUDA_VISIBLE_DEVICES is {'not set' if hidden is None else repr(hidden)}"
    if n > 1:
        return Answer(question, True, found)
    do = "Compare with `nvidia-smi -L`. It lists more? Then CUDA_VISIBLE_DEVICES hides them"
    return Answer(question, False, found, do + (", or torch is a build for the CPU." if n == 0 else "."))


def _wrapped(model: nn.Module) -> Answer:
    question = "Is the model wrapped?"
    if isinstance(model, DistributedDataParallel):
        do = "That is another way, with a process for each GPU and a launcher such as torchrun: see lesson 4.1."
        return Answer(question, False, "it is in DistributedDataParallel", do)
    if (wrapper := _wrapper(model)) is None:
        do = "`model = nn.DataParallel(model)`, and then call this one, not the one inside."
        return Answer(question, False, f"this is a bare {type(model).__name__}", do)
    name = next(name for name, module in model.named_modules() if module is wrapper)
    found = (f"its part `{name}` is, " if name else "") + f"device_ids is {wrapper.device_ids}"
    if len(wrapper.device_ids) > 1:
        return Answer(question, True, found)
    if wrapper.device_ids:
        return Answer(question, False, found + ", a single device", "Leave `device_ids` out, or name them all.")
    do = "Torch saw no GPU when it was wrapped. Make the GPUs visible, then wrap it anew."
    return Answer(question, False, found + ", so every batch passes through", do)


def _moved(model: nn.Module) -> Answer:
    question = "Are its weights on device_ids[0]?"
    wrapper = _wrapper(model)
    if wrapper is None or not wrapper.device_ids:
        return Answer(question, None, "there are no device_ids")
    home = wrapper.src_device_obj
    tensors = [*wrapper.module.named_parameters(), *wrapper.module.named_buffers()]
    astray = [f"`{name}` is on {tensor.device}" for name, tensor in tensors if tensor.device != home]
    if not astray:
        return Answer(question, True, f"all {len(tensors)} tensors are on {home}")
    more = f", and {len(astray) - 1} more" if len(astray) > 1 else ""
    return Answer(question, False, astray[0] + more, f"`model.to('{home}')`, before the first batch.")


def _shared_out(model: nn.Module, loader: Any) -> Answer:
    question = "Does every batch reach every device?"
    devices = len(wrapper.device_ids) if (wrapper := _wrapper(model)) else 0
    if devices < 2:
        return Answer(question, None, "there is no second device")
    if not isinstance(loader, DataLoader):
        return Answer(question, None, _no_loader(loader))
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if size is None:
        return Answer(question, None, "the loader does not say how large a batch is")
    do = f"Set `batch_size` to a larger multiple of {devices}, and mind the last batch."
    if _reached(size, devices) < devices:
        return Answer(question, False, f"a batch of {size} reaches {_reached(size, devices)} of {devices} devices", do)
    served = len(sampler) if hasattr(sampler := _sampler(loader), "__len__") else 0
    last = 0 if getattr(loader.batch_sampler, "drop_last", False) else served % size
    if last and _reached(last, devices) < devices:
        found = f"batches of {size} do, the last one, of {last}, reaches {_reached(last, devices)} of {devices} devices"
        return Answer(question, False, found, "Only that step leaves a device idle. `drop_last=True` leaves it out.")
    return Answer(question, True, f"batches of {size}, {devices} devices")


def _all_the_data(model: nn.Module, loader: Any) -> Answer:
    question = "Does the loader serve all the data?"
    if isinstance(model, DistributedDataParallel):
        return Answer(question, None, "with DistributedDataParallel each rank serves its own part")
    if not isinstance(loader, DataLoader):
        return Answer(question, None, _no_loader(loader))
    sampler = _sampler(loader)
    if not isinstance(sampler, DistributedSampler):
        return Answer(question, True, "it has no DistributedSampler")
    found = f"its DistributedSampler serves {len(sampler)} of {len(sampler.dataset)} samples"
    if len(sampler) >= len(sampler.dataset):
        return Answer(question, True, found)
    do = "Leave the sampler out and write `shuffle=True`: DataParallel is one process, and cuts each batch by itself."
    return Answer(question, False, found, do)


def _wrapper(model: nn.Module) -> nn.DataParallel | None:
    return next((module for module in model.modules() if isinstance(module, nn.DataParallel)), None)


def _sampler(loader: DataLoader) -> Any:
    return getattr(loader.batch_sampler, "sampler", loader.sampler)  # a batch_sampler of one's own hides it in there


def _reached(batch: int, devices: int) -> int:
    """How many devices get a part: torch cuts parts of equal size, rounded up, until nothing is left."""
    return ceil(batch / ceil(batch / devices))


def _no_loader(loader: Any) -> str:
    return "no loader was given" if loader is None else f"the loader is a {type(loader).__name__}, not a DataLoader"
