"""What has to work: every rank has a GPU, and NCCL between them."""

import copy
import os
import tempfile
import warnings

import torch
import torch.distributed as dist
from table import dev, linear, ones, rank, works
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

n = 2


@works("test/distributed/test_c10d_nccl.py: test_allreduce_ops")
def reductions():
    kinds = (dist.ReduceOp.SUM, 3), (dist.ReduceOp.AVG, 1.5), (dist.ReduceOp.MAX, 2)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for op, wanted in kinds:
            x = torch.full((2,), rank + 1, dtype=dtype, device=dev)
            dist.all_reduce(x, op)
            assert x.tolist() == [wanted, wanted] and x.device == dev
            mine, part = torch.full((2,), rank + 1, dtype=dtype, device=dev), ones(1, dtype=dtype)
            for scatter, given in ((dist.reduce_scatter_tensor, mine), (dist.reduce_scatter, [mine[:1], mine[1:]])):
                work = scatter(part.zero_(), given, op, async_op=True)
                work.wait()
                work.wait()  # once more changes nothing
                assert part.item() == wanted
            dist.reduce(mine, 0, op)
            assert rank or mine.tolist() == [wanted, wanted]


@works("torch/distributed/distributed_c10d.py")
def every_collective():
    x = torch.full((2,), float(rank), device=dev)
    dist.broadcast(x, 1)
    assert x.tolist() == [1, 1]
    out = torch.empty(4, device=dev)
    dist.all_gather_into_tensor(out, torch.full((2,), float(rank), device=dev))
    assert out.tolist() == [0, 0, 1, 1]
    part = torch.empty(2, device=dev)
    dist.reduce_scatter_tensor(part, torch.arange(4.0, device=dev))
    assert part.tolist() == [4.0 * rank, 4.0 * rank + 2]
    parts = [torch.empty(1, device=dev) for _ in range(2)]
    dist.all_to_all(parts, [torch.tensor([10.0 * rank + i], device=dev) for i in range(2)])
    assert [p.item() for p in parts] == [rank, 10 + rank] and parts[0].device == dev
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
    assert x.tolist() == [2, 2]
    dist.barrier()


@works("torch/distributed/distributed_c10d.py: _get_split_source")
def a_group_that_not_all_are_in_where_ranks_are_bound_to_their_gpus():
    world = dist.group.WORLD
    bound, world.bound_device_id = world.bound_device_id, dev  # as init_process_group(device_id=…) does
    group = dist.new_group([1])
    world.bound_device_id = bound
    if rank == 1:
        x = ones(1)
        dist.all_reduce(x, group=group)
        assert x.item() == 1
    else:
        assert group is dist.GroupMember.NON_GROUP_MEMBER


@works("torch/distributed/distributed_c10d.py")
def objects_and_groups():
    seen = [None] * n
    dist.all_gather_object(seen, {"rank": rank, "there": torch.ones(1, device=dev)})
    assert [s["rank"] for s in seen] == [0, 1] and seen[1]["there"].device == torch.device("cuda:1")
    cpu = dist.new_group(backend="gloo")
    x = torch.ones(1)
    dist.all_reduce(x, group=cpu)
    assert x.item() == 2 and dist.get_backend() == "nccl" and dist.get_backend(cpu) == "gloo"


def trained(place, group, **options):
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).to(place)
    ddp = DDP(net, process_group=group, **options)
    adam = torch.optim.AdamW(net.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(rank)
    for _ in range(10):
        x, y = torch.randn(6, 8, generator=draw).to(place), torch.randint(3, (6,), generator=draw).to(place)
        adam.zero_grad()
        F.cross_entropy(ddp(x), y).backward()
        adam.step()
    return [p.detach().cpu() for p in net.parameters()]


@works("torch/nn/parallel/distributed.py")
def weights_equal_those_of_plain_gloo_bit_for_bit():
    gloo = dist.new_group(backend="gloo")
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        plain, ours = trained("cpu", gloo, **options), trained(dev, None, **options)
        assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))


@works("torch/nn/modules/batchnorm.py")
def sync_batch_norm():
    torch.manual_seed(0)
    x, full = torch.randn(8, 3, 5), nn.BatchNorm1d(3)
    net = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(3)).to(dev), device_ids=[rank])
    out = net(x[rank * 4 :][:4].to(dev))
    out.square().sum().backward()
    torch.testing.assert_close(out.detach().cpu(), full(x)[rank * 4 :][:4].detach())
    torch.testing.assert_close(net.module.running_var.cpu(), full.running_var)


@works("torch/distributed/optim/zero_redundancy_optimizer.py")
def zero_and_no_sync_and_join():
    net = DDP(linear(), device_ids=[rank])
    zero = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=0.1)
    with net.no_sync():
        net(torch.ones(2, 4, device=dev)).sum().backward()
    net(torch.ones(2, 4, device=dev)).sum().backward()
    zero.step()
    with net.join():
        for _ in range(2 + rank):
            net(torch.ones(2, 4, device=dev)).sum().backward()


