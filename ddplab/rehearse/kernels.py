"""Kernels that are others on CUDA: SyncBatchNorm's (native/cuda/Normalization.cuh), and what CUDA's refuse."""

import functools

import torch
from torch._prims_common import alert_not_deterministic
from torch.utils._pytree import tree_map_only

from ddplab.vgpu.tensor import random


def _over(x, vector):  # [C] -> [1, C, 1, ...]
    return vector.view(1, -1, *[1] * (x.dim() - 2))


def _dims(x):
    return [d for d in range(x.dim()) if d != 1]


def batch_norm_stats(x, eps):
    x = x.float() if x.dtype in (torch.half, torch.bfloat16) else x
    var, mean = torch.var_mean(x, _dims(x), correction=0)
    return mean, (var + eps).rsqrt()


def batch_norm_gather_stats_with_counts(x, means, invstds, running_mean, running_var, momentum, eps, counts):
    n = counts.to(means.dtype).view(-1, 1)
    total = n.sum()
    mean = (means * n).sum(0) / total
    var = ((invstds.pow(-2) - eps + (means - mean) ** 2) * n).sum(0) / total
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(mean.to(running_mean.dtype), alpha=momentum)
        running_var.mul_(1 - momentum).add_((var * total / (total - 1)).to(running_var.dtype), alpha=momentum)
    return mean, (var + eps).rsqrt()


def batch_norm_elemt(x, weight, bias, mean, invstd, eps):
    out = (x - _over(x, mean)) * _over(x, invstd)
    if weight is not None:
        out = out * _over(x, weight) + _over(x, bias)
    return out.to(x.dtype)


def batch_norm_backward_reduce(grad, x, mean, invstd, weight, input_g, weight_g, bias_g):
    grad = grad.to(mean.dtype)
    sum_dy, sum_dy_xmu = grad.sum(_dims(x)), (grad * (x - _over(x, mean))).sum(_dims(x))
    kind = None if weight is None else weight.dtype
    return (
        sum_dy,
        sum_dy_xmu,
        (sum_dy_xmu * invstd).to(kind) if weight_g and kind else None,
        sum_dy.to(kind) if bias_g and kind else None,
    )


