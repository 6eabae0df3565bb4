"""Answers to the turns of lesson 9.2; most of their mistakes are rows in ddplab/checks/lesson_9_2.py, and in 5.1's."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler

# The first program


def all_moved(model, images, labels, gpu):
    model = nn.DataParallel(model.to(gpu))
    return nn.CrossEntropyLoss()(model(images.to(gpu)), labels.to(gpu))


def moved_after_the_wrap(model, images, labels, gpu):
    parallel = nn.DataParallel(model).to(gpu)
    scores = parallel(images)
    return F.cross_entropy(scores, labels.to(scores.device))


def scores_come_to_the_labels(model, images, labels, gpu):
    return F.cross_entropy(nn.DataParallel(model.to(gpu))(images).cpu(), labels)


def with_its_backward(model, images, labels, gpu):
    loss = all_moved(model, images, labels, gpu)
    loss.backward()
    return loss


def backward_of_a_copy(model, images, labels, gpu):
    return with_its_backward(copy.deepcopy(model), images, labels, gpu)


def a_copy(model, images, labels, gpu):
    return all_moved(copy.deepcopy(model), images, labels, gpu)


def to_a_real_gpu(model, images, labels, gpu):
    raise AssertionError("Torch not compiled with CUDA enabled")  # what `model.cuda()` raises where torch has none


def for_one_gpu(model, images, labels, gpu):
    model = nn.DataParallel(model.to(gpu), device_ids=[0])
    return F.cross_entropy(model(images.to(gpu)), labels.to(gpu))


def wrapped_in_vain(model, images, labels, gpu):
    nn.DataParallel(model.to(gpu))
    return F.cross_entropy(model(images.to(gpu)), labels.to(gpu))


def labels_forgotten(model, images, labels, gpu):
    return F.cross_entropy(nn.DataParallel(model.to(gpu))(images), labels)


def model_forgotten(model, images, labels, gpu):
    return F.cross_entropy(nn.DataParallel(model)(images.to(gpu)), labels.to(gpu))


def images_forgotten_too(model, images, labels, gpu):
    return F.cross_entropy(model.to(gpu)(images), labels.to(gpu))


def scores(model, images, labels, gpu):
    return nn.DataParallel(model.to(gpu))(images)


def cut_off(model, images, labels, gpu):
    return F.cross_entropy(nn.DataParallel(model.to(gpu))(images).detach().requires_grad_(), labels.to(gpu))


def for_the_gpus_that_torch_counts(model, images, labels, gpu):
    parallel = nn.DataParallel(model.to(gpu), list(range(torch.cuda.device_count())))
    return F.cross_entropy(parallel(images), labels.to(gpu))


def returns_nothing(model, images, labels, gpu):
    all_moved(model, images, labels, gpu)


def returns_nothing_after_its_backward(model, images, labels, gpu):
    with_its_backward(model, images, labels, gpu)


# The second


def in_turn(dataset, gpus):
    return DataLoader(dataset, batch_size=32)


def two_rows_for_each(dataset, gpus):
    return DataLoader(dataset, batch_size=2 * gpus, sampler=RandomSampler(dataset))


def one_share_of_one(dataset, gpus):
    return DataLoader(dataset, 16, sampler=DistributedSampler(dataset, num_replicas=1, rank=0))


def batches_of_a_sampler(dataset, gpus):
    return DataLoader(dataset, batch_sampler=BatchSampler(RandomSampler(dataset), 8, drop_last=False))


def the_texts(dataset, gpus):
    return DataLoader(dataset, 32, sampler=DistributedSampler(dataset, num_replicas=gpus, rank=0))


def shuffled_one_by_one(dataset, gpus):
    return DataLoader(dataset, shuffle=True)


def without_a_number_of_ranks(dataset, gpus):
    return DataLoader(dataset, 16, sampler=DistributedSampler(dataset))


def both_samplers(dataset, gpus):
    return DataLoader(dataset, 16, shuffle=True, sampler=RandomSampler(dataset))


# The third


def by_local_rank(env, gpus):
    return torch.device("cuda", int(env["LOCAL_RANK"]))


def by_remainder(env, gpus):  # all nodes are alike
    return f"cuda:{int(env['RANK']) % gpus}"


def from_the_last(env, gpus):
    return f"cuda:{gpus - 1 - int(env['LOCAL_RANK'])}"


ANSWERS = {
    "9.2.a": {
        "accepted": [by_local_rank, by_remainder, from_the_last],
        "wrong": [
            (lambda env, gpus: f"cuda:{env['RANK']}", ["RANK runs on"]),
            (lambda env, gpus: f"cuda:{env['RANK'] % gpus}", ["a text stands where a number belongs"]),
            (lambda env, gpus: env["local_rank"], ["KeyError"]),
            (lambda env, gpus: f"cuda{env['LOCAL_RANK']}", ["Invalid device string"]),
            (lambda env, gpus: f"cuda:{int(env['RANK']) - 1}", ["below 0"]),
            (lambda env, gpus: f"cuda:{int(env['LOCAL_RANK']) - 1}", ["below 0"]),
            (lambda env, gpus: "cuda", ["without a number"]),
            (lambda env, gpus: f"cuda:{min(int(env['RANK']), gpus - 1)}", ["later nodes share one GPU"]),
        ],
    },
    "9.2.b": {
        "accepted": [all_moved, with_its_backward, moved_after_the_wrap, scores_come_to_the_labels],
        "wrong": [
            (for_one_gpu, ["GPU 0 does everything"]),
            (wrapped_in_vain, ["GPU 0 does everything"]),
            (labels_forgotten, ["the labels are still on the CPU"]),
            (model_forgotten, ["still on the CPU"]),
            (images_forgotten_too, ["raised"]),
            (scores, ["scalar outputs"]),
            (cut_off, ["gradients do not arrive"]),
            (for_the_gpus_that_torch_counts, ["list index out of range"]),
            (returns_nothing, ["NoneType"]),
            (returns_nothing_after_its_backward, ["has no attribute 'item'"]),
            (a_copy, ["gradients do not arrive"]),
            (backward_of_a_copy, ["backward through the graph a second time"]),
            (to_a_real_gpu, ["CUDA enabled"]),
        ],
    },
    "9.2.c": {
        "accepted": [in_turn, two_rows_for_each, one_share_of_one, batches_of_a_sampler],
        "wrong": [
            (the_texts, ["one share is loaded"]),
            (shuffled_one_by_one, ["a batch has one row"]),
            (lambda dataset, gpus: DataLoader(dataset, 4, shuffle=True), ["idle GPUs"]),
            (lambda dataset, gpus: DataLoader(dataset, 10), ["parts are rounded up"]),
            (lambda dataset, gpus: DataLoader(dataset, batch_size=12), ["parts are rounded up"]),
            (lambda dataset, gpus: DataLoader(dataset, batch_size=31), ["a batch has one row"]),
            (lambda dataset, gpus: DataLoader(dataset, 24, drop_last=True), ["samples seen"]),
            (lambda dataset, gpus: DataLoader(dataset, 16, sampler=iter(range(32))), ["the second epoch is empty"]),
            (lambda dataset, gpus: dataset, ["no DataLoader: range"]),
            (lambda dataset, gpus: [torch.tensor([*dataset])], ["no DataLoader: list"]),
            (lambda dataset, gpus: None, ["no DataLoader: NoneType"]),
            (without_a_number_of_ranks, ["process group"]),
            (both_samplers, ["mutually exclusive"]),
        ],
    },
}
