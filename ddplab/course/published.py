"""What others have measured on GPUs, beside what `ddplab.course.plan` says: rows it was made with, and rows it was not.

`FITTED` gave the plan its numbers: `WAITING` comes from the first 16 rows, and one thing from each of the last three.
`HELD_OUT` gave it none. Those rows are all of a kind, whether the plan meets them or not: image classifiers, SSD and
BERT in NVIDIA's examples on one node with 8 A100 or V100, and on the most nodes that are published; ResNet-50 and
BERT in Lambda's table on two RTX 3090 or 4090, and on 8 H100. Five rows of other kinds end it, which the plan must not
claim to know.

Efficiency is the throughput of N GPUs as a part of N times that of the base. Facts only, typed in by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddplab.course.plan import (
    BUCKET,
    DGX1,
    GITHUB,
    GOYAL,
    HOROVOD,
    MACHINES,
    NVIDIA,
    Machine,
    Step,
    step,
    unknown,
)

TENSORFLOW = (
    f"{GITHUB}/tensorflow/tensorflow/blob/6535ed7c270f9fb96798eec626e1883e15905226"
    "/tensorflow/docs_src/performance/benchmarks.md"
)
LAMBDA = f"{GITHUB}/lambdal/deeplearning-benchmark/tree/0551cb70ffdc155dc4cb2c10dddebb65651c3883/pytorch"
MOSAIC = (
    f"{GITHUB}/mosaicml/llm-foundry/blob/061f2c7ce64e655100286584a7629e2a09f827ba/scripts/train/benchmarking/README.md"
)


@dataclass(frozen=True)
class Published:
    """A scaling result that somebody published: what `ranks` GPUs reach, where `base` GPUs count as 1."""

    what: str
    parameters: float
    compute: float  # seconds of a step on one GPU
    machine: str
    base: int
    ranks: int
    efficiency: float
    source: str
    gradient: int = 4  # bytes of a parameter's gradient
    bucket: float = BUCKET
    images: int = 0  # JPEG files in the batch of one GPU; 0 where nothing is decoded
    sharded: bool = False
    uneven: bool = False  # samples of different length

    def _step(self, ranks: int, machine: Machine) -> Step:
        node = min(ranks, machine.gpus) * self.images  # what a node must prepare for each step
        loading = node / machine.images if machine.images else 0.0
        size = self.gradient * self.parameters
        return step(self.compute, size, ranks, machine, bucket=self.bucket, loading=loading)

    @property
    def unknown(self) -> str | None:
        """Why the plan does not know; None where it does."""
        machine = MACHINES.get(self.machine)
        planned = self._step(self.ranks, machine) if machine else None
        wanted = min(self.ranks, machine.gpus) * self.images / self.compute if machine else 0.0
        return unknown(planned, machine, wanted, self.sharded, self.uneven)

    @property
    def predicted(self) -> float | None:
        """What the plan says to the same question; None where it does not know."""
        if self.unknown:
            return None
        machine = MACHINES[self.machine]
        return self._step(self.base, machine).seconds / self._step(self.ranks, machine).seconds

    @property
    def error(self) -> float | None:
        """How far the plan is from what was published, as a part of it; above 0 it is too hopeful."""
        return None if self.predicted is None else self.predicted / self.efficiency - 1

    def __str__(self) -> str:
        start = f"{self.what:22}{self.ranks:4} GPUs of {self.machine}"
        if self.unknown:
            return f"{start} {self.efficiency:.1%}, do not know: {self.unknown}"
        return f"{start:70}{self.efficiency:7.1%}, planned {self.predicted:5.1%}, error {self.error:+6.1%}"


def _measured(
    what: str, parameters: float, machine: str, batch: int, one: float, ranks: int, together: float, source: str, **more
) -> Published:
    """A row from samples per second: of one GPU with `batch` samples a step, and of `ranks` GPUs together."""
    return Published(what, parameters, batch / one, machine, 1, ranks, together / (ranks * one), source, **more)


# Parameters: https://pytorch.org/vision/stable/models.html, num_params (Inception v3 without its auxiliary head), and
# for what is not there, in millions, as papers and READMEs have them.
RESNET, B0, B4, RESNEXT, SE, SSD = 25_557_032, 5_288_548, 19_341_616, 44.2e6, 49.0e6, 23e6
BERT, LARGE = 110e6, 330e6
A100, V100, H100 = (
    "DGX A100, 8x200 Gb InfiniBand",
    "8 V100, NVLink, 4x100 Gb InfiniBand",
    "8 H100, NVLink, 8x400 Gb InfiniBand",
)
P100, HOST = "8 P100, NVLink, 50 Gb Ethernet", "8 GeForce cards, host memory"
CONVNETS = f"{NVIDIA}/Classification/ConvNets"

# Median seconds of a step with DDP, batch 32, on 1, 2, 8 and 16 GPUs, by the authors of DDP.
_DDP = {
    "ResNet-50": (25_557_032, {1: 0.100, 2: 0.103, 8: 0.104, 16: 0.104}),
    "ResNet-101": (44_549_160, {1: 0.171, 2: 0.176, 8: 0.179, 16: 0.179}),
    "ResNeXt-50": (25_028_904, {1: 0.147, 2: 0.153, 8: 0.157, 16: 0.157}),
    "ResNeXt-101": (88_791_336, {1: 0.425, 2: 0.438, 8: 0.447, 16: 0.450}),
}
FITTED: tuple[Published, ...] = (
    *(
        Published(name, parameters, seconds[1], V100, 1, n, seconds[1] / seconds[n], DGX1)
        for name, (parameters, seconds) in _DDP.items()
        for n in (2, 8, 16)
    ),
    # Goyal et al., section 5.5: an epoch of 1.28 million images takes 8 GPUs "over 16 minutes", that is 5,000 steps of
    # 0.192 s; about 90 % efficiency at 256 GPUs; at 352 GPUs, 44 times as many, a step takes 12 % longer.
    Published("ResNet-50", RESNET, 0.192, P100, 8, 256, 0.90, GOYAL),
    Published("ResNet-50", RESNET, 0.192, P100, 8, 352, 1 / 1.12, GOYAL),
    # Horovod, 128 servers, which sends 64 MiB together. One P100 alone: 142 and 154 images a second with batch 64
    # (TENSORFLOW).
    Published(
        "Inception v3", 23_834_568, 64 / 142, "4 P100, PCIe, 25 Gb Ethernet", 1, 512, 0.90, HOROVOD, bucket=2**26
    ),
    Published("VGG-16", 138_357_544, 64 / 154, "4 P100, PCIe, 25 Gb Ethernet", 1, 512, 0.68, HOROVOD, bucket=2**26),
    # What a node can load, twice, and that nothing is hidden on cards without peer-to-peer.
    _measured("ResNet-50 mixed", RESNET, A100, 256, 2470, 8, 16_621, f"{CONVNETS}/resnet50v1.5", images=256),
    _measured("ResNet-50 mixed", RESNET, V100, 256, 1200, 8, 8322, f"{CONVNETS}/resnet50v1.5", images=256),
    _measured("BERT-large FP32, 4090", LARGE, HOST, 16, 44, 2, 55, LAMBDA),
)

# NVIDIA's own, 8 GPUs of one node: batch and images a second of one, images a second of eight.
_CONVNETS = [
    ("ResNet-50 TF32", RESNET, A100, 256, 938, 7248, "resnet50v1.5"),
    ("ResNet-50 FP32", RESNET, V100, 112, 367, 2855, "resnet50v1.5"),
    ("ResNeXt-101 TF32", RESNEXT, A100, 128, 456, 3471, "resnext101-32x4d"),
    ("ResNeXt-101 mixed", RESNEXT, A100, 128, 1211, 7925, "resnext101-32x4d"),
    ("ResNeXt-101 FP32", RESNEXT, V100, 64, 147, 1133, "resnext101-32x4d"),
    ("ResNeXt-101 mixed", RESNEXT, V100, 128, 587, 4065, "resnext101-32x4d"),
    ("SE-ResNeXt-101 TF32", SE, A100, 128, 395, 2991, "se-resnext101-32x4d"),
    ("SE-ResNeXt-101 mixed", SE, A100, 128, 855, 5779, "se-resnext101-32x4d"),
    ("SE-ResNeXt-101 FP32", SE, V100, 64, 132, 1004, "se-resnext101-32x4d"),
    ("SE-ResNeXt-101 mixed", SE, V100, 112, 443, 2971, "se-resnext101-32x4d"),
    ("EfficientNet-b0 TF32", B0, A100, 256, 1078, 8193, "efficientnet"),
    ("EfficientNet-b0 mixed", B0, A100, 256, 2489, 16_652, "efficientnet"),
    ("EfficientNet-b0 FP32", B0, V100, 64, 655, 4672, "efficientnet"),
    ("EfficientNet-b0 mixed", B0, V100, 128, 1301, 7789, "efficientnet"),
    ("EfficientNet-b4 TF32", B4, A100, 64, 157, 1223, "efficientnet"),
    ("EfficientNet-b4 mixed", B4, A100, 128, 331, 2570, "efficientnet"),
    ("EfficientNet-b4 FP32", B4, V100, 16, 83, 616, "efficientnet"),
    ("EfficientNet-b4 mixed", B4, V100, 32, 204, 1366, "efficientnet"),
]
_SSD = [
    ("SSD TF32", A100, 128, 377.18, 2967.23),
    ("SSD mixed", A100, 128, 724.41, 5733.98),
    ("SSD FP32", V100, 32, 107.22, 840.35),
    ("SSD mixed", V100, 64, 322.81, 2520.5),
]
_SQUAD = [  # mixed precision is Apex's O2 here: gradients of two bytes
    ("BERT-large TF32", 4, A100, 32, 61.5, 469.8),
    ("BERT-large mixed", 2, A100, 32, 110.5, 846.7),
    ("BERT-large FP32", 4, V100, 8, 12, 85.5),
    ("BERT-large mixed", 2, V100, 16, 52, 382),
]
# 32 nodes, several batches to a step, all gradients in one bucket: sequences of a GPU's step, a second of one, of all.
_PRETRAINING = [
    ("BERT-large 128 TF32", 256, 317, 75_706),
    ("BERT-large 128 mixed", 256, 580, 138_294),
    ("BERT-large 512 TF32", 128, 110, 21_298),
    ("BERT-large 512 mixed", 128, 210, 49_663),
]
# Lambda's, where images are made up and not loaded: two RTX 3090, two RTX 4090 (BERT-large FP32 is in FITTED), Dell's
# 8 H100, with the batches of its template for 80 GB.
_LAMBDA = [  # GPUs, precision, batch, samples a second on one and on all
    ("ResNet-50", RESNET, HOST, 2, "FP32, 3090", 224, 513, 979),
    ("ResNet-50", RESNET, HOST, 2, "FP16, 3090", 448, 905, 1751),
    ("BERT-base", BERT, HOST, 2, "FP32, 3090", 48, 85, 154),
    ("BERT-base", BERT, HOST, 2, "FP16, 3090", 96, 172, 327),
    ("BERT-large", LARGE, HOST, 2, "FP32, 3090", 16, 24, 38),
    ("BERT-large", LARGE, HOST, 2, "FP16, 3090", 28, 52, 89),
    ("ResNet-50", RESNET, HOST, 2, "FP32, 4090", 224, 721, 1363),
    ("ResNet-50", RESNET, HOST, 2, "FP16, 4090", 448, 1301, 2468),
    ("BERT-base", BERT, HOST, 2, "FP32, 4090", 48, 137, 232),
    ("BERT-base", BERT, HOST, 2, "FP16, 4090", 96, 297, 541),
    ("BERT-large", LARGE, HOST, 2, "FP16, 4090", 28, 93, 139),
    ("ResNet-50", RESNET, H100, 8, "FP32", 640, 1893, 14_981),
    ("ResNet-50", RESNET, H100, 8, "FP16", 1280, 2776, 22_048),
    ("BERT-base", BERT, H100, 8, "FP32", 172, 433, 3442),
    ("BERT-base", BERT, H100, 8, "FP16", 320, 867, 9785),
    ("BERT-large", LARGE, H100, 8, "FP32", 64, 147, 1140),
    ("BERT-large", LARGE, H100, 8, "FP16", 112, 307, 2412),
]
HELD_OUT: tuple[Published, ...] = (
    *(
        _measured(what, parameters, machine, batch, one, 8, eight, f"{CONVNETS}/{folder}", images=batch)
        for what, parameters, machine, batch, one, eight, folder in _CONVNETS
    ),
    *(
        _measured(what, SSD, machine, batch, one, 8, eight, f"{NVIDIA}/Detection/SSD", images=batch)
        for what, machine, batch, one, eight in _SSD
    ),
    *(
        _measured(what, LARGE, machine, batch, one, 8, eight, f"{NVIDIA}/LanguageModeling/BERT", gradient=gradient)
        for what, gradient, machine, batch, one, eight in _SQUAD
    ),
    _measured("EfficientNet-b4 TF32", B4, A100, 64, 157, 64, 9146, f"{CONVNETS}/efficientnet", images=64),
    _measured("EfficientNet-b4 mixed", B4, A100, 128, 331, 64, 18_900, f"{CONVNETS}/efficientnet", images=128),
    *(
        _measured(what, LARGE, A100, batch, one, 256, together, f"{NVIDIA}/LanguageModeling/BERT", bucket=4 * LARGE)
        for what, batch, one, together in _PRETRAINING
    ),
    *(
        _measured(
            f"{what} {precision}",
            parameters,
            machine,
            *(batch, one, ranks, together),
            LAMBDA,
            gradient=2 if "FP16" in precision and "BERT" in what else 4,
        )
        for what, parameters, machine, ranks, precision, batch, one, together in _LAMBDA
    ),
    # A machine rented from a cloud: whether its GPUs see each other is not said.
    _measured("BERT-large FP32", LARGE, "8 V100 in a virtual machine", 8, 12, 8, 70, LAMBDA),
    # Sentences of different length; the batch is a number of tokens.
    _measured(
        "Transformer TF32", 210e6, A100, 10_240, 51_057, 8, 347_936, f"{NVIDIA}/Translation/Transformer", uneven=True
    ),
    _measured(
        "Transformer mixed", 210e6, A100, 10_240, 82_059, 8, 551_599, f"{NVIDIA}/Translation/Transformer", uneven=True
    ),
    # Tokens a second of a GPU, FSDP: 44,402 on 64 of 46,037 on 16; 4,800 on 64 of 4,792 on 8. Batch 20 and 2 of 2,048.
    Published("MPT 1.3 B", 1_315_950_592, 20 * 2048 / 46_037, H100, 16, 64, 44_402 / 46_037, MOSAIC, sharded=True),
    Published("MPT 13 B", 12_853_954_560, 2 * 2048 / 4792, H100, 8, 64, 4800 / 4792, MOSAIC, sharded=True),
)
