"""Streams and events where everything happens at once: they keep their names and their rules."""

import time
from contextlib import contextmanager

import torch

from ddplab.vgpu import meter
from ddplab.vgpu.tensor import here, place_of


def number(device=None) -> int:
    """The index that a device, as people write it, means: None is the current one. Raises as torch.cuda does."""
    gpu = here.gpu if device is None else place_of(device)
    if not isinstance(gpu, int):
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return gpu


def waits(what: str) -> None:
    """Write down that the CPU waits here for the GPU, which here is never late."""
    meter.book.copied(what, here.gpu, None)


def synchronize(device=None) -> None:
    """torch.cuda.synchronize."""
    number(device)
    waits("torch.cuda.synchronize()")


class Stream:
    """torch.cuda.Stream."""

    def __init__(self, device=None, priority=0, **_):
        self.device = torch.device("cuda", number(device))
        self.device_index, self.cuda_stream, self.stream_id, self.priority = self.device.index, 0, 0, priority
        self.device_type = 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False

    def record_event(self, event=None):
        event = event or Event(enable_timing=True)
        event.record()
        return event

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def wait_stream(self, stream) -> None:
        """Nothing is ever late."""

    wait_event = wait_stream

    def synchronize(self) -> None:
        waits("Stream.synchronize()")

    def __eq__(self, other):
        return isinstance(other, Stream) and self.device == other.device

    def __hash__(self):
        return hash(self.device)


class Event:
    """torch.cuda.Event, by this machine's clock: elapsed_time says nothing of a GPU."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, **_):
        self.enable_timing, self.at = enable_timing, None

    def record(self, stream=None) -> None:
        self.at = time.perf_counter()

    def wait(self, stream=None) -> None:
        """Nothing is ever late."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        waits("Event.synchronize()")

    def elapsed_time(self, end) -> float:
        """Milliseconds. Raises RuntimeError in the words of torch/csrc/cuda and c10/cuda/impl/CUDAGuardImpl.h."""
        if not (self.enable_timing and end.enable_timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self.at is None or end.at is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return 1000 * (end.at - self.at)


@contextmanager
def stream(s):
    """torch.cuda.stream(s)."""
    yield
