"""What people paste: the scripts of three forum threads, "cuda" read as the kind of device."""

import copy
from collections import namedtuple

import pytest
import torch
from pair import Seen
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


@pytest.fixture
def script(g):
    """What a script asks: `here` for torch.cuda, `cuda(x)` for x.cuda(), and DataParallel as it wraps by itself."""
    Script = namedtuple("Script", "here device cuda wrap")
    here = getattr(torch, g.kind)
    device = torch.device(f"{g.kind}:0" if here.is_available() else "cpu")
    assert here.device_count() > 1 or g.kind == "cuda"

    def wrap(model):
        return nn.DataParallel(model) if here.device_count() > 1 else model

    return Script(here, device, lambda x: getattr(x, g.kind)(), wrap)


def fit(model, loader, device, epochs=4, lr=0.05):
    optimiser, losses = torch.optim.SGD(model.parameters(), lr=lr), []
    for _ in range(epochs):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimiser.zero_grad()
            loss = nn.MSELoss()(model(x), y)
            loss.backward()
            optimiser.step()
        losses.append(loss.item())
    return losses


def test_forum_1_wrap_then_move_then_train(script):
    x = torch.randn(50, 10)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
    model = nn.Linear(10, 1)
    alone = copy.deepcopy(model)
    model = script.wrap(model)
    model.to(torch.device(script.device.type if script.here.is_available() else "cpu"))
    losses = fit(model, loader, script.device)  # the last batch has two rows
    assert losses[-1] < losses[0] and losses == pytest.approx(fit(alone, loader, "cpu"), rel=1e-4)
    assert {p.device for p in model.parameters()} == {script.device}


def test_forum_1_a_distributed_sampler_drops_data(script):
    data = torch.utils.data.TensorDataset(torch.arange(100.0).reshape(100, 1))
    count = max(2, script.here.device_count())
    sampler = torch.utils.data.distributed.DistributedSampler(data, num_replicas=count, rank=0)
    model, seen = script.wrap(Seen(lambda self, x: x * self.weight)), []
    model.to(script.device)
    for (x,) in torch.utils.data.DataLoader(data, batch_size=10, sampler=sampler):
        seen += model(x.to(script.device)).flatten().tolist()
    assert len(set(seen)) == -(-100 // count)


def test_forum_1_distributed_data_parallel(script):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        rank = torch.distributed.get_rank()
        device = torch.device("%s:%d" % (script.device.type, rank))  # noqa: UP031, as people write it
        model = nn.parallel.DistributedDataParallel(nn.Linear(10, 1).to(device), device_ids=[rank])
        data = torch.utils.data.TensorDataset(torch.randn(64, 10), torch.ones(64, 1))
        sampler = torch.utils.data.distributed.DistributedSampler(data, num_replicas=1, rank=rank)
        sampler.set_epoch(0)
        losses = fit(model, torch.utils.data.DataLoader(data, batch_size=32, sampler=sampler), device)
        assert losses[-1] < losses[0] and model.module.weight.grad.device == device
    finally:
        torch.distributed.destroy_process_group()


def test_forum_2_padded_batches(script):
    class Sequences(torch.utils.data.Dataset):
        lengths = (10, 20, 30, 40, 5, 15, 25)

        def __len__(self):
            return len(self.lengths)

        def __getitem__(self, i):
            return torch.randn(self.lengths[i], 10)

    def pad(batch):
        return nn.utils.rnn.pad_sequence(batch, batch_first=True)

    model = nn.Linear(10, 20)
    optimiser = torch.optim.Adam(model.parameters())  # made before the model moves, and still right
    model = script.wrap(model)
    script.cuda(model)
    for x in torch.utils.data.DataLoader(Sequences(), batch_size=4, collate_fn=pad):  # padding harms nothing
        optimiser.zero_grad()
        out = model(script.cuda(x))
        assert out.shape == (*x.shape[:2], 20) and out.device == script.device
        before = next(model.parameters()).detach().clone()
        nn.MSELoss()(out, script.cuda(torch.randn(out.shape))).backward()
        optimiser.step()
        assert not torch.equal(before, next(model.parameters()))


def test_forum_2_move_then_wrap_a_large_model(script):
    model = script.cuda(nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 100)))
    optimiser = torch.optim.Adam(model.parameters())
    model = script.wrap(model)
    x, target = script.cuda(torch.randn(16, 100)), script.cuda(torch.randn(16, 100))
    losses = []
    for _ in range(10):
        optimiser.zero_grad()
        loss = nn.MSELoss()(model(x), target)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True) and loss.device == script.device


class Projection(nn.Module):
    def __init__(self, wrapped: bool):
        super().__init__()
        weight = torch.ones(10, 5)
        self.weight = nn.Parameter(weight) if wrapped else weight

    def forward(self, x):
        return torch.matmul(x, self.weight)


def test_forum_2_a_custom_parameter(script):
    model = nn.Sequential(Projection(True), nn.Linear(5, 5))
    optimiser = torch.optim.Adam(model.parameters())
    model = script.wrap(model)
    script.cuda(model)
    out = model(script.cuda(torch.ones(32, 10)))
    loss = nn.MSELoss()(out, script.cuda(torch.zeros(out.shape)))
    loss.backward()
    optimiser.step()
    weight = next(model.parameters())
    assert weight.device == weight.grad.device == script.device and weight.grad.abs().sum() > 0
    assert f"{loss.item():.4f}" == f"{loss:.4f}"


def test_forum_2_a_tensor_that_is_no_parameter(script):
    model = script.wrap(nn.Sequential(Projection(False), nn.Linear(5, 5)))
    script.cuda(model)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device, but got mat2 is on cpu"):
        model(script.cuda(torch.ones(32, 10)))


def update_by_hand(model):
    for child in model.module.children() if isinstance(model, nn.DataParallel) else [model]:
        for p in child.parameters():
            if p.grad is not None:
                p.data -= 0.1 * p.grad.data


def test_forum_3_updating_by_hand_is_what_the_optimiser_does(script):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(10, 5)

        def forward(self, x):
            return self.linear(x)

    weights, losses = [], []
    for by_hand in (True, False):
        torch.manual_seed(1)
        model = script.wrap(Net())
        model.to(script.device)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.randn(64, 10).to(script.device), torch.randn(64, 5).to(script.device)
        for _ in range(20):
            optimiser.zero_grad()
            losses.append(nn.MSELoss()(model(x), y))
            losses[-1].backward()
            update_by_hand(model) if by_hand else optimiser.step()
        weights.append(next(model.parameters()).detach().cpu())
    assert losses[19] < losses[0]  # the "bad example" trains: children() are the one module's, no replica's
    torch.testing.assert_close(*weights)


@pytest.mark.parametrize("total", [True, False])
def test_forum_lstm_with_packing(script, total):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x, lengths):
            self.lstm.flatten_parameters()
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            out, _ = self.lstm(packed)
            out, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1] if total else None)
            return self.head(out)

    if script.here.device_count() < 2:
        pytest.skip("needs two devices")
    model = script.wrap(Tagger()).to(script.device)
    x, lengths = torch.randn(4, 7, 3).to(script.device), torch.tensor([7, 5, 3, 2]).to(script.device)
    if total:
        out = model(x, lengths)
        assert out.shape == (4, 7, 2)
        return nn.CrossEntropyLoss()(out.flatten(0, 1), torch.ones(28, dtype=torch.long, device=out.device)).backward()
    with pytest.raises(RuntimeError, match="Input tensor at index 1 has invalid shape"):
        model(x, lengths)
