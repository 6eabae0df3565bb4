"""Sentences across the cut: what the page calculates is what torch does."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import scatter
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from ddplab.course.sentence_cut import across_the_cut, as_dataparallel, off_after, outcome, told
from ddplab.vgpu import virtual_gpus

SENTENCES = [line.split() for line in ("a fox jumps over the dog", "tea is ready", "sleep well", "hush")]


class Letters(nn.Module):
    """Guesses a word's letters from its place; returns the mean squared error of its part."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, letters):
        places = torch.arange(1, letters.size(1) + 1, device=letters.device)
        errors = (self.weights[0] + self.weights[1] * places - letters) ** 2
        return errors[letters > 0].mean().view(1)


def gradient(model, *parts):
    model.zero_grad()
    torch.cat([model(part) for part in parts]).mean().backward()
    [weights] = model.parameters()
    return weights.grad.cpu().clone()


def gram_of(letters):
    own = torch.stack([gradient(Letters(), sentence[None]) for sentence in letters])
    return (own @ own.T).tolist()


@pytest.mark.parametrize("sentences", [SENTENCES, SENTENCES[::-1], SENTENCES[:2]])
def test_as_dataparallel_does_it(sentences):
    letters = [torch.tensor([len(word) for word in sentence], dtype=torch.float64) for sentence in sentences]
    found = outcome(sentences, as_dataparallel(len(sentences), 2), gram_of(letters))
    with virtual_gpus(2) as gpus:
        padded = pad_sequence(letters, batch_first=True).to("vgpu:0")
        assert found.sentences == [len(part) for part in scatter(padded, list(gpus))]
        model = Letters().to("vgpu:0")
        one, two = gradient(model, padded), gradient(nn.DataParallel(model), padded)
    assert ((two - one).norm() / one.norm()).item() == pytest.approx(found.off, abs=1e-7)


@pytest.mark.parametrize("sizes", [[1, 3], [3, 1], [2, 1, 1], [1, 1, 1, 1], [4, 0]])
def test_any_cut_as_torch_calculates_it(sizes):
    letters = [torch.tensor([len(word) for word in sentence], dtype=torch.float64) for sentence in SENTENCES]
    padded, lengths = pad_sequence(letters, batch_first=True), torch.tensor([len(it) for it in SENTENCES])
    found = outcome(SENTENCES, sizes, gram_of(letters))
    parts = [part for part in padded.split(sizes) if len(part)]
    unpacked = [
        pad_packed_sequence(pack_padded_sequence(part, length, batch_first=True), batch_first=True)[0]
        for part, length in zip(parts, [it for it in lengths.split(sizes) if len(it)], strict=True)
    ]
    assert found.widths == [it.size(1) for it in unpacked]
    assert found.padding == [int((part == 0).sum()) for part in parts]
    assert found.words == [int((part > 0).sum()) for part in parts]
    one, several = gradient(Letters(), padded), gradient(Letters(), *parts)
    assert ((several - one).norm() / one.norm()).item() == pytest.approx(found.off, abs=1e-7)
    assert sum(found.shares) == pytest.approx(1) and sum(found.fair) == pytest.approx(1)
    assert (found.off < 1e-7) == (found.shares == pytest.approx(found.fair))


@pytest.mark.parametrize(("count", "gpus"), [(8, 3), (7, 3), (4, 3), (1, 2), (9, 4)])
def test_the_cut_is_that_of_scatter(count, gpus):
    with virtual_gpus(gpus) as them:
        parts = scatter(torch.zeros(count).to("vgpu:0"), list(them))
        assert [size for size in as_dataparallel(count, gpus) if size] == [len(part) for part in parts]


def test_in_words():
    found = outcome(SENTENCES, [2, 2])
    assert told(found, "words") == "GPU 0: 2 sentences, 9 words, 3 padding; GPU 1: 2 sentences, 3 words, 9 padding"
    assert told(found, "unpacked") == "GPU 0: 6 wide, GPU 1: 2 wide: ✗ gather refuses them"
    assert told(outcome([["a"], ["b"]], [1, 1]), "unpacked").endswith("✓ gather joins them")
    assert told(found, "loss") == "A word counts 0.67 on GPU 0, 2.00 on GPU 1; 1.00 is fair."
    found = outcome(SENTENCES[:2], [1, 1], [[1, 0], [0, 1]])  # 6 words and 3, whose gradients have nothing in common
    assert found.off == pytest.approx(0.1**0.5) and told(found, "loss").endswith("fair. The gradient is 31.6% off.")


def test_a_cut_of_sentences_in_another_order():
    letters = [torch.tensor([len(word) for word in sentence], dtype=torch.float64) for sentence in SENTENCES]
    own = torch.stack([gradient(Letters(), sentence[None]) for sentence in letters])
    assert off_after(SENTENCES, [1, 3], own) == outcome(SENTENCES, [1, 3], gram_of(letters)).off
    turned = outcome(SENTENCES[::-1], [1, 3], gram_of(letters[::-1])).off
    assert off_after(SENTENCES, [1, 3], own, [3, 2, 1, 0]) == pytest.approx(turned) != off_after(SENTENCES, [1, 3], own)


def test_what_lesson_2_2_says_to_find():
    all_ = ["our old tortoise walks home in the rain", "the quick fox jumps over a lazy dog"]
    all_ += ["my cat sleeps on the warm keyboard", "nobody reads the manual before noon"]
    all_ += ["the tea is ready", "birds sing early", "good morning", "sleep well"]
    longest_first = [sentence.split() for sentence in all_]
    mixed = [longest_first[n] for n in (0, 7, 1, 6, 2, 5, 3, 4)]
    assert "0.87 on GPU 0, 1.18 on GPU 1; 1.00 is fair" in told(outcome(longest_first, [3, 5]), "loss")
    nearest = min((outcome(longest_first, [n, 8 - n]) for n in range(1, 8)), key=lambda it: abs(it.words[0] - 20))
    assert nearest.words == [23, 17] and outcome(mixed, as_dataparallel(8, 4)).words == [10] * 4
    accepts, even = [], []
    for order in (longest_first, mixed, longest_first[::-1]):
        halves = {n: outcome(order, [n, 8 - n]) for n in range(1, 8)}
        assert all(sum(it.padding) == 24 for it in halves.values())
        accepts.append([n for n, it in halves.items() if len(set(it.widths)) == 1])
        even.append([n for n, it in halves.items() if it.words == [20, 20]])
    assert accepts == [[1], [1, 2], [7]] and even == [[], [4], []]
    assert outcome(mixed, [4, 4]).widths == [8, 7]


def test_a_picture_and_words_where_nobody_can_press(capsys):
    across_the_cut(SENTENCES, "unpacked")
    assert "6 wide" in capsys.readouterr().out
    with pytest.raises(ValueError, match="words, unpacked, loss"):
        across_the_cut(SENTENCES, "all")
