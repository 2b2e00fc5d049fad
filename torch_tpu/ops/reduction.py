"""Reductions over dimensions: sums, products, extremes, logical ones, moments and norms.

Narrow floats are accumulated in float32. XLA splits long sums into blocks by itself: 2^20 random float32
numbers are summed with a relative error of 1e-7 on the CPU, as good as PyTorch's, so nothing is done about
it here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.registry import Context, lowering, number, result_dtype

Dims = int | Sequence[int] | None


def reduced_dims(x: Value, dim: Dims) -> list[int]:
    """The dimensions that an ATen `dim` argument names: all of them for None and for an empty list."""
    if x.ndim == 0:
        return []
    if dim is None or (not isinstance(dim, int) and not dim):
        return list(range(x.ndim))
    return sorted({one % x.ndim for one in ([dim] if isinstance(dim, int) else dim)})


def count(x: Value, dims: Sequence[int]) -> int:
    """How many elements are folded into one."""
    return math.prod(x.shape[dim] for dim in dims)


def accumulator(ctx: Context, x: Value) -> Value:
    """x in the dtype that ctx.out is accumulated in."""
    return hlo.convert(x, hlo.compute_dtype(ctx.out.dtype))


@lowering("sum", "sum.dim_IntList")
def sum(ctx: Context, x: Value, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    wide = accumulator(ctx, x)
    fold = hlo.reduce_or if wide.dtype is torch.bool else hlo.reduce_sum
    return fold(wide, reduced_dims(x, dim), keepdim)


@lowering("nansum")
def nansum(ctx: Context, x: Value, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    if x.dtype.is_floating_point or x.dtype.is_complex:
        x = hlo.select(hlo.is_nan(x), 0, x)
    return sum(ctx, x, dim, keepdim)


@lowering("prod", "prod.dim_int")
def prod(ctx: Context, x: Value, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    wide = accumulator(ctx, x)
    fold = hlo.reduce_and if wide.dtype is torch.bool else hlo.reduce_prod
    return fold(wide, reduced_dims(x, dim), keepdim)


@lowering("mean", "mean.dim")
def mean(ctx: Context, x: Value, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    dims = reduced_dims(x, dim)
    return hlo.quotient(hlo.reduce_sum(accumulator(ctx, x), dims, keepdim), count(x, dims))


def moments(
    x: Value, dims: Sequence[int], correction: Value | float | None = 1, keepdim: bool = False
) -> tuple[Value, Value]:
    """Variance (real) and mean, by two passes, in the dtype that x is computed in."""
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        raise RuntimeError(f"variances are of floating point or complex numbers, not of {x.dtype}")
    x = hlo.convert(x, hlo.compute_dtype(x.dtype))
    size, lost = count(x, dims), 1 if correction is None else correction
    centre = hlo.quotient(hlo.reduce_sum(x, dims, True), size)
    freedom: Value | float
    if isinstance(size, hlo.Dim) or isinstance(lost, Value):
        real = hlo.real_dtype(x.dtype)
        freedom = hlo.maximum(hlo.scalar(size, real) - number(lost, real), 0)
    else:
        freedom = max(0.0, size - lost)
    gap = x - centre
    spread = hlo.quotient(hlo.reduce_sum(hlo.square(hlo.real(gap)), dims, keepdim), freedom)
    if x.dtype.is_complex:  # only then added: with no freedom left, a constant part gives NaN
        spread = spread + hlo.quotient(hlo.reduce_sum(hlo.square(hlo.imag(gap)), dims, keepdim), freedom)
    return spread, centre if keepdim else hlo.squeeze(centre, dims) if dims else centre


def squared_magnitude(x: Value) -> Value:
    return hlo.square(hlo.real(x)) + hlo.square(hlo.imag(x)) if x.dtype.is_complex else hlo.square(x)


@lowering("var.correction", static_integral=["correction"])
def var(
    ctx: Context, x: Value, dim: Dims = None, *, correction: Value | float | None = None, keepdim: bool = False
) -> Value:
    return moments(x, reduced_dims(x, dim), correction, keepdim)[0]


@lowering("std.correction", static_integral=["correction"])
def std(
    ctx: Context, x: Value, dim: Dims = None, *, correction: Value | float | None = None, keepdim: bool = False
) -> Value:
    return hlo.sqrt(moments(x, reduced_dims(x, dim), correction, keepdim)[0])


@lowering("var_mean.correction", static_integral=["correction"])
def var_mean(
    ctx: Context, x: Value, dim: Dims = None, *, correction: Value | float | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    return moments(x, reduced_dims(x, dim), correction, keepdim)


@lowering("std_mean.correction", static_integral=["correction"])
def std_mean(
    ctx: Context, x: Value, dim: Dims = None, *, correction: Value | float | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    spread, centre = moments(x, reduced_dims(x, dim), correction, keepdim)
    return hlo.sqrt(spread), centre


def nonempty_dims(x: Value, dim: Dims) -> list[int]:
    """As `reduced_dims`, for a reduction without an identity.

    Raises:
        IndexError: some result would be that of no elements.
    """
    dims = reduced_dims(x, dim)
    kept = [size for axis, size in enumerate(x.shape) if axis not in dims]
    if 0 in x.shape and 0 not in kept:
        raise IndexError("expected reduction dims of non-zero size: the operation has no identity")
    return dims


@lowering("amax", "max")
def amax(ctx: Context, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return hlo.reduce_max(x, nonempty_dims(x, dim), keepdim)


@lowering("amin", "min")
def amin(ctx: Context, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return hlo.reduce_min(x, nonempty_dims(x, dim), keepdim)


@lowering("aminmax", "_aminmax", "_aminmax.dim")
def aminmax(ctx: Context, x: Value, dim: int | None = None, keepdim: bool = False) -> tuple[Value, Value]:
    if any(spec.dtype is not x.dtype for spec in ctx.outs):
        raise RuntimeError(f"expected results of {x.dtype} but got {ctx.out.dtype}")
    dims = nonempty_dims(x, dim)
    bottom, top = hlo.reduce_min(x, dims), hlo.reduce_max(x, dims)
    if keepdim:  # without `dim`, PyTorch keeps all of them
        shape = [1 if axis in dims else size for axis, size in enumerate(x.shape)]
        bottom, top = hlo.reshape(bottom, shape), hlo.reshape(top, shape)
    return bottom, top


def index_dtype(size: int) -> torch.dtype:
    """The integer for indices up to `size`: 64-bit ones cost TPUs four times as much."""
    return torch.int32 if size < 2**31 else torch.int64


def extreme(x: Value, dim: int, largest: bool, keepdim: bool = False) -> tuple[Value, Value]:
    """The largest or smallest of each line and its index: the first NaN, else the first of equals."""
    if x.ndim == 0:
        return x, hlo.scalar(0, torch.int32)
    better: Callable[[Value, Value], Value] = hlo.greater if largest else hlo.less
    kind = index_dtype(x.shape[dim])

    def choose(a: Value, i: Value, b: Value, j: Value) -> list[Value]:
        wins, same = better(a, b), hlo.equal(a, b)
        if x.dtype.is_floating_point:
            a_nan, b_nan = hlo.is_nan(a), hlo.is_nan(b)
            wins, same = wins | (a_nan & ~b_nan), same | (a_nan & b_nan)
        wins = wins | (same & hlo.less(i, j))
        return [hlo.select(wins, a, b), hlo.select(wins, i, j)]

    worst = hlo.lowest(x.dtype) if largest else hlo.highest(x.dtype)
    places = hlo.iota(x.shape, dim, kind)
    found = hlo.reduce([x, places], [worst, torch.iinfo(kind).max], choose, [dim], keepdim)
    assert isinstance(found, list)
    return found[0], found[1]


@lowering("max.dim")
def max_dim(ctx: Context, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    nonempty_dims(x, dim)
    return extreme(x, dim % max(x.ndim, 1), True, keepdim)


@lowering("min.dim")
def min_dim(ctx: Context, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    nonempty_dims(x, dim)
    return extreme(x, dim % max(x.ndim, 1), False, keepdim)


@lowering("argmax", "argmin")
def argmax(ctx: Context, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    nonempty_dims(x, dim)
    line, place = (hlo.flatten(x), 0) if dim is None or x.ndim == 0 else (x, dim % x.ndim)
    indices = extreme(line, place, ctx.op == "aten::argmax", keepdim)[1]
    return hlo.reshape(indices, ctx.out.shape)


def _logical(fold: Callable[..., Value]) -> Callable[..., Value]:
    def function(ctx: Context, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
        none = isinstance(dim, (list, tuple)) and not dim  # unlike elsewhere, it reduces nothing
        return fold(hlo.convert(x, torch.bool), [] if none else reduced_dims(x, dim), keepdim)

    return function


lowering("any", "any.dim", "any.dims")(_logical(hlo.reduce_or))
lowering("all", "all.dim", "all.dims")(_logical(hlo.reduce_and))
lowering("_is_any_true")(_logical(hlo.reduce_or))
lowering("_is_all_true")(_logical(hlo.reduce_and))


@lowering("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(ctx: Context, x: Value, dim: Dims = None) -> Value:
    hits = hlo.convert(hlo.convert(x, torch.bool), index_dtype(x.numel))
    return hlo.reduce_sum(hits, reduced_dims(x, dim))


@lowering("logsumexp")
def logsumexp(ctx: Context, x: Value, dim: Dims, keepdim: bool = False) -> Value:
    """log(sum(exp(x - m))) + m for the maximum m, or 0 where that is not finite."""
    x, dims = accumulator(ctx, x), reduced_dims(x, dim)
    top = hlo.reduce_max(hlo.real(x), dims, True)
    top = hlo.convert(hlo.select(hlo.is_finite(top), top, 0), x.dtype)
    total = hlo.log(hlo.reduce_sum(hlo.exponential(x - top), dims, True)) + top
    return total if keepdim or not dims else hlo.squeeze(total, dims)


def vector_norm(x: Value, order: Value | float, dims: Sequence[int], keepdim: bool = False) -> Value:
    """(sum |x|^p)^(1/p), its limits for p = 0 and +-inf; real, in x's own precision."""
    if not isinstance(order, Value) and order == 2:
        return hlo.sqrt(hlo.reduce_sum(squared_magnitude(x), dims, keepdim))
    size = hlo.abs(x)
    if isinstance(order, Value):
        order = hlo.convert(order, size.dtype)
        counts = hlo.equal(order, 0)  # where it is a size
        total = hlo.reduce_sum(hlo.select(counts & hlo.equal(size, 0), 0, hlo.power(size, order)), dims, keepdim)
        return hlo.select(counts, total, hlo.power(total, 1 / order))
    if math.isinf(order):
        return (hlo.reduce_max if order > 0 else hlo.reduce_min)(size, dims, keepdim)
    if order == 0:
        return hlo.reduce_sum(hlo.convert(hlo.convert(size, torch.bool), size.dtype), dims, keepdim)
    if order == 1:
        return hlo.reduce_sum(size, dims, keepdim)
    total = hlo.reduce_sum(hlo.power(size, float(order)), dims, keepdim)
    return hlo.power(total, 1.0 / order)


