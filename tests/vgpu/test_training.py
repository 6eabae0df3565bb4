"""Models and optimisers train under nn.DataParallel as they do on one device."""

import copy
import inspect

import pytest
import torch
from pair import Tied, same_as_one_device
from torch import nn

from ddplab import launch
from ddplab.vgpu import virtual_gpus

X = {"vector": (6, 8), "sequence": (6, 5, 8), "image": (6, 4, 8, 8)}


MODULES = {
    "Linear": (lambda: nn.Linear(8, 3), "vector"),
    "Bilinear": (lambda: Twice(nn.Bilinear(8, 8, 2)), "vector"),
    "Conv1d": (lambda: nn.Conv1d(5, 3, 3), "sequence"),
    "Conv2d": (lambda: nn.Conv2d(4, 3, 3, padding=1), "image"),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 3, 2, stride=2), "image"),
    "pooling": (
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        "image",
    ),
    "LayerNorm": (lambda: nn.LayerNorm(8), "sequence"),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), "image"),
    "activations": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.PReLU(), nn.SiLU(), nn.Softmax(-1)),
        "vector",
    ),
    "RNN": (lambda: nn.RNN(8, 4, batch_first=True), "sequence"),
    "GRU": (lambda: nn.GRU(8, 4, num_layers=2, bidirectional=True, batch_first=True), "sequence"),
    "LSTM": (lambda: nn.LSTM(8, 4, proj_size=3, batch_first=True), "sequence"),
    "MultiheadAttention": (lambda: Attend(), "sequence"),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        "sequence",
    ),
    "Transformer": (lambda: Twice(nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)), "sequence"),
    "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)), "vector"),
    "ParameterList": (lambda: Listed(), "vector"),
    "tied": (lambda: Tied(), "vector"),
}


class Twice(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x, x)


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.attention(x, x, x, attn_mask=mask)[0]


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.several = nn.ParameterList([nn.Parameter(torch.randn(8)) for _ in range(2)])
        self.named = nn.ParameterDict({"scale": nn.Parameter(torch.randn(8)), "shift": nn.Parameter(torch.randn(8))})

    def forward(self, x):
        return (x * self.several[0] + self.several[1]) * self.named["scale"] + self.named["shift"]


@pytest.mark.parametrize("name", MODULES)
def test_trains_as_on_one_device(g, name):
    make, shape = MODULES[name]
    same_as_one_device(g, make(), torch.randn(X[shape]), tol=1e-4)


@pytest.mark.parametrize("sparse", [False, True])
def test_embedding(g, sparse):
    same_as_one_device(g, nn.Embedding(10, 4, sparse=sparse), torch.tensor([1, 2, 1, 3, 9, 1]))
    model = g.dp(nn.EmbeddingBag(10, 4, mode="sum", sparse=sparse))
    model(torch.randint(10, (6, 3)).to(g.d0)).sum().backward()
    assert model.module.weight.grad.is_sparse == sparse and model.module.weight.grad.device == g.d0


OPTIMISERS = {
    **{n: {} for n in "Adadelta Adagrad Adam AdamW Adamax ASGD NAdam RAdam RMSprop Rprop".split()},
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Adafactor": {},
    "LBFGS": {"max_iter": 5},
    "SparseAdam": {},
    "Muon": {},
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_every_optimiser(g, name):
    if not hasattr(torch.optim, name):
        pytest.skip(f"this torch has no {name}")
    sparse = name == "SparseAdam"
    x = torch.tensor([1, 2, 3, 4]) if sparse else torch.randn(4, 5)
    alone = nn.Embedding(5, 3, sparse=True) if sparse else nn.Linear(5, 3, bias=name != "Muon")
    spread = g.dp(copy.deepcopy(alone))
    for model, data in ((alone, x), (spread, x.to(g.d0))):
        opt = getattr(torch.optim, name)(model.parameters(), lr=0.1, **OPTIMISERS[name])
        for _ in range(3):

            def closure(model=model, data=data, opt=opt):
                opt.zero_grad()
                loss = model(data).square().mean()
                loss.backward()
                return loss

            opt.step(closure)
        state = copy.deepcopy(opt.state_dict())
        opt.load_state_dict(state)
        opt.step(closure)
    torch.testing.assert_close(spread.module.weight.detach().cpu(), alone.weight.detach(), atol=1e-4, rtol=1e-3)
    for values in opt.state.values():
        for value in values.values():
            assert not isinstance(value, torch.Tensor) or value.dim() == 0 or value.device == g.d0


def test_all_optimisers_are_listed():
    named = {n for n, o in vars(torch.optim).items() if isinstance(o, type) and issubclass(o, torch.optim.Optimizer)}
    assert named - {"Optimizer"} <= set(OPTIMISERS)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}])
