"""The data that the lessons share: real digits that ship with the package, and random tensors.

The digits are "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998, UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49), licensed CC BY 4.0. Nothing is downloaded.
"""

from importlib.resources import files

import numpy as np
import torch
from torch.utils.data import TensorDataset

TRAIN = 1437  # the other 360 of the 1,797 images are the test set


def digits(train: bool = True) -> TensorDataset:
    """The handwritten digits, as a dataset that a DataLoader or a DistributedSampler takes as it is.

    `train=True` gives 1,437 images, `train=False` the other 360. The file holds the images already shuffled,
    so the split is the same everywhere and no random number is drawn.

    Returns a `TensorDataset` of
        x: float32, (n, 1, 8, 8), between 0 and 1
        y: int64, (n,), the digit 0 to 9
    For the tensors themselves write `x, y = digits().tensors`.
    """
    with np.load(str(files("ddplab.course") / "digits.npz")) as stored:
        images, labels = stored["images"], stored["labels"]
    part = slice(None, TRAIN) if train else slice(TRAIN, None)
    x = torch.from_numpy(images[part]).unsqueeze(1).float() / 16  # stored as whole numbers, 0 to 16
    return TensorDataset(x, torch.from_numpy(labels[part]).long())


def random_images(n: int = 1000, seed: int = 0) -> TensorDataset:
    """Images of pure noise with random labels: there is nothing in them to learn, only to memorise.

    The same `n` and `seed` give the same tensors; the global random state is left alone.

    Returns a `TensorDataset` of
        x: float32, (n, 1, 28, 28), standard normal
        y: int64, (n,), 0 to 9
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, 28, 28, generator=generator)
    return TensorDataset(x, torch.randint(0, 10, (n,), generator=generator))
