"""Checks of lesson 2.2, Pitfall: variable length. They run on virtual GPUs, on every machine."""

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import flat, gpus_for, hint_for, kind, multiple, needs_function, off

WIDTH, WORDS, HIDDEN = 9, 20, 6  # of the batches that the answers are tried on
LENGTHS = [2, 7, 3, 6, 1, 5]  # in no order, and none as long as the batch is wide


@exercise("2.2.1", "The cut, by arithmetic")
def cut(shares: Callable[[int, int], Any]) -> None:
    """`shares(batch, gpus)` must list how many sentences each replica gets."""
    needs_function("shares", shares)
    for batch, gpus in ((8, 2), (7, 3), (4, 3), (1, 2), (9, 4), (10, 8), (64, 8)):
        wanted = [len(part) for part in torch.empty(batch, 1).chunk(gpus)]
        with _ends(f"`shares({batch}, {gpus})`"):
            answer = shares(batch, gpus)
        try:
            found = [int(share) for share in answer]
        except TypeError:
            hint = f"A list with one number for each replica. For {batch} and {gpus}: {wanted}."
            raise NotYet(f"`shares({batch}, {gpus})` gives {answer!r}, not a list of numbers", hint) from None
        if found == wanted:
            continue
        where = f"{batch} sentences on {gpus} GPUs: you say {found}"
        if 0 in found:
            raise NotYet(f"{where}, with a replica for nothing", "A GPU without sentences gets no replica.")
        if sum(found) != batch:
            raise NotYet(f"{where}, which is {sum(found)} sentences", "None is dropped, and none is served twice.")
        if len(found) > gpus:
            raise NotYet(f"{where}, more parts than GPUs", "Round up when you divide.")
        if max(found) - min(found) <= 1:
            hint = "The first part is the batch divided by the GPUs, rounded up. So are the others, while it lasts."
            raise NotYet(f"{where}, as evenly as can be, and DataParallel does not care to be even", hint)
        hint = "All parts but the last are alike: the batch divided by the GPUs, rounded up."
        raise NotYet(f"{where}, but the first part is {wanted[0]}", hint)


@exercise("2.2.2", "A reader that needs no lengths")
def reader(Reader: Callable[[], Any]) -> None:
    """`Reader()(tokens)` must give every word's hidden state, and zeros for padding, on 1, 2 and 3 GPUs."""
    needs_function("Reader", Reader)
    tokens = _tokens()
    with gpus_for(3) as gpus:
        torch.manual_seed(0)
        model = Reader().double()
        wanted = _states(model, tokens)
        for n in range(1, len(gpus) + 1):
            where = _on(n)
            found = _attempt(where, _parallel(model, gpus[:n]), tokens.to(gpus[0]))
            if not isinstance(found, torch.Tensor):
                hint = "`pad_packed_sequence` returns a pair; the first of it is wanted."
                raise NotYet(f"{where}, `forward` returns {_kind(found)}, not a tensor", hint)
            _same_width(where, tuple(found.shape), tuple(wanted.shape))
            near, found, padding = _rounding(found), found.detach().cpu().double(), tokens == 0
            if found[padding].abs().max() > 1e-12 and off(found[~padding], wanted[~padding]) < near:
                hint = "Pack before the LSTM, so that it reads words only."
                raise NotYet(f"{where}, the words are right, but padding has hidden states too, not zeros", hint)
            if off(found, wanted) > near:
                hint = "How many of a sentence's tokens are not 0? Count them along dimension 1."
                raise NotYet(f"{where}, the hidden states are not those of the sentences", hint)


