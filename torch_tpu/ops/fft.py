"""Fourier transforms: PyTorch's three internal functions, over any dimensions.

XLA transforms at most three dimensions at once, the last ones: each group of up to three is moved there. The TPU
compiler has no transforms in double precision: there they are dots (`dft.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops import dft
from torch_tpu.ops.registry import Context, lowering

_MOST = 3


def _factor(normalization: int, sizes: Sequence[int]) -> float:
    """ATen's modes: 0 leaves sums as they are, 1 divides by the root of the number of terms, 2 by it."""
    count = 1
    for size in sizes:
        count *= size
    return {0: 1.0, 1: count**-0.5, 2: 1.0 / count}[normalization]


def _scale(x: Value, factor: float) -> Value:
    return x if factor == 1.0 else hlo.multiply(x, factor)


def _fft(platform: str, x: Value, kind: str, lengths: Sequence[int]) -> Value:
    """XLA's transform of the last dimensions; the inverse ones divide by the lengths."""
    double = x.dtype in (torch.float64, torch.complex128)
    return dft.transform(x, kind, lengths) if platform == "tpu" and double else hlo.fft(x, kind, lengths)


def _transform(platform: str, x: Value, dims: Sequence[int], kind: str) -> Value:
    """A complex FFT or IFFT over dimensions, without scaling but XLA's own (IFFT divides by the sizes)."""
    for start in range(0, len(dims), _MOST):
        group = list(dims[start : start + _MOST])
        order = [dim for dim in range(x.ndim) if dim not in group] + group
        back = sorted(range(x.ndim), key=order.__getitem__)
        lengths = [x.shape[dim] for dim in group]
        x = hlo.transpose(_fft(platform, hlo.transpose(x, order), kind, lengths), back)
    return x


def _complex(platform: str, x: Value, dims: Sequence[int], normalization: int, forward: bool) -> Value:
    sizes = [x.shape[dim] for dim in dims]
    factor = _factor(normalization, sizes)
    if forward:
        return _scale(_transform(platform, x, dims, "FFT"), factor)
    return _scale(_transform(platform, x, dims, "IFFT"), factor / _factor(2, sizes))


@lowering("_fft_c2c")
def fft_c2c(ctx: Context, x: Value, dim: Sequence[int], normalization: int, forward: bool) -> Value:
    if x.numel == 0 or not dim:
        return x
    return _complex(ctx.platform, x, [d % x.ndim for d in dim], normalization, forward)


@lowering("_fft_r2c")
def fft_r2c(ctx: Context, x: Value, dim: Sequence[int], normalization: int, onesided: bool) -> Value:
    """One-sided: the last of `dim` keeps its non-negative frequencies only."""
    dims = [d % x.ndim for d in dim]
    if ctx.out.shape and 0 in ctx.out.shape:
        return hlo.full(ctx.out.shape, 0, ctx.out.dtype)
    if not onesided:
        return _complex(ctx.platform, hlo.make_complex(x, hlo.zeros_like(x)), dims, normalization, True)
    last = dims[-1]
    factor = _factor(normalization, [x.shape[d] for d in dims])
    half = _fft(ctx.platform, hlo.move_dim(x, last, -1), "RFFT", [x.shape[last]])
    half = hlo.move_dim(half, -1, last)
    return _scale(_transform(ctx.platform, half, dims[:-1], "FFT"), factor)


@lowering("_fft_c2r")
def fft_c2r(ctx: Context, x: Value, dim: Sequence[int], normalization: int, last_dim_size: int) -> Value:
    """The inverse of the one-sided transform; the imaginary parts that it cannot have are ignored."""
    dims = [d % x.ndim for d in dim]
    last = dims[-1]
    if 0 in ctx.out.shape:
        return hlo.full(ctx.out.shape, 0, ctx.out.dtype)
    sizes = [*(x.shape[d] for d in dims[:-1]), last_dim_size]
    x = hlo.move_dim(_transform(ctx.platform, x, dims[:-1], "IFFT"), last, -1)
    missing = last_dim_size // 2 + 1 - x.shape[-1]
    x = hlo.pad(x, [0] * x.ndim, [0] * (x.ndim - 1) + [missing])
    real = hlo.move_dim(_fft(ctx.platform, x, "IRFFT", [last_dim_size]), -1, last)
    return _scale(real, _factor(normalization, sizes) / _factor(2, sizes))
