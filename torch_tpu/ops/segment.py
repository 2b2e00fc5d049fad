"""Reductions over consecutive segments of a dimension, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Number, Value
from torch_tpu.ops.bounds import require_all
from torch_tpu.ops.registry import Context, lowering
from torch_tpu.ops.scan import cumulative_sum
from torch_tpu.ops.sorting import scatter_rows, search

_COMBINE: dict[str, Callable[[Value, Value], Value]] = {
    "sum": hlo.add,
    "mean": hlo.add,
    "prod": hlo.multiply,
    "max": hlo.maximum,
    "min": hlo.minimum,
}


def _initial(reduce: str, dtype: torch.dtype) -> Number:
    if reduce in ("max", "min"):
        return hlo.lowest(dtype) if reduce == "max" else hlo.highest(dtype)
    return 1 if reduce == "prod" else 0


class _Segments(NamedTuple):
    """Data seen as rows (batch x length, inner) and segments as rows (batch x number, inner)."""

    rows: Value
    places: Value
    """Which segment a row belongs to; one past the last for none."""
    sizes: Value
    """How many rows a segment has, (batch x number, 1)."""
    shape: tuple[int, ...]
    """Of the reduced tensor."""

    @property
    def total(self) -> int:
        return self.sizes.shape[0]

    def fold(self, rows: Value, start: Number, combine: Callable[[Value, Value], Value]) -> Value:
        return scatter_rows(hlo.full((self.total, rows.shape[1]), start, rows.dtype), self.places, rows, combine)

    def spread(self, folded: Value) -> Value:
        """Every row's entry of its segment; anything for rows of none."""
        return hlo.take(folded, self.places)


def _segments(data: Value, lengths: Value | None, offsets: Value | None, axis: int) -> _Segments:
    axis %= data.ndim
    batch, length = math.prod(data.shape[:axis]), data.shape[axis]
    if offsets is None:
        assert lengths is not None, "segment_reduce takes lengths or offsets"
        sizes = hlo.reshape(lengths, (batch, lengths.shape[-1]))
        offsets = hlo.pad(cumulative_sum(sizes, 1), (0, 1), (0, 0))
    else:
        offsets = hlo.reshape(offsets, (batch, offsets.shape[-1]))
    number = offsets.shape[1] - 1
    sizes = hlo.slice_in_dim(offsets, 1, 1, number + 1) - hlo.slice_in_dim(offsets, 1, 0, number)
    positions = hlo.iota((batch, length), 1, offsets.dtype)
    segment = hlo.convert(search(offsets, positions, True), torch.int64) - 1
    inside = hlo.greater_equal(segment, 0) & hlo.less(segment, number)
    places = hlo.select(inside, hlo.iota((batch, length), 0, torch.int64) * number + segment, batch * number)
    inner = math.prod(data.shape[axis + 1 :])
    return _Segments(
        hlo.reshape(data, (batch * length, inner)),
        hlo.flatten(places),
        hlo.reshape(sizes, (batch * number, 1)),
        (*data.shape[:axis], number, *data.shape[axis + 1 :]),
    )


def _wide(x: Value) -> Value:
    return hlo.convert(x, hlo.compute_dtype(x.dtype))


@lowering("segment_reduce", static=["initial"])
def segment_reduce(
    ctx: Context,
    data: Value,
    reduce: str,
    *,
    lengths: Value | None = None,
    indices: Value | None = None,
    offsets: Value | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Number | None = None,
) -> Value:
    data = _wide(data)
    if lengths is not None and not unsafe:
        whole = hlo.equal(hlo.reduce_sum(lengths, [-1]), data.shape[axis])
        require_all(ctx.platform, whole, f"aten::segment_reduce: lengths do not add up to {data.shape[axis]}")
    segments = _segments(data, lengths, offsets, axis)
    start = _initial(reduce, data.dtype) if initial is None else initial
    folded = segments.fold(segments.rows, start, _COMBINE[reduce])
    if reduce == "mean":
        size = hlo.broadcast_to(hlo.convert(segments.sizes, data.dtype), folded.shape)
        average = hlo.divide(folded, size)
        folded = average if initial is None else hlo.select(hlo.equal(size, 0), folded, average)
    return hlo.reshape(folded, segments.shape)


@lowering("_segment_reduce_backward", static=["initial"])
def segment_reduce_backward(
    ctx: Context,
    grad: Value,
    output: Value,
    data: Value,
    reduce: str,
    *,
    lengths: Value | None = None,
    offsets: Value | None = None,
    axis: int = 0,
    initial: Number | None = None,
) -> Value:
    data = _wide(data)
    segments = _segments(data, lengths, offsets, axis)
    rows, shape = segments.rows, (segments.total, segments.rows.shape[1])
    grad, output = hlo.reshape(_wide(grad), shape), hlo.reshape(_wide(output), shape)
    passed = segments.spread(grad) if segments.total else hlo.zeros_like(rows)
    if reduce == "mean" and segments.total:
        size = segments.spread(hlo.convert(segments.sizes, rows.dtype))
        passed = hlo.divide(passed, hlo.broadcast_to(size, rows.shape))
    elif reduce in ("max", "min"):
        hit = hlo.is_nan(rows) | hlo.equal(rows, segments.spread(output))
        number = segments.spread(segments.fold(hlo.convert(hit, rows.dtype), 0, hlo.add))
        # PyTorch's kernels share a gradient among equal elements only where it is positive.
        shared = hlo.select(hlo.greater(passed, 0), hlo.divide(passed, number), passed)
        passed = hlo.select(hit, shared, 0)
    elif reduce == "prod":
        start = 1 if initial is None else initial
        passed = passed * _product_of_others(segments, rows, segments.spread(output), start)
    known = hlo.broadcast_in_dim(hlo.less(segments.places, segments.total), rows.shape, [0])
    return hlo.reshape(hlo.select(known, passed, 0), data.shape)


def _product_of_others(segments: _Segments, rows: Value, output: Value, start: Number) -> Value:
    """The product without a row: output / row, or by counting zeros and NaNs where the row is one."""
    zero, nan = hlo.equal(rows, 0), hlo.is_nan(rows)
    special = zero | nan
    plain = segments.spread(segments.fold(hlo.select(special, 1, rows), start, hlo.multiply))

    def others(flag: Value) -> Value:
        flag = hlo.convert(flag, rows.dtype)
        return hlo.greater(segments.spread(segments.fold(flag, 0, hlo.add)) - flag, 0)

    product = hlo.select(others(nan), float("nan"), hlo.select(others(zero), 0, plain))
    return hlo.select(special, product, hlo.divide(output, rows))
