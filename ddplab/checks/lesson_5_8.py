"""Checks of lesson 5.8, rehearse before you pay. Its ranks have a virtual GPU each."""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ddplab.checks.turns import turn


def _lands(place: Callable[[], Any]) -> str:
    """Where a tensor lands that is made there, as on the second of two nodes, where RANK is 2 or 3."""
    os.environ["RANK"] = str(dist.get_rank() + 2)
    torch.cuda.set_device(0)  # as it is in a script that has not chosen
    group, dist.GroupMember.WORLD = dist.GroupMember.WORLD, None  # nor made a group
    try:
        where = place()
        if not isinstance(where, torch.device):
            return "nothing came back" if where is None else f"a device as {type(where).__name__}"
        if (
            where.type == "cuda"
            and where.index is None
            and torch.cuda.current_device() == int(os.environ["LOCAL_RANK"])
        ):
            return "cuda, without its number"
        return str(torch.ones(1, device=where).device)
    except torch.AcceleratorError:
        return "no such GPU"
    finally:
        dist.GroupMember.WORLD = group


def _place(name: str = "LOCAL_RANK", add: int = 0) -> torch.device:
    return torch.device("cuda", int(os.environ[name]) + add)


turn(
    "5.8.a",
    "A GPU of one's own",
    _place,
    lambda rank, size: (),
    ranks=(2,),
    device="virtual",
    call=_lands,
    look=lambda lands: lands,
    heads=("on the second node",),
    mistakes=[
        (lambda: torch.device("cuda:0"), "both ranks are on GPU 0", "Which variable counts the ranks of one node?"),
        (partial(_place, "RANK"), "RANK counts over all nodes, and a node's GPUs begin at 0",
         "Which variable counts the ranks of one node?"),
        (lambda: torch.device("cpu"), "that is the CPU", "`torch.device(\"cuda\", number)`"),
        (partial(_place, add=1), "the first GPU is number 0", "LOCAL_RANK begins at 0 as well."),
        (lambda: torch.cuda.set_device(_place()), "nothing came back", "Return the device as well."),
        (lambda: _place().index, "that is a number alone", "`torch.device(\"cuda\", number)`"),
        (lambda: torch.device("cuda"), "both ranks are on GPU 0", "Which variable counts the ranks of one node?"),
        (lambda: torch.cuda.set_device(_place()) or torch.device("cuda"),
         "right, but the cells below ask it for its `index`", "`torch.device(\"cuda\", number)`"),
        (lambda: str(_place()), "that is text, which has no `index`", "`torch.device(…)`"),
    ],
    hints={"not str": "What stands in `os.environ` is text: `int(…)`.",
           "has not been initialized": "There is no group yet. torchrun tells it in `os.environ`."},
    otherwise="Which variable counts the ranks of one node?",
)  # fmt: skip


def _refused(total: Callable[..., Any], *arguments: Any) -> Any:
    torch.cuda.set_device(0)  # as it is in a script that has not chosen
    try:
        return total(*arguments)
    except RuntimeError as error:
        if "device type cpu" not in str(error):
            raise
        return "NCCL has no CPU"


def _total(noted: Any, here: torch.device, how: Any = dist.ReduceOp.SUM, to: Any = None, of: int = 1) -> float:
    seen = _total_there(noted, here, how, to)
    return seen.item() / of


def _total_there(noted: Any, here: torch.device, how: Any = dist.ReduceOp.SUM, to: Any = None) -> torch.Tensor:
    seen = torch.as_tensor(noted, device=to or here)
    if how is not None:
        dist.all_reduce(seen, how)
    return seen


def _to_rank_0(noted: Any, here: torch.device) -> float:
    seen = torch.as_tensor(noted, device=here)
    dist.reduce(seen, 0)
    return seen.item() if dist.get_rank() == 0 else noted


turn(
    "5.8.b",
    "What all have noted",
    _total,
    lambda rank, size: (rank + 1.0, torch.device("cuda", rank)),
    ranks=(2,),
    device="virtual",
    call=_refused,
    look=lambda returned, *_: "no number" if isinstance(returned, torch.Tensor | list | tuple) else returned,
    heads=("of both",),
    mistakes=[
        (partial(_total, to="cpu"), "NCCL refuses what lies on the CPU", "Make the tensor on `here`."),
        (partial(_total, how=None), "each rank returns its own",
         "`dist.all_reduce` adds up in place. Is it the tensor whose number you return?"),
        (partial(_total, of=2), "that is the mean", "The sum is asked for."),
        (partial(_total, how=dist.ReduceOp.MAX), "that is the larger of the two", "The sum is asked for."),
        (_total_there, "that is no number yet", "`.item()` makes one of a tensor."),
        (_to_rank_0, "rank 0 alone knows", "`dist.all_reduce` tells all."),
    ],
    hints={"must be Tensor": "`torch.as_tensor(noted, device=here)` makes a tensor of a number."},
    otherwise="A tensor on `here`; `dist.all_reduce`, which returns nothing itself; then the tensor's number.",
)  # fmt: skip


