"""The meter: every byte that crosses between devices, and every byte that a virtual GPU holds."""

import threading
import weakref
from collections import defaultdict, deque

from ddplab.tables import html_table, text_table

# What virtual GPUs are called in this process, how many are on, and the kinds of torch.device that mean them.
state = {"name": "vgpu", "count": 0, "kinds": ("vgpu",)}


def called(gpu: int | str | None) -> str:
    """A place as the meter writes it: "cpu", "vgpu:1", or a word ("peers")."""
    return gpu if isinstance(gpu, str) else "cpu" if gpu is None else f"{state['name']}:{gpu}"


class Meter:
    """Counts copies between devices, by cause and link, and memory by device. All numbers are exact integers.

    Causes: "replicate" (parameters and buffers go out), "scatter" (inputs go out; gradients of outputs too),
    "gather" (outputs come back; gradients of inputs too), "reduce" (gradients of parameters come back), ".to"
    (also `.cpu()`, `copy_`, `torch.tensor(..., device=)`, a CPU index) and ".item()". A copy within a device
    does not count. Memory is what tensors hold, without the scratch space of kernels or the rounding of an
    allocator.
    """

    def __init__(self):
        self._lock = threading.RLock()  # a tensor may be freed, and counted, while its thread is in here
        self._held: dict[str, int] = defaultdict(int)
        self._freed: deque[_Ref] = deque()  # of blocks that this meter counts: another must not take them off its own
        self.book = None  # a rehearsal's: told of each piece of memory before it is held, and of each copy
        self.reset()

    def reset(self) -> None:
        """Forget the copies, and let the peaks start from what is held now."""
        with self._lock:
            self._rows: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
            self._held = defaultdict(int, {name: nbytes for name, nbytes in self.memory.items() if nbytes})
            self.peak: dict[str, int] = defaultdict(int, self._held)  #: most bytes held since reset(), by device

    @property
    def memory(self) -> dict[str, int]:
        """Bytes held now, by device."""
        with self._lock:
            while self._freed:
                block = self._freed.popleft()
                alive.discard(block)
                self._held[block.name] -= block.nbytes
            return self._held

    def count(self, cause: str, source: int | None, target: int | None, nbytes: int) -> None:
        """Write down one copy of nbytes from source to target (numbers of GPUs; None is the CPU)."""
        if cause and source != target:
            with self._lock:
                row = self._rows[cause, called(source), called(target)]
                row[0] += 1
                row[1] += nbytes
            if self.book:
                self.book.copied(cause, source, target)

    def hold(self, gpu: int, nbytes: int, name: str = "") -> None:
        """Write down that a device, by that name, holds nbytes more (less, if negative)."""
        name = name or called(gpu)
        with self._lock:
            memory = self.memory if self._freed else self._held
            before = memory[name]
            if self.book:
                self.book.admit(gpu, before, nbytes)
            memory[name] = before + nbytes
            if before + nbytes > self.peak[name]:
                self.peak[name] = before + nbytes

    @property
    def rows(self) -> list[tuple[str, str, str, int, int]]:
        """(cause, source, target, copies, bytes), sorted."""
        with self._lock:
            return sorted((*key, *row) for key, row in self._rows.items())

    def _sum(self, column: int, *wanted: object) -> int:
        def fits(row):
            return all(w is None or str(w) == cell for w, cell in zip(wanted, row, strict=False))

        return sum(row[column] for row in self.rows if fits(row))

    def copies(self, cause: str | None = None, source: object = None, target: object = None) -> int:
        """Number of copies: all, or those of one cause, source or target."""
        return self._sum(3, cause, source, target)

    def bytes(self, cause: str | None = None, source: object = None, target: object = None) -> int:
        """Number of bytes copied: all, or those of one cause, source or target."""
        return self._sum(4, cause, source, target)

    def _tables(self) -> list[list[tuple[str, ...]]]:
        rows = [*self.rows, ("total", "", "", self.copies(), self.bytes())]
        memory = [(name, f"{self.memory[name]:,}", f"{self.peak[name]:,}") for name in sorted(self.peak)]
        return [
            [("cause", "from", "to", "copies", "bytes"), *((*r[:3], f"{r[3]:,}", f"{r[4]:,}") for r in rows)],
            [("device", "bytes held", "peak"), *memory],
        ]

    def __repr__(self) -> str:
        return "\n\n".join(text_table(heads, rows) for heads, *rows in self._tables())

    def _repr_html_(self) -> str:
        return "".join(html_table(heads, rows) for heads, *rows in self._tables())


LARGE = 2**16  # bytes; where a rehearsal looks at which line that much is made. Less would cost more than the kernel
alive: set["_Ref"] = set()  # the blocks that are held
meter = Meter()


class _Ref(weakref.ref):
    gpu = nbytes = 0
    name = ""  # what its device was called when it was made
    made: tuple = ()  # by which calls, in a rehearsal and if it is large


class Block:
    """One piece of memory on a device. It hangs on the storage, and goes when the storage is freed."""

    def __init__(self, gpu: int):
        # A weak reference's callback that is written in C, as this `append` is, cannot be where Ctrl-C strikes;
        # a __del__ can, and Python would swallow the interrupt.
        self._ref = ref = _Ref(self, meter._freed.append)
        ref.gpu, ref.name = gpu, called(gpu)
        alive.add(ref)

    @property
    def gpu(self) -> int:
        return self._ref.gpu

    def resize(self, nbytes: int) -> None:
        """The piece is new, or has grown or shrunk."""
        if nbytes != self._ref.nbytes:
            meter.hold(self._ref.gpu, nbytes - self._ref.nbytes, self._ref.name)
            self._ref.nbytes = nbytes
            if nbytes >= LARGE and meter.book:
                self._ref.made = meter.book.made()
