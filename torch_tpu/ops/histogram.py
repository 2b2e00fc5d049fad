"""Histograms of one and of several dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Number, Value
from torch_tpu.ops.bounds import require_all
from torch_tpu.ops.reduction import index_dtype
from torch_tpu.ops.registry import Context, lowering
from torch_tpu.ops.sorting import scatter_rows, search


def _bounds(x: Value, low: Number, high: Number, given: bool, margin: float) -> tuple[Value, Value]:
    """The outer edges, 0-d: those given, else those of the data; moved apart by margins if equal."""
    if not given and x.numel:
        line = hlo.flatten(x)
        bottom, top = hlo.reduce_min(line, [0]), hlo.reduce_max(line, [0])
    else:
        bottom, top = hlo.scalar(low, x.dtype), hlo.scalar(high, x.dtype)
    flat = hlo.equal(bottom, top)
    return hlo.select(flat, bottom - margin, bottom), hlo.select(flat, top + margin, top)


def _edges(x: Value, bins: int, limits: Sequence[float] | None) -> Value:
    """bins + 1 evenly spaced edges; counted from the nearer end, as torch.linspace does."""
    start, end = limits or (0.0, 1.0)
    low, high = _bounds(x, start, end, given=limits is not None, margin=0.5)
    step = hlo.divide(high - low, bins)
    index = hlo.iota((bins + 1,), 0, torch.int32)
    position = hlo.convert(index, x.dtype)
    return hlo.select(
        hlo.less(index, (bins + 1) // 2), low + step * position, high - step * hlo.subtract(bins, position)
    )


def _counts(places: Value, total: int, weight: Value | None, dtype: torch.dtype) -> Value:
    """The number, or the summed weights, of the elements at every place; those past the end do not count."""
    kind = index_dtype(places.numel) if weight is None else weight.dtype
    added = hlo.full(places.shape, 1, kind) if weight is None else hlo.flatten(weight)
    return hlo.convert(scatter_rows(hlo.full((total,), 0, kind), places, added, hlo.add), dtype)


_PRECISION = {torch.bfloat16: (8, 7), torch.float16: (5, 10)}


def _exact(x: Value) -> Value:
    return hlo.convert(x, hlo.compute_dtype(x.dtype) if x.dtype.is_floating_point else torch.float32)


def _rounded(x: Value, dtype: torch.dtype) -> Value:
    """x as a narrower dtype has it: PyTorch rounds every step of finding a bin, and the bins show it."""
    return hlo.reduce_precision(x, *_PRECISION[dtype]) if dtype in _PRECISION else x


@lowering("histc", static=["min", "max"])
def histc(ctx: Context, x: Value, bins: int = 100, min: Number = 0, max: Number = 0) -> Value:
    line = hlo.flatten(x)
    if x.numel == 0:
        return hlo.full((bins,), 0, x.dtype)
    low, high = _bounds(line, min, max, given=min != max, margin=1)
    if min == max and x.dtype.is_floating_point:
        finite = hlo.is_finite(low) & hlo.is_finite(high)
        require_all(ctx.platform, finite, "aten::histc: the range of the input is not finite")
    start, end = _exact(low), _exact(high)
    offset = _rounded(_exact(line) - start, x.dtype)
    scaled = _rounded(offset * _rounded(hlo.scalar(bins, offset.dtype), x.dtype), x.dtype)
    places = hlo.convert(_rounded(hlo.divide(scaled, _rounded(end - start, x.dtype)), x.dtype), torch.int32)
    inside = hlo.greater_equal(line, low) & hlo.less_equal(line, high)
    places = hlo.select(inside, hlo.minimum(places, bins - 1), bins)
    return _counts(places, bins, None, x.dtype)


def _histogram(rows: Value, edges: Sequence[Value], weight: Value | None, density: bool) -> Value:
    """The histogram of the points in rows; the last bin of every dimension includes its upper edge."""
    shape = [edge.numel - 1 for edge in edges]
    total = math.prod(shape)
    place, inside = hlo.full((rows.shape[0],), 0, torch.int32), hlo.full((rows.shape[0],), True, torch.bool)
    for dim, edge in enumerate(edges):
        x = hlo.index_in_dim(rows, 1, dim)
        first, last = hlo.index_in_dim(edge, 0, 0), hlo.index_in_dim(edge, 0, -1)
        inside = inside & hlo.greater_equal(x, first) & hlo.less_equal(x, last)
        position = hlo.convert(search(edge, x, True), torch.int32) - 1
        place = place * shape[dim] + hlo.minimum(position, shape[dim] - 1)
    place = hlo.select(inside, place, total)
    histogram = hlo.reshape(_counts(place, total, weight, rows.dtype), shape)
    if not density:
        return histogram
    histogram = hlo.divide(histogram, hlo.reduce_sum(histogram, range(histogram.ndim)))
    for dim, edge in enumerate(edges):
        width = hlo.slice_in_dim(edge, 0, 1, edge.numel) - hlo.slice_in_dim(edge, 0, 0, edge.numel - 1)
        histogram = hlo.divide(histogram, hlo.broadcast_in_dim(width, shape, [dim]))
    return histogram


def _points(x: Value, dims: int) -> Value:
    if dims > 1 and x.shape[-1:] != (dims,):
        raise RuntimeError(f"{dims} numbers of bins for points of shape {x.shape[-1:]}")
    return hlo.reshape(x, (x.numel // dims, dims))


@lowering("histogram.bins_tensor", inferred=True)
def histogram_of_edges(
    ctx: Context, x: Value, bins: Value, *, weight: Value | None = None, density: bool = False
) -> tuple[Value, Value]:
    return _histogram(_points(x, 1), [bins], weight, density), bins


@lowering("histogram.bin_ct", inferred=True)
def histogram_of_count(
    ctx: Context,
    x: Value,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Value | None = None,
    density: bool = False,
) -> tuple[Value, Value]:
    edges = _edges(x, bins, range)
    return _histogram(_points(x, 1), [edges], weight, density), edges


@lowering("_histogramdd_bin_edges")
def histogramdd_bin_edges(
    ctx: Context,
    x: Value,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Value | None = None,
    density: bool = False,
) -> list[Value]:
    rows = _points(x, len(bins))
    limits = [None if range is None else range[2 * dim : 2 * dim + 2] for dim, _ in enumerate(bins)]
    return [_edges(hlo.index_in_dim(rows, 1, dim), count, limits[dim]) for dim, count in enumerate(bins)]


@lowering("_histogramdd_from_bin_cts")
def histogramdd_from_counts(
    ctx: Context,
    x: Value,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Value | None = None,
    density: bool = False,
) -> Value:
    edges = histogramdd_bin_edges(ctx, x, bins, range=range)
    return _histogram(_points(x, len(bins)), edges, weight, density)


@lowering("_histogramdd_from_bin_tensors")
def histogramdd_from_edges(
    ctx: Context, x: Value, bins: Sequence[Value], *, weight: Value | None = None, density: bool = False
) -> Value:
    return _histogram(_points(x, len(bins)), bins, weight, density)
