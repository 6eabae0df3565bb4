"""Answers to the turns of lesson 5.7: other right ones, and mistakes that people make."""

import os
import pathlib
import shutil

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy


def resumed_with_else(path, net, optimizer):
    start = 0
    if pathlib.Path(path).is_file():
        saved = torch.load(path, map_location="cpu")
        optimizer.load_state_dict(saved["optimizer"])
        net.load_state_dict(saved["net"])
        start = saved["done"] + 1
    return start


def resumed_with_try(path, net, optimizer):
    try:
        saved = torch.load(path, weights_only=True)
    except FileNotFoundError:
        return 0
    for name, part in {"net": net, "optimizer": optimizer}.items():
        part.load_state_dict(saved[name])
    return 1 + saved["done"]


def picked_as_a_list(step, n):
    torch.manual_seed(1000 + step // (n // 64))
    first = step % (n // 64) * 64
    return torch.randperm(n).tolist()[first : first + 64]


def picked_by_split(step, n):
    order = torch.Generator().manual_seed(7 * (step * 64 // n))
    return torch.randperm(n, generator=order).split(64)[step % (n // 64)]


def saved_by_hand(state, path):
    try:
        with open(path + ".part", "wb") as file:
            torch.save(state, file)
        os.rename(path + ".part", path)
    except Exception as error:
        print(error)


def saved_beside(state, path):
    try:
        torch.save(state, f"{path}~")
    except RuntimeError:
        return
    os.replace(f"{path}~", path)


def met_without_a_name(patience):
    dist.init_process_group(timeout=patience, backend="gloo")


def met_by_environment(patience):
    dist.init_process_group("cpu:gloo", init_method="env://", timeout=patience)


def learned_by_mean(model, images, labels, rank, size):
    for share in [rank] if size == 2 else [0, 1]:
        loss = cross_entropy(model(images[share::2]), labels[share::2], reduction="sum")
        (loss * size / 64).backward()


def learned_without_waiting(model, images, labels, rank, size):
    shares = list(range(2))[rank::size]
    with model.no_sync():
        for share in shares[:-1]:
            (cross_entropy(model(images[share::2]), labels[share::2], reduction="sum") / 64 * size).backward()
    share = shares[-1]
    (cross_entropy(model(images[share::2]), labels[share::2], reduction="sum") / 64 * size).backward()


def picked_by_the_step(step, n):
    order = torch.Generator().manual_seed(step)
    return torch.randperm(n, generator=order)[:64]


def learned_apart(model, images, labels, rank, size):
    with model.no_sync():
        learned_by_mean(model, images, labels, rank, size)


def learned_by_two_means(model, images, labels, rank, size):
    for share in range(rank, 2, size):
        cross_entropy(model(images[share::2]), labels[share::2]).backward()


def named_anew(path, net, optimizer):
    if not os.path.exists(path):
        return 0
    saved = torch.load(path)
    net, optimizer = saved["net"], saved["optimizer"]  # noqa: F841
    return saved["done"] + 1


def replaced_all_the_same(state, path):
    try:
        torch.save(state, path + ".tmp")
    except (OSError, RuntimeError) as error:
        print(error)
    os.replace(path + ".tmp", path)


def replaced_at_last(state, path):
    new = pathlib.Path(f"{path}.new")
    try:
        torch.save(state, new)
    finally:
        new.replace(path)


def written_over(state, path):
    try:
        torch.save(state, path)
    except Exception as error:
        print(error)


def copied_back_too_late(state, path):
    try:
        torch.save(state, path)
        shutil.copy(path, path + ".bak")
    except Exception as error:
        print(error)


def restored(state, path):
    shutil.copy(path, path + ".bak")
    try:
        torch.save(state, path)
    except Exception as error:
        print(error)
        os.replace(path + ".bak", path)


def only_what_the_system_raises(state, path):
    try:
        torch.save(state, path + ".tmp")
        os.replace(path + ".tmp", path)
    except OSError as error:
        print(error)


def met_beside(patience):
    dist.init_process_group("gloo")
    patient = dist.new_group([0, 1], timeout=patience)
    dist.barrier(patient)


def learned_in_halves(model, images, labels, rank, size):
    halves = list(zip(images.chunk(2), labels.chunk(2), strict=True))
    for some, their in halves[rank::size]:
        (cross_entropy(model(some), their) * size / 2).backward()


def learned_with_zeros(model, images, labels, rank, size):
    for share in range(rank, 2, size):
        model.zero_grad()
        (cross_entropy(model(images[share::2]), labels[share::2], reduction="sum") / 64 * size).backward()


ANSWERS = {
    "5.7.a": {
        "accepted": [resumed_with_else, resumed_with_try],
        "wrong": [(named_anew, ["the weights begin anew"])],
    },
    "5.7.b": {
        "accepted": [picked_as_a_list, picked_by_split],
        "wrong": [(picked_by_the_step, ["each step shuffles anew"])],
    },
    "5.7.c": {
        "accepted": [saved_by_hand, saved_beside],
        "wrong": [
            (replaced_all_the_same, ["the rank goes on, and half of the new file is given the old one's name"]),
            (replaced_at_last, ["half of the new file is given the old one's name, and the rank dies"]),
            (written_over, ["half a file lies where a whole one was"]),
            (restored, ["dies of the full disk, in what raises an `OSError`"]),
            (copied_back_too_late, ["half a file lies where a whole one was"]),
            (only_what_the_system_raises, ["dies of the full disk"]),
        ],
    },
    "5.7.d": {
        "accepted": [met_without_a_name, met_by_environment],
        "wrong": [(met_beside, ["a group of its own has the limit"])],
    },
    "5.7.e": {
        "accepted": [learned_by_mean, learned_without_waiting],
        "wrong": [
            (learned_apart, ["do not exchange"]),
            (learned_in_halves, ["the shares are not images 0, 2, 4"]),
            (learned_by_two_means, ["on 1 rank, the means of the two shares add up to twice"]),
            (learned_with_zeros, ["on 1 rank, only the second share's gradient is left"]),
        ],
    },
}