def _same_width(where: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if found == wanted:
        return
    if len(found) == 3 and found[0] == wanted[0] and found[1] == max(LENGTHS):
        hint = "The batch may be padded beyond its longest sentence. Which width has `tokens`?"
        raise NotYet(f"{where}, the result is {found[1]} words wide, and `tokens` is {wanted[1]}", hint)
    hint = "As many words wide as `tokens`, whatever that is: `tokens.size(1)`."
    if found[:2] == wanted[1::-1]:
        hint = "Words and sentences are swapped: `batch_first=True`, at each step."
    raise NotYet(f"{where}, the result has the shape {found}, not {wanted}", hint)


@exercise("2.2.3", "The mean, mended")
def mean(NextWord: Callable[[], Any], batch_loss: Callable[[Any], Any]) -> None:
    """`batch_loss` of what `NextWord` returns must have one GPU's gradient, also on 2 and 3 GPUs."""
    needs_function("NextWord", NextWord)
    needs_function("batch_loss", batch_loss)
    tokens = _tokens().sort(dim=0, descending=True).values  # long sentences first, roughly
    targets = tokens.roll(-1, dims=1).where(tokens != 0, 0)
    with gpus_for(3) as gpus:
        torch.manual_seed(0)
        model = NextWord().double()
        wanted = _mean_over_words(model, tokens, targets)
        for n in range(1, len(gpus) + 1):
            where = _on(n)
            found = _attempt(where, _gradient, model, batch_loss, gpus[:n], tokens, targets)
            if off(found, wanted) < 1e-5:  # float32 on the way is the learner's choice
                continue
            words = int((targets != 0).sum())
            factor = multiple(found, wanted, 1e-5)
            if n == 1 and factor is None:
                if multiple(found, _mean_over_words(model, tokens, targets, ignore=-100), 1e-5) is not None:
                    hint = "A target of 0 is no word: `ignore_index=0` leaves it out of the loss, and of the count."
                    raise NotYet(f"{where}, padding has a loss like a word's, and learns", hint)
                raise NotYet(
                    f"{where}, the gradient is {off(found, wanted):.0%} off that of the mean over all words",
                    "One GPU is the plain case: add up the losses of all words, and divide by how many there are.",
                )
            if factor is None:
                raise NotYet(
                    f"{where}, the gradient is {off(found, wanted):.0%} off that of the mean over all words",
                    "A word must count alike on every GPU. Let the replicas add up, and divide once, at the end.",
                )
            hint = "The right direction, the wrong size: what do you divide by?"
            if abs(factor - words) < 1e-4 * words:
                hint = f"That is the sum. Divide it by the number of words, here {words}."
            elif abs(factor - words / targets.numel()) < 1e-5:
                hint = "You divide by the padding too. A target of 0 is no word."
            elif n > 1 and min(abs(factor - n), abs(factor - 1 / n)) < 1e-5:
                hint = "You take the mean of one thing and the sum of another. Add up both sums and counts."
            raise NotYet(f"{where}, the gradient is {factor:.4g} times that of the mean over all words", hint)


def _mean_over_words(model: Any, tokens: Any, targets: Any, ignore: int = 0) -> Any:
    """The gradient of the mean loss over all words, by the given parts of the model.

    ignore: the target that is left out.
    """
    model, tokens, targets = model.cpu(), tokens.cpu(), targets.cpu()
    with _given_parts("embed", "lstm", "head"):
        scores = model.head(model.lstm(model.embed(tokens))[0])
    model.zero_grad()
    torch.nn.functional.cross_entropy(scores.mT, targets, ignore_index=ignore).backward()
    return flat(p.grad for p in model.parameters())


def _gradient(model: Any, batch_loss: Callable[[Any], Any], gpus: list[Any], tokens: Any, targets: Any) -> Any:
    wrapped = _parallel(model, gpus)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a scalar from each replica is fine here
        loss = batch_loss(wrapped(tokens.to(gpus[0]), targets.to(gpus[0])))
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else _kind(loss)
        hint = "`backward()` starts from one number, still a tensor: without `.item()`."
        raise NotYet(f"{_on(len(gpus))}, `batch_loss` returns {what}, not a tensor with one number", hint)
    if loss.grad_fn is None:
        raise NotYet("the loss has no history, so there is nothing to go back through", "No `.item()`, `.detach()`.")
    model.zero_grad()
    loss.sum().backward()
    return flat(p.grad for p in model.parameters())


@exercise("2.2.4", "A state to carry")
def state(Carrier: Callable[[], Any]) -> None:
    """`Carrier()(tokens, h, c)` twice in a row must give on 2 and 3 GPUs what the LSTM gives on one."""
    needs_function("Carrier", Carrier)
    tokens = _tokens()
    with gpus_for(3) as gpus:
        torch.manual_seed(0)
        model = Carrier().double()
        start = torch.randn(2, len(tokens), 2, HIDDEN, dtype=torch.float64)  # h and c: (sentences, layers, HIDDEN)
        with _given_parts("embed", "lstm"), torch.no_grad():
            before = tuple(start.transpose(1, 2).contiguous())
            middle, after = model.lstm(model.embed(tokens), before)
            end, _ = model.lstm(model.embed(tokens), after)
        for n in range(1, len(gpus) + 1):
            where, wrapped = _on(n), _parallel(model, gpus[:n])
            found = _attempt(where, wrapped, tokens.to(gpus[0]), *start.to(gpus[0]))
            if not isinstance(found, tuple | list) or len(found) != 3:
                raise NotYet(f"{where}, `forward` returns {_kind(found)}", "Three tensors: `hidden, h, c`.")
            near = _rounding(found[0])
            if off(found[0].detach().cpu(), middle) > near:
                raise NotYet(
                    f"{where}, the LSTM did not start from the state it was given",
                    "The state comes as (sentences, layers, 6), the LSTM wants (layers, sentences, 6). "
                    "`transpose` swaps two dimensions; `view` and `reshape` only count anew.",
                )
            for name, given, wanted in zip("hc", found[1:], after, strict=True):
                if tuple(given.shape) != (len(tokens), 2, HIDDEN):
                    hint = f"As it came: (sentences, layers, 6), here {(len(tokens), 2, HIDDEN)}."
                    raise NotYet(f"{where}, `{name}` comes back with the shape {tuple(given.shape)}", hint)
                if off(given.detach().cpu(), wanted.transpose(0, 1)) > near:
                    raise NotYet(
                        f"{where}, `{name}` comes back with the right shape and with numbers in the wrong places",
                        "`transpose` swaps two dimensions; `view` and `reshape` only count anew.",
                    )
            again = _attempt(where, wrapped, tokens.to(gpus[0]), *found[1:])
            if off(again[0].detach().cpu(), end) > near:
                raise NotYet(f"{where}, a second call with the state of the first goes wrong", "Return it as it came.")


# ---- what they share -----------------------------------------------------------------------------------------


def _on(n: int) -> str:
    return "on one GPU" if n == 1 else f"on {n} GPUs"


def _rounding(found: Any) -> float:
    """How far an answer may be off. The check computes in float64, and what an answer computes in is its own choice."""
    return 1e-9 if isinstance(found, torch.Tensor) and found.dtype == torch.float64 else 1e-5


@contextlib.contextmanager
def _ends(what: str, lines: int = 100_000) -> Iterator[None]:
    """Raise NotYet in an answer that runs more lines of Python than any would that ends."""
    left = lines

    def count(frame: Any, event: str, _argument: Any) -> Any:
        nonlocal left
        left -= event == "line"
        if left < 0:
            sys.settrace(None)
            raise NotYet(f"{what} had not ended after {lines:,} lines", "Does its loop end, with what is left?")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)


