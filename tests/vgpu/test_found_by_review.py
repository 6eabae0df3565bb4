"""What a fresh reading found wrong with virtual GPUs, and what is mended: each beside what CUDA does."""

import io
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ddplab.vgpu import comm, meter, virtual_gpus


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_draws_the_same_dropout_again(two, reentrant):
    x = torch.ones(200, device="vgpu:1", requires_grad=True)
    with torch.vgpu.device(1):
        out = checkpoint(F.dropout, x, use_reentrant=reentrant)
    F.dropout(x)  # draws in between
    out.sum().backward()
    assert torch.equal(x.grad.cpu(), out.detach().cpu())  # 2 where kept, 0 where dropped


def test_activation_checkpointing_recomputes_under_autocast(two):
    net, x = nn.Linear(4, 4).to("vgpu:0"), torch.ones(2, 4, device="vgpu:0", requires_grad=True)
    with torch.autocast("vgpu", dtype=torch.bfloat16):
        out = checkpoint(net, x, use_reentrant=False)
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16 and x.grad.device == two[0]


def test_inference_mode_moves_and_replicates(two):
    with torch.inference_mode():
        net = nn.Linear(3, 2).to("vgpu:0")
        x = torch.ones(4, 3, device="vgpu:0")
        assert net(x).device == two[0] and (x * 2).is_inference()
        assert nn.DataParallel(net, [0, 1])(x).shape == (4, 2)
        assert type(net.to("vgpu:1").cpu().weight) is nn.Parameter
        with pytest.raises(RuntimeError, match="on the same device"):
            net.to("vgpu:1")(x)


def test_hooks_and_attributes_survive_a_move(two):
    net, seen = nn.Linear(2, 1), []
    net.weight.tag = "mine"
    net.weight.register_hook(lambda grad: seen.append(grad.device))
    net.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.device))
    for place in (*two, torch.device("cpu")):
        net.to(place)
        net(torch.ones(1, 2, device=place)).sum().backward()
        assert net.weight.tag == "mine" and seen == [place, place]
        seen.clear()


def test_each_device_and_the_cpu_draw_by_themselves_in_any_thread(two):
    def draws(place, n=300):
        return torch.stack([F.dropout(torch.ones(8, device=place)).cpu() for _ in range(n)])

    def together():
        torch.manual_seed(3)
        torch.vgpu.manual_seed_all(3)
        out = {}
        threads = [threading.Thread(target=lambda p=p: out.update({p: draws(p)})) for p in ("cpu", "vgpu:0", "vgpu:1")]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return out

    torch.manual_seed(3)
    alone = draws("cpu")
    assert all(torch.equal(drawn, alone) for drawn in together().values())


def test_every_way_to_draw(two):
    def every():
        x = torch.zeros(5, device="vgpu:1")
        perm = torch.randperm(5, device="vgpu:1")
        more = torch.rand(5, device="vgpu:1"), torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 9)
        return [t.tolist() for t in (perm, *more, torch.randint_like(x, 5, 9), F.rrelu(x - 1, training=True))]

    torch.vgpu.manual_seed_all(5)
    first, before = every(), torch.get_rng_state()
    torch.vgpu.manual_seed_all(5)
    assert every() == first and torch.equal(torch.get_rng_state(), before)
    assert sorted(first[0]) == [0, 1, 2, 3, 4] and all(5 <= n < 9 for n in first[5])


def test_generators_have_a_device(two):
    mine = torch.Generator(device="vgpu:1").manual_seed(4)
    assert (
        mine.device == two[1] and isinstance(mine, torch.Generator) and isinstance(torch.Generator(), torch.Generator)
    )
    drawn = torch.rand(3, device="vgpu:1", generator=mine)
    assert drawn.tolist() == torch.rand(3, generator=torch.Generator().manual_seed(4)).tolist()
    with pytest.raises(RuntimeError, match="Expected a 'vgpu' device type for generator but found 'cpu'"):
        torch.rand(3, device="vgpu:1", generator=torch.Generator())


class Brings(torch.autograd.Function):
    """Returns its gradient on the CPU: a mistake."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad.cpu()


class Unused(torch.autograd.Function):
    """Mixes in the zeros that it gets for an output nobody used: no mistake."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        (x,) = ctx.saved_tensors
        return 2 * a + 3 * b * x