def _norm_input(ctx: Context, x: Value) -> Value:
    """x in the precision of the result, complex if it was."""
    dtype = hlo.compute_dtype(ctx.out.dtype)
    return hlo.convert(x, hlo.complex_dtype(dtype) if x.dtype.is_complex else dtype)


@lowering("linalg_vector_norm", static_integral=["ord"])
def linalg_vector_norm(
    ctx: Context,
    x: Value,
    ord: Value | float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    return vector_norm(_norm_input(ctx, x), ord, reduced_dims(x, dim), keepdim)


@lowering(
    "norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", "norm.ScalarOpt_dtype", static_integral=["p"]
)
def norm(
    ctx: Context,
    x: Value,
    p: Value | float | None = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    return vector_norm(_norm_input(ctx, x), 2 if p is None else p, reduced_dims(x, dim), keepdim)


@lowering("dist", static_integral=["p"])
def dist(ctx: Context, x: Value, y: Value, p: Value | float = 2) -> Value:
    dtype = hlo.compute_dtype(result_dtype([x, y]))
    gap = hlo.convert(x, dtype) - hlo.convert(y, dtype)
    return vector_norm(gap, p, reduced_dims(gap, None))


@lowering("trace")
def trace(ctx: Context, x: Value) -> Value:
    """Every (columns + 1)-th element of the flattened matrix."""
    rows, columns = x.shape
    length = min(rows, columns)
    limit = (length - 1) * (columns + 1) + 1 if length else 0
    diagonal = hlo.slice_in_dim(hlo.flatten(accumulator(ctx, x)), 0, 0, limit, columns + 1)
    return hlo.reduce_sum(diagonal, [0])


@lowering("renorm", static_integral=["p"])
def renorm(ctx: Context, x: Value, p: Value | float, dim: int, maxnorm: Value) -> Value:
    """Scales the slices along `dim` whose p-norm exceeds maxnorm down to it."""
    x = hlo.convert(x, hlo.compute_dtype(x.dtype))
    size = vector_norm(x, p, [axis for axis in range(x.ndim) if axis != dim % x.ndim], True)
    limit = hlo.broadcast_to(hlo.convert(maxnorm, size.dtype), size.shape)
    factor = hlo.select(hlo.greater(size, limit), hlo.divide(limit, size + 1e-7), 1)
    return x * hlo.convert(factor, x.dtype)


@lowering("hash_tensor")
def hash_tensor(ctx: Context, x: Value, dim: Dims = None, *, keepdim: bool = False, mode: int = 0) -> Value:
    """The exclusive or of the elements' bits, widened to 64 (the only mode)."""
    wide = hlo.convert(x, torch.float64 if x.dtype.is_floating_point else torch.int64)
    dims = reduced_dims(x, dim)
    return hlo.reduce(hlo.bitcast(wide, torch.uint64), 0, hlo.bitwise_xor, dims, keepdim)  # type: ignore
