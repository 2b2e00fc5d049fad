"""The operations of `shape` where dimensions are bounded: what moves elements must not let padding in between them."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

import torch

from torch_tpu.errors import BoundedError
from torch_tpu.hlo import arith, layout, types
from torch_tpu.hlo import shape as move
from torch_tpu.hlo.core import Number, Value
from torch_tpu.hlo.dims import DifferentSizes, Dim, as_expr, bound, interval, plain
from torch_tpu.hlo.layout import retag


def is_bounded(sizes: Sequence[int]) -> bool:
    return any(isinstance(size, Dim) for size in sizes)


def _raw(x: Value) -> Value:
    """The array, padding and all."""
    return retag(x, [bound(size) for size in x.shape])


def slice(x: Value, start: Sequence[int], limit: Sequence[int], step: Sequence[int]) -> Value:
    for axis, (low, high, by) in enumerate(zip(start, limit, step, strict=True)):
        if is_bounded([x.shape[axis], low, high]):
            x = _slice_in_dim(x, axis, low, high, by)
        elif (low, high, by) != (0, x.shape[axis], 1):
            size = max(0, -(-(high - low) // by))
            shape = [size if other == axis else length for other, length in enumerate(x.shape)]
            x = retag(move.slice_in_dim(_raw(x), axis, low, high, by), shape)
    return x


def _slice_in_dim(x: Value, axis: int, low: int, high: int, step: int) -> Value:
    """One dimension; a part that begins where only the program knows is a dynamic slice."""
    if step == 1 and low == 0 and high == x.shape[axis]:
        return x
    if is_bounded([step]):
        raise BoundedError("a slice has a step that varies")
    x = layout.compact(x, [axis])
    length = (high - low + step - 1) // step
    if isinstance(length, Dim):
        length = plain(length.expr, max(interval(length)[1], 0))
    reach = (bound(length) - 1) * step + 1 if bound(length) else 0
    shape = [length if other == axis else size for other, size in enumerate(x.shape)]
    raw = _raw(x)
    first = bound(low) + reach
    if first > raw.shape[axis]:
        raw = layout.resized(raw, axis, first)
    if isinstance(low, Dim):
        sizes = [reach if other == axis else size for other, size in enumerate(raw.shape)]
        zero = arith.scalar(0, torch.int32)
        starts = [layout.size_value(low, torch.int32) if other == axis else zero for other in range(x.ndim)]
        raw = move.dynamic_slice(raw, starts, sizes)
        low = 0
    return retag(move.slice_in_dim(raw, axis, low, low + reach, step), shape)


def pad(x: Value, low: Sequence[int], high: Sequence[int], value: Value | Number, interior: Sequence[int]) -> Value:
    for axis, (before, after, between) in enumerate(zip(low, high, interior, strict=True)):
        if not (before or after or between):
            continue
        if is_bounded([x.shape[axis], before, after]):
            x = _pad_in_dim(x, axis, before, after, value, between)
            continue
        amounts = [[amount if other == axis else 0 for other in range(x.ndim)] for amount in (before, after, between)]
        raw = move.pad(_raw(x), amounts[0], amounts[1], value, amounts[2])
        x = retag(raw, [raw.shape[other] if other == axis else size for other, size in enumerate(x.shape)])
    return x


def _pad_in_dim(x: Value, axis: int, low: int, high: int, value: Value | Number, interior: int) -> Value:
    """The real elements get their places, and all others of the result's real ones the value."""
    if isinstance(low, Dim) and interval(low)[1] > 0:
        return _pad_dynamic(x, axis, low, high, value, interior)
    if isinstance(low, Dim) or low < 0:
        x, low = _cut(x, axis, -low), 0
    x = layout.masked(layout.compact(x, [axis]), [axis], value)
    size = x.shape[axis]
    spread = (size - 1) * (interior + 1) + 1 if interior else size
    length = spread + low + high
    room = bound(size) + (bound(size) - 1) * interior + low
    raw = _raw(x)
    amounts = [[0] * x.ndim for _ in range(3)]
    amounts[0][axis], amounts[2][axis] = low, interior
    amounts[1][axis] = bound(length) - room  # a negative one cuts padding
    raw = move.pad(raw, amounts[0], amounts[1], value, amounts[2])
    sizes = [length if other == axis else other_size for other, other_size in enumerate(x.shape)]
    if isinstance(length, Dim):
        sizes[axis] = plain(length.expr, raw.shape[axis])
    return retag(raw, sizes)


def _pad_dynamic(x: Value, axis: int, low: int, high: int, value: Value | Number, interior: int) -> Value:
    """Padding in front by an amount that varies: the elements are put in place in a constant."""
    if interior or interval(low)[0] < 0:
        raise BoundedError("elements are padded in front by an amount that varies and may be negative")
    length = x.shape[axis] + low + high
    sizes = [length if other == axis else size for other, size in enumerate(x.shape)]
    filling = value if isinstance(value, Value) else arith.scalar(value, x.dtype)
    empty = arith.broadcast_to(filling, sizes)
    places = [layout.size_value(low, torch.int32) if other == axis else arith.scalar(0, torch.int32)
              for other in range(x.ndim)]  # fmt: skip
    return dynamic_update_slice(layout.compact(empty, [axis]), x, places)


def _cut(x: Value, axis: int, count: int) -> Value:
    starts = [count if other == axis else 0 for other in range(x.ndim)]
    return slice(x, starts, x.shape, [1] * x.ndim)


