"""CUDA's tensor types, as scripts from before torch 0.4 ask for them: `torch.cuda.FloatTensor(2, 3)`, `x.type(...)`."""

import re

import torch
from torch import Tensor

from ddplab.vgpu.tensor import VTensor

__all__ = ["patches"]

KINDS = {"Float": torch.float, "Double": torch.double, "Half": torch.half, "BFloat16": torch.bfloat16}
KINDS |= {"Long": torch.long, "Int": torch.int, "Short": torch.short, "Char": torch.int8, "Byte": torch.uint8}
KINDS["Bool"] = torch.bool


class TensorType(type):
    """What `torch.cuda.FloatTensor` and its like are."""

    dtype: torch.dtype

    def __call__(cls, *args):
        options = {"dtype": cls.dtype, "device": "cuda"}
        if all(isinstance(arg, int) for arg in args):
            return torch.empty(*args or (0,), **options)
        return torch.empty(*args, **options) if isinstance(args[0], torch.Size) else torch.tensor(*args, **options)

    def __instancecheck__(cls, held: object) -> bool:
        return isinstance(held, Tensor) and held.is_cuda and held.dtype == cls.dtype


def place_and_dtype(kind: str | type) -> tuple[str, torch.dtype]:
    """Read "torch.cuda.FloatTensor", or the type of that name, as ("cuda", torch.float32)."""
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
    found = re.fullmatch(r"torch\.(cuda\.)?(\w+)Tensor", name)
    if not found or found[2] not in KINDS:
        raise ValueError(f"invalid type: '{name}'")  # torch/csrc/utils/tensor_types.cpp
    return "cuda" if found[1] else "cpu", KINDS[found[2]]


def _cast(real):
    def type(self, dtype=None, non_blocking=False, **options):
        if dtype is None or isinstance(dtype, torch.dtype):
            return real(self, dtype, non_blocking=non_blocking, **options)
        return self.to(*place_and_dtype(dtype), non_blocking=non_blocking)

    return type


def set_default_tensor_type(kind: str | type) -> None:
    """Make tensors of this kind where nothing else is said."""
    place, dtype = place_and_dtype(kind)
    torch.set_default_dtype(dtype)
    torch.set_default_device(None if place == "cpu" else place)


def patches() -> list[tuple[object, str, object]]:
    """What is replaced: (where, name, what with)."""
    types = {f"{name}Tensor": dtype for name, dtype in KINDS.items()}
    made = {name: TensorType(name, (), {"dtype": dtype, "__module__": "torch.cuda"}) for name, dtype in types.items()}
    return [
        *((torch.cuda, name, type) for name, type in made.items()),
        *((kind, "type", _cast(kind.type)) for kind in (Tensor, VTensor)),
        (torch, "set_default_tensor_type", set_default_tensor_type),
    ]
