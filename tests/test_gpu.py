"""What only a GPU can settle (`pytest -m gpu`): nccl, ranks that share a GPU, a kernel that has used CUDA first."""

import re

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, devices, launch, log, torchrun

pytestmark = pytest.mark.gpu
GPUS = torch.cuda.device_count()


def total():
    tensor = torch.full((3,), float(dist.get_rank() + 1), device=device())
    dist.all_reduce(tensor)
    return dist.get_backend(), str(device()), torch.cuda.current_device(), tensor


def test_as_many_ranks_as_gpus_get_one_each_and_nccl():
    run = launch(total, nproc_per_node=GPUS, quiet=True)
    assert (run.device, run.backend) == ("cuda", "nccl")
    for rank, (backend, where, current, tensor) in enumerate(run.results):
        assert (backend, where, current) == ("nccl", f"cuda:{rank}", rank)
        assert tensor.device.type == "cpu" and tensor.tolist() == [GPUS * (GPUS + 1) / 2] * 3


def test_more_ranks_than_gpus_go_to_the_cpu_unless_they_are_to_share():
    run = launch(total, nproc_per_node=GPUS + 1, quiet=True)
    assert (run.device, run.backend) == ("cpu", "gloo")
    shared = launch(total, nproc_per_node=2 * GPUS, device="cuda", quiet=True)
    assert (shared.device, shared.backend) == ("cuda", "gloo")
    assert [where for _, where, _, _ in shared.results] == [f"cuda:{rank % GPUS}" for rank in range(2 * GPUS)]
    with pytest.raises(ValueError, match="needs one GPU per rank"):
        launch(total, nproc_per_node=GPUS + 1, backend="nccl")


def test_it_works_after_this_process_has_used_cuda():
    weights = torch.ones(4, device="cuda")
    assert torch.cuda.is_initialized()

    def double():
        return str(weights.device), weights * 2  # the tensor arrives on the rank's own GPU

    for rank, (where, doubled) in enumerate(launch(double, nproc_per_node=GPUS, quiet=True).results):
        assert where == f"cuda:{rank}" and doubled.device.type == "cpu" and doubled.tolist() == [2.0] * 4


def test_ddp_trains_on_gpus_and_ranks_agree():
    def train():
        torch.manual_seed(dist.get_rank())
        model = DDP(torch.nn.Linear(8, 2).to(device()))
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimiser.zero_grad()
            loss = model(torch.randn(16, 8, device=device())).square().mean()
            loss.backward()
            optimiser.step()
            log(loss=loss)
        return model.module.weight.detach()

    run = launch(train, nproc_per_node=max(2, GPUS), device="cuda", quiet=True)
    assert all(torch.equal(weight, run.results[0]) for weight in run.results)
    assert len(run.metrics) == 5 * run.world_size


@pytest.mark.times(10, stress=100)
def test_many_launches_on_gpus_end_well(times):
    for _ in times:
        assert launch(total, nproc_per_node=GPUS, quiet=True).state == "finished"


def test_a_script_under_torchrun_gets_its_gpu(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import torch, torch.distributed as dist\nfrom ddplab import cleanup, device\n"
        "torch.cuda.set_device(device())\ndist.init_process_group('nccl')\n"
        "x = torch.ones(1, device=device())\ndist.all_reduce(x)\nprint(device(), x.item())\ncleanup()\n"
    )
    run = torchrun(str(script), nproc_per_node=GPUS, quiet=True)
    warning = r"\S+ UserWarning: barrier\(\): .*\n  .*\n"  # torch's own, of the barrier in cleanup
    assert re.sub(warning, "", run.output[0]) == f"cuda:0 {float(GPUS)}\n"


def test_the_machines_own_line_names_its_gpus():
    assert torch.cuda.get_device_name(0) in str(devices())
