"""Answers to the exercises of lesson 4.5: the right ones, the blanks, and mistakes that people make."""

import torch
import torch.distributed as dist

# 4.5.2: statistics of everybody


def statistics(x):
    sums = torch.stack([x.sum(0), x.square().sum(0), torch.ones_like(x).sum(0)])
    dist.all_reduce(sums)
    total, squares, rows = sums
    return total / rows, squares / rows - (total / rows).square()


def reduced(x):
    x = torch.as_tensor(x, dtype=torch.float64).clone()
    dist.all_reduce(x)
    return x


def in_two_rounds(x):
    rows = reduced(len(x))
    mean = reduced(x.sum(0)) / rows
    return mean, reduced((x - mean).square().sum(0)) / rows


def own_mean(x):
    return x.mean(0)


def own_spread(x):
    return x.var(0, correction=0)


def mean_of_means(x):
    return reduced(own_mean(x)) / dist.get_world_size(), reduced(own_spread(x)) / dist.get_world_size()


def one_row_less(x):
    mean, spread = statistics(x)
    return mean, spread * reduced(len(x)) / (reduced(len(x)) - 1)


def with_the_root(x):
    mean, spread = statistics(x)
    return mean, spread.sqrt()


def only_squares(x):
    mean, spread = statistics(x)
    return mean, spread + mean.square()


def one_for_all_columns(x):
    mean, spread = statistics(x)
    return mean.mean(), spread.mean()


def spoils_x(x):
    answer = statistics(x)
    x.zero_()
    return answer


def uses_what_it_returns(x):
    total = dist.all_reduce(x.sum(0))
    return total / len(x), total


def all_the_rows(x):
    dist.all_reduce(x.clone())
    return own_mean(x), own_spread(x)


# your turn


def in_two_rounds_normalised(x):
    mean, spread = in_two_rounds(x)
    return (x - mean) / (spread + 1e-5) ** 0.5


def gathered(x):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, x.tolist())
    everything = torch.tensor([number for numbers in everyone for number in numbers])
    return (x.cpu() - everything.mean()) / everything.std(correction=0)


def by_layer(net):
    for layer in net.modules():
        if isinstance(layer, torch.nn.BatchNorm1d):
            both = torch.stack([layer.running_mean, layer.running_var])
            dist.all_reduce(both)
            layer.running_mean, layer.running_var = both / dist.get_world_size()


def by_gathering(net):
    for name, buffer in net.named_buffers():
        if "running" in name:
            everyone = [torch.empty_like(buffer) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, buffer)
            buffer.copy_(torch.stack(everyone).mean(0))


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
    for p in model.parameters():
        p.grad *= min(1.0, limit * scaler.get_scale() / p.grad.norm().item())
    scaler.step(optimizer)
    scaler.update()


def forgets_to_scale(model, optimizer, scaler, loss, limit):
    loss.backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


ANSWERS = {
    "4.5.1": {"correct": (18, 4, 3)},
    "4.5.2": {
        "correct": statistics,
        "accepted": [in_two_rounds],
        "wrong": [
            (lambda x: (own_mean(x), own_spread(x)), ["the mean is the mean of the rank's own rows"]),
            (mean_of_means, ["with 3 and 5 rows", "the mean is the mean of the ranks' means"]),
            (lambda x: (reduced(own_mean(x)),) * 2, ["the sum of the ranks' means"]),
            (lambda x: (reduced(x.sum(0)) / len(x),) * 2, ["divided by the rank's own rows"]),
            (lambda x: (statistics(x)[0], own_spread(x)), ["the variance is the rank's own"]),
            (lambda x: (statistics(x)[0], mean_of_means(x)[1]), ["the variance is the mean of the ranks' own"]),
            (one_row_less, ["divided by one row less"]),
            (with_the_root, ["the standard deviation"]),
            (only_squares, ["the mean of the squares"]),
            (one_for_all_columns, ["has the shape (), not (3,)"]),
            (spoils_x, ["`x` itself has changed"]),
            (all_the_rows, ["SIGABRT"]),
            (lambda x: statistics(x)[0], ["returned Tensor, not two tensors"]),
            (lambda x: dist.all_reduce(len(x)), ["raised TypeError"]),
            (uses_what_it_returns, ["raised TypeError", "'NoneType'"]),
        ],
    },
    "4.5.a": {
        "accepted": [in_two_rounds_normalised, gathered],
        "wrong": [(lambda x: x + reduced(x), ["rank 0 has 7 as x"])],
    },
    "4.5.b": {
        "accepted": [by_layer, by_gathering],
        "wrong": [(all_buffers, ["raised RuntimeError"])],
    },
    "4.5.c": {
        "accepted": [by_the_network_inside, clips_by_hand],
        "wrong": [(forgets_to_scale, ["raised AssertionError"])],
    },
}