def test_gradients_stay_where_their_tensors_are(two):
    v = torch.ones(3, device="vgpu:0", requires_grad=True)
    with pytest.raises(RuntimeError, match="invalid gradient at index 0 - expected device vgpu:0 but got vgpu:1"):
        (v * 2).backward(torch.ones(3, device="vgpu:1"))
    with pytest.raises(RuntimeError, match="invalid gradient at index 0 - expected device vgpu:0 but got cpu"):
        torch.autograd.grad(v * 2, v, torch.ones(3))
    words = "with device type 'cpu' to a tensor with device type 'vgpu'"
    with pytest.raises(RuntimeError, match=f"attempting to assign a gradient {words}"):
        v.grad = torch.ones(3)
    with pytest.raises(RuntimeError, match="located on device with index '1' to a tensor located on device with index"):
        v.grad = torch.ones(3, device="vgpu:1")
    with pytest.raises(RuntimeError, match="with device type 'vgpu' to a tensor with device type 'cpu'"):
        torch.ones(3, requires_grad=True).grad = torch.ones(3, device="vgpu:0")
    words = "Function BringsBackward returned an invalid gradient at index 0 - expected device vgpu:0 but got cpu"
    with pytest.raises(RuntimeError, match=words):
        Brings.apply(v).sum().backward()
    hooked = v * 2
    hooked.register_hook(lambda grad: grad.cpu())
    words = r"hook '<lambda>' has changed the type of value \(was torch.vgpu.FloatTensor got torch.FloatTensor\)"
    with pytest.raises(RuntimeError, match=words):
        hooked.sum().backward()
    assert v.grad is None
    Unused.apply(v)[0].sum().backward()
    (v * 2).sum().backward(torch.tensor(1.0))  # a single number is brought, on CUDA too
    v.grad = v.grad * 2
    assert v.grad.tolist() == [8, 8, 8] and v.grad.device == two[0]


def test_a_default_device_counts_for_data_too(two):
    with torch.device("vgpu:1"):
        made = [torch.tensor([1.0]), torch.as_tensor([1.0]), torch.ones(1), torch.asarray([1.0])]
        assert torch.tensor([1.0], device="cpu").device.type == "cpu"
    assert {t.device for t in made} == {two[1]} and torch.tensor([1.0]).device.type == "cpu"


def test_the_meter_counts_no_copy_that_a_gpu_would_not_make(two):
    net = nn.Linear(3, 1).to("vgpu:0")
    net(torch.ones(2, 3, device="vgpu:0")).sum().backward()
    x, y = torch.zeros(3, device="vgpu:0"), torch.ones(3)
    meter.reset()
    assert nn.utils.clip_grad_norm_(net.parameters(), 1.0).device == two[0]
    x[0] = 3.0
    assert meter.rows == []
    x[:] = y
    assert meter.bytes(".to") == 12 and x.tolist() == [1, 1, 1]


def test_foreach_and_fused_optimisers_over_several_devices(two):
    for options in ({"foreach": True}, {"fused": True}):
        params = [torch.ones(2, device=place, requires_grad=True) for place in two]
        for p in params:
            p.grad = torch.ones_like(p)
        torch.optim.AdamW(params, lr=0.1, weight_decay=0, **options).step()
        assert [p.device for p in params] == list(two) and all(p[0].item() == pytest.approx(0.9) for p in params)


def test_an_error_while_switching_on_leaves_nothing(monkeypatch):
    before = torch.tensor
    monkeypatch.setattr(comm, "vgpu_patches", lambda count: 1 / 0)
    with pytest.raises(ZeroDivisionError), virtual_gpus(2):
        pass
    monkeypatch.setattr("ddplab.vgpu.tensor.seed_all", lambda seed: 1 / 0)
    with pytest.raises(ZeroDivisionError), virtual_gpus(2):
        pass
    assert torch.tensor is before and not hasattr(torch, "vgpu")


