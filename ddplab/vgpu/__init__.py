"""Virtual GPUs: torch's own `nn.DataParallel` on a machine that has fewer than two GPUs.

    with virtual_gpus(2) as gpus:
        model = nn.DataParallel(nn.Linear(3, 1)).to("vgpu:0")
        model(torch.randn(8, 3, device="vgpu:0")).sum().backward()
        print(gpus.meter)
"""

import sys
from collections.abc import Sequence

import torch

from . import comm, tensor
from .meter import Meter, meter

_MISSING = object()
_active = None


class VirtualGPUs(Sequence):
    """The devices vgpu:0 ... vgpu:n-1. A sequence of torch.device, and a context in which they exist."""

    kind = "virtual"
    meter = meter

    def __init__(self, n: int):
        if n < 1:
            raise ValueError(f"at least one virtual GPU, not {n}")
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i):
        return [torch.device("vgpu", j) for j in range(self.n)][i]

    def __repr__(self) -> str:
        return f"{self.n} virtual GPUs"

    def on(self):
        global _active
        if _active is not None:
            raise RuntimeError(f"{_active} are on already: leave their `with` block, or call .off(), first")
        name = torch._C._get_privateuse1_backend_name()
        if name != "vgpu":
            if name != "privateuseone":
                raise RuntimeError(f"another backend, {name!r}, holds the one device name that torch leaves free")
            torch.utils.rename_privateuse1_backend("vgpu")  # torch keeps the name for good; it means nothing while off
        self._saved = []
        for owner, attribute, new in comm.patches(self.n):
            self._saved.append((owner, attribute, vars(owner).get(attribute, _MISSING)))
            setattr(owner, attribute, new)
        sys.modules["torch.vgpu"] = torch.vgpu
        self._library = torch.library.Library("_", "IMPL")
        self._library.fallback(comm.factory, "PrivateUse1")
        tensor.state["count"] = self.n
        meter.reset()
        _active = self
        return self

    def off(self):
        global _active
        if _active is not self:
            return
        self._library._destroy()
        for owner, attribute, old in reversed(self._saved):
            if old is _MISSING:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, old)
        del sys.modules["torch.vgpu"]
        tensor.state["count"] = 0
        _active = None

    __enter__ = on

    def __exit__(self, *_):
        self.off()


def virtual_gpus(n: int = 2) -> VirtualGPUs:
    return VirtualGPUs(n)
