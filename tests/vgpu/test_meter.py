"""The meter: bytes between devices, bytes held, in agreement with arithmetic."""

import gc

import pytest
import torch
from torch import nn

from ddplab import vgpu
from ddplab.vgpu import virtual_gpus
from ddplab.vgpu.meter import Meter


@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_meter_agrees_with_arithmetic(n):
    gc.collect()
    with virtual_gpus(n) as devices:
        meter = devices.meter
        held = meter.memory["vgpu:0"]  # by tensors of other tests that somebody still has
        net = nn.Sequential(nn.Linear(100, 50), nn.Linear(50, 10)).to("vgpu:0")
        size = 4 * sum(p.numel() for p in net.parameters())
        x = torch.randn(4 * n, 100, device="vgpu:0")
        assert meter.bytes(".to", "cpu", "vgpu:0") == size and meter.memory["vgpu:0"] == held + size + x.nbytes
        meter.reset()
        out = nn.DataParallel(net)(x)
        assert meter.bytes("replicate") == size * (n - 1) and meter.copies("replicate") == n - 1
        assert meter.bytes("scatter") == x.nbytes * (n - 1) // n and meter.copies("scatter") == n - 1
        assert meter.bytes("gather") == out.nbytes * (n - 1) // n and meter.bytes("reduce") == 0
        meter.reset()
        out.sum().backward()
        assert meter.bytes("reduce") == size * (n - 1) and meter.copies("reduce") == n - 1
        assert meter.bytes("reduce", target="vgpu:0") == meter.bytes("reduce")
        assert meter.bytes("scatter") == out.nbytes * (n - 1) // n and meter.bytes("replicate") == 0
        assert meter.bytes("scatter", "vgpu:0", "vgpu:1") == out.nbytes // n


def test_the_meter_counts_moves_and_items(two):
    x = torch.zeros(10)
    y = x.to("vgpu:1")
    (
        y.to("vgpu:0"),
        y.cpu(),
        y.to("vgpu:1"),
        y.to("cpu", torch.float64),
        torch.tensor([1, 2], device="vgpu:1"),
        y[0].item(),
    )
    rows = {row[:3]: row[3:] for row in two.meter.rows}
    assert rows == {
        (".to", "cpu", "vgpu:1"): (2, 56),
        (".to", "vgpu:1", "vgpu:0"): (1, 40),
        (".to", "vgpu:1", "cpu"): (2, 120),
        (".item()", "vgpu:1", "cpu"): (1, 4),
    }
    assert two.meter.copies() == 6 and two.meter.bytes(source=two[1]) == 164
    repr(y)
    assert two.meter.copies() == 6  # to look is free


def test_a_number_in_a_list_is_looked_at(two):
    x = torch.ones((), device="vgpu:1")
    made = torch.tensor([0.0, x]), torch.tensor([[x, 2.0], [3.0, 4.0]]), torch.tensor(data=[x], device=two[1])
    assert [str(it.device) for it in made] == ["cpu", "cpu", "vgpu:1"]
    assert two.meter.copies(".item()", "vgpu:1", "cpu") == 3
    assert torch.tensor(data=x).device == x.device and two.meter.copies(".item()") == 3


def test_the_meter_counts_memory(two):
    gc.collect()
    meter = two.meter
    meter.reset()
    zero, one = meter.memory["vgpu:0"], meter.memory["vgpu:1"]  # held by tensors of other tests that somebody still has
    a = torch.zeros(100, device="vgpu:0")
    b = a[:50]
    c = a + 1
    assert meter.memory["vgpu:0"] == zero + 800 == torch.vgpu.memory_allocated(0)
    del a, c
    assert meter.memory["vgpu:0"] == zero + 400 and meter.peak["vgpu:0"] == zero + 800  # b holds what it is a view of
    del b
    assert meter.memory["vgpu:0"] == zero
    r = torch.arange(10, device="vgpu:1")
    assert meter.memory["vgpu:1"] == one + 80 and len(r) == 10
    meter.reset()
    assert meter.peak["vgpu:0"] == zero and meter.peak["vgpu:1"] == one + 80
    model = nn.DataParallel(nn.Linear(1000, 1000)).to("vgpu:0")
    size = 4 * 1001 * 1000
    with torch.no_grad():
        model(torch.ones(2, 1000))
    assert meter.memory["vgpu:0"] == zero + size and meter.memory["vgpu:1"] == one + 80  # no replica outlives a forward
    assert meter.peak["vgpu:1"] >= one + size + 80


def test_the_meter_is_deterministic(two):
    def run():
        two.meter.reset()
        model = nn.DataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))).to("vgpu:0")
        for _ in range(3):
            model(torch.ones(6, 8)).sum().backward()
        return two.meter.rows, dict(two.meter.peak)

    assert run() == run() == run()


def test_the_meter_is_readable(two):
    nn.DataParallel(nn.Linear(3, 1)).to("vgpu:0")(torch.ones(4, 3))
    text = str(two.meter)
    assert text.splitlines()[0].split() == ["cause", "from", "to", "copies", "bytes"]
    assert ["replicate", "vgpu:0", "vgpu:1", "1", "16"] in [line.split() for line in text.splitlines()]
    assert "bytes held" in text and "<table>" in two.meter._repr_html_()


def test_copies_between_gpus_and_loads_from_a_file_are_counted(tmp_path):
    with virtual_gpus(2) as (first, second):
        x, y = torch.ones(5, device=first), torch.zeros(5, device=second)
        meter = vgpu.active().meter
        meter.reset()
        y.copy_(x)
        assert meter.rows == [(".to", "vgpu:0", "vgpu:1", 1, 20)]
        torch.save(x, tmp_path / "x.pt")
        meter.reset()
        torch.load(tmp_path / "x.pt")
        assert meter.rows == [(".to", "cpu", "vgpu:0", 1, 20)]
        meter.reset()
        torch.load(tmp_path / "x.pt", map_location=second)
        assert meter.rows == [(".to", "cpu", "vgpu:1", 1, 20)]
        meter.reset()
        torch.load(tmp_path / "x.pt", map_location="cpu")
        assert meter.rows == []


def test_what_is_freed_is_taken_off_the_meter_that_counted_it(two):
    x = torch.ones(5, device="vgpu:1")
    held = two.meter.memory["vgpu:1"]
    del x
    assert dict(Meter().memory) == {}
    assert two.meter.memory["vgpu:1"] == held - 20
