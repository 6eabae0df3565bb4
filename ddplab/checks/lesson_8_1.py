"""Checks of lesson 8.1, Beyond DDP."""

import copy
import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.debug import CommDebugMode

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, needs_function, numbers
from ddplab.checks.turns import turn
from ddplab.hardware import device

ALL = 8 * (4096 + 64 + 640 + 10)
HALF = ("that counts one number a parameter", "Adam keeps two numbers a parameter, of 4 bytes each.")
WHOLE = ("that is all of Adam's state, as DDP has it", "Two ranks share it.")
DEALT = ("an exact half", "ZeRO does not cut tensors. Who gets the one with 4,096 numbers?")

# Adam's state in float32 of a network with tensors of 4096, 64, 640 and 10 numbers, on two ranks.
numbers(
    "8.1.1",
    "Whose bytes?",
    Number("fsdp_rank_0", ALL / 2, "8 bytes for each of 4,810 parameters, cut in two.").with_mistakes(
        (ALL, *WHOLE),
        (ALL / 4, *HALF),
        (4810 / 2, "that is a number of parameters", "Bytes: two numbers a parameter, 4 bytes each."),
    ),
    Number("zero_rank_0", 8 * 4096, "The largest tensor first, each to the rank that has least so far.").with_mistakes(
        (ALL / 2, *DEALT),
        (ALL, *WHOLE),
        (4 * 4096, *HALF),
        (8 * (4096 + 64), "that gives rank 0 the first layer", "It is dealt tensor by tensor, to who has least."),
        (8 * (4096 + 10), "one tensor too many", "When the smallest is dealt, who has least?"),
        (8 * (64 + 640 + 10), "that is rank 1's", "The largest tensor is dealt first, to rank 0."),
    ),
    Number("zero_rank_1", 8 * (64 + 640 + 10), "What rank 0 does not keep.").with_mistakes(
        (ALL / 2, *DEALT),
        (8 * 4096, "that is rank 0's", "All the others are left."),
        (4 * (64 + 640 + 10), *HALF),
        (8 * (640 + 10), "that is the second layer alone", "64 numbers more: the bias of the first."),
    ),
)


BYTES = {"ddp": (16, 0), "zero": (8, 8), "fsdp": (0, 16)}  # a parameter: whole on every rank, and shared out
MODELS = ((4e9, 80e9), (5e9, 80e9), (7e9, 80e9), (10e9, 80e9), (30e9, 80e9), (1e9, 24e9), (1.5e9, 24e9), (70e9, 24e9),
          (9.99993e9, 80e9))  # fmt: skip  # the last needs 142,857: no guessed end of a search will do


class Room(float):
    """A number that lets itself be compared so many times, and then says that a search goes on for ever."""

    def __new__(cls, value: float) -> "Room":
        room = super().__new__(cls, value)
        room.compared = 0
        return room

    def _compare(self, other: Any, how: Callable[..., bool]) -> bool:
        self.compared += 1
        if self.compared > 200_000:
            hint = "There a search never finds one. Can you tell beforehand?"
            raise NotYet("`fewest` has tried 200,000 numbers of GPUs, where none is enough", hint)
        return how(float(self), other)

    def __lt__(self, other: Any) -> bool:
        return self._compare(other, operator.lt)

    def __le__(self, other: Any) -> bool:
        return self._compare(other, operator.le)

    def __gt__(self, other: Any) -> bool:
        return self._compare(other, operator.gt)

    def __ge__(self, other: Any) -> bool:
        return self._compare(other, operator.ge)


@exercise("8.1.2", "How many GPUs?")
def how_many_gpus(fewest: Callable[..., Any]) -> None:
    """`fewest(parameters, tool, room)` for eight models and three tools."""
    needs_function("fewest", fewest)
    for parameters, room in MODELS:
        for tool in BYTES:
            _number_of_gpus(fewest(parameters, tool, Room(room)), parameters, tool, room)


