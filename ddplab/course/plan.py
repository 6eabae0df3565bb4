"""What a training step costs on N GPUs: compute, the communication that nothing hides, and memory, by arithmetic.

The model has two numbers for a connection: alpha, the seconds that each message costs however small it is, and the
bytes that it carries in a second. A ring all-reduce of S bytes over N ranks sends 2(N-1) messages one after the other,
and 2(N-1)/N times S bytes through every rank (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
Over several nodes it is one ring through all, or two levels, a ring inside each node and then one across the nodes,
whichever is quicker.

    machine = MACHINES["8 A100, NVLink, 4x100 Gb EFA"]
    step(0.2, 4 * 25_557_032, 64, machine).seconds      # 0.2 s of compute, ResNet-50's gradients, 64 GPUs

The two numbers come from a table of known hardware (`LINKS`, `MACHINES`) or from this machine (`time_all_reduce` in a
launch, then `fit_link`). Ranks wait for the latest of them (`late`), and for the data of their node where it comes late
(`loading`). What the model leaves out: other people on the network, and the trees that replace rings where nodes are
very many. Where it was never compared with a measurement, it says that it does not know: `unknown`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, isfinite, log, sqrt

from ddplab.pointer import pointing

BACKWARD = 2 / 3  # of a step's compute: twice the arithmetic of the forward pass. DDP communicates meanwhile
BUCKET = 25 * 2**20  # bytes of gradients that DDP sends together: bucket_cap_mb
ACHIEVED = 0.8  # of a nominal bandwidth, see LINKS
WAITING = 0.02  # of a rank's compute: its standard deviation. Fitted on 16 rows of `published`, to half a percent
SHORT = 0.02  # seconds: a step starts some thousand kernels, 5 to 10 microseconds each for Python and the driver
JPEGS = 5_000  # a second that a node surely prepares: 40 cores, of which each decodes and crops about 125


def _whole(**values: object) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}; it must be a whole number, 1 or more")


def _above(bound: float, **values: float) -> None:
    for name, value in values.items():
        if not value > bound or not isfinite(value):
            raise ValueError(f"{name} is {value!r}; it must be above {bound}")


def _at_least(bound: float, **values: float) -> None:
    for name, value in values.items():
        if not value >= bound or not isfinite(value):
            raise ValueError(f"{name} is {value!r}; it must be {bound} or more")


def _known(name: str, value: str, table: dict) -> object:
    if value not in table:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, table))}")
    return table[value]


@dataclass(frozen=True)
class Link:
    """A connection: alpha, the seconds of each message, and bytes per second in one direction. source: who says so.

    hides: whether messages travel while the GPU computes; False where computing gains nothing from it.
    """

    name: str
    alpha: float
    bandwidth: float
    source: str = ""
    hides: bool = True

    def __post_init__(self) -> None:
        _at_least(0, alpha=self.alpha)
        _above(0, bandwidth=self.bandwidth)

    def __str__(self) -> str:
        return f"{self.name:20} {self.bandwidth / 1e9:6.1f} GB/s, {self.alpha * 1e6:4.1f} microseconds a message"


@dataclass(frozen=True)
class Machine:
    """Nodes that are all alike: `gpus` in each, what connects them within a node, and what connects the nodes.

    across: the connection of a whole node, which its GPUs share; None for a single node.
    cores: set where ranks are processes on the CPU. Beyond that many they wait for one another, in computing and in
        communicating alike, and nothing can be hidden behind the backward pass, since the same cores do both. It
        need not be whole: cores that others use as well are worth less than they count.
    flops: bf16 operations per second of a GPU. memory: bytes of a GPU. source: who says so.
    images: JPEG files a second that the CPUs of a node decode and crop; None where nobody has said.
    """

    name: str
    gpus: int
    within: Link
    across: Link | None = None
    cores: float | None = None
    flops: float | None = None
    memory: float | None = None
    source: str = ""
    images: float | None = None

    def __post_init__(self) -> None:
        _whole(gpus=self.gpus)
        if self.cores is not None:
            _above(0, cores=self.cores)
        if self.images is not None:
            _above(0, images=self.images)

    def crowding(self, ranks: int) -> float:
        """How many times longer everything takes because ranks share cores; 1 where each has its own."""
        return max(1.0, ranks / self.cores) if self.cores else 1.0

    def scaled(self, alpha: float = 1.0, bandwidth: float = 1.0) -> Machine:
        """The same machine, with so many times the alpha and the bandwidth in all its connections."""
        links = [
            link and replace(link, alpha=alpha * link.alpha, bandwidth=bandwidth * link.bandwidth)
            for link in (self.within, self.across)
        ]
        return replace(self, within=links[0], across=links[1])

    @pointing
    def all_reduce(self, size: float, ranks: int) -> float:
        """Seconds of one all-reduce of `size` bytes: of one ring or of two levels, whichever is quicker.

        One ring through all GPUs goes at the pace of its slowest connection. Raises ValueError for ranks that the
        machine has not, or that do not fill its nodes.
        """
        _whole(ranks=ranks)
        nodes = ceil(ranks / self.gpus)
        if nodes == 1:
            return ring(size, ranks, self.within) * self.crowding(ranks)
        if self.across is None:
            raise ValueError(
                f"{self.name} is one node with {self.gpus} GPUs; {ranks} ranks need `across`, a second link"
            )
        if ranks % self.gpus:
            raise ValueError(f"{ranks} ranks do not fill nodes of {self.gpus}; use a multiple of {self.gpus}")
        slowest = Link("", max(self.within.alpha, self.across.alpha), min(self.within.bandwidth, self.across.bandwidth))
        return min(ring(size, ranks, slowest), hierarchical(size, nodes, self.gpus, self.within, self.across))


def ring_bytes(size: float, ranks: int) -> float:
    """Return the bytes that each rank sends in a ring all-reduce of `size` bytes: 2(N-1)/N of them."""
    _whole(ranks=ranks)
    _at_least(0, size=size)
    return 2 * (ranks - 1) / ranks * size


def ring(size: float, ranks: int, link: Link) -> float:
    """Return the seconds of a ring all-reduce: 2(N-1) messages, and 2(N-1)/N of the bytes."""
    return 2 * (ranks - 1) * link.alpha + ring_bytes(size, ranks) / link.bandwidth


def hierarchical(size: float, nodes: int, gpus: int, within: Link, across: Link) -> float:
    """Return the seconds of an all-reduce in two levels, over `nodes` with `gpus` each.

    Inside every node a reduce-scatter leaves each GPU with its 1/gpus of the sum; as many rings as there are GPUs then
    cross the nodes, sharing the node's connection, so that together they carry all the bytes; an all-gather inside
    the node ends it. The first and the last half are one ring inside the node.
    """
    return ring(size, gpus, within) + ring(size, nodes, across)


def late(ranks: int, waiting: float = WAITING) -> float:
    """Return by which part of its compute the latest of N ranks is later than the typical one: waiting * sqrt(2 ln N).

    So far does the largest of N normally distributed numbers lie from their mean, in standard deviations, at most.
    """
    _whole(ranks=ranks)
    return waiting * sqrt(2 * log(ranks))


@dataclass(frozen=True)
class Step:
    """The seconds of one training step: what each rank computes, what it waits for the latest of them, what it
    communicates, the part of that which nothing hides, and what the node takes to prepare the data meanwhile."""

    compute: float
    waiting: float
    communication: float
    exposed: float
    loading: float

    @property
    def seconds(self) -> float:
        """Compute, waiting and exposed communication, or loading where that takes longer."""
        return max(self.compute + self.waiting + self.exposed, self.loading)


@pointing
def step(
    compute: float,
    size: float,
    ranks: int,
    machine: Machine,
    hidden: float = BACKWARD,
    bucket: float = BUCKET,
    loading: float = 0.0,
    waiting: float = WAITING,
) -> Step:
    """Plan one step of data parallel training.

    compute: seconds that one rank alone takes for its batch.  size: bytes of gradients.
    hidden: the part of the compute that is the backward pass, during which DDP communicates; 0 hides nothing.
    bucket: bytes that are sent together. Buckets become ready evenly during the backward pass: nothing travels before
        the first one is, and the last is when that pass ends, so nothing hides it.
    loading: seconds in which the CPUs of a node prepare the samples of a step, for all of its GPUs.
    waiting: the standard deviation of a rank's compute, as a part of it.

    Raises ValueError for what cannot be.
    """
    _above(0, compute=compute, size=size, bucket=bucket)
    _at_least(0, loading=loading, waiting=waiting)
    if not 0 <= hidden <= 1:
        raise ValueError(f"hidden is a part of the compute, from 0 to 1, not {hidden!r}")
    buckets = ceil(size / bucket)
    one = machine.all_reduce(size / buckets, ranks)
    compute *= machine.crowding(ranks)
    waits = 0.0 if machine.cores else late(ranks, waiting) * compute  # ranks that share cores wait in `crowding`
    backward = 0.0 if machine.cores or not machine.within.hides else hidden * (compute + waits)
    room = backward * (buckets - 1) / buckets  # from when the first bucket is ready
    return Step(compute, waits, buckets * one, max(buckets * one - room, one), loading)


def unknown(
    planned: Step | None, machine: Machine | None, images: float = 0.0, sharded: bool = False, uneven: bool = False
) -> str | None:
    """Say why there is no plan to be trusted here; None where there is one.

    planned, machine: None if its links are not in the table.
    images: how many JPEG files a second each of its nodes must prepare, where the samples are such.
    sharded: FSDP or ZeRO, which send weights too.  uneven: samples, and so the work of ranks, differ in length.
    """
    if sharded:
        return "sharded training"
    if uneven:
        return "samples differ in length"
    if planned is None or machine is None:
        return "links not in the table"
    if machine.cores:
        return None
    if planned.compute < SHORT:
        return f"{planned.compute * 1e3:.0f} ms a step may be Python starting kernels"
    if images > JPEGS and not machine.images:
        return f"can a node load {images:,.0f} images a second?"
    if planned.exposed > planned.compute:
        return "the network decides: measure it"
    return None


def efficiency(compute: float, size: float, ranks: int, machine: Machine, base: int = 1, **options: float) -> float:
    """Return which part of N times the throughput N ranks reach; `base` ranks count as fully efficient."""
    return (
        step(compute, size, base, machine, **options).seconds / step(compute, size, ranks, machine, **options).seconds
    )


# ------------------------------------------------------------------ measured here


def time_all_reduce(sizes: Sequence[int] = (2**12, 2**18, 2**21, 2**23), repeats: int = 15) -> list[tuple]:
    """Time all-reduces of several sizes, in bytes. Run it in every rank: `launch(time_all_reduce, nproc_per_node=2)`.

    Returns (ranks, bytes, seconds) for each size, as `fit_link` takes them: the fastest of `repeats`.
    """
    import torch
    import torch.distributed as dist

    from ddplab.hardware import device

    torch.set_num_threads(1)
    timings = []
    for size in sizes:
        numbers, best = torch.zeros(size // 4, device=device()), float("inf")
        for _ in range(repeats + 2):  # the first two warm up, and are never the fastest
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(numbers)
            if numbers.is_cuda:
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - start)
        timings.append((dist.get_world_size(), size, best))
    return timings


@pointing
def fit_link(timings: Iterable[tuple], cores: float | None = None, name: str = "measured") -> Link:
    """Find the alpha and the bandwidth that explain timings of all-reduces best: least squares of the relative errors.

    timings: (ranks, bytes, seconds), as many as you like, of two sizes at least.  cores: see `Machine`.
    Raises ValueError where two numbers cannot be told apart.
    """
    import numpy as np

    timings = list(timings)
    if any(ranks < 2 or seconds <= 0 for ranks, _, seconds in timings):
        raise ValueError("each timing is (ranks, bytes, seconds), with two ranks at least and more than no time")
    if len({size for _, size, _ in timings}) < 2:
        raise ValueError("alpha and the bandwidth need timings of two sizes at least")
    crowd = [max(1.0, ranks / cores) if cores else 1.0 for ranks, _, _ in timings]
    rows = np.array(
        [[2 * (n - 1) * c / t, ring_bytes(s, n) * c / t] for (n, s, t), c in zip(timings, crowd, strict=True)]
    )
    (alpha, per_byte), *_ = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)
    if alpha < 0:  # then the messages cost nothing that could be measured
        alpha, per_byte = 0.0, rows[:, 1].sum() / (rows[:, 1] ** 2).sum()
    if per_byte <= 0:
        raise ValueError("these timings do not grow with the bytes: try larger sizes")
    return Link(name, float(alpha), float(1 / per_byte), "measured on this machine")


# ------------------------------------------------------------------ memory

STATE = {"sgd": 0, "momentum": 4, "adam": 8}  # bytes a parameter: nothing, one float32, or two
PRECISION = {"fp32": (4, 4, 0), "bf16": (2, 2, 4)}  # bytes a parameter: weights, gradients, master weights


@dataclass(frozen=True)
class Memory:
    """Bytes that one GPU holds."""

    weights: float
    gradients: float
    master: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """All five together."""
        return sum(self._parts().values())

    def _parts(self) -> dict[str, float]:
        return {
            "weights": self.weights,
            "gradients": self.gradients,
            "master weights": self.master,
            "optimiser": self.optimizer,
            "activations": self.activations,
        }

    def __str__(self) -> str:
        parts = " + ".join(f"{name} {held / 1e9:,.1f}" for name, held in self._parts().items() if held)
        return f"{parts} = {self.total / 1e9:,.1f} GB"


@pointing
def memory(parameters: float, optimizer: str = "adam", precision: str = "fp32", activations: float = 0.0) -> Memory:
    """Count the bytes that training holds on each GPU. With DDP every GPU holds all of it.

    optimizer: "sgd", "momentum" or "adam".
    precision: "fp32", or "bf16" for weights and gradients in bf16 beside float32 master weights, which the optimiser
        updates (ZeRO, https://arxiv.org/abs/1910.02054, counts so). Under `torch.autocast` the weights stay float32:
        that is "fp32".
    activations: bytes, as measured or known; nothing can be said about them from the parameters alone.

    DDP's buckets, as large as the gradients, come on top unless `gradient_as_bucket_view=True`. Raises ValueError.
    """
    _above(0, parameters=parameters)
    _at_least(0, activations=activations)
    state = _known("optimizer", optimizer, STATE)
    each = [bytes_ * parameters for bytes_ in (*_known("precision", precision, PRECISION), state)]
    return Memory(*each, activations)


# ------------------------------------------------------------------ the whole plan


@dataclass(frozen=True)
class Plan:
    """One training on `gpus` GPUs: what `plan_training` returns."""

    gpus: int
    batch: float
    step: Step
    memory: Memory
    machine: Machine

    @property
    def throughput(self) -> float:
        """Samples per second, of all GPUs together."""
        return self.gpus * self.batch / self.step.seconds

    @property
    def efficiency(self) -> float:
        """The part of the time that is spent computing: what N GPUs reach of N times one."""
        return self.step.compute / self.machine.crowding(self.gpus) / self.step.seconds

    @property
    def unknown(self) -> str | None:
        """Why the plan is not to be trusted, see the function `unknown`; None where it is."""
        return unknown(self.step, self.machine)

    def days(self, samples: float) -> float:
        """Days that `samples` take."""
        return samples / self.throughput / 86400

    @property
    def fits(self) -> bool | None:
        """Whether it fits into a GPU's memory; None where the machine's memory is not known."""
        return None if self.machine.memory is None else self.memory.total <= self.machine.memory


@pointing
def plan_training(
    parameters: float,
    batch: float,
    gpus: int,
    machine: Machine,
    compute: float,
    optimizer: str = "adam",
    precision: str = "fp32",
    activations: float = 0.0,
) -> Plan:
    """Plan data parallel training: `batch` samples on each of `gpus` GPUs, `compute` seconds for them on one alone.

    activations: bytes for the batch of one GPU. For the others see `step` and `memory`. Raises ValueError.
    """
    _above(0, batch=batch)
    held = memory(parameters, optimizer, precision, activations)
    return Plan(gpus, batch, step(compute, held.gradients, gpus, machine), held, machine)


@pointing
def transformer_seconds(parameters: float, tokens: float, machine: Machine, utilisation: float = 0.4) -> float:
    """Return the seconds that one GPU computes for `tokens`: 6 operations for each parameter and token.

    (Kaplan et al. 2020, https://arxiv.org/abs/2001.08361.) utilisation: the part of the peak that is reached. Raises
    ValueError where the machine's peak is not known.
    """
    _above(0, parameters=parameters, tokens=tokens, utilisation=utilisation)
    if machine.flops is None:
        raise ValueError(f"how fast a GPU of {machine.name} computes is not in the table: time a step instead")
    return 6 * parameters * tokens / (machine.flops * utilisation)


# ------------------------------------------------------------------ known machines

GITHUB = "https://github.com"
NETWORKS = f"{GITHUB}/stas00/ml-engineering/blob/0030e63f5275afee38233676690ce10478647cca/network/README.md"
HOST = f"{GITHUB}/NVIDIA/nccl/issues/1817"
NCCL = f"{GITHUB}/NVIDIA/nccl/blob/01afd20a77b5804e0ecf1042509dd9d20ebf9e93/src/graph/tuning.cc"
DGX1 = f"{GITHUB}/pytorch/pytorch/blob/main/benchmarks/distributed/ddp/README.md"
GOYAL = "https://arxiv.org/abs/1706.02677"
HOROVOD = f"{GITHUB}/horovod/horovod/blob/master/docs/benchmarks.rst"
NVIDIA = f"{GITHUB}/NVIDIA/DeepLearningExamples/blob/729963dd47e7c8bd462ad10bfac7a7b0b604e6dd/PyTorch"
ALPHA = {"NVLink": 3.4e-6, "PCIe": 5.7e-6, "network": 9.6e-6}  # seconds a message: NCCL's own, ring, protocol Simple


def _link(name: str, kind: str, gigabytes: float, source: str) -> Link:
    """A link from its nominal gigabytes per second in one direction."""
    return Link(name, ALPHA[kind], ACHIEVED * 1e9 * gigabytes, source)


# Nominal figures, of which ACHIEVED is what a ring reaches: 235 of 300 GB/s on an A100 node (NETWORKS), and NCCL's own
# tuning caps that machine at the same 235. A network's figure is for a node's whole connection: 100 Gb/s is 12.5 GB/s.
LINKS: dict[str, Link] = {
    link.name: link
    for link in (
        # GeForce cards from the RTX 20 series on have no peer-to-peer over PCIe: it goes through the host's memory.
        # Measured and no nominal figure: 6.1 GB/s on PCIe 4 (HOST); 3.9 on PCIe 3 (issue 384 there).
        # They gain nothing from sending while they compute: so says `published`'s BERT-large on two RTX 4090.
        Link("host memory", ALPHA["PCIe"], 6e9, HOST, hides=False),
        _link("PCIe 4", "PCIe", 31, NETWORKS),
        _link("PCIe 5", "PCIe", 63, NETWORKS),
        _link("NVLink 1", "NVLink", 80, NETWORKS),
        _link("NVLink 2", "NVLink", 150, NETWORKS),
        _link("NVLink 3", "NVLink", 300, NETWORKS),
        _link("NVLink 4", "NVLink", 450, NETWORKS),
        _link("10 Gb Ethernet", "network", 10 / 8, "10 Gb/s by name"),
        _link("25 Gb Ethernet", "network", 25 / 8, "25 Gb/s by name"),
        _link("50 Gb Ethernet", "network", 50 / 8, GOYAL),
        _link("100 Gb Ethernet", "network", 100 / 8, "100 Gb/s by name"),
        _link("4x100 Gb InfiniBand", "network", 4 * 100 / 8, DGX1),
        _link("4x100 Gb EFA", "network", 4 * 100 / 8, NETWORKS),
        _link("8x200 Gb InfiniBand", "network", 8 * 200 / 8, "8 x 200 Gb/s by name"),
        _link("8x400 Gb InfiniBand", "network", 8 * 400 / 8, NETWORKS),
    )
}

_A100 = Machine("8 A100, NVLink, 4x100 Gb EFA", 8, LINKS["NVLink 3"], LINKS["4x100 Gb EFA"], flops=312e12, memory=80e9,
                source=NETWORKS)  # fmt: skip
MACHINES: dict[str, Machine] = {
    machine.name: machine
    for machine in (
        _A100,
        replace(_A100, name="8 A100, PCIe, 10 Gb Ethernet", within=LINKS["PCIe 4"], across=LINKS["10 Gb Ethernet"]),
        replace(_A100, name="8 A100, PCIe, 100 Gb Ethernet", within=LINKS["PCIe 4"], across=LINKS["100 Gb Ethernet"]),
        Machine("8 H100, NVLink, 8x400 Gb InfiniBand", 8, LINKS["NVLink 4"], LINKS["8x400 Gb InfiniBand"],
                flops=989e12, memory=80e9, source=NETWORKS),
        # images: what ResNet-50 in mixed precision reaches on these nodes, two rows of FITTED. That loading limits it
        # there is our reading.
        Machine("DGX A100, 8x200 Gb InfiniBand", 8, LINKS["NVLink 3"], LINKS["8x200 Gb InfiniBand"], source=NVIDIA,
                images=16_621),
        Machine("8 V100, NVLink, 4x100 Gb InfiniBand", 8, LINKS["NVLink 2"], LINKS["4x100 Gb InfiniBand"], source=DGX1,
                images=8_322),
        Machine("8 P100, NVLink, 50 Gb Ethernet", 8, LINKS["NVLink 1"], LINKS["50 Gb Ethernet"], source=GOYAL),
        # Inside the node the source is silent; PCIe is taken, and weighs little beside the network.
        Machine("4 P100, PCIe, 25 Gb Ethernet", 4, LINKS["PCIe 4"], LINKS["25 Gb Ethernet"], source=HOROVOD),
        Machine("8 GeForce cards, host memory", 8, LINKS["host memory"], source=HOST),
    )
}  # fmt: skip
