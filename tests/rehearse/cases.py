"""Run by test_rehearse.py on two rehearsed ranks: mistakes, each with CUDA's or NCCL's words, and things that work."""

import io
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
n, dev = dist.get_world_size(), torch.device("cuda", rank)
MISTAKES, WORKS = {}, {}
SAME = "Expected all tensors to be on the same device"  # aten/src/ATen/TensorIterator.cpp, core/adaption.cpp


def mistake(words):
    return lambda function: MISTAKES.update({function.__name__: (function, words)}) or function


def works(function):
    WORKS[function.__name__] = function


def linear(place=dev):
    return nn.Linear(4, 4).to(place)


@mistake(SAME)
def batch_on_the_cpu():
    linear()(torch.ones(2, 4))


@mistake(SAME)
def target_on_the_cpu():
    F.cross_entropy(linear()(torch.ones(2, 4).cuda()), torch.zeros(2, dtype=torch.long))


@mistake(SAME)
def class_weights_on_the_cpu():
    F.cross_entropy(torch.ones(2, 4).cuda(), torch.zeros(2, dtype=torch.long).cuda(), torch.ones(4))


@mistake(SAME)
def noise_made_without_a_device():
    x = torch.ones(2, 4).cuda()
    x + torch.randn(x.shape)


@mistake(SAME)
def embedding_of_indices_on_the_cpu():
    nn.Embedding(4, 2).cuda()(torch.tensor([1]))


@mistake(f"{SAME}, but found at least two devices")
def tensors_of_two_gpus():
    torch.ones(2, device="cuda:0") + torch.ones(2, device="cuda:1")


@mistake("Use Tensor.cpu() to copy the tensor to host memory first.")  # torch/csrc/utils/tensor_numpy.cpp
def numpy_of_a_gpu_tensor():
    torch.ones(2).cuda().numpy()


@mistake("Expected a 'cuda' device type for generator but found 'cpu'")  # ATen/core/Generator.h
def a_cpu_generator():
    torch.randn(2, device="cuda", generator=torch.Generator())


@mistake("Expected a 'cuda' device type for generator but found 'cpu'")
def a_shuffling_loader_under_a_default_device():
    torch.set_default_device("cuda")
    try:
        list(DataLoader(TensorDataset(torch.ones(4)), shuffle=True, generator=torch.Generator()))
    finally:
        torch.set_default_device(None)


@mistake("CUDA error: invalid device ordinal")  # c10/cuda/CUDAException.cpp
def a_gpu_that_is_not_there():
    torch.cuda.set_device(5)


@mistake("CUDA out of memory. Tried to allocate 512.00 MiB. GPU")  # c10/cuda/CUDACachingAllocator.cpp
def more_than_a_gpu_holds():
    torch.empty(2**29, dtype=torch.uint8, device=dev)


@mistake("indices should be either on cpu or on the same device as the indexed tensor (cpu)")  # TensorAdvancedIndexing
def a_gpu_index_of_a_cpu_tensor():
    torch.ones(3)[torch.tensor([1]).cuda()]


@mistake(
    "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same"
)  # Convolution.cpp
def an_image_on_the_cpu():
    nn.Conv2d(1, 1, 3).cuda()(torch.ones(1, 1, 5, 5))


@mistake("Input and hidden tensors are not at the same device, found input tensor at cuda:")  # native/RNN.h
def a_hidden_state_on_the_cpu():
    nn.LSTM(2, 3).cuda()(torch.ones(4, 1, 2).cuda(), (torch.zeros(1, 1, 3), torch.zeros(1, 1, 3)))


@mistake("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")  # native/Memory.cpp
def pinning_what_is_on_a_gpu():
    torch.ones(2).cuda().pin_memory()


@mistake("attempting to assign a gradient with device type 'cpu' to a tensor with device type 'cuda'")
def a_gradient_from_the_cpu():  # torch/csrc/autograd/python_variable.cpp
    linear().weight.grad = torch.ones(4, 4)


@mistake("invalid gradient at index 0 - expected device cuda:")  # torch/csrc/autograd/engine.cpp
def a_backward_from_the_cpu():
    linear()(torch.ones(2, 4).cuda()).backward(torch.ones(2, 4))


@mistake("Tensors of the same index must be on the same device and the same dtype")  # native/ForeachUtils.h
def an_optimizer_state_on_the_cpu():
    net = linear()
    adam = torch.optim.Adam(net.parameters(), foreach=True)
    for _ in range(2):
        net(torch.ones(2, 4).cuda()).sum().backward()
        adam.step()
        adam.state[net.weight]["exp_avg"] = adam.state[net.weight]["exp_avg"].cpu()