def _number_of_gpus(given: Any, parameters: float, tool: str, room: float) -> None:
    whole, shared = BYTES[tool]
    left = room - whole * parameters
    wanted = None
    if left > 0 or left == shared == 0:
        wanted = math.ceil(shared * parameters / left) if shared else 1
    case = f"fewest({parameters / 1e9:g}e9, {tool!r}, {room / 1e9:g}e9) gives {given!r}"
    hint = f"With {tool} {whole} bytes a parameter are whole on every rank, and {shared} are shared out."
    if given is not None and (isinstance(given, bool) or not isinstance(given, int | float)):
        raise NotYet(case, "A number of GPUs, or `None`.")
    if given == wanted:
        return
    if wanted is None:
        raise NotYet(f"{case}, and no number is enough", f"{hint} How much of {room / 1e9:g} GB does the first leave?")
    if given is None:
        if wanted > 99:
            hint += " A search needs no end that is guessed: can you tell beforehand whether any number is enough?"
        raise NotYet(f"{case}, and {wanted} would do", hint)
    if given < 1 or given % 1:
        raise NotYet(f"{case}, which is no number of GPUs", "Round up: `math.ceil`.")
    raise NotYet(f"{case}: {'it does not fit on so few' if given < wanted else 'fewer would do'}", hint)


# your turn


def _four_tensors(rank: int, size: int) -> tuple[list[torch.Tensor]]:
    held = [torch.full((2,), 10.0 * (n + 1), device=device()).requires_grad_() for n in range(4)]
    for tensor in held:
        tensor.grad = torch.ones_like(tensor)
    return (held,)


def _owned_and_held(adam: Any, parameters: list[torch.Tensor]) -> list[Any]:
    """How many ranks keep Adam's state of each tensor, the most that one rank keeps, and this rank's weights."""
    state = getattr(adam, "optim", adam).state  # a ZeroRedundancyOptimizer keeps its rank's Adam inside
    mine = [float(any(tensor is key for key in state)) for tensor in parameters]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    owners = [int(sum(kept)) for kept in zip(*everyone, strict=True)]
    return [*owners, int(max(map(sum, everyone))), *(tensor[0].item() for tensor in parameters)]


def _shared_step(
    parameters: list[torch.Tensor], own: slice | None = None, send: str = "broadcast", source: int | None = None,
    lr: float = 1.0, kind: Callable = torch.optim.Adam, steps: bool = True, further: int = 0,
) -> torch.optim.Optimizer:  # fmt: skip
    """own: this rank's tensors. send: how new weights travel. source: from whom; or so much further than the owner."""
    rank, size = dist.get_rank(), dist.get_world_size()
    adam = kind(parameters[slice(rank, None, size) if own is None else own], lr=lr)
    if steps:
        adam.step()
    for n, tensor in enumerate(parameters):
        if send == "broadcast":
            dist.broadcast(tensor.data, src=(n + further) % size if source is None else source)
        elif send:
            dist.all_reduce(tensor.data)
            tensor.data /= size if send == "mean" else 1
    return adam


