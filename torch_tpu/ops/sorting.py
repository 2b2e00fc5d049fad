"""Sorting and what rests on it: top-k, medians, modes, distinct values, searches in sorted sequences,
membership.

NaN counts as larger than everything, as in PyTorch. Of equal elements the one with the smaller index comes
first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Number, Value
from torch_tpu.ops.reduction import extreme, index_dtype
from torch_tpu.ops.registry import COMMON, Context, lowering, result_dtype
from torch_tpu.ops.scan import cumulative_sum, scan

FEW = 32
"""A search among at most this many boundaries compares with all of them."""


def order_of(descending: bool, dtype: torch.dtype) -> Callable[..., Value]:
    """The comparison for hlo.sort by its first operand."""

    def before(a: Value, b: Value, *rest: Value) -> Value:
        if descending:
            a, b = b, a
        smaller = hlo.less(a, b)
        return smaller | (hlo.is_nan(b) & ~hlo.is_nan(a)) if dtype.is_floating_point else smaller

    return before


def sort_with_places(x: Value, dim: int, descending: bool = False) -> tuple[Value, Value]:
    """x sorted stably along a dimension, and where each element was."""
    places = hlo.iota(x.shape, dim, index_dtype(x.shape[dim]))
    if x.shape[dim] == 1 or x.numel == 0:
        return x, places
    values, places = hlo.sort([x, places], dim, order_of(descending, x.dtype))
    return values, places


@lowering("sort", "sort.stable")
def sort(
    ctx: Context, x: Value, dim: int = -1, descending: bool = False, *, stable: bool | None = False
) -> tuple[Value, Value]:
    if x.ndim == 0:
        return x, hlo.scalar(0, torch.int64)
    return sort_with_places(x, dim % x.ndim, descending)


@lowering("topk")
def topk(
    ctx: Context, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, Value]:
    if x.ndim == 0:
        return (x, hlo.scalar(0, torch.int64)) if k else (hlo.full((0,), 0, x.dtype), hlo.full((0,), 0, torch.int64))
    dim %= x.ndim
    if largest and k and x.dtype.is_floating_point and x.dtype.itemsize <= 4 and x.numel:
        # XLA's own operator orders by bits, so a NaN must not have its sign set.
        rows = hlo.move_dim(hlo.convert(x, torch.float32), dim, -1)
        values, places = hlo.top_k(hlo.select(hlo.is_nan(rows), float("nan"), rows), k)
        return hlo.convert(hlo.move_dim(values, -1, dim), x.dtype), hlo.move_dim(places, -1, dim)
    values, places = sort_with_places(x, dim, descending=largest)
    return hlo.slice_in_dim(values, dim, 0, k), hlo.slice_in_dim(places, dim, 0, k)


def _pick(x: Value, places: Value, dim: int, keepdim: bool) -> Value:
    """One element of every line: places has size 1 along the dimension."""
    hit = hlo.equal(hlo.iota(x.shape, dim, places.dtype), hlo.broadcast_to(places, x.shape))
    fold = hlo.reduce_or if x.dtype is torch.bool else hlo.reduce_sum
    return fold(hlo.select(hit, x, 0), [dim], keepdim)


@lowering("kthvalue")
def kthvalue(ctx: Context, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    if x.ndim == 0:
        return x, hlo.scalar(0, torch.int64)
    dim %= x.ndim
    values, places = sort_with_places(x, dim)
    return hlo.index_in_dim(values, dim, k - 1, keepdim), hlo.index_in_dim(places, dim, k - 1, keepdim)


def _require_elements(x: Value, dim: int) -> None:
    """Refuses what would be the median or mode of nothing; meta kernels do not."""
    if x.shape[dim] == 0:
        raise IndexError(f"expected dimension {dim} to have elements, the sizes are {list(x.shape)}")


def median_along(x: Value, dim: int, keepdim: bool, skip_nan: bool) -> tuple[Value, Value]:
    """The lower median. A NaN is the median of its line, unless NaNs are skipped."""
    values, places = sort_with_places(x, dim)
    length = x.shape[dim]
    middle = (length - 1) // 2
    if not x.dtype.is_floating_point:
        return hlo.index_in_dim(values, dim, middle, keepdim), hlo.index_in_dim(places, dim, middle, keepdim)
    real = hlo.reduce_sum(hlo.convert(~hlo.is_nan(x), torch.int32), [dim], True)  # NaNs stand after these
    if skip_nan:
        place = hlo.shift_right_logical(hlo.select(hlo.equal(real, 0), length, real) - 1, hlo.full_like(real, 1))
    else:
        place = hlo.select(hlo.less(real, length), real, middle)
    return _pick(values, place, dim, keepdim), _pick(places, place, dim, keepdim)


def _nan_as(dtype: torch.dtype) -> Number:
    """What the CPU makes of NaN when it is cast: the median of nothing."""
    if hlo.is_integer(dtype):
        return torch.iinfo(dtype).min if dtype.itemsize >= 4 else 0
    return float("nan") if dtype.is_floating_point else True


def _median(skip_nan: bool) -> tuple[Callable[..., Value], Callable[..., tuple[Value, Value]]]:
    def whole(ctx: Context, x: Value) -> Value:
        if x.numel == 0:
            return hlo.scalar(_nan_as(x.dtype), x.dtype)
        return median_along(hlo.flatten(x), 0, False, skip_nan)[0]

    def along(ctx: Context, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        if x.ndim == 0:
            return x, hlo.scalar(0, torch.int64)
        _require_elements(x, dim % x.ndim)
        return median_along(x, dim % x.ndim, keepdim, skip_nan)

    return whole, along


for _name, _skip_nan in (("median", False), ("nanmedian", True)):
    _whole, _along = _median(_skip_nan)
    lowering(_name)(_whole)
    lowering(f"{_name}.dim")(_along)


def _differs_from_previous(x: Value, dim: int) -> Value:
    """Bools of x's shape: true at the first place, and where an element is not equal to the one before it."""
    length = x.shape[dim]
    shape = [1 if axis == dim else size for axis, size in enumerate(x.shape)]
    changed = hlo.not_equal(hlo.slice_in_dim(x, dim, 1, length), hlo.slice_in_dim(x, dim, 0, length - 1))
    return (
        hlo.concatenate([hlo.full(shape, True, torch.bool), changed], dim)
        if length > 1
        else hlo.full_like(x, True, torch.bool)
    )