def batch_norm_backward_elemt(grad, x, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
    total = count.sum()
    scale = invstd if weight is None else invstd * weight
    slope = sum_dy_xmu / total * invstd**2
    return ((grad - _over(x, sum_dy / total) - (x - _over(x, mean)) * _over(x, slope)) * _over(x, scale)).to(grad.dtype)


def _kind(x) -> str:
    return x.type().rsplit(".", 1)[1].removesuffix("Tensor")


def _no_integers(name: str, called: str):  # native/cuda/Blas.cpp: AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND2
    plain = getattr(torch.ops.aten, name).default
    kernel = kernels.get(name, plain)

    def product(x, *args, **kwargs):
        if x.dtype is torch.float32 and "out" not in kwargs:  # most of them: at once
            return plain(x, *args, **kwargs)
        if not (x.is_floating_point() or x.is_complex()):
            raise NotImplementedError(f"\"{called}\" not implemented for '{_kind(x)}'")
        return kernel(x, *args, **kwargs)

    return product


def _of_one_kind(kernel):  # native/cuda/layer_norm_kernel.cu: gamma.const_data_ptr<T>()
    def norm(x, *args):
        for other in (a for a in args if isinstance(a, torch.Tensor) and a.dtype != x.dtype):
            raise RuntimeError(f"expected scalar type {_kind(x)} but found {_kind(other)}")
        return kernel(x, *args)

    return norm


_16_BITS = (torch.half, torch.bfloat16)
_fast = [torch.ops.mkldnn._is_mkldnn_fp16_supported(), torch.ops.mkldnn._is_mkldnn_bf16_supported()]
_SLOW = [kind for kind, fast in zip(_16_BITS, _fast, strict=True) if not fast]


def _in_float(packet, kinds=_16_BITS):  # what CUDA has for 16 bits, and the CPU has not, or slowly
    plain = packet.default

    def kernel(x, *args, **kwargs):
        if "out" in kwargs:
            return packet.out(x, *args, **kwargs)
        if x.dtype not in kinds:
            return plain(x, *args, **kwargs)
        floats = [isinstance(a, torch.Tensor) and a.is_floating_point() for a in args]
        if any(a.dtype != x.dtype for a, is_float in zip(args, floats, strict=True) if is_float):
            return plain(x, *args, **kwargs)  # for torch to refuse
        args = [a.float() if is_float else a for a, is_float in zip(args, floats, strict=True)]
        out = plain(x.float(), *args, **kwargs)
        return tree_map_only(torch.Tensor, lambda t: t.to(x.dtype), out)

    return kernel


def _of_two_kinds(packet):  # native/cuda/fused_adam_utils.cuh: states in bfloat16 beside parameters in float32
    def step(params, grads, *rest, **kwargs):
        states, rest = rest[:3], rest[3:]
        if params[0].dtype != torch.float32 or states[0][0].dtype != torch.bfloat16:
            return packet(params, grads, *states, *rest, **kwargs)
        wide = [[s.float() for s in each] for each in states]
        packet(params, grads, *wide, *rest, **kwargs)
        for each, new in zip(states, wide, strict=True):
            for narrow, computed in zip(each, new, strict=True):
                narrow.copy_(computed)

    return step


_ON_THE_CPU = [
    "out of bounds",
    "out of range",
    "not in the valid range",
    "should be between 0 and 1",
    "p_in >= 0 && p_in <= 1",
    "Class values must",
]
_ON_THE_CPU += ["probability tensor contains", "invalid multinomial distribution"]


def asserting(kernel):
    """A kernel that asserts what it is given, where the CPU's asks and raises."""

    @functools.wraps(kernel)
    def asserts(*args, **kwargs):
        try:
            return kernel(*args, **kwargs)
        except (IndexError, RuntimeError) as error:
            if not any(words in str(error) for words in _ON_THE_CPU):
                raise
            raise torch.AcceleratorError(  # c10/cuda/CUDAException.cpp, CUDAMiscFunctions.cpp
                "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://docs.nvidia.com/cuda/"
                "cuda-runtime-api/group__CUDART__TYPES.html for more information.\nCUDA kernel errors might be "
                "asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
                "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
                "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
            ) from error

    return asserts


# What alerts on CUDA where deterministic algorithms are asked for: kernel -> by which name, and (else always) when.
# The names are those of test/test_torch.py: test_nondeterministic_alert_…
_UNORDERED: dict = {f"{name}_backward": f"{name.strip('_')}_backward_cuda" for name in (
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "avg_pool3d", "adaptive_max_pool2d", "fractional_max_pool2d",
    "fractional_max_pool3d", "reflection_pad2d", "grid_sampler_3d",
)}  # fmt: skip
_UNORDERED |= {
    f"{name}_backward": f"{name}_backward_out_cuda"
    for name in ("upsample_linear1d", "upsample_bicubic2d", "reflection_pad1d", "reflection_pad3d")
}
_UNORDERED |= {"_ctc_loss_backward": "ctc_loss_backward_gpu", "kthvalue": "kthvalue CUDA"}
_UNORDERED |= {
    "cumsum": ("cumsum_cuda_kernel", lambda x, *_, **__: x.is_floating_point() or x.is_complex()),
    "histc": ("_histc_cuda with floating point input", lambda x, *_, **__: x.is_floating_point()),
    "bincount": ("_bincount_cuda", lambda x, weights=None, *_, **__: weights is not None),
    "median": ("median CUDA with indices output", lambda x, *dim, **named: bool(dim or named)),
    "nll_loss2d_forward": ("nll_loss2d_forward_out_cuda_template", lambda x, y, weight, reduction, *_, **__: reduction),
    "_embedding_bag_backward": ("embedding_bag_backward_cuda_max", lambda *args, **_: args[8] == 2),
    "grid_sampler_2d_backward": (  # with bilinear, zeros and aligned corners it is cuDNN's: native/GridSampler.cpp
        "grid_sampler_2d_backward_cuda",
        lambda grad, x, grid, *how, **_: how[:3] != (0, 0, True),
    ),
}


def _alerting(name: str, caller: str, when=lambda *args, **kwargs: True):
    kernel = kernels.get(name, getattr(torch.ops.aten, name))

    @functools.wraps(kernel)
    def alerts(*args, **kwargs):
        if torch.are_deterministic_algorithms_enabled() and when(*args, **kwargs):
            alert_not_deterministic(caller)
        return kernel(*args, **kwargs)

    return alerts


names = "stats gather_stats_with_counts elemt backward_reduce backward_elemt".split()
kernels = {f"batch_norm_{name}": globals()[f"batch_norm_{name}"] for name in names}
products = dict(mm="addmm_cuda", addmm="addmm_cuda", bmm="baddbmm_cuda", baddbmm="baddbmm_cuda", mv="addmv_impl_cuda")
computed = [*products, "convolution", "convolution_backward"]
kernels |= {name: _in_float(getattr(torch.ops.aten, name), _SLOW) for name in computed}
kernels["convolution_backward"] = _in_float(torch.ops.aten.convolution_backward, {torch.half, *_SLOW})  # 40 x
kernels |= {name: _no_integers(name, what) for name, what in products.items()}
pooled = dict(max_pool2d_with_indices="max_pool2d_with_indices_out_cuda_frame", avg_pool2d="avg_pool2d_out_cuda_frame")
pooled["upsample_bilinear2d"] = "upsample_bilinear2d_out_frame"
kernels |= {name: _no_integers(name, what) for name, what in pooled.items()}
norms = ("native_layer_norm", "native_group_norm")
kernels |= {name: _of_one_kind(getattr(torch.ops.aten, name).default) for name in norms}
wider = "avg_pool3d multi_margin_loss _upsample_bilinear2d_aa _upsample_bicubic2d_aa".split()
wider += [f"{name}_backward" for name in wider]
kernels |= {name: _in_float(getattr(torch.ops.aten, name)) for name in wider}
kernels |= {name: _of_two_kinds(getattr(torch.ops.aten, name)) for name in ("_fused_adam_", "_fused_adamw_")}
asserted = "embedding nll_loss_forward nll_loss2d_forward index index_put index_put_ _index_put_impl_ index_select"
asserted += " gather scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ binary_cross_entropy"
asserted += " take put put_ index_add index_add_ index_copy index_copy_ index_fill index_fill_"
asserted += " _embedding_bag _embedding_bag_forward_only"
kernels |= {name: asserting(getattr(torch.ops.aten, name)) for name in asserted.split()}
kernels |= dict.fromkeys(("multinomial", "bernoulli", "bernoulli_"), asserting(random))
kernels |= {name: _alerting(name, *([it] if isinstance(it, str) else it)) for name, it in _UNORDERED.items()}
