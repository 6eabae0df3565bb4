"""Answers to the exercises of lesson 4.5: the right ones, the blanks, and mistakes that people make."""

from functools import partial

import torch
import torch.distributed as dist

# 4.5.2: the way back through everybody


def summed(back):
    """A differentiable sum over the ranks, whose way back is `back(gradient)`."""

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            total = x.clone()
            dist.all_reduce(total)
            return total

        @staticmethod
        def backward(ctx, gradient):
            return back(gradient)

    return Sum.apply


def of_all(gradient):
    gradient = gradient.clone()
    dist.all_reduce(gradient)
    return gradient


def without_a_way_back(x):
    return of_all(x.detach())


def normalise(x, back=of_all, add=None, spread=None):
    sums = torch.stack([x.sum(0), x.square().sum(0), torch.ones_like(x).sum(0)])
    total, squares, rows = add(sums) if add else summed(back)(sums)
    mean = total / rows
    variance = squares / rows - mean.square()
    return (x - mean) / (spread(mean, variance, rows) if spread else (variance + 1e-5).sqrt())


def in_two_rounds(x):
    add = summed(of_all)
    rows = add(x.new_tensor(float(len(x))))
    mean = add(x.sum(0)) / rows
    return (x - mean) / (add((x - mean).square().sum(0)) / rows + 1e-5).sqrt()


def mean_of_means(x):
    sums = torch.stack([x.sum(0), x.square().sum(0), torch.ones_like(x).sum(0)])
    total, squares, rows = summed(of_all)(sums)
    right = total / rows
    mean = summed(of_all)(x.mean(0)) / dist.get_world_size()
    return (x - mean) / (squares / rows - right.square() + 1e-5).sqrt()


def one_number(x):
    return normalise(x).mean()


def all_the_rows(x):
    dist.all_reduce(x.detach().clone())
    return normalise(x)


def uses_what_it_returns(x):
    return x - dist.all_reduce(x.detach().sum(0)) / 2


# your turn


def in_two_rounds_normalised(x):
    rows = of_all(x.new_tensor(float(len(x))))
    mean = of_all(x.sum(0)) / rows
    spread = of_all((x - mean).square().sum(0)) / rows
    return (x - mean) / (spread + 1e-5) ** 0.5


def gathered(x):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, x.tolist())
    everything = torch.tensor([number for numbers in everyone for number in numbers])
    return (x.cpu() - everything.mean()) / everything.std(correction=0)


def mean_of_the_ranks_means(x):
    mean, squares = of_all(x.mean()) / dist.get_world_size(), of_all(x.square().mean()) / dist.get_world_size()
    return (x - mean) / (squares - mean.square()).sqrt()


def less_the_mean(x):
    return x - of_all(x.sum()) / of_all(x.new_tensor(float(len(x))))


def by_its_own_spread(x, average=False):
    spread = x.std(unbiased=False)
    return less_the_mean(x) / (of_all(spread) / dist.get_world_size() if average else spread)


def as_many_everywhere(x):
    count = x.numel() * dist.get_world_size()
    away = x - of_all(x.sum()) / count
    return away / (of_all(away.square().sum()) / count) ** 0.5


def of_the_sums_of_places(x):
    x = of_all(x.clone())
    return (x - x.mean()) / x.std(correction=0)


def mean_of_the_variances(x):
    mean, variance = of_all(x.mean()), of_all(x.var(unbiased=False))
    return (x - mean / dist.get_world_size()) / (variance / dist.get_world_size()).sqrt()


def divides_by_the_ranks(x):
    ranks = dist.get_world_size()
    mean = of_all(x.sum()) / ranks
    return (x - mean) / (of_all((x - mean).square().sum()) / ranks).sqrt()


def two_ranks_numbers(x):
    count = 2 * len(x)
    mean = of_all(x.sum()) / count
    return (x - mean) / (of_all((x - mean).square().sum()) / count).sqrt()


def squares_of_sums(x):
    rows = of_all(x.new_tensor(float(len(x))))
    mean = of_all(x.sum()) / rows
    return (x - mean) / (of_all(x.sum() ** 2) / rows - mean**2).sqrt()


