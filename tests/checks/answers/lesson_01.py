"""Answers to the exercises of lesson 01 (see lesson_00 for the form)."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from ddplab.course.data import digits
from ddplab.course.models import MLP


def blank(*_):
    raise NotImplementedError("your code here")


# 01.1


@torch.no_grad()
def accuracy(model, data):
    was_training, right = model.training, 0
    model.eval()
    for x, y in DataLoader(data, batch_size=64):
        right += (model(x).argmax(dim=1) == y).sum().item()
    model.train(was_training)
    return right / len(data)


def leaves_it_in_evaluation_mode(model, data):
    share = accuracy(model, data)
    model.eval()
    return share


def how_many(model, data):
    return accuracy(model, data) * len(data)


def per_cent(model, data):
    return 100 * accuracy(model, data)


def error_rate(model, data):
    return 1 - accuracy(model, data)


@torch.no_grad()
def mean_of_means(model, data):
    model.eval()
    means = [(model(x).argmax(1) == y).double().mean() for x, y in DataLoader(data, batch_size=64)]
    return sum(means) / len(means)


@torch.no_grad()
def without_eval(model, data):
    x, y = data.tensors
    return (model(x).argmax(dim=1) == y).double().mean().item()


@torch.no_grad()
def wrong_dimension(model, data):
    model.eval()
    x, y = data.tensors
    return (model(x).argmax(dim=0) == y).double().mean().item()


@torch.no_grad()
def argmax_of_everything(model, data):
    model.eval()
    x, y = data.tensors
    return (model(x).argmax() == y).double().mean().item()


def prints_it(model, data):
    print(accuracy(model, data))


def the_loss(model, data):
    model.eval()
    x, y = data.tensors
    return F.cross_entropy(model(x), y).item()


# 01.2


def fit(model, loader, epochs=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def loader_from(seed):
    return DataLoader(digits(), 32, shuffle=True, generator=torch.Generator().manual_seed(seed))


def train_mlp(seed):
    torch.manual_seed(seed)
    return fit(MLP(), loader_from(seed))


def no_seed(seed):
    return fit(MLP(), DataLoader(digits(), 32, shuffle=True))


def model_seeded_only(seed):
    torch.manual_seed(seed)
    model = MLP()
    torch.seed()  # something else draws
    return fit(model, DataLoader(digits(), 32, shuffle=True))


def loader_seeded_only(seed):
    return fit(MLP(), loader_from(seed))


def seeded_too_late(seed):
    model = MLP()
    torch.manual_seed(seed)
    return fit(model, loader_from(seed))


def always_seed_0(seed):
    return train_mlp(0)


def not_trained(seed):
    torch.manual_seed(seed)
    return MLP()


def forgets_to_return(seed):
    train_mlp(seed)


# 01.3


def bytes_to_train(n, optimizer):
    return 4 * n * {"sgd": 2, "momentum": 3, "adam": 4}[optimizer]


def without_gradients(n, optimizer):
    return bytes_to_train(n, optimizer) - 4 * n


def numbers_not_bytes(n, optimizer):
    return bytes_to_train(n, optimizer) / 4


def in_float64(n, optimizer):
    return 2 * bytes_to_train(n, optimizer)


def in_float16(n, optimizer):
    return bytes_to_train(n, optimizer) / 2


def state_alone(n, optimizer):
    return bytes_to_train(n, optimizer) - 8 * n


def the_same_for_all(n, optimizer):
    return 16 * n


def adam_like_momentum(n, optimizer):
    return 8 * n if optimizer == "sgd" else 12 * n


def gigabytes(n, optimizer):
    return bytes_to_train(n, optimizer) / 1e9


def capital_letters(n, optimizer):
    return 4 * n * {"SGD": 2, "Momentum": 3, "Adam": 4}[optimizer]


def only_small(n, optimizer):
    return bytes_to_train(min(n, 10**6), optimizer)


# 01.4


def accumulate(model, x, y, size):
    model.zero_grad()
    for a, b in zip(x.split(size), y.split(size), strict=True):
        (F.cross_entropy(model(a), b) * len(a) / len(x)).backward()


def adds_the_means(model, x, y, size):
    model.zero_grad()
    for a, b in zip(x.split(size), y.split(size), strict=True):
        F.cross_entropy(model(a), b).backward()


def divides_by_pieces(model, x, y, size):
    model.zero_grad()
    pieces = x.split(size)
    for a, b in zip(pieces, y.split(size), strict=True):
        (F.cross_entropy(model(a), b) / len(pieces)).backward()


def sums_the_losses(model, x, y, size):
    model.zero_grad()
    for a, b in zip(x.split(size), y.split(size), strict=True):
        F.cross_entropy(model(a), b, reduction="sum").backward()


def zeroes_in_the_loop(model, x, y, size):
    for a, b in zip(x.split(size), y.split(size), strict=True):
        model.zero_grad()
        (F.cross_entropy(model(a), b) * len(a) / len(x)).backward()


def never_zeroes(model, x, y, size):
    for a, b in zip(x.split(size), y.split(size), strict=True):
        (F.cross_entropy(model(a), b) * len(a) / len(x)).backward()


def whole_batch(model, x, y, size):
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()


def steps_too(model, x, y, size):
    accumulate(model, x, y, size)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def zeroes_at_the_end(model, x, y, size):
    accumulate(model, x, y, size)
    model.zero_grad()


def chunks_instead(model, x, y, size):
    model.zero_grad()
    for a, b in zip(x.chunk(size), y.split(size), strict=True):
        (F.cross_entropy(model(a), b) * len(a) / len(x)).backward()


def leaves_the_rest_out(model, x, y, size):
    model.zero_grad()
    for i in range(len(x) // size):
        a, b = x[i * size : (i + 1) * size], y[i * size : (i + 1) * size]
        (F.cross_entropy(model(a), b) * len(a) / len(x)).backward()


ANSWERS = {
    "01.1": {
        "correct": accuracy,
        "blank": blank,
        "wrong": [
            (how_many, ["that is how many are right"]),
            (leaves_it_in_evaluation_mode, ["left in evaluation mode"]),
            (per_cent, ["in per cent"]),
            (error_rate, ["the share that is wrong"]),
            (mean_of_means, ["a last batch that is smaller"]),
            (without_eval, ["measuring changed the model", "BatchNorm"]),
            (wrong_dimension, ["your code raised RuntimeError", "of wrong_dimension"]),
            (argmax_of_everything, ["it returned", "not"]),
            (prints_it, ["`accuracy` gives nothing"]),
            (the_loss, ["it returned", "not"]),
            (0.95, ["`accuracy` is 0.95, not a function"]),
        ],
    },
    "01.2": {
        "correct": train_mlp,
        "blank": blank,
        "wrong": [
            (no_seed, ["two runs with seed 0 end with different weights"]),
            (model_seeded_only, ["different weights"]),
            (loader_seeded_only, ["different weights"]),
            (seeded_too_late, ["different weights"]),
            (always_seed_0, ["seed 0 and seed 1 give the same model"]),
            (not_trained, ["hardly trained"]),
            (forgets_to_return, ["returned 'NoneType', not a model"]),
        ],
    },
    "01.3": {
        "correct": bytes_to_train,
        "blank": blank,
        "wrong": [
            (without_gradients, ["sgd 4, momentum 8, adam 12", "gradients are missing"]),
            (numbers_not_bytes, ["numbers, not bytes"]),
            (in_float64, ["4 bytes, not 8"]),
            (in_float16, ["4 bytes, not 2"]),
            (state_alone, ["the state alone"]),
            (the_same_for_all, ["the same for every optimiser"]),
            (adam_like_momentum, ["adam 12", "adam is not right"]),
            (gigabytes, ["sgd 8e-09", "sgd is not right"]),
            (capital_letters, ["KeyError", "capital_letters"]),
            (only_small, ["7 billion parameters gave 1.6e+07, not 112e9"]),
            (112e9, ["not a function"]),
        ],
    },
    "01.4": {
        "correct": accumulate,
        "blank": blank,
        "wrong": [
            (adds_the_means, ["64 images in pieces of 8", "the means of 8 pieces are added up"]),
            (divides_by_pieces, ["60 images in pieces of 16", "the last piece has 12 images and counts as much"]),
            (sums_the_losses, ["the losses are summed"]),
            (zeroes_in_the_loop, ["only the last piece is left"]),
            (never_zeroes, ["what was in p.grad before is still in there"]),
            (whole_batch, ["64 images at once, more than 8"]),
            (steps_too, ["the weights have changed"]),
            (zeroes_at_the_end, ["no gradient is there afterwards"]),
            (chunks_instead, ["your code raised ValueError", "of chunks_instead"]),
            (leaves_the_rest_out, ["60 images in pieces of 16", "the last 12 images are left out"]),
        ],
    },
}
