"""Tensors made from numbers: arange, linspace, full, zeros, eye, index triangles and window functions."""

from __future__ import annotations

import math
from typing import Any

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.indexing import position_dtype, prefix_sum, segment_of
from torch_tpu.ops.registry import LOWERINGS, Context, lowering, number

Scalar = Value | int | float


@lowering(
    "zeros",
    "zeros_like",
    "new_zeros",
    "zero",
    "_efficientzerotensor",
    "empty.memory_format",  # memory that nobody has written reads as zeros
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
)
def zeros(ctx: Context, *sizes: Any, **options: Any) -> Value:
    return hlo.full(ctx.out.shape, 0, ctx.out.dtype)


@lowering("ones", "ones_like", "new_ones")
def ones(ctx: Context, *sizes: Any, **options: Any) -> Value:
    return hlo.full(ctx.out.shape, 1, ctx.out.dtype)


@lowering("fill.Scalar", "fill.Tensor", "full_like", fitted=("value", "fill_value"))
def fill(ctx: Context, x: Value, fill_value: Value, dtype: torch.dtype | None = None) -> Value:
    return hlo.broadcast_to(hlo.convert(fill_value, ctx.out.dtype), ctx.out.shape)


@lowering("full", fitted=("fill_value",))
def full(ctx: Context, size: Any, fill_value: Value, dtype: torch.dtype | None = None) -> Value:
    return hlo.broadcast_to(hlo.convert(fill_value, ctx.out.dtype), ctx.out.shape)


@lowering("new_full", fitted=("fill_value",))
def new_full(ctx: Context, x: Value, size: Any, fill_value: Value, dtype: torch.dtype | None = None) -> Value:
    return full(ctx, size, fill_value)


@lowering("scalar_tensor", fitted=("s",))
def scalar_tensor(ctx: Context, value: Value, dtype: torch.dtype | None = None) -> Value:
    return hlo.convert(value, ctx.out.dtype)


def as_dtype(number: Scalar, dtype: torch.dtype) -> Value:
    return hlo.convert(number, dtype) if isinstance(number, Value) else hlo.scalar(number, dtype)


def counted(ctx: Context, start: Scalar, step: Scalar) -> Value:
    """start + step * i, in the result's dtype, or in float32 for what is narrower."""
    dtype = hlo.compute_dtype(ctx.out.dtype)
    places = hlo.convert(hlo.iota(ctx.out.shape, 0, position_dtype(*ctx.out.shape)), dtype)
    return as_dtype(start, dtype) + as_dtype(step, dtype) * places


@lowering("arange", static=["end"])  # the numbers decide the size
def arange(ctx: Context, end: float, dtype: torch.dtype | None = None) -> Value:
    return counted(ctx, 0, 1)


@lowering("arange.start", "arange.start_step", static=["end"], counted=True)
def arange_from(ctx: Context, start: Scalar, end: float, step: Scalar = 1, dtype: torch.dtype | None = None) -> Value:
    return counted(ctx, start, step)


@lowering("range", "range.step", static=["start", "end", "step"])
def range_with_end(ctx: Context, start: float, end: float, step: float = 1, dtype: torch.dtype | None = None) -> Value:
    return counted(ctx, start, step)


