"""Checks of lesson 5.8, rehearse before you pay. Its ranks have a virtual GPU each."""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from ddplab.checks.common import kind
from ddplab.checks.turns import turn

TOO_EARLY = "Default process group has not been initialized, please make sure to call init_process_group."
SECOND_NODE = {"GROUP_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}


def _placed(place: Callable[[], Any]) -> list[str]:
    """Which GPU a rank of a second node of two gets, before there is a group and where nobody has chosen a GPU."""
    rank = dist.get_rank()
    torch.cuda.set_device(0)
    told = {**SECOND_NODE, "LOCAL_RANK": f"{rank}", "RANK": f"{rank + 2}"}
    with mock.patch.dict(os.environ, told), mock.patch.object(dist, "get_rank", side_effect=ValueError(TOO_EARLY)):
        here = place()
    if not isinstance(here, torch.device):
        return ["nothing" if here is None else kind(here)]
    return ["its own" if here == torch.device("cuda", rank) else f"{here}"]


def _by(name: str, made: Callable[[str], Any] = lambda number: torch.device("cuda", int(number))) -> Any:
    return made(os.environ[name])


turn(
    "5.8.a",
    "A GPU of its own",
    partial(_by, "LOCAL_RANK"),
    lambda rank, size: (),
    ranks=(2,),
    device="virtual",
    call=_placed,
    look=lambda placed, *_: placed,
    heads=("its GPU, on a second machine",),
    mistakes=[
        (lambda: torch.device("cuda:0"), "both ranks are on GPU 0, as before",
         "Torchrun tells a process its number: 5.1."),
        (lambda: torch.device("cuda"), "without a number it is the current GPU, and nobody has chosen one",
         "`torch.device(\"cuda\", number)`"),
        (partial(_by, "RANK"), "`RANK` counts over all machines: the second one has no such GPU",
         "The number on its own machine is `LOCAL_RANK`."),
        (partial(_by, "LOCAL_RANK", int), "that is a number, and `train` wants a device",
         "`torch.device(\"cuda\", number)`"),
        (partial(_by, "LOCAL_RANK", lambda number: f"cuda:{number}"), "that is text, and `train` wants a device",
         "`torch.device(…)` makes one of it."),
        (lambda: torch.device("cpu"), "that is the CPU, and NCCL moves what lies on GPUs",
         "`torch.device(\"cuda\", …)`"),
        (lambda: None, "nothing came back", "`return` the device."),
    ],
    hints={"has not been initialized": "The group comes later: ask the variables of the environment, as in 5.1.",
           "not str": "What stands in a variable is text: `int(…)`.",
           "an integer is required": "What stands in a variable is text: `int(…)`."},
    otherwise="`torch.device(\"cuda\", …)`, with the rank's number on its own machine.",
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


def _of_rank_0(noted: Any, here: torch.device) -> float:
    seen = torch.as_tensor(noted, device=here)
    dist.broadcast(seen, 0)
    return seen.item()


turn(
    "5.8.b",
    "What all have noted",
    _total,
    lambda rank, size: (0.5 + 2 * rank, torch.device("cuda", rank)),  # whole numbers do not come to 3
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
        (lambda noted, here: _total_there(noted, here) and None, "nothing comes back",
         "`dist.all_reduce` itself returns nothing: the sum is in the tensor that it is given. Return its number."),
        (_to_rank_0, "rank 0 alone knows", "`dist.all_reduce` tells all."),
        (lambda noted, here: _total(int(noted), here), "the halves are lost: 0.5 and 2.5 were noted",
         "A tensor of whole numbers has no room for them: `noted` as it is."),
        (lambda noted, here: _total(noted, here) if here.index == 0 else _total(noted, here) and None,
         "rank 1 returns nothing", "The `return` is for every rank."),
        (lambda noted, here: _total(noted, here) * 2, "every number is twice what is wanted",
         "Is something added up twice? One `dist.all_reduce` is enough."),
        (lambda noted, here: _total(noted, here) + noted, "what each has noted is counted twice on its rank",
         "`dist.all_reduce` adds up what all have, its own as well."),
        (_of_rank_0, "all have what rank 0 has noted", "`dist.all_reduce` adds up what all have."),
    ],
    hints={"not on device passed": "It went through the current GPU, number 0 while none is set, as `\"cuda\"` and "
           "`all_gather_object` do. A tensor on `here`; or before that, `torch.cuda.set_device(here)`.",
           "'float' object has no attribute": "`noted` is a plain number: make a tensor of it, on `here`.",
           "Expected parameter `tensor`": "A collective takes a tensor: make one of `noted`, on `here`.",
           "must be Tensor": "`torch.as_tensor(noted, device=here)` makes a tensor of a number."},
    otherwise="A tensor on `here`; `dist.all_reduce` on all ranks, which returns nothing; then the tensor's number.",
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
            return ["nowhere" if state is None else "in no dictionary", "…"]
        touched = torch.cuda.max_memory_allocated(other) > before
        lies = str(state["weight"].device)
        if lies in (str(here), "cpu"):
            lies = "its GPU, or the CPU"
        elif _on_the_current(load, path, here):
            lies += ", the current GPU"
    return [lies, "yes" if touched else "no"]


def _on_the_current(load: Callable[..., Any], path: str, here: torch.device) -> bool:
    """Tell whether it arrives here as soon as this rank's GPU is the current one."""
    torch.cuda.set_device(here)
    return load(path, here)["weight"].device == here


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
        (partial(_load, map_location=None), "on every rank it arrives on GPU 0, where it was saved",
         "`map_location` says where tensors go: `here`."),
        (partial(_load, map_location="cuda"), "on every rank it arrives on the current GPU, and so far that is GPU 0",
         "`\"cuda\"` and `cuda()` without a number mean the current one. `map_location=here` names this rank's."),
        (partial(_load, map_location=None, move=True), "it arrives, but through GPU 0, which was full before",
         "Say it to `torch.load`, not after it."),
        (partial(_load, map_location={"cuda:0": "cuda:1"}), "that sends rank 0's to GPU 1 as well", "`here`"),
        (lambda path, here: _load(path, here) if here.index == 0 else None, "rank 1 has loaded nothing",
         "Every rank loads."),
        (lambda path, here: None, "no weights came back", "`return` what the file holds."),
        (lambda path, here: path, "that is not what the file holds: a dictionary", "Return what `torch.load` returns."),
        (partial(_load, map_location="meta"), "on meta there are shapes, and no numbers", "`here`, or the CPU"),
    ],
    hints={"'dict' object has no attribute 'to'": "It is a dictionary. Say it to `torch.load`, not after it.",
           "'int' object is not callable": "`map_location` takes a device, and no number alone: `here`.",
           "unexpected keyword": "Where the tensors go is called `map_location=`.",
           "startswith": "In a dictionary for `map_location` both devices are text. `here` alone is enough."},
    otherwise="`torch.load(path, …)`: `map_location` says where the tensors go.",
)  # fmt: skip


