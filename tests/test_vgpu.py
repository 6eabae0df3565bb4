"""nn.DataParallel as it behaves, on virtual GPUs and, under `-m gpu`, on real ones: one file for both."""

import copy
import gc
import inspect
import io
import pickle
import sys
import threading
import warnings
from collections import namedtuple

import pytest
import torch
from torch import nn
from torch.nn.parallel import comm, data_parallel, gather, parallel_apply, replicate, scatter
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ddplab import vgpu
from ddplab.vgpu import gpus, virtual_gpus


class Pair:
    """Two devices to run DataParallel on; the same one twice where a machine has a single GPU."""

    def __init__(self, kind: str, ids: list[int]):
        self.kind, self.ids = kind, ids
        self.d0, self.d1 = (torch.device(kind, i) for i in ids)

    def dp(self, module: nn.Module, **options) -> nn.DataParallel:
        return nn.DataParallel(module.to(self.d0), device_ids=self.ids, **options)

    def need_two(self) -> None:
        if self.d0 == self.d1:
            pytest.skip("needs two different devices")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are tiny
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["vgpu", "vgpu-shared", pytest.param("cuda", marks=pytest.mark.gpu)])
def g(request):
    torch.manual_seed(0)
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a real GPU")
        yield Pair("cuda", [0, 1] if torch.cuda.device_count() > 1 else [0, 0])
    else:
        with virtual_gpus(2):
            yield Pair("vgpu", [0, 1] if request.param == "vgpu" else [0, 0])


@pytest.fixture
def two():
    torch.manual_seed(0)
    gc.collect()  # what a failed test left behind
    with virtual_gpus(2) as devices:
        yield devices


class Seen(nn.Module):
    """Keeps what each replica was given."""

    def __init__(self, answer):
        super().__init__()
        self.answer, self.calls = answer, []
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        return self.answer(self, *args, **kwargs)


def same_as_one_device(g, module, *inputs, steps=3, optimiser=None, tol=1e-5):
    """Train a copy on the CPU and a copy under DataParallel: equal outputs, gradients and weights."""
    alone, spread = module, g.dp(copy.deepcopy(module))
    optimiser = optimiser or (lambda p: torch.optim.SGD(p, lr=0.1))
    opts = optimiser(list(alone.parameters())), optimiser(list(spread.parameters()))
    for _ in range(steps):
        outs = alone(*inputs), spread(*(x.to(g.d0) for x in inputs))
        outs = [o[0] if isinstance(o, tuple) else o for o in outs]
        assert outs[1].device == g.d0
        torch.testing.assert_close(outs[1].cpu(), outs[0], atol=tol, rtol=tol)
        for opt, out in zip(opts, outs, strict=True):
            opt.zero_grad()
            out.square().mean().backward()
        for p, q in zip(alone.parameters(), spread.parameters(), strict=True):
            torch.testing.assert_close(q.grad.cpu().to_dense(), p.grad.to_dense(), atol=tol, rtol=tol)
        for opt in opts:
            opt.step()
    for p, q in zip(alone.parameters(), spread.parameters(), strict=True):
        assert q.device == g.d0 and isinstance(q, nn.Parameter)
        torch.testing.assert_close(q.detach().cpu(), p.detach(), atol=tol, rtol=tol)


# ---- modules and optimisers --------------------------------------------------------------------------------

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


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.again = self.first

    def forward(self, x):
        assert self.second.weight is self.first.weight and self.again is self.first
        return self.again(self.second(self.first(x)))


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
    "LBFGS": {},
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


# ---- scatter and gather ------------------------------------------------------------------------------------


def test_inputs_nested_and_by_keyword(g):
    Point = namedtuple("Point", "x y")

    def answer(self, pair, table, *, point, flag, nothing=None):
        assert flag == "as it is" and nothing is None and isinstance(point, Point)
        d = self.weight.device
        assert pair[0].device == pair[1][0].device == table["a"].device == point.x.device == d
        total = pair[0] + pair[1][0] + table["a"] + point.x + point.y
        return {"sum": total, "list": [total, (total,)], "point": Point(total, total), "none": None}

    x = torch.arange(6.0).reshape(6, 1).to(g.d0)
    out = g.dp(Seen(answer))((x, [x]), {"a": x}, point=Point(x, x), flag="as it is")
    for t in (out["sum"], out["list"][0], out["list"][1][0], out["point"].y):
        torch.testing.assert_close(t, 5 * x)
        assert t.device == g.d0
    assert out["none"] is None and isinstance(out["point"], Point)


