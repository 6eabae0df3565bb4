"""Mistakes that show between ranks: what NCCL does not take, and what DistributedDataParallel refuses."""

import torch
import torch.distributed as dist
from table import NCCL, dev, linear, mistake, ones, rank
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

NO_BACKEND = "No backend type associated with device type cpu"
BACKEND = "libtorch_cpu: torch/csrc/distributed/c10d/ProcessGroup.hpp: No backend type associated with device type "
PYTHON = "torch/distributed/distributed_c10d.py"
WRAPPER = "torch/nn/parallel/distributed.py"
REDUCER = "libtorch_cpu: torch/csrc/distributed/c10d/reducer.cpp"


# ---- NCCL ------------------------------------------------------------------------------------------------------


@mistake(NO_BACKEND, BACKEND)
def a_metric_on_the_cpu():
    dist.all_reduce(torch.ones(1))


@mistake(NO_BACKEND, BACKEND)
def a_flag_on_the_cpu_that_is_broadcast():
    dist.broadcast(torch.zeros(1), 0)


@mistake(NO_BACKEND, BACKEND)
def results_gathered_on_the_cpu():
    dist.all_gather([torch.empty(1) for _ in range(2)], torch.ones(1))


@mistake(NO_BACKEND, BACKEND)
def a_tensor_on_the_cpu_that_is_sent():
    dist.send(torch.ones(1), 1 - rank)


@mistake("Tensors must be contiguous", NCCL)
def a_transposed_tensor():
    dist.all_reduce(ones(2, 3).t())


@mistake("Tensors must be contiguous", NCCL)
def a_column_of_a_batch():
    dist.broadcast(ones(3, 3)[:, 0], 0)


@mistake("Input tensor data type is not supported for NCCL process group: Short",
         "libtorch_cuda: torch/csrc/distributed/c10d/NCCLUtils.cpp: Input tensor data type is not supported for NCCL process group: ")  # fmt: skip
def a_type_that_nccl_lacks():
    dist.all_reduce(ones(2, dtype=torch.int16))


@mistake("Cannot use ReduceOp.BAND with NCCL", NCCL)
def flags_combined_by_bitwise_and():
    dist.all_reduce(ones(1, dtype=torch.int32), dist.ReduceOp.BAND)


@mistake("Cannot use ReduceOp.BXOR with NCCL", NCCL)
def flags_combined_by_bitwise_xor():
    dist.all_reduce(ones(1, dtype=torch.int32), dist.ReduceOp.BXOR)


@mistake("Cannot use ReduceOp.AVG with boolean inputs", NCCL)
def the_average_of_booleans():
    dist.all_reduce(ones(1, dtype=torch.bool), dist.ReduceOp.AVG)


@mistake("all_reduce does not support …MAX on complex tensors", f"{PYTHON}: all_reduce does not support ")
def the_largest_of_complex_numbers():
    dist.all_reduce(ones(1, dtype=torch.cfloat), dist.ReduceOp.MAX)


@mistake("output tensor size must be equal to world_size times input tensor size", NCCL)
def gathered_into_too_small_a_tensor():
    dist.all_gather_into_tensor(ones(3), ones(2))


@mistake("output tensor must have the same type as input tensor", NCCL)
def gathered_into_another_type():
    dist.all_gather_into_tensor(ones(4, dtype=torch.half), ones(2))


@mistake("input tensor must be the same size as output size times world size", NCCL)
def scattered_from_too_large_a_tensor():
    dist.reduce_scatter_tensor(ones(2), ones(5))


LISTS = "libtorch_cpu: torch/csrc/distributed/c10d/Utils.hpp: invalid tensor "


@mistake("ProcessGroupNCCL::gather: invalid tensor type at index 0 (expected TensorOptions(dtype=float, device=cuda:…"
         "got TensorOptions(dtype=float, device=cpu", LISTS + "type at index ")  # fmt: skip
def gathered_into_a_list_on_the_cpu():
    dist.gather(ones(2), [torch.empty(2) for _ in range(2)], dst=rank)


@mistake(
    "ProcessGroupNCCL::gather: invalid tensor size at index 1 (expected (2), got (2, 1))", LISTS + "size at index "
)
def gathered_into_tensors_of_another_shape():
    dist.gather(ones(2), [ones(2), ones(2, 1)], dst=rank)


@mistake("ProcessGroupNCCL::scatter: invalid tensor type at index 0", LISTS + "type at index ")
def scattered_from_a_list_on_the_cpu():
    dist.scatter(ones(2), [torch.ones(2) for _ in range(2)], src=rank)


@mistake("ProcessGroupNCCL::scatter: invalid tensor size at index 0 (expected (2), got (3))", LISTS + "size at index ")
def scattered_from_tensors_of_another_shape():
    dist.scatter(ones(2), [ones(3) for _ in range(2)], src=rank)


