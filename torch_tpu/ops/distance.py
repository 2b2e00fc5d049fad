"""Distances between all pairs of rows, and their gradients.

Differences are taken before they are squared, which loses nothing where rows are close; XLA fuses the
three-dimensional difference into the reduction over it, so it takes no memory.
"""

from __future__ import annotations

import math

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.reduction import vector_norm
from torch_tpu.ops.registry import RESULT, Context, lowering, number


def _differences(x: Value, y: Value) -> Value:
    """x[..., i, None, k] - y[..., None, j, k]; the leading dimensions broadcast."""
    return hlo.expand_dims(x, [x.ndim - 1]) - hlo.expand_dims(y, [y.ndim - 2])


def _wide(x: Value) -> Value:
    return hlo.convert(x, hlo.compute_dtype(x.dtype))


_ORDER = {"p": (2.0, math.inf)}
"""Orders that are data. Norms of others have forms of their own, or slopes that do not exist."""


@lowering("_cdist_forward", varying=_ORDER)
def cdist(ctx: Context, x: Value, y: Value, p: Value | float, compute_mode: int | None = None) -> Value:
    if x.shape[-1] == 0 or math.prod(ctx.out.shape) == 0:
        return hlo.full(ctx.out.shape, 0, ctx.out.dtype)
    gap = _differences(_wide(x), _wide(y))
    return vector_norm(gap, p, [gap.ndim - 1])


@lowering("_euclidean_dist", promote=RESULT)
def euclidean_dist(ctx: Context, x: Value, y: Value) -> Value:
    gap = _differences(x, y)
    return vector_norm(gap, 2, [gap.ndim - 1])


def _slopes(gap: Value, distance: Value, p: Value | float) -> Value:
    """The derivative of (sum |gap|^p)^(1/p) by gap; 0 where it does not exist."""
    size, sign = hlo.abs(gap), hlo.sign(gap)
    undefined = hlo.equal(distance, 0)
    if not isinstance(p, Value):
        if p == 0:
            return hlo.zeros_like(gap)
        if p == 1:
            return sign
        if math.isinf(p):
            return hlo.select(hlo.equal(size, distance), sign, 0)
        if p == 2:
            return hlo.select(undefined, 0, hlo.divide(gap, distance))
        if p < 1:
            undefined = hlo.bitwise_or(*hlo.broadcast(undefined, hlo.equal(size, 0)))
    less = number(p, gap.dtype) - 1
    slope = sign * hlo.divide(hlo.power(size, less), hlo.power(distance, less))
    return hlo.select(undefined, 0, slope)


def _pull_back(grad: Value, x: Value, y: Value, p: Value | float, distance: Value) -> Value:
    gap = _differences(x, y)
    grad, distance = hlo.expand_dims(grad, [-1]), hlo.expand_dims(distance, [-1])
    return hlo.reduce_sum(_slopes(gap, distance, p) * grad, [gap.ndim - 2])


@lowering("_cdist_backward", varying=_ORDER)
def cdist_backward(ctx: Context, grad: Value, x: Value, y: Value, p: Value | float, distance: Value) -> Value:
    if 0 in ctx.out.shape or y.shape[-2] == 0:
        return hlo.full(ctx.out.shape, 0, x.dtype)
    return hlo.broadcast_to(_pull_back(_wide(grad), _wide(x), _wide(y), p, _wide(distance)), ctx.out.shape)


def _pairs(rows: int) -> tuple[Value, Value]:
    """i and j of every pair i < j < rows, in order.

    Counted from the last pair, pair r lies in the row of length m + 1 for the largest m with
    m (m + 1) / 2 <= r. The root that gives m is off by one at most, which integers then correct.
    """
    total = rows * (rows - 1) // 2
    kind = torch.int32 if total < 2**30 else torch.int64
    back = hlo.subtract(total - 1, hlo.iota((total,), 0, kind))
    root = hlo.sqrt(hlo.convert(back, torch.float32) * 8 + 1)
    row = hlo.convert(hlo.floor((root - 1) * 0.5), kind)

    def before(number: Value) -> Value:
        return hlo.shift_right_logical(number * (number + 1), hlo.full_like(number, 1))

    row = hlo.select(hlo.greater(before(row), back), row - 1, row)
    row = hlo.select(hlo.less_equal(before(row + 1), back), row + 1, row)
    return hlo.subtract(rows - 2, row), hlo.subtract(rows - 1, back - before(row))


@lowering("_pdist_forward", varying=_ORDER)
def pdist(ctx: Context, x: Value, p: Value | float = 2.0) -> Value:
    x = _wide(x)
    if ctx.out.shape == (0,) or x.shape[1] == 0:
        return hlo.full(ctx.out.shape, 0, x.dtype)
    left, right = _pairs(x.shape[0])
    return vector_norm(hlo.take(x, left) - hlo.take(x, right), p, [1])


@lowering("_pdist_backward", varying=_ORDER)
def pdist_backward(ctx: Context, grad: Value, x: Value, p: Value | float, distance: Value) -> Value:
    """As for all pairs of rows: their distances are a symmetric matrix, with zeros on its diagonal."""
    x, rows = _wide(x), x.shape[0]
    if distance.numel == 0 or x.numel == 0:
        return hlo.zeros_like(x)
    shape = (rows, rows)
    row, column = hlo.iota(shape, 0, torch.int64), hlo.iota(shape, 1, torch.int64)
    low, high = hlo.minimum(row, column), hlo.maximum(row, column)
    pair = low * (rows - 1) - hlo.shift_right_logical(low * (low + 1), hlo.full_like(low, 1)) + high - 1
    diagonal = hlo.equal(row, column)
    matrices = [hlo.select(diagonal, 0, hlo.take(_wide(value), pair)) for value in (grad, distance)]
    return _pull_back(matrices[0], x, x, p, matrices[1])
