"""Answers to the exercises of lesson 1.2 (see lesson_1_1 for the form)."""

from functools import partial

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from ddplab import device
from ddplab.course.data import digits
from ddplab.course.models import MLP

# 1.2.1


@torch.no_grad()
def accuracy(model, data):
    was_training, right = model.training, 0
    model.eval()
    for x, y in DataLoader(data, batch_size=64):
        right += (model(x).argmax(dim=1) == y).sum().item()
    model.train(was_training)
    return right / len(data)


@torch.no_grad()
def at_once(model, data, measure, evaluate=True):
    if evaluate:
        model.eval()
    x, y = data.tensors
    return measure(model(x), y).item()


def share_right(logits, labels):
    return (logits.argmax(dim=1) == labels).double().mean()


def wrong_dimension(logits, labels):
    return (logits.argmax(dim=0) == labels).double().mean()


@torch.no_grad()
def in_batches(model, data, **options):
    was_training, right, seen = model.training, 0, 0
    model.eval()
    for x, y in DataLoader(data, 64, **options):
        right += (model(x).argmax(dim=1) == y).double().sum()
        seen += len(y)
    model.train(was_training)
    return right / (len(data) if options else seen)  # a tensor


def drops_the_rest(model, data):
    return in_batches(model, data, drop_last=True)


def always_back_to_training(model, data):
    share = accuracy(model, data)
    model.train()
    return share


def not_in_batches(model, data):
    was_training = model.training
    share = at_once(model, data, share_right)
    model.train(was_training)
    return share


def leaves_it_in_evaluation_mode(model, data):
    share = accuracy(model, data)
    model.eval()
    return share


@torch.no_grad()
def mean_of_means(model, data):
    model.eval()
    means = [(model(x).argmax(1) == y).double().mean() for x, y in DataLoader(data, batch_size=64)]
    return sum(means) / len(means)


# 1.2.2


