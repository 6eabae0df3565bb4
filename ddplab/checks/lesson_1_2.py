"""Checks of lesson 1.2, Single-device baseline."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import flat, needs_function, number
from ddplab.checks.turns import turn
from ddplab.course.data import digits
from ddplab.course.models import CNN, MLP
from ddplab.hardware import device


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
    full = len(seen) * max(seen, default=0)  # as many images as there were, had the last batch been full
    if full and abs(answer - right.sum().item() / full) < 1e-6:
        hint = "The last batch is shorter: count the images that come, or take `len(data)`."
        raise NotYet(f"it returned {answer:.4f}: divided by {full} images, and there are {len(data)}", hint)
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
    _are_training_digits(batches)
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


def _are_training_digits(batches: list[Tensor]) -> None:
    if batches and not (digits().tensors[0] == batches[0][0]).flatten(1).all(dim=1).any():
        raise NotYet("the loader serves other images than the training digits", "`digits()`, with nothing in brackets.")


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


# ------------------------------------------------------------------ your turn


def _two_weights(epochs: int) -> tuple[Any, ...]:
    """A model with two weights, both 0, two batches of two images of one pixel, and `epochs` epochs at a rate of 1."""
    model = nn.Linear(1, 2, bias=False).to(device())
    nn.init.zeros_(model.weight)
    return model, TensorDataset(torch.ones(4, 1), torch.zeros(4, dtype=torch.long)), 2, 1.0, epochs


def _train(
    model: Any, data: Any, batch: int, lr: float, epochs: int, *, zero: bool = True, step: float = 1,
    note: str = "before", loss_of: Callable[..., Any] = F.cross_entropy, late: str = "",
) -> list[float]:  # fmt: skip
    """The lesson's loop, one thing done otherwise at a time. late: what is done once an epoch (zero, step, note)."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr), []
    for _ in range(epochs):
        if "zero" in late:
            optimizer.zero_grad()
        for x, y in DataLoader(data, batch):
            if zero and "zero" not in late:
                optimizer.zero_grad()
            loss = loss_of(model(x.to(device())), y.to(device()))
            (loss * (-1 if step < 0 else 1)).backward()
            for _ in range(int(abs(step)) if "step" not in late else 0):
                optimizer.step()
            if note == "after":
                loss = loss_of(model(x.to(device())), y.to(device()))
            if note and "note" not in late:
                losses.append(loss if note == "graph" else loss.item())
        if "step" in late:
            optimizer.step()
        if "note" in late:
            losses.append(loss.item())
    return losses


def _one_behind(model: Any, data: Any, batch: int, lr: float, epochs: int) -> list[float]:
    optimizer, losses = torch.optim.SGD(model.parameters(), lr), []
    for x, y in [pair for _ in range(epochs) for pair in DataLoader(data, batch)]:
        loss = F.cross_entropy(model(x.to(device())), y.to(device()))
        optimizer.step()
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
    return losses


def _last(losses: Any) -> Any:
    last = (losses or ["none"])[-1]
    return "with its graph" if getattr(last, "requires_grad", False) else last


ONE_AN_EPOCH = "there is one update an epoch, and not one a batch"
INSIDE = "All four steps and the note belong inside of the loop over batches."