def test_keyword_only_and_no_inputs(g):
    model = g.dp(
        Seen(lambda self, *, x=None: self.weight * (torch.ones(1, device=self.weight.device) if x is None else x))
    )
    assert model(x=torch.ones(5, 1).to(g.d0)).shape == (5, 1) and len(model.module.calls) == 2
    assert model().shape == (1,)  # nothing to scatter: one replica


def test_a_tensor_from_the_cpu_is_scattered(g):
    x = torch.randn(4, 3, requires_grad=True)
    out = g.dp(nn.Linear(3, 2))(x)
    assert out.device == g.d0
    out.sum().backward()
    assert x.grad.device.type == "cpu" and type(x.grad) is torch.Tensor and x.grad.shape == x.shape


@pytest.mark.parametrize("batch, parts", [(7, [4, 3]), (2, [1, 1]), (1, [1])])
def test_short_batches(g, batch, parts):
    model = g.dp(Seen(lambda self, x: x * self.weight))
    assert model(torch.ones(batch, 2).to(g.d0)).shape == (batch, 2)
    assert sorted((len(args[0]) for args, _ in model.module.calls), reverse=True) == parts


def test_an_empty_batch(g):
    out = g.dp(nn.Linear(3, 2))(torch.ones(0, 3).to(g.d0))
    assert out.shape == (0, 2) and out.device == g.d0


def test_a_number_beside_a_short_batch(g):
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        g.dp(Seen(lambda self, x, n=0: x * self.weight))(torch.ones(1, 2).to(g.d0), n=3)


def test_scalars_become_a_vector_with_a_warning(g):
    model = g.dp(nn.Linear(3, 1))

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model.module

        def forward(self, x):
            return self.inner(x).mean()

    with pytest.warns(UserWarning, match="Was asked to gather along dimension 0, but all input tensors were scalars"):
        out = g.dp(Loss())(torch.ones(4, 3).to(g.d0))
    assert out.shape == (2,)
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outputs"):
        out.backward()
    out.mean().backward()
    torch.testing.assert_close(model.module.weight.grad.cpu(), torch.ones(1, 3))


def test_gradients_are_summed(g):
    model = g.dp(Seen(lambda self, x: self.weight * x))
    model(torch.tensor([3.0, 7.0]).to(g.d0)).sum().backward()
    assert model.module.weight.grad == 10


def test_dim_1(g):
    model = g.dp(Seen(lambda self, x: x * self.weight), dim=1)
    x = torch.arange(10.0).reshape(2, 5).to(g.d0)
    torch.testing.assert_close(model(x), x)
    assert {args[0].shape for args, _ in model.module.calls} == {(2, 3), (2, 2)}


def test_outputs_that_do_not_fit(g):
    model = g.dp(Seen(lambda self, x: self.weight * torch.ones(1, int(x.max().item()), device=x.device)))
    with pytest.raises(
        RuntimeError, match=r"Input tensor at index 1 has invalid shape \[1, 5\], but expected \[1, 4\]"
    ):
        model(torch.tensor([4, 5]).to(g.d0))


def test_output_device(g):
    x = torch.ones(4, 3).to(g.d0)
    assert g.dp(nn.Linear(3, 1), output_device=g.d1)(x).device == g.d1
    assert g.dp(nn.Linear(3, 1), output_device=g.ids[1])(x).device == g.d1
    with pytest.raises(ValueError, match="Expected a non cpu device"):
        g.dp(nn.Linear(3, 1), output_device="cpu")
    model = g.dp(nn.Linear(3, 1), output_device=-1)
    with pytest.warns(FutureWarning, match="Using -1 to represent CPU tensor is deprecated"):
        out = model(x)
    assert out.device.type == "cpu" and type(out) is torch.Tensor
    out.sum().backward()
    assert model.module.weight.grad.device == g.d0 and model.module.weight.grad[0, 0] == 4


def test_device_ids(g):
    g.need_two()
    x = torch.randn(4, 3)
    turned = nn.DataParallel(nn.Linear(3, 1).to(g.d1), device_ids=[1, 0])
    assert turned(x).device == g.d1 and turned.output_device == 1
    named = nn.DataParallel(nn.Linear(3, 1).to(g.d0), device_ids=[f"{g.kind}:0", g.d1])
    assert named(x).device == g.d0 and named.device_ids == [0, 1]
    one = nn.DataParallel(nn.Linear(3, 1), device_ids=[1])
    assert one.module.weight.device == g.d1 and one(x).device == g.d1
    assert nn.DataParallel(nn.Linear(3, 1)).device_ids[:2] == [0, 1]


