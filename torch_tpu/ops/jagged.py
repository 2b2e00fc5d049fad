"""Padding rows of different lengths, and taking the padding away again: what jagged nested tensors are reduced by.

Row i of a jagged tensor is values[offsets[i]:offsets[i + 1]]. Each is the other's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.indexing import segment_of
from torch_tpu.ops.registry import Context, lowering, number


def _only(offsets: Sequence[Value]) -> Value:
    if len(offsets) != 1:
        raise RuntimeError(f"only a single jagged dimension is supported, not {len(offsets)}")
    return hlo.convert(offsets[0], torch.int64)


def _column(x: Value, like: Value) -> Value:
    """One number for each of the leading dimensions of `like`, which x has."""
    return hlo.broadcast_in_dim(x, like.shape, range(x.ndim))


@lowering("_jagged_to_padded_dense_forward", data=("padding_value",))
def jagged_to_padded(
    ctx: Context,
    values: Value,
    offsets: Sequence[Value],
    max_lengths: Sequence[int],
    padding_value: Value | float = 0.0,
) -> Value:
    """[rows, ...] -> [B, max_length, ...]; what is longer is cut."""
    starts = _only(offsets)
    count, length = starts.shape[0] - 1, max_lengths[0]
    shape = (count, length, *values.shape[1:])
    padding = hlo.broadcast_to(number(padding_value, values.dtype), shape)
    if values.shape[0] == 0 or padding.numel == 0:
        return padding
    first = hlo.broadcast_in_dim(hlo.slice_in_dim(starts, 0, 0, count), (count, length), [0])
    end = hlo.broadcast_in_dim(hlo.slice_in_dim(starts, 0, 1, count + 1), (count, length), [0])
    place = first + hlo.iota((count, length), 1, torch.int64)
    rows = hlo.take(values, hlo.minimum(place, values.shape[0] - 1))
    return hlo.select(_column(hlo.less(place, end), rows), rows, padding)


@lowering("_padded_dense_to_jagged_forward", inferred=True)
def padded_to_jagged(ctx: Context, dense: Value, offsets: Sequence[Value], total_L: int) -> Value:
    """[B, max_length, ...] -> [total_L, ...]; 0 where a row is longer than max_length."""
    starts = _only(offsets)
    count, length = dense.shape[:2]
    shape = (total_L, *dense.shape[2:])
    if dense.numel == 0 or total_L == 0:
        return hlo.full(shape, 0, dense.dtype)
    row = segment_of(hlo.slice_in_dim(starts, 0, 0, count), total_L) - 1
    place = hlo.iota((total_L,), 0, torch.int64) - hlo.take(starts, row)
    inside = hlo.less(place, length) & hlo.less(row, count)
    index = hlo.convert(row, torch.int64) * length + hlo.minimum(place, length - 1)
    rows = hlo.take(hlo.reshape(dense, (count * length, *dense.shape[2:])), index)
    return hlo.select(_column(inside, rows), rows, 0)
