"""Sentences across the cut: what each GPU of `nn.DataParallel` gets of a padded batch, and what its mean loss weighs.

The page (sentence_cut.js) does the arithmetic of `outcome` in the browser, for any cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot
from typing import NamedTuple

from ddplab import screen
from ddplab.course.controls import widget
from ddplab.course.dataparallel_drawings import sentence_grid
from ddplab.plots import COLOURS, SHAPES
from ddplab.pointer import pointing

LOOKS = ("words", "unpacked", "loss")


class Outcome(NamedTuple):
    """What a cut does. Of each GPU that got a sentence: sentences, words, padding, width. Of each sentence: shares."""

    sentences: list[int]
    words: list[int]
    padding: list[int]  # boxes that are no word, in rows as wide as the longest sentence of the whole batch
    widths: list[int]  # of its part after packing and unpacking: that of its own longest sentence
    shares: list[float]  # of the loss, in the mean of the GPUs' means
    fair: list[float]  # of the loss, in the mean over all words
    off: float  # how far the gradient of the mean of means is from that over all words, as a share of its length


def outcome(sentences: Sequence[Sequence[str]], sizes: Sequence[int]) -> Outcome:
    """Return what a cut does: `sizes` are the numbers of sentences on each GPU, in order, 0 for a GPU left out.

    The gradient is that of a linear model with two weights, both 0 so far. It guesses a word's letters from its place
    in the sentence, counted from 1, as a + b · place; its loss is the squared error, averaged over words.
    """
    lengths = [len(sentence) for sentence in sentences]
    home = [gpu for gpu, size in enumerate(sizes) for _ in range(size)]
    used = sorted(set(home))
    on = {gpu: [n for n, at in zip(lengths, home, strict=True) if at == gpu] for gpu in used}
    shares = [n / sum(on[gpu]) / len(used) for n, gpu in zip(lengths, home, strict=True)]
    fair = [n / sum(lengths) for n in lengths]
    means = [_gradient(sentence) for sentence in sentences]
    by_gpus, by_words = (
        [sum(w * g[i] for w, g in zip(ws, means, strict=True)) for i in (0, 1)] for ws in (shares, fair)
    )
    off = hypot(by_gpus[0] - by_words[0], by_gpus[1] - by_words[1]) / hypot(*by_words)
    return Outcome(
        [len(on[gpu]) for gpu in used],
        [sum(on[gpu]) for gpu in used],
        [len(on[gpu]) * max(lengths) - sum(on[gpu]) for gpu in used],
        [max(on[gpu]) for gpu in used],
        shares,
        fair,
        off,
    )


def _gradient(sentence: Sequence[str]) -> tuple[float, float]:
    """The gradient of the mean squared error over one sentence, at weights of 0."""
    words = [(-2 * len(word), place) for place, word in enumerate(sentence, 1)]
    return sum(slope for slope, _ in words) / len(words), sum(slope * place for slope, place in words) / len(words)


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
    return f"A word counts {counts}; 1.00 is fair. A small model's gradient is {found.off:.1%} off."


@pointing
def across_the_cut(sentences: Sequence[Sequence[str]], look: str = "words") -> None:
    """Show a padded batch and where it is cut between GPUs; in a live notebook, move the cut.

    sentences: each as a list of words, the longest first. look: what is shown first: "words" (what each GPU gets),
        "unpacked" (how wide its part is after packing and unpacking) or "loss" (what each sentence weighs in the mean
        of the GPUs' means). Elsewhere it is a picture of two halves, and in words what the cut does.

    Raises ValueError for another look.
    """
    from IPython.display import display

    if look not in LOOKS:
        raise ValueError(f"look is {look!r}; it must be one of {', '.join(LOOKS)}")
    found = outcome(sentences, as_dataparallel(len(sentences), 2))
    if not screen.live():
        says = what_a_word_counts(found) if look == "loss" else (1, 1)
        display(sentence_grid(sentences, found.widths if look == "unpacked" else (), says))
    signs = list(zip(SHAPES, COLOURS, strict=True))
    screen.show(told(found, look), lambda: widget("sentence_cut", sentences=sentences, look=look, looks=signs))
