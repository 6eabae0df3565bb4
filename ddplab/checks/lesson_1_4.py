"""Checks of lesson 1.4, Batch size and convergence."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, kind, needs_function, numbers, reducing_to_one
from ddplab.checks.turns import turn, waiting
from ddplab.course.data import digits
from ddplab.hardware import device

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
    if any(torch.equal(new, way.roll(n)) for way in (labels, labels.flip(0)) for n in range(len(labels))):
        raise NotYet("the labels are in their old order, only moved along or turned round", "`torch.randperm`")


def _tensors(new: Any, images: Any, labels: Any) -> tuple[Any, Any]:
    tensors = getattr(new, "tensors", None)
    if tensors is None:
        raise NotYet(f"`shuffle_labels` returned {kind(new)}, not a TensorDataset", "`return TensorDataset(images, …)`")
    if len(tensors) != 2 or tensors[0].shape != images.shape or tensors[1].shape != labels.shape:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise NotYet(f"its tensors have the shapes {shapes}", "Images first, then one label for each, as in `data`.")
    return tensors[0], tensors[1]


# ------------------------------------------------------------------ your turn


def _tall_images(place: Any = "cpu") -> tuple[Any, Any, Any]:
    """A model with two weights, both 0, that notes how many images it sees; and four of one pixel.

    Their gradients 4, 40, 400 and 4,000 pull the first weight up: the gradient is minus the number said. An image with
    the label 1 is as far below 0, so one that has another's label pulls the weight down.
    """
    model = nn.Linear(1, 2, bias=False).to(place)
    nn.init.zeros_(model.weight)
    model.images = []
    model.register_forward_hook(lambda _, inputs, output: model.images.append(inputs[0].numel()))
    labels = torch.tensor([0, 1, 1, 0], device=place)
    images = torch.tensor([[8.0 * 10**power] for power in range(4)], device=place)
    return model, torch.where(labels[:, None] == 0, images, -images), labels


def _fair(
    model: Any, x: Any, y: Any, *, share: Callable[..., slice] = lambda rank, size: slice(rank, None, size),
    factor: Callable[[int, int], float] = lambda n, size: n * size / 4, reduction: str = "mean",
) -> Any:  # fmt: skip
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = share(rank, size)
    return F.cross_entropy(model(x[mine]), y[mine], reduction=reduction) * factor(len(y[mine]), size)


def _mispaired(
    model: Any, x: Any, y: Any, *, labels: Callable[..., Any], factor: Callable[[int, int], float] = lambda n, size: 1
) -> Any:
    """As who deals the images, and takes other images' labels."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = x[rank::size]
    return F.cross_entropy(model(mine), labels(y, len(mine))) * factor(len(mine), size)


def _as_many(y: Any, n: int) -> Any:
    return y[:n]


def _a_block(y: Any, n: int) -> Any:
    return y.tensor_split(dist.get_world_size())[dist.get_rank()]


def _from_own(y: Any, n: int) -> Any:
    return y[dist.get_rank() :][:n]


OTHERS = "images are paired with labels of other images", "Image and label belong together: deal both in one way."


def _forward_for_all(model: Any, x: Any, y: Any) -> Any:
    """As who lets the model see all images, and keeps the losses of its own."""
    return F.cross_entropy(model(x), y, reduction="none")[dist.get_rank() :: dist.get_world_size()].mean()


def _own_gradient(loss: Any, model: Any, *_: Any) -> list[float]:
    """How many images this rank took, and what they pull the weight by."""
    loss.backward()
    return [sum(model.images), -model.weight.grad[0].item()]


_own = partial(_fair, factor=lambda n, size: 1)
CARDS = "Like cards: of three ranks, rank 0 gets the images 0, 3, 6, … Where does rank 1 begin, in which steps?"