@mistake(
    "Attempting to deserialize object on CUDA device 5 but torch.cuda.device_count() is 2"
)  # torch/serialization.py
def no_map_location():
    file = io.BytesIO()
    torch.save(torch.ones(2).cuda(), file)
    torch.load(io.BytesIO(file.getvalue()), map_location="cuda:5")


@mistake("'lengths' argument should be a 1D CPU int64 tensor, but got 1D cuda:")  # native/PackedSequence.cpp
def lengths_on_a_gpu():
    nn.utils.rnn.pack_padded_sequence(torch.ones(2, 1, 1).cuda(), torch.tensor([2]).cuda())


class OnTheGPU(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return torch.ones(2).cuda()


@mistake("Cannot re-initialize CUDA in forked subprocess")  # torch/cuda/__init__.py
def a_worker_that_uses_the_gpu():
    list(DataLoader(OnTheGPU(), num_workers=1))


@mistake("No backend type associated with device type cpu")  # torch/csrc/distributed/c10d/ProcessGroup.hpp
def a_metric_on_the_cpu():
    dist.all_reduce(torch.ones(1))


@mistake("Tensors must be contiguous")  # ProcessGroupNCCL.cpp
def a_transposed_tensor():
    dist.all_reduce(torch.ones(2, 3, device=dev).t())


@mistake("Input tensor data type is not supported for NCCL process group: Short")  # NCCLUtils.cpp: getNcclDataType
def a_type_that_nccl_lacks():
    dist.all_reduce(torch.ones(2, dtype=torch.int16, device=dev))


@mistake("Duplicate GPU detected : rank ")  # NCCL, src/init.cc
def two_ranks_on_one_gpu():
    dist.all_reduce(torch.ones(2, device="cuda:0"), group=dist.new_group())


@mistake("DistributedDataParallel device_ids and output_device arguments only work with single-device")
def ddp_of_a_model_on_the_cpu():  # torch/nn/parallel/distributed.py
    DDP(linear("cpu"), device_ids=[rank])


@mistake("No backend type associated with device type cpu")
def ddp_without_device_ids_of_a_model_on_the_cpu():
    DDP(linear("cpu"))


@works
def reductions():
    kinds = (dist.ReduceOp.SUM, 3), (dist.ReduceOp.AVG, 1.5), (dist.ReduceOp.MAX, 2)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for op, wanted in kinds:
            x = torch.full((2,), rank + 1, dtype=dtype, device=dev)
            dist.all_reduce(x, op)
            assert x.tolist() == [wanted, wanted] and x.device == dev


@works
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


@works
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


@works
def weights_equal_those_of_plain_gloo_bit_for_bit():
    gloo = dist.new_group(backend="gloo")
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        plain, ours = trained("cpu", gloo, **options), trained(dev, None, **options)
        assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))


@works
def sync_batch_norm():
    torch.manual_seed(0)
    x, full = torch.randn(8, 3, 5), nn.BatchNorm1d(3)
    net = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(3)).to(dev), device_ids=[rank])
    out = net(x[rank * 4 :][:4].to(dev))
    out.square().sum().backward()
    torch.testing.assert_close(out.detach().cpu(), full(x)[rank * 4 :][:4].detach())
    torch.testing.assert_close(net.module.running_var.cpu(), full.running_var)


@works
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


@works
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


@works
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


@works
def data_parallel():
    out = nn.DataParallel(linear("cuda:0"))(torch.ones(4, 4, device="cuda:0"))
    out.sum().backward()
    assert out.device == torch.device("cuda:0")


@works
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


@works
def compile_is_skipped():
    net = torch.compile(linear())
    assert net(torch.ones(2, 4, device=dev)).device == dev


def main(file):
    wrong = {}
    for name, (function, words) in MISTAKES.items():
        torch.cuda.set_device(rank)
        try:
            function()
            wrong[name] = "nothing was raised"
        except Exception as error:
            if words not in str(error):
                wrong[name] = f"{type(error).__name__}: {error}"
    for name, function in WORKS.items():
        torch.cuda.set_device(rank)
        try:
            function()
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"
    with open(f"{file}.{rank}", "w") as out:
        json.dump({"wrong": wrong, "mistakes": len(MISTAKES), "works": len(WORKS)}, out)
    dist.destroy_process_group()


main(sys.argv[1])
