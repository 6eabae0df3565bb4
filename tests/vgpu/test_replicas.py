"""What a replica is, keeps and loses, and how its gradients come back."""

import copy

import pytest
import torch
from pair import Seen
from torch import nn
from torch.nn.parallel import gather, scatter
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def test_what_a_replica_keeps_and_loses(g):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))
            self.number, self.items = 0, []
            for name in ("replaced", "in_place"):
                self.register_buffer(name, torch.zeros(1))

        def forward(self, x):
            self.number += 1
            self.items.append(1)
            self.replaced = self.replaced + 1
            self.in_place += 1
            out = x * 1.0
            with torch.no_grad():
                self.weight += 1
            return out

    g.need_two()
    module = Counts()
    g.dp(module)(torch.ones(4, 1).to(g.d0))
    assert module.number == 0 and module.replaced == 0 and len(module.items) == 2
    assert module.in_place == 1 and module.weight == 1


def test_inference_mode(g):
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(g.d0).eval()
    x = torch.linspace(-1, 1, 12).view(4, 3).to(g.d0)
    with torch.inference_mode():
        out = g.dp(module)(x)
    torch.testing.assert_close(out.cpu(), module(x).detach().cpu())


def test_a_plain_attribute_stays_behind(g):
    g.need_two()

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.offset = torch.ones(3, device=g.d0)

        def forward(self, x):
            return x * self.weight + self.offset

    module = Plain()
    assert module.to(g.d0)(torch.ones(1, 3).to(g.d0)).shape == (1, 3)
    with pytest.raises(RuntimeError) as error:
        g.dp(module)(torch.ones(4, 3).to(g.d0))
    text = str(error.value)
    assert text.startswith("Caught RuntimeError in replica 1 on device 1.\nOriginal Traceback")
    assert f"Expected all tensors to be on the same device, but found at least two devices, {g.d1} and {g.d0}!" in text


def test_exceptions_name_the_replica(g):
    def fail(self, x):
        raise KeyError("the learner's own")

    with pytest.raises(KeyError, match="Caught KeyError in replica 0 on device 0"):
        g.dp(Seen(fail))(torch.ones(4, 1).to(g.d0))


def test_buffers_with_and_without_gradient(g):
    class Buffers(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("leaf", torch.full((3,), 2.0, requires_grad=True))
            self.register_buffer("plain", torch.full((3,), 5.0))
            self.register_buffer("none", None)

        def forward(self, x):
            assert not self.plain.requires_grad and self.none is None
            return x * self.weight * self.leaf * self.plain

    module = Buffers().to(g.d0)
    leaf = module.leaf = module.leaf.detach().requires_grad_()
    model = g.dp(module)
    model(torch.ones(4, 3).to(g.d0)).sum().backward()
    torch.testing.assert_close(leaf.grad.cpu(), torch.full((3,), 20.0))
    with torch.no_grad():
        assert not model(torch.ones(4, 3).to(g.d0)).requires_grad


def test_unused_parameters_get_zero(g):
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x * self.used

    module = Unused()
    g.dp(module)(torch.ones(4, 2).to(g.d0)).sum().backward()
    torch.testing.assert_close(module.unused.grad.cpu(), torch.zeros(2))
    assert module.unused.grad.device == g.d0


def test_a_replica_that_does_not_use_its_weights(g):
    def answer(self, x):
        return x * self.weight if x.max().item() > 2 else x * 1.0

    model = g.dp(Seen(answer))
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).to(g.d0).requires_grad_()
    model(x).sum().backward()
    assert model.module.weight.grad == 7 and x.grad.device == g.d0
    y = torch.tensor([1.0, 2.0, 3.0, 4.0]).to(g.d0).requires_grad_()
    g.dp(Seen(lambda self, x: x * self.weight if x.max().item() > 2 else self.weight * torch.ones_like(x)))(
        y
    ).sum().backward()
    torch.testing.assert_close(y.grad.cpu(), torch.tensor([0.0, 0, 1, 1]))


def test_zero_grad_warns_inside_a_replica(g):
    def answer(self, x):
        self.zero_grad()
        return x * self.weight

    with pytest.warns(UserWarning, match=r"Calling .zero_grad\(\) from a module created with nn.DataParallel"):
        g.dp(Seen(answer))(torch.ones(4, 1).to(g.d0))


