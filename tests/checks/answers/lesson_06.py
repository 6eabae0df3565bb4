"""Answers to the exercises of lesson 06: the right ones, the blanks, and mistakes that people make."""

import torch
from torch import nn
from torch.nn.parallel import replicate


def blank(*args):
    raise NotImplementedError("your code here")


# 06.2: a running mean, mended


class RunningMean(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.layer = nn.Linear(features, 1)
        self.register_buffer("total", torch.zeros(features))
        self.register_buffer("rows", torch.zeros(()))

    def forward(self, x):
        return self.layer(x), (x.sum(0, keepdim=True), torch.tensor([len(x)], device=x.device))

    def absorb(self, kept):
        sums, counts = kept
        self.total += sums.sum(0)
        self.rows += counts.sum()


class Blank(RunningMean):
    def forward(self, x):
        raise NotImplementedError("your code here")

    def absorb(self, kept):
        raise NotImplementedError("your code here")


class HalfBlank(RunningMean):
    def absorb(self, kept):
        raise NotImplementedError("your code here")


class ReturnsTheRows(RunningMean):
    def forward(self, x):
        return self.layer(x), x

    def absorb(self, kept):
        self.total = self.total + kept.sum(0)
        self.rows = self.rows + len(kept)


class StillInForward(RunningMean):
    def forward(self, x):
        self.total += x.sum(0)
        self.rows += len(x)
        return self.layer(x), x

    def absorb(self, kept):
        pass


class OnlyTheScores(RunningMean):
    def forward(self, x):
        return self.layer(x)


class ThreeThings(RunningMean):
    def forward(self, x):
        scores, (sums, counts) = super().forward(x)
        return scores, sums, counts


class KeptFirst(RunningMean):
    def forward(self, x):
        return x, self.layer(x)


class AbsorbsNothing(RunningMean):
    def absorb(self, kept):
        total, rows = self.total, self.rows
        total, rows = total + kept[0].sum(0), rows + kept[1].sum()


class PythonNumber(RunningMean):
    def forward(self, x):
        return self.layer(x), (x.sum(0, keepdim=True), len(x))


class OnTheCPU(RunningMean):
    def forward(self, x):
        return self.layer(x), (x.sum(0, keepdim=True), torch.tensor([len(x)]))


class NoRowForEach(RunningMean):
    def forward(self, x):
        return self.layer(x), (x.sum(0), torch.tensor([len(x)], device=x.device))

    def absorb(self, kept):
        self.total += kept[0]
        self.rows += kept[1].sum()


class NotSummed(RunningMean):
    def absorb(self, kept):
        self.total = self.total + kept[0]
        self.rows = self.rows + kept[1]


class FirstReplica(RunningMean):
    def absorb(self, kept):
        self.total += kept[0][0]
        self.rows += kept[1][0]


class FirstTotal(RunningMean):
    def absorb(self, kept):
        self.total += kept[0][0]
        self.rows += kept[1].sum()


class CountsReplicas(RunningMean):
    def absorb(self, kept):
        self.total += kept[0].sum(0)
        self.rows += len(kept[1])


class Means(RunningMean):
    def forward(self, x):
        return self.layer(x), (x.mean(0, keepdim=True), torch.tensor([len(x)], device=x.device))


class Twice(RunningMean):
    def absorb(self, kept):
        super().absorb(kept)
        super().absorb(kept)


# 06.3: the bad example, repaired


def step(parallel, lr):
    with torch.no_grad():
        for p in parallel.module.parameters():
            if p.grad is not None:
                p -= lr * p.grad
                p.grad.zero_()


def by_optimizer(parallel, lr):
    torch.optim.SGD(parallel.parameters(), lr=lr).step()
    parallel.zero_grad()


def the_bad_example(parallel, lr):
    for child in parallel.module.children():
        for p in child.parameters():
            p.data -= lr * p.grad


def layers_only(parallel, lr):
    for child in parallel.module.children():
        for p in child.parameters():
            if p.grad is not None:
                p.data -= lr * p.grad
    parallel.zero_grad()


def names_a_new_tensor(parallel, lr):
    for p in parallel.parameters():
        if p.grad is not None:
            p = p - lr * p.grad
    parallel.zero_grad()


def on_replicas(parallel, lr):
    for replica in replicate(parallel.module, parallel.device_ids):
        for p in replica.parameters():
            p.data -= lr * p.grad


def with_grad(parallel, lr):
    for p in parallel.parameters():
        if p.grad is not None:
            p -= lr * p.grad


def never_cleared(parallel, lr):
    for p in parallel.parameters():
        if p.grad is not None:
            p.data -= lr * p.grad


def uphill(parallel, lr):
    step(parallel, -lr)


def shared_out(parallel, lr):
    step(parallel, lr / len(parallel.device_ids))


def for_each_gpu(parallel, lr):
    step(parallel, lr * len(parallel.device_ids))


def by_adam(parallel, lr):
    torch.optim.Adam(parallel.parameters(), lr=lr).step()
    parallel.zero_grad()


def shrinks_all(parallel, lr):
    for p in parallel.parameters():
        p.data -= lr * (0 if p.grad is None else p.grad) + 0.01 * p.data
    parallel.zero_grad()


# 06.4: activations, in order


def hooked(parallel, layer, x, keep, remove=True):
    """Run the network with a hook that hands module and output to `keep`."""
    handle = layer.register_forward_hook(lambda module, inputs, output: keep(module, output))
    parallel(x)
    if remove:
        handle.remove()


def collect(parallel, layer, x):
    parts = []
    hooked(parallel, layer, x, lambda module, output: parts.append((output.get_device(), output.detach().cpu())))
    return torch.cat([part for _, part in sorted(parts, key=lambda pair: pair[0])])


def in_any_order(parallel, layer, x):
    parts = []
    hooked(parallel, layer, x, lambda module, output: parts.append(output.detach().cpu()))
    return torch.cat(parts)


def the_last_one(parallel, layer, x):
    parts = {}
    hooked(parallel, layer, x, lambda module, output: parts.update(kept=output.detach().cpu()))
    return parts["kept"]


def on_the_module(parallel, layer, x):
    hooked(parallel, layer, x, lambda module, output: setattr(module, "kept", output.detach().cpu()))
    return layer.kept


def on_the_gpus(parallel, layer, x):
    parts = {}
    hooked(parallel, layer, x, lambda module, output: parts.update({output.get_device(): output.detach()}))
    return torch.cat([parts[gpu] for gpu in sorted(parts)])


def on_gpu_0(parallel, layer, x):
    return collect(parallel, layer, x).to(x.device)


def without_a_gpu_1(parallel, layer, x):
    parts = {}
    hooked(parallel, layer, x, lambda module, output: parts.update({output.get_device(): output.detach().cpu()}))
    return torch.cat([parts[0], parts[1]])


def left_on(parallel, layer, x):
    parts = {}

    def keep(module, output):
        parts[output.get_device()] = output.detach().cpu()

    hooked(parallel, layer, x, keep, remove=False)
    return torch.cat([parts[gpu] for gpu in sorted(parts)])


def on_one_gpu(parallel, layer, x):
    return collect(parallel.module, layer, x)


def without_a_forward(parallel, layer, x):
    return layer(x).detach().cpu()


def hooks_too_late(parallel, layer, x):
    parts = []
    parallel(x)
    layer.register_forward_hook(lambda module, inputs, output: parts.append(output)).remove()
    return torch.cat(parts)


def the_inputs(parallel, layer, x):
    collect(parallel, layer, x)
    return x.cpu()


def returns_the_parts(parallel, layer, x):
    parts = []
    hooked(parallel, layer, x, lambda module, output: parts.append(output.detach().cpu()))
    return parts


ANSWERS = {
    "06.1": {"correct": (0, 8, 0, 4, 2)},
    "06.2": {
        "correct": RunningMean,
        "accepted": [ReturnsTheRows],
        "blank": Blank,
        "also blank": [HalfBlank],
        "wrong": [
            (StillInForward, ["on two GPUs", "`forward` itself changes"]),
            (OnlyTheScores, ["`forward` returns one tensor", "not the pair"]),
            (ThreeThings, ["a tuple of 3", "not the pair"]),
            (KeptFirst, ["not the scores"]),
            (AbsorbsNothing, ["on two GPUs", "leaves `total` and `rows` at 0"]),
            (PythonNumber, ["raised TypeError", "not iterable"]),
            (OnTheCPU, ["raised", "CPU tensors"]),
            (NoRowForEach, ["raised RuntimeError"]),
            (NotSummed, ["`total` has shape (2, 3)"]),
            (FirstReplica, ["`rows` is 6 of 10", "first replica"]),
            (FirstTotal, ["`total` has only the first replica's rows"]),
            (CountsReplicas, ["`rows` is 5 of 10", "counts replicas"]),
            (Means, ["a sum of means"]),
            (Twice, ["`rows` is 20", "10 rows"]),
            (RunningMean(3), ["a module, not the class"]),
            ("RunningMean", ["not a function"]),
        ],
    },
    "06.3": {
        "correct": step,
        "accepted": [by_optimizer],
        "blank": blank,
        "wrong": [
            (the_bad_example, ["raised TypeError", "NoneType"]),
            (layers_only, ["`scale` never moved"]),
            (names_a_new_tensor, ["no parameter of the network moved"]),
            (on_replicas, ["no parameter of the network moved"]),
            (with_grad, ["raised RuntimeError", "leaf Variable"]),
            (never_cleared, ["pile up"]),
            (uphill, ["uphill"]),
            (shared_out, ["half as long"]),
            (for_each_gpu, ["twice as long"]),
            (by_adam, ["after 5 steps", "not what SGD makes of it"]),
            (shrinks_all, ["the frozen layer moved"]),
            (None, ["`step` is None, not a function"]),
        ],
    },
    "06.4": {
        "correct": collect,
        "blank": blank,
        "wrong": [
            (in_any_order, ["the second GPU's rows come first"]),
            (the_last_one, ["you return 3 of 5 rows"]),
            (on_the_module, ["raised AttributeError"]),
            (on_the_gpus, ["raised RuntimeError"]),
            (on_gpu_0, ["is on ", ":0"]),
            (without_a_gpu_1, ["raised KeyError"]),
            (left_on, ["your hook is still on the layer"]),
            (on_one_gpu, ["the network ran on [0]", "not once on each"]),
            (without_a_forward, ["the network ran on no GPU"]),
            (hooks_too_late, ["raised", "non-empty list"]),
            (the_inputs, ["not the outputs of `layer`"]),
            (returns_the_parts, ["`collect` returns a list"]),
        ],
    },
}