def test_a_block_inside_on_leaves_them_on():
    devices = virtual_gpus(2).on()
    try:
        with devices, devices:
            pass
        assert torch.ones(1, device="vgpu:1").device == devices[1]
    finally:
        devices.off()
    with pytest.raises(RuntimeError, match=r"switched off: \.on\(\) switches them on"):
        torch.ones(1, device="vgpu:1")


def test_recurrent_layers_and_their_cells_under_autocast_are_in_half_precision(two):
    x, dtype = torch.randn(3, 2, 4, device="vgpu:1"), torch.bfloat16
    for kind, cell in ((nn.LSTM, nn.LSTMCell), (nn.GRU, nn.GRUCell)):
        net = kind(4, 4).to("vgpu:1")
        plain = net(x)[0]
        with torch.autocast("vgpu", dtype=dtype), torch.autocast("cpu", dtype=torch.float16):
            by_cudnn, cells = net(x)[0], cell(4, 4).to("vgpu:1")(x[0])[0]
            with torch.backends.cudnn.flags(enabled=False):
                without = net(x)[0]
        assert (plain.dtype, by_cudnn.dtype, cells.dtype, without.dtype) == (torch.float, torch.half, dtype, dtype)
        assert torch.allclose(by_cudnn.float(), plain, atol=0.01) and torch.allclose(without.float(), plain, atol=0.05)
        assert by_cudnn.device == two[1]
        (by_cudnn.float() + without.float()).sum().backward()
        assert net.weight_ih_l0.grad.dtype == torch.float


def test_ctc_loss_takes_lengths_from_the_cpu(two):
    def loss(place):
        torch.manual_seed(0)
        scores = torch.randn(5, 2, 4).to(place).requires_grad_()
        target = torch.ones(2, 2, dtype=torch.long).to(place)
        out = F.ctc_loss(scores.log_softmax(-1), target, torch.full((2,), 5), torch.full((2,), 2))
        out.backward()
        return out.item(), scores.grad.cpu()

    assert loss("vgpu:1")[0] == loss("cpu")[0] and torch.equal(loss("vgpu:1")[1], loss("cpu")[1])


def test_data_parallel_on_a_gpu_that_is_not_there(two):
    with pytest.raises(AssertionError, match="Invalid device id"):
        nn.DataParallel(nn.Linear(2, 1), [0, 5])


def test_freed_memory_is_noted_without_python_code(two):
    meter.reset()
    held = meter.memory["vgpu:0"]
    x = torch.ones(1000, device="vgpu:0")
    assert meter.memory["vgpu:0"] == held + 4000
    del x  # where Ctrl-C cannot strike: see `_freed`
    assert meter.memory["vgpu:0"] == held and meter.peak["vgpu:0"] == held + 4000


def test_a_file_remembers_devices_and_shared_memory(two):
    base = torch.arange(4.0, device="vgpu:1")
    file = io.BytesIO()
    torch.save({"base": base, "view": base[:2], "cpu": torch.ones(1)}, file)

    def load(**options):
        file.seek(0)
        return torch.load(file, **options)

    back = load()
    back["view"][0] = 7.0
    assert back["base"].device == two[1] and back["base"][0].item() == 7 and back["cpu"].device.type == "cpu"
    for where in ("vgpu:0", two[0], {"vgpu:1": "vgpu:0"}, lambda storage, tag: storage.vgpu(0)):
        assert load(map_location=where)["base"].device == two[0]
    for where in ("cpu", lambda storage, tag: storage):
        assert type(load(map_location=where)["base"]) is torch.Tensor
    with pytest.raises(RuntimeError, match="Attempting to deserialize object on VGPU device 3"):
        load(map_location="vgpu:3")


def test_where_the_cpu_has_no_kernel_it_is_said_whose_words_these_are(two):
    with pytest.raises(NotImplementedError, match="histogram_cpu") as caught:  # CUDA's histc counts whole numbers too
        torch.histc(torch.arange(8, device="vgpu:0"), 4)
    assert "not rehearsed" in caught.value.__notes__[0]
    with pytest.raises(RuntimeError, match="on CPU") as caught:
        torch.ones(3, dtype=torch.bool, device="vgpu:0").topk(1)
    assert "not rehearsed" in caught.value.__notes__[0]
