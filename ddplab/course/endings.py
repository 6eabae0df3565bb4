"""An album of endings: one training step under `nn.DataParallel`, made by a learner, and each way in which it can end.

A step runs on virtual GPUs, beside the same step on one GPU. What it ends with goes into the album, once.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ddplab.vgpu import virtual_gpus

FEATURES, WORDS, HIDDEN = 6, 5, 600
WIDTH, HEAD, TALL = 106, 6, 38  # characters of a line of the board; lines above the album; lines kept for all of it
WEIGHTS: dict[str, Callable[[Tensor, Any], Any]] = {  # what `self.scale` is, made of ones on the CPU
    "nn.Parameter": lambda ones, gpu: nn.Parameter(ones.to(gpu)),
    "a plain tensor": lambda ones, gpu: ones.to(gpu).requires_grad_(),
    "nn.Parameter, not moved": lambda ones, gpu: nn.Parameter(ones),
    "next(self.parameters())": lambda ones, gpu: nn.Parameter(ones.to(gpu)),
    "for it in self.parameters()": lambda ones, gpu: nn.Parameter(ones.to(gpu)),
    "[nn.Parameter(ones.to(gpu))]": lambda ones, gpu: [nn.Parameter(ones.to(gpu))],  # from here on not in the menu
    "nn.Parameter(ones).to(gpu)": lambda ones, gpu: nn.Parameter(ones).to(gpu),
    "nn.Buffer": lambda ones, gpu: nn.Buffer(ones.to(gpu)),
}
CHOICES: dict[str, list[Any]] = {
    "layer": ["linear", "large linear", "LSTM", "BatchNorm"],
    "rows": list(range(1, 13)),
    "GPUs": [2, 3, 4],
    "sentences": ["of one length", "padded", "packed", "packed, total_length", "masked, lengths in a list"],
    "words_in_last_row": [4, 5, 6],
    "weight": list(WEIGHTS)[:5],
    "forward_returns": ["its output", "the LSTM's state", "a loss, then .mean()", "a loss, then .sum()", "a loss"],
}


@dataclass(frozen=True)
class Ending:
    """A place in the album. riddle: what stands there until it is found. says: words of its error, none if silent."""

    riddle: str
    told: str
    says: str = ""


ENDINGS = {
    "as on one": Ending("nothing goes wrong", "runs, as on one GPU"),
    "scalar": Ending("two answers, where one was wanted", "no scalar to go backward from", "only for scalar outputs"),
    "shape": Ending("pieces that do not fit together again", "the parts do not fit together", "invalid shape"),
    "one row": Ending("alone, there is no average", "a part has too few rows", "more than 1 value per channel"),
    "stayed": Ending("one of them stayed at home", "something is not on its GPU", "on the same device"),
    "not moved": Ending("stopped at the door", "the model is not on GPU 0", "must have its parameters and buffers"),
    "no words": Ending("an error that says nothing at all", "a replica has no parameters()", "StopIteration"),
    "lengths": Ending("too much of a good thing", "each GPU got all the lengths", "must match the size"),
    "times": Ending("all of it, but too often", "the GPUs' losses are added up"),
    "off": Ending("a mean of means", "a mean of unequal parts"),
    "form": Ending("the right numbers, in the wrong place", "another shape"),
    "numbers": Ending("each goes by its own average", "other numbers"),
    "no gradient": Ending("the same loss, and nothing learnt", "the gradient of the weight is zero"),
    "idle": Ending("nothing wrong, and somebody has no work", "runs as on one GPU, and a GPU is idle"),
}
LOUD = [name for name, it in ENDINGS.items() if it.says]
SILENT = [name for name, it in ENDINGS.items() if not it.says][1:]
WRONG = SILENT[:-1]  # idle GPUs are a pity, and no mistake
PAR = len(ENDINGS) + len(LOUD) - len(WRONG) - 1  # changes for both hunts: a wrong step follows each error; tested


class _Scaled(nn.Module):
    """Multiplies by a weight of its own, which it takes as `weight` says."""

    def __init__(self, weight: str, gpu: Any) -> None:
        super().__init__()
        self.takes, self.scale = weight, WEIGHTS[weight](torch.ones(FEATURES, dtype=torch.double), gpu)

    def forward(self, x: Tensor) -> Tensor:
        if self.takes.startswith("for"):
            for it in self.parameters():
                x = x * it
            return x
        return x * (next(self.parameters()) if self.takes.startswith("next") else _first(self.scale))


def _first(scale: Any) -> Any:
    return scale[0] if isinstance(scale, list) else scale


class _Net(nn.Module):
    def __init__(self, layer: str, sentences: str, weight: str, returns: str, gpu: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = {
            "linear": lambda: nn.Linear(FEATURES, FEATURES),
            "large linear": lambda: nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, FEATURES)),
            "LSTM": lambda: nn.LSTM(FEATURES, FEATURES, batch_first=True),
            "BatchNorm": lambda: nn.BatchNorm1d(FEATURES),
        }[layer]().double().to(gpu)  # fmt: skip
        self.scaled = _Scaled(weight, gpu)
        self.sentences, self.returns = sentences, returns

    def forward(self, x: Tensor, lengths: Any) -> Tensor:
        width, packed = x.shape[1], self.sentences.startswith("packed")
        x = self.scaled(x)
        if self.sentences.startswith("masked"):
            x = x * (torch.arange(width) < torch.tensor(lengths).view(-1, 1)).unsqueeze(2).to(x.device)
        if packed:
            x = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        state = None
        if isinstance(self.layer, nn.LSTM):
            x, (state, _) = self.layer(x)
        if packed:
            total = width if "total_length" in self.sentences else None
            x, _ = pad_packed_sequence(x, batch_first=True, total_length=total)
        if isinstance(self.layer, nn.BatchNorm1d):
            x = x.mean(1)
        x = x if isinstance(self.layer, nn.LSTM) else self.layer(x)
        if self.returns == "the LSTM's state" and state is not None:
            return state
        return (x + 1).square().mean() if self.returns.startswith("a loss") else x


@dataclass(frozen=True)
class Came:
    """What came of a step on some GPUs: an error, or shape and numbers and gradients."""

    error: str = ""
    shape: tuple[int, ...] = ()
    out: Tensor | None = None
    gradients: tuple[Tensor | None, ...] = ()  # the last is that of the weight of its own
    registered: int = 0  # parameters that an optimiser would get of the layer with a weight of its own


@dataclass(frozen=True)
class Step:
    """A step on several GPUs, and on one. `ending`: its name in the album, "" where it has no place there."""

    parts: tuple[int, ...]
    one: Came
    more: Came
    ending: str
    fact: str


def _batch(rows: int, sentences: str, last: int) -> tuple[Tensor, list[int]]:
    """Sentences of five words at most, but the last may have six; the others are shorter by turns, and padded."""
    lengths = [WORDS] * rows
    if sentences != "of one length":
        lengths = [WORDS, *[2 + n % 2 for n in range(1, rows - 1)], last] if rows > 1 else [last]
    torch.manual_seed(1)
    x = torch.randn(rows, max(lengths), FEATURES).double()
    for row, length in enumerate(lengths):
        x[row, length:] = 0
    return x, lengths


@lru_cache(4096)
def _came(layer: str, rows: int, GPUs: int, sentences: str, last: int, weight: str, returns: str) -> Came:
    with virtual_gpus(GPUs) as gpus, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # gather warns that losses have no dimension to join
        net = _Net(layer, sentences, weight, returns, gpus[0])
        x, lengths = _batch(rows, sentences, last)
        x = x.to(gpus[0])
        lengths_there = lengths if "list" in sentences else torch.tensor(lengths, device=gpus[0])
        registered = len(list(net.scaled.parameters()))
        try:
            out = nn.DataParallel(net)(x, lengths_there)
            loss = out if returns == "a loss" else out.sum() if returns.endswith(".sum()") else out.mean()
            if not returns.startswith("a loss"):
                loss = (out + 1).square().mean()
            loss.backward()
        except (RuntimeError, ValueError, StopIteration) as error:
            lines = str(error).splitlines() or [""]
            told_so = f"{lines[0]} {lines[-1]}" if lines[0].startswith("Caught") else lines[-1]
            return Came(told_so, registered=registered)
        tensors = [*net.layer.parameters(), _first(net.scaled.scale)]
        gradients = tuple(None if it.grad is None else it.grad.cpu().clone() for it in tensors)
        return Came("", tuple(out.shape), out.detach().cpu(), gradients, registered)


def one_step(
    layer: str = "linear",
    rows: int = 8,
    GPUs: int = 2,
    sentences: str = "of one length",
    words_in_last_row: int = 5,
    weight: str = "nn.Parameter",
    forward_returns: str = "its output",
) -> Step:
    """Take the step on one GPU and on so many, and say how it ends."""
    how = (sentences, words_in_last_row, weight, forward_returns)
    one, more = _came(layer, rows, 1, *how), _came(layer, rows, GPUs, *how)
    parts = tuple(len(part) for part in torch.ones(rows).chunk(GPUs))
    how = f"{layer}, {sentences.split()[0]}, {forward_returns}"
    return Step(parts, one, more, *_ended(one, more, parts, GPUs, how))


def _ended(one: Came, more: Came, parts: tuple[int, ...], gpus: int, how: str) -> tuple[str, str]:
    if one.error:
        return "", "one GPU stops as well, so this has no place in the album"
    if more.error:
        name = next((name for name in LOUD if ENDINGS[name].says in more.error), "")
        moved = "on one GPU DataParallel moves the model itself; without it, one GPU stops as well"
        return name, moved * (name == "not moved")
    if one.gradients[-1] is not None and one.gradients[-1].any() and not more.gradients[-1].any():
        return "no gradient", "on one GPU it is not"
    mine, its = (torch.cat([it.flatten() for it in came.gradients if it is not None]) for came in (more, one))
    if "a loss" not in how:
        if more.shape != one.shape:
            return "form", f"{list(more.shape)} in place of {list(one.shape)}"
        if not torch.allclose(more.out, one.out, rtol=0, atol=1e-12):
            return "numbers", f"they differ by up to {(more.out - one.out).abs().max():.2f}"
    if len(parts) > 1 and torch.allclose(mine, len(parts) * its, rtol=1e-9, atol=1e-12):
        return "times", f"the gradient is {len(parts)} times one GPU's"
    if not torch.allclose(mine, its, rtol=1e-9, atol=1e-12):
        kinds = {".sum()": "times", "masked": "form", "BatchNorm": "numbers"}  # else a mean of unequal parts
        name = next((kind for word, kind in kinds.items() if word in how), "off")
        return name, f"the gradient is {100 * (mine - its).norm() / its.norm():.3g}% off"
    if len(parts) < gpus:
        return "idle", f"{len(parts)} of {gpus} GPUs have rows"
    return "as on one", ""


def album() -> Callable[..., str]:
    """What `move` draws: the step that is chosen, its end, and the album, which remembers what was found and how.

    It also notes each error that a single change has silenced, which was no cure, and when both lists are full.
    """
    found: dict[str, str] = {}  # ending → the first choice that led there
    silenced: dict[str, str] = {}  # an error → the change, and what came in its place
    last: dict[str, Any] = {}
    counted = {"changes": 0}  # values that a slider only passes are one

    def draw(**chosen: Any) -> str:
        came = one_step(**chosen)
        mark = "   again" if came.ending in found else "   new"
        had = len(found) + len(silenced)
        if came.ending:
            found.setdefault(came.ending, _recipe(chosen))
        changed = [name for name in chosen if last and chosen[name] != last["chosen"][name]]
        if len(changed) == 1 and last["ending"] in LOUD and came.ending in WRONG:
            was, now = (str(it[changed[0]]) for it in (last["since"], chosen))
            named = f"{changed[0].replace('_', ' ')}: " if now.isdecimal() else ""  # words speak for themselves
            change = f"{named}{was} → {now}"
            silenced.setdefault(last["ending"], f"{change}; then: {ENDINGS[came.ending].told}")
        counted["changes"] += bool(changed) and changed != last["passing"]
        passing = [] if len(found) + len(silenced) > had else changed or last.get("passing", [])
        by = {*last.get("by", ()), *changed}  # what was changed while the ending was this one
        stays = came.ending == last.get("ending") and len(by) < 2
        last.update(since=last["since"] if stays else chosen, by=by if stays else set())
        last.update(chosen=chosen, ending=came.ending, passing=passing)
        lines = [*_told(came, chosen["GPUs"]), *[""] * HEAD][:HEAD]
        if len(found) == len(ENDINGS) and len(silenced) == len(LOUD):
            took = counted.setdefault("both", counted["changes"])
            lines[-1] = f"Both are full after {took} changes" + (f"; {PAR} would do" if took > PAR else ": par ✓")
        lines += _pages(found, counted["changes"], came.ending, mark)
        lines += ["", f"Errors that you have silenced by one change: {len(silenced)} of {len(LOUD)}"]
        for name in LOUD:
            told = ENDINGS[name].told if name in found else f"“{ENDINGS[name].riddle}”"
            line = f"✓ {told:37} {silenced[name]}" if name in silenced else f"☐ {told}"
            lines += textwrap.wrap(line, WIDTH, subsequent_indent=" " * 40)
        return "\n".join([*lines, *[""] * (TALL - len(lines))])

    return draw


def _recipe(chosen: dict[str, Any]) -> str:
    """The choice in few words: what is as at first is left out."""
    usual = {name: offered[0] for name, offered in CHOICES.items()}
    words = [chosen["layer"], f"{chosen['rows']} rows on {chosen['GPUs']} GPUs"]
    words += [str(chosen[name]) for name in ("sentences", "weight") if chosen[name] != usual[name]]
    if chosen["sentences"] not in (usual["sentences"], "padded"):
        words[-1 if chosen["weight"] == usual["weight"] else -2] += f" ({chosen['words_in_last_row']})"
    return "; ".join([*words, *[it for it in [chosen["forward_returns"]] if it != usual["forward_returns"]]])


def _told(came: Step, gpus: int) -> list[str]:
    lines = [f"rows dealt as {' + '.join(map(str, came.parts))}"]
    for where, it in (("one GPU", came.one), (f"{gpus} GPUs", came.more)):
        end = f"stops: {it.error}" if it.error else f"runs, and returns {list(it.shape) or 'one loss'}"
        lines += textwrap.wrap(f"{where:9}{end}", WIDTH, subsequent_indent=" " * 9)
    unsaid = f"nobody tells you: {ENDINGS[came.ending].told}, " if came.ending in WRONG else ""
    return [*lines, *[" " * 9 + unsaid + came.fact] * bool(came.fact)]


def _pages(found: dict[str, str], changes: int, now: str, mark: str) -> list[str]:
    """The places of the album, in three parts; an empty one shows its riddle."""
    prizes = sum(name in found for name in SILENT)
    head = (
        f"Your album: {len(found)} of {len(ENDINGS)} endings, {prizes} of {len(SILENT)} silent ones; changes: {changes}"
    )
    parts = {"": ["as on one"], "It stops, and says so:": LOUD, "It runs, and says nothing (the prizes):": SILENT}
    lines = [head + (". Full ✓" if len(found) == len(ENDINGS) else "")]
    for title, names in parts.items():
        lines += [title] * bool(title)
        for name in names:
            got = f"✓ {ENDINGS[name].told:37} {found.get(name)}" if name in found else f"☐ “{ENDINGS[name].riddle}”"
            lines += textwrap.wrap(got + mark * (name == now), WIDTH, subsequent_indent=" " * 40)
    return lines
