"""Cumulative reductions: sums, products, extremes with their places, log-sum-exp.

`scan` walks the rows of a dimension in a loop whose body is one row; long dimensions are folded into a
square first, so that a million elements take two loops of a thousand steps over rows of a thousand. XLA's
own rewriting of cumulative windows was measured on the CPU and is not used: its programs take longer to
compile, it repeats the combination (a million elements of logcumsumexp took 2.1 s, with this loop 0.3 s),
and it aborts the process for windows of pairs over 1000 elements (jaxlib 0.10.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.reduction import index_dtype
from torch_tpu.ops.registry import Context, lowering

Combine = Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]]
"""Joins the fold of earlier elements with that of later ones; associative."""

LONG = 256
"""More rows than this are folded into blocks, if the rows are short."""


def scan(values: Sequence[Value], combine: Combine, dim: int) -> list[Value]:
    """The inclusive scan of several values together along a dimension."""
    first = values[0]
    if first.ndim == 0 or first.numel == 0 or first.shape[dim] == 1:
        return list(values)
    rest = [axis for axis in range(first.ndim) if axis != dim]
    order = [dim, *rest]
    length, width = first.shape[dim], first.numel // first.shape[dim]
    rows = [hlo.reshape(hlo.transpose(value, order), (length, width)) for value in values]
    scanned = _scan_rows(rows, combine)
    shape = [first.shape[axis] for axis in order]
    back = [order.index(axis) for axis in range(first.ndim)]
    return [hlo.transpose(hlo.reshape(value, shape), back) for value in scanned]


def _scan_rows(rows: Sequence[Value], combine: Combine) -> list[Value]:
    length, width = rows[0].shape
    if length <= LONG or width >= length:
        return _scan_in_order(rows, combine)
    # Blocks of consecutive rows become columns; the last block is filled up with rows that nothing reads.
    size = math.isqrt(length * max(width, 1) - 1) // max(width, 1) + 1
    size = max(size, LONG // 4)
    blocks = -(-length // size)
    grids = [hlo.pad(value, (0, 0), (blocks * size - length, 0)) for value in rows]
    grids = [hlo.transpose(hlo.reshape(value, (blocks, size, width)), (1, 0, 2)) for value in grids]
    within = _scan_in_order([hlo.reshape(value, (size, blocks * width)) for value in grids], combine)
    within = [hlo.reshape(value, (size, blocks, width)) for value in within]
    totals = _scan_rows([hlo.index_in_dim(value, 0, -1) for value in within], combine)
    # Every block but the first continues from the fold of the blocks before it.
    later = [hlo.slice_in_dim(value, 1, 1, blocks) for value in within]
    before = [
        hlo.broadcast_in_dim(hlo.slice_in_dim(value, 0, 0, blocks - 1), part.shape, (1, 2))
        for value, part in zip(totals, later, strict=True)
    ]
    joined = [
        hlo.concatenate([hlo.slice_in_dim(value, 1, 0, 1), part], 1)
        for value, part in zip(within, combine(before, later), strict=True)
    ]
    flat = [hlo.reshape(hlo.transpose(value, (1, 0, 2)), (blocks * size, width)) for value in joined]
    return [hlo.slice_in_dim(value, 0, 0, length) for value in flat]


def _scan_in_order(rows: Sequence[Value], combine: Combine) -> list[Value]:
    length, width = rows[0].shape
    zero = hlo.scalar(0, torch.int32)
    state = [hlo.slice_in_dim(value, 0, 0, 1) for value in rows]

    def step(index: Value, *carried: Value) -> list[Value]:
        folds, outputs = carried[: len(rows)], carried[len(rows) :]
        place = index + 1
        current = [hlo.dynamic_slice(value, [place, zero], (1, width)) for value in rows]
        folds = tuple(combine(folds, current))
        written = [
            hlo.dynamic_update_slice(output, fold, [place, zero]) for output, fold in zip(outputs, folds, strict=True)
        ]
        return [*folds, *written]

    return hlo.fori_loop(length - 1, [*state, *rows], step)[len(rows) :]


def wide_dtype(ctx: Context, dtype: torch.dtype) -> torch.dtype:
    """What a long chain of additions is carried in: float64 on CPUs (as PyTorch does), else float32."""
    dtype = hlo.compute_dtype(dtype)
    if ctx.platform != "cpu":
        return dtype
    return {torch.float32: torch.float64, torch.complex64: torch.complex128}.get(dtype, dtype)


def _one(operation: Callable[[Value, Value], Value]) -> Combine:
    return lambda a, b: [operation(a[0], b[0])]


def cumulative_sum(x: Value, dim: int) -> Value:
    """The running sum in x's own dtype."""
    return scan([x], _one(hlo.add), dim)[0]


