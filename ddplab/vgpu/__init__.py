"""Virtual GPUs: torch's own `nn.DataParallel` on a machine with fewer than two GPUs.

    with virtual_gpus(2) as gpus:
        model = nn.DataParallel(nn.Linear(3, 1)).to("vgpu:0")
        model(torch.randn(8, 3)).sum().backward()
        print(gpus.meter)

**What is torch's.** `DataParallel`, `data_parallel`, `replicate`, `scatter`, `parallel_apply`, `gather`,
the autograd functions behind them (`Broadcast`, `ReduceAddCoalesced`, `Scatter`, `Gather`), the sum of
gradients, the threads, the re-raising of a replica's exception: all of it is the code in your torch,
unmodified. So is every kernel, every optimiser, autograd itself.

**What is pretence.** `vgpu:0`, `vgpu:1`, ... are CPU memory with a label (tensor.py). Every kernel checks
the labels and raises what CUDA raises when they differ. Three things are rewritten (comm.py): the copies
that torch does in CUDA C++, the answers to "which GPUs does this machine have?", and the random numbers,
which each device draws from its own generator, seeded alike, as on CUDA. A meter (meter.py) counts each
byte that crosses between devices and each byte that one holds.

**What it shows:** results, gradients, errors, warnings, traffic, memory held by tensors. **What it never
shows:** speed. It has no streams, no NCCL, no kernels' scratch space, and it rounds as the CPU's kernels
do.

**Switched off, it is not there.** `comm.patches` lists all that is replaced, and leaving puts it back.
While virtual GPUs are on, `nn.DataParallel` and the functions behind it mean them, also on a machine with
real ones; "cuda" tensors work beside them as ever. One thing torch lets nobody undo: the name "vgpu" stays
known to `torch.device`, without a device behind it, and torch's C++ then takes it for this machine's
accelerator. `torch.accelerator` is corrected, and stays so. What asks the C++ directly can no longer be used
for a real GPU in that process: a bare device number, `pin_memory`, real `DataParallel` given CPU tensors.
Write "cuda:0", or start a fresh process.

**What cannot be made so** raises an error:

- `torch.compile` and `torch.export` of what touches virtual GPUs' tensors; `torch.func` transforms of code
  that moves tensors;
- nested and compressed (CSR) tensors; lazy modules before their first call; numpy and `from_dlpack`
  without `.cpu()`;
- a CPU generator where CUDA wants its own; `x.type("torch.FloatTensor")`; the `out=` forms of
  `torch.nn.parallel.comm`.

**What differs in silence**, and no lesson leans on: a pointer, a storage's device, `is_cuda` and a raw dlpack capsule
tell the truth (CPU); `torch.autocast("vgpu")` goes by the CPU's list of operations, and by name for what CUDA's keeps
in float32; recurrent layers under autocast are in float16 also where they are given bfloat16, as on CUDA from torch
2.10 and compute capability 8.0 on; a moved tensor's `grad_fn` is `ToBackward`, on CUDA `ToCopyBackward0`; a
TransformerEncoder in evaluation does not take its fast path; cuDNN's warning about weights that are "not part of single
contiguous chunk of memory" is absent; under deterministic algorithms `scatter_reduce` by products passes, and nothing
asks for CUBLAS_WORKSPACE_CONFIG, as torch 2.8 does on CUDA and 2.13 no longer; a model that is run from TorchScript is
checked kernel by kernel only.

Tested with torch 2.8 and 2.13. DataParallel itself takes complex parameters only in torch newer than 2.8.
"""

from collections.abc import Sequence

import torch

from ddplab.pointer import pointing

from . import comm, tensor
from .meter import Meter, meter

__all__ = ["GPUs", "Meter", "VirtualGPUs", "active", "gpus", "rehearsed", "virtual_gpus"]

_active: "VirtualGPUs | None" = None
_kernels = torch.library.Library("_", "IMPL")


class GPUs(Sequence):
    """Some real GPUs of this machine: a sequence of torch.device. `with` works, and does nothing."""

    kind = "cuda"  #: "cuda" or "vgpu"

    @pointing
    def __init__(self, n: int):
        if n < 1:
            raise ValueError(f"there is at least one GPU to ask for, not {n}")
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i):
        return [torch.device(self.kind, number) for number in range(self.n)][i]

    def __repr__(self) -> str:
        names = ", ".join(f"{device} {torch.cuda.get_device_name(device)}" for device in self)
        kind = "rehearsed" if rehearsed() else "real"
        return f"{self.n} {kind} GPU{'s' * (self.n > 1)}: {names}"

    def __enter__(self) -> "GPUs":
        return self

    def __exit__(self, *_) -> None:
        pass

    @property
    @pointing
    def meter(self) -> Meter:
        """What was copied and what is held. Only virtual GPUs have one."""
        raise RuntimeError("the meter counts on virtual GPUs only; ask torch.cuda.memory_allocated() and the profiler")


