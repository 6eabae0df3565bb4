"""`launch(fn, device="virtual")` and `%%torchrun --virtual`: ranks are rehearsed, the notebook is not."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import ddplab
from ddplab import RankError, launch, torchrun
from ddplab.hardware import choose_device

pytestmark = pytest.mark.skipif(bool(torch.version.cuda), reason="rehearsal needs torch's CPU build")


def step():
    here = ddplab.device()
    net = DDP(torch.nn.Linear(3, 2).to(here), device_ids=[here.index])
    net(torch.ones(4, 3, device=here)).sum().backward()
    return here, dist.get_backend(), torch.cuda.device_count(), net.module.weight.grad


def forgotten():
    torch.nn.Linear(3, 2).to(ddplab.device())(torch.ones(4, 3))


def test_ranks_of_a_launch_have_a_virtual_gpu_each_and_the_notebook_has_none():
    before = torch.Tensor.to, torch.device, torch.cuda.device_count
    run = launch(step, device="virtual", nproc_per_node=3)
    assert run.summary() == "3 ranks rehearsed on virtual GPUs (nccl): finished" and run.device == "virtual"
    for rank, (device, backend, count, gradient) in enumerate(run.results):
        assert (device, backend, count) == (torch.device("cuda", rank), "nccl", 3)
        assert gradient.device.type == "cpu" and torch.equal(gradient, run.results[0][3]), "it came home"
        assert f"cuda:{rank}  rank {rank} held at most" in run.rehearsal
    assert run.rehearsal.startswith("rehearsed on 3 virtual GPUs (CPU memory; no GPU has run this)")
    with pytest.raises(RankError, match=r"Expected all tensors to be on the same device.*wrapper_CUDA_addmm"):
        launch(forgotten, device="virtual", quiet=True)
    assert before == (torch.Tensor.to, torch.device, torch.cuda.device_count) and not torch.cuda.is_available()
    assert launch(ddplab.device, quiet=True).results == [torch.device("cpu")] * 2, "the next ranks are as ever"


def test_a_script_under_torchrun_finds_a_virtual_gpu_for_each_rank(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "from ddplab import cleanup, device\n"
        "dist.init_process_group('nccl')\n"
        "x = torch.ones(1, device=device())\n"
        "dist.all_reduce(x)\n"
        "print(x.device, int(x), torch.cuda.device_count())\n"
        "cleanup()\n"
    )
    run = torchrun(str(script), nproc_per_node=2, virtual=True, quiet=True)
    assert run.summary() == "2 ranks rehearsed on virtual GPUs (torchrun): finished"
    assert list(run.output.values()) == ["cuda:0 2 2\n", "cuda:1 2 2\n"]
    assert "allreduce        cuda -> peers" in run.rehearsal


def test_what_cannot_be_rehearsed_is_refused_at_the_door(monkeypatch):
    assert choose_device(2, "virtual", None) == ("virtual", "nccl")
    assert choose_device(2, "virtual", "gloo") == ("virtual", "gloo")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(ValueError, match=r"device=\"virtual\": a rehearsal needs torch's CPU build"):
        launch(step, device="virtual")
