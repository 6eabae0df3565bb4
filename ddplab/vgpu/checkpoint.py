"""torch.save and torch.load: a file written here is the file that a GPU would have written, and the other way round.

What a virtual GPU holds is saved under its tag ("vgpu:1"; in a rehearsal "cuda:1"). Loaded, a storage stays in CPU
memory and remembers where the tag, or map_location in any of its forms, wants it; the tensors made of it are labelled.
"""

import torch
from torch import Tensor

from .meter import meter
from .tensor import here, label, place_of, raw, state

real_rebuild, real_to = torch._utils._rebuild_tensor, torch.UntypedStorage.to


def tag(storage) -> str | None:
    """Where torch.save says that a storage is; None: not here."""
    block = getattr(storage, "_block", None)
    return None if block is None else f"{state['name']}:{block.gpu}"


def restore(storage, location: str):
    """The storage where its tag, or map_location, wants it; None: not here. Raises RuntimeError for a missing GPU."""
    if not location.startswith(state["name"]):
        return None
    torch.serialization._validate_device(location, state["name"])
    if meter.book:
        meter.book.loaded(place_of(location))
    return storage_to(storage, device=location)


def storage_to(self, *, device, non_blocking=False):
    """UntypedStorage.to."""
    gpu = place_of(device)
    if not isinstance(gpu, int):
        return real_to(self, device=torch.device(device), non_blocking=non_blocking)
    if getattr(self, "_wanted", None) != gpu:
        meter.count(here.cause, None, gpu, self.nbytes())  # it was read into CPU memory, and goes on from there
    self._wanted = gpu
    return self


def storage_send(self, device=None, non_blocking=False):
    """UntypedStorage.cuda, in a function given as map_location."""
    return storage_to(self, device=state["name"] if device is None else device)


def rebuild(storage, *layout) -> Tensor:
    """torch._utils._rebuild_tensor, and the label."""
    out = real_rebuild(storage, *layout)
    with raw():
        return label(out, getattr(storage._untyped_storage, "_wanted", None))


def patches() -> list[tuple[object, str, object]]:
    packages = torch.serialization._package_registry
    return [
        (torch.serialization, "_package_registry", sorted([*packages, (5, tag, restore)], key=lambda row: row[0])),
        (torch._utils, "_rebuild_tensor", rebuild),
        (torch.UntypedStorage, "to", storage_to),
        (torch.UntypedStorage, state["name"], storage_send),
    ]