def by_layer(net, kinds=(torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)):
    for layer in net.modules():
        if isinstance(layer, kinds):
            both = torch.stack([layer.running_mean, layer.running_var])
            dist.all_reduce(both)
            layer.running_mean, layer.running_var = both / dist.get_world_size()


def by_gathering(net):
    for name, buffer in net.named_buffers():
        if "running" in name:
            everyone = [torch.empty_like(buffer) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, buffer)
            buffer.copy_(torch.stack(everyone).mean(0))


def whole_numbers(net):
    for buffer in net.buffers():
        dist.all_reduce(buffer)
        buffer //= dist.get_world_size()


def total_variance(net):
    for layer in net.modules():
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
            everyone = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, (layer.running_mean.cpu(), layer.running_var.cpu()))
            means, variances = (torch.stack(it) for it in zip(*everyone, strict=True))
            layer.running_mean.copy_(means.mean(0))
            layer.running_var.copy_(variances.mean(0) + means.var(0, correction=0))


def weights_as_well(net):
    for it in [*net.parameters(), *by_name(net).values()]:
        dist.all_reduce(it.data)
        it.data /= dist.get_world_size()


def by_name(net):
    return {name: it for name, it in net.named_buffers() if "running" in name}


def one_tensor_for_all(net):
    for it in by_name(net).values():
        everyone = [it] * dist.get_world_size()
        dist.all_gather(everyone, it)
        it.copy_(torch.stack(everyone).mean(0))


def of_children(net):
    for layer in net.children():
        if isinstance(layer, torch.nn.BatchNorm1d):
            by_layer(layer)


def of_the_net_itself(net):
    dist.all_reduce(net.running_mean)


def all_buffers(net):
    for buffer in net.buffers():
        dist.all_reduce(buffer)
        buffer /= dist.get_world_size()


def by_the_network_inside(model, optimizer, scaler, loss, limit):
    optimizer.zero_grad(set_to_none=False)
    (loss * scaler.scale(torch.ones_like(loss))).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.module.parameters(), max_norm=limit)
    scaler.step(optimizer)
    scaler.update()


def clips_by_hand(model, optimizer, scaler, loss, limit):
    scaler.scale(loss).backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    for p in model.parameters():
        p.grad *= min(1.0, limit * scaler.get_scale() / norm.item())
    scaler.step(optimizer)
    scaler.update()


def clips_each_by_itself(model, optimizer, scaler, loss, limit):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        torch.nn.utils.clip_grad_norm_(p, limit)
    scaler.step(optimizer)
    scaler.update()


def clips_and_stretches(model, optimizer, scaler, loss, limit):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    for p in model.parameters():
        p.grad *= limit / norm
    scaler.step(optimizer)
    scaler.update()


def clips_too_late(model, optimizer, scaler, loss, limit):
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)


def forgets_to_scale(model, optimizer, scaler, loss, limit):
    loss.backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def scales_and_forgets_it(model, optimizer, scaler, loss, limit):
    scaler.scale(loss)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    scaler.step(optimizer)
    scaler.update()


def without_the_scaler(model, optimizer, scaler, loss, limit):
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()


def clips_with(model, optimizer, scaler, loss, clip):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(model)
    scaler.step(optimizer)
    scaler.update()


def clips_the_model(model, optimizer, scaler, loss, limit):
    clips_with(model, optimizer, scaler, loss, lambda model: torch.nn.utils.clip_grad_norm_(model, limit))


def clears_before_it_clips(model, optimizer, scaler, loss, limit):
    clips_with(model, optimizer, scaler, loss, lambda _: optimizer.zero_grad())


def averages_by_hand(model, optimizer, scaler, loss, limit):
    def clip(model):
        for p in model.parameters():
            dist.all_reduce(p.grad)
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)

    clips_with(model, optimizer, scaler, loss, clip)


def updates_the_optimiser(model, optimizer, scaler, loss, limit):
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update(optimizer)