turn(
    "1.2.a",
    "One step",
    _train,
    {"1 epoch of 2 batches": partial(_two_weights, 1), "2 epochs": partial(_two_weights, 2)},
    look=lambda losses, model, *_: [len(losses or []), _last(losses), *model.weight.flatten().tolist()],
    heads=("losses", "the last", "a weight", "the other"),
    mistakes=[
        (partial(_train, zero=False), "gradients of earlier steps are still there, and are added to",
         "`optimizer.zero_grad()`, in every step."),
        (partial(_train, step=0), "the weights never move",
         "`step()` needs gradients: `backward()` makes them, `zero_grad()` takes them away. In which order?"),
        (partial(_train, loss_of=partial(F.cross_entropy, reduction="sum")), "the loss is a sum over the images",
         "Leave `reduction` as it is: the mean."),
        (partial(_train, loss_of=lambda scores, y: F.cross_entropy(scores.softmax(1), y)),
         "softmax is taken twice", "`F.cross_entropy` wants the scores as the model gives them."),
        (partial(_train, note=""), "no loss is noted", "`losses.append(loss.item())`, in every step."),
        (partial(_train, note="graph"), "each loss is kept with its graph, and so the memory of each step",
         "`.item()` takes the number alone."),
        (partial(_train, note="after"), "the loss that is noted was asked for anew, after the update",
         "Note the loss that you went backward from."),
        (partial(_train, late="step"), ONE_AN_EPOCH, INSIDE),
        (partial(_train, late="step note"), ONE_AN_EPOCH, INSIDE),
        (partial(_train, late="note"), "one loss an epoch is noted, and not one a batch", INSIDE),
        (partial(_train, late="zero"), "gradients are set to zero once an epoch, and add up meanwhile", INSIDE),
        (_one_behind, "each update goes by the batch before it", "`step()` after `backward()`."),
        (lambda *given: [it for it in _train(*given) for _ in "ab"], "each loss is noted twice",
         "`losses.append(loss.item())` once, in every step."),
        (partial(_train, step=2), "each batch updates twice", "One `step()` a batch."),
        (partial(_train, step=-1), "the loss grows", "The optimiser makes smaller what `backward()` is called on."),
    ],
    hints={
        "not implemented for 'Long'": "The scores come first: `F.cross_entropy(scores, labels)`.",
        "second time": "Forward belongs into the loop: each batch has a loss of its own.",
        "does not require grad": "Backward needs what forward has noted: the scores `model(x)`, and no `no_grad`, no "
        "`item()`, no `argmax`.",
        "has no attribute 'append'": "`losses`, with es at its end, is the list.",
        "has no attribute 'step'": "`step` is the optimiser's: `optimizer.step()`.",
        "'Tensor' object is not callable": "`optimizer.step()` takes nothing.",
    },
    otherwise="zero_grad, forward, backward, step: each once for each batch.",
)  # fmt: skip


def _apart(found: Tensor, right: Tensor) -> float:
    return ((found - right).norm() / right.norm()).item()


turn(
    "1.2.b",
    "How far apart",
    _apart,
    {
        "12, 8 from 6, 8": lambda: (torch.tensor([12.0, 8.0]), torch.tensor([6.0, 8.0])),
        "9, 12 from 6, 8": lambda: (torch.tensor([9.0, 12.0]), torch.tensor([6.0, 8.0])),
        "8, 6 from 6, 8, in float64": lambda: (torch.tensor([8.0, 6.0]).double(), torch.tensor([6.0, 8.0]).double()),
        "6, 8 from 6, 8": lambda: (torch.tensor([6.0, 8.0]), torch.tensor([6.0, 8.0])),
    },
    look=lambda off, *_: [] if off is None else off,
    heads=("apart",),
    mistakes=[
        (lambda found, right: (found - right).norm(), "it is not a share of anything", "Divide by `right.norm()`."),
        (lambda found, right: _apart(right, found), "it is a share of the wrong one's length", "Of `right`'s."),
        (lambda found, right: (found.norm() - right.norm()) / right.norm(), "lengths were compared, not vectors",
         "Subtract first, then take the length."),
        (lambda found, right: (found.norm() - right.norm()).abs() / right.norm(),
         "lengths were compared, not vectors", "Subtract first, then take the length."),
        (lambda found, right: _apart(found, right) ** 2, "that is the square of it",
         "`norm()` is the root of the sum of squares."),
        (lambda found, right: (found - right).pow(2).sum() / right.norm(), "the difference is squared, with no root",
         "`norm()` takes the root, too."),
        (lambda found, right: (found - right).sum() / right.sum(), "differences up and down cancel",
         "`norm()` squares each number first."),
        (lambda found, right: (found - right).abs().sum() / right.abs().sum(),
         "absolute values are added up, and no squares", "A length is `norm()`."),
        (lambda found, right: (found - right).norm() / right.norm() ** 2, "it is divided by a squared length",
         "Divide by `right.norm()`."),
        (lambda found, right: (found - right).norm() / len(right), "it is divided by how many numbers there are",
         "`len` counts them; the length of the vector is `right.norm()`."),
        (lambda found, right: right.norm() / (found - right).norm(), "upside down",
         "The length of the difference, divided by that of `right`."),
        (lambda found, right: (found - right) / right, "there is an answer for each number",
         "One for the whole vector: `norm()` of the difference."),
        (lambda found, right: ((found - right) / right).norm(), "each number is divided by its own",
         "Take both lengths first, then divide."),
        (lambda found, right: (found - right).abs().max(), "that is the largest difference", "A length is `norm()`."),
    ],
    hints={"has no attribute 'norm'": "`norm()` is a tensor's: subtract the two vectors first."},
    otherwise="The length of the difference, divided by the length of `right`.",
)  # fmt: skip


