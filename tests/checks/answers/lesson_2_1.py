"""Answers to the exercises of lesson 2.1: the right ones, the blanks, and mistakes that people make."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel, gather, parallel_apply, replicate, scatter
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler

# 2.1.1: a DataParallel of your own


def of(forward, keep="module"):
    """The class around a forward(net, batch, gpus)."""

    class MyDataParallel(nn.Module):
        def __init__(self, net, gpus):
            super().__init__()
            setattr(self, keep, net)
            self.gpus = gpus

        def forward(self, batch):
            return forward(getattr(self, keep), batch, self.gpus)

    return MyDataParallel


def not_written(net, batch, gpus):
    raise NotImplementedError("your code here")


class ReplicasOnce(nn.Module):
    def __init__(self, net, gpus):
        super().__init__()
        self.module, self.gpus, self.replicas = net, gpus, tuple(replicate(net, gpus))

    def forward(self, batch):
        parts = scatter(batch, self.gpus)
        return gather(parallel_apply(self.replicas[: len(parts)], parts), self.gpus[0])


class Real(nn.DataParallel):
    def __init__(self, net, gpus):
        super().__init__(net, device_ids=gpus)


def forward(net, batch, gpus, *, detach=False, finish=lambda outputs, gpus: gather(outputs, gpus[0])):
    parts = scatter(batch, gpus)
    replicas = replicate(net, gpus[: len(parts)], detach)
    return finish(parallel_apply(replicas, parts), gpus)


def the_lessons_line(net, batch, gpus):
    return gather(parallel_apply(replicate(net, gpus), scatter(batch, gpus)), gpus[0])


def by_index(net, batch, gpus):
    parts, replicas = scatter(batch, gpus), replicate(net, gpus)
    return gather([replicas[i](parts[i]) for i in range(len(gpus))], gpus[0])


def nothing_scattered(net, batch, gpus):
    whole = [batch.to(gpu) for gpu in gpus]
    return parallel_apply(replicate(net, gpus), whole)[0]


def no_replica(net, batch, gpus):
    return gather([net(part) for part in scatter(batch, gpus)], gpus[0])


def two_named(net, batch, gpus):
    return forward(net, batch, [gpus[0], gpus[1]])


def by_chunks(net, batch, gpus):
    parts = [part.to(gpu) for part, gpu in zip(batch.chunk(len(gpus)), gpus, strict=False)]
    return gather(parallel_apply(replicate(net, gpus[: len(parts)]), parts), gpus[0])


# 2.1.2: the prefix, taken off


def bare(state, cut=lambda name: name.removeprefix("module.")):
    return {cut(name): tensor for name, tensor in state.items()}


def in_place(state):
    for name in list(state):
        state[name.removeprefix("module.")] = state.pop(name)


def in_place_and_returned(state):
    in_place(state)
    return state


def shuffled(state):
    return dict(zip([name.removeprefix("module.") for name in state], reversed(state.values()), strict=True))


# 2.1.3: a script, mended


def on_all(net, gpus):
    return nn.DataParallel(net.to(gpus[0]), device_ids=gpus)


def careful(net, data, gpus, *, model=on_all, **options):
    return model(net, gpus), DataLoader(data, **(options or {"batch_size": 50, "shuffle": True}))


def careless(net, data, gpus):
    model = nn.DataParallel(net, device_ids=[gpus[0]])
    return model, DataLoader(data, batch_size=1, sampler=DistributedSampler(data, num_replicas=len(gpus), rank=0))


def by_batch_sampler(net, data, gpus):
    batches = BatchSampler(RandomSampler(data), batch_size=50, drop_last=False)
    return on_all(net, gpus), DataLoader(data, batch_sampler=batches)


def with_replacement(net, data, gpus):
    return careful(net, data, gpus, batch_size=50, sampler=RandomSampler(data, replacement=True))


def batches_of_32(net, data, gpus):
    batches = BatchSampler(RandomSampler(data), batch_size=32, drop_last=False)
    return on_all(net, gpus), DataLoader(data, batch_sampler=batches)


def with_a_sampler(net, data, gpus):
    sampler = DistributedSampler(data, num_replicas=len(gpus), rank=0)
    return careful(net, data, gpus)[0], DataLoader(data, batch_size=50, sampler=sampler)


# your turn: the four stages


def by_slices(batch, gpus):
    each = len(batch) // len(gpus)
    return tuple(batch[i * each : (i + 1) * each].to(gpu) for i, gpu in enumerate(gpus))


def as_a_generator(batch, gpus):
    return (part.to(gpu) for part, gpu in zip(batch.tensor_split(len(gpus)), gpus, strict=True))


def by_functional_call(net, gpus):
    from torch.func import functional_call

    replicas = []
    for gpu in gpus:
        weights = {name: weight.to(gpu) for name, weight in net.named_parameters()}
        replicas.append(lambda x, weights=weights: functional_call(net, weights, (x,)))
    return replicas


def with_the_original_on_gpu_0(net, gpus):
    from ddplab.course.models import with_weights

    copies = [with_weights(net, {name: p.to(gpu) for name, p in net.named_parameters()}) for gpu in gpus[1:]]
    return [net, *copies]


def without_names(net, gpus):
    from ddplab.course.models import with_weights

    return [with_weights(net, [weight.to(gpu) for weight in net.parameters()]) for gpu in gpus]


def moved_as_copies(net, gpus):
    from ddplab.course.models import with_weights

    return [with_weights(net, dict(net.named_parameters())).to(gpu) for gpu in gpus]


def one_dictionary(net, gpus):
    from ddplab.course.models import with_weights

    weights = {name: weight.to(gpu) for gpu in gpus for name, weight in net.named_parameters()}
    return [with_weights(net, weights) for _ in gpus]


def copies_with_the_old_weights(net, gpus):
    from ddplab.course.models import with_weights

    return [with_weights(copy.deepcopy(net).to(gpu), dict(net.named_parameters())) for gpu in gpus]


def one_too_many(net, gpus):
    return [*replicate(net, gpus), net]


def detached(net, gpus):
    from ddplab.course.models import with_weights

    weights = {name: weight.detach() for name, weight in net.named_parameters()}
    return [with_weights(net, {name: weight.to(gpu) for name, weight in weights.items()}) for gpu in gpus]


def in_a_pool(replicas, parts, threads=None):
    with ThreadPoolExecutor(threads or len(parts)) as pool:
        return list(pool.map(lambda replica, part: replica(part), replicas, parts))


def with_futures(replicas, parts):
    pool = ThreadPoolExecutor()
    futures = [pool.submit(replica, part) for replica, part in zip(replicas, parts, strict=True)]
    outputs = [future.result() for future in futures]
    pool.shutdown()
    return outputs


def futures_alone(replicas, parts):
    with ThreadPoolExecutor() as pool:
        return [pool.submit(replica, part) for replica, part in zip(replicas, parts, strict=True)]


def the_first_in_this_thread(replicas, parts):
    outputs = [None] * len(parts)

    def work(i):
        outputs[i] = replicas[i](parts[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, len(parts))]
    for thread in threads:
        thread.start()
    work(0)
    for thread in threads:
        thread.join()
    return outputs


def into_one_that_is_there(outputs, gpu):
    rows = torch.empty(sum(map(len, outputs)), outputs[0].shape[1], device=gpu)
    start = 0
    for output in outputs:
        rows[start : start + len(output)] = output.to(gpu)
        start += len(output)
    return rows


ANSWERS = {
    "2.1.1": {
        "correct": of(forward),
        "accepted": [of(by_chunks)],
        "blank": of(not_written),
        "wrong": [
            (of(the_lessons_line), ["with a batch of 1", "AssertionError"]),
            (of(by_index), ["with a batch of 1", "IndexError"]),
            (of(partial(forward, finish=lambda outputs, gpus: outputs)), ["with a batch of 8 it returns a list"]),
            (of(partial(forward, finish=lambda outputs, gpus: gather(outputs, "cpu"))), ["the result is on cpu"]),
            (of(partial(forward, finish=lambda parts, gpus: gather(parts, gpus[1]))), ["the result is on", ":1"]),
            (of(lambda net, batch, gpus: net(batch)), ["with a batch of 8 only", ":0 computes"]),  # one gpu
            (of(two_named), ["with a batch of 8 on three GPUs only", ":0 and", ":1 compute"]),
            (of(nothing_scattered), ["the GPUs compute 16 images"]),
            (Real, ["`nn.DataParallel` itself"]),
            (of(no_replica), ["with a batch of 8", "RuntimeError"]),
            (of(partial(forward, detach=True)), ["the scores are right, and the gradients"]),
            # detached outputs
            (of(lambda net, batch, gpus: forward(net, batch, gpus).detach()), ["no gradient reaches `net`"]),
            # back to front
            (of(partial(forward, finish=lambda parts, gpus: gather(parts[::-1], gpus[0]))), ["the scores are not"]),
            (of(lambda net, batch, gpus: print(forward(net, batch, gpus))), ["it returns nothing"]),
            (ReplicasOnce, ["after an update of `net`"]),
            (of(forward, keep="net"), ["`.module` is not the network"]),
            (of(forward)(nn.Linear(1, 1), []), ["is a module, not the class"]),
            (None, ["`MyDataParallel` is None, not a function"]),
        ],
    },
    "2.1.2": {
        "correct": bare,
        "wrong": [
            (partial(bare, cut=lambda name: name[len("module.") :]), ["bare already", "should be"]),
            (partial(bare, cut=lambda name: name.split(".", 1)[1]), ["bare already", "should be"]),
            # `replace` takes every place
            (
                partial(bare, cut=lambda name: name.replace("module.", "")),
                ["called module, submodule and modular", "should be"],
            ),
            (partial(bare, cut=lambda name: name.replace("module.", "", 1)), ["encoder.module", "should be"]),
            # takes letters, not a word
            (
                partial(bare, cut=lambda name: name.lstrip("module.")),
                ["a wrapped model", "`ayers.1.bias`", "`layers.1.bias`"],
            ),
            (in_place, ["changes the dictionary", "returns nothing"]),
            (in_place_and_returned, ["changes the dictionary that it got"]),
            (lambda state: dict(state), ["a wrapped model", "`module.layers.1.bias`"]),  # unchanged
            # names alone
            (lambda state: [name.removeprefix("module.") for name in state], ["returns a list, not a dictionary"]),
            (shuffled, ["a tensor is not the one"]),
        ],
    },
    "2.1.3": {
        "correct": careful,
        "accepted": [by_batch_sampler, partial(careful, batch_size=50, sampler=RandomSampler(range(1437)))],
        "wrong": [
            (careless, ["wrapped? No", "a single device"]),
            (
                partial(careful, model=lambda net, gpus: nn.DataParallel(net, device_ids=gpus)),
                ["weights on device_ids[0]? No", "is on cpu"],
            ),
            (with_replacement, ["of 1437 samples, and some of them more than once"]),
            (batches_of_32, ["its batches have 32 samples"]),
            (with_a_sampler, ["serve all the data? No", "719 of 1437"]),
            (partial(careful, model=lambda net, gpus: net.to(gpus[0])), ["wrapped? No", "a bare MLP"]),
            (partial(careful, batch_size=1, shuffle=True), ["reach every device? No", "a batch of 1"]),
            (partial(careful, batch_size=32, shuffle=True), ["its batches have 32 samples"]),
            (partial(careful, batch_size=50, shuffle=True, drop_last=True), ["1400 of 1437"]),
            (partial(careful, batch_size=50), ["two epochs come in the same order"]),
            # the other way round
            (lambda net, data, gpus: careful(net, data, gpus)[::-1], ["a DataLoader and a DataParallel"]),
            (lambda net, data, gpus: careful(net, data, gpus)[0], ["two things"]),  # the model alone
            (partial(careful, model=lambda net, gpus: DistributedDataParallel(net)), ["raised", "process group"]),
        ],
    },
    "2.1.a": {
        "accepted": [scatter, by_slices, as_a_generator],
        "wrong": [(lambda batch, gpus: batch.chunk(gpus), ["argument 'chunks'"])],
    },
    "2.1.b": {
        "accepted": [
            replicate,
            by_functional_call,
            with_the_original_on_gpu_0,
            lambda net, gpus: (it for it in with_the_original_on_gpu_0(net, gpus)),  # the lesson asks for no length
        ],
        "wrong": [
            (without_names, ["'list' object has no attribute 'items'"]),
            (moved_as_copies, ["`net`'s own weights have moved to the last GPU", "a copy made with them"]),
            (one_dictionary, ["all replicas have their weights on the last GPU"]),
            (copies_with_the_old_weights, ["copies were sent, and were then given the weights of `net`"]),
            (one_too_many, ["there are 6, and 5 are wanted"]),
            (detached, ["no gradient finds back to `net`"]),
        ],
    },
    "2.1.c": {
        "accepted": [parallel_apply, in_a_pool, with_futures, the_first_in_this_thread],
        "wrong": [
            (partial(in_a_pool, threads=1), ["one computes after the other"]),
            (futures_alone, ["Future"]),
        ],
    },
    "2.1.d": {
        "accepted": [gather, into_one_that_is_there],
        "wrong": [
            (lambda outputs, gpu: torch.cat(output.to(gpu) for output in outputs), ["must be tuple of Tensors"]),
            (lambda outputs, gpu: torch.cat(outputs[::-1]), ["no operation takes them so"]),
        ],
    },
}
