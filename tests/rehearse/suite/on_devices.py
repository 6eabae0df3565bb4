"""Mistakes that one rank makes alone: what is where, and what a GPU does not do."""

import io
from multiprocessing.reduction import ForkingPickler

import numpy as np
import torch
from table import CHECKED, ITERATOR, SAME, TWO, dev, got, linear, mistake, ones, rank
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

HOST = "Use Tensor.cpu() to copy the tensor to host memory first."
NUMPY = "libtorch_python: torch/csrc/utils/tensor_numpy.cpp: copy the tensor to host memory first."
ORDINAL = "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\nCUDA kernel errors might be asynchronously reported"
GENERATOR = "Expected a '…' device type for generator but found '"
CHECK_GENERATOR = "libtorch_cpu: aten/src/ATen/core/Generator.h: ' device type for generator but found '"
ASSERT = "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://docs.nvidia.com/cuda/cuda-runtime-api/"


# ---- a tensor that stayed on the CPU -------------------------------------------------------------------------


@mistake(got("mat1", "addmm"), CHECKED)
def batch_on_the_cpu():
    linear()(torch.ones(2, 4))


@mistake(got("mat1", "addmm"), CHECKED)
def a_model_that_was_never_moved_gets_a_batch_on_the_gpu():
    linear("cpu")(ones())


@mistake(got("target", "nll_loss_forward"), CHECKED)
def target_on_the_cpu():
    F.cross_entropy(linear()(ones()), torch.zeros(2, dtype=torch.long))


@mistake(got("weight", "nll_loss_forward"), CHECKED)
def class_weights_on_the_cpu():
    F.cross_entropy(ones(), torch.zeros(2, dtype=torch.long).cuda(), torch.ones(4))


@mistake(TWO, ITERATOR)
def a_target_of_mse_on_the_cpu():
    F.mse_loss(ones(), torch.ones(2, 4))


@mistake(TWO, ITERATOR)
def a_pos_weight_on_the_cpu():
    nn.BCEWithLogitsLoss(pos_weight=torch.ones(4))(ones(), ones())


@mistake(TWO, ITERATOR)
def noise_made_without_a_device():
    x = ones()
    x + torch.randn(x.shape)


@mistake(TWO, ITERATOR)
def a_positional_encoding_that_is_no_buffer():
    class Encoded(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoding = torch.zeros(1, 4)

        def forward(self, x):
            return x + self.encoding

    Encoded().cuda()(ones())


@mistake(got("mat2", "mm"), CHECKED)
def a_weight_that_is_no_parameter():
    ones() @ torch.ones(4, 2)


@mistake(got("mat2", "bmm"), CHECKED)
def a_batch_of_matrices_on_the_cpu():
    torch.bmm(ones(1, 2, 4), torch.ones(1, 4, 2))


@mistake(got("vec", "addmv_"), CHECKED)
def a_vector_on_the_cpu():
    ones() @ torch.ones(4)


@mistake(got("mat1", "addmm"), CHECKED)
def layers_in_a_list_that_is_no_module_list():
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(4, 4)]

        def forward(self, x):
            return self.layers[0](x)

    Listed().cuda()(ones())


@mistake(got("index", "_index_select"), CHECKED)
def embedding_of_indices_on_the_cpu():
    nn.Embedding(4, 2).cuda()(torch.tensor([1]))


@mistake(got("index", "_index_select"), CHECKED)
def a_permutation_on_the_cpu():
    ones().index_select(0, torch.randperm(2))


@mistake(got("index", "gather"), CHECKED)
def gathered_at_indices_on_the_cpu():
    ones().gather(1, torch.zeros(2, 1, dtype=torch.long))


@mistake(got("index", "scatter__value"), CHECKED)
def one_hot_by_scatter_on_the_cpu():
    torch.zeros(2, 4).scatter_(1, torch.zeros(2, 1, dtype=torch.long).cuda(), 1.0)


@mistake(got("tensors", "cat"), CHECKED)
def concatenated_with_what_is_on_the_cpu():
    torch.cat([ones(), torch.ones(2, 4)])


@mistake(got("tensors", "cat"), CHECKED)
def stacked_with_what_is_on_the_cpu():
    torch.stack([ones(), torch.ones(2, 4)])