def _loaded(load: Callable[..., Any], here: torch.device) -> list[str]:
    """Where the weights of rank 0 arrive, and whether this rank has touched the other's GPU for it."""
    torch.cuda.set_device(0)
    other = 1 - here.index
    with tempfile.TemporaryDirectory(prefix="ddplab-check-") as folder:
        path = f"{folder}/last.pt"
        torch.save({"weight": torch.ones(100, device="cuda:0")}, path)
        torch.cuda.reset_peak_memory_stats(other)
        before = torch.cuda.max_memory_allocated(other)
        state = load(path, here)
    if not isinstance(state, dict):
        return ["nowhere", "…"]
    touched = torch.cuda.max_memory_allocated(other) > before
    lies = state["weight"].device
    return ["its GPU, or the CPU" if lies in (here, torch.device("cpu")) else str(lies), "yes" if touched else "no"]


def _load(path: str, here: torch.device, move: bool = False, **options: Any) -> Any:
    state = torch.load(path, **({"map_location": here} | options))
    return {name: weight.to(here) for name, weight in state.items()} if move else state


turn(
    "5.8.c",
    "Each on its own GPU",
    _load,
    lambda rank, size: (torch.device("cuda", rank),),
    ranks=(2,),
    device="virtual",
    call=_loaded,
    look=lambda returned, *_: returned,
    heads=("arrives on", "the other's GPU was touched"),
    mistakes=[
        (partial(_load, map_location=None), "every rank puts it on GPU 0, where it was saved",
         "`torch.load` has an argument that says where tensors go: on which GPU is this rank?"),
        (partial(_load, map_location=None, move=True), "it arrives, but through GPU 0, which was full before",
         "Say it to `torch.load`, not after it."),
        (partial(_load, map_location={"cuda:0": "cuda:1"}), "that sends rank 0's to GPU 1 as well", "`here`"),
        (lambda path, here: _load(path, here) if here.index == 0 else None, "rank 1 has loaded nothing",
         "Every rank loads."),
        (lambda path, here: None, "no weights came back", "`return` what the file holds."),
        (partial(_load, map_location="meta"), "on meta there are shapes, and no numbers", "`here`, or the CPU"),
    ],
    otherwise="`torch.load(path, …)`: `map_location` says where the tensors go.",
)  # fmt: skip


def _noted(note: Callable[[Any, torch.Tensor], Any]) -> list[Any]:
    """The sum after four steps, copies to the CPU in each of them, and whether a graph hangs on the sum."""
    from ddplab.vgpu.meter import meter

    weight = torch.ones(3, device=torch.device("cuda", dist.get_rank()), requires_grad=True)
    before, noted = meter.copies(target="cpu"), 0.0
    for number in range(4):
        noted = note(noted, (weight * number).sum())
    copies = (meter.copies(target="cpu") - before) / 4
    return [float(noted), copies, "yes" if getattr(noted, "requires_grad", False) else "no"]


turn(
    "5.8.d",
    "Nobody waits",
    lambda noted, loss: noted + loss.detach(),
    lambda rank, size: (),
    ranks=(2,),
    device="virtual",
    call=_noted,
    look=lambda returned: returned,
    heads=("the sum", "copies to the CPU, a step", "holds the graph"),
    mistakes=[
        (lambda noted, loss: noted + loss.item(), "each step waits for its GPU",
         "Leave the number where it is. What has a loss that the sum must not keep?"),
        (lambda noted, loss: noted + loss, "the sum holds the graph of every step, and memory grows",
         "`loss.detach()` is the number alone, on the GPU."),
        (lambda noted, loss: loss.detach(), "that is the last loss", "Add it to what is noted."),
        (lambda noted, loss: (noted + loss.detach()) / 2, "that is no sum", "Add, and nothing else."),
        (lambda noted, loss: noted + 1, "that counts the steps", "Add the loss."),
    ],
    hints={"NoneType": "Return the new sum."},
    otherwise="`noted` and this loss without its graph, in one tensor.",
)  # fmt: skip