def test_fused_and_foreach(g, options):
    same_as_one_device(g, nn.Linear(8, 3), torch.randn(4, 8), optimiser=lambda p: torch.optim.Adam(p, **options))


def test_batchnorm_keeps_the_first_replicas_statistics(g):
    g.need_two()
    norm, x = nn.BatchNorm1d(3), torch.randn(8, 3)
    first = copy.deepcopy(norm)
    first(x[:4])
    model = g.dp(norm)
    model(x.to(g.d0))
    torch.testing.assert_close(norm.running_mean.cpu(), first.running_mean)
    torch.testing.assert_close(norm.running_var.cpu(), first.running_var)
    assert norm.num_batches_tracked == 1 and norm.running_mean.device == g.d0
    model.eval()
    torch.testing.assert_close(model(x.to(g.d0)).cpu(), first.eval()(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64])
def test_dtypes(g, dtype):
    if dtype.is_complex and "complex" not in inspect.getsource(torch.nn.parallel._functions):
        pytest.skip("this torch's DataParallel cannot take complex parameters")
    same_as_one_device_dtype = nn.Linear(3, 2).to(dtype)
    model, x = g.dp(same_as_one_device_dtype), torch.randn(4, 3).to(dtype)
    out = model(x.to(g.d0))
    assert out.dtype == dtype and out.device == g.d0
    out.abs().sum().backward()
    grad = model.module.weight.grad
    assert grad.dtype == dtype and grad.device == g.d0 and grad.abs().sum() > 0


def test_channels_last(g):
    conv, x = nn.Conv2d(3, 4, 3), torch.randn(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    model = g.dp(conv.to(memory_format=torch.channels_last))
    assert x.to(g.d0).is_contiguous(memory_format=torch.channels_last)
    out = model(x.to(g.d0))
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out.cpu(), conv.cpu()(x), atol=1e-4, rtol=1e-4)


def test_ddp_takes_a_model_that_is_cut_by_hand():
    def on_a_rank():
        rank = torch.distributed.get_rank()
        torch.manual_seed(rank)  # other weights on each, until DDP sends those of rank 0
        with virtual_gpus(2) as gpus:
            parts = nn.Linear(4, 3).to(gpus[0]), nn.Linear(3, 2).to(gpus[1])
            parts[0].register_forward_hook(lambda module, inputs, out: out.to(gpus[1]))
            model = nn.parallel.DistributedDataParallel(nn.Sequential(*parts))
            model(torch.ones(5, 4, device=gpus[0]) * (rank + 1)).sum().backward()
            return [(p.detach().cpu(), p.grad.cpu(), str(p.grad.device)) for p in model.parameters()]

    first, second = launch(on_a_rank, nproc_per_node=2, device="cpu", quiet=True).results
    for mine, its in zip(first, second, strict=True):
        assert torch.equal(mine[0], its[0]) and torch.equal(mine[1], its[1])
    assert [where for *_, where in first] == ["vgpu:0"] * 2 + ["vgpu:1"] * 2
    weight, bias = (parameter for parameter, *_ in first[2:])
    assert torch.allclose(first[1][1], 5 * weight.sum(0)) and torch.equal(first[3][1], torch.full_like(bias, 5))
