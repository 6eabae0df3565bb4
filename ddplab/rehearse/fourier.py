"""torch.fft in half precision: cuFFT has it for sizes that are powers of two, and the CPU for none.

So it is computed in float here, and rounded. The CPU refuses twice: in torch.fft's functions, which ask where a tensor
is, and in the kernels below them, which know the sizes (`torch.stft` calls them, too).
"""

import functools

import torch

from ddplab.vgpu.tensor import VTensor, here

__all__ = ["kernels", "patches"]

_WIDER = {torch.half: torch.float, torch.complex32: torch.complex64}
_NARROWER = {wide: half for half, wide in _WIDER.items()}


def _transform(name: str):
    packet = getattr(torch.ops.aten, name)

    def transform(x, dim, *how, **out):
        if x.dtype not in _WIDER and not getattr(here, "in_half", False):
            return (packet.out if out else packet.default)(x, dim, *how, **out)
        sizes = [x.shape[d] for d in dim]
        if name == "_fft_c2r":  # whose input is half a signal; its last argument is the size of the whole
            sizes[-1] = how[-1]
        if any(n & (n - 1) for n in sizes):  # native/cuda/CuFFTPlanCache.h
            only = "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision"
            raise RuntimeError(f"{only}, but got a signal size of{sizes}")
        made = packet.default(x.to(_WIDER.get(x.dtype, x.dtype)), dim, *how)
        return made.to(_NARROWER[made.dtype]) if x.dtype in _WIDER else made

    return transform


def _function(real):
    @functools.wraps(real)
    def function(input, *args, **kwargs):
        if type(input) is not VTensor or input.dtype not in _WIDER:
            return real(input, *args, **kwargs)
        here.in_half = True
        try:
            made = real(input.to(_WIDER[input.dtype]), *args, **kwargs)
        finally:
            here.in_half = False
        return made.to(_NARROWER[made.dtype])

    return function


kernels = {name: _transform(name) for name in ("_fft_c2c", "_fft_r2c", "_fft_c2r")}


def patches() -> list[tuple[object, str, object]]:
    """What is replaced: (where, name, what with)."""
    names = [f"{kind}{n}" for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft") for n in ("", "2", "n")]
    return [(torch.fft, name, _function(getattr(torch.fft, name))) for name in names]
