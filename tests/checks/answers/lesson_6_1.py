"""Answers to the turns of lesson 6.1: other right ones, and mistakes that people make."""

import torch
import torch.distributed as dist


def line_by_line(stacks):
    missing = set(stacks)
    for rank, stack in stacks.items():
        if any("distributed_c10d" in line for line in stack.splitlines()):
            missing.discard(rank)
    return missing


def of_the_top_frame(stacks):
    return tuple(rank for rank, stack in stacks.items() if "(torch/distributed/" not in stack.splitlines()[3])


def told_as_an_object(loss, target):
    dist.all_reduce(loss, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
    loss /= dist.get_world_size()
    told = [loss.item() <= target if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(told, src=0)
    return loss.item(), told[0]


def the_target_first(loss, target):
    target = torch.tensor([target or 0.0])
    dist.broadcast(target, 0)
    losses = [torch.empty_like(loss) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, loss)
    mean = sum(losses) / len(losses)
    return mean, (mean <= target).item()


def told_truth(loss, target):
    dist.all_reduce(loss)
    mean = (loss / dist.get_world_size()).item()
    stop = torch.tensor([mean <= target]) if dist.get_rank() == 0 else torch.zeros(1)
    dist.broadcast(stop, src=0)
    return mean, bool(stop)


def told_by_each(loss, target):
    dist.all_reduce(loss)
    stop = torch.zeros(1)
    dist.broadcast(stop, src=dist.get_rank())
    return loss.item() / dist.get_world_size(), bool(stop)


def only_rank_0_returns(loss, target):
    dist.all_reduce(loss)
    mean = loss.item() / dist.get_world_size()
    if dist.get_rank() == 0:
        return mean, mean <= target


def as_one_tensor(loss, target):
    mean, stop = told_as_an_object(loss, target)
    return torch.tensor([mean, stop])


def asked_by_all(loss, target):
    dist.all_reduce(loss)
    mean = loss.item() / dist.get_world_size()
    told = [mean <= target]
    dist.broadcast_object_list(told, src=0)
    return mean, told[0]


def the_average(loss, target):
    dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    stop = torch.tensor(target is not None and loss.item() <= target)
    dist.broadcast(tensor=stop, src=0)
    return loss, stop


def two_calls_in_a_fixed_order(sums):
    for name in ("images", "loss"):
        dist.all_reduce(sums[name])
    return (sums["loss"] / sums["images"]).item()


def sorted_names(sums):
    both = torch.stack([sums[name] for name in sorted(sums)])
    dist.all_reduce(both)
    images, loss = both
    return loss / images


def of_keys(stacks):
    return [rank for rank, stack in enumerate(stacks) if "distributed_c10d.py" not in stack]


def summed_up_on_rank_0(sums):
    dist.reduce(sums["loss"], 0)
    dist.reduce(sums["images"], 0)
    return sums["loss"] / sums["images"]


def sorted_values(sums):
    both = torch.cat(sorted(sums.values(), reverse=True))
    dist.all_reduce(both)
    return both[0] / both[1]


def printed(sums):
    mean = sorted_names(sums)
    if dist.get_rank() == 0:
        print(mean)


def returned_on_rank_0(sums):
    mean = sorted_names(sums)
    if dist.get_rank() == 0:
        return mean


def averaged_once_more(sums):
    return sorted_names(sums).item() / dist.get_world_size()


def mean_of_the_losses(sums):
    losses = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, sums["loss"])
    dist.all_reduce(sums["images"])
    return torch.cat(losses).mean() / sums["images"]


def mean_of_the_images(sums):
    dist.all_reduce(sums["loss"])
    dist.all_reduce(images := sums["images"].clone())
    return sums["loss"] / (images / dist.get_world_size())


def its_own_loss(sums):
    dist.all_reduce(sums["images"])
    return (sums["loss"] / sums["images"]).item()


def returned_sums(sums):
    for name in ("loss", "images"):
        dist.all_reduce(sums[name])
    return sums


ANSWERS = {
    "6.1.a": {
        "accepted": [line_by_line, of_the_top_frame],
        "wrong": [
            (lambda stacks: max(stacks), ["the check met TypeError"]),
            (of_keys, ["raised TypeError"]),
            (lambda stacks: [rank for rank, stack in stacks.items() if "sleep" in stack], ["nobody is named"]),
        ],
    },
    "6.1.b": {
        "accepted": [told_as_an_object, the_target_first, as_one_tensor, the_average],
        "wrong": [
            (asked_by_all, ["'<=' not supported"]),
            (told_truth, ["rank 0 sends one kind of number"]),
            (told_by_each, ["every rank waits in `broadcast`"]),
            (only_rank_0_returns, ["only rank 0 returns something"]),
            (lambda loss, target: print(told_as_an_object(loss, target)), ["nothing came back"]),
            (lambda loss, target: told_as_an_object(loss, target)[::-1], ["the two are swapped"]),
            (lambda loss, target: told_as_an_object(loss, target)[0], ["one thing came back"]),
        ],
    },
    "6.1.c": {
        "accepted": [two_calls_in_a_fixed_order, sorted_names],
        "wrong": [
            (summed_up_on_rank_0, ["only rank 0 has the sums"]),
            (printed, ["nothing came back"]),
            (returned_on_rank_0, ["only rank 0 returns something"]),
            (sorted_values, ["the larger of the two is taken for the loss"]),
            (returned_sums, ["the two sums came back"]),
            (averaged_once_more, ["divided by the number of ranks, too"]),
            (mean_of_the_losses, ["divided by the number of ranks, too", "or the loss alone"]),
            (mean_of_the_images, ["the images alone are divided"]),
            (its_own_loss, ["the loss is each rank's own"]),
        ],
    },
}