@works("torch/amp/grad_scaler.py")
def amp_and_checkpointing_and_hooks():
    net, scaler = DDP(linear(), device_ids=[rank]), torch.amp.GradScaler("cuda")
    seen = []
    net.module.weight.register_hook(lambda grad: seen.append(grad.device))
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    with torch.autocast("cuda", dtype=torch.float16):
        out = checkpoint(net, torch.ones(2, 4, device=dev, requires_grad=True), use_reentrant=False)
        assert out.dtype == torch.float16
        loss = out.float().sum()
    scaler.scale(loss).backward()
    scaler.unscale_(sgd)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(sgd)
    scaler.update()
    assert seen == [dev] and net.module.weight.grad.device == dev


@works("torch/cuda/streams.py")
def streams_events_memory_and_pinning():
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    with torch.cuda.stream(torch.cuda.Stream()):
        x = torch.ones(1000).pin_memory().to(dev, non_blocking=True)
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) >= 0 and x.is_cuda and torch.cuda.memory_allocated() >= 4000
    assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated() and torch.cuda.device_count() == 2
    assert next(iter(DataLoader(TensorDataset(torch.ones(4)), pin_memory=True)))[0].is_pinned()
    assert torch.cuda.get_device_properties(0).total_memory == 2**28


@works("torch/nn/parallel/data_parallel.py")
def data_parallel():
    out = nn.DataParallel(linear("cuda:0"))(torch.ones(4, 4, device="cuda:0"))
    out.sum().backward()
    assert out.device == torch.device("cuda:0")


@works("torch/serialization.py")
def checkpoints_in_every_form():
    net = linear()
    file = os.path.join(tempfile.gettempdir(), f"rehearsed-{os.getpid()}.pt")
    torch.save(net.state_dict(), file)
    try:
        assert torch.load(file)["weight"].device == dev
        for where in ("cuda:0", {f"cuda:{rank}": "cuda:0"}, lambda storage, tag: storage.cuda(0)):
            assert torch.load(file, map_location=where)["weight"].device.index == 0
        assert not torch.load(file, map_location="cpu")["weight"].is_cuda
    finally:
        os.remove(file)