@mistake("Split sizes doesn't match total dim 0 size", NCCL.replace("ProcessGroupNCCL.cpp", "Utils.hpp"))
def an_all_to_all_whose_splits_do_not_add_up():
    dist.all_to_all_single(ones(4), ones(4), [1, 1], [1, 1])


@mistake("ProcessGroupNCCL does not support recvAnysource", NCCL)
def received_from_anybody():
    dist.recv(ones(1))


@mistake("monitored_barrier is only implemented for GLOO backend.", PYTHON)
def a_monitored_barrier():
    dist.monitored_barrier()


@mistake("trying to initialize the default process group twice!", PYTHON)
def initialised_twice():
    dist.init_process_group("nccl")


@mistake("ncclInvalidArgument: Invalid value for an argument.\nLast error:\nBroadcast : invalid root 7 (root should be in the 0..2 range)",
         "libnccl: src/misc/argcheck.cc: invalid root %d (root should be in the 0..%d range)")  # fmt: skip
def broadcast_from_a_rank_that_is_not_there():
    dist.broadcast(ones(1), 7)


@mistake("Invalid function argument. Expected parameter `tensor` of type torch.Tensor", f"{PYTHON}: Invalid function argument. Expected parameter `")  # fmt: skip
def a_number_where_a_tensor_belongs():
    dist.all_reduce(1.0)


@mistake(
    "Duplicate GPU detected : rank …and rank …both on CUDA device ",
    "libnccl: src/init.cc: Duplicate GPU detected : rank ",
)
def two_ranks_on_one_gpu():
    dist.all_reduce(torch.ones(2, device="cuda:0"), group=dist.new_group())


# ---- DistributedDataParallel ------------------------------------------------------------------------------------


@mistake("DistributedDataParallel device_ids and output_device arguments only work with single-device/multiple-device GPU modules",
         f"{WRAPPER}: DistributedDataParallel device_ids and output_device arguments ")  # fmt: skip
def ddp_of_a_model_on_the_cpu():
    DDP(linear("cpu"), device_ids=[rank])


@mistake(NO_BACKEND, BACKEND)
def ddp_without_device_ids_of_a_model_on_the_cpu():
    DDP(linear("cpu"))


@mistake("device_ids can only be None or contain a single element.", WRAPPER)
def ddp_with_every_gpu_in_device_ids():
    DDP(linear(), device_ids=[0, 1])


@mistake("DistributedDataParallel's input module must be on the same type of devices, but input module parameters locate in",
         f"{WRAPPER}: DistributedDataParallel's input module must be on ")  # fmt: skip
def ddp_of_a_model_half_on_the_cpu():
    DDP(nn.Sequential(linear(), linear("cpu")))


@mistake("DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient.",
         f"{WRAPPER}: DistributedDataParallel is not needed when a module ")  # fmt: skip
def ddp_of_a_frozen_model():
    DDP(linear().requires_grad_(False))


@mistake("Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module "
         "has parameters that were not used in producing loss.", REDUCER)  # fmt: skip
def a_layer_that_the_loss_does_not_reach():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = linear(), linear()

        def forward(self, x):
            return self.used(x)

    net = DDP(Net(), device_ids=[rank])
    for _ in range(2):
        net(ones()).sum().backward()


@mistake("Tensors must be CUDA and dense", NCCL)
def sparse_gradients_of_an_embedding():
    words = DDP(nn.Embedding(9, 2, sparse=True, device=dev), device_ids=[rank])
    words(torch.zeros(3, dtype=torch.long, device=dev)).sum().backward()


@mistake("DDP expects same model across all ranks, but Rank …has …params, while rank …has inconsistent ", f"{REDUCER}: DDP expects same model across all ranks, but Rank ")  # fmt: skip
def a_layer_more_on_one_rank():
    DDP(nn.Sequential(*[linear() for _ in range(1 + rank)]), device_ids=[rank])


@mistake("Modules with uninitialized parameters can't be used with `DistributedDataParallel`.", WRAPPER)
def ddp_of_a_lazy_model():
    DDP(nn.LazyLinear(4))


@mistake("SyncBatchNorm layers only work with GPU modules", WRAPPER)
def sync_batch_norm_on_the_cpu():
    DDP(nn.SyncBatchNorm(4), process_group=dist.new_group(backend="gloo"))


@mistake("SyncBatchNorm expected input tensor to be on GPU", "torch/nn/modules/batchnorm.py")
def a_batch_on_the_cpu_for_sync_batch_norm():
    nn.SyncBatchNorm(4).to(dev).train()(torch.ones(2, 4))
