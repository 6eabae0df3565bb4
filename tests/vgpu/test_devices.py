"""Virtual GPUs switched on and off: nothing is patched until asked for, and all is put back."""

import gc
import sys
import threading
import warnings

import pytest
import torch
from torch import nn

from ddplab import vgpu
from ddplab.vgpu import gpus, virtual_gpus


def snapshot():
    from ddplab.vgpu.comm import patches, vgpu_patches

    table = [(owner, name) for owner, name, _ in patches() + vgpu_patches(2)]
    state = {(id(owner), name): vars(owner).get(name) for owner, name in table}
    return state | {"modules": sys.modules.get("torch.vgpu"), "vgpu": hasattr(torch, "vgpu")}


def test_what_gpus_has_switched_on_a_with_block_switches_off(capsys):
    with vgpu.gpus(2) as lent:
        with lent:
            pass
        assert vgpu.active() is lent
    assert vgpu.active() is None
    mine = vgpu.virtual_gpus(2).on()
    with mine:
        pass
    assert vgpu.active() is mine
    mine.off()


def test_nothing_is_patched_until_asked_and_all_is_put_back():
    before = snapshot()
    with virtual_gpus(3):
        during = snapshot()
        assert all(during[key] is not before[key] for key in before)
    after = snapshot()
    assert all(after[key] is before[key] for key in before)
    assert nn.DataParallel(nn.Linear(2, 2)).device_ids == list(range(torch.cuda.device_count()))
    with pytest.raises((RuntimeError, ModuleNotFoundError, NotImplementedError)):
        torch.zeros(2, device="vgpu:0")


def test_restored_after_an_exception():
    before = snapshot()
    with pytest.raises(ZeroDivisionError), virtual_gpus(2):
        raise ZeroDivisionError
    assert all(value is before[key] for key, value in snapshot().items())


def test_the_accelerator_stays_what_it_is():
    with virtual_gpus(2):
        during = torch.accelerator.current_accelerator()
        data = torch.utils.data.TensorDataset(torch.ones(4, 2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert len(list(torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True))) == 2
    assert during == torch.accelerator.current_accelerator()
    assert torch.accelerator.is_available() == torch.cuda.is_available()


def test_different_counts_over_time():
    for n in (1, 4, 2):
        with virtual_gpus(n) as devices:
            model = nn.DataParallel(nn.Linear(3, 1)).to("vgpu:0")
            assert model.device_ids == list(range(n)) and len(devices) == n == torch.vgpu.device_count()
            assert model(torch.ones(8, 3)).device == devices[0]
            with pytest.raises(RuntimeError, match="invalid device ordinal"):
                torch.zeros(1, device=f"vgpu:{n}")
    with pytest.raises(ValueError):
        virtual_gpus(0)


def test_one_set_at_a_time():
    with virtual_gpus(2) as devices:
        with pytest.raises(RuntimeError, match="2 virtual GPUs are on already"):
            virtual_gpus(3).on()
        with devices:  # the same again: fine, and still on afterwards
            pass
        assert torch.zeros(1, device="vgpu:1").device == devices[1]


def test_tensors_left_over_can_be_moved_to_the_cpu():
    with virtual_gpus(2):
        net = nn.Linear(2, 1).to("vgpu:1")
        x = torch.ones(2, device="vgpu:1")
    assert x.cpu().tolist() == [1, 1] and type(net.cpu().weight) is nn.Parameter
    with pytest.raises(RuntimeError, match="virtual GPUs are switched off"):
        x.to("vgpu:0")


def test_gpus_says_which(capsys, monkeypatch):
    try:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        first = gpus(2)
        assert capsys.readouterr().out.startswith("2 virtual GPUs: vgpu:0, vgpu:1 (CPU memory")
        assert gpus(2) is first and first.kind == "vgpu"
        assert len(gpus(3)) == 3 and torch.vgpu.device_count() == 3
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Fast")
        real = gpus(2)
        assert real.kind == "cuda" and list(real) == [torch.device("cuda:0"), torch.device("cuda:1")]
        assert "2 real GPUs: cuda:0 Fast, cuda:1 Fast" in capsys.readouterr().out
        with real, pytest.raises(RuntimeError, match="virtual GPUs only"):
            repr(real.meter)
    finally:
        if vgpu._active:
            vgpu._active.off()


def test_threads_do_not_disturb_each_other(two):
    gc.collect()
    wrong, held = [], dict(two.meter.memory)

    def work(device):
        for _ in range(200):
            x = torch.ones(3, device=device) * 2
            if x.device != device or (x + torch.zeros(3, device=device)).sum().item() != 6:
                wrong.append(device)

    threads = [threading.Thread(target=work, args=(two[i % 2],)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and all(two.meter.memory[name] == held.get(name, 0) for name in ("vgpu:0", "vgpu:1"))
