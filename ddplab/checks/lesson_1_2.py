"""Checks of lesson 1.2, Single-device baseline."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import flat, needs_function, number
from ddplab.course.data import digits
from ddplab.course.models import CNN, MLP


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Models this small are quickest on one core, by far where other work runs beside them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@exercise("1.2.1", "Accuracy on a test split")
@one_thread()
def share_right(accuracy: Callable[[nn.Module, TensorDataset], float]) -> None:
    """`accuracy(model, data)`: the share of images whose largest logit is the label's, however the model was left."""
    needs_function("accuracy", accuracy)
    x, y = digits(train=False).tensors
    torch.manual_seed(0)
    model = CNN(batch_norm=True)
    model(x)  # in training mode, so that the running statistics are not those of a new model
    statistics = model.features[1].running_mean.clone()
    model.eval()
    with torch.no_grad():
        right = model(x[:357]).argmax(dim=1) == y[:357]  # a number that no batch size divides
    share = right.double().mean().item()
    model.train()

    data = TensorDataset(x[:357], y[:357])
    seen: list[int] = []
    model.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    answer = number("accuracy", accuracy(model, data))
    moved = not torch.equal(model.features[1].running_mean, statistics)
    if abs(answer - share) < 1e-6 and not moved:
        if max(seen, default=0) >= len(data):
            hint = "`DataLoader(data, batch_size=64)` serves them in portions."
            raise NotYet(f"the model was given all {len(data)} images at once, not batch by batch", hint)
        _mode_is_kept(accuracy, model, data)
        return
    if 0 < (served := sum(seen)) < len(data):
        hint = "The short last batch counts too: no `drop_last`, and no `//` that leaves it out."
        raise NotYet(f"the model has seen {served} of {len(data)} images: the last batch is left out", hint)
    if answer == right.sum() or answer > 100:
        raise NotYet(f"it returned {answer:g}: that is how many are right", "Divide by how many images there are.")
    if abs(answer - 100 * share) < 1e-3:
        raise NotYet(f"it returned {answer:.2f}: that is in per cent", "Return a share between 0 and 1.")
    if abs(answer - (1 - share)) < 1e-6:
        raise NotYet("it returned the share that is wrong", "Count where the prediction equals the label.")
    if moved:
        hint = "Call model.eval() first; no_grad alone does not stop BatchNorm."
        raise NotYet("measuring changed the model: BatchNorm's running statistics moved", hint)
    if abs(answer - share) < 0.03:
        raise NotYet(
            f"it returned {answer:.4f}, not {share:.4f}: close, on a last batch that is smaller than the others",
            "The mean of the batches' means counts a short batch too much: add up what is right, divide once.",
        )
    hint = "The prediction is the index of the largest of the ten logits: argmax(dim=1)."
    raise NotYet(f"it returned {answer:.4f}, not {share:.4f}", hint)


def _mode_is_kept(accuracy: Callable[[nn.Module, TensorDataset], float], model: nn.Module, data: TensorDataset) -> None:
    """Raise NotYet where a model does not leave in the mode in which it came; it came in training mode already."""
    hint = "Note model.training before, and put it back: model.train(was_training)."
    if not model.training:
        raise NotYet("the model came in training mode and is left in evaluation mode", hint)
    model.eval()
    accuracy(model, data)
    if model.training:
        raise NotYet("a model that came in evaluation mode is left in training mode", hint)


@exercise("1.2.2", "One seed, one run")
@one_thread()
def one_seed(train_mlp: Callable[[int], nn.Module]) -> None:
    """`train_mlp(seed)` returns a trained MLP: the same seed gives the same bits, another seed another model."""
    needs_function("train_mlp", train_mlp)
    models = []
    for noise, seed in ((1, 0), (2, 0), (3, 1)):
        torch.manual_seed(noise)  # whatever the notebook drew before must not matter
        with _batches_seen() as batches:
            model = train_mlp(seed)
        if not isinstance(model, nn.Module):
            raise NotYet(f"`train_mlp` returned {type(model).__name__!r}, not a model", "End with `return model`.")
        models.append(nn.utils.parameters_to_vector(model.parameters()).detach().cpu())
    first, again, other = models
    if not torch.equal(first, again):
        gap = (first - again).abs().max().item()
        raise NotYet(
            f"two runs with seed 0 end with different weights (by up to {gap:.1g})",
            "Two things are random: the first weights and the order of the images. "
            "Set the seed before the model is made, and give the loader a generator of its own.",
        )
    if torch.equal(first, other):
        raise NotYet("seed 0 and seed 1 give the same model", "Is a number written where `seed` should stand?")
    x, y = digits(train=False).tensors
    model.cpu().eval()
    with torch.no_grad():
        share = (model(x).argmax(dim=1) == y).double().mean().item()
    if share < 0.6:
        hint = "Keep the loop: three epochs are enough."
        raise NotYet(f"the model gets {share:.0%} of the test split right: it is hardly trained", hint)
    _are_shuffled(batches)