@works("torch/__init__.py")
def compile_is_skipped():
    net = torch.compile(linear())
    assert net(torch.ones(2, 4, device=dev)).device == dev
    assert list(net.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"] and isinstance(net._orig_mod, nn.Linear)


# ---- one rank's own: tensors, devices, memory ----------------------------------------------------------------


@works("torch/cuda/__init__.py")
def a_bare_number_and_cuda_without_one_mean_a_gpu():
    assert torch.ones(1, device=0).device == torch.device("cuda:0") == torch.device(0)
    assert torch.ones(1, device="cuda").device == dev == torch.ones(1).cuda().device == torch.ones(1).to(rank).device


@works("torch/cuda/__init__.py")
def the_current_gpu_changes_in_a_block():
    with torch.cuda.device(1 - rank):
        assert torch.cuda.current_device() == 1 - rank == torch.empty(1, device="cuda").get_device()
    assert torch.cuda.current_device() == rank


@works("test/test_torch.py: TensorIterator takes a number on the CPU")
def a_number_on_the_cpu_mixes_in():
    assert (ones() * torch.tensor(2.0)).device == dev and torch.where(
        ones() > 0, ones(), torch.tensor(0.0)
    ).device == dev
    total = torch.tensor(0.0, device=dev)
    total += torch.tensor(1.0)
    assert total.item() == 1


@works("test/test_indexing.py: indices on the CPU")
def indices_on_the_cpu_index_a_gpu_tensor():
    x = torch.arange(4.0, device=dev)
    x[torch.tensor([0])] = 9
    assert x[torch.tensor([0, 1])].tolist() == [9, 1] and x[torch.tensor([True, False, False, False])].device == dev


@works("test/test_cuda.py: test_copy_device")
def copies_go_between_devices():
    x = torch.zeros(2, device="cuda:0")
    x.copy_(torch.ones(2, device="cuda:1"))
    x[0] = torch.tensor(5.0)
    assert x.cpu().tolist() == [5, 1] and x.to("cuda:1").device.index == 1 and x.to(x.device) is x


@works("torch/_tensor.py")
def what_a_tensor_says_of_itself():
    x = ones(2)
    assert x.is_cuda and not x.is_cpu and x.get_device() == rank and x.type() == "torch.cuda.FloatTensor"
    assert f"device='cuda:{rank}'" in repr(x) and f"{x.sum():.1f}" == "2.0" and isinstance(x, torch.Tensor)
    assert isinstance(nn.Parameter(x), nn.Parameter)


@works("torch/utils/_device.py")
def a_default_device_and_a_device_as_a_block():
    with torch.device("cuda"):
        net = nn.Linear(2, 2)
    assert net.weight.is_cuda and torch.zeros(1).is_cpu
    torch.set_default_device("cuda")
    try:
        assert torch.arange(3).is_cuda and torch.tensor([1.0]).is_cuda
    finally:
        torch.set_default_device(None)


@works("torch/nn/modules/module.py")
def a_model_moves_in_place_and_keeps_its_parameters():
    net = linear("cpu")
    before = net.weight
    assert net.to(dev).weight is before and before.is_cuda and net.cpu().weight is before and before.is_cpu


@works("torch/optim/optimizer.py")
def an_optimizer_made_before_the_move_trains_on():
    net = linear("cpu")
    adam = torch.optim.Adam(net.parameters(), 0.1)
    net.to(dev)
    old = net.weight.detach().clone()
    net(ones()).sum().backward()
    adam.step()
    assert adam.state[net.weight]["exp_avg"].device == dev and not torch.equal(old, net.weight)


@works("torch/optim/optimizer.py")
def an_optimizer_state_loaded_from_the_cpu_goes_where_the_parameters_are():
    net = linear("cpu")
    adam = torch.optim.Adam(net.parameters(), 0.1)
    net(torch.ones(1, 4)).sum().backward()
    adam.step()
    there = linear()
    again = torch.optim.Adam(there.parameters(), 0.1)
    again.load_state_dict(adam.state_dict())
    assert again.state[there.weight]["exp_avg"].device == dev and again.state[there.weight]["step"].is_cpu


@works("torch/optim/adamw.py")
def every_kind_of_step_gives_the_same_weights():
    def stepped(**options):
        torch.manual_seed(1)
        net = linear("cpu").to(dev)
        adam = torch.optim.AdamW(net.parameters(), 0.1, **options)
        for _ in range(2):
            adam.zero_grad()
            net(ones()).square().sum().backward()
            adam.step()
        return net.weight

    plain = stepped(foreach=False)
    for options in ({}, {"foreach": True}, {"fused": True}, {"capturable": True}):
        torch.testing.assert_close(stepped(**options), plain)


@works("torch/include/ATen/native/ForeachUtils.h: _group_tensors_by_first_tensors_device_and_dtype")
def steps_of_low_precision_are_counted_on_the_gpu_and_states_may_be_in_bfloat16():
    def stepped(dtype, states, **options):
        torch.manual_seed(1)
        net = linear("cpu").to(dev, dtype)
        adam = torch.optim.AdamW(net.parameters(), 0.1, **options)
        for _ in range(2):
            adam.zero_grad()
            net(ones(dtype=dtype)).square().sum().backward()
            adam.step()
            for name in ("exp_avg", "exp_avg_sq"):
                adam.state[net.weight][name] = adam.state[net.weight][name].to(states)
                adam.state[net.bias][name] = adam.state[net.bias][name].to(states)
        return net.weight.float(), adam.state[net.weight]["exp_avg"].dtype

    plain, _ = stepped(torch.float, torch.float)
    for dtype in (torch.bfloat16, torch.float16):
        for options in ({"fused": True}, {"capturable": True}, {"fused": True, "amsgrad": True}):
            torch.testing.assert_close(stepped(dtype, dtype, **options)[0], plain, rtol=0.05, atol=0.02)
    mixed, states = stepped(torch.float, torch.bfloat16, fused=True)
    assert states == torch.bfloat16
    torch.testing.assert_close(mixed, plain, rtol=0.01, atol=0.01)


@works("torch/optim/lr_scheduler.py")
def schedules_clipping_and_weight_averages():
    net = linear()
    sgd = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True)
    plan = torch.optim.lr_scheduler.OneCycleLR(sgd, 0.1, total_steps=4)
    average = torch.optim.swa_utils.AveragedModel(net)
    for _ in range(3):
        sgd.zero_grad(set_to_none=True)
        net(ones()).sum().backward()
        assert nn.utils.clip_grad_norm_(net.parameters(), 0.1).device == dev
        nn.utils.clip_grad_value_(net.parameters(), 0.1)
        sgd.step()
        plan.step()
        average.update_parameters(net)
    assert average.module.weight.device == dev


@works("torch/random.py")
def the_same_seed_gives_the_same_numbers_on_each_gpu():
    torch.manual_seed(3)
    a = torch.rand(2, device="cuda:0")
    state = torch.cuda.get_rng_state(0)
    b = torch.rand(2, device="cuda:1")
    assert torch.equal(a.cpu(), b.cpu()) and not torch.equal(a.cpu(), torch.rand(2, device="cuda:0").cpu())
    torch.cuda.set_rng_state(state, 0)
    c = torch.rand(2, device="cuda:0")
    with torch.random.fork_rng(devices=[0]):
        torch.rand(9, device="cuda:0")
    torch.cuda.manual_seed_all(3)
    assert torch.equal(torch.rand(2, device="cuda:0").cpu(), a.cpu()) and not torch.equal(a.cpu(), c.cpu())