def _noted(note: Callable[[Any, torch.Tensor], Any]) -> list[Any]:
    """The sum after four steps, copies to the CPU in each of them, and whether a graph hangs on the sum."""
    from ddplab.vgpu.meter import meter

    weight = torch.ones(3, device=torch.device("cuda", dist.get_rank()), requires_grad=True)
    before, noted, shown = meter.copies(target="cpu"), 0.0, []

    def repr_of(tensor: torch.Tensor) -> str:  # on a GPU who prints a number looks at it
        shown.append(tensor)
        return show(tensor)

    show = type(weight).__repr__
    with mock.patch.object(type(weight), "__repr__", repr_of):
        for number in (0.5, 2.5, 1, 2):  # neither the last nor the largest is a half of the sum
            noted = note(noted, (weight * number).sum())
    copies = (meter.copies(target="cpu") - before + len(shown)) / 4
    return [float(noted), copies, "yes" if getattr(noted, "requires_grad", False) else "no"]


def _of_both(noted: Any, loss: torch.Tensor) -> torch.Tensor:
    mine = loss.detach().clone()
    dist.all_reduce(mine)
    return noted + mine


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
         "`item()`, `float(…)`, `cpu()` and `print` all copy the number to the CPU. Leave it where it is."),
        (lambda noted, loss: noted + loss, "the sum holds the graph of every step, and memory grows",
         "`loss.detach()` is the number alone, on the GPU."),
        (lambda noted, loss: noted + loss.cpu(), "each step waits for its GPU, and the sum holds its graph too",
         "`loss.detach()` is the number alone, and stays on the GPU."),
        (lambda noted, loss: loss.detach(), "that is the last loss", "Add it to what is noted."),
        (lambda noted, loss: (noted + loss.detach()) / 2, "that is no sum", "Add, and nothing else."),
        (lambda noted, loss: noted + 1, "that counts the steps", "Add the loss."),
        (lambda noted, loss: noted, "the loss is not in it", "Return the new sum."),
        (lambda noted, loss: noted + loss.detach() / 2, "that is half of it", "Each rank notes its own losses, whole."),
        (_of_both, "that is twice the sum", "A rank notes its own losses. `total` adds up those of all, once."),
    ],
    hints={"'float' object has no attribute": "`noted` begins as a number, 0.0. The tensor is `loss`.",
           "NoneType": "Return the new sum.", "not 'list'": "One sum, and no list: add them up as they come.",
           "type tensor to numpy": "NumPy works on the CPU. Tensors can be added where they are.",
           "requires_grad flags": "`loss.detach()` is the number alone, on the GPU."},
    otherwise="`noted` and this loss without its graph, in one tensor.",
)  # fmt: skip
