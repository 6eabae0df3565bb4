"""`launch(fn, device="virtual")` and `%%torchrun --virtual`: ranks are rehearsed, the notebook is not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import ddplab
from ddplab import RankError, launch, torchrun
from ddplab.hardware import choose_device

ROOT = Path(__file__).parent.parent.parent


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
    assert "allreduce        cuda:0,1 -> peers         1 x      4 bytes each\n" in run.rehearsal


def test_the_backend_of_virtual_ranks_is_nccls():
    assert choose_device(2, "virtual", None) == ("virtual", "nccl")
    assert choose_device(2, "virtual", "gloo") == ("virtual", "gloo")


def test_a_build_for_cuda_is_rehearsed_as_well(tmp_path):
    """Such a build has CUDA's own factories, which look for a driver; one is planted here as it is there.

    (`make test` in an environment with such a build runs this whole room on it.)
    """
    script = tmp_path / "built_for_cuda.py"
    script.write_text(
        "import os, sys, torch\n"
        "def no_driver(*args, **kwargs):\n"
        "    raise RuntimeError('Found no NVIDIA driver on your system.')\n"
        "real = torch.library.Library('aten', 'IMPL')\n"
        "real.impl('empty.memory_format', no_driver, 'CUDA', allow_override=True)\n"
        "from ddplab import rehearse\n"
        "os.environ.update(rehearse.environment(sys.argv[1], 1))\n"
        "rehearse.install()\n"
        "print(torch.ones(2, device='cuda').device, torch.zeros_like(torch.ones(2).cuda()).device)\n"
    )
    words = [sys.executable, script, tmp_path / "book"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.stdout == "cuda:0 cuda:0\n", done.stderr


def test_a_tensor_that_is_made_of_a_tensor_lies_on_the_same_gpu():
    """So a sum that was left on the GPU goes through NCCL as it is, and a plain number does not (lesson 5.8)."""

    def in_rank(noted):
        here = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        seen = torch.tensor(noted if noted else torch.ones((), device=here))
        dist.all_reduce(seen)
        return seen.item()

    assert launch(in_rank, 0.0, device="virtual", quiet=True).results == [2.0, 2.0]
    with pytest.raises(RankError, match="No backend type associated with device type cpu"):
        launch(in_rank, 1.0, device="virtual", quiet=True)


def test_what_rehearsal_waits_for_itself_is_no_wait_of_the_script():
    """NCCL's future is complete once it is in the queue; who notes a script's waits (7.6.a) shall not see ours."""

    def in_rank():
        waits, wait = [], dist.Work.wait
        dist.Work.wait = lambda work, *given: waits.append(work) or wait(work, *given)
        one = torch.ones(2, device=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
        [summed] = dist.all_reduce(one, async_op=True).get_future().value()
        dist.Work.wait = wait
        return len(waits), summed.tolist()

    assert launch(in_rank, device="virtual", quiet=True).results == [(0, [2.0, 2.0])] * 2