@lowering("mode")
def mode(ctx: Context, x: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """The most frequent element (the smallest of such) and its last index: the longest sorted run's end."""
    if x.ndim == 0:
        return x, hlo.scalar(0, torch.int64)
    dim %= x.ndim
    _require_elements(x, dim)
    values, places = sort_with_places(x, dim)
    position = hlo.iota(x.shape, dim, places.dtype)
    starts = hlo.select(_differs_from_previous(values, dim), position, 0)
    starts = scan([starts], lambda a, b: [hlo.maximum(a[0], b[0])], dim)[0]
    end = extreme(position - starts, dim, True, True)[1]
    return _pick(values, end, dim, keepdim), _pick(places, end, dim, keepdim)


# ------------------------------------------------------------------------------------------ distinct values


def _set(old: Value, new: Value) -> Value:
    return new


def scatter_rows(
    x: Value,
    places: Value,
    rows: Value,
    combine: Callable[[Value, Value], Value] = _set,
    unique: bool = False,
) -> Value:
    """x with rows[i] combined into row places[i]; places beyond the end are dropped."""
    return hlo.scatter(
        x,
        hlo.reshape(places, (*places.shape, 1)),
        rows,
        combine,
        update_window_dims=range(1, rows.ndim),
        inserted_window_dims=[0],
        scatter_dims_to_operand_dims=[0],
        unique_indices=unique,
    )


def _distinct(
    rows: Value, first: Value, places: Value | None, with_inverse: bool, with_counts: bool
) -> tuple[Value, Value, Value, Value]:
    """Distinct rows (padded), inverse, counts (padded) and their number, of rows whose groups stand together.

    Args:
        first: whether a row is the first of its group.
        places: where each row was before it was sorted; None if it was not.
    """
    length = rows.shape[0]
    kind = index_dtype(length)
    group = cumulative_sum(hlo.convert(first, kind), 0) - 1
    number = hlo.convert(hlo.index_in_dim(group, 0, -1) + 1, torch.int64)
    distinct = scatter_rows(hlo.zeros_like(rows), group, rows)
    inverse = counts = hlo.full((0,), 0, torch.int64)
    if with_inverse:
        inverse = scatter_rows(hlo.zeros_like(group), places, group, unique=True) if places is not None else group
        inverse = hlo.convert(inverse, torch.int64)
    if with_counts:
        counts = scatter_rows(hlo.zeros_like(group), group, hlo.ones_like(group), hlo.add)
        counts = hlo.convert(counts, torch.int64)
    return distinct, inverse, counts, number


def _nothing(values: Value, inverse_shape: Sequence[int]) -> tuple[Value, Value, Value, Value]:
    empty = hlo.full((0,), 0, torch.int64)
    return values, hlo.full(inverse_shape, 0, torch.int64), empty, hlo.scalar(0, torch.int64)


@lowering("_unique2", dynamic=True, padded=[0, 2])
def unique(
    ctx: Context, x: Value, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Value, Value, Value, Value]:
    line = hlo.flatten(x)
    if x.numel == 0:
        return _nothing(line, x.shape if return_inverse else (0,))
    values, places = sort_with_places(line, 0)
    first = _differs_from_previous(values, 0)
    distinct, inverse, counts, number = _distinct(values, first, places, return_inverse, return_counts)
    return distinct, hlo.reshape(inverse, x.shape) if return_inverse else inverse, counts, number


@lowering("_unique", dynamic=True, padded=[0])
def unique_without_counts(
    ctx: Context, x: Value, sorted: bool = True, return_inverse: bool = False
) -> tuple[Value, Value, Value]:
    distinct, inverse, _, number = unique(ctx, x, sorted, return_inverse)
    return distinct, inverse, number


def _as_rows(x: Value, dim: int) -> Value:
    """The slices along a dimension as rows of a matrix."""
    front = hlo.move_dim(x, dim, 0)
    columns = front.numel // front.shape[0] if front.shape[0] else 0
    return hlo.reshape(front, (front.shape[0], columns))


def _from_rows(rows: Value, x: Value, dim: int) -> Value:
    rest = [size for axis, size in enumerate(x.shape) if axis != dim]
    return hlo.move_dim(hlo.reshape(rows, (rows.shape[0], *rest)), 0, dim)


def _sort_rows(rows: Value) -> tuple[Value, Value]:
    """Rows in lexicographic order: sorted stably by every column, the last one first."""
    length, columns = rows.shape
    zero = hlo.scalar(0, torch.int32)

    def step(index: Value, places: Value) -> list[Value]:
        column = hlo.dynamic_slice(rows, [zero, hlo.subtract(columns - 1, index)], (length, 1))
        keys = hlo.take(hlo.flatten(column), places)
        return [hlo.sort([keys, places], 0, order_of(False, rows.dtype))[1]]

    places = hlo.fori_loop(columns, [hlo.iota((length,), 0, index_dtype(length))], step)[0]
    return hlo.take(rows, places), places


@lowering("unique_dim", dynamic=True, padded=[0, 2], padded_along="dim")
def unique_dim(
    ctx: Context,
    x: Value,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Value, Value, Value, Value]:
    return _unique_rows(x, dim % max(x.ndim, 1), True, return_inverse, return_counts)


@lowering("unique_dim_consecutive", dynamic=True, padded=[0, 2], padded_along="dim")
def unique_dim_consecutive(
    ctx: Context, x: Value, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Value, Value, Value, Value]:
    return _unique_rows(x, dim % max(x.ndim, 1), False, return_inverse, return_counts)


def _unique_rows(
    x: Value, dim: int, resort: bool, with_inverse: bool, with_counts: bool
) -> tuple[Value, Value, Value, Value]:
    if x.numel == 0:
        if x.shape.count(0) != 1 or x.shape[dim] != 0:
            raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")
        return _nothing(x, (0,))
    if x.ndim == 0:
        x = hlo.reshape(x, (1,))
    rows, places = _as_rows(x, dim), None
    if resort:
        rows, places = _sort_rows(rows)
    first = hlo.reduce_or(_differs_from_previous(rows, 0), [1])
    distinct, inverse, counts, number = _distinct(rows, first, places, with_inverse, with_counts)
    return _from_rows(distinct, x, dim), inverse, counts, number


@lowering("unique_consecutive", dynamic=True, padded=[0, 2], padded_along="dim")
def unique_consecutive(
    ctx: Context,
    x: Value,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> tuple[Value, Value, Value, Value]:
    if dim is not None:
        return _unique_rows(x, dim % max(x.ndim, 1), False, return_inverse, return_counts)
    line = hlo.flatten(x)
    if x.numel == 0:
        return _nothing(line, x.shape if return_inverse else (0,))
    first = _differs_from_previous(line, 0)
    distinct, inverse, counts, number = _distinct(line, first, None, return_inverse, return_counts)
    return distinct, hlo.reshape(inverse, x.shape) if return_inverse else inverse, counts, number


# ----------------------------------------------------------------------------- searches in sorted sequences


def search(boundaries: Value, x: Value, right: bool) -> Value:
    """How many boundaries are smaller than each x (not larger than, if right), as int32 or int64.

    boundaries is (n,) for any x, or (batch, n) for x (batch, m). Every boundary is smaller than NaN.
    """
    length = boundaries.shape[-1]
    reached = hlo.greater if right else hlo.greater_equal
    kind = index_dtype(boundaries.numel)
    if length <= FEW:
        wide = hlo.expand_dims(x, [-1])
        many = hlo.broadcast_in_dim(boundaries, (*x.shape, length), [0, 2] if boundaries.ndim == 2 else [x.ndim])
        passed = ~reached(many, hlo.broadcast_to(wide, many.shape))
        return hlo.reduce_sum(hlo.convert(passed, kind), [x.ndim])
    line = hlo.flatten(boundaries)
    start = hlo.full(x.shape, 0, kind)
    if boundaries.ndim == 2:
        start = hlo.iota(x.shape, 0, kind) * length

    def step(index: Value, low: Value, high: Value) -> list[Value]:
        middle = hlo.shift_right_logical(low + high, hlo.full_like(low, 1))
        inside = hlo.less(low, high)
        found = reached(hlo.take(line, start + middle), x)
        return [hlo.select(inside & ~found, middle + 1, low), hlo.select(inside & found, middle, high)]

    state = [hlo.full(x.shape, 0, kind), hlo.full(x.shape, length, kind)]
    return hlo.fori_loop(length.bit_length(), state, step)[0]


@lowering("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    ctx: Context,
    boundaries: Value,
    x: Value,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    dtype = result_dtype([boundaries, x]) if boundaries.dtype is not x.dtype else x.dtype
    boundaries, x = hlo.convert(boundaries, dtype), hlo.convert(x, dtype)
    shape, length = x.shape, boundaries.shape[-1]
    if x.numel == 0 or length == 0:
        return hlo.full(shape, 0, torch.int64)
    if sorter is not None:
        lines = boundaries.numel // length
        rows = hlo.iota((lines, length), 0, sorter.dtype) * length
        ordered = hlo.take(hlo.flatten(boundaries), rows + hlo.reshape(sorter, (lines, length)))
        boundaries = hlo.reshape(ordered, boundaries.shape)
    if boundaries.ndim > 1:
        boundaries = hlo.reshape(boundaries, (boundaries.numel // length, length))
        x = hlo.reshape(x, (boundaries.shape[0], x.numel // boundaries.shape[0]))
    return hlo.reshape(search(boundaries, x, right or side == "right"), shape)


@lowering("bucketize.Tensor", "bucketize.Scalar")
def bucketize(ctx: Context, x: Value, boundaries: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    if boundaries.ndim != 1:
        raise RuntimeError(f"boundaries must have one dimension, not shape {boundaries.shape}")
    return searchsorted(ctx, boundaries, x, right=right)


@lowering("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor", promote=COMMON)
def isin(ctx: Context, x: Value, tests: Value, *, assume_unique: bool = False, invert: bool = False) -> Value:
    line = hlo.flatten(tests)
    if x.numel == 0 or line.numel == 0:
        found = hlo.full(x.shape, False, torch.bool)
    elif line.numel <= FEW:
        shape = (*x.shape, line.numel)
        hits = hlo.equal(hlo.broadcast_to(hlo.expand_dims(x, [-1]), shape), hlo.broadcast_to(line, shape))
        found = hlo.reduce_or(hits, [x.ndim])
    else:
        ordered = hlo.sort([line], 0, order_of(False, line.dtype))[0]
        found = hlo.equal(hlo.take(ordered, search(ordered, x, False)), x)  # a place past the end is clamped
    return ~found if invert else found
