"""Checks of lesson 2.2, Pitfall: variable length. They run on virtual GPUs, on every machine."""

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_packed_sequence

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import gpus_for, kind, needs_function, off
from ddplab.checks.hints import first_line, hint_for
from ddplab.checks.turns import turn

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
                order = torch.cdist(found.flatten(1), wanted.flatten(1)).argmin(1)
                if off(found, wanted[order]) < near:
                    hint = "Whoever sorts the sentences puts them back at the end."
                    raise NotYet(f"{where}, the sentences come back in another order", hint)
                raise NotYet(f"{where}, the hidden states are not those of the sentences", COUNT)


def _same_width(where: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if found == wanted:
        return
    if len(found) == 3 and found[0] == wanted[0] and found[1] == max(LENGTHS):
        hint = "The batch may be padded beyond its longest sentence. Which width has `tokens`?"
        raise NotYet(f"{where}, the result is {found[1]} words wide, and `tokens` is {wanted[1]}", hint)
    if found == wanted[::2]:
        hint = "What the LSTM returns first has a state for each word."
        raise NotYet(f"{where}, the result has one state for each sentence: the shape {found}, not {wanted}", hint)
    hint = "As many words wide as `tokens`, whatever that is: `tokens.size(1)`."
    if found[:2] == wanted[1::-1]:
        hint = "Words and sentences are swapped: `batch_first=True`, at each step."
    raise NotYet(f"{where}, the result has the shape {found}, not {wanted}", hint)


@exercise("2.2.3", "A state to carry")
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
        reason = f"{type(error).__name__}: {first_line(str(error))}"
        hint = hint_for(str(error), HINTS)
        raise NotYet(f"{where}, your code raised {reason}", hint) from None


COUNT = "How many of a sentence's tokens are not 0? Count them along dimension 1: one number for each sentence."
HINTS = {
    "exceeds dimension size": COUNT,  # what packing says of lengths that are too large
    "index out of range": COUNT,  # and of too many of them
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


# ------------------------------------------------------------------ your turn


def _packed(*lengths: int, wide: int) -> tuple[Any, Any]:
    """Sentences as an LSTM leaves them, packed, each word with a state of two numbers; and a padded batch as wide."""
    tokens = torch.tensor([[1] * n + [0] * (wide - n) for n in lengths])
    states = torch.arange(1.0, wide + 1)[:, None].repeat(len(lengths), 1, 2)
    return nn.utils.rnn.pack_padded_sequence(states, torch.tensor(lengths), batch_first=True), tokens


def _shape_and_words(states: Any, *_: Any) -> list[Any]:
    if not isinstance(states, torch.Tensor):
        return [_kind(states), "-"]
    first = states.flatten(2)[0, :, 0] if states.dim() > 2 else states.flatten()
    return [" x ".join(map(str, states.shape)), " ".join(f"{it:g}" for it in first.tolist())]


def _unpacked(packed: Any, tokens: Any, total: Any = lambda tokens: tokens.size(1), **options: Any) -> Any:
    return pad_packed_sequence(packed, **{"batch_first": True, "total_length": total(tokens), **options})[0]


OWN_WIDTH = "the result is as wide as the longest sentence of that half, and the other GPU's is not"

turn(
    "2.2.b",
    "As wide on every GPU",
    _unpacked,
    {
        "GPU 0's half": lambda: _packed(8, 7, 7, 6, wide=8),
        "GPU 1's half": lambda: _packed(4, 3, 2, 2, wide=8),
        "another batch, 6 wide": lambda: _packed(3, 1, wide=6),
    },
    look=_shape_and_words,
    otherwise="`pad_packed_sequence` with the width of `tokens`, batch first; of the two things it returns, the first.",
    heads=("shape", "first sentence"),
    mistakes=[
        (partial(_unpacked, total=lambda _: None), OWN_WIDTH, "Which width do both GPUs know? Look at `tokens`."),
        (
            partial(_unpacked, total=lambda tokens: int((tokens != 0).sum(1).max())),
            OWN_WIDTH,
            "Which width do both GPUs know? Look at `tokens`.",
        ),
        (
            partial(_unpacked, total=lambda _: 8),
            "it is always 8 wide",
            "The next batch has another width.",
        ),
        (
            partial(_unpacked, batch_first=False),
            "the words come first, and the sentences second",
            "`batch_first=True`, as when it was packed.",
        ),
        (
            partial(_unpacked, total=len),
            "`total_length` is the number of sentences",
            "`tokens` has two dimensions: sentences and words. Which of them is the width?",
        ),
        (
            lambda packed, tokens: pad_packed_sequence(packed, batch_first=True, total_length=tokens.size(1)),
            "two things come back, the states and the lengths",
            "Return the first of the two.",
        ),
        (
            lambda packed, tokens: pad_packed_sequence(packed, batch_first=True)[1],
            "the lengths come back, and not the states",
            "Of the two things that `pad_packed_sequence` returns, the first.",
        ),
        (
            partial(_unpacked, total=torch.numel),
            "the width is as many as there are numbers in `tokens`",
            "`tokens` has two dimensions: sentences and words. Which of them is the width?",
        ),
        (
            lambda packed, tokens: _unpacked(packed, tokens, lambda _: None).reshape(*tokens.shape, -1),
            "the numbers are dealt out anew to make up that shape, and none are added",
            "A shape with more places needs zeros: `pad_packed_sequence` puts them in, up to a width that it is told.",
        ),
        (
            lambda packed, tokens: packed,
            "the sequence is packed still",
            "`pad_packed_sequence` makes a rectangle of it again.",
        ),
    ],
    hints={
        "total_length": "Which dimension of `tokens` is its width?",
        "'torch.Size'": "One number is wanted: of the two in `tokens.shape`, the second.",
        "is invalid for input": "There are not so many numbers: `packed.data` has the words alone, without padding.",
        "expected Tensor as element": "`pad_sequence` takes a list; what is packed, `pad_packed_sequence` unpacks.",
    },
)


class _Seen(nn.Module):
    """Notes which sentences, with which lengths and which scale, each GPU was given."""

    def __init__(self) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.zeros(1))
        self.seen: dict[int, str] = {}

    def forward(self, tokens: Any, lengths: Any, scale: Any) -> Any:
        self.seen[self.at.device.index] = self._amiss(tokens, lengths, scale) or self._held(tokens, lengths, scale)
        return self.at.expand(len(tokens) if isinstance(tokens, torch.Tensor) else 1)

    def _amiss(self, tokens: Any, lengths: Any, scale: Any) -> str:
        """Say what stands where something of another kind belongs."""
        tensors = [isinstance(it, torch.Tensor) for it in (tokens, lengths, scale)]
        whole_row = tensors[1] and lengths.dim() == 1 and not lengths.is_floating_point()
        fine = {
            "tokens": tensors[0] and tokens.dim() == 2,
            "lengths": whole_row or isinstance(lengths, tuple | list),
            "scale": isinstance(scale, float | int) or (tensors[2] and tensors[0] and tokens.dim() == 2 and whole_row),
        }
        given = {"tokens": tokens, "lengths": lengths, "scale": scale}
        return ", ".join(f"{name}: {_brief(it)}" for name, it in given.items() if not fine[name])

    def _held(self, tokens: Any, lengths: Any, scale: Any) -> str:
        pairs = zip(tokens[:, 0].tolist(), [int(n) for n in lengths], strict=False)
        held = " ".join(f"{first}:{length}" for first, length in pairs)
        return held + f" x {float(torch.as_tensor(scale).float().mean()):g}"


def _brief(it: Any) -> str:
    if isinstance(it, torch.Tensor):
        return ("floats, " if it.is_floating_point() else "") + (" x ".join(map(str, it.shape)) or "one number")
    return f"{it:g}" if isinstance(it, float | int) else _kind(it)


def _called(call: Callable[..., Any], sentences: int, n: int) -> list[Any]:
    """What each of three GPUs saw, when n of them are there: "10:4" is sentence 10 with length 4."""
    with gpus_for(3) as gpus:
        model = _Seen().to(gpus[0])
        firsts = 10 * torch.arange(1, sentences + 1)
        tokens = firsts[:, None].repeat(1, 4).to(gpus[0])
        returned = call(nn.DataParallel(model, device_ids=gpus[:n]), tokens, list(range(sentences, 0, -1)), 2.0)
        if returned is None and model.seen:
            return ["dropped", "dropped", "dropped"]
        return [model.seen.get(gpu, "nothing" if gpu < n else "-") for gpu in range(3)]


ONE_PART = "only GPU 0 works: a tensor with one entry makes one part, and the scarcest counts"
SCARCEST = "One tensor that holds all the lengths. And a number that is no tensor goes to every replica as it is."

turn(
    "2.2.c",
    "Each its own lengths",
    lambda model, tokens, lengths, scale: model(tokens, torch.tensor(lengths), scale),
    {"4 sentences, 2 GPUs": lambda: (4, 2), "2 sentences, 3 GPUs": lambda: (2, 3)},
    call=_called,
    otherwise="One call of `model`: all sentences, all lengths in one tensor of one dimension, and the scale.",
    heads=("GPU 0", "GPU 1", "GPU 2"),
    mistakes=[
        (
            lambda model, tokens, lengths, scale: model(tokens, lengths, scale),
            "the second GPU reads its sentences with the lengths of the first",
            "A list of numbers goes whole to every replica. What is cut like `tokens`?",
        ),
        (
            lambda model, tokens, lengths, scale: model(tokens, torch.tensor(lengths), scale=scale),
            "a third replica is called with the scale alone",
            "Pass all arguments in one way: all by position, or all by keyword.",
        ),
        (
            lambda model, tokens, lengths, scale: model(tokens, [torch.tensor([n]) for n in lengths], scale),
            ONE_PART,
            SCARCEST,
        ),
        (
            lambda model, tokens, lengths, scale: model(
                tokens, [*torch.tensor(lengths).chunk(len(model.device_ids))], scale
            ),
            "the lengths are cut twice: a list that holds a tensor for each GPU has each of them cut again",
            "Make one tensor of all the lengths: DataParallel cuts it like `tokens`, so you need not.",
        ),
        (
            lambda model, tokens, lengths, scale: model(tokens, torch.tensor(lengths), torch.tensor([scale])),
            ONE_PART,
            SCARCEST,
        ),
        (
            lambda model, tokens, lengths, scale: model.module(tokens, torch.tensor(lengths), scale),
            "GPU 0 does all the work: that is the model inside the wrapper",
            "Call `model` itself.",
        ),
        (
            lambda model, tokens, lengths, scale: model(tokens, torch.tensor(lengths).flip(0), scale),
            "the lengths are not in the order of the sentences",
            "As they come, each at the place of its sentence.",
        ),
        *[
            (by, "the arguments are in another order than `forward` takes them", "`tokens`, the lengths, the scale.")
            for by in (
                lambda model, tokens, lengths, scale: model(tokens, scale, torch.tensor(lengths)),
                lambda model, tokens, lengths, scale: model(tokens, scale, lengths),
                lambda model, tokens, lengths, scale: model(torch.tensor(lengths), tokens, scale),
                lambda model, tokens, lengths, scale: model(lengths, tokens, scale),
                lambda model, tokens, lengths, scale: model(torch.tensor(lengths), scale, tokens),
                lambda model, tokens, lengths, scale: model(lengths, scale, tokens),
                lambda model, tokens, lengths, scale: model(scale, tokens, torch.tensor(lengths)),
                lambda model, tokens, lengths, scale: model(scale, tokens, lengths),
                lambda model, tokens, lengths, scale: model(scale, torch.tensor(lengths), tokens),
                lambda model, tokens, lengths, scale: model(scale, lengths, tokens),
            )
        ],
        *[
            (by, "the lengths have two dimensions", "One tensor of one dimension, with a number for each sentence.")
            for by in (
                lambda model, tokens, lengths, scale: model(tokens, torch.tensor([lengths]), scale),
                lambda model, tokens, lengths, scale: model(tokens, torch.tensor(lengths)[:, None], scale),
            )
        ],
        (
            lambda model, tokens, lengths, scale: model(tokens, torch.tensor(lengths).float(), scale),
            "the lengths are floats, and packing takes whole numbers",
            "`torch.tensor(lengths)` leaves them whole; `torch.Tensor(…)` makes floats.",
        ),
        (
            lambda model, tokens, lengths, scale: model(tokens, len(lengths), scale),
            "one number comes for the lengths, how many there are",
            "A tensor of all the lengths.",
        ),
        (
            lambda model, tokens, lengths, scale: model(tokens, torch.tensor(lengths), [scale] * len(tokens)),
            "the scale is a list, which goes whole to every replica",
            "A number goes to every replica as it is: leave `scale` alone.",
        ),
        (
            lambda model, tokens, lengths, scale: model(tokens, torch.full((len(tokens),), tokens.size(1)), scale),
            "every sentence comes with the width of `tokens`, not with its own length",
            "One tensor that holds `lengths`.",
        ),
        (
            lambda model, tokens, lengths, scale: [
                model(it[None], torch.tensor([n]), scale) for it, n in zip(tokens, lengths, strict=True)
            ],
            "`model` is called for each sentence alone, and GPU 0 does all the work",
            "One call, with all of them: DataParallel deals them out.",
        ),
        (
            lambda model, tokens, lengths, scale: (model(tokens, torch.tensor(lengths), scale), None)[1],
            "`model` is called, and what it returns is dropped",
            "Is there a `return`?",
        ),
    ],
    hints={
        "required positional argument": "All three are needed: `tokens`, the lengths, and the scale.",
        "at least a 1-dimensional": "A tensor of one number has no dimension to cut. Leave `scale` a plain number.",
    },
)


def _lost(pieces: Callable[..., Any], lengths: list[int], n: int) -> list[Any]:
    """What n GPUs return for sentences of these lengths, gathered, and the mean that this makes."""
    places = torch.arange(6)[None, :]
    targets = (1 + places % 2) * (places < torch.tensor(lengths)[:, None])  # words are 1 and 2, padding is 0
    scores = torch.zeros(len(lengths), 6, 3)
    scores[:, :, 1:] = 0.6931472 * torch.arange(1.0, len(lengths) + 1)[:, None, None]  # a loss for each sentence
    scores.requires_grad_()

    class Piece(nn.Module):
        def forward(self, scores: Any, targets: Any) -> Any:
            return pieces(scores, targets)

    with gpus_for(3) as gpus:
        model = nn.DataParallel(Piece().to(gpus[0]), device_ids=gpus[:n])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a scalar from each replica is fine
            gathered = model(scores.to(gpus[0]), targets.to(gpus[0]))
    if not isinstance(gathered, tuple | list) or len(gathered) != 2:
        return ["one thing" if isinstance(gathered, torch.Tensor) else _kind(gathered), "-", "-", "-"]
    back = "yes" if gathered[0].requires_grad else "no"
    sums, counts = (it.detach().cpu().flatten().tolist() for it in gathered)
    if len(sums) == len(counts) == len(lengths):  # of each sentence, which is as good
        each = -(-len(lengths) // n)
        sums, counts = ([sum(it[i : i + each]) for i in range(0, len(it), each)] for it in (sums, counts))
    mean = sum(sums) / sum(counts) if sum(counts) else 0.0
    return [" + ".join(f"{it:.3g}" for it in sums), " + ".join(f"{it:g}" for it in counts), round(mean, 4), back]


def _pieces(
    scores: Any,
    targets: Any,
    reduction: str = "sum",
    ignore: int = 0,
    count: Callable[..., Any] = lambda targets: (targets != 0).sum(),
) -> Any:
    loss = nn.functional.cross_entropy(scores.mT, targets, ignore_index=ignore, reduction=reduction)
    return loss.view(1), count(targets).view(1)


def _by_word(scores: Any, targets: Any) -> Any:
    return nn.functional.cross_entropy(scores.mT, targets, ignore_index=0, reduction="none")


def _number_of(make: Callable[[Any], float]) -> Callable[..., Any]:
    return lambda targets: torch.tensor(make(targets), device=targets.device)


ONE_THING = "one thing comes back, not two"
BOTH = "Two things, before anything is divided: the sum of the losses, and how many words there are."

turn(
    "2.2.a",
    "Sum and count",
    _pieces,
    {"6 + 2 words, one GPU": lambda: ([6, 2], 1), "6 + 2 words, 2 GPUs": lambda: ([6, 2], 2)},
    call=_lost,
    otherwise="Two tensors: the losses added up, padding left out; and how many targets are not 0.",
    heads=("sums", "words", "the mean that they make", "gradient goes back"),
    mistakes=[
        (
            partial(_pieces, reduction="mean"),
            "each GPU divides its loss, and then you divide again",
            "A GPU must not divide. `cross_entropy` can add up instead: its argument `reduction`.",
        ),
        (
            partial(_pieces, count=_number_of(lambda targets: targets.numel())),
            "the padding is counted too",
            "A target of 0 is no word. How many are not 0?",
        ),
        (
            lambda scores, targets: (_pieces(scores, targets, "mean")[0] / (targets != 0).sum(), (targets != 0).sum()),
            "each GPU divides its loss twice, and then you divide once more",
            "`cross_entropy` divides too, unless `reduction` says otherwise; and a GPU must not.",
        ),
        (
            partial(_pieces, ignore=-100, count=_number_of(lambda targets: targets.numel())),
            "the padding is in the sums, and it is counted, too",
            "`ignore_index=0` leaves it out of the one; and of the other: how many targets are not 0?",
        ),
        (
            partial(_pieces, count=lambda targets: (targets == 0).sum()),
            "the padding is counted, and not the words",
            "How many targets are *not* 0?",
        ),
        (
            partial(_pieces, count=_number_of(lambda targets: targets.size(1))),
            "the places of one sentence are counted, padding among them",
            "In the whole of `targets`: how many are not 0?",
        ),
        (
            lambda scores, targets: (_by_word(scores, targets).mean(1), (targets != 0).sum(1)),
            "each sentence's loss is divided by its places",
            "Nothing is divided here: `sum`.",
        ),
        (
            lambda scores, targets: (_by_word(scores, targets), targets != 0),
            "nothing is added up: for each place there is a loss, and whether it is a word",
            "The `sum()` of each of the two.",
        ),
        (
            lambda scores, targets: (_by_word(scores, targets), (targets != 0).sum()),
            "the losses are not added up: there is one for each place",
            '`reduction="sum"`',
        ),
        (
            partial(_pieces, count=_number_of(len)),
            "the sentences are counted, not the words",
            "How many targets are not 0?",
        ),
        (
            partial(_pieces, ignore=-100),
            "the loss of the padding is in the sums",
            "`ignore_index=0` leaves it out.",
        ),
        (
            partial(_pieces, count=torch.sum),
            "the words' numbers are added up",
            "How many targets are not 0?",
        ),
        (
            lambda scores, targets: _pieces(scores, targets)[::-1],
            "the words come first, and the sum second",
            "The sum, then the count: `sums, counts` is how they are taken.",
        ),
        (
            lambda scores, targets: _pieces(scores.detach(), targets),
            "no gradient goes back through the sums",
            "No `detach`, `data` or `no_grad()`; and `torch.tensor(loss)` copies the number alone: `loss.view(1)`.",
        ),
        (
            lambda scores, targets: _pieces(scores, targets)[0],
            ONE_THING,
            BOTH,
        ),
        (
            lambda scores, targets: (lambda total, words: total / words)(*_pieces(scores, targets)),
            ONE_THING,
            BOTH,
        ),
        (
            lambda scores, targets: (_pieces(scores, targets)[0], int((targets != 0).sum())),
            "the number of words, or the sum, is a Python number, which `gather` cannot put together",
            "Leave both tensors: no `.item()`.",
        ),
        (
            partial(_pieces, count=lambda targets: torch.tensor([int((targets != 0).sum())])),
            "the count, or the sums, come on the CPU, and `gather` takes them from GPUs",
            "Make a tensor where `scores` is, or none: `(targets != 0).sum()` is one. And no `.cpu()`.",
        ),
        (
            lambda scores, targets: [torch.tensor([it.item()]) for it in _pieces(scores, targets)],
            "a new tensor is made of the loss's number: no gradient goes back, and `gather` takes none from the CPU",
            "`loss.view(1)` makes a row of the loss itself, without `.item()`: on its GPU, and with its way back.",
        ),
    ],
    hints={
        "not implemented for CPU tensors": "What a GPU returns stays on it: make a tensor where `scores` is.",
        "not iterable": "Two tensors. A Python number, as from `.item()`, cannot be gathered.",
        "xpected": "`scores.mT` has the classes in the second dimension, where `cross_entropy` wants them.",
    },
)