def _cumulative(operation: Callable[[Value, Value], Value]) -> Callable[..., Value]:
    def function(ctx: Context, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
        result = ctx.out.dtype
        if result is torch.bool:
            joined = hlo.bitwise_or if operation is hlo.add else hlo.bitwise_and
            return scan([hlo.convert(x, result)], _one(joined), dim % max(x.ndim, 1))[0]
        if not result.is_floating_point and not result.is_complex:
            x = hlo.convert(x, result)
        return scan([hlo.convert(x, wide_dtype(ctx, result))], _one(operation), dim % max(x.ndim, 1))[0]

    return function


lowering("cumsum")(_cumulative(hlo.add))
lowering("cumprod")(_cumulative(hlo.multiply))


def _latest_extreme(better: Callable[[Value, Value], Value], floating: bool) -> Combine:
    """(value, place) pairs: of equals the later one counts, and so does the later NaN."""

    def combine(a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
        later = better(b[0], a[0])
        if floating:
            later = hlo.is_nan(b[0]) | (later & ~hlo.is_nan(a[0]))
        return [hlo.select(later, b[0], a[0]), hlo.select(later, b[1], a[1])]

    return combine


@lowering("cummax", "cummin")
def cummax(ctx: Context, x: Value, dim: int) -> tuple[Value, Value]:
    dim %= max(x.ndim, 1)
    if x.ndim == 0:
        return x, hlo.scalar(0, torch.int64)
    better = hlo.greater_equal if ctx.op == "aten::cummax" else hlo.less_equal
    places = hlo.iota(x.shape, dim, index_dtype(x.shape[dim]))
    values, indices = scan([x, places], _latest_extreme(better, x.dtype.is_floating_point), dim)
    return values, indices


def log_add_exp(a: Value, b: Value) -> Value:
    """log(exp(a) + exp(b)) = m + log1p(exp(n - m)), where m has the larger real part and n is the other."""
    ahead = hlo.greater_equal(hlo.real(a), hlo.real(b)) | hlo.is_nan(hlo.real(a))
    top, other = hlo.select(ahead, a, b), hlo.select(ahead, b, a)
    finite = hlo.is_finite(hlo.real(top))
    joined = top + hlo.log1p(hlo.exponential(other - top))
    if not a.dtype.is_complex:
        return hlo.select(finite | hlo.is_nan(top), joined, top)
    # Two infinite real parts: exp(-inf) is 0 whatever the angle, and inf - inf is of no use.
    both = hlo.equal(hlo.real(a), hlo.real(b)) & ~finite
    total = hlo.log(hlo.exponential(a) + hlo.exponential(b))
    return hlo.select(both & hlo.less(hlo.real(a), 0), a, hlo.select(both, total, joined))


@lowering("logcumsumexp", "_logcumsumexp")
def logcumsumexp(ctx: Context, x: Value, dim: int) -> Value:
    narrow, x = x.dtype, hlo.convert(x, wide_dtype(ctx, x.dtype))
    if x.dtype.is_complex:  # the logarithm of zero has no angle
        nothing = complex(float("-inf"), 0)
        x = hlo.select(hlo.equal(hlo.real(x), float("-inf")), nothing, x)
    return hlo.convert(scan([x], _one(log_add_exp), dim % max(x.ndim, 1))[0], narrow)
