"""Answers to the exercises of lesson 8.1: correct, blank, and wrong as learners are wrong."""

import math
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from ddplab.hardware import device

BYTES = {"ddp": (16, 0), "zero": (8, 8), "fsdp": (0, 16)}


def fewest(parameters, tool, room=80e9):
    whole, shared = BYTES[tool]
    left = room - whole * parameters
    if left < 0 or (shared and left == 0):
        return None
    return max(1, math.ceil(shared * parameters / left)) if shared else 1


def like_fsdp(parameters, tool, room, which):
    return fewest(parameters, "fsdp" if tool == which else tool, room)


OF_FSDP = {
    "not rounded": lambda parameters, room: 16 * parameters / room,
    "rounded down": lambda parameters, room: max(1, int(16 * parameters / room)),
    "none at all": lambda parameters, room: int(16 * parameters // room),
    "one number of Adam": lambda parameters, room: max(1, math.ceil(12 * parameters / room)),
}


def with_fsdp(parameters, tool, room, how):
    return OF_FSDP[how](parameters, room) if tool == "fsdp" else fewest(parameters, tool, room)


def instead_of_none(parameters, tool, room, word):
    given = fewest(parameters, tool, room)
    return word if given is None else given


def searched(parameters, tool, room=80e9, most=None):
    whole, shared = BYTES[tool]
    if most is None and whole * parameters >= room and shared:
        return None
    if not shared:
        return 1 if whole * parameters <= room else None
    gpus = 1
    while (whole + shared / gpus) * parameters > room:
        gpus += 1
        if most is not None and gpus > most:
            return None
    return gpus


def searched_for_ever(parameters, tool, room=80e9):
    whole, shared = BYTES[tool]
    gpus = 1
    while whole * parameters + shared * parameters / gpus > room:
        gpus += 1
    return gpus


def the_brim(parameters, tool, room=80e9):
    return None if tool == "ddp" and 16 * parameters == room else fewest(parameters, tool, room)


# your turn


def torchs_own(parameters):
    zero = ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=1.0)
    zero.step()
    return zero


def in_turns(parameters):
    rank, size = dist.get_rank(), dist.get_world_size()
    owner = [(n + 1) % size for n in range(len(parameters))]
    adam = torch.optim.Adam([p for p, who in zip(parameters, owner, strict=True) if who == rank], lr=1)
    adam.step()
    with torch.no_grad():
        for p, who in zip(parameters, owner, strict=True):
            dist.broadcast(p, who)
    return adam


def returns_nothing(parameters):
    in_turns(parameters)


def only_owners_broadcast(parameters):
    rank, size = dist.get_rank(), dist.get_world_size()
    adam = torch.optim.Adam(parameters[rank::size], lr=1)
    adam.step()
    for tensor in parameters[rank::size]:
        dist.broadcast(tensor.data, src=rank)
    return adam


def linears(net, **options):
    for module in net.modules():
        if type(module) is nn.Linear:
            fully_shard(module, **options)
    fully_shard(net, **options)
    return net, torch.optim.Adam(net.parameters(), 0.01)


def by_index(net, kind=torch.optim.Adam, **options):
    mesh = init_device_mesh(device().type, (dist.get_world_size(),))
    for n in (2, 0):
        net[n] = fully_shard(net[n], mesh=mesh, **options)
    net = fully_shard(net, mesh=mesh, **options)
    return [net, kind(net.parameters(), lr=0.01)]


def only_the_net(net, **options):
    return linears(net, **options)[0]


def the_net_first(net, **options):
    mesh = init_device_mesh(device().type, (dist.get_world_size(),))
    for part in (net, net[0], net[2]):
        fully_shard(part, mesh=mesh, **options)
    return net, torch.optim.Adam(net.parameters(), lr=0.01)


def parameter_by_parameter(net, **options):
    mesh = init_device_mesh(device().type, (dist.get_world_size(),))
    for parameter in net.parameters():
        fully_shard(parameter, mesh=mesh, **options)
    return net, torch.optim.Adam(net.parameters(), lr=0.01)


def in_parts(tool, ranks):
    return sum(4 / ranks if shared else 4 for shared in (tool == "fsdp", tool == "fsdp", tool != "ddp", tool != "ddp"))


def looked_up(tool, ranks):
    return {("ddp", 2): 16, ("ddp", 5): 16, ("zero", 2): 12, ("zero", 5): 9.6, ("fsdp", 2): 8, ("fsdp", 5): 3.2}[
        tool, ranks
    ]


def by_cases(tool, ranks):
    if tool == "ddp":
        return torch.tensor(16)
    return 8 + 8 / ranks if tool == "zero" else 16 / ranks