def _first_rank_only(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return _shared_step(parameters, own=slice(None) if dist.get_rank() == 0 else slice(0, 1), source=0)


def _owned_by_halves(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    first, end = (len(parameters) * rank // dist.get_world_size() for rank in (dist.get_rank(), dist.get_rank() + 1))
    return _shared_step(parameters, own=slice(first, end))  # nobody goes without: Adam takes no empty list


def _one_each(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return _shared_step(parameters, own=slice(dist.get_rank(), dist.get_rank() + 1))


turn(
    "8.1.a",
    "Each tensor has an owner",
    _shared_step,
    _four_tensors,
    ranks=(2, 3),
    look=_owned_and_held,
    heads=("owners", "", "", "", "most on a rank", "weights", "", "", ""),
    mistakes=[
        (partial(_shared_step, own=slice(None)), "every rank keeps the state of all tensors",
         "Give Adam this rank's own only: every `size`-th, say."),
        (partial(_shared_step, send=""), "new weights stay with their owners",
         "After the step the owner of each tensor sends its new weight to all: `dist.broadcast`."),
        (partial(_shared_step, source=0), "rank 0 sends every tensor, also those that it never stepped",
         "The source of a tensor is its owner."),
        (partial(_shared_step, further=1), "each tensor is sent by a rank that does not own it",
         "The source of a tensor is the rank whose Adam has stepped it."),
        (_owned_by_halves, "some tensors are sent by a rank that does not own them",
         "Use one rule for Adam's shares and for the sources: by halves, or by turns."),
        (partial(_shared_step, send="mean"), "new weights and old ones are averaged",
         "Only the owner has the new one: it sends, the others take."),
        (partial(_shared_step, send="sum"), "new weights and old ones are added up",
         "Only the owner has the new one: it sends, the others take."),
        (_first_rank_only, "rank 0 owns everything", "Each rank owns its share."),
        (lambda parameters: _shared_step(parameters, own=slice(0, None, dist.get_world_size())),
         "all ranks own the same tensors, and nobody the others", "Every `size`-th, from number `rank` on."),
        (_one_each, "each rank owns one tensor, and the others have no owner",
         "Every `size`-th, from number `rank` on."),
        (partial(_shared_step, lr=1e-3), "that is Adam's own rate", "A rate of 1: `lr=1.0`."),
        (partial(_shared_step, kind=torch.optim.SGD), "that is no Adam: it keeps nothing", "`torch.optim.Adam`."),
        (partial(_shared_step, steps=False), "nobody steps", "`adam.step()`, before the weights are sent."),
    ],
    hints={
        "empty parameter list": "With as many ranks as that, somebody owns nothing: share the tensors evenly.",
        "invalid root rank": "The last rank is `size - 1`, and it comes to more than that: by turns, `% size`.",
        "iterable of Tensors": "Adam takes a list: all that this rank owns, and not one tensor.",
        "has no attribute 'state'": "Return the Adam: the check looks at what it keeps.",
        "waits in broadcast": "Every rank calls every broadcast, in one order: the owner sends, the others take.",
        "leaf Variable": "Send `parameter.data`: the weight itself, without its history.",
    },
    otherwise="Every tensor has one owner: its Adam steps it, and all broadcast it from there.",
)  # fmt: skip


def _small_net(rank: int, size: int) -> tuple[nn.Module]:
    return (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).to(device()),)


def _with_and_without(with_fsdp: Callable[..., tuple], net: nn.Module) -> list[Any]:
    """What a network does, and the gathers of its copy with an option, as the end of the lesson passes it."""
    copied = copy.deepcopy(net)
    returned = with_fsdp(net)
    if isinstance(returned, tuple | list) and isinstance(returned[0], torch.optim.Optimizer):
        return ["an optimiser"]
    return [*_after_a_step(returned), _after_a_step(with_fsdp(copied, reshard_after_forward=False))[2]]


def _after_a_step(returned: tuple[nn.Module, Any]) -> list[Any]:
    """The numbers of weights and of Adam's that this rank holds, the gathers of a step, and how weights moved."""
    net, adam = returned
    before = [_local(p).clone() for p in net.parameters()]
    with CommDebugMode() as counter:
        net(torch.ones(8, 4, device=device())).square().sum().backward()
    adam.step()
    gathers = sum(n for operation, n in counter.get_comm_counts().items() if "allgather" in str(operation))
    moved = sum(not torch.equal(_local(p), old) for p, old in zip(net.parameters(), before, strict=True))
    state = sum(_local(t).numel() for kept in adam.state.values() for t in kept.values() if t.dim())
    group = adam.param_groups[0]
    learns = f"at {group['lr']:g}{', with decay' * bool(group.get('weight_decay'))}" if moved else "no"
    tied = "yes" if isinstance(net, FSDPModule) else "no"
    return [sum(_local(p).numel() for p in net.parameters()), state, gathers, learns, tied]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


def _sharded(net: nn.Module, layers: bool = True, root: bool = True, early: bool = False, first: bool = False,
             kind: Callable = torch.optim.Adam, **options: Any) -> tuple:  # fmt: skip
    mesh = init_device_mesh(device().type, (dist.get_world_size(),))
    optimizer = kind(net.parameters(), lr=0.01)
    for layer in net:
        if layers and isinstance(layer, nn.Linear) and not (first and layer is not net[0]):
            fully_shard(layer, mesh=mesh, **options)
    if root:
        fully_shard(net, mesh=mesh, **options)
    return net, optimizer if early else kind(net.parameters(), lr=0.01)


turn(
    "8.1.b",
    "Everything in shards",
    _sharded,
    _small_net,
    ranks=(2,),
    call=_with_and_without,
    look=lambda left, _: left,
    heads=("weights held", "Adam's numbers", "gathers in a step", "learns",
           "net sharded too", "gathers, if kept whole"),
    mistakes=[
        (partial(_sharded, early=True), "Adam has parameters that are no longer the network's",
         "What does `fully_shard` do to the parameters? And who has to come last?"),
        (partial(_sharded, layers=False), "the network is one piece, all of it whole at a time",
         "Shard each `nn.Linear` first, then `net`."),
        (partial(_sharded, root=False), "the layers are sharded, and nothing ties them together",
         "Shard `net` itself too, after its layers. Else each layer stays whole until the backward pass."),
        (partial(_sharded, layers=False, root=False), "nothing is sharded",
         "`fully_shard`, for each `nn.Linear` and for `net`."),
        (partial(_sharded, first=True), "one layer only is sharded by itself", "Every `nn.Linear` of `net`."),
        (lambda net, **options: _sharded(net), "the options get lost",
         "`fully_shard(part, mesh=mesh, **options)`, each time."),
        (lambda net, **options: _sharded(net, reshard_after_forward=False),
         "the weights stay whole until the backward pass, without being asked to", "Pass on `**options`, no more."),
        (partial(_sharded, kind=lambda parameters, lr: torch.optim.Adam(parameters)), "that is Adam's own rate",
         "`lr=0.01`"),
        (lambda net, **options: _sharded(net, **options)[::-1], "the two are swapped", "`net` first."),
        (partial(_sharded, kind=torch.optim.SGD), "the optimiser is not Adam", "`torch.optim.Adam`."),
        (partial(_sharded, kind=torch.optim.AdamW), "weights decay here, and not where DDP trains",
         "`torch.optim.Adam`, without decay: it has to learn what DDP's Adam learns."),
    ],
    hints={"argument 'options'": "`**options` hands on what is in it, and `options` the dictionary itself.",
           "argument 'reshard_after_forward'": "The check calls it with an option: keep `**options`, and hand them on.",
           "takes 1 positional": "The mesh is given by its name: `mesh=mesh`.",
           "Invariant encountered": "First each layer, and `net` last.",
           "has no attribute 'modules'": "`fully_shard` takes a part of the network, an `nn.Linear`, and no parameter.",
           "unpack": "Return both: `net`, and the optimiser."},
    otherwise="Each `nn.Linear`, then `net`, with mesh=mesh and **options; then the Adam; return both.",
)  # fmt: skip


def _bytes(tool: str, ranks: int, ddp: float = 16, zero: Callable = lambda n: 8 + 8 / n,
           fsdp: Callable = lambda n: 16 / n) -> float:  # fmt: skip
    return {"ddp": ddp, "zero": zero(ranks), "fsdp": fsdp(ranks)}[tool]


WHOLE, SLASH = "`//` drops what is left over", "A share of so many parameters is a mean: `/`."

turn(
    "8.1.c",
    "Bytes of a parameter",
    _bytes,
    {f"{tool}, {ranks} ranks": partial(tuple, (tool, ranks)) for tool in ("ddp", "zero", "fsdp") for ranks in (2, 5)}
    | {f"{tool}, many ranks": partial(tuple, (tool, 50)) for tool in ("ddp", "zero", "fsdp")},
    look=lambda returned, *_: returned,
    heads=("bytes",),
    mistakes=[
        (partial(_bytes, ddp=20), "DDP's buckets are counted beside the gradients", "Here the gradients lie in them."),
        (partial(_bytes, ddp=20, zero=lambda n: 12 + 8 / n), "buckets are counted beside the gradients",
         "Here the gradients lie in them."),
        (lambda tool, ranks: 20 if tool == "ddp" else 12 + 8 / ranks if tool == "zero" else 20 / ranks,
         "buckets are counted beside the gradients", "Here the gradients lie in them."),
        (lambda tool, ranks: 16 / ranks, "all three share out everything", "With DDP every rank has a replica."),
        (lambda tool, ranks: _bytes(tool, ranks) if tool != "ddp" else 16 / ranks, "DDP shares something out",
         "Every rank has a replica."),
        (partial(_bytes, zero=lambda n: 16 / n), "ZeRO's optimiser shares out everything",
         "The weight and the gradient stay whole."),
        (partial(_bytes, zero=lambda n: 12 + 4 / n), "of ZeRO 4 bytes are shared out",
         "Adam keeps two numbers, of 4 bytes each, and both are shared."),
        (partial(_bytes, ddp=12, zero=lambda n: 8 + 4 / n, fsdp=lambda n: 12 / n), "Adam has one number for you",
         "It keeps two, of 4 bytes each."),
        (partial(_bytes, zero=lambda n: 8), "of ZeRO 8 bytes, however many ranks there are",
         "Two ranks have half of Adam's part each, and five a fifth."),
        (partial(_bytes, zero=lambda n: 8 + 4 / n), "of ZeRO one number of Adam's is left out",
         "It keeps two, of 4 bytes each."),
        (partial(_bytes, zero=lambda n: 8 / n), "of ZeRO that is the shared part alone", "And what is whole?"),
        (partial(_bytes, zero=lambda n: 16 - 8 / n), "of ZeRO a share of Adam's part is taken away, and not kept",
         "A rank keeps one share of `ranks`."),
        (partial(_bytes, zero=lambda n: 8 + 16 / n), "of ZeRO 16 bytes are shared out, and 8 are whole",
         "16 are there in all."),
        (partial(_bytes, ddp=8, zero=lambda n: 4 + 4 / n, fsdp=lambda n: 8 / n), "2 bytes for each number",
         "A number in float32 has 4."),
        (partial(_bytes, fsdp=lambda n: 8 / n), "of FSDP half is left out",
         "The weights, the gradients and Adam's numbers, all of them in shares."),
        (partial(_bytes, fsdp=lambda n: 8 + 8 / n), "FSDP shares out Adam's part only",
         "The weights and the gradients too."),
        (partial(_bytes, fsdp=lambda n: 4 + 12 / n), "FSDP keeps whole weights", "Only while a layer computes."),
        (partial(_bytes, ddp=12, zero=lambda n: 4 + 8 / n, fsdp=lambda n: 12 / n), "the gradient is left out",
         "4 bytes for the weight, and as many for its gradient."),
        (partial(_bytes, ddp=8, zero=lambda n: 8, fsdp=lambda n: 8 / n), "Adam is left out",
         "It keeps two numbers, of 4 bytes each."),
        (partial(_bytes, zero=lambda n: 4 + 12 / n), "ZeRO's optimiser shares the gradients too",
         "Here they lie whole in DDP's buckets."),
        (partial(_bytes, zero=lambda n: 16 / n, fsdp=lambda n: 8 + 8 / n), "ZeRO and FSDP are swapped",
         "Which of the two shares everything?"),
        (partial(_bytes, zero=lambda n: 8 + 8 // n, fsdp=lambda n: 16 // n), WHOLE, SLASH),
        (partial(_bytes, zero=lambda n: 8 + 8 // n), WHOLE, SLASH),
        (partial(_bytes, fsdp=lambda n: 16 // n), WHOLE, SLASH),
        (lambda tool, ranks: _bytes(tool, 2), "right on 2 ranks only", "`ranks` says how many there are."),
        (lambda tool, ranks: _bytes(tool, ranks) / 4, "that is how many numbers", "Bytes: 4 for each."),
    ],
    hints={"('ddp', ": "The planner below has up to 64 ranks: compute it from `ranks`, for any number."},
    otherwise="What stays whole, and what is shared by `ranks`: 4 for the weight, 4 for the gradient, 8 for Adam.",
)  # fmt: skip
