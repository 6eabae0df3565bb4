"""Rehearsal: an unmodified CUDA and DDP script on a machine without GPUs.

    python -m ddplab rehearse --nproc-per-node 4 train.py --its --options
    python -m ddplab rehearse --gpus 2 --python train.py        # a script that starts its ranks itself, or DataParallel

Every rank is a real process. Its GPUs are virtual ones (ddplab.vgpu) under the name "cuda:i": torch.cuda answers for
them, "nccl" is gloo behind NCCL's refusals (nccl.py), and what CUDA or NCCL would refuse raises their error.

**It is whole-process.** `boot/sitecustomize.py` patches torch right after its import, in every Python process of the
rehearsal, for good. Nothing else is touched: leave out the command, and torch is torch. `python -I` escapes it.

**What it cannot show:** speed, overlap, races between streams, kernels' scratch space, an allocator's fragments, the
rounding of GPUs' kernels, your own CUDA or Triton kernels, CUDA graphs. torch.compile and torch.jit.script are skipped,
and said so. A virtual GPU waits for nothing: what a real one does later, it does at once.
"""

import atexit
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

VARIABLE = "DDPLAB_REHEARSAL"  # in the environment of every process of a rehearsal: its settings, as JSON


class Kind(NamedTuple):
    """A kind of GPU: its compute capability (developer.nvidia.com/cuda-gpus), and the memory of its data sheet.

    A real one leaves a process less: a context, the allocator's fragments.
    """

    capability: tuple[int, int]
    gib: int


KINDS = {
    "T4": Kind((7, 5), 16),
    "V100": Kind((7, 0), 16),
    "V100-32": Kind((7, 0), 32),
    "A10": Kind((8, 6), 24),
    "RTX3090": Kind((8, 6), 24),
    "RTX4090": Kind((8, 9), 24),
    "L4": Kind((8, 9), 24),
    "A100": Kind((8, 0), 40),
    "A100-80": Kind((8, 0), 80),
    "H100": Kind((9, 0), 80),
}


def environment(book: str, gpus: int, memory: int = 0, kind: str = "H100") -> dict[str, str]:
    """The variables of a process that is to be rehearsed on that many GPUs, of that many bytes each (0: no limit).

    book: path of a file that is made here, in which all processes of the rehearsal note what they hold.
    kind: one of KINDS, for what a script asks of a GPU; its memory is a limit only where `memory` says so.
    """
    from .report import Book

    Book(book, gpus)
    here = Path(__file__).resolve().parent
    paths = [str(here / "boot"), str(here.parent.parent), os.environ.get("PYTHONPATH", "")]
    settings = {"gpus": gpus, "memory": memory, "book": book, "kind": kind}
    return {VARIABLE: json.dumps(settings), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def told(book: str, gpus: int, script_names: dict[str, str]) -> str:
    """The report of a rehearsal that is over, for a notebook; script_names: path of a script -> what to call it."""
    from ddplab.diagnosis import location

    from . import report

    found = report.read(book, gpus) | {"objections": []}
    users = [user for gpu in found["gpus"] for user in gpu["users"] if user["file"]]
    loads = [user["loaded"] for user in users if "loaded" in user]
    frames = [frame for user in users for made in (user, *user["largest"]) for frame in made["stack"]]
    for row in [*found["copies_to_cpu"], *users, *loads, *frames, *found["past_ddp"]]:
        row["file"] = location((row["file"], row["line"], "<module>"), script_names).rpartition(", line")[0]
    return report.text(found).strip()


def install() -> Callable[[], None]:
    """Put virtual GPUs in the place of CUDA, in this process, for good. Done again, it only takes new settings.

    Returns what writes down this process's part of the report; called by itself at the end, unless by os._exit.
    """
    import torch
    import torch.distributed
    import torch.nn.parallel
    import torch.optim
    import torch.utils._device

    from ddplab.vgpu import comm, meter, tensor

    from .books import Books

    settings = json.loads(os.environ[VARIABLE])
    again, tensor.state["count"] = "wake" in tensor.state, settings["gpus"]
    if again:
        meter.book = Books(settings)
        return meter.book.close
    tensor.state["name"] = "cuda"
    torch.utils._device._device_constructors()  # remembers torch's own functions; call it before any is replaced
    torch.utils.rename_privateuse1_backend("vgpu")  # gives device=0 a meaning in C++
    from . import cuda, fourier, nccl, peers

    meter.book = Books(settings)
    rooms = (comm, cuda, fourier, nccl, peers)
    for owner, name, ours in [patch for room in rooms for patch in room.patches()]:  # all made before any is in place
        setattr(owner, name, ours)
    tensor.kernels.update(cuda.kernels | fourier.kernels | nccl.kernels)
    tensor.state.update(wake=cuda.wake, kinds=("vgpu", "cuda"))
    tensor.seed_all(torch.initial_seed())
    sys.modules["torch.vgpu"] = torch.cuda  # torch's C++ imports it
    cuda.library.fallback(comm.factory, "CUDA")
    cuda.library.fallback(comm.factory, "PrivateUse1")
    cuda.take_the_place_of_real_factories(comm.factory)
    os.register_at_fork(after_in_child=cuda.after_fork)
    sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook(meter.book.weights.steps)
    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(meter.book.stepped)
    sys.excepthook, sys.exit = meter.book.died, meter.book.leave
    atexit.register(meter.book.close)
    return meter.book.close