@works("torch/random.py")
def a_generator_of_the_gpus_own():
    draw = torch.Generator(device=dev).manual_seed(5)
    a, b = torch.randn(3, device=dev, generator=draw), torch.randn(3, device=dev, generator=draw.manual_seed(5))
    assert torch.equal(a, b) and draw.device == dev and draw.initial_seed() == 5


@works("torch/amp/autocast_mode.py")
def autocast_takes_half_for_products_and_float_for_sums():
    with torch.autocast("cuda", dtype=torch.float16):
        out = linear()(ones())
        assert out.dtype == torch.float16 == (ones() @ ones(4, 2)).dtype
        for wide in (out.softmax(-1), F.log_softmax(out, -1), out.sum(), out.exp(), F.mse_loss(out, out), out.pow(2)):
            assert wide.dtype == torch.float32
        assert F.layer_norm(out, (4,)).dtype == torch.float32 == F.cross_entropy(out, torch.tensor([0, 1]).cuda()).dtype
        assert out.relu().dtype == torch.float16 and torch.is_autocast_enabled("cuda")
    assert linear()(ones()).dtype == torch.float32


@works("torch/cuda/amp/autocast_mode.py")
def the_older_names_of_amp():
    with torch.cuda.amp.autocast():
        assert linear()(ones()).dtype == torch.float16
    assert torch.cuda.amp.GradScaler().get_scale() == 65536.0 and torch.get_autocast_dtype("cuda") == torch.float16


@works("torch/amp/grad_scaler.py")
def a_scaler_skips_a_step_with_infinite_gradients_and_goes_down():
    net, scaler = linear(), torch.amp.GradScaler("cuda", init_scale=1024.0)
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    before = net.weight.detach().clone()
    scaler.scale(net(ones()).sum() * float("inf")).backward()
    scaler.step(sgd)
    scaler.update()
    assert torch.equal(before, net.weight) and scaler.get_scale() == 512.0
    assert torch.amp.GradScaler("cuda").state_dict()["scale"] == 65536.0


@works("torch/utils/data/_utils/pin_memory.py")
def workers_make_batches_that_go_to_the_gpu():
    data = TensorDataset(torch.arange(8.0).view(8, 1), torch.arange(8))
    loader = DataLoader(data, 4, num_workers=2, pin_memory=True, persistent_workers=True, prefetch_factor=2)
    for _ in range(2):
        seen = [y.to(dev, non_blocking=True).sum().item() for x, y in loader if x.is_pinned()]
        assert seen == [6, 22]


@works("torch/nn/modules/rnn.py")
def packed_sequences_recurrent_layers_and_attention():
    packed = nn.utils.rnn.pack_padded_sequence(ones(3, 2, 4), torch.tensor([3, 2]))
    out, (h, _) = nn.LSTM(4, 4).cuda()(packed)
    padded, lengths = nn.utils.rnn.pad_packed_sequence(out)
    assert padded.device == h.device == dev and lengths.is_cpu
    mask = nn.Transformer.generate_square_subsequent_mask(3, device=dev)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).cuda()
    assert layer(ones(2, 3, 4), src_mask=mask).device == dev
    assert F.scaled_dot_product_attention(ones(1, 2, 3, 4), ones(1, 2, 3, 4), ones(1, 2, 3, 4), is_causal=True).is_cuda


@works("test/test_cuda.py: test_autocast_rnn; aten/src/ATen/cudnn/AutocastRNN.cpp casts to half, under bfloat16 too")
def recurrent_layers_under_autocast_are_in_float16():
    for dtype, kind in ((torch.float16, nn.LSTM), (torch.bfloat16, nn.GRU), (torch.bfloat16, nn.RNN)):
        net, x = kind(4, 3, 2, bidirectional=True).to(dev), torch.randn(5, 2, 4, device=dev)
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]))
        for given in (x, x.to(dtype), packed):
            with torch.autocast("cuda", dtype=dtype):
                out, hidden = net(given)
                cell = nn.LSTMCell(4, 3).to(dev)(x[0])
            out = out.data if given is packed else out
            assert out.dtype == hidden[0].dtype == torch.float16 and cell[0].dtype == cell[1].dtype == dtype
            out.sum().backward()
        half = copy.deepcopy(net).half()
        assert torch.equal(out, half(packed.to(torch.half))[0].data) and net.weight_ih_l0.grad.dtype == torch.float32


@works("torch/nn/functional.py")
def losses_of_every_kind():
    x, y = ones(2, 4, requires_grad=True), torch.tensor([0, 1], device=dev)
    losses = [F.cross_entropy(x, y, weight=ones(4), label_smoothing=0.1), F.nll_loss(F.log_softmax(x, 1), y)]
    losses += [
        F.huber_loss(x, ones()),
        F.binary_cross_entropy_with_logits(x, ones(), pos_weight=ones(4)),
        F.l1_loss(x, 0 * x),
    ]
    losses += [
        F.kl_div(F.log_softmax(x, 1), F.softmax(x, 1), reduction="batchmean"),
        F.gaussian_nll_loss(x, ones(), ones()),
    ]
    losses.append(F.ctc_loss(ones(3, 1, 4).log_softmax(2), torch.tensor([[1, 2]], device=dev), (3,), (2,)))
    sum(losses).backward()
    assert all(loss.device == dev for loss in losses) and x.grad.device == dev


