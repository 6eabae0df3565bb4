"""How `ddplab/course/digits.npz` was made. Run once by a maintainer; learners never need it.

The numbers are those of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998, UCI
Machine Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0), in the copy that scikit-learn
carries: 1,797 images of 8x8 pixels, each 0 to 16. The only change is the order: the images are shuffled
once, so that the first 1,437 rows can be the training set and the last 360 the test set, on every machine
and with every version of torch. Use a virtual environment of its own:

    pip install scikit-learn && python tools/make_digits.py
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

TARGET = Path(__file__).parent.parent / "ddplab" / "course" / "digits.npz"


def main() -> None:
    source = load_digits()
    order = np.random.RandomState(0).permutation(len(source.target))  # RandomState's stream is frozen by numpy
    np.savez_compressed(
        TARGET,
        images=source.images[order].astype(np.uint8),
        labels=source.target[order].astype(np.uint8),
    )
    print(f"{TARGET.name}: {len(order)} images, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
