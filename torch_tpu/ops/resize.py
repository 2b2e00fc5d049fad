"""Resizing: nearest, linear, cubic, Lanczos and antialiased interpolation, and their gradients.

All of them are separable: along each axis, every result is a weighted sum of a few elements. `Taps` says which and
with what weights, computed on the host in the precision PyTorch uses, because a rounding error there can move an index.
A gradient is the same sum with the taps transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.registry import Context, lowering

Floats = np.ndarray[Any, np.dtype[Any]]


class Taps(NamedTuple):
    """For each of an axis' results (rows): positions along the axis, their weights, and which of them count."""

    position: Floats
    weight: Floats
    inside: Floats

    def transposed(self, size: int) -> Taps:
        """For each of `size` elements: the results it goes into, with the same weights."""
        result, column = np.nonzero(self.inside)
        element, weight = self.position[result, column], self.weight[result, column]
        order = np.argsort(element, kind="stable")
        element, weight, result = element[order], weight[order], result[order]
        counts = np.bincount(element, minlength=size)
        place = np.arange(len(element)) - (np.cumsum(counts) - counts)[element]
        shape = (size, max(1, int(counts.max())))
        taps = Taps(np.zeros(shape, np.int64), np.zeros(shape, weight.dtype), np.zeros(shape, bool))
        taps.position[element, place] = result
        taps.weight[element, place] = weight
        taps.inside[element, place] = True
        return taps

    def is_identity(self, size: int) -> bool:
        rows = np.arange(len(self.position))
        if len(rows) != size or not (self.position[rows, 0] == rows).all() or not (self.weight[:, 0] == 1).all():
            return False
        return not (self.weight[:, 1:] * self.inside[:, 1:]).any()


def _all_inside(position: Floats, weight: Floats) -> Taps:
    return Taps(position.astype(np.int64), weight, np.ones(position.shape, bool))


# Taps of an axis, as `function(size, outs, scale, align_corners, dtype)`; dtype is numpy's, of the arithmetic.


def _scale(size: int, outs: int, scale: float | None, align_corners: bool, dtype: Any) -> Any:
    """How many elements a step in the result is; `scale` is the user's factor, if that is to be used."""
    if align_corners:
        return dtype(size - 1) / dtype(outs - 1) if outs > 1 else dtype(0)
    return dtype(1.0 / scale) if scale is not None and scale > 0 else dtype(size) / dtype(outs)


def _source(size: int, outs: int, scale: float | None, align_corners: bool, dtype: Any) -> Floats:
    """Where each result lies along the axis, in elements."""
    step, index = _scale(size, outs, scale, align_corners, dtype), np.arange(outs).astype(dtype)
    return step * index if align_corners else step * (index + dtype(0.5)) - dtype(0.5)


def _unchanged(size: int, dtype: Any) -> Taps:
    return _all_inside(np.arange(size)[:, None], np.ones((size, 1), dtype))


def nearest(size: int, outs: int, scale: float | None, align_corners: bool, dtype: Any) -> Taps:
    if outs in (size, 2 * size):  # PyTorch then ignores the scale
        scale = None
    step = _scale(size, outs, scale, False, dtype)
    position = np.floor((np.arange(outs).astype(dtype) * step).astype(np.float32))
    return _all_inside(np.minimum(position, size - 1)[:, None], np.ones((outs, 1), dtype))


def nearest_exact(size: int, outs: int, scale: float | None, align_corners: bool, dtype: Any) -> Taps:
    source = np.maximum(_source(size, outs, scale, False, dtype), 0)
    position = np.floor((source + dtype(0.5)).astype(np.float32))
    return _all_inside(np.minimum(position, size - 1)[:, None], np.ones((outs, 1), dtype))


def _floor_and_rest(source: Floats, size: int) -> tuple[Floats, Floats]:
    low = np.minimum(np.floor(source), size - 1)
    return low.astype(np.int64), np.clip(source - low, 0, 1).astype(source.dtype)


