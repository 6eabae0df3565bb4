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
