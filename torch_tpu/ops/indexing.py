"""Reading by index and by mask: index, gather, take, masked_fill, nonzero and their relatives.

`advanced`, `wrap`, `prefix_sum` and `segment_of` also serve scatter.py, embedding.py and creation.py.
Reads out of range are clamped and writes dropped; programs for the CPU refuse such indices before (bounds.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.bounds import require_all
from torch_tpu.ops.registry import Context, lowering


def position_dtype(*sizes: int) -> torch.dtype:
    """int32 where it can hold positions in dimensions (or tensors) of the given sizes."""
    return torch.int64 if any(size >= 2**31 for size in sizes) else torch.int32


def wrap(index: Value, size: int, dtype: torch.dtype | None = None) -> Value:
    """Positions for PyTorch's indices into a dimension: negative ones count from its end."""
    index = hlo.convert(index, dtype or position_dtype(size))
    return hlo.select(hlo.less(index, 0), index + size, index)


def at_least_1d(x: Value) -> Value:
    return x if x.ndim else hlo.reshape(x, (1,))


def prefix_sum(x: Value) -> Value:
    """Inclusive cumulative sum of a vector of integers. XLA takes this window apart into a tree."""
    if x.numel == 0:
        return x
    total = hlo.reduce_window(x, 0, hlo.add, window=[x.numel], padding=[(x.numel - 1, 0)])
    assert isinstance(total, Value), "one value gives one"
    return total


def segment_of(starts: Value, total: int) -> Value:
    """For each of `total` places in a row, how many of the starts lie at or before it."""
    marks = hlo.full((total,), 0, torch.int32)
    if total == 0 or starts.numel == 0:
        return marks
    ones = hlo.full(starts.shape, 1, torch.int32)
    return prefix_sum(add_at(marks, starts, ones))


def add_at(x: Value, index: Value, updates: Value) -> Value:
    """x[index] += updates for a vector x; duplicates add up."""
    return hlo.scatter(
        x,
        index,
        updates,
        hlo.add,
        update_window_dims=[],
        inserted_window_dims=[0],
        scatter_dims_to_operand_dims=[0],
        index_vector_dim=index.ndim,
    )


def compaction(mask: Value, bound: int) -> tuple[Value, Value]:
    """Where the set elements of a flat mask go when they close up, and their number.

    A target of `bound` or more means nowhere.
    """
    ranks = prefix_sum(hlo.convert(mask, position_dtype(mask.numel, bound)))
    targets = hlo.select(mask, ranks - 1, max(mask.numel, bound))
    return targets, hlo.reduce_max(ranks, [0]) if mask.numel else hlo.scalar(0, ranks.dtype)


def close_up(x: Value, mask: Value, filling: Value) -> tuple[Value, Value]:
    """`filling`, its start replaced by the elements of a flat x where the mask is set; and their number."""
    targets, count = compaction(mask, filling.numel)
    if not x.numel or not filling.numel:
        return filling, count
    packed = hlo.scatter(
        filling,
        targets,
        x,
        lambda old, new: new,
        update_window_dims=[],
        inserted_window_dims=[0],
        scatter_dims_to_operand_dims=[0],
        index_vector_dim=1,
    )
    return packed, count


class Advanced(NamedTuple):
    """A list of index tensors, as StableHLO's gather and scatter want it."""

    dims: list[int]
    """The dimensions that are indexed."""
    positions: Value
    """[*broadcast shape of the indices, len(dims)]."""
    window_dims: list[int]
    """Where the dimensions that are not indexed stand in the result."""
    shape: tuple[int, ...]
    """The result's shape."""