class VirtualGPUs(GPUs):
    """The devices vgpu:0, vgpu:1, ...: they exist inside `with`, or between `on()` and `off()`."""

    kind = "vgpu"
    meter = meter
    _depth = 0  # `with` blocks entered
    _lent = False  # `gpus` has switched them on: the end of a `with` block switches them off

    def __repr__(self) -> str:
        names = ", ".join(map(str, self))
        what = "CPU memory with a label: results are a CPU's, bytes are counted, times mean nothing"
        return f"{self.n} virtual GPU{'s' * (self.n > 1)}: {names} ({what})"

    @pointing
    def on(self) -> "VirtualGPUs":
        """Switch them on, for a notebook; fine if they are on already. Raises RuntimeError if others are."""
        global _active
        if _active is self:
            return self
        if _active is not None:
            how = "leave their `with` block, or call .off(), first"
            raise RuntimeError(f"{len(_active)} virtual GPUs are on already: {how}")
        _take_the_name()
        with comm.pretend(self.n) as undo:  # an error or an interrupt in here leaves nothing behind
            tensor.seed_all(torch.initial_seed())
            meter.reset()
            undo.callback(tensor.state.update, name=tensor.state["name"], count=tensor.state["count"])
            tensor.state.update(name="vgpu", count=self.n)
            self._undo, self._depth, self._was_on = undo.pop_all(), 0, []
            _active = self
        return self

    def off(self) -> None:
        """Put everything back. Tensors that were on virtual GPUs stay, and can be moved to the CPU."""
        global _active
        if _active is self:
            _active, self._depth = None, 0
            self._was_on = [False] * len(self._was_on)
            tensor.here.gpu = 0
            self._undo.close()

    def __enter__(self) -> "VirtualGPUs":
        was_on = _active is self and (self._depth > 0 or not self._lent)
        self.on()
        self._was_on.append(was_on)
        self._depth += 1
        return self

    def __exit__(self, *_) -> None:
        self._depth -= 1
        if not self._was_on.pop():
            self.off()


def _take_the_name() -> None:
    """Let torch.device know "vgpu", for good: torch's C++ then takes it for the accelerator of this machine.

    So let `torch.accelerator`, which DataLoader and others ask, go on naming the real one.
    """
    name, real = torch._C._get_privateuse1_backend_name(), torch.accelerator.current_accelerator()
    if name == "vgpu":
        return
    if name != "privateuseone":
        raise RuntimeError(f"torch has room for one extra kind of device, and {name!r} has taken it")
    torch.utils.rename_privateuse1_backend("vgpu")
    _kernels.fallback(comm.factory, "PrivateUse1")  # for good, so that it can say when they are switched off
    truth = {"getAccelerator": lambda: real}
    torch._C._get_accelerator = lambda check=None: real or torch.device("cpu")  # dist.barrier asks it
    if real is not None and real.type == "cuda":
        truth |= {
            "getDeviceIndex": torch.cuda.current_device,
            "setDeviceIndex": torch.cuda.set_device,
            "exchangeDevice": torch.cuda._exchange_device,
            "maybeExchangeDevice": torch.cuda._maybe_exchange_device,
            "getStream": torch.cuda.current_stream,
            "setStream": torch.cuda.set_stream,
            "synchronizeDevice": torch.cuda.synchronize,
        }
    for function, answer in truth.items():
        setattr(torch._C, f"_accelerator_{function}", answer)


def rehearsed() -> bool:
    """Tell whether the "cuda" of this process is a rehearsal's: virtual GPUs under the name of real ones."""
    return tensor.state.get("wake") is not None


def virtual_gpus(n: int = 2) -> VirtualGPUs:
    """n virtual GPUs: `with virtual_gpus(2) as gpus:` or, in a notebook, `gpus = virtual_gpus(2).on()`."""
    return VirtualGPUs(n)


def active() -> VirtualGPUs | None:
    """The virtual GPUs that are switched on; None where there are none."""
    return _active


def gpus(n: int = 2) -> GPUs:
    """n real GPUs where this machine has them, else n virtual ones, switched on; says which.

    Calling it again is fine: the same number gives the same virtual GPUs, another number replaces them.
    Raises RuntimeError inside a `with virtual_gpus(...)` block of another number.
    """
    real = torch.cuda.device_count() >= n
    if _active is not None and not _active._depth and (real or len(_active) != n):
        _active.off()
    found = GPUs(n) if real else _active
    if found is None or len(found) != n:
        found = VirtualGPUs(n).on()
        found._lent = True
    print(found)
    return found