@works("torch/autograd/function.py")
def functions_of_ones_own_and_second_derivatives():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            return 3 * ctx.saved_tensors[0] ** 2 * grad

    x = torch.tensor(2.0, device=dev, requires_grad=True)
    (first,) = torch.autograd.grad(Cube.apply(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert first.item() == 12 and second.item() == 12 and second.device == dev


@works("torch/backends/cudnn/__init__.py: flags")
def a_recurrent_layer_without_cudnn_has_second_derivatives_and_learns_in_evaluation():
    with torch.backends.cudnn.flags(enabled=False):
        net, x = nn.LSTM(4, 4).cuda().eval(), ones(3, 2, 4, requires_grad=True)
        (slope,) = torch.autograd.grad(net(x)[0].sum(), x, create_graph=True)
    slope.sum().backward()
    assert x.grad.device == dev and x.grad.abs().sum() > 0


@works("torch/_tensor.py")
def numbers_leave_the_gpu():
    x = ones(2)
    assert x.cpu().numpy().tolist() == x.tolist() == [1, 1] and float(x[0]) == x[0].item() == 1 and len(x) == 2
    assert bool(x.all()) and {"loss": x.mean().item()} == {"loss": 1.0} and int(x.argmax()) == 0


@works("torch/cuda/memory.py")
def memory_is_given_back_and_its_peak_remembered():
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x = torch.empty(2**20, dtype=torch.uint8, device=dev)
    assert torch.cuda.memory_allocated() - before == 2**20
    del x
    assert torch.cuda.memory_allocated() == before and torch.cuda.max_memory_allocated() - before == 2**20
    free, total = torch.cuda.mem_get_info()
    assert free <= total and torch.cuda.memory_stats()["allocated_bytes.all.current"] == before


@works("torch/accelerator/__init__.py")
def the_accelerator_is_cuda():
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == torch.cuda.device_count() == 2
    assert torch.accelerator.current_accelerator().type == "cuda" and torch.accelerator.current_device_index() == rank
    assert torch.cuda.is_available() and torch.version.cuda
    assert torch.cuda.is_bf16_supported() and torch.cuda.get_device_capability() >= (7, 0)


@works("torch/cuda/__init__.py: class FloatTensor; torch/__init__.py: set_default_tensor_type")
def the_types_of_before_torch_0_4():
    kind, x = torch.cuda.FloatTensor, torch.ones(2, 3)
    assert x.type(kind).device == x.double().type("torch.cuda.FloatTensor").device == kind(x.shape).device == dev
    assert isinstance(ones(), kind) and not isinstance(x, kind) and not isinstance(ones().half(), kind)
    back = ones().type(torch.HalfTensor)
    assert (back.device.type, back.dtype, kind([1, 2]).sum().item()) == ("cpu", torch.half, 3)
    try:
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
        assert torch.zeros(2).device == torch.tensor([1.0]).device == dev
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert torch.zeros(2).device.type == "cpu"


@works("torch/autograd/graph.py: save_on_cpu")
def tensors_that_are_made_pinned():
    made = [torch.empty(3, pin_memory=True), torch.rand(2, pin_memory=True), torch.tensor([1.0], pin_memory=True)]
    assert all(x.is_pinned() for x in made) and not torch.zeros(2).is_pinned()
    x = ones().requires_grad_()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        (x * x).sum().backward()
    assert x.grad.device == dev and x.grad.eq(2).all()


@works("torch/backends/cuda/__init__.py")
def switches_that_scripts_set():
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    torch.use_deterministic_algorithms(False)
    with torch.cuda.nvtx.range("step"), torch.profiler.record_function("step"):
        assert ones().sum().item() == 8


@works("torch/cuda/profiler.py")
def what_scripts_under_nsys_and_benchmarks_ask_of_cuda():
    assert torch.cuda.cudart().cudaProfilerStart() == torch.cuda.cudart().cudaProfilerStop() == 0
    with torch.cuda.profiler.profile():
        torch.cuda._sleep(1000)
    torch.cuda.check_error(0)
    assert torch.cuda.cudart().cudaMemGetInfo(rank)[1] == torch.cuda.mem_get_info(rank)[1]
    assert isinstance(torch.cuda.memory_snapshot(), list)


@works("torch/cuda/nccl.py")
def collectives_among_the_gpus_of_one_process():
    def each(*numbers):
        return [torch.tensor(row, device=f"cuda:{gpu}") for gpu, row in enumerate(numbers)]

    nccl, out, wide, half = torch.cuda.nccl, each([0.0, 0], [0.0, 0]), each([0.0] * 4, [0.0] * 4), each([0.0], [0.0])
    given = each([1.0, 2.0], [3.0, 5.0])
    assert nccl.is_available(given) and not nccl.is_available([torch.ones(1)]) and nccl.version() >= (2, 10)
    nccl.all_reduce(given, out)
    assert out[0].tolist() == out[1].tolist() == [4, 7] and out[1].device.index == 1
    nccl.reduce(given, out[1], root=1, op=2)  # ncclMax
    nccl.all_gather(given, wide)
    nccl.reduce_scatter(given, half)
    assert out[1].tolist() == [3, 5] and wide[0].tolist() == [1, 2, 3, 5] and [h.item() for h in half] == [4, 7]
    nccl.broadcast(given, root=1)
    assert given[0].tolist() == given[1].tolist() == [3, 5] and len(nccl.unique_id()) == 128


# ---- between ranks ----------------------------------------------------------------------------------------------


@works("test/distributed/test_c10d_nccl.py: test_all_gather_v, uneven sizes")
def tensors_of_several_sizes_are_gathered():
    parts = [torch.empty(1, device=dev), torch.empty(2, device=dev)]
    dist.all_gather(parts, torch.full((rank + 1,), float(rank), device=dev))
    assert [p.tolist() for p in parts] == [[0.0], [1.0, 1.0]]


@works("test/distributed/test_c10d_nccl.py: test_reduce_scatter_v, uneven sizes")
def tensors_of_several_sizes_are_reduced_and_scattered():
    mine = torch.empty(rank + 1, device=dev)
    given = [torch.full((n,), n * (1.0 + rank), device=dev) for n in (1, 2)]
    for op, factor in ((dist.ReduceOp.SUM, 3), (dist.ReduceOp.AVG, 1.5)):
        dist.reduce_scatter(mine, given, op)
        assert mine.tolist() == [factor * (rank + 1)] * (rank + 1)
    assert given[1 - rank].unique().item() == (2 - rank) * (1 + rank)  # what was given stays


@works("torch/include/torch/csrc/distributed/c10d/Utils.hpp: newLikeFlat, filled by the number of elements")
def shapes_differ_where_sizes_do_not():
    parts = [torch.empty(2, 3, device=dev) for _ in range(2)]
    dist.all_gather(parts, torch.full((6,), float(rank), device=dev))
    assert [p.sum().item() for p in parts] == [0, 6]
    dist.reduce_scatter(mine := torch.empty(6, device=dev), parts)
    assert mine.tolist() == [2.0 * rank] * 6


@works("torch/distributed/distributed_c10d.py")
def booleans_are_added_as_or():
    x = torch.tensor([rank == 0, False], device=dev)
    dist.all_reduce(x)
    assert x.tolist() == [True, False]


@works("torch/distributed/distributed_c10d.py")
def what_rank_0_decides_reaches_all():
    word = ["stop" if rank == 0 else None]
    dist.broadcast_object_list(word, src=0, device=dev)
    out = [None]
    dist.scatter_object_list(out, ["a", "b"] if rank == 0 else None, src=0)
    gathered = [None, None] if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0)
    assert word == ["stop"] and out == ["ab"[rank]] and (rank or gathered == [0, 1])


@works("torch/distributed/distributed_c10d.py: reduce, only the process with rank dst receives the result")
def what_is_reduced_to_one_rank_stays_as_it_was_on_the_others():
    for op, wanted in ((dist.ReduceOp.SUM, 3.0), (dist.ReduceOp.AVG, 1.5)):
        for root in range(2):
            x = torch.full((5,), rank + 1.0, device=dev)
            dist.reduce(x, root, op, async_op=True).wait()
            assert x.tolist() == [wanted if rank == root else rank + 1.0] * 5


@works("torch/distributed/distributed_c10d.py")
def reduce_gather_scatter_and_uneven_all_to_all():
    x = torch.full((2,), float(rank + 1), device=dev)
    dist.reduce(x, 0)
    assert rank or x.tolist() == [3, 3]
    parts = [torch.empty(1, device=dev) for _ in range(2)] if rank == 0 else None
    dist.gather(torch.tensor([float(rank)], device=dev), parts, dst=0)
    got = torch.empty(1, device=dev)
    dist.scatter(got, [torch.tensor([7.0 + i], device=dev) for i in range(2)] if rank == 0 else None, src=0)
    sizes = [[1, 2], [3, 1]]
    out = torch.empty(sizes[0][rank] + sizes[1][rank], device=dev)
    dist.all_to_all_single(
        out, torch.full((sum(sizes[rank]),), float(rank), device=dev), [s[rank] for s in sizes], sizes[rank]
    )
    assert got.item() == 7 + rank and out.sum().item() == sizes[1][rank]


@works("torch/distributed/distributed_c10d.py")
def sends_that_are_batched_and_not_waited_for():
    mine, theirs = torch.full((3,), float(rank), device=dev), torch.empty(3, device=dev)
    ops = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert theirs.tolist() == [1 - rank] * 3


@works("torch/distributed/distributed_c10d.py")
def groups_of_one_rank_each():
    groups = [dist.new_group([r]) for r in range(2)]
    x = torch.ones(1, device=dev)
    dist.all_reduce(x, group=groups[rank])
    assert x.item() == 1 and dist.get_rank(groups[rank]) == 0 and dist.get_world_size(groups[rank]) == 1


@works("torch/distributed/device_mesh.py")
def a_device_mesh():
    mesh = dist.init_device_mesh("cuda", (2,))
    x = torch.ones(1, device=dev)
    dist.all_reduce(x, group=mesh.get_group())
    assert x.item() == 2 and mesh.get_local_rank() == rank


@works("torch/profiler/profiler.py")
def a_profile_has_the_cpus_side():
    with torch.profiler.profile(activities=list(torch.profiler.ProfilerActivity.__members__.values())[:3]) as profile:
        linear()(ones())
    assert "aten::linear" in profile.key_averages().table(sort_by="self_cuda_time_total")


@works("torch/include/ATen/native/cuda/CuFFTPlanCache.h: half precision, sizes that are powers of two")
def signals_in_half_precision():
    x = torch.randn(2, 8, device=dev).half().requires_grad_()
    back = torch.fft.irfft(2 * torch.fft.rfft(x))
    back.sum().backward()
    assert torch.allclose(back, 2 * x, atol=0.01) and torch.allclose(x.grad, torch.full_like(x, 2), atol=0.01)
    image = torch.fft.fft2(ones(1, 4, 4, dtype=torch.half), norm="ortho")
    assert image.dtype == torch.complex32 and image[0, 0, 0].item() == 4 and image.device == dev
    frames = torch.stft(ones(32, dtype=torch.half), 8, window=ones(8, dtype=torch.half), return_complex=True)
    assert frames.dtype == torch.complex32 and frames[0].real.eq(8).all()


@works("torch/testing/_internal/common_methods_invocations.py: dtypesIfCUDA")
def kernels_that_the_cpu_has_for_32_bits_only():
    x = ones(1, 1, 2, 4, 4, dtype=torch.half).requires_grad_()
    y = F.interpolate(F.avg_pool3d(x, 2)[0], (3, 3), mode="bilinear", antialias=True)
    y.sum().backward()
    assert (y.dtype, x.grad.dtype, x.grad.device) == (torch.half, torch.half, dev) and x.grad.sum() == 9


@works("torch/distributed/tensor/_api.py: to_local, full_tensor")
def shards_of_fsdp_are_trained_and_looked_at():
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    net = linear()
    before = net.weight.detach().clone()
    dist.broadcast(before, 0)
    dist.broadcast(net.weight.data, 0)
    fully_shard(net, mesh=dist.init_device_mesh("cuda", (2,)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(ones()).sum().backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 99.0).full_tensor()  # of 16 weights and 4 biases
    assert abs(norm.item() - 80**0.5) < 1e-5
    optimizer.step()
    mine, whole = net.weight.to_local(), net.weight.full_tensor()  # also where gradients are recorded
    assert mine.shape == (2, 4) and mine.device == dev and mine.requires_grad
    assert torch.allclose(whole, before - 0.2) and torch.equal(whole[2 * rank : 2 * rank + 2], mine)
    assert torch.equal(net.weight.grad.full_tensor(), torch.full((4, 4), 2.0, device=dev))
    saved = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    assert net.weight.to("cuda") is net.weight and (rank or torch.equal(saved["weight"], whole.cpu()))
    part, dtype = net.state_dict()["weight"], torch.float64
    there, wide = part.cpu(), part.to("cpu", dtype)
    assert (net.weight.device, part.device, there.device, wide.device) == (dev, dev, *[torch.device("cpu")] * 2)
    assert torch.equal(there.to_local(), mine.detach().cpu()) and wide.to_local().dtype == dtype


@works("torch/distributed/tensor/_random.py")
def shards_of_what_was_made_on_meta_are_filled():
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        net = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4))
    fully_shard(net, mesh=dist.init_device_mesh("cuda", (2,)))
    net.to_empty(device="cuda")
    for layer in net:
        layer.reset_parameters()
    words, weight = net[0].weight.full_tensor(), net[1].weight.full_tensor()
    assert words.std() > 0.5 and words.device == dev and not torch.equal(words[:4], words[4:])
    assert weight.std() > 0 and weight.abs().max() <= 0.5


