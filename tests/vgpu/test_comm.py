"""How inputs are shared out and outputs come back, through nn.DataParallel and by the functions beneath it."""

from collections import namedtuple

import pytest
import torch
from pair import Seen
from torch import nn
from torch.nn.parallel import comm, data_parallel, gather, parallel_apply, replicate, scatter


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