def linear(size: int, outs: int, scale: float | None, align_corners: bool, dtype: Any) -> Taps:
    if size == outs:
        return _unchanged(size, dtype)
    source = np.maximum(_source(size, outs, scale, align_corners, dtype), 0)
    low, rest = _floor_and_rest(source, size)
    return _all_inside(np.stack([low, np.minimum(low + 1, size - 1)], 1), np.stack([1 - rest, rest], 1))


def cubic(size: int, outs: int, scale: float | None, align_corners: bool, dtype: Any) -> Taps:
    low, rest = _floor_and_rest(_source(size, outs, scale, align_corners, dtype), size)
    steps = np.arange(-1, 3)
    weight = _cubic_filter(rest[:, None] - steps.astype(dtype), dtype(-0.75))
    return _all_inside(np.clip(low[:, None] + steps, 0, size - 1), weight)


def _cubic_filter(x: Floats, a: Any) -> Floats:
    """Keys' convolution kernel, https://doi.org/10.1109/TASSP.1981.1163711."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0)).astype(x.dtype)


def _triangle_filter(x: Floats) -> Floats:
    return np.maximum(1 - np.abs(x), 0).astype(x.dtype)


def _lanczos_filter(x: Floats) -> Floats:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0).astype(x.dtype)


def _antialiased(radius: float, weigh: Callable[[Floats], Floats]) -> Callable[..., Taps]:
    """A filter that is stretched over a step of the result where it shrinks, so that it covers all elements."""

    def taps(size: int, outs: int, scale: float | None, align_corners: bool, dtype: Any) -> Taps:
        step = _scale(size, outs, scale, align_corners, dtype)
        stretch = max(step, dtype(1))
        support = dtype(radius) * stretch
        center = step * (np.arange(outs).astype(dtype) + dtype(0.5))
        start = np.maximum((center - support + dtype(0.5)).astype(np.int64), 0)
        end = np.minimum((center + support + dtype(0.5)).astype(np.int64), size)
        position = start[:, None] + np.arange(max(1, int((end - start).max())))
        inside = position < end[:, None]
        offset = (position - center[:, None] + dtype(0.5)).astype(dtype)
        weight = np.where(inside, weigh((offset * (1 / stretch)).astype(dtype)), 0)
        total = weight.sum(1, keepdims=True)
        weight = np.where(total != 0, weight / np.where(total != 0, total, 1), 0).astype(dtype)
        return Taps(np.minimum(position, size - 1), weight, inside)

    return taps


linear_aa = _antialiased(1.0, _triangle_filter)
cubic_aa = _antialiased(2.0, lambda x: _cubic_filter(x, x.dtype.type(-0.5)))
lanczos_aa = _antialiased(3.0, _lanczos_filter)
ANTIALIASED = (linear_aa, cubic_aa, lanczos_aa)


# Applying taps


FEW_TAPS = 5
"""Up to so many taps are gathered one by one; more through one table, which is slower to run."""


def _resample(ctx: Context, x: Value, dim: int, taps: Taps) -> Value:
    """The weighted sums along a dimension."""
    size, (outs, columns) = x.shape[dim], taps.position.shape
    if taps.is_identity(size):
        return x
    plain, full = bool((taps.weight == 1).all()), bool(taps.inside.all())
    if plain and full and columns == 1 and outs % size == 0 and _counts_up(taps.position, outs // size):
        return _repeat(x, dim, outs // size)
    if plain and full and columns * outs == size and _counts_up(taps.position, 1):
        parts = hlo.reshape(x, [*x.shape[:dim], outs, columns, *x.shape[dim + 1 :]])
        return hlo.reduce_sum(parts, [dim + 1])
    if ctx.platform == "tpu" and not plain and x.dtype.is_floating_point:
        return _contract(x, dim, taps)
    if columns > FEW_TAPS:
        return hlo.reduce_sum(_gathered(x, dim, taps, plain), [dim + 1])
    total = None
    for column in range(columns):
        one = Taps(*(part[:, column] for part in taps))
        part = _gathered(x, dim, one, plain)
        total = part if total is None else total + part
    assert total is not None
    # Fused into the next axis, everything here would be compiled and computed once for each of that axis' taps.
    return hlo.optimization_barrier([total])[0] if columns > 2 else total


def _counts_up(position: Floats, repeats: int) -> bool:
    """True for 0, 0, 1, 1, 2, 2, ... (two repeats)."""
    return bool((position.reshape(-1) == np.arange(position.size) // repeats).all())


def _gathered(x: Value, dim: int, taps: Taps, plain: bool) -> Value:
    """The weighted elements; the taps' dimensions stand at `dim`."""
    parts = hlo.take(x, hlo.literal(taps.position.astype(np.int32), torch.int32), dim)
    place = range(dim, dim + taps.position.ndim)
    if not plain:
        parts = parts * hlo.broadcast_in_dim(hlo.literal(taps.weight, x.dtype), parts.shape, place)
    if not taps.inside.all():  # not by their zero weight: 0 * inf is NaN
        inside = hlo.broadcast_in_dim(hlo.literal(taps.inside, torch.bool), parts.shape, place)
        parts = hlo.select(inside, parts, 0)
    return parts