def advanced(shape: Sequence[int], indices: Sequence[Value | None]) -> Advanced:
    """The broadcast shape of the indices stands where they stood if they are neighbours, else first.

    Raises:
        TypeError: an index has a dtype that PyTorch does not index with.
    """
    for index in indices:
        if index is not None and index.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"a tensor of {index.dtype} is no index")
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    dtype = position_dtype(*(shape[dim] for dim in dims))
    wrapped = [wrap(index, shape[dim], dtype) for dim, index in enumerate(indices) if index is not None]
    parts = hlo.broadcast(*wrapped)
    positions = hlo.stack(parts, -1) if len(parts) > 1 else hlo.expand_dims(parts[0], [-1])
    batch = parts[0].shape
    where = dims[0] if dims[-1] - dims[0] + 1 == len(dims) else 0
    kept = [dim for dim in range(len(shape)) if dim not in dims]
    window_dims = [place if place < where else place + len(batch) for place in range(len(kept))]
    sizes = [shape[dim] for dim in kept]
    return Advanced(dims, positions, window_dims, (*sizes[:where], *batch, *sizes[where:]))


@lowering("index.Tensor", "_unsafe_index.Tensor")
def index(ctx: Context, x: Value, indices: Sequence[Value | None]) -> Value:
    if all(item is None for item in indices):
        return x
    plan = advanced(x.shape, indices)
    if math.prod(plan.shape) == 0 or x.numel == 0:
        return hlo.full(plan.shape, 0, x.dtype)
    return hlo.gather(
        x,
        plan.positions,
        offset_dims=plan.window_dims,
        collapsed_slice_dims=plan.dims,
        start_index_map=plan.dims,
        slice_sizes=[1 if dim in plan.dims else size for dim, size in enumerate(x.shape)],
    )


def within(indices: Sequence[Value | None], shape: Sequence[int]) -> list[Value | None]:
    """Indices clamped to what their dimensions hold, before negative ones are wrapped."""
    return [
        None if item is None else hlo.clamp(-shape[dim], hlo.convert(item, torch.int64), shape[dim] - 1)
        for dim, item in enumerate(indices)
    ]


@lowering("_unsafe_masked_index")
def unsafe_masked_index(ctx: Context, x: Value, mask: Value, indices: Sequence[Value | None], fill: Value) -> Value:
    filling = hlo.broadcast_to(hlo.convert(fill, x.dtype), ctx.out.shape)
    if x.numel == 0:
        return filling
    return hlo.select(hlo.convert(mask, torch.bool), index(ctx, x, within(indices, x.shape)), filling)


@lowering("index_select")
def index_select(ctx: Context, x: Value, dim: int, positions: Value) -> Value:
    source = at_least_1d(x)
    if math.prod(ctx.out.shape) == 0 or source.numel == 0:
        return hlo.full(ctx.out.shape, 0, x.dtype)
    positions = hlo.convert(at_least_1d(positions), position_dtype(source.shape[dim]))
    return hlo.reshape(hlo.take(source, positions, dim), ctx.out.shape)


@lowering("gather")
def gather(ctx: Context, x: Value, dim: int, positions: Value, sparse_grad: bool = False) -> Value:
    if math.prod(ctx.out.shape) == 0 or x.numel == 0:
        return hlo.full(ctx.out.shape, 0, x.dtype)
    x, positions = at_least_1d(x), at_least_1d(positions)
    dim %= x.ndim
    sizes = [size if axis == dim else positions.shape[axis] for axis, size in enumerate(x.shape)]
    others = [axis for axis in range(x.ndim) if axis != dim]
    picked = hlo.gather(
        hlo.slice(x, [0] * x.ndim, sizes),
        hlo.convert(positions, position_dtype(x.shape[dim])),
        offset_dims=[],
        collapsed_slice_dims=[dim],
        start_index_map=[dim],
        slice_sizes=[1] * x.ndim,
        operand_batching_dims=others,
        start_indices_batching_dims=others,
        index_vector_dim=positions.ndim,
    )
    return hlo.reshape(picked, ctx.out.shape)


@lowering("take")
def take(ctx: Context, x: Value, positions: Value) -> Value:
    if positions.numel == 0 or x.numel == 0:
        return hlo.full(positions.shape, 0, x.dtype)
    return hlo.take(hlo.flatten(x), wrap(positions, x.numel))


@lowering("masked_fill.Scalar", "masked_fill.Tensor", fitted=("value",))
def masked_fill(ctx: Context, x: Value, mask: Value, value: Value) -> Value:
    mask, x = hlo.convert(mask, torch.bool), hlo.convert(x, ctx.out.dtype)
    filling = hlo.convert(value, x.dtype)
    return hlo.select(mask, filling, hlo.broadcast_to(x, ctx.out.shape))