@mistake(TWO, ITERATOR)
def a_mask_on_the_cpu():
    ones().masked_fill(torch.ones(2, 4, dtype=torch.bool), 0)


@mistake(TWO, ITERATOR)
def where_with_a_condition_on_the_cpu():
    torch.where(torch.ones(2, 4, dtype=torch.bool), ones(), ones())


@mistake(got("batch1", "baddbmm"), CHECKED)
def an_attention_mask_on_the_cpu():
    nn.MultiheadAttention(4, 1, batch_first=True).cuda()(
        ones(1, 2, 4), ones(1, 2, 4), ones(1, 2, 4), attn_mask=torch.zeros(2, 2)
    )


@mistake(got("attn_bias", "__scaled_dot_product_efficient_attention"), CHECKED)
def a_mask_on_the_cpu_for_attention_by_hand():
    F.scaled_dot_product_attention(*[ones(1, 1, 2, 4)] * 3, attn_mask=torch.ones(2, 2, dtype=torch.bool))


@mistake(
    "Expected query, key, and value to have the same device type, but got query.device: …",
    "libtorch_cpu: aten/src/ATen/native/transformers/sdp_utils_cpp.h",
)
def attention_to_keys_on_the_cpu():
    F.scaled_dot_product_attention(ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4))


@mistake(got("weight", "_native_layer_norm"), CHECKED)
def a_layer_norm_that_stayed_on_the_cpu():
    nn.LayerNorm(4)(ones())


@mistake(got("weight", "_native_batch_norm"), CHECKED)
def a_batch_norm_that_stayed_on_the_cpu():
    nn.BatchNorm1d(4)(ones())


@mistake(
    "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same",
    "libtorch_cpu: aten/src/ATen/native/Convolution.cpp: ) should be the same",
)
def an_image_on_the_cpu():
    nn.Conv2d(1, 1, 3).cuda()(torch.ones(1, 1, 5, 5))


@mistake(
    "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
    "libtorch_cpu: aten/src/ATen/native/Convolution.cpp: ) should be the same",
)
def a_convolution_that_was_never_moved():
    nn.Conv2d(1, 1, 3)(ones(1, 1, 5, 5))


@mistake(
    "Input and hidden tensors are not at the same device, found input tensor at cuda:…",
    "libtorch_cpu: aten/src/ATen/native/RNN.h: tensors are not at the same device, found input tensor at ",
)
def a_hidden_state_on_the_cpu():
    nn.LSTM(2, 3).cuda()(ones(4, 1, 2), (torch.zeros(1, 1, 3), torch.zeros(1, 1, 3)))


@mistake(
    "'lengths' argument should be a 1D CPU int64 tensor, but got 1D cuda:…",
    "libtorch_cpu: aten/src/ATen/native/PackedSequence.cpp: 'lengths' argument should be a 1D CPU int64 tensor, but got ",
)
def lengths_on_a_gpu():
    nn.utils.rnn.pack_padded_sequence(ones(2, 1, 1), torch.tensor([2]).cuda())


@mistake(TWO, ITERATOR)
def a_running_total_on_the_cpu_that_takes_up_a_vector():
    total = torch.zeros(4)
    total += ones(4)


@mistake(TWO, ITERATOR)
def a_moving_average_of_weights_on_the_cpu():
    average = torch.zeros(4, 4)
    average.mul_(0.9).add_(linear().weight.detach(), alpha=0.1)


@mistake(TWO, ITERATOR)
def a_result_for_a_tensor_on_the_cpu():
    torch.add(ones(), ones(), out=torch.empty(2, 4))


@mistake(
    "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
    "libtorch_cpu: aten/src/ATen/native/TensorAdvancedIndexing.cpp: indices should be either on ",
)
def a_gpu_index_of_a_cpu_tensor():
    torch.ones(3)[torch.tensor([1]).cuda()]


@mistake(TWO, ITERATOR)
def a_type_of_tensor_that_says_nothing_of_the_gpu():
    torch.cuda.FloatTensor(4).fill_(1) * torch.FloatTensor(4).fill_(1)


# ---- two GPUs ------------------------------------------------------------------------------------------------


@mistake(SAME + "found at least two devices, cuda:0 and cuda:1!", ITERATOR)
def tensors_of_two_gpus():
    torch.ones(2, device="cuda:0") + torch.ones(2, device="cuda:1")


