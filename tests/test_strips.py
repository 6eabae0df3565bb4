"""The strips of lesson 10: every sample in its place, repeats hatched, what nobody is served named."""

import matplotlib

matplotlib.use("Agg")

from torch.utils.data import DistributedSampler

from ddplab.strips import strip


def drawn(figure):
    axis = figure.axes[0]
    hatched = [bool(patch.get_hatch()) for patch in axis.patches]
    return hatched, [text.get_text() for text in axis.texts]


def test_padding_is_hatched_and_all_else_is_not():
    ranks = [list(DistributedSampler(range(10), num_replicas=4, rank=rank, shuffle=False)) for rank in range(4)]
    hatched, texts = drawn(strip({"an epoch": ranks}, 10))
    assert hatched == [False] * 10 + [True] * 2
    assert texts[:12] == [str(sample % 10) for sample in range(12)] and texts[12:] == [
        "an epoch", "rank 0", "rank 1", "rank 2", "rank 3",
    ]  # fmt: skip


def test_a_repeat_counts_within_its_title_and_what_nobody_has_is_named():
    hatched, texts = drawn(strip({"one": [[0, 1], [1]], "two": [[1], []]}, 3, names=["first", "second"]))
    assert hatched == [False, False, True, False]  # the second row's 1 comes before the first row's, a column later
    assert "nobody: 2" in texts and "nobody: 0, 2" in texts and texts[-2:] == ["first", "second"]