@lowering("masked_scatter")
def masked_scatter(ctx: Context, x: Value, mask: Value, source: Value) -> Value:
    x, mask = hlo.broadcast_to(x, ctx.out.shape), hlo.broadcast_to(mask, ctx.out.shape)
    if not x.numel:
        return x
    if not source.numel:
        require_all(ctx.platform, ~mask, "aten::masked_scatter: source has no elements, and the mask has some")
        return x
    ranks = prefix_sum(hlo.convert(hlo.flatten(mask), position_dtype(x.numel, source.numel)))
    enough = hlo.less_equal(ranks, source.numel)
    require_all(ctx.platform, enough, "aten::masked_scatter: source has fewer elements than the mask has true ones")
    values = hlo.take(hlo.flatten(source), ranks - 1)
    return hlo.select(mask, hlo.reshape(values, x.shape), hlo.convert(x, source.dtype))


@lowering("masked_scatter_backward")
def masked_scatter_backward(ctx: Context, grad: Value, mask: Value, sizes: Sequence[int]) -> Value:
    grad, mask = hlo.broadcast(grad, mask)
    zeros = hlo.full((math.prod(sizes),), 0, grad.dtype)
    packed, _ = close_up(hlo.flatten(grad), hlo.flatten(mask), zeros)
    return hlo.reshape(packed, sizes)


@lowering("masked_select", dynamic=True)
def masked_select(ctx: Context, x: Value, mask: Value) -> list[Value]:
    if mask.dtype is not torch.bool:
        raise RuntimeError(f"masked_select: expected BoolTensor for mask, not {mask.dtype}")
    x, mask = hlo.broadcast(x, mask)
    flat = hlo.flatten(x)
    packed, count = close_up(flat, hlo.flatten(mask), hlo.zeros_like(flat))
    return [packed, hlo.convert(count, torch.int64)]


def set_positions(x: Value, bound: int) -> tuple[Value, Value]:
    """Coordinates, [bound, x.ndim], of the first elements that are not zero; and how many are."""
    mask = hlo.flatten(hlo.convert(x, torch.bool))
    dtype = position_dtype(x.numel)
    flat, count = close_up(hlo.iota(mask.shape, 0, dtype), mask, hlo.full((bound,), 0, dtype))
    columns = []
    for size in reversed(x.shape):
        columns.append(hlo.remainder(flat, max(size, 1)))
        flat = hlo.divide(flat, max(size, 1))
    if not columns:
        return hlo.full((bound, 0), 0, dtype), count
    return hlo.stack(columns[::-1], 1), count


@lowering("nonzero", dynamic=True, column_major=True)
def nonzero(ctx: Context, x: Value) -> list[Value]:
    coordinates, count = set_positions(x, x.numel)
    return [hlo.convert(coordinates, torch.int64), hlo.convert(count, torch.int64)]


@lowering("nonzero_static")
def nonzero_static(ctx: Context, x: Value, size: int, fill_value: int = -1) -> Value:
    coordinates, count = set_positions(x, size)
    real = hlo.less(hlo.iota((size, 1), 0, count.dtype), count)
    return hlo.select(real, hlo.convert(coordinates, torch.int64), fill_value)


@lowering("index_fill.int_Scalar", "index_fill.int_Tensor", fitted=("value",))
def index_fill(ctx: Context, x: Value, dim: int, positions: Value, value: Value) -> Value:
    filling = hlo.convert(value, x.dtype)
    source = at_least_1d(x)
    dim %= source.ndim
    size = source.shape[dim]
    if not source.numel or not positions.numel:
        return x
    marks = add_at(hlo.full((size,), 0, torch.int32), wrap(positions, size), hlo.full(positions.shape, 1, torch.int32))
    chosen = hlo.broadcast_in_dim(hlo.greater(marks, 0), source.shape, [dim])
    return hlo.reshape(hlo.select(chosen, filling, source), x.shape)