def in_whole_bytes(tool, ranks):
    return {"ddp": 16, "zero": 8 + 8 // ranks, "fsdp": 16 // ranks}[tool]


def halves_and_turns(parameters):
    rank, size = dist.get_rank(), dist.get_world_size()
    share = len(parameters) // size
    adam = torch.optim.Adam(parameters[share * rank :][:share], lr=1)
    adam.step()
    for n, it in enumerate(parameters):
        dist.broadcast(it.data, src=n % size)
    return adam


def turns_and_halves(parameters):
    rank, size = dist.get_rank(), dist.get_world_size()
    adam = torch.optim.Adam(parameters[rank::size], lr=1)
    adam.step()
    for n, it in enumerate(parameters):
        dist.broadcast(it.detach(), src=n * size // len(parameters))
    return adam


def rounded_up(parameters, up=1):
    rank, size = dist.get_rank(), dist.get_world_size()
    share = (len(parameters) + up * (size - 1)) // size
    adam = torch.optim.Adam(parameters[share * rank : share * (rank + 1)], lr=1.0)
    adam.step()
    for n, it in enumerate(parameters):
        dist.broadcast(it.data, src=n // share)
    return adam


def the_same_for_all(parameters):
    size = dist.get_world_size()
    adam = torch.optim.Adam(parameters[::size], lr=1.0)
    adam.step()
    for n, it in enumerate(parameters):
        dist.broadcast(it.data, src=n % size)
    return adam


ANSWERS = {
    "8.1.1": {"correct": (19240, 32768, 5712)},
    "8.1.2": {
        "correct": fewest,
        "accepted": [searched],
        "wrong": [
            (partial(like_fsdp, which="ddp"), ["fewest(7e9, 'ddp', 80e9) gives 2, and no number is enough"]),
            (partial(with_fsdp, how="not rounded"), ["fewest(4e9, 'fsdp', 80e9) gives 0.8, which is no number"]),
            (partial(with_fsdp, how="rounded down"), ["fewest(7e9, 'fsdp', 80e9) gives 1: it does not fit on so few"]),
            (partial(with_fsdp, how="none at all"), ["gives 0, which is no number"]),
            (
                partial(searched, most=1000),
                ["fewest(9.99993e9, 'zero', 80e9) gives None, and 142857 would do"],
            ),
            (partial(searched, most=9_999), ["gives None, and 142857 would do"]),
            (partial(searched, most=1_000_000), ["has tried 200,000 numbers of GPUs, where none is enough"]),
            (searched_for_ever, ["has tried 200,000 numbers of GPUs, where none is enough"]),
            (the_brim, ["fewest(5e9, 'ddp', 80e9) gives None, and 1 would do"]),
            (partial(like_fsdp, which="zero"), ["fewest(7e9, 'zero', 80e9) gives 2: it does not fit on so few"]),
            (
                partial(with_fsdp, how="one number of Adam"),
                ["fewest(30e9, 'fsdp', 80e9) gives 5: it does not fit on so few"],
            ),
            (partial(instead_of_none, word=math.inf), ["gives inf, and no number is enough"]),
            (lambda *given: fewest(*given[:2]), ["fewest(70e9, 'fsdp', 24e9) gives 14: it does not fit"]),
            (partial(instead_of_none, word="none"), ["gives 'none'"]),
            (7, ["not a function"]),
        ],
    },
    "8.1.a": {
        "accepted": [torchs_own, in_turns],
        "wrong": [
            (returns_nothing, ["AttributeError", "state"]),
            (only_owners_broadcast, ["waits in broadcast"]),
            (halves_and_turns, ["some tensors are sent by a rank that does not own them"]),
            (turns_and_halves, ["some tensors are sent by a rank that does not own them"]),
            (rounded_up, ["rank 2 raised ValueError", "empty parameter list", "on 2 ranks it was right"]),
            (partial(rounded_up, up=0), ["invalid root rank: 3", "on 2 ranks it was right"]),
            (lambda parameters: torch.optim.Adam(parameters[dist.get_rank()], lr=1.0), ["iterable of Tensors"]),
            (the_same_for_all, ["all ranks own the same tensors"]),
        ],
    },
    "8.1.b": {
        "accepted": [linears, by_index],
        "wrong": [
            (only_the_net, ["returned a", "Sequential: the check met", "unpack"]),
            (partial(by_index, kind=torch.optim.AdamW), ["weights decay here"]),
            (the_net_first, ["Invariant encountered"]),
            (parameter_by_parameter, ["has no attribute 'modules'"]),
        ],
    },
    "8.1.c": {
        "accepted": [in_parts, by_cases],
        "wrong": [(in_whole_bytes, ["`//` drops what is left over"]), (looked_up, ["raised KeyError"])],
    },
}