@contextlib.contextmanager
def _batches_seen() -> Iterator[list[Tensor]]:
    """What every `MLP` is given meanwhile, batch after batch."""
    batches: list[Tensor] = []

    def note(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        if isinstance(module, MLP) and given:
            batches.append(given[0].detach().cpu())

    handle = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield batches
    finally:
        handle.remove()


def _are_shuffled(batches: list[Tensor]) -> None:
    """Raise NotYet where the training digits came in the order of the file, or in batches of another size."""
    x = digits().tensors[0]
    if not batches:
        return  # trained in a way that nobody sees here: it has learned, and repeats itself
    if len(batches[0]) != 32:
        raise NotYet(
            f"the first batch has {len(batches[0])} images, not 32", "`DataLoader(digits(), batch_size=32, …)`"
        )
    if torch.equal(batches[0], x[:32]):
        raise NotYet("the digits are not shuffled: the first batch holds the first 32 of them", "`shuffle=True`")
    steps = len(x) // 32 + 1
    if len(batches) > steps and torch.equal(batches[0], batches[steps]):
        hint = "Make the loader and its generator once, before the loop; each epoch then draws an order of its own."
        raise NotYet("every epoch serves the digits in the same order", hint)


@exercise("1.2.3", "Pieces that are not equal")
@one_thread()
def uneven_pieces(accumulate: Callable[[nn.Module, Tensor, Tensor, int], Any]) -> None:
    """`accumulate(model, x, y, size)` leaves the whole batch's gradient in p.grad, from pieces of `size` images."""
    needs_function("accumulate", accumulate)
    x, y = digits().tensors
    for n, size in ((64, 8), (60, 16)):
        torch.manual_seed(0)
        model = MLP().double()
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        batch = x[:n].double(), y[:n]
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        whole = _gradient(model)
        largest = 0

        def watch(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            nonlocal largest
            largest = max(largest, len(inputs[0]))

        model.register_forward_pre_hook(watch)
        # The gradients of the reference are left in place: starting from zero is part of the exercise.
        accumulate(model, *batch, size)
        if not torch.equal(before, nn.utils.parameters_to_vector(model.parameters()).detach()):
            raise NotYet("the weights have changed", "No optimiser here: only gradients are asked for.")
        if any(p.grad is None for p in model.parameters()):
            raise NotYet("no gradient is there afterwards", "zero_grad() comes before the loop, not after it.")
        got = _gradient(model)
        if largest > size:
            hint = "x.split(size) cuts the batch into pieces of at most `size` images."
            raise NotYet(f"the model was given {largest} images at once, more than {size}", hint)
        if (got - whole).abs().max() < 1e-9:
            continue
        _explain_gradient(got, whole, model, batch, size)


def _explain_gradient(got: Tensor, whole: Tensor, model: nn.Module, batch: tuple[Tensor, Tensor], size: int) -> None:
    """Raise the NotYet that says how a gradient differs from the whole batch's."""
    pieces = list(zip(*(part.split(size) for part in batch), strict=True))
    n, last = len(batch[1]), len(pieces[-1][1])
    alone = []
    for a, b in pieces:
        model.zero_grad()
        F.cross_entropy(model(a), b).backward()
        alone.append(_gradient(model))
    where = f"{n} images in pieces of {size}"
    without_last = sum(len(b) / n * gradient for (_, b), gradient in zip(pieces[:-1], alone, strict=False))
    known = [
        (whole + sum(alone), "what was in p.grad before is still in there", "Begin with model.zero_grad()."),
        (whole + whole, "what was in p.grad before is still in there", "Begin with model.zero_grad()."),
        (sum(alone), f"the means of {len(pieces)} pieces are added up", "Give each piece its share of the batch."),
        (n * whole, "the losses are summed over the images", "Divide by how many images the whole batch has."),
        (without_last, f"the last {last} images are left out", "split(size) keeps the rest as a shorter piece."),
        (alone[-1], "only the last piece is left", "zero_grad() belongs before the loop, not inside it."),
        (alone[-1] / len(pieces), "only the last piece is left", "zero_grad() belongs before the loop, not inside it."),
        (alone[-1] * last / n, "only the last piece is left", "zero_grad() belongs before the loop, not inside it."),
        (
            sum(alone) / len(pieces),
            f"the last piece has {last} images and counts as much as one of {size}",
            "Weigh each piece's mean with its share of the images: len(a) / len(x).",
        ),
    ]
    for gradient, what, hint in known:
        if torch.allclose(got, gradient, rtol=1e-9, atol=1e-12):
            raise NotYet(f"{where}: {what}", hint)
    gap = (got - whole).abs().max().item()
    raise NotYet(f"{where}: the gradient is off by up to {gap:.1g}", "Compare with one backward on the whole batch.")


def _gradient(model: nn.Module) -> Tensor:
    return flat(p.grad for p in model.parameters())