@works("torch/include/torch/csrc/autograd/input_metadata.h: it asks for a GPU's stream, in C++, which ends the process")
def what_cannot_be_rehearsed_says_so():
    from torch.distributed.tensor import distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = dist.init_device_mesh("cuda", (2,))
    parallel = parallelize_module(linear(), mesh, ColwiseParallel())
    weight = distribute_tensor(ones(4, 4), mesh).requires_grad_()
    for attempt in (
        lambda: torch.cuda.graph(torch.cuda.CUDAGraph()),
        lambda: torch.export.export(linear(), (ones(),)),
        lambda: parallel(ones()).sum().backward(),
        lambda: weight.to_local().sum().backward(),
        lambda: weight.full_tensor().sum().backward(),
        lambda: weight.sum().backward(),
        lambda: weight.detach().cuda(1 - rank),
        lambda: weight.cpu(),
    ):
        try:
            attempt()
        except NotImplementedError as error:
            assert "rehearsed" in str(error) or "virtual" in str(error)
        else:
            raise AssertionError("it went on")


@works("torch/nn/parallel/distributed.py")
def ddp_takes_a_static_graph_and_unused_parameters():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = linear(), linear()

        def forward(self, x):
            return self.used(x)

    for options in ({"find_unused_parameters": True}, {"static_graph": True}, {"broadcast_buffers": False}):
        net = DDP(Net() if "broadcast_buffers" not in options else linear(), device_ids=[rank], **options)
        for _ in range(2):
            net(ones() * (rank + 1)).sum().backward()


