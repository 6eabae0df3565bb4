"""Checks of lesson 1.5, Noise and batches."""

from collections.abc import Callable
from typing import Any

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, needs_function, numbers

ROUGHLY = 1e-6  # a float32 tensor is as good as a float
ROOT = "The error goes with the *root* of the batch."

# From an rms error of 0.8 at batch 32.
numbers(
    "1.5.1",
    "Numbers of noise",
    Number("error_at_8", 1.6, "A quarter of the batch: by which factor does 1/√B grow?", within=ROUGHLY).with_mistakes(
        (3.2, "that goes in proportion to the batch", ROOT),
        (0.4, "fewer images make it larger", "A smaller batch is noisier."),
        (0.2, "fewer images make it larger", "A smaller batch is noisier."),
        (0.8, "that is the error at 32", "A smaller batch is noisier."),
    ),
    Number("batch_for_02", 512, "A quarter of the error needs how many times the batch?", within=ROUGHLY).with_mistakes(
        (128, "that goes in proportion to the batch", ROOT),
        (8, "that makes more noise", "A quarter of the error needs a larger batch."),
        (2, "that makes more noise", "A quarter of the error needs a larger batch."),
        (64, "that has an error of 0.57", "A quarter of the error needs how many times the batch?"),
        (256, "that has an error of 0.28", "A quarter of the error needs how many times the batch?"),
    ),
    Number("ranks_for_half", 4, "Half the error needs how many times the batch?", within=ROUGHLY).with_mistakes(
        (2, "two ranks have 64 images, and an error of 0.57", ROOT),
        (128, "that is the number of images", "How many ranks have so many, with 32 each?"),
        (16, "that makes an error of 0.2", "Half the error, not a quarter."),
    ),
    Number("epochs_at_256", 80, "32 updates in an epoch with 32, and 4 with 256.", within=ROUGHLY).with_mistakes(
        (10, "with as many epochs it has an eighth of the updates", "32 updates in an epoch, and 4."),
        (1.25, "the wrong way round", "A larger batch makes fewer updates in an epoch, so it needs more epochs."),
        (320, "that is the number of updates", "How many epochs is that, with 4 updates in each?"),
        (8, "that is by how many times", "How many epochs in all?"),
    ),
)


PLANS = {
    (96, 2, 20): (16, 3),
    (96, 4, 20): (12, 2),
    (64, 1, 64): (64, 1),
    (64, 2, 64): (32, 1),
    (100, 2, 20): (10, 5),
    (26, 2, 12): (1, 13),
}


@exercise("1.5.2", "The same batch on any number of GPUs")
def plans(plan: Callable[..., Any]) -> None:
    """Several batches, numbers of ranks and sizes that fit; then a batch that cannot be shared."""
    needs_function("plan", plan)
    for (batch, ranks, fits), (size, count) in PLANS.items():
        call, given = f"plan({batch}, {ranks}, {fits})", plan(batch, ranks, fits)
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise NotYet(f"`{call}` gives {given!r}, not a pair", "`return size, pieces`")
        if any(isinstance(n, bool) or n != int(n) for n in given):
            raise NotYet(f"`{call}` is {tuple(given)}: those are not whole numbers", "`//` divides to whole numbers.")
        mine, pieces = given
        says = f"`{call}` is ({mine:g}, {pieces:g})"
        if (mine, pieces) == (size, count):
            continue
        if (mine, pieces) == (count, size):
            raise NotYet(f"{says}: the wrong way round", "First the size of a piece, then the number of pieces.")
        if mine * pieces == batch and ranks > 1:
            raise NotYet(f"{says}: that is the whole batch on each of {ranks} ranks", "A rank has its share only.")
        if mine * pieces * ranks != batch:
            total = mine * pieces * ranks
            raise NotYet(f"{says}: {total:g} images an update, not {batch}", "size * pieces * ranks is the batch.")
        if mine > fits:
            raise NotYet(f"{says}: a piece of {mine:g} does not fit", f"At most {fits} images at a time.")
        raise NotYet(f"{says}: it can be done with fewer pieces", "Try 1, 2, 3, … and take the first that works.")
    for batch, ranks, fits in ((100, 3, 20), (2, 4, 20)):
        try:
            given = plan(batch, ranks, fits)
        except ValueError:
            continue
        raise NotYet(
            f"`plan({batch}, {ranks}, {fits})` is {given!r}: {ranks} ranks cannot share {batch} images equally",
            "Raise ValueError there.",
        )