def concatenate(values: Sequence[Value], axis: int) -> Value:
    """Each value is written over the padding of those before it."""
    values = _alike(values, axis)
    sizes = [value.shape[axis] for value in values]
    shape = list(values[0].shape)
    if not is_bounded(sizes):
        raw = move.concatenate([_raw(value) for value in values], axis)
        shape[axis] = raw.shape[axis]
        return retag(raw, shape)
    values = [layout.compact(value, [axis]) for value in values]
    room = builtins.sum(bound(value.shape[axis]) for value in values)
    total = layout.resized(_raw(values[0]), axis, room)
    offset = sizes[0]
    for value in values[1:]:
        places = [layout.size_value(offset if other == axis else 0, torch.int32) for other in range(value.ndim)]
        total = move._dynamic_update_slice(total, _raw(value), places)
        offset = offset + value.shape[axis]
    shape[axis] = plain(as_expr(offset), room)
    return retag(total, shape)


def _alike(values: Sequence[Value], axis: int) -> list[Value]:
    """Values with the same layouts but along one dimension."""
    found = list(values)
    for other in range(found[0].ndim):
        sizes = [value.shape[other] for value in found]
        if other == axis or not is_bounded(sizes):
            continue
        if len({as_expr(size) for size in sizes}) > 1:
            raise DifferentSizes(sizes)
        chosen = next((s for s in sizes if isinstance(s, Dim) and s.factors is not None), sizes[0])
        assert isinstance(chosen, Dim)
        found = [layout.with_layout(value, other, chosen.laid_out()) for value in found]
    return found


def reverse(x: Value, dims: Sequence[int]) -> Value:
    x = layout.compact(x, dims)
    for axis in dims:
        size = x.shape[axis]
        if isinstance(size, Dim):
            dtype = layout.position_dtype(size)
            places = arith.subtract(layout.size_value(size - 1, dtype), arith.iota((size.bound,), 0, dtype))
            x = retag(move.take(_raw(x), places, axis), x.shape)
        else:
            x = retag(move.reverse(_raw(x), [axis]), x.shape)
    return x


def dynamic_update_slice(x: Value, update: Value, starts: Sequence[Value]) -> Value:
    """What is real of the update replaces elements; what lies behind is kept."""
    smaller = []
    for axis in range(x.ndim):
        size, other = x.shape[axis], update.shape[axis]
        if isinstance(other, Dim) and size == other:
            x = layout.with_layout(x, axis, other.laid_out())
        elif isinstance(other, Dim) or isinstance(size, Dim):
            x, update = layout.compact(x, [axis]), layout.compact(update, [axis])
            smaller += [axis] if isinstance(update.shape[axis], Dim) else []
    raw, part = _raw(x), _raw(update)
    if not smaller:
        return retag(move._dynamic_update_slice(raw, part, starts), x.shape)
    for axis in smaller:  # so that no start is clamped for the padding's sake
        raw = layout.resized(raw, axis, raw.shape[axis] + part.shape[axis])
    before = retag(move.dynamic_slice(raw, starts, part.shape), update.shape)
    inside = layout.masked(arith.full(update.shape, True, torch.bool), smaller, False)
    raw = move._dynamic_update_slice(raw, _raw(arith.select(inside, update, before)), starts)
    for axis in smaller:
        raw = layout.resized(raw, axis, bound(x.shape[axis]))
    return retag(raw, x.shape)


# ---- gather and scatter


def for_gather(
    x: Value, indices: Value, pairs: Sequence[tuple[int, int]], indexed: Sequence[int]
) -> tuple[Value, Value]:
    """Indices count real elements: these must come first."""
    x, indices = layout.paired(x, indices, pairs)
    return layout.compact(x, indexed), indices


def window_sizes(x: Value, sizes: Sequence[int]) -> list[int]:
    """The window of a gather, whose bounded dimensions are whole ones of x."""
    found = []
    for axis, size in enumerate(sizes):
        whole = x.shape[axis]
        if isinstance(size, Dim) and size != whole:
            raise DifferentSizes([size, whole])
        found.append(whole if isinstance(size, Dim) else size)
    return found


def for_scatter(
    x: Value,
    indices: Value,
    updates: Value,
    pairs: Sequence[tuple[int, int]],
    windows: Sequence[tuple[int, int]],
    indexed: Sequence[int],
    vector_dim: int,
) -> tuple[Value, Value, Value]:
    """Indices of padding are put out of range, so that its updates are dropped."""
    x, indices = layout.paired(x, indices, pairs)
    x = layout.compact(x, indexed)
    for axis, place in windows:
        size, part = x.shape[axis], updates.shape[place]
        if isinstance(size, Dim) or isinstance(part, Dim):
            if size != part:
                raise DifferentSizes([size, part])
            assert isinstance(size, Dim)
            updates = layout.with_layout(updates, place, size.laid_out())
    batch = [place for place in range(indices.ndim) if place != vector_dim]
    inside = {place for _, place in windows}
    free = [place for place in range(updates.ndim) if place not in inside]
    for place, target in zip(batch, free, strict=True):
        size, other = indices.shape[place], updates.shape[target]
        if isinstance(size, Dim) and isinstance(other, Dim):
            factors = (size if size.factors is not None else other).laid_out()
            indices, updates = layout.with_layout(indices, place, factors), layout.with_layout(updates, target, factors)
    if types.is_unsigned(indices.dtype):
        indices = arith.convert(indices, torch.int64)
    return x, layout.masked(indices, batch, -1), updates
