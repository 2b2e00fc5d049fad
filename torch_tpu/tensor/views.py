"""Reading and writing a storage's array through a tensor's sizes, strides and offset, as StableHLO.

A storage holds a dense array whose dimensions are in stride order. A tensor on it is a *view*: dtype, sizes, strides
and offset in elements. When the strides nest - each divides the next larger one, and no window carries over into the
next - the view is a reshape, a slice, a transpose and a broadcast, and a write is the inverse with a
dynamic-update-slice. Every other view is a gather, and its write a scatter. XLA fuses these with what uses them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value


class View(NamedTuple):
    """How a tensor looks at its storage; sizes, strides and offset count elements of dtype."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conj: bool = False
    neg: bool = False

    @staticmethod
    def of(tensor: torch.Tensor) -> View:
        return View(
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    @property
    def numel(self) -> int:
        count = 1
        for size in self.size:
            count *= size
        return count


class Level(NamedTuple):
    """One dimension of the nested form: how many steps of `stride` it has, and the window that the view takes."""

    stride: int
    steps: int
    start: int
    length: int


class Start(NamedTuple):
    """Where a view that selects starts: an offset that is an operand."""

    offset: Value
    windows: bool = False
    """Where the view cuts dimensions other than the first depends on it as well."""


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def physical_order(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...] | None:
    """The dimensions from the largest stride to the smallest if that makes a dense array, else None."""
    if 0 in size or stride == contiguous_strides(size):
        return tuple(range(len(size)))
    order = sorted(range(len(size)), key=lambda dim: (-stride[dim], size[dim] == 1, dim))
    step = 1
    for dim in reversed(order):
        if size[dim] == 1:
            continue
        if stride[dim] != step:
            return None
        step *= size[dim]
    return tuple(order)


def is_whole(tensor: torch.Tensor) -> bool:
    """A dense tensor that is all of its storage."""
    return (
        tensor.storage_offset() == 0
        and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.dtype.itemsize
        and not tensor.is_conj()
        and not tensor.is_neg()
        and (tensor.is_contiguous() or physical_order(tuple(tensor.shape), tensor.stride()) is not None)
    )


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """Where in its storage a tensor's memory begins and ends, in bytes."""
    steps = (stride * (size - 1) for size, stride in zip(tuple(tensor.shape), tensor.stride(), strict=True))
    start, length = int(tensor.storage_offset()), sum(steps) + 1 if tensor.numel() else 0
    return start * tensor.dtype.itemsize, (start + length) * tensor.dtype.itemsize


def dense_like(size: Sequence[int], stride: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dimensions' order in memory and the strides of a dense tensor that is laid out as a part of another one is.

    Views of it are then possible where they are of the part: the heads of attention, say. An expanded tensor becomes
    contiguous.
    """
    dims = range(len(size))
    if any(stride[dim] == 0 and size[dim] > 1 for dim in dims):
        return tuple(dims), contiguous_strides(size)
    order = tuple(sorted(dims, key=lambda dim: (-stride[dim], dim)))
    dense, step = [0] * len(size), 1
    for dim in reversed(order):
        dense[dim], step = step, step * max(size[dim], 1)
    return order, tuple(dense)


def retype(base: Value, dtype: torch.dtype) -> Value:
    """The same memory as an array of another dtype (torch.Tensor.view(dtype), view_as_real, view_as_complex)."""
    if base.dtype is dtype:
        return base
    if base.dtype.is_complex:
        parts = hlo.stack([hlo.real(base), hlo.imag(base)], base.ndim)
        return retype(parts, dtype)
    if dtype.is_complex:
        pairs = retype(base, hlo.real_dtype(dtype))
        if pairs.ndim == 0 or pairs.shape[-1] != 2:
            flat = hlo.flatten(pairs)
            flat = hlo.pad(flat, [0], [flat.numel % 2])
            pairs = hlo.reshape(flat, (flat.numel // 2, 2))
        return hlo.make_complex(hlo.index_in_dim(pairs, -1, 0), hlo.index_in_dim(pairs, -1, 1))
    if base.dtype is torch.bool:
        return retype(hlo.convert(base, torch.uint8), dtype)
    if dtype is torch.bool:
        return hlo.not_equal(retype(base, torch.uint8), 0)
    old, new = base.dtype.itemsize, dtype.itemsize
    if new > old:
        ratio = new // old
        if base.ndim == 0 or base.shape[-1] != ratio:
            flat = hlo.flatten(base)
            flat = hlo.pad(flat, [0], [-flat.numel % ratio])
            base = hlo.reshape(flat, (flat.numel // ratio, ratio))
    return hlo.bitcast(base, dtype)


def _levels(numel: int, strides: Sequence[int], lengths: Sequence[int], offset: int) -> list[Level] | None:
    """The nested form for strictly decreasing strides that end in 1, or None."""
    levels, rest, outer = [], offset, 0
    for index, (stride, length) in enumerate(zip(strides, lengths, strict=True)):
        start, rest = divmod(rest, stride)
        if index == 0:
            steps = -(-max(numel, (start + length) * stride) // stride)
        elif outer % stride:
            return None
        else:
            steps = outer // stride
            if start + length > steps:
                return None
        levels.append(Level(stride, steps, start, length))
        outer = stride
    return levels


def nest(shape: Sequence[int], view: View) -> tuple[list[Level], tuple[int, ...]] | None:
    """The nested form of a view of an array, and the view's dimensions that are not repeated, by falling stride."""
    numel = 1
    for size in shape:
        numel *= size
    kept = [dim for dim, size in enumerate(view.size) if size > 1 and view.stride[dim] > 0]
    kept.sort(key=lambda dim: (-view.stride[dim], dim))
    windows = {view.stride[dim]: view.size[dim] for dim in kept}
    if len(windows) != len(kept):
        return None
    array_strides = {stride for stride, size in zip(contiguous_strides(shape), shape, strict=True) if size > 1}
    for extra in (array_strides | {1}, {1}):  # following the array's own dimensions avoids a relayout on TPU
        strides = sorted(extra | windows.keys(), reverse=True)
        levels = _levels(numel, strides, [windows.get(stride, 1) for stride in strides], view.offset)
        if levels is not None:
            return levels, tuple(kept)
    return None


def _refine(base: Value, levels: Sequence[Level]) -> Value:
    shape = tuple(level.steps for level in levels)
    count = 1
    for size in shape:
        count *= size
    if count != base.numel:
        flat = hlo.flatten(base)
        base = hlo.pad(flat, [0], [count - flat.numel])
    return hlo.reshape(base, shape)


def read(base: Value, view: View, start: Start | None = None) -> Value:
    """The values that a tensor sees, in its logical shape.

    Args:
        start: the view's offset as an operand, for a view that selects; its own offset then only says where the
            dimensions start whose place does not vary.
    """
    if view.dtype is torch.complex32:
        return _complex_half(read(base, _halves(view), start), view)
    if 0 in view.size:
        return hlo.full(view.size, 0, view.dtype)
    value = _read(retype(base, view.dtype), view) if start is None else _read_selected(base, view, start)
    if view.conj:
        value = hlo.conj(value)
    return hlo.negate(value) if view.neg else value


def _halves(view: View) -> View:
    """complex32, which XLA does not have, is stored as pairs of float16 and computed with as complex64."""
    strides = tuple(2 * stride for stride in view.stride)
    return View(torch.float16, (*view.size, 2), (*strides, 1), 2 * view.offset, False, view.neg)


def _complex_half(pairs: Value, view: View) -> Value:
    wide = hlo.convert(pairs, torch.float32)
    value = hlo.make_complex(hlo.index_in_dim(wide, -1, 0), hlo.index_in_dim(wide, -1, 1))
    return hlo.conj(value) if view.conj else value


def _read(base: Value, view: View) -> Value:
    if base.shape == view.size and view.offset == 0 and view.stride == contiguous_strides(base.shape):
        return base
    nested = nest(base.shape, view)
    if nested is None:
        return hlo.take(hlo.flatten(base), _flat_indices(view))
    levels, kept = nested
    fine = _refine(base, levels)
    part = hlo.slice(fine, [level.start for level in levels], [level.start + level.length for level in levels])
    return _arrange(part, view, kept)


def _arrange(part: Value, view: View, kept: Sequence[int]) -> Value:
    """From the window of a nested form (its dimensions by falling stride) to the view's dimensions."""
    part = hlo.reshape(part, [view.size[dim] for dim in kept])
    ascending = sorted(kept)
    part = hlo.transpose(part, [kept.index(dim) for dim in ascending])
    if any(size > 1 for dim, size in enumerate(view.size) if dim not in kept):
        return hlo.broadcast_in_dim(part, view.size, ascending)
    return hlo.reshape(part, view.size)


def _selection(shape: Sequence[int], view: View, start: Start) -> tuple[list[Value], list[int], tuple[int, ...]]:
    """Starts and lengths of the window that a selecting view takes of an array, and the view's dimensions in it.

    The view's dimensions are whole or cut dimensions of the array, and it takes one index of each other one; only
    those indices, and where the first dimension is cut, depend on the offset operand, or where any is. csrc/pack.cpp
    decides which views are of this kind.
    """
    offset = start.offset
    dims = {view.stride[dim]: dim for dim, size in enumerate(view.size) if size > 1}
    dtype = torch.int32 if offset.dtype is torch.int32 else torch.int64
    starts, lengths, kept = [], [], []
    first = next((dim for dim, size in enumerate(shape) if size > 1), 0)
    for dim, (stride, size) in enumerate(zip(contiguous_strides(shape), shape, strict=True)):
        length = view.size[dims[stride]] if stride in dims and size > 1 else 1
        if size == 1:
            starts.append(hlo.scalar(0, dtype))
        elif length > 1 and not (length < size and (dim == first or start.windows)):
            starts.append(hlo.scalar(view.offset // stride % size, dtype))
        else:
            starts.append(hlo.remainder(hlo.divide(offset, stride), size))
        lengths.append(length)
        if length > 1:
            kept.append(dims[stride])
    return starts, lengths, tuple(kept)


def _read_selected(base: Value, view: View, start: Start) -> Value:
    starts, lengths, kept = _selection(base.shape, view, start)
    return _arrange(hlo.dynamic_slice(base, starts, lengths), view, kept)


def _flat_indices(view: View) -> Value:
    last = view.offset + sum((size - 1) * stride for size, stride in zip(view.size, view.stride, strict=True))
    dtype = torch.int32 if last < 2**31 else torch.int64
    index = hlo.full(view.size, view.offset, dtype)
    for dim, stride in enumerate(view.stride):
        if view.size[dim] > 1 and stride:
            index = index + hlo.iota(view.size, dim, dtype) * stride
    return index


class OverlapError(RuntimeError):
    """A write to memory that the operator also needs otherwise: by default, where elements share it."""

    def __init__(
        self,
        message: str = "unsupported operation: more than one element of the written-to tensor refers to a single memory "
        "location. Please clone() the tensor before performing the operation.",
    ) -> None:
        super().__init__(message)


def write(
    base: Value | None,
    numel: int,
    view: View,
    value: Value,
    start: Start | None = None,
    planned: Sequence[int] = (),
) -> Value:
    """The storage's array after a tensor on it was assigned a value of the tensor's shape and dtype.

    Args:
        base: the array before, or None where there was nothing yet.
        numel: elements of the view's dtype in the storage.
        start: as in `read`.
        planned: the shape of an array of `numel` elements to begin with where there is none.

    Raises:
        OverlapError: the tensor's elements overlap.
    """
    if view.dtype is torch.complex32:
        value = hlo.conj(value) if view.conj else value
        parts = hlo.convert(hlo.stack([hlo.real(value), hlo.imag(value)], value.ndim), torch.float16)
        return write(base, 2 * numel, _halves(view), parts, start)
    if any(size > 1 and stride == 0 for size, stride in zip(view.size, view.stride, strict=True)) and view.numel:
        raise OverlapError
    if view.neg:
        value = hlo.negate(value)
    if view.conj:
        value = hlo.conj(value)
    if start is not None:
        assert base is not None, "a view selects from an array"
        starts, lengths, kept = _selection(base.shape, view, start)
        return hlo.dynamic_update_slice(base, _unarrange(value, view, kept, lengths), starts)
    order = physical_order(view.size, view.stride)
    if order is not None and view.offset == 0 and view.numel == numel:
        dense = hlo.transpose(value, order)
        if base is not None and base.dtype is view.dtype and base.numel == numel:
            return hlo.reshape(dense, base.shape)
        return dense
    if base is None:
        base = hlo.full(tuple(planned) if planned and math.prod(planned) == numel else (numel,), 0, view.dtype)
    base = retype(base, view.dtype)
    if view.numel == 0:
        return base
    nested = nest(base.shape, view)
    if nested is None:
        return _scatter(base, numel, view, value)
    levels, kept = nested
    part = _unarrange(value, view, kept, [level.length for level in levels])
    fine = hlo.dynamic_update_slice(_refine(base, levels), part, [level.start for level in levels])
    if fine.numel == base.numel:
        return hlo.reshape(fine, base.shape)
    flat = hlo.slice_in_dim(hlo.flatten(fine), 0, 0, min(fine.numel, max(numel, base.numel)))
    return hlo.reshape(flat, base.shape) if flat.numel == base.numel else flat


def _unarrange(value: Value, view: View, kept: Sequence[int], lengths: Sequence[int]) -> Value:
    """The inverse of `_arrange`: a value of the view's shape as the window of the nested form."""
    ascending = sorted(kept)
    part = hlo.reshape(value, [view.size[dim] for dim in ascending])
    part = hlo.transpose(part, [ascending.index(dim) for dim in kept])
    return hlo.reshape(part, lengths)


def _scatter(base: Value, numel: int, view: View, value: Value) -> Value:
    flat = hlo.flatten(base)
    flat = hlo.pad(flat, [0], [max(0, numel - flat.numel)])
    return hlo.scatter(
        flat,
        hlo.expand_dims(hlo.flatten(_flat_indices(view)), [-1]),
        hlo.flatten(value),
        lambda old, new: new,
        update_window_dims=[],
        inserted_window_dims=[0],
        scatter_dims_to_operand_dims=[0],
    )
