"""What this machine has, and which device and backend each rank of a launch gets.

Nothing here touches a GPU: counting devices leaves CUDA uninitialised, so a notebook stays free to launch ranks.
"""

from __future__ import annotations

import functools
import os
import socket
from dataclasses import dataclass

import torch
from torch.distributed import TCPStore

ONLY_HERE = "--local-addr=127.0.0.1"  # torchrun's own option: the address under which ranks find their agent's store


@dataclass(frozen=True)
class Devices:
    """What a machine has: CPU cores this process may use, memory in GiB, and the names of its visible GPUs."""

    cpu_cores: int
    memory_gib: float
    gpus: tuple[str, ...]

    def __str__(self) -> str:
        cores = f"{self.cpu_cores} CPU core{'s' * (self.cpu_cores != 1)}, {self.memory_gib:.0f} GiB of memory"
        if not self.gpus:
            return (
                f"This machine: {cores}, no GPU.\n"
                "Ranks run on the CPU and talk through gloo: processes and collectives are real, "
                "the speed is not a GPU's."
            )
        names = ", ".join(f"cuda:{i} {name}" for i, name in enumerate(self.gpus))
        kind = "virtual GPU" if "DDPLAB_REHEARSAL" in os.environ else "GPU"
        many = f"{len(self.gpus)} {kind}{'s' * (len(self.gpus) != 1)}"
        return (
            f"This machine: {cores}, {many} ({names}).\n"
            f"Up to {len(self.gpus)} rank{'s' * (len(self.gpus) != 1)}: one GPU each, through nccl. "
            "More ranks than GPUs: on the CPU, through gloo."
        )

    __repr__ = __str__


def loopback() -> dict[str, str]:
    """Return the variables that keep gloo and NCCL on this machine's own interface, out of reach for other machines.

    Left to themselves they listen where the host's name leads: https://docs.pytorch.org/docs/stable/distributed.html
    """
    name = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name} if name else {}


def hold_store() -> TCPStore:
    """Return a store that this process holds, on a free port of this machine that no other can reach.

    The port is bound here and now, so there is no race for it. Left to itself TCPStore listens on every address,
    for other machines too.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def cpu_cores() -> int:
    """Return how many CPU cores this process may use: in a rank those its run has leased, if any (see `lease`)."""
    return int(os.environ.get("DDPLAB_CORES") or len(core_numbers()))


def core_numbers() -> list[int]:
    """Return the CPU cores of this process (its affinity mask where the system has one), as the system numbers them."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def gpu_names() -> list[str]:
    """Return the visible GPUs as CUDA_VISIBLE_DEVICES may name them: by UUID, which is the same in every container."""
    count, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    names = list(map(str, range(count))) if visible is None else [word.strip() for word in visible.split(",")][:count]
    known = _uuids() if count and "DDPLAB_REHEARSAL" not in os.environ else []
    return [known[int(name)] if name.isdigit() and int(name) < len(known) else name for name in names]


@functools.cache
def _uuids() -> list[str]:
    """Return the UUIDs of all GPUs, or nothing where the driver's library does not tell. CUDA stays unused."""
    try:
        return torch.cuda._raw_device_uuid_nvml() or []  # nothing public tells without starting CUDA
    except (AttributeError, OSError):
        return []


def devices() -> Devices:
    """Return what this machine has, as a `Devices`; printing it says what is real here."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpus = tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return Devices(cpu_cores(), memory, gpus)


def device() -> torch.device:
    """Return this rank's device: `cuda:<local rank>` where the machine has a GPU per rank, otherwise the CPU.

    It reads LOCAL_RANK and LOCAL_WORLD_SIZE as torchrun sets them, so a script behaves the same in a cell and
    in a terminal. `launch(..., device="cuda")` with fewer GPUs than ranks deals the GPUs out in turn.
    Outside a rank it is the first GPU, or the CPU.
    """
    gpus = torch.cuda.device_count()
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    kind = os.environ.get("DDPLAB_DEVICE") or ("cuda" if gpus >= ranks else "cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % gpus) if kind == "cuda" else torch.device("cpu")


def choose_device(
    nproc_per_node: int, device: str | None, backend: str | None, allowed: int | None = None
) -> tuple[str, str]:
    """Choose the kind of device ("cpu", "cuda", "virtual") and the backend for a launch, or raise ValueError: why not.

    allowed: how many GPUs a run may have, None: all.

    NCCL refuses two ranks on one GPU, so ranks that share a GPU use gloo, which also carries CUDA tensors
    (https://docs.pytorch.org/docs/stable/distributed.html#backends).
    """
    gpus = torch.cuda.device_count() if allowed is None else allowed
    gpus = nproc_per_node if device == "virtual" else gpus
    if device not in (None, "cpu", "cuda", "virtual"):
        raise ValueError(f'device must be "cpu", "cuda", "virtual" or None (let the machine decide), not {device!r}')
    if backend not in (None, "gloo", "nccl"):
        raise ValueError(f'backend must be "gloo", "nccl" or None (let the machine decide), not {backend!r}')
    if device == "cuda" and gpus == 0:
        raise ValueError('device="cuda" was asked for, but torch sees no GPU on this machine; leave device out')
    kind = device or ("cuda" if gpus >= nproc_per_node and backend != "gloo" else "cpu")
    if backend == "nccl" and (kind == "cpu" or gpus < nproc_per_node):
        raise ValueError(
            f'backend="nccl" needs one GPU per rank: {nproc_per_node} ranks were asked for and this machine has '
            f'{gpus} GPU{"s" * (gpus != 1)}; leave backend out, or use backend="gloo"'
        )
    return kind, backend or ("nccl" if kind != "cpu" and gpus >= nproc_per_node else "gloo")