def test_the_module_must_be_on_the_first_device(g):
    words = rf"buffers on device {g.d0} \(device_ids\[0\]\) but found one of them on device: "
    with pytest.raises(RuntimeError, match=words + "cpu"):
        nn.DataParallel(nn.Linear(3, 1), device_ids=g.ids)(torch.ones(4, 3))
    g.need_two()
    with pytest.raises(RuntimeError, match=words + str(g.d1)):
        nn.DataParallel(nn.Linear(3, 1).to(g.d1), device_ids=g.ids)(torch.ones(4, 3))


def test_functions_of_torch_nn_parallel(g):
    x, net = torch.randn(5, 3).to(g.d0), nn.Linear(3, 2).to(g.d0)
    parts = scatter(x, g.ids)
    assert [p.device for p in parts] == [g.d0, g.d1] and [len(p) for p in parts] == [3, 2]
    replicas = replicate(net, g.ids)
    assert list(replicas[1].parameters()) == [] and replicas[1].weight.device == g.d1
    outs = parallel_apply(replicas, parts, devices=g.ids)
    torch.testing.assert_close(gather(outs, g.ids[0]), net(x))
    torch.testing.assert_close(gather(outs, "cpu"), net(x).cpu())
    torch.testing.assert_close(data_parallel(net, x, g.ids), net(x))
    assert data_parallel(net, x, g.ids, output_device=g.d1).device == g.d1


def test_a_new_tensor_is_where_the_old_one_is(g):
    x = torch.ones(2).to(g.d1)
    news = [
        x.new_tensor([[3], [7]]),
        x.new_tensor(5.0),
        x.new_zeros(2),
        x.new_full((2,), 4.0),
        x.new_empty(3),
        x.new(2, 3),
    ]
    assert [new.device for new in news] == [g.d1] * len(news)
    torch.testing.assert_close(news[0].cpu(), torch.tensor([[3.0], [7.0]]))


def test_functions_of_comm(g):
    x = torch.arange(6.0).to(g.d0)
    assert [t.device for t in comm.broadcast(x, g.ids)] == [g.d0, g.d1]
    ints = torch.arange(3).to(g.d0)
    _, second = comm.broadcast_coalesced([x, ints, x + 1], g.ids)
    torch.testing.assert_close([t.cpu() for t in second], [x.cpu(), ints.cpu(), x.cpu() + 1])
    pieces = comm.scatter(x, g.ids, chunk_sizes=[2, 4])
    assert [len(p) for p in pieces] == [2, 4]
    with pytest.raises(RuntimeError, match="Expected devices and chunk_sizes to be of same length"):
        comm.scatter(x, g.ids, chunk_sizes=[6])
    torch.testing.assert_close(comm.gather(pieces, destination=g.ids[1]).cpu(), x.cpu())
    assert comm.gather(pieces).device == g.d0  # the current device, when none is named
    torch.testing.assert_close(comm.reduce_add([x, x.to(g.d1)], g.ids[0]).cpu(), 2 * x.cpu())
    if g.d0 != g.d1:
        with pytest.raises(RuntimeError, match=r"All tensors must be on devices\[0\]"):
            comm.broadcast_coalesced([x.to(g.d1)], g.ids)


# ---- replicas ----------------------------------------------------------------------------------------------


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


# ---- tensors that move -------------------------------------------------------------------------------------


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


# ---- what people paste: the scripts of three forum threads, "cuda" read as the kind of device ---------------


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


# ---- only virtual GPUs -------------------------------------------------------------------------------------


def snapshot():
    from ddplab.vgpu.comm import patches

    table = [(owner, name) for owner, name, _ in patches(2)]
    state = {(id(owner), name): vars(owner).get(name) for owner, name in table}
    return state | {"modules": sys.modules.get("torch.vgpu"), "vgpu": hasattr(torch, "vgpu")}


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
    figure = two.meter.plot()
    assert len(figure.axes) == 2 and figure.axes[0].get_xlabel() == "bytes copied"


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
        lambda: torch.Generator(device="vgpu:0"),
        lambda: torch.randn(3, device="vgpu:0", generator=torch.Generator()),
        lambda: x.type("torch.FloatTensor"),
        lambda: torch.ones(2, 2).to_sparse_csr().to("vgpu:0"),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).to("vgpu:0"),
        lambda: torch.func.grad(lambda t: t.to("vgpu:1").sum())(x),
        lambda: comm.gather([x, x], out=torch.empty(6, device="vgpu:0")),
        lambda: _round_trip(x, map_location=lambda storage, place: storage),
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