def _kind(answer: Any) -> str:
    if isinstance(answer, tuple | list):
        return f"a {type(answer).__name__} of {len(answer)}"
    return kind(answer)


def _parallel(model: Any, gpus: list[Any]) -> Any:
    """The model on GPU 0: as it is for one GPU, in DataParallel for more."""
    model = model.to(gpus[0])
    return nn.DataParallel(model, device_ids=gpus) if len(gpus) > 1 else model


def _tokens() -> Any:
    """A padded batch: in each row as many words as LENGTHS says, then zeros."""
    words = torch.randint(1, WORDS, (len(LENGTHS), WIDTH), generator=torch.Generator().manual_seed(0))
    return words.where(torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None], 0)


def _states(model: Any, tokens: Any) -> Any:
    """The hidden states of each sentence, read alone; zeros behind its end."""
    wanted = torch.zeros(*tokens.shape, HIDDEN, dtype=torch.float64)
    with _given_parts("embed", "lstm"), torch.no_grad():
        for row, sentence, n in zip(wanted, tokens, LENGTHS, strict=True):
            row[:n] = model.lstm(model.embed(sentence[None, :n]))[0][0]
    return wanted


@contextlib.contextmanager
def _given_parts(*names: str) -> Iterator[None]:
    """Run the layers that `__init__` came with, on the check's own."""
    try:
        yield
    except (AttributeError, RuntimeError) as error:
        listed = ", ".join(f"`self.{name}`" for name in names)
        raise NotYet(f"the layers are not those it came with: {error}", f"Leave {listed} as they were.") from None


def _attempt(where: str, call: Callable[..., Any], *inputs: Any) -> Any:
    """What the call returns. An error becomes a NotYet that says on how many GPUs, and what to do if that is known."""
    try:
        return call(*inputs)
    except (NotYet, NotImplementedError):  # the latter may be the blank
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        reason = lines[-1] if "Original Traceback" in str(error) else f"{type(error).__name__}: {lines[0]}"
        hint = hint_for(str(error), HINTS)
        raise NotYet(f"{where}, your code raised {reason}", hint) from None


HINTS = {
    "1D CPU int64": "`tokens` is on the GPU, so its lengths are too, and packing wants them on the CPU.",
    "sorted in decreasing order": "Sentences come in any order: `enforce_sorted=False` lets packing sort them.",
    "has invalid shape": "The replicas return results of different widths. Which width do all of them know?",
    "Expected total_length": "`total_length` is the width of `tokens`: `tokens.size(1)`.",
    "is not contiguous": "So says cuDNN, which runs LSTMs on GPUs: after `transpose`, `.contiguous()`.",
    "Expected hidden": "The state comes as (sentences, layers, 6), the LSTM wants (layers, sentences, 6).",
    "zero-dimensional tensor": "`gather` appends rows: return at least one dimension, such as with `.view(1)`.",
    "not implemented for CPU tensors": "Leave what `forward` returns on its GPU; `gather` brings it together.",
    "element 0 of tensors does not require grad": "No `.item()`, no `.detach()`: `backward()` needs the tensor itself.",
}
