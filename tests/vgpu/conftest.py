"""The devices that a test of DataParallel gets: virtual ones and, under `-m gpu`, real ones."""

import pytest
import torch
from pair import Pair

from ddplab.vgpu import virtual_gpus


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are tiny
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["vgpu", "vgpu-shared", pytest.param("cuda", marks=pytest.mark.gpu)])
def g(request):
    torch.manual_seed(0)
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a real GPU")
        yield Pair("cuda", [0, 1] if torch.cuda.device_count() > 1 else [0, 0])
    else:
        with virtual_gpus(2):
            yield Pair("vgpu", [0, 1] if request.param == "vgpu" else [0, 0])


@pytest.fixture
def two():
    torch.manual_seed(0)
    with virtual_gpus(2) as devices:
        yield devices