def _tall_images(size: int) -> tuple[Any, ...]:
    """A model with two weights, both 0, and images of one pixel whose gradients are 4, 40, 400 and 4,000."""
    model = nn.Linear(1, 2, bias=False).double()
    nn.init.zeros_(model.weight)
    return model, torch.tensor([[8.0], [80], [800], [8000]]).double(), torch.ones(4, dtype=torch.long), size


def _weighed(model: Any, images: Tensor, labels: Tensor, size: int, share: Callable[..., float]) -> Tensor:
    """The gradient from pieces; `share(images of the piece, size, images in all)` is what a piece counts for."""
    model.zero_grad()
    for a, b in zip(images.split(size), labels.split(size), strict=True):
        (F.cross_entropy(model(a), b) * share(len(a), size, len(images))).backward()
    return flat(p.grad for p in model.parameters())


def _shrunk_again(model: Any, images: Tensor, labels: Tensor, size: int) -> Tensor:
    model.zero_grad()
    for a, b in zip(images.split(size), labels.split(size), strict=True):
        F.cross_entropy(model(a), b).backward()
        for p in model.parameters():
            p.grad *= len(a) / len(images)
    return flat(p.grad for p in model.parameters())


turn(
    "1.2.c",
    "The whole from its pieces",
    partial(_weighed, share=lambda piece, size, n: piece / n),
    {f"4 images in pieces of {size}": partial(_tall_images, size) for size in (2, 3)},
    look=lambda gradient, *_: gradient[:1],
    heads=("gradient",),
    mistakes=[
        (partial(_weighed, share=lambda piece, size, n: 1), "the pieces' means are added up",
         "Each loss is a mean over its piece. What part of all the images is that?"),
        (partial(_weighed, share=lambda piece, size, n: 1 / ceil(n / size)),
         "the shorter piece counts as much as the others", "A piece's part is that of its images, `len(a)`."),
        (partial(_weighed, share=lambda piece, size, n: size / n), "the shorter piece counts as if it were full",
         "`size` is what a full piece holds. How many images has this one?"),
        (partial(_weighed, share=lambda piece, size, n: 1 / n), "each piece counts for one image",
         "Its loss is a mean over `len(a)` images."),
        (partial(_weighed, share=lambda piece, size, n: 1 / piece), "divided by the images of the piece once more",
         "The loss is a mean already. What part of all the images is it of?"),
        (partial(_weighed, share=lambda piece, size, n: piece), "that is the gradient of a sum",
         "Divide by how many images there are in all."),
        (partial(_weighed, share=lambda piece, size, n: n / piece), "upside down",
         "A piece counts for `len(a)` of `len(images)`."),
        (partial(_weighed, share=lambda piece, size, n: 1 / size), "divided by the images of a full piece",
         "The loss is a mean already. What part of all the images is it of?"),
        (partial(_weighed, share=lambda piece, size, n: n), "each piece counts for all the images",
         "All pieces together count for 1."),
        (partial(_weighed, share=lambda piece, size, n: size), "each piece counts for all the images of a full one",
         "All pieces together count for 1."),
        (partial(_weighed, share=lambda piece, size, n: 1 / (n // size)),
         "the shorter piece is not counted among the pieces", "A piece's part is that of its images, `len(a)`."),
        (partial(_weighed, share=lambda piece, size, n: piece / 64), "divided by the lesson's 64 images",
         "Here there are others: `len(images)`."),
        (partial(_weighed, share=lambda piece, size, n: 1 / 8), "divided by the lesson's eight pieces",
         "Here there are others, and not all of one length."),
        (_shrunk_again, "the gradients of the pieces before are multiplied once more with each piece",
         "`.grad` has all pieces so far in it. Multiply the loss, before `backward()`."),
        (partial(_weighed, share=lambda piece, size, n: piece / size), "only the shorter piece is weighed",
         "All pieces together count for 1."),
    ],
    hints={
        "'NoneType' object": "Nothing has called `backward()`.",
        "'float' object is not iterable": "`backward` takes no share: multiply the loss before it.",
        "'NoneType' and": "`backward()` gives nothing back: what a piece counts for belongs to the loss before it.",
    },
    otherwise="Each piece counts for its part of all the images.",
)  # fmt: skip