@works("torch/__init__.py: use_deterministic_algorithms")
def deterministic_algorithms_where_cuda_has_them():
    torch.use_deterministic_algorithms(True)
    try:
        image = ones(1, 3, 4, 4, requires_grad=True)
        F.adaptive_avg_pool2d(image, 1).sum().backward()
        F.interpolate(image, scale_factor=2.0, mode="bilinear").sum().backward()
        F.cross_entropy(image, ones(1, 4, 4).long(), reduction="none").mean().backward()
        torch.bincount(ones(2).long())
        ones(2).median(), ones(2).long().cumsum(0)
        torch.use_deterministic_algorithms(True, warn_only=True)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert ones(2).cumsum(0).tolist() == [1, 2]
        assert "cumsum_cuda_kernel does not have a deterministic implementation" in str(told[0].message)
    finally:
        torch.use_deterministic_algorithms(False)


@works("test/test_nn.py: cuDNN sums half precision in float32")
def gradients_of_a_convolution_in_half_are_those_of_float_rounded():
    net, image = nn.Conv2d(3, 4, 3).to(dev), torch.randn(2, 3, 8, 8, device=dev)
    grads = []
    for dtype in (torch.float16, torch.float32):
        x, made = image.half().to(dtype).requires_grad_(), copy.deepcopy(net).half().to(dtype)
        made(x).sum().backward()
        grads.append((x.grad, made.weight.grad, made.bias.grad))
    for a, b in zip(*grads, strict=True):
        assert a.dtype is torch.float16 and torch.allclose(a.float(), b, rtol=2**-10, atol=1e-3)


