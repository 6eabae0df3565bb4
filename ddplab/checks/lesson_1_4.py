"""Checks of lesson 1.4, Batch size and convergence."""

import math
from collections.abc import Callable
from typing import Any

import torch

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, kind, needs_function, numbers
from ddplab.course.data import digits

TOO = "The short last batch makes an update too."

# 50,000 images in 100 classes, batches of 128, on one GPU and on four.
numbers(
    "1.4.1",
    "What is printed",
    Number("guessing", math.log(100), "Minus the log of the chance that each class gets.", within=2e-3).with_mistakes(
        (math.log2(100), "that is a logarithm to base 2", "Cross entropy takes the natural one, `math.log`."),
        (math.log10(100), "that is a logarithm to base 10", "Cross entropy takes the natural one, `math.log`."),
        (math.log(10), "that is for ten classes", "Here there are 100."),
        (-math.log(100), "the sign is wrong", "Cross entropy is *minus* the log of a chance below 1."),
        (0.01, "that is the chance of one class", "The loss is minus its logarithm."),
    ),
    Number("last_alone", 80, "What is left of 50,000 when the full batches are taken away?").with_mistakes(
        (128, "that is a full batch", "50,000 is not a multiple of 128."),
        (48, "so many are missing to a full batch", "The last batch holds what is left over."),
    ),
    Number("last_rank_0", 84, "What is left of 12,500 when the full batches are taken away?").with_mistakes(
        (128, "that is a full batch", "A quarter of 50,000 is not a multiple of 128."),
        (80, "that is the rest on one GPU", "Rank 0 has a quarter of the images."),
        (20, "that is a quarter of the rest on one GPU", "The images are dealt out first, then cut into batches."),
        (336, "that is the rest for all four ranks", "Rank 0 prints the loss of its own images."),
    ),
    Number("updates_alone", 391, "Batches in 50,000 images, the short one included.").with_mistakes(
        (390, "those are the full batches", TOO),
        (390.625, "that is not a whole number", TOO),
    ),
    Number("updates_four", 98, "Batches in 12,500 images, the short one included.").with_mistakes(
        (97, "those are the full batches", TOO),
        (97.65625, "that is not a whole number", TOO),
        (391, "that is as many as on one GPU", "Each rank has a quarter of the images."),
        (392, "that counts each rank's own", "All four make one update together."),
    ),
)


@exercise("1.4.2", "A test that unmasks memorising")
def shuffled(shuffle_labels: Callable[..., Any]) -> None:
    """The digits: the same images, the same labels in another order, and nothing changed in what was given."""
    needs_function("shuffle_labels", shuffle_labels)
    data = digits()
    images, labels = (tensor.clone() for tensor in data.tensors)
    new = shuffle_labels(data, 0)
    if not torch.equal(data.tensors[1], labels) or not torch.equal(data.tensors[0], images):
        raise NotYet("`data` itself was changed", "Make new tensors; `labels[order]` is one.")
    new_images, new_labels = _tensors(new, images, labels)
    if not torch.equal(new_images, images):
        if torch.equal(torch.sort(new_labels).values, torch.sort(labels).values):
            raise NotYet("the images moved too", "Images stay in their order; the labels alone are shuffled.")
        raise NotYet("the images are not those of `data`", "Images stay as they are; the labels alone are shuffled.")
    if torch.equal(new_labels, labels):
        raise NotYet("every image still has its own label", "Put the labels in an order drawn by lot.")
    _no_rule_left(labels, new_labels)
    if not torch.equal(new_labels.bincount(minlength=10), labels.bincount(minlength=10)):
        hint = "Not new labels: the same ones, in the order of `torch.randperm`."
        raise NotYet("the classes have other sizes than before", hint)
    if not torch.equal(_tensors(shuffle_labels(data, 0), images, labels)[1], new_labels):
        raise NotYet("the same seed gave two different orders", "A `torch.Generator().manual_seed(seed)` draws them.")
    if torch.equal(_tensors(shuffle_labels(data, 1), images, labels)[1], new_labels):
        raise NotYet("seed 1 gives the same order as seed 0", "Is `seed` used?")


def _no_rule_left(labels: Any, new: Any) -> None:
    """Raise NotYet where the new label follows from the old one, or from the new one before it."""
    follows = [len(set(new[labels == digit].tolist())) == 1 for digit in range(10)]
    if all(follows):
        raise NotYet(
            "each digit got one new label, the same for all its images: that is still a rule, and can be learned",
            "Two images of a 3 must be able to get different labels.",
        )
    if (new == labels).double().mean() > 0.2 or bool((new[1:] >= new[:-1]).all()):
        raise NotYet("many images kept their own label, or the order is not drawn by lot", "`torch.randperm`")


def _tensors(new: Any, images: Any, labels: Any) -> tuple[Any, Any]:
    tensors = getattr(new, "tensors", None)
    if tensors is None:
        raise NotYet(f"`shuffle_labels` returned {kind(new)}, not a TensorDataset", "`return TensorDataset(images, …)`")
    if len(tensors) != 2 or tensors[0].shape != images.shape or tensors[1].shape != labels.shape:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise NotYet(f"its tensors have the shapes {shapes}", "Images first, then one label for each, as in `data`.")
    return tensors[0], tensors[1]
