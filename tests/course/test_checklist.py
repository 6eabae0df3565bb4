"""The DataParallel checklist: what it finds, and how it is read and walked through."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, SequentialSampler

import ddplab.screen
from ddplab.course.checklist import dataparallel_checklist
from ddplab.vgpu import virtual_gpus

VISIBLE, WRAPPED, MOVED, SHARED_OUT, ALL_THE_DATA = range(5)
DATA = range(1000)


@pytest.fixture
def gpus():
    with virtual_gpus(2) as gpus:
        yield gpus


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def live(monkeypatch):
    monkeypatch.setattr(ddplab.screen, "live", lambda: True)


def healthy(gpus):
    return nn.DataParallel(nn.Linear(3, 1).to(gpus[0]), device_ids=gpus)


def finding(number, model, loader=None):
    return dataparallel_checklist(model, loader).findings[number]


def oks(model, loader=None):
    return [found.ok for found in dataparallel_checklist(model, loader).findings]


def test_all_is_well(gpus):
    checklist = dataparallel_checklist(healthy(gpus), DataLoader(DATA, batch_size=32, shuffle=True, drop_last=True))
    assert [found.ok for found in checklist.findings] == [True] * 5 and not checklist.faults
    assert not any(found.do for found in checklist.findings)
    assert str(checklist).startswith(
        "DataParallel checklist: 5 of 5 in order\n✓ yes   Does torch see several GPUs? 2 v"
    )


def test_the_model_comes_first():
    with pytest.raises(TypeError, match=r"the model, an nn\.Module, not a DataLoader"):
        dataparallel_checklist(DataLoader(DATA), nn.Linear(3, 1))


# Which GPUs are there?


@pytest.mark.parametrize(("hidden", "said"), [(None, "is not set"), ("", "is ''"), ("1", "is '1'")])
def test_no_gpu_in_sight(no_gpu, monkeypatch, hidden, said):
    if hidden is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    found = finding(VISIBLE, nn.Linear(3, 1))
    assert found.ok is False and found.found == f"0; CUDA_VISIBLE_DEVICES {said}"
    assert "nvidia-smi" in found.do and "build for the CPU" in found.do


def test_one_gpu_is_not_several(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    found = finding(VISIBLE, nn.Linear(3, 1))
    assert found.ok is False and found.found.startswith("1;") and "build for the CPU" not in found.do


# Is it wrapped?


def test_a_bare_model(gpus):
    found = finding(WRAPPED, nn.Linear(3, 1))
    assert found.ok is False and found.found == "this is a bare Linear" and "nn.DataParallel(model)" in found.do
    assert oks(nn.Linear(3, 1), DataLoader(DATA)) == [True, False, None, None, True]


def test_wrapped_where_there_was_no_gpu(no_gpu):
    found = finding(WRAPPED, nn.DataParallel(nn.Linear(3, 1)))
    assert found.ok is False and "device_ids is [], so every batch passes through" in found.found
    assert "wrap it anew" in found.do


def test_without_a_gpu_each_batch_passes_through_in_silence_as_lesson_2_1_says(no_gpu):
    net, batch = nn.Linear(3, 1), torch.ones(4, 3)
    with warnings.catch_warnings(action="error"):
        assert torch.equal(nn.DataParallel(net)(batch), net(batch))


def test_wrapped_on_one_device(gpus):
    model = nn.DataParallel(nn.Linear(3, 1), device_ids=[1])
    found = finding(WRAPPED, model)
    assert found.ok is False and "device_ids is [1], a single device" in found.found
    assert oks(model, DataLoader(DATA)) == [True, False, True, None, True]


def test_a_wrapped_part(gpus):
    model = nn.Sequential(nn.Flatten(), healthy(gpus))
    found = finding(WRAPPED, model)
    assert found.ok and found.found == "its part `1` is, device_ids is [0, 1]"
    assert oks(model) == [True, True, True, None, None]


def test_ddp_is_another_way(gpus):
    model = nn.Linear(3, 1)
    model.__class__ = type("Wrapped", (torch.nn.parallel.DistributedDataParallel,), {})
    loader = DataLoader(DATA, sampler=DistributedSampler(DATA, num_replicas=2, rank=0))
    assert oks(model, loader) == [True, False, None, None, None]
    assert "DistributedDataParallel" in finding(WRAPPED, model).found and "lesson 4.1" in finding(WRAPPED, model).do


# Is it on the first of its devices?


@pytest.mark.parametrize("place", ["cpu", "vgpu:1"])
def test_not_moved(gpus, place):
    found = finding(MOVED, nn.DataParallel(nn.Linear(3, 1).to(place)))
    assert found.ok is False and found.found == f"`weight` is on {place}, and 1 more"
    assert "model.to('vgpu:0')" in found.do


def test_a_buffer_left_behind(gpus):
    model = healthy(gpus)
    model.module.register_buffer("mean", torch.zeros(3))
    assert finding(MOVED, model).found == "`mean` is on cpu"


def test_the_first_device_need_not_be_0(gpus):
    model = nn.DataParallel(nn.Linear(3, 1).to("vgpu:1"), device_ids=[1, 0])
    assert finding(MOVED, model).ok
    with pytest.raises(RuntimeError, match="on device vgpu:1"):  # torch wants what the checklist wants
        model.to("vgpu:0")(torch.zeros(4, 3, device="vgpu:1"))
    assert "model.to('vgpu:1')" in finding(MOVED, model).do


def test_look_again_judges_what_was_mended(gpus):
    model = nn.DataParallel(nn.Linear(3, 1))
    checklist = dataparallel_checklist(model)
    model.to(gpus[0])
    assert checklist.findings[MOVED].ok is False
    checklist.look()
    assert checklist.findings[MOVED].ok


# Does every batch reach every device?


@pytest.mark.parametrize("size", range(1, 10))
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_the_parts_are_counted_as_torch_cuts_them(size, devices):
    with virtual_gpus(devices) as gpus:
        reached = len(torch.nn.parallel.scatter(torch.zeros(size, 3), gpus))
        found = finding(SHARED_OUT, healthy(gpus), DataLoader(range(size), batch_size=size))
        assert found.ok is (reached == devices)
        if not found.ok:
            assert found.found == f"a batch of {size} reaches {reached} of {devices} devices"


def test_a_short_last_batch(gpus):
    found = finding(SHARED_OUT, healthy(gpus), DataLoader(range(33), batch_size=32))
    assert found.ok is False and "the last one, of 1, reaches 1 of 2" in found.found and "drop_last=True" in found.do
    assert finding(SHARED_OUT, healthy(gpus), DataLoader(range(33), batch_size=32, drop_last=True)).ok
    batches = BatchSampler(SequentialSampler(range(33)), 32, drop_last=False)
    assert finding(SHARED_OUT, healthy(gpus), DataLoader(range(33), batch_sampler=batches)).ok is False


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(33))


@pytest.mark.parametrize(
    ("loader", "ok"),
    [
        (None, None),
        ([1, 2, 3], None),
        (DataLoader(DATA, batch_size=None), None),
        (DataLoader(DATA, batch_sampler=[[0, 1], [2, 3]]), None),
        (DataLoader(Stream(), batch_size=32), True),
    ],
    ids=["none", "list", "no batching", "own batches", "stream"],
)
def test_loaders_of_every_kind(gpus, loader, ok):
    checklist = dataparallel_checklist(healthy(gpus), loader)
    assert checklist.findings[SHARED_OUT].ok is ok
    assert str(checklist)


# Does the loader serve all the data?


@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_a_distributed_sampler_drops_data(gpus, replicas):
    sampler = DistributedSampler(DATA, num_replicas=replicas, rank=0)
    for loader in (
        DataLoader(DATA, batch_size=50, sampler=sampler),
        DataLoader(DATA, batch_sampler=BatchSampler(sampler, 50, drop_last=False)),
    ):
        found = finding(ALL_THE_DATA, healthy(gpus), loader)
        served = sum(len(batch) for batch in loader)
        assert found.ok is False and found.found == f"its DistributedSampler serves {served} of 1000 samples"
        assert "shuffle=True" in found.do


def test_a_distributed_sampler_for_one_is_harmless(gpus):
    loader = DataLoader(DATA, batch_size=50, sampler=DistributedSampler(DATA, num_replicas=1, rank=0))
    assert finding(ALL_THE_DATA, healthy(gpus), loader).ok


# How it shows itself


def test_text_where_nobody_can_press(gpus, capsys):
    checklist = dataparallel_checklist(nn.Linear(3, 1))
    checklist._ipython_display_()
    assert capsys.readouterr().out == str(checklist) + "\n"
    assert str(checklist).splitlines()[2:4] == [
        "✗ no    Is the model wrapped? this is a bare Linear",
        "        → `model = nn.DataParallel(model)`, and then call this one, not the one inside.",
    ]


def test_the_buttons_walk_and_look_again(gpus, live):
    model = nn.DataParallel(nn.Linear(3, 1))
    page, buttons = dataparallel_checklist(model)._widget().children
    back, onward, again = buttons.children
    assert "1 of 5" in page.value
    onward.click()
    onward.click()
    assert "3 of 5" in page.value and "✗ no" in page.value and "<code>weight</code> is on cpu, and 1 more" in page.value
    model.to(gpus[0])
    again.click()
    assert "3 of 5" in page.value and "✓ yes" in page.value
    onward.click()
    onward.click()
    onward.click()
    assert "5 of 5" in page.value and not onward.disabled  # it keeps the focus
    back.click()
    assert "4 of 5" in page.value


def test_the_text_stands_in_where_the_widget_is_gone(gpus, live, monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, _=None, raw=False: shown.append(data))
    checklist = dataparallel_checklist(nn.Linear(3, 1))
    checklist._ipython_display_()
    assert shown[0]["text/plain"] == str(checklist) and "application/vnd.jupyter.widget-view+json" in shown[0]


def test_names_are_escaped(gpus, live):
    odd = type("A<b>", (nn.Linear,), {})(3, 1)
    page = dataparallel_checklist(odd)._page(WRAPPED)
    assert "A&lt;b&gt;" in page and "A<b>" not in page