@mistake(got("mat1", "addmm"), CHECKED)
def layers_on_two_gpus_without_a_move_between():
    nn.Sequential(nn.Linear(4, 4).to("cuda:0"), nn.Linear(4, 4).to("cuda:1"))(torch.ones(2, 4, device="cuda:0"))


@mistake(
    ORDINAL,
    "libc10_cuda: c10/cuda/CUDAMiscFunctions.cpp: CUDA kernel errors might be asynchronously reported at some other API call",
)
def a_gpu_that_is_not_there():
    torch.cuda.set_device(5)


@mistake(
    ORDINAL,
    "libc10_cuda: c10/cuda/CUDAMiscFunctions.cpp: CUDA kernel errors might be asynchronously reported at some other API call",
)
def moved_to_a_gpu_that_is_not_there():
    torch.ones(2).to("cuda:7")


@mistake("Invalid device id", "torch/cuda/__init__.py")
def the_properties_of_a_gpu_that_is_not_there():
    torch.cuda.get_device_properties(7)


@mistake("Expected a cuda device, but got: cpu", "torch/cuda/_utils.py: Expected a cuda device, but got: ")
def the_cpu_as_the_current_gpu():
    torch.cuda.set_device("cpu")


@mistake("module must have its parameters and buffers on device cuda:0 (device_ids[0]) but found one of them on device: cpu",
         "torch/nn/parallel/data_parallel.py: them on device: ")  # fmt: skip
def data_parallel_of_a_model_on_the_cpu():
    nn.DataParallel(linear("cpu"))(ones())


@mistake("module must have its parameters and buffers on device cuda:0 (device_ids[0]) but found one of them on device: cuda:1",
         "torch/nn/parallel/data_parallel.py: them on device: ")  # fmt: skip
def data_parallel_of_a_model_on_the_second_gpu():
    nn.DataParallel(linear("cuda:1"))(ones())


@mistake("Invalid device id", "torch/cuda/__init__.py")
def data_parallel_over_a_gpu_that_is_not_there():
    nn.DataParallel(linear("cuda:0"), device_ids=[0, 7])


@mistake("CUDA out of memory. Tried to allocate …GiB. GPU …has a total capacity of …of which …is free. …Including non-PyTorch memory, "
         "this process has …memory in use. ", "libc10_cuda: c10/cuda/CUDACachingAllocator.cpp: CUDA out of memory. Tried to allocate …has a total capacity of …Including non-PyTorch memory, this process")  # fmt: skip
