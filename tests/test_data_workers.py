"""A data loader's workers inside a rank: they start, and know what was defined beside the launched function."""

import sys

import pytest
from torch.utils.data import DataLoader, Dataset

from ddplab import launch


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are spawned, and must import their data set")
def test_workers_of_a_rank_load_a_dataset_defined_in_a_cell():
    class Squares(Dataset):  # cannot be imported, as nothing from a cell can
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index**2

    def load():
        return list(DataLoader(Squares(), batch_size=None, num_workers=2))

    assert launch(load, quiet=True).results == [[0, 1, 4, 9]] * 2