def _repeat(x: Value, dim: int, factor: int) -> Value:
    dims = [axis if axis <= dim else axis + 1 for axis in range(x.ndim)]
    spread = hlo.broadcast_in_dim(x, [*x.shape[: dim + 1], factor, *x.shape[dim + 1 :]], dims)
    return hlo.reshape(spread, [*x.shape[:dim], x.shape[dim] * factor, *x.shape[dim + 1 :]])


def _contract(x: Value, dim: int, taps: Taps) -> Value:
    """The same as a product with a dense matrix [outs, size]: TPUs multiply faster than they gather."""
    shape = (*taps.position.shape, x.shape[dim])
    position = hlo.literal(np.where(taps.inside, taps.position, -1).astype(np.int32), torch.int32)
    here = hlo.equal(hlo.broadcast_in_dim(position, shape, [0, 1]), hlo.iota(shape, 2, torch.int32))
    weight = hlo.broadcast_in_dim(hlo.literal(taps.weight, x.dtype), shape, [0, 1])
    matrix = hlo.reduce_sum(hlo.select(here, weight, 0), [1])
    product = hlo.dot_general(x, matrix, contract=([dim], [1]), precision="HIGHEST")
    return hlo.move_dim(product, -1, dim)


def _fixed_point(taps: Taps) -> tuple[Taps, int]:
    """Taps with 16-bit weights for bytes, and the number of bits after the point: as many as the largest leaves."""
    rows, columns = taps.position.shape
    merged = np.where(taps.inside, taps.weight, 0)
    for column in range(1, columns):  # edges repeat a position; its weights are rounded together
        for earlier in range(column):
            same = (taps.position[:, column] == taps.position[:, earlier]) & taps.inside[:, column]
            merged[:, earlier] += np.where(same, merged[:, column], 0)
            merged[:, column] = np.where(same, 0, merged[:, column])
    largest, bits = float(merged.max()), 0
    while bits < 22 and int(0.5 + largest * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    scaled = merged * (1 << bits)
    weight = np.trunc(np.where(scaled < 0, scaled - 0.5, scaled + 0.5)).astype(np.int32)
    return Taps(taps.position, weight, np.ones((rows, columns), bool)), bits


def _resize_bytes(ctx: Context, x: Value, axes: Sequence[Taps]) -> Value:
    """Bytes are rounded and cut to 0..255 after each axis, the last one first."""
    x = hlo.convert(x, torch.int32)
    for axis in reversed(range(len(axes))):
        dim = x.ndim - len(axes) + axis
        if axes[axis].is_identity(x.shape[dim]):
            continue
        taps, bits = _fixed_point(axes[axis])
        total = _resample(ctx, x, dim, taps) + (1 << (bits - 1))
        x = hlo.clamp(0, hlo.shift_right_arithmetic(total, bits), 255)
    return x


def _resize(ctx: Context, x: Value, axes: Sequence[Taps]) -> Value:
    """Axes that shrink most come first, so that the others have less to do."""
    lead = x.ndim - len(axes)
    ratio = [len(taps.position) / x.shape[lead + axis] for axis, taps in enumerate(axes)]
    for axis in sorted(range(len(axes)), key=lambda axis: ratio[axis]):
        x = _resample(ctx, x, lead + axis, axes[axis])
    return x


def _arithmetic(dtype: torch.dtype) -> Any:
    return np.float64 if dtype is torch.float64 else np.float32


def _arguments(rank: int, aligned: bool, rest: Sequence[Any]) -> tuple[bool, list[float | None]]:
    """`align_corners` (where an overload has it) and the scales that follow in its signature."""
    rest = list(rest)
    align_corners = bool(rest.pop(0)) if aligned else False
    return align_corners, [*rest, *[None] * (rank - len(rest))]


def _forward(rank: int, taps: Callable[..., Taps], aligned: bool) -> Callable[..., Value]:
    def upsample(ctx: Context, x: Value, output_size: Sequence[int], *rest: Any, **scales: float | None) -> Value:
        if 0 in ctx.out.shape:
            return hlo.full(ctx.out.shape, 0, x.dtype)
        align_corners, factors = _arguments(rank, aligned, rest)
        for name, factor in scales.items():
            factors[_axis_of(name, rank)] = factor
        exact_bytes = x.dtype is torch.uint8 and rank == 2 and taps not in (nearest, nearest_exact)
        precision = np.float64 if exact_bytes else _arithmetic(x.dtype)
        axes = [
            _unchanged(size, precision)
            if size == outs and (exact_bytes or taps in ANTIALIASED)  # even if a scale says otherwise
            else taps(size, outs, factor, align_corners, precision)
            for size, outs, factor in zip(x.shape[-rank:], output_size, factors, strict=True)
        ]
        if exact_bytes:
            return _resize_bytes(ctx, x, axes)
        if taps in (nearest, nearest_exact):
            return _resize(ctx, x, axes)
        return _resize(ctx, hlo.convert(x, hlo.compute_dtype(x.dtype)), axes)

    return upsample


def _axis_of(name: str, rank: int) -> int:
    """Which axis scales, scales_d, scales_h or scales_w is for."""
    return 0 if rank == 1 else "dhw"[-rank:].index(name[-1])


def _backward(rank: int, taps: Callable[..., Taps], aligned: bool) -> Callable[..., Value]:
    def upsample_backward(
        ctx: Context,
        grad: Value,
        output_size: Sequence[int],
        input_size: Sequence[int],
        *rest: Any,
        **scales: float | None,
    ) -> Value:
        if 0 in ctx.out.shape:
            return hlo.full(ctx.out.shape, 0, grad.dtype)
        align_corners, factors = _arguments(rank, aligned, rest)
        for name, factor in scales.items():
            factors[_axis_of(name, rank)] = factor
        axes = [
            taps(size, outs, factor, align_corners, _arithmetic(grad.dtype)).transposed(size)
            for size, outs, factor in zip(input_size[-rank:], output_size, factors, strict=True)
        ]
        return _resize(ctx, hlo.convert(grad, hlo.compute_dtype(grad.dtype)), axes)

    return upsample_backward


OPS: list[tuple[str, int, Callable[..., Taps], bool]] = [
    ("upsample_nearest1d", 1, nearest, False),
    ("upsample_nearest2d", 2, nearest, False),
    ("upsample_nearest3d", 3, nearest, False),
    ("_upsample_nearest_exact1d", 1, nearest_exact, False),
    ("_upsample_nearest_exact2d", 2, nearest_exact, False),
    ("_upsample_nearest_exact3d", 3, nearest_exact, False),
    ("upsample_linear1d", 1, linear, True),
    ("upsample_bilinear2d", 2, linear, True),
    ("upsample_trilinear3d", 3, linear, True),
    ("upsample_bicubic2d", 2, cubic, True),
    ("_upsample_bilinear2d_aa", 2, linear_aa, True),
    ("_upsample_bicubic2d_aa", 2, cubic_aa, True),
    ("_upsample_lanczos2d_aa", 2, lanczos_aa, True),
]
"""Overload, rank, taps, and whether it takes align_corners."""

for _name, _rank, _taps, _aligned in OPS:
    lowering(_name)(_forward(_rank, _taps, _aligned))
    lowering(f"{_name}_backward")(_backward(_rank, _taps, _aligned))