def more_than_a_gpu_holds():
    torch.empty(2 * torch.cuda.mem_get_info()[1] // 2**30 * 2**30 + 2**30, dtype=torch.uint8, device=dev)


# ---- numpy, generators, pinned memory, files -------------------------------------------------------------------


@mistake(f"can't convert …device type tensor to numpy. {HOST}", NUMPY)
def numpy_of_a_gpu_tensor():
    ones().numpy()


@mistake(f"can't convert …device type tensor to numpy. {HOST}", NUMPY)
def an_array_of_a_gpu_tensor():
    np.asarray(ones())


@mistake(f"can't convert …device type tensor to numpy. {HOST}", NUMPY)
def the_mean_of_losses_kept_on_the_gpu():
    np.mean([ones(1), ones(1)])


@mistake("RNG state must be a torch.ByteTensor", "libtorch_cpu: aten/src/ATen/core/Generator.h")
def a_random_state_that_map_location_brought_to_the_gpu():
    torch.set_rng_state(torch.get_rng_state().cuda())


@mistake(f"{GENERATOR}cpu", CHECK_GENERATOR)
def a_cpu_generator():
    torch.randn(2, device=dev, generator=torch.Generator())


@mistake(f"{GENERATOR}cuda", CHECK_GENERATOR)
def a_gpu_generator_for_the_cpu():
    torch.randperm(4, generator=torch.Generator(dev))


@mistake(f"{GENERATOR}cuda", CHECK_GENERATOR)
def a_gpu_generator_that_fills_what_is_on_the_cpu():
    torch.empty(4).normal_(generator=torch.Generator(dev))


@mistake(f"{GENERATOR}cpu", CHECK_GENERATOR)
def a_shuffling_loader_under_a_default_device():
    torch.set_default_device("cuda")
    try:
        list(DataLoader(TensorDataset(torch.ones(4)), shuffle=True, generator=torch.Generator()))
    finally:
        torch.set_default_device(None)


@mistake("cannot pin '…' only dense CPU tensors can be pinned", "libtorch_cpu: aten/src/ATen/native/Memory.cpp")
def pinning_what_is_on_a_gpu():
    ones().pin_memory()


@mistake("cannot pin '…' only dense CPU tensors can be pinned", "libtorch_cpu: aten/src/ATen/native/Memory.cpp")
def a_loader_that_pins_a_data_set_on_the_gpu():
    list(DataLoader(TensorDataset(ones()), pin_memory=True))


class OnTheGPU(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return torch.ones(2).cuda()


@mistake("Cannot re-initialize CUDA in forked subprocess. To use CUDA with …multiprocessing, you must use the 'spawn' start method",
         "torch/cuda/__init__.py")  # fmt: skip
def a_worker_that_uses_the_gpu():
    list(DataLoader(OnTheGPU(), num_workers=1))


@mistake("Caught RuntimeError in DataLoader worker process …Cannot re-initialize CUDA in forked subprocess",
         "torch/cuda/__init__.py: Cannot re-initialize CUDA in forked subprocess")  # fmt: skip
def a_data_set_on_the_gpu_with_workers():
    list(DataLoader([ones(2), ones(2)], num_workers=1))


@mistake("Attempting to deserialize object on CUDA device …but torch.cuda.device_count() is …. Please use torch.load with map_location",
         "torch/serialization.py: Please use torch.load with map_location")  # fmt: skip
def a_file_for_a_gpu_that_is_not_there():
    file = io.BytesIO()
    torch.save(ones(), file)
    torch.load(io.BytesIO(file.getvalue()), map_location="cuda:5")


# ---- gradients and optimisers ----------------------------------------------------------------------------------


@mistake("attempting to assign a gradient with device type '…' to a tensor with device type '…",
         "libtorch_python: torch/csrc/autograd/python_variable.cpp")  # fmt: skip
def a_gradient_from_the_cpu():
    linear().weight.grad = torch.ones(4, 4)


@mistake("attempting to assign a gradient located on device with index '…' to a tensor located on device with index '…",
         "libtorch_python: torch/csrc/autograd/python_variable.cpp")  # fmt: skip
def a_gradient_from_another_gpu():
    linear().weight.grad = torch.ones(4, 4, device=f"cuda:{1 - rank}")


@mistake("invalid gradient at index …expected device …but got ", "libtorch_cpu: torch/csrc/autograd/engine.cpp")
def a_backward_from_the_cpu():
    linear()(ones()).backward(torch.ones(2, 4))


@mistake("' has changed the type of value (was …got ", "libtorch_cpu: torch/csrc/autograd/python_hook.cpp")
def a_hook_that_brings_the_gradient_to_the_cpu():
    net = linear()
    net.weight.register_hook(lambda grad: grad.cpu())
    net(ones()).sum().backward()


@mistake("Tensors of the same index must be on the same device and the same dtype except `step` tensors that can be CPU and float32/64",
         "libtorch_python: aten/src/ATen/native/ForeachUtils.h")  # fmt: skip
def an_optimizer_state_on_the_cpu():
    net = linear()
    adam = torch.optim.Adam(net.parameters(), foreach=True)
    for _ in range(2):
        net(ones()).sum().backward()
        adam.step()
        adam.state[net.weight]["exp_avg"] = adam.state[net.weight]["exp_avg"].cpu()


@mistake("Attempting to unscale FP16 gradients.", "torch/amp/grad_scaler.py")
def a_scaler_for_a_model_in_half_precision():
    net, scaler = linear().half(), torch.amp.GradScaler("cuda")
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    scaler.scale(net(ones(dtype=torch.half)).sum()).backward()
    scaler.unscale_(sgd)


@mistake("unscale_() has already been called on this optimizer since the last update().", "torch/amp/grad_scaler.py")
def a_scaler_that_unscales_twice():
    net, scaler = linear(), torch.amp.GradScaler("cuda")
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    scaler.scale(net(ones()).sum()).backward()
    scaler.unscale_(sgd)
    scaler.unscale_(sgd)


@mistake("No inf checks were recorded for this optimizer.", "torch/amp/grad_scaler.py")
def a_scaler_that_steps_without_gradients():
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(ones(1))
    scaler.step(torch.optim.SGD(linear().parameters(), 0.1))


@mistake("Input type (torch.cuda.ByteTensor) and weight type (torch.cuda.FloatTensor) should be the same",
         "libtorch_cpu: aten/src/ATen/native/Convolution.cpp: ) should be the same")  # fmt: skip
def an_image_that_stayed_in_bytes():
    nn.Conv2d(1, 1, 3).cuda()(ones(1, 1, 4, 4, dtype=torch.uint8))


@mistake("Input type (torch.cuda.FloatTensor) and bias type (torch.FloatTensor) should be the same",
         "libtorch_cpu: aten/src/ATen/native/Convolution.cpp: ) and bias type (")  # fmt: skip
def a_bias_on_the_cpu():
    F.conv2d(ones(1, 1, 4, 4), ones(1, 1, 3, 3), torch.ones(1))


@mistake("Input type (torch.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same",
         "libtorch_cpu: aten/src/ATen/native/Convolution.cpp: ) should be the same")  # fmt: skip
def convolution_of_a_cpu_image_under_autocast():
    with torch.autocast("cuda", dtype=torch.float16):  # casts what is on a GPU: ATen/autocast_mode.h, is_eligible
        nn.Conv2d(1, 1, 3).cuda()(torch.ones(1, 1, 4, 4))


@mistake("torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.",
         "libtorch_cpu: aten/src/ATen/autocast_mode.h")  # fmt: skip
def bce_of_a_sigmoid_under_autocast():
    with torch.autocast("cuda"):
        F.binary_cross_entropy(torch.sigmoid(linear()(ones())), ones())


@mistake("mat1 and mat2 must have the same dtype, but got Float and Half",
         "libtorch_cpu: aten/src/ATen/native/LinearAlgebra.cpp: mat1 and mat2 must have the same dtype, but got ")  # fmt: skip
def a_batch_that_stayed_in_float_for_a_half_model():
    linear().half()(ones())


# ---- what a GPU does not do ------------------------------------------------------------------------------------


@mistake('"addmm_cuda" not implemented for \'Long', "libtorch_cuda: aten/src/ATen/native/cuda/Blas.cpp: addmm_cuda")
def a_product_of_integers():
    ones(dtype=torch.long) @ ones(4, 2, dtype=torch.long)


@mistake(
    "expected scalar type Half but found Float",
    "libtorch_cpu: aten/src/ATen/core/TensorMethods.cpp: expected scalar type ",
)
def a_layer_norm_in_float_for_a_half_batch():  # https://github.com/pytorch/pytorch/issues/135969
    nn.LayerNorm(4).cuda()(ones(dtype=torch.half))


@mistake("expected mat1 and mat2 to have the same dtype, but got: float != c10::Half",
         "libtorch_cuda: aten/src/ATen/native/cuda/Blas.cpp: expected mat1 and mat2 to have the same dtype, but got: ")  # fmt: skip
def a_product_of_two_kinds():
    ones() @ ones(4, 2, dtype=torch.half)


@mistake("to have one of the following scalar types: Long, Int; but got torch.cuda.FloatTensor instead",
         "libtorch_cpu: aten/src/ATen/TensorUtils.cpp: to have one of the following")  # fmt: skip
def an_embedding_of_floats():
    nn.Embedding(3, 2).cuda()(ones())


@mistake('"upsample_bilinear2d_out_frame" not implemented for \'Byte',
         "libtorch_cuda: aten/src/ATen/native/cuda/UpSampleBilinear2d.cu: upsample_bilinear2d_out_frame")  # fmt: skip
def an_image_of_bytes_made_larger():
    F.interpolate(ones(1, 1, 2, 2, dtype=torch.uint8), scale_factor=2, mode="bilinear")


@mistake(GENERATOR, CHECK_GENERATOR)
def a_split_by_a_generator_of_the_gpu():
    torch.utils.data.random_split(range(4), [2, 2], generator=torch.Generator("cuda"))


@mistake("getCudnnDataTypeFromScalarType() not supported for Long", "libtorch_cuda: aten/src/ATen/cudnn/Descriptors.cpp: "
         "getCudnnDataTypeFromScalarType() not supported for ")  # fmt: skip
def a_convolution_of_integers():
    F.conv1d(ones(1, 1, 4, dtype=torch.long), ones(1, 1, 2, dtype=torch.long))


@mistake("cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, but got a signal size of[6]",
         "libtorch_cuda: aten/src/ATen/native/cuda/CuFFTPlanCache.h: cuFFT only supports dimensions whose sizes are powers of two when")  # fmt: skip
def a_signal_in_half_precision_whose_size_is_no_power_of_two():
    torch.fft.rfft(ones(6, dtype=torch.half))


@mistake("input and output elements have to be cuda dense Tensors", "libtorch_cuda: torch/csrc/cuda/nccl.cpp")
def a_sum_over_gpus_of_what_is_on_the_cpu():
    torch.cuda.nccl.all_reduce([ones(2), torch.ones(2)])


@mistake("inputs must be on unique devices", "libtorch_cuda: torch/csrc/cuda/nccl.cpp")
def a_sum_over_gpus_of_two_tensors_on_one():
    torch.cuda.nccl.all_reduce([ones(2), ones(2)])


@mistake(
    "No available kernel. Aborting execution.", "libtorch_cuda: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp"
)
def flash_attention_of_floats():
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        F.scaled_dot_product_attention(ones(1, 1, 2, 4), ones(1, 1, 2, 4), ones(1, 1, 2, 4))


@mistake(ASSERT, "libc10_cuda: c10/cuda/CUDAMiscFunctions.cpp: ' in https://docs.nvidia.com/cuda/cuda-runtime-api/")
def a_class_that_is_not_there():
    F.cross_entropy(ones(), torch.tensor([0, 9], device=dev))
    torch.cuda.synchronize()


@mistake(ASSERT, "libc10_cuda: c10/cuda/CUDAMiscFunctions.cpp: ' in https://docs.nvidia.com/cuda/cuda-runtime-api/")
def a_word_that_is_not_in_the_vocabulary():
    nn.Embedding(4, 2).cuda()(torch.tensor([7], device=dev))
    torch.cuda.synchronize()


@mistake(ASSERT, "libc10_cuda: c10/cuda/CUDAMiscFunctions.cpp: ' in https://docs.nvidia.com/cuda/cuda-runtime-api/")
def an_index_out_of_range():
    ones(3)[torch.tensor([5], device=dev)]
    torch.cuda.synchronize()


@mistake(ASSERT, "libc10_cuda: c10/cuda/CUDAMiscFunctions.cpp: ' in https://docs.nvidia.com/cuda/cuda-runtime-api/")
def one_hot_of_a_class_that_is_not_there():
    F.one_hot(torch.tensor([0, 3], device=dev), num_classes=3)
    torch.cuda.synchronize()


@mistake(ASSERT, "libc10_cuda: c10/cuda/CUDAMiscFunctions.cpp: ' in https://docs.nvidia.com/cuda/cuda-runtime-api/")
def bce_of_what_is_no_probability():
    F.binary_cross_entropy(ones() * 3, ones())
    torch.cuda.synchronize()


@mistake(ASSERT, "libc10_cuda: c10/cuda/CUDAMiscFunctions.cpp: ' in https://docs.nvidia.com/cuda/cuda-runtime-api/")
def drawn_with_nan_for_a_probability():
    torch.multinomial(ones() * float("nan"), 1)
    torch.cuda.synchronize()


@mistake(ASSERT, "libc10_cuda: c10/cuda/CUDAMiscFunctions.cpp: ' in https://docs.nvidia.com/cuda/cuda-runtime-api/")
def bernoulli_of_what_is_no_probability():
    torch.bernoulli(ones() * 2)
    torch.cuda.synchronize()


@mistake(
    "modified by an inplace operation: [torch.cuda.FloatTensor [2, 4]] is at version 1; expected version 0",
    "libtorch_cpu: torch/csrc/autograd/saved_variable.cpp: modified by an inplace operation: [",
)
def a_target_that_is_refilled_before_the_backward():
    target = ones()
    loss = F.binary_cross_entropy_with_logits(linear()(ones()), target)
    target.fill_(0)
    loss.backward()


@mistake(
    "Both events must be created with argument 'enable_timing=True'.", "libtorch_cuda: c10/cuda/impl/CUDAGuardImpl.h"
)
def a_time_between_events_without_timing():
    start, end = torch.cuda.Event(), torch.cuda.Event()
    start.record()
    end.record()
    start.elapsed_time(end)


@mistake("Both events must be recorded before calculating elapsed time.", "libc10_cuda: c10/cuda/impl/CUDAGuardImpl.h")
def a_time_between_events_that_never_were():
    torch.cuda.Event(enable_timing=True).elapsed_time(torch.cuda.Event(enable_timing=True))


@mistake("cudnn RNN backward can only be called in training mode", "libtorch_cuda: aten/src/ATen/native/cudnn/RNN.cpp")
def a_recurrent_layer_that_learns_in_evaluation():
    nn.LSTM(4, 4).cuda().eval()(ones())[0].sum().backward()


@mistake("the derivative for '_cudnn_rnn_backward' is not implemented. Double backwards is not supported for CuDNN RNNs",
         "libtorch_cpu: torch/csrc/autograd/FunctionsManual.cpp: Double backwards is not supported for CuDNN RNNs")  # fmt: skip
def a_penalty_on_the_gradient_of_a_recurrent_layer():
    x = ones(requires_grad=True)
    (slope,) = torch.autograd.grad(nn.GRU(4, 4).cuda()(x)[0].sum(), x, create_graph=True)
    slope.square().sum().backward()


@mistake("Cowardly refusing to serialize non-leaf tensor which requires_grad", "torch/multiprocessing/reductions.py")
def an_output_that_is_put_on_a_queue():
    ForkingPickler.dumps(linear()(ones()))


@mistake("Attempted to call `variable.set_data(tensor)`, but `variable` and `tensor` have incompatible tensor type.",
         "libtorch_cpu: torch/csrc/autograd/variable.cpp")  # fmt: skip
def data_of_a_sparse_tensor():
    ones().data = torch.eye(2, device=dev).to_sparse()


# ---- deterministic algorithms, where CUDA has none -------------------------------------------------------------------

NONE = "does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'."
CONTEXT = f"libtorch_cpu: aten/src/ATen/Context.cpp: {NONE}"


def deterministic(function):
    torch.use_deterministic_algorithms(True)
    try:
        return function()
    finally:
        torch.use_deterministic_algorithms(False)


@mistake(f"adaptive_avg_pool2d_backward_cuda {NONE}", CONTEXT)
def a_deterministic_gradient_of_adaptive_pooling():
    deterministic(lambda: F.adaptive_avg_pool2d(ones(1, 1, 8, 8, requires_grad=True), 3).sum().backward())


@mistake(f"nll_loss2d_forward_out_cuda_template {NONE}", CONTEXT)
def a_deterministic_loss_of_every_pixel():
    deterministic(lambda: F.cross_entropy(ones(1, 3, 4, 4), ones(1, 4, 4).long()))


@mistake(f"ctc_loss_backward_gpu {NONE}", CONTEXT)
def a_deterministic_gradient_of_ctc():
    scores, words = ones(8, 1, 5, requires_grad=True).log_softmax(2), torch.tensor([[1, 2]], device=dev)
    deterministic(lambda: F.ctc_loss(scores, words, torch.tensor([8]), torch.tensor([2])).backward())


@mistake(f"_bincount_cuda {NONE}", CONTEXT)
def a_deterministic_count_with_weights():
    deterministic(lambda: torch.bincount(ones(2).long(), weights=ones(2)))


@mistake(f"_histc_cuda with floating point input {NONE}", CONTEXT)
def a_deterministic_histogram():
    deterministic(lambda: torch.histc(ones(2)))


@mistake(f"cumsum_cuda_kernel {NONE}", CONTEXT)
def a_deterministic_running_sum():
    deterministic(lambda: ones(2).cumsum(0))


@mistake(f"embedding_bag_backward_cuda_max {NONE}", CONTEXT)
def a_deterministic_gradient_of_the_largest_in_a_bag():
    bag = nn.EmbeddingBag(3, 2, mode="max").to(dev)
    deterministic(lambda: bag(ones(1, 2).long()).sum().backward())
