"""The table that the rehearsal is held to: mistakes, with CUDA's or NCCL's words, and things that work.

A row is a function. `words` are those of CUDA or NCCL, with "…" where they name a device, a size or a number. `source`
says where they are written: a file of the installed torch ("torch/..."), or one of its libraries and the file that it
is built from ("libtorch_cpu: aten/..."). libtorch_cuda, libc10_cuda and libnccl come with a build for CUDA only:
test_sources.py looks there, too, where it is told of one. A third part is what stands there, where the words do not
stand in one piece. For what works, `source` says where the behaviour is written.
"""

import os

import torch
import torch.distributed as dist
from torch import nn

MISTAKES: dict = {}  # name -> (function, words, source)
WORKS: dict = {}  # name -> (function, source)

rank = int(os.environ.get("LOCAL_RANK", 0))
dev = torch.device("cuda", rank)
SAME = "Expected all tensors to be on the same device, but "
TWO = SAME + "found at least two devices, cuda:…"
ITERATOR = f"libtorch_cpu: aten/src/ATen/TensorIterator.cpp: {SAME}found at least two devices, "
CHECKED = f"libtorch_cpu: aten/src/ATen/core/adaption.cpp: {SAME}got "
NCCL = "libtorch_cuda: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"


def got(argument: str, method: str) -> str:
    """The words of the check before a CUDA kernel: which argument is elsewhere, and in which method."""
    return f"{SAME}got {argument} is on …, different from other tensors on …method wrapper_CUDA_{method}"


def mistake(words: str, source: str):
    """Register a mistake."""
    return lambda function: MISTAKES.update({function.__name__: (function, words, source)}) or function


def works(source: str):
    """Register what works."""
    return lambda function: WORKS.update({function.__name__: (function, source)}) or function


def fits(words: str, text: str) -> bool:
    """Tell whether the text holds these words, with anything in the place of each "…"."""
    at = 0
    for part in words.split("…"):
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def linear(place=dev):
    return nn.Linear(4, 4).to(place)


def ones(*shape, **options):
    return torch.ones(*shape or (2, 4), device=dev, **options)


def start() -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
