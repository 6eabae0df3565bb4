"""Answers to the exercises of lesson 2.4: the right ones, the blanks, and mistakes that people make."""

from functools import partial

import torch
from torch import nn
from torch.nn.parallel import replicate


def blank(*args):
    raise NotImplementedError("your code here")


def but(base, **methods):
    """The class, with these methods done otherwise."""
    return type(base.__name__, (base,), methods)


# 2.4.1: a running mean, mended


class RunningMean(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.layer = nn.Linear(features, 1)
        self.register_buffer("total", torch.zeros(features))
        self.register_buffer("rows", torch.zeros(()))

    def forward(self, x):
        return self.layer(x), self.keep(x)

    def keep(self, x):
        return x.sum(0, keepdim=True), torch.tensor([len(x)], device=x.device)

    def absorb(self, kept):
        total, rows = self.add_up(*kept)
        self.total += total
        self.rows += rows

    def add_up(self, sums, counts):
        return sums.sum(0), counts.sum()


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


class AbsorbsNothing(RunningMean):
    def absorb(self, kept):
        total, rows = self.total, self.rows
        total, rows = total + kept[0].sum(0), rows + kept[1].sum()


class NotSummed(RunningMean):
    def absorb(self, kept):
        self.total = self.total + kept[0]
        self.rows = self.rows + kept[1]


class Twice(RunningMean):
    def absorb(self, kept):
        super().absorb(kept)
        super().absorb(kept)


# 2.4.2: the bad example, repaired


def step(parallel, lr):
    with torch.no_grad():
        for p in parallel.module.parameters():
            if p.grad is not None:
                p -= lr * p.grad
                p.grad.zero_()


def by_optimizer(parallel, lr, kind=torch.optim.SGD):
    kind(parallel.parameters(), lr=lr).step()
    parallel.zero_grad()


def of_children(parallel):
    return [p for child in parallel.module.children() for p in child.parameters()]


def of_replicas(parallel):
    return [p for replica in replicate(parallel.module, parallel.device_ids) for p in replica.parameters()]


def by_hand(parallel, lr, *, of=nn.Module.parameters, frozen_too=False, clear=True, shrink=0.0):
    """The loop, with one thing done otherwise at a time."""
    for p in of(parallel):
        if p.grad is not None or frozen_too:
            p.data -= lr * p.grad
        p.data -= shrink * p.data
    if clear:
        parallel.zero_grad()


def names_a_new_tensor(parallel, lr):
    for p in parallel.parameters():
        if p.grad is not None:
            p = p - lr * p.grad
    parallel.zero_grad()


def with_grad(parallel, lr):
    for p in parallel.parameters():
        if p.grad is not None:
            p -= lr * p.grad


def new_parameters(parallel, lr):
    for module in parallel.module.modules():
        for name, p in list(module._parameters.items()):
            if p is not None and p.grad is not None:
                setattr(module, name, nn.Parameter((p - lr * p.grad).detach()))


def by_name(parallel, lr):
    by_hand(parallel, lr, of=lambda parallel: [parallel.module.scale, *of_children(parallel)])


# 2.4.3: activations, in order


def parts_of(parallel, layer, x, home=lambda output: output.detach().cpu(), remove=True):
    """Pairs of a GPU and what `layer` gave there, in the order in which they came."""
    parts = []
    handle = layer.register_forward_hook(
        lambda module, inputs, output: parts.append((output.get_device(), home(output)))
    )
    parallel(x)
    if remove:
        handle.remove()
    return parts


def collect(parallel, layer, x, **options):
    return torch.cat([part for _, part in sorted(parts_of(parallel, layer, x, **options), key=lambda pair: pair[0])])


def on_the_module(parallel, layer, x):
    handle = layer.register_forward_hook(lambda module, inputs, output: setattr(module, "kept", output.detach().cpu()))
    parallel(x)
    handle.remove()
    return layer.kept


def without_a_gpu_1(parallel, layer, x):
    parts = dict(parts_of(parallel, layer, x))
    return torch.cat([parts[0], parts[1]])


def runs_it_again(parallel, layer, x):
    parallel(x)
    return layer(x).detach().cpu()


def clears_all_hooks(parallel, layer, x):
    output = collect(parallel, layer, x)
    layer._forward_hooks.clear()
    return output


def the_inputs(parallel, layer, x):
    collect(parallel, layer, x)
    return x.cpu()


def hooks_too_late(parallel, layer, x):
    parts = []
    parallel(x)
    layer.register_forward_hook(lambda module, inputs, output: parts.append(output)).remove()
    return torch.cat(parts)


# your turn


def counts_twice(diary, n):
    diary.total += 2


def makes_another_total(diary, n):
    diary.total = torch.tensor(float(diary.total) + 1)


def by_weights(parallel):
    for layer in parallel.module.children():
        layer.weight.data.clamp_(-1, 1)


def by_division(parallel):
    for p in parallel.module.parameters():
        p.data /= p.data.abs().max()


def by_one_bound(parallel):
    for p in parallel.module.parameters():
        p.data.clamp_(min=-1)


def by_data(parallel):
    for p in parallel.module.parameters():
        p.data = p.data.clamp(-1, 1)


def by_state_dict(parallel):
    for tensor in parallel.state_dict().values():
        tensor.clamp_(min=-1, max=1)


def by_the_loops_name(parallel):
    with torch.no_grad():
        for p in parallel.module.parameters():
            p = p.clamp(-1, 1)


def by_a_copy(parallel):
    for p in parallel.module.parameters():
        p.detach().clone().clamp_(-1, 1)


def by_gradients(parallel):
    for p in parallel.parameters():
        p.grad = p.grad.clamp(-1, 1)


def by_minimum_and_maximum(parallel):
    with torch.no_grad():
        for p in parallel.parameters():
            p.copy_(torch.minimum(torch.maximum(p, p.new_tensor(-1.0)), p.new_tensor(1.0)))


def by_pages(diary, n):
    diary.pages.append(n)
    diary.total.copy_(torch.tensor(len(diary.pages)))


ANSWERS = {
    "2.4.1": {
        "correct": RunningMean,
        "accepted": [ReturnsTheRows],
        "blank": but(RunningMean, forward=blank, absorb=blank),
        "also blank": [but(RunningMean, absorb=blank)],
        "wrong": [
            (StillInForward, ["on two GPUs", "`forward` itself changes"]),
            (but(RunningMean, forward=lambda self, x: self.layer(x)), ["`forward` returns one tensor", "not the pair"]),
            (
                but(RunningMean, forward=lambda self, x: (self.layer(x), *self.keep(x))),
                ["a tuple of 3", "not the pair"],
            ),
            (but(RunningMean, forward=lambda self, x: (x, self.layer(x))), ["not the scores"]),
            (AbsorbsNothing, ["on two GPUs", "leaves `total` and `rows` at 0"]),
            # a Python number
            (
                but(RunningMean, keep=lambda self, x: (x.sum(0, keepdim=True), len(x))),
                ["raised TypeError", "not iterable"],
            ),
            # on the CPU
            (
                but(RunningMean, keep=lambda self, x: (x.sum(0, keepdim=True), torch.tensor([len(x)]))),
                ["raised", "CPU tensors"],
            ),
            (
                but(
                    RunningMean,
                    keep=lambda self, x: (x.sum(0), torch.tensor([len(x)], device=x.device)),  # no row for each
                    add_up=lambda self, sums, counts: (sums, counts.sum()),
                ),
                ["raised RuntimeError"],
            ),
            (NotSummed, ["`total` has shape (2, 3)"]),
            (
                but(RunningMean, add_up=lambda self, sums, counts: (sums[0], counts[0])),
                ["`rows` is 6 of 10", "first replica"],
            ),
            (
                but(RunningMean, add_up=lambda self, sums, counts: (sums[0], counts.sum())),
                ["`total` has only the first replica's rows"],
            ),
            (
                but(RunningMean, add_up=lambda self, sums, counts: (sums.sum(0), len(counts))),
                ["`rows` is 5 of 10", "counts replicas"],
            ),
            (
                but(RunningMean, keep=lambda self, x: (x.mean(0, keepdim=True), RunningMean.keep(self, x)[1])),
                ["a sum of means"],
            ),
            (Twice, ["`rows` is 20", "10 rows"]),
            (RunningMean(3), ["a module, not the class"]),
            ("RunningMean", ["not a function"]),
        ],
    },
    "2.4.2": {
        "correct": step,
        "accepted": [by_optimizer],
        "wrong": [
            (partial(by_hand, of=of_children, frozen_too=True, clear=False), ["raised TypeError", "NoneType"]),
            (partial(by_hand, of=of_children), ["`scale` never moved"]),
            (names_a_new_tensor, ["no parameter of the network moved"]),
            (partial(by_hand, of=of_replicas, frozen_too=True, clear=False), ["no parameter of the network moved"]),
            (with_grad, ["raised RuntimeError", "leaf Variable"]),
            (partial(by_hand, clear=False), ["pile up"]),
            (lambda parallel, lr: step(parallel, -lr), ["uphill"]),
            (lambda parallel, lr: step(parallel, lr / len(parallel.device_ids)), ["half as long"]),  # shared out
            (lambda parallel, lr: step(parallel, lr * len(parallel.device_ids)), ["twice as long"]),  # for each gpu
            (lambda parallel, lr: step(parallel, 0.1), ["`lr` is 0.03", "those of 0.1"]),
            (by_name, ["raised AttributeError", "'scale'"]),
            (new_parameters, ["is another parameter afterwards"]),
            (partial(by_optimizer, kind=torch.optim.Adam), ["after 5 steps", "not what SGD makes of it"]),
            (partial(by_hand, shrink=0.01), ["the frozen layer moved"]),
            (None, ["`step` is None, not a function"]),
        ],
    },
    "2.4.3": {
        "correct": collect,
        "wrong": [
            # in the order in which they came
            (lambda *given: torch.cat([part for _, part in parts_of(*given)]), ["the second GPU's rows come first"]),
            # the last to come first
            (
                lambda *given: torch.cat([part for _, part in parts_of(*given)][::-1]),
                ["the second GPU's rows come first"],
            ),
            (lambda *given: collect(*given).sort(0).values, ["in another order than the rows"]),
            (runs_it_again, ["`layer` ran 3 times", "apart from the one forward"]),
            (clears_all_hooks, ["hooks that are not yours"]),
            (lambda *given: parts_of(*given)[-1][1], ["you return 3 of 5 rows"]),
            (on_the_module, ["raised AttributeError"]),
            (partial(collect, home=torch.Tensor.detach), ["raised RuntimeError"]),
            (lambda parallel, layer, x: collect(parallel, layer, x).to(x.device), ["is on ", ":0"]),  # on gpu 0
            (without_a_gpu_1, ["raised KeyError"]),
            (partial(collect, remove=False), ["your hook is still on the layer"]),
            # on one GPU
            (
                lambda parallel, layer, x: collect(parallel.module, layer, x),
                ["the network ran on [0]", "not once on each"],
            ),
            (lambda parallel, layer, x: layer(x).detach().cpu(), ["the network ran on no GPU"]),  # without a forward
            (hooks_too_late, ["raised", "non-empty list"]),
            (the_inputs, ["not the outputs of `layer`"]),
            (lambda *given: [part for _, part in parts_of(*given)], ["`collect` returns a list"]),
        ],
    },
    "2.4.a": {
        "accepted": [
            lambda diary, n: diary.total.add_(1),
            lambda diary, n: diary.total.copy_(diary.total + 1),
            lambda diary, n: diary.total.data.__iadd__(1),
        ],
        "wrong": [
            (counts_twice, ["after 1 forward is 2, and should be 1"]),
            (lambda diary, n: diary.total.add(1), ["`total` never moves"]),
            (lambda diary, n: diary.total.copy_(torch.tensor(n)), ["how many rows came last"]),
            (lambda diary, n: diary.total.__iadd__(1 / 2), ["each forward adds a half"]),
            (by_pages, ["on two GPUs replicas are counted"]),
            (makes_another_total, ["on the CPU, takes the place of `total`"]),
        ],
    },
    "2.4.b": {
        "accepted": [by_data, by_state_dict, by_minimum_and_maximum],
        "wrong": [
            (by_the_loops_name, ["no weight was written into"]),
            (by_a_copy, ["no weight of your own module has moved"]),
            (by_gradients, ["the gradients are clipped, and no weight"]),
            (by_weights, ["the bias and `scale` are left out"]),
            (by_division, ["weights that were in the range change, too"]),
            (by_one_bound, ["nothing stops a weight above 1"]),
        ],
    },
    "2.4.c": {
        "accepted": [
            lambda layer, x: (layer(x), x.new_tensor([len(x)])),
            lambda layer, x: [layer(x), torch.full((1,), x.shape[0], device=x.device)],
            lambda layer, x: (layer(x), torch.tensor(len(x), device=x.device)),
            lambda layer, x: (layer(x), torch.ones_like(x[:, :1]).sum(0)),
            lambda layer, x: (layer(x), torch.tensor([[len(x)]], device=x.device)),
        ],
        "wrong": [
            (lambda layer, x: (layer(x), torch.tensor([x.numel()]).to(x.device)), ["a row has two"]),
            (lambda layer, x: (layer(x).data, x.new_tensor([len(x)])), ["no gradient goes back"]),
            (lambda layer, x: (layer(x), x.sum().view(1)), ["the numbers in `x` are added up"]),
            (lambda layer, x: (layer(x).mean(), x.new_tensor([len(x)])), ["not those of single rows"]),
            (lambda layer, x: (layer(x).squeeze(), x.new_tensor([len(x)])), ["lost their second dimension"]),
            (lambda layer, x: (layer, x.new_tensor([len(x)])), ["the layer itself comes back"]),
            (lambda layer, x: {"scores": layer(x), "rows": x.new_tensor([len(x)])}, ["a dictionary comes back"]),
            (lambda layer, x: torch.cat([layer(x), x.new_full((len(x), 1), len(x))], dim=1), ["of two columns"]),
            (lambda layer, x: (layer(x), x.new_tensor([x.shape[-1]])), ["the numbers in a row are counted"]),
            (lambda layer, x: x.new_tensor([len(x)]), ["one number comes back from each replica, and no scores"]),
            (lambda layer, x: [layer(x)], ["the scores alone come back"]),
            (lambda layer, x: (layer(x), x.clone()), ["the rows themselves come back"]),
            (
                lambda layer, x: (layer(x), tuple(x.shape)),
                ["returned a tuple of 2: the check met TypeError", "in DataParallel's gather"],
            ),
        ],
    },
}
