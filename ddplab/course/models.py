"""The two small models that the lessons train, which take 8x8 digits and return ten scores (logits), and ResNet-50."""

import copy
from collections.abc import Mapping

from torch import Tensor, nn


class MLP(nn.Module):
    """Two linear layers: 64 pixels, `hidden` units, `classes` scores.

    x: float32 (batch, 1, 8, 8) -> logits: float32 (batch, classes). With the defaults, 4,810 parameters.
    """

    def __init__(self, hidden: int = 64, classes: int = 10):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),  # (batch, 64)
            nn.Linear(64, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class CNN(nn.Module):
    """Two convolutions, each followed by a pooling that halves the image, then one linear layer.

    x: float32 (batch, 1, 8, 8) -> logits: float32 (batch, classes). With the defaults, 6,090 parameters.
    `batch_norm=True` puts a BatchNorm after each convolution. Such a model's output for one image depends
    on the rest of its batch, and it carries buffers (running mean and variance) that no optimiser updates.
    """

    def __init__(self, channels: int = 16, classes: int = 10, batch_norm: bool = False):
        super().__init__()
        self.features = nn.Sequential(
            *convolution(1, channels, batch_norm),  # (batch, channels, 4, 4)
            *convolution(channels, 2 * channels, batch_norm),  # (batch, 2 * channels, 2, 2)
            nn.Flatten(),  # (batch, 8 * channels)
        )
        self.classifier = nn.Linear(8 * channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def convolution(inputs: int, outputs: int, batch_norm: bool) -> list[nn.Module]:
    """3x3 convolution, BatchNorm if asked, ReLU, 2x2 pooling.

    (batch, inputs, side, side) -> (batch, outputs, side / 2, side / 2)
    """
    norm = [nn.BatchNorm2d(outputs)] if batch_norm else []
    return [nn.Conv2d(inputs, outputs, 3, padding=1), *norm, nn.ReLU(), nn.MaxPool2d(2)]


class Bottleneck(nn.Module):
    """A block of ResNet-50: three convolutions, beside them a shorter way, and their sum through a ReLU."""

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        long = [_conv(inputs, width, 1), _conv(width, width, 3, stride), _conv(width, 4 * width, 1)]
        relu = nn.ReLU(inplace=True)
        self.long = nn.Sequential(*long[0], relu, *long[1], relu, *long[2])
        self.short = nn.Sequential(*_conv(inputs, 4 * width, 1, stride)) if inputs != 4 * width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return (self.long(x) + self.short(x)).relu_()


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)


def resnet50() -> nn.Sequential:
    """ResNet-50 (v1.5) as NVIDIA and torchvision have it, for a thousand classes: 25,557,032 parameters.

    x: float32 (batch, 3, side, side) -> logits: float32 (batch, 1000).
    """
    layers = [*_conv(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for n in range(blocks):
            layers.append(Bottleneck(inputs, width, stride=2 if n == 0 and width > 64 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def with_weights(net: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a module that computes with the tensors given, by the names of `named_parameters()`.

    They are no parameters of the copy, as in a replica of `nn.DataParallel`: a gradient goes on to what they were
    made from. Raises AttributeError for a name that the module does not have.
    """
    twin = copy.deepcopy(net)
    for name, tensor in weights.items():
        path, _, last = name.rpartition(".")
        owner = twin.get_submodule(path)
        delattr(owner, last)
        setattr(owner, last, tensor)
    return twin