@works("torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py")
def ddp_compresses_gradients_by_a_hook():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    net = DDP(linear(), device_ids=[rank])
    net.register_comm_hook(None, default_hooks.bf16_compress_hook)
    net(ones() * (rank + 1)).sum().backward()
    grads = [torch.empty(4, 4, device=dev) for _ in range(2)]
    dist.all_gather(grads, net.module.weight.grad)
    assert torch.equal(*grads) and grads[0][0, 0].item() == 3


@works("torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py")
def what_a_hooks_future_brings_is_on_the_gpu():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    def hook(state, bucket):
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / torch.full((1,), 2.0, device="cuda"))

    net, compressed = DDP(linear(), device_ids=[rank]), DDP(nn.Linear(32, 32).to(dev), device_ids=[rank])
    net.register_comm_hook(None, hook)
    compressed.register_comm_hook(power.PowerSGDState(None, 1, start_powerSGD_iter=2), power.powerSGD_hook)
    net(ones() * (rank + 1)).sum().backward()
    assert net.module.weight.grad[0, 0].item() == 3
    for _ in range(4):
        compressed.zero_grad()
        compressed(ones(2, 32) * (rank + 1)).sum().backward()
    assert compressed.module.weight.grad.sub(3).abs().max().item() < 1e-3  # of rank one, so nothing is lost


@works("torch/nn/parallel/distributed.py")
def ddp_brings_the_batch_and_averages_the_gradients():
    net = DDP(linear(), device_ids=[rank])
    assert net(torch.ones(2, 4)).device == dev  # device_ids brings what is on the CPU
    net(ones() * (rank + 1)).sum().backward()
    assert net.module.weight.grad[0, 0].item() == 3 and "module.weight" in net.state_dict()


@works("torch/serialization.py")
def a_checkpoint_of_rank_0_is_read_by_all():
    net = DDP(linear(), device_ids=[rank])
    file = os.path.join(tempfile.gettempdir(), f"of-rank-0-{os.environ.get('TORCHELASTIC_RUN_ID', '')}.pt")
    if rank == 0:
        torch.save({"model": net.module.state_dict(), "epoch": 3}, file)
    dist.barrier()
    saved = torch.load(file, map_location=dev, weights_only=True)
    net.module.load_state_dict(saved["model"])
    assert saved["model"]["weight"].device == dev and saved["epoch"] == 3
    dist.barrier()
    if rank == 0:
        os.remove(file)