def evenly_spaced(ctx: Context, start: Value, end: Value) -> Value:
    """Counted up from the start in the first half and down from the end in the second, as PyTorch does it.

    Integers are spaced in float64 where that is cheap and in float32, PyTorch's choice for GPUs, elsewhere.
    """
    (steps,), out = ctx.out.shape, ctx.out.dtype
    dtype = hlo.compute_dtype(out)
    if not (out.is_floating_point or out.is_complex):
        dtype = torch.float64 if ctx.platform == "cpu" else torch.float32
    start = hlo.convert(hlo.convert(start, out), dtype)
    end = hlo.convert(hlo.convert(end, out), dtype)
    if steps < 2:
        return hlo.broadcast_to(start, (steps,))
    places = hlo.iota((steps,), 0, position_dtype(steps))
    (gaps,) = hlo.optimization_barrier([hlo.scalar(steps - 1, dtype)])  # or XLA multiplies by the rounded 1 / gaps
    step = (end - start) / gaps
    rising = start + step * hlo.convert(places, dtype)
    falling = end - step * hlo.convert(steps - 1 - places, dtype)
    return hlo.select(hlo.less(places, steps // 2), rising, falling)


@lowering("linspace", "linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor")
def linspace(ctx: Context, start: Value, end: Value, steps: int, dtype: torch.dtype | None = None) -> Value:
    return evenly_spaced(ctx, start, end)


@lowering("logspace", "logspace.Tensor_Tensor", "logspace.Tensor_Scalar", "logspace.Scalar_Tensor", data=("base",))
def logspace(
    ctx: Context,
    start: Value,
    end: Value,
    steps: int,
    base: Value | float = 10.0,
    dtype: torch.dtype | None = None,
) -> Value:
    places = evenly_spaced(ctx, start, end)
    return hlo.power(number(base, places.dtype), places)


@lowering("eye", "eye.m")
def eye(ctx: Context, n: int, m: int | None = None, dtype: torch.dtype | None = None) -> Value:
    index = position_dtype(*ctx.out.shape)
    diagonal = hlo.equal(hlo.iota(ctx.out.shape, 0, index), hlo.iota(ctx.out.shape, 1, index))
    return hlo.convert(diagonal, ctx.out.dtype)


def triangle_indices(ctx: Context, first: Value, lengths: Value) -> Value:
    """Row-major coordinates of rows of which `lengths` elements are taken from column `first` on."""
    total = ctx.out.shape[1]
    if total == 0:
        return hlo.full(ctx.out.shape, 0, ctx.out.dtype)
    ends = prefix_sum(lengths)
    rows = segment_of(ends, total)
    columns = hlo.take(first - (ends - lengths), rows) + hlo.iota((total,), 0, torch.int32)
    return hlo.convert(hlo.stack([rows, columns], 0), ctx.out.dtype)


@lowering("tril_indices")
def tril_indices(ctx: Context, row: int, col: int, offset: int = 0, dtype: torch.dtype | None = None) -> Value:
    lengths = hlo.clamp(0, hlo.iota((row,), 0, torch.int32) + (offset + 1), col)
    return triangle_indices(ctx, hlo.zeros_like(lengths), lengths)


@lowering("triu_indices")
def triu_indices(ctx: Context, row: int, col: int, offset: int = 0, dtype: torch.dtype | None = None) -> Value:
    first = hlo.clamp(0, hlo.iota((row,), 0, torch.int32) + offset, col)
    return triangle_indices(ctx, first, col - first)


# ---- window functions: https://docs.scipy.org/doc/scipy/reference/signal.windows.html has the formulas


def phase(ctx: Context, length: int, periodic: bool) -> Value:
    """n / N: N is the length of a periodic window and one less for a symmetric one."""
    dtype = hlo.compute_dtype(ctx.out.dtype)
    return hlo.iota((length,), 0, dtype) / max(length if periodic else length - 1, 1)


def cosine_window(ctx: Context, length: int, periodic: bool, factors: tuple[Value | float, ...]) -> Value:
    """sum over k of factors[k] * cos(2 pi k n / N)."""
    if length == 1:
        return hlo.full((1,), 1, ctx.out.dtype)
    angle = phase(ctx, length, periodic) * (2 * math.pi)
    window = hlo.broadcast_to(number(factors[0], angle.dtype), angle.shape)
    for order, factor in enumerate(factors[1:], 1):
        window = window + hlo.cosine(angle * order) * number(factor, angle.dtype)
    return window


@lowering("hann_window", "hann_window.periodic")
def hann_window(ctx: Context, length: int, periodic: bool = True, dtype: torch.dtype | None = None) -> Value:
    return cosine_window(ctx, length, periodic, (0.5, -0.5))


@lowering(
    "hamming_window",
    "hamming_window.periodic",
    "hamming_window.periodic_alpha",
    "hamming_window.periodic_alpha_beta",
    data=("alpha", "beta"),
)
def hamming_window(
    ctx: Context,
    length: int,
    periodic: bool = True,
    alpha: Value | float = 0.54,
    beta: Value | float = 0.46,
    dtype: torch.dtype | None = None,
) -> Value:
    return cosine_window(ctx, length, periodic, (alpha, -beta))


@lowering("blackman_window", "blackman_window.periodic")
def blackman_window(ctx: Context, length: int, periodic: bool = True, dtype: torch.dtype | None = None) -> Value:
    return cosine_window(ctx, length, periodic, (0.42, -0.5, 0.08))


@lowering("bartlett_window", "bartlett_window.periodic")
def bartlett_window(ctx: Context, length: int, periodic: bool = True, dtype: torch.dtype | None = None) -> Value:
    if length == 1:
        return hlo.full((1,), 1, ctx.out.dtype)
    return 1 - hlo.abs(phase(ctx, length, periodic) * 2 - 1)


@lowering("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta", data=("beta",))
def kaiser_window(
    ctx: Context,
    length: int,
    periodic: bool = True,
    beta: Value | float = 12.0,
    dtype: torch.dtype | None = None,
) -> Value:
    """I0(beta sqrt(1 - (2n/N - 1)^2)) / I0(beta)."""
    if length == 1:
        return hlo.full((1,), 1, ctx.out.dtype)
    bessel = LOWERINGS["aten::i0"].function
    middle = phase(ctx, length, periodic) * 2 - 1
    inside = hlo.maximum(1 - hlo.square(middle), 0)
    beta = number(beta, middle.dtype)
    return bessel(ctx, hlo.sqrt(inside) * beta) / bessel(ctx, hlo.reshape(beta, (1,)))