def test_autocast_reaches_the_replicas(g):
    seen = []

    def answer(self, x):
        y = nn.functional.linear(x, self.weight * torch.ones(2, 3, device=x.device))
        seen.append(y.dtype)
        return y

    model, x = g.dp(Seen(answer)), torch.ones(4, 3).to(g.d0)
    with torch.autocast(g.kind, dtype=torch.float16):
        out = model(x)
        assert (x.cpu() @ x.cpu().T).dtype == torch.float32  # the CPU is not asked to cast
    assert seen == [torch.float16] * 2 and out.dtype == torch.float16
    seen.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(x)
    assert seen == [torch.float32] * 2
    out.float().sum().backward()
    assert model.module.weight.grad.dtype == torch.float32


def test_hooks_run_once_a_replica(g):
    calls = []
    module = nn.Linear(3, 2)
    module.register_forward_pre_hook(lambda m, args: calls.append(("pre", args[0].device)))
    module.register_forward_hook(lambda m, args, out: calls.append(("post", out.device)))
    model = g.dp(module)
    module.weight.register_hook(lambda grad: calls.append(("grad", grad.device)))
    model(torch.ones(4, 3).to(g.d0)).sum().backward()
    for kind in ("pre", "post"):
        assert sorted(str(d) for k, d in calls if k == kind) == sorted(map(str, (g.d0, g.d1)))
    assert [d for k, d in calls if k == "grad"] == [g.d0]


def test_replicas_are_threads_with_their_own_current_device(g):
    g.need_two()
    seen = {}

    def answer(self, x):
        seen[x.device] = torch.zeros(1, device=g.kind).device, x.cpu().to(g.kind).device
        return x * self.weight

    g.dp(Seen(answer))(torch.ones(4, 1).to(g.d0))
    assert seen == {g.d0: (g.d0, g.d0), g.d1: (g.d1, g.d1)}
    assert torch.zeros(1, device=g.kind).device.index == 0


def test_dropout_is_seeded_per_device(g):
    g.need_two()
    model, x = g.dp(nn.Sequential(nn.Dropout(0.5), nn.Identity())), torch.ones(8, 16)
    torch.manual_seed(3)
    first = model(x)
    torch.manual_seed(3)
    second = model(x)
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(first[:4], first[4:])  # alike on both devices: seeded alike
    assert not torch.equal(second.cpu(), model(x).cpu())


def test_double_backward(g):
    model = g.dp(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double())
    alone = copy.deepcopy(model.module).cpu()
    x = torch.randn(4, 3, dtype=torch.float64)
    results = []
    for net, data in ((model, x.to(g.d0)), (alone, x)):
        data = data.detach().requires_grad_()
        (grad,) = torch.autograd.grad(net(data).sum(), data, create_graph=True)
        grad.square().sum().backward()
        results.append([p.grad.cpu() for p in net.parameters() if p.grad is not None])
    torch.testing.assert_close(results[0][0], results[1][0])


def test_gradgradcheck_through_scatter_and_gather(g):
    x = torch.randn(4, 2, dtype=torch.float64).to(g.d0).requires_grad_()

    def there_and_back(x):
        return gather([p * p for p in scatter(x, g.ids)], g.ids[0])

    assert torch.autograd.gradcheck(there_and_back, (x,))
    assert torch.autograd.gradgradcheck(there_and_back, (x,))


def test_packed_sequences(g):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x, lengths):
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            assert packed.batch_sizes.device.type == "cpu" and packed.data.device == x.device
            out, _ = self.lstm(packed)
            return pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[0]

    net, x, lengths = Tagger(), torch.randn(5, 7, 3), torch.tensor([7, 2, 5, 3, 4])
    alone = copy.deepcopy(net)
    out = g.dp(net)(x.to(g.d0), lengths.to(g.d0))
    torch.testing.assert_close(out.cpu(), alone(x, lengths))
    out.sum().backward()
    alone(x, lengths).sum().backward()
    torch.testing.assert_close(net.lstm.weight_hh_l0.grad.cpu(), alone.lstm.weight_hh_l0.grad, atol=1e-5, rtol=1e-5)
    with pytest.raises(
        RuntimeError, match=f"'lengths' argument should be a 1D CPU int64 tensor, but got 1D {g.d0} Long"
    ):
        pack_padded_sequence(x.to(g.d0), lengths.to(g.d0), batch_first=True, enforce_sorted=False)


def test_total_length_is_what_gather_needs(g):
    class Forgetful(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x, lengths):
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True)
            return pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]

    with pytest.raises(
        RuntimeError, match=r"Input tensor at index 1 has invalid shape \[2, 3, 4\], but expected \[2, 7, 4\]"
    ):
        g.dp(Forgetful())(torch.randn(4, 7, 3), torch.tensor([7, 5, 3, 2]))
