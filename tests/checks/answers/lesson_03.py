"""Answers to the exercises of lesson 03: the right ones, the blanks, and mistakes that people make."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel, gather, parallel_apply, replicate, scatter
from torch.utils.data import DataLoader, DistributedSampler


def blank(*args):
    raise NotImplementedError("your code here")


# 03.2: a forward of your own


def forward(net, batch, gpus):
    parts = scatter(batch, gpus)
    replicas = replicate(net, gpus[: len(parts)])
    return gather(parallel_apply(replicas, parts), gpus[0])


def the_lessons_line(net, batch, gpus):
    return gather(parallel_apply(replicate(net, gpus), scatter(batch, gpus)), gpus[0])


def by_index(net, batch, gpus):
    parts, replicas = scatter(batch, gpus), replicate(net, gpus)
    return gather([replicas[i](parts[i]) for i in range(len(gpus))], gpus[0])


def never_gathered(net, batch, gpus):
    parts = scatter(batch, gpus)
    return parallel_apply(replicate(net, gpus[: len(parts)]), parts)


def gathered_on_the_cpu(net, batch, gpus):
    parts = scatter(batch, gpus)
    return gather(parallel_apply(replicate(net, gpus[: len(parts)]), parts), "cpu")


def gathered_elsewhere(net, batch, gpus):
    parts = scatter(batch, gpus)
    return gather(parallel_apply(replicate(net, gpus[: len(parts)]), parts), gpus[1])


def one_gpu(net, batch, gpus):
    return net(batch)


def nothing_scattered(net, batch, gpus):
    whole = [batch.to(gpu) for gpu in gpus]
    return parallel_apply(replicate(net, gpus), whole)[0]


def the_real_one(net, batch, gpus):
    return nn.DataParallel(net, device_ids=gpus)(batch)


def no_replica(net, batch, gpus):
    return gather([net(part) for part in scatter(batch, gpus)], gpus[0])


def detached(net, batch, gpus):
    parts = scatter(batch, gpus)
    return gather(parallel_apply(replicate(net, gpus[: len(parts)], detach=True), parts), gpus[0])


def detached_outputs(net, batch, gpus):
    return forward(net, batch, gpus).detach()


def back_to_front(net, batch, gpus):
    parts = scatter(batch, gpus)
    return gather(parallel_apply(replicate(net, gpus[: len(parts)]), parts)[::-1], gpus[0])


def returns_nothing(net, batch, gpus):
    forward(net, batch, gpus)


# 03.3: the prefix, taken off


def bare(state):
    return {name.removeprefix("module."): tensor for name, tensor in state.items()}


def cut_blindly(state):
    return {name[len("module.") :]: tensor for name, tensor in state.items()}


def replaced_everywhere(state):
    return {name.replace("module.", ""): tensor for name, tensor in state.items()}


def replaced_once(state):
    return {name.replace("module.", "", 1): tensor for name, tensor in state.items()}


def stripped(state):
    return {name.lstrip("module."): tensor for name, tensor in state.items()}


def split_off(state):
    return {name.split(".", 1)[1]: tensor for name, tensor in state.items()}


def in_place(state):
    for name in list(state):
        state[name.removeprefix("module.")] = state.pop(name)


def in_place_and_returned(state):
    in_place(state)
    return state


def unchanged(state):
    return dict(state)


def names_alone(state):
    return [name.removeprefix("module.") for name in state]


def shuffled(state):
    return dict(zip([name.removeprefix("module.") for name in state], reversed(state.values()), strict=True))


# 03.4: a script, mended


def careful(net, data, gpus):
    model = nn.DataParallel(net.to(gpus[0]), device_ids=gpus)
    return model, DataLoader(data, batch_size=50, shuffle=True)


def loaders(**options):
    """An answer with a sound model, and a loader made with these options."""
    return lambda net, data, gpus: (careful(net, data, gpus)[0], DataLoader(data, **options))


def careless(net, data, gpus):
    model = nn.DataParallel(net, device_ids=[gpus[0]])
    return model, DataLoader(data, batch_size=1, sampler=DistributedSampler(data, num_replicas=len(gpus), rank=0))


def still_on_the_cpu(net, data, gpus):
    return nn.DataParallel(net, device_ids=gpus), DataLoader(data, batch_size=50, shuffle=True)


def with_a_sampler(net, data, gpus):
    sampler = DistributedSampler(data, num_replicas=len(gpus), rank=0)
    return careful(net, data, gpus)[0], DataLoader(data, batch_size=50, sampler=sampler)


def bare_net(net, data, gpus):
    return net.to(gpus[0]), DataLoader(data, batch_size=50, shuffle=True)


def the_other_way_round(net, data, gpus):
    return careful(net, data, gpus)[::-1]


def the_model_alone(net, data, gpus):
    return careful(net, data, gpus)[0]


def with_ddp(net, data, gpus):
    return DistributedDataParallel(net), DataLoader(data, batch_size=50, shuffle=True)


SIZES = [3, 3, 3, 1]

ANSWERS = {
    "03.1": {
        "correct": (SIZES, 12_000_000, 10, 750),
        "wrong": [
            (([3, 3, 2, 2], 12_000_000, 10, 750), ["`sizes` is 3, 3, 2, 2", "fairer"]),
            (([2.5] * 4, 12_000_000, 10, 750), ["`sizes` is 2.5, 2.5, 2.5, 2.5", "fairer"]),
            (([2, 2, 2, 2], 12_000_000, 10, 750), ["8 samples"]),
            (([5, 5], 12_000_000, 10, 750), ["2 numbers for four GPUs"]),
            ((10, 12_000_000, 10, 750), ["`sizes` is 10, not a list"]),
            ((SIZES, 12_000_000, torch.tensor(1.0), 750), ["`grad` is 1", "the first GPU's"]),
        ],
    },
    "03.2": {
        "correct": forward,
        "blank": blank,
        "wrong": [
            (the_lessons_line, ["with a batch of 1", "AssertionError"]),
            (by_index, ["with a batch of 1", "IndexError"]),
            (never_gathered, ["with a batch of 8 it returns a list"]),
            (gathered_on_the_cpu, ["the result is on cpu"]),
            (gathered_elsewhere, ["the result is on", ":1"]),
            (one_gpu, ["with a batch of 8 only", ":0 computes"]),
            (nothing_scattered, ["the GPUs compute 16 images"]),
            (the_real_one, ["`nn.DataParallel` itself"]),
            (no_replica, ["with a batch of 8", "RuntimeError"]),
            (detached, ["the scores are right, and the gradients"]),
            (detached_outputs, ["no gradient reaches `net`"]),
            (back_to_front, ["the scores are not those"]),
            (returns_nothing, ["it returns nothing"]),
            (None, ["`forward` is None, not a function"]),
        ],
    },
    "03.3": {
        "correct": bare,
        "blank": blank,
        "wrong": [
            (cut_blindly, ["bare already", "should be"]),
            (split_off, ["bare already", "should be"]),
            (replaced_everywhere, ["called module, submodule and modular", "should be"]),
            (replaced_once, ["encoder.module", "should be"]),
            (stripped, ["a wrapped model", "`ayers.1.bias`", "`layers.1.bias`"]),
            (in_place, ["changes the dictionary", "returns nothing"]),
            (in_place_and_returned, ["changes the dictionary that it got"]),
            (unchanged, ["a wrapped model", "`module.layers.1.bias`"]),
            (names_alone, ["returns a list, not a dictionary"]),
            (shuffled, ["a tensor is not the one"]),
        ],
    },
    "03.4": {
        "correct": careful,
        "blank": blank,
        "wrong": [
            (careless, ["wrapped? No", "a single device"]),
            (still_on_the_cpu, ["weights on device_ids[0]? No", "is on cpu"]),
            (with_a_sampler, ["serve all the data? No", "719 of 1437"]),
            (bare_net, ["wrapped? No", "a bare MLP"]),
            (loaders(batch_size=1, shuffle=True), ["reach every device? No", "a batch of 1"]),
            (loaders(batch_size=32, shuffle=True), ["its batches have 32 samples"]),
            (loaders(batch_size=50, shuffle=True, drop_last=True), ["1400 of 1437"]),
            (loaders(batch_size=50), ["two epochs come in the same order"]),
            (the_other_way_round, ["a DataLoader and a DataParallel"]),
            (the_model_alone, ["two things"]),
            (with_ddp, ["raised", "process group"]),
        ],
    },
}
