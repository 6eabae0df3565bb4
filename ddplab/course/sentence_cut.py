"""Sentences across the cut: what each GPU of `nn.DataParallel` gets of a padded batch, and what its mean loss weighs.

The page (sentence_cut.js) does the arithmetic of `outcome` in the browser, for any cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, NamedTuple

from ddplab import screen
from ddplab.course.controls import widget
from ddplab.course.dataparallel_drawings import sentence_grid
from ddplab.plots import COLOURS, SHAPES
from ddplab.pointer import pointing

VIEWS = ("words", "unpacked", "loss")


class Outcome(NamedTuple):
    """What a cut does. Of each GPU that got a sentence: sentences, words, padding, width. Of each sentence: shares."""

    sentences: list[int]
    words: list[int]
    padding: list[int]  # boxes that are no word, in rows as wide as the longest sentence of the whole batch
    widths: list[int]  # of its part after packing and unpacking: that of its own longest sentence
    shares: list[float]  # of the loss, in the mean of the GPUs' means
    fair: list[float]  # of the loss, in the mean over all words
    off: float | None  # how far the gradient of the mean of means is from that over all words, as a share of its length


def outcome(
    sentences: Sequence[Sequence[str]], sizes: Sequence[int], gram: Sequence[Sequence[float]] | None = None
) -> Outcome:
    """Return what a cut does: `sizes` are the numbers of sentences on each GPU, in order, 0 for a GPU left out.

    gram: the inner products of the gradients that a model has of each sentence alone, from its mean loss. The gradient
        of any cut is a sum of those, so they are all that `off` needs; without them it is None.
    """
    lengths = [len(sentence) for sentence in sentences]
    home = [gpu for gpu, size in enumerate(sizes) for _ in range(size)]
    used = sorted(set(home))
    on = {gpu: [n for n, at in zip(lengths, home, strict=True) if at == gpu] for gpu in used}
    shares = [n / sum(on[gpu]) / len(used) for n, gpu in zip(lengths, home, strict=True)]
    fair = [n / sum(lengths) for n in lengths]
    wrong = [share - right for share, right in zip(shares, fair, strict=True)]
    off = gram and _length(wrong, gram) / _length(fair, gram)
    return Outcome(
        [len(on[gpu]) for gpu in used],
        [sum(on[gpu]) for gpu in used],
        [len(on[gpu]) * max(lengths) - sum(on[gpu]) for gpu in used],
        [max(on[gpu]) for gpu in used],
        shares,
        fair,
        off,
    )


def off_after(
    sentences: Sequence[Sequence[str]], sizes: Sequence[int], gradients: Any, order: Sequence[int] | None = None
) -> float:
    """Return how far off the gradient is after a cut, see `outcome`, of the sentences as they are or in another order.

    gradients: a tensor with a row for each sentence, the gradient that a model has of it alone.
    """
    order = list(range(len(sentences)) if order is None else order)
    rows = gradients[order]
    return outcome([sentences[n] for n in order], sizes, (rows @ rows.T).tolist()).off


def _length(weights: Sequence[float], gram: Sequence[Sequence[float]]) -> float:
    """The length of a weighted sum of vectors whose inner products are in `gram`."""
    rows = [sum(b * it for b, it in zip(weights, row, strict=True)) for row in gram]
    return sqrt(max(0, sum(a * row for a, row in zip(weights, rows, strict=True))))


def as_dataparallel(count: int, gpus: int) -> list[int]:
    """Return how many sentences of a batch go to each GPU: as many as fit, rounded up, until nothing is left."""
    most = -(-count // gpus)
    return [max(0, min(most, count - gpu * most)) for gpu in range(gpus)]


def what_a_word_counts(found: Outcome) -> list[float]:
    """Of each GPU's words, in the mean of the GPUs' means; 1 is fair."""
    fair = sum(found.words) / len(found.words)
    return [fair / words for words in found.words]


def told(found: Outcome, look: str) -> str:
    """Return in words what a cut does; the page says the same."""
    if look == "words":
        rows = zip(found.sentences, found.words, found.padding, strict=True)
        return "; ".join(
            f"GPU {gpu}: {n} sentence{'s' * (n != 1)}, {w} words, {p} padding" for gpu, (n, w, p) in enumerate(rows)
        )
    if look == "unpacked":
        same = len(set(found.widths)) == 1
        widths = ", ".join(f"GPU {gpu}: {width} wide" for gpu, width in enumerate(found.widths))
        return f"{widths}: {'✓ gather joins them' if same else '✗ gather refuses them'}"
    counts = ", ".join(f"{says:.2f} on GPU {gpu}" for gpu, says in enumerate(what_a_word_counts(found)))
    off = "" if found.off is None else f" The gradient is {found.off:.1%} off."
    return f"A word counts {counts}; 1.00 is fair.{off}"


@pointing
def across_the_cut(sentences: Sequence[Sequence[str]], look: str = "words", gradients: Any = None) -> None:
    """Show a padded batch and where it is cut between GPUs; in a live notebook, move the cut.

    sentences: each as a list of words, the longest first. look: what is shown first: "words" (what each GPU gets),
        "unpacked" (how wide its part is after packing and unpacking) or "loss" (what each sentence weighs in the mean
        of the GPUs' means). gradients: a tensor with a row for each sentence, the gradient that a model has of it
        alone; of these the page makes that of any cut. Without them the loss cannot be chosen. Elsewhere it is a
        picture of two halves, and words.

    Raises ValueError for another look.
    """
    from IPython.display import display

    if look not in VIEWS:
        raise ValueError(f"look is {look!r}; it must be one of {', '.join(VIEWS)}")
    gram = None if gradients is None else (gradients @ gradients.T).tolist()
    found = outcome(sentences, as_dataparallel(len(sentences), 2), gram)
    if not screen.live():
        says = what_a_word_counts(found) if look == "loss" else (1, 1)
        display(sentence_grid(sentences, found.widths if look == "unpacked" else (), says))
    signs = list(zip(SHAPES, COLOURS, strict=True))
    given = {"sentences": sentences, "look": look, "looks": signs, "gram": gram}
    screen.show(told(found, look), lambda: widget("sentence_cut", **given))