turn(
    "1.4.a",
    "The loss of a share",
    _own,
    lambda rank, size: _tall_images(device()),
    ranks=(3, 2),
    look=_own_gradient,
    heads=("images", "their mean gradient"),
    mistakes=[
        *[(partial(_mispaired, labels=labels), *OTHERS) for labels in (_as_many, _a_block, _from_own)],
        (_forward_for_all, "the model computes all four images on every rank: the mean is right, and no work is shared",
         "Take this rank's images first, and show the model no others."),
        (partial(_own, share=lambda rank, size: slice(None)), "every rank takes all four images", CARDS),
        (partial(_own, share=lambda rank, size: slice(0, None, size)), "all ranks take rank 0's images", CARDS),
        (partial(_own, share=lambda rank, size: slice(rank, None)), "each rank takes all images from its own on",
         CARDS),
        (partial(_own, share=lambda rank, size: slice(rank, size)), "each rank takes the images from its own up to "
         "`ranks`", "A slice has a begin, an end and a step, with two colons. " + CARDS),
        (partial(_own, share=lambda rank, size: slice(rank, rank + 1)), "each rank takes one image, and others are "
         "left out", CARDS),
        (partial(_own, share=lambda rank, size: slice(-(-4 * rank // size), -(-4 * (rank + 1) // size))),
         "each rank takes a block of neighbours", CARDS),
        (partial(_own, share=lambda rank, size: slice(rank + 1, None, size)), "image 0 is left out",
         "Ranks count from 0, and so do images."),
        (partial(_fair, reduction="sum", factor=lambda n, size: 1), "that is the sum over this rank's images",
         "Leave `reduction` as it is: the mean."),
        (partial(_fair, factor=lambda n, size: 1 / size), "it is divided by the ranks, too",
         "That comes later: the ranks average their gradients."),
        (partial(_fair, factor=lambda n, size: n / 4), "it is weighed by its part of the batch",
         "Here the plain mean is asked for, over this rank's images."),
        (_fair, "each image counts once: you are ahead of the lesson",
         "Here the plain mean is asked for, over this rank's images. The lesson will find out what is wrong with it."),
    ],
    hints={
        "'NoneType' object has no attribute 'backward'": "Return the loss: `shared` calls its `backward()`.",
        "to match target": "The labels are dealt as the images are.",
        "scalar outputs": "A loss is one number: the mean over the images.",
        "tuple index out of range": "`chunk` may make fewer pieces than you ask for. " + CARDS,
    },
    otherwise="The mean loss over this rank's images, dealt like cards.",
)  # fmt: skip


def _mean_gradient(loss: Any, model: Any, *_: Any) -> list[float]:
    """How many images this rank took, and the mean over the ranks of what they pull the weight by."""
    loss.backward()
    dist.all_reduce(model.weight.grad)
    return [sum(model.images), -model.weight.grad[0].item() / dist.get_world_size()]


turn(
    "1.4.b",
    "Each image counts once",
    _fair,
    lambda rank, size: _tall_images(device()),
    ranks=(3, 2),
    look=_mean_gradient,
    heads=("images", "mean gradient"),
    mistakes=[
        *[(partial(_mispaired, labels=labels, factor=factor), *OTHERS) for labels in (_as_many, _a_block, _from_own)
          for factor in (lambda n, size: n * size / 4, lambda n, size: 1)],
        (partial(_fair, factor=lambda n, size: 1), "each rank counts alike, however many images it has",
         "This rank has `len(mine)` of `len(x)` images."),
        (partial(_fair, factor=lambda n, size: n / 4), "it is too small, by the number of ranks",
         "The mean over the ranks divides once more. By what?"),
        (partial(_fair, factor=lambda n, size: 1 / size),
         "each rank counts alike still, and the mean over the ranks is divided by them once more",
         "Did you average the losses? `backward()` does not go through `all_reduce`: nothing is to be sent. "
         "Weigh this rank's loss: it has `len(mine)` of `len(x)` images."),
        (partial(_fair, reduction="sum", factor=lambda n, size: 1), "that is a sum over images",
         "Divide by the images of the whole batch, and mind that the ranks take a mean. (`//` drops a rest.)"),
        (partial(_fair, factor=lambda n, size: n * size), "the sum over the images is not divided by how many they are",
         "The whole batch has `len(x)`."),
        (partial(_fair, factor=lambda n, size: n / size), "it is divided by the ranks, and not by the images",
         "The mean over the ranks divides by them once more. And what makes a mean of a sum over the images?"),
        (partial(_fair, factor=lambda n, size: size), "each rank's mean is multiplied by the number of ranks",
         "How many images is this mean of, and of how many in all?"),
        *[(partial(_fair, factor=factor), "the wrong way round: many images count for little",
           "`len(mine)` of `len(x)`, not the other way.")
          for factor in (lambda n, size: 4 / size / n, lambda n, size: 4 / n, lambda n, size: 4 * size / n,
                         lambda n, size: 1 / n)],
        (partial(_fair, share=lambda rank, size: slice(None), factor=lambda n, size: 1),
         "every rank computes all four images: right, and nothing is won", "Take this rank's share first."),
        *[(partial(_fair, share=lambda rank, size: slice(None), factor=factor),
           "every rank computes all four images, and what comes of them is weighed, too",
           "Take this rank's share first: `x[rank::ranks]`.")
          for factor in (lambda n, size: size, lambda n, size: size / 4, lambda n, size: 1 / size)],
        *[(partial(_fair, share=lambda rank, size: slice(4 // size * rank, 4 // size * (rank + 1)), factor=factor),
           "one image on each of three ranks: the fourth is left out",
           "Deal as `own_loss` does: `x[rank::ranks]`.")
          for factor in (lambda n, size: n * size / 4, lambda n, size: 1)],
        (partial(_fair, share=lambda rank, size: slice(0, None, size)), "all ranks take rank 0's images",
         "Begin at `rank`: `x[rank::ranks]`."),
        (partial(_fair, factor=lambda n, size: n * 3 / 4), "right on three ranks only", "`ranks` says how many."),
    ],
    hints={
        "'NoneType' object has no attribute 'backward'": "Return the loss: `shared` calls its `backward()`.",
        "scalar outputs": "A loss is one number: a mean or a sum over the images.",
        "tuple index out of range": "`chunk` may make fewer pieces than you ask for: 4 images by 3 make 2. "
        "Deal as `own_loss` does: `x[rank::ranks]`.",
    },
    otherwise="A mean over the ranks' own images, times what makes it count as it should.",
)  # fmt: skip


def _loss_of_all(total: float, images: int, reduce: Callable[..., Any] = dist.all_reduce) -> float:
    both = torch.tensor([total, images], device=device())
    reduce(both)
    return (both[0] / both[1]).item()


def _summed(number: float) -> float:
    return _loss_of_all(number, 1) * dist.get_world_size()


turn(
    "1.4.c",
    "The loss of everybody's images",
    _loss_of_all,
    lambda rank, size: ([16.0, 8.0, 6.0][rank], [4, 1, 3][rank]),
    ranks=(3, 2),
    call=reducing_to_one,
    look=lambda loss, total, images: [total, images, [] if loss is None else loss],
    heads=("brings total", "images", "returns"),
    mistakes=[
        (lambda total, images: total / images, "each rank has the loss of its own images", "`dist.all_reduce`"),
        (lambda total, images: _loss_of_all(total / images, 1), "a rank with few images counts as much as any",
         "Add up the totals and the images, each for itself; then divide."),
        (lambda total, images: _summed(total), "that is a total, not a mean", "Divide by everybody's images."),
        (lambda total, images: _loss_of_all(total, 1), "the total is divided by the ranks, and not by the images",
         "How many images have all ranks together?"),
        (lambda total, images: _summed(total) / images, "everybody's total, over this rank's images",
         "Add up the images too."),
        (lambda total, images: _summed(total) / images / dist.get_world_size(),
         "everybody's total, over this rank's images times the ranks: they have different numbers of them",
         "Add up the images too."),
        (lambda total, images: total / _summed(images), "this rank's total, over everybody's images",
         "Add up the totals too."),
        (lambda total, images: _loss_of_all(total, images) / dist.get_world_size(), "divided by the ranks, too",
         "Everybody's images are counted already: divide by them, and by nothing else."),
        (lambda total, images: _loss_of_all(total, images, lambda both: dist.reduce(both, dst=0)),
         "only rank 0 has everybody's: that is `reduce`", "`dist.all_reduce` gives them to every rank."),
        (lambda total, images: _summed(total / images), "the ranks' means are added up",
         "Add up the totals and the images, each for itself; then divide."),
        (lambda total, images: 1 / _loss_of_all(total, images), "upside down: images over losses",
         "The total, divided by the images."),
        (lambda total, images: (_summed(total), _summed(images)), "both sums come back, and are not divided",
         "The one over the other is the mean."),
        (lambda total, images: _loss_of_all(total, images) / images, "divided by this rank's images, too",
         "Everybody's images are counted already: divide by them, and by nothing else."),
        (lambda total, images: _loss_of_all(total * images, images), "each total is multiplied by its images",
         "A total is a sum over its images already."),
        (lambda total, images: _loss_of_all(total, images, lambda both: dist.broadcast(both, src=0)),
         "all return rank 0's own loss; it has the largest total and the most images, too",
         "Nothing is added up by `broadcast`, nor with `ReduceOp.MAX`: `dist.all_reduce`, as it comes."),
        (lambda total, images: [_loss_of_all(total, images), None][dist.get_rank() > 0], "only rank 0 returns it",
         "Every rank is to return it: no `if` around the `return`."),
        (lambda total, images: print(_loss_of_all(total, images)), "nothing comes back", "`return` it."),
        (waiting(lambda total, images: None if dist.get_rank() else _loss_of_all(total, images)),
         "rank 0 waits for ever", "`all_reduce` is called by every rank, or it does not end."),
    ],
    hints={"torch.Tensor": "`all_reduce` takes a tensor: `torch.tensor(…, device=device())`."},
    otherwise="Everybody's total, over everybody's images.",
)  # fmt: skip
