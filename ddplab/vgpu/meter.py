"""The meter: every byte that crosses between devices, and every byte that a virtual GPU holds."""

import threading
from collections import defaultdict


def place_name(gpu: int | None) -> str:
    """The device's name as people write it: "vgpu:1", or "cpu" for None."""
    return "cpu" if gpu is None else f"vgpu:{gpu}"


def _size(n: int) -> str:
    return f"{n:,} B"


class Meter:
    """Counts copies between devices, by cause and link, and memory by device. All numbers are exact integers.

    Causes: "replicate" (parameters and buffers go out), "scatter" (inputs go out; gradients of outputs too), "gather"
    (outputs come back; gradients of inputs too), "reduce" (gradients of parameters come back), ".to" (also `.cpu()`,
    `copy_`, `torch.tensor(..., device=)`) and ".item()". A copy within one device is not counted. Memory is what tensors
    hold: no scratch space of kernels, no rounding by an allocator.
    """

    def __init__(self):
        self._lock = threading.RLock()  # a tensor may be freed, and counted, while its thread is in here
        self.memory: dict[str, int] = defaultdict(int)  #: bytes held now, by device
        self.reset()

    def reset(self) -> None:
        """Forget the copies, and let the peaks start from what is held now."""
        with self._lock:
            self._rows: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
            self.peak: dict[str, int] = defaultdict(
                int, self.memory
            )  #: most bytes held since reset(), by device

    def count(self, cause: str, source: int | None, target: int | None, nbytes: int) -> None:
        """Write down one copy of nbytes from source to target (GPU numbers; None is the CPU)."""
        if cause and source != target:
            with self._lock:
                row = self._rows[cause, place_name(source), place_name(target)]
                row[0] += 1
                row[1] += nbytes

    def hold(self, gpu: int, nbytes: int) -> None:
        """Write down that a device holds nbytes more (less, if negative)."""
        name = place_name(gpu)
        with self._lock:
            self.memory[name] += nbytes
            self.peak[name] = max(self.peak[name], self.memory[name])

    @property
    def rows(self) -> list[tuple[str, str, str, int, int]]:
        """(cause, source, target, copies, bytes), sorted."""
        with self._lock:
            return sorted((*key, *row) for key, row in self._rows.items())

    def _sum(self, column: int, **wanted: object) -> int:
        keys = {name: str(value) for name, value in wanted.items() if value is not None}
        named = [(dict(zip(("cause", "source", "target"), row[:3], strict=True)), row) for row in self.rows]
        return sum(row[column] for name, row in named if keys.items() <= name.items())

    def copies(self, cause: str | None = None, source: object = None, target: object = None) -> int:
        """Number of copies, all of them or of one cause, source or target."""
        return self._sum(3, cause=cause, source=source, target=target)

    def bytes(self, cause: str | None = None, source: object = None, target: object = None) -> int:
        """Number of bytes copied, all of them or of one cause, source or target."""
        return self._sum(4, cause=cause, source=source, target=target)

    def _tables(self):
        total = ("total", "", "", self.copies(), self.bytes())
        links = [(*row[:3], f"{row[3]:,}", _size(row[4])) for row in [*self.rows, total]]
        memory = [(name, _size(self.memory[name]), _size(self.peak[name])) for name in sorted(self.peak)]
        return (("cause", "from", "to", "copies", "bytes"), links), (("device", "held now", "peak"), memory)

    def __str__(self) -> str:
        lines = []
        for head, rows in self._tables():
            widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
            words = len(head) - 2  # the last two columns are numbers
            for row in [head, *rows]:
                cells = [
                    c.ljust(w) if i < words else c.rjust(w)
                    for i, (c, w) in enumerate(zip(row, widths, strict=True))
                ]
                lines.append("  ".join(cells).rstrip())
            lines.append("")
        return "\n".join(lines[:-1])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        html = ""
        for head, rows in self._tables():
            body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
            html += "<table><tr>" + "".join(f"<th>{cell}</th>" for cell in head) + f"</tr>{body}</table>"
        return html

    def plot(self):
        """A matplotlib Figure: bytes on each link, stacked by cause, and memory on each device."""
        from matplotlib.figure import Figure

        links = sorted({row[1:3] for row in self.rows})
        fig = Figure(figsize=(9, 1.2 + 0.4 * max(len(links), len(self.peak))), layout="constrained")
        left, right = fig.subplots(1, 2)
        start = dict.fromkeys(links, 0)
        for cause in sorted({row[0] for row in self.rows}):
            for source, target in links:
                size = self.bytes(cause, source, target)
                first = cause not in left.get_legend_handles_labels()[1]
                left.barh(
                    f"{source} → {target}",
                    size,
                    left=start[source, target],
                    color=_COLOURS[cause],
                    label=cause if first else None,
                )
                start[source, target] += size
        left.set(xlabel="bytes copied", title="between devices")
        if links:
            left.legend()
        names = sorted(self.peak)
        right.barh(names, [self.peak[n] for n in names], color="#c8c8c8", label="peak")
        right.barh(names, [self.memory[n] for n in names], height=0.4, color="#5f9ed1", label="now")
        right.set(xlabel="bytes held", title="on each device")
        right.legend()
        return fig


# matplotlib's tableau-colorblind10, one colour for each cause
_COLOURS = {
    "replicate": "#006ba4",
    "scatter": "#ff800e",
    "gather": "#ababab",
    "reduce": "#595959",
    ".to": "#5f9ed1",
    ".item()": "#c85200",
}
meter = Meter()


class Block:
    """One piece of memory on a device. It hangs on the storage and goes when the storage is freed."""

    def __init__(self, gpu: int, nbytes: int):
        self.gpu, self.nbytes = gpu, nbytes
        meter.hold(gpu, nbytes)

    def resize(self, nbytes: int) -> None:
        meter.hold(self.gpu, nbytes - self.nbytes)
        self.nbytes = nbytes

    def __del__(self):
        meter.hold(self.gpu, -self.nbytes)