def fit(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def loader_from(seed=None):
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return DataLoader(digits(), 32, shuffle=True, generator=generator)


def seeded_mlp(seed):
    torch.manual_seed(seed)
    return MLP()


def train_mlp(seed):
    return fit(seeded_mlp(seed), loader_from(seed))


def seeded_once(seed):
    return fit(seeded_mlp(seed), DataLoader(digits(), 32, shuffle=True))  # model and order from the global state


def not_shuffled(seed):
    return fit(seeded_mlp(seed), DataLoader(digits(), 32))


def one_order_for_all_epochs(seed):
    model = seeded_mlp(seed)
    return fit(model, DataLoader(digits(), 32, sampler=torch.randperm(1437).tolist()))


def smaller_batches(seed):
    model = seeded_mlp(seed)
    return fit(model, DataLoader(digits(), 16, shuffle=True))


def model_seeded_only(seed):
    model = seeded_mlp(seed)
    torch.seed()  # something else draws
    return fit(model, loader_from())


def seeded_too_late(seed):
    model = MLP()
    torch.manual_seed(seed)
    return fit(model, loader_from(seed))


# your turn


def zero_at_the_end(model, data, batch, lr, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for x, y in [pair for _ in range(epochs) for pair in DataLoader(data, batch)]:
        loss = torch.nn.CrossEntropyLoss()(model(x.to(device())), y.to(device()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def without_an_optimiser(model, data, batch, lr, epochs):
    losses = []
    for x, y in [pair for _ in range(epochs) for pair in DataLoader(data, batch)]:
        loss = F.cross_entropy(model(x.to(device())), y.to(device()))
        (gradient,) = torch.autograd.grad(loss, [model.weight])
        with torch.no_grad():
            model.weight -= lr * gradient
        losses.append(loss.item())
    return losses


def forward_outside(model, data, batch, lr, epochs):
    x, y = (tensor.to(device()) for tensor in data.tensors)
    loss = F.cross_entropy(model(x), y)
    for _ in range(epochs):
        loss.backward()
    return [loss.item()]


def by_dist(found, right):
    return torch.dist(found, right) / torch.linalg.vector_norm(right)


def by_squares(found, right):
    return (sum((a - b) ** 2 for a, b in zip(found, right, strict=True)) / sum(right**2)) ** 0.5


def sums_of_losses(model, images, labels, size):
    model.zero_grad()
    for a, b in zip(images.split(size), labels.split(size), strict=True):
        (F.cross_entropy(model(a), b, reduction="sum") / len(labels)).backward()
    return model.weight.grad.flatten()


def with_a_weight_for_backward(model, images, labels, size):
    model.zero_grad()
    for a, b in zip(images.split(size), labels.split(size), strict=True):
        F.cross_entropy(model(a), b).backward(torch.tensor(len(a) / len(images)).double())
    return model.weight.grad.flatten()


def never_backward(model, images, labels, size):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def weighs_what_backward_gives(model, images, labels, size):
    for a, b in zip(images.split(size), labels.split(size), strict=True):
        F.cross_entropy(model(a), b).backward() * len(a) / len(images)


def backward_from_a_number(model, data, batch, lr, epochs):
    for x, y in DataLoader(data, batch):
        F.cross_entropy(model(x.to(device())), y.to(device())).item().backward()


def labels_first(model, data, batch, lr, epochs):
    for x, y in DataLoader(data, batch):
        F.cross_entropy(y.to(device()), model(x.to(device()))).backward()


def on_the_test_split(seed):
    torch.manual_seed(seed)
    return fit(MLP(), DataLoader(digits(train=False), 32, shuffle=True))


ANSWERS = {
    "1.2.1": {
        "correct": accuracy,
        "accepted": [in_batches],
        "wrong": [
            (drops_the_rest, ["has seen 320 of 357 images", "the last batch is left out"]),
            (always_back_to_training, ["came in evaluation mode", "left in training mode"]),
            (not_in_batches, ["all 357 images at once"]),
            (lambda model, data: accuracy(model, data) * len(data), ["that is how many are right"]),  # how many
            (leaves_it_in_evaluation_mode, ["left in evaluation mode"]),
            (lambda model, data: 100 * accuracy(model, data), ["in per cent"]),  # per cent
            (lambda model, data: 1 - accuracy(model, data), ["the share that is wrong"]),  # error rate
            (mean_of_means, ["a last batch that is smaller"]),
            (lambda model, data: accuracy(model, data) * 357 / 384, ["divided by 384 images, and there are 357"]),
            (partial(at_once, measure=share_right, evaluate=False), ["measuring changed the model", "BatchNorm"]),
            (partial(at_once, measure=wrong_dimension), ["your code raised RuntimeError", "in wrong_dimension"]),
            # of all logits of all images
            (partial(at_once, measure=lambda out, y: (out.argmax() == y).double().mean()), ["it returned", "not"]),
            (lambda model, data: print(accuracy(model, data)), ["`accuracy` gives nothing"]),
            (partial(at_once, measure=F.cross_entropy), ["it returned", "not"]),
            (0.95, ["`accuracy` is 0.95, not a function"]),
        ],
    },
    "1.2.2": {
        "correct": train_mlp,
        "accepted": [seeded_once],
        "wrong": [
            (not_shuffled, ["not shuffled", "the first 32"]),
            (one_order_for_all_epochs, ["every epoch serves the digits in the same order"]),
            (smaller_batches, ["the first batch has 16 images, not 32"]),
            (lambda seed: fit(MLP(), loader_from()), ["two runs with seed 0 end with different weights"]),
            (model_seeded_only, ["different weights"]),
            (lambda seed: fit(MLP(), loader_from(seed)), ["different weights"]),  # loader seeded only
            (seeded_too_late, ["different weights"]),
            (lambda seed: train_mlp(0), ["seed 0 and seed 1 give the same model"]),  # always seed 0
            (seeded_mlp, ["hardly trained"]),
            (on_the_test_split, ["serves other images than the training digits"]),
            (lambda seed: print(train_mlp(seed)), ["returned 'NoneType', not a model"]),
        ],
    },
    "1.2.a": {
        "accepted": [zero_at_the_end, without_an_optimiser],
        "wrong": [
            (forward_outside, ["raised RuntimeError", "second time"]),
            (labels_first, ["raised NotImplementedError"]),
            (backward_from_a_number, ["'float' object has no attribute 'backward'"]),
        ],
    },
    "1.2.b": {"accepted": [by_dist, by_squares]},
    "1.2.c": {
        "accepted": [sums_of_losses, with_a_weight_for_backward],
        "wrong": [
            (never_backward, ["raised AttributeError"]),
            (weighs_what_backward_gives, ["raised TypeError"]),
        ],
    },
}
