"""Tensors and modules that move between devices, and what a tensor of a virtual GPU refuses."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from pair import Tied
from torch import nn
from torch.nn.parallel import comm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ddplab.vgpu import virtual_gpus


def test_device_errors_read_as_on_cuda(g):
    a, b, c = torch.ones(2, 2).to(g.d0), torch.ones(2, 2), torch.ones(2, 2).to(g.d1)
    upper = g.kind.upper()
    two = "Expected all tensors to be on the same device, but found at least two devices, "
    with pytest.raises(RuntimeError, match=two + f"{g.d0} and cpu!"):
        a + b
    with pytest.raises(
        RuntimeError,
        match=f"but got mat2 is on cpu, different from other tensors on {g.d0} .*wrapper_{upper}_mm",
    ):
        a @ b
    with pytest.raises(RuntimeError, match=r"got mat1 is on cpu, different from other tensors on .*_addmm"):
        nn.Linear(2, 2).to(g.d0)(b)
    with pytest.raises(
        RuntimeError,
        match=rf"Input type \(torch.FloatTensor\) and weight type \(torch.{g.kind}.FloatTensor\)",
    ):
        nn.Conv2d(1, 1, 1).to(g.d0)(torch.ones(1, 1, 2, 2))
    with pytest.raises(
        RuntimeError, match="Input and hidden tensors are not at the same device, found input tensor at"
    ):
        nn.LSTM(2, 2).to(g.d0)(a, (torch.zeros(1, 2), torch.zeros(1, 2)))
    with pytest.raises(RuntimeError, match=f"Input and parameter tensors are not at the same device.*{g.d0} .*cpu"):
        nn.LSTM(2, 2)(a, tuple(torch.zeros(1, 2).to(g.d0) for _ in range(2)))
    for name, apart in (("hx", (True, False)), ("cx", (False, True))):  # two layers first, two rows second, and strided
        states = [torch.zeros(2, 2, 2).to(g.d0) for _ in range(2)]
        states = [state.transpose(0, 1) if strided else state for state, strided in zip(states, apart, strict=True)]
        with pytest.raises(RuntimeError, match=f"rnn: {name} is not contiguous"):
            nn.LSTM(2, 2, num_layers=2).to(g.d0)(a[None].repeat(3, 1, 1), tuple(states))
    with pytest.raises(
        RuntimeError, match="indices should be either on cpu or on the same device as the indexed tensor"
    ):
        b[torch.tensor([0]).to(g.d0)]
    total = torch.zeros(())
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        total += a.sum()
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.cat([a, b])
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        nn.functional.cross_entropy(a, torch.tensor([0, 1]))
    if g.d0 != g.d1:
        with pytest.raises(RuntimeError, match=two + f"{g.d0} and {g.d1}!"):
            a * c


def test_what_may_mix(g):
    a = torch.arange(4.0).to(g.d0)
    assert (a + torch.tensor(1.0)).device == g.d0 and (torch.tensor(2.0) * a).device == g.d0
    assert a[torch.tensor([1, 2])].tolist() == [1, 2] and a[torch.tensor([True, False, False, True])].tolist() == [0, 3]
    assert torch.where(a > 1, a, torch.tensor(0.0)).tolist() == [0, 0, 2, 3]
    a[torch.tensor([0])] = 9.0
    a[1:3] = torch.tensor([7.0, 8.0])
    assert a.tolist() == [9, 7, 8, 3]
    b = torch.zeros(4)
    assert b.copy_(a) is b and b.tolist() == [9, 7, 8, 3] and type(b) is torch.Tensor


def test_moving(g):
    x = torch.arange(3.0, requires_grad=True)
    y = x.to(g.d0)
    assert y.device == g.d0 and y.get_device() == g.ids[0] and not y.is_cpu and y.to(g.d0) is y and not y.is_leaf
    (y.to(g.d1) * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2] and type(x.grad) is torch.Tensor
    y = y.detach()
    assert y.to(g.d1, torch.float64).dtype == torch.float64 and y.to(torch.int32).device == g.d0
    assert y.to(x).device.type == "cpu" and x.to(y).device == g.d0 and x.type_as(y).device == g.d0
    assert y.cpu().numpy().tolist() == y.tolist() == [0, 1, 2] and y[1].item() == 1 and bool(y[1]) and int(y[2]) == 2
    with pytest.raises(TypeError, match=f"can't convert {g.d0} device type tensor to numpy. Use Tensor.cpu()"):
        y.numpy()
    assert repr(y) == f"tensor([0., 1., 2.], device='{g.d0}')" and y.type() == f"torch.{g.kind}.FloatTensor"
    learns = y.clone().requires_grad_()
    assert repr(learns) == f"tensor([0., 1., 2.], device='{g.d0}', requires_grad=True)"
    assert repr(learns * 2).endswith(f"device='{g.d0}', grad_fn=<MulBackward0>)")
    assert type(y.shape) is torch.Size and y.max(0).indices.device == g.d0
    assert y.to("cpu", copy=True).is_cpu and y.to(device=g.d1, dtype=torch.half, non_blocking=True).dtype == torch.half


def test_making_tensors(g):
    d = g.d1
    made = [
        *(
            make(2, device=d)
            for make in (torch.zeros, torch.empty, torch.randn, torch.arange, torch.eye, torch.randperm)
        ),
        *(make([1.0, 2.0], device=d) for make in (torch.tensor, torch.as_tensor, torch.asarray)),
        torch.full((2,), 3.0, device=str(d)),
        torch.tril_indices(3, 3, device=d),
        torch.linspace(0, 1, 3, device=d),
        torch.zeros_like(torch.ones(2), device=d),
        torch.ones(2).new_zeros(2, device=d),
        nn.Linear(2, 2, device=d).weight,
    ]
    assert all(t.device == d for t in made)
    leaf = torch.tensor([1.0], device=d, requires_grad=True)
    leaf.square().backward()
    assert leaf.is_leaf and leaf.grad.device == d
    assert torch.zeros_like(leaf, device="cpu").device.type == "cpu"
    with torch.device(d):
        assert torch.ones(2).device == d and nn.Linear(2, 1).weight.device == d
    assert torch.zeros(2, device=g.kind).device == torch.device(g.kind, 0)
    with pytest.raises((RuntimeError, AssertionError)):
        torch.zeros(2).to(f"{g.kind}:99")


def test_a_module_moves_and_stays_itself(g):
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.LSTM(2, 2))
    weight = net[0].weight
    opt = torch.optim.SGD(net.parameters(), lr=1.0)
    out = net[0](torch.ones(2, 3))  # an old output holds the weights
    for device in (g.d0, g.d1, "cpu", g.d0):
        net.to(device)
        assert net[0].weight is weight and weight.device == torch.device(device) and isinstance(weight, nn.Parameter)
        assert net[1].running_mean.device == weight.device and weight.is_leaf and weight.requires_grad
        net[0](torch.ones(2, 3).to(device)).sum().backward()
        before = weight.detach().cpu().clone()
        assert weight.grad.device == weight.device
        opt.step()
        torch.testing.assert_close(weight.detach().cpu(), before - weight.grad.cpu())
    net.cpu()
    assert type(weight) is nn.Parameter and type(weight.grad) is torch.Tensor and out.shape == (2, 2)
    net.to(g.d0).half().float().double()
    assert weight.dtype == torch.float64 and weight.device == g.d0


def test_state_dict_in_and_out(g):
    model = g.dp(nn.Linear(3, 2))
    state = model.state_dict()
    assert list(state) == ["module.weight", "module.bias"] and state["module.weight"].device == g.d0
    plain = nn.Linear(3, 2)
    plain.load_state_dict(model.module.state_dict())
    assert plain.weight.device.type == "cpu" and type(plain.weight) is nn.Parameter
    torch.testing.assert_close(plain.weight.detach(), model.module.weight.detach().cpu())
    with torch.no_grad():
        plain.weight.zero_()
    model.module.load_state_dict(plain.state_dict())
    assert model.module.weight.device == g.d0 and model.module.weight.sum() == 0
    with pytest.raises(RuntimeError, match="Missing key"):
        plain.load_state_dict(state)


def _round_trip(thing, **options):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, **options)


def test_saving_and_loading(g):
    model = g.dp(Tied())
    back = _round_trip(model.state_dict())
    assert back["module.first.weight"].device == g.d0
    here = _round_trip(model.state_dict(), map_location="cpu")
    assert all(type(t) is torch.Tensor and t.device.type == "cpu" for t in here.values())
    moved = _round_trip(model.state_dict(), map_location={str(g.d0): str(g.d1)})
    assert moved["module.first.weight"].device == g.d1
    for there in (str(g.d1), g.d1):  # from the CPU, and from another device
        for saved in (Tied().state_dict(), model.module.state_dict()):
            loaded = _round_trip(saved, map_location=there)
            assert all(t.device == g.d1 and torch.equal(t.cpu(), saved[name].cpu()) for name, t in loaded.items())
    whole = _round_trip(model, weights_only=False)
    assert whole.module.second.weight is whole.module.first.weight and whole(torch.ones(4, 8)).device == g.d0
    unwrapped = _round_trip(model.module, weights_only=False, map_location="cpu")
    assert type(unwrapped.first.weight) is nn.Parameter and unwrapped.second.weight is unwrapped.first.weight
    again = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(again(torch.ones(4, 8)), model(torch.ones(4, 8)))
    opt = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 8)).sum().backward()
    opt.step()
    opt.load_state_dict(_round_trip(opt.state_dict()))


def test_deepcopy(g):
    model = g.dp(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    model(torch.ones(4, 3)).sum().backward()
    twin = copy.deepcopy(model)
    assert twin.module[0].weight.device == g.d0 and twin.module[0].weight is not model.module[0].weight
    with torch.no_grad():
        twin.module[0].weight.zero_()
    assert model.module[0].weight.abs().sum() > 0 and isinstance(twin.module[0].weight, nn.Parameter)
    x = torch.ones(2).to(g.d1)
    assert copy.deepcopy(x).device == g.d1 and copy.deepcopy([x, x])[0].data_ptr() != x.data_ptr()
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(torch.ones(2).to(g.d0).requires_grad_() * 2)


def test_copies_into_a_tensor_learn(g):
    source, target = torch.ones(3, requires_grad=True), torch.zeros(3).to(g.d0)
    (target * 1).copy_(source, True).sum().backward()
    spread = target * 1
    spread[1:] = source[1:]
    (spread * 2).sum().backward()
    assert source.grad.tolist() == [1, 3, 3] and source.grad.device.type == "cpu"


def test_packed_integers(g):
    tokens = torch.arange(6).reshape(2, 3).to(g.d1)
    packed = pack_padded_sequence(tokens, torch.tensor([3, 2]), batch_first=True)
    padded, lengths = pad_packed_sequence(packed, batch_first=True)
    assert packed.data.device == padded.device == g.d1 and padded.tolist() == [[0, 1, 2], [3, 4, 0]]
    assert lengths.tolist() == [3, 2] and lengths.device.type == "cpu"


def test_a_cpu_scalar_that_learns(g):
    scale = nn.Parameter(torch.tensor(2.0))
    (torch.arange(3.0).to(g.d0) * scale).sum().backward()
    assert scale.grad == 3 and type(scale.grad) is torch.Tensor and scale.grad.device.type == "cpu"
    total = scale * 1
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        total += torch.ones(()).to(g.d0)


def test_data_carries_over(g):
    p = nn.Parameter(torch.zeros(2))
    p.data = torch.ones(2).to(g.d0)
    assert p.device == g.d0 and p.tolist() == [1, 1] and isinstance(p, nn.Parameter) and p.is_leaf
    p.data = torch.ones(2).to(g.d1)
    assert p.device == g.d1
    p.data = torch.zeros(2)
    assert type(p) is nn.Parameter and p.tolist() == [0, 0]
    assert f"{torch.tensor(0.123, device=g.d0):.2f}" == "0.12"


def test_views_and_in_place(g):
    base = torch.zeros(4, 3).to(g.d0)
    view = base[1:3].t()
    view += 1
    assert base.sum() == 6 and view._base is not None and view.device == g.d0
    leaf = torch.ones(3).to(g.d0).requires_grad_()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place operation"):
        leaf += 1
    y = leaf * 2
    z = y.exp()
    z += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    leaf.data = leaf.data * 3
    assert leaf.tolist() == [3, 3, 3] and leaf.is_leaf


def test_nested_and_functional_use(g):
    inner = g.dp(nn.Linear(3, 2))
    assert g.dp(nn.Sequential(nn.Identity())).module is not None
    params = {name: p * 2 for name, p in inner.module.named_parameters()}
    out = torch.func.functional_call(inner.module, params, (torch.ones(1, 3).to(g.d0),))
    torch.testing.assert_close(out, 2 * inner.module(torch.ones(1, 3).to(g.d0)))
    checkpointed = torch.utils.checkpoint.checkpoint(inner, torch.ones(4, 3).to(g.d0), use_reentrant=False)
    checkpointed.sum().backward()
    assert inner.module.weight.grad.device == g.d0
    assert nn.utils.clip_grad_norm_(inner.parameters(), 1.0).device == g.d0


def test_what_cannot_be_made_so_raises():
    compiled = torch.compile(lambda t: t * 2, backend="eager")
    with virtual_gpus(2):
        _refused(compiled)


def _refused(compiled):
    x = torch.ones(3, device="vgpu:0")
    for attempt in (
        lambda: torch.compile(nn.Linear(3, 1).to("vgpu:0"), backend="eager")(x),
        lambda: torch.export.export(nn.Linear(3, 1).to("vgpu:0"), (x,)),
        lambda: compiled(x),
        lambda: torch.from_dlpack(x),
        lambda: torch.randn(3, device="vgpu:0", generator=torch.Generator()),
        lambda: x.type("torch.FloatTensor"),
        lambda: torch.ones(2, 2).to_sparse_csr().to("vgpu:0"),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).to("vgpu:0"),
        lambda: torch.func.grad(lambda t: t.to("vgpu:1").sum())(x),
        lambda: comm.gather([x, x], out=torch.empty(6, device="vgpu:0")),
        lambda: torch.nested.nested_tensor([torch.ones(2)], device="vgpu:0"),
    ):
        with warnings.catch_warnings(), pytest.raises(Exception):  # noqa: B017
            warnings.simplefilter("ignore")
            attempt()


def test_other_modules_are_left_alone(two):
    lazy = nn.LazyLinear(2).to("cpu").to(torch.float64)
    assert lazy(torch.ones(1, 3, dtype=torch.float64)).shape == (1, 2)
    with pytest.raises(ValueError, match="uninitialized parameter"):
        nn.LazyLinear(2).to("vgpu:0")
    net = nn.Linear(3, 2)
    assert type(net.half().float().to("cpu").weight) is nn.Parameter and type(torch.tensor([1.0])) is torch.Tensor


def test_shorthand_of_the_backend(two):
    x = torch.ones(2)
    assert x.vgpu().device == two[0] and x.vgpu(1).device == two[1] and x.to(1).device == two[1] and x.vgpu().is_vgpu
    assert nn.Linear(2, 1).vgpu().weight.device == two[0]
    with torch.vgpu.device(1):
        assert torch.ones(1, device="vgpu").device == two[1] and torch.vgpu.current_device() == 1