ANSWERS = {
    "4.5.1": {"correct": (18, 4, 3)},
    "4.5.2": {
        "correct": normalise,
        "accepted": [in_two_rounds],
        "wrong": [
            (lambda x: normalise(x, add=lambda sums: sums), ["each rank's rows are normalised by themselves"]),
            (mean_of_means, ["with 3 and 5 rows", "the mean is that of the ranks' means"]),
            (
                partial(normalise, spread=lambda mean, variance, rows: (variance * rows / (rows - 1) + 1e-5).sqrt()),
                ["divided by one row less"],
            ),
            (
                partial(normalise, spread=lambda mean, variance, rows: (variance + mean.square() + 1e-5).sqrt()),
                ["the mean of the squares"],
            ),
            (partial(normalise, spread=lambda mean, variance, rows: variance + 1e-5), ["the root is missing"]),
            (partial(normalise, spread=lambda mean, variance, rows: variance.sqrt()), ["`epsilon` is missing"]),
            (partial(normalise, spread=lambda mean, variance, rows: (-variance).sqrt()), ["is not a number"]),
            (partial(normalise, add=without_a_way_back), ["as if mean and variance did not hang on `x`"]),
            (partial(normalise, back=lambda gradient: gradient), ["that of the rank's own loss"]),
            (
                partial(normalise, back=lambda gradient: of_all(gradient) / dist.get_world_size()),
                ["is divided by the ranks"],
            ),
            (partial(normalise, back=lambda gradient: of_all(of_all(gradient))), ["once for each rank"]),
            (lambda x: normalise(x).detach(), ["no gradient reaches `x`"]),
            (one_number, ["(3, 3) go in and () come out"]),
            (lambda x: print(normalise(x)), ["normalise returned NoneType"]),
            (all_the_rows, ["SIGABRT"]),
            (uses_what_it_returns, ["raised TypeError", "'NoneType'"]),
        ],
    },
    "4.5.a": {
        "accepted": [in_two_rounds_normalised, gathered],
        "wrong": [
            (lambda x: x + of_all(x), ["rank 0: x is 7"]),
            (mean_of_the_ranks_means, ["on 3 ranks", "the ranks' means weigh alike"]),
            (less_the_mean, ["nothing is divided"]),
            (of_the_sums_of_places, ["as if it were alone"]),
            (mean_of_the_variances, ["the mean of the ranks' variances"]),
            (by_its_own_spread, ["the variance the rank's own"]),
            (partial(by_its_own_spread, average=True), ["the mean of the ranks' spreads"]),
            (as_many_everywhere, ["on 3 ranks", "as many numbers as itself"]),
            (divides_by_the_ranks, ["divided by how many ranks there are"]),
            (two_ranks_numbers, ["on 3 ranks", "twice the rank's own numbers"]),
            (squares_of_sums, ["sums are squared, and not each number"]),
        ],
    },
    "4.5.b": {
        "accepted": [by_layer, by_gathering],
        "wrong": [
            (all_buffers, ["raised RuntimeError"]),
            (of_children, ["inside a block is not reached"]),
            (partial(by_layer, kinds=torch.nn.BatchNorm1d), ["the BatchNorm2d inside a block is not reached"]),
            (of_the_net_itself, ["raised AttributeError"]),
            (whole_numbers, ["on 4 ranks", "a fraction is dropped"]),
            (weights_as_well, ["the weights are averaged as well"]),
            (total_variance, ["the variance is that of all ranks' numbers", "asked for is the mean"]),
            (one_tensor_for_all, ["all have the last rank's"]),
            (lambda net: [dist.broadcast(it, src=0) for it in by_name(net).values()], ["all have rank 0's"]),
            (lambda net: by_layer(net) or [it.div_(2) for it in by_name(net).values()], ["divided once more"]),
        ],
    },
    "4.5.c": {
        "accepted": [by_the_network_inside, clips_by_hand],
        "wrong": [
            (forgets_to_scale, ["raised AssertionError"]),
            (clips_and_stretches, ["on 4 ranks", "short enough is lengthened"]),
            (clips_too_late, ["raised RuntimeError"]),
            (scales_and_forgets_it, ["`backward()` is that of the loss itself"]),
            (without_the_scaler, ["the scaler is not used at all"]),
            (clips_the_model, ["'DistributedDataParallel' object is not iterable"]),
            (clears_before_it_clips, ["or the gradients are gone"]),
            (averages_by_hand, ["on 4 ranks", "the gradients are added up once more"]),
            (updates_the_optimiser, ["no attribute 'device'"]),
            (clips_each_by_itself, ["each weight is cut to the limit by itself"]),
        ],
    },
}
